"""The workload whose handlers raise: run in the simulated world, and its counting by itself."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

import snapline
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, Scenario, parse_scenario
from snapline.sim.workloads import make_workload
from snapline.sim.workloads.dead_letter_patterns import Tries

CRASH = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "%s"
pattern = { name = "failing", messages = 400 }
trigger = { kind = "period", every = "30ms" }
[[fault]]
crash = { host = "h1", at = "120ms", restart_after = "100ms" }
"""


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr"])
def test_dead_letters_survive_recoveries(protocol: str) -> None:
    result = run(parse_scenario(CRASH % protocol, source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["dead letter"] and result.probes["turn failed"] >= 3 * 40 and result.probes["recovery"]


def test_it_passes_without_a_crash_and_ends() -> None:
    result = run(Scenario(fleet=FleetPart(pattern=PatternPart(name="failing", messages=400))), 1)
    assert result.verdict == "pass" and result.messages == 360


RETRIED = """
schema = 1
name = "retried again and again"
[fleet]
agents = 7
hosts = 5
coordinators = 1
protocol = "uncoordinated"
pattern = { name = "crashing", messages = 400, rate_per_s = 137.0 }
trigger = { kind = "period", every = "210ms", jitter = 0.5 }
[network]
delay = { least = "2620us", jitter = "6400us" }
[store]
delay = { least = "8ms", jitter = "1200us" }
[clients]
count = 3
inputs = 5
pause = "200ms"
is_settling = true
[run]
until = "5800ms"
keep_epochs = 3
turns_in_a_row = 1
"""


def test_an_operator_does_not_retry_for_ever_what_crashes_its_agent() -> None:
    """Each try is a recovery, and after twenty of them without any progress the fleet has failed."""
    result = run(parse_scenario(RETRIED, source="here"), 3)
    assert result.verdict == "pass" and result.probes["word accepted"], (result.violations, result.pending)


def cut_of(**changes: Tries) -> snapline.Cut:
    state = Tries(["a1"], 0, 1.0, 0)
    states = {
        "a0": msgspec.structs.replace(state, sent={"a1": 25}),
        "a1": msgspec.structs.replace(state, got={"a0": 23}),
    }
    return cast(snapline.Cut, SimpleNamespace(states=states | changes, in_transit=()))


@pytest.mark.parametrize(("handled", "is_right"), [(23, True), (22, False), (24, False), (25, False)])
def test_what_was_handled_is_what_could_be(handled: int, *, is_right: bool) -> None:
    workload = make_workload(FleetPart(agents=2, pattern=PatternPart(name="failing")))
    cut = cut_of(a1=Tries(["a0"], 0, 1.0, 0, got={"a0": handled}))
    assert (workload.check_cut(cut) is None) == is_right


KILLED = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "%s"
pattern = { name = "killing", messages = 200 }
trigger = { kind = "period", every = "30ms" }
[[fault]]
crash = { host = "h2", at = "700ms", restart_after = "100ms" }
[run]
until = "60s"
"""


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr"])
def test_a_message_that_kills_its_process_stops_nobody_for_ever(protocol: str) -> None:
    """Each of three agents gets one, and it kills three processes."""
    result = run(parse_scenario(KILLED % protocol, source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["process killed by a message"] == 9 and result.probes["dead letter"]
