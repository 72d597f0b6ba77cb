"""The picture for terminals: it fits, keeps causality, and dots what is undone."""

import inspect
import random
import re
import types
from collections.abc import Callable, Iterator

import pytest
from tests.recovery.executions import parse, random_trace

from snapline.diagrams import text as pictures_text
from snapline.diagrams.text import analysis_text
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Trace
from snapline.recovery.trace_analysis import analyze

Draw = Callable[..., str]
"""`analysis_text`, or a mutant of it."""

WORD = re.compile(r"\[\d+x?\]|\(\d+x?\)|\w+[~!]?>|[~!]?>\w+")
"""A checkpoint, a send, a receive. Rows put something else between any two."""


def rows(text: str) -> dict[str, str]:
    """Agent → its row without the name; names without spaces."""
    body = text.split("\n\n")[1]
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in body.splitlines()}


def random_traces(count: int) -> Iterator[tuple[Trace, list[str]]]:
    for seed in range(count):
        source = random.Random(seed)
        trace = random_trace(source, source.randint(1, 6), source.choice((5, 20, 200)), source.choice((0.03, 0.3)))
        yield trace, [agent for agent in trace.agents if source.random() < 0.5]


def test_a_small_trace_looks_like_this() -> None:
    trace = parse("a! a>b b! b>a a>b a!f c>a")
    text = analysis_text(trace, analyze(trace, ["b"]), width=72)
    assert text.splitlines() == [
        "Recovery line when b fails: 2 of 3 agents go back, 1 to the initial",
        "  state, domino of 2 rounds.",
        "",
        "a [0]-[1]|m2!>..............!>m4.m5>.(2).~>m7.",
        "b [0]|........!>m2.[1x].m4!>........>m5.......X",
        "c [0]--------------------------------m7~>-----|",
        "",
        "[n] checkpoint n   (n) forced   [nx] useless   m> sends m",
        "  >m receives m   ~> in transit   !> orphan   | recovery line",
        "  ... undone   X fails",
        "In transit: m7",
        "Orphans that forced rollbacks: m2, m4",
    ]


def test_no_line_is_wider_than_asked_for() -> None:
    for trace, failed in random_traces(60):
        for width in (40, 79, 100, 200):
            text = analysis_text(trace, analyze(trace, failed), width=width)
            assert max(map(len, text.splitlines())) <= width


def test_a_wide_terminal_shows_every_event_in_each_agent_s_order() -> None:
    for trace, failed in random_traces(60):
        text = analysis_text(trace, analyze(trace, failed), width=10_000)
        assert "Events" not in text
        label = dict(re.findall(r"(\d+) \((m\d+)\)", text))
        for agent, row in rows(text).items():
            words = [re.sub(r"[~!x]", "", word) for word in WORD.findall(row)]
            expected = ["[0]"]
            for event in trace.events:
                if event.agent != agent:
                    continue
                if isinstance(event, CheckpointTaken):
                    expected.append(f"({event.number})" if event.kind == "forced" else f"[{event.number}]")
                else:
                    expected.append("send" if isinstance(event, MessageSent) else "receive")
            kinds = [word if word[0] in "[(" else "receive" if word[0] == ">" else "send" for word in words]
            assert kinds == expected
        assert all(message in {event.message for event in sends(trace)} for message in label.values())


def sends(trace: Trace) -> list[MessageSent]:
    return [event for event in trace.events if isinstance(event, MessageSent)]


