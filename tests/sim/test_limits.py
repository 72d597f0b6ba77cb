"""Small limits, uneven networks, moments, captures that fail, turns that wait: what runs are given so that edges are met."""

import ast
import importlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sim.fake_executor import FakeExecutor

from snapline.coordinator.leader.epochs.publishing import Snapshots
from snapline.coordinator.leader.events import AnswerSnapshot
from snapline.coordinator.service import store_keeper
from snapline.sim.choices import RandomChoices
from snapline.sim.faults.fault_kinds import MOMENTS, CaptureFault, CrashFault, DelayFault, ResetFault
from snapline.sim.faults.faults import schedule
from snapline.sim.oracles.line_oracles import ExpectedRetention, wanted_epochs
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    DelayPart,
    FaultPart,
    FleetPart,
    NetworkPart,
    PatternPart,
    RunPart,
    Scenario,
    SwarmPart,
    TriggerPart,
)
from snapline.sim.search.swarm import STANDARD, draw
from snapline.sim.search.sweep import count_drawn, empty_counts, never_drawn
from snapline.sim.world.kernel import Kernel
from snapline.sim.world.network import Network
from snapline.sim.world.product_patches import LIMITS, limited
from snapline.sim.world.world_observer import StoreObserver
from snapline.storage.retention import epoch_retention
from snapline.storage.retention.epoch_retention import Policy, SnapshotTime, retained

ROOT = Path(__file__).parents[2] / "src" / "snapline"
PRODUCT = ("agent_runtime", "channels", "coordinator", "storage", "protocols", "recovery", "sim")
SMALL = FleetPart(agents=4, pattern=PatternPart(name="random", messages=120, payload_bytes=100))
PROTOCOLS = ("chandy-lamport", "hmnr", "koo-toueg", "uncoordinated")

LONG = FleetPart(
    agents=4,
    pattern=PatternPart(name="random", messages=300, rate_per_s=200.0),
    trigger=TriggerPart(every="100ms"),
)
"""It works for some two seconds."""

CRASH = FaultPart(crash=CrashFault(at="300ms", restart_after="200ms"))


def places_of(name: str) -> list[str]:
    return [*LIMITS[name].places, *(place for place, _ in LIMITS[name].with_it)]


def value_at(place: str) -> object:
    module, _, constant = place.rpartition(".")
    return vars(importlib.import_module(module))[constant]


def imported_places() -> dict[str, list[str]]:
    """Constant in its home module → where else it is bound to the same name. Files that name no limit are not parsed."""
    found: dict[str, list[str]] = {}
    limits = re.compile("|".join(place.rpartition(".")[2] for limit in LIMITS.values() for place in limit.places))
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if limits.search(text) else ():
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("snapline."):
                    for alias in node.names:
                        home = f"{node.module}.{alias.name}"
                        found.setdefault(home, []).append(f"{module}.{alias.asname or alias.name}")
    return found


def test_a_limit_is_set_wherever_its_constant_is_bound() -> None:
    imported = imported_places()
    for name in LIMITS:
        places = places_of(name)
        for place in LIMITS[name].places:
            assert set(imported.get(place, [])) <= {*places, "snapline.coordinator.service.backup.PLANS_KEPT"}, (
                name,
                place,
            )
        assert len({str(value_at(place)) for place in LIMITS[name].places}) <= 2, name  # the two pauses of the sweep


def test_limits_are_put_back() -> None:
    before = {place: value_at(place) for name in LIMITS for place in places_of(name)}
    smallest = {name: min(limit.drawn) for name, limit in LIMITS.items()}
    with pytest.raises(RuntimeError), limited(smallest):
        assert sum(value_at(place) != value for place, value in before.items()) > len(LIMITS)
        raise RuntimeError
    assert {place: value_at(place) for place in before} == before


@pytest.mark.parametrize("index", range(len(LIMITS)), ids=list(LIMITS))
def test_a_fleet_lives_at_each_limit_alone(index: int) -> None:
    name = list(LIMITS)[index]
    fleet = msgspec.structs.replace(
        SMALL, protocol=PROTOCOLS[index % len(PROTOCOLS)], trigger=TriggerPart(every="100ms"), log_bytes_max=4000
    )
    if LIMITS[name].is_local:
        fleet = msgspec.structs.replace(fleet, protocol=PROTOCOLS[0], recovery="local")
    limits = {name: min(LIMITS[name].drawn)}
    result = run(Scenario(fleet=fleet, fault=[CRASH], run=RunPart(until="2s"), limits=limits), index)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


