"""Draw the recovery line of an analysed trace as a picture, and the domino effect as an interactive page.

`AnalyzedTrace` creates a scene with the position of every event and the effects of the recovery line. Time is logical: an event's
*position* is its index in `trace.events`. The events are in causal order, so every arrow points to the right. The initial checkpoints are
at position -1, before all events. Live states are drawn after all events, at the position that equals the number of events. The states of
messages relative to the recovery line are defined in `scene`, except for orphans. In these diagrams, an *orphan* is a message whose send
was undone in an earlier round of the domino effect than its receive. An orphan forces its receiver to roll back.

`analysis_html` creates a page on which readers select the agents that fail, and step through the rounds of the domino effect. The page
needs no network access. The page contains the picture for a failure of all agents, the trace as columns of numbers, and a script
(`domino.js`). For any set of failed agents, the script computes the rounds with the same algorithm as `execution.rounds` in Python, and
redraws the picture. A test checks that both implementations give the same result. The domino effect is computed for the whole trace, even
if the picture shows only part of it. The same trace always yields the same bytes.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from importlib import resources

import msgspec
from msgspec.structs import replace

from snapline.diagrams.event_history import INITIAL, PastEvents
from snapline.diagrams.scene import Arrow, Band, Front, Mark, Position, Scene, Sign, counted
from snapline.diagrams.style import LEGEND, page, picture, text
from snapline.diagrams.svg import ARROWS_MAX, Plot, draw, telling
from snapline.errors import UsageError
from snapline.recovery.execution import domino_rounds
from snapline.recovery.trace import CheckpointTaken, Recovery, Trace
from snapline.recovery.trace_analysis import Analysis, analyze, redecide

EVENTS_MAX = 400
"""Largest number of columns if no window is given. More columns would be too narrow to distinguish on a screen."""

Window = tuple[int, int]
"""The first and the last position shown, both inclusive. The window is (0, -1) for a trace without events."""


def analysis_svg(trace: Trace, analysis: Analysis, *, window: tuple[int, int] | None = None) -> str:
    """Draw the space-time diagram of an analysed trace, and return the SVG text.

    Args:
        analysis: analysis of `trace`.
        window: first position and end position (exclusive) in `trace.events`. The window is clipped to the trace. If `window` is None, the
            last `EVENTS_MAX` events are shown.

    Raises:
        UsageError: If the window contains no events of the trace.
    """
    traced = AnalyzedTrace(trace, analysis)
    return draw(traced.scene(traced.window_of(window, events_max=EVENTS_MAX)))


class AnalyzedTrace:
    """A trace and its analysis, which is computed in a single pass over the events.

    Attributes:
        agents: agents of the lanes, from top to bottom.
        failed: agents whose failure is analysed, in the order of `agents`.
        events: number of events.
        depth: number of rounds of the domino effect, not counting the initial rollback of the failed agents.
        checkpoints: for each agent, the positions of its checkpoints by checkpoint number.
        line: for each agent, the number of its checkpoint on the recovery line, or None if the agent keeps its live state.
    """

    def __init__(self, trace: Trace, analysis: Analysis) -> None:
        self._trace = trace
        self._useless = {agent: set(numbers) for agent, numbers in analysis.useless.items()}
        self._obsolete = {agent: set(numbers) for agent, numbers in analysis.obsolete.items()}
        failed = set(analysis.failed)
        self.agents = list(trace.agents)
        self.failed = [agent for agent in self.agents if agent in failed]
        self.events = len(trace.events)
        self.line = {agent: analysis.recovery_line[agent] for agent in self.agents}
        rounds = domino_rounds(trace, self.failed)
        self.depth = max(len(rounds) - 1, 0)
        self._orphans = {message: "it forced a rollback" for orphan in rounds for message in orphan.orphans}
        self._past = PastEvents("at event {}".format)
        for event in (*trace.events, Recovery(self.line)):
            self._past.add(event)
        self._front = Front("line", "recovery line", self._past.fronts[0].places if self.agents else {})
        self.checkpoints: dict[str, list[int]] = {agent: [INITIAL] for agent in self.agents}
        for position, event in enumerate(trace.events):
            if isinstance(event, CheckpointTaken):
                self.checkpoints[event.agent].append(position)

    @property
    def rolled_back(self) -> list[str]:
        """Return the agents that are rolled back instead of keeping their live states."""
        return [agent for agent, number in self.line.items() if number is not None]

    def window_of(self, wanted: tuple[int, int] | None, *, events_max: int) -> Window:
        """Return the window that starts at `wanted[0]` and ends before `wanted[1]`. If `wanted` is None, return a window of the last
        `events_max` events.

        Raises:
            UsageError: If `wanted` contains no events of the trace.
        """
        if wanted is None:
            return max(0, self.events - events_max), self.events - 1
        first, end = max(0, wanted[0]), min(self.events, wanted[1])
        if first >= end:
            raise UsageError(
                f"the window from {wanted[0]} to {wanted[1]} is empty: the trace has {self.events} events, from 0 on"
            )
        return first, end - 1

    def positions(self, agents: Collection[str]) -> list[int]:
        """Return the positions of all events of these agents."""
        chosen = frozenset(agents)
        return [position for position, event in enumerate(self._trace.events) if event.agent in chosen]

    @property
    def line_position(self) -> Mapping[str, Position]:
        """Return, for each agent, the position of its checkpoint or live state on the recovery line."""
        return self._front.places

    def marks(self, window: Window) -> Iterator[Mark]:
        """Yield the marks of the checkpoints in the window, ordered by position. If the window starts at 0, include the initial
        checkpoints."""
        initial = (Mark(agent, INITIAL, "initial", 0) for agent in (self.agents if window[0] == 0 else ()))
        for mark in (*initial, *self._past.marks(*window)):
            on_line, number = self.line[mark.agent], mark.number
            yield replace(
                mark,
                is_on_line=number == on_line,
                is_useless=number in self._useless.get(mark.agent, ()),
                is_obsolete=number in self._obsolete.get(mark.agent, ()),
            )

    def arrows(self, window: Window) -> list[Arrow]:
        """Return the arrows that lie at least partly in the window, in the order of their sends."""
        return list(self._past.arrows(*window, [self._front], self._orphans))

    def scene(self, window: Window) -> Scene:
        """Return the scene for this window."""
        first, last = window
        notes = [self._window_words(window), self.line_outside(window)]
        return Scene(
            heading=f"Recovery line when {self.failure()}",
            words=self.words(),
            agents=self.agents,
            # One more column on the left for initial checkpoints, and one on the right for live states.
            first=first - 1,
            last=last + 1,
            ticks=counted(first, last),
            axis="event",
            marks=list(self.marks(window)),
            arrows=self.arrows(window),
            fronts=[self._front] if self.agents else [],
            bands=[Band(self.line_position[agent], self.events, "undone", agent) for agent in self.rolled_back],
            signs=list(self._signs()),
            notes=[note for note in notes if note],
            values={"first": first, "last": last, "events": self.events},
        )

    def _signs(self) -> Iterator[Sign]:
        """Yield symbols for agents that fail and agents that keep their live state."""
        for agent in self.agents:
            if agent in self.failed:
                yield Sign(agent, self.events, "kill", "fails")
            elif self.line[agent] is None:
                yield Sign(agent, self.events, "alive", "keeps its live state")

    def words(self) -> str:
        """Summarize the result in one line, for headings and for readers who cannot see the picture."""
        rolled_back = len(self.rolled_back)
        initial = sum(number == 0 for number in self.line.values())
        goes = "goes" if rolled_back == 1 else "go"
        parts = [f"{rolled_back:,} of {_agents(len(self.agents))} {goes} back" if rolled_back else "no agent goes back"]
        if initial:
            parts.append(f"{initial:,} to the initial state")
        parts.append(f"domino of {self.depth:,} round{'s' * (self.depth != 1)}" if self.depth else "no domino")
        return ", ".join(parts)

    def failure(self) -> str:
        """Describe which agents fail."""
        if not self.failed:
            return "nobody fails"
        if len(self.failed) == len(self.agents):
            return "all agents fail"
        if len(self.failed) > 4:
            return f"{len(self.failed)} of {_agents(len(self.agents))} fail"
        return f"{', '.join(self.failed)} fail{'s' * (len(self.failed) == 1)}"

    def _window_words(self, window: Window) -> str:
        """Return a note that the trace has more events than the window, or an empty text if all events are shown."""
        if window == (0, self.events - 1):
            return ""
        return f"Window: events {window[0]:,} to {window[1]:,}; the trace has {self.events:,}, counted from 0."

    def line_outside(self, window: Window) -> str:
        """Return a note about agents whose checkpoint on the recovery line is outside the window, or an empty text if there are none."""
        first, last = window
        before = [agent for agent in self.agents if self.line_position[agent] < (first if first else INITIAL)]
        after = [agent for agent in self.agents if last < self.line_position[agent] < self.events]
        parts = []
        if before:
            earliest = max(0, min(self.line_position[agent] for agent in before))
            parts.append(f"before this window for {_agents(len(before))} (from event {earliest:,} on)")
        if after:
            latest = max(self.line_position[agent] for agent in after)
            parts.append(f"after this window for {_agents(len(after))} (up to event {latest:,})")
        return f"The line lies {' and '.join(parts)}." if parts else ""


def _agents(count: int) -> str:
    return f"{count:,} agent{'s' * (count != 1)}"


# -- domino, round by round --------------------------------------------------------------------------------------------


DOMINO_EVENTS_MAX = 2_000
"""Largest number of columns in the picture, which scrolls. More columns would make the browser slow."""

STEP_MIN, STEP_MAX = 3, 10
"""Limits in pixels on the smallest width of a column, for many and for few agents. Each agent then has an event about every thirty
pixels."""

UNUSED_LEGEND = ("up", "crash", "complete", "aborted", "open", "fault", "point", "healed", "coordinated", "violation")
"""Legend entries that never apply to a trace. All other entries may appear."""

DOMINO_STYLE = """button { font: inherit; padding: 2px 12px; } #status { min-height: 3em; } table { margin-top: 16px; }
.controls { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 12px 0; }
.controls output { font-weight: 600; min-width: 9em; text-align: center; } tr.moved td { background: var(--mark); }
.snapline-spacetime .agent, .snapline-spacetime .hit { cursor: pointer; }
.snapline-spacetime .agent:hover { text-decoration: underline; }
.snapline-spacetime .agent.failed { fill: var(--kill); font-weight: 600; }
.snapline-spacetime .hit { fill: transparent; } .snapline-spacetime .hit:hover { fill: #8c959f44; }
.snapline-spacetime .orphan.now { stroke-width: 3.5; }
.snapline-spacetime .band.undone.now { fill: var(--recovery); }
"""

DOMINO_CONTROLS = """<p>Click an agent's name or the end of its row to let it fail, or tick it in the table; several may fail at
once. Then step through the domino: <kbd>→</kbd> and <kbd>←</kbd> for one round, <kbd>End</kbd> and <kbd>Home</kbd> for the
last and the first.</p>
<noscript><p>Without scripts this page shows one picture: the line when all agents fail.</p></noscript>
<div class="controls">
<button type="button" id="all">All fail</button> <button type="button" id="none">Nobody fails</button>
<button type="button" id="first">First</button> <button type="button" id="back">Back</button>
<output id="round"></output>
<button type="button" id="next">Next</button> <button type="button" id="last">Last</button>
<span id="sides" hidden><button type="button" id="earlier">Earlier events</button>
<button type="button" id="later">Later events</button></span>
</div>
<p id="status" role="status"></p>"""

DOMINO_TABLE = """<table>
<caption>After this round</caption>
<thead><tr><th scope="col">fails</th><th scope="col">agent</th><th scope="col">goes back to</th>
<th scope="col">checkpoints passed over</th><th scope="col">events undone</th></tr></thead>
<tbody id="agents"></tbody>
</table>"""


def analysis_html(trace: Trace, *, protocol: str | None = None) -> str:
    """Return an HTML page about the domino effect as the text of one file.

    Args:
        protocol: protocol under which the execution is recomputed before it is shown (`trace_analysis.redecide`). If `protocol` is the
            protocol of the recorded trace, nothing changes.

    Raises:
        UsageError: If the protocol does not exist.
    """
    if protocol is not None:
        trace, _ = redecide(trace, protocol)
    traced = AnalyzedTrace(trace, analyze(trace))
    scene = msgspec.structs.replace(
        traced.scene(traced.window_of(None, events_max=DOMINO_EVENTS_MAX)),
        legend=[name for name in LEGEND if name not in UNUSED_LEGEND],
        meanings={"line": "line after this round", "message orphan": "orphan that forced a rollback"},
    )
    plot = Plot.of(scene, step_min=max(STEP_MIN, min(STEP_MAX, 30 / max(len(traced.agents), 1))))
    title = "Domino, round by round" if protocol is None else f"Domino under {text(protocol)}, round by round"
    words = f"<h1>{title}</h1>\n<p>{len(traced.agents):,} agents, {traced.events:,} events.</p>"
    svg = picture(draw(scene, plot, is_live=True))
    data = f'<script type="application/json" id="data">{_json(_data(traced, scene, plot))}</script>'
    return page(
        title=title,
        body=f"{words}\n{DOMINO_CONTROLS}\n{svg}\n{DOMINO_TABLE}\n{data}",
        style=DOMINO_STYLE,
        script=script(),
    )


def script() -> str:
    """Return the source code of the page's script."""
    return resources.files(__package__).joinpath("domino.js").read_text(encoding="utf-8")


def _data(traced: AnalyzedTrace, scene: Scene, plot: Plot) -> dict[str, object]:
    """Return the input of the page's script.

    Agents are numbered in the order of the trace, and messages in the order of their sends.
    """
    messages = traced.arrows((0, traced.events - 1))
    ordinal = {agent: index for index, agent in enumerate(traced.agents)}
    sent = {message.message: index for index, message in enumerate(messages)}
    return {
        "trace": {
            "agents": traced.agents,
            "events": traced.events,
            "checkpoints": [traced.checkpoints[agent] for agent in traced.agents],
            "messages": [message.message for message in messages],
            "sender": [ordinal[message.sender] for message in messages],
            "sent": [message.sent for message in messages],
            "receiver": [ordinal[message.receiver] for message in messages],
            "received": [message.received[0] if message.received else -1 for message in messages],
        },
        "plot": {name: getattr(plot, name) for name in ("first", "left", "right", "top", "step", "spacing")},
        "arrows": [sent[arrow.message] for arrow in telling(scene)[-ARROWS_MAX:]],
        "marks": [[ordinal[mark.agent], mark.number] for mark in scene.marks],
    }


def _json(value: object) -> str:
    """Encode a value as JSON that is safe in a script element. The text is pure ASCII and cannot close the element."""
    written = json.dumps(value, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
