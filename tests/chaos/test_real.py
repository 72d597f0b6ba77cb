"""Chaos on real processes: what it convicts, what it does not, and that it agrees with the simulator."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.chaos import leaky
from tests.integration.processes import ended, marked, nothing_left_running, start

from snapline.chaos.run import Checks, run_chaos
from snapline.sim.result import Result
from snapline.sim.run import run as simulate
from snapline.sim.scenario import FleetPart, Scenario, parse_scenario
from snapline.sim.search.swarm import draw

pytestmark = pytest.mark.timeout(900)

SHORT = """
name = "short"
[fleet]
agents = 4
hosts = 2
coordinators = 1
pattern = { name = "bank", messages = 200, rate_per_s = 100.0 }
trigger = { kind = "period", every = "300ms" }
[[fault]]
crash = { host = "h2", at = "500ms", restart_after = "100ms" }
[[fault]]
partition = { shape = "isolate-host", host = "h1", at = "300ms", for = "300ms" }
"""

BOTH = """
name = "both"
[fleet]
agents = 6
hosts = 3
coordinators = 3
pattern = { name = "bank", messages = 600, rate_per_s = 60.0 }
trigger = { kind = "period", every = "500ms" }
[[fault]]
crash = { failpoint = "store.manifest.linked", hit = 2, restart_after = "500ms" }
[[fault]]
partition = { shape = "isolate-leader", direction = "one-way", at = "1s", for = "1s" }
[[fault]]
pause = { host = "h1", at = "2s", for = "1s" }
[[fault]]
disk = { host = "h2", mode = "power-cut", at = "3s" }
[[fault]]
clock = { host = "h3", at = "2s", for = "2s", skew = "1h" }
[[fault]]
coordinator = { kind = "kill-leader", at = "4s" }
"""


def scenario_of(text: str) -> Scenario:
    return parse_scenario(text, source="a test")


async def carried_out(scenario: Scenario, folder: Path, seed: int = 0, checks: Checks | None = None) -> Result:
    with nothing_left_running():
        return await run_chaos(scenario, seed, folder=folder, checks=checks or Checks())


async def test_a_fleet_that_is_hurt_passes(tmp_path: Path) -> None:
    result = await carried_out(scenario_of(SHORT), tmp_path / "run")
    assert (result.verdict, result.violations, result.pending, result.error) == ("pass", [], [], "")
    assert Counter(fault.kind for fault in result.faults) == {"crash": 1, "partition": 1}
    assert result.metrics["epochs_judged"] >= 2


@pytest.mark.slow
async def test_a_file_gives_the_same_verdict_and_the_same_faults_simulated_and_on_real_processes(
    tmp_path: Path,
) -> None:
    scenario = scenario_of(BOTH)
    for seed in (1, 2):
        simulated = simulate(draw(scenario, seed), seed)
        real = await carried_out(scenario, tmp_path / f"{seed}", seed)
        assert (real.verdict, real.violations, real.pending) == (simulated.verdict, [], []) == ("pass", [], [])
        assert kinds(real) == kinds(simulated)


def kinds(result: Result) -> Counter[str]:
    return Counter(fault.kind for fault in result.faults)


def leaking(bug: str) -> Scenario:
    fleet = FleetPart(
        agents=leaky.AGENTS, hosts=2, coordinators=1, module="tests.chaos.leaky:fleet", arguments={"bug": bug}
    )
    crash = '[fleet]\nhosts = 2\n[[fault]]\ncrash = { host = "h2", at = "2s", restart_after = "100ms" }'
    return msgspec.structs.replace(scenario_of(crash), name=bug, fleet=fleet)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["kept", "global_state", "outside", "late"])
async def test_money_that_no_checkpoint_holds_is_missed(bug: str, tmp_path: Path) -> None:
    result = await carried_out(leaking(bug), tmp_path / "run", checks=Checks(invariant=leaky.all_money_is_there))
    if bug == "kept":
        assert (result.verdict, result.violations, result.pending, result.error) == ("pass", [], [], "")
    else:
        assert result.verdict == "violation"
        assert {found.oracle for found in result.violations} == {"workload"}
        assert "of the beginning" in result.violations[0].text


@pytest.mark.slow
async def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """Also what stands still."""
    file = tmp_path / "still.toml"
    file.write_text(
        SHORT
        + '[[fault]]\npause = { host = "*", at = "100ms", for = "9s" }\n[[fault]]\nslow = { host = "h1", at = "1s", for = "8s" }\n'
    )
    with nothing_left_running() as mark:
        process = await start("chaos", "run", file, "--folder", tmp_path / "runs")
        async with asyncio.timeout(120):
            while not stopped(marked(mark)):
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert (await ended(process)).code == -signal.SIGKILL


def stopped(processes: dict[int, str]) -> list[int]:
    """Those that stand still."""
    found = []
    for pid in processes:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state == "T" else []
    return found