def test_a_fleet_with_local_recovery_lives_at_the_smallest_credit() -> None:
    fleet = msgspec.structs.replace(SMALL, recovery="local", trigger=TriggerPart(every="100ms"))
    limits = {"channel_credit": min(LIMITS["channel_credit"].drawn)}
    result = run(Scenario(fleet=fleet, fault=[CRASH], run=RunPart(until="2s"), limits=limits), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


def test_small_credit_and_parts_are_met() -> None:
    """Not only set: the same messages take more frames, and outboxes fill."""
    fleet = msgspec.structs.replace(SMALL, pattern=PatternPart(name="bursts", messages=120, payload_bytes=600))
    usual = run(Scenario(fleet=fleet), 1)
    small = run(Scenario(fleet=fleet, limits={"channel_credit": 2, "part_bytes": 256, "frame_items": 1}), 1)
    assert usual.verdict == small.verdict == "pass"
    assert small.events > 1.5 * usual.events


# -- the network -----------------------------------------------------------------------------------------------------


def test_delay_may_be_of_one_direction_alone() -> None:
    word = DelayFault(at="1s", lasts="1s", least="9ms", jitter="0s", between=["c1", "h2"], direction="one-way")
    scenario = Scenario(fault=[FaultPart(delay=word)])
    executor = FakeExecutor(scenario, RandomChoices(1))
    schedule(scenario, executor)
    executor.run_until(1_500_000_000)
    assert executor.delays == {("c1", "h2"): (9_000_000, 0)}


def test_an_uneven_path_stays_uneven_when_all_is_made_whole() -> None:
    network = Network(Kernel(), RandomChoices(1), least_ns=5, jitter_ns=0, paths={("c1", "h1"): (70, 0)})
    network.set_delay(("c1", "h1"), 900, 0)
    network.set_delay(("h1", "c1"), 900, 0)
    network.reset()
    assert [network.delay_ns(pair, "k", 1) for pair in (("c1", "h1"), ("h1", "c1"))] == [70, 5]


def test_a_delay_that_ends_gives_a_path_back_its_own() -> None:
    word = DelayFault(at="1s", lasts="1s", least="9ms", jitter="0s")
    network = NetworkPart(delay=DelayPart(least="1ms", jitter="0s"), paths={"c1>h2": DelayPart(least="50ms")})
    scenario = Scenario(fault=[FaultPart(delay=word)], network=network)
    executor = FakeExecutor(scenario, RandomChoices(1))
    schedule(scenario, executor)
    executor.run_until()
    assert executor.delays["c1", "h2"] == (50_000_000, 4_000_000) and executor.delays["h2", "c1"] == (1_000_000, 0)


# -- moments, captures, steps ----------------------------------------------------------------------------------------


def executed(result: Result) -> list[str]:
    return [fault.text for fault in result.faults if fault.kind == "failpoint"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_comes_to_a_moment_is_hit(moment: str) -> None:
    crash = msgspec.convert({"when": moment, "at": "0s"}, CrashFault)
    reset = msgspec.convert({"when": moment, "at": "500ms"}, ResetFault)
    faults = [FaultPart(crash=crash), FaultPart(reset=reset), FaultPart(crash=CrashFault(at="900ms"))]
    fleet = msgspec.structs.replace(LONG, coordinators=3)
    result = run(Scenario(fleet=fleet, fault=faults), 3)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert any(text.startswith("crash of") and MOMENTS[moment] in text for text in executed(result))


@pytest.mark.parametrize("protocol", ["chandy-lamport", "uncoordinated"])
def test_a_capture_that_fails_costs_an_epoch_or_a_recovery_and_nothing_else(protocol: str) -> None:
    fleet = msgspec.structs.replace(SMALL, protocol=protocol, trigger=TriggerPart(every="100ms"))
    result = run(Scenario(fleet=fleet, fault=[FaultPart(capture=CaptureFault(at="0s", hit=3, times=2))]), 2)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert len([text for text in executed(result) if text.startswith("refuse")]) == 2
    assert result.probes.get("epoch aborted") or result.probes.get("recovery")


@pytest.mark.parametrize("seed", range(2))
def test_turns_that_wait_survive(seed: int) -> None:
    result = run(draw(Scenario(swarm=SwarmPart(patterns=["stepping"])), seed), seed)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


# -- what is kept ----------------------------------------------------------------------------------------------------


def _lose(store: StoreObserver, epoch: int) -> None:
    for path in store.files_of(epoch)[1:]:
        store._disk.of("h1").unlink(path)


def _change(store: StoreObserver, epoch: int) -> None:
    store._shared.judge._cuts[epoch].checkpoints["a0"] = b"something else"


@pytest.mark.parametrize(("harm", "oracle"), [(_lose, "durable"), (_change, "restored")])
def test_an_old_epoch_that_is_kept_is_read_back(
    harm: Callable[[StoreObserver, int], None], oracle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_back = StoreObserver.read_back

    def read_back_harmed(store: StoreObserver) -> None:
        harm(store, store._log.canonical.complete_epochs()[0])
        read_back(store)

    scenario = Scenario(fleet=LONG, run=RunPart(keep_epochs=5))
    assert run(scenario, 1).probes["old epoch read back"] > 0
    monkeypatch.setattr(StoreObserver, "read_back", read_back_harmed)
    assert [violation.oracle for violation in run(scenario, 1).violations] == [oracle]


# -- what is drawn ---------------------------------------------------------------------------------------------------


def test_everything_is_drawn_and_counted() -> None:
    drawn = empty_counts()
    for seed in range(600):
        count_drawn(drawn, draw(STANDARD, seed))
    assert never_drawn(drawn) == {}
    assert sum(drawn["protocols"].values()) == 600
    assert all(runs <= 600 for counts in drawn.values() for runs in counts.values()) and drawn["faults"]["crash"] < 400
    assert drawn["limits"]["channel_credit"] in range(40, 200)


def test_a_users_own_fleet_meets_small_limits_too() -> None:
    template = msgspec.structs.replace(STANDARD, fleet=FleetPart(module="snapline.examples.ping:fleet"))
    assert any(draw(template, seed).limits for seed in range(50))
    assert any(draw(template, seed).network.paths for seed in range(50))


# -- who asks, what a policy keeps, who goes back ----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "bcs"])
def test_snapshots_that_are_asked_for_are_made(protocol: str) -> None:
    fleet = msgspec.structs.replace(LONG, protocol=protocol)
    result = run(Scenario(fleet=fleet, fault=[CRASH], run=RunPart(snapshots_every="70ms")), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["snapshot asked for"] > 3


def test_an_old_epoch_given_to_who_asks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer_old(self: Snapshots, epoch: int, *, is_complete: bool, reason: str) -> None:
        answer(self, epoch, is_complete=is_complete, reason=reason)
        self._shared.out = [
            replace(each, epoch=1) if isinstance(each, AnswerSnapshot) and each.epoch > 1 else each
            for each in self._shared.out
        ]

    answer = Snapshots.answer
    monkeypatch.setattr(Snapshots, "answer", answer_old)
    result = run(Scenario(fleet=LONG, run=RunPart(snapshots_every="70ms")), 1)
    assert {violation.oracle for violation in result.violations} == {"answer"}


POLICY = Scenario(
    fleet=LONG,
    run=RunPart(keep_epochs=2, retention="last=1,hourly=2,daily=2"),
    limits={"hour_s": 1, "day_s": 3, "sweep_ms": 100, "forget_at_once": 1},
)


def test_what_a_policy_keeps_is_kept() -> None:
    result = run(POLICY, 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["epoch deleted under a policy"] > 0


DIED_WITH_A_REF = Scenario(
    fleet=LONG,
    fault=[FaultPart(crash=CrashFault(failpoint="store.ref.durable", hit=5, restart_after="300ms"))],
    run=RunPart(keep_epochs=1, retention="last=3,hourly=0,daily=0"),
    limits={"sweep_ms": 100, "forget_at_once": 1},
)
"""A leader writes a ref and dies before it can say so; who comes next deletes before it has said so either."""


def test_a_ref_that_nobody_told_of_counts_for_the_policy() -> None:
    result = run(DIED_WITH_A_REF, 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["leader change"] and result.probes["epoch deleted under a policy"]


def test_a_policy_that_keeps_one_too_few_is_found_where_a_leader_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_too_few(snapshots: Iterable[SnapshotTime], policy: Policy, **given: Any) -> dict[int, str]:
        kept = retained(snapshots, policy, **given)
        kept.pop(min(kept, default=0), None)
        return kept

    monkeypatch.setattr(store_keeper, "retained", one_too_few)
    assert [violation.oracle for violation in run(DIED_WITH_A_REF, 1).violations] == ["retention"]


def test_a_policy_that_forgets_the_hours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_retention, "_newest_of_each", lambda *arguments: frozenset[int]())
    assert [violation.oracle for violation in run(POLICY, 1).violations] == ["retention"]


@given(
    st.dictionaries(st.integers(1, 60), st.integers(0, 12_000), min_size=1),
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4)),
)
def test_both_ways_to_count_what_a_policy_keeps_agree(created_ms: dict[int, int], counts: tuple[int, int, int]) -> None:
    last, hourly, daily = counts
    with limited({"hour_s": 1, "day_s": 3}):
        snapshots = [SnapshotTime(epoch, made * 1_000_000) for epoch, made in created_ms.items()]
        kept = retained(snapshots, Policy(last, hourly, daily), now_ns=60_000_000_000, held={})
    assert set(kept) == wanted_epochs(created_ms, ExpectedRetention(last, hourly, daily, 1000, 3000))


@pytest.mark.parametrize("seed", range(1, 3))
def test_agents_that_crash_on_a_message_go_back_and_go_on(seed: int) -> None:
    result = run(draw(Scenario(swarm=SwarmPart(patterns=["crashing"], faults_max=0)), seed), seed)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes.get("recovery") and result.probes.get("dead letter")
