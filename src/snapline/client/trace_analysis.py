"""Analysis of what a failure costs, based on a trace or on a running fleet. The results are Python objects for scripts and notebooks.

A trace is a file written by a host, another file in the same format (docs/protocols.md), or a folder of such files. The results are the
same as those printed by `snapline analyze` and `snapline recovery line`. Notebooks render the results with `_repr_html_`.
"""

import contextlib
import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from snapline.errors import TraceError, UsageError
from snapline.recovery.trace import Trace as Events
from snapline.recovery.trace import read_items, read_trace
from snapline.recovery.trace_analysis import Analysis, decide_and_analyze
from snapline.recovery.trace_merge import Merged, TracedEvent, gather, merge_traces, read_part

STANDARD_INPUT = "-"
SUFFIX = ".jsonl"
"""Extension of the trace files that hosts write."""

GZIP_MAGIC = b"\x1f\x8b"


def read_file(place: str) -> Events:
    """Read the trace from a path, or from standard input if `place` is "-". The trace may be compressed with gzip.

    Raises:
        UsageError: the trace cannot be opened.
        TraceError: the trace is malformed or contradicts itself.
    """
    with _lines(place) as lines:
        try:
            return read_trace(lines)
        except TraceError as error:
            raise TraceError(f"{name_of(place)}: {error}") from error


def merge_folder(folder: Path) -> Merged:
    """Merge all traces in `folder`, where each host has written one.

    Raises:
        UsageError: the folder contains no traces, or a file cannot be opened.
        TraceError: a trace is malformed, or the traces contradict each other.
    """
    files = {path.name: _lines_of(path) for path in _files_of(folder)}
    try:
        return merge_traces(files)
    except TraceError as error:
        raise TraceError(f"{folder}: {error}") from error


def read_merged(merged: Merged, folder: Path) -> Events:
    """Parse the trace that was merged from the files in `folder`.

    Raises:
        TraceError: the merged trace contradicts itself.
    """
    try:
        return read_trace(merged.lines())
    except TraceError as error:
        raise TraceError(f"{folder}, merged: {error}") from error


def read_trace_events(place: Path) -> list[TracedEvent]:
    """Return all events in a trace file or in a folder of traces, with hosts, times and markers.

    Raises:
        UsageError: `place` cannot be opened, or the folder has no traces.
        TraceError: a trace is malformed or contradicts itself.
    """
    if not place.is_dir():
        with _lines(str(place)) as lines:
            try:
                return [TracedEvent(item) for item in read_items(lines)]
            except TraceError as error:
                raise TraceError(f"{place}: {error}") from error
    files = _files_of(place)
    try:
        return gather([read_part(path.name, path.name.split(".")[0], _lines_of(path)) for path in files])
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from error


def _files_of(folder: Path) -> list[Path]:
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise UsageError(f"{folder} has no traces (*{SUFFIX}): name the folder that the hosts traced into")
    return files


