"""The workload of durable turns: cut by failures in the simulated world, and its oracle by itself."""

import msgspec
import pytest

from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, parse_scenario
from snapline.sim.workloads import make_workload
from snapline.sim.workloads.planning import PlannerState, double, worth

CRASHES = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "%s"
pattern = { name = "planning", messages = 120 }
trigger = { kind = "period", every = "50ms" }
[[fault]]
crash = { host = "h1", at = "700ms", restart_after = "100ms" }
[[fault]]
crash = { host = "h2", at = "1200ms", restart_after = "100ms" }
"""


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr"])
def test_plans_survive_recoveries(protocol: str) -> None:
    result = run(parse_scenario(CRASHES % protocol, source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["durable turn run again"] and result.probes["message put off"] and result.probes["recovery"]


def state(index: int, **changes: object) -> PlannerState:
    return msgspec.structs.replace(PlannerState(index, 2, 3), **changes)


TOTAL = [sum([worth(plan, has_neighbour=index == 0) for plan in range(2)]) for index in range(2)]


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (state(0, done=2, total=TOTAL[0]), state(1, asked=3, done=2, total=TOTAL[1]), None),
        (state(0, done=2, total=TOTAL[0] + 1), state(1, asked=2), "a0 has"),
        (state(0, half=[4]), state(1), "and [4] of another one"),
        (state(0), state(1, asked=2), "its neighbour was asked 2 times"),
        (state(0, done=2, total=TOTAL[0]), state(1, asked=1), "its neighbour was asked 1 times"),
    ],
)
def test_what_cannot_be_is_found(left: PlannerState, right: PlannerState, text: str | None) -> None:
    workload = make_workload(FleetPart(agents=2, pattern=PatternPart(name="planning", messages=24)))
    found = workload.check_end({"a0": left, "a1": right})
    assert (found is None) if text is None else (found is not None and text in found)


def test_what_a_plan_comes_to_is_what_its_steps_give() -> None:
    """Computed another way."""
    for plan in range(12):
        steps = 0
        for number in (plan, plan + 1, plan + 2):
            try:
                steps += double(number)
            except ValueError:
                steps -= 1
        assert worth(plan, has_neighbour=False) == steps + 7 * (plan % 4 == 0) + 13 * (plan in (5, 11))
        assert worth(plan, has_neighbour=True) == worth(plan, has_neighbour=False) + 4 * plan + 1 + 11 * (
            plan in (1, 6, 11)
        )
