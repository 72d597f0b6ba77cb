"""`snapline host …`, `scale` and `restart` query and control single hosts or all hosts of a running fleet.

Some of these commands move agents or restart processes in several steps. Such commands poll the fleet's status until each step has taken
effect. The command `host run` is defined in `processes.py`.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli import processes
from snapline.cli.command import Connection, Display, command
from snapline.cli.output import Document, DocumentTables, concern_lines, count, document, rows_of
from snapline.cli.progress import FleetProgress
from snapline.errors import ExternalFailureError, NotFoundError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.ids import check_id
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.messages.status import FleetStatus, HostStatus


LOOK_S = 0.2
"""Interval in seconds between two polls of the fleet's status."""

MOVE_AGAIN_S = 5.0
"""Time in seconds after which a request to move agents is resent, because a request to a leader that dies is lost."""

Note = Callable[[str], None]


async def until(
    client: "CoordinatorClient", what: str, is_done: "Callable[[FleetStatus], bool]", deadline_s: float
) -> "FleetStatus":
    """Poll the fleet until `is_done` accepts the fleet's status, and return this status.

    `what` describes the expected condition in error messages. `deadline_s` is a time on the monotonic clock, in seconds.

    Raises:
        ExternalFailureError: If the fleet has ended.
        UnknownOutcomeError: If the condition does not hold before the deadline.
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
    """Describe the state of the fleet, because it is the likely reason for a delay."""
    if status is None:
        return "no coordinator answers"
    concerns = [concern.text for concern in status.concerns if concern.kind != "drained"]
    return "; ".join([*concerns, ", ".join([f"{host.host} {host.state}" for host in status.hosts])])


async def _look(client: "CoordinatorClient") -> "FleetStatus | None":
    try:
        return await client.status()
    except SnaplineError:
        return None  # after a leader dies, another replica becomes the leader


def host_of(status: "FleetStatus", name: str) -> "HostStatus | None":
    """Return a host's status, or None if the fleet has no host with this name."""
    return next((host for host in status.hosts if host.host == name), None)


async def drain_hosts(client: "CoordinatorClient", names: tuple[str, ...], deadline_s: float, note: Note) -> None:
    """Drain these hosts, and wait until no agents run on them.

    Raises:
        NotFoundError: If one of the hosts does not exist.
        UsageError: If there is no other host to which the agents can move.
        SnaplineError: In the same cases as in `until`.
    """
    await client.move_agents(names)
    note(f"agents leave {', '.join(names)}")
    await until(client, f"{', '.join(names)} without agents", lambda found: is_empty(found, names), deadline_s)


def is_empty(status: "FleetStatus", names: tuple[str, ...]) -> bool:
    """Return whether the fleet is running and no agents run on these hosts."""
    return status.phase == "running" and not any(host.agents for host in status.hosts if host.host in names)


async def place_agents(
    client: "CoordinatorClient", agents: tuple[str, ...], host: str, deadline_s: float, note: Note
) -> None:
    """Move agents to a host, and wait until they run there.

    Raises:
        NotFoundError: If an agent or the host does not exist.
        UsageError: If the host is not alive or is drained, or if an agent may not run on it.
        SnaplineError: In the same cases as in `until`.
    """
    placed = dict.fromkeys(agents, host)
    await _move_all(client, f"agents on {host}", deadline_s, lambda: note(f"agents move to {host}"), placed=placed)
    elsewhere = [each.agent for each in (await client.locate(agents)).agents if each.host != host]
    if elsewhere:
        raise UnknownOutcomeError(
            f"{', '.join(elsewhere)} did not move: host {host} takes no agents just now, try again"
        )


async def spread_agents(client: "CoordinatorClient", deadline_s: float, note: Note) -> None:
    """Spread agents over all hosts as evenly as placement allows, and wait until this is done. Raises the same errors as `until`."""
    await _move_all(client, "an even spread", deadline_s, lambda: note("agents are spread evenly"), is_even=True)


async def _move_all(
    client: "CoordinatorClient",
    what: str,
    deadline_s: float,
    on_accepted: Callable[[], None],
    *,
    is_even: bool = False,
    placed: Mapping[str, str] | None = None,
) -> None:
    """Request a move until there is nothing left to move, and call `on_accepted` after the first request. Raises the same errors as
    `until`."""
    for attempt in itertools.count():
        await until(client, "a fleet that runs", lambda found: found.phase == "running", deadline_s)
        reply = await client.move_agents(is_even=is_even, placed=placed)
        if attempt == 0:
            on_accepted()
        if not reply.is_moving:
            return
        again_s = min(deadline_s, time.monotonic() + MOVE_AGAIN_S)
        try:
            await until(client, what, partial(is_planned, plan=reply.plan), again_s)
        except UnknownOutcomeError:
            if time.monotonic() > deadline_s:
                raise


def is_planned(status: "FleetStatus", plan: int) -> bool:
    """Return whether the fleet is running under a later plan than `plan`."""
    return status.phase == "running" and status.plan > plan


