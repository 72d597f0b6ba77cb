"""`snapline logs`: the processes' logs merged by time, whatever stands in them."""

import itertools
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.command_line import Run

from snapline.cli import logs as logs_module
from snapline.cli.logs import LEVELS, EntryReader, LogEntry, find_logs, merge, parse_since
from snapline.deploy.detached_fleet import DetachedPlan, write_plan
from snapline.deploy.plan import FleetPlan
from snapline.errors import UsageError

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9


@dataclass(frozen=True)
class Said:
    """What a process logs at once: after so many milliseconds (its clock may go back), in one of three forms."""

    after_ms: int
    form: str
    level: str
    message: str
    others: tuple[str, ...]

    def written(self, at: datetime) -> str:
        if self.form == "json":
            stamp = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
            said = {
                "time": stamp,
                "level": self.level,
                "logger": "snapline.host",
                "message": self.message,
                "host": "h1",
            }
            return "\n".join([json.dumps(said), *self.others])
        if self.form == "utc":
            stamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        else:
            stamp = f"{at.astimezone():%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"
        return "\n".join([f"{stamp} {self.level} snapline.host: {self.message}", *self.others])


messages = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=12)
others = st.lists(messages.map(lambda text: "  " + text.strip()), max_size=3).map(tuple)
said = st.builds(
    Said,
    after_ms=st.integers(-5, 20),
    form=st.sampled_from(["json", "utc", "local"]),
    level=st.sampled_from(LEVELS),
    message=messages,
    others=others,
)
programs = st.lists(st.lists(said, max_size=8), min_size=1, max_size=4)


def expected(program: list[list[Said]]) -> list[tuple[str, str]]:
    """By sorting all, stably: who wrote what. A process's entry is no earlier than the one before it."""
    found: list[tuple[datetime, int, int, str]] = []
    for host, process in enumerate(program):
        at = latest = NOON
        for index, each in enumerate(process):
            at += timedelta(milliseconds=each.after_ms)
            latest = max(latest, at) if index else at
            found.append((latest, host, index, each.written(at)))
    return [(f"h{host + 1}", text) for _, host, _, text in sorted(found)]


def written(process: list[Said]) -> list[str]:
    at, texts = NOON, []
    for each in process:
        at += timedelta(milliseconds=each.after_ms)
        texts.append(each.written(at) + "\n")
    return texts


def texts_of(entries: Iterable[LogEntry]) -> list[tuple[str, str]]:
    return [(entry.process, entry.text) for entry in entries]


@given(programs, st.randoms(use_true_random=False), st.booleans())
def test_merged_logs_are_all_entries_sorted_by_time(
    program: list[list[Said]], chance: random.Random, torn: bool
) -> None:
    """Over files that were put aside at any point, the last line with its end or without."""
    with TemporaryDirectory() as folder:
        for host, process in enumerate(program, start=1):
            texts = written(process)
            place = chance.randint(0, len(texts))
            live = Path(folder) / f"h{host}.log"
            if place:
                live.with_name(f"h{host}.log.1").write_text("".join(texts[:place]))
            rest = "".join(texts[place:])
            live.write_text(rest.removesuffix("\n") if torn else rest)
        logs = find_logs(Path(folder))
        assert list(logs) == [f"h{host}" for host in range(1, len(program) + 1)]
        assert texts_of(merge(log.entries(is_final=True) for log in logs.values())) == expected(program)


@given(st.lists(said, max_size=12), st.lists(st.integers(0, 400), max_size=12))
def test_followed_logs_lose_nothing_and_keep_the_order_of_their_process(process: list[Said], cuts: list[int]) -> None:
    """Bytes come in any portions, lines and characters torn; between looks files are put aside."""
    content = "".join(written(process)).encode()
    places = sorted({min(place * 5, len(content)) for place in cuts} | {0, len(content)})
    with TemporaryDirectory() as name:
        live = Path(name) / "h1.log"
        live.touch()
        log = find_logs(Path(name))["h1"]
        lines: list[str] = []
        for number, (begin, end) in enumerate(itertools.pairwise(places)):
            portion = content[begin:end]
            with live.open("ab") as opened:
                opened.write(portion)
            if number % 3 == 1 and portion.endswith(b"\n"):
                live.replace(live.with_name("h1.log.1"))
                live.touch()
            for entry in log.entries(is_final=False):
                lines += entry.text.split("\n")
        for entry in log.entries(is_final=True):
            lines += entry.text.split("\n")
        assert lines == content.decode().split("\n")[:-1]


