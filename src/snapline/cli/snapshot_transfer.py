"""`snapline snapshot export`, `import`, `copy` and `fork` transfer snapshots to files, from files, to another store and to a new fleet."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import AcceptChanges, Display, FleetArguments, command, parse_arguments
from snapline.cli.output import Document, DocumentTables, count, document, integer_of, rows_of, show_changes, size, text
from snapline.cli.snapshot_retention import SNAPSHOT_HELP, StorePlace, data_dir_of, lock_fleet
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.agent_runtime.fleet import Fleet
    from snapline.agent_runtime.snapshots.snapshot_forks import ForkRequest
    from snapline.storage.store.store import Store
    from snapline.storage.transfer.snapshot_copy import Copied


@command
def export_snapshot(
    place: StorePlace,
    display: Display,
    snapshot: Annotated[str, typer.Argument(metavar="ID", help=SNAPSHOT_HELP)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")],
    more: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="ID", help="Additional snapshot for the same file. Repeatable."),
    ] = None,
) -> None:
    """Write a snapshot to one file, a tar archive of a small store.

    Unpack it with tar, and any command reads it with --store. The fleet may run. Packs are copied whole, so the file may be larger than the
    snapshot. FILE gets its name only after it was read back and verified. An encrypted store stays encrypted, and needs the same keys.
    """
    from snapline.storage.transfer.archive import write_archive

    store = place.open()
    epochs = [store.resolve(name) for name in (snapshot, *(more or ()))]
    written = write_archive(store, epochs, file)
    snapshots = [{"epoch": epoch, "root": root} for epoch, root in written.roots.items()]
    result = document(
        "SnapshotExport", store=store.location, file=str(file), size_bytes=written.size_bytes, snapshots=snapshots
    )
    display.printer().result(result, _show_exported)


@command
def import_snapshots(
    place: StorePlace,
    display: Display,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `snapshot export` wrote.")],
) -> None:
    """Import the snapshots of an exported file into a store, which is created if missing.

    FILE must come from `snapshot export`: unpack other archives to a store, and use `snapshot copy`. It is verified before anything is
    written. Existing snapshots are left alone. A fleet's store accepts only the fleet's own snapshots below its newest one, while the
    fleet does not run. Pin the snapshot before the next start, or the fleet's retention may delete it. The fleet does not go back to it
    by itself. An encrypted snapshot fits only the store from which it comes.

    Exit codes: 1: another snapshot has this number. 2: other keys. 11: the fleet runs.
    """
    from snapline.storage.transfer.archive import read_archive, reading_archive

    with reading_archive(file):  # an invalid archive must fail before a store is created
        pass
    store = _open_target(place)
    with _receiving(place, store) as is_fleet_store:
        copied = read_archive(file, store, is_fleet_store=is_fleet_store)
    result = document("SnapshotImport", store=store.location, file=str(file), snapshots=[_row(x) for x in copied])
    display.printer().result(result, _show_imported)


@command
def copy(
    place: StorePlace,
    display: Display,
    to: Annotated[
        str, typer.Option("--to", metavar="STORE", help="Second store, as path or URL (s3://…); created if missing.")
    ],
    snapshot: Annotated[str | None, typer.Argument(metavar="ID", help=SNAPSHOT_HELP)] = None,
    all_but_newest: Annotated[
        int | None,
        typer.Option("--older-than", min=1, metavar="N", help="Copy all snapshots but the newest N, instead of one."),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Delete each snapshot here once its copy is verified. The fleet must not run."),
    ] = False,
    must_exist: Annotated[
        bool,
        typer.Option(
            "--must-exist",
            help="Do not create the second store; exit code 10 if it is missing, such as on an unmounted disk.",
        ),
    ] = False,
) -> None:
    """Copy snapshots to a second store, and verify the copies.

    A copy has the same root and may have other packs. Data that the second store has is not written again; after an interruption the
    command continues. `snapshot list`, `show`, `verify`, `diff` and `copy` read the second store. --remove deletes only snapshots whose
    copy is intact and that are neither pinned, tagged nor the newest; the fleet must have ended (exit code 11). For a store outside a local
    fleet, make sure of that yourself. Do not prune the second store meanwhile. Encrypted snapshots fit only the store from which they come.
    """
    from snapline.storage.transfer import snapshot_copy

    if (snapshot is None) == (all_but_newest is None):
        raise UsageError("which snapshots? Give an ID, or --older-than N for all but the newest N")
    source = place.open()
    epochs = (
        [source.resolve(snapshot)]
        if snapshot is not None
        else snapshot_copy.all_but_newest(source, all_but_newest or 1)
    )
    there = StorePlace(store=to)
    target = there.open() if must_exist else _open_target(there)
    printer = display.printer()
    rows: list[dict[str, object]] = []
    with contextlib.ExitStack() as held:
        if remove:
            snapshot_copy.check_distinct_stores(source, target)
            held.enter_context(_lock_fleet_to(data_dir_of(place, source), "remove its snapshots"))
        is_fleet_store = held.enter_context(_receiving(there, target))
        holds = place.holds(source) if remove else None
        for moved in snapshot_copy.move_epochs(source, target, epochs, holds=holds, is_fleet_store=is_fleet_store):
            row = _row(moved.copied) | {"is_removed": moved.is_removed, "kept_because": moved.kept_because}
            rows.append(row)
            if len(epochs) > 1:
                printer.progress(f"{len(rows)} of {count(len(epochs), 'snapshot')} done")
    result = document("SnapshotCopy", store=source.location, to=target.location, snapshots=rows)
    printer.result(result, _show_copied)


def _open_target(place: StorePlace) -> "Store":
    """Open the target store. If the store is missing, create it, unless it belongs to a local fleet.

    Raises:
        StoreMissingError: If the local fleet has no store yet.
    """
    from snapline.storage.store.store import Store

    return place.open() if place.store is None or place.data_dir is not None else Store.open_or_create(place.store)


@contextlib.contextmanager
def _receiving(place: StorePlace, store: "Store") -> Iterator[bool]:
    """Yield whether the store belongs to a local fleet. Such a fleet cannot start until the block ends.

    Raises:
        DirectoryInUseError: If the fleet is running.
    """
    data_dir = data_dir_of(place, store)
    with _lock_fleet_to(data_dir, "put snapshots into its store"):
        yield data_dir is not None


@contextlib.contextmanager
def _lock_fleet_to(data_dir: Path | None, purpose: str) -> Iterator[None]:
    """Same as `lock_fleet`, but if the fleet is running, the error message says that `purpose` is possible after the fleet has ended."""
    from snapline.deploy.data_directory import DirectoryInUseError

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock_fleet(data_dir))
        except DirectoryInUseError:
            raise DirectoryInUseError(f"the fleet in {data_dir} runs: {purpose} when it has ended") from None
        yield


def _row(copied: "Copied") -> dict[str, object]:
    return {
        "epoch": copied.epoch,
        "root": copied.root,
        "is_new": copied.is_new,
        "written_bytes": copied.written_bytes,
        "found_bytes": copied.found_bytes,
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def _show_exported(result: Document, tables: DocumentTables) -> None:
    snapshots = rows_of(result, "snapshots")
    names = ", ".join(str(row.get("epoch")) for row in snapshots)
    tables.line(f"epoch {names} in {result.get('file')}, {size(result.get('size_bytes'))}")


def _show_imported(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "snapshots"):
        tables.line(f"epoch {row.get('epoch')} {_written(row)}")


def _show_copied(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "snapshots")
    for row in rows:
        tables.line(_copied_line(row))
    tables.line(f"{count(len(rows), 'snapshot')} in {result.get('to')}")


def _copied_line(row: Document) -> str:
    if row.get("is_removed"):
        outcome = "; removed here"
    else:
        outcome = f"; stays here: {row.get('kept_because')}" if row.get("kept_because") else ""
    return f"epoch {row.get('epoch')} {_written(row)}{outcome}"


def _written(row: Document) -> str:
    if not row.get("is_new"):
        return "was there already"
    return f"written, {size(row.get('written_bytes'))}; {size(row.get('found_bytes'))} were there already"


NAMES_SHOWN = 20


class InputsChoice(StrEnum):
    """Values of `--inputs`."""

    COPY = "copy"
    DROP = "drop"


class AnswersChoice(StrEnum):
    """Values of `--answers`."""

    NONE = "none"
    PARENT = "parent"
    ONLY = "only"


@dataclass(frozen=True)
class ForkPlaces:
    """Options for the names and places of one or more forks."""

    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Name of the fork in `status`, `snapshot list` and `snapshot show`."
        ),
    ]
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Data directory of the fork; created if missing.")]
    to_store: Annotated[
        str,
        typer.Option(
            "--to-store", metavar="STORE", help="Store of the fork, as path or URL.", show_default="DIR/store"
        ),
    ] = ""
    times: Annotated[
        int, typer.Option("--times", min=1, metavar="N", help="Number of forks, in DIR/1, DIR/2 and so on if above 1.")
    ] = 1
    again: Annotated[
        bool, typer.Option("--again", help="First remove the remains of an unfinished fork in the same place.")
    ] = False

    def make(self, source: "Store", epoch: int, request: "ForkRequest") -> list[dict[str, object]]:
        """Fork a snapshot into these places, and return the documents of the forks."""
        import msgspec

        from snapline.agent_runtime.snapshots.snapshot_forks import fork_snapshot
        from snapline.deploy.data_directory import folder_of_fork

        if self.times > 1 and self.to_store:
            raise UsageError("--to-store names one store, and --times makes several forks: leave one of them out")
        rows: list[dict[str, object]] = []
        for number in range(1, self.times + 1):
            folder, asked = self.to, request
            if self.times > 1:
                folder, asked = self.to / str(number), msgspec.structs.replace(request, name=f"{self.name}-{number}")
            with folder_of_fork(folder) as store:
                forked = fork_snapshot(source, epoch, self.to_store or str(store), asked, begin_again=self.again)
            rows.append({"data_dir": str(folder), **msgspec.to_builtins(forked)})
        return rows


@command
def fork(
    place: StorePlace,
    display: Display,
    places: ForkPlaces,
    snapshot: Annotated[str, typer.Argument(metavar="ID", help=SNAPSHOT_HELP)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="AGENT.FIELD=JSON",
            help="Change a field of a state, to a value of its declared type; paths as for `snapshot show --field`. "
            "Repeatable. Needs --fleet.",
        ),
    ] = None,
    fleet: Annotated[
        str, typer.Option("--fleet", metavar="MODULE:FLEET", help="Code of the fork, if it differs from its parent's.")
    ] = "",
    arg: FleetArguments = None,
    inputs: Annotated[
        InputsChoice, typer.Option("--inputs", help="Copy or drop inputs that the agents had not consumed.")
    ] = InputsChoice.DROP,
    answers: Annotated[
        AnswersChoice,
        typer.Option(
            "--answers",
            help="Answers on which the fork runs. parent: results of steps and effects, and approvals, that the parent has got since the "
            "snapshot, are taken instead of asking again. only: and what has none fails.",
        ),
    ] = AnswersChoice.NONE,
    live: Annotated[bool, typer.Option("--live", help="Allow the fork to perform effects.")] = False,
    accept_changes: AcceptChanges = False,
) -> None:
    """Make a new fleet from a snapshot of another fleet, which may keep running.

    The other fleet is not changed. `snapline run --data-dir DIR` runs the fork; give --to-store to it as --store. Exit codes: 2: something
    does not fit, and nothing was written. 6: the snapshot is damaged. 11: a fleet runs in DIR, or another fork is being made there.
    """
    from snapline.agent_runtime.snapshots.snapshot_forks import ForkRequest

    request = ForkRequest(
        name=places.name,
        settings=parse_settings(settings or []),
        fleet=_code_of_fork(fleet, arg),
        inputs=inputs.value,
        is_live=live,
        answers=answers.value,
        accepts_changes=accept_changes,
    )
    source = place.open()
    rows = places.make(source, source.resolve(snapshot), request)
    result = document("Fork", **rows[0]) if len(rows) == 1 else document("Forks", forks=rows)
    display.printer().result(result, _show if len(rows) == 1 else _show_forks)


def _code_of_fork(reference: str, arguments: list[str] | None) -> "Fleet | None":
    """Load the definition that --fleet names, or return None for the parent's."""
    from snapline.cli.fleet import check_reference, load

    if arguments and not reference:
        raise UsageError("--arg is for the function that --fleet names: give --fleet MODULE:FLEET")
    if not reference:
        return None
    check_reference(reference)
    return load(reference, parse_arguments(arguments))


