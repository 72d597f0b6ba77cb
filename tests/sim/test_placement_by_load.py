"""Plans that place by load, in the simulated world: real hosts count turns, leaders measure and die, and every guarantee holds."""

import pytest

from snapline.coordinator.state import fleet_state
from snapline.coordinator.state.operation_rules import weights_by_host
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario
from snapline.sim.search.swarm import draw

MOVES = """
name = "moves"
[fleet]
agents = 8
hosts = 4
coordinators = 3
pattern = { name = "bank", messages = 3000, rate_per_s = 200.0 }
trigger = { kind = "period", every = "500ms" }
[run]
until = "12s"
moves = 3
[[fault]]
crash = { at = "5s", restart_after = "2s" }
[[fault]]
coordinator = { kind = "kill-leader", at = "7s" }
"""

SEEDS = range(2)


@pytest.mark.slow
def test_plans_that_place_by_load_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some plans know what hosts do, and some, such as the first ones and those of new leaders, do not."""
    seen: list[bool] = []

    def spying(hosts: list[str], weights: tuple[int, ...]) -> dict[str, int]:
        seen.append(bool(weights))
        return weights_by_host(hosts, weights)

    monkeypatch.setattr(fleet_state, "weights_by_host", spying)
    scenario = parse_scenario(MOVES, source="a test")
    for seed in SEEDS:
        result = run(draw(scenario, seed), seed)
        assert (result.verdict, result.violations, result.error) == ("pass", [], "")
    assert set(seen) == {True, False}
