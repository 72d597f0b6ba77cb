"""Timeline of a run: hosts, epochs, faults and the healed end over linear virtual time."""

from snapline.diagrams.scene import Bar, Scene, Track, clock
from snapline.diagrams.svg import draw
from snapline.sim.report.formatting import count, seconds, time_span
from snapline.sim.report.tracks import alarms_of, tracks_of
from snapline.sim.result import Result
from snapline.sim.world.recording import Recording


def draw_timeline(result: Result, recording: Recording | None, *, heal_ns: int, within_ns: int) -> str:
    """Return the timeline as the text of an SVG element.

    Args:
        result: result with the faults, the violations and the end of the run.
        recording: recording with hosts and epochs.
        heal_ns: time at which all faults were healed.
        within_ns: time that the fleet may take after that.
    """
    end_ns = max(_end_ns(result, recording), 1)
    tracks, notes = tracks_of(recording, result.faults, float, (0, end_ns))
    if heal_ns < end_ns:
        words = f"everything healed, {time_span(heal_ns, end_ns)}; the fleet has {seconds(within_ns)} to finish"
        tracks.append(Track("liveness", [Bar(heal_ns, end_ns, "healed", "", words)]))
    return draw(
        Scene(
            heading="Timeline",
            words=_timeline_words(result, recording),
            agents=[],
            first=0,
            last=end_ns,
            ticks=clock(0, end_ns),
            tracks=tracks,
            alarms=list(alarms_of(result, float, (0, end_ns))),
            notes=notes,
            values={"picture": "timeline", "end_ns": end_ns},
        )
    )


def _end_ns(result: Result, recording: Recording | None) -> int:
    times = [result.virtual_ns, *(violation.t_ns for violation in result.violations)]
    times += [time_ns for fault in result.faults for time_ns in (fault.at_ns, fault.until_ns)]
    if recording is not None:
        times += [span.ended_ns for span in recording.epochs.values()] + [span.until_ns for span in recording.hosts]
        times += [timed.t_ns for timed in recording.events[-1:]]
    # A fault that would end long after the run must not compress the run's part of the axis.
    return min(max(times), result.virtual_ns) if result.virtual_ns else max(times)


def _timeline_words(result: Result, recording: Recording | None) -> str:
    """Return the diagram's text alternative."""
    parts = [count(len(result.faults), "fault")]
    if recording is not None:
        outcomes = [span.outcome for span in recording.epochs.values()]
        parts.append(f"{count(outcomes.count('complete'), 'epoch')} complete, {outcomes.count('aborted')} aborted")
        ends = sum(1 for span in recording.hosts if span.until_ns)
        parts.append(f"{count(len({span.host for span in recording.hosts}), 'host')} with {count(ends, 'end')}")
    return f"{seconds(result.virtual_ns)} of virtual time: {', '.join(parts)}"
