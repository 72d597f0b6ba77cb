"""Documents as JSON and as tables, and progress that a log can bear."""

import ast
import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from hypothesis import HealthCheck, given, settings, strategies
from rich.console import Console

from snapline.cli import output, progress, recovery, status
from snapline.cli.command import command
from snapline.cli.output import (
    Document,
    DocumentTables,
    OutputFormat,
    Printer,
    count,
    document,
    readable,
    rows_of,
    size,
    text,
)
from snapline.cli.progress import FleetProgress, describe
from snapline.errors import UsageError
from snapline.messages.answers import document_of
from snapline.messages.status import Concern, FleetStatus, HostStatus, LossStatus, StoreStatus


def test_json_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(OutputFormat.JSON).result(document("Thing", name="é", number=2**60), lambda result, tables: None)
    out = capsys.readouterr().out
    assert json.loads(out) == {"apiVersion": "snapline/v1", "kind": "Thing", "name": "é", "number": 2**60}


EVIL = "\x1b]0;owned\x07\r\u202egnp\x9b2J\ud800"
WRITTEN = r"\x1b]0;owned\x07\x0d\u202egnp\u009b2J\ud800"


@pytest.mark.parametrize("form", OutputFormat)
def test_no_control_of_a_fleets_texts_reaches_a_terminal(
    form: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = Printer(form)

    def show(_: Document, tables: DocumentTables) -> None:
        tables.line(EVIL)
        tables.fields([(EVIL, {"a": EVIL})])
        tables.table(("A",), [[EVIL]])

    printer.result(document("Thing", name=EVIL), show)
    printer.progress(EVIL)
    printer.warning(EVIL)
    said = capsys.readouterr()
    assert not set(said.out + said.err) & {"\x1b", "\x07", "\r", "\u202e", "\x9b", "\ud800"}
    assert said.err.count(WRITTEN) == 2
    assert json.loads(said.out)["name"] == EVIL if form is OutputFormat.JSON else said.out.count(WRITTEN) >= 2


def test_an_error_is_one_sentence_without_controls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPLINE_TRACEBACK", "1")

    @command
    def fail() -> None:
        raise UsageError(EVIL)

    with pytest.raises(typer.Exit):
        fail()
    assert "\x1b" not in (said := capsys.readouterr().err) and WRITTEN in said


def test_commands_print_what_is_fit_for_a_terminal() -> None:
    """Whatever is written past a Printer says itself that it is fit."""
    for path in Path(output.__file__).parent.glob("*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Call) and ast.unparse(each.func) in (
                "print",
                "sys.stderr.write",
                "sys.stdout.write",
            ):
                said = ast.unparse(each.args[0]) if each.args else ""
                assert "printable(" in said or isinstance(each.args[0], ast.Constant), (
                    f"{path.name}:{each.lineno}: {said}"
                )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"text", "text"),
        (b"\x00\xff", "00ff"),
        ({1: {b"a": (1, 2)}}, {"1": {'"a"': [1, 2]}}),
        ({"x", "y"}, ["x", "y"]),
        (None, None),
        (1.5, 1.5),
    ],
)
def test_any_value_can_be_shown(value: object, shown: object) -> None:
    assert readable(value) == shown
    json.dumps(readable(value))


def test_long_values_are_cut_in_tables_only() -> None:
    assert len(text(list(range(1000)))) <= 300
    assert text(list(range(1000))).endswith("…")


def test_tables_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[bold]" + "word " * 60
    Printer(OutputFormat.TABLE).result({}, lambda _, tables: tables.table(("A", "B"), [(long, 1), ("x", 20)]))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith(long) and len(lines) == 3
    assert lines[1].endswith(" 1") and lines[2].endswith("20"), "numbers stand on the right"


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[tuple[str, object]] = [("a", 0), ("b", None), ("c", ""), ("d", False)]
    Printer(OutputFormat.TABLE).result({}, lambda _, tables: tables.fields(rows))
    assert capsys.readouterr().out.split() == ["a", "0", "d", "false"]


