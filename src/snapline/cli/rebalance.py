"""Waiting for agents to move and hosts to restart: shared by commands of several steps."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from snapline.errors import ExternalFailureError, SnaplineError, UnknownOutcomeError

if TYPE_CHECKING:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.messages.status import FleetStatus, HostStatus

LOOK_S = 0.2
"""Time between polls of the fleet's status."""

SPREAD_AGAIN_S = 5.0
"""Time between repeats of the request: a dead leader's requests are lost."""

Note = Callable[[str], None]


async def until(
    client: "CoordinatorClient", what: str, is_done: "Callable[[FleetStatus], bool]", deadline_s: float
) -> "FleetStatus":
    """Poll the fleet until `is_done`. `what`: for messages; `deadline_s`: of the monotonic clock.

    Raises:
        ExternalFailureError: the fleet has ended.
        UnknownOutcomeError: it is not so in time.
    """
    while True:
        found = await _look(client)
        if found is not None:
            if is_done(found):
                return found
            if found.phase in ("finished", "failed"):
                raise ExternalFailureError(f"the fleet is {found.phase}, and {what} will not be")
        if time.monotonic() > deadline_s:
            raise UnknownOutcomeError(f"{what} is not so yet, and may still come: {_told(found)}")
        await asyncio.sleep(LOOK_S)


def _told(status: "FleetStatus | None") -> str:
    """Return likely reasons."""
    if status is None:
        return "no coordinator answers"
    concerns = [concern.text for concern in status.concerns if concern.kind != "drained"]
    return "; ".join([*concerns, ", ".join([f"{host.host} {host.state}" for host in status.hosts])])


async def _look(client: "CoordinatorClient") -> "FleetStatus | None":
    try:
        return await client.status()
    except SnaplineError:
        return None  # a leader that has died is followed by another one


def host_of(status: "FleetStatus", name: str) -> "HostStatus | None":
    """Return a host's status."""
    return next((host for host in status.hosts if host.host == name), None)


async def drain(client: "CoordinatorClient", names: tuple[str, ...], deadline_s: float, note: Note) -> None:
    """Drain these hosts, and wait until they are empty.

    Raises:
        NotFoundError, UsageError: there is no such host, or no other one.
        SnaplineError: as `until`.
    """
    await client.move_agents(names)
    note(f"agents leave {', '.join(names)}")
    await until(client, f"{', '.join(names)} without agents", lambda found: is_empty(found, names), deadline_s)


def is_empty(status: "FleetStatus", names: tuple[str, ...]) -> bool:
    """Return whether the fleet runs with these hosts empty."""
    return status.phase == "running" and not any(host.agents for host in status.hosts if host.host in names)


async def spread(client: "CoordinatorClient", deadline_s: float, note: Note) -> None:
    """Spread agents equally over all hosts, as far as placement allows, and wait for it. Raises what `until` raises."""
    note("agents are spread evenly")
    while True:
        await until(client, "a fleet that runs", lambda found: found.phase == "running", deadline_s)
        told = await client.move_agents(is_even=True)
        if not told.is_moving:
            return
        again_s = min(deadline_s, time.monotonic() + SPREAD_AGAIN_S)
        try:
            await until(client, "an even spread", partial(is_planned, plan=told.plan), again_s)
        except UnknownOutcomeError:
            if time.monotonic() > deadline_s:
                raise


def is_planned(status: "FleetStatus", plan: int) -> bool:
    """Return whether a later plan was applied."""
    return status.phase == "running" and status.plan > plan


async def renew(client: "CoordinatorClient", name: str, deadline_s: float, note: Note) -> None:
    """Restart a host's process: its agents leave it before, and may come back. Raises what `until` and `drain` raise."""
    before = await client.status()
    known = host_of(before, name)
    start = known.host_start if known is not None else 0
    await drain(client, (name,), deadline_s, note)
    await client.end_host(name, host_start=start)
    note(f"{name} ends, and is started again")

    def is_back(found: "FleetStatus") -> bool:
        host = host_of(found, name)
        return host is not None and host.state == "alive" and host.host_start > start

    await until(client, f"a new process of {name} (who keeps the fleet starts it)", is_back, deadline_s)
    await client.move_agents(resumed=(name,))


async def renew_replica(
    client: "CoordinatorClient", replica: "CoordinatorClient", name: str, deadline_s: float, note: Note
) -> None:
    """Restart a coordinator's process; a leader hands over leadership before. `client`: of all replicas; `replica`: of this one.

    Raises:
        SnaplineError: it cannot be asked. UnknownOutcomeError: it is not back in time.
    """
    before = await replica.read_replica("status")
    if before["connected"] and _leader_of(before) == name:
        await client.transfer_leader(only_from=name)
    await client.end_replica(name)
    note(f"coordinator {name} ends, and is started again")
    while time.monotonic() < deadline_s:
        with contextlib.suppress(SnaplineError):
            now = await replica.read_replica("status", LOOK_S * 5)
            if now["run"] != before["run"] and _leader_of(now):
                return
        await asyncio.sleep(LOOK_S)
    raise UnknownOutcomeError(f"coordinator {name} is not back: who keeps the fleet starts it again; see its log")


def _leader_of(replica: Mapping[str, object]) -> str:
    standing = replica["standing"]
    return str(standing["leader"]) if isinstance(standing, Mapping) else ""
