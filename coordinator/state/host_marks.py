"""Small marks of hosts in the state: that one is over, that agents are to leave it, that it logs inputs."""

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, OVER, REFUSED, UNCHANGED, LogRecord, OperationResult
from snapline.coordinator.state.fleet_view import FleetView


def forget_hosts(state: FleetView, kind: op.ForgetHosts) -> OperationResult:
    """Drop the records of hosts that are over; later ones begin above their starts (G9)."""
    image = state.image
    needed = [host for host in kind.hosts if host in image.hosts and not state.may_forget(host)]
    if needed:
        return OperationResult(REFUSED, f"host {needed[0]} is alive, or agents are placed there until the next plan")
    found = [image.hosts.pop(host) for host in kind.hosts if host in image.hosts]
    image.forgotten_start = max([image.forgotten_start, *[record.start for record in found]])
    return OperationResult(APPLIED) if found else OperationResult(UNCHANGED, "no such host is known")


def drain_hosts(state: FleetView, kind: op.DrainHosts) -> OperationResult:
    """Mark hosts, or take the mark away; nothing moves before the next plan."""
    records = [state.image.hosts[host] for host in kind.hosts if host in state.image.hosts]
    changed = [record for record in records if record.is_drained != kind.is_drained]
    for record in changed:
        record.is_drained = kind.is_drained
    return OperationResult(APPLIED if changed else UNCHANGED)


def open_host_log(state: FleetView, kind: op.OpenHostLog) -> OperationResult:
    """Owners of later plans know of this log, and of its newest batch, from now on."""
    end = state.end_of(kind.host, kind.host_start, kind.plan)
    if end:
        return OperationResult(OVER, end)
    logs = state.image.logs
    record = LogRecord(kind.plan, kind.host, kind.host_start, kind.newest)
    for place, known in enumerate(logs):
        if (known.plan, known.host, known.host_start) == (record.plan, record.host, record.host_start):
            if known.newest >= record.newest:
                return OperationResult(UNCHANGED)
            logs[place] = record
            return OperationResult(APPLIED)
    logs.append(record)
    return OperationResult(APPLIED)
