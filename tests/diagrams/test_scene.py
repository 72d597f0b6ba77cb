"""Scenes and their pictures: well-formed, deterministic, and true to the cut."""

import random
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from snapline.diagrams import svg
from snapline.diagrams.scene import Arrow, Band, Bar, Front, Mark, Scene, Sign, Track, clock, state_at_cut
from snapline.diagrams.svg import draw
from snapline.errors import UsageError

SVG = "{http://www.w3.org/2000/svg}"


def scene(agents: list[str], first: int = 0, last: int = 100, **parts: Any) -> Scene:
    """Parts on lanes, from a time to a time."""
    return Scene(heading="made up", agents=agents, first=first, last=last, ticks=clock(first, last), **parts)


def made_up(*, lanes: int, messages: int, seed: int = 1, window: tuple[int, int] = (0, 2_300_000_000)) -> Scene:
    """Messages at random; every agent records once at about half of the time, so that the cut is crossed."""
    source = random.Random(seed)
    names = [f"agent-{index}" for index in range(lanes)]
    sent = sorted(source.randrange(0, 2_000_000_000) for _ in range(messages))
    records = {name: 1_000_000_000 + source.randrange(50_000_000) for name in names}
    arrows = []
    for number, time in enumerate(sent):
        ends = (source.choice(names), source.choice(names))
        received = () if source.random() < 0.1 else (time + source.randrange(1_000_000, 300_000_000),)
        bare = Arrow(f"message {number}", *ends, time, received)
        arrows.append(replace(bare, state=state_at_cut(records, bare)))
    return scene(
        names,
        *window,
        marks=[
            *(Mark(name, 0, "initial") for name in names),
            *(Mark(name, time, "coordinated", words=("epoch 1",)) for name, time in records.items()),
            Mark(names[0], 500_000_000, "basic"),
            Mark(names[1], 600_000_000, "forced"),
        ],
        arrows=arrows,
        signs=[Sign(names[1], 1_700_000_000, "kill", "killed")],
        bands=[
            Band(1_050_000_000, 1_700_000_000, "undone"),
            Band(1_700_000_000, 1_900_000_000, "recovery", label="recovery 1"),
            Band(1_700_000_000, 1_900_000_000, "down", names[1]),
        ],
        fronts=[Front("cut", "cut of epoch 1", records)],
    )


def elements(text: str, of_class: str) -> list[ElementTree.Element]:
    """The drawing's elements of one class, without the legend's samples."""
    found = []
    for element in ElementTree.fromstring(text).iter():
        if of_class in element.get("class", "").split() and any(name.startswith("data-") for name in element.attrib):
            found.append(element)
    return found


def test_fifty_agents_in_a_window_draw_what_touches_the_window_and_nothing_outside() -> None:
    window = (950_000_000, 1_100_000_000)
    shown = made_up(lanes=50, messages=2000, window=window)
    text = draw(shown)
    drawn = elements(text, "message")
    expected = [
        arrow
        for arrow in shown.arrows
        if arrow.sent is not None and arrow.sent <= window[1] and max((arrow.sent, *arrow.received)) >= window[0]
    ]
    assert 0 < len(expected) < 2000
    assert len(drawn) == len(expected)
    width = float(ElementTree.fromstring(text).get("width", "0"))
    for element in drawn:
        numbers = element.get("d", "").replace("M", " ").replace("L", " ").replace("Q", " ").split()
        assert all(0 <= float(number) <= width for number in numbers[::2])
    assert not elements(text, "initial")
    assert len(elements(text, "coordinated")) == 50


@pytest.mark.parametrize(
    ("sent_ns", "received_ns", "state"),
    [
        (5, 8, "ordinary"),
        (5, 25, "in-transit"),
        (5, None, "in-transit"),
        (15, 18, "orphan"),
        (15, 25, "ordinary"),
        (15, None, "ordinary"),
        (10, 20, "ordinary"),
    ],
)
def test_a_message_is_judged_by_each_line_s_own_record(sent_ns: int, received_ns: int | None, state: str) -> None:
    """The sender records at 10, the receiver at 20; 15 to 18 is before one and after the other."""
    arrow = Arrow("m", "a", "b", sent_ns, () if received_ns is None else (received_ns,))
    assert state_at_cut({"a": 10, "b": 20}, arrow) == state
    assert state_at_cut({}, arrow) == state_at_cut({"a": 10}, arrow) == "ordinary", "without a record of an agent"


