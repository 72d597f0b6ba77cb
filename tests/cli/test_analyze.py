"""`snapline analyze`: what it reads, what it prints and draws, and how it fails."""

import gzip
import io
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.kit.command_line import Run
from typer.testing import CliRunner

from snapline.cli import analyze as module
from snapline.cli.analyze import DiagramOptions, parse_names
from snapline.cli.main import app
from snapline.errors import UsageError
from snapline.recovery.trace import CheckpointTaken as Taken
from snapline.recovery.trace import Event, Header, MessageReceived, MessageSent, encode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


EVENTS: list[Event] = [
    Taken("a", 1),
    MessageSent("a", "m1", "b"),
    MessageReceived("b", "m1"),
    Taken("b", 1, "forced"),
    MessageSent("b", "m2", "a"),
    MessageReceived("a", "m2"),
    MessageSent("c", "m3", "a"),
]


def write(path: Path, events: Iterable[Event] = EVENTS) -> Path:
    path.write_bytes(b"".join(map(encode, [Header(agents=["a", "b", "c"]), *events])))
    return path


@pytest.fixture
def trace(folder: Path) -> Path:
    return write(folder / "trace.jsonl")


def test_one_object_with_all_fields(run: Run, trace: Path) -> None:
    done = run("analyze", trace, "--failed", "b", "-o", "json")
    assert done.code == 0 and done.err == ""
    assert list(done.json.items()) == [
        ("apiVersion", "snapline/v1"),
        ("kind", "TraceAnalysis"),
        ("agents", ["a", "b", "c"]),
        ("failed", ["b"]),
        ("recovery_line", {"a": 1, "b": 0, "c": None}),
        ("rollback", {"a": {"checkpoints": 0, "events": 2}, "b": {"checkpoints": 1, "events": 2}}),
        ("in_transit", ["m3"]),
        ("domino", {"rolled_back": 2, "depth": 2, "reached_initial": ["b"]}),
        ("useless", {"b": [1]}),
        ("obsolete", {"a": [0], "b": [1]}),
        ("checkpoints", {"basic": 1, "forced": 1}),
    ]


def test_all_fail_by_default(run: Run, trace: Path) -> None:
    assert run("analyze", trace, "-o", "json").json["failed"] == ["a", "b", "c"]
    assert run("analyze", trace, "--failed", "c, a", "-o", "json").json["failed"] == ["a", "c"]


def test_the_example_of_the_page(run: Run, folder: Path) -> None:
    section = PAGE.read_text().partition("\n## analyze\n")[2].partition("\n## ")[0]
    lines, answer = re.findall(r"^```\n(.*?)^```$", section.partition("For example")[2], re.MULTILINE | re.DOTALL)
    (folder / "trace.jsonl").write_text(lines)
    done = run("analyze", "trace.jsonl", "--failed", "b", "-o", "json")
    assert list(done.json.items()) == list(json.loads(answer).items())


def test_standard_input_and_gzip(run: Run, run_process: Run, trace: Path) -> None:
    plain = run("analyze", trace, "-o", "json").out
    packed = trace.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert run("analyze", packed, "-o", "json").out == plain
    for given in (trace, packed):
        done = CliRunner().invoke(app, ["analyze", "-", "-o", "json"], input=given.read_bytes())
        assert (done.exit_code, done.stdout) == (0, plain)


def test_a_protocol_decides_anew(run: Run, trace: Path) -> None:
    done = run("analyze", trace, "--protocol", "bcs", "-o", "json")
    assert (done.json["forced"], done.json["checkpoints"]) == ({"b": [0]}, {"basic": 1, "forced": 1})
    assert done.json["recovery_line"] == {"a": 1, "b": 1, "c": 0}
    done = run("analyze", trace, "--protocol", "none", "-o", "json")
    assert (done.json["forced"], done.json["checkpoints"]) == ({}, {"basic": 1, "forced": 0})
    assert "forced" not in run("analyze", trace, "-o", "json").json


# -- a folder -----------------------------------------------------------------------------------------------------------

