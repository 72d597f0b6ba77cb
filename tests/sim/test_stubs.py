"""Stubs in place of steps: they are called with the step's arguments, in virtual time, they can be slow, fail and get lost, and they are judged."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.sim import paying_fleets as paying
from tests.sim.paying_fleets import ORDERS, PAID, REALLY, Clerk, DurableClerk, Till, counted, shop

import snapline
from snapline.agent_runtime.durable import StepWork
from snapline.agent_runtime.host import turns
from snapline.agent_runtime.host.host_events import RunEffect
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import FleetDefinitionError
from snapline.sim.checking import Subject, run_fleet
from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.report.test_report import summarise
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    FaultPart,
    FleetPart,
    LivenessPart,
    RunPart,
    Scenario,
    StepsPart,
    format_scenario,
    parse_scenario,
)
from snapline.sim.search.shrink import shrink
from snapline.sim.workloads import Workload

QUICK: dict[str, Any] = {"faults": "quiet", "hosts": 2, "coordinators": 1}

SEEDS = 30
"""So many a wrong fleet has to be convicted within."""

ASKING_SEEDS = range(15, 22)
"""Each mutant is found with one of the first four."""


def till_of(states: Mapping[str, object]) -> Till:
    found = states["clerk"]
    assert isinstance(found, Till)
    return found


def run_with(
    fleet: snapline.Fleet, steps: StepsPart, *, seed: int = 1, heal: str = "20s", fault: Sequence[FaultPart] = ()
) -> tuple[Result, Till]:
    """Without any fault but those of stubs, and these."""
    scenario = Scenario(
        fleet=FleetPart(module="x:y", hosts=2),
        steps=steps,
        fault=list(fault),
        liveness=LivenessPart(heal=heal),
        run=RunPart(until=heal, turns=10_000),
    )
    seen: list[Till] = []
    ends = Ending(fleet, seen)
    result = run(scenario, seed, workload=ends)
    return result, seen[-1]


class Ending(Workload):
    """Keeps the till of the end."""

    def __init__(self, fleet: snapline.Fleet, seen: list[Till]) -> None:
        super().__init__(fleet, ends=True)
        self._seen = seen

    def is_done(self, states: Mapping[str, object]) -> bool:
        till = till_of(states)
        return till.done + len(till.failed) == till.orders

    def check_end(self, states: Mapping[str, object]) -> str | None:
        self._seen.append(till_of(states))
        return None


# ---- what is called ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Clerk, DurableClerk])
def test_a_stub_is_called_with_the_arguments_of_its_step_and_the_function_is_not(kind: type[Clerk]) -> None:
    REALLY.clear()
    result = run_fleet(functools.partial(shop, kind, simulate=counted), 1, at_end=_all_done, **QUICK)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert dict.fromkeys(range(1, ORDERS + 1), 1) == PAID
    assert not REALLY and not result.unstubbed_steps


def _all_done(states: Mapping[str, object]) -> None:
    till = till_of(states)
    assert (till.done, till.sum, till.failed) == (ORDERS, 5 * ORDERS, [])


def test_arguments_that_somebody_has_bound_are_the_stubs_too() -> None:
    called: list[tuple[object, ...]] = []

    def stub(*args: object, **keywords: object) -> int:
        called.append((args, keywords))
        return 1

    fleet = snapline.Fleet("binding", agents={"a": Binder(0)}, simulate={"look": stub})
    assert run_fleet(lambda: fleet, 1, faults="quiet").verdict == "pass"
    assert called[-1] == ((3,), {"base": 7})


class Binder(snapline.Agent):
    """Binds its step's arguments by itself, one of them by name."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("look", 0.05, paying.Order(1))

    @snapline.handler
    async def on_order(self, message: paying.Order, ctx: snapline.Context) -> None:
        self.state += await ctx.step("look", functools.partial(_look, 3, base=7))


def _look(number: int, *, base: int) -> int:
    return number + base


def test_a_function_makes_the_stubs_of_each_run_anew() -> None:
    made: list[dict[str, Any]] = []

    def stubs() -> dict[str, Any]:
        made.append(counted())
        return made[-1]

    subject = Subject(functools.partial(shop, simulate=stubs), **QUICK)
    scenario = subject.scenario(1)
    before = len(made)
    assert subject.run(scenario, 1).trace_hash == subject.run(scenario, 1).trace_hash
    assert len(made) == before + 2
    assert dict.fromkeys(range(1, ORDERS + 1), 1) == PAID


def test_a_step_without_a_stub_is_refused_where_others_have_one() -> None:
    result = run_fleet(lambda: shop(simulate={"refund": paying.fake_charge}), 1, **QUICK)
    assert result.verdict == "broken"
    assert "step 'charge' has no stub; Fleet(simulate=…) has for: refund" in result.error


