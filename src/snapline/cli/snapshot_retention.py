"""`snapline snapshot tag`, `pin` and `prune` keep and delete snapshots in a store.

The commands change the store directly. Setting tags and pins is safe while the fleet runs (`storage/retention/pins.py` explains why).
Pruning is not safe while the fleet runs, because only the coordinator knows which snapshots the fleet still needs. The coordinator also
prunes snapshots automatically.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, size, text
from snapline.errors import NotFoundError, StoreMissingError, UsageError

if TYPE_CHECKING:
    from snapline.storage.retention.epoch_retention import Policy
    from snapline.storage.store.store import Holds, Store

HELD_MEANWHILE = "pinned or tagged meanwhile"

SNAPSHOT_HELP = "Snapshot: epoch number, `latest`, tag, or four or more first digits of its root."

_SNAPSHOT = typer.Argument(metavar="ID", help=SNAPSHOT_HELP)
_REMOVE = typer.Option("--remove", help="Remove it instead.")


@dataclass(frozen=True)
class StorePlace:
    """Options that specify a store."""

    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="Store: a path, file:///DIR, or the URL of an object store."),
    ] = None
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Folder of a local fleet, whose store is used.")
    ] = None

    def open(self) -> "Store":
        """Open the store that the options specify.

        Raises:
            UsageError: If the options do not specify exactly one store.
            StoreMissingError: If the store does not exist.
        """
        from snapline.deploy.data_directory import STORE_FOLDER
        from snapline.storage.store.store import Store

        if (self.store is None) == (self.data_dir is None):
            raise UsageError("which store? Give one of --store STORE and --data-dir DIR of a local fleet")
        if self.data_dir is None:
            return Store.open(self.store or "")
        path = self.data_dir / STORE_FOLDER
        if not path.exists():
            raise StoreMissingError(
                f"there is no store at {path}: check the path, or give the --store with which its fleet was started"
            )
        return Store.open(str(path))

    def holds(self, store: "Store") -> "Holds":
        """Return the store's pins and tags."""
        from snapline.storage.store.store import Holds

        return Holds(store, now_s=time.time)


@command
def tag(
    place: StorePlace,
    display: Display,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tag, such as before-upgrade.")],
    snapshot: Annotated[str | None, _SNAPSHOT] = None,
    remove: Annotated[bool, _REMOVE] = False,
) -> None:
    """Give a snapshot a name, and keep the snapshot as long as it has one.

    A kept snapshot is never deleted, whatever its age, from the moment the command has ended with 0. A tag is a file in the store, so
    the fleet may run, and is not called. It does not keep the epoch as a target of recoveries (`coordinator run --keep-epochs`). Exit
    codes: 1: the snapshot is being deleted. 2: the name is in use: remove the tag first.
    """
    if remove == (snapshot is not None):
        raise UsageError("a tag is given to a snapshot, or removed: write `tag NAME ID`, or `tag NAME --remove`")
    store = place.open()
    holds = place.holds(store)
    if snapshot is None:
        if not holds.untag(name):
            raise NotFoundError(f"there is no tag {name} in the store {store.location}: `snapshot list` shows them")
        result = document("SnapshotTag", name=name, epoch=None, is_removed=True)
    else:
        record = holds.tag(name, store.resolve(snapshot))
        result = document(
            "SnapshotTag", name=name, epoch=record.epoch, root=record.root, created=record.created, is_removed=False
        )
    display.printer().result(result, _show_tag)


