"""A client's core, event by event."""

from collections.abc import Iterator, Sequence

import pytest

from snapline.client import client_events as ev
from snapline.client.core import ATTEMPT_NS, REQUESTS_MAX, ClientCore
from snapline.client.queues import BATCH_BYTES_MAX, BATCH_INPUTS_MAX, FINDING_NS, WAIT_LEAST_NS, WAIT_MOST_NS
from snapline.messages.answers import LocatedAgent, LocateReply
from snapline.messages.client_requests import InputOutcome

SECOND = 1_000_000_000
YES = InputOutcome("accepted", 1)
FULL = InputOutcome("retry", reason="too much waits")


class Driven:
    """A core, its clock, and short ways to feed it."""

    def __init__(self) -> None:
        self.core = ClientCore(seed=7)
        self.now_ns = 0
        self.sends = 0

    def say(self, event: ev.Event) -> list[ev.Command]:
        said = self.core.handle(self.now_ns, event)
        self.core.validate()
        return said

    def give(self, *agents: str, size: int = 10, limit_s: float = 30) -> list[ev.Command]:
        """One input for each of these."""
        sends = []
        for agent in agents:
            self.sends += 1
            sends.append(ev.Send(self.sends, agent, size, self.now_ns + int(limit_s * SECOND)))
        return self.say(ev.InputsGiven(tuple(sends)))

    def found(self, request: int, *places: LocatedAgent, phase: str = "running", reason: str = "") -> list[ev.Command]:
        return self.say(ev.AgentsFound(request, LocateReply(phase, reason, places)))

    def answer(self, request: int, *outcomes: InputOutcome) -> list[ev.Command]:
        return self.say(ev.RequestAnswered(request, outcomes))

    def wake(self) -> list[ev.Command]:
        assert self.core.wakeup_ns is not None
        self.now_ns = self.core.wakeup_ns
        return self.say(ev.TimerFired())

    def known(self, *agents: str, host: str = "h1") -> None:
        """These have been found before."""
        (finding,) = self.give(*agents)
        (offer,) = self.found(request_of(finding), *[at(agent, host) for agent in agents])
        self.answer(request_of(offer), *[YES] * len(agents))


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.core.validate()


def at(agent: str, host: str = "h1", state: str = "alive") -> LocatedAgent:
    return LocatedAgent(agent, state, host, f"{host}:1", 1)


def request_of(command: ev.Command) -> int:
    assert isinstance(command, ev.LookUpAgents | ev.OfferInputs)
    return command.request


def offers(commands: Sequence[ev.Command]) -> list[tuple[str, tuple[int, ...]]]:
    """Host and sends of each; nothing else was said."""
    found = []
    for command in commands:
        assert isinstance(command, ev.OfferInputs), command
        found.append((command.host, command.sends))
    return found


def endings(commands: Sequence[ev.Command]) -> list[tuple[int, str, str]]:
    """Send, ending and reason of those that are over."""
    return [(each.send, each.ending, each.reason) for each in commands if isinstance(each, ev.FinishSend)]


def test_an_agent_is_found_offered_and_remembered(driven: Driven) -> None:
    assert driven.give("a") == [ev.LookUpAgents(1, ("a",), FINDING_NS)]
    assert driven.found(1, at("a")) == [ev.OfferInputs(2, "h1", "h1:1", (1,), ATTEMPT_NS)]
    assert driven.answer(2, InputOutcome("accepted", 5)) == [ev.FinishSend(1, "taken", "", 5, False)]
    assert driven.give("a") == [ev.OfferInputs(3, "h1", "h1:1", (2,), ATTEMPT_NS)]
    assert driven.answer(3, InputOutcome("repeated", 5)) == [ev.FinishSend(2, "taken", "", 5, True)]
    assert driven.core.wakeup_ns is None, "nothing is left to wait for"


