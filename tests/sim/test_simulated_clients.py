"""Clients of a simulated fleet: each drives the product's client core, and what it is told is judged.

That broken cores are found is in `test_mutants.py` (those named client-…).
"""

from collections import Counter

import msgspec
import pytest

import snapline
from snapline.client.core import ClientCore
from snapline.sim.choices import RandomChoices, RecordedChoices
from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.run import run
from snapline.sim.scenario import (
    ClientsPart,
    FaultPart,
    FleetPart,
    PatternPart,
    RunPart,
    Scenario,
    TriggerPart,
)
from snapline.sim.workloads import PATTERNS, make_workload
from snapline.sim.workloads.patterns import takes_inputs
from snapline.sim.workloads.workload import Choose
from snapline.sim.world.world import World

GIVING = ClientsPart(count=3, inputs=40, pause="20ms")


def scenario_of(pattern: str, *, crashes: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        name=pattern,
        fleet=FleetPart(agents=4, hosts=2, pattern=PatternPart(name=pattern), trigger=TriggerPart(every="100ms")),
        clients=GIVING,
        fault=[FaultPart(crash=CrashFault(at=at, restart_after="200ms")) for at in crashes],
        run=RunPart(until="3s"),
    )


def test_each_client_drives_a_core_of_the_product() -> None:
    worlds: list[World] = []
    result = run(scenario_of("bank"), 1, on_world=worlds.append)
    assert result.verdict == "pass", result
    cores = [client.core for client in worlds[0].clients._all]
    assert len(cores) == 3 and all(type(core) is ClientCore for core in cores)


def test_programs_hear_of_receipts_doubts_and_refusals() -> None:
    """Requests and answers are lost, come late or twice, or go to a host that does not have the agent."""
    probes: Counter[str] = Counter()
    for seed in range(2):
        result = run(scenario_of("bank", crashes=("300ms", "900ms")), seed)
        assert result.verdict == "pass", (seed, result.violations, result.pending)
        probes.update(result.probes)
    met = ("send taken", "send unknown", "send not taken", "input repeated", "input retry", "ask replied")
    assert not [name for name in met if not probes[name]], probes


def test_without_bad_luck_all_is_taken_and_answered() -> None:
    """Choices that are all benign: nothing is lost."""
    result = run(scenario_of("bank"), 0, RecordedChoices({}))
    assert result.verdict == "pass", result
    told = {name: hits for name, hits in result.probes.items() if name.startswith(("send", "input "))}
    assert set(told) == {"send taken", "input accepted", "input consumed"}, told


def test_agents_are_spoken_to_that_were_created_meanwhile_or_have_stopped() -> None:
    spoken: list[str] = []
    result = None
    for seed in range(4):
        workload = make_workload(scenario_of("spawning").fleet)
        ask = workload.input_of

        def input_of(
            agent: str, client: str, serial: int, choose: Choose, ask: object = ask
        ) -> snapline.Message | None:
            spoken.append(agent)
            return ask(agent, client, serial, choose)  # type: ignore[operator, no-any-return]  # the workload's own

        workload.input_of = input_of  # type: ignore[method-assign]  # a spy
        result = run(scenario_of("spawning"), seed, workload=workload)
        assert result.verdict == "pass", (seed, result.violations, result.pending)
        if result.probes.get("send missing") and result.probes.get("send taken"):
            break
    assert result is not None and result.probes["send missing"]
    assert [agent for agent in spoken if "-" in agent], "no lodger was spoken to"


def test_an_input_begins_a_durable_turn_which_recoveries_go_on_with() -> None:
    probes: Counter[str] = Counter()
    for seed in range(2):
        result = run(scenario_of("stepping", crashes=("200ms", "500ms", "900ms")), seed)
        assert result.verdict == "pass", (seed, result.violations, result.pending)
        probes.update(result.probes)
    assert probes["durable turn run again"] and probes["step found in a log"] and probes["ask replied"]


def test_patterns_say_themselves_whether_they_take_inputs() -> None:
    deaf = [pattern for pattern in PATTERNS if not takes_inputs(pattern)]
    assert "domino" in deaf and "pagerank" in deaf
    assert not {"bank", "failing", "spawning", "stepping", "memory"} & {*deaf}


def test_inputs_for_a_pattern_that_takes_none_are_not_waited_for() -> None:
    result = run(scenario_of("domino"), 0)
    assert result.verdict == "pass", result.pending
    assert not [name for name in result.probes if name.startswith("send")]


@pytest.mark.parametrize(
    "pattern", ["stepping", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bank", "spawning"))]
)
def test_a_recorded_run_with_clients_repeats(pattern: str) -> None:
    scenario = scenario_of(pattern, crashes=("400ms",))
    choices = RandomChoices(5, is_recording=True)
    first = run(scenario, 5, choices)
    assert choices.record is not None
    again = run(scenario, 5, RecordedChoices(choices.record))
    assert (again.trace_hash, again.probes) == (first.trace_hash, first.probes)


def test_a_client_that_waits_for_a_silent_host_is_deserted() -> None:
    """A liveness oracle: with all whole, whoever has no word on an input for half the time says so."""
    impatient = msgspec.structs.replace(scenario_of("bank"), clients=msgspec.structs.replace(GIVING, asks=False))
    worlds: list[World] = []

    def deafen(world: World) -> None:
        worlds.append(world)
        for client in world.clients._all:
            client._calls.offer = lambda command, inputs: None  # type: ignore[method-assign]  # never carried out

    result = run(impatient, 0, on_world=deafen)
    assert result.verdict == "violation"
    assert "and has not been told whether it was taken" in result.violations[0].text
