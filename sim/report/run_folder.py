"""Reads and writes the folder of a run. The following files contain everything needed to inspect the run, to share it and to repeat it.

    result.json       the verdict with its evidence, probes, metrics, hashes
    config.toml       the scenario with all drawn values
    faults.toml       the faults as they were executed
    choices.json      every choice that was not benign                       (if they were recorded)
    trace.jsonl.gz    for `snapline analyze`, with virtual times             (if the run was recorded)
    timeline.json     epochs, hosts and orphans, which a trace lacks         (if the run was recorded)
    spacetime.svg     space-time diagram                                     (if the run was recorded)
    report.html       everything on one page that needs no network
    metrics.csv       name, value
    repro.txt         commands that repeat the run

`result.json` is written last, so a folder that contains this file is complete. The report can be regenerated from the other files in the
folder.

JSON documents begin with `apiVersion` and `kind`, like all JSON documents that snapline writes. The trace has the format that `snapline
analyze` reads, compressed with gzip. Each line of the trace also contains the virtual time `t_ns`, which other readers ignore. The trace
file and the timeline file together represent a `Recording`. The same run always produces files with the same bytes. No file contains a
wall-clock time, and the compressed trace contains neither a file name nor a date.

*Report.* The HTML page shows the verdict, the evidence, the timeline, the space-time diagram, metrics, probes, and commands that repeat the
run. The page's content security policy forbids network access and scripts. The page follows the reader's light or dark colour scheme. All
text that comes from a run is escaped (`style.text`).
"""

import gzip
import io
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from snapline.diagrams.style import clean, picture, shortened, text
from snapline.diagrams.style import page as framed
from snapline.errors import UsageError
from snapline.messages.answers import API_VERSION, document
from snapline.recovery.trace import CheckpointTaken, Event, Header, MessageReceived, MessageSent, Recovery, encode
from snapline.sim.choices import Key, Record
from snapline.sim.oracles.probes import CATALOGUE
from snapline.sim.report.run_diagrams import draw_run, draw_timeline
from snapline.sim.result import GUARANTEES, VERDICTS, ExecutedFault, Result, Violation, count, seconds, value_words
from snapline.sim.scenario import Scenario, duration_ns, format_scenario, format_toml, parse_scenario
from snapline.sim.world.recording import EpochSpan, HostSpan, Orphan, Recording, TimedEvent

EVENTS_MAX = 2_000
"""Maximum number of events in the page's diagram. More events would make a browser slow. `spacetime.svg` contains more events."""

VIOLATIONS_MAX, FAULTS_MAX, ROWS_MAX = 50, 200, 500
"""Maximum numbers of rows in the page's lists. `result.json` contains all rows."""

WORDS_MAX = 4_000
"""Maximum number of characters that the page shows of one text, such as a traceback."""

SIGNS = {"pass": "✓", "violation": "✗", "undecided": "?", "broken": "!"}


class Page(msgspec.Struct, frozen=True):
    """The contents of the report page.

    Attributes:
        config: the scenario as TOML text, with all random values fixed.
        schema: version of the scenario file format.
        commit: Git commit of the code, or "" if it is unknown.
        heal_ns: time at which all faults were healed.
        within_ns: time that the fleet may take after `heal_ns` to finish its work.
    """

    result: Result
    recording: Recording | None
    config: str
    schema: int
    commit: str
    heal_ns: int = 0
    within_ns: int = 0
    catalogue: dict[str, str] = {}


