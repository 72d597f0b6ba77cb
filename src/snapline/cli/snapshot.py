"""`snapline snapshot …` takes, lists, shows and verifies snapshots, and shows the outcomes and durations of the last epochs.

The commands that keep and delete snapshots are defined in `snapshot_retention.py`. Documents about the snapshots in a store require neither
a coordinator nor the fleet's classes. The coordinator builds its documents with the same code, so the documents have the same fields.
"""

import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli import snapshot_retention, snapshot_state, snapshot_transfer
from snapline.cli.command import PARTIAL, Connection, Display, command, limit_option
from snapline.cli.output import Document, DocumentTables, count, integer_of, last_line, rows_of, size, text, utc_time
from snapline.cli.snapshot_retention import SNAPSHOT_HELP, StorePlace
from snapline.cli.snapshot_state import field_document, show_field, show_state
from snapline.errors import CoordinatorUnavailableError, DamagedDataError, UsageError

if TYPE_CHECKING:
    from snapline.storage.store.store import Store


PHASES = (("start_delay_s", "start"), ("capture_s", "capture"), ("alignment_s", "alignment"), ("store_s", "store"))


@command
def history(
    connection: Connection,
    display: Display,
    limit: Annotated[int | None, limit_option("newest epochs")] = None,
) -> None:
    """Show how the last 256 epochs ended, oldest first: duration, size, last host, and why they were aborted.

    In JSON `stored` lists the epochs in the store now; it is null if the store did not answer within 2 s.
    """
    result = connection.ask(lambda client: client.read_snapshots("history", timeout_s=connection.timeout))
    printer, rows = display.printer(), rows_of(result, "epochs")
    newest = rows[-(printer.limit(limit) or len(rows)) :]
    printer.result(result | {"epochs": newest}, partial(_show, hidden=len(rows) - len(newest)))


def _show(result: Document, tables: DocumentTables, hidden: int) -> None:
    rows = rows_of(result, "epochs")
    if not rows:
        tables.line("no epoch has ended yet")
        return
    heads = ("EPOCH", "BEGUN (UTC)", "TRIGGER", "STATUS", "TOOK", "NEW", "STATE", "IN TRANSIT", "LAST", "PHASES")
    tables.table(heads, [_row(row) for row in rows], optional=("PHASES", "LAST", "IN TRANSIT", "NEW", "TRIGGER"))
    for row in rows:
        if row.get("reason"):
            tables.line(f"epoch {row.get('epoch')}: {text(row['reason'])}")
    tables.rest(hidden, hidden + len(rows), "older")


def _row(row: Document) -> tuple[object, ...]:
    last: Any = row.get("last")
    return (
        row.get("epoch"),
        datetime.fromtimestamp(_float_of(row, "begun_s"), UTC).strftime("%Y-%m-%d %H:%M:%S"),
        row.get("trigger"),
        row.get("status"),
        f"{_float_of(row, 'took_s'):.3f} s",
        _size(row, "new_bytes"),
        _size(row, "state_bytes"),
        "–" if row.get("channel_state_messages") is None else row.get("channel_state_messages"),
        "–" if not last else f"{last['host']} {last.get('agent', '')}".rstrip(),
        _phases(last),
    )


def _phases(last: Any) -> str:
    """Format the durations of an epoch's four phases on the host that reported last, in chronological order."""
    if not last or last.get("store_s") is None:
        return "–"
    return ", ".join([f"{name} {last[key] * 1000:.1f} ms" for key, name in PHASES])


def _size(row: Document, name: str) -> str:
    value = row.get(name)
    return size(value) if isinstance(value, int) else "–"


