"""The diagram of what happened: it has all of its window and nothing else, its clocks are happened-before, and ShiViz can read its log."""

import json
import random
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from tests.diagrams.test_scene import SVG, elements
from tests.recovery.test_gathered import parts_of
from tests.recovery.test_merge import files_of, play

from snapline.diagrams import event_history
from snapline.diagrams import event_window as happened_module
from snapline.diagrams.event_window import (
    CHOSEN_MAX,
    ROWS_MAX,
    EventLog,
    Rows,
    Window,
    draw_window,
    scene_of,
)
from snapline.ids import natural_key
from snapline.protocols.names import CHANDY_LAMPORT
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Recovery
from snapline.recovery.trace_merge import MarkerCame, TracedEvent, TracedMarkerSend, gather

SEEDS = range(4, 7)
ROWS: tuple[Rows, ...] = ("agents", "hosts")


def world(seed: int, protocol: str = CHANDY_LAMPORT) -> EventLog:
    """A fleet with recoveries, as its hosts have traced it."""
    played = play(seed, protocol, steps=700)
    return EventLog(gather(parts_of(files_of(played, is_lossy=False))), is_whole=True)


def some_window(found: EventLog, rows: Rows, chance: random.Random) -> Window:
    agents = chance.sample(sorted(found.busy), chance.randint(1, len(found.busy)))
    lanes = found.rows_of(rows, agents)
    first = chance.randrange(len(found))
    return Window(rows, lanes, first, min(len(found), first + chance.randint(1, 150)))


def row_of(each: TracedEvent, rows: Rows) -> str:
    """Where an event stands, said once more."""
    event = each.event
    if isinstance(event, TracedMarkerSend | MarkerCame):
        return f"host:{event.host}"
    assert not isinstance(event, Recovery)
    return event.agent if rows == "agents" else f"host:{each.host}"


def other_ends(events: list[TracedEvent]) -> dict[int, list[int]]:
    """Of each send and each receive, where the message's other ends are: a name is used again after a rollback."""
    found: dict[int, list[int]] = {}
    last: dict[str, int] = {}
    for position, each in enumerate(events):
        if isinstance(each.event, MessageSent | TracedMarkerSend):
            last[each.event.message] = position
        elif isinstance(each.event, MessageReceived | MarkerCame):
            sent = last[each.event.message]
            found.setdefault(sent, []).append(position)
            found.setdefault(position, []).append(sent)
    return found


def expected_shown(found: EventLog, window: Window) -> tuple[list[int], list[int]]:
    """Positions of dots, and of checkpoints, that a picture must have."""
    events, lanes = list(found.events), set(window.lanes)
    ends = other_ends(events)
    spots: list[int] = []
    records: dict[object, int] = {}
    for position in range(window.first, window.end):
        each = events[position]
        if isinstance(each.event, Recovery) or row_of(each, window.rows) not in lanes:
            continue
        if isinstance(each.event, CheckpointTaken):
            is_merged = window.rows == "hosts" and each.epochs
            records[(each.host, each.epochs) if is_merged else position] = position
        elif window.rows == "agents" or isinstance(each.event, TracedMarkerSend | MarkerCame):
            spots.append(position)
        else:
            others = {events[other].host for other in ends.get(position, ())}
            homes = {found.homes.get(each.event.to)} if isinstance(each.event, MessageSent) and not others else others
            if homes and homes != {each.host} and None not in homes:
                spots.append(position)
    return spots, sorted(records.values())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_picture_has_each_event_of_its_window_and_no_other(seed: int, rows: Rows) -> None:
    found, chance, seen = world(seed), random.Random(seed), Counter[str]()
    for _ in range(8):
        window = some_window(found, rows, chance)
        drawn = draw_window(found, window, href=lambda position: f"/x?event={position}")
        spots, records = expected_shown(found, window)
        dots = [int(dot.get("data-event", "")) for dot in elements(drawn, "spot")]
        assert sorted(dots) == spots, (seed, window)
        marks = elements(drawn, "checkpoint")
        assert len(marks) == len(records)
        if rows == "agents":
            events = [found.events[position].event for position in records]
            named = [(e.agent, str(e.number)) for e in events if isinstance(e, CheckpointTaken)]
            assert sorted(named) == sorted((m.get("data-agent", ""), m.get("data-number", "")) for m in marks)
        links = [link.get("href", "") for link in ElementTree.fromstring(drawn).iter("a")]
        assert sorted(links) == sorted(f"/x?event={position}" for position in spots + records)
        shown = [p for p in found.shown(window) if not isinstance(found.events[p].event, Recovery)]
        assert shown == sorted(spots + records), "the list says the same"
        seen += Counter(dots=len(dots), marks=len(marks))
    assert seen["dots"] > 20 and seen["marks"] > 0


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_picture_has_an_arrow_for_each_message_and_marker_with_an_end_in_its_window(seed: int, rows: Rows) -> None:
    found, chance, seen = world(seed), random.Random(seed), Counter[str]()
    events = list(found.events)
    ends = other_ends(events)
    for _ in range(8):
        window = some_window(found, rows, chance)
        lanes = set(window.lanes)
        expected: Counter[tuple[str, bool]] = Counter()
        for position, each in enumerate(events):
            if not isinstance(each.event, MessageSent | TracedMarkerSend):
                continue
            is_marker = isinstance(each.event, TracedMarkerSend)
            came = ends.get(position, [])
            places = [position, *came]
            to = f"host:{each.event.to}" if is_marker or rows == "hosts" else each.event.to
            if rows == "hosts" and not is_marker:
                host = events[came[-1]].host if came else found.homes.get(each.event.to, "")
                to = f"host:{host}"
                if host == each.host or not host:
                    continue
            is_here = any(window.first <= place < window.end for place in places)
            if is_here and row_of(each, rows) in lanes and to in lanes:
                expected[each.event.message, is_marker] += 1
        arrows = scene_of(found, window).arrows
        assert Counter((one.message, one.state == "marker") for one in arrows) == expected, (seed, window)
        seen.update("marker" if is_marker else "message" for _, is_marker in expected.elements())
    assert seen["message"] > 20 and (seen["marker"] > 0 or rows == "agents")