STYLE = """:root { --pass: #1a7f37; --violation: #cf222e; --undecided: #9a6700; --broken: #8250df; }
@media (prefers-color-scheme: dark) { :root { --pass: #3fb950; --violation: #ff7b72; --undecided: #d29922;
 --broken: #a371f7; } }
header { display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center; }
.verdict { display: inline-block; padding: 4px 14px; border-radius: 999px; border: 2px solid currentColor;
 font-weight: 650; }
.pass { color: var(--pass); } .violation { color: var(--violation); } .undecided { color: var(--undecided); }
.broken { color: var(--broken); }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 16px 0; }
dt { color: var(--quiet); font-size: 12.5px; } dd { margin: 0; font-variant-numeric: tabular-nums; }
.card { border: 1px solid var(--edge); border-left: 4px solid var(--violation); border-radius: 6px; padding: 10px 14px;
 margin: 10px 0; background: var(--panel); }
.timeline svg { min-width: 760px; width: 100%; height: auto; }
.at-end { direction: rtl; } .at-end svg { direction: ltr; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 40px; }
table { width: 100%; }
"""


def page(of: Page) -> str:
    """Return the report page as the text of an HTML file."""
    result = of.result
    name = text(result.name)
    timeline = draw_timeline(result, of.recording, heal_ns=of.heal_ns, within_ns=of.within_ns)
    body = f"""<main>
<header>
<h1>{name} <span class="quiet">seed {result.seed}</span></h1>
<p class="verdict {result.verdict}"><span aria-hidden="true">{SIGNS[result.verdict]}</span> {result.verdict}</p>
</header>
<p>{text(VERDICTS[result.verdict])}</p>
{_joined(_evidence(result))}
<dl>
{_joined(_facts(of))}
</dl>

<h2>Faults and liveness</h2>
{picture(timeline, name="timeline", kind="timeline")}
<details><summary>Faults as carried out</summary>
{_joined(_faults(result))}
</details>

<h2>Space and time</h2>
{_diagram(of)}

<div class="columns">
<section>
<h2>Metrics</h2>
{_joined(_metrics(result))}
</section>
<section>
<h2>Probes</h2>
{_joined(_probes(of))}
</section>
</div>

<h2>Run it again</h2>
{_joined(_reproduce(of))}
<details><summary>The scenario as drawn</summary>
<pre tabindex="0">{_lines(of.config)}</pre>
</details>
</main>"""
    return framed(title=f"{name}, seed {result.seed}: {result.verdict}", body=body, style=STYLE)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _lines(words: str) -> str:
    """Escape a multi-line text for use in a `<pre>` element."""
    return "\n".join(text(line) for line in words.expandtabs(4).split("\n"))


# -- what happened ------------------------------------------------------------------------------------------------------


def _facts(of: Page) -> Iterator[str]:
    result = of.result
    facts = [
        ("virtual time", seconds(result.virtual_ns)),
        ("events", f"{result.events:,}"),
        ("messages", f"{result.messages:,}"),
        ("faults", f"{len(result.faults):,}"),
        ("CPU", f"{result.cpu_s:.2f} s"),
        ("trace hash", shortened(result.trace_hash, 17) or "none"),
    ]
    if of.recording is not None:
        outcomes = [span.outcome for span in of.recording.epochs.values()]
        facts.insert(4, ("epochs", f"{outcomes.count('complete'):,} of {len(outcomes):,} complete"))
    for name, value in facts:
        yield f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>"


def _evidence(result: Result) -> Iterator[str]:
    for violation in result.violations[:VIOLATIONS_MAX]:
        yield from _violation(violation)
    if len(result.violations) > VIOLATIONS_MAX:
        yield f"<p>… and {len(result.violations) - VIOLATIONS_MAX:,} more: <code>result.json</code> has all.</p>"
    if result.pending:
        yield "<h3>Missing at the end</h3>\n<ul>"
        yield from (f"<li>{_words(words)}</li>" for words in result.pending[:ROWS_MAX])
        yield "</ul>"
    if result.error:
        yield f'<h3>Error</h3>\n<pre tabindex="0">{_words(result.error)}</pre>'


def _violation(violation: Violation) -> Iterator[str]:
    promise = GUARANTEES.get(violation.guarantee, "")
    yield '<article class="card">'
    yield f"<h3>{text(violation.guarantee)} <span>· {text(violation.oracle)} · {seconds(violation.t_ns)}</span></h3>"
    yield f"<p>{_words(violation.text)}</p>"
    if promise:
        yield f'<p class="quiet">Promised: {text(promise)}</p>'
    yield "</article>"