def _float_of(row: Document, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

_SNAPSHOT = typer.Argument(metavar="ID", help=SNAPSHOT_HELP, show_default=False)


@dataclass(frozen=True)
class Source(Connection):
    """Options that specify either a coordinator, or a store whose fleet need not run."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="Store to read directly, as path or URL: no process needs to run, and no class of the fleet is loaded.",
        ),
    ] = None

    def read(self, verb: str, snapshot: str | None = None, agent: str | None = None) -> dict[str, object]:
        """Read the document for the command `verb` from the store or from the coordinator.

        Raises:
            UsageError: If the options do not specify exactly one source.
        """

        if self.store is None:
            return self._ask_coordinator(verb, snapshot or "", agent or "")
        if self.coordinator is not None or self.data_dir is not None:
            raise UsageError("--store is read at rest, a coordinator is asked: give one of them")
        match verb:
            case "list":
                return list_stored(self.store)
            case "show":
                return show_snapshot(self.store, snapshot or "latest", agent)
            case _:
                return verify_snapshots(self.store, snapshot)

    def open(self) -> "Store":
        """Open the store directly, because the result may be too large for a coordinator's reply.

        Raises:
            UsageError: If the options specify a coordinator, or do not specify exactly one store.
            StoreMissingError: If the store does not exist.
        """
        if self.coordinator is not None:
            raise UsageError(
                "--field reads the store itself: give --store STORE, or --data-dir DIR of a local fleet, not --coordinator"
            )
        return StorePlace(self.store, self.data_dir).open()

    def _ask_coordinator(self, verb: str, snapshot: str, agent: str) -> dict[str, object]:
        from snapline.deploy.data_directory import STORE_FOLDER

        try:
            return self.ask(lambda client: client.read_snapshots(verb, snapshot, agent, self.timeout))
        except CoordinatorUnavailableError as error:
            if self.data_dir is None or not (self.data_dir / STORE_FOLDER).exists():
                raise
            hint = f"read its store at rest with --store {self.data_dir / STORE_FOLDER}"
            raise CoordinatorUnavailableError(f"the fleet in {self.data_dir} does not run: {hint} ({error})") from error


@app.command("create")
@command
def create(connection: Connection, display: Display) -> None:
    """Take a snapshot of the running fleet, and wait until it is complete.

    Where agents checkpoint independently, a snapshot is the current recovery line. If the line has not advanced since the newest snapshot,
    that snapshot is the result: `is_new` is false, `epoch` is its number, and `reason` and a line on stderr explain it. The exit code is 0.
    """
    from snapline.messages.answers import document_of

    reply = connection.ask(lambda client: client.create_snapshot(connection.timeout))
    result = document_of(reply)
    printer = display.printer()
    printer.result(result, _show_created)
    if reply.is_complete and reply.reason:
        printer.warning(f"that is no new snapshot: {reply.reason}")
    if not result.get("is_complete"):
        raise typer.Exit(1)


@app.command("list")
@command
def list_snapshots(source: Source, display: Display) -> None:
    """List all snapshots, oldest first.

    The last column marks snapshots that are damaged, pinned or tagged. In JSON `pins` lists epochs, and `tags` maps names to epochs.
    With --store, the manifests of a store with 64 snapshots or more are cached in $XDG_CACHE_HOME/snapline/STORE-ID.sqlite (default
    ~/.cache). Each call compares the cache with the store; it may be deleted. Only `snapshot verify` notices new damage to a cached
    manifest.
    """
    result = source.read("list")
    printer = display.printer()
    printer.result(result, _show_list)
    damage = [row["damage"] for row in rows_of(result, "snapshots") if row.get("damage")]
    if result.get("tags_damage"):
        damage.append(result["tags_damage"])
    for reason in damage:
        printer.warning(text(reason))
    if damage:
        raise typer.Exit(PARTIAL)


@app.command("show")
@command
def show(
    source: Source,
    display: Display,
    snapshot: Annotated[str, _SNAPSHOT] = "latest",
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="A", help="Show only this agent, and the channels into it.")
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="PATH",
            help="Show only this field of the agent, in full; such as mind.notes[3].text, table['odd name'] or lines[-1].",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.npy", help="New file for the field, an array, for `numpy.load`."),
    ] = None,
) -> None:
    """Show the states of all agents, and the messages in transit on every channel.

    Values are decoded from the stored bytes, without the fleet's classes, NumPy or torch; `snapline.open_store` reads the same. Structs
    appear by field names, also as keys, arrays as type, shape and first values in C order, blobs as bytes, pickles as their size; `"…"`
    means that values are omitted. Without --agent, large values outside a state's own record (arrays of 16 KiB or more, histories,
    blobs) appear as their size.

    With --agent, arrays show eight values, and histories their number of `records`, the `first` and the `last` eight (above 4 MiB only
    the number). --field reads the store itself, and shows up to 1,000 array values or every record of a history. Otherwise the
    coordinator answers, with at most 8 MiB of JSON; larger states appear as their size. --store has no such limit. Exit code 6:
    damaged; nothing is shown.
    """
    printer = display.printer()
    if field is None:
        if out is not None:
            raise UsageError("--out writes one field of an agent: give --agent and --field")
        printer.result(source.read("show", snapshot, agent), _show_one if agent is None else _show_agent)
        return
    if agent is None:
        raise UsageError("--field is a field of one agent's state: give --agent")
    printer.result(field_document(source.open(), snapshot, agent, field, out), show_field)


@app.command("verify")
@command
def verify(source: Source, display: Display, snapshot: Annotated[str | None, _SNAPSHOT] = None) -> None:
    """Compare every byte of the store, or of one snapshot, with its digest.

    Names each damaged file and its epoch. Checks that every batch of a host's log is intact and none is missing, and, in a signed or
    encrypted store, that a host of the fleet wrote it. With --store, an epoch whose ref has vanished is not noticed: only the
    coordinator's log knows it. Exit code 6: something is damaged.
    """
    result = source.read("verify", snapshot)
    printer = display.printer()
    printer.result(result, _show_verification)
    findings = rows_of(result, "findings")
    for finding in findings:
        epoch = "" if finding.get("epoch") is None else f" (epoch {finding['epoch']})"
        printer.warning(f"{text(finding.get('path'))}{epoch} is damaged: {text(finding.get('reason'))}")
    if findings:
        raise typer.Exit(DamagedDataError.exit_code)


app.command("tag")(snapshot_retention.tag)
app.command("pin")(snapshot_retention.pin)
app.command("prune")(snapshot_retention.prune)
app.command("history")(history)
app.command("diff")(snapshot_state.diff)
app.command("fork")(snapshot_transfer.fork)
app.command("export")(snapshot_transfer.export_snapshot)
app.command("import")(snapshot_transfer.import_snapshots)
app.command("copy")(snapshot_transfer.copy)


# -- tables -----------------------------------------------------------------------------------------------------------


def _show_created(result: Document, tables: DocumentTables) -> None:
    elapsed_ns = result.get("elapsed_ns")
    if result.get("is_complete") and not result.get("is_new"):
        tables.line(f"epoch {result.get('epoch')} is still the latest, root {result.get('root')}")
    elif result.get("is_complete"):
        took = f" in {elapsed_ns / 1e9:.2f} s" if isinstance(elapsed_ns, int) else ""
        tables.line(f"epoch {result.get('epoch')} is complete{took}, root {result.get('root')}")
    else:
        tables.line(f"epoch {result.get('epoch')} was aborted: {result.get('reason')}")


def _show_list(result: Document, tables: DocumentTables) -> None:
    rows, fork = rows_of(result, "snapshots"), _fork(result)
    if fork:
        tables.line(fork)
    if not rows:
        tables.line("no snapshots yet")
        return
    tables.table(
        ("EPOCH", "ROOT", "CREATED (UTC)", "TRIGGER", "AGENTS", "STATE", "IN TRANSIT", ""),
        [
            (
                row.get("epoch"),
                text(row.get("root", ""))[:12],
                utc_time(row.get("created")),
                row.get("trigger", ""),
                row.get("agent_count"),
                size(row["state_bytes"]) if "state_bytes" in row else "",
                row.get("channel_state_messages"),
                _marks(row, result),
            )
            for row in rows
        ],
        optional=("IN TRANSIT", "TRIGGER", "AGENTS"),
    )


def _marks(row: Document, result: Document) -> str:
    """List the marks of a snapshot, each of which is `damaged`, `pinned` or `tag NAME`."""
    epoch, pins, tags = row.get("epoch"), result.get("pins"), result.get("tags")
    named = [name for name, tagged in tags.items() if tagged == epoch] if isinstance(tags, dict) else []
    marks = ["damaged"] if row.get("damage") else []
    marks += ["pinned"] if isinstance(pins, list | tuple) and epoch in pins else []
    return ", ".join([*marks, *(f"tag {name}" for name in sorted(named))])


def _show_one(result: Document, tables: DocumentTables) -> None:
    _show_head(result, tables)
    tables.line()
    agents = rows_of(result, "agents")
    tables.table(
        ("AGENT", "HOST", "INCARNATION", "STATE"),
        [(row.get("agent"), row.get("host"), row.get("incarnation"), _state(row)) for row in agents],
    )
    _show_channels(result, tables)
    for row in agents:
        _show_rest(row, tables, prefix=f"{row.get('agent')}: ")


def _show_agent(result: Document, tables: DocumentTables) -> None:
    _show_head(result, tables)
    for row in rows_of(result, "agents"):
        tables.line()
        tables.fields((name, row.get(name)) for name in ("agent", "kind", "host", "incarnation", "state_type"))
        state = row.get("state")
        if isinstance(state, dict):
            show_state(state, tables)
        else:
            tables.fields([("state", _state(row))])
        _show_rest(row, tables, prefix="")
    _show_channels(result, tables)


def _show_head(result: Document, tables: DocumentTables) -> None:
    names = ("epoch", "root", "created", "trigger", "fleet", "protocol", "plan")
    tables.fields(
        [*((name, result.get(name)) for name in names), ("fork", _fork(result)), ("ran on", _dependencies(result))]
    )


def _dependencies(result: Document) -> str | None:
    """Describe what the hosts ran on. Digests are left to `-o json`."""
    from snapline.messages.dependencies import describe_report

    dependencies = result.get("dependencies")
    return describe_report(dependencies) or None if isinstance(dependencies, dict) else None


def _fork(result: Document) -> str | None:
    fork = result.get("fork")
    return snapshot_transfer.describe(fork) if isinstance(fork, dict) else None


def _state(row: Document) -> str:
    return "(not born yet)" if row.get("is_unborn") else text(row.get("state"))


def _show_channels(result: Document, tables: DocumentTables) -> None:
    rows = [
        (channel.get("sender"), channel.get("receiver"), message.get("number"), show_message(message.get("message")))
        for channel in rows_of(result, "channels")
        for message in rows_of(channel, "in_transit")
    ]
    tables.line()
    if rows:
        tables.line(f"{count(len(rows), 'message')} in transit:")
        tables.table(("FROM", "TO", "NUMBER", "MESSAGE"), rows)
    else:
        tables.line("nothing in transit")


def _show_rest(row: Document, tables: DocumentTables, *, prefix: str) -> None:
    """Print those parts of an agent's checkpoint that most agents do not have."""
    for parked in rows_of(row, "outbox"):
        tables.line(f"{prefix}in its outbox for {parked.get('receiver')}: {show_message(parked.get('message'))}")
    for timer in rows_of(row, "timers"):
        tables.line(
            f"{prefix}timer {timer.get('name')} in {timer.get('remaining_s')} s: {show_message(timer.get('message'))}"
        )
    turn = row.get("durable_turn")
    if isinstance(turn, dict):
        waits = f"waits for {turn['waits_for']}" if turn.get("waits_for") else "goes on"
        heading = f"durable turn for {show_message(turn.get('message'))} from {turn.get('sender')}"
        tables.line(f"{prefix}{heading} {waits} after {count(turn['entries'], 'entry', 'entries')}")
    for deferred in rows_of(row, "put_off"):
        tables.line(f"{prefix}deferred, from {deferred.get('sender')}: {show_message(deferred.get('message'))}")
    for spawn in rows_of(row, "spawns"):
        tables.line(f"{prefix}asked for agent {spawn.get('agent')} ({spawn.get('kind')})")
    for dead_letter in rows_of(row, "dead_letters"):
        error = text(dead_letter.get("error"))
        error_text = last_line(error) if prefix else error
        tables.line(
            f"{prefix}dead letter from {dead_letter.get('sender')}: {show_message(dead_letter.get('message'))}: {error_text}"
        )