# -- clocks --------------------------------------------------------------------------------------------------------------


def happened_before(found: EventLog, rows: Rows) -> dict[int, set[int]]:
    """Event → all events in its past: the closure of "same life of a row, later", "sent, received" and "went back to".

    Lives and recoveries as `diagrams/event_window.py` says it: who goes back goes on from the checkpoint of the line, and has forgotten the rest.
    """
    before: dict[int, set[int]] = {}
    here: dict[str, set[int]] = {}
    sent: dict[str, set[int]] = {}
    checkpoints: dict[tuple[str, int], set[int]] = {}
    for position, each in enumerate(found.events):
        event = each.event
        if isinstance(event, Recovery):
            records = {agent: checkpoints.get((agent, number or 0), set()) for agent, number in event.line.items()}
            if rows == "agents":
                here.update({agent: set(past) for agent, past in records.items()})
                continue
            stay = {found.homes[agent] for agent in found.homes if agent not in event.line}
            union = set().union(*records.values())
            here.update({f"host:{host}": set(union) for host in found.hosts if host not in stay})
            continue
        row = row_of(each, rows)
        past = set(here.get(row, ()))
        if isinstance(event, MessageReceived | MarkerCame):
            past |= sent[event.message]
        before[position] = past
        here[row] = past | {position}
        if isinstance(event, MessageSent | TracedMarkerSend):
            sent[event.message] = here[row]
        elif isinstance(event, CheckpointTaken):
            checkpoints[event.agent, event.number] = here[row]
    return before


def life_of(found: EventLog, position: int, rows: Rows) -> str:
    """Of the row of an event: `a`, or `a#3` after recovery by plan 3."""
    row, life = row_of(found.events[position], rows), ""
    for each in list(found.events)[:position]:
        if isinstance(each.event, Recovery):
            goes_on = {home for agent, home in found.homes.items() if agent not in each.event.line}
            hosts = {f"host:{host}" for host in found.hosts if host not in goes_on}
            if row in (each.event.line if rows == "agents" else hosts):
                life = f"#{each.plan}"
    return row + life


