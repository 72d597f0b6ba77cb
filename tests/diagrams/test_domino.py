"""The page: one file without a network, whose script finds the same domino as Python and shows the same states."""

import functools
import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.recovery.executions import parse, random_trace

from snapline.diagrams.trace_diagrams import AnalyzedTrace, analysis_html, analysis_svg
from snapline.diagrams.trace_diagrams import script as page_script
from snapline.errors import UsageError
from snapline.recovery.execution import domino_rounds
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, Trace
from snapline.recovery.trace_analysis import analyze

NASTY = '</script></title><script>alert("1")</script>&\'\x00\u2028@data@'

ASK = """
const asked = module.exports;
const answers = require("fs").readFileSync(0, "utf8").split("\\n").filter(Boolean).map((line) => {
  const { trace, failed } = JSON.parse(line);
  return failed.map((agents) => {
    const rounds = asked.domino(trace, agents);
    const views = rounds.map((_, count) => asked.after(trace, rounds, count));
    const view = views[views.length - 1];
    return { rounds, lines: views.map((one) => one.line), lost: asked.lost(trace, view),
      states: trace.sent.map((_, message) => asked.stateOf(trace, view, message)) };
  });
});
console.log(JSON.stringify(answers));
"""


class Page(HTMLParser):
    """Elements, their attributes, and what scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data

    def embedded(self) -> dict[str, dict[str, list[object]]]:
        found = json.loads(self.scripts[0])
        assert isinstance(found, dict)
        return found


def traces() -> Iterator[Trace]:
    yield parse(" ".join(["a! a>b b! b>a"] * 30))
    yield parse("a! a>m:b")
    yield Trace(["a"], [])
    for seed in range(60):
        source = random.Random(seed)
        yield random_trace(source, source.randint(1, 6), source.randint(0, 150), source.choice((0.05, 0.2, 0.4)))


def failures(trace: Trace, source: random.Random) -> list[list[int]]:
    """Every single agent, all, nobody, and some sets."""
    agents = range(len(trace.agents))
    sets = [[agent for agent in agents if source.random() < 0.5] for _ in range(3)]
    return [[], list(agents), *([agent] for agent in agents), *sets]


@functools.cache
def questions() -> str:
    source = random.Random(1)
    return "\n".join(
        json.dumps({"trace": Page(analysis_html(trace)).embedded()["trace"], "failed": failures(trace, source)})
        for trace in traces()
    )


def ask(script: str) -> list[list[dict[str, list[object]]]]:
    """What the script answers for `traces`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the script cannot be run here")
    done = subprocess.run(
        [node, "-e", script + ASK], check=False, input=questions(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-500:]
    answers = json.loads(done.stdout)
    assert isinstance(answers, list)
    return answers


def check(script: str) -> None:
    source = random.Random(1)
    for trace, answers in zip(traces(), ask(script), strict=True):
        for failed, answer in zip(failures(trace, source), answers, strict=True):
            names = [trace.agents[agent] for agent in failed]
            analysis = analyze(trace, names)
            ordinal = {agent: index for index, agent in enumerate(trace.agents)}
            sent = {event.message: at for at, event in enumerate(sends(trace))}
            assert answer["rounds"] == [
                {
                    "moved": [[ordinal[agent], number] for agent, number in one.moved.items()],
                    "orphans": [sent[message] for message in one.orphans],
                }
                for one in domino_rounds(trace, names)
            ]
            assert answer["lines"][-1] == list(analysis.recovery_line.values())
            drawn = AnalyzedTrace(trace, analysis).arrows((0, len(trace.events) - 1))
            assert answer["states"] == [arrow.state for arrow in drawn]
            undone = [analysis.rollback[agent].events if agent in analysis.rollback else 0 for agent in trace.agents]
            assert answer["lost"] == undone


def sends(trace: Trace) -> list[MessageSent]:
    return [event for event in trace.events if isinstance(event, MessageSent)]


def test_the_script_finds_the_same_rounds_lines_and_states_as_python() -> None:
    check(page_script())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trace.received[message] < at[", "trace.received[message] >= at["),
        ("Math.min(number, lowest", "Math.max(number, lowest"),
        ("return low;", "return high > 0 ? high - 1 : 0;"),
        ("if (!isSentInside)", "if (isReceivedInside)"),
    ],
)
def test_a_mistake_in_the_script_would_be_seen(old: str, new: str) -> None:
    assert old in page_script()
    with pytest.raises(AssertionError):
        check(page_script().replace(old, new))


def test_the_page_needs_nothing_from_outside() -> None:
    trace = parse("a! a>b b! b>a")
    page = Page(analysis_html(trace))
    for _, values in page.found:
        assert not {"src", "href", "action", "data-src"} & values.keys()
    policy = [values["content"] for tag, values in page.found if tag == "meta" and "http-equiv" in values]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", analysis_html(trace))


def test_names_and_ids_cannot_break_out_of_the_page() -> None:
    trace = Trace([NASTY, "b"], [MessageSent(NASTY, NASTY, "b"), MessageReceived("b", NASTY), CheckpointTaken("b", 1)])
    written = analysis_html(trace)
    page = Page(written)
    assert [tag for tag, _ in page.found].count("script") == 2
    assert written.count("</script>") == 2
    assert "\u2028" not in written and "\x00" not in written
    assert page.embedded()["trace"]["agents"] == [NASTY, "b"]
    assert page.embedded()["trace"]["messages"] == [NASTY]


def test_with_a_protocol_the_page_shows_its_execution() -> None:
    trace = parse("b>c c! c>a a>b a!f")
    taken = [len(positions) for positions in checkpoints(analysis_html(trace, protocol="none"))]
    assert taken == [1, 2, 1], "the forced one is dropped"
    forced = analysis_html(trace, protocol="cbr")
    assert "Domino under cbr" in forced
    assert sum(len(positions) for positions in checkpoints(forced)) == 3 + 1 + 3
    with pytest.raises(UsageError):
        analysis_html(trace, protocol="no-such")


def checkpoints(page: str) -> list[list[object]]:
    found = Page(page).embedded()["trace"]["checkpoints"]
    assert all(isinstance(positions, list) for positions in found)
    return [positions for positions in found if isinstance(positions, list)]


def test_a_large_trace_shows_a_window_and_holds_the_whole_domino() -> None:
    trace = random_trace(random.Random(1), 10, 5_000, 0.05)
    written = analysis_html(trace)
    assert "Window: events 3,000 to 4,999" in written
    assert len(Page(written).embedded()["trace"]["sent"]) == len(sends(trace))
    assert len(written) < 1_500_000


def in_browser(page: str, address: str, folder: Path) -> Page:
    """The page as its script leaves it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium is installed: the page cannot be opened here")
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [chromium, *options, f"{path.as_uri()}{address}"], check=True, capture_output=True, text=True, timeout=100
    )
    return Page(done.stdout)


def check_shown(shown: Page, trace: Trace, failed: list[str]) -> None:
    expected = Page(analysis_svg(trace, analyze(trace, failed)))
    for name in ("state", "undone", "line"):
        assert marked(shown, name) == marked(expected, name)
    line, drawn = (
        [
            float(number)
            for _, values in page.found
            if values.get("class") == "recoveryline"
            for number in numbers(values)
        ]
        for page in (expected, shown)
    )
    assert len(line) > 4
    assert drawn[: len(line)] == pytest.approx(line, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("failed", ["0", "1,2", "", "all"])
def test_a_browser_shows_what_the_svg_shows(failed: str, tmp_path: Path) -> None:
    trace = random_trace(random.Random(7), 3, 60, 0.15)
    shown = in_browser(analysis_html(trace), f"#failed={failed}&round=last", tmp_path)
    names = trace.agents if failed == "all" else [trace.agents[int(agent)] for agent in failed.split(",") if agent]
    check_shown(shown, trace, names)


@pytest.mark.slow
def test_clicks_and_keys_choose_the_failure_and_the_round(tmp_path: Path) -> None:
    """Nobody, then a by its name, then b by its end, then the last round; one back and one forth changes nothing."""
    trace = random_trace(random.Random(7), 3, 60, 0.15)
    actions = """<script>
    const click = (selector) =>
      document.querySelector(selector).dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
    click("#none"); click(".agent[data-ordinal='0']"); click(".hit[data-ordinal='1']");
    press("End"); press("ArrowLeft"); press("ArrowRight");
    </script></body>"""
    page = analysis_html(trace)
    shown = in_browser(page.replace("</body>", actions), "", tmp_path)
    check_shown(shown, trace, trace.agents[:2])


def marked(page: Page, name: str) -> dict[tuple[str | None, ...], str]:
    """What bears `data-<name>`, by message or by agent and number."""
    found: dict[tuple[str | None, ...], str] = {}
    for _, values in page.found:
        value = values.get(f"data-{name}")
        if value is not None and ("data-message" in values or "data-position" in values):
            found[values.get("data-message"), values.get("data-agent"), values.get("data-number")] = value
    return found


def numbers(values: dict[str, str | None]) -> list[str]:
    return re.findall(r"[\d.]+", values.get("d") or "")
