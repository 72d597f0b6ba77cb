"""The commands `snapline up`, `down` and `config`, which run a fleet in the background on this machine, other machines, a Ray cluster or
containers.

On other machines and in containers, a local background process (`snapline keep`) supervises the fleet. `snapline config` shows the
settings that `up`, `down` and `status` use, and where each setting comes from.
"""

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import (
    LAST_SNAPSHOT_S,
    REPLICAS,
    BeginAnew,
    Display,
    FleetArguments,
    FleetMetrics,
    FleetReference,
    LastSnapshot,
    LogFormat,
    LogLevel,
    LogLines,
    Spans,
    command,
    parse_arguments,
)
from snapline.cli.fleet import check_reference, load
from snapline.cli.fleet_locations import (
    FAILED,
    background_pid,
    folder_of,
    join,
    no_fleet_up,
    start_in_background,
    stop_background,
    until_up,
)
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.cli.progress import FleetProgress
from snapline.cli.settings import UserSetting, UserSettings
from snapline.errors import NotFoundError, UsageError
from snapline.ids import check_id

if TYPE_CHECKING:
    from snapline.deploy.detached_fleet import DetachedPlace, DetachedPlan
    from snapline.deploy.plan import FleetPlan
    from snapline.deploy.ray_fleet import SupervisorStatus


END_S = 90.0
"""Time limit in seconds for the supervisor to end a remote fleet. The supervisor waits two seconds for processes, and half a minute for an
unresponsive machine."""


Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Context: a table [context.NAME] of snapline.toml; default: the one in use."
    ),
]

KEYS = ("address", "machines", "ssh", "sbatch", "python", "image", "code", "tls")
"""Names of the settings that a plan contains."""

PLACES: "Mapping[str, DetachedPlace]" = {"ssh": "ssh", "podman": "podman", "slurm": "slurm", "ray": "ray"}
"""Kind of place for each value of `--on`."""


def plan_of(place: str, what: "FleetPlan", found: Mapping[str, str]) -> "DetachedPlan":
    """Build a deployment plan for this kind of place. `found` maps each setting in KEYS to its value."""
    from snapline.deploy.detached_fleet import DetachedPlan

    return DetachedPlan(
        place=PLACES[place],
        what=what,
        address=found["address"],
        machines=tuple(machine.strip() for machine in found["machines"].split(",") if machine.strip()),
        ssh=tuple(shlex.split(found["ssh"])),
        sbatch=tuple(shlex.split(found["sbatch"])),
        python=found["python"],
        image=found["image"],
        code=str(Path(found["code"]).absolute()) if place == "podman" else found["code"],
        tls=str(Path(found["tls"]).absolute()) if found["tls"] else "",
    )


def up_detached(plan: "DetachedPlan", folder: Path, timeout_s: float, progress: FleetProgress) -> Document:
    """Start the supervisor, and wait until all hosts have joined."""
    from snapline.deploy.detached_fleet import certificates_of, check_place, connect, write_plan

    certificates_of(plan)  # report errors in the plan here rather than in the background
    asyncio.run(check_place(plan))
    if background_pid(folder) is None:
        write_plan(folder, plan)
    started = start_in_background(["keep", str(folder)], folder, plan.what.last_snapshot_s)
    progress.note(f"process {started.pid} keeps the fleet; its notes are in {folder}")
    address = asyncio.run(
        until_up(
            started,
            folder,
            hosts=plan.what.hosts,
            timeout_s=timeout_s,
            connect=lambda address: connect(plan, address),
        )
    )
    outcome = "stopped" if started.poll() == 0 else None
    result = {"data_dir": plan.what.data_dir, "coordinator": address, "hosts": plan.what.hosts, "outcome": outcome}
    return document("FleetUp", name=plan.what.name, on=plan.place, **result)


def recorded_plan(
    settings: UserSettings, name: str, place: str, address: str | None, data_dir: str | None, folder: Path
) -> "DetachedPlan":
    """Return the deployment plan with which this machine started the fleet. If no plan was recorded, build one from the settings.

    Raises:
        NotFoundError: the recorded data folder differs from the folder given in the settings.
    """
    from snapline.deploy.data_directory import is_same_folder
    from snapline.deploy.detached_fleet import read_plan
    from snapline.deploy.plan import FleetPlan

    plan, wanted = read_plan(folder), settings.get("data_dir", data_dir).value
    if plan is not None and wanted and not is_same_folder(plan.what.data_dir, wanted):
        raise NotFoundError(
            f"the fleet that {folder} keeps has the folder {plan.what.data_dir}, not {wanted}: give its --data-dir, or another --name"
        )
    if plan is not None:
        return plan
    fleet_plan = FleetPlan(name, fleet="", data_dir=str(Path(wanted).absolute()) if wanted else "", hosts=1, node={})
    values = {key: settings.get(key, address if key == "machines" else None).value for key in KEYS}
    return plan_of(place, fleet_plan, values)


