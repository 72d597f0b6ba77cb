"""One page about a trace: click the agents that fail, and step through the domino round by round. It needs no network.

The page holds the picture for the failure of all agents, the trace as columns of numbers, and a script (`domino.js`). The script
computes the rounds of any failure like `lines.rounds` in Python, and redraws; a test compares both. The domino is that of
the whole trace, even if the picture shows a window. The same trace gives the same bytes.
"""

import json
from importlib import resources

import msgspec

from snapline.diagrams.analyzed_trace import AnalyzedTrace
from snapline.diagrams.scene import Scene
from snapline.diagrams.style import LEGEND, page, picture, text
from snapline.diagrams.svg import ARROWS_MAX, Plot, draw, telling
from snapline.recovery.trace import Trace
from snapline.recovery.trace_analysis import analyze, redecide

DOMINO_EVENTS_MAX = 2_000
"""Largest number of columns of the picture, which scrolls: more would make the browser slow."""

STEP_MIN, STEP_MAX = 3, 10
"""Least width of a column in pixels, for many and for few agents: each agent has an event about every thirty pixels."""

UNUSED_LEGEND = ("up", "crash", "complete", "aborted", "open", "fault", "point", "healed", "coordinated", "violation")
"""Legend entries that a trace never contains; all others may appear."""

STYLE = """button { font: inherit; padding: 2px 12px; } #status { min-height: 3em; } table { margin-top: 16px; }
.controls { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 12px 0; }
.controls output { font-weight: 600; min-width: 9em; text-align: center; } tr.moved td { background: var(--mark); }
.snapline-spacetime .agent, .snapline-spacetime .hit { cursor: pointer; }
.snapline-spacetime .agent:hover { text-decoration: underline; }
.snapline-spacetime .agent.failed { fill: var(--kill); font-weight: 600; }
.snapline-spacetime .hit { fill: transparent; } .snapline-spacetime .hit:hover { fill: #8c959f44; }
.snapline-spacetime .orphan.now { stroke-width: 3.5; }
.snapline-spacetime .band.undone.now { fill: var(--recovery); }
"""

CONTROLS = """<p>Click an agent's name or the end of its row to let it fail, or tick it in the table; several may fail at
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

TABLE = """<table>
<caption>After this round</caption>
<thead><tr><th scope="col">fails</th><th scope="col">agent</th><th scope="col">goes back to</th>
<th scope="col">checkpoints passed over</th><th scope="col">events undone</th></tr></thead>
<tbody id="agents"></tbody>
</table>"""


def analysis_html(trace: Trace, *, protocol: str | None = None) -> str:
    """Return the page as the text of one HTML file.

    Args:
        trace: the execution.
        protocol: show the execution that this protocol would have made of it (`decide.redecide`); applying it to its
            own execution changes nothing.

    Raises:
        UsageError: the protocol does not exist.
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
    return page(title=title, body=f"{words}\n{CONTROLS}\n{svg}\n{TABLE}\n{data}", style=STYLE, script=script())


def script() -> str:
    """Return the script that runs in the page."""
    return resources.files(__package__).joinpath("domino.js").read_text(encoding="utf-8")


def _data(traced: AnalyzedTrace, scene: Scene, plot: Plot) -> dict[str, object]:
    """Return the script's input; agents and messages are ordinals there, in the order of the trace and of sending."""
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
    """Return JSON that is safe in a script element: plain ASCII that cannot close the element."""
    written = json.dumps(value, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
