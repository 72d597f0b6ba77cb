"""Reports of simulations: what is listed, a run and its shrunk form, sweeps; what is hostile is text, and no way leads out of the folders."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.view.parsed import Node, parse
from tests.view.simulated import SimulatedFleet

from snapline.errors import UsageError
from snapline.sim.choices import RandomChoices
from snapline.sim.report.run_folder import folder_for, write_run
from snapline.sim.result import ExecutedFault, Result, Violation
from snapline.sim.run import run
from snapline.sim.scenario import Scenario, parse_scenario
from snapline.sim.world.recording import Recording
from snapline.view import sim_reports, simulation_pages
from snapline.view.sim_reports import SimReports
from snapline.view.view_app import View

CONFIG = """
name = "crashes"
[fleet]
agents = 3
hosts = 2
coordinators = 1
pattern = { name = "ring", messages = 20, rate_per_s = 50.0 }
[[fault]]
crash = { host = "h1", at = "200ms", restart_after = "100ms" }
[run]
until = "1s"
"""
SMALLER = CONFIG.partition("[[fault]]")[0].replace("agents = 3", "agents = 2") + '[run]\nuntil = "1s"\n'
HOSTILE = '"><script>alert(1)</script><img src=x> \u202e'
SAID = "the balance is 4, and 5 were paid in"


def simulated(config: str, seed: int, **changes: Any) -> tuple[Scenario, Result, Recording, RandomChoices]:
    """A real run; `changes` of its result make it a failing one."""
    scenario, recording, choices = (
        parse_scenario(config, source="test"),
        Recording(),
        RandomChoices(seed, is_recording=True),
    )
    result = run(scenario, seed, choices, recording=recording)
    for name, value in changes.items():
        setattr(result, name, value)
    return scenario, result, recording, choices


def write(folder: Path, made: tuple[Scenario, Result, Recording, RandomChoices]) -> Path:
    scenario, result, recording, choices = made
    write_run(folder, scenario, result, recording, choices=choices.record, commit="abc")
    return folder


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[Scenario, Result, Recording, RandomChoices]]:
    wrong = {"verdict": "violation", "violations": [Violation("workload", "G3", 500_000_000, SAID)]}
    return {
        "passing": simulated(CONFIG, 1),
        "failing": simulated(CONFIG, 7, **wrong),
        "shrunk": simulated(SMALLER, 7, **wrong),
    }


@pytest.fixture
def folder(tmp_path: Path, made: dict[str, Any]) -> Path:
    """`runs` with a run that passed, and one that failed and was shrunk; beside it something that is nobody's business."""
    runs = tmp_path / "runs"
    now = datetime(2026, 1, 1, tzinfo=UTC)
    write(folder_for(runs, "crashes", 1, now), made["passing"])
    failing = write(folder_for(runs, "crashes", 7, now), made["failing"])
    write(failing / "shrunk", made["shrunk"])
    (failing / "shrunk" / "steps.txt").write_text("faults left out")
    for place, time_s in ((failing / "shrunk", 3), (failing, 2), (runs / "crashes" / "20260101T000000Z-1", 1)):
        os.utime(place / "result.json", (1_767_225_600 + time_s,) * 2)
    write(tmp_path / "secret", made["passing"])
    return runs


FAILING = "0/crashes/20260101T000000Z-7"


@asynccontextmanager
async def view(
    *folders: Path, fleet: SimulatedFleet | None = None, token: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    made = View(fleet, reports=folders, token=token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app()), base_url="http://127.0.0.1:8088") as http:
        yield http
    await made.close()


async def page_of(http: httpx.AsyncClient, path: str, code: int = 200) -> Node:
    found = await http.get(path)
    assert found.status_code == code, found.text
    return parse(found.text)


def rows_in(page: Node, label: str) -> list[list[str]]:
    (found,) = [each for each in page.find("table") if each.attributes["aria-label"] == label]
    return [
        [cell.text for cell in row.children if isinstance(cell, Node)] for row in found.find("tbody")[0].child("tr")
    ]


# -- what is shown ---------------------------------------------------------------------------------------------------------


async def test_runs_are_listed_newest_first_with_what_went_wrong(folder: Path) -> None:
    async with view(folder) as http:
        page = await page_of(http, "/simulation")
        rows = rows_in(page, "Runs")
        assert [row[:4] for row in rows] == [
            ["crashes", "7", "violation", "chandy-lamport"],
            ["crashes", "1", "pass", "chandy-lamport"],
        ]
        assert rows[0][5] == f"G3 workload {SAID}" and rows[0][6] == "side by side" and rows[1][6] == ""
        for query, seeds in (
            ("q=balance", ["7"]),
            ("verdict=pass", ["1"]),
            ("q=CRASHES", ["7", "1"]),
            ("q=crashes+1", ["1"]),
        ):
            assert [row[1] for row in rows_in(await page_of(http, f"/simulation?{query}"), "Runs")] == seeds
        assert "No run is found." in (await page_of(http, "/simulation?q=nothing")).text


