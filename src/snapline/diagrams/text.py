"""Draw an analysed trace as a text diagram for a terminal.

    a [0]-[1]|..2>..............X
    b [0]-----------[1]--!>2....X

The picture has one row per agent, and logical time runs to the right. A receive is always to the right of its send, and no event is to the
left of an event that precedes it in the trace. Events in the same column are causally independent. `|` marks the recovery line, and dots
mark undone events. The same input always yields the same text.
"""

import textwrap
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import msgspec

from snapline.diagrams.scene import Arrow, Mark, State
from snapline.diagrams.style import clean
from snapline.diagrams.trace_diagrams import AnalyzedTrace, Window
from snapline.recovery.trace import Trace
from snapline.recovery.trace_analysis import Analysis

WIDTH_MIN = 40
"""Smallest width in characters. A narrower picture would show only a few events."""

NAME_MAX = 16

LABEL_MAX = 3
"""Longest message id, in characters. If an id is longer, numbers replace the ids."""

LISTED_MAX = 12
"""Largest number of messages of each kind that are listed under the picture."""

NO_BREAK = "\u00a0"

SHAFTS: dict[State, str] = {"in-transit": "~", "orphan": "!", "ordinary": "", "undone": ""}


class _Step(msgspec.Struct, frozen=True, gc=False):
    """An event in the diagram: a checkpoint, a send or a receive."""

    agent: str
    position: int
    mark: Mark | None = None
    arrow: Arrow | None = None


class _Cell(msgspec.Struct, frozen=True, gc=False):
    """The characters that represent an event, and the column of the first of these characters."""

    step: _Step
    column: int
    text: str


class _Layout(msgspec.Struct, frozen=True):
    """Layout of the events in a window.

    Attributes:
        cells: the cells of each agent, from left to right.
        width: number of columns.
        labels: short name of each message.
        has_start: whether the initial checkpoints are shown.
    """

    cells: dict[str, list[_Cell]]
    width: int
    labels: dict[str, str]
    has_start: bool


def analysis_text(trace: Trace, analysis: Analysis, *, width: int = 100, agents_max: int = 50) -> str:
    """Draw an analysed trace as a text diagram with a legend below it.

    If the trace is too wide, only its last events are shown. If the recovery line lies before all of these events, the events around the
    line are shown instead.

    Args:
        analysis: analysis of `trace`.
        width: number of characters in a row; at least `WIDTH_MIN`.
        agents_max: maximum number of rows. Agents that are rolled back take precedence.
    """
    traced = AnalyzedTrace(trace, analysis)
    agents = _choose(traced, agents_max)
    names = {agent: _name(agent) for agent in agents}
    margin = max((_width_of(name) for name in names.values()), default=0) + 1
    width = max(width, WIDTH_MIN)
    layout, window = _fit(traced, agents, width - margin - 2)
    rows = [*_wrapped([f"Recovery line when {traced.failure()}: {traced.words()}."], width), ""]
    for agent in agents:
        row = _row(traced, agent, layout, window)
        rows.append(f"{names[agent]}{' ' * (margin - _width_of(names[agent]))}{row}")
    notes = _notes(traced, agents, layout, window)
    return "\n".join([*rows, "", *_wrapped(notes, width)]) + "\n"


def _choose(traced: AnalyzedTrace, agents_max: int) -> list[str]:
    """Return the agents that are shown, in the order of the trace's agents."""
    if len(traced.agents) <= agents_max:
        return traced.agents
    back = set(traced.rolled_back)
    chosen = set(sorted(traced.agents, key=lambda agent: agent not in back)[:agents_max])
    return [agent for agent in traced.agents if agent in chosen]


def _name(agent: str) -> str:
    name = clean(agent)
    return name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "~"


def _width_of(name: str) -> int:
    """Return the number of terminal columns that a text occupies. Some characters occupy two columns, and combining accents occupy none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in name
    )


# -- which events ------------------------------------------------------------------------------------------------------


def _fit(traced: AnalyzedTrace, agents: Sequence[str], columns: int) -> tuple[_Layout, Window]:
    """Find the largest number of events that fit into `columns`. Return the layout of these events and their window."""
    positions = traced.positions(agents)
    # A row can have at most one event in every three columns.
    reach = max(1, len(agents)) * columns // 3
    steps = _steps(traced, positions[-reach:])
    if len(steps) == len(positions) and (complete := _arrange(agents, steps, has_start=True)).width <= columns:
        return complete, (0, traced.events - 1)
    count = _largest_fitting(len(steps), lambda count: _arrange(agents, steps[-count:]).width <= columns)
    first = steps[-count].position
    latest = max((traced.line_position[agent] for agent in agents if traced.line[agent] is not None), default=first)
    if latest >= first:
        return _arrange(agents, steps[-count:]), (first, traced.events - 1)
    start = max(0, bisect_left(positions, latest) - count // 3)
    steps = _steps(traced, positions[start : start + reach])
    has_start = start == 0
    count = _largest_fitting(
        len(steps), lambda count: _arrange(agents, steps[:count], has_start=has_start).width <= columns
    )
    window = (0 if has_start else steps[0].position, steps[count - 1].position)
    return _arrange(agents, steps[:count], has_start=has_start), window


def _largest_fitting(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to `limit` that fits. `fits` must be monotonic and true for 1."""
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _steps(traced: AnalyzedTrace, positions: Sequence[int]) -> list[_Step]:
    """Return the events at these positions."""
    if not positions:
        return []
    window = (positions[0], positions[-1])
    steps = {int(mark.place): _Step(mark.agent, int(mark.place), mark=mark) for mark in traced.marks(window)}
    for arrow in traced.arrows(window):
        for agent, position in (
            (arrow.sender, arrow.sent),
            *((arrow.receiver, received) for received in arrow.received),
        ):
            if position is not None:
                steps[int(position)] = _Step(agent, int(position), arrow=arrow)
    return [steps[position] for position in positions]


