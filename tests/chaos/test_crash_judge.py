"""What lives say is judged: against a second judgement by other means, and each kind by its smallest story."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from snapline.chaos.crash_kit import Life, judge

END = '"end"'


def story(*lives: Life) -> list[Life]:
    return [*lives, Life(0, "done", END), Life(0, "done", END)]


def kinds(*lives: Life) -> list[str]:
    return [each.kind for each in judge(story(*lives), END)]


KEPT = Life(3, "killed", "", (), (("began", "a"), ("kept", "a")))


def test_each_kind_by_its_smallest_story() -> None:
    assert kinds(KEPT) == []
    assert kinds(KEPT, Life(5, "killed", "", ("a",))) == []
    assert kinds(KEPT, Life(5, "killed", "", ())) == ["lost"]
    assert kinds(KEPT, Life(5, "killed", "", None)) == [], "it did not get as far as to look"
    assert kinds(KEPT, Life(5, "killed", "", ("a", "b"))) == ["invented"]
    assert kinds(KEPT, Life(5, "killed", "", ("a",), (("began", "a"),))) == ["repeated"]
    assert kinds(Life(3, "killed", "", (), (("began", "a"),)), Life(5, "killed", "", (), (("began", "a"),))) == []
    assert kinds(Life(3, "killed", "", (), (("began", "a"), ("kept", "a"), ("began", "a")))) == [], "in one life it may"
    assert kinds(KEPT, Life(0, "failed", "OSError")) == ["broken"] == kinds(KEPT, Life(0, "hangs"))
    assert [x.kind for x in judge([KEPT, Life(0, "done", "1"), Life(0, "done", "1")], END)] == ["different"]
    assert [x.kind for x in judge([KEPT, Life(0, "done", END), Life(0, "done", "1")], END)] == ["unsettled"]


NAMES = st.sampled_from("abc")
LIFE = st.tuples(
    st.none() | st.frozensets(NAMES), st.lists(st.tuples(st.sampled_from(["began", "kept"]), NAMES), max_size=6)
)


@given(st.lists(LIFE, max_size=4))
def test_words_are_judged_as_sets_would(lives: list[tuple[frozenset[str] | None, list[tuple[str, str]]]]) -> None:
    told = [
        Life(1, "killed", "", None if found is None else tuple(sorted(found)), tuple(words)) for found, words in lives
    ]
    expected = Counter[str]()
    for index, (found, words) in enumerate(lives):
        before = [word for _, earlier in lives[:index] for word in earlier]
        kept, begun = {of for word, of in before if word == "kept"}, {of for word, of in before if word == "began"}
        if found is not None:
            expected["lost"] += len(kept - found)
            expected["invented"] += len(found - begun - kept)
        expected["repeated"] += len(kept & {of for word, of in words if word == "began"})
    assert Counter(kinds(*told)) == +expected