def down_detached(plan: "DetachedPlan", folder: Path, note: Callable[[str], None], *, is_dry: bool) -> None:
    """Stop the supervisor and its fleet, and remove everything that an earlier supervisor left behind.

    If `is_dry` is set, only check that a supervisor is running.
    """
    from snapline.deploy.detached_fleet import launcher_of

    is_kept = background_pid(folder) is not None
    if is_dry and not is_kept:
        raise NotFoundError(
            f"no process on this machine keeps fleet {plan.what.name}: `snapline down` ends what may be left of it"
        )
    if is_dry:
        return
    if is_kept:
        for line in stop_background(folder, END_S):
            note(line)
    swept = asyncio.run(launcher_of(plan).sweep())
    if not (is_kept or swept):
        places = {"podman": "in podman's containers", "slurm": "in Slurm's queue"}
        where = places.get(plan.place) or f"on {', '.join(plan.machines)}"
        raise NotFoundError(f"no fleet named {plan.what.name} is {where}")


@command
def keep(display: Display, folder: Annotated[Path, typer.Argument(metavar="FOLDER")]) -> None:
    """Keep the fleet of this folder: what `snapline up` starts in the background."""
    progress = FleetProgress(display.printer())
    try:
        outcome = asyncio.run(_keep(folder, progress))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        progress.end()
    raise typer.Exit(0 if outcome == "stopped" else 1)


async def _keep(folder: Path, progress: FleetProgress) -> str:
    from snapline.deploy.detached_fleet import keep as keep_fleet

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ending = await keep_fleet(folder, on_note=progress.note, on_status=progress.status)
    if ending.outcome != "stopped":
        progress.warn(f"{FAILED}: {ending.reason}")
    return ending.outcome


UP_TIMEOUT_S = 180.0
"""Default time limit in seconds for a whole fleet to start. This takes seconds on one machine, but a cluster may have to copy code to its
nodes."""


class Place(StrEnum):
    """Values of `--on`."""

    LOCAL = "local"
    RAY = "ray"
    SSH = "ssh"
    PODMAN = "podman"
    SLURM = "slurm"


On = Annotated[
    Place | None,
    typer.Option(
        "--on",
        help="Launcher: this machine, its podman (containers of the setting `image`), machines reached by ssh, the "
        "cluster of the local Slurm programs, or a Ray cluster.",
        show_default="local",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the fleet; distinguishes several fleets of one launcher.",
        show_default="fleet",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Address of the Ray cluster; for ssh its machines, separated by commas (or the setting `machines`).",
        show_default="auto: this machine's",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of logs, the coordinator's log and, without --store, the store. Beyond this machine: a path on "
        "every machine; on Slurm on a disk that all nodes share.",
        show_default="runs/NAME; on Ray and for ssh it must be given",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the actions, and do nothing.")]
HostCount = Annotated[
    int | None,
    typer.Option("--hosts", min=1, metavar="N", help="Number of hosts; on Ray each on its own node.", show_default="3"),
]
CoordinatorCount = Annotated[
    int | None,
    typer.Option(
        "--coordinators", metavar="N", help="Number of the coordinator's replicas: 1, 3 or 5.", show_default="1"
    ),
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help="Snapshot store: a shared path, s3://, gs:// or az://.",
        show_default="DIR/store",
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option("--cpus", min=0, metavar="N", help="CPUs that each host reserves on its Ray node.", show_default="1"),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option("--sbatch-option", metavar="OPTION", help="Option of sbatch for all Slurm jobs. Repeatable."),
]
Certificates = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Folder of certificates, made by `snapline auth init`; beyond this machine required unless --insecure.",
    ),
]
TlsDomain = Annotated[
    str | None,
    typer.Option("--tls-domain", metavar="DOMAIN", help="Trust domain of these certificates.", show_default="snapline"),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow plaintext between machines, for networks that nobody else can reach."),
]


TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=1,
        metavar="SECONDS",
        help="Time limit of the wait for all hosts; the start continues after it.",
    ),
]


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="Setting of the logs of all processes.", show_default="text"),
]


