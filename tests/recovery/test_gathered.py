"""What hosts have traced, in one order: nothing is left out, nothing is added, and what recoveries undid is what a world that saw all has undone."""

import json
import random
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import pytest
from tests.recovery.test_merge import Files, files_of, play, truth

from snapline.diagrams.event_window import EventLog
from snapline.errors import TraceError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Recovery
from snapline.recovery.trace_merge import HostPart, MarkerCame, TracedEvent, TracedMarkerSend, gather, read_part

PROTOCOLS = (CHANDY_LAMPORT, "koo-toueg", "uncoordinated", "hmnr")


def parts_of(files: Files) -> list[HostPart]:
    return [read_part(name, name.split(".")[0], lines) for name, lines in sorted(files.items())]


def name_of(each: TracedEvent) -> tuple[object, ...]:
    """What a line of a file and an event have in common."""
    event = each.event
    match event:
        case CheckpointTaken():
            return (each.host, "checkpoint", event.agent, event.number)
        case MessageSent():
            return (each.host, "send", event.agent, event.message, event.to)
        case MessageReceived():
            return (each.host, "receive", event.agent, event.message)
        case TracedMarkerSend():
            return (each.host, "send_marker", event.host, event.to, event.epoch)
        case MarkerCame():
            return (each.host, "receive_marker", event.host, event.sender, event.epoch)
    raise AssertionError(event)


def names_in(host: str, lines: list[bytes]) -> list[tuple[object, ...]]:
    """The same of the lines of a file, without the code that reads them."""
    found: list[tuple[object, ...]] = []
    for text in lines:
        if not text.endswith(b"\n"):
            continue  # torn
        line: dict[str, Any] = json.loads(text)
        match line.pop("event"):
            case "checkpoint":
                found.append((host, "checkpoint", line["agent"], line["index"]))
            case "send":
                found.append((host, "send", line["agent"], line["message"], line["to"]))
            case "receive":
                found.append((host, "receive", line["agent"], line["message"]))
            case "send_marker":
                found.append((host, "send_marker", line["host"], line["to"], line["epoch"]))
            case "receive_marker":
                found.append((host, "receive_marker", line["host"], line["from"], line["epoch"]))
    return found


def check_order(events: list[TracedEvent], files: Files) -> Counter[str]:
    """Every line is there once, in the order of its file; what was sent and received was sent first."""
    happened = [each for each in events if not isinstance(each.event, Recovery)]
    places: dict[tuple[object, ...], list[int]] = {}
    for place, each in enumerate(happened):
        places.setdefault(name_of(each), []).append(place)
    named = {file: names_in(file.split(".")[0], lines) for file, lines in files.items()}
    assert Counter(map(name_of, happened)) == Counter([name for names in named.values() for name in names])
    for names in named.values():
        at = -1
        for name in names:  # names come again after a rollback: the next such place is one that fits
            at = next(place for place in places[name] if place > at)
    return Counter(type(each.event).__name__ for each in events)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_line_is_there_once_in_an_order_that_may_have_been(protocol: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(2):
        world = play(seed, protocol, steps=1000)
        files = files_of(world, is_lossy=False)
        events = gather(parts_of(files))
        seen += check_order(events, files)
        sent: set[str] = set()
        for each in events:
            if isinstance(each.event, MessageSent | TracedMarkerSend):
                sent.add(each.event.message)
            elif isinstance(each.event, MessageReceived | MarkerCame):
                assert each.event.message in sent, each
    assert seen["Recovery"] > 1 and seen["MessageReceived"] > 100
    assert (seen["MarkerCame"] > 10) == (protocol == CHANDY_LAMPORT)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_undone_is_what_the_world_has_undone(protocol: str) -> None:
    """Agent by agent, what stays is the execution that survives all recoveries.

    But for agents with a tentative checkpoint in a line whose host died before it could trace it, and for those that are created later, which may
    be in no plan's line: `merge.py` says what then.
    """
    undone = compared = 0
    for seed in range(2):
        world = play(seed, protocol, steps=1000)
        happened = EventLog(gather(parts_of(files_of(world, is_lossy=False))), is_whole=True)
        whole = [each.event for each in happened.events]
        traced = {(event.agent, event.number) for event in whole if isinstance(event, CheckpointTaken)}
        expected = [event for event in truth(world).events if event.agent in world.fleet.agents]
        stays = [event for position, event in enumerate(whole) if not happened.past.is_undone(position)]
        untraced = untraced_in_lines(whole, traced)
        assert not untraced or protocol == KOO_TOUEG
        for agent in world.fleet.agents.keys() - untraced:
            assert kinds_of(agent, stays, traced) == kinds_of(agent, expected, traced), (protocol, seed, agent)
            compared += 1
        undone += len(whole) - len(stays)
    assert undone > 0 and compared > 3


def untraced_in_lines(events: Sequence[object], traced: Container[tuple[str, int]]) -> set[str]:
    """Agents that a recovery took back to a checkpoint of which there is no trace."""
    lines = [event.line for event in events if isinstance(event, Recovery)]
    return {agent for line in lines for agent, number in line.items() if number and (agent, number) not in traced}


def kinds_of(agent: str, events: Sequence[object], traced: Container[tuple[str, int]]) -> list[tuple[str, str]]:
    """What an agent did; messages have other names in the world that saw all, and the same receivers."""
    found: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CheckpointTaken() if event.agent == agent and (agent, event.number) in traced:
                found.append(("checkpoint", str(event.number)))
            case MessageSent() if event.agent == agent:
                found.append(("send", event.to))
            case MessageReceived() if event.agent == agent:
                found.append(("receive", event.message.partition("/")[0].partition(">")[0]))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_part_is_enough(seed: int) -> None:
    """As a viewer has it that came late, and where the ends of killed hosts are lost: each line that is there is in the order."""
    world = play(seed, CHANDY_LAMPORT, steps=800)
    chance = random.Random(seed)
    whole = files_of(world, is_lossy=True)
    files = {name: lines[chance.randrange(len(lines) + 1) :] for name, lines in whole.items()}
    seen = check_order(gather(parts_of(files)), files)
    assert seen["MessageReceived"] > 0


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, **fields}).encode() + b"\n"