HOSTS = {
    "h1.x.jsonl": [
        {"event": "plan", "plan": 1, "line": {"a": 0}},
        {"event": "send", "agent": "a", "message": "a>b:1", "to": "b"},
        {"event": "checkpoint", "agent": "a", "index": 1, "kind": "coordinated", "epochs": [1]},
    ],
    "h2.y.jsonl": [
        {"event": "plan", "plan": 1, "line": {"b": 0}},
        {"event": "receive", "agent": "b", "message": "a>b:1"},
        {"event": "receive", "agent": "b", "message": "a>b:2"},
    ],
}


@pytest.fixture
def hosts(folder: Path) -> Path:
    """Traces of two hosts; the first was killed when it had sent another message."""
    (folder / "hosts").mkdir()
    for name, lines in HOSTS.items():
        (folder / "hosts" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "hosts"


def test_the_traces_of_a_folder_are_merged(run: Run, hosts: Path) -> None:
    done = run("analyze", hosts, "--merged", "all.jsonl", "-o", "json")
    assert (done.code, done.json["recovery_line"], done.json["checkpoints"]) == (
        0,
        {"a": 1, "b": 0},
        {"basic": 1, "forced": 0},
    )
    assert done.json["in_transit"] == ["a/1>b:1"]
    assert done.err.splitlines() == [
        "wrote all.jsonl",
        "snapline: the traces end before they say who sent some messages; left out: the end of b (from a>b:2 on)",
    ]
    again = run("analyze", "all.jsonl", "-o", "json")
    assert (again.code, again.out, again.err) == (0, done.out, "")


def test_a_broken_folder(run: Run, hosts: Path) -> None:
    (hosts / "h3.jsonl").write_text("{\n{}\n")
    done = run("analyze", "hosts", "-o", "json")
    assert (done.code, done.out) == (
        6,
        "",
    ) and "snapline: hosts: h3.jsonl: line 1: no line of a host's trace" in done.err
    (hosts / "h3.jsonl").unlink()
    (hosts / "h3.jsonl").mkdir()
    done = run("analyze", "hosts", "-o", "json")
    assert (done.code, done.out) == (2, "") and "h3.jsonl cannot be read: Is a directory" in done.err


# -- the report and the pictures ----------------------------------------------------------------------------------------


def test_the_report(run: Run, trace: Path) -> None:
    pytest.importorskip("snapline.diagrams")
    out = run("analyze", trace, "--failed", "b", "-o", "table").out
    for pattern in (
        r"go back +2 of 3 agents",
        r"to the initial state +b\n",
        r"domino depth +2\n",
        r"messages in transit +1\n",
        r"checkpoints +1 basic, 1 forced\n",
        r"\na +1 +0 +2 +0\n",
        r"\nb +0 \(initial\) +1 +2 +1 +1\n",
        r"\nc +live state",
    ):
        assert re.search(pattern, re.sub(r" +\n", "\n", out)), pattern
    assert "FORCED AT" not in out
    assert "FORCED AT" in run("analyze", trace, "--protocol", "bcs", "-o", "table").out


def test_many_agents_and_many_numbers_are_cut_short(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_diagram", lambda execution, analysis: "")
    events: list[Event] = [Taken("a", number) for number in range(1, 5_001)]
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(map(encode, [Header(agents=[f"agent-{i}" for i in range(70)]), *events])))
    out = run("analyze", path, "-o", "table").out
    assert "agent-49" in out and "agent-50" not in out and "… and 21 more agents" in out
    assert len(run("analyze", path, "-o", "json").json["obsolete"]["a"]) == 5_000


def test_pictures_are_written_beside_the_answer(run: Run, trace: Path) -> None:
    pytest.importorskip("snapline.diagrams")
    done = run("analyze", trace, "--svg", "a.svg", "--html", "a.html", "--failed", "b", "-o", "json")
    assert done.code == 0 and done.json["kind"] == "TraceAnalysis"
    assert done.err == "wrote a.svg\nwrote a.html\n"
    assert ElementTree.fromstring(Path("a.svg").read_text()).tag.endswith("svg")
    assert "<svg" in Path("a.html").read_text()
    assert run("analyze", trace, "--svg", "b.svg", "-q", "-o", "json").err == ""


def test_the_window_of_the_picture(run: Run, trace: Path) -> None:
    svg = Path("a.svg")
    assert DiagramOptions().window(7) is None
    assert DiagramOptions(svg=svg, from_event=2).window(7) == (2, 7)
    assert DiagramOptions(svg=svg, to_event=9).window(7) == (0, 7)
    assert DiagramOptions(svg=svg, from_event=2, to_event=3).window(7) == (2, 3)
    for arguments in (
        ["--from", "2"],
        ["--svg", "a.svg", "--from", "7"],
        ["--svg", "a.svg", "--from", "3", "--to", "3"],
    ):
        done = run("analyze", trace, *arguments, "-o", "json")
        assert done.code == 2 and done.out == "" and "window" in done.err


# -- how it fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "trace.jsonl: line 1: no JSON object"),
        (encode(MessageReceived("b", "m1")), "trace.jsonl: line 1: 'b' receives message 'm1'"),
        (gzip.compress(b"\n" * 100, mtime=0)[:-9], "trace.jsonl cannot be unpacked"),
        (gzip.compress(b"\n" * 100, mtime=0)[:12] + b"\xff" * 20, "trace.jsonl cannot be unpacked"),
        (b"\x1f\x8bnonsense", "trace.jsonl cannot be unpacked"),
    ],
)
def test_a_broken_trace(run: Run, folder: Path, content: bytes, said: str) -> None:
    (folder / "trace.jsonl").write_bytes(content)
    done = run("analyze", "trace.jsonl", "-o", "json")
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith("snapline: ") and said in done.err and done.err.count("\n") == 1