def show_message(message: object) -> str:
    """Format a message, for example as `Mass(amount=3)`. Format any other value as plain text."""
    if isinstance(message, dict) and set(message) == {"type", "fields"} and isinstance(message["fields"], dict):
        fields = ", ".join(f"{name}={text(value)}" for name, value in message["fields"].items())
        return f"{message['type']}({fields})"
    return text(message)


def _show_verification(result: Document, tables: DocumentTables) -> None:
    findings = rows_of(result, "findings")
    checked = f"{count(integer_of(result, 'checked_files'), 'file')}, {size(result.get('checked_bytes'))}"
    tables.line(f"{checked} read: {count(len(findings), 'file') + ' damaged' if findings else 'all as written'}")
    if findings:
        tables.table(
            ("FILE", "EPOCH", "AGENT", "REASON"),
            [(row.get("path"), row.get("epoch"), row.get("agent"), row.get("reason")) for row in findings],
        )


# -- documents --------------------------------------------------------------------------------------------------------


CATALOG_EPOCHS_MIN = 64
"""Smallest number of epochs for which a catalog is used. Fewer manifests can be read quickly without one."""

CATALOGS_MAX = 100
"""Largest number of catalogs that are kept for a user. The least recently changed catalogs are removed first. A catalog is a cache of about
100 KiB."""


