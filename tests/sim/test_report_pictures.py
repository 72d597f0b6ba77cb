"""Pictures are true to the recording.

What they say of a message is compared with `replayed`, which knows lists of events and nothing of positions.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from tests.sim.recordings import (
    EVIL,
    SVG,
    Fleet,
    Operation,
    busy_steps,
    drawn_states,
    few,
    operations,
    random_steps,
    result_of,
)

from snapline.diagrams import event_history as past
from snapline.diagrams.style import clean
from snapline.recovery.trace import CheckpointTaken, Event, MessageReceived, MessageSent, Recovery, read_trace
from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.report import run_folder
from snapline.sim.report.run_diagrams import draw_run, draw_timeline
from snapline.sim.result import ExecutedFault, Violation
from snapline.sim.run import run
from snapline.sim.scenario import DelayPart, FaultPart, FleetPart, NetworkPart, PatternPart, Scenario, TriggerPart
from snapline.sim.world.recording import Orphan, Recording


def surviving(recording: Recording, until_ns: int) -> dict[str, list[Event]]:
    """Agent → the events that are left of it at that time."""
    left: dict[str, list[Event]] = {}
    for timed in recording.events:
        if timed.t_ns > until_ns:
            break
        if not isinstance(timed.event, Recovery):
            left.setdefault(timed.event.agent, []).append(timed.event)
            continue
        for agent, number in timed.event.line.items():
            events = left.setdefault(agent, [])
            if number is not None:
                left[agent] = up_to(events, number)
    return left


def up_to(events: list[Event], number: int) -> list[Event]:
    """Until that checkpoint, itself included."""
    found: list[Event] = []
    for event in events:
        if number == 0:
            break
        found.append(event)
        if isinstance(event, CheckpointTaken) and event.number == number:
            break
    return found


def replayed(recording: Recording) -> dict[str, str]:
    """Message → what it is, from lists of events alone."""
    beside: dict[str, set[str]] = {}
    for span in recording.epochs.values():
        if span.outcome != "complete":
            continue
        left = surviving(recording, span.ended_ns)
        inside = [event for agent, number in span.cut.items() for event in up_to(left.get(agent, []), number)]
        sent = {event.message for event in inside if isinstance(event, MessageSent)}
        received = {event.message for event in inside if isinstance(event, MessageReceived)}
        for message in sent ^ received:
            beside.setdefault(message, set()).add("in-transit" if message in sent else "orphan")
    last = surviving(recording, 1 << 62)
    kept = {event.message for events in last.values() for event in events if isinstance(event, MessageSent)}
    states = {}
    for timed in recording.events:
        if isinstance(timed.event, MessageSent):
            message = timed.event.message
            states[message] = "ordinary" if message in kept else "undone"
            if message in beside:
                states[message] = "orphan" if "orphan" in beside[message] else "in-transit"
    return states


@given(operations)
@settings(few, max_examples=300)
def test_every_message_is_drawn_once_and_is_what_a_replay_says(steps: list[Operation]) -> None:
    recording = Fleet().run(steps)
    svg = draw_run(recording, result_of(recording))
    drawn = drawn_states(svg)
    assert dict(drawn) == {clean(message): state for message, state in replayed(recording).items()}
    assert len(drawn) == len(dict(drawn))
    assert svg == draw_run(recording, result_of(recording))


def test_the_picture_of_a_real_run_is_what_a_replay_says() -> None:
    crash = FaultPart(crash=CrashFault(host="h1", at="200ms", restart_after="200ms"))
    fleet = FleetPart(agents=4, pattern=PatternPart(name="random", messages=300), trigger=TriggerPart(every="60ms"))
    network = NetworkPart(delay=DelayPart(least="10ms", jitter="10ms"))
    scenario = Scenario(name="real", fleet=fleet, network=network, fault=[crash])
    recording = Recording()
    result = run(scenario, 3, recording=recording)
    trace = read_trace(gzip.decompress(run_folder.trace_gz(recording)).splitlines())
    states = replayed(recording)
    assert dict(drawn_states(draw_run(recording, result))) == states
    sent = [event.message for event in trace.events if isinstance(event, MessageSent)]
    # What a reader of traces keeps is what no recovery undid.
    assert set(sent) == {message for message, state in states.items() if state != "undone"} - undone_in_cuts(recording)
    assert "undone" in states.values() and "in-transit" in states.values()


def undone_in_cuts(recording: Recording) -> set[str]:
    """Messages that some cut held in transit, and whose send a later recovery undid."""
    left = surviving(recording, 1 << 62)
    kept = {event.message for events in left.values() for event in events if isinstance(event, MessageSent)}
    return {message for message, state in replayed(recording).items() if state == "in-transit"} - kept


def check_states(seed: int) -> bool:
    recording = Fleet().run(random_steps(seed, 80))
    return dict(drawn_states(draw_run(recording, result_of(recording)))) == replayed(recording)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("_is_inside", lambda self, position, checkpoint: position < checkpoint),  # undone events count
        ("_is_inside", lambda self, position, checkpoint: position <= checkpoint + 1),  # one too many
        ("_recover", lambda self, position, line: None),  # recoveries are not seen
        ("_state_at_cut", lambda self, sent, cut: "ordinary"),  # cuts are not seen
    ],
)
def test_a_wrong_picture_is_found(name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(check_states(seed) for seed in range(20))
    monkeypatch.setattr(past.PastEvents, name, mutant)
    assert not all(check_states(seed) for seed in range(20))


@given(operations)
@few
def test_arrows_lead_to_the_right_and_end_at_their_agents(steps: list[Operation]) -> None:
    recording = Fleet().run(steps)
    root = ElementTree.fromstring(draw_run(recording, result_of(recording)))
    lanes = {
        element.attrib["data-agent"]: float(element.attrib["d"].split("H")[0].split()[-1])
        for element in root.iter(f"{SVG}path")
        if element.get("class") == "line"
    }
    senders = {
        event.message: event for event in (timed.event for timed in recording.events) if isinstance(event, MessageSent)
    }
    received = {
        event.message for event in (timed.event for timed in recording.events) if isinstance(event, MessageReceived)
    }
    for element in root.iter(f"{SVG}path"):
        message = element.get("data-message")
        if message is None:
            continue
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", element.attrib["d"])]
        assert numbers[-2] > numbers[0]
        assert numbers[1] == lanes[clean(senders[message].agent)]
        if message in received:
            assert numbers[-1] == lanes[clean(senders[message].to)]


def test_a_named_orphan_and_a_message_never_sent_are_orphans() -> None:
    recording = Fleet(3).run([("send", 0, 1, 5), ("receive", 0, 0, 5)])
    message = recording.events[0].event.message  # type: ignore[union-attr]  # it is a send
    recording.orphans = [Orphan(message, f"because {EVIL}")]
    recording.add(20, MessageReceived("a", "from nowhere"))
    assert dict(drawn_states(draw_run(recording, result_of(recording)))) == {
        message: "orphan",
        "from nowhere": "orphan",
    }


def test_a_message_received_again_has_two_ends_and_one_arrow() -> None:
    recording = Fleet(3).run(
        [("send", 0, 1, 5), ("epoch", 0, 0, 5), ("receive", 0, 0, 5), ("recover", 0, 0, 5), ("receive", 0, 0, 5)]
    )
    svg = draw_run(recording, result_of(recording))
    assert [state for _, state in drawn_states(svg)] == ["in-transit"]
    assert ", again " in svg
    assert 'class="recoveryline"' in svg and 'class="cut"' in svg


def test_a_lane_is_broken_while_the_first_host_of_its_agent_is_down() -> None:
    recording = Fleet(3).run([("send", 0, 1, 5), ("crash", 1, 0, 5), ("send", 1, 0, 5), ("checkpoint", 0, 0, 5)])
    assert recording.hosts[0].until_ns
    root = ElementTree.fromstring(draw_run(recording, result_of(recording)))
    down = [element for element in root.iter(f"{SVG}path") if element.get("class") == "down"]
    assert [element.get("data-agent") for element in down] == ["a"]
    assert (
        len([element for element in root.iter(f"{SVG}path") if element.get("class") == "kill"]) == 2
    )  # one in the legend


def test_a_window_holds_the_violation_and_no_more_events_than_allowed() -> None:
    recording = Fleet().run(busy_steps(1, 900))
    middle_ns = recording.events[400].t_ns
    violated = result_of(recording, verdict="violation", violations=[Violation("orphans", "G1", middle_ns, "x")])
    for result, wanted in ((violated, 400), (result_of(recording), len(recording.events) - 1)):
        root = ElementTree.fromstring(draw_run(recording, result, events_max=100))
        first, last = int(root.attrib["data-first"]), int(root.attrib["data-last"])
        assert last - first + 1 == 100
        assert first <= wanted <= last
        shown = [recording.events[index].event for index in range(first, last + 1)]
        messages = {event.message for event in shown if isinstance(event, MessageSent | MessageReceived)}
        drawn = [message for message, _ in drawn_states(ElementTree.tostring(root, encoding="unicode"))]
        assert Counter(drawn) == Counter(map(clean, messages))


def test_of_many_agents_some_are_drawn_with_the_orphan_among_them() -> None:
    recording = Fleet(30).run(busy_steps(2, 300))
    recording.add(recording.events[-1].t_ns, MessageSent("agent-28", "lost", "agent-27"))
    recording.orphans = [Orphan("lost", "for the test")]
    root = ElementTree.fromstring(draw_run(recording, result_of(recording), agents_max=6))
    lanes = [element.attrib["data-agent"] for element in root.iter(f"{SVG}path") if element.get("class") == "line"]
    assert len(lanes) == 6
    assert "agent-28" in lanes
    assert "6 of 30 agents drawn." in "".join(root.itertext())


@given(operations)
@few
def test_the_timeline_shows_hosts_epochs_and_faults(steps: list[Operation]) -> None:
    fleet = Fleet()
    recording, end_ns = fleet.run(steps), fleet.now_ns + 1
    faults = [ExecutedFault("partition", f"fault {index}", index * end_ns // 9, end_ns) for index in range(6)]
    result = result_of(recording, faults=faults, virtual_ns=end_ns + 100)
    root = ElementTree.fromstring(draw_timeline(result, recording, heal_ns=end_ns, within_ns=1))
    kinds = Counter(element.get("data-kind") for element in root.iter(f"{SVG}g"))
    outcomes = Counter(span.outcome for span in recording.epochs.values())
    assert kinds["up"] == sum(span.from_ns <= end_ns + 100 for span in recording.hosts)
    assert kinds["fault"] == 6
    assert kinds["healed"] == 1
    is_whole = "epochs drawn." not in "".join(root.itertext())
    assert is_whole <= (kinds["complete"] == outcomes["complete"] and kinds["aborted"] == outcomes["aborted"])
