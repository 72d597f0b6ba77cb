"""Hosts that are nowhere, as real processes: cut from peers but not from the coordinator, half open, without a plan, standing still wherever they are."""

from pathlib import Path

import pytest
from tests.chaos.test_real import carried_out, scenario_of

from snapline.sim.faults.fault_kinds import FAILPOINTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLEET = """
name = "nowhere"
[fleet]
agents = 6
hosts = 3
coordinators = 3
pattern = { name = "bank", messages = 900, rate_per_s = 60.0 }
trigger = { kind = "period", every = "500ms" }
[run]
until = "20s"
"""

CASES = {
    "cut from a peer, and not from the coordinator": """
[[fault]]
clog = { between = ["h1", "h2"], at = "1s", for = "8s" }
[[fault]]
clog = { between = ["h2", "h1"], at = "1s", for = "8s" }
""",
    "cut from a peer in one direction": """
[[fault]]
clog = { between = ["h1", "h2"], at = "1s", for = "8s" }
""",
    "half open": """
[[fault]]
partition = { shape = "isolate-host", host = "h2", at = "1s", for = "8s" }
""",
    "never applying a plan": """
[[fault]]
hang = { host = "h1", what = "store", at = "1s", for = "12s" }
[[fault]]
crash = { host = "h2", at = "1500ms" }
""",
}

PASSED = [
    point
    for point in FAILPOINTS
    if not point.startswith(("store.log", "store.outputs", "store.checkpoints", "coordinator.line"))
]
"""By a fleet with a coordinated protocol to which nobody speaks."""

GROUP = 8
"""One after the other, each for longer than silence is borne."""


@pytest.mark.parametrize("case", CASES)
async def test_a_fleet_goes_on_without_a_host_that_is_nowhere(case: str, tmp_path: Path) -> None:
    result = await carried_out(scenario_of(FLEET + CASES[case]), tmp_path / "run")
    assert (result.verdict, result.violations, result.pending, result.error) == ("pass", [], [], "")


@pytest.mark.parametrize("first", range(0, len(PASSED), GROUP))
async def test_whoever_stands_still_at_a_point_of_the_code_goes_on_or_is_turned_away(
    first: int, tmp_path: Path
) -> None:
    points = PASSED[first : first + GROUP]
    faults = "".join(f'[[fault]]\npause = {{ failpoint = "{point}", for = "2500ms" }}\n' for point in points)
    result = await carried_out(scenario_of(FLEET.replace("20s", "30s") + faults), tmp_path / "run")
    assert (result.verdict, result.violations, result.pending, result.error) == ("pass", [], [], "")
