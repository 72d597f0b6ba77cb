"""`snapline run` runs a whole fleet on this machine, from its start to its end."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import (
    LAST_SNAPSHOT_S,
    PARTIAL,
    BeginAnew,
    Display,
    FleetArguments,
    FleetMetrics,
    FleetReference,
    LastSnapshot,
    LogLines,
    Spans,
    command,
    parse_arguments,
)
from snapline.cli.fleet import check_reference
from snapline.cli.fleet_locations import FAILED
from snapline.cli.output import Document, DocumentTables, count, document
from snapline.cli.progress import FleetProgress
from snapline.cli.ui import ViewOptions, shown_in_browser
from snapline.errors import SnaplineError, UsageError

if TYPE_CHECKING:
    from snapline.deploy.local import Ending


METRICS_AT = "127.0.0.1:0"

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder for the store and all logs; the same folder continues the fleet.",
        show_default="a new one under runs/",
    ),
]


class OnFailure(StrEnum):
    """Values of `--on-failure`."""

    RESTART = "restart"
    MOVE = "move"


CoordinatorsOption = Annotated[
    int | None,
    typer.Option(
        "--coordinators",
        metavar="N",
        help="Number of the coordinator's replicas: 1, 3 or 5.",
        show_default="1, or as before in this folder",
    ),
]


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="STORE",
        help="Snapshot store, the same for all hosts: a path, file:///…, s3://, gs:// or az://.",
        show_default="DIR/store",
    ),
]


@dataclass(frozen=True)
class AnswerOptions:
    """Options for a new fleet that runs on recorded answers."""

    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="Answers of `answers export` that a new fleet takes instead of asking.",
        ),
    ] = None
    answers_only: Annotated[
        bool, typer.Option("--answers-only", help="Let steps and effects fail that have no answer in --answers.")
    ] = False

    def write(self, folder: Path, store: str) -> None:
        """Write the answers to the fleet's store, which is created. Do nothing if there are none."""
        if self.answers is None:
            if self.answers_only:
                raise UsageError("--answers-only needs --answers FILE: it says which answers there are")
            return
        from snapline.deploy.data_directory import STORE_FOLDER
        from snapline.storage.log.answer_files import RecordedAnswers, read_export
        from snapline.storage.store.store import Store

        recorded = RecordedAnswers(read_export(self.answers), self.answers_only)
        opened = Store.open_or_create(store or str(folder / STORE_FOLDER))
        if opened.epochs():
            raise UsageError(
                f"--answers is for a new fleet, and the store {opened.location} holds snapshots: use another one"
            )
        if opened.recorded_answers() != recorded:  # after an interrupted start they are there already
            opened.record_answers(recorded)


@command
def run(
    display: Display,
    log_lines: LogLines,
    spans: Spans,
    view: ViewOptions,
    recorded: AnswerOptions,
    fleet: FleetReference,
    hosts: Annotated[int, typer.Option("--hosts", min=1, metavar="N", help="Number of host processes.")] = 2,
    coordinators: CoordinatorsOption = None,
    data_dir: DataDir = None,
    store: StoreOption = "",
    arg: FleetArguments = None,
    on_failure: Annotated[
        OnFailure, typer.Option("--on-failure", help="Restart a dead host, or move its agents to the other hosts.")
    ] = OnFailure.RESTART,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Trace every checkpoint and message into DIR/traces, for `snapline analyze DIR/traces`."
        ),
    ] = False,
    metrics: FleetMetrics = False,
    last_snapshot: LastSnapshot = LAST_SNAPSHOT_S,
    begin_anew: BeginAnew = False,
    fail_on_dead_letters: Annotated[
        bool, typer.Option("--fail-on-dead-letters", help="End with exit code 3 if there are dead letters.")
    ] = False,
) -> None:
    """Run a whole fleet on this machine, and end with it.

    Starts the coordinator and the hosts as child processes, and restarts dead ones. With 3 or 5 replicas of the coordinator, the fleet
    survives the loss of one or two. Modules of the current folder can be named. The same --data-dir continues from the last complete
    epoch. It needs the same store, and waits while that store is unavailable.

    Ctrl-C and SIGTERM take a last snapshot, then end every process. Lines on stderr name the snapshot, or the epoch since which work is
    lost. No process outlives the command. Further lines report concerns that last for three seconds, missing replicas, the first dead
    letter, and checkpoints that do not complete; --quiet keeps the last two. Progress counts the dead letters since each host's start;
    in the result, `dead_letters` counts those in the last snapshot.

    Exit codes: 0: the fleet stopped as its predicate says. 1: the fleet failed, or the port of --ui is in use. 2: a process cannot
    start, the folder belongs to another fleet, or the extra snapline[ui] is missing. 3: dead letters with --fail-on-dead-letters. 11:
    another launcher runs in this folder. 130: interrupted.
    """
    check_reference(fleet)
    arguments, log = parse_arguments(arg), log_lines.arguments() + spans.checked().arguments()
    port = view.port()
    folder = data_dir or _new_folder(fleet)
    recorded.write(folder, store)
    replicas = coordinators if coordinators is not None else _count_of(folder)
    progress, started_s = FleetProgress(display.printer()), time.monotonic()
    try:
        ending = asyncio.run(
            _run(
                *(fleet, hosts, replicas, folder, store, arguments, on_failure, trace, metrics, log, port),
                *(last_snapshot, begin_anew, progress),
            )
        )
    except asyncio.CancelledError:  # caused by SIGTERM; asyncio itself turns SIGINT into a KeyboardInterrupt
        raise KeyboardInterrupt from None
    finally:
        progress.end()
    dead_letters = _dead_letters(folder, store, ending.epoch, progress)
    display.printer().result(_result(ending, dead_letters, folder, time.monotonic() - started_s), _show)
    if ending.outcome != "stopped":
        progress.warn(f"{FAILED}: {ending.reason}")
        raise typer.Exit(1)
    if dead_letters and fail_on_dead_letters:
        raise typer.Exit(PARTIAL)