def _words(words: str) -> str:
    return _lines(words if len(words) <= WORDS_MAX else words[:WORDS_MAX] + "…")


def _diagram(of: Page) -> str:
    if of.recording is None:
        return '<p class="quiet">The run was not recorded: run it again with a recording to see the events.</p>'
    # The cause of a violation is at the right edge. With right-to-left direction, a browser shows this edge first.
    is_at_end = bool(of.result.violations)
    svg = draw_run(of.recording, of.result, events_max=EVENTS_MAX, is_read_from_end=is_at_end)
    return picture(svg, kind="at-end" if is_at_end else "")


def _faults(result: Result) -> Iterator[str]:
    if not result.faults:
        yield '<p class="quiet">None.</p>'
        return
    rows = [
        (text(fault.kind), text(fault.text), seconds(fault.at_ns), seconds(fault.until_ns) if fault.until_ns else "–")
        for fault in result.faults[:FAULTS_MAX]
    ]
    yield from _table(("kind", "what", "from", "until"), rows, numbers=(2, 3))
    if len(result.faults) > FAULTS_MAX:
        yield f"<p>… and {len(result.faults) - FAULTS_MAX:,} more: <code>faults.toml</code> has all.</p>"


# -- numbers ------------------------------------------------------------------------------------------------------------


def _metrics(result: Result) -> Iterator[str]:
    if not result.metrics:
        yield '<p class="quiet">None.</p>'
        return
    names = sorted(result.metrics)[:ROWS_MAX]
    yield from _table(
        ("metric", "value"), [(text(name), value_words(result.metrics[name])) for name in names], numbers=(1,)
    )


def _probes(of: Page) -> Iterator[str]:
    hits = {name: hit for name, hit in sorted(of.result.probes.items()) if hit}
    never = [name for name in sorted({**of.catalogue, **of.result.probes}) if not hits.get(name)]
    yield f"<p>{count(len(hits), 'probe')} hit, {len(never):,} not in this run.</p>"
    if hits:
        rows = [(_probe(name, of), f"{hit:,}") for name, hit in list(hits.items())[:ROWS_MAX]]
        yield from _table(("hit", "times"), rows, numbers=(1,))
    if never:
        yield f"<details><summary>Never hit ({len(never):,})</summary>\n<ul>"
        yield from (f"<li>{_probe(name, of)}</li>" for name in never[:ROWS_MAX])
        yield "</ul></details>"


def _probe(name: str, of: Page) -> str:
    meaning = of.catalogue.get(name, "")
    return f'{text(name)} <span class="quiet">{text(meaning)}</span>' if meaning else text(name)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, numbers: tuple[int, ...]) -> Iterator[str]:
    """Yield the HTML of a table whose cells are already HTML. `numbers` lists the columns that are right-aligned."""
    mark = ['class="number"' if index in numbers else "" for index in range(len(columns))]
    head = "".join(f'<th scope="col" {mark[index]}>{name}</th>' for index, name in enumerate(columns))
    yield f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>'
    for row in rows:
        yield "<tr>" + "".join(f"<td {mark[index]}>{cell}</td>" for index, cell in enumerate(row)) + "</tr>"
    yield "</tbody></table></div>"


def _reproduce(of: Page) -> Iterator[str]:
    """Yield the commands that repeat the run. The paths in the commands are relative to the run's folder, so they remain correct if the
    folder is moved."""
    yield "<p>In this folder:</p>"
    yield f'<pre tabindex="0">snapline sim replay .\nsnapline sim run config.toml --seed {of.result.seed}</pre>'
    commit = f"<code>{text(clean(of.commit))}</code>" if of.commit else "unknown"
    yield f"<p>Commit {commit}, scenario schema {of.schema}, trace hash <code>{text(of.result.trace_hash) or 'none'}</code>.</p>"


