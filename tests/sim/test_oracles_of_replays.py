"""The oracle that runs turns again, and probes: each finds what it is for."""

from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import UsageError
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import StepOutcome
from snapline.sim.oracles.judge import Judge, JudgeTerms
from snapline.sim.oracles.probes import CATALOGUE, Probe, Probes
from snapline.sim.oracles.replay_oracles import NOT_POSSIBLE, replay

# ---- running again ---------------------------------------------------------------------------------------------------


class Number(snapline.Message):
    value: int


class Sums(msgspec.Struct):
    total: int = 0
    luck: float = 0.0


class Summer(snapline.Agent):
    state: Sums

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("s1", Number(1))

    @snapline.handler
    def on_number(self, message: Number, ctx: snapline.Context) -> None:
        self.state.total += message.value
        self.state.luck += ctx.random()
        if message.value < 5:
            ctx.send(ctx.sender, Number(message.value + 1))


class Steps(snapline.Agent):
    state: Sums

    @snapline.handler
    async def on_number(self, message: Number, ctx: snapline.Context) -> None:
        self.state.total += await ctx.step("add", lambda: 1)


class Draws(TurnEnvironment):
    def __init__(self) -> None:
        self.drawn: list[float | int] = []

    def random(self) -> float:
        self.drawn.append(len(self.drawn) / 8)
        return self.drawn[-1]


SUMS = snapline.Fleet("sums", agents={"s0": Summer(Sums()), "s1": Summer(Sums())})


def summed(judge: Judge | None = None) -> tuple[GroundTruth, dict[str, bytes]]:
    """Two agents that run through; returns their books and last states."""
    books = (
        judge.ground_truth
        if judge is not None
        else GroundTruth(_silent, agents=["s0", "s1"], with_clocks=False, with_log=True)
    )
    agents = {name: SUMS.make(name) for name in SUMS.agents}
    queue: list[tuple[str, str, bytes]] = []
    for name, agent in agents.items():
        ctx = Context(name, 1, name, TurnEnvironment())
        _run(agent.on_start(ctx))
        books.on_turn(0, 1, name, "start", name, b"", ctx.outcome().sends, [])
        queue.extend((name, to, data) for to, data in ctx.outcome().sends)
    while queue:
        sender, receiver, payload = queue.pop(0)
        draws = Draws()
        ctx = Context(receiver, 1, sender, draws)
        agents[receiver].on_number(msgspec.msgpack.decode(payload[7:], type=Number), ctx)  # type: ignore[attr-defined]  # a Summer
        books.on_turn(0, 1, receiver, "message", sender, payload, ctx.outcome().sends, [], tuple(draws.drawn))
        queue.extend((receiver, to, data) for to, data in ctx.outcome().sends)
    return books, {name: encode_body(agent.state) for name, agent in agents.items()}


def _run(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def _silent(*_: object) -> None:
    return


def test_a_history_run_again_ends_in_the_same_state() -> None:
    books, states = summed()
    for name, history in books.branch_of(1).histories.items():
        assert replay(SUMS, history, states[name]) == ""
        assert replay(SUMS, history, None) == ""


def test_another_state_is_found() -> None:
    books, states = summed()
    assert "another state" in replay(SUMS, books.branch_of(1).histories["s0"], states["s1"])


@pytest.mark.parametrize("change", ["sends", "draws", "more draws", "message", "missing turn"])
def test_another_history_is_found(change: str) -> None:
    books, states = summed()
    history = books.branch_of(1).histories["s1"]
    turn = history.log[2]
    match change:
        case "sends":
            turn.sends = []
        case "draws":
            turn.draws = ()
        case "more draws":
            turn.draws = (0.0, 0.0)
        case "message":
            turn.payload = encode_message(Number(77))
        case _:
            del history.log[2]
    assert replay(SUMS, history, states["s1"]) not in ("", NOT_POSSIBLE)


def test_what_came_of_steps_is_given_again_and_what_is_not_known_is_not_run_again() -> None:
    fleet = snapline.Fleet("steps", agents={"s0": Steps(Sums())})
    books = GroundTruth(_silent, agents=["s0"], with_clocks=False, with_log=True)
    books.on_turn(0, 1, "s0", "start", "s0", b"", [], [])
    books.on_turn(0, 1, "s0", "message", "s0", encode_message(Number(1)), [], [], draws=(StepOutcome(5),))
    history = books.branch_of(1).histories["s0"]
    assert replay(fleet, history, encode_body(Sums(total=5))) == ""
    assert "in another state" in replay(fleet, history, encode_body(Sums(total=6)))
    history.log[1].draws = ()
    assert "runs step 'add' more often than it did" in replay(fleet, history, b"")
    history.log[1].draws = (StepOutcome(error=ValueError("no")),)
    assert "raises ValueError: no" in replay(fleet, history, b"")
    history.log[1].draws = None
    assert replay(fleet, history, b"") == NOT_POSSIBLE


def test_a_state_in_another_form_is_the_same() -> None:
    """A restored state may hold 0.0 where one that never left memory holds 0."""
    books, states = summed()
    state = msgspec.msgpack.decode(states["s1"])
    state["luck"] = int(state["luck"])
    image = msgspec.msgpack.encode(state)
    assert image != states["s1"]
    assert replay(SUMS, books.branch_of(1).histories["s1"], image) == ""


def test_at_the_end_the_judge_runs_everything_again() -> None:
    def judge() -> Judge:
        terms = JudgeTerms(protocol="chandy-lamport", budget="within", with_clocks=False, check_cut=lambda cut: None)
        return Judge(terms, fleet=SUMS, agents=["s0", "s1"])

    right = judge()
    states = summed(right)[1]
    right.at_end(0, states, is_quiet=True)
    assert right.violations == [] and right.probes.hits["replayed"] == 2
    wrong = judge()
    summed(wrong)
    wrong.at_end(0, {"s1": states["s1"]}, is_quiet=False)
    assert wrong.violations == [], "an agent in the middle of a turn has no state to compare"
    wrong.at_end(0, {**states, "s0": states["s1"]}, is_quiet=False)
    assert [x.oracle for x in wrong.violations] == ["replay"]


# ---- probes ----------------------------------------------------------------------------------------------------------


def test_a_probe_must_be_in_the_catalogue() -> None:
    with pytest.raises(UsageError, match="add it to CATALOGUE"):
        Probes().hit("no such thing")


def test_hits_of_many_runs_are_added_up() -> None:
    probes = Probes()
    for hits in ({"recovery": 2}, {"recovery": 1, "dead letter": 1}):
        probes.merge(hits)
    assert probes.hits == {"recovery": 3, "dead letter": 1}
    missing = probes.never_hit()
    assert "recovery" not in missing and "zombie turn" in missing
    assert missing == [name for name in CATALOGUE if name in missing]


def test_each_verb_says_what_its_hits_mean() -> None:
    verbs: list[Any] = ["sometimes", "reachable", "always", "always_or_unreachable", "unreachable"]
    probes = Probes({verb: Probe("for the test", verb) for verb in verbs})
    assert probes.never_hit() == ["sometimes", "reachable", "always"]
    assert probes.failures() == []
    probes.sometimes(False, "sometimes")
    probes.always(True, "always")
    probes.reachable("reachable")
    assert probes.never_hit() == ["sometimes"]
    probes.always(False, "always")
    probes.always_or_unreachable(False, "always_or_unreachable")
    probes.unreachable("unreachable")
    assert probes.failures() == ["always", "always_or_unreachable", "unreachable"]
    assert probes.hits["always"] == 1 and probes.misses["always"] == 1
