"""What durable turns wait for is looked for among what is new; the plain way, which looks at everything again each time, is the oracle.

And agents whose outboxes are full: nothing that is waited for gets lost, and no two of them wait for each other for ever.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent_runtime.driving import MS, Driver

from snapline.agent_runtime.durable import DONE, Pause, call_id, reply_payload
from snapline.agent_runtime.host import durable_turns, host_state
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent, OpenWait
from snapline.channels import channel
from snapline.channels import link_events as lk
from snapline.storage.packs.checkpoint import JournalEntry

SEED = bytes(16)
PAYLOADS = (b"\x04Told\x01", b"\x05Other\x02", b"\x02Go\x03")
CREDIT, PARKED, STASH = 4, 3, 9
WAITS = (
    JournalEntry("receive", "Told"),
    JournalEntry("receive", "Never"),
    JournalEntry("call", "z", b"12345678"),
    JournalEntry("call", "b", b"12345678"),
    JournalEntry("sleep", "", b"12345678"),
    JournalEntry("step", "look"),
)

Op = tuple[str, int, int]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a few messages reach."""
    monkeypatch.setattr(channel, "CHANNEL_CREDIT", CREDIT)
    monkeypatch.setattr("snapline.agent_runtime.host.channel_ends.CHANNEL_CREDIT", CREDIT)
    monkeypatch.setattr(host_state, "PARKED_MESSAGES_MAX", PARKED)
    monkeypatch.setattr(durable_turns, "STASH_MAX", STASH)


@contextmanager
def plainly() -> Iterator[None]:
    """Everything is looked at each time, and full channels are looked for each time."""
    find, put_off = DurableTurns._find, DurableTurns._make_room

    def find_again(self: DurableTurns, agent: LocalAgent, turn: DurableTurn) -> bool:
        turn.look = OpenWait()
        return find(self, agent, turn)

    def put_off_again(self: DurableTurns, agent: LocalAgent, turn: DurableTurn) -> bool:
        turn.look.is_pressed = True
        return put_off(self, agent, turn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurableTurns, "_find", find_again)
        patch.setattr(DurableTurns, "_make_room", put_off_again)
        yield


class Script:
    """A driver, and what may be done with it."""

    def __init__(self) -> None:
        self.driver = Driver(here=("a", "b"), there=("z", "y"))
        self.sent = {"z": 0, "y": 0}

    def play(self, ops: list[Op]) -> list[ev.HostOutput]:
        for what, number, other in ops:
            getattr(self, "_" + what)(number, other)
        return self.driver.said

    def _remote(self, number: int, other: int) -> None:
        """z or y sends, as far as it has credit."""
        sender = "zy"[number % 2]
        place = self.driver.remote.channels.get((sender, "a"), 0)
        if self.sent[sender] < self.driver.remote.credits.get(place, CREDIT):
            self.sent[sender] += 1
            self.driver.remote_sends(sender, "a", PAYLOADS[other % 3])
            self.driver.flush()

    def _reply(self, number: int, _other: int) -> None:
        """A reply that `a` waits for, from z or from b."""
        turn = self.driver.core.agents["a"].turn
        calls = [each for each in turn.open_requests() if each[1].kind == "call"] if turn is not None else []
        if not calls:
            return
        request_place, call = calls[number % len(calls)]
        payload = reply_payload(call_id(SEED, request_place), b"yes")
        place = self.driver.remote.channels.get(("z", "a"), 0)
        if call.name == "b":
            self._local(0, 0, payload)
        elif self.sent["z"] < self.driver.remote.credits.get(place, CREDIT):
            self.sent["z"] += 1
            self.driver.remote_sends("z", "a", payload)
            self.driver.flush()

    def _local(self, number: int, other: int, payload: bytes = b"") -> None:
        """b has a turn, and sends to `a`."""
        if "b" not in self.driver.turns and "b" in self.driver.core.agents:
            self.driver.wake("b")
        if "b" in self.driver.turns:
            sends = [("a", payload)] if payload else [("a", PAYLOADS[other % 3])] * (number % 6)
            self.driver.end("b", *sends)

    def _segment(self, number: int, other: int) -> None:
        """The turn of `a` ends a segment, with sends to y, and waits for something."""
        if "a" in self.driver.turns:
            sends = [("y", b"\x01s")] * (other % 7)
            pause = Pause(SEED, WAITS[number % len(WAITS)], 200 * MS, [])
            if number >= len(WAITS):
                members = [WAITS[n % len(WAITS)] for n in range(number, number + 2 + other % 4)]
                timeouts_ns = [(50 + 50 * n) * MS for n in range(len(members))]
                pause = Pause(SEED, members[0], None, [], True, members=members, timeouts_ns=list(timeouts_ns))
            self.driver.end("a", *sends, pause=pause)

    def _over(self, number: int, other: int) -> None:
        """The turn of `a` ends, with sends to y and to itself, and a timer."""
        if "a" in self.driver.turns:
            sends = [("y", b"\x01s")] * other + [("a", PAYLOADS[0])] * (number % 3)
            self.driver.end("a", *sends, timers=[("own", 5 * MS, b"\x03Own")])

    def _step(self, _number: int, _other: int) -> None:
        turn = self.driver.core.agents["a"].turn
        steps = [place for place, each in turn.open_requests() if each.kind == "step"] if turn is not None else []
        if steps:
            self.driver.feed(ev.StepEnded("a", 1, steps[0], DONE, b"r"))

    def _later(self, number: int, _other: int) -> None:
        self.driver.feed(ev.TimerFired(), (number % 3) * 100 * MS)

    def _taken(self, _number: int, _other: int) -> None:
        """y takes what has left, and says so."""
        remote = self.driver.remote
        for number, names in remote.opened.items():
            taken = sum([row[1] == names[:2] for row in remote.heard])
            said = lk.ItemsConsumed(0, 0, [number], [taken + CREDIT])
            remote.carry(remote.link.handle(self.driver.now, said))
        self.driver.flush()


OPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["remote", "remote", "reply", "local", "local", "segment", "segment", "over", "step", "later", "taken"]
        ),
        st.integers(0, 11),
        st.integers(0, 6),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=OPS)
def test_looking_at_what_is_new_finds_what_looking_at_all_finds(ops: list[Op]) -> None:
    found = Script().play(ops)
    with plainly():
        assert Script().play(ops) == found


def test_what_was_held_back_comes_before_what_was_looked_at() -> None:
    """A message to itself, deferred while the outbox was over its bound, is found when it is no more."""
    script = Script()
    driver = script.driver
    driver.remote_sends("z", "a", PAYLOADS[2])
    driver.end("a", ("a", PAYLOADS[0]), *[("y", b"\x01s")] * (CREDIT + PARKED + 1))
    driver.remote_sends("z", "a", PAYLOADS[2])
    driver.end("a", pause=Pause(SEED, WAITS[0], None, []))
    driver.remote_sends("z", "a", PAYLOADS[1])
    agent = driver.core.agents["a"]
    assert agent.deferred and "a" not in driver.turns
    driver.flush()
    script.play([("taken", 0, 0)])
    found = driver.turns["a"].found
    assert found is not None and (found.sender, found.result) == ("a", PAYLOADS[0])


def crowded(waits: JournalEntry) -> Script:
    """`a` waits in the middle of a turn, and its outbox is over the bound."""
    script = Script()
    script.driver.remote_sends("z", "a", PAYLOADS[2])
    script.driver.end("a", *[("y", b"\x01s")] * (CREDIT + PARKED + 1), pause=Pause(SEED, waits, None, []))
    script.driver.flush()
    return script


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_reply_is_not_put_off_by_the_agent_that_waits_for_it(is_restored: bool) -> None:
    """It stands in a channel that is full, and the outbox of who waits is full too."""
    script = crowded(WAITS[2])
    driver = script.driver
    turn = driver.core.agents["a"].turn
    assert turn is not None
    turn.is_live = not is_restored
    reply = reply_payload(call_id(SEED, 0), b"yes")
    driver.remote_sends("z", "a", PAYLOADS[1], PAYLOADS[1], reply, PAYLOADS[1])
    assert [(entry.outcome, entry.result) for entry in turn.journal] == [(DONE, b"yes")]
    assert "a" not in driver.turns, "it goes on when its outbox has drained"
    script.play([("taken", 0, 0)])
    assert "a" in driver.turns


def test_two_agents_that_can_put_nothing_off_any_more_go_on() -> None:
    """Each has sent more than the other has room for: stash, channel and outbox are full on both sides."""
    driver = Driver()
    many = 2 * (STASH + CREDIT + PARKED)
    for agent in ("a", "b"):
        driver.wake(agent)
    for agent, other in (("a", "b"), ("b", "a")):
        driver.end(agent, *[(other, PAYLOADS[1])] * many, pause=Pause(SEED, WAITS[5], None, []))
    for agent in ("a", "b"):
        driver.feed(ev.StepEnded(agent, 1, 0, DONE, b""))
    for agent in ("a", "b"):
        assert driver.turns[agent].found is not None, f"{agent} waits for the other one, which waits for it"
        driver.end(agent)
    seen = 0
    while driver.turns:
        seen += 1
        driver.end(next(iter(driver.turns)))
    assert seen == 2 * many
