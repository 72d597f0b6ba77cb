"""What a client's core does about answers, event by event."""

from collections.abc import Iterator

import pytest
from tests.client import test_core
from tests.client.test_core import SECOND, at

from snapline.client import client_events as ev
from snapline.client import core
from snapline.client.core import ASK_ATTEMPT_NS, ASKS_AT_ONCE
from snapline.client.queues import FINDING_NS, WAIT_LEAST_NS, WAIT_MOST_NS
from snapline.messages.answers import LocatedAgent
from snapline.messages.client_requests import AskOutcome

TOLD = AskOutcome("replied", 3, "Taken", b"\x80")
LATER = AskOutcome("retry", reason="the fleet recovers")


class Driven(test_core.Driven):
    """Its asks, too."""

    def want(self, ask: int, agent: str = "a", limit_s: float = 30) -> list[ev.Command]:
        return self.say(ev.AnswerRequested(ask, agent, self.now_ns + int(limit_s * SECOND)))

    def asked(self, ask: int = 1, agent: str = "a", host: str = "h1") -> ev.AskHost:
        """It waits at a host."""
        (said,) = self.want(ask, agent)
        if isinstance(said, ev.LookUpAgents):
            (said,) = self.found(said.request, at(agent, host))
        assert isinstance(said, ev.AskHost)
        return said


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.core.validate()


def find_of(commands: list[ev.Command]) -> ev.LookUpAgents:
    (said,) = commands
    assert isinstance(said, ev.LookUpAgents)
    return said


def ask_of(commands: list[ev.Command]) -> ev.AskHost:
    (said,) = commands
    assert isinstance(said, ev.AskHost)
    return said


def test_the_owner_is_found_and_asked_and_its_word_is_the_end(driven: Driven) -> None:
    finding = find_of(driven.want(1))
    assert (finding.agents, finding.limit_ns) == (("a",), FINDING_NS)
    asking = ask_of(driven.found(finding.request, at("a")))
    assert (asking.host, asking.address, asking.ask, asking.limit_ns) == ("h1", "h1:1", 1, ASK_ATTEMPT_NS)
    assert driven.say(ev.AnswerHeard(asking.request, TOLD)) == [ev.FinishAsk(1, "answered", "", TOLD)]
    assert driven.core.wakeup_ns is None
    assert driven.asked(2).host == "h1", "the place is remembered"


@pytest.mark.parametrize(("status", "ending"), [("buried", "buried"), ("unknown", "forgotten"), ("new", "denied")])
def test_other_words_that_are_final(driven: Driven, status: str, ending: str) -> None:
    (end,) = driven.say(ev.AnswerHeard(driven.asked().request, AskOutcome(status, 3, reason="why")))
    assert isinstance(end, ev.FinishAsk) and end.ending == ending


def test_retry_rests_and_asks_whoever_owns_it_then(driven: Driven) -> None:
    asking = driven.asked()
    assert driven.say(ev.AnswerHeard(asking.request, LATER)) == []
    assert driven.core.wakeup_ns is not None and WAIT_LEAST_NS // 2 <= driven.core.wakeup_ns <= WAIT_LEAST_NS
    again = ask_of(driven.found(find_of(driven.wake()).request, at("a", "h2")))
    assert again.host == "h2"
    assert driven.say(ev.AnswerHeard(again.request, TOLD)) == [ev.FinishAsk(1, "answered", "", TOLD)]


def test_a_host_that_knows_better_is_followed_at_once_and_once(driven: Driven) -> None:
    hint = AskOutcome("retry", reason="gone", host="h2", address="h2:1")
    back = AskOutcome("retry", reason="gone", host="h1", address="h1:1")
    there = ask_of(driven.say(ev.AnswerHeard(driven.asked().request, hint)))
    assert there.host == "h2"
    assert driven.say(ev.AnswerHeard(there.request, back)) == [], "two hosts may send us to each other"


def test_calls_that_fail_are_made_again_within_the_time_with_longer_waits(driven: Driven) -> None:
    asking = driven.asked()
    waits = []
    while True:
        said = driven.say(ev.RequestFailed(asking.request, "no answer"))
        before_ns = driven.now_ns
        woken = driven.wake()
        waits.append(driven.now_ns - before_ns)
        if isinstance(woken[0], ev.FinishAsk):
            break
        assert said == []
        asking = ask_of(driven.found(find_of(woken).request, at("a")))
        assert asking.limit_ns <= 30 * SECOND - driven.now_ns
    assert woken == [ev.FinishAsk(1, "late", "no answer")]
    assert driven.now_ns == 30 * SECOND
    assert max(waits) <= WAIT_MOST_NS and waits[0] < WAIT_LEAST_NS < waits[6]


