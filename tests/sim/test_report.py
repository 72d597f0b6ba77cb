"""Run folders: what is written comes back, the same run gives the same bytes, pages are safe, summaries fit."""

import csv
import json
import re
import shlex
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.recordings import (
    EVIL,
    Fleet,
    Operation,
    busy_steps,
    drawn_states,
    evil_result,
    few,
    operations,
    random_steps,
    result_of,
)

from snapline.errors import UsageError
from snapline.sim.oracles.probes import CATALOGUE
from snapline.sim.report import run_folder
from snapline.sim.report.run_diagrams import draw_run, draw_timeline
from snapline.sim.report.run_folder import Page, folder_for, page, read_choices, read_run, rebuild, write_run
from snapline.sim.report.test_report import LINES_MAX, WIDTH, kinds_of, summarise
from snapline.sim.result import ExecutedFault, Result, Violation
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, Scenario, duration_ns, parse_scenario
from snapline.sim.world.recording import Recording

# -- the page -----------------------------------------------------------------------------------------------------------

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.words: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_page(content: str) -> Reader:
    reader = Reader()
    reader.feed(content)
    reader.close()
    assert not reader.open
    assert not reader.tags.keys() & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not reader.attributes.keys() & {"src", "href", "srcset", "xlink:href", "action"}
    assert not [name for name in reader.attributes if name.startswith("on")]
    assert len(set(reader.ids)) == len(reader.ids)
    urls = re.findall(r"url\(([^)]*)\)", content)
    assert all(url.startswith("#") for url in urls)
    assert set(re.findall(r"https?://[^\"'\s<]*", content)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in content and "default-src 'none'" in content
    assert reader.tags["h1"] == 1
    return reader


@given(operations)
@settings(few, max_examples=25)
def test_the_page_is_well_formed_and_offline_whatever_a_run_says(steps: list[Operation]) -> None:
    recording = Fleet().run(steps)
    end_ns = recording.events[-1].t_ns if recording.events else 9
    of = Page(evil_result(end_ns), recording, f'name = "{EVIL}"\nx', 1, EVIL, catalogue={"never": EVIL})
    content = page(of)
    words = "".join(check_page(content).words)
    # As a name, a finding, what is missing, an error, metrics, probes, faults, commit and scenario.
    assert words.count(EVIL) >= 10
    assert "\x1b" not in content
    assert content == page(of)


def test_probes_that_were_not_hit_are_named() -> None:
    result = Result(name="n", seed=1, verdict="pass", probes={"one": 2, "two": 0})
    words = "".join(check_page(page(Page(result, None, "", 1, "", catalogue={"three": "told here"}))).words)
    assert "1 probe hit, 2 not in this run." in words
    assert "told here" in words


def test_a_fault_that_waits_at_a_failpoint_never_reached_is_not_counted() -> None:
    waiting = parse_scenario(
        """
        name = "small"
        fleet = { agents = 2, pattern = { name = "ring", messages = 3 }, trigger = { every = "200ms" } }
        run = { until = "500ms" }

        [[fault]]
        pause = { failpoint = "store.pack.synced", hit = 100000, for = "1s" }
        """,
        source="a test",
    )
    result = run(waiting, 1)
    assert [fault.kind for fault in result.faults] == ["pause"] and kinds_of(result.faults) == []


def test_pages_stay_small() -> None:
    """The diagram in the page holds fewer events than the one beside it."""
    recording = Fleet().run(busy_steps(3, 12_000))
    content = page(Page(result_of(recording), recording, "", 1, ""))
    assert len(content) < 1_000_000
    assert (
        len(
            drawn_states(
                content[content.index("<svg", content.index('data-picture="timeline"')) :].split("</svg>")[0] + "</svg>"
            )
        )
        <= 2_000
    )


def test_empty_runs_can_be_drawn() -> None:
    empty = Recording()
    result = Result(name="empty", seed=0, verdict="pass")
    ElementTree.fromstring(draw_run(empty, result))
    ElementTree.fromstring(draw_timeline(result, None, heal_ns=0, within_ns=0))
    check_page(page(Page(result, None, "", 1, "")))


# -- the folder ---------------------------------------------------------------------------------------------------------

SCENARIO = Scenario(name="cut", fleet=FleetPart(agents=5))
CHOICES = {("net", ("a>b", 3)): 2, ("net", ("a>b", "3")): 1, ("storage", (("x", 1), "y", ())): 5}


def write(place: Path, recording: Recording | None, result: Result) -> Path:
    write_run(place, SCENARIO, result, recording, choices=CHOICES, commit="abc")
    return place


@given(operations)
@settings(few, max_examples=25)
def test_a_folder_is_read_back_and_the_same_run_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Operation]
) -> None:
    recording = Fleet().run(steps)
    base = tmp_path_factory.mktemp("run")
    one = write(base / "one", recording, evil_result(9))
    run = read_run(one)
    assert run.recording is not None
    assert vars(run.recording) == vars(recording)
    assert (run.scenario, run.choices) == (SCENARIO, CHOICES)
    assert repr(run.result) == repr(evil_result(9))  # metrics hold a NaN
    # The run as it was read has the same files.
    two = write(base / "two", run.recording, run.result)
    for path in sorted(one.iterdir()):
        assert path.name == "repro.txt" or path.read_bytes() == (two / path.name).read_bytes()