RESULT_KIND, CHOICES_KIND, TIMELINE_KIND = "SimulationResult", "SimulationChoices", "SimulationTimeline"


class Provenance(msgspec.Struct, frozen=True):
    """Origin of a result. `schema` is the version of the scenario file format. `commit` is the Git commit of the code, or "" if it is
    unknown."""

    schema: int
    commit: str


RESULT, CONFIG, FAULTS, CHOICES = "result.json", "config.toml", "faults.toml", "choices.json"
TRACE, TIMELINE, SPACETIME = "trace.jsonl.gz", "timeline.json", "spacetime.svg"
REPORT, METRICS, REPRO = "report.html", "metrics.csv", "repro.txt"

LATEST = "latest"

SAME_SECOND_MAX = 1000
"""Maximum number of runs with the same name and seed in one second. More runs indicate a runaway loop."""


class StoredRun(msgspec.Struct, frozen=True):
    """The contents of a run folder. `config` is the text of `config.toml`."""

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
    """Write all files of a run into `folder`. Create the folder if it does not exist.

    Raises:
        UsageError: If the folder cannot be written.
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
    """Return, for each file name, the file's contents. The files are in the order in which they are written. The contents are None if the
    run does not have this file."""
    recording = run.recording
    return {
        CONFIG: run.config.encode(),
        FAULTS: faults_toml(run.result.faults).encode(),
        CHOICES: None if run.choices is None else choices_json(run.choices),
        TRACE: None if recording is None else trace_gz(recording),
        TIMELINE: None if recording is None else timeline_json(recording),
        METRICS: metrics_csv(run.result).encode("utf-8", "replace"),
        REPRO: _repro(folder, run).encode(),
        **_pictures(run),
        RESULT: result_json(run.result, run.provenance),
    }


def _pictures(run: StoredRun) -> dict[str, bytes | None]:
    recording = run.recording
    return {
        SPACETIME: None if recording is None else draw_run(recording, run.result).encode(),
        REPORT: report_of(run).encode(),
    }


def report_of(run: StoredRun) -> str:
    """Return the HTML text of the report on a stored run."""
    return page(page_of(run))


def page_of(run: StoredRun) -> Page:
    """Return the contents of the report on a stored run."""
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
    """Return, for each probe's name, the probe's meaning. Omit probes that must never be reached and were not reached."""
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
        path.unlink(missing_ok=True)  # the file may remain from an earlier run
    else:
        path.write_bytes(content)


# -- reading ------------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> StoredRun:
    """Read all files in a run folder.

    Raises:
        UsageError: If the folder is not a run folder, or if a file is damaged.
    """
    result, provenance = read_result(folder / RESULT)
    config = _read_text(folder / CONFIG)
    has_trace, has_choices = (folder / TRACE).exists(), (folder / CHOICES).exists()
    return StoredRun(
        scenario=parse_scenario(config, source=str(folder / CONFIG)),
        config=config,
        result=result,
        provenance=provenance,
        recording=read_recording(folder / TRACE, folder / TIMELINE) if has_trace else None,
        choices=read_choices(folder / CHOICES) if has_choices else None,
    )


def rebuild(folder: Path) -> Path:
    """Regenerate a run's report and diagram from the other files in its folder. Return the report's path.

    Raises:
        UsageError: If the folder is not a run folder, or if it cannot be written.
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
    """Create the folder for a new run, `base/<name>/<UTC time>-<seed>`. Make the link `base/<name>/latest` point to it.

    The link is replaced atomically, so it always points to an existing folder.

    Raises:
        UsageError: If the folder cannot be created.
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
    """Return the path for the summary of a sweep, `base/<name>/<UTC time>-sweep.json`, and create its folder.

    Raises:
        UsageError: If the folder cannot be created.
    """
    parent = base / _safe(name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written: {error.strerror or error}; name another folder") from error
    return parent / f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-sweep.json"


def _make(parent: Path, stem: str) -> Path:
    """Create a new folder with a unique name. The name must be made unique because two runs with the same seed may begin in the same
    second."""
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
    """Convert a scenario's name to a form that can be used as a single path component."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