def test_the_maker_s_word_of_a_message_holds() -> None:
    told = Arrow("m", "a", "b", 1, (2,), "in-transit")
    text = draw(scene(["a", "b"], arrows=[told], fronts=[Front("cut", "", {"a": 5, "b": 5})]))
    assert [element.get("data-state") for element in elements(text, "message")] == ["in-transit"]


def test_the_cut_runs_through_its_records_in_the_order_of_the_lanes() -> None:
    cut = {"c": 90, "a": 10, "b": 50}
    marks = [Mark(agent, time, "basic") for agent, time in cut.items()]
    text = draw(scene(["a", "b", "c"], fronts=[Front("cut", "", cut)], marks=marks))
    points = [point.split() for point in elements(text, "cut")[0].get("d", "")[1:].split("L")]
    corners = sorted(float(point[0]) for point in points[1:-1])
    squares = sorted(float(element.get("d", "M0 0")[1:].split()[0]) + 6 for element in elements(text, "checkpoint"))
    assert corners == pytest.approx(squares, abs=0.2)
    assert [float(x) for x, _ in points[1:-1]] == corners


def test_above_the_limit_messages_of_the_cut_are_kept_and_the_picture_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "ARROWS_MAX", 100)
    shown = made_up(lanes=4, messages=400)
    special = sum(arrow.state != "ordinary" for arrow in shown.arrows)
    text = draw(shown)
    assert len(elements(text, "message")) == 100
    assert sum(element.get("data-state") != "ordinary" for element in elements(text, "message")) == special
    assert "100 of 400 messages drawn" in text


def test_names_and_labels_cannot_break_out_of_the_text() -> None:
    """Labels come from users' data; the picture is put into web pages."""
    nasty = '</title><script>alert("1")</script>&\x00\x1b'
    shown = scene(
        [nasty, "b"],
        arrows=[Arrow(nasty, nasty, "b", 1, (2,), words=(nasty,))],
        marks=[Mark(nasty, 1, "basic", words=(nasty,))],
        bands=[Band(0, 3, "recovery", label=nasty), Band(5, 6, "down", nasty, nasty)],
        signs=[Sign(nasty, 5, "kill", nasty)],
        tracks=[Track(nasty, [Bar(0, 9, "fault", nasty, nasty)])],
        fronts=[Front("cut", nasty, {nasty: 1}, nasty)],
        notes=[nasty],
        values={"kind": nasty},
    )
    root = ElementTree.fromstring(draw(replace(shown, heading=nasty, words=nasty, meanings={"cut": nasty})))
    assert not list(root.iter(f"{SVG}script"))
    assert elements(draw(shown), "message")[0].get("data-sender", "").startswith("</title><script>")


def test_an_empty_scene_is_still_a_picture() -> None:
    assert ElementTree.fromstring(draw(scene([], 0, 0))).tag == f"{SVG}svg"


def test_the_times_on_the_axis_are_round_and_count_from_the_origin() -> None:
    ticks = clock(7, 1_000_000_007, origin_ns=7)
    text = draw(replace(scene(["a"], 7, 1_000_000_007), ticks=ticks))
    assert ">500 ms<" in text
    assert ">0 ms<" in text
    assert ">1000 ms<" in text


def test_a_part_on_an_unknown_lane_is_refused() -> None:
    with pytest.raises(UsageError, match="no lane for b"):
        scene(["a"], arrows=[Arrow("m", "a", "b", 1)])
    with pytest.raises(UsageError, match="twice"):
        scene(["a", "a"])


def test_bars_that_overlap_get_rows_of_their_own_and_too_many_are_counted() -> None:
    bars = [Bar(0, 100, "fault", f"fault {index}", "") for index in range(20)]
    text = draw(scene(["a"], tracks=[Track("faults", bars), Track("h1", [Bar(0, 50, "up", "", "")])]))
    root = ElementTree.fromstring(text)
    drawn = [float(element.get("y", "")) for element in root.iter(f"{SVG}rect") if element.get("class") == "fault"]
    assert len(set(drawn[:12])) == 12 and len(drawn) == 13, "twelve, and one in the legend"
    assert "12 of 20 faults drawn." in text
