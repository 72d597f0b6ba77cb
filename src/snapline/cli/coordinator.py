"""`snapline coordinator …` shows and changes the coordinator's replicas and their leader, and backs up the coordinator's state."""

import re
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import Connection, Display, command, parse_peers
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, size
from snapline.cli.processes import NODE, Node, Peers, Store, coordinator_run
from snapline.errors import ExternalFailureError, UsageError
from snapline.ids import check_id
from snapline.security.printable import printable

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the backup.")]


@app.command("status")
@command
def status(
    connection: Connection,
    display: Display,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Show its counters (`snapline_raft_…`) instead, in Prometheus' format; with -o json as a document.",
        ),
    ] = False,
) -> None:
    """Show the status of one replica: term, known leader, connections, log.

    The replica that is called answers, leader or not; of several addresses, the first that answers.
    """
    verb = "metrics" if metrics else "status"
    result = connection.ask(lambda client: client.read_replica(verb, connection.timeout))
    if metrics and display.output is None:
        print(printable(metrics_text(result)), end="")
        return
    display.printer().result(result, _show_metrics if metrics else _show_status)


@app.command("members")
@command
def members(connection: Connection, display: Display) -> None:
    """List the replicas, and mark the leader."""
    result = connection.ask(lambda client: client.read_replica("members", connection.timeout))
    display.printer().result(result, _show_members)


@app.command("transfer-leader")
@command
def transfer_leader(
    connection: Connection,
    display: Display,
    to: Annotated[
        str, typer.Option("--to", metavar="ID", help="Replica that takes over.", show_default="the most up to date")
    ] = "",
    only_from: Annotated[
        str,
        typer.Option("--from", metavar="ID", help="Do nothing unless this replica leads.", show_default="any leader"),
    ] = "",
) -> None:
    """Transfer the leadership to another replica.

    Do so before you stop the leader: an election takes a second or two, a transfer a fraction of that. A replica that is about to stop
    may hand over its own leadership, with its own certificate and --from.
    """
    wanted, leaving = (check_id(name, "replica") if name else "" for name in (to, only_from))
    result = connection.ask(lambda client: client.transfer_leader(wanted, connection.timeout, only_from=leaving))
    display.printer().result(result, lambda shown, tables: tables.line(f"replica {shown.get('leader')} leads"))


@app.command("backup")
@command
def backup(connection: Connection, display: Display, file: BackupFile) -> None:
    """Write the coordinator's state to FILE.

    It contains plans, epochs, agents and hosts, not the snapshots: store it with a copy of the store, and renew it from time to time.
    It is for a majority of replicas that have lost their disks. FILE is a record of kind `BKUP` of the snapshot format, around a
    MessagePack map of `cluster`, the store's id, and `image`, the state.
    """
    from snapline.coordinator.service.backup import describe_backup, write_backup

    if file.exists():
        raise UsageError(f"{file} exists already: give each backup a file of its own")
    image, cluster = connection.ask(lambda client: client.backup(connection.timeout))
    try:
        written = write_backup(file, image, cluster)
    except OSError as error:
        raise ExternalFailureError(f"{file} cannot be written: {error}") from error
    result = document("CoordinatorBackup", file=str(file), **describe_backup(written))
    display.printer().result(result, _show_fields)


