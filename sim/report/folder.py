"""Folder of one run: everything needed to inspect it, share it and run it again.

    result.json       the verdict with its evidence, probes, metrics, hashes
    config.toml       the scenario as it was drawn
    faults.toml       the faults as they were carried out
    choices.json      every choice that was not benign                       (if they were recorded)
    trace.jsonl.gz    for `snapline analyze`, with virtual times             (if the run was recorded)
    timeline.json     epochs, hosts and orphans, which a trace lacks         (likewise)
    spacetime.svg     space-time diagram                                     (likewise)
    report.html       everything on one page that needs no network
    metrics.csv       name, value
    repro.txt         commands that run it again

`result.json` is written last: a folder that has it is complete. The report can be regenerated from the other files.
"""

import os
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from snapline.errors import UsageError
from snapline.sim.choices import Record
from snapline.sim.oracles.probes import CATALOGUE
from snapline.sim.report import files
from snapline.sim.report.files import Provenance
from snapline.sim.report.html import Page, page
from snapline.sim.report.run_diagrams import draw_run
from snapline.sim.result import Result
from snapline.sim.scenario import Scenario, duration_ns, format_scenario, parse_scenario
from snapline.sim.world.recording import Recording

RESULT, CONFIG, FAULTS, CHOICES = "result.json", "config.toml", "faults.toml", "choices.json"
TRACE, TIMELINE, SPACETIME = "trace.jsonl.gz", "timeline.json", "spacetime.svg"
REPORT, METRICS, REPRO = "report.html", "metrics.csv", "repro.txt"

LATEST = "latest"

SAME_SECOND_MAX = 1000
"""Maximum number of runs with one name and seed in one second; more indicate a runaway loop."""


class StoredRun(msgspec.Struct, frozen=True):
    """Contents of a run folder. `config`: text of the scenario file."""

    scenario: Scenario
    config: str
    result: Result
    provenance: Provenance
    recording: Recording | None
    choices: Record | None


def write_run(
    folder: Path,
    scenario: Scenario,
    result: Result,
    recording: Recording | None,
    *,
    choices: Record | None,
    commit: str,
) -> None:
    """Write all files of a run into `folder`, which is created if it is missing.

    Raises:
        UsageError: the folder cannot be written.
    """
    provenance = Provenance(scenario.schema, commit)
    run = StoredRun(scenario, format_scenario(scenario), result, provenance, recording, choices)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        for name, content in _contents(folder, run).items():
            _write(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}; name another folder") from error


def _contents(folder: Path, run: StoredRun) -> dict[str, bytes | None]:
    """Return the files by name, in the order of writing; None for a file that this run does not have."""
    recording = run.recording
    return {
        CONFIG: run.config.encode(),
        FAULTS: files.faults_toml(run.result.faults).encode(),
        CHOICES: None if run.choices is None else files.choices_json(run.choices),
        TRACE: None if recording is None else files.trace_gz(recording),
        TIMELINE: None if recording is None else files.timeline_json(recording),
        METRICS: files.metrics_csv(run.result).encode("utf-8", "replace"),
        REPRO: _repro(folder, run).encode(),
        **_pictures(run),
        RESULT: files.result_json(run.result, run.provenance),
    }


def _pictures(run: StoredRun) -> dict[str, bytes | None]:
    recording = run.recording
    return {
        SPACETIME: None if recording is None else draw_run(recording, run.result).encode(),
        REPORT: report_of(run).encode(),
    }


def report_of(run: StoredRun) -> str:
    """Return the report as the text of one HTML file."""
    return page(page_of(run))


def page_of(run: StoredRun) -> Page:
    """Return the contents of the report."""
    liveness = run.scenario.liveness
    last_end_ns = max((max(fault.at_ns, fault.until_ns) for fault in run.result.faults), default=0)
    return Page(
        result=run.result,
        recording=run.recording,
        config=run.config,
        schema=run.provenance.schema,
        commit=run.provenance.commit,
        heal_ns=duration_ns(liveness.heal) if liveness.heal else last_end_ns,
        within_ns=duration_ns(liveness.within),
        catalogue=_catalogue(run.result),
    )


def _catalogue(result: Result) -> dict[str, str]:
    """Return probes with their meaning. Probes that must not be reached are included only if they were."""
    return {
        name: probe.text for name, probe in CATALOGUE.items() if probe.verb != "unreachable" or result.probes.get(name)
    }


def _repro(folder: Path, run: StoredRun) -> str:
    folder_argument, config = shlex.quote(str(folder)), shlex.quote(str(folder / CONFIG))
    return (
        f"snapline sim replay {folder_argument}\n"
        f"snapline sim run {config} --seed {run.result.seed}\n"
        f"# commit {run.provenance.commit or 'unknown'}, schema {run.provenance.schema}\n"
    )


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)  # file of an earlier run
    else:
        path.write_bytes(content)


# -- reading ------------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> StoredRun:
    """Read a run folder.

    Raises:
        UsageError: the folder is not one of a run, or a file is damaged.
    """
    result, provenance = files.read_result(folder / RESULT)
    config = _read_text(folder / CONFIG)
    has_trace, has_choices = (folder / TRACE).exists(), (folder / CHOICES).exists()
    return StoredRun(
        scenario=parse_scenario(config, source=str(folder / CONFIG)),
        config=config,
        result=result,
        provenance=provenance,
        recording=files.read_recording(folder / TRACE, folder / TIMELINE) if has_trace else None,
        choices=read_choices(folder / CHOICES) if has_choices else None,
    )


def read_choices(path: Path) -> Record:
    """Read the choices of a run, for `RecordedChoices`.

    Raises:
        UsageError: the file is missing or has another format.
    """
    return files.read_choices(path)


def rebuild(folder: Path) -> Path:
    """Regenerate the report and the diagram of a run from its other files. Return the report's path.

    Raises:
        UsageError: the folder is not one of a run, or cannot be written.
    """
    run = read_run(folder)
    try:
        for name, content in _pictures(run).items():
            _write(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}; copy it elsewhere") from error
    return folder / REPORT


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; name the folder of a run") from error


# -- places -------------------------------------------------------------------------------------------------------------


def folder_for(base: Path, name: str, seed: int, now: datetime) -> Path:
    """Create the folder of a new run, `base/<name>/<UTC time>-<seed>`, and point `base/<name>/latest` to it.

    The link is replaced atomically, so it always points to this run or to an earlier one.

    Raises:
        UsageError: the folder cannot be created.
    """
    parent = base / _safe(name)
    stem = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{seed}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = _make(parent, stem)
        _point(parent / LATEST, folder.name)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written: {error.strerror or error}; name another folder") from error
    return folder


def sweep_file(base: Path, name: str, now: datetime) -> Path:
    """Return the path of a sweep's summary, `base/<name>/<UTC time>-sweep.json`, and create its folder.

    Raises:
        UsageError: the folder cannot be created.
    """
    parent = base / _safe(name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written: {error.strerror or error}; name another folder") from error
    return parent / f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-sweep.json"


def _make(parent: Path, stem: str) -> Path:
    """Create a new folder with a unique name, as two runs of one seed may begin in the same second."""
    for number in range(1, SAME_SECOND_MAX + 1):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"{parent} has {SAME_SECOND_MAX} runs named {stem}: wait a second")


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{LATEST}-{target}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target, target_is_directory=True)
    os.replace(fresh, link)


def _safe(name: str) -> str:
    """Return a scenario's name as a single path component."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