def name_of(place: str) -> str:
    """Return the name of `place` for messages to users."""
    return "standard input" if place == STANDARD_INPUT else place


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. The file is opened only when the first line is requested."""
    with _lines(str(path)) as lines:
        yield from lines


@contextlib.contextmanager
def _lines(place: str) -> Iterator[Iterable[bytes]]:
    """Context manager that yields an iterable of the decompressed lines at `place`. Read errors are raised as snapline errors."""
    with contextlib.ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if place == STANDARD_INPUT else stack.enter_context(open(place, "rb"))
            first_line = stream.readline()
            lines: Iterable[bytes] = itertools.chain([first_line], stream)
            if first_line.startswith(GZIP_MAGIC):
                lines = gzip.GzipFile(fileobj=io.BytesIO(first_line + stream.read()))
            yield lines
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{name_of(place)} cannot be unpacked: {error}") from error
        except OSError as error:
            raise UsageError(f"{name_of(place)} cannot be read: {error.strerror or error}") from error


class RecoveryLine(Mapping[str, object]):
    """The fleet's recovery line after some agents have failed. The object is a mapping with the same content as the document that
    `snapline recovery line -o json` prints.

    Attributes:
        failed: ids of the agents that fail. The entry `host:h1` stands for all agents of host `h1`. The list is empty if all agents fail.
        agents: agent → number of the epoch or checkpoint to which the agent rolls back, or None if the agent keeps its live state.
    """

    def __init__(self, document: Mapping[str, object]) -> None:
        self._document = dict(document)
        self.failed = [str(name) for name in _items(document.get("failed"))]
        self.agents = cast("dict[str, int | None]", document.get("recovery_line") or {})

    def __getitem__(self, name: str) -> object:
        return self._document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __repr__(self) -> str:
        return f"<RecoveryLine: {self._back()} of {len(self.agents)} agents go back if {self._who()}>"

    def _repr_html_(self) -> str:
        from snapline.agent_runtime.snapshots.snapshot_cut import heading, table

        back = sorted(self.agents.items(), key=lambda one: one[1] is None)  # agents that roll back come first
        rows = [(agent, "keeps its live state" if to is None else to, *self._costs(agent)) for agent, to in back]
        columns = (
            ("agent", "goes back to", *_COSTS)
            if isinstance(self.get("rollback"), Mapping)
            else ("agent", "goes back to")
        )
        return heading(f"{self._back():,} of {len(self.agents):,} agents go back if {self._who()}") + table(
            columns, rows
        )

    def _back(self) -> int:
        return sum(to is not None for to in self.agents.values())

    def _who(self) -> str:
        return f"{', '.join(self.failed)} fail" if self.failed else "all fail"

    def _costs(self, agent: str) -> list[object]:
        rollback = self.get("rollback")
        cost = rollback.get(agent, {}) if isinstance(rollback, Mapping) else {}
        undone_count = cost.get("turns", cost.get("events", ""))
        return [cost.get("checkpoints", ""), undone_count] if isinstance(rollback, Mapping) else []


_COSTS = ("checkpoints passed over", "undone")


class DominoReport:
    """The result of `snapline analyze` for one failure in a trace.

    Attributes:
        failed: ids of the agents that fail.
        line: the recovery line.
        rolled_back: number of agents that roll back, including the failed ones.
        depth: number of rounds after the first in which further agents had to roll back, so 0 means no domino effect.
        reached_initial: agents that roll back to their initial state.
        in_transit: messages sent before the recovery line and received after it.
        useless: for each agent, the checkpoints that lie on no consistent cut.
        obsolete: for each agent, the checkpoints that no later recovery needs.
        forced: checkpoints that the checkpointing protocol forced agents to take.
    """

    def __init__(self, execution: Events, analysis: Analysis) -> None:
        self._execution, self._analysis = execution, analysis
        self.failed, self.in_transit = analysis.failed, analysis.in_transit
        self.useless, self.obsolete = analysis.useless, analysis.obsolete
        self.rolled_back, self.depth = analysis.domino.rolled_back, analysis.domino.depth
        self.reached_initial = analysis.domino.reached_initial
        self.forced = analysis.checkpoints.forced
        self.line = RecoveryLine(msgspec.to_builtins(analysis))

    def svg(self) -> str:
        """Return a space-time diagram of the execution and its recovery line, as SVG text."""
        from snapline.diagrams.trace_diagrams import analysis_svg

        return analysis_svg(self._execution, self._analysis)

    def page(self) -> str:
        """Return an HTML page that shows, step by step, the domino effect of any failure."""
        from snapline.diagrams.trace_diagrams import analysis_html

        return analysis_html(self._execution)

    def __repr__(self) -> str:
        return f"<DominoReport: {self.rolled_back} of {len(self.line.agents)} agents go back, depth {self.depth}>"

    def _repr_html_(self) -> str:
        from snapline.diagrams.style import picture

        return f"{picture(self.svg())}{self.line._repr_html_()}"


class Trace:
    """A recorded execution of a fleet, from `snapline run --trace` or from another source in the same format. `open_trace` creates it.

    Attributes:
        agents: all agents, in the order in which the trace lists them.
        omitted: agents whose last events are missing because a host's trace ends too early, each with the missing message.
    """

    def __init__(self, execution: Events, omitted: Mapping[str, str]) -> None:
        self._execution = execution
        self.agents = list(execution.agents)
        self.omitted = dict(omitted)

    def __len__(self) -> int:
        return len(self._execution.events)

    def domino(self, failed: Iterable[str] | None = None, *, protocol: str | None = None) -> DominoReport:
        """Compute what a failure of these agents would have cost.

        Args:
            failed: ids of the agents assumed to fail. None means all agents.
            protocol: name of a checkpointing protocol. In the analysis, the checkpoints that this protocol would have forced replace the
                forced checkpoints in the trace. The value "none" removes all forced checkpoints.

        Raises:
            UsageError: an agent is not in the trace, or the protocol does not exist.
        """
        return DominoReport(*decide_and_analyze(self._execution, None if failed is None else list(failed), protocol))

    def __repr__(self) -> str:
        return f"<Trace: {len(self.agents)} agents, {len(self)} events>"

    def _repr_html_(self) -> str:
        from snapline.diagrams.style import picture

        return picture(self.domino().svg())


def open_trace(place: str | os.PathLike[str]) -> Trace:
    """Read a trace from a file, optionally compressed with gzip, or from a folder of traces.

    Raises:
        UsageError: the trace cannot be opened, or the folder contains no trace.
        TraceError: the trace is malformed or contradicts itself.
    """
    path = Path(place)
    if not path.is_dir():
        return Trace(read_file(os.fspath(path)), {})
    merged = merge_folder(path)
    return Trace(read_merged(merged, path), merged.omitted)


def _items(value: Any) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
