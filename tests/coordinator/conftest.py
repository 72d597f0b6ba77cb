"""A fleet state that checks its invariants after every operation."""

from collections.abc import Iterator

import pytest

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, OperationResult
from snapline.coordinator.state.fleet_state import FleetState


class Agreed:
    """A FleetState with a short way to apply operations."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.protocol = "chandy-lamport"
        self.recovery = "global"
        self.sequence = 0
        self.log: list[op.Operation] = []

    def try_(self, kind: op.Kind, *, now_ns: int = 0) -> OperationResult:
        """Apply a fresh request."""
        self.sequence += 1
        operation = op.Operation(now_ns or self.sequence, "test", self.sequence, kind)
        self.log.append(operation)
        before = self.state.open_epochs()
        result = self.state.apply(operation)
        aborted = tuple(epoch for epoch in before if epoch not in self.state.image.epochs)
        assert not aborted or result.epochs == aborted, f"{kind} aborted {aborted} and says {result.epochs}"
        self.state.validate()
        return result

    def do(self, kind: op.Kind) -> OperationResult:
        """Apply a request that must be applied."""
        result = self.try_(kind)
        assert result.status == APPLIED, result
        return result

    def refused(self, kind: op.Kind) -> str:
        """Apply a request that must be refused and change nothing but the table of requests; return the reason."""
        before = FleetState.restore(self.state.freeze())
        result = self.try_(kind)
        assert result.is_refused, result
        after = FleetState.restore(self.state.freeze())
        before.image.requests = after.image.requests = {}
        before.image.now_ns = after.image.now_ns
        assert before.freeze() == after.freeze(), "a refused operation changed the state"
        return result.reason

    def define(self, agents: int = 4) -> None:
        self.do(op.DefineFleet("c", "f", self.protocol, 0, 0, b"d", agents, recovery=self.recovery))
        names = tuple(f"a{n}" for n in range(agents))
        self.do(op.DefineAgents(0, names, ("m:A",) * agents))

    def start(self, *hosts: str, agents: int = 4) -> None:
        """A running fleet."""
        for host in hosts:
            self.do(op.AdmitHost(host, f"{host}-1", f"{host}:1", 0))
        self.define(agents)
        self.plan(*hosts)

    def plan(self, *hosts: str, line: int | None = None, is_move: bool = False) -> None:
        """A plan that all have applied."""
        line = self.line if line is None else line
        self.do(op.CommitPlan(self.state.plan_number, line, hosts, "test", is_move=is_move))
        self.confirm()

    def confirm(self) -> None:
        plan = self.state.plan
        assert plan is not None
        for host in plan.hosts:
            self.do(op.ConfirmPlan(plan.number, host, self.state.image.hosts[host].start))

    def begin(self) -> int:
        return self.do(op.BeginEpoch(self.state.image.begun, "hand")).number

    def complete(self, epoch: int, *unborn: str) -> None:
        self.do(op.CompleteEpoch(epoch, f"root-{epoch}", unborn))

    def epoch(self) -> int:
        """A whole epoch."""
        epoch = self.begin()
        self.complete(epoch)
        return epoch

    def lose(self, host: str) -> OperationResult:
        return self.do(op.LoseHosts((op.LostHost(host, self.state.image.hosts[host].start),), "test"))

    def create(self, agent: str, host: str = "h1", parent: str = "") -> OperationResult:
        start = self.state.image.hosts[host].start
        return self.try_(op.CreateAgents(host, start, self.state.plan_number, (agent,), ("m:N",), parent))

    def remove(self, agent: str) -> OperationResult:
        host = self.state.image.agents[agent].host
        start = self.state.image.hosts[host].start
        return self.try_(op.RemoveAgent(host, start, self.state.plan_number, agent))

    @property
    def line(self) -> int:
        return self.state.newest_complete()

    @property
    def agents(self) -> list[str]:
        return [agent for agent, _ in self.state.living_agents()]

    def places(self) -> dict[str, str]:
        return {agent: record.host for agent, record in self.state.living_agents()}


@pytest.fixture
def agreed() -> Iterator[Agreed]:
    made = Agreed()
    yield made
    made.state.validate()
    again = FleetState()
    for operation in made.log:
        again.apply(operation)
    assert again.freeze() == made.state.freeze(), "the same log gave another state"
