"""Drawn scenarios: valid, within the budget, the same for the same seed, and of every kind."""

import contextlib
import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.protocols.names import CHANDY_LAMPORT, PROTOCOLS
from snapline.sim.faults.fault_kinds import FAILPOINTS, CrashFault, PauseFault
from snapline.sim.faults.faults import check_budget
from snapline.sim.run import run
from snapline.sim.scenario import (
    FAULT_KINDS,
    PATTERN_NAMES,
    FaultPart,
    FleetPart,
    LivenessPart,
    NetworkPart,
    PatternPart,
    RunPart,
    Scenario,
    SwarmPart,
    check_scenario,
    format_scenario,
    parse_scenario,
)
from snapline.sim.search.pool import other_hash_seed
from snapline.sim.search.swarm import _PAYING, BUILT_IN, STANDARD, _feasible_epoch_timeout, _with_enough_time, draw

seeds = st.integers(min_value=0, max_value=2**63)
MANY = 400
S = 1_000_000_000


@pytest.fixture(scope="module")
def many() -> list[Scenario]:
    return [draw(STANDARD, seed) for seed in range(MANY)]


@given(st.sampled_from(sorted(BUILT_IN)), seeds)
def test_what_is_drawn_is_valid_and_within_the_budget(name: str, seed: int) -> None:
    template = BUILT_IN[name]
    scenario = draw(template, seed)
    check_scenario(scenario, source=name)
    check_budget(scenario)
    assert scenario.swarm is None and scenario.name == name
    assert template.swarm is not None
    assert {fault.kind for fault in scenario.fault} <= {*(template.swarm.faults or FAULT_KINDS)}


@given(seeds)
def test_a_seed_says_it_all(seed: int) -> None:
    assert format_scenario(draw(STANDARD, seed)) == format_scenario(draw(STANDARD, seed))


DIGEST = """
from hashlib import blake2b
from snapline.sim.choices import RandomChoices
from snapline.sim.faults.faults import schedule
from snapline.sim.scenario import format_scenario
from snapline.sim.search.pool import other_hash_seed
from snapline.sim.search.swarm import STANDARD, draw
from tests.sim.fake_executor import FakeExecutor
digest = blake2b()
for seed in range(100):
    scenario = draw(STANDARD, seed)
    executor = FakeExecutor(scenario, RandomChoices(seed))
    schedule(scenario, executor)
    executor.run_until()
    digest.update(format_scenario(scenario).encode() + repr(executor.calls).encode())
print(digest.hexdigest())
"""


def test_no_hash_of_a_string_decides_anything() -> None:
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(DIGEST, {})  # noqa: S102  # what the other process runs
    environment = os.environ | {"PYTHONHASHSEED": other_hash_seed()}
    command, root = [sys.executable, "-c", DIGEST], Path(__file__).parents[2]
    there = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert len(here.getvalue()) > 100 and here.getvalue() == there.stdout


def test_a_template_without_swarm_is_a_scenario() -> None:
    scenario = Scenario(name="mine")
    assert draw(scenario, 5) is scenario


def test_ranges_are_those_of_the_template(many: list[Scenario]) -> None:
    assert {scenario.fleet.hosts for scenario in many} == {1, 2, 3, 4, 5}
    assert {scenario.fleet.agents for scenario in many} == set(range(2, 9))
    assert {scenario.fleet.coordinators for scenario in many} == {1, 3}
    assert {scenario.run.turns_in_a_row for scenario in many} == {1, 4, 64}
    for scenario in many:
        assert 2.5 * 10**9 <= scenario.run.until_ns <= 7 * 10**9
        assert 20 * 10**6 <= scenario.fleet.trigger.every_ns <= 600 * 10**6
        network, store = scenario.network.delay, scenario.store.delay
        assert 2 * 10**6 <= network.least_ns <= 40 * 10**6 and 100_000 <= network.jitter_ns <= 40 * 10**6
        assert 100_000 <= store.least_ns <= 20 * 10**6 and 100_000 <= store.jitter_ns <= 20 * 10**6


def test_everything_is_drawn_sometimes(many: list[Scenario]) -> None:
    assert {scenario.fleet.protocol for scenario in many} == {*PROTOCOLS}
    assert {scenario.fleet.pattern.name for scenario in many} == {*PATTERN_NAMES}
    assert {scenario.fleet.trigger.kind for scenario in many} == {"period", "messages", "adaptive", "none"}
    assert {fault.kind for scenario in many for fault in scenario.fault} == {*FAULT_KINDS}
    assert {(x.fleet.protocol, x.fleet.recovery) for x in many} == {
        *[(protocol, "global") for protocol in PROTOCOLS],
        (CHANDY_LAMPORT, "local"),
    }
    points = {fault.crash.failpoint for scenario in many for fault in scenario.fault if fault.crash}
    assert points - {""} == {*FAILPOINTS}


