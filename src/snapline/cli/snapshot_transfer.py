"""`snapline snapshot export`, `import` and `copy`: transfer of snapshots to files and to a second store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli import snapshot_retention as snapshot_keep
from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, size
from snapline.cli.snapshot_retention import StorePlace
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.storage.store.store import Store
    from snapline.storage.transfer.transfer import Copied

_SNAPSHOT_HELP = "Epoch number, `latest`, tag, or first digits of a root."


@command
def export_snapshot(
    place: StorePlace,
    display: Display,
    snapshot: Annotated[str, typer.Argument(metavar="ID", help=_SNAPSHOT_HELP)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; must not exist.")],
    more: Annotated[
        list[str] | None, typer.Option("--also", metavar="ID", help="Another snapshot, into the same file; repeatable.")
    ] = None,
) -> None:
    """Write a snapshot to one file.

    The file is a tar of a small store, which holds what the snapshot needs: unpacked, any command reads it. May be done while the
    fleet runs.
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `snapshot export` wrote.")],
) -> None:
    """Put the snapshots of a file into a store.

    The whole file is verified first. A store that is not there is made. The store of a fleet takes back its own older snapshots
    only, while the fleet does not run.
    """
    from snapline.storage.transfer.archive import read_archive
    from snapline.storage.transfer.archive_disk import reading_archive

    with reading_archive(file):  # fail before a store is created
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
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="The second store, as path or URL; made if needed.")],
    snapshot: Annotated[str | None, typer.Argument(metavar="ID", help=_SNAPSHOT_HELP)] = None,
    all_but_newest: Annotated[
        int | None, typer.Option("--older-than", min=1, metavar="N", help="All snapshots but the newest N.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Then delete them here, of a fleet that does not run.")
    ] = False,
    must_exist: Annotated[
        bool,
        typer.Option("--must-exist", help="Make no second store: 10 if it is not there, as when its mount is away."),
    ] = False,
) -> None:
    """Copy snapshots to a second store, and read the copies back.

    With --remove a snapshot is deleted here once its copy is whole; not if it is pinned, tagged, or the newest.
    """
    from snapline.storage.buckets import tiering

    if (snapshot is None) == (all_but_newest is None):
        raise UsageError("which snapshots? Give an ID, or --older-than N for all but the newest N")
    source = place.open()
    epochs = [source.resolve(snapshot)] if snapshot is not None else tiering.all_but_newest(source, all_but_newest or 1)
    there = StorePlace(store=to)
    target = there.open() if must_exist else _open_target(there)
    printer = display.printer()
    rows: list[dict[str, object]] = []
    with contextlib.ExitStack() as held:
        if remove:
            tiering.check_distinct_stores(source, target)
            held.enter_context(lock_fleet(snapshot_keep.data_dir_of(place, source), "remove its snapshots"))
        is_fleet_store = held.enter_context(_receiving(there, target))
        holds = place.holds(source) if remove else None
        for moved in tiering.move_epochs(source, target, epochs, holds=holds, is_fleet_store=is_fleet_store):
            row = _row(moved.copied) | {"is_removed": moved.is_removed, "kept_because": moved.kept_because}
            rows.append(row)
            printer.progress(_copied_line(row))
    result = document("SnapshotCopy", store=source.location, to=target.location, snapshots=rows)
    printer.result(result, _show_copied)


def _open_target(place: StorePlace) -> "Store":
    """Open the target store; create it if it is missing, unless it belongs to a fleet.

    Raises:
        StoreMissingError: the fleet has no store yet.
    """
    from snapline.storage.store.store import Store

    return place.open() if place.store is None or place.data_dir is not None else Store.open_or_create(place.store)


@contextlib.contextmanager
def _receiving(place: StorePlace, store: "Store") -> Iterator[bool]:
    """Yield whether the store belongs to a local fleet, which cannot start meanwhile.

    Raises:
        DirectoryInUseError: the fleet runs.
    """
    data_dir = snapshot_keep.data_dir_of(place, store)
    with lock_fleet(data_dir, "put snapshots into its store"):
        yield data_dir is not None


@contextlib.contextmanager
def lock_fleet(data_dir: Path | None, purpose: str) -> Iterator[None]:
    from snapline.deploy.data_directory import DirectoryInUseError

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(snapshot_keep.lock_fleet(data_dir))
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
