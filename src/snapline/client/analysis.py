"""Cost of a failure in a trace or a running fleet, as objects for scripts and notebooks.

The results equal those of `snapline analyze` and `snapline recovery line`; notebooks render them with `_repr_html_`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from snapline.client.trace_files import merge_folder, read_file, read_merged
from snapline.recovery.trace import Trace as Events
from snapline.recovery.trace_analysis import Analysis, decide_and_analyze


class RecoveryLine(Mapping[str, object]):
    """Recovery line of the fleet after some failures: the document that `snapline recovery line -o json` prints, as a mapping.

    Attributes:
        failed: agents, or `host:h1`; empty: all agents fail.
        agents: agent → number of the epoch or checkpoint that it returns to; None if it keeps its live state.
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
        from snapline.agent_runtime.snapshots.html import heading, table

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
    """Result of `snapline analyze` for one failure in a trace.

    Attributes:
        failed: agents that fail.
        line: the recovery line.
        rolled_back: number of agents that roll back, including the failed ones.
        depth: number of further rounds in which some agent had to roll back; 0: no domino effect.
        reached_initial: agents that return to their initial states.
        in_transit: messages sent inside the line and received outside of it.
        useless: agent → checkpoints that are on no consistent cut.
        obsolete: agent → checkpoints that no later recovery needs.
        forced: checkpoints that a protocol forced.
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
        """Return the space-time diagram with the line, as the text of an SVG file."""
        from snapline.diagrams.trace_diagrams import analysis_svg

        return analysis_svg(self._execution, self._analysis)

    def page(self) -> str:
        """Return an HTML page that steps through the domino effect, for any failure."""
        from snapline.diagrams.trace_diagrams import analysis_html

        return analysis_html(self._execution)

    def __repr__(self) -> str:
        return f"<DominoReport: {self.rolled_back} of {len(self.line.agents)} agents go back, depth {self.depth}>"

    def _repr_html_(self) -> str:
        from snapline.diagrams.style import picture

        return f"{picture(self.svg())}{self.line._repr_html_()}"


class Trace:
    """An execution traced by hosts (`snapline run --trace`), or written in the same format; made by `open_trace`.

    Attributes:
        agents: all agents, in the order of the trace.
        left_out: agents whose last events are unknown, since a host's trace ends early → the missing message.
    """

    def __init__(self, execution: Events, omitted: Mapping[str, str]) -> None:
        self._execution = execution
        self.agents = list(execution.agents)
        self.omitted = dict(omitted)

    def __len__(self) -> int:
        return len(self._execution.events)

    def domino(self, failed: Iterable[str] | None = None, *, protocol: str | None = None) -> DominoReport:
        """Analyse what these failures would have cost.

        Args:
            failed: agents; None: all.
            protocol: drop forced checkpoints and let this protocol decide; "none" just drops them.

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
    """Read a trace: a file, possibly compressed with gzip, or the folder of a fleet's traces.

    Raises:
        UsageError: it cannot be opened, or the folder contains no trace.
        TraceError: it cannot be read, or contradicts itself.
    """
    path = Path(place)
    if not path.is_dir():
        return Trace(read_file(os.fspath(path)), {})
    merged = merge_folder(path)
    return Trace(read_merged(merged, path), merged.omitted)


def _items(value: Any) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
