"""A circuit breaker: what it lets through, and that a turn which is run again decides as it did."""

from typing import Any

import msgspec
import pytest
from tests.agent_runtime.effect_world import RefusedError, World, pay

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.sim.pytest_plugin import Simulation

S = 1_000_000_000


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.at_s = 1.0

    def now(self) -> int:
        return int(self.at_s * S)


def call(breaker: snapline.CircuitBreaker, clock: Clock, error: Exception | None = None) -> str:
    """What came of one call."""
    try:
        with breaker.guard(clock):
            if error is not None:
                raise error
    except snapline.CircuitOpenError:
        return "open"
    except Exception:
        return "failed"
    return "done"


def test_after_so_many_failures_in_a_row_it_is_open_and_then_one_call_decides() -> None:
    breaker, clock, down = snapline.CircuitBreaker(failures_max=2, open_s=10), Clock(), OSError("down")
    assert [call(breaker, clock, each) for each in (down, None, down, down, None)] == [
        *("failed", "done", "failed", "failed", "open")
    ]
    clock.at_s += 9.9
    assert call(breaker, clock) == "open"
    clock.at_s += 0.2
    assert [call(breaker, clock, each) for each in (down, None)] == ["failed", "open"], "one more, and no second chance"
    clock.at_s += 10.1
    assert [call(breaker, clock, each) for each in (None, down, None)] == ["done", "failed", "done"], "closed again"


def test_misuse_is_no_failure_of_the_service() -> None:
    breaker, clock = snapline.CircuitBreaker(failures_max=1), Clock()
    assert call(breaker, clock, snapline.UsageError("wrong key")) == "failed" and breaker.failures == 0


@pytest.mark.parametrize("wrong", [{"failures_max": 0}, {"open_s": 0.0}])
def test_one_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(snapline.UsageError, match="circuit breaker"):
        snapline.CircuitBreaker(**wrong)  # type: ignore[arg-type]  # one of each


class Go(snapline.Message):
    pass


class Till(msgspec.Struct):
    said: list[str] = []
    bank: snapline.CircuitBreaker = msgspec.field(
        default_factory=lambda: snapline.CircuitBreaker(failures_max=2, open_s=1e6)
    )


def refuse(number: int, *, key: str) -> str:
    raise RefusedError("down")


class Payer(snapline.Agent):
    state: Till

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        said = self.state.said
        for number in range(5):
            try:
                with self.state.bank.guard(ctx):
                    await ctx.effect("pay", refuse, number)
            except snapline.EffectFailedError:
                said.append("failed")
            except snapline.CircuitOpenError:
                said.append("open")
        await ctx.before_risk()
        said.append(await ctx.effect("pay", pay, 1, "elsewhere"))


@pytest.mark.parametrize("seed", range(12))
def test_a_turn_that_dies_at_every_point_leaves_the_service_alone_all_the_same(seed: int) -> None:
    found = World(snapline.Fleet("payers", agents={"a": Payer(Till())}), seed, crashes=15).run()
    assert not found.problems
    state = found.turns.object_of("a").state
    assert state.said == ["failed", "failed", "open", "open", "open", "receipt of 1 elsewhere"]
    assert (state.bank.failures, bool(state.bank.opened_ns)) == (2, True)
    assert [record.stage for record in found.released if record.name == "before-risk"] == ["intent", "done"]
    risk = next(record.outside_key for record in found.released if record.name == "before-risk")
    assert risk not in found.service.calls, "nothing is called for it"


# -- steps ------------------------------------------------------------------------------------------------------------


class Ask(snapline.Message):
    left: int


class Asked(msgspec.Struct):
    said: list[str] = []
    model: snapline.CircuitBreaker = msgspec.field(
        default_factory=lambda: snapline.CircuitBreaker(failures_max=2, open_s=1e6)
    )


def ask(number: int) -> str:
    raise AssertionError("the simulator calls the stub")


class Asker(snapline.Agent):
    """Asks a model that fails twice, and something else instead; in durable turns and in plain ones."""

    state: Asked
    retries = 20

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Ask(10))

    async def ask(self, number: int, ctx: snapline.Context) -> None:
        answer = await ctx.step("ask", ask, number, breaker=self.state.model, fallback=ask)
        self.state.said.append(answer)

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        await self.ask(message.left, ctx)
        await self.ask(message.left - 1, ctx)
        if message.left > 2:
            ctx.send(ctx.agent, Ask(message.left - 2))


class PlainAsker(Asker):
    @snapline.handler
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        await Asker.on_ask(self, message, ctx)


def askers() -> snapline.Fleet:
    def answer(number: int) -> str:
        if number in (7, 8):
            raise ConnectionError
        return "answered"

    stubs = {"ask": answer, "ask/fallback": lambda number: "instead"}
    agents = {"durable": Asker(Asked()), "plain": PlainAsker(Asked())}
    return snapline.Fleet("askers", agents=agents, triggers=[snapline.Every(seconds=0.05)], simulate=stubs)


@pytest.mark.parametrize("faults", ["quiet", "crashes"])
def test_a_failure_takes_the_fallback_and_an_open_breaker_does_at_once(faults: str, snapline_sim: Simulation) -> None:
    """Crashes come with failures of steps, each of which counts too."""

    def at_end(states: Any) -> None:
        for state in states.values():
            said = state.said
            opened = next(n for n in range(1, 10) if said[n - 1 : n + 1] == ["instead", "instead"])
            assert len(said) == 10 and set(said[opened:]) == {"instead"}, said
            assert state.model.failures == 2 and state.model.opened_ns
            assert faults != "quiet" or said[:3] == ["answered", "answered", "instead"]

    snapline_sim.check(askers, seeds=6, at_end=at_end, faults=faults)


class Grouped(snapline.Agent):
    state: Asked

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        await ctx.gather(ctx.step("ask", ask, 1, breaker=self.state.model, fallback=ask))


def test_a_group_takes_no_step_with_a_breaker() -> None:
    fleet = snapline.Fleet("grouped", agents={"a": Grouped(Asked())})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", fleet.make("a"))
    failed = turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Ask(1))))
    assert isinstance(failed, ev.TurnFailed) and "step 'ask' of a group has a breaker: await it before" in failed.error
