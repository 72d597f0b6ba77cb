"""Orders in the simulated world: with every protocol, through a crash, and its counting by itself."""

from collections.abc import Callable

import msgspec
import pytest
from tests.sim.workload_cuts import Checkpoints, copy_of

import snapline
from snapline.agent_runtime.host.modes.logged_checkpoints import Saving
from snapline.agent_runtime.host.plans import Membership
from snapline.examples import orders
from snapline.messages import host_messages as msg
from snapline.protocols.names import PROTOCOLS
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario
from snapline.sim.search.swarm import BUILT_IN, draw
from snapline.sim.workloads import make_workload

CRASH = """
schema = 1
[fleet]
agents = 5
hosts = 2
protocol = "{protocol}"
pattern = {{ name = "orders", messages = 200 }}
trigger = {{ kind = "period", every = "40ms" }}
[[fault]]
crash = {{ host = "h1", at = "200ms", restart_after = "100ms" }}
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_orders_end_exactly_through_a_crash(protocol: str) -> None:
    result = run(parse_scenario(CRASH.format(protocol=protocol), source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    for probe in ("dead letter", "turn failed", "agent spawned", "agent stopped", "recovery"):
        assert result.probes[probe], probe


def test_a_line_that_never_reaches_where_agents_rest_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what leaves after a reservation is not noted, and no checkpoint is due for it."""
    base = BUILT_IN["quiet"]
    swarm = msgspec.structs.replace(base.swarm, protocols=["hmnr"], patterns=["orders"])  # type: ignore[type-var]  # it has one
    scenario = draw(msgspec.structs.replace(base, swarm=swarm), 1)
    reserved = Membership.on_agents_reserved

    def deaf(self: Membership, event: msg.AgentsReserved) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Saving, "moved", lambda self, agent: None)
            reserved(self, event)

    assert run(scenario, 1).verdict == "pass"
    monkeypatch.setattr(Membership, "on_agents_reserved", deaf)
    monkeypatch.setattr(Saving, "validate_rest", lambda *_: None)
    found = run(scenario, 1)
    assert found.verdict == "undecided" and "no complete epoch holds what" in found.pending[0], found.pending


# -- the counting -------------------------------------------------------------------------------------------------------


def cuts_of(protocol: str) -> list[Checkpoints]:
    """Every complete cut of some runs: few hold money on its way to the ledger."""
    seen: list[Checkpoints] = []
    scenario = parse_scenario(CRASH.format(protocol=protocol), source="here")
    for seed in range(1, 5):
        workload = make_workload(scenario.fleet)
        check = workload.check_cut
        workload.check_cut = lambda cut, check=check: seen.append(copy_of(cut._checkpoints)) or check(cut)  # type: ignore[method-assign, misc, func-returns-value]
        assert run(scenario, seed, workload=workload).verdict == "pass"
    return seen


@pytest.fixture(scope="module")
def cuts() -> list[Checkpoints]:
    return cuts_of("chandy-lamport")


def dead_letters_lost(cut: Checkpoints) -> None:
    for each in cut.values():
        each.dead_letters.clear()


def jobs_lost(cut: Checkpoints) -> None:
    for agent, each in cut.items():
        if agent.startswith("worker"):
            each.in_transit.clear()


def money_doubled(cut: Checkpoints) -> None:
    for messages in cut["ledger"].in_transit.values():
        messages += [
            each for each in messages if b"Money" in each.payload and not each.payload.endswith(b"\0")
        ]  # not of 0


def spawns_lost(cut: Checkpoints) -> None:
    for each in cut.values():
        each.spawns.clear()


CHANGES = (dead_letters_lost, jobs_lost, money_doubled, spawns_lost)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_missing_or_doubled_is_seen(change: Callable[[Checkpoints], None], cuts: list[Checkpoints]) -> None:
    workload = make_workload(parse_scenario(CRASH.format(protocol="chandy-lamport"), source="here").fleet)
    tried = 0
    for cut in cuts:
        changed = copy_of(cut)
        change(changed)
        is_same = changed == cut
        tried += not is_same
        said = workload.check_cut(snapline.Cut(1, changed, workload.fleet))
        assert (said is None) == is_same, said
    assert tried


def test_a_quiet_cut_with_an_order_without_outcome_is_seen() -> None:
    """Where agents checkpoint on their own, a run goes on until the line holds what they did last."""
    workload = make_workload(parse_scenario(CRASH.format(protocol="hmnr"), source="here").fleet)
    last = snapline.Cut(1, cuts_of("hmnr")[-1], workload.fleet)
    assert last.is_quiet
    assert workload.check_cut(last) is None
    plan = last.states["planner"]
    assert isinstance(plan, orders.Plan)
    plan.done.popitem()
    assert "have no outcome" in str(workload.check_cut(last))
    plan.done[0] = 2
    assert "two outcomes" in str(workload.check_cut(last))
