"""Sparkline: a small chart of a series."""

from collections.abc import Sequence

from snapline.diagrams.style import px
from snapline.view.markup import Markup, tag

WIDTH, HEIGHT = 120, 28


def sparkline(values: Sequence[float]) -> Markup:
    """The course as an SVG, from 0 to its largest value."""
    most = max(values, default=0.0)
    if len(values) < 2 or most <= 0:
        points = f"0,{HEIGHT - 1} {WIDTH},{HEIGHT - 1}"
    else:
        step = WIDTH / (len(values) - 1)
        points = " ".join([f"{px(n * step)},{px(1 + (HEIGHT - 2) * (1 - v / most))}" for n, v in enumerate(values)])
    line = tag("polyline", points=points, fill="none")
    box = f"0 0 {WIDTH} {HEIGHT}"
    return tag("svg", line, class_="sparkline", viewBox=box, preserveAspectRatio="none", aria_hidden="true")
