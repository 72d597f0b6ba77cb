"""Faults put into the link on purpose: the named tests must notice."""

import msgspec
import pytest
from tests.channels import test_link
from tests.channels.test_link import make

from snapline.channels.frame import Frame, LinkHello, Refused
from snapline.channels.link import LinkCore
from snapline.channels.link_events import Command


def attempts_are_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The acceptor refuses every attempt that is not above the highest it has ever seen, with or without a stream."""
    judge = LinkCore.judge

    def mutant(self: LinkCore, hello: LinkHello) -> Refused | None:
        if not self.is_dialler and hello.attempt < self.attempt:
            return Refused("an older attempt", False)
        return judge(self, hello)

    patch.setattr(LinkCore, "judge", mutant)


def late_attempts_replace_the_current_stream(patch: pytest.MonkeyPatch) -> None:
    judge = LinkCore.judge

    def mutant(self: LinkCore, hello: LinkHello) -> Refused | None:
        phase, self._phase = self._phase, "idle"
        try:
            return judge(self, hello)
        finally:
            self._phase = phase

    patch.setattr(LinkCore, "judge", mutant)


def the_floor_is_that_of_who_accepts(patch: pytest.MonkeyPatch) -> None:
    on_hello = LinkCore._on_hello

    def mutant(self: LinkCore, now_ns: int, frame: Frame, hello: LinkHello) -> list[Command]:
        said = hello if self.is_dialler else msgspec.structs.replace(hello, floor=0)
        return on_hello(self, now_ns, frame, said)

    patch.setattr(LinkCore, "_on_hello", mutant)


def test_a_floor_of_one_end_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    the_floor_is_that_of_who_accepts(monkeypatch)
    with pytest.raises(AssertionError):
        test_link.test_the_ends_agree_on_the_newest_epoch_of_both(make(is_dialler=True), make(is_dialler=False), 5, 2)


def test_a_lock_out_by_an_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts_are_never_forgotten(monkeypatch)
    with pytest.raises(AssertionError):
        test_link.test_an_attempt_far_ahead_shuts_the_peer_out_for_no_longer_than_its_stream_lives(
            make(is_dialler=False)
        )


def test_a_replacement_by_a_late_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    late_attempts_replace_the_current_stream(monkeypatch)
    with pytest.raises(AssertionError):
        test_link.test_judge_changes_nothing_and_wants_a_newer_attempt(make(is_dialler=False))
