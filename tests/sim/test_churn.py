"""Fleets whose agents come and go: whoever has stopped leaves in the end, and what was known of it goes with it."""

from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.host.core import HostCore
from snapline.coordinator.leader.modes.checkpoint_modes import PendingRemovals
from snapline.coordinator.service.line_store import ComposedLine
from snapline.coordinator.state import operation_rules
from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import FaultPart, FleetPart, RunPart, Scenario, TriggerPart
from snapline.sim.workloads import Workload

KIDS = 260
AGENTS_MAX = 160
"""Of the fleet, in place of 20,000: less than all that ever live in it."""


class Go(snapline.Message):
    pass


class Paper(snapline.Message):
    number: int


class Receipt(snapline.Message):
    number: int


class Nursery(msgspec.Struct):
    made: int = 0
    done: int = 0


class GroundTruth(msgspec.Struct):
    papers: int = 0


class Kid(msgspec.Struct):
    number: int


class Mother(snapline.Agent):
    state: Nursery

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("go", 0.03, Go())

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        ctx.spawn(f"kid-{self.state.made}", Child(Kid(self.state.made)))
        self.state.made += 1
        if self.state.made < KIDS:
            ctx.set_timer("go", 0.03, Go())

    @snapline.handler
    async def on_receipt(self, message: Receipt, ctx: snapline.Context) -> None:
        self.state.done += 1


class Clerk(snapline.Agent):
    state: GroundTruth

    @snapline.handler
    async def on_paper(self, message: Paper, ctx: snapline.Context) -> None:
        self.state.papers += 1
        ctx.send(ctx.sender, Receipt(message.number))


class Child(snapline.Agent):
    """Writes to the clerk, who is on another host; waits for the receipt, passes it on, and stops."""

    state: Kid

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("clerk", Paper(self.state.number))

    @snapline.handler
    async def on_receipt(self, message: Receipt, ctx: snapline.Context) -> None:
        ctx.send("mother", message)
        ctx.stop()


class Nurseries(Workload):
    """Each child is counted once."""

    def is_done(self, states: Any) -> bool:
        return bool(states["mother"].made == states["mother"].done == states["clerk"].papers == KIDS)


def churn(protocol: str, *, seed: int = 1, crashes: tuple[str, ...] = ("900ms", "2200ms")) -> Result:
    fleet = snapline.Fleet(
        "nursery",
        agents={"mother": Mother(Nursery()), "clerk": Clerk(GroundTruth())},
        protocol=protocol,
        triggers=[snapline.Every(seconds=0.1)],
    )
    faults = [FaultPart(crash=CrashFault(at=at, restart_after="100ms")) for at in crashes]
    part = FleetPart(agents=2, hosts=2, coordinators=1, protocol=protocol, trigger=TriggerPart(every="100ms"))
    scenario = Scenario(name="churn", fleet=part, fault=faults, run=RunPart(until="20s", keep_epochs=2))
    return run(scenario, seed, workload=Nurseries(fleet, ends=True))


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[HostCore]:
    """The hosts' cores of a run, in a fleet of few agents at a time."""
    found: list[HostCore] = []
    init = HostCore.__init__

    def kept(self: HostCore, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        found.append(self)

    monkeypatch.setattr(HostCore, "__init__", kept)
    monkeypatch.setattr(operation_rules, "agents_max", lambda protocol: AGENTS_MAX)
    return found


@pytest.mark.parametrize(
    "protocol",
    ["chandy-lamport", "hmnr", *[pytest.param(each, marks=pytest.mark.slow) for each in ("koo-toueg", "cbr")]],
)
def test_agents_that_stop_leave_and_are_forgotten(protocol: str, cores: list[HostCore]) -> None:
    """Once logged fleets kept them: each creation after the 20,000th was buried, and each peer's numbers grew for ever."""
    result = churn(protocol)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["recovery"] and not result.probes.get("dead letter")
    for core in cores:
        known = [len(agent.inlets) + len(agent.outlets) for agent in core.agents.values()]
        links = [len(peer.inlets) + len(peer.outlets) for peer in core.peers.values()]
        assert max([*known, *links, len(core.shared.routes), len(core.shared.ordinals)], default=0) < AGENTS_MAX, (
            known,
            links,
        )


def nobody_leaves(patch: pytest.MonkeyPatch) -> None:
    """The fleet is full of agents that have stopped."""
    patch.setattr(PendingRemovals, "evaluate", lambda self: None)


def whoever_has_stopped_leaves(patch: pytest.MonkeyPatch) -> None:
    """Also if what it has sent is still in transit in the newest epoch: that would be lost."""
    patch.setattr(
        ComposedLine, "finished", property(lambda self: tuple(x.agent for x in self.checkpoints if x.is_leaving))
    )


@pytest.mark.parametrize("mutant", [nobody_leaves, pytest.param(whoever_has_stopped_leaves, marks=pytest.mark.slow)])
def test_the_mutant_is_found(mutant: Any, cores: list[HostCore], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(
        churn(protocol, seed=seed).verdict != "pass" for seed in range(1, 5) for protocol in ("koo-toueg", "hmnr")
    )