async def test_a_run_shows_its_evidence_faults_and_pictures(folder: Path, made: dict[str, Any]) -> None:
    result = made["failing"][1]
    async with view(folder) as http:
        page = await page_of(http, f"/simulation/runs/{FAILING}")
        assert SAID in page.text and "Promised: After recovery" in page.text
        faults = [[each.kind, each.text] for each in result.faults]
        assert [row[:2] for row in rows_in(page, "Faults as they were carried out")] == faults != []
        sources = [each.attributes["src"] for each in page.find("img")]
        assert sources == [f"/simulation/pictures/{kind}/{FAILING}" for kind in ("timeline", "spacetime")]
        for source in sources:
            drawn = await http.get(source)
            assert (
                drawn.headers["Content-Type"] == "image/svg+xml"
                and "default-src 'none'" in drawn.headers["Content-Security-Policy"]
            )
            assert "script-src" not in drawn.headers["Content-Security-Policy"] and parse(drawn.text).find("svg")
        report = await http.get(f"/simulation/reports/{FAILING}")
        saved = (folder / FAILING[2:] / "report.html").read_text()
        assert report.text == saved and "default-src 'none'" in report.headers["Content-Security-Policy"]


async def test_a_failing_run_stands_next_to_its_shrunk_form(folder: Path, made: dict[str, Any]) -> None:
    async with view(folder) as http:
        page = await page_of(http, f"/simulation/pairs/{FAILING}")
        sizes = {row[0]: row[1:] for row in rows_in(page, "Sizes of both runs")}
        before, after = made["failing"][1], made["shrunk"][1]
        assert sizes["Messages"] == [f"{before.messages:,}", f"{after.messages:,}"] and sizes["Agents"] == ["3", "2"]
        assert sizes["Faults"] == [str(len(before.faults)), "0"] and sizes["What fails"] == ["G3 workload"] * 2
        told = {row[0]: row[1:] for row in rows_in(page, "Where the scenarios differ")}
        assert told["fleet.agents"] == ["3", "2"] and told["fault[1].crash.at"][1] == "–" and "fleet.hosts" not in told
        assert (
            len(page.find("div", class_="side")) == 2 and len(page.find("img")) == 4 and "faults left out" in page.text
        )
        other = await page_of(http, f"/simulation/runs/{FAILING}/shrunk")
        assert f"/simulation/pairs/{FAILING}" in [each.attributes["href"] for each in other.find("a")]
        assert "has no shrunk form" in (await page_of(http, "/simulation/pairs/0/crashes/20260101T000000Z-1", 404)).text


def sweep_document(**more: Any) -> dict[str, Any]:
    finding = {
        "verdict": "violation",
        "oracle": "workload",
        "guarantee": "G3",
        "count": 12,
        "seeds": [7, 9],
        "text": SAID,
    }
    about = {
        "apiVersion": "snapline/v1",
        "kind": "SimulationSweep",
        "name": "crashes",
        "verdict": "violation",
        "runs": 20,
    }
    return {
        **about,
        "verdicts": {"pass": 8, "violation": 12},
        "findings": [{**finding, "repeat": "snapline sim run x"}],
        **more,
    }


async def test_a_sweep_shows_its_failures_by_oracle_and_leads_to_their_reports(folder: Path) -> None:
    (folder / "sweep.json").write_text(json.dumps(sweep_document()))
    (folder / "mine.json").write_text('{"kind": "Other", "name": "x"}')
    (folder / "broken.json").write_text("{")
    async with view(folder) as http:
        (row,) = rows_in(await page_of(http, "/simulation"), "Sweeps")
        assert row[:8] == ["crashes", "violation", "20", "8", "12", "0", "0", "G3 workload"]
        page = await page_of(http, "/simulation/sweeps/0/sweep.json")
        (row,) = rows_in(page, "Failures")
        assert (
            row[:3] == ["G3 workload", "violation", "12"]
            and row[3].split() == ["7", "9", "…"]
            and row[5] == "snapline sim run x"
        )
        links = {each.text: each.attributes["href"] for each in page.find("main")[0].find("a")}
        assert links["7"] == f"/simulation/runs/{FAILING}" and "9" not in links
        for other in (
            "mine.json",
            "broken.json",
            "crashes",
            f"{FAILING[2:]}/result.json",
            f"{FAILING[2:]}/report.html",
        ):
            await page_of(http, f"/simulation/sweeps/0/{other}", 404)