def parse_settings(settings: list[str]) -> dict[str, bytes]:
    """Convert `["a.count=3"]` to `{"a.count": b"3"}`.

    Raises:
        UsageError: If a setting is not AGENT.FIELD=JSON, or a field is given twice.
    """
    from snapline.messages.json_text import read_json

    parsed: dict[str, bytes] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not path or not equals:
            raise UsageError(f"--set {setting!r} is not AGENT.FIELD=JSON")
        if path in parsed:
            raise UsageError(f"--set {path}=… is given twice: give it once")
        try:
            read_json(value)
        except UsageError as error:
            raise UsageError(
                f"--set {path}={value} is no JSON ({error}): text takes quotation marks, as in '\"a\"'"
            ) from error
        parsed[path] = value.encode()
    return parsed


def describe(fork: Mapping[str, object]) -> str:
    """Describe a fork briefly: its name, and the snapshot from which it was made."""
    refusal = "" if fork.get("is_live") else "; effects are refused"
    return f"{text(fork.get('name'))}: fork of {text(fork.get('parent_name'))}, epoch {fork.get('epoch')}{refusal}"


def _show(result: Document, tables: DocumentTables) -> None:
    agents, messages = (
        count(integer_of(result, name), word) for name, word in (("agents", "agent"), ("messages", "message"))
    )
    tables.line(f"{describe(result)}")
    tables.line(f"{agents}, {messages} in transit, in {result.get('data_dir')}")
    copied, dropped = integer_of(result, "inputs_copied"), integer_of(result, "inputs_dropped")
    if copied or dropped:
        tables.line(f"{count(copied, 'input')} taken along, {dropped} dropped")
    recorded, lost = integer_of(result, "answers"), integer_of(result, "lost_batches")
    if recorded or lost:
        tables.line(f"{count(recorded, 'answer')} of the parent's recorded{lost_answers(lost)}")
    refused = integer_of(result, "effects_refused")
    if refused:
        tables.line(f"{count(refused, 'effect')} of the parent's left to it, and refused here")
    for place in _texts(result, "changed"):
        tables.line(f"set {place}")
    show_changes(result, tables)
    absent = _texts(result, "not_begun")
    if absent:
        shown = ", ".join(absent[:NAMES_SHOWN]) + (", …" if len(absent) > NAMES_SHOWN else "")
        tables.line(f"not in the snapshot, and so not begun: {shown}")


def _show_forks(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "forks"):
        _show(row, tables)


def lost_answers(batches: int) -> str:
    """Describe answers that are missing because the fleet has deleted `batches` of host logs, or return "" if there are none."""
    if not batches:
        return ""
    return f"; those in {batches:,} batches of host logs are gone, as the fleet has no keep_answers=True"


def _texts(result: Document, name: str) -> list[str]:
    value = result.get(name)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