@command
def pin(
    place: StorePlace,
    display: Display,
    snapshot: Annotated[str, _SNAPSHOT],
    remove: Annotated[bool, _REMOVE] = False,
) -> None:
    """Keep a snapshot until the pin is removed.

    A kept snapshot is never deleted, whatever its age, from the moment the command has ended with 0. A pin is a file in the store, so
    the fleet may run, and is not called. Exit code 1: the snapshot is being deleted.
    """
    store = place.open()
    holds = place.holds(store)
    if remove:
        pinned = holds.pinned()
        epoch = int(snapshot) if snapshot.isdecimal() and int(snapshot) in pinned else store.resolve(snapshot)
        if not holds.unpin(epoch):
            raise NotFoundError(f"epoch {epoch} is not pinned: `snapshot list` shows what is")
        result = document("SnapshotPin", epoch=epoch, is_removed=True)
    else:
        record = holds.pin(store.resolve(snapshot))
        result = document("SnapshotPin", epoch=record.epoch, root=record.root, created=record.created, is_removed=False)
    display.printer().result(result, _show_pin)


DailyOption = Annotated[
    int,
    typer.Option(
        "--daily",
        min=0,
        metavar="N",
        help="Number of days (UTC) for which to keep the newest snapshot of each day.",
    ),
]