begun = st.integers(0, 59).map(lambda second: f"2026-01-31T12:00:{second:02d}Z INFO a: b")


@given(st.lists(st.text(max_size=40) | begun))
def test_any_lines_at_all_are_entries_of_the_same_lines(lines: list[str]) -> None:
    reader, found = EntryReader("h1", 0), []
    for line in lines:
        found.append(reader.feed(line))
    found.append(reader.end())
    entries = [entry for entry in found if entry is not None]
    assert "\n".join(entry.text for entry in entries) == "\n".join(lines)
    assert [entry.order_ns for entry in entries] == sorted(entry.order_ns for entry in entries)


@pytest.mark.parametrize(
    "line",
    [
        "2026-02-31T12:00:00Z INFO a: no such day",
        "2026-01-31T12:00:00ZINFO",
        '{"time": "2026-01-31T12:00:00Z", "mess',
        '{"time": "noon"}',
        '{"time": 12}',
        "{" * 100_000,
        "12:00:00 INFO a: no day",
        "٢٠٢٦-01-31T12:00:00Z INFO a: other digits",
    ],
)
def test_what_says_no_time_belongs_to_the_entry_before(line: str) -> None:
    reader = EntryReader("h1", 0)
    reader.feed("2026-01-31T12:00:00Z INFO a: b")
    assert reader.feed(line) is None
    entry = reader.end()
    assert entry is not None and entry.message == f"b\n{line}"


def test_an_entry_without_end_is_cut_and_stays_as_serious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "ENTRY_CHARACTERS_MAX", 100)
    reader = EntryReader("h1", 0)
    found = [reader.feed(line) for line in ("2026-01-31T12:00:00Z ERROR a: b", *["  line of a traceback"] * 20)]
    entries = [entry for entry in [*found, reader.end()] if entry is not None]
    assert len(entries) > 2 and {entry.level for entry in entries} == {"ERROR"}
    assert {entry.order_ns for entry in entries} == {NOON_NS}


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("10m", NOON_NS - 600 * 10**9),
        ("-2h", NOON_NS - 7200 * 10**9),
        ("1d", NOON_NS - 86_400 * 10**9),
        ("2026-01-31T12:00:00Z", NOON_NS),
        ("2026-01-31T13:00:00.5+01:00", NOON_NS + 5 * 10**8),
    ],
)
def test_since_is_an_age_or_an_instant(text: str, at_ns: int) -> None:
    assert parse_since(text, NOON_NS) == at_ns


@pytest.mark.parametrize("text", ["", "10", "m", "yesterday", "2026-02-31T12:00:00Z", "10m "])
def test_any_other_since_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_since(text, NOON_NS)


# -- the command ------------------------------------------------------------------------------------------------------

COORDINATOR = """\
2026-01-31T12:00:00.100Z INFO snapline.coordinator: the fleet starts
2026-01-31T12:00:02.000Z WARNING snapline.coordinator: host h1 is lost
snapline: the disk is full
"""
HOST = """\
a print of the fleet's module
2026-01-31T12:00:01.000Z ERROR snapline.host: a turn has failed
Traceback (most recent call last):
ValueError: \x1b[31mdebt
{"time": "2026-01-31T12:00:03.000000Z", "level": "INFO", "logger": "snapline.host", "message": "on", "host": "h1", "epoch": 4}
{"time": "2026-01-31T12:00:04.0000"""


@pytest.fixture
def logged(folder: Path) -> Path:
    logs = folder / "fleet" / "logs"
    logs.mkdir(parents=True)
    (logs / "coordinator.log").write_text(COORDINATOR)
    (logs / "h1.log").write_text(HOST)
    (logs / "notes.txt").write_text("no log")
    return folder / "fleet"