def test_the_report_can_be_made_again(tmp_path: Path) -> None:
    place = write(tmp_path / "run", Fleet().run(random_steps(5, 60)), evil_result(1000))
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    (place / "report.html").unlink()
    (place / "spacetime.svg").write_text("damaged")
    assert rebuild(place) == place / "report.html"
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_run_without_recording_leaves_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, Fleet().run(random_steps(5, 30)), Result(name="x", seed=1, verdict="pass"))
    write_run(tmp_path, SCENARIO, Result(name="x", seed=1, verdict="broken"), None, choices=None, commit="")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"result.json", "config.toml", "faults.toml", "report.html", "metrics.csv", "repro.txt"}
    assert read_run(tmp_path).recording is None


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    result = evil_result(1_234_567_891)
    place = write(tmp_path, None, result)
    document = json.loads((place / "result.json").read_bytes())
    assert (document["apiVersion"], document["kind"]) == ("snapline/v1", "SimulationResult")
    assert document["violations"][1]["promise"] == "No committed cut contains an orphan."
    assert document["violations"][1]["at"] == "1.234567 s"
    executed = tomllib.loads((place / "faults.toml").read_text())["executed"]
    assert [(fault["kind"], fault["text"]) for fault in executed] == [(EVIL, EVIL), ("crash", EVIL)]
    assert [duration_ns(fault["at"]) for fault in executed] == [0, 617_283_945]
    assert duration_ns(executed[0]["until"]) == 1_234_567_891
    assert "until" not in executed[1]
    rows = list(csv.reader((place / "metrics.csv").read_text().splitlines()))
    assert rows[0] == ["name", "value"]
    assert {name: float(value) for name, value in rows[1:]}[EVIL] == 1.5


def test_repro_names_the_commands(tmp_path: Path) -> None:
    place = write(tmp_path / "a run", None, Result(name="x", seed=42, verdict="pass"))
    lines = (place / "repro.txt").read_text().splitlines()
    assert shlex.split(lines[0]) == ["snapline", "sim", "replay", str(place)]
    assert shlex.split(lines[1]) == ["snapline", "sim", "run", str(place / "config.toml"), "--seed", "42"]
    assert lines[2] == "# commit abc, schema 1"


keys = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@given(st.dictionaries(st.tuples(st.text(), st.lists(keys, max_size=3).map(tuple)), st.integers(1, 9)))
@few
def test_choices_come_back_with_their_types_and_order(tmp_path: Path, record: dict[Any, int]) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(run_folder.choices_json(record))
    assert list(read_choices(path).items()) == list(record.items())


def test_a_key_that_would_not_come_back_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1\.5"):
        run_folder.choices_json({("net", (1.5,)): 1})


@given(st.text(st.characters(), max_size=20))
@few
def test_any_text_survives_in_a_result(tmp_path: Path, words: str) -> None:
    """Also half of a surrogate pair, which UTF-8 cannot write."""
    result = Result(name=words, seed=1, verdict="broken", error=words + " \udc80")
    (tmp_path / "result.json").write_bytes(run_folder.result_json(result, run_folder.Provenance(1, "c")))
    assert run_folder.read_result(tmp_path / "result.json") == (result, run_folder.Provenance(1, "c"))
    tomllib.loads(run_folder.faults_toml([ExecutedFault(words, words + " \udc80", 1, 2)]))
    summarise(result).encode()
    page(Page(result, None, words, 1, words)).encode()


