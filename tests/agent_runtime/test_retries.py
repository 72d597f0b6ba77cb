"""A message that is tried again after a while: it keeps its place, and the agent stands between two turns meanwhile.

Each mend has a mutant, which one of the tests finds.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import MS, SECOND, Driver, checkpoint, logged

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Entry, MessageEntry
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.mailboxes import Timers
from snapline.agent_runtime.host.modes.coordinated import CoordinatedMode
from snapline.agent_runtime.host.modes.logged import LoggedMode
from snapline.agent_runtime.host.turn_ends import TurnEnds
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.errors import FleetDefinitionError
from snapline.messages import host_messages as msg
from snapline.sim.pytest_plugin import Simulation

WAITS: dict[str, Any] = {"retries": 2, "waits_ns": (SECOND, 2 * SECOND)}

Patch = pytest.MonkeyPatch


def pass_time(driver: Driver, after_ns: int) -> None:
    driver.feed(ev.TimerFired(), after_ns)


def test_a_message_is_tried_again_when_its_time_has_come() -> None:
    driver = Driver()
    driver.wake("a")
    first = driver.turns["a"]
    undone, note = driver.fail("a", **WAITS)
    assert undone == ev.UndoTurn("a"), "the state goes back at once"
    assert isinstance(note, ev.Note), "a fleet that waits for minutes must not do so in silence"
    assert note.text == "a message from z to a failed, and is tried again in 1 s: ValueError: no"
    wakeup_ns = driver.core.wakeup_ns
    assert wakeup_ns is not None and wakeup_ns <= driver.now + SECOND
    pass_time(driver, SECOND - MS)
    assert "a" not in driver.turns
    pass_time(driver, MS)
    assert driver.turns["a"] == first
    driver.fail("a", **WAITS)
    pass_time(driver, SECOND)
    assert "a" not in driver.turns, "the second wait is longer"
    pass_time(driver, SECOND)
    driver.fail("a", **WAITS)
    (letter,) = driver.core.agents["a"].dead_letters
    assert letter.attempts == 3 and "a" not in driver.turns


def test_a_wait_of_nothing_is_none() -> None:
    driver = Driver()
    driver.wake("a")
    first = driver.turns["a"]
    assert driver.fail("a", retries=1, waits_ns=(0,)) == [ev.UndoTurn("a"), first]


def test_nothing_overtakes_a_message_that_waits() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", b"\x011", b"\x012")
    driver.fail("a", **WAITS)
    driver.remote_sends("z", "a", b"\x013")
    driver.wake("b")
    driver.end("b", ("a", b"\x01b"))
    assert "a" not in driver.turns
    pass_time(driver, SECOND)
    seen = []
    while "a" in driver.turns:
        seen.append(driver.turns["a"].payload)
        driver.end("a")
    assert seen == [b"\x011", b"\x012", b"\x013", b"\x01b"]
    assert driver.core.agents["a"].attempts == 0


def test_the_next_message_has_all_its_attempts() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", b"\x011", b"\x012")
    driver.fail("a", **WAITS)
    pass_time(driver, SECOND)
    driver.end("a")
    driver.fail("a", **WAITS)
    pass_time(driver, SECOND)
    assert driver.turns["a"].payload == b"\x012"


def test_an_epoch_does_not_wait_for_a_message_that_waits() -> None:
    """It is in transit in the cut, so a recovery delivers it again."""
    driver = Driver()
    driver.remote_sends("z", "a", b"\x011", b"\x012")
    driver.fail("a", **WAITS)
    driver.feed(msg.BeginEpoch(1, 1))
    (capture,) = driver.captures("a")
    assert capture.control.is_started
    driver.flush()
    driver.remote.mark(1, {("z", "a"): 2})
    driver.pump()
    (stored,) = driver.all_of(ev.StoreEpoch)
    assert [message.payload for message in stored.records["a"].in_transit["z"]] == [b"\x011", b"\x012"]
    assert stored.records["a"].received.get("z", 0) == 0
    pass_time(driver, SECOND)
    assert driver.turns["a"].payload == b"\x011"


def test_a_timer_that_is_tried_again_and_a_start_are_in_the_checkpoint() -> None:
    driver = Driver(here=("a", "b"), starts=False)
    driver.end("b", timers=[("tick", MS, b"\x01t")])
    pass_time(driver, MS)
    driver.fail("b", **WAITS)
    driver.fail("a", **WAITS)
    driver.feed(msg.BeginEpoch(1, 1))
    assert [timer.name for timer in driver.captures("b")[0].control.timers] == ["tick"]
    assert not driver.captures("a")[0].control.is_started


def test_a_plan_ends_the_wait_and_the_message_is_tried_at_once() -> None:
    driver = Driver(checkpoints={"a": checkpoint("a"), "b": checkpoint("b")})
    driver.wake("a")
    driver.fail("a", **WAITS)
    driver.receive_plan(2, line=3)
    driver.load(2)
    driver.wake("a")
    assert "a" in driver.turns
    driver.end("a")
    pass_time(driver, 5 * SECOND)
    assert "a" not in driver.turns


def test_a_message_is_traced_as_received_when_it_was() -> None:
    """A checkpoint that is taken while it waits does not hold it."""
    driver = Driver()
    driver.core.shared.trace_every = 1
    driver.wake("a")
    driver.fail("a", **WAITS)
    pass_time(driver, SECOND)
    assert not driver.all_of(ev.Trace)
    driver.end("a")
    assert [trace.what for trace in driver.all_of(ev.Trace)] == ["receive"]


@pytest.mark.parametrize("protocol", ["nras", "fdas", "hmnr"])
def test_a_checkpoint_parts_it_from_what_left_while_it_waited(protocol: str) -> None:
    """That was sent before it was received, in one interval: a path from the one to the other that no vector shows."""
    driver = Driver(protocol=protocol, starts=False)
    driver.end("a", *[("b", b"\x01a")] * (CHANNEL_CREDIT + 1))  # one more than may leave: it is parked
    driver.end("b", ("a", b"\x01b"))
    before = forced(driver, "a")
    driver.fail("a", **WAITS)
    while driver.core.agents["a"].parked:
        driver.end("b")
    pass_time(driver, SECOND)
    assert forced(driver, "a") == before + 1
    assert driver.turns["a"].payload == b"\x01b"


def forced(driver: Driver, agent: str) -> int:
    return sum(taken.agent == agent and taken.basis == "forced" for taken in driver.all_of(ev.TakeCheckpoint))


def test_what_leaves_during_a_turn_that_fails_and_waits_is_noted() -> None:
    """Else the agent would for ever look as if it had not come to rest. The core's own invariants find it."""
    driver = Driver(protocol="bcs", starts=False)
    driver.end("a", *[("b", b"\x01a")] * (CHANNEL_CREDIT + 1))
    driver.end("b", ("a", b"\x01b"))
    agent = driver.core.agents["a"]
    logged(driver.core)._saving.take(agent, "basic")
    while agent.parked:
        driver.end("b")
    assert agent.logged.has_moved
    driver.fail("a", **WAITS)
    assert agent.logged.clock.has_consumed


