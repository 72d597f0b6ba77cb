"""Agents that have the fleet go back: run in the simulated world, and the oracle by itself."""

import pytest

from snapline.coordinator.state import operations as op
from snapline.sim.oracles.ground_truth import RollbackOracle
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario

ASKED = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "%s"
pattern = { name = "returning", messages = 400, rate_per_s = 150.0 }
trigger = { kind = "period", every = "50ms" }
[[fault]]
crash = { host = "h1", at = "600ms", restart_after = "100ms" }
"""


@pytest.mark.parametrize(("protocol", "seed"), [("chandy-lamport", 2), ("koo-toueg", 1), ("uncoordinated", 1)])
def test_the_fleet_goes_back_when_it_is_asked_to_and_its_work_is_done_once(protocol: str, seed: int) -> None:
    result = run(parse_scenario(ASKED % protocol, source="here"), seed)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["rollback asked for"] >= 4 and result.probes["rollbacks learned"] and result.probes["recovery"]


def restore(agent: str, incarnation: int, reason: str = "astray") -> op.Restore:
    return op.Restore(1, 1, ("h1",), reason, request=f"{agent}@{incarnation}", agent=agent)


def said(*steps: object) -> list[str]:
    """What the oracle says of plans 2, 3, … that were asked for so, by lives 1, 2, …; None: an operator's."""
    found: list[str] = []
    oracle = RollbackOracle(lambda oracle, guarantee, t_ns, text: found.append(text))
    for life, reason in enumerate(steps, 1):
        oracle.on_rollback_requested(0, "a0", life)
        kind = (
            op.Restore(1, 1, ("h1",), "by hand", request="me") if reason is None else restore("a0", life, str(reason))
        )
        oracle.on_restored(0, kind, life + 1)
    return found


def test_the_same_reason_takes_the_fleet_back_once_until_an_operator_does() -> None:
    assert said("x", "y", None, "x") == []
    assert "once more, since plan 2" in said("x", "y", "x")[0]


def test_whoever_has_asked_takes_no_turn_in_that_life_and_nobody_else_is_answered() -> None:
    found: list[str] = []
    oracle = RollbackOracle(lambda oracle, guarantee, t_ns, text: found.append(text))
    oracle.on_rollback_requested(0, "a0", 1)
    oracle.on_turn(1, "a0", 2)
    oracle.on_turn(1, "a1", 1)
    oracle.on_restored(2, restore("a0", 1), 2)
    assert not found
    oracle.on_turn(3, "a0", 1)
    oracle.on_restored(4, restore("a1", 1), 3)
    assert "takes a turn" in found[0] and "has not asked" in found[1]
