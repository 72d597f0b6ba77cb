"""`snapline scale` and `snapline restart`: change a running fleet's number of hosts, or restart it."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli import rebalance as moving
from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import count, document, rows_of
from snapline.cli.progress import FleetProgress
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.messages.status import FleetStatus

SCALE_S = 180.0
"""Default time limit for processes to start and agents to move."""

Within = Annotated[float, typer.Option("--within", min=1, metavar="SECONDS", help="For all of it.")]


@command
def scale(
    connection: Connection,
    display: Display,
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=256, metavar="N", help="How many hosts it is to have.")],
    within: Within = SCALE_S,
) -> None:
    """Give a fleet that runs more hosts, or fewer.

    More are started, and agents move so that all have equally many. Of fewer, those above the number are drained before they end.
    Nothing is lost: agents move by a plan from a snapshot that is taken for it. For fleets that a process on this machine keeps
    (`snapline up`, `snapline run`).
    """
    from snapline.deploy.running_fleet import check_supervised

    folder = connection.folder()
    check_supervised(folder)
    progress = FleetProgress(display.printer())
    deadline_s = time.monotonic() + within
    status = connection.ask(lambda client: _scale(client, folder, hosts, deadline_s, progress))
    rows = [{"host": host.host, "agents": host.agents} for host in status.hosts if host.state == "alive"]
    result = document("FleetScaled", hosts=hosts, placed=rows)
    summary = ", ".join([f"{row['host']} {row['agents']}" for row in rows])
    display.printer().result(result, lambda _, tables: tables.line(f"the fleet has {hosts} hosts; agents: {summary}"))


async def _scale(
    client: "CoordinatorClient", folder: Path, hosts: int, deadline_s: float, progress: FleetProgress
) -> "FleetStatus":
    from snapline.deploy.running_fleet import host_names, request_hosts

    names = host_names(hosts)
    now = await client.status()
    alive = [host.host for host in now.hosts if host.state == "alive"]
    foreign = [name for name in alive if not (name[:1] == "h" and name[1:].isdigit())]
    if foreign:
        raise UsageError(f"host {foreign[0]} was not started by who keeps the fleet: scale it where it was started")
    leaving = tuple([name for name in alive if name not in names])
    if leaving:
        await moving.drain(client, leaving, deadline_s, progress.note)
    request_hosts(folder, hosts)
    progress.note(f"{hosts} hosts are wanted of the process that keeps the fleet")

    def is_so(found: "FleetStatus") -> bool:
        return sorted(host.host for host in found.hosts if host.state == "alive") == sorted(names)

    await moving.until(client, f"a fleet of {hosts} hosts", is_so, deadline_s)
    back = [host.host for host in now.hosts if host.host in names and host.is_drained]
    await client.move_agents(resumed=[*back, *leaving])
    await moving.spread(client, deadline_s, progress.note)
    return await client.status()


@command
def restart(
    connection: Connection,
    display: Display,
    hosts_only: Annotated[bool, typer.Option("--hosts-only", help="Leave the coordinator's processes alone.")] = False,
    within: Within = SCALE_S,
) -> None:
    """Start every process of a fleet anew, one after the other, while it runs.

    Each host is drained before it ends, and each coordinator that leads hands that on: no epoch is lost, and no agent goes back further than
    the snapshot that is taken for it. Whoever keeps the fleet starts the processes again, with what is installed by then.
    """
    progress = FleetProgress(display.printer())
    deadline_s = time.monotonic() + within
    names = connection.ask(lambda client: _renew_hosts(client, deadline_s, progress))
    replicas = [] if hosts_only else asyncio.run(_renew_replicas(connection, deadline_s, progress))
    result = document("FleetRestarted", hosts=names, coordinators=replicas)
    summary = f"{count(len(names), 'host')} and {count(len(replicas), 'coordinator')} run anew"
    display.printer().result(result, lambda _, tables: tables.line(summary))


async def _renew_hosts(client: "CoordinatorClient", deadline_s: float, progress: FleetProgress) -> list[str]:
    names = [host.host for host in (await client.status()).hosts if host.state == "alive"]
    if len(names) < 2:
        raise UsageError(
            "a fleet of one host stands while that starts again: give it another one before (`snapline scale`)"
        )
    for name in names:
        await moving.renew(client, name, deadline_s, progress.note)
    await moving.spread(client, deadline_s, progress.note)
    return names


async def _renew_replicas(connection: Connection, deadline_s: float, progress: FleetProgress) -> list[str]:
    """Restart the replicas, followers first, so that leadership moves only once."""

    from snapline.messages.coordinator_client import CoordinatorClient

    async with contextlib.AsyncExitStack() as opened:

        def open_client(address: str) -> CoordinatorClient:
            client = CoordinatorClient(address, connection.security())
            opened.push_async_callback(client.close)
            return client

        client = open_client(connection.address())
        members = rows_of(await client.read_replica("members"), "members")
        for member in sorted(members, key=lambda row: bool(row.get("leads"))):
            name, replica = str(member["id"]), open_client(str(member["address"]))
            await moving.renew_replica(client, replica, name, deadline_s, progress.note)
        return [str(member["id"]) for member in members]