# ---- what a class says ----------------------------------------------------------------------------------------------


class Nothing(msgspec.Struct):
    count: int = 0


class Go(snapline.Message):
    pass


class Patient(snapline.Agent):
    state: Nothing
    retries = (0.5, 5)

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        raise ValueError("no")


def test_a_class_says_how_long_to_wait() -> None:
    fleet = snapline.Fleet("patient", agents={"a": Patient(Nothing())})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", fleet.make("a"))
    failed = turns.run(ev.StartTurn("a", 1, "message", "b", encode_message(Go())))
    assert isinstance(failed, ev.TurnFailed)
    assert (failed.retries, failed.waits_ns) == (2, (500_000_000, 5_000_000_000))


@pytest.mark.parametrize("given", [-1, 1.5, True, "1", (1, -1), (1, "x"), (float("nan"),), (1e9,), None])
def test_what_says_no_number_of_retries(given: Any) -> None:
    wrong = type("Wrong", (Patient,), {"retries": given, "__module__": __name__})
    with pytest.raises(FleetDefinitionError, match=r"Wrong.retries is .*: use a number from 0 on, or the seconds"):
        agent_type(wrong)


@pytest.mark.parametrize(("given", "found"), [(0, (0, ())), ((), (0, ())), ([0, 1], (2, (0, 1_000_000_000)))])
def test_what_says_one(given: Any, found: tuple[int, tuple[int, ...]]) -> None:
    known = agent_type(type("Right", (Patient,), {"retries": given, "__module__": __name__}))
    assert (known.retries, known.waits_ns) == found


# ---- mutants --------------------------------------------------------------------------------------------------------


def it_waits_in_the_middle_of_its_turn(patch: Patch) -> None:
    patch.setattr(TurnEnds, "_wait_to_retry", lambda self, agent, wait_ns: self._timers.retry_in(agent, wait_ns))


def it_goes_to_the_end_of_the_queue(patch: Patch) -> None:
    original = TurnEnds._wait_to_retry

    def wait(self: TurnEnds, agent: LocalAgent, wait_ns: int) -> None:
        original(self, agent, wait_ns)
        agent.mailbox.rotate(-1)

    patch.setattr(TurnEnds, "_wait_to_retry", wait)


