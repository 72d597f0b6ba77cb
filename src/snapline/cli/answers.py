"""`snapline answers …` exports the answers that a fleet has got from outside, so that tests and simulations can run on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, count, document, integer_of, rows_of, size
from snapline.cli.snapshot_retention import StorePlace
from snapline.cli.snapshot_transfer import lost_answers
from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import open_private

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
    from snapline.agent_runtime.snapshots.answer_collection import collect
    from snapline.storage.log.answer_files import RecordedAnswers, encode_export

    store = place.open()
    if store.guard is not None and store.guard.encrypts and not plain:
        raise UsageError(f"the store is encrypted, and {file} would not be: give --plain if that is what you want")
    epoch = store.resolve(since) if since else None
    found = collect(store, epoch, has_failures=failures)
    data = encode_export(RecordedAnswers(found.answers))
    write_file_of_answers(file, data)
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


def write_file_of_answers(file: Path, data: bytes) -> None:
    """Write a new file that only its owner may read. Raise UsageError if it exists, or ExternalFailureError if it cannot be written."""
    try:
        with open(file, "xb", opener=open_private) as opened:  # `Path.open` takes no opener
            opened.write(data)
    except FileExistsError:
        raise UsageError(f"{file} exists already: give another name") from None
    except OSError as error:
        raise ExternalFailureError(f"{file} cannot be written: {error}") from error


@app.command("show")
@command
def show(display: Display, file: File) -> None:
    """List exported answers: agent, name of the step, how often the agent had asked this then, and the result.

    Only a digest of the arguments is recorded. `snapline effect show` has the arguments of effects.
    """
    from snapline.storage.log.answer_files import read_export

    answers = read_export(file)
    display.printer().result(document("Answers", answers=[_row(answer) for answer in answers]), _show)


@app.command("compare")
@command
def compare(
    display: Display,
    stores: Annotated[
        list[str],
        typer.Argument(metavar="STORE...", help="Stores of two or more fleets, such as forks of one snapshot."),
    ],
) -> None:
    """Compare what fleets have asked, what they were answered, and how many tokens that cost.

    The answers of a fork, and of its parent, begin at the snapshot from which the fork was made. Only a digest of the arguments is
    recorded: a request with other arguments is another request. Exit codes: 0: with or without differences. 4: that snapshot is not
    kept any more.
    """
    import msgspec

    from snapline.agent_runtime.snapshots.answer_comparison import compare_answers

    if len(stores) < 2:
        raise UsageError("there is nothing to compare: name two or more stores")
    found = compare_answers([StorePlace(store=store).open() for store in stores])
    display.printer().result(document("AnswersComparison", **msgspec.to_builtins(found)), _show_comparison)


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


def _show_comparison(result: Document, tables: DocumentTables) -> None:
    for number, row in enumerate(rows_of(result, "fleets"), 1):
        answers, recorded = integer_of(row, "answers"), integer_of(row, "recorded")
        tables.line(f"{number}: {row['store']}: {count(answers, 'answer')}, {recorded:,} of them recorded{_cost(row)}")
    different = rows_of(result, "different")
    same = integer_of(result, "same")
    tables.line(f"{count(same, 'request')} with the same answer, {len(different):,} with others")
    asked = _asked_differently(different)
    for row in different:
        tables.line(f"{row['agent']}  {row['kind']} {row['name']}  {row['occurrence']}.{_arguments(row)}")
        for number, shown in enumerate(_results(row), 1):
            others = asked.get((*_request(row), number), set()) - {str(row["arguments"])}
            tables.line(f"  {number}: {_not_asked(others) if shown is None else _shortened(str(shown))}")


def _asked_differently(different: list[Document]) -> dict[tuple[object, ...], set[str]]:
    """Return the arguments of each fleet's requests by agent, kind, name and number of the fleet, without those that all fleets made."""
    found: dict[tuple[object, ...], set[str]] = {}
    for row in different:
        results = _results(row)
        for number, shown in enumerate(results, 1):
            if shown is not None and None in results:
                found.setdefault((*_request(row), number), set()).add(str(row["arguments"]))
    return found


def _request(row: Document) -> tuple[object, ...]:
    return row["agent"], row["kind"], row["name"]


def _results(row: Document) -> list[object]:
    results = row["results"]
    return results if isinstance(results, list) else []


def _not_asked(others: set[str]) -> str:
    """Say that a fleet has not made a request. `others` are the arguments with which it has asked the same instead."""
    first, *rest = sorted(others) or [""]
    more = f" and {len(rest):,} more" if rest else ""
    return f"not asked with these arguments, but with {first or 'none'}{more}" if others else "not asked"


def _arguments(row: Document) -> str:
    """Name the arguments of a request by their digest, or return "" if it has none."""
    return f"  arguments {row['arguments']}" if row.get("arguments") else ""


def _cost(row: Document) -> str:
    tokens, new = (
        [integer_of(row, f"{kind}{name}") for name in ("input_tokens", "output_tokens")] for kind in ("", "new_")
    )
    if not any(tokens):
        return ""
    return f"; {tokens[0]:,} input and {tokens[1]:,} output tokens, {new[0]:,} and {new[1]:,} of them new"


def _shortened(text: str) -> str:
    return text if len(text) <= RESULT_CHARACTERS_SHOWN else text[: RESULT_CHARACTERS_SHOWN - 1] + "…"


def _show(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "answers"):
        shown = _shortened(str(row.get("result")))
        tables.line(
            f"{row['agent']}  {row['kind']} {row['name']}  {row['occurrence']}.{_arguments(row)}  {row['outcome']}: {shown}"
        )