@app.command("restore-backup")
@command
def restore_backup(
    display: Display,
    file: BackupFile,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Folder of the new replica; must be new or empty.")
    ],
    store: Store,
    node: Node = NODE,
    peers: Peers = "",
) -> None:
    """Make the folder of a new replica from a backup.

    For a coordinator whose majority is lost. End every process of the fleet, including hosts. Restore all replicas from the same FILE
    before the first of them starts, each with its --id and --data-dir, and the same --peers; their `digest` must be equal. Then run
    `coordinator run` and the hosts as before.

    The fleet goes back to the newest snapshot in the store, even if that is newer than the backup (`adopted_epochs`). `skipped_epochs`
    cannot be used: damaged, or with agents that the backup does not know. Plans, epochs and host starts continue a million higher, so
    that no number recurs; `status` counts these as aborted epochs. Ids of agents that were created and left after the backup may recur.

    Exit codes: 2: DIR is not empty, FILE belongs to another store, or there is no snapshot. 6: FILE is damaged.
    """
    from snapline.coordinator.service.backup import restore

    parse_peers(peers, check_id(node, "replica"))
    restored = restore(file, data_dir, store=store, node=node)
    result = document("RestoredCoordinator", file=str(file), data_dir=str(data_dir), node=node, **restored)
    display.printer().result(result, _show_fields)


_BUCKET = re.compile(r'(.+)_bucket\{le="(.+)"\}')


def metrics_text(result: Document) -> str:
    """Format metrics in Prometheus's text format.

    A metric family with buckets is a histogram. A metric family whose count precedes its sum is a summary.
    """
    from snapline.telemetry.metrics import PREFIX

    values = result.get("metrics")
    metrics = {str(name): value for name, value in values.items()} if isinstance(values, dict) else {}
    buckets: dict[str, list[tuple[str, object]]] = {}
    for name, value in metrics.items():
        match = _BUCKET.fullmatch(name)
        if match is not None:
            buckets.setdefault(match[1], []).append(("+Inf" if match[2] == "inf" else match[2], value))
    lines: list[str] = []
    for name, value in metrics.items():
        family = name.removesuffix("_sum").removesuffix("_count")
        if "{" in name or family in buckets:
            continue
        if family == name:
            lines.append(f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}")
        elif name.endswith("_count"):
            lines.append(f"# TYPE {PREFIX}{family} summary")
        lines.append(f"{PREFIX}{name} {_number(value)}")
    for family, counts in buckets.items():
        lines.append(f"# TYPE {PREFIX}{family} histogram")
        lines += [f'{PREFIX}{family}_bucket{{le="{bound}"}} {_number(value)}' for bound, value in counts]
        lines.append(f"{PREFIX}{family}_sum {_number(metrics.get(f'{family}_sum', 0))}")
        lines.append(f"{PREFIX}{family}_count {_number(counts[-1][1])}")
    return "".join(f"{line}\n" for line in lines)


def _number(value: object) -> str:
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def _show_status(result: Document, tables: DocumentTables) -> None:
    standing, connected = result.get("standing"), result.get("connected")
    raft = standing if isinstance(standing, dict) else {}
    log_bytes = result.get("journal_bytes")
    tables.fields(
        [
            ("replica", result.get("node")),
            ("leader", "this one" if raft.get("is_leader") else raft.get("leader") or "none known"),
            ("term", raft.get("term")),
            ("vote", "none yet: it lost its log, and catches up" if result.get("is_learner") else None),
            ("majority", "connected" if result.get("has_quorum") else "out of reach"),
            ("connected to", ", ".join(map(str, connected)) if isinstance(connected, list) else None),
            ("committed", f"entry {result.get('commit_index')}"),
            ("applied", f"entry {result.get('applied')}"),
            ("log", f"entries {result.get('first_index')} to {result.get('last_index')}, {size(log_bytes)}"),
        ]
    )


def _show_members(result: Document, tables: DocumentTables) -> None:
    rows = [
        (row.get("id"), row.get("address"), "leads" if row.get("leads") else "") for row in rows_of(result, "members")
    ]
    tables.table(("REPLICA", "ADDRESS", ""), rows)
    tables.line(f"{count(len(rows), 'replica')}, term {result.get('term')}")


def _show_metrics(result: Document, tables: DocumentTables) -> None:
    tables.line(metrics_text(result).rstrip("\n"))


def _show_fields(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, value) for name, value in result.items() if name not in ("apiVersion", "kind"))


app.command("run")(coordinator_run)