# -- layout -----------------------------------------------------------------------------------------------------------


def _arrange(agents: Sequence[str], steps: Sequence[_Step], *, has_start: bool = False) -> _Layout:
    """Place each event in the leftmost column that the rules of this module allow. If `has_start` is set, reserve space for the initial
    checkpoints."""
    labels = _labels(steps)
    # This leaves space for the initial checkpoint, or for a recovery line further to the left.
    free = dict.fromkeys(agents, 4 if has_start else 1)
    sent: dict[str, int] = {}
    cells: dict[str, list[_Cell]] = {agent: [] for agent in agents}
    column = 0
    for step in steps:
        column = max(column, free[step.agent])
        if step.arrow is not None and step.position in step.arrow.received:
            column = max(column, sent.get(step.arrow.message, -1) + 1)
        label = _words(step, labels)
        cells[step.agent].append(_Cell(step, column, label))
        # One character between two events leaves space for the recovery line.
        free[step.agent] = column + len(label) + 1
        if step.arrow is not None and step.position == step.arrow.sent:
            sent[step.arrow.message] = column + len(label) - 1
    return _Layout(cells=cells, width=max(free.values(), default=0), labels=labels, has_start=has_start)


def _labels(steps: Sequence[_Step]) -> dict[str, str]:
    """Return the label of each message: its id if all ids are short and consist of plain characters, otherwise a number in the order of the
    messages' first events."""
    messages = list(dict.fromkeys(step.arrow.message for step in steps if step.arrow is not None))
    if all(len(message) <= LABEL_MAX and message.isascii() and message.isalnum() for message in messages):
        return {message: message for message in messages}
    return {message: str(number) for number, message in enumerate(messages, 1)}


def _words(step: _Step, labels: dict[str, str]) -> str:
    if step.mark is not None:
        inside = f"{step.mark.number}{'x' * step.mark.is_useless}"
        return f"({inside})" if step.mark.kind == "forced" else f"[{inside}]"
    assert step.arrow is not None
    label, shaft = labels[step.arrow.message], SHAFTS[step.arrow.state]
    return f"{label}{shaft}>" if step.position == step.arrow.sent else f"{shaft}>{label}"


def _row(traced: AnalyzedTrace, agent: str, layout: _Layout, window: Window) -> str:
    """Return the row of an agent: its events, the recovery line, and dots for the undone part."""
    turn = traced.line_position[agent]
    row = "[0]" if layout.has_start else ""
    is_undone = turn < window[0]
    if is_undone:
        row += "|"
    for cell in layout.cells[agent]:
        row = row.ljust(cell.column, "." if is_undone else "-") + cell.text
        if cell.step.position == turn:
            row, is_undone = row + "|", True
    row = row.ljust(layout.width, "." if is_undone else "-")
    if window[1] < traced.events - 1:
        return row
    return row + ("X" if agent in traced.failed else "|" if turn == traced.events else "")


# -- notes and legend --------------------------------------------------------------------------------------------------


def _notes(traced: AnalyzedTrace, agents: Sequence[str], layout: _Layout, window: Window) -> list[str]:
    steps = [cell.step for cells in layout.cells.values() for cell in cells]
    arrows = {step.arrow.message: step.arrow for step in steps if step.arrow is not None}
    by_send = sorted(arrows.values(), key=lambda arrow: arrow.sent or 0)
    notes = ["   ".join(entry.replace(" ", NO_BREAK) for entry in _legend(traced, steps, by_send))]
    for state, words in (("in-transit", "in transit"), ("orphan", "orphans that forced rollbacks")):
        listed = [_listed(arrow, layout) for arrow in by_send if arrow.state == state]
        if listed:
            more = f" and {len(listed) - LISTED_MAX} more" if len(listed) > LISTED_MAX else ""
            notes.append(f"{words}: {', '.join(listed[:LISTED_MAX])}{more}")
    if window != (0, traced.events - 1):
        notes.append(f"events {window[0]:,} to {window[1]:,} of {traced.events:,}, counted from 0")
        notes.append(traced.line_outside(window))
    if len(agents) < len(traced.agents):
        notes.append(f"{len(agents):,} of {len(traced.agents):,} agents shown")
    return [_capital(note) for note in notes if note]


def _legend(traced: AnalyzedTrace, steps: Sequence[_Step], arrows: Iterable[Arrow]) -> list[str]:
    """Return the legend entries that occur in the picture."""
    marks = [step.mark for step in steps if step.mark is not None]
    states = {arrow.state for arrow in arrows}
    entries = [
        ("[n] checkpoint n", True),
        ("(n) forced", any(mark.kind == "forced" for mark in marks)),
        ("[nx] useless", any(mark.is_useless for mark in marks)),
        ("m> sends m", bool(states)),
        (">m receives m", any(step.arrow is not None and step.position in step.arrow.received for step in steps)),
        ("~> in transit", "in-transit" in states),
        ("!> orphan", "orphan" in states),
        ("| recovery line", True),
        ("... undone", bool(traced.rolled_back)),
        ("X fails", bool(traced.failed)),
    ]
    return [words for words, does_occur in entries if does_occur]


def _listed(arrow: Arrow, layout: _Layout) -> str:
    label, message = layout.labels[arrow.message], clean(arrow.message)
    return message if label == message else f"{label} ({message})"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _wrapped(notes: Iterable[str], width: int) -> list[str]:
    lines = [line for note in notes for line in textwrap.wrap(note, width, subsequent_indent="  ")]
    return [line.replace(NO_BREAK, " ") for line in lines]
