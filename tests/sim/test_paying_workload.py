"""The workload of effects: cut by failures in the simulated world, at a service that is late, or silent; mutants; and its oracles by themselves."""

from collections.abc import Callable
from typing import Any

import pytest

from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.agent_outputs import AgentOutputs
from snapline.agent_runtime.host.effects import Effects
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, parse_scenario
from snapline.sim.workloads import make_workload
from snapline.sim.workloads.paying import PARTS, PayerState, PayingWorkload, Shop

Patch = pytest.MonkeyPatch

CRASHES = """
schema = 1
[run]
until = "60s"
[liveness]
within = "300s"
[fleet]
agents = 3
hosts = 2
protocol = "%s"
pattern = { name = "paying", messages = 30 }
trigger = { kind = "period", every = "50ms" }
[steps]
late_per_mille = 60
lost_per_mille = 60
failed_per_mille = 100
[[fault]]
crash = { host = "h1", at = "450ms", restart_after = "100ms" }
[[fault]]
crash = { host = "h2", at = "2300ms", restart_after = "100ms" }
[[fault]]
crash = { host = "h1", at = "700ms", restart_after = "100ms" }
"""


def paid(protocol: str, seed: int) -> Result:
    return run(parse_scenario(CRASHES % protocol, source="here"), seed)


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr", "cas"])
def test_what_is_paid_survives_recoveries(protocol: str) -> None:
    result = paid(protocol, 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["effect in doubt"] and result.probes["recovery"]


# ---- mutants -----------------------------------------------------------------------------------------------------------


def before_release(patch: Patch) -> None:
    patch.setattr(AgentOutputs, "holds", lambda self, number: False)


def another_key(patch: Patch) -> None:
    """Each life of an agent has keys of its own."""
    call = Effects._call_if_released

    def mutant(self: Effects, agent: LocalAgent, *rest: Any) -> None:
        cluster, self._desk.cluster = self._desk.cluster, f"life-{agent.incarnation}"
        call(self, agent, *rest)
        self._desk.cluster = cluster

    patch.setattr(Effects, "_call_if_released", mutant)


def oldest_first(patch: Patch) -> None:
    ended = AgentEffects.turn_ended
    patch.setattr(AgentEffects, "turn_ended", lambda self, letter=0: ended(self, letter)[::-1])


def nothing_undone(patch: Patch) -> None:
    patch.setattr("snapline.agent_runtime.effects.Saga.add", lambda self, made: None)


@pytest.mark.parametrize(
    ("mutant", "oracle"),
    [(before_release, "effects"), (another_key, "effects"), (oldest_first, "stub"), (nothing_undone, "workload")],
)
def test_mutants_are_found_by_their_oracles(mutant: Callable[[Patch], None], oracle: str, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(10):
        if oracle in [violation.oracle for violation in paid("chandy-lamport", seed).violations]:
            return
    pytest.fail("it was not found")


# ---- the oracles -----------------------------------------------------------------------------------------------------


def workload() -> PayingWorkload:
    made = make_workload(FleetPart(agents=2, pattern=PatternPart(name="paying", messages=8)))
    assert isinstance(made, PayingWorkload)
    return made


@pytest.mark.parametrize(
    ("how", "is_paid", "is_right"),
    [("paid", True, True), ("paid", False, False), ("cancelled", True, False), ("stuck", True, True)],
)
def test_states_and_the_service_must_agree(how: str, is_paid: bool, is_right: bool) -> None:
    made = workload()
    for part in PARTS if is_paid else ():
        made.shop.pay("a0.0", part, key=part)
    found = made.check_end({"a0": PayerState(0, 2, {0: how})})
    assert (found is None) is is_right


def test_the_service_honours_keys_and_tells_what_must_not_be() -> None:
    shop = Shop()
    assert shop.pay("o", "seat", key="1") == shop.pay("o", "seat", key="1") and shop.find("o", "seat", key="1")
    with pytest.raises(AssertionError, match="is paid again"):
        shop.pay("o", "seat", key="2")
    shop.pay("o", "hotel", key="3")
    with pytest.raises(AssertionError, match="is given back before"):
        shop.undo("o", "seat", key="4")
    shop.undo("o", "hotel", key="5")
    with pytest.raises(AssertionError, match="is given back again"):
        shop.undo("o", "hotel", key="6")
    with pytest.raises(ConnectionRefusedError):
        shop.pay("o", "taxi", key="7")
    assert shop.standing("o") == ["seat"]