def test_a_receive_waits_for_its_send_whatever_the_clocks_say() -> None:
    one = read_part("h1.1.jsonl", "h1", [line("send", agent="a", message="a>b:1", to="b", time_ns=900)])
    other = read_part("h2.1.jsonl", "h2", [line("receive", agent="b", message="a>b:1", time_ns=5)])
    assert [type(each.event) for each in gather([other, one])] == [MessageSent, MessageReceived]
    assert [type(each.event) for each in gather([other])] == [MessageReceived], "nobody has traced a send"


def test_hosts_that_contradict_each_other_are_refused() -> None:
    """Each receives first what the other one sends later."""

    def part(host: str, mine: str, other: str) -> HostPart:
        received = line("receive", agent=host, message=f"{other}>{host}:1")
        return read_part(host, host, [received, line("send", agent=host, message=f"{host}>{other}:1", to=other)])

    with pytest.raises(TraceError, match="contradict"):
        gather([part("x", "x", "y"), part("y", "y", "x")])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"{\n", line("receive", agent="a", message="m")], "x: line 1"),
        ([line("unknown")], "x: line 1"),
        ([line("receive", agent="a", message="m"), b'{"event":"send","agent":"a"}'], "x: line 2"),
    ],
)
def test_a_line_that_is_none_is_named(lines: list[bytes], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_part("x", "h1", lines)


def test_a_torn_last_line_is_dropped() -> None:
    assert read_part("x", "h1", [line("receive", agent="a", message="m"), b'{"event":"se']).lines[1:] == []


def test_plans_stand_one_after_the_other_with_the_union_of_their_lines_between() -> None:
    one = [
        line("plan", plan=1, line={"a": 0}),
        line("checkpoint", agent="a", index=1),
        line("plan", plan=2, line={"a": 1}, time_ns=7),
    ]
    other = [
        line("plan", plan=1, line={"b": 0}),
        line("plan", plan=2, line={"b": 3}, time_ns=9),
        line("plan", plan=3, line={}),
    ]
    events = gather([read_part("1", "h1", one), read_part("2", "h2", other)])
    assert [type(each.event) for each in events] == [CheckpointTaken, Recovery]
    recovery = events[1]
    assert (recovery.event, recovery.plan, recovery.time_ns) == (Recovery({"a": 1, "b": 3}), 2, 9)