def columns(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Label → column where its send ends; label → column where its receive begins."""
    sent, received = {}, {}
    for row in rows(text).values():
        for match in WORD.finditer(row):
            label = re.sub(r"[~!>]", "", match[0])
            if match[0].endswith(">"):
                sent[label] = match.end()
            elif match[0][0] in "~!>":
                received[label] = match.start()
    return sent, received


def check_causality(draw: Draw) -> None:
    pairs = 0
    for trace, failed in random_traces(60):
        sent, received = columns(draw(trace, analyze(trace, failed), width=300))
        for label in sent.keys() & received.keys():
            assert received[label] >= sent[label]
            pairs += 1
    assert pairs > 500


def check_dots(draw: Draw) -> None:
    for trace, failed in random_traces(60):
        analysis = analyze(trace, failed)
        for agent, row in rows(draw(trace, analysis, width=10_000)).items():
            number = analysis.recovery_line[agent]
            if number is None:
                assert row.endswith("|") and "." not in row
                continue
            before, _, after = row.partition("|")
            assert re.search(rf"[\[(]{number}x?[\])]$", before)
            assert "." not in before and "-" not in after
            assert after.endswith("X") == (agent in failed)


def test_every_receive_stands_right_of_its_send() -> None:
    check_causality(analysis_text)


def test_dots_follow_the_line_and_dashes_lead_to_it() -> None:
    check_dots(analysis_text)


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("sent.get(step.arrow.message, -1) + 1", "0", check_causality),
        ("+ len(label) - 1", "- 1", check_causality),
        ("if cell.step.position == turn", "if cell.step.position > turn", check_dots),
        ("is_undone = turn < window[0]", "is_undone = False", check_dots),
    ],
)
def test_the_checks_see_mistakes(old: str, new: str, check: Callable[[Draw], None]) -> None:
    source = inspect.getsource(pictures_text)
    assert old in source
    mutant = types.ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), mutant.__dict__)  # noqa: S102
    with pytest.raises(AssertionError):
        check(mutant.analysis_text)


def test_what_does_not_fit_is_a_window_of_the_last_events() -> None:
    trace = random_trace(random.Random(3), 3, 500, 0.3)
    analysis = analyze(trace, [])
    text = analysis_text(trace, analysis)
    found = re.search(r"Events (\d+) to 499 of 500, counted from 0", text)
    assert found
    first = int(found[1])
    shown = sum(len(WORD.findall(row)) for row in rows(text).values())
    assert shown == 500 - first
    assert "[0]" not in text.split("\n\n")[1]
    assert max(map(len, rows(text).values())) > 80, "it uses the room there is"


def test_if_the_line_lies_before_the_last_events_the_window_goes_to_the_line() -> None:
    trace = parse(" ".join(["a! a>b b!"] * 5 + ["a>b"] * 200 + ["b>a"] * 5))
    analysis = analyze(trace, ["a"])
    text = analysis_text(trace, analysis)
    line = analysis.recovery_line["a"]
    assert f"[{line}]|" in rows(text)["a"]
    assert "Events 0 to" not in text or "[0]" in text
    assert "X" not in "".join(rows(text).values()), "the end is not in the window"


def test_of_too_many_agents_those_that_go_back_have_rows() -> None:
    trace = random_trace(random.Random(4), 26, 300, 0.3)
    analysis = analyze(trace, ["y"])
    text = analysis_text(trace, analysis, agents_max=5)
    shown = list(rows(text))
    back = [agent for agent, number in analysis.recovery_line.items() if number is not None]
    assert len(shown) == 5 and shown == sorted(shown)
    assert set(back) <= set(shown) if len(back) <= 5 else set(shown) <= set(back)
    assert "5 of 26 agents shown" in text


def test_long_ids_are_numbered_and_listed() -> None:
    first, second = MessageSent("a", "order-1", "b"), MessageSent("a", "order-2", "b")
    trace = Trace(["a", "b"], [first, second, MessageReceived("b", "order-2"), CheckpointTaken("a", 1)])
    text = analysis_text(trace, analyze(trace, []))
    assert "1~>-2>" in rows(text)["a"] and ">2" in rows(text)["b"]
    assert "In transit: 1 (order-1)" in text


def test_wide_characters_do_not_shift_a_row() -> None:
    trace = Trace(["京都", "b"], [CheckpointTaken("京都", 1), CheckpointTaken("b", 1)])
    first, second = analysis_text(trace, analyze(trace)).splitlines()[2:4]
    assert first.startswith("京都 [0]") and second.startswith("b    [0]")
