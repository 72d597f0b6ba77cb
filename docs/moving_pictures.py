"""Draws the moving pictures of docs/modes.md from runs of the simulator: `python -m docs.moving_pictures`, or `make docs`.

`moving-cut.svg` shows one Chandy-Lamport cut of three agents on three hosts, with its markers. The horizontal axis is virtual time, and a
line that moves to the right reveals what has happened. `moving-domino.svg` shows two agents whose checkpoints are never consistent with
each other (`examples/domino.py`), the failure of one, and the rounds of the domino effect.

A picture is a space-time diagram (`snapline.diagrams`) with CSS animations: no script. All frames are of one length of time, so they stay in
step. Readers that prefer reduced motion, and viewers without animations, see the last state. The same runs give the same bytes.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from snapline.diagrams.scene import Arrow, Band, Front, Mark, Scene, clock
from snapline.diagrams.svg import Plot, draw
from snapline.diagrams.trace_diagrams import AnalyzedTrace
from snapline.examples import domino
from snapline.recovery.execution import domino_rounds
from snapline.recovery.trace import Recovery, Trace
from snapline.recovery.trace_analysis import analyze
from snapline.sim.checking import template_of
from snapline.sim.report.run_diagrams import past_events_of
from snapline.sim.run import run
from snapline.sim.scenario import NetworkPart, Scenario
from snapline.sim.world.recording import EpochSpan, Recording

FOLDER = Path(__file__).parent
CUT, DOMINO = "moving-cut.svg", "moving-domino.svg"

CUT_SEED, CUT_EPOCH = 1, 2
BEFORE_NS, AFTER_NS = 17_000_000, 30_000_000
"""Virtual time shown before the first checkpoint of the epoch and after it: all of its markers, and few enough messages to follow."""

DOMINO_SEED, DOMINO_EVENTS = 1, 21
"""Events up to a checkpoint of the agent that does not fail, which has just received: each round then undoes a message."""

WIDE_PX = 760
"""Width of a picture in pixels, which a page of text shows without shrinking it much."""


class Frame(msgspec.Struct, frozen=True):
    """A part of the animation.

    Attributes:
        share: length of the frame, in parts of the animation.
        caption: sentence above the lanes.
        scene: what is drawn in this frame alone: its fronts, bands and signs.
    """

    share: float
    caption: str
    scene: Scene


class SimulatedRun(NamedTuple):
    """What a run recorded, and the epoch to show."""

    recording: Recording
    epoch: EpochSpan | None


def simulate(scenario: Scenario, seed: int, epoch: int = 0) -> SimulatedRun:
    """Run a scenario in virtual time.

    Raises:
        SystemExit: the run has not passed.
    """
    recording = Recording()
    result = run(scenario, seed, recording=recording)
    if result.verdict != "pass":
        raise SystemExit(f"the run for a moving picture ended with {result.verdict}: {result.error}")
    return SimulatedRun(recording, recording.epochs.get(epoch))


# -- the cut -----------------------------------------------------------------------------------------------------------


def cut_picture() -> str:
    """Return the moving picture of one cut."""
    quiet = template_of("quiet")
    fleet = replace(
        quiet.fleet,
        agents=3,
        hosts=3,
        pattern=replace(quiet.fleet.pattern, name="random", messages=60, rate_per_s=200.0),
        trigger=replace(quiet.fleet.trigger, every="150ms"),
    )
    network = msgspec.convert({"delay": {"least": "8ms", "jitter": "8ms"}}, NetworkPart)
    recording, span = simulate(replace(quiet, fleet=fleet, network=network, swarm=None), CUT_SEED, CUT_EPOCH)
    assert span is not None
    scene = cut_scene(recording, span)
    moving = sum(arrow.state == "in-transit" for arrow in scene.arrows)
    still = replace(scene, fronts=[])
    frames = [
        Frame(
            0.62, "Agents exchange messages. Markers follow the messages that were sent before each checkpoint.", still
        ),
        Frame(0.12, "The checkpoints make a cut: no message was received before it and sent after it.", scene),
        Frame(0.26, f"{moving} messages cross the cut: they are in transit, and are saved with it.", scene),
    ]
    return animated("cut", replace(still, words=""), frames, swept=0.6, seconds=20, groups=["fronts"])


def cut_scene(recording: Recording, span: EpochSpan) -> Scene:
    """Return the events around an epoch on an axis of virtual time, with its cut."""
    times = [timed.t_ns for timed in recording.events]
    past = past_events_of(recording)
    front = next(each for each in past.fronts if each.name == f"epoch {span.epoch}")
    taken = [times[int(place)] for place in front.places.values()]
    first_ns, last_ns = min(taken) - BEFORE_NS, min(taken) + AFTER_NS
    window = [position for position, t_ns in enumerate(times) if first_ns <= t_ns <= last_ns]

    def at(place: float) -> float:
        return times[int(place)] if place >= 0 else first_ns

    arrows = [
        replace(arrow, sent=None if arrow.sent is None else at(arrow.sent), received=tuple(map(at, arrow.received)))
        for arrow in past.arrows(window[0], window[-1], [front], {})
    ]
    cut = replace(
        front, places={agent: at(place) for agent, place in front.places.items()}, name=f"cut of epoch {span.epoch}"
    )
    marks = [Mark(mark.agent, at(mark.place), "coordinated", mark.number) for mark in past.marks(window[0], window[-1])]
    return Scene(
        heading="One cut of three agents, taken while they run",
        agents=recording.agents,
        hosts=recording.agents,  # each has a host of its own: so markers are drawn between agents
        first=first_ns,
        last=last_ns,
        ticks=clock(first_ns, last_ns, origin_ns=first_ns),
        arrows=[replace(arrow, message="") for arrow in arrows] + marker_arrows(recording, span),
        marks=marks,
        fronts=[cut],
        legend=["message ordinary", "message in-transit", "message marker", "coordinated", "cut"],
    )


def marker_arrows(recording: Recording, span: EpochSpan) -> list[Arrow]:
    """Return the markers of an epoch, each from the sender's agent to the receiver's."""
    agents = {host: agent for agent, host in recording.placed.items()}
    markers = [marker for marker in recording.markers if marker.epoch == span.epoch]
    received = {(each.other, each.host): each.t_ns for each in markers if each.what == "receive_marker"}
    return [
        Arrow("", agents[each.host], agents[each.other], each.t_ns, (received[each.host, each.other],), "marker")
        for each in markers
        if each.what == "send_marker"
    ]


# -- the domino effect -------------------------------------------------------------------------------------------------


def domino_picture() -> str:
    """Return the moving picture of the domino effect."""
    quiet = template_of("quiet")
    fleet = replace(
        quiet.fleet,
        agents=2,
        hosts=2,
        protocol="uncoordinated",
        module=f"{domino.__name__}:fleet",
        arguments={"passes": "12"},
        trigger=replace(quiet.fleet.trigger, kind="none"),
    )
    recording, _ = simulate(replace(quiet, fleet=fleet, swarm=None), DOMINO_SEED)
    trace = Trace(
        recording.agents,
        [each.event for each in recording.events[:DOMINO_EVENTS] if not isinstance(each.event, Recovery)],
    )
    failed = trace.agents[:1]
    traced = AnalyzedTrace(trace, analyze(trace, failed))
    whole = replace(
        traced.scene((0, traced.events - 1)),
        heading="The domino effect: one failure undoes everything",
        words="",
        axis="event",
        legend=["initial", "basic", "message ordinary", "message orphan", "line", "band undone", "kill"],
        meanings={"line": "line after this round", "message orphan": "received, but its send is undone"},
    )
    base = replace(
        whole,
        fronts=[],
        bands=[],
        signs=[],
        marks=[replace(each, is_useless=False, is_undone=False) for each in whole.marks],
        arrows=[replace(each, state="ordinary", message="") for each in whole.arrows],
    )
    frames = [
        Frame(0.3, "Two agents pass a counter. Each takes a checkpoint after it receives, before it sends.", base)
    ]
    rounds = domino_rounds(trace, failed)
    places: dict[str, float] = dict.fromkeys(traced.agents, traced.events)
    for number, one in enumerate(rounds):
        places |= {agent: traced.checkpoints[agent][checkpoint] for agent, checkpoint in one.moved.items()}
        orphans = rounds[number + 1].orphans if number + 1 < len(rounds) else []
        frames.append(
            Frame(
                0.55 / len(rounds), domino_caption(number, len(rounds), one.moved), domino_frame(whole, places, orphans)
            )
        )
    frames[-1] = replace(frames[-1], share=frames[-1].share + 0.15)
    return animated("domino", base, frames, swept=0.28, seconds=24)


def domino_caption(number: int, count: int, moved: Mapping[str, int]) -> str:
    """Return the sentence for a round."""
    agent, checkpoint = next(iter(moved.items()))
    if number == 0:
        return f"{agent} fails and goes back to its checkpoint {checkpoint}: what it sent since is undone."
    if number == count - 1:
        return f"{agent} goes back to its initial state. Nothing is left: every checkpoint was useless."
    return f"Round {number}: {agent} has received an undone message, so it goes back to its checkpoint {checkpoint}."


def domino_frame(whole: Scene, places: Mapping[str, float], orphans: Sequence[str]) -> Scene:
    """Return what one round adds to the picture: the line so far, what is undone, and the orphans that force the next round."""
    end = whole.last
    return replace(
        whole,
        marks=[],
        arrows=[replace(each, state="orphan", message="") for each in whole.arrows if each.message in set(orphans)],
        fronts=[Front("line", "line after this round", dict(places))],
        bands=[Band(place, end, "undone", agent) for agent, place in places.items() if place < end - 1],
        signs=[each for each in whole.signs if each.kind == "kill"],
    )


# -- animation ---------------------------------------------------------------------------------------------------------

_GROUP = '<g class="{}">\n(.*?)</g>'
SWEPT_GROUPS = ("arrows", "labels", "marks")
FRAME_GROUPS = ("arrows", "fronts", "signs")


def animated(
    name: str,
    base: Scene,
    frames: Sequence[Frame],
    *,
    swept: float,
    seconds: float,
    groups: Sequence[str] = FRAME_GROUPS,
) -> str:
    """Return a picture in which a moving line reveals the events of `base`, and the frames follow each other.

    Args:
        name: prefix of the names of animations and arrow heads, so that a page may hold several pictures.
        swept: share of the animation in which the line moves from the left edge to the right one.
        groups: groups of a frame's scene that the frame adds.
    """
    plot = layout(base)
    svg = draw(base, plot)
    for group in SWEPT_GROUPS:
        svg = svg.replace(f'<g class="{group}">', f'<g class="{group} swept">', 1)
    top, bottom = plot.top - 4, plot.bottom + 4
    width = plot.right - plot.left + 8
    sweep = f'<clipPath id="{name}-clip"><rect class="sweep" x="{plot.left - 8}" y="0" width="{width:.0f}" height="{bottom + 20}"/></clipPath>'
    behind, before, rules, share = [], [], [sweep_rules(name, width, swept, seconds)], 0.0
    total = sum(frame.share for frame in frames)
    for number, frame in enumerate(frames):
        start, share = share, share + frame.share / total
        drawn = "" if frame.scene is base else draw(frame.scene, plot)
        caption = f'<text class="caption" x="16" y="52">{frame.caption}</text>\n'
        behind.append(f'<g class="frame f{number}">\n{parts_of(drawn, "bands")}</g>')
        before.append(f'<g class="frame f{number}">\n{caption}{parts_of(drawn, *groups)}</g>')
        is_last = number == len(frames) - 1
        rules.append(frame_rules(name, number, start, 1 if is_last else share, seconds, is_last=is_last))
    now = f'<path class="now" d="M{plot.left} {top}V{bottom}"/>'
    svg = svg.replace("</defs>", f"{sweep}\n</defs>", 1).replace("</style>", "\n".join([*rules, "</style>"]), 1)
    svg = svg.replace('<g class="axis">', "\n".join([*behind, '<g class="axis">']), 1)
    # Lines are behind checkpoints and their numbers, as in a picture that does not move.
    svg = svg.replace('<g class="marks swept">', "\n".join([*before, '<g class="marks swept">']), 1)
    svg = svg.replace('<g class="names">', f'{now}\n<g class="names">', 1)
    svg = svg.replace("snapline-head-", f"{name}-head-").replace(
        'class="snapline-spacetime"', f'class="snapline-spacetime moving-{name}"', 1
    )
    return re.sub(r" data-[\w-]+=\"[^\"]*\"", "", svg)


def parts_of(svg: str, *groups: str) -> str:
    """Return some groups of a drawn scene, without those that are empty."""
    found = [(group, re.search(_GROUP.format(group), svg, re.DOTALL)) for group in groups]
    return "".join(f'<g class="{group}">\n{match[1]}</g>\n' for group, match in found if match is not None and match[1])


def layout(scene: Scene) -> Plot:
    """Return a layout that is `WIDE_PX` wide, with room for a caption."""
    plot = Plot.of(scene)
    right = WIDE_PX - 40
    return replace(
        plot,
        right=right,
        step=(right - plot.left) / (scene.last - scene.first),
        spacing=76 if len(scene.agents) < 3 else 64,
    )


def sweep_rules(name: str, width: float, swept: float, seconds: float) -> str:
    """Return the style of the moving line and of what it reveals."""
    root, end = f".moving-{name}", f"{100 * swept:.0f}%"
    return f"""{root} .swept {{ clip-path: url(#{name}-clip); }}
{root} .caption {{ font-size: 13px; }}
{root} .now {{ stroke: var(--faint); stroke-width: 1.5; opacity: 0; animation: {name}-now {seconds:g}s linear infinite; }}
{root} .sweep {{ transform-box: fill-box; transform-origin: left; animation: {name}-sweep {seconds:g}s linear infinite; }}
{root} .frame {{ opacity: 0; }}
@keyframes {name}-sweep {{ 0% {{ transform: scaleX(0); }} {end}, 100% {{ transform: scaleX(1); }} }}
@keyframes {name}-now {{ 0% {{ transform: translateX(0); opacity: 1; }}
 {end} {{ transform: translateX({width:.0f}px); opacity: 1; }} {100 * swept + 0.1:.1f}%, 100% {{ transform: translateX({width:.0f}px); opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ {root} * {{ animation: none !important; }} }}"""


def frame_rules(name: str, number: int, start: float, end: float, seconds: float, *, is_last: bool) -> str:
    """Return the style of one frame. The last frame is the one that is seen without an animation."""
    on, off = f"{100 * start:.2f}%", f"{100 * end:.2f}%"
    shown = f"0% {{ opacity: {int(start == 0)}; }} {on} {{ opacity: 1; }}" if start else "0% { opacity: 1; }"
    hidden = "100% { opacity: 1; }" if is_last else f"{off}, 100% {{ opacity: 0; }}"
    root = f".moving-{name} .f{number}"
    still = f"{root} {{ opacity: 1; }}\n" if is_last else ""
    return (
        f"{still}{root} {{ animation: {name}-f{number} {seconds:g}s step-end infinite; }}\n"
        f"@keyframes {name}-f{number} {{ {shown} {hidden} }}"
    )


PICTURES = {CUT: cut_picture, DOMINO: domino_picture}


if __name__ == "__main__":
    for file, make in PICTURES.items():
        (FOLDER / file).write_text(make())
    sys.exit(0)