@command
def up(
    display: Display,
    spans: Spans,
    fleet: FleetReference,
    on: On = None,
    name: Name = None,
    address: Address = None,
    hosts: HostCount = None,
    coordinators: CoordinatorCount = None,
    data_dir: DataDir = None,
    store: StorePlace = None,
    arg: FleetArguments = None,
    cpus: Cpus = None,
    sbatch_option: SbatchOptions = None,
    tls: Certificates = None,
    tls_domain: TlsDomain = None,
    insecure: Insecure = False,
    metrics: FleetMetrics = False,
    log_format: LogFormatOption = None,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Setting of the logs of all processes.", show_default="info")
    ] = None,
    context: Context = None,
    timeout: TimeoutOption = UP_TIMEOUT_S,
    last_snapshot: LastSnapshot = LAST_SNAPSHOT_S,
    begin_anew: BeginAnew = False,
    dry_run: DryRun = False,
) -> None:
    """Start a fleet in the background, and return when all hosts take part.

    Settings that are not given come from the environment, then from snapline.toml (`snapline config show`). `snapline down` ends the
    fleet; `up` with the same --data-dir and --store continues it. A dead host is restarted on this machine. Elsewhere its agents move,
    unless the setting `on_failure` is "restart". `up` has no --ui: `snapline ui serve` finds the fleet.

    Exit codes: 0: all hosts take part, or the fleet has stopped already. 1: the fleet has failed. 9: it is still starting after
    --timeout. 11: another launcher runs in this folder.
    """
    settings = UserSettings(context)
    flags: dict[str, object] = {
        "on": on,
        "name": name,
        "address": address,
        "hosts": hosts,
        "coordinators": coordinators,
    }
    flags |= {"data_dir": data_dir, "store": store, "cpus": cpus, "tls": tls, "tls_domain": tls_domain}
    flags |= {"machines": address, "sbatch": shlex.join(sbatch_option) if sbatch_option else None}
    values = {key: settings.get(key, flag).value for key, flag in {**dict.fromkeys(KEYS), **flags}.items()}
    place = _place_of(settings.get("on", on))
    arguments = parse_arguments(arg)
    _check_definition(fleet, arguments, place)
    log = _log_lines(settings.get("log_format", log_format), settings.get("log_level", log_level)).arguments()
    log += spans.arguments()
    plan = _plan(
        *(settings, values, fleet, arguments, place, log, last_snapshot, begin_anew),
        is_insecure=insecure,
        has_metrics=metrics,
    )
    if dry_run:
        display.printer().result(_dry(plan, place, values["tls"]), _show)
        return
    progress = FleetProgress(display.printer())
    if place is Place.RAY:
        result = _up_on_ray(plan, values, timeout, progress)
    elif place is Place.LOCAL:
        result = _up_locally(plan, timeout, progress)
    else:
        detached = plan_of(place.value, plan, values)
        result = up_detached(detached, folder_of(settings, plan.name, data_dir, place), timeout, progress)
    display.printer().result(result, _show)


@command
def down(
    display: Display,
    on: On = None,
    name: Name = None,
    address: Address = None,
    data_dir: DataDir = None,
    context: Context = None,
    dry_run: DryRun = False,
) -> None:
    """End a fleet that `snapline up` has started, after a last snapshot.

    `up --last-snapshot-s` limits the wait for the snapshot. A line names the snapshot, or the epoch since which work is lost. Files
    stay, and `up` continues the fleet. A fleet of the same name with another or a copied --data-dir is left alone. Exit code 4: no
    fleet is running.
    """
    settings = UserSettings(context)
    fleet, place = settings.get("name", name).value, _place_of(settings.get("on", on))
    folder = folder_of(settings, fleet, data_dir, place)
    progress = FleetProgress(display.printer())
    result = document("FleetDown", name=fleet, on=place.value, is_dry_run=dry_run)
    if place is Place.RAY:
        wanted = settings.get("data_dir", data_dir).value
        _down_on_ray(fleet, settings.get("address", address).value, wanted, is_dry=dry_run)
    elif place is not Place.LOCAL:
        down_detached(
            recorded_plan(settings, fleet, place.value, address, data_dir, folder),
            folder,
            progress.note,
            is_dry=dry_run,
        )
    elif not dry_run:
        for line in stop_background(folder):
            progress.note(line)
    elif background_pid(folder) is None:
        raise no_fleet_up(folder)
    subject = f"the fleet in {folder}" if place is Place.LOCAL else f"fleet {fleet}"
    sentence = f"{subject} would be taken down" if dry_run else f"{subject} is down"
    display.printer().result(result, lambda _, tables: tables.line(sentence))


def _check_definition(fleet: str, arguments: Mapping[str, str], place: Place) -> None:
    """Check that the fleet can be loaded, before anything starts. Other places may have modules that this machine lacks, so for them only
    check the reference."""
    check_reference(fleet)
    if place is Place.LOCAL:
        with contextlib.redirect_stdout(sys.stderr):  # the module may print
            load(fleet, arguments)


