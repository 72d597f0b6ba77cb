"""One page about a trace: click who fails, and step through the domino round by round. It needs no network.

The page holds the picture that `pictures_svg` draws when all agents fail, the trace as columns of numbers, and a script
(`pictures_page`) that computes the rounds of any failure and redraws. The domino is that of the whole trace, also where
the picture shows a window. The same trace gives the same bytes.
"""

import json

from snapline.pictures.look import text
from snapline.pictures.page import FRAME, SCRIPT, STYLE
from snapline.pictures.scene import Scene
from snapline.pictures.svg import ARROWS_MAX, Plot, arrows_of, draw
from snapline.recovery.analysis import analyze
from snapline.recovery.decide import redecide
from snapline.recovery.trace import Trace

EVENTS_MAX = 2_000
"""Columns of the picture, which scrolls: more would make the browser slow."""

STEP_MIN, STEP_MAX = 3, 10
"""Least width of a column in pixels, for many agents and for few: each agent has an event every thirty pixels or so."""


def analysis_html(trace: Trace, *, protocol: str | None = None) -> str:
    """The page as the text of one HTML file.

    Args:
        trace: what happened.
        protocol: show the execution that this protocol would have made of it (`decide.redecide`); applying it to its
            own execution changes nothing.

    Raises:
        MisuseError: no such protocol.
    """
    if protocol is not None:
        trace, _ = redecide(trace, protocol)
    scene = Scene(trace, analyze(trace))
    window = scene.window_of(None, events_max=EVENTS_MAX)
    step_min = max(STEP_MIN, min(STEP_MAX, 30 / max(len(scene.agents), 1)))
    plot = Plot.of(scene, window, step_min=step_min)
    parts = {
        "title": "Domino, round by round" if protocol is None else f"Domino under {text(protocol)}, round by round",
        "words": f"{len(scene.agents):,} agents, {scene.events:,} events.",
        "style": STYLE,
        "svg": draw(scene, plot, is_interactive=True),
        "data": _json(_data(scene, plot)),
        "script": SCRIPT,
    }
    # By its pieces: a name in one part must not be taken for the place of another.
    pieces = FRAME.split("@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _data(scene: Scene, plot: Plot) -> dict[str, object]:
    """What the script needs; agents and messages are ordinals there, in the order of the trace and of sending."""
    messages = scene.arrows((0, scene.events - 1))
    ordinal = {agent: index for index, agent in enumerate(scene.agents)}
    sent = {message.message: index for index, message in enumerate(messages)}
    shown = arrows_of(scene, plot)[-ARROWS_MAX:]
    return {
        "trace": {
            "agents": scene.agents,
            "events": scene.events,
            "checkpoints": [scene.checkpoints[agent] for agent in scene.agents],
            "messages": [message.message for message in messages],
            "sender": [ordinal[message.sender] for message in messages],
            "sent": [message.sent for message in messages],
            "receiver": [ordinal[message.receiver] for message in messages],
            "received": [-1 if message.received is None else message.received for message in messages],
        },
        "plot": {
            "first": plot.first,
            "left": plot.left,
            "right": plot.right,
            "top": plot.top,
            "step": plot.step,
            "spacing": plot.spacing,
        },
        "arrows": [sent[arrow.message] for arrow in shown],
        "marks": [[ordinal[mark.agent], mark.number] for mark in scene.marks((plot.first, plot.last))],
    }


def _json(value: object) -> str:
    """JSON that may stand in a script element: it cannot end it, and is plain ASCII."""
    written = json.dumps(value, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
