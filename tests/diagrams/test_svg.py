"""Pictures of analysed traces: true to the analysis, whole or in a window, and safe whatever the names are."""

import random
import re
from collections.abc import Iterable
from xml.etree import ElementTree

import msgspec
import pytest
from tests.recovery.executions import Ends, parse, random_trace, rounds_by_definition

from snapline.diagrams import svg as pictures_svg
from snapline.diagrams.style import COLORS
from snapline.diagrams.text import analysis_text
from snapline.diagrams.trace_diagrams import analysis_html, analysis_svg
from snapline.errors import UsageError
from snapline.recovery.execution import Round
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Trace
from snapline.recovery.trace_analysis import Analysis, analyze

SVG = "{http://www.w3.org/2000/svg}"

STAIRCASE = " ".join(["a! a>b b! b>a"] * 20)

NASTY = '</script></title><script>alert("1")</script>&\'\x00\x1b\u2028@data@'


def elements(svg: str, name: str, **values: str) -> list[ElementTree.Element]:
    """What bears `data-<name>`, with these `data-*` values."""
    return [
        element
        for element in ElementTree.fromstring(svg).iter()
        if element.get(f"data-{name}") is not None
        and all(element.get(f"data-{key}") == value for key, value in values.items())
    ]


def names(found: Iterable[ElementTree.Element], name: str) -> list[str]:
    return [element.get(f"data-{name}", "") for element in found]


def states_by_definition(trace: Trace, analysis: Analysis) -> dict[str, str]:
    """Every message's state beside the line, from intervals alone."""
    ends = Ends(trace)
    line = {agent: ends.last[agent] + 1 if at is None else at for agent, at in analysis.recovery_line.items()}
    forced = {message for _, orphans in rounds_by_definition(trace, analysis.failed) for message in orphans}
    states = {}
    for message, (sender, interval) in ends.sent.items():
        is_sent_inside = interval < line[sender]
        is_received_inside = message in ends.received and ends.received[message][1] < line[ends.received[message][0]]
        inside = "ordinary" if is_received_inside else "in-transit"
        states[message] = "orphan" if message in forced else inside if is_sent_inside else "undone"
    return states


def random_traces(count: int) -> Iterable[tuple[Trace, list[str]]]:
    """With a failure each: of nobody, of some, of all."""
    for seed in range(count):
        source = random.Random(seed)
        trace = random_trace(source, source.randint(1, 5), source.randint(0, 60), source.choice((0.1, 0.3)))
        yield trace, [agent for agent in trace.agents if source.random() < source.choice((0.0, 0.5, 1.0))]


def test_every_message_bears_its_state_beside_the_line() -> None:
    seen = set()
    for trace, failed in random_traces(200):
        analysis = analyze(trace, failed)
        svg = analysis_svg(trace, analysis)
        drawn = {element.get("data-message"): element.get("data-state") for element in elements(svg, "message")}
        assert drawn == states_by_definition(trace, analysis)
        assert sorted(names(elements(svg, "message", state="in-transit"), "message")) == sorted(analysis.in_transit)
        seen |= set(drawn.values())
    assert seen == {"ordinary", "in-transit", "orphan", "undone"}


@pytest.mark.parametrize("wrong", ["line", "orphans"])
def test_a_wrong_line_or_wrong_rounds_would_be_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = parse("a! a>b b! b>a a>m:b")
    analysis = analyze(trace, ["b"])
    expected = states_by_definition(trace, analysis)
    if wrong == "line":
        monkeypatch.setitem(analysis.recovery_line, "a", None)
    else:
        no_orphans = [Round({"b": 1}, [])]
        monkeypatch.setattr("snapline.diagrams.trace_diagrams.domino_rounds", lambda trace, failed: no_orphans)
    drawn = elements(analysis_svg(trace, analysis), "message")
    assert {element.get("data-message"): element.get("data-state") for element in drawn} != expected


