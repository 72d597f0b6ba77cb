"""`snapline coordinator run` and `snapline host run` run the processes of a fleet.

`snapline unit` prints systemd units that start hosts and coordinators when the machine boots.
"""

import asyncio
import secrets
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import (
    LAST_SNAPSHOT_S,
    BeginAnew,
    FleetArguments,
    LastSnapshot,
    LogLines,
    SecurityOptions,
    Spans,
    check_address,
    check_addresses,
    command,
    parse_arguments,
    parse_peers,
)
from snapline.cli.garbage_collection import freeze_imported
from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.package_stamp import check_unmixed

if TYPE_CHECKING:
    from snapline.telemetry.log_lines import BoundIds
    from snapline.telemetry.metrics_server import MetricsPlace


REJOIN_GRACE_S = 3.0
"""Default of `--rejoin-grace` in seconds. A process starts within this time unless the machine is very busy. Launchers that restart hosts
use a longer time."""

KEEP_EPOCHS, KEEP_EPOCHS_MIN = 10, 2
"""Default and smallest number of complete epochs that are kept for recoveries. With only one epoch, damage to this epoch would leave
nothing from which to recover."""

LISTEN = "127.0.0.1:7400"
NODE = "c1"
"""Default id of a coordinator replica."""

Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen at; port 0: any free one.")
]
Peers = Annotated[
    str,
    typer.Option(
        "--peers",
        metavar="ID=HOST:PORT,…",
        help="All 1, 3 or 5 replicas of this coordinator, including this one; the ids are the same everywhere, and "
        "never change.",
        show_default="none: it is alone",
    ),
]
Node = Annotated[str, typer.Option("--id", metavar="ID", help="Name of this replica.")]
Advertise = Annotated[
    str,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Address at which other processes reach this one, if it differs from --listen.",
        show_default="as --listen",
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="STORE",
        help="Snapshot store, the same for all hosts: a path, file:///…, s3://, gs:// or az://.",
    ),
]

Health = Annotated[
    str,
    typer.Option(
        "--health",
        metavar="HOST:PORT",
        envvar="SNAPLINE_HEALTH",
        show_envvar=False,
        help="Address at which to serve health alone, without certificates, for `snapline health` and other "
        "supervisors.",
        show_default="off",
    ),
]

Marks = Annotated[
    str,
    typer.Option(
        "--marks",
        metavar="FILE",
        help="File that names the running turn, in case a message kills the process; on a file system that outlives "
        "the process.",
        show_default="in $XDG_RUNTIME_DIR, or the folder for temporary files",
    ),
]

RejoinGrace = Annotated[
    float,
    typer.Option(
        "--rejoin-grace", min=0, metavar="SECONDS", help="Time to wait for a lost host before its agents move."
    ),
]

Retention = Annotated[
    str,
    typer.Option(
        "--retention",
        metavar="last=N,hourly=N,daily=N,manual=N,within=DURATION",
        help="Older snapshots to keep in the store: as the options of `snapshot prune`.",
        show_default="--keep-epochs, 24, 14, 100, 0s",
    ),
]
KeepEpochs = Annotated[
    int,
    typer.Option(
        "--keep-epochs",
        min=KEEP_EPOCHS_MIN,
        metavar="N",
        help="Number of complete epochs to which a recovery may go back; older ones are dropped, five at a time.",
    ),
]


@dataclass(frozen=True)
class MetricsAt:
    """Options for the metrics that a process serves."""

    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            envvar="SNAPLINE_METRICS",
            show_envvar=False,
            help="Address at which to serve metrics for Prometheus; port 0: any free one.",
            show_default="off",
        ),
    ] = ""
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-file",
            metavar="FILE",
            help="File for the address of the metrics, in the format of Prometheus' file_sd_configs.",
        ),
    ] = None

    def place(self) -> "MetricsPlace":
        """Build the `MetricsPlace` from these options. Raise UsageError if the options contradict each other."""
        from snapline.telemetry.metrics_server import MetricsPlace

        if self.metrics_file is not None and not self.metrics:
            raise UsageError("--metrics-file says where --metrics are: give that too")
        return MetricsPlace(check_address(self.metrics, "--metrics") if self.metrics else "", self.metrics_file)


ListenOption = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Address to listen at; port 0: any free one.",
        show_default=f"its address in --peers, else {LISTEN}",
    ),
]