def test_without_any_stubs_steps_really_run_and_the_run_says_so() -> None:
    result = run_fleet(lambda: shop(), 1, **QUICK)
    assert result.verdict == "pass" and result.unstubbed_steps == ["charge"]
    assert "no stubs (Fleet(simulate=…)), so these steps really ran: charge" in summarise(result)


@pytest.mark.parametrize(
    ("simulate", "said"),
    [([1], "simulate is a list"), ({"charge": 5}, "simulate has 'charge': 5"), ({1: print}, "simulate has 1")],
)
def test_what_is_no_stub_is_refused(simulate: Any, said: str) -> None:
    with pytest.raises(FleetDefinitionError, match=said):
        shop(simulate=simulate)
    result = run_fleet(lambda: shop(simulate=lambda: simulate), 1, **QUICK)
    assert result.verdict == "broken" and said in result.error


def test_stubs_are_no_part_of_what_hosts_must_agree_on() -> None:
    assert shop(simulate=counted).definition_digest() == shop().definition_digest()


# ---- time --------------------------------------------------------------------------------------------------------------


def test_a_stub_may_sleep_in_virtual_time() -> None:
    def stubs() -> dict[str, Any]:
        PAID.clear()
        return {"charge": paying.slow_charge}

    result, till = run_with(shop(simulate=stubs), StepsPart(), heal="5s")
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert till.done == ORDERS and not till.failed
    assert result.virtual_ns > ORDERS * 250_000_000


@pytest.mark.slow
def test_a_stub_that_takes_longer_than_its_step_waits_is_a_time_out_and_is_done_nevertheless() -> None:
    async def stub(order: int, amount: int) -> int:
        import asyncio

        await asyncio.sleep(paying.TIMEOUT_S + 1 if order == 2 else 0.01)
        return paying.fake_charge(order, amount)

    PAID.clear()
    result, till = run_with(shop(simulate={"charge": stub}), StepsPart(), heal="60s")
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert till.failed == [2] and dict.fromkeys(range(1, ORDERS + 1), 1) == PAID


def test_a_stub_that_awaits_what_cannot_be_simulated_is_told_so() -> None:
    async def stub(order: int, amount: int) -> int:
        import asyncio

        return await asyncio.create_task(_five())

    async def _five() -> int:
        return 5

    result = run_fleet(lambda: shop(simulate={"charge": stub}), 1, **QUICK)
    assert result.verdict == "broken" and "step 'charge': a stub starts a task" in result.error


def test_retries_wait_in_virtual_time() -> None:
    """Whatever a step runs: its stub, or its own function."""
    for simulate in ({"flaky": _Flaky()}, None):
        fleet = snapline.Fleet("patient", agents={"a": Patient(0)}, simulate=simulate)
        result = run_fleet(fleet, 1, faults="quiet")
        assert result.verdict == "pass", (simulate, result.error, result.pending)
        assert result.virtual_ns > 7_000_000_000


class _Flaky:
    """Fails twice in a row, then answers."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls % 3:
            raise ValueError("not yet")
        return self.calls


_flaky = _Flaky()


class Patient(snapline.Agent):
    """Tries again after some seconds."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("begin", 0.05, paying.Order(1))

    @snapline.handler
    async def on_order(self, message: paying.Order, ctx: snapline.Context) -> None:
        self.state = await ctx.step("flaky", _flaky, timeout_s=1, retries=(3, 4))


# ---- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fate", "kind"),
    [
        pytest.param("late_per_mille", Clerk, marks=pytest.mark.slow),
        ("lost_per_mille", DurableClerk),
        ("failed_per_mille", Clerk),
        pytest.param("failed_per_mille", DurableClerk, marks=pytest.mark.slow),
    ],
)
def test_calls_go_wrong_as_the_scenario_says_and_the_ledger_tells_done_from_not_done(
    fate: str, kind: type[Clerk]
) -> None:
    result, till = run_with(shop(kind, simulate=counted), StepsPart(**{fate: 500}), seed=0, heal="12s")
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert all(PAID.get(order, 0) == 1 for order in range(1, ORDERS + 1) if order not in till.failed)
    assert [fault.kind for fault in result.faults].count("step") >= len(till.failed)
    done = [order for order in till.failed if order in PAID]
    undone = [order for order in till.failed if order not in PAID]
    assert till.done and done and (undone or fate == "late_per_mille"), "a late request comes at last"


def test_once_everything_is_whole_no_call_goes_wrong() -> None:
    result, till = run_with(shop(simulate=counted), StepsPart(lost_per_mille=1000), heal="100ms")
    assert result.verdict == "pass" and till.done >= ORDERS - 1


@pytest.mark.slow
def test_a_request_that_has_left_arrives_though_its_host_died() -> None:
    """Every call is late, half of them on their way to the stub, and in the midst of one all hosts die."""
    crash = FaultPart(crash=CrashFault(at="1s", restart_after="200ms", is_all=True))
    repeated = 0
    for seed in range(2):
        steps = StepsPart(late_per_mille=1000)
        result, _ = run_with(shop(simulate=counted), steps, seed=seed, heal="60s", fault=[crash])
        assert result.verdict == "pass", (result.violations, result.pending, result.error)
        calls = sum("longer" in fault.text for fault in result.faults)
        assert calls > ORDERS // 2 and sum(PAID.values()) >= calls
        repeated += sum(count > 1 for count in PAID.values())
    assert repeated