def test_a_broken_trace_on_standard_input() -> None:
    done = CliRunner().invoke(app, ["analyze", "-"], input=b"[]")
    assert done.exit_code == 6 and "standard input: line 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "missing.jsonl cannot be read: No such file"),
        (["trace.jsonl", "--merged", "all.jsonl"], "trace.jsonl is no folder"),
        ([".", "--merged", "all.jsonl"], "all.jsonl would be one of the traces of ."),
        (["empty"], "empty has no traces (*.jsonl)"),
        (["trace.jsonl", "--failed", "a,x"], "no agent 'x': it has a, b, c"),
        (["trace.jsonl", "--failed", "a,,b"], "empty name"),
        (["trace.jsonl", "--protocol", "paxos"], "'paxos' is unknown: choose one of none"),
        ([], "TRACE"),
    ],
)
def test_misuse(run: Run, trace: Path, arguments: list[str], said: str) -> None:
    trace.with_name("empty").mkdir()
    done = run("analyze", *arguments, "-o", "json")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_picture_that_cannot_be_written(run: Run, trace: Path) -> None:
    pytest.importorskip("snapline.diagrams")
    done = run("analyze", trace, "--svg", "nowhere/a.svg", "-o", "json")
    assert done.code == 2 and "nowhere/a.svg cannot be written" in done.err


def test_names_of_the_failed() -> None:
    assert parse_names(None) is parse_names("") is parse_names("  ") is None
    assert parse_names(" a, b c ") == ["a", "b c"]
    with pytest.raises(UsageError, match="empty name"):
        parse_names(",")


def test_a_large_trace_is_analysed_in_seconds(run_process: Run, folder: Path) -> None:
    """100,000 events of 50 agents in a fresh process; the benchmark has the figures."""
    buffer = io.BytesIO()
    for position in range(50_000):
        sender, receiver = f"agent-{position % 50}", f"agent-{position * 7 % 50}"
        buffer.write(encode(MessageSent(sender, f"m{position}", receiver)))
        buffer.write(encode(MessageReceived(receiver, f"m{position}")))
    (folder / "trace.jsonl").write_bytes(buffer.getvalue())
    start_s = time.perf_counter()
    assert run_process("analyze", "trace.jsonl", "-o", "json").code == 0
    assert time.perf_counter() - start_s < 10