def _place_of(setting: UserSetting) -> Place:
    try:
        return Place(setting.value)
    except ValueError:
        raise UsageError(f"{setting.origin}: on = {setting.value!r} is no place: {', '.join(Place)}") from None


def _log_lines(form: UserSetting, level: UserSetting) -> LogLines:
    if form.value not in list(LogFormat):
        raise UsageError(f"{form.origin}: log_format = {form.value!r} is none: {', '.join(LogFormat)}")
    if level.value not in list(LogLevel):
        raise UsageError(f"{level.origin}: log_level = {level.value!r} is none: {', '.join(LogLevel)}")
    return LogLines(LogFormat(form.value), LogLevel(level.value))


def number_of(settings: UserSettings, key: str, text: str) -> float:
    """Parse a numeric setting. Raise UsageError, which names the setting's origin, if the value is not a number."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{settings.get(key).origin}: {key} = {text!r} is no number") from None


def _plan(
    settings: UserSettings,
    found: dict[str, str],
    fleet: str,
    arguments: dict[str, str],
    place: Place,
    log: tuple[str, ...],
    last_snapshot_s: float,
    begin_anew: bool,
    *,
    is_insecure: bool,
    has_metrics: bool,
) -> "FleetPlan":
    from snapline.deploy.plan import FleetPlan

    name = check_id(found["name"], "fleet")
    if place in (Place.RAY, Place.SSH) and not found["data_dir"]:
        raise UsageError("--data-dir: name a folder for logs that every machine can have")
    if is_insecure and found["tls"]:
        raise UsageError("--insecure contradicts --tls: leave one out")
    if place is Place.LOCAL and found["tls"]:
        raise UsageError(
            "--tls: a fleet on this machine speaks in plaintext on loopback, and takes no certificates: leave it out, or choose another --on"
        )
    hosts, coordinators = (int(number_of(settings, key, found[key])) for key in ("hosts", "coordinators"))
    if hosts < 1 or coordinators not in REPLICAS:
        raise UsageError(f"a fleet has 1 host or more and 1, 3 or 5 coordinators, not {hosts} and {coordinators}")
    on_failure = settings.get("on_failure").value
    if place is Place.LOCAL and settings.get("on_failure").origin == "default":
        on_failure = "restart"  # with "move", no dead host would be restarted on this machine, unlike at other places
    if on_failure not in ("move", "restart"):
        raise UsageError(f"{settings.get('on_failure').origin}: on_failure = {on_failure!r}: move or restart")
    return FleetPlan(
        name=name,
        fleet=fleet,
        data_dir=str(folder_of(settings, name, found["data_dir"]).absolute()),
        hosts=hosts,
        coordinators=coordinators,
        arguments=arguments,
        store=found["store"],
        node={"CPU": number_of(settings, "cpus", found["cpus"])},
        on_failure="restart" if on_failure == "restart" else "move",
        is_insecure=is_insecure,
        domain=found["tls_domain"],
        has_metrics=has_metrics,
        log=log,
        last_snapshot_s=last_snapshot_s,
        begin_anew=begin_anew,
    )


def _dry(plan: "FleetPlan", place: Place, tls: str) -> Document:
    from snapline.deploy.plan import commands_of

    host = commands_of(plan, is_tls=bool(tls)).host("COORDINATOR", "h1", "RUN")[1:]
    return document(
        "FleetPlan",
        name=plan.name,
        on=place.value,
        hosts=plan.hosts,
        coordinators=plan.coordinators,
        data_dir=plan.data_dir,
        store=plan.store or f"{plan.data_dir}/store",
        node=plan.node if place is Place.RAY else None,
        command=" ".join(["python", *host]),
    )


# -- this machine -------------------------------------------------------------------------------------------------------


def _up_locally(plan: "FleetPlan", timeout_s: float, progress: FleetProgress) -> Document:
    from snapline.messages.coordinator_client import CoordinatorClient

    folder = Path(plan.data_dir)
    options = ["--hosts", str(plan.hosts), "--coordinators", str(plan.coordinators), "--data-dir", str(folder)]
    options += ["--on-failure", plan.on_failure, *(["--store", plan.store] if plan.store else [])]
    options += ["--metrics"] if plan.has_metrics else []
    options += ["--last-snapshot-s", f"{plan.last_snapshot_s:g}"]
    options += ["--begin-anew"] if plan.begin_anew else []
    options += plan.log
    options += [part for key, value in plan.arguments.items() for part in ("--arg", f"{key}={value}")]
    started = start_in_background(["run", plan.fleet, *options, "-o", "json"], folder, plan.last_snapshot_s)
    progress.note(f"process {started.pid} keeps the fleet; everything is written to {folder}")
    address = asyncio.run(until_up(started, folder, hosts=plan.hosts, timeout_s=timeout_s, connect=CoordinatorClient))
    outcome = "stopped" if started.poll() == 0 else None
    result = {"data_dir": str(folder), "coordinator": address, "hosts": plan.hosts, "outcome": outcome}
    return document("FleetUp", name=plan.name, on="local", **result)


# -- Ray ----------------------------------------------------------------------------------------------------------------


def _up_on_ray(plan: "FleetPlan", found: dict[str, str], timeout_s: float, progress: FleetProgress) -> Document:
    from snapline.deploy import ray_fleet
    from snapline.deploy.plan import read_certificates

    folder = found["tls"]
    certificates = read_certificates(Path(folder), plan.hosts, plan.coordinators) if folder else {}
    cluster = join(plan.name, found["address"])
    try:
        work = ray_fleet.up(cluster, plan, certificates, timeout_s=timeout_s, on_note=progress.note)
        status = asyncio.run(work)
    finally:
        cluster.leave(is_over=False)
    return _up_document(plan, status)


def _up_document(plan: "FleetPlan", now: "SupervisorStatus") -> Document:
    return document(
        "FleetUp",
        name=plan.name,
        on="ray",
        data_dir=plan.data_dir,
        coordinator=now.address,
        hosts=now.hosts,
        outcome=now.outcome or None,
        reason=now.reason or None,
        nodes=now.nodes,
    )


def _down_on_ray(name: str, address: str, data_dir: str, *, is_dry: bool) -> None:
    from snapline.deploy import ray_fleet
    from snapline.deploy.ray_cluster import RayCluster

    cluster = RayCluster(name, address)
    try:
        if data_dir:
            asyncio.run(ray_fleet.check_folder(cluster, name, data_dir))
        asyncio.run(ray_fleet.standing(cluster, name) if is_dry else ray_fleet.down(cluster, name))
    finally:
        cluster.leave(is_over=False)


def _show(result: Document, tables: DocumentTables) -> None:
    fields = {key: value for key, value in result.items() if key not in ("apiVersion", "kind", "nodes")}
    tables.fields(fields.items())
    nodes = result.get("nodes")
    if isinstance(nodes, dict) and nodes:
        tables.line()
        tables.table(("PROCESS", "NODE"), [(process, str(node)[:12]) for process, node in sorted(nodes.items())])


# -- settings ----------------------------------------------------------------------------------------------------------

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
contexts = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Contexts: named sets of settings, such as test and prod."
)
app.add_typer(contexts, name="context")


@app.command("show")
@command
def show_settings(
    display: Display,
    context: Context = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show the origin of each value.")] = False,
) -> None:
    """Show every setting. Precedence: option, environment, snapline.toml, default.

    The file is snapline.toml in the current folder, or the file that SNAPLINE_CONFIG names. Its table [context.NAME] overrides [up].
    --context, SNAPLINE_CONTEXT or `snapline config context use` selects the context. Each setting has a variable, such as
    SNAPLINE_DATA_DIR for `data_dir`. Exit codes: 2: unknown setting. 4: unknown context.
    """
    settings = UserSettings(context)
    rows = [
        {"key": key, "value": value, **({"origin": where} if origin else {})} for key, value, where in settings.all()
    ]
    display.printer().result(document("Settings", context=settings.context, settings=rows), _show_settings)


@contexts.command("list")
@command
def list_contexts(display: Display) -> None:
    """List the contexts of snapline.toml, and mark the one in use."""
    settings = UserSettings()
    rows = [{"name": name, "in_use": name == settings.context} for name in settings.contexts]
    display.printer().result(document("Contexts", contexts=rows), _show_contexts)


@contexts.command("use")
@command
def use(
    display: Display, name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the context; "" for none.')]
) -> None:
    """Select a context for later commands in this folder."""
    UserSettings().use(name)
    sentence = f"context {name} is in use" if name else "no context is in use"
    display.printer().result(document("ContextUsed", context=name), lambda _, tables: tables.line(sentence))


def _show_settings(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "settings")
    columns = [name for name in ("key", "value", "origin") if not rows or name in rows[0]]
    tables.table([name.upper() for name in columns], [[row.get(name) for name in columns] for row in rows])


def _show_contexts(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "contexts")
    tables.table(("CONTEXT", ""), [(row.get("name"), "in use" if row.get("in_use") else "") for row in rows])