@pytest.mark.parametrize("protocol", [CHANDY_LAMPORT, "uncoordinated"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_counts_exactly_what_happened_before(seed: int, rows: Rows, protocol: str) -> None:
    found, chance = world(seed, protocol), random.Random(seed)
    before = happened_before(found, rows)
    lives = {position: life_of(found, position, rows) for position in chance.sample(sorted(before), 30)}
    for _ in range(6):
        window = some_window(found, rows, chance)
        lanes = set(window.lanes)
        counted = {position for position in before if row_of(found.events[position], rows) in lanes}
        for position in chance.sample(sorted(counted), min(5, len(counted))):
            chosen = found.chosen(window, position)
            assert set(chosen.past) == before[position] & counted, (seed, window, position)
            own = life_of(found, position, rows)
            assert sum(chosen.clock.values()) == len(chosen.past) + 1 and chosen.clock[own] >= 1
            assert all(life in chosen.clock for other, life in lives.items() if other in chosen.past)


def shiviz_events(log: str) -> list[tuple[str, dict[str, int], str]]:
    """As ShiViz reads it, by the expression of its first line; it must take all of the log."""
    parser, empty, rest = log.split("\n", 2)
    assert empty == "" and parser == r"(?<host>\S*) (?<clock>\{.*\})\n(?<event>.*)"
    matches = list(re.finditer(parser.replace("(?<", "(?P<"), rest))
    assert "".join(f"{m.group(0)}\n" for m in matches) == rest
    return [(m["host"], json.loads(m["clock"]), m["event"]) for m in matches]


def check_shiviz(events: list[tuple[str, dict[str, int], str]]) -> None:
    """The rules of ShiViz: names without blanks, own entries 1, 2, 3 …, entries of others that there were, and no clock that goes back."""
    own: dict[str, int] = {}
    last: dict[str, dict[str, int]] = {}
    for host, clock, words in events:
        assert host and not re.search(r"\s", host) and words and "\n" not in words
        assert clock[host] == own.get(host, 0) + 1, "by one, without gaps"
        own[host] = clock[host]
        assert all(1 <= entry <= own.get(other, 0) for other, entry in clock.items()), "of what stands above"
        assert all(clock.get(other, 0) >= entry for other, entry in last.get(host, {}).items())
        last[host] = clock


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_for_shiviz_is_of_exactly_the_window_and_obeys_its_rules(seed: int, rows: Rows) -> None:
    found, chance, joined = world(seed), random.Random(seed), 0
    before = happened_before(found, rows)
    for _ in range(5):
        window = some_window(found, rows, chance)
        events = shiviz_events(found.shiviz(window))
        check_shiviz(events)
        spots, records = expected_shown(found, window)
        shown = sorted(spots + records)
        assert [words for _, _, words in events] == [found.description_of(position) for position in shown]
        assert [host for host, _, _ in events] == [life_of(found, position, rows) for position in shown]
        for index, position in enumerate(shown):
            mine = {
                earlier
                for earlier in range(len(shown))
                if events[earlier][1][events[earlier][0]] <= events[index][1].get(events[earlier][0], 0)
            }
            assert {shown[each] for each in mine} == (before[position] | {position}) & set(shown), (
                "through what is not shown too"
            )
            joined += len(events[index][1]) > 1
    assert joined > 5


def a_clock_does_not_join(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(event_history, "max", lambda one, other: one, raising=False)


def a_step_that_counts_not_breaks_the_chain(patch: pytest.MonkeyPatch) -> None:
    real = EventLog._steps
    patch.setattr(EventLog, "_steps", lambda *args: (step for step in real(*args) if step.is_counted))


def who_goes_back_remembers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventLog, "_begun_again", lambda *_: iter(()))


@pytest.mark.parametrize(
    "mutate", [a_clock_does_not_join, a_step_that_counts_not_breaks_the_chain, who_goes_back_remembers]
)
def test_a_wrong_clock_is_found(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        for seed in SEEDS:
            test_the_log_for_shiviz_is_of_exactly_the_window_and_obeys_its_rules(seed, "agents")


# -- rows and windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_moves_by_events_that_it_shows(seed: int, rows: Rows) -> None:
    found, chance = world(seed), random.Random(seed)
    for _ in range(20):
        count = chance.randint(1, 60)
        lanes = some_window(found, rows, chance).lanes
        last = found.window(rows, lanes, count=count)
        everything = found.shown(Window(rows, lanes, 0, len(found)))
        assert last.end == len(found) and len(found.shown(last)) == min(count, len(everything))
        window = some_window(found, rows, chance)
        far = found.moved(window, first=-10_000, end=10_000)
        assert (far.first, far.end) == (0, len(found))
        assert found.moved(window, first=0, end=0) == window
        assert found.moved(window, first=10_000, end=-10_000) == window, "it keeps an event"
        if rows == "agents":
            wider = found.moved(window, first=-3, end=2)
            assert set(found.shown(window)) <= set(found.shown(wider))
            before = [each for each in found.shown(Window(rows, window.lanes, 0, window.first))]
            after = [each for each in found.shown(Window(rows, window.lanes, window.end, len(found)))]
            assert found.shown(wider) == [*before[-3:], *found.shown(window), *after[:2]]


def ring(agents: int, hosts: int = 3) -> EventLog:
    events: list[TracedEvent] = []
    for number in range(agents):
        name, to = f"a{number}", f"a{(number + 1) % agents}"
        for _ in range(1 + number % 3):
            events.append(
                TracedEvent(MessageSent(name, f"{name}>{to}:{len(events)}", to), f"h{number % hosts}", 1 + len(events))
            )
    return EventLog(events, is_whole=True)


def test_of_many_agents_the_busiest_have_rows_below_their_hosts() -> None:
    found = ring(10_000)
    lanes = found.rows_of("agents")
    agents = [lane for lane in lanes if not lane.startswith("host:")]
    assert len(agents) == ROWS_MAX and all(found.busy[agent] == 3 for agent in agents)
    assert lanes[0].startswith("host:") and agents == sorted(agents, key=lambda a: (found.homes[a], natural_key(a)))
    assert len([lane for lane in found.rows_of("agents", ["a"]) if not lane.startswith("host:")]) == CHOSEN_MAX
    assert found.rows_of("agents", ["a17"]) == ("host:h2", "a17"), (
        "a name means that agent, and no other that contains it"
    )
    assert len(found.rows_of("agents", ["A99"])) > 10, "what is no name is looked for in names"
    assert found.rows_of("agents", ["nobody"]) == ()
    assert found.rows_of("hosts") == ("host:h0", "host:h1", "host:h2")
    assert len(found.rows_of("hosts")) <= CHOSEN_MAX >= len(ring(300, 100).rows_of("hosts"))


def test_names_are_text_in_pictures_and_logs() -> None:
    evil = "<script>alert('&\"1')</script> {}\n\u202e"
    events = [
        TracedEvent(MessageSent(evil, f"{evil}>b:1", "b"), evil, 5),
        TracedEvent(MessageReceived("b", f"{evil}>b:1"), "h2", 6),
        TracedEvent(CheckpointTaken(evil, 1), evil, 7, (1,)),
        TracedEvent(TracedMarkerSend(evil, "m", "h2", 1), evil, 8),
        TracedEvent(MarkerCame("h2", "m", evil, 1), "h2", 9),
    ]
    found = EventLog(events, is_whole=True)
    window = found.window("agents", found.rows_of("agents"), count=9)
    drawn = draw_window(found, window, found.chosen(window, 1), href=lambda position: f"/?a={evil}&event={position}")
    root = ElementTree.fromstring(drawn)
    assert "<script" not in drawn and "\u202e" not in drawn and not root.findall(f".//{SVG}script")
    lanes = [each.get("data-agent", "") for each in root.iter() if "agent" in each.get("class", "").split()]
    assert len(lanes) == 4
    log = shiviz_events(found.shiviz(window))
    check_shiviz(log)
    assert len(log) == 5 and len({host for host, _, _ in log}) == 4


def test_a_trace_that_begins_in_the_middle_names_no_message_an_orphan() -> None:
    received = TracedEvent(MessageReceived("b", "a>b:7"), "h1", 5)
    for is_whole, state in ((False, "ordinary"), (True, "orphan")):
        found = EventLog([received], is_whole=is_whole)
        (arrow,) = scene_of(found, found.window("agents", ("host:h1", "b"), count=5)).arrows
        assert arrow.state == state and arrow.sender == ""


def test_rows_whose_events_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happened_module, "KEPT_MAX", 2)
    found = ring(9)
    shown = [len(found.shown(replace(found.window("agents", (f"a{n}",), count=9)))) for n in range(9)]
    assert shown == [1, 2, 3] * 3 and len(found._kept) <= 2


@pytest.mark.parametrize("step_ns", [7_000, 40_000_000])
def test_the_ticks_of_an_axis_say_different_times(step_ns: int) -> None:
    events = [TracedEvent(MessageSent("a", f"m{n}", "b"), "h1", 10**18 + n * step_ns) for n in range(100)]
    found = EventLog(events, is_whole=True)
    scene = scene_of(found, found.window("agents", ("host:h1", "a"), count=100))
    times = [words for _, words in scene.ticks(10)]
    assert len(times) == 10 == len(set(times))
