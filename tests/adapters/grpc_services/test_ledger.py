"""Cuts of a mesh of services whose calls the ledger keeps: consistent, complete, and with every token (G1, G2, G3)."""

from collections.abc import Iterable

import msgspec
import pytest
from tests.adapters.grpc_services.played_mesh import Rules, play

from snapline.adapters.grpc.ledger import (
    LOST_ANSWER,
    PARENT_LENGTH_MAX,
    CallAnswer,
    CallLedger,
    DivergedCallError,
    HandlerExecution,
    LedgerImage,
    ServiceCall,
    nested_id,
)

WORLDS = 60
"""Some 550 cuts and 190 recoveries, within a second. Each mutant below falls within these."""


class NoTable(CallLedger):
    """Its answers are in no cut."""

    def image(self) -> LedgerImage:
        return msgspec.structs.replace(super().image(), answers={})


class NoPending(CallLedger):
    """Its pending calls are in no cut."""

    def image(self) -> LedgerImage:
        return msgspec.structs.replace(super().image(), pending=[])


class DropsTooEarly(CallLedger):
    """It forgets an answer when the next request comes."""

    def begin(self, call_id: str, digest: bytes = b"") -> HandlerExecution | CallAnswer:
        while len(self.answers) > 1:
            del self.answers[next(iter(self.answers))]
        return super().begin(call_id, digest)


class TellsNestedCallsTooEarly(CallLedger):
    """It says that a call is over when it has the answer, though its handler may run again."""

    def answered(self, call: ServiceCall, handling: HandlerExecution | None = None) -> None:
        if handling is not None and not handling.is_changed:
            self._is_over(call.target, call.id)
        super().answered(call, handling)


class RunsTwice(CallLedger):
    """It runs a request again though it has its answer."""

    def begin(self, call_id: str, digest: bytes = b"") -> HandlerExecution | CallAnswer:
        self.answers.pop(call_id, None)
        return super().begin(call_id, digest)


class RunsLateAttempts(CallLedger):
    """It does not know what is over."""

    def forget(self, ids: Iterable[str]) -> None:
        super().forget(ids)
        self._finished_ids.clear()


class NeverChanged(CallLedger):
    """It takes no note of what changes in the middle of a handler."""

    def changed(self, handling: HandlerExecution, answer: CallAnswer = LOST_ANSWER) -> None:
        return


class ForgetsItsCount(CallLedger):
    """Its ids come twice."""

    def image(self) -> LedgerImage:
        return msgspec.structs.replace(super().image(), ordinal=0)


MUTANTS = {
    "the answer's epoch is not recorded first": Rules(records_before_answers=False),
    "the request's epoch is not recorded first": Rules(records_before_requests=False),
    "requests of older plans are taken": Rules(refuses_older_plans=False),
    **{
        mutant.__name__: Rules(ledger=mutant)
        for mutant in (
            *(NoTable, NoPending, DropsTooEarly, TellsNestedCallsTooEarly, RunsTwice, RunsLateAttempts),
            *(NeverChanged, ForgetsItsCount),
        )
    },
}


def test_every_cut_is_consistent_and_comes_to_its_end_with_every_token() -> None:
    cuts = sum(play(seed, Rules()) for seed in range(WORLDS))
    assert cuts > 5 * WORLDS


@pytest.mark.parametrize("rules", MUTANTS.values(), ids=MUTANTS)
def test_mutants_fall(rules: Rules) -> None:
    with pytest.raises((AssertionError, DivergedCallError, KeyError)):
        for seed in range(WORLDS):
            play(seed, rules)


def test_a_handler_that_calls_something_else_when_it_is_run_again_is_told_so() -> None:
    ledger, again = CallLedger("b"), CallLedger("b")
    run = ledger.begin("a:1")
    assert isinstance(run, HandlerExecution)
    ledger.call(run, ServiceCall("", "c", "/s/Take", b""), b"5")
    again.restore(ledger.image())
    rerun = again.begin("a:1")
    assert isinstance(rerun, HandlerExecution)
    with pytest.raises(DivergedCallError, match=r"call a:1 was run again.*/s/Take, as a:1/1"):
        again.call(rerun, ServiceCall("", "c", "/s/Take", b""), b"6")


def test_a_handler_that_calls_less_when_it_is_run_again_is_told_so() -> None:
    """What it had asked for stands: it would be lost without a word."""
    ledger, again = CallLedger("b"), CallLedger("b")
    run = ledger.begin("a:1")
    assert isinstance(run, HandlerExecution)
    ledger.call(run, ServiceCall("", "c", "/s/Take", b""), b"5")
    again.restore(ledger.image())
    rerun = again.begin("a:1")
    assert isinstance(rerun, HandlerExecution)
    with pytest.raises(DivergedCallError, match="made 0 calls; before it had made 1"):
        again.finish(rerun, CallAnswer())


def test_another_request_under_an_id_that_was_answered_is_told_so() -> None:
    ledger = CallLedger("c")
    run = ledger.begin("a:1/1", b"one")
    assert isinstance(run, HandlerExecution)
    ledger.finish(run, CallAnswer(response=b"5"))
    assert ledger.begin("a:1/1", b"one") == CallAnswer(response=b"5", digest=b"one")
    with pytest.raises(DivergedCallError, match="a:1/1"):
        ledger.begin("a:1/1", b"two")


def test_listed_calls_are_never_made_again_but_shown() -> None:
    ledger, again = CallLedger("a"), CallLedger("a")
    ledger.call(None, ServiceCall("", "mail", "/mail/Send", b"", is_listed=True), b"dear")
    ledger.call(None, ServiceCall("", "c", "/s/Take", b""), b"5")
    again.restore(ledger.image())
    assert list(again.pending) == ["a:2"] and list(again.unsettled) == ["a:1"]
    third = CallLedger("a")
    third.restore(again.image())
    assert list(third.unsettled) == ["a:1"], "it stays until the service has settled it"
    third.settle("a:1")
    assert not third.image().unsettled


def test_ids_of_chains_without_an_end_stay_short_and_differ() -> None:
    """Handlers that hand work on for ever: each call is made within the handler of the one before."""
    chains = [f"{agent}:{ordinal}" for agent in ("a", "bank-of-the-north") for ordinal in range(1, 4)]
    ids: set[str] = set()
    for _ in range(500):
        chains = [nested_id(parent, ordinal) for parent in chains for ordinal in (1, 2)][:12]
        assert not ids & set(chains) and len(set(chains)) == len(chains)
        assert all(len(each) <= 2 * PARENT_LENGTH_MAX for each in chains)
        ids |= set(chains)
