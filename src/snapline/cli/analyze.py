"""`snapline analyze` computes the cost that a failure would have had in a traced execution."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import DocumentTables, OutputFormat, count, document
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.cli.output import Printer
    from snapline.recovery.trace import Trace
    from snapline.recovery.trace_analysis import Analysis

DIAGRAM_WIDTH = 100
"""Number of columns of a diagram that is not printed to a terminal."""

AGENTS_SHOWN_MAX = 50
"""Largest number of rows in the table and in the diagram. JSON contains all rows."""

NUMBERS_SHOWN_MAX = 8
"""Largest number of checkpoints or events listed in one table cell. A domino effect may have thousands."""


@dataclass(frozen=True)
class DiagramOptions:
    """Options for diagrams of the execution: the output files and the range of events."""

    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="File for the space-time diagram (SVG).")
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="File for a page that shows the domino effect of a chosen failure step by step.",
        ),
    ] = None
    from_event: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="N",
            help="First event of the SVG, counted from 0 in the surviving execution.",
            show_default=False,
        ),
    ] = None
    to_event: Annotated[
        int | None,
        typer.Option("--to", min=0, metavar="N", help="Event before which the SVG ends.", show_default=False),
    ] = None

    def window(self, events: int) -> tuple[int, int] | None:
        """Return the positions of the first event to draw and of the event after the last, or None to let the diagram choose.

        Raises:
            UsageError: If the range of events is empty, or no SVG is requested.
        """
        if self.from_event is None and self.to_event is None:
            return None
        if self.svg is None:
            raise UsageError("--from and --to are the window of the picture: give --svg FILE as well")
        first, end = self.from_event or 0, events if self.to_event is None else min(self.to_event, events)
        if first >= end:
            raise UsageError(f"--from {first} --to {end} is an empty window: the execution has {events} events")
        return first, end


@command
def analyze(
    display: Display,
    pictures: DiagramOptions,
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="JSON Lines, optionally compressed with gzip; a folder of hosts' traces (*.jsonl); - is standard input.",
        ),
    ],
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="A,B", help="Agents that fail.", show_default="all")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="Drop the forced checkpoints of the trace, and let this protocol decide them again: bcs, hmnr, fdas, fdi, "
            "bhmr, nras, cbr, cas; none (or uncoordinated) just drops them.",
            show_default="as traced",
        ),
    ] = None,
    merged: Annotated[
        Path | None,
        typer.Option("--merged", metavar="FILE", help="File for the merged trace of a folder."),
    ] = None,
) -> None:
    """Analyse a trace: recovery line, domino effect, useless and obsolete checkpoints.

    Shows what the failure of some agents would cost at the end of one traced execution; no fleet is called. With --protocol a forced
    checkpoint precedes the receive that forces it (`cas`: follows each send), and all results describe that execution. On a terminal it
    prints a summary, a line per agent and a diagram.

    A folder must have the files of all hosts since the fleet's first start. The merged trace keeps each host's order; wall-clock times
    decide the rest. Messages get names such as `a/2>b:5`: the fifth from `a` to `b`, sent under plan 2. Checkpoints of coordinated
    epochs are `basic`; one that could not be saved equals the one before it. Events lost with the last 50 ms of a killed host are
    omitted with their consequences; a warning names the agents if no recovery undid them yet. Traces of every N-th message describe
    these messages alone; their line may be newer than the fleet's.

    Exit codes: 0: whatever the line is. 2: the trace cannot be opened. 6: the trace is invalid or contradicts itself, or a file is missing.
    """
    from snapline.recovery.trace_analysis import decide_and_analyze

    printer = display.printer()
    traced = read_folder(Path(trace), printer, merged) if is_folder(trace, merged) else read(trace)
    execution, analysis = decide_and_analyze(traced, parse_names(failed), protocol)
    window = pictures.window(len(execution.events))
    diagram = _diagram(execution, analysis) if printer.format is OutputFormat.TABLE else ""
    printer.result(_document(analysis), lambda _, tables: _show(analysis, tables, diagram))
    for path in _draw(pictures, window, execution, analysis, protocol):
        printer.progress(f"wrote {path}")


def parse_names(failed: str | None) -> list[str] | None:
    """Split `"a, b"` into `["a", "b"]`. If `failed` is None, return None, which means all agents.

    Raises:
        UsageError: If a name is empty.
    """
    if failed is None or not failed.strip():
        return None
    names = [name.strip() for name in failed.split(",")]
    if not all(names):
        raise UsageError(f"--failed {failed!r} has an empty name: write --failed A,B")
    return names


def read(place: str) -> "Trace":
    """Read the trace at `place`, which is a path, or "-" for standard input.

    Raises:
        UsageError: If the file cannot be opened.
        TraceError: If the trace is unreadable or inconsistent.
    """
    from snapline.client.trace_analysis import read_file

    return read_file(place)


def is_folder(place: str, merged: Path | None) -> bool:
    """Return whether `place` is a folder, in which case it contains the hosts' traces.

    Raises:
        UsageError: If `merged` is given but `place` is not a folder.
    """
    from snapline.client.trace_analysis import STANDARD_INPUT, name_of

    is_directory = place != STANDARD_INPUT and Path(place).is_dir()
    if merged is not None and not is_directory:
        raise UsageError(f"--merged writes what the traces of a folder make, and {name_of(place)} is no folder")
    return is_directory


def read_folder(folder: Path, printer: "Printer", merged: Path | None = None) -> "Trace":
    """Merge the hosts' traces in `folder`. If `merged` is given, also write the merged trace to this path.

    Raises:
        UsageError: If the folder has no traces, or a file cannot be opened or written.
        TraceError: If a trace is unreadable, or traces contradict each other.
    """
    from snapline.client.trace_analysis import SUFFIX, merge_folder, read_merged

    if merged is not None and merged.suffix == SUFFIX and merged.absolute().parent == folder.absolute():
        raise UsageError(f"--merged {merged} would be one of the traces of {folder}: write it elsewhere")
    merge = merge_folder(folder)
    if merged is not None:
        printer.progress(f"wrote {_write(merged, b''.join(merge.lines()).decode())}")
    if merge.omitted:
        agents = _some([f"{agent} (from {message} on)" for agent, message in merge.omitted.items()])
        printer.warning(f"the traces end before they say who sent some messages; left out: the end of {agents}")
    return read_merged(merge, folder)


def _document(analysis: "Analysis") -> dict[str, object]:
    import msgspec

    return document("TraceAnalysis", **msgspec.to_builtins(analysis))


def _diagram(execution: "Trace", analysis: "Analysis") -> str:
    from snapline.diagrams.text import analysis_text

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else DIAGRAM_WIDTH
    return analysis_text(execution, analysis, width=width, agents_max=AGENTS_SHOWN_MAX)


def _draw(
    pictures: DiagramOptions,
    window: tuple[int, int] | None,
    execution: "Trace",
    analysis: "Analysis",
    protocol: str | None,
) -> Iterator[Path]:
    if pictures.svg is None and pictures.html is None:
        return
    from snapline.diagrams.trace_diagrams import analysis_html, analysis_svg

    if pictures.svg is not None:
        yield _write(pictures.svg, analysis_svg(execution, analysis, window=window))
    if pictures.html is not None:
        # The protocol has already been applied to the execution. Applying it again gives the same result.
        yield _write(pictures.html, analysis_html(execution, protocol=protocol))


def _write(path: Path, content: str) -> Path:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


# -- the report ---------------------------------------------------------------------------------------------------------


def _show(analysis: "Analysis", tables: DocumentTables, diagram: str) -> None:
    agents, domino = analysis.agents, analysis.domino
    tables.fields(
        [
            ("failed", "all agents" if len(analysis.failed) == len(agents) else _some(analysis.failed)),
            ("go back", f"{domino.rolled_back} of {count(len(agents), 'agent')}"),
            ("to the initial state", _some(domino.reached_initial) or "none"),
            ("domino depth", domino.depth),
            ("messages in transit", len(analysis.in_transit)),
            ("checkpoints", f"{analysis.checkpoints.basic} basic, {analysis.checkpoints.forced} forced"),
            ("useless", sum(map(len, analysis.useless.values()))),
            ("obsolete", sum(map(len, analysis.obsolete.values()))),
        ]
    )
    tables.line()
    columns = ["AGENT", "LINE", "CHECKPOINTS PASSED", "EVENTS UNDONE", "USELESS", "OBSOLETE"]
    if isinstance(analysis.forced, dict):
        columns.append("FORCED AT")
    tables.table(columns, [_row(analysis, agent)[: len(columns)] for agent in agents[:AGENTS_SHOWN_MAX]])
    if len(agents) > AGENTS_SHOWN_MAX:
        tables.line(f"… and {count(len(agents) - AGENTS_SHOWN_MAX, 'more agent')}: -o json has all")
    tables.line()
    tables.line(diagram.rstrip("\n"))


def _row(analysis: "Analysis", agent: str) -> list[object]:
    number = analysis.recovery_line[agent]
    lost = analysis.rollback.get(agent)
    return [
        agent,
        "live state" if number is None else f"{number} (initial)" if number == 0 else str(number),
        lost.checkpoints if lost else "",
        lost.events if lost else "",
        _some(analysis.useless.get(agent, [])),
        _some(analysis.obsolete.get(agent, [])),
        _some(analysis.forced.get(agent, [])) if isinstance(analysis.forced, dict) else "",
    ]


def _some(items: Sequence[object]) -> str:
    """List all items as in `1, 2, 3`. If there are too many, list the first items and the number of remaining items."""
    shown = ", ".join(map(str, items[:NUMBERS_SHOWN_MAX]))
    return shown if len(items) <= NUMBERS_SHOWN_MAX else f"{shown} and {len(items) - NUMBERS_SHOWN_MAX:,} more"