# -- result -------------------------------------------------------------------------------------------------------------


def result_json(result: Result, provenance: Provenance) -> bytes:
    """Return the contents of `result.json`, which are the whole result and the text of each violated guarantee."""
    fields = msgspec.to_builtins(result)
    # JSON cannot represent infinities and NaN, so they become null. null is read back as NaN.
    fields["metrics"] = {
        name: value if math.isfinite(value) else None for name, value in sorted(result.metrics.items())
    }
    for violation in fields["violations"]:
        violation["at"] = seconds(violation["t_ns"])
        violation["promise"] = GUARANTEES.get(violation["guarantee"], "")
    return _json(document(RESULT_KIND, **msgspec.to_builtins(provenance), **fields))


def read_result(path: Path) -> tuple[Result, Provenance]:
    """Read a file that was written with the output of `result_json`.

    Raises:
        UsageError: If the file is missing or has a different format.
    """
    fields = _read_document(path, RESULT_KIND)
    metrics = fields.get("metrics")
    if isinstance(metrics, dict):
        fields["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
    try:
        return msgspec.convert(fields, Result), msgspec.convert(fields, Provenance)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no result of this release: {error}; run the simulation again") from error


def metrics_csv(result: Result) -> str:
    """Return the contents of `metrics.csv`, which are the name and value of each metric, sorted by name."""
    rows = [f"{_csv(name)},{value!r}" for name, value in sorted(result.metrics.items())]
    return "\n".join(["name,value", *rows]) + "\n"


def _csv(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(sign in cell for sign in ',"\n\r') else cell


# -- faults -------------------------------------------------------------------------------------------------------------


def faults_toml(faults: Iterable[ExecutedFault]) -> str:
    """Return the contents of `faults.toml`, which are the executed faults in order. If a fault has no end, the key `until` is omitted."""
    return format_toml({"executed": [_fault(fault) for fault in faults]}).lstrip("\n")


def _fault(fault: ExecutedFault) -> dict[str, str]:
    fields = {"kind": fault.kind, "text": fault.text, "at": exact(fault.at_ns)}
    if fault.until_ns:
        fields["until"] = exact(fault.until_ns)
    # TOML cannot represent an unpaired surrogate.
    return {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}


def exact(time_ns: int) -> str:
    """Format a duration exactly, in the syntax of scenarios, such as `5s`, `1.25s` or `0.000000001s`."""
    whole, rest = divmod(time_ns, 1_000_000_000)
    return f"{whole}.{rest:09d}".rstrip("0") + "s" if rest else f"{whole}s"


# -- choices ------------------------------------------------------------------------------------------------------------


def choices_json(choices: Record) -> bytes:
    """Return the contents of `choices.json`. Each line contains the stream, the key and the value of one choice, in the order of the
    run."""
    rows = [json.dumps([stream, _plain(key), value], ensure_ascii=False) for (stream, key), value in choices.items()]
    opening = f'{{"apiVersion": "{API_VERSION}", "kind": "{CHOICES_KIND}", "choices": ['
    return _bytes(opening + "".join(f"\n{row}," for row in rows).rstrip(",") + "\n]}\n")


def _plain(part: object) -> object:
    """Convert part of a choice's key to a form that JSON can represent. Tuples become lists. Only text, integers and None are supported,
    because other types could not be read back."""
    if isinstance(part, tuple):
        return [_plain(item) for item in part]
    if part is None or isinstance(part, str | int):
        return part
    raise UsageError(f"the key {part!r} of a choice cannot be written: use text, whole numbers and tuples of them")


def read_choices(path: Path) -> Record:
    """Read a file that was written with the output of `choices_json`.

    Raises:
        UsageError: If the file is missing or has a different format.
    """
    rows = _read_document(path, CHOICES_KIND).get("choices")
    try:
        return {
            (stream, _key(key)): value for stream, key, value in msgspec.convert(rows, list[tuple[str, list[Any], int]])
        }
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} holds no choices: {error}; run the simulation again") from error


def _key(parts: list[Any]) -> Key:  # Any: JSON of any depth
    return tuple(_key(part) if isinstance(part, list) else part for part in parts)


# -- recording ----------------------------------------------------------------------------------------------------------


class _Timeline(msgspec.Struct, frozen=True):
    agents: list[str]
    placed: dict[str, str]
    epochs: list[EpochSpan]
    hosts: list[HostSpan]
    orphans: list[Orphan]
    is_cut: bool


class _Time(msgspec.Struct, frozen=True):
    t_ns: int = 0


def trace_lines(recording: Recording) -> Iterator[bytes]:
    """Yield the lines of the trace, which are a header and each recorded event with its virtual time."""
    yield encode(Header(agents=recording.agents))
    for timed in recording.events:
        yield b'%s,"t_ns":%d}\n' % (encode(timed.event)[:-2], timed.t_ns)


def trace_gz(recording: Recording) -> bytes:
    """Return the contents of `trace.jsonl.gz`."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6) as stream:
        for line in trace_lines(recording):
            stream.write(line)
    return packed.getvalue()


def timeline_json(recording: Recording) -> bytes:
    """Return the contents of `timeline.json`, which are those parts of a recording that the trace does not contain."""
    epochs = list(recording.epochs.values())
    timeline = _Timeline(
        recording.agents, recording.placed, epochs, recording.hosts, recording.orphans, recording.is_cut
    )
    return _json(document(TIMELINE_KIND, **msgspec.to_builtins(timeline)))


def read_recording(trace: Path, timeline: Path) -> Recording:
    """Read a run's recording from the trace file and the timeline file.

    Raises:
        UsageError: If a file is missing or damaged.
    """
    try:
        stored = msgspec.convert(_read_document(timeline, TIMELINE_KIND), _Timeline)
        events = list(_events(_read(trace)))
    except (msgspec.DecodeError, EOFError, OSError) as error:  # `ValidationError` is a subclass of `DecodeError`
        raise UsageError(f"{trace} and {timeline.name} cannot be read: {error}; run the simulation again") from error
    recording = Recording()
    recording.agents, recording.placed, recording.hosts = stored.agents, stored.placed, stored.hosts
    recording.epochs = {span.epoch: span for span in stored.epochs}
    recording.orphans, recording.is_cut, recording.events = stored.orphans, stored.is_cut, events
    return recording


def _events(packed: bytes) -> Iterator[TimedEvent]:
    decode_event = msgspec.json.Decoder(CheckpointTaken | MessageSent | MessageReceived | Recovery).decode
    decode_time = msgspec.json.Decoder(_Time).decode
    lines = iter(gzip.GzipFile(fileobj=io.BytesIO(packed)))
    next(lines, None)  # skip the header
    for line in lines:
        event: Event | Recovery = decode_event(line)
        yield TimedEvent(decode_time(line).t_ns, event)


# -- documents ----------------------------------------------------------------------------------------------------------


def _json(rows: dict[str, object]) -> bytes:
    return _bytes(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")


def _bytes(words: str) -> bytes:
    """Encode JSON text. Unpaired surrogates, which UTF-8 cannot encode, are written as JSON escapes."""
    return words.encode("utf-8", "backslashreplace")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; name the folder of a run") from error


def _read_document(path: Path, kind: str) -> dict[str, Any]:  # Any: parsed JSON, which callers validate
    try:
        found = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}; run the simulation again") from error
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise UsageError(f"{path} is no {kind}: name the folder of a run")
    return found