# -- with and without a fleet ------------------------------------------------------------------------------------------------


async def test_without_a_fleet_there_are_reports_alone(folder: Path) -> None:
    async with view(folder) as http:
        assert (await http.get("/")).headers["Location"] == "/simulation"
        page = await page_of(http, "/simulation")
        assert [each.text for each in page.find("nav")[0].find("a")] == ["Simulation"]
        for path in ("/epochs", "/recovery", "/waiting", "/agents/a", "/epochs/7"):
            await page_of(http, path, 404)


async def test_with_a_fleet_it_is_one_screen_more_and_without_reports_none(folder: Path) -> None:
    async with view(folder, fleet=SimulatedFleet()) as http:
        names = [each.text for each in (await page_of(http, "/")).find("nav")[0].find("a")]
        assert names == ["Fleet", "Epochs", "Recovery", "Waiting", "Space-time", "Simulation"]
    async with view(fleet=SimulatedFleet()) as http:
        assert "Simulation" not in (await page_of(http, "/")).text
        await page_of(http, "/simulation", 404)


async def test_who_has_not_signed_in_sees_none(folder: Path) -> None:
    async with view(folder, token="a token that nobody guesses") as http:
        for path in (
            "/simulation",
            *(f"/simulation/{kind}/{FAILING}" for kind in ("runs", "pairs", "reports", "pictures/timeline")),
        ):
            found = await http.get(path)
            assert found.status_code == 401 and "crashes" not in found.text


def test_the_simulator_is_not_imported_for_who_has_no_reports() -> None:
    """A view of a fleet starts without it: it takes a second."""
    code = "import sys, snapline.view.view_app, snapline.view.html_export; sys.exit(any(m.startswith('snapline.sim') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# -- no way leads out ----------------------------------------------------------------------------------------------------------


def ways_out(folder: Path) -> Iterator[str]:
    yield from (
        "0/../secret",
        "0/crashes/../../secret",
        f"0/{folder.parent}/secret",
        f"0//{folder.parent}/secret",
        "1/crashes",
    )
    yield from (
        "-1/secret",
        "/etc",
        "..",
        "",
        "0/./../secret",
        "0/crashes/\0",
        "²/crashes",
        "x/y",
        "0/link",
        "0/crashes/link/secret",
    )
    yield from ("0/%2e%2e/secret", "0/..%2fsecret", "0/" + "a" * 5000, "9" * 30 + "/crashes")


async def test_nothing_outside_the_folders_can_be_reached(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "crashes" / "link").symlink_to(folder.parent)
    reports = SimReports([folder])
    for way in ways_out(folder):
        with pytest.raises(Exception, match="there is no report"):
            reports.run(way)
    async with view(folder) as http:
        assert len(rows_in(await page_of(http, "/simulation"), "Runs")) == 2, "links are not followed"
        for way in ("../secret", "..%2f..%2fsecret", "%2e%2e/%2e%2e/secret", "link", "crashes/link/secret"):
            for kind in ("runs", "pairs", "sweeps", "reports", "pictures/spacetime"):
                found = await http.get(
                    httpx.URL(f"http://127.0.0.1:8088/simulation/{kind}/0/").copy_with(
                        raw_path=f"/simulation/{kind}/0/{way}".encode()
                    )
                )
                assert found.status_code == 404, (kind, way)


def test_a_file_of_a_report_that_is_a_link_to_elsewhere_is_not_read(folder: Path) -> None:
    (folder.parent / "passwords").write_text("secret")
    reports, run = SimReports([folder]), folder / FAILING[2:]
    (run / "shrunk" / "steps.txt").unlink()
    (run / "shrunk" / "steps.txt").symlink_to(folder.parent / "passwords")
    with pytest.raises(UsageError, match=r"steps\.txt is no file of this report"):
        reports.steps(f"{FAILING}/shrunk")
    for name in ("choices.json", "config.toml", "trace.jsonl.gz", "timeline.json", "result.json"):
        kept = (run / name).rename(folder.parent / name)
        (run / name).symlink_to(kept)
        with pytest.raises(UsageError, match=f"{name} is no file of this report"):
            reports.stored(FAILING)
        (run / name).unlink()
        kept.rename(run / name)
    assert reports.stored(FAILING)[0].result.seed == 7


# -- what is hostile, large or damaged -------------------------------------------------------------------------------------------


