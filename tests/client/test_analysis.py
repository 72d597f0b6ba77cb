"""What a failure costs, as scripts and notebooks see it: the same answers as the command line's, and no text of a trace is HTML."""

from pathlib import Path

import pytest
from tests.recovery.executions import parse

import snapline
from snapline.recovery.trace import Header, MessageSent, encode

EVIL = "<script>alert(1)</script>"


def write(path: Path, line: str) -> Path:
    trace = parse(line)
    path.write_bytes(b"".join(map(encode, [Header(agents=trace.agents), *trace.events])))
    return path


def test_the_domino_of_a_staircase(tmp_path: Path) -> None:
    trace = snapline.open_trace(write(tmp_path / "trace.jsonl", " ".join(["a! a>b b! b>a"] * 3)))
    assert trace.agents == ["a", "b"] and len(trace) == 18 and repr(trace) == "<Trace: 2 agents, 18 events>"
    report = trace.domino(["a"])
    assert report.failed == ["a"] and report.line["recovery_line"] == report.line.agents
    assert report.rolled_back == 2 and report.depth > 1 and "of 2 agents go back, depth" in repr(report)
    assert "<svg" in report.page() and "<svg" in trace._repr_html_()
    shown = report._repr_html_()
    assert (
        "<svg" in shown and "2 of 2 agents go back if a fail" in shown and "<th>checkpoints passed over</th>" in shown
    )
    assert trace.domino(["a"], protocol="fdas").rolled_back <= 2
    with pytest.raises(snapline.UsageError, match="nobody"):
        trace.domino(["nobody"])


def test_a_folder_of_traces_and_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(snapline.UsageError, match="has no traces"):
        snapline.open_trace(tmp_path)
    with pytest.raises(snapline.UsageError, match="cannot be read"):
        snapline.open_trace(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text("?\n")
    with pytest.raises(snapline.TraceError, match=r"bad\.jsonl: line 1"):
        snapline.open_trace(tmp_path / "bad.jsonl")


def test_the_line_of_a_fleet_is_the_document_as_a_mapping() -> None:
    document = {"failed": ["host:h1"], "epoch": 7, "recovery_line": {"a": 7, "b": None}, "root": "00"}
    line = snapline.RecoveryLine(document)
    assert dict(line) == document and len(line) == 4 and line.failed == ["host:h1"]
    assert repr(line) == "<RecoveryLine: 1 of 2 agents go back if host:h1 fail>"
    assert "<td>b</td><td>keeps its live state</td>" in line._repr_html_() and "passed over" not in line._repr_html_()
    assert "all fail" in repr(snapline.RecoveryLine({"recovery_line": {}}))


def test_text_of_a_trace_is_no_html(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode(Header(agents=[EVIL, "b"])) + encode(MessageSent(EVIL, EVIL, "b")))
    trace = snapline.open_trace(path)
    for shown in (trace, trace.domino(), trace.domino().line):
        assert "<script" not in shown._repr_html_()