def test_status_says_what_the_fleet_waits_for_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "hosts h1 and h2 have not reached each other for 2.4 s"
    remedy = "see to the network"
    concerns = [{"kind": "cut", "hosts": ["h1", "h2"], "since_s": 2.4, "text": sentence, "remedy": remedy}]
    shown = document("FleetStatus", phase="running", concerns=concerns, hosts=[])
    Printer(OutputFormat.TABLE).result(shown, partial(status._show, FleetStatus()))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("!")]
    assert re.fullmatch(rf"! {sentence}, since \d\d:\d\d:\d\d\. To do: {remedy}", line)
    Printer(OutputFormat.TABLE).result({**shown, "concerns": []}, partial(status._show, FleetStatus()))
    assert "!" not in capsys.readouterr().out
    hosts = [{"host": "h1", "dead_letters": 2}, {"host": "h2", "dead_letters": 1}]
    Printer(OutputFormat.TABLE).result({**shown, "concerns": [], "hosts": hosts}, partial(status._show, FleetStatus()))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("!")]
    assert line == "! 3 messages could not be handled: `snapline agent dead-letters list` shows why"


FIGURES = [field.name for field in msgspec.structs.fields(FleetStatus) if field.type is int]


def shown_status(capsys: pytest.CaptureFixture[str], **changes: Any) -> dict[str, str]:
    """The fields of the table of a status, and their values."""
    reply = FleetStatus(**changes)
    Printer(OutputFormat.TABLE).result(document_of(reply), partial(status._show, reply))
    fields = capsys.readouterr().out.split("\n\n")[0]
    return {line.split()[0]: " ".join(line.split()[1:]) for line in fields.splitlines()}


def test_the_table_of_a_new_fleet_leaves_out_what_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_status(capsys, fleet="bank", phase="forming", replicas=("c1", "c2", "c3"))
    important = dict.fromkeys(("agents", "epochs_begun", "epochs_completed", "last_complete_epoch"), "0")
    assert shown == {**important, "fleet": "bank", "phase": "forming", "replicas": "c1, c2, c3", "interval": "by hand"}