# ---- judging -----------------------------------------------------------------------------------------------------------


def first_failure(target: Callable[[], snapline.Fleet], **options: Any) -> tuple[Subject, Scenario, Result]:
    subject = Subject(target, **options)
    for seed in range(SEEDS):
        scenario = subject.scenario(seed)
        result = subject.run(scenario, seed)
        assert result.verdict in ("pass", "violation"), (seed, result.pending, result.error)
        if result.verdict == "violation":
            return subject, scenario, result
    raise AssertionError(f"not convicted within {SEEDS} seeds")


@pytest.mark.parametrize("kind", [Clerk, DurableClerk])
def test_a_step_that_pays_twice_is_convicted_by_what_its_stub_asserts(kind: type[Clerk]) -> None:
    """Without faults it pays once, as the test of calls above shows: nobody sees it."""
    _, _, result = first_failure(functools.partial(shop, kind, simulate=paying.convicting))
    violation = result.violations[0]
    assert violation.oracle == "stub" and "charged twice" in violation.text and "paying_fleets.py:" in violation.text


def asking(seed: int) -> Result:
    """Hosts that only die: calls of one that goes on after it was replaced are not fenced, and a bank without keys does them."""
    dies = [FaultPart(crash=CrashFault(at=f"{at}ms", host="*")) for at in (150, 800, 1_500, 2_600)]
    steps = StepsPart(late_per_mille=200, lost_per_mille=150, failed_per_mille=250)
    fleet = FleetPart(module="x:y", hosts=2)
    until = LivenessPart(heal="3s")
    scenario = Scenario(fleet=fleet, steps=steps, fault=dies, liveness=until, run=RunPart(until="3s", turns=10_000))
    return run(scenario, seed, workload=Ending(paying.asking_shop(), []))


def test_a_bank_that_ignores_keys_is_asked_before_anything_is_repeated() -> None:
    found = [asking(seed) for seed in ASKING_SEEDS]
    assert {result.verdict for result in found} == {"pass"}, [x.violations or x.pending or x.error for x in found]
    assert sum([result.probes.get("effect in doubt", 0) for result in found]) > 3


def unasked(first: bool) -> Any:
    """Repetitions are not asked about: the first call of a new life, or the retries of one."""
    asks = turns._probe_first

    async def mutant(
        command: RunEffect, work: StepWork, asking: StepWork, world: TurnEnvironment, call: turns.LastCall
    ) -> object:
        if first:
            return await asks(msgspec.structs.replace(command, is_in_doubt=False), work, asking, world, call)
        work = msgspec.structs.replace(work, waits_s=asking.waits_s)
        return await asks(command, work, msgspec.structs.replace(asking, waits_s=()), world, call)

    return mutant


@pytest.mark.parametrize("first", [True, False])
def test_who_does_not_ask_pays_twice(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_probe_first", unasked(first))
    found = next(result for result in map(asking, ASKING_SEEDS) if result.verdict != "pass")
    assert found.violations[0].oracle == "stub" and "charged twice" in found.violations[0].text


def test_a_ledger_can_be_looked_at_at_the_end() -> None:
    def at_end(states: Mapping[str, object]) -> str:
        return "".join([f"order {order} was charged {count} times; " for order, count in PAID.items() if count > 1])

    _, _, result = first_failure(functools.partial(shop, simulate=counted), at_end=at_end)
    assert result.violations[0].oracle == "workload" and "times" in result.violations[0].text


@pytest.mark.slow
def test_what_a_stub_has_seen_becomes_small() -> None:
    """The answers of stubs are choices like all others."""
    subject, scenario, result = first_failure(paying.plain_shop, faults="swarm")
    shrunk = shrink(scenario, result.seed, result, runner=subject.run, time_limit_s=10.0)
    assert shrunk.signature == "violation stub"
    assert shrunk.size.faults <= 2 and shrunk.size.total < 60, shrunk.size


def test_answers_go_wrong_in_some_runs_of_each_template_but_the_quiet_one() -> None:
    for faults, is_drawn in (("crashes", True), ("swarm", True), ("quiet", False), (["crash"], False)):
        subject = Subject(paying.plain_shop, faults=faults)
        drawn = [subject.scenario(seed).steps for seed in range(40)]
        assert any(steps != StepsPart() for steps in drawn) == is_drawn, faults
        assert not is_drawn or any(steps == StepsPart() for steps in drawn)
        for scenario in map(subject.scenario, range(5)):
            assert parse_scenario(format_scenario(scenario), source="drawn") == scenario


def test_the_part_of_a_scenario_is_checked() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"late_per_mille": 1001}, StepsPart)