def test_logs_for_people(run: Run, logged: Path) -> None:
    done = run("logs", "--data-dir", logged, "-o", "table")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "coordinator | 2026-01-31T12:00:00.100Z INFO snapline.coordinator: the fleet starts",
        "h1          | a print of the fleet's module",
        "h1          | 2026-01-31T12:00:01.000Z ERROR snapline.host: a turn has failed",
        "h1          | Traceback (most recent call last):",
        "h1          | ValueError: \\x1b[31mdebt",
        "coordinator | 2026-01-31T12:00:02.000Z WARNING snapline.coordinator: host h1 is lost",
        "coordinator | snapline: the disk is full",
        'h1          | 2026-01-31T12:00:03.000000Z INFO snapline.host: on [host="h1" epoch=4]',
        'h1          | {"time": "2026-01-31T12:00:04.0000',
    ]


def test_logs_for_programs(run: Run, logged: Path) -> None:
    done = run("logs", "--data-dir", logged)
    found = [json.loads(line) for line in done.out.splitlines()]
    assert all((each["apiVersion"], each["kind"]) == ("snapline/v1", "LogEntry") for each in found)
    assert [(each["process"], each["time"], each["level"]) for each in found] == [
        ("coordinator", "2026-01-31T12:00:00.100000Z", "INFO"),
        ("h1", None, None),
        ("h1", "2026-01-31T12:00:01.000000Z", "ERROR"),
        ("coordinator", "2026-01-31T12:00:02.000000Z", "WARNING"),
        ("coordinator", None, "ERROR"),
        ("h1", "2026-01-31T12:00:03.000000Z", "INFO"),
    ]
    assert found[-1]["fields"] == {"host": "h1", "epoch": 4}
    assert found[2]["message"].startswith("a turn has failed\nTraceback") and found[2]["logger"] == "snapline.host"


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        ("h1", 3),
        ("h1 coordinator", 6),
        ("-n 2", 2),
        ("--level warning", 4),
        ("--level ERROR coordinator", 1),
        ("--since 2026-01-31T12:00:02Z", 3),
        ("--since 2026-01-31T12:00:02Z -n 1 --level error", 1),
        ("--since 10m", 0),
    ],
)
def test_logs_are_filtered(run: Run, logged: Path, words: str, entries: int) -> None:
    done = run("logs", *words.split(), "--data-dir", logged)
    assert (done.code, len(done.out.splitlines())) == (0, entries), done.out


def test_the_fleet_is_the_one_that_the_settings_name(run: Run, logged: Path, folder: Path) -> None:
    (folder / "snapline.toml").write_text(f'[context.prod]\ndata_dir = "{logged}"\n')
    assert run("logs", "--context", "prod").out == run("logs", "--data-dir", logged).out != ""
    os.rename(logged, folder / "other")
    (folder / "runs").mkdir()
    os.rename(folder / "other", folder / "runs" / "bank")
    assert run("logs", "--name", "bank").code == 0
    assert run("logs", environment={"SNAPLINE_NAME": "bank"}).code == 0


@pytest.mark.parametrize("where", ["", "--data-dir fleet/keeper", "--data-dir fleet"])
def test_logs_of_containers_are_where_their_launcher_has_them_written(
    run: Run, logged: Path, folder: Path, where: str
) -> None:
    """The keeper of such a fleet has a folder of its own, DIR/keeper."""
    plan = FleetPlan("fleet", fleet="bank:fleet", data_dir=str(logged), hosts=1, node={})
    write_plan(logged / "keeper", DetachedPlan("podman", plan))
    (folder / "snapline.toml").write_text(f'[up]\non = "podman"\ndata_dir = "{logged}"\n')
    end = run("host", "logs", "h1", "-n", "1", *where.split())
    assert (end.code, end.out) == (0, HOST.splitlines()[-1] + "\n"), end.err
    assert len(run("logs", *where.split()).out.splitlines()) == 6


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--data-dir nowhere", 4, "there are no logs in nowhere/logs"),
        ("h7 --data-dir fleet", 4, "no log of 'h7' in fleet/logs: there are logs of coordinator, h1"),
        ("--level loud --data-dir fleet", 2, "'loud' is no level"),
        ("--since then --data-dir fleet", 2, "--since 'then' is no time"),
        ("--context nowhere", 4, "no context 'nowhere'"),
    ],
)
def test_what_is_not_there_is_one_sentence(run: Run, logged: Path, words: str, code: int, says: str) -> None:
    done = run("logs", *words.split())
    assert done.code == code and says in done.err and done.err.count("\n") == 1, done.err