def others_take_their_turns_meanwhile(patch: Patch) -> None:
    original = TurnEnds._wait_to_retry

    def wait(self: TurnEnds, agent: LocalAgent, wait_ns: int) -> None:
        original(self, agent, wait_ns)
        agent.retry_ns = None
        agent.mailbox.rotate(-1)
        self._mailboxes.next_turn(agent)

    patch.setattr(TurnEnds, "_wait_to_retry", wait)


def it_is_merged_already(patch: Patch) -> None:
    original = LoggedMode.consuming

    def consuming(self: LoggedMode, agent: LocalAgent, entry: Entry) -> None:
        attempts, agent.attempts = agent.attempts, 0
        original(self, agent, entry)
        agent.attempts = attempts

    patch.setattr(LoggedMode, "consuming", consuming)


def its_protocol_does_not_see_it_again(patch: Patch) -> None:
    original = LoggedMode.tried

    def tried(self: LoggedMode, agent: LocalAgent) -> None:
        original(self, agent)
        agent.logged.admitted = True

    patch.setattr(LoggedMode, "tried", tried)


def what_left_during_its_turn_is_not_noted(patch: Patch) -> None:
    def tried(self: LoggedMode, agent: LocalAgent) -> None:
        agent.logged.admitted = False

    patch.setattr(LoggedMode, "tried", tried)


def nobody_wakes_it(patch: Patch) -> None:
    patch.setattr(Timers, "retry", lambda self: None)


def the_receive_is_traced_at_the_first_try(patch: Patch) -> None:
    original = CoordinatedMode.consuming

    def consuming(self: CoordinatedMode, agent: LocalAgent, entry: Entry) -> None:
        original(self, agent, entry)
        if self._shared.trace_every and isinstance(entry, MessageEntry):
            inlet = entry.inlet
            self._shared.out.append(ev.Trace("receive", agent.id, inlet.sender, inlet.consumed + 1))

    patch.setattr(CoordinatedMode, "consuming", consuming)


def in_fdas() -> None:
    test_a_checkpoint_parts_it_from_what_left_while_it_waited("fdas")


@pytest.mark.parametrize(
    ("mutant", "found_by"),
    [
        (it_waits_in_the_middle_of_its_turn, test_an_epoch_does_not_wait_for_a_message_that_waits),
        (it_goes_to_the_end_of_the_queue, test_nothing_overtakes_a_message_that_waits),
        (others_take_their_turns_meanwhile, test_nothing_overtakes_a_message_that_waits),
        (its_protocol_does_not_see_it_again, in_fdas),
        (it_is_merged_already, in_fdas),
        (what_left_during_its_turn_is_not_noted, test_what_leaves_during_a_turn_that_fails_and_waits_is_noted),
        (nobody_wakes_it, test_a_message_is_tried_again_when_its_time_has_come),
        (the_receive_is_traced_at_the_first_try, test_a_message_is_traced_as_received_when_it_was),
    ],
)
def test_the_mutant_is_found(mutant: Callable[[Patch], None], found_by: Callable[[], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        found_by()


# -- durable turns ----------------------------------------------------------------------------------------------------


class Begin(snapline.Message):
    pass


class Said(snapline.Message):
    pass


class Heard(msgspec.Struct):
    times: int = 0


def attempt() -> None:
    raise AssertionError("the simulator calls the stub")


class Trier(snapline.Agent):
    state: Heard
    retries = 3

    async def on_start(self, ctx: snapline.Context) -> None:
        if ctx.agent == "trier":
            ctx.send(ctx.agent, Begin())

    @snapline.handler(durable=True)
    async def on_begin(self, message: Begin, ctx: snapline.Context) -> None:
        ctx.send("hearer", Said())
        await ctx.step("attempt", attempt)

    @snapline.handler
    async def on_said(self, message: Said, ctx: snapline.Context) -> None:
        self.state.times += 1


def triers() -> snapline.Fleet:
    attempts = itertools.count(1)

    def succeed_at_third() -> None:
        if next(attempts) % 3:
            raise ConnectionError

    agents = {name: Trier(Heard()) for name in ("trier", "hearer")}
    return snapline.Fleet(
        "triers", agents=agents, triggers=[snapline.Every(seconds=0.1)], simulate={"attempt": succeed_at_third}
    )


@pytest.mark.parametrize("faults", ["quiet", "crashes"])
def test_what_a_turn_sent_before_a_failed_step_is_sent_once_however_often_the_step_is_tried(
    faults: str, snapline_sim: Simulation
) -> None:
    def at_end(states: Any) -> None:
        assert states["hearer"].times == 1

    snapline_sim.check(triers, seeds=6, at_end=at_end, faults=faults)
