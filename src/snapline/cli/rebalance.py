"""Waiting until agents are where an operator wants them, and hosts started anew: what commands of several steps share."""

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
"""Between two looks at the fleet's status."""

SPREAD_AGAIN_S = 5.0
"""A leader that has died knows nothing of what was wanted of it: so it is said again."""

Note = Callable[[str], None]


async def until(
    client: "CoordinatorClient", what: str, is_done: "Callable[[FleetStatus], bool]", deadline_s: float
) -> "FleetStatus":
    """Look at the fleet until it is so. `what` tells people; `deadline_s` is of the monotonic clock.

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
    """Why it may not be so."""
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
    """What is known of a host."""
    return next((host for host in status.hosts if host.host == name), None)


async def drain(client: "CoordinatorClient", names: tuple[str, ...], deadline_s: float, note: Note) -> None:
    """Have agents leave these hosts, and wait until they have.

    Raises:
        NotFoundError, UsageError: there is no such host, or no other one.
        SnaplineError: as `until`.
    """
    await client.move_agents(names)
    note(f"agents leave {', '.join(names)}")
    await until(client, f"{', '.join(names)} without agents", lambda found: is_empty(found, names), deadline_s)


def is_empty(status: "FleetStatus", names: tuple[str, ...]) -> bool:
    """None of these hosts has agents, and the fleet runs."""
    return status.phase == "running" and not any(host.agents for host in status.hosts if host.host in names)


async def spread(client: "CoordinatorClient", deadline_s: float, note: Note) -> None:
    """Have all hosts get equally many agents, as far as their places allow, and wait until they have. Raises what `until` raises."""
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
    """A later plan than this one has been applied."""
    return status.phase == "running" and status.plan > plan


async def renew(client: "CoordinatorClient", name: str, deadline_s: float, note: Note) -> None:
    """Start a host's process anew: its agents leave it before, and may come back. Raises what `until` and `drain` raise."""
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
    """Start a coordinator's process anew; one that leads hands that on before. `client`: of all replicas; `replica`: of this one.

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