def test_a_request_waits_no_longer_than_anybody_does(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", "a", limit_s=2)
    assert isinstance(offer, ev.OfferInputs) and offer.limit_ns == 2 * SECOND


def test_what_gathers_while_a_request_is_under_way_goes_as_one(driven: Driven) -> None:
    driven.known("a", "b")
    assert offers(driven.give("a")) == [("h1", (3,))]
    assert driven.give("a", "a") == [], "one request of an agent at a time"
    assert offers(driven.give("b")) == [("h1", (6,))], "another agent does not wait"
    assert offers(driven.answer(3, YES)[1:]) == [("h1", (4, 5))]


def test_batches_are_bounded_and_what_is_large_goes_alone(driven: Driven) -> None:
    agents = [f"a{number}" for number in range(4)]
    driven.known(*agents)
    for agent in agents:
        driven.give(agent)  # all are out
    driven.give(*agents * BATCH_INPUTS_MAX)
    (offer,) = offers(driven.answer(3, YES)[1:])
    assert len(offer[1]) == BATCH_INPUTS_MAX
    large = Driven()
    large.known("a", "b", "c")
    assert offers(large.give("a", "b", "c", size=BATCH_BYTES_MAX // 2 + 1)) == [
        ("h1", (4,)),
        ("h1", (5,)),
        ("h1", (6,)),
    ]
    large = Driven()
    large.known("a", "b", "c")
    assert offers(large.give("a", "b", "c", size=BATCH_BYTES_MAX // 2)) == [("h1", (4, 5)), ("h1", (6,))]


def test_a_host_has_few_requests_at_a_time(driven: Driven) -> None:
    agents = [f"a{number}" for number in range(REQUESTS_MAX + 3)]
    driven.known(*agents)
    said = [driven.give(agent) for agent in agents]
    assert [len(each) for each in said] == [1] * REQUESTS_MAX + [0] * 3
    first = said[0][0]
    ((_, sends),) = offers(driven.answer(request_of(first), YES)[1:])
    assert len(sends) == 3, "those that had to wait go together"


def test_what_was_not_taken_goes_before_what_came_since(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", "a", "a")
    driven.give("a")
    assert endings(driven.answer(request_of(offer), YES, FULL, FULL)) == [(2, "taken", "")]
    (finding,) = driven.wake()
    assert offers(driven.found(request_of(finding), at("a", "h2"))) == [("h2", (3, 4, 5))]


def test_a_hint_is_followed_at_once_and_the_next_one_is_waited_for(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a")
    elsewhere = InputOutcome("retry", reason="not here", host="h2", address="h2:1")
    back = InputOutcome("retry", reason="not here", host="h1", address="h1:1")
    (again,) = driven.answer(request_of(offer), elsewhere)
    assert offers([again]) == [("h2", (2,))]
    assert driven.answer(request_of(again), back) == []
    assert offers(driven.wake()) == [("h1", (2,))]


def test_a_hint_to_the_host_itself_says_nothing(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a")
    assert driven.answer(request_of(offer), InputOutcome("retry", host="h1", address="h1:1")) == []
    assert isinstance(driven.wake()[0], ev.LookUpAgents)


def test_waits_grow_to_a_second_and_begin_anew_after_a_success(driven: Driven) -> None:
    driven.known("a")
    (said,) = driven.give("a", limit_s=1000)
    waits = []
    for _ in range(9):
        assert driven.answer(request_of(said), FULL) == []
        began_ns = driven.now_ns
        (finding,) = driven.wake()
        waits.append(driven.now_ns - began_ns)
        (said,) = driven.found(request_of(finding), at("a"))
    full = [min(WAIT_LEAST_NS * 2**number, WAIT_MOST_NS) for number in range(9)]
    assert all(most // 2 <= wait < most for wait, most in zip(waits, full, strict=True))
    driven.answer(request_of(said), YES)
    (said,) = driven.give("a")
    driven.answer(request_of(said), FULL)
    assert driven.core.wakeup_ns is not None and driven.core.wakeup_ns - driven.now_ns < WAIT_LEAST_NS


def test_clients_that_lost_the_same_host_do_not_come_back_together() -> None:
    wakes = []
    for seed in range(50):
        driven = Driven()
        driven.core = ClientCore(seed)
        (finding,) = driven.give("a")
        driven.say(ev.LookupFailed(request_of(finding), "nobody leads"))
        wakes.append(driven.core.wakeup_ns)
    assert len(set(wakes)) == 50


def test_time_ends_a_send_with_what_is_known(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", limit_s=1)
    driven.give("a", limit_s=1)
    assert endings(driven.wake()) == [
        (2, "unknown", "nobody has answered yet"),
        (3, "not taken", "nobody has answered yet"),
    ]
    assert driven.answer(request_of(offer), YES) == [], "too late: nobody waits"
    driven.give("b", limit_s=0.01)
    assert endings(driven.wake()) == [(4, "not taken", "nobody has answered yet")]


def test_doubt_stays(driven: Driven) -> None:
    """The request that broke may still arrive: a later no is no word about it."""
    driven.known("a")
    (offer,) = driven.give("a")
    driven.say(ev.RequestFailed(request_of(offer), "the stream broke"))
    (finding,) = driven.wake()
    (offer,) = driven.found(request_of(finding), at("a", "h2"))
    assert endings(driven.answer(request_of(offer), InputOutcome("refused", reason="it has stopped"))) == [
        (2, "unknown", "it has stopped")
    ]


def test_what_was_never_sent_is_not_in_doubt(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", limit_s=1)
    driven.say(ev.RequestFailed(request_of(offer), "connection refused", is_unsent=True))
    (finding,) = driven.wake()
    driven.now_ns = 2 * SECOND
    assert endings(driven.say(ev.TimerFired())) == [(2, "not taken", "connection refused")]
    assert driven.found(request_of(finding), at("a")) == []


def test_an_answer_of_the_wrong_length_says_nothing(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", "a")
    assert driven.answer(request_of(offer), YES) == []
    (finding,) = driven.wake()
    assert offers(driven.found(request_of(finding), at("a"))) == [("h1", (2, 3))]


def test_a_word_of_a_later_version_ends_it_as_unknown(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a")
    assert endings(driven.answer(request_of(offer), InputOutcome("postponed"))) == [
        (2, "unknown", "the host answered 'postponed', which this version does not know")
    ]


@pytest.mark.parametrize(
    ("place", "phase", "ending", "words"),
    [
        (LocatedAgent("a", "unknown"), "running", "missing", "agent 'a' is not in this fleet"),
        (LocatedAgent("a", "left"), "recovering", "missing", "agent 'a' has stopped"),
        (at("a"), "finished", "ended", "the fleet has ended: all is done"),
        (at("a"), "failed", "ended", "the fleet has failed: all is done"),
    ],
)
def test_what_will_not_change_ends_all_sends_to_an_agent(
    driven: Driven, place: LocatedAgent, phase: str, ending: str, words: str
) -> None:
    (finding,) = driven.give("a", "a")
    found = endings(driven.found(request_of(finding), place, phase=phase, reason="all is done"))
    assert [(send, end) for send, end, _ in found] == [(1, ending), (2, ending)]
    assert all(reason.startswith(words) for _, _, reason in found)


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        (LocatedAgent("a", "unknown"), "forming"),
        (LocatedAgent("a", "unplaced"), "forming"),
        (at("a", state="lost"), "recovering"),
        (at("b"), "running"),
    ],
)
def test_what_may_change_is_waited_for(driven: Driven, place: LocatedAgent, phase: str) -> None:
    (finding,) = driven.give("a")
    assert driven.found(request_of(finding), place, phase=phase) == []
    assert isinstance(driven.wake()[0], ev.LookUpAgents)


def test_who_may_not_is_told_at_once(driven: Driven) -> None:
    (finding,) = driven.give("a", "a")
    said = driven.say(ev.LookupFailed(request_of(finding), "this certificate may not", is_final=True))
    assert endings(said) == [(1, "denied", "this certificate may not"), (2, "denied", "this certificate may not")]
    driven.known("a")
    (offer,) = driven.give("a")
    driven.give("a")
    said = driven.say(ev.RequestFailed(request_of(offer), "no such call", is_unsent=True, is_final=True))
    assert [end for _, end, _ in endings(said)] == ["denied", "denied"]


def test_many_agents_are_found_by_one_call_and_those_that_come_meanwhile_by_the_next(driven: Driven) -> None:
    (finding,) = driven.give("a", "b")
    assert driven.give("c") == []
    said = driven.found(request_of(finding), at("a"), at("b", "h2"))
    assert [each.agents for each in said if isinstance(each, ev.LookUpAgents)] == [("c",)]
    assert offers(said[1:]) == [("h1", (1,)), ("h2", (2,))]


def test_what_nobody_waits_for_is_not_sent(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a", "a")
    driven.give("a", "a")
    assert driven.say(ev.SendsDropped((2, 4))) == []
    said = driven.answer(request_of(offer), YES, YES)
    assert endings(said) == [(3, "taken", "")] and offers(said[1:]) == [("h1", (5,))]
    driven.give("b")
    assert driven.say(ev.SendsDropped((6,))) == []


def test_a_closed_client_ends_everything_and_takes_nothing(driven: Driven) -> None:
    driven.known("a")
    (offer,) = driven.give("a")
    driven.give("a", "b")
    assert endings(driven.say(ev.ClientClosed())) == [
        (2, "unknown", "the client was closed"),
        (3, "not taken", "the client was closed"),
        (4, "not taken", "the client was closed"),
    ]
    assert driven.answer(request_of(offer), YES) == []
    assert endings(driven.give("a")) == [(5, "not taken", "the client was closed")]
