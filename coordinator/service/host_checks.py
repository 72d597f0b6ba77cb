"""Checks of tools' requests about hosts, before the leader is asked."""

from collections.abc import Mapping, Sequence

from snapline.coordinator.state.fleet_records import ALIVE, HostRecord
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import NotFoundError, UsageError

Hosts = Mapping[str, HostRecord]


def check_moves(hosts: Hosts, drained: Sequence[str], resumed: Sequence[str]) -> None:
    """Check that agents may leave these hosts.

    Raises:
        NotFoundError: there is no such host.
        UsageError: no host would be left.
    """
    for host in (*drained, *resumed):
        _record_of(hosts, host)
    remaining = [
        host
        for host, record in hosts.items()
        if record.state == ALIVE and host not in drained and (host in resumed or not record.is_drained)
    ]
    if drained and not remaining:
        raise UsageError("no other host would be left for the agents: start one first")


def check_end(hosts: Hosts, host: str, host_start: int = 0) -> None:
    """Check that the host is alive, with this start; 0: any start.

    Raises:
        NotFoundError, UsageError: there is no such host, or the check fails.
    """
    record = _record_of(hosts, host)
    if host_start and record.start != host_start:
        raise UsageError(f"start {host_start} of host {host} is over already: it runs as start {record.start}")
    if record.state != ALIVE:
        raise UsageError(f"host {host} is {record.state}: there is nothing to end")


def check_forgetting(state: FleetView, host: str) -> None:
    """Check that the host's record is not needed.

    Raises:
        NotFoundError, UsageError: there is no such host, or its record is needed.
    """
    record = _record_of(state.image.hosts, host)
    if not state.may_forget(host):
        is_alive = record.state == ALIVE
        why = "is alive: end its process first" if is_alive else "still has agents: they move with the next recovery"
        raise UsageError(f"host {host} {why}")


def _record_of(hosts: Hosts, host: str) -> HostRecord:
    if host not in hosts:
        raise NotFoundError(f"no host {host!r} in this fleet: `snapline host list` lists its hosts")
    return hosts[host]
