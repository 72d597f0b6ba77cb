"""Differences between byte strings: making them gives the new string, and they are short where little has changed."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.storage.log import changes as changes_module
from snapline.storage.log.changes import CHANGES_MAX, Replacement, apply, changes_between

CONTENTS = {"zeros": bytes(300_000), "random": random.Random(1).randbytes(300_000), "text": b"one two " * 40_000}


@given(st.data())
def test_making_the_changes_gives_the_new_string(data: st.DataObject) -> None:
    """The strings have few different bytes, so probes are often found at wrong places."""
    pieces = st.lists(st.sampled_from([b"", b"a", b"ab", bytes(40), b"0123456789" * 5, b"a" * 70]), max_size=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes_module, "PROBE_BYTES", data.draw(st.sampled_from([1, 4, 32])))
        patch.setattr(changes_module, "CHANGES_MAX", data.draw(st.sampled_from([1, 2, 64])))
        patch.setattr(changes_module, "_BLOCK_BYTES", data.draw(st.sampled_from([1, 8, 1000])))
        old, new = b"".join(data.draw(pieces)), b"".join(data.draw(pieces))
        changes = changes_between(old, new)
        assert apply(old, changes) == new
        assert len(changes) <= changes_module.CHANGES_MAX
        assert all(x.start + x.length <= y.start for x, y in itertools.pairwise(changes))


@pytest.mark.parametrize("content", CONTENTS)
def test_few_changes_are_short(content: str) -> None:
    old = CONTENTS[content]
    changed = {
        "nothing": old,
        "a counter": old[:100] + b"####" + old[104:],
        "a record at the end": old + b"#" * 50,
        "a counter that grew, and a record": old[:100] + b"#####" + old[104:] + b"#" * 50,
        "the oldest record replaced by a new one": old[:8] + old[68:] + b"#" * 60,
        "three places": old[:10] + b"#" + old[10:150_000] + b"##" + old[150_100:200_000] + b"#" + old[200_001:],
    }
    for what, new in changed.items():
        changes = changes_between(old, new)
        assert apply(old, changes) == new
        assert sum(len(each.data) for each in changes) <= 200, what


def test_entirely_different_strings_are_one_change() -> None:
    new = random.Random(2).randbytes(300_000)
    assert changes_between(CONTENTS["random"], new) == [Replacement(0, 300_000, new)]


def test_after_many_changes_the_last_one_replaces_the_rest_but_for_its_end() -> None:
    old = CONTENTS["random"]
    new = bytearray(old)
    for place in range(0, 200_000, 1000):
        new[place] ^= 1
    changes = changes_between(old, bytes(new))
    assert apply(old, changes) == new and len(changes) == CHANGES_MAX
    assert changes[-1].start + changes[-1].length == 199_001


@pytest.mark.parametrize("wrong", [Replacement(4, 2, b""), Replacement(-1, 1, b""), Replacement(6, 0, b"")])
def test_changes_that_do_not_fit_are_refused(wrong: Replacement) -> None:
    with pytest.raises(ValueError, match="does not fit 5 bytes"):
        apply(b"12345", [wrong])
    with pytest.raises(ValueError, match="does not fit"):
        apply(b"12345", [Replacement(2, 2, b""), Replacement(3, 1, b"")])
