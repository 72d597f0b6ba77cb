"""Moves agents and restarts hosts, and waits for the result; shared by commands with several steps."""

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
"""Interval between two polls of the fleet's status."""

SPREAD_AGAIN_S = 5.0
"""Time after which the request is repeated, because requests to a leader that has died are lost."""

Note = Callable[[str], None]


async def until(
    client: "CoordinatorClient", what: str, is_done: "Callable[[FleetStatus], bool]", deadline_s: float
) -> "FleetStatus":
    """Poll the fleet until `is_done`. `what`: the awaited condition, for messages; `deadline_s`: on the monotonic clock.

    Raises:
        ExternalFailureError: the fleet has ended.
        UnknownOutcomeError: the condition does not hold in time.
    """
    while True:
        status = await _look(client)
        if status is not None:
            if is_done(status):
                return status
            if status.phase in ("finished", "failed"):
                raise ExternalFailureError(f"the fleet is {status.phase}, and {what} will not be")
        if time.monotonic() > deadline_s:
            raise UnknownOutcomeError(f"{what}: not reached yet, but may still be: {_describe_state(status)}")
        await asyncio.sleep(LOOK_S)


def _describe_state(status: "FleetStatus | None") -> str:
    """Return likely reasons."""
    if status is None:
        return "no coordinator answers"
    concerns = [concern.text for concern in status.concerns if concern.kind != "drained"]
    return "; ".join([*concerns, ", ".join([f"{host.host} {host.state}" for host in status.hosts])])


async def _look(client: "CoordinatorClient") -> "FleetStatus | None":
    try:
        return await client.status()
    except SnaplineError:
        return None  # after a leader's death another one follows


def host_of(status: "FleetStatus", name: str) -> "HostStatus | None":
    """Return a host's status."""
    return next((host for host in status.hosts if host.host == name), None)


async def drain(client: "CoordinatorClient", names: tuple[str, ...], deadline_s: float, note: Note) -> None:
    """Drain these hosts, and wait until they are empty.

    Raises:
        NotFoundError: there is no such host.
        UsageError: there is no other host.
        SnaplineError: like `until`.
    """
    await client.move_agents(names)
    note(f"agents leave {', '.join(names)}")
    await until(client, f"{', '.join(names)} without agents", lambda found: is_empty(found, names), deadline_s)


def is_empty(status: "FleetStatus", names: tuple[str, ...]) -> bool:
    """Return whether the fleet runs with these hosts empty."""
    return status.phase == "running" and not any(host.agents for host in status.hosts if host.host in names)


async def spread(client: "CoordinatorClient", deadline_s: float, note: Note) -> None:
    """Spread agents evenly over all hosts, as far as placement allows, and wait for it. Raises like `until`."""
    note("agents are spread evenly")
    while True:
        await until(client, "a fleet that runs", lambda found: found.phase == "running", deadline_s)
        reply = await client.move_agents(is_even=True)
        if not reply.is_moving:
            return
        again_s = min(deadline_s, time.monotonic() + SPREAD_AGAIN_S)
        try:
            await until(client, "an even spread", partial(is_planned, plan=reply.plan), again_s)
        except UnknownOutcomeError:
            if time.monotonic() > deadline_s:
                raise


def is_planned(status: "FleetStatus", plan: int) -> bool:
    """Return whether a later plan was applied."""
    return status.phase == "running" and status.plan > plan


async def renew(client: "CoordinatorClient", name: str, deadline_s: float, note: Note) -> None:
    """Restart a host's process; its agents leave it first, and may return later. Raises like `until` and `drain`."""
    before = await client.status()
    host_before = host_of(before, name)
    old_generation = host_before.host_start if host_before is not None else 0
    await drain(client, (name,), deadline_s, note)
    await client.end_host(name, host_start=old_generation)
    note(f"{name} ends, and is started again")

    def is_back(found: "FleetStatus") -> bool:
        host = host_of(found, name)
        return host is not None and host.state == "alive" and host.host_start > old_generation

    await until(client, f"a new process of {name} (who keeps the fleet starts it)", is_back, deadline_s)
    await client.move_agents(resumed=(name,))


async def renew_replica(
    client: "CoordinatorClient", replica: "CoordinatorClient", name: str, deadline_s: float, note: Note
) -> None:
    """Restart a coordinator's process; a leader first transfers leadership. `client`: for all replicas; `replica`: for this one.

    Raises:
        SnaplineError: the replica cannot be reached.
        UnknownOutcomeError: the replica is not back in time.
    """
    before = await replica.read_replica("status")
    if before["connected"] and _leader_of(before) == name:
        await client.transfer_leader(only_from=name)
    await client.end_replica(name)
    note(f"coordinator {name} ends, and is started again")
    while time.monotonic() < deadline_s:
        with contextlib.suppress(SnaplineError):
            status = await replica.read_replica("status", LOOK_S * 5)
            if status["run"] != before["run"] and _leader_of(status):
                return
        await asyncio.sleep(LOOK_S)
    raise UnknownOutcomeError(f"coordinator {name} is not back: who keeps the fleet starts it again; see its log")


def _leader_of(replica: Mapping[str, object]) -> str:
    standing = replica["standing"]
    return str(standing["leader"]) if isinstance(standing, Mapping) else ""
