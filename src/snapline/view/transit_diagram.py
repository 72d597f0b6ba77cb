"""Picture of the messages in transit: the agents of a cut in a circle, an arrow for each channel that holds messages."""

import math
from collections.abc import Mapping

from snapline.view.markup import Markup, tag
from snapline.view.number_format import plural

AGENTS_MAX = 32
"""Largest number of agents in one circle: more are unreadable."""

RADIUS, MARGIN, NODE = 150.0, 110.0, 5.0
CURVE = 0.16
"""Bend of an arrow, as a fraction of its length, so that the opposite arrow does not cover it."""


def cut_picture(counts: Mapping[tuple[str, str], int]) -> Markup | None:
    """Draw the picture from (sender, receiver) → number of messages; None if there are too many agents, or no messages in transit."""
    agents = sorted({agent for channel in counts for agent in channel})
    if not 2 <= len(agents) <= AGENTS_MAX:
        return None
    positions = {agent: _place(number, len(agents)) for number, agent in enumerate(agents)}
    arrows = [
        _arrow(channel, messages, max(counts.values()), positions) for channel, messages in sorted(counts.items())
    ]
    nodes = [_node(agent, *positions[agent]) for agent in agents]
    head = tag(
        "marker",
        tag("path", d="M0 0L8 4L0 8z"),
        id="head",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=6,
        markerHeight=6,
        orient="auto",
    )
    width, height = 2 * (RADIUS + MARGIN), 2 * RADIUS + 60
    label = f"{plural(sum(counts.values()), 'message')} in transit in {plural(len(counts), 'channel')}"
    box = f"{-width / 2:g} {-height / 2:g} {width:g} {height:g}"
    return tag("svg", tag("defs", head), arrows, nodes, class_="cut", viewBox=box, role="img", aria_label=label)


def _place(number: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * number / count - math.pi / 2
    return RADIUS * math.cos(angle), RADIUS * math.sin(angle)


def _arrow(channel: tuple[str, str], many: int, most: int, places: Mapping[str, tuple[float, float]]) -> Markup:
    (x1, y1), (x2, y2) = places[channel[0]], places[channel[1]]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    bend_x, bend_y = (x1 + x2) / 2 - along_y * CURVE * length, (y1 + y2) / 2 + along_x * CURVE * length
    end_x, end_y = x2 - along_x * 2 * NODE, y2 - along_y * 2 * NODE
    label = f"{channel[0]} → {channel[1]}: {plural(many, 'message')}"
    path = f"M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {end_x:.1f} {end_y:.1f}"
    weight = 1 + min(3, int(3 * many / most))
    drawn = tag("path", tag("title", label), d=path, class_=f"arrow weight-{weight}", marker_end="url(#head)")
    count_x, count_y = (x1 + 2 * bend_x + end_x) / 4, (y1 + 2 * bend_y + end_y) / 4
    return tag("g", drawn, tag("text", many, x=f"{count_x:.1f}", y=f"{count_y + 4:.1f}", class_="many"))


def _node(agent: str, x: float, y: float) -> Markup:
    anchor = "middle" if abs(x) < RADIUS / 3 else ("start" if x > 0 else "end")
    out = 1 + 14 / RADIUS
    name = tag("text", agent, x=f"{x * out:.1f}", y=f"{y * out + 4:.1f}", text_anchor=anchor)
    return tag("g", tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{NODE:g}"), name)