@pytest.mark.parametrize("damage", ["result.json", "timeline.json", "trace.jsonl.gz", "choices.json", "config.toml"])
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    place = write(tmp_path, Fleet().run(random_steps(5, 30)), Result(name="x", seed=1, verdict="pass"))
    (place / damage).write_bytes(b'{"kind": 3')
    with pytest.raises(UsageError, match=re.escape(damage)):
        rebuild(place)
    with pytest.raises(UsageError, match="nowhere"):
        rebuild(tmp_path / "nowhere")


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    one = folder_for(tmp_path, "cut", 7, now)
    assert one == tmp_path / "cut" / "20260102T030405Z-7"
    two = folder_for(tmp_path, "cut", 7, now)
    three = folder_for(tmp_path, "cut", 8, now.astimezone(UTC))
    assert len({one, two, three}) == 3
    assert (tmp_path / "cut" / "latest").resolve() == three.resolve()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [one.name, two.name, three.name, "latest"]


@pytest.mark.parametrize("name", ["../../x", "/etc", "..", "", "a/b", "a b\n"])
def test_a_name_cannot_lead_out_of_the_base(tmp_path: Path, name: str) -> None:
    made = folder_for(tmp_path / "base", name, 1, datetime(2026, 1, 1, tzinfo=UTC))
    assert made.resolve().parent.parent == (tmp_path / "base").resolve()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        folder_for(tmp_path / "file", "x", 1, datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(UsageError, match="file"):
        write(tmp_path / "file", None, Result(name="x", seed=1, verdict="pass"))


def test_only_a_probe_that_must_not_be_reached_is_left_out_of_those_never_hit() -> None:
    shown = run_folder._catalogue(Result(name="x", seed=1, verdict="pass"))
    left_out = {name for name, probe in CATALOGUE.items() if name not in shown}
    assert left_out == {name for name, probe in CATALOGUE.items() if probe.verb == "unreachable"}


# -- the terminal -------------------------------------------------------------------------------------------------------

texts = st.text(max_size=400)
results = st.builds(
    Result,
    name=texts,
    seed=st.integers(0, 1 << 40),
    verdict=st.sampled_from(["pass", "violation", "undecided", "broken"]),
    violations=st.lists(st.builds(Violation, texts, texts, st.integers(0, 10**12), texts), max_size=6),
    pending=st.lists(texts, max_size=9),
    error=texts,
    trace_hash=texts,
    probes=st.dictionaries(texts, st.integers(0, 3), max_size=5),
    faults=st.lists(st.builds(ExecutedFault, texts, texts, st.integers(0, 10**12), st.integers(0, 10**12)), max_size=9),
)


@given(results)
@settings(few, max_examples=40)
def test_a_summary_fits_on_a_screen_and_cannot_move_the_cursor(result: Result) -> None:
    lines = summarise(result).split("\n")
    assert lines.pop() == ""
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= WIDTH
    assert all(character.isprintable() for line in lines for character in line)
    assert lines[0].startswith(result.verdict.upper())


def test_a_summary_says_what_happened() -> None:
    result = Result(
        name="cut",
        seed=3,
        verdict="violation",
        violations=[Violation("orphans", "G1", 1_500_000_000, "b received m1, which a never sent.")] * 5,
        metrics={"turns": 12.0, "epochs_complete": 1.0},
        events=1200,
        messages=1,
        virtual_ns=1_500_000_000,
        faults=[ExecutedFault("crash", "crash h1", 1_000_000_000, 1_250_000_000)],
    )
    assert summarise(result).splitlines() == [
        "VIOLATION  cut, seed 3",
        "1.500000 s of virtual time in 0.00 s CPU: 1,200 events, 1 message",
        "exercised: 12 turns, 1 epoch, 0 recoveries; faults: crash",
        *["G1 orphans, at 1.500000 s", "  b received m1, which a never sent."] * 3,
        "  … 2 more violations",
        "fault: crash h1, 1.000000 s to 1.250000 s",
    ]