def test_checkpoints_bear_their_kind_and_what_the_analysis_says_of_them() -> None:
    for trace, failed in random_traces(100):
        analysis = analyze(trace, failed)
        svg = analysis_svg(trace, analysis)
        kinds = {(agent, 0): "initial" for agent in trace.agents}
        kinds |= {
            (event.agent, event.number): event.kind for event in trace.events if isinstance(event, CheckpointTaken)
        }
        drawn = elements(svg, "number", kind="initial") + elements(svg, "number", kind="basic")
        drawn += elements(svg, "number", kind="forced")
        assert {pair(element): element.get("data-kind") for element in drawn} == kinds

        def marked(name: str, svg: str = svg) -> set[tuple[str, int]]:
            return {pair(element) for element in elements(svg, "kind", **{name: "true"})}

        line = analysis.recovery_line
        assert marked("useless") == {(agent, number) for agent, them in analysis.useless.items() for number in them}
        assert marked("obsolete") == {(agent, number) for agent, them in analysis.obsolete.items() for number in them}
        assert marked("line") == {(agent, number) for agent, number in line.items() if number is not None}
        undone = {(agent, number) for agent, number in kinds if (at := line[agent]) is not None and number > at}
        assert marked("undone") == undone


def pair(element: ElementTree.Element) -> tuple[str, int]:
    return element.get("data-agent", ""), int(element.get("data-number", "-1"))


def test_checkpoints_differ_in_more_than_colour() -> None:
    """An open circle, a square, a diamond; a useless one bears a stroke."""
    trace = parse("b>c c! c>a a>b a!f b!")
    svg = analysis_svg(trace, analyze(trace))
    shapes = {
        (element.get("data-kind"), re.sub(r"[-\d. ]+", "", element.get("d", ""))) for element in elements(svg, "number")
    }
    assert {kind: shape for kind, shape in shapes if kind} == {"initial": "Maaz", "basic": "Mhvhz", "forced": "MLz"}
    assert len(elements(svg, "useless")) == 1
    assert svg.count('class="strike"') == 2, "one in the picture, one in the legend"


def test_the_line_is_the_border_of_what_is_undone() -> None:
    trace = parse("a! a>b b! c! c>b b>c")
    analysis = analyze(trace, ["c"])
    assert analysis.recovery_line == {"a": None, "b": 1, "c": 1}
    svg = analysis_svg(trace, analysis)
    (line,) = elements(svg, "kind", kind="line")
    turns = [float(point.split()[0]) for point in line.get("d", "")[1:].split("L")[1:-1]]
    left = {element.get("data-agent"): float(element.get("x", "")) for element in bands(svg)}
    ends = {element.get("data-agent"): element.get("data-end") for element in elements(svg, "end")}
    assert turns[1:] == [left["b"], left["c"]]
    assert turns[0] > max(left.values())
    assert ends == {"a": "alive", "c": "kill"}


def bands(svg: str) -> list[ElementTree.Element]:
    return [element for element in elements(svg, "agent") if element.tag == f"{SVG}rect"]


def test_the_picture_tells_in_words_what_it_shows() -> None:
    trace = parse("a! a>b b! b>a")
    root = ElementTree.fromstring(analysis_svg(trace, analyze(trace, ["b"])))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Recovery line when b fails"
    assert root.findtext(f"{SVG}desc") == "2 of 2 agents go back, 1 to the initial state, domino of 2 rounds."


def many_agents(agents: int, events: int) -> Trace:
    made = random_trace(random.Random(1), agents, events, 0.1)
    name = {agent: f"agent-{index}" for index, agent in enumerate(made.agents)}
    renamed = [
        msgspec.structs.replace(event, agent=name[event.agent])
        if not isinstance(event, MessageSent)
        else MessageSent(name[event.agent], event.message, name[event.to])
        for event in made.events
    ]
    return Trace(list(name.values()), renamed)


def test_fifty_agents_show_a_window_of_the_last_events_and_say_so() -> None:
    trace = many_agents(50, 5_000)
    analysis = analyze(trace)
    svg = analysis_svg(trace, analysis)
    assert "Window: events 4,600 to 4,999; the trace has 5,000, counted from 0." in svg
    outside = sum(
        number is not None and not elements(svg, "line", agent=agent, number=str(number))
        for agent, number in analysis.recovery_line.items()
    )
    assert outside and f"The line lies before this window for {outside} agents" in svg
    assert len(svg) < 400_000
    width = float(ElementTree.fromstring(svg).get("width", "0"))
    assert width <= 1200
    for element in elements(svg, "message"):
        path = re.split("[MLQ ]", element.get("d", ""))[1::2]
        assert all(0 <= float(number) <= width for number in path)


