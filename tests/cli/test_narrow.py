"""Tables and lines in a terminal of 80 columns: no word or number is broken, and one thing takes one row."""

import io
from typing import Any

import pytest
from hypothesis import given, strategies
from rich.console import Console

from snapline.cli import approvals, auth, doctor, hosts, outputs, recovery, snapshot
from snapline.cli.output import PIPE_WIDTH, DocumentTables, document

WIDTH = 80
TIME = "2026-11-30T09:15:49.031Z"
ROOT = "b402716d9b1af5f7577633ba40174b6ed2016bc969e2d49ebdffdb7f40230c04"


def shown(show: Any, result: dict[str, object], *more: object, width: int = WIDTH) -> list[str]:
    written = io.StringIO()
    show(result, DocumentTables(Console(file=written, width=width, emoji=False)), *more)
    return written.getvalue().splitlines()


def is_within(lines: list[str], width: int = WIDTH) -> bool:
    return all(len(line) <= width for line in lines)


WORDS = strategies.text(strategies.sampled_from("abc9.:-"), min_size=1, max_size=12)
CELLS = strategies.one_of(WORDS, strategies.lists(WORDS, max_size=40).map(" ".join))


@given(strategies.lists(strategies.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4))
def test_no_word_of_a_table_is_broken_and_none_is_lost(rows: list[tuple[str, str, str]]) -> None:
    lines = shown(lambda result, tables: tables.table(("ONE", "TWO", "THREE"), rows), {})
    assert is_within(lines)
    words = sorted(word for row in rows for cell in row for word in cell.split())
    assert sorted(" ".join(lines[1:]).split()) == words


@given(strategies.lists(strategies.tuples(WORDS, CELLS), min_size=1, max_size=4))
def test_no_word_of_a_field_is_broken_and_none_is_lost(fields: list[tuple[str, str]]) -> None:
    lines = shown(lambda result, tables: tables.fields(fields), {})
    assert is_within(lines)
    kept = [(name, value) for name, value in fields if value]
    assert " ".join(lines).split() == [word for field in kept for word in " ".join(field).split()]


def test_a_table_leaves_out_no_more_columns_than_it_must() -> None:
    def show(result: object, tables: DocumentTables) -> None:
        tables.table(("KEY", "MORE", "MOST"), [("k" * 20, "m" * 20, "n" * 20)], optional=("MOST", "MORE"))

    assert [shown(show, {}, width=width)[0].split() for width in (64, 63, 42, 41)] == [
        *(["KEY", "MORE", "MOST"], ["KEY", "MORE"]),
        *(["KEY", "MORE"], ["KEY"]),
    ]


EPOCH = {
    "epoch": 123_456,
    "begun_s": 1_764_494_149.5,
    "took_s": 12.345,
    "trigger": "operator",
    "status": "forgotten",
    "new_bytes": 999 << 20,
    "state_bytes": 999 << 20,
    "channel_state_messages": 12_345,
    "last": {"host": "h12", "agent": "a", "store_s": 1, "capture_s": 1, "alignment_s": 1, "start_delay_s": 1},
}


def test_an_epoch_is_one_row() -> None:
    heading, *rows = shown(snapshot._show, document("History", epochs=[EPOCH, EPOCH]), 0)
    assert heading.split()[:3] == ["EPOCH", "BEGUN", "(UTC)"] and is_within([heading, *rows])
    assert [row.split()[:5] for row in rows] == [["123456", "2025-11-30", "09:15:49", "operator", "forgotten"]] * 2


def test_the_reason_of_an_aborted_epoch_is_beneath_the_table() -> None:
    aborted = EPOCH | {"status": "aborted", "reason": "host h1 was lost", "last": None}
    lines = shown(snapshot._show, document("History", epochs=[EPOCH, aborted]), 28)
    assert lines[-2:] == ["epoch 123456: host h1 was lost", "and 28 older: `--limit 30` lists all"]


