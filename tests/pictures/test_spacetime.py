"""Space-time diagrams: well-formed, deterministic, and true to the cut."""

import random
from xml.etree import ElementTree

import pytest

from snapline.errors import MisuseError
from snapline.pictures import spacetime_svg
from snapline.pictures.spacetime import Band, Checkpoint, Diagram, Kill, Message, message_state
from snapline.pictures.spacetime_svg import draw

SVG = "{http://www.w3.org/2000/svg}"


def made_up_diagram(*, lines: int, messages: int, seed: int = 1) -> Diagram:
    """Messages at random; every line records once at about half of the time, so that the cut is crossed."""
    source = random.Random(seed)
    names = [f"agent-{index}" for index in range(lines)]
    sent = sorted(source.randrange(0, 2_000_000_000) for _ in range(messages))
    records = {name: 1_000_000_000 + source.randrange(50_000_000) for name in names}
    return Diagram(
        title="made up",
        lines=names,
        checkpoints=[
            *(Checkpoint(line=name, time_ns=0, kind="initial") for name in names),
            *(Checkpoint(line=name, time_ns=time, label="epoch 1") for name, time in records.items()),
            Checkpoint(line=names[0], time_ns=500_000_000, kind="basic"),
            Checkpoint(line=names[1], time_ns=600_000_000, kind="forced"),
        ],
        messages=[
            Message(
                sender=source.choice(names),
                receiver=source.choice(names),
                sent_ns=time,
                received_ns=None if source.random() < 0.1 else time + source.randrange(1_000_000, 300_000_000),
                label=f"message {number}",
            )
            for number, time in enumerate(sent)
        ],
        kills=[Kill(line=names[1], time_ns=1_700_000_000, restarted_ns=1_900_000_000)],
        bands=[
            Band(start_ns=1_050_000_000, end_ns=1_700_000_000, kind="undone"),
            Band(start_ns=1_700_000_000, end_ns=1_900_000_000, label="recovery 1"),
        ],
        cut=records,
    )


def elements(text: str, of_class: str) -> list[ElementTree.Element]:
    """The drawing's elements of one class, without the legend's samples."""
    found = []
    for element in ElementTree.fromstring(text).iter():
        if of_class in element.get("class", "").split() and any(name.startswith("data-") for name in element.attrib):
            found.append(element)
    return found


def test_three_agents_and_thirty_messages_are_all_drawn() -> None:
    diagram = made_up_diagram(lines=3, messages=30)
    text = draw(diagram)
    assert ElementTree.fromstring(text).tag == f"{SVG}svg"
    assert len(elements(text, "message")) == 30
    assert len(elements(text, "checkpoint")) == len(diagram.checkpoints)
    assert len(elements(text, "line")) == 4
    assert len(elements(text, "down")) == 1
    assert len(elements(text, "cut")) == 1
    assert len(elements(text, "kill")) == 1
    assert len(elements(text, "band")) == 2
    assert all(element.find(f"{SVG}title") is not None for element in elements(text, "message"))


def test_fifty_agents_in_a_window_draw_what_touches_the_window_and_nothing_outside() -> None:
    diagram = made_up_diagram(lines=50, messages=2000)
    window = (950_000_000, 1_100_000_000)
    text = draw(diagram, window=window)
    drawn = elements(text, "message")
    expected = [
        message
        for message in diagram.messages
        if message.sent_ns <= window[1]
        and (message.sent_ns if message.received_ns is None else message.received_ns) >= window[0]
    ]
    assert 0 < len(expected) < 2000
    assert len(drawn) == len(expected)
    width = float(ElementTree.fromstring(text).get("width", "0"))
    for element in drawn:
        numbers = element.get("d", "").replace("M", " ").replace("L", " ").replace("Q", " ").split()
        assert all(0 <= float(number) <= width for number in numbers[::2])
    assert not elements(text, "initial")
    assert len(elements(text, "coordinated")) == 50