def _result(ending: "Ending", dead_letters: int | None, folder: Path, elapsed_s: float) -> Document:
    return document(
        "RunResult",
        outcome=ending.outcome,
        reason=ending.reason,
        epoch=ending.epoch,
        dead_letters=dead_letters,
        data_dir=str(folder),
        elapsed_s=round(elapsed_s, 3),
    )


def _dead_letters(folder: Path, store: str, epoch: int, progress: FleetProgress) -> int | None:
    """Count the dead letters in the fleet's last snapshot, and print a warning if there are any. Return None if the snapshot is missing or
    unreadable."""
    from snapline.deploy.data_directory import STORE_FOLDER

    store = store or str(folder / STORE_FOLDER)
    counts = count_dead_letters(store, epoch) if epoch else None
    if counts is None:
        return None
    total = sum([number for number, _ in counts.values()])
    if counts:
        agent, (_, error) = list(counts.items())[-1]
        summary = f"{count(total, 'dead letter')} of {count(len(counts), 'agent')}"
        last = f"; the last one of agent {agent}: {error}" if error else ""
        progress.warn(f"{summary}: `snapline agent dead-letters list --store {store}` shows them{last}")
    return total


def count_dead_letters(store: str, epoch: int) -> dict[str, tuple[int, str]] | None:
    """Return, for each agent that has dead letters, their number and the last dead letter's error. Return None if the snapshot is
    unreadable."""
    from snapline.storage.store.store import Store

    try:
        opened = Store.open(store)
        manifest = opened.read_manifest(opened.read_ref(epoch), epoch=epoch)
        dead_letters = {x.agent: (x.dead_letter_count, x.dead_letters) for x in opened.read_checkpoints(manifest)}
    except (SnaplineError, OSError):
        return None
    last_errors = {
        agent: kept[-1].error.rstrip().rpartition("\n")[2] if kept else "" for agent, (_, kept) in dead_letters.items()
    }
    return {agent: (number, last_errors[agent]) for agent, (number, _) in dead_letters.items() if number}


async def _run(
    fleet: str,
    hosts: int,
    coordinators: int,
    folder: Path,
    store: str,
    arguments: Mapping[str, str],
    on_failure: OnFailure,
    is_traced: bool,
    has_metrics: bool,
    log: tuple[str, ...],
    ui_port: int | None,
    last_snapshot_s: float,
    begin_anew: bool,
    progress: FleetProgress,
) -> "Ending":
    import snapline.storage.store.store  # noqa: F401  for the end: the package may be replaced while the fleet runs
    from snapline.deploy.data_directory import METRICS_FOLDER
    from snapline.deploy.local import LocalFleet
    from snapline.deploy.running_fleet import follow

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    local = LocalFleet(
        data_dir=folder,
        fleet=fleet,
        hosts=hosts,
        coordinators=coordinators,
        arguments=arguments,
        on_failure=on_failure.value,
        trace_every=int(is_traced),
        store=store,
        metrics=METRICS_AT if has_metrics else "",
        log=log,
        on_note=progress.note,
        on_status=progress.status,
        last_snapshot_s=last_snapshot_s,
        begin_anew=begin_anew,
    )
    async with local:
        progress.note(f"data and logs are in {folder}; `snapline status --data-dir {folder}` shows the fleet")
        if has_metrics:
            progress.note(f"metrics of each process are where {folder / METRICS_FOLDER}/*.json says")
        following = asyncio.create_task(follow(local, folder))
        try:
            async with shown_in_browser(local, ui_port, progress):
                return await local.wait()
        finally:
            following.cancel()


def _count_of(folder: Path) -> int:
    """Return the number of coordinators of the fleet in this folder, or 1 if the folder contains no fleet yet."""
    from snapline.deploy.data_directory import read_addresses

    return len(read_addresses(folder)) or 1


def _new_folder(fleet: str) -> Path:
    """Return the path of a new folder for this run, so that it does not continue another run by accident."""
    name = fleet.partition(":")[0].rpartition(".")[2]
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def _show(result: Document, tables: DocumentTables) -> None:
    fields = {name: value for name, value in result.items() if name not in ("apiVersion", "kind")}
    tables.fields({**fields, "dead_letters": fields["dead_letters"] or None}.items())
