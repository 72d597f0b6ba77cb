"""Exports are what their viewers ask for: clocks are exactly happened-before, slices do not overlap."""

import json
import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from tests.sim.recordings import NAMES, Fleet, Operation, busy_steps, few, operations

from snapline.diagrams import event_history
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Recovery
from snapline.sim.report import exports
from snapline.sim.report.exports import to_perfetto, to_shiviz
from snapline.sim.world.recording import Recording


def shiviz_events(log: str) -> list[tuple[str, dict[str, int], str]]:
    """As ShiViz reads it: by the expression of its first line."""
    parser, empty, rest = log.split("\n", 2)
    assert empty == ""
    found = re.compile(parser.replace("(?<", "(?P<")).finditer(rest)
    events = [(match["host"], json.loads(match["clock"]), match["event"]) for match in found]
    assert len(events) * 2 == len(rest.splitlines())
    return events


def happened_before(recording: Recording) -> tuple[int, set[tuple[int, int]]]:
    """How many events there are in the log, and the closure of "same agent, later" and "sent, received"."""
    last: dict[str, int] = {}
    sent: dict[str, int] = {}
    before: list[set[int]] = []
    for timed in recording.events:
        event = timed.event
        agents = list(event.line) if isinstance(event, Recovery) else [event.agent]
        for agent in agents:
            causes = {last[agent]} if agent in last else set()
            if isinstance(event, MessageReceived):
                causes |= {sent[event.message]}
            past = set(causes)
            for cause in causes:
                past |= before[cause]
            last[agent] = len(before)
            if isinstance(event, MessageSent):
                sent[event.message] = len(before)
            before.append(past)
    return len(before), {(cause, index) for index, past in enumerate(before) for cause in past}


def clocks_are_right(recording: Recording) -> bool:
    events = shiviz_events(to_shiviz(recording))
    total, closure = happened_before(recording)
    found = {
        (one, other)
        for one in range(len(events))
        for other in range(len(events))
        if one != other and events[one][1][events[one][0]] <= events[other][1].get(events[one][0], 0)
    }
    return len(events) == total and found == closure


@given(operations)
@few
def test_shiviz_clocks_are_exactly_happened_before(steps: list[Operation]) -> None:
    recording = Fleet().run(steps)
    assert clocks_are_right(recording)
    own: dict[str, list[int]] = {}
    for host, clock, event in shiviz_events(to_shiviz(recording)):
        assert host and event and not re.search(r"\s", host)
        own.setdefault(host, []).append(clock[host])
    assert all(entries == list(range(1, len(entries) + 1)) for entries in own.values())
    assert to_shiviz(recording) == to_shiviz(recording)


def test_a_clock_that_does_not_join_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Fleet(3).run([("send", 0, 1, 5), ("receive", 0, 0, 5)])
    assert clocks_are_right(recording)
    monkeypatch.setattr(event_history, "max", lambda one, other: one, raising=False)
    assert not clocks_are_right(recording)


def test_long_runs_are_cut_to_their_end_for_shiviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "SHIVIZ_EVENTS_MAX", 10)
    events = shiviz_events(to_shiviz(Fleet().run(busy_steps(1, 200))))
    assert len(events) == 10
    assert min(clock[host] for host, clock, _ in events) == 1


def test_agents_keep_apart_in_shiviz() -> None:
    recording = Recording()
    for agent in ("a b", "a_b", "a\tb", ""):
        recording.add(1, CheckpointTaken(agent, 1))
    assert len({host for host, _, _ in shiviz_events(to_shiviz(recording))}) == 4


@given(operations)
@few
def test_perfetto_slices_do_not_overlap_and_hold_their_flows(steps: list[Operation]) -> None:
    recording = Fleet().run(steps)
    entries = json.loads(to_perfetto(recording))["traceEvents"]
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry in entries:
        if entry["ph"] == "X" and entry["cat"] == "agent":
            start = round(entry["ts"] * 1000)
            by_thread.setdefault((entry["pid"], entry["tid"]), []).append((start, start + round(entry["dur"] * 1000)))
    for slices in by_thread.values():
        assert all(one[0] < one[1] <= other[0] for one, other in pairwise([*slices, (1 << 62, 0)]))
    flows = [entry for entry in entries if entry.get("cat") == "message"]
    for entry in flows:
        time_ns = round(entry["ts"] * 1000)
        assert any(start <= time_ns < end for start, end in by_thread[entry["pid"], entry["tid"]])
    events = [timed.event for timed in recording.events]
    received = sum(isinstance(event, MessageReceived) for event in events)
    assert Counter(entry["ph"] for entry in flows) == Counter({"s": received, "f": received})
    assert len({entry["id"] for entry in flows}) == received


def test_perfetto_names_hosts_and_agents() -> None:
    recording = Fleet().run([("epoch", 0, 0, 5), ("crash", 0, 0, 5), ("recover", 0, 0, 5)])
    entries = json.loads(to_perfetto(recording))["traceEvents"]
    names = {entry["args"]["name"]: entry["pid"] for entry in entries if entry["ph"] == "M"}
    assert set(names) == {"coordinator", "h1", "h2", "spawned later", *NAMES}
    assert names["a"] == names["h1"]
    assert names[NAMES[-1]] == names["spawned later"]
    assert sum(entry["ph"] == "i" for entry in entries) == len(NAMES)