def test_a_window_holds_what_touches_it() -> None:
    trace = random_trace(random.Random(2), 4, 300, 0.1)
    received = {event.message: at for at, event in enumerate(trace.events) if isinstance(event, MessageReceived)}
    sent = {event.message: at for at, event in enumerate(trace.events) if isinstance(event, MessageSent)}
    svg = analysis_svg(trace, analyze(trace, ["a"]), window=(100, 151))
    expected = {message for message, at in sent.items() if at <= 150 and received.get(message, at) >= 100}
    assert set(names(elements(svg, "message"), "message")) == expected
    shown = [int(number) for number in names(elements(svg, "position"), "position")]
    taken = [at for at, event in enumerate(trace.events) if isinstance(event, CheckpointTaken) and 100 <= at <= 150]
    assert shown == taken


def test_windows_are_cut_to_the_trace_and_refused_outside_it() -> None:
    trace = parse("a>b a! b!")
    analysis = analyze(trace)
    assert analysis_svg(trace, analysis, window=(-5, 99)) == analysis_svg(trace, analysis)
    assert names(elements(analysis_svg(trace, analysis, window=(2, 3)), "position"), "position") == ["2"]
    with pytest.raises(UsageError, match="has 4 events"):
        analysis_svg(trace, analysis, window=(4, 9))
    with pytest.raises(UsageError, match="from 3 to 3 is empty"):
        analysis_svg(trace, analysis, window=(3, 3))


def test_above_the_limit_the_telling_messages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(random.Random(3), 4, 400, 0.02)
    analysis = analyze(trace, ["a"])
    telling = [state for state in states_by_definition(trace, analysis).values() if state in ("in-transit", "orphan")]
    whole = len(elements(analysis_svg(trace, analysis), "message"))
    monkeypatch.setattr(pictures_svg, "ARROWS_MAX", len(telling))
    svg = analysis_svg(trace, analysis)
    assert sorted(names(elements(svg, "message"), "state")) == sorted(telling)
    assert f"{len(telling)} of {whole} messages drawn." in svg


def test_the_same_trace_gives_the_same_bytes() -> None:
    def drawn() -> list[str]:
        trace = random_trace(random.Random(4), 5, 200, 0.1)
        analysis = analyze(trace, ["b"])
        return [analysis_svg(trace, analysis), analysis_text(trace, analysis), analysis_html(trace)]

    assert drawn() == drawn()


def test_names_and_ids_cannot_break_out() -> None:
    """They come from a file that anybody may have written, and pictures are opened in browsers and terminals."""
    trace = Trace([NASTY, "b"], [MessageSent(NASTY, NASTY, "b"), MessageReceived("b", NASTY), CheckpointTaken("b", 1)])
    analysis = analyze(trace)
    svg = analysis_svg(trace, analysis)
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))
    assert names(elements(svg, "message"), "message")[0].startswith("</script></title><script>")
    text = analysis_text(trace, analysis)
    assert all(character.isprintable() for character in text.replace("\n", ""))


@pytest.mark.parametrize("trace", [Trace([], []), Trace(["a"], []), parse("a!"), parse("a>a"), parse("a>m:b")])
def test_next_to_nothing_is_still_a_picture(trace: Trace) -> None:
    for analysis in (analyze(trace), analyze(trace, [])):
        assert ElementTree.fromstring(analysis_svg(trace, analysis)).tag == f"{SVG}svg"
        assert analysis_text(trace, analysis)
    assert analysis_html(trace).startswith("<!DOCTYPE html>")


def test_a_long_staircase_fits_and_says_how_far_it_fell() -> None:
    trace = parse(STAIRCASE)
    svg = analysis_svg(trace, analyze(trace))
    assert "2 of 2 agents go back, 1 to the initial state, domino of 39 rounds" in svg
    assert len(elements(svg, "message", state="orphan")) == 39


def test_a_viewer_that_knows_no_variables_sees_the_same_colours() -> None:
    """It drops declarations with `var()`, as CSS says; what is left must colour everything that they do."""
    trace = parse(STAIRCASE)
    sheet = re.search(r"<style>(.*?)</style>", analysis_svg(trace, analyze(trace)), re.DOTALL)
    assert sheet is not None
    meant = re.findall(r"([\w-]+): (#\w+); \1: var\(--([\w-]+)\);", sheet[1])
    assert len(meant) == len(re.findall(r"var\(--(?!snapline-)", sheet[1])) > 30
    assert all(plain == COLORS[name][0] for _, plain, name in meant)
