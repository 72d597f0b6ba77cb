"""Operations on single hosts: forget a host, drain it, open its log."""

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, OVER, REFUSED, UNCHANGED, LogRecord, OperationResult
from snapline.coordinator.state.fleet_view import FleetView


def forget_hosts(state: FleetView, kind: op.ForgetHosts) -> OperationResult:
    """Remove the records of lost and departed hosts; new hosts begin above their starts (G9)."""
    image = state.image
    needed = [host for host in kind.hosts if host in image.hosts and not state.may_forget(host)]
    if needed:
        return OperationResult(REFUSED, f"host {needed[0]} is alive, or agents are placed there until the next plan")
    removed = [image.hosts.pop(host) for host in kind.hosts if host in image.hosts]
    image.forgotten_start = max([image.forgotten_start, *[record.start for record in removed]])
    return OperationResult(APPLIED) if removed else OperationResult(UNCHANGED, "no such host is known")


def drain_hosts(state: FleetView, kind: op.DrainHosts) -> OperationResult:
    """Set or clear the drain mark of hosts; agents move with the next plan."""
    records = [state.image.hosts[host] for host in kind.hosts if host in state.image.hosts]
    changed = [record for record in records if record.is_drained != kind.is_drained]
    for record in changed:
        record.is_drained = kind.is_drained
    return OperationResult(APPLIED if changed else UNCHANGED)


def open_host_log(state: FleetView, kind: op.OpenHostLog) -> OperationResult:
    """Record a host log and its newest batch, so that the hosts of later plans know them."""
    end = state.why_work_is_over(kind.host, kind.host_start, kind.plan)
    if end:
        return OperationResult(OVER, end)
    logs = state.image.logs
    record = LogRecord(kind.plan, kind.host, kind.host_start, kind.newest)
    for index, known in enumerate(logs):
        if (known.plan, known.host, known.host_start) == (record.plan, record.host, record.host_start):
            if known.newest >= record.newest:
                return OperationResult(UNCHANGED)
            logs[index] = record
            return OperationResult(APPLIED)
    logs.append(record)
    return OperationResult(APPLIED)
