"""Tracks above a run's lanes: hosts up and down, epochs with their outcome, faults, and the healed end.

The timeline, whose time axis is linear, and the space-time diagram, whose axis is not, both use them: `place` maps times to
positions.
"""

from collections.abc import Callable, Iterable, Iterator

from snapline.diagrams.scene import Alarm, Bar, BarKind, Place, Track
from snapline.sim.report.formatting import seconds, time_span
from snapline.sim.result import ExecutedFault, Result
from snapline.sim.world.recording import EpochSpan, HostSpan, Recording

HOSTS_MAX = 40
"""Maximum number of host tracks; a report with more is unreadable."""


def tracks_of(
    recording: Recording | None, faults: Iterable[ExecutedFault], place: Callable[[int], Place], window: tuple[int, int]
) -> tuple[list[Track], list[str]]:
    """Return the tracks between the two times of `window`, and notes on omitted items."""
    end_ns = window[1]

    def bar(start_ns: int, until_ns: int, kind: BarKind, label: str, words: str) -> Iterator[Bar]:
        if start_ns <= window[1] and until_ns >= window[0]:
            yield Bar(place(start_ns), place(until_ns), kind, label, words)

    def host(span: HostSpan) -> Iterator[Bar]:
        words = f"{span.host} is up {time_span(span.from_ns, span.until_ns)}"
        yield from bar(span.from_ns, span.until_ns or max(end_ns, span.from_ns), "up", "", words)
        if span.until_ns:
            yield from bar(span.until_ns, span.until_ns, "crash", "", f"{span.host} ends at {seconds(span.until_ns)}")

    def epoch(span: EpochSpan) -> Iterator[Bar]:
        is_open = span.outcome == "open" or not span.ended_ns
        words = f"epoch {span.epoch}: {span.outcome}, {time_span(span.begun_ns, span.ended_ns)}, plan {span.plan}"
        until_ns = max(end_ns if is_open else span.ended_ns, span.begun_ns)
        yield from bar(span.begun_ns, until_ns, span.outcome, str(span.epoch), words)

    def fault(one: ExecutedFault) -> Iterator[Bar]:
        when = time_span(one.at_ns, one.until_ns) if one.until_ns else f"at {seconds(one.at_ns)}"
        kind: BarKind = "fault" if one.until_ns else "point"
        yield from bar(one.at_ns, one.until_ns or one.at_ns, kind, one.text, f"{one.text}, {when}")

    hosts: dict[str, list[Bar]] = {}
    for span in recording.hosts if recording else ():
        hosts.setdefault(span.host, []).extend(host(span))
    tracks = [Track(name, bars) for name, bars in list(hosts.items())[:HOSTS_MAX]]
    epochs = [one for span in (recording.epochs.values() if recording else ()) for one in epoch(span)]
    packed = (Track("epochs", epochs), Track("faults", [fault_bar for one in faults for fault_bar in fault(one)]))
    notes = [f"{HOSTS_MAX} of {len(hosts):,} hosts drawn."] if len(hosts) > HOSTS_MAX else []
    return [*tracks, *(track for track in packed if track.bars)], notes


def alarms_of(result: Result, place: Callable[[int], Place], window: tuple[int, int]) -> Iterator[Alarm]:
    """Yield the first violation if it lies in the window."""
    for one in result.violations[:1]:
        if window[0] <= one.t_ns <= window[1]:
            words = f"{one.guarantee}, {one.oracle}, at {seconds(one.t_ns)}: {one.text}"
            yield Alarm(place(one.t_ns), f"{one.guarantee} violated", words)
