"""Pictures drawn by librsvg, as file managers and mailers do: it knows no scripts, no CSS variables and few of a browser's ways.

SNAPLINE_SCREENSHOTS: a folder in which the PNGs are left for people.
"""

import os
import shutil
import struct
import subprocess
import zlib
from collections import Counter

import pytest
from tests.recovery.executions import parse
from tests.view.test_simulation import CONFIG, simulated

from snapline.diagrams.event_window import EventLog, draw_window
from snapline.diagrams.style import COLORS
from snapline.diagrams.trace_diagrams import analysis_svg
from snapline.recovery.trace_analysis import analyze
from snapline.recovery.trace_merge import TracedEvent
from snapline.sim.report.run_diagrams import draw_run, draw_timeline

RSVG = shutil.which("rsvg-convert") or ""
SHOTS = os.environ.get("SNAPLINE_SCREENSHOTS", "")

pytestmark = pytest.mark.skipif(not RSVG, reason="needs rsvg-convert: Debian's librsvg2-bin")

WORDS = "a! a>b:m b! m>b b>c c! c>a a>c:n b>a a! n>c a>o:b"


def pixels(png: bytes) -> Counter[tuple[int, int, int]]:
    """How often each colour stands in a PNG of eight bits for each channel, as rsvg-convert writes them."""
    chunks, place = dict[bytes, bytes](), 8
    while place < len(png):
        size, name = struct.unpack(">I4s", png[place : place + 8])
        chunks[name] = chunks.get(name, b"") + png[place + 8 : place + 8 + size]
        place += size + 12
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    step = {2: 3, 6: 4}[kind]  # without and with transparency
    assert depth == 8
    data, stride = zlib.decompress(chunks[b"IDAT"]), step * width
    above, found = bytearray(stride), Counter[tuple[int, int, int]]()
    for row in range(height):
        start = row * (stride + 1)
        line = bytearray(data[start + 1 : start + 1 + stride])
        unfilter(data[start], line, above, step)
        found.update(zip(line[::step], line[1::step], line[2::step], strict=True))
        above = line
    return found


def unfilter(kind: int, line: bytearray, above: bytearray, /, step: int) -> None:
    """Section 9 of the PNG specification."""
    for at in range(len(line) if kind else 0):
        left, up, corner = (line[at - step], above[at], above[at - step]) if at >= step else (0, above[at], 0)
        nearest = min((left, up, corner), key=lambda each: abs(left + up - corner - each))
        line[at] = (line[at] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255


def colour(name: str) -> tuple[int, int, int]:
    """On light paper."""
    red, green, blue = bytes.fromhex(COLORS[name][0][1:])
    return red, green, blue


def space_time() -> str:
    """As the screen Space-time gives it."""
    trace = parse(WORDS)
    event_log = EventLog(
        [TracedEvent(event, f"h{index % 2}") for index, event in enumerate(trace.events)], is_whole=True
    )
    window = event_log.window("agents", event_log.rows_of("agents"), count=100)
    return draw_window(event_log, window, event_log.chosen(window, len(trace.events) - 1))


def pictures() -> dict[str, tuple[str, set[str]]]:
    """Each with colours that it must have."""
    trace = parse(WORDS)
    _, result, recording, _ = simulated(CONFIG, 7)
    return {
        "analysis": (analysis_svg(trace, analyze(trace)), {"record", "line"}),
        "space-time": (space_time(), {"record", "message", "line"}),
        "run": (draw_run(recording, result), {"record", "cut"}),
        "timeline": (draw_timeline(result, recording, heal_ns=10**9, within_ns=10**9), {"faint"}),
    }


@pytest.mark.parametrize("name", ["analysis", "space-time", "run", "timeline"])
def test_librsvg_draws_the_picture_in_its_colours(name: str) -> None:
    svg, colours = pictures()[name]
    drawn = subprocess.run([RSVG, "--zoom", "0.5"], input=svg.encode(), capture_output=True, timeout=60, check=False)
    assert drawn.returncode == 0 and not drawn.stderr, drawn.stderr
    if SHOTS:
        subprocess.run([RSVG, "--output", f"{SHOTS}/rsvg-{name}.png"], input=svg.encode(), timeout=60, check=True)
    found = pixels(drawn.stdout)
    assert found[colour("paper")] > found.total() / 4, "paper"
    assert found[0, 0, 0] < found.total() / 1000, "what no rule reaches is black"
    missing = {each for each in colours if not found[colour(each)]}
    assert not missing, (missing, found.most_common(12))