@command
def coordinator_run(
    trust: SecurityOptions,
    log_lines: LogLines,
    metrics_at: MetricsAt,
    spans: Spans,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Folder of this replica's log, on a local disk.")
    ],
    store: Store,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, metavar="N", help="Number of hosts to wait for before the fleet starts.")
    ],
    node: Node = NODE,
    peers: Peers = "",
    listen: ListenOption = "",
    advertise: Advertise = "",
    health: Health = "",
    rejoin_grace: RejoinGrace = REJOIN_GRACE_S,
    keep_epochs: KeepEpochs = KEEP_EPOCHS,
    retention: Retention = "",
    last_snapshot: LastSnapshot = LAST_SNAPSHOT_S,
    begin_anew: BeginAnew = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep answering after the fleet has ended, until stopped.")
    ] = False,
) -> None:
    """Run the coordinator of a fleet, or one of its replicas.

    Restarted on the same --data-dir, it continues from its log. Three replicas tolerate the loss of one, five the loss of two. All have
    the same --store and --peers, each its own --id and --data-dir. The ids are fixed. Addresses may change, for all replicas together.

    A replica that lost its disk: start it as before, with an empty --data-dir. It notices the loss from the store, copies the log from
    the others, and votes again within a minute; `coordinator status` shows its progress. If a majority, or a single replica, has lost
    its log, they end and name the missing logs: bring back the old disks, or use `coordinator restore-backup`.

    SIGTERM and SIGINT end a replica after a last snapshot. Exit codes: 2: the log belongs to other --peers or another --id, or all others
    reject its address. 12: the disk rejected a write, or its files contradict each other or the leader's; the last line says what to do.
    """
    from snapline.coordinator.service.server import CoordinatorOptions, run_coordinator
    from snapline.storage.retention.epoch_retention import Policy, parse_policy

    members = parse_peers(peers, check_id(node, "replica"))
    options = CoordinatorOptions(
        data_dir=data_dir,
        listen=check_address(listen or members.get(node, LISTEN), "--listen"),
        advertise=check_address(advertise, "--advertise") if advertise else "",
        store=store,
        security=trust.security(),
        health=check_address(health, "--health") if health else "",
        metrics=metrics_at.place(),
        spans=spans.options(),
        log_ids=_start_logging(log_lines, replica=node),
        hosts_expected=hosts,
        rejoin_grace_s=rejoin_grace,
        keep_epochs=keep_epochs,
        retention=parse_policy(retention, Policy(keep_last=keep_epochs)),
        exit_when_finished=not stay,
        last_snapshot_s=last_snapshot,
        begin_anew=begin_anew,
        node=node,
        members=members,
    )
    check_unmixed()
    freeze_imported()
    _end(asyncio.run(run_coordinator(options)))


FleetOption = Annotated[
    str,
    typer.Option(
        "--fleet",
        metavar="MODULE:FLEET",
        help="A snapline.Fleet, or a function that returns one; the same on every host.",
    ),
]


@command
def host_run(
    trust: SecurityOptions,
    log_lines: LogLines,
    metrics_at: MetricsAt,
    spans: Spans,
    coordinator: Annotated[
        str,
        typer.Option(
            "--coordinator",
            metavar="HOST:PORT,…",
            help="Address of the coordinator; for several replicas, all addresses.",
        ),
    ],
    host: Annotated[str, typer.Option("--id", metavar="ID", help="Name of this host, such as h1.")],
    fleet: FleetOption,
    store: Store,
    listen: Listen = "127.0.0.1:0",
    advertise: Advertise = "",
    health: Health = "",
    arg: FleetArguments = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="Folder for a trace of checkpoints and messages.")
    ] = None,
    trace_every: Annotated[
        int, typer.Option("--trace-every", min=1, metavar="N", help="Trace every N-th message of each channel.")
    ] = 1,
    marks: Marks = "",
    last_snapshot: LastSnapshot = LAST_SNAPSHOT_S,
    instance: Annotated[str, typer.Option("--instance", hidden=True)] = "",
) -> None:
    """Run one host until its fleet has ended.

    SIGTERM and SIGINT end it after running effects have ended, and a snapshot contains the work of its agents.
    """
    from snapline.storage.capture import forked

    forked.prepare()  # before anything imports gRPC
    from snapline.agent_runtime.host.process import HostOptions, run_host
    from snapline.agent_runtime.host.turn_marks import default_marks
    from snapline.cli.fleet import load

    check_address(listen, "--listen")
    log_ids = _start_logging(log_lines, host=check_id(host, "host"))
    loaded = load(fleet, parse_arguments(arg))
    log_ids.add(fleet=loaded.name)
    options = HostOptions(
        host=host,
        instance=instance or secrets.token_hex(8),
        fleet=loaded,
        log_ids=log_ids,
        coordinator=check_addresses(coordinator, "--coordinator"),
        store=store,
        listen=listen,
        advertise=check_address(advertise, "--advertise") if advertise else "",
        security=trust.security(),
        health=check_address(health, "--health") if health else "",
        metrics=metrics_at.place(),
        spans=spans.options(),
        marks=marks or default_marks(coordinator, host),
        trace="" if trace is None else str(trace),
        trace_every=trace_every,
        last_snapshot_s=last_snapshot,
    )
    check_unmixed()
    freeze_imported()
    _end(asyncio.run(run_host(options)))


def _start_logging(log_lines: LogLines, **ids: str) -> "BoundIds":
    """Start logging. Every log line contains these ids, and ids that are added later."""
    from snapline.telemetry.log_lines import BoundIds, start_logging

    bound = BoundIds(**ids)
    start_logging(log_lines.log_format.value, log_lines.log_level.value, bound)
    return bound


def _end(exit_code: int) -> None:
    raise typer.Exit(exit_code)


HERE = "@SNAPLINE@"
"""Placeholder in a unit for the command that runs snapline on this machine."""


class UnitKind(StrEnum):
    """Kinds of systemd units."""

    COORDINATOR = "coordinator"
    HOST = "host"


@command
def unit(kind: Annotated[UnitKind, typer.Argument(help="Process that the unit starts.")]) -> None:
    """Print a systemd unit that starts a coordinator or a host.

    Write it to /etc/systemd/system/snapline-coordinator@.service or snapline-host@.service. Its EnvironmentFile contains the settings.
    """
    import snapline.deploy

    folder = Path(snapline.deploy.__file__).parent / "systemd"
    text = (folder / f"snapline-{kind.value}@.service").read_text()
    hardened = text.replace("@HARDENING@\n", (folder / "hardening.conf").read_text())
    typer.echo(hardened.replace(HERE, f"{sys.executable} -m snapline"), nl=False)