async def renew(client: "CoordinatorClient", name: str, deadline_s: float, note: Note) -> None:
    """Drain a host, restart its process, and allow agents to return to it. Raises the same errors as `until` and `drain_hosts`."""
    before = await client.status()
    host_before = host_of(before, name)
    old_generation = host_before.host_start if host_before is not None else 0
    await drain_hosts(client, (name,), deadline_s, note)
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
    """Restart a coordinator's process. If the replica is the leader, transfer the leadership first.

    `client` can call all replicas, and `replica` can call only this replica.

    Raises:
        SnaplineError: If the replica is unreachable.
        UnknownOutcomeError: If the replica is not running again before the deadline.
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


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.command("run")(processes.host_run)

MOVE_S = 60.0
"""Default time limit in seconds for agents to move. A move takes one epoch and one plan."""

LINES = 50
COLUMNS = ("host", "state", "agents", "is_drained", "address", "host_start", "turns", "dead_letters", "agents_standing")
OPTIONAL = ("AGENTS STANDING", "HOST START", "TURNS")
"""Columns that narrow terminals leave out, the first ones first."""

HostId = Annotated[str, typer.Argument(metavar="ID", help="Host.")]
HostIds = Annotated[list[str], typer.Argument(metavar="ID…", help="Hosts.")]
Within = Annotated[float, typer.Option("--within", min=0.1, metavar="SECONDS", help="Time limit of the move.")]


@app.command("list")
@command
def list_hosts(connection: Connection, display: Display) -> None:
    """List the hosts, and their numbers of agents."""
    display.printer().result(_host_list(connection), _show_hosts)


@app.command("describe")
@command
def describe(connection: Connection, display: Display, host: HostId) -> None:
    """Describe a host, and list its agents. Exit code 4: no such host."""
    from snapline.messages.answers import document_of

    name = check_id(host, "host")
    rows = [row for row in rows_of(_host_list(connection), "hosts") if row["host"] == name]
    if not rows:
        raise NotFoundError(f"no host {name!r} in this fleet: `snapline host list` lists its hosts")
    located = document_of(connection.ask(lambda client: client.locate_all(connection.timeout)))
    agents = [str(row.get("agent")) for row in rows_of(located, "agents") if row.get("host") == name]
    display.printer().result(document("HostDescription", **{**rows[0], "living_here": agents}), _show_host)


@app.command("drain")
@command
def drain(connection: Connection, display: Display, hosts: HostIds, within: Within = MOVE_S) -> None:
    """Move all agents away from hosts, and keep the hosts empty until `host resume`.

    Agents move by a recovery plan from a fresh snapshot; nothing is lost. A drained host can be ended without any effect on the fleet;
    it stays drained after a restart. Exit codes: 2: no other host is left for the agents. 4: no such host. 9: agents were not moved
    --within the limit.
    """
    names = tuple(dict.fromkeys([check_id(host, "host") for host in hosts]))
    _move(connection, display, lambda note: lambda client: drain_hosts(client, names, time.monotonic() + within, note))


@app.command("resume")
@command
def resume(connection: Connection, display: Display, hosts: HostIds) -> None:
    """Allow agents on drained hosts again. They return with the next recovery, or by `host spread`."""
    names = [check_id(host, "host") for host in hosts]
    _move(connection, display, lambda _: lambda client: client.move_agents(resumed=names))


@app.command("spread")
@command
def spread(connection: Connection, display: Display, within: Within = MOVE_S) -> None:
    """Move agents until all hosts have equally many. Exit code 9: not done --within the limit."""
    _move(connection, display, lambda note: lambda client: spread_agents(client, time.monotonic() + within, note))


@app.command("kill")
@command
def kill(connection: Connection, display: Display, host: HostId) -> None:
    """Kill a host's process, as a failure would: its agents go back to the last snapshot, on other hosts.

    The host is fenced at once: its messages are rejected, even if the process cannot be reached. It also kills the last host. The
    fleet's supervisor restarts it. To lose no work, drain the host first.
    """
    name = check_id(host, "host")
    starts = [row["host_start"] for row in rows_of(_host_list(connection), "hosts") if row["host"] == name]
    start = int(str(starts[0])) if starts else 0  # names the process, so that a resent request ends no later one
    connection.ask(lambda client: client.end_host(name, connection.timeout, host_start=start))
    display.printer().result(
        document("HostEnded", host=name), lambda shown, tables: tables.line(f"host {shown['host']} is ended")
    )


@app.command("logs")
@command
def logs(
    connection: Connection,
    host: Annotated[str, typer.Argument(metavar="ID", help="Host or coordinator replica.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, metavar="N", help="Number of lines to show.")] = LINES,
) -> None:
    """Print the end of a process's log. The fleet's folder must be on this machine."""
    from snapline.cli.fleet_locations import logs_of

    folder = logs_of(connection.folder())
    file = folder / f"{check_id(host, 'host')}.log"
    if not file.is_file():
        names = sorted([path.stem for path in folder.glob("*.log")]) if folder.is_dir() else []
        hint = f"there are logs of {', '.join(names)}" if names else "there are none: on other machines they stay there"
        raise NotFoundError(f"no log of {host!r} in {folder}: {hint}")
    _print_end(file, lines)


@app.command("forget")
@command
def forget(
    connection: Connection,
    display: Display,
    host: Annotated[str, typer.Argument(metavar="ID", help="Host that is lost or has left.")],
) -> None:
    """Remove the record of a host that does not come back.

    The host must be lost or have left, without agents. After ten minutes its record goes by itself. A process that returns under the
    name is a new host. Exit codes: 2: the host is alive, or its agents have not moved yet. 4: no such host.
    """
    name = check_id(host, "host")
    connection.ask(lambda client: client.forget_host(name, connection.timeout))
    display.printer().result(
        document("HostForgotten", host=name), lambda shown, tables: tables.line(f"host {shown['host']} is forgotten")
    )


def _host_list(connection: Connection) -> Document:
    """Return a document that lists the hosts and the concerns about hosts."""
    from snapline.messages.answers import document_of

    status = document_of(connection.ask(lambda client: client.status(connection.timeout)))
    concerns = [row for row in rows_of(status, "concerns") if row.get("hosts")]
    return document("HostList", hosts=rows_of(status, "hosts"), concerns=concerns)


def _move(connection: Connection, display: Display, work: "_Work") -> None:
    """Run `work`, then show the hosts and their numbers of agents."""
    progress = FleetProgress(display.printer())
    connection.ask(work(progress.note))
    display.printer().result(_host_list(connection), _show_hosts)


_Work = Callable[[Note], "Callable[[CoordinatorClient], Awaitable[object]]"]


def _show_hosts(result: Document, tables: DocumentTables) -> None:
    headings = [name.removeprefix("is_").replace("_", " ").upper() for name in COLUMNS]
    tables.table(headings, [[row.get(name) for name in COLUMNS] for row in rows_of(result, "hosts")], optional=OPTIONAL)
    for line in concern_lines(result):
        tables.wrapped("! ", line)


def _show_host(result: Document, tables: DocumentTables) -> None:
    agents = result["living_here"]
    assert isinstance(agents, list)
    hidden = ("apiVersion", "kind", "busy", "living_here")
    tables.fields({name: value for name, value in result.items() if name not in hidden}.items())
    for agent in agents:
        tables.line(f"  {agent}")


def _print_end(file: Path, lines: int) -> None:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - lines * 1000))
        for line in opened.read().decode(errors="replace").splitlines()[-lines:]:
            print(printable(line))


SCALE_S = 180.0
"""Default time limit in seconds for processes to start and agents to move."""

WithinAll = Annotated[
    float, typer.Option("--within", min=1, metavar="SECONDS", help="Time limit of the whole command.")
]


@command
def scale(
    connection: Connection,
    display: Display,
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=256, metavar="N", help="New number of hosts.")],
    within: WithinAll = SCALE_S,
) -> None:
    """Change the number of hosts of a running fleet.

    New hosts are started, and agents move until all hosts have equally many. If there are fewer hosts, the surplus ones are drained
    before they end. Nothing is lost: agents move by a recovery plan from a fresh snapshot. The fleet needs a supervisor on this
    machine (`snapline up`, `snapline run`).
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
    display.printer().result(
        result, lambda _, tables: tables.line(f"the fleet has {count(hosts, 'host')}; agents: {summary}")
    )


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
        await drain_hosts(client, leaving, deadline_s, progress.note)
    request_hosts(folder, hosts)
    progress.note(f"the process that keeps the fleet is asked for {count(hosts, 'host')}")

    def is_so(found: "FleetStatus") -> bool:
        return sorted(host.host for host in found.hosts if host.state == "alive") == sorted(names)

    await until(client, f"a fleet of {count(hosts, 'host')}", is_so, deadline_s)
    back = [host.host for host in now.hosts if host.host in names and host.is_drained]
    await client.move_agents(resumed=[*back, *leaving])
    await spread_agents(client, deadline_s, progress.note)
    return await client.status()


@command
def restart(
    connection: Connection,
    display: Display,
    hosts_only: Annotated[
        bool, typer.Option("--hosts-only", help="Restart only the hosts, not the coordinator.")
    ] = False,
    within: WithinAll = SCALE_S,
) -> None:
    """Restart every process of a fleet, one after the other, while the fleet runs.

    Each host is drained before it ends, and a leading coordinator hands its leadership over. No epoch is lost, and no agent goes back
    further than the fresh snapshot. The fleet's supervisor starts the processes again, with the software that is installed by
    then.
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
            "a fleet of one host would be down while that restarts: add another host before (`snapline scale`)"
        )
    for name in names:
        await renew(client, name, deadline_s, progress.note)
    await spread_agents(client, deadline_s, progress.note)
    return names


async def _renew_replicas(connection: Connection, deadline_s: float, progress: FleetProgress) -> list[str]:
    """Restart all replicas, beginning with the followers, so that the leadership moves only once."""

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
            await renew_replica(client, replica, name, deadline_s, progress.note)
        return [str(member["id"]) for member in members]