def list_stored(location: str) -> dict[str, object]:
    """List all snapshots of a store, oldest first. For an unreadable snapshot, the field `damage` contains the reason."""
    from snapline.coordinator.service import documents
    from snapline.messages.answers import document_of
    from snapline.storage.store.store import Store

    store = Store.open(location)
    catalog = catalog_path(store) if len(store.epochs()) >= CATALOG_EPOCHS_MIN else None
    return document_of(documents.list_snapshots(store, catalog))


def catalog_path(store: "Store") -> Path | None:
    """Return the path of this user's catalog of the store, after deleting surplus catalogs of other stores. Return None if the user has no
    home folder.

    The path is `$XDG_CACHE_HOME/snapline/<store id>.sqlite`.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snapline"
    except RuntimeError:
        return None
    with contextlib.suppress(OSError):
        others = [path for path in folder.glob("*.sqlite") if path.stem != store.store_id]
        for path in sorted(others, key=lambda path: path.stat().st_mtime)[: len(others) - CATALOGS_MAX + 1]:
            path.unlink()
    return folder / f"{store.store_id}.sqlite"


def show_snapshot(location: str, snapshot: str, agent: str | None) -> dict[str, object]:
    """Return the document of one snapshot. The document contains the states and the messages in transit of all agents, or only those of
    `agent`.

    Raises:
        NotFoundError: If the snapshot or the agent does not exist.
        DamagedDataError: If the snapshot is damaged.
    """
    from snapline.agent_runtime.snapshots.snapshot_cut import describe_state
    from snapline.coordinator.service.documents import show_document
    from snapline.messages.payloads import describe_payload
    from snapline.storage.store.store import Store

    return show_document(
        Store.open(location), snapshot, agent, describe_state=describe_state, describe_message=describe_payload
    )


def verify_snapshots(location: str, snapshot: str | None) -> dict[str, object]:
    """Check all data of the store, or of one snapshot, against its digests."""
    from snapline.coordinator.service.documents import verification, verify
    from snapline.messages.answers import document_of
    from snapline.storage.store.store import Store
    from snapline.storage.store.verify import verify_location

    try:
        store = Store.open(location)
    except DamagedDataError:  # the identity file is damaged: the store cannot be opened, but its files can be verified
        return document_of(verification(location, None, verify_location(location)))
    return document_of(verify(store, snapshot))