@given(strategies.dictionaries(strategies.sampled_from(FIGURES), strategies.integers(1, 9)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_table_of_a_status_has_each_figure_that_is_not_zero(
    capsys: pytest.CaptureFixture[str], figures: dict[str, int]
) -> None:
    shown = shown_status(capsys, **figures)
    assert {name: int(shown[name]) for name in figures} == figures
    assert {name for name in FIGURES if name in shown} == {*figures, *status.SHOWN_IF_ZERO}


def test_objectives_are_shown_before_there_is_anything_to_lose(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_status(capsys, loss=LossStatus(rpo_ns=10**9, rto_ns=2 * 10**9))
    assert (shown["at_risk"], shown["recoveries"]) == ("– (RPO 1.00 s)", "none yet (RTO 2.00 s)")


def test_quiet_silences_progress_but_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(quiet=True)
    printer.progress("going well")
    printer.warning("not so well")
    assert capsys.readouterr().err == "snapline: not so well\n"


def test_small_words() -> None:
    assert [size(0), size(1023), size(1536), size(5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [count(1, "agent"), count(2000, "agent")] == ["1 agent", "2,000 agents"]
    assert rows_of({"a": [{"b": 1}, 2]}, "a") == [{"b": 1}] and rows_of({}, "a") == []


def test_progress_in_words() -> None:
    assert (
        describe(FleetStatus(phase="forming", last_complete_epoch=0, hosts=()))
        == "forming, no epoch complete yet, no hosts yet"
    )
    hosts = (HostStatus("h1", state="alive", turns=1000), HostStatus("h2", state="lost", turns=234))
    assert (
        describe(FleetStatus(phase="running", last_complete_epoch=7, hosts=hosts))
        == "running, epoch 7 complete, 1,234 turns, h1 alive, h2 lost"
    )


def test_what_would_go_unseen_is_a_warning_once_also_to_who_wants_no_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = FleetProgress(Printer(quiet=True))
    hosts = (HostStatus("h1", dead_letters=2), HostStatus("h2", dead_letters=1))
    assert "3 dead letters" in describe(FleetStatus(phase="running", last_complete_epoch=1, hosts=hosts))
    bad = StoreStatus(state="degraded", reason="the state of agent 'a' is not as declared")
    for store in (StoreStatus(state="ok"), bad, StoreStatus(state="degraded", reason="again"), StoreStatus(state="ok")):
        shown.status(FleetStatus(phase="running", last_complete_epoch=1, hosts=hosts, store=store))
    assert capsys.readouterr().err.splitlines() == [
        "snapline: a message could not be handled: `snapline agent dead-letters list` shows it, and the error",
        "snapline: no checkpoint completes, and the agents go on without: the state of agent 'a' is not as declared",
    ]


def test_a_fleet_that_waits_says_so_once_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    shown = FleetProgress(Printer(quiet=True))
    short = Concern("plan", ("h1",), 10**9, "host h1 has not applied plan 2", (), "wait")
    stands = Concern("turn", ("h1",), 3 * 10**9, "agent a stands", ("a",), "look at it")
    other = Concern("turn", ("h1",), 5 * 10**9, "agent b stands", ("b",), "look at it")
    for concerns in ((short,), (short, stands), (stands,), (stands, other), ()):
        shown.status(FleetStatus(phase="running", last_complete_epoch=1, concerns=concerns))
    assert capsys.readouterr().err.splitlines() == [
        "snapline: agent a stands. To do: look at it",
        "snapline: agent b stands. To do: look at it",
        "snapline: over: agent a stands",
        "snapline: over: agent b stands",
    ]


def test_a_log_gets_few_lines_but_every_change_that_matters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("snapline.cli.progress.time.monotonic", lambda: now_s)
    shown = FleetProgress(Printer())
    for epoch in range(1, 5):
        shown.status(FleetStatus(phase="running", last_complete_epoch=epoch, hosts=(HostStatus("h1", state="alive"),)))
    shown.status(FleetStatus(phase="recovering", last_complete_epoch=4, hosts=(HostStatus("h1", state="lost"),)))
    now_s += progress.PERIOD_S
    shown.status(FleetStatus(phase="recovering", last_complete_epoch=5, hosts=(HostStatus("h1", state="lost"),)))
    shown.note("h1 ended")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[1].strip() for line in lines[:3]] == [f"epoch {n} complete" for n in (1, 4, 5)]
    assert lines[3:] == ["h1 ended"]


@pytest.mark.parametrize(
    ("hosts", "duration_s", "lost", "took"),
    [([], 0.034, "", "0.03 s"), (["h1"], 0.261, "h1", "0.26 s"), (["h2", "h1"], 119.9, "h1, h2", "119.9 s"), (["h4", "h1", "h3"], 7000, "3 hosts", "117 min")],
)  # fmt: skip
def test_a_past_recovery_is_one_row_of_at_most_80_columns(
    hosts: list[str], duration_s: float, lost: str, took: str
) -> None:
    """The first tutorial names the headings, and most terminals have 80 columns."""
    row = {"plan": 2, "line_epoch": 123_456, "lost_hosts": hosts, "suspected": "2026-11-30T09:15:49.031Z"}
    row |= {"duration_s": duration_s, "rolled_back": 4, "messages_delivered_again": 3, "reason": "its stream broke"}
    written = io.StringIO()
    recovery._show_history(
        document("RecoveryHistory", recoveries=[row]), DocumentTables(Console(file=written, width=80))
    )
    headings, shown, reason = (re.split("  +", line.strip()) for line in written.getvalue().splitlines())
    assert headings == ["PLAN", "LINE EPOCH", "LOST", "SUSPECTED (UTC)", "TOOK", "ROLLED BACK", "IN TRANSIT"]
    assert shown == ["2", "123456", *filter(None, [lost]), "2026-11-30 09:15:49", took, "4", "3"]
    assert reason == ["plan 2: its stream broke"]