async def test_what_a_report_holds_is_text(tmp_path: Path, made: dict[str, Any]) -> None:
    scenario, _, recording, choices = made["failing"]
    wrong = Result(
        name=HOSTILE,
        seed=7,
        verdict="violation",
        violations=[Violation(HOSTILE, HOSTILE, 1, HOSTILE)],
        faults=[ExecutedFault(HOSTILE, HOSTILE, 1, 2)],
        probes={HOSTILE: 1},
        metrics={HOSTILE: 1.0},
    )
    for place in (tmp_path / "run", tmp_path / "run" / "shrunk"):
        write_run(place, scenario, wrong, recording, choices=choices.record, commit=HOSTILE)
    (tmp_path / "run" / "shrunk" / "steps.txt").write_text(HOSTILE)
    (tmp_path / "run" / "report.html").write_text("<script>alert(1)</script>")
    (tmp_path / "sweep.json").write_text(json.dumps(sweep_document(name=HOSTILE, never_hit=[HOSTILE])))
    paths = [
        "/simulation",
        f"/simulation?q={HOSTILE}",
        "/simulation/runs/0/run",
        "/simulation/pairs/0/run",
        "/simulation/sweeps/0/sweep.json",
    ]
    async with view(tmp_path) as http:
        for path in [
            *paths,
            "/simulation/reports/0/run",
            "/simulation/pictures/timeline/0/run",
            "/simulation/pictures/spacetime/0/run",
        ]:
            found = await http.get(path)
            assert (
                found.status_code == 200
                and "<script>" not in found.text
                and "<img src=x" not in found.text
                and "\u202e" not in found.text
            ), path
        for path in paths:
            page = await page_of(http, path)
            assert not [
                each
                for each in page.all()
                if each.name == "style" or "style" in each.attributes or "onclick" in each.attributes
            ]


async def test_what_is_damaged_or_huge_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_reports, "TRACE_BYTES_MAX", 1 << 20)
    bomb = folder / FAILING[2:] / "trace.jsonl.gz"
    bomb.write_bytes(gzip.compress(b"x" * (2 << 20)))
    (folder / "crashes" / "damaged").mkdir()
    (folder / "crashes" / "damaged" / "result.json").write_text('{"kind": 1}')
    async with view(folder) as http:
        page = await page_of(http, f"/simulation/runs/{FAILING}")
        assert "The run's trace is too large to be drawn here." in page.text and len(page.find("img")) == 1
        await page_of(http, f"/simulation/pictures/spacetime/{FAILING}", 404)
        assert "1 run cannot be read" in (await page_of(http, "/simulation")).text
        await page_of(http, "/simulation/runs/0/crashes/damaged", 400)
        monkeypatch.setattr(sim_reports, "FILE_BYTES_MAX", 10)
        found = await page_of(http, "/simulation/runs/0/crashes/20260101T000000Z-1", 400)
        assert "is too large to be shown" in found.text


async def test_however_many_there_are_the_screen_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation_pages, "ROWS_MAX", 1)
    async with view(folder) as http:
        page = await page_of(http, "/simulation")
        assert len(rows_in(page, "Runs")) == 1 and "2 runs, the newest 1 are shown" in page.text
        monkeypatch.setattr(sim_reports, "RUNS_MAX", 2)
        assert (
            "1 older run are not read" not in page.text and "1 older run" in (await page_of(http, "/simulation")).text
        )
    monkeypatch.setattr(sim_reports, "ENTRIES_MAX", 3)
    assert SimReports([folder]).found().is_cut


def test_a_fleets_folder_is_left_alone(folder: Path, made: dict[str, Any]) -> None:
    (folder / "fleet" / "store").mkdir(parents=True)
    (folder / "fleet" / "coordinator.json").write_text("{}")
    write(folder / "fleet" / "store" / "run", made["passing"])
    assert len([each for each in SimReports([folder]).found().runs if not each.of]) == 2


def test_what_is_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        SimReports([tmp_path / "nowhere"])


async def test_a_run_is_read_once_for_its_page_and_its_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    stored = SimReports.stored

    def noting(self: SimReports, place: str) -> Any:
        read.append(place)
        return stored(self, place)

    monkeypatch.setattr(SimReports, "stored", noting)
    async with view(folder) as http:
        for path in ("runs", "pictures/timeline", "pictures/spacetime", "runs"):
            assert (await http.get(f"/simulation/{path}/{FAILING}")).status_code == 200
        os.utime(folder / FAILING[2:] / "result.json", (1, 1))
        assert (await http.get(f"/simulation/runs/{FAILING}")).status_code == 200
    assert read == [FAILING] * 2, "again, for it was written anew"
