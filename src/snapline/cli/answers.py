"""`snapline answers …` exports the answers that a fleet has got from outside, so that tests and simulations can run on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, count, document, integer_of, rows_of, size
from snapline.cli.snapshot_retention import StorePlace
from snapline.cli.snapshot_transfer import lost_answers
from snapline.errors import ExternalFailureError, UsageError

if TYPE_CHECKING:
    from snapline.storage.log.answer_files import RecordedAnswer

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

RESULT_CHARACTERS_SHOWN = 60

File = Annotated[Path, typer.Argument(metavar="FILE", help="File that `answers export` wrote.")]


@app.command("export")
@command
def export(
    place: StorePlace,
    display: Display,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")],
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ID",
            help="Snapshot after which the answers begin.",
            show_default="the fleet's beginning",
        ),
    ] = "",
    failures: Annotated[
        bool, typer.Option("--failures", help="Also export failures, which are otherwise asked again.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Write the answers of an encrypted store, although FILE is not encrypted.")
    ] = False,
) -> None:
    """Write the results of steps and effects, and people's decisions, to one file.

    `snapline run --answers FILE` runs a new fleet on them. The fleet may run meanwhile. Answers of turns that every kept epoch covers are
    in the store only if the fleet has keep_answers=True.
    """
    from snapline.agent_runtime.recorded_answers import collect
    from snapline.storage.log.answer_files import RecordedAnswers, encode_export

    store = place.open()
    if store.guard is not None and store.guard.encrypts and not plain:
        raise UsageError(f"the store is encrypted, and {file} would not be: give --plain if that is what you want")
    epoch = store.resolve(since) if since else None
    found = collect(store, epoch, has_failures=failures)
    data = encode_export(RecordedAnswers(found.answers))
    try:
        with file.open("xb") as opened:
            opened.write(data)
    except FileExistsError:
        raise UsageError(f"{file} exists already: give another name") from None
    except OSError as error:
        raise ExternalFailureError(f"{file} cannot be written: {error}") from error
    result = document(
        "AnswersExport",
        store=store.location,
        file=str(file),
        epoch=epoch,
        answers=len(found.answers),
        lost_batches=found.lost_batches,
        size_bytes=len(data),
    )
    display.printer().result(result, _show_exported)


@app.command("show")
@command
def show(display: Display, file: File) -> None:
    """List exported answers: agent, name of the step, how often the agent had asked this then, and the result."""
    from snapline.storage.log.answer_files import read_export

    answers = read_export(file)
    display.printer().result(document("Answers", answers=[_row(answer) for answer in answers]), _show)


def _row(answer: "RecordedAnswer") -> dict[str, object]:
    from snapline.storage.capture.saved_value_formats import plain
    from snapline.storage.capture.saved_values import FAILURES

    try:
        result = plain(answer.result)
    except FAILURES:
        result = f"<{len(answer.result)} bytes>"
    return {
        "agent": answer.agent,
        "kind": answer.kind,
        "name": answer.name,
        "arguments": answer.digest.hex(),
        "occurrence": answer.occurrence,
        "outcome": answer.outcome,
        "result": result,
    }


def _show_exported(result: Document, tables: DocumentTables) -> None:
    answers, lost = integer_of(result, "answers"), integer_of(result, "lost_batches")
    tables.line(
        f"{count(answers, 'answer')} in {result.get('file')}, {size(result.get('size_bytes'))}{lost_answers(lost)}"
    )


def _show(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "answers"):
        shown = str(row.get("result"))
        shown = shown if len(shown) <= RESULT_CHARACTERS_SHOWN else shown[: RESULT_CHARACTERS_SHOWN - 1] + "…"
        tables.line(f"{row['agent']}  {row['kind']} {row['name']}  {row['occurrence']}.  {row['outcome']}: {shown}")