def test_time_is_over_while_a_host_is_asked_and_its_word_comes_late(driven: Driven) -> None:
    asking = driven.asked()
    driven.now_ns = 30 * SECOND
    (end,) = driven.say(ev.TimerFired())
    assert isinstance(end, ev.FinishAsk) and end.ending == "late"
    assert driven.say(ev.AnswerHeard(asking.request, TOLD)) == []


@pytest.mark.parametrize(
    ("place", "phase", "ending"),
    [(at("a", state="left"), "running", "missing"), (at("a"), "finished", "ended"), (at("a"), "failed", "ended")],
)
def test_nobody_will_ever_answer(driven: Driven, place: LocatedAgent, phase: str, ending: str) -> None:
    (end,) = driven.found(find_of(driven.want(1)).request, place, phase=phase)
    assert isinstance(end, ev.FinishAsk) and end.ending == ending


@pytest.mark.parametrize("state", ["lost", "unplaced", "unknown"])
def test_an_agent_without_a_host_is_waited_for(driven: Driven, state: str) -> None:
    assert driven.found(find_of(driven.want(1)).request, at("a", state=state), phase="recovering") == []
    assert ask_of(driven.found(find_of(driven.wake()).request, at("a"))).ask == 1


def test_what_may_not_be_is_denied(driven: Driven) -> None:
    finding = find_of(driven.want(1))
    (end,) = driven.say(ev.LookupFailed(finding.request, "no", is_final=True))
    assert isinstance(end, ev.FinishAsk) and end.ending == "denied"
    (end,) = driven.say(ev.RequestFailed(driven.asked(2).request, "no", is_final=True))
    assert isinstance(end, ev.FinishAsk) and end.ending == "denied"


def test_a_coordinator_that_does_not_answer_is_asked_again(driven: Driven) -> None:
    finding = find_of(driven.want(1))
    assert driven.say(ev.LookupFailed(finding.request, "an election")) == []
    assert find_of(driven.wake()).agents == ("a",)


def test_one_host_is_asked_for_so_many_at_once_and_the_others_follow(driven: Driven) -> None:
    asked = [driven.asked(1)]
    for ask in range(2, ASKS_AT_ONCE + 1):
        asked.append(driven.asked(ask))
    assert driven.want(ASKS_AT_ONCE + 1) == [] and driven.want(ASKS_AT_ONCE + 2) == []
    end, following = driven.say(ev.AnswerHeard(asked[5].request, TOLD))
    assert isinstance(end, ev.FinishAsk) and end.ask == asked[5].ask
    assert isinstance(following, ev.AskHost) and following.ask == ASKS_AT_ONCE + 1
    assert driven.asked(99, "b", "h2").host == "h2", "another host has room"


def test_nobody_waits_any_more(driven: Driven) -> None:
    asking = driven.asked()
    assert driven.say(ev.AskDropped(1)) == [] and driven.core.wakeup_ns is None
    assert driven.say(ev.AnswerHeard(asking.request, LATER)) == []
    driven.want(2)
    assert [x for x in driven.say(ev.ClientClosed()) if isinstance(x, ev.FinishAsk)] == [
        ev.FinishAsk(2, "late", "the client was closed")
    ]
    assert driven.want(3) == [ev.FinishAsk(3, "late", "the client was closed")]


def test_a_send_and_an_ask_share_what_is_known(driven: Driven) -> None:
    asking = driven.asked()
    (offer,) = driven.say(ev.InputsGiven((ev.Send(1, "a", 10, SECOND),)))
    assert isinstance(offer, ev.OfferInputs) and offer.host == "h1"
    driven.say(ev.RequestFailed(asking.request, "broken"))
    assert isinstance(driven.say(ev.InputsGiven((ev.Send(2, "a", 10, SECOND),))), list)


def test_a_core_that_stays_with_the_first_host_is_found(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.OpenAsks, "_forget", lambda *_: None)
    with pytest.raises(AssertionError):
        test_retry_rests_and_asks_whoever_owns_it_then(driven)
