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
    assert result.probes["step found in a log"]


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr"])
def test_plans_whose_journals_are_sealed_survive_recoveries(protocol: str) -> None:
    text = CRASHES % protocol + "[limits]\njournal_run = 1\n"
    result = run(parse_scenario(text, source="here"), 2)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["durable turn run again"] and result.probes["recovery"]


def state(index: int, **changes: object) -> PlannerState:
    return msgspec.structs.replace(PlannerState(index, 2, 3), **changes)


TOTAL = [sum([worth(plan, has_neighbour=index == 0) for plan in range(2)]) for index in range(2)]


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (state(0, done=2, total=TOTAL[0]), state(1, asked=3, hinted=2, done=2, total=TOTAL[1]), None),
        (state(0, done=2, total=TOTAL[0] + 1), state(1, asked=2), "a0 has"),
        (state(0, half=[4]), state(1), "and [4] of another one"),
        (state(0), state(1, asked=2), "its neighbour was asked 2 times"),
        (state(0, done=2, total=TOTAL[0]), state(1, asked=1), "its neighbour was asked 1 times"),
        (state(0, done=2, total=TOTAL[0]), state(1, asked=2, hinted=1), "its neighbour was told of 1"),
        (state(0, done=2, total=TOTAL[0]), state(1, asked=2, hinted=4), "its neighbour was told of 4"),
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


NARROW = """
name = "narrow channels"
[fleet]
agents = 8
hosts = 3
coordinators = 3
pattern = { name = "planning", messages = 400, payload_bytes = 3000 }
trigger = { kind = "period", every = "65ms", jitter = 0.1 }
[network]
delay = { least = "3370us", jitter = "150us" }
[store]
delay = { least = "16ms", jitter = "3800us" }
[[fault]]
disk = { at = "65ms", for = "2s", mode = "power-cut", restart_after = "700ms" }
[liveness]
within = "20s"
[run]
until = "6400ms"
turns_in_a_row = 4
[limits]
channel_credit = 2
tell_frames = 1
parked_messages = 1
"""


@pytest.mark.parametrize(
    "seed", [30602, *[pytest.param(each, marks=pytest.mark.slow) for each in (30600, 30601, 30603)]]
)
def test_credit_is_told_though_the_window_was_given_back_before(seed: int) -> None:
    """A long turn gives back the window of what waits for it: when that is consumed, credit is all there is to tell."""
    result = run(parse_scenario(NARROW, source="here"), seed)
    assert result.verdict == "pass", result.pending