def test_the_same_diagram_gives_the_same_text() -> None:
    assert draw(made_up_diagram(lines=5, messages=50)) == draw(made_up_diagram(lines=5, messages=50))


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
    message = Message(sender="a", receiver="b", sent_ns=sent_ns, received_ns=received_ns)
    assert message_state(message, {"a": 10, "b": 20}) == state
    text = draw(Diagram(title="", lines=["a", "b"], messages=[message], cut={"a": 10, "b": 20}))
    assert [element.get("data-state") for element in elements(text, "message")] == [state]


def test_without_a_cut_or_against_the_clocks_the_maker_s_word_holds() -> None:
    assert message_state(Message(sender="a", receiver="b", sent_ns=1), {}) == "ordinary"
    told = Message(sender="a", receiver="b", sent_ns=1, received_ns=2, state="in-transit")
    assert message_state(told, {"a": 5, "b": 5}) == "in-transit"


def test_the_cut_runs_through_its_records_in_the_order_of_the_lines() -> None:
    cut = {"c": 90, "a": 10, "b": 50}
    checkpoints = [Checkpoint(line=line, time_ns=time, kind="basic") for line, time in cut.items()]
    text = draw(Diagram(title="", lines=["a", "b", "c"], cut=cut, checkpoints=checkpoints), window=(0, 100))
    points = [point.split() for point in elements(text, "cut")[0].get("d", "")[1:].split("L")]
    corners = sorted(float(point[0]) for point in points[1:-1])
    squares = sorted(float(element.get("d", "M0 0")[1:].split()[0]) + 5 for element in elements(text, "checkpoint"))
    assert corners == pytest.approx(squares, abs=0.2)
    assert [float(x) for x, _ in points[1:-1]] == corners


def test_above_the_limit_messages_of_the_cut_are_kept_and_the_picture_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacetime_svg, "MESSAGES_MAX", 100)
    diagram = made_up_diagram(lines=4, messages=400)
    special = sum(message_state(message, diagram.cut) != "ordinary" for message in diagram.messages)
    text = draw(diagram)
    assert len(elements(text, "message")) == 100
    assert sum(element.get("data-state") != "ordinary" for element in elements(text, "message")) == special
    assert "100 of 400 messages drawn" in text


def test_names_and_labels_cannot_break_out_of_the_text() -> None:
    """Labels come from users' data; the picture is put into web pages."""
    nasty = '</title><script>alert("1")</script>&\x00\x1b'
    diagram = Diagram(
        title=nasty,
        lines=[nasty, "b"],
        messages=[Message(sender=nasty, receiver="b", sent_ns=1, received_ns=2, label=nasty)],
        checkpoints=[Checkpoint(line=nasty, time_ns=1, label=nasty)],
        bands=[Band(start_ns=0, end_ns=3, label=nasty)],
        cut={nasty: 1},
        cut_label=nasty,
    )
    root = ElementTree.fromstring(draw(diagram))
    assert not list(root.iter(f"{SVG}script"))
    assert elements(draw(diagram), "message")[0].get("data-sender", "").startswith("</title><script>")


def test_an_empty_diagram_is_still_a_picture() -> None:
    assert ElementTree.fromstring(draw(Diagram(title="nothing", lines=[]))).tag == f"{SVG}svg"


def test_the_times_on_the_axis_are_round() -> None:
    text = draw(Diagram(title="", lines=["a"], bands=[Band(start_ns=7, end_ns=1_000_000_007)]))
    assert ">500 ms<" in text
    assert ">0 ms<" in text
    assert ">1000 ms<" in text


def test_a_part_on_an_unknown_line_is_refused() -> None:
    with pytest.raises(MisuseError, match="no line for b"):
        Diagram(title="", lines=["a"], messages=[Message(sender="a", receiver="b", sent_ns=1)])
    with pytest.raises(MisuseError, match="twice"):
        Diagram(title="", lines=["a", "a"])