def test_a_snapshot_is_one_row() -> None:
    row = {"epoch": 123_456, "root": ROOT, "created": TIME, "trigger": "operator", "agent_count": 12_345}
    row |= {"state_bytes": 999 << 20, "channel_state_messages": 12}
    lines = shown(snapshot._show_list, document("SnapshotList", snapshots=[row], pins=[123_456]))
    assert len(lines) == 2 and is_within(lines) and "CREATED (UTC)" in lines[0]
    assert ROOT[:12] in lines[1].split() and "2026-11-30 09:15:49" in lines[1] and lines[1].endswith("pinned")


@pytest.mark.parametrize("result", ["{}", '{"receipt":15,"to":"somebody with a long name","amount":1500}'])
def test_an_effect_is_one_row(result: str) -> None:
    row = {"agent": "teller-12", "key": "transfer-30-15", "name": "transfer", "fate": "needs people", "generation": 1}
    lines = shown(outputs._show_effects, document("Effects", effects=[row | {"asked": TIME, "result": result}] * 2), 0)
    assert len(lines) == 3 and is_within(lines) and "ASKED (UTC)" in lines[0]
    assert lines[1].startswith("teller-12  transfer-30-15  ") and "2026-11-30 09:15:49" in lines[1]


def test_what_is_not_printed_to_a_terminal_leaves_out_nothing() -> None:
    row = {"agent": "a", "key": "k", "name": "pay", "fate": "done", "generation": 1, "asked": TIME}
    lines = shown(
        outputs._show_effects, document("Effects", effects=[row | {"result": "word " * 99}]), 0, width=PIPE_WIDTH
    )
    assert lines[0].split()[-1] == "RESULT" and " ".join(lines).count("word") == 99


def test_a_recorded_call_is_one_row() -> None:
    row = {"number": 1234, "at": TIME, "who": "operator", "role": "operator", "by": "certificate", "host": None}
    row |= {"call": "MoveAgents", "outcome": "allowed", "about": "h2"}
    lines = shown(auth._show_calls, document("Audit", calls=[row], dropped=0))
    assert len(lines) == 2 and is_within(lines)
    assert lines[0].startswith("NUMBER  AT (UTC)") and all(
        word in lines[1].split() for word in ("MoveAgents", "allowed", "h2")
    )


def test_a_host_is_one_row() -> None:
    row = {"host": "h12", "state": "alive", "agents": 1234, "is_drained": True, "address": "127.0.0.1:45681"}
    row |= {"host_start": 3, "turns": 1_234_567, "dead_letters": 0, "agents_standing": 0}
    concern = {
        "text": "host h12 is drained: it gets no agents until `snapline host resume`",
        "since_s": 1,
        "remedy": "go",
    }
    lines = shown(hosts._show_hosts, document("HostList", hosts=[row], concerns=[concern]))
    assert len(lines) == 4 and is_within(lines)
    assert [line[:2] for line in lines[2:]] == ["! ", "  "], "a concern is wrapped under itself"
    assert lines[1].split()[:5] == ["h12", "alive", "1234", "yes", "127.0.0.1:45681"]


def test_an_empty_list_says_so() -> None:
    assert shown(approvals._show, document("Approvals", approvals=[])) == ["no approvals are open"]
    (line,) = shown(auth._show_calls, document("Audit", calls=[], dropped=0))
    assert line == "no calls are recorded: only those with certificates or tokens are"


def test_a_root_can_be_copied() -> None:
    line = {"epoch": 52, "root": ROOT, "rolled_back": 2, "messages_delivered_again": 0}
    lines = shown(recovery._show_line, document("RecoveryLine", **line))
    assert is_within(lines) and any(ROOT in line.split() for line in lines)
    lines = shown(
        recovery._show, document("RecoveryReport", recovery={"line_root": ROOT, "messages_delivered_again": 3})
    )
    assert is_within(lines) and any(ROOT in line.split() for line in lines)


def test_a_finding_of_the_doctor_is_wrapped_under_itself() -> None:
    text = "ray, numpy installed; `pip install 'snapline[torch]'` adds torch, and " + "more " * 20
    lines = shown(doctor._show, document("Doctor", findings=[{"state": "ok", "what": "extras", "text": text}]))
    assert len(lines) == 3 and is_within(lines) and lines[0].startswith("ok       extras       ray")
    assert all(line[:22] == " " * 22 and line[22] != " " for line in lines[1:])