@command
def prune(
    place: StorePlace,
    display: Display,
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=1, metavar="N", help="Number of newest snapshots to keep.")
    ] = 10,
    hourly: Annotated[
        int,
        typer.Option(
            "--hourly", min=0, metavar="N", help="Number of hours for which to keep the newest snapshot of each hour."
        ),
    ] = 24,
    daily: DailyOption = 14,
    manual: Annotated[
        int,
        typer.Option(
            "--manual",
            min=0,
            metavar="N",
            help="Number of newest snapshots taken by hand (`snapshot create`, `Client.snapshot`) to keep.",
        ),
    ] = 100,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="DURATION",
            help="Maximum age, relative to the newest, of further snapshots to keep: 90s, 30m, 2h, 7d. A gap between two "
            "snapshots counts as one hour at most, against clock changes.",
        ),
    ] = "0s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete surplus snapshots of a fleet that does not run.

    A running coordinator prunes by itself (`coordinator run --retention`). Kept are snapshots that are pinned or tagged, or whose time
    is unknown or in the future. Damaged ones are deleted unless they are among the last N. Hours and days are counted back from the
    newest snapshot.

    The result lists every snapshot and why it is kept; `stored_bytes` counts a shared pack for each of its snapshots. On a terminal the
    command shows the plan and asks first. Exit codes: 11: the fleet of this folder runs. For a store elsewhere, make sure that no
    fleet uses it.
    """
    from snapline.storage.retention.epoch_retention import Policy, parse_duration_s

    policy = Policy(keep_last, hourly, daily, manual, parse_duration_s(within))
    store = place.open()
    printer = display.printer()
    if dry_run:
        printer.result(_plan(store, place.holds(store), policy, is_dry_run=True), _show_plan)
        return
    data_dir = data_dir_of(place, store)
    with lock_fleet(data_dir):
        holds = place.holds(store)
        holds.clear_leftovers(is_alone=True)
        plan = _plan(store, holds, policy, is_dry_run=False)
        due = [int(str(row["epoch"])) for row in rows_of(plan, "snapshots") if row["action"] == "delete"]
        if due and not yes and _is_terminal():
            printer.result(plan, _show_plan)
            typer.confirm(f"Delete {count(len(due), 'snapshot')}?", abort=True, err=True)
        done = holds.delete(due)
        if data_dir is not None:  # into any other store, hosts may still be writing
            store.delete_unneeded_keys()
        printer.result(_with_outcomes(plan, done), _show_plan)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _plan(store: "Store", holds: "Holds", policy: "Policy", *, is_dry_run: bool) -> dict[str, object]:
    """Return a document that lists which snapshots to keep and which to delete. The document is built from the manifests, not from a
    catalog."""
    from snapline.storage.retention.epoch_retention import retained
    from snapline.storage.store.catalog import read_summaries, snapshot_time

    summaries = read_summaries(store)
    retained_epochs = retained(map(snapshot_time, summaries), policy, now_ns=time.time_ns(), held=holds.held())
    rows = [
        {
            "epoch": x.epoch,
            "created": x.created,
            "stored_bytes": x.stored_bytes,
            "action": "keep" if x.epoch in retained_epochs else "delete",
            "reason": retained_epochs.get(x.epoch, "damaged" if x.damage else "not retained"),
        }
        for x in summaries
    ]
    return document(
        "Pruning",
        store=store.location,
        retention=str(policy),
        is_dry_run=is_dry_run,
        snapshots=rows,
        deleted=[],
        removed_files=0,
    )


def _with_outcomes(plan: Document, done: dict[int, list[str] | None]) -> dict[str, object]:
    rows = [
        {**row, "action": "keep", "reason": HELD_MEANWHILE} if done.get(int(str(row["epoch"])), []) is None else row
        for row in rows_of(plan, "snapshots")
    ]
    removed = {epoch: paths for epoch, paths in done.items() if paths is not None}
    return {
        **plan,
        "snapshots": rows,
        "deleted": sorted(removed),
        "removed_files": sum(len(paths) for paths in removed.values()),
    }


# -- is the fleet at rest? --------------------------------------------------------------------------------------------


def data_dir_of(place: StorePlace, store: "Store") -> Path | None:
    """Return the folder of the local fleet to which the store belongs, or None if the store is not known to belong to a local fleet."""
    from snapline.deploy.data_directory import COORDINATOR_FOLDER, STORE_FOLDER

    if place.data_dir is not None:
        return place.data_dir
    path = Path(store.location)
    is_local = path.is_dir() and path.name == STORE_FOLDER and (path.parent / COORDINATOR_FOLDER).is_dir()
    return path.parent if is_local else None


@contextlib.contextmanager
def lock_fleet(data_dir: Path | None) -> Iterator[None]:
    """Hold the locks of the fleet in `data_dir`, so that the fleet cannot start until the block ends. If `data_dir` is None, do nothing.

    Raises:
        DirectoryInUseError: If the fleet is running.
    """
    if data_dir is None:
        yield
        return
    from snapline.coordinator.service.server import LOCK_FILE
    from snapline.deploy import data_directory
    from snapline.storage.disk.local_disk import lock_file

    folder = data_dir / data_directory.COORDINATOR_FOLDER
    with contextlib.ExitStack() as held:
        try:
            _close_at_end(held, data_directory.lock(data_dir))
            for path in sorted([*folder.glob(LOCK_FILE), *folder.glob(f"*/{LOCK_FILE}")]):
                _close_at_end(held, lock_file(path))
        except (data_directory.DirectoryInUseError, BlockingIOError):
            raise data_directory.DirectoryInUseError(
                f"the fleet in {data_dir} runs, and its coordinator deletes old snapshots itself: "
                "prune when it has ended, or look with --dry-run"
            ) from None
        yield


def _close_at_end(held: contextlib.ExitStack, descriptor: int) -> None:
    import os

    held.callback(os.close, descriptor)


# -- tables -----------------------------------------------------------------------------------------------------------


def _show_tag(result: Document, tables: DocumentTables) -> None:
    is_removed = result.get("is_removed")
    tables.line(f"tag {result.get('name')} " + ("is removed" if is_removed else f"names epoch {result.get('epoch')}"))


def _show_pin(result: Document, tables: DocumentTables) -> None:
    tables.line(f"epoch {result.get('epoch')} is {'no longer ' if result.get('is_removed') else ''}pinned")


def _show_plan(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "snapshots")
    tables.table(
        ("EPOCH", "CREATED", "SIZE", "", "BECAUSE"),
        [
            (row.get("epoch"), row.get("created"), size(row.get("stored_bytes")), _done(row, result), row.get("reason"))
            for row in rows
        ],
    )
    delete_count = sum(row.get("action") == "delete" for row in rows)
    word = "deleted" if result.get("deleted") else "to delete"
    tables.line(f"{delete_count} of {count(len(rows), 'snapshot')} {word}; retention {text(result.get('retention'))}")


def _done(row: Document, result: Document) -> str:
    if row.get("action") != "delete":
        return "kept"
    deleted = result.get("deleted")
    return "deleted" if isinstance(deleted, list) and row.get("epoch") in deleted else "goes"
