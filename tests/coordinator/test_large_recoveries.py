"""What a recovery and an epoch cost the leader grows with the hosts, not with their pairs."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.core import LeaderCore


def instructions(work: Callable[[], None]) -> int:
    """How many of Python's own it takes in the leader: every turn of every loop counts, and the machine's speed does not."""
    count, core = 0, LeaderCore.handle.__code__

    def within(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return within

    def entered(frame: FrameType, _event: str, _argument: object) -> object:
        caller: FrameType | None = frame
        while caller is not None and caller.f_code is not core:
            caller = caller.f_back
        return None if caller is None else within(frame, "call", None)

    sys.settrace(entered)  # type: ignore[arg-type]  # the stubs know no tracer that says None
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def cost_of_recovery(hosts: int) -> int:
    """From the end of a host's process to the word of the last host that it has applied the plan."""
    bench = Bench(hosts, agents=hosts)
    names = [f"h{number}" for number in range(hosts)]
    bench.start_fleet(*names)
    last = bench.state.image.hosts[names[-1]]
    bench.feed(ev.HostExitReported(names[-1], last.instance, "killed"))
    bench.pass_time(4, silent=(names[-1],))
    assert bench.state.plan_number == 2
    cost = instructions(lambda: bench.apply_plan(*names[:-1]))
    assert bench.state.phase == "running"
    return cost


def cost_of_epoch(hosts: int) -> int:
    """The reports of all hosts."""
    bench = Bench(hosts, agents=hosts)
    names = [f"h{number}" for number in range(hosts)]
    bench.start_fleet(*names)
    bench.feed(ev.SnapshotRequested(1))

    def reports() -> None:
        for host in names:
            bench.report(host, 1)

    cost = instructions(reports)
    assert bench.state.newest_complete() == 1
    return cost


@pytest.mark.timeout(60)
@pytest.mark.parametrize("cost", [cost_of_recovery, cost_of_epoch])
def test_four_times_the_hosts_make_at_most_six_times_the_work(cost: Callable[[int], int]) -> None:
    """Looking at all hosts whenever one has said something would make it sixteen times."""
    assert cost(40) < 6 * cost(10)
