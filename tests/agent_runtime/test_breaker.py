"""A circuit breaker: what it lets through, and that a turn which is run again decides as it did."""

import msgspec
import pytest
from tests.agent_runtime.effect_world import RefusedError, World, pay

import snapline

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
