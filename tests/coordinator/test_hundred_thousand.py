"""The largest fleet that a coordinator takes, simulated: 300 hosts with 100,000 agents; and the longest names that fit into the log."""

import time
from pathlib import Path

import pytest
from benchmarks.scale_leader import LargeLeader

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.coordinator.raft.dump import DUMP_BYTES_MAX, Dump, encode_dump
from snapline.coordinator.raft.durability import replace_durably
from snapline.coordinator.raft.pysyncobj_adapter import ELECTION_S_MIN
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    AGENTS_EVER_MAX,
    AGENTS_MAX,
    APPLIED,
    LONG_AGENTS_MAX,
    LONG_HOSTS_MAX,
    REFUSED,
    SHORT_AGENT_BYTES,
    SHORT_HOST_BYTES,
    AgentRecord,
    OperationResult,
)
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as msg
from snapline.messages.status import HOSTS_MAX
from snapline.messages.wire import decode_directive, encode_directive

ID_BYTES_MAX = 128
HOSTS, EACH = 300, 333


def names(count: int, long: int, *, short_bytes: int) -> list[str]:
    """As long as may be: so many of the longest, then short ones."""
    return [f"{number:0{ID_BYTES_MAX if number < long else short_bytes}}" for number in range(count)]


class Log:
    """A state machine, and who proposes to it; each entry must fit."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.sequence = 0

    def apply(self, kind: op.Kind) -> OperationResult:
        self.sequence += 1
        operation = op.Operation(self.sequence, "c1", self.sequence, kind)
        assert len(op.encode_operation(operation)) <= op.OPERATION_BYTES_MAX
        return self.state.apply(operation)


@pytest.fixture
def full() -> Log:
    """All hosts that there may be, with the longest names that they may have."""
    log = Log()
    for host in names(HOSTS_MAX, LONG_HOSTS_MAX, short_bytes=SHORT_HOST_BYTES):
        assert log.apply(op.AdmitHost(host, "run", "127.0.0.1:1", 0)).status == APPLIED
    return log


def test_one_more_host_is_refused_and_so_is_one_with_a_long_name(full: Log) -> None:
    assert full.apply(op.AdmitHost("x", "run", "127.0.0.1:1", 0)).status == REFUSED
    few = Log()
    for host in names(LONG_HOSTS_MAX, LONG_HOSTS_MAX, short_bytes=SHORT_HOST_BYTES):
        few.apply(op.AdmitHost(host, "run", "127.0.0.1:1", 0))
    told = few.apply(op.AdmitHost("x" * (SHORT_HOST_BYTES + 1), "run", "127.0.0.1:1", 0))
    assert told.status == REFUSED and "beyond 256 hosts ids have at most 16 bytes" in told.reason


def test_a_plan_on_all_of_them_and_the_loss_of_them_all_fit_into_the_log(full: Log) -> None:
    hosts, why = tuple(full.state.image.hosts), "\N{HEAVY EXCLAMATION MARK SYMBOL}" * op.TEXT_CHARACTERS_MAX
    agents = (LONG_HOSTS_MAX, tuple(f"a{number}" for number in range(LONG_HOSTS_MAX)))
    full.apply(op.DefineFleet("c", "bank", "chandy-lamport", 0, 0, b"", agents[0]))
    full.apply(op.DefineAgents(0, agents[1], ("Teller",) * agents[0]))
    number = 2**40
    assert full.apply(op.CommitPlan(0, 0, hosts, why, number, number)).status == APPLIED
    lost = tuple([op.LostHost(host, full.state.image.hosts[host].start) for host in hosts])
    assert full.apply(op.LoseHosts(lost, why)).status == APPLIED


def test_beyond_twenty_thousand_agents_names_are_short_and_beyond_all_there_is_none() -> None:
    log = Log()
    log.apply(op.DefineFleet("c", "bank", "chandy-lamport", 0, 0, b"", AGENTS_MAX))
    log.state.image.agents = {f"a{number}": AgentRecord("Teller", ordinal=number) for number in range(LONG_AGENTS_MAX)}
    log.state.image.next_ordinal = LONG_AGENTS_MAX
    refused = log.apply(op.DefineAgents(LONG_AGENTS_MAX, ("b" * 40,), ("K" * (SHORT_AGENT_BYTES - 39),)))
    assert refused.status == REFUSED and "id and class have 80 bytes together" in refused.reason
    taken = op.DefineAgents(LONG_AGENTS_MAX, ("b" * 40,), ("K" * (SHORT_AGENT_BYTES - 40),))
    assert log.apply(taken).status == APPLIED
    assert Log().apply(op.DefineFleet("c", "b", "chandy-lamport", 0, 0, b"", AGENTS_MAX + 1)).status == REFUSED
    assert Log().apply(op.DefineFleet("c", "b", "hmnr", 0, 0, b"", LONG_AGENTS_MAX + 1)).status == REFUSED


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_largest_fleet_of_the_longest_names_is_dumped_within_half_an_election(tmp_path: Path) -> None:
    """With as many ids used up as there may be. A plan of it fits into one message."""
    state, kind = FleetState(), "K" * (SHORT_AGENT_BYTES // 2)
    image = state.image
    for number, agent in enumerate(names(AGENTS_MAX, LONG_AGENTS_MAX, short_bytes=SHORT_AGENT_BYTES // 2)):
        image.agents[agent] = AgentRecord(kind if number >= LONG_AGENTS_MAX else "K" * ID_BYTES_MAX, ordinal=number)
    image.gone = dict.fromkeys(names(AGENTS_EVER_MAX - AGENTS_MAX, AGENTS_EVER_MAX, short_bytes=0))
    began_s = time.process_time()
    frozen = state.freeze()
    entry = (b"", 2, 1)
    pieces = encode_dump(Dump("cluster", "c1", entry, (b"", 1, 1), frozen))
    cpu_s = time.process_time() - began_s
    began_s = time.perf_counter()
    replace_durably(tmp_path / "dump", pieces, point="raft.dump")
    print(
        f"{len(frozen) / 2**20:.1f} MiB, frozen in {cpu_s:.2f} s of CPU, written in {time.perf_counter() - began_s:.2f} s"
    )
    assert sum(map(len, pieces)) < DUMP_BYTES_MAX
    assert cpu_s < ELECTION_S_MIN / 2
    placed = tuple([msg.PlacedAgent(agent, x.kind, 299, 2**40, False, x.ordinal) for agent, x in image.agents.items()])
    hosts = tuple(names(HOSTS_MAX, LONG_HOSTS_MAX, short_bytes=SHORT_HOST_BYTES))
    plan = msg.Plan(2**40, 2**40, "f" * 64, 2**40, hosts, placed)
    assert len(encode_directive(plan)) < MESSAGE_BYTES_MAX


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_coordinator_bears_three_hundred_hosts_and_a_hundred_thousand_agents() -> None:
    """Its leader and its state machine: three epochs, and the loss of a host."""
    leader = LargeLeader(HOSTS, EACH)
    found = leader.measure()
    print({key: round(value, 3) for key, value in found.items()})
    plan = leader.core.parts.plans.directive()
    assert plan is not None and len(plan.agents) == HOSTS * EACH
    again = decode_directive(encode_directive(plan))
    assert again == plan
    assert leader.state.phase == "running" and leader.state.newest_complete() == 3