def test_runs_differ_in_how_much_is_wrong(many: list[Scenario]) -> None:
    """Swarm testing: some runs have no faults, some one kind, some many."""
    kinds = Counter(len({fault.kind for fault in scenario.fault}) for scenario in many)
    assert all(kinds[count] >= MANY // 50 for count in (0, 1, 2, 3))
    faults = Counter(sum(not fault.word.point for fault in scenario.fault) for scenario in many)
    assert max(faults) == 4 + 4, "and restarts of those that have durable turns"


def test_failpoints_are_active_in_a_part_of_the_runs(many: list[Scenario]) -> None:
    counts = [sum(bool(fault.crash and fault.crash.failpoint) for fault in scenario.fault) for scenario in many]
    active = [count for count in counts if count]
    assert MANY // 10 < len(active) < MANY // 2
    assert 0.15 < sum(active) / len(active) / len(FAILPOINTS) < 0.35


def may_recover_locally(scenario: Scenario) -> bool:
    """A restore may undo effects that were called since the snapshot, and the stubs do not allow that."""
    is_undone = scenario.restores.times > 0 and scenario.fleet.pattern.name in _PAYING
    return scenario.fleet.protocol == CHANDY_LAMPORT and not is_undone


def test_half_of_the_fleets_that_can_recover_locally_do(many: list[Scenario]) -> None:
    kinds = Counter(scenario.fleet.recovery for scenario in many if may_recover_locally(scenario))
    assert 0.4 < kinds["local"] / kinds.total() < 0.6


def test_a_template_with_local_recovery_keeps_it() -> None:
    local = msgspec.structs.replace(STANDARD, fleet=FleetPart(recovery="local"))
    scenarios = [draw(local, seed) for seed in range(50)]
    assert all((x.fleet.recovery == "local") == may_recover_locally(x) for x in scenarios)


def test_quiet_is_quiet() -> None:
    assert not any(draw(BUILT_IN["quiet"], seed).fault for seed in range(100))


def test_beyond_the_budget_some_are_lost_for_ever() -> None:
    beyond = msgspec.structs.replace(STANDARD, budget="beyond")
    lost = [
        seed
        for seed in range(MANY)
        if any(fault.coordinator and not fault.coordinator.lasts for fault in draw(beyond, seed).fault)
    ]
    assert lost


@given(seeds)
def test_what_the_template_says_stays(seed: int) -> None:
    template = Scenario(
        name="mine",
        fault=[FaultPart(crash=CrashFault(host="h4", at="8s")), FaultPart(pause=PauseFault(at="1s", host="h1"))],
        fleet=FleetPart(hosts=4, coordinators=3, pattern=PatternPart(payload_bytes=99)),
        liveness=LivenessPart(heal="9s", within="1m"),
        run=RunPart(events_max=77),
        swarm=SwarmPart(agents_max=3, protocols=["bcs"], patterns=["ring"], faults=["loss"], network=False),
    )
    scenario = draw(template, seed)
    check_scenario(scenario, source="mine")
    assert scenario.fault[:2] == template.fault
    assert {fault.kind for fault in scenario.fault[2:]} <= {"loss"}
    assert (scenario.fleet.hosts, scenario.fleet.coordinators) == (4, 3)
    assert (scenario.fleet.protocol, scenario.fleet.pattern.name) == ("bcs", "ring")
    assert scenario.fleet.agents in (2, 3) and scenario.fleet.pattern.payload_bytes == 99
    assert (scenario.network, scenario.store) == (template.network, template.store)
    assert scenario.liveness.heal == template.liveness.heal
    assert scenario.liveness.within_ns >= template.liveness.within_ns and scenario.run.events_max == 77


@given(seeds)
def test_a_fleet_of_the_users_own_is_kept(seed: int) -> None:
    template = Scenario(fleet=FleetPart(module="my:fleet", arguments={"a": "b"}), swarm=SwarmPart())
    fleet = draw(template, seed).fleet
    assert (fleet.module, fleet.arguments) == ("my:fleet", {"a": "b"})


@given(seeds)
def test_endless_patterns_get_a_pace(seed: int) -> None:
    template = Scenario(fleet=FleetPart(pattern=PatternPart(messages=0)), swarm=SwarmPart())
    pattern = draw(template, seed).fleet.pattern
    assert pattern.messages == 0 and pattern.rate_per_s > 0


FAR_APART = """
schema = 1
name = "far"
[fleet]
pattern = { messages = 400 }
[network]
paths = { "h1>h2" = { least = "150ms", jitter = "150ms" }, "h2>h1" = { least = "150ms", jitter = "0s" } }
[swarm]
hosts_max = 2
agents_max = 2
patterns = ["domino"]
protocols = ["chandy-lamport"]
faults_max = 0
limits = false
network = false
"""


@pytest.mark.slow
def test_a_counter_that_is_passed_on_over_slow_paths_has_the_time_for_it() -> None:
    scenario = draw(parse_scenario(FAR_APART, source="here"), 4)
    assert scenario.fleet.hosts == 2 and scenario.fleet.pattern.messages == 400
    result = run(scenario, 4)
    assert result.verdict == "pass" and result.virtual_ns > 50 * S, result.pending


TOLD_LATE = """
name = "told late"
[fleet]
agents = 2
hosts = 5
protocol = "cas"
pattern = { name = "failing", messages = 400, rate_per_s = 148.0 }
trigger = { kind = "period", every = "210ms" }
log_bytes_max = 2000
epoch_timeout = "1s"
[network]
delay = { least = "3620us", jitter = "100us" }
[store]
delay = { least = "12ms", jitter = "950us" }
[clients]
count = 0
[[fault]]
coordinator = { at = "70ms", kind = "depose", for = "212ms", per_mille = 100 }
[[fault]]
capture = { at = "125ms" }
[liveness]
within = "20s"
[run]
until = "5400ms"
keep_epochs = 3
rejoin_grace = "1s"
turns_in_a_row = 4
[limits]
channel_credit = 2
frame_bytes = 64
frames_unacked = 1
tell_delay_ms = 200
"""


def test_messages_that_wait_for_a_word_told_late_have_the_time_for_it() -> None:
    """One frame on its way, one message in it, and its word told after 200 ms."""
    scenario = parse_scenario(TOLD_LATE, source="here")
    result = run(msgspec.structs.replace(scenario, liveness=_with_enough_time(scenario)), 2657)
    assert result.verdict == "pass" and result.virtual_ns > 30 * S, result.pending


ASKED_FROM_AFAR = """
schema = 1
name = "asked from afar"
[fleet]
agents = 8
hosts = 1
coordinators = 1
protocol = "koo-toueg"
pattern = { name = "cyclic", messages = 400 }
trigger = { kind = "period", every = "190ms", jitter = 0.5 }
epoch_timeout = "1s"
[network]
delay = { least = "10ms", jitter = "500us" }
paths = { "h1>c1" = { least = "60ms", jitter = "5ms" }, "c1>h1" = { least = "150ms", jitter = "150ms" } }
[store]
delay = { least = "10ms", jitter = "10ms" }
[liveness]
within = "20s"
[run]
until = "4700ms"
"""


def test_an_epoch_has_the_time_that_the_drawn_network_asks_for() -> None:
    """Of a round across half a second, each way, a time-out of one second leaves nothing."""
    scenario = parse_scenario(ASKED_FROM_AFAR, source="here")
    patient = msgspec.structs.replace(scenario.fleet, epoch_timeout=_feasible_epoch_timeout(scenario))
    result = run(msgspec.structs.replace(scenario, fleet=patient), 30158)
    assert result.verdict == "pass", result.pending
    near = msgspec.structs.replace(scenario, network=NetworkPart())
    assert _feasible_epoch_timeout(near) == "1s"


@pytest.mark.slow
def test_rounds_without_a_pause_leave_the_work_its_time() -> None:
    """Somebody asks for snapshots faster than rounds of koo-toueg are over."""
    scenario = draw(STANDARD, 27480)
    assert (scenario.fleet.protocol, scenario.run.snapshots_every) == ("koo-toueg", "75ms"), (
        "the seed draws something else now"
    )
    result = run(msgspec.structs.replace(scenario, fault=[]), 27480)
    assert result.verdict == "pass" and result.virtual_ns > 45 * S, result.pending


def test_a_fleet_whose_first_plan_nobody_finished_has_its_operator_too() -> None:
    """A host dies before it has applied plan 1, so the fleet begins to work under plan 2; then two agents stand, and wait for people."""
    scenario = draw(STANDARD, 221)
    scenario = msgspec.structs.replace(scenario, fleet=msgspec.structs.replace(scenario.fleet, recovery="global"))
    assert scenario.fleet.pattern.name == "returning", "the seed draws something else now"
    result = run(scenario, 221)
    assert result.verdict == "pass", result.pending
    assert result.probes["rollback refused"] and result.probes["recovery killed"]
