"""Serve the pages of simulation reports, which show runs, sweeps, and failing runs next to their shrunk versions.

GET  /simulation                          list of the reports in the folders
GET  /simulation/runs/{place}             one run
GET  /simulation/pairs/{place}            a failing run next to its shrunk run
GET  /simulation/sweeps/{place}           one sweep
GET  /simulation/reports/{place}          the run's newly generated report as a separate page
GET  /simulation/pictures/{kind}/{place}  the run's timeline or space-time diagram

The screen *Simulation* lists the runs and sweeps in the report folders. The page of a sweep groups failures by oracle. The page of a run
shows the evidence, the faults, the timeline and the space-time diagram of the run. Only one report at a time is read and drawn, in a
thread, because drawing a run takes half a second.
"""

import asyncio
import math
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from snapline.errors import NotFoundError
from snapline.sim.report.run_diagrams import draw_run, draw_timeline
from snapline.sim.report.run_folder import StoredRun, page_of, report_of
from snapline.sim.result import GUARANTEES, VERDICTS, ExecutedFault, Result, seconds, value_words
from snapline.view.display_text import NOTHING, age, count, plural, tone_of
from snapline.view.markup import Child, Markup, join, shown, tag
from snapline.view.page_elements import section, table
from snapline.view.sign_in import HEADERS
from snapline.view.sim_reports import SHRUNK, FoundReports, FoundRun, FoundSweep, SimReports, SweepFound

PLACE = "/simulation"

ROWS_MAX = 200
"""Largest number of runs in the table. Viewers find the remaining runs by searching."""

FINDINGS_MAX, PROBES_MAX = 100, 200

WHY_MAX = 300
"""Largest number of characters of evidence that a table shows. The run's page shows all of the evidence."""

RUN_COLUMNS = (
    *(("Run", ""), ("Seed", "number"), ("Verdict", ""), ("Protocol or fleet", ""), ("Virtual time", "number")),
    *(("What went wrong", "wide"), ("Shrunk", ""), ("Written", "")),
)
SWEEP_COLUMNS = (
    *(("Sweep", ""), ("Verdict", ""), ("Runs", "number"), ("Pass", "number"), ("Violation", "number")),
    *(("Undecided", "number"), ("Broken", "number"), ("What failed", "wide"), ("Written", "")),
)
FINDING_COLUMNS = (
    *(("Oracle", ""), ("Verdict", ""), ("Runs", "number"), ("Seeds", "wide"), ("Evidence of the first", "wide")),
    ("Again", ""),
)


class RunSearch(msgspec.Struct, frozen=True):
    """A search for runs.

    `text` must occur in a name, protocol, oracle or evidence. `verdict` must match exactly. An empty text matches all runs.
    """

    text: str = ""
    verdict: str = ""

    def finds(self, run: FoundRun) -> bool:
        """Return whether the run matches the search."""
        searched = f"{run.head.name} {run.head.seed} {run.protocol} {run.head.oracles} {run.head.why}".casefold()
        return self.text.casefold() in searched and self.verdict in ("", run.head.verdict)


def verdict_pill(verdict: str) -> Markup:
    """Draw a verdict as a coloured word with an explanation."""
    meaning = VERDICTS.get(verdict)
    return tag("span", verdict or "unknown", class_=f"pill {tone_of('verdict', verdict)}", title=meaning)


def address(kind: str, place: str) -> str:
    """Return the address of the given kind of page for the report at `place`."""
    return f"{PLACE}/{kind}/{quote(place)}"


def simulation_body(found: FoundReports, search: RunSearch, folders: Sequence[str]) -> Markup:
    """Draw the screen *Simulation*."""
    title = tag("div", tag("h1", "Simulation"), tag("p", ", ".join(folders), class_="quiet"), class_="title")
    return join([title, _strips(found), _sweeps(found.sweeps), _runs(found, search)])


def _strips(found: FoundReports) -> list[Markup]:
    notices = [
        "The folders hold more than is looked at: give those of single scenarios." if found.is_cut else "",
        f"{plural(found.older, 'older run')} are not read." if found.older else "",
        f"{plural(found.unreadable, 'run')} cannot be read: of another release, or damaged."
        if found.unreadable
        else "",
    ]
    return [tag("p", each, class_="strip warn") for each in notices if each]


def _sweeps(sweeps: Sequence[FoundSweep]) -> Markup | None:
    if not sweeps:
        return None
    return section("sweeps", "Sweeps", table(SWEEP_COLUMNS, [_sweep(each) for each in sweeps], label="Sweeps"))


def _sweep(each: FoundSweep) -> Markup:
    facts = each.facts
    numbers = [facts.runs, *(facts.verdicts.get(verdict, 0) for verdict in VERDICTS)]
    failed = ", ".join([f"{finding.guarantee} {finding.oracle}".strip() for finding in facts.findings[:5]])
    return tag(
        "tr",
        tag("th", tag("a", facts.name, href=address("sweeps", each.place)), scope="row"),
        tag("td", verdict_pill(facts.verdict)),
        [tag("td", count(number), class_="number" if number else "number zero") for number in numbers],
        tag("td", shown(failed, WHY_MAX) or NOTHING, class_="wide"),
        tag("td", age(each.written_s)),
    )


def _runs(found: FoundReports, search: RunSearch) -> Markup:
    tops = [each for each in found.runs if not each.of]
    chosen = [each for each in tops if search.finds(each)]
    summary = plural(len(tops), "run") if len(chosen) == len(tops) else f"{len(chosen):,} of {plural(len(tops), 'run')}"
    summary += f", the newest {ROWS_MAX} are shown" if len(chosen) > ROWS_MAX else ""
    rows = [_run(each) for each in chosen[:ROWS_MAX]]
    none = "No run is found." if tops else "There is none: `snapline sim run` writes its reports to runs/."
    body = table(RUN_COLUMNS, rows, label="Runs") if rows else tag("p", none, class_="quiet")
    aside = tag("span", summary, class_="quiet", role="status")
    return section("runs", "Runs", _form(search) if tops else None, body, aside=aside)


def _form(search: RunSearch) -> Markup:
    text = tag(
        "input",
        type="search",
        name="q",
        value=search.text,
        placeholder="Name, protocol, oracle, evidence",
        aria_label="Search",
    )
    options = [tag("option", each, value=each, selected=each == search.verdict) for each in VERDICTS]
    verdicts = tag("select", tag("option", "all verdicts", value=""), *options, name="verdict", aria_label="Verdict")
    return tag("form", text, verdicts, tag("button", "Search"), method="get", action=PLACE, class_="search")


def _run(each: FoundRun) -> Markup:
    head = each.head
    why: list[Child] = [tag("b", f"{head.oracles} "), shown(head.why, WHY_MAX)] if head.why else [NOTHING]
    pair = tag("a", "side by side", href=address("pairs", each.place)) if each.shrunk else None
    return tag(
        "tr",
        tag("th", tag("a", head.name, href=address("runs", each.place)), scope="row"),
        tag("td", str(head.seed), class_="number"),
        tag("td", verdict_pill(head.verdict)),
        tag("td", each.protocol),
        tag("td", seconds(head.virtual_ns), class_="number"),
        tag("td", why, class_="wide"),
        tag("td", pair),
        tag("td", age(each.written_s)),
    )


# ---- one sweep ------------------------------------------------------------------------------------------------------


def sweep_body(sweep: FoundSweep, runs: Sequence[FoundRun]) -> Markup:
    """Draw the page of a sweep. `runs` contains the runs with reports, to which the seeds link."""
    facts = sweep.facts
    about = [plural(facts.runs, "run"), f"{facts.elapsed_s:.1f} s", *(["stopped"] if facts.is_stopped else [])]
    title = tag(
        "div",
        *(tag("h1", facts.name), verdict_pill(facts.verdict), tag("p", " · ".join(about), class_="quiet")),
        class_="title",
    )
    tiles = [
        tag(
            "div",
            tag("dt", verdict),
            tag("dd", count(facts.verdicts.get(verdict, 0))),
            tag("dd", meaning, class_="more"),
        )
        for verdict, meaning in VERDICTS.items()
    ]
    places = {(each.head.name, each.head.seed): each.place for each in reversed(runs) if not each.of}
    rows = [_finding(each, facts.name, places) for each in facts.findings[:FINDINGS_MAX]]
    body = table(FINDING_COLUMNS, rows, label="Failures") if rows else tag("p", "No run failed.", class_="quiet")
    more = len(facts.findings) - FINDINGS_MAX
    findings = section(
        "findings", "Failures by oracle", body, tag("p", f"and {more:,} more", class_="quiet") if more > 0 else None
    )
    return join([_back(), title, tag("dl", tiles, class_="figures"), findings, _checks(sweep)])


def _finding(each: SweepFound, name: str, places: Mapping[tuple[str, int], str]) -> Markup:
    seeds: list[Child] = []
    for seed in each.seeds:
        place = places.get((name, seed))
        seeds += [tag("a", str(seed), href=address("runs", place)) if place else str(seed), " "]
    return tag(
        "tr",
        tag("th", f"{each.guarantee} {each.oracle}".strip(), scope="row"),
        tag("td", verdict_pill(each.verdict)),
        tag("td", count(each.count), class_="number"),
        tag("td", seeds, "…" if each.count > len(each.seeds) else None, class_="wide seeds"),
        tag("td", shown(each.text, WHY_MAX), class_="wide"),
        tag("td", tag("code", shown(each.repeat, WHY_MAX))),
    )


def _checks(sweep: FoundSweep) -> Markup:
    facts = sweep.facts
    never = ", ".join(facts.never_hit[:PROBES_MAX]) or "none"
    more = f", and {len(facts.never_hit) - PROBES_MAX:,} more" if len(facts.never_hit) > PROBES_MAX else ""
    twice = (
        f"{plural(facts.checked, 'run')} made twice: {plural(len(facts.divergences), 'differs', 'differ')}."
        if facts.checked
        else "No run was made twice."
    )
    return section("checks", "What the runs met", tag("p", f"Probes that no run hit: {never}{more}."), tag("p", twice))


def _back() -> Markup:
    return tag("p", tag("a", "All reports", href=PLACE))


# -- one run -----------------------------------------------------------------------------------------------------------


VIOLATIONS_MAX, FAULTS_MAX, NUMBERS_MAX = 50, 200, 300
"""Largest number of violations, faults and numbers that the page lists. The file `result.json` contains all of them."""

STEPS_MAX = 150
"""Largest number of shrinking steps that are shown."""

WORDS_MAX = 4_000
"""Largest number of characters that the page shows of one text, such as a traceback."""

TIMELINE, SPACETIME = "timeline", "spacetime"
PICTURES = {TIMELINE: "Timeline", SPACETIME: "Space-time diagram"}

FAULT_COLUMNS = (("Fault", ""), ("What", "wide"), ("From", "number"), ("Until", "number"))
METRIC_COLUMNS, PROBE_COLUMNS = (("Metric", ""), ("Value", "number")), (("Probe that was hit", ""), ("Times", "number"))
PAIR_COLUMNS = (("", "half"), ("As found", "half"), ("Shrunk", "half"))


def run_body(found: FoundRun, run: "StoredRun", too_large: str) -> Markup:
    """Draw the page of a run. `too_large` says why the page has no space-time diagram, or is ""."""
    result = run.result
    return join(
        [
            _links(found),
            _title(result, found.protocol),
            _figures(run),
            _evidence(result),
            section("timeline", "Faults and liveness", _picture(TIMELINE, found, result), _faults(result)),
            section("spacetime", "Space and time", _diagram(found, run, too_large)),
            _numbers(result),
            _again(found, run),
        ]
    )


def _links(found: FoundRun) -> Markup:
    links: list[Child] = [tag("a", "All reports", href=PLACE)]
    if found.shrunk:
        links += [" · ", tag("a", "Next to its shrunk form", href=address("pairs", found.place))]
    if found.of:
        links += [" · ", tag("a", "Next to the run that it was shrunk from", href=address("pairs", found.of))]
    links += [" · ", tag("a", "The report on a page of its own", href=address("reports", found.place))]
    return tag("p", links)


def _title(result: "Result", protocol: str) -> Markup:
    about = f"seed {result.seed} · {protocol}"
    return tag(
        "div", tag("h1", result.name), verdict_pill(result.verdict), tag("p", about, class_="quiet"), class_="title"
    )


def _figures(run: "StoredRun") -> Markup:
    result = run.result
    epochs = [] if run.recording is None else [span.outcome for span in run.recording.epochs.values()]
    figures = (
        ("Virtual time", seconds(result.virtual_ns), f"{result.cpu_s:.2f} s of CPU"),
        ("Messages", count(result.messages), "consumed by turns"),
        ("Events", count(result.events), ""),
        ("Faults", count(len(result.faults)), "carried out"),
        (
            "Epochs",
            count(epochs.count("complete")) if epochs else NOTHING,
            f"complete, of {len(epochs):,}" if epochs else "not recorded",
        ),
    )
    tiles = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", more, class_="more")) for name, value, more in figures
    ]
    return tag("dl", tiles, class_="figures")


def _evidence(result: "Result") -> Markup:
    cards = [
        tag(
            "div",
            tag("h3", f"{each.guarantee} {each.oracle} ", tag("span", f"at {seconds(each.t_ns)}", class_="quiet")),
            tag("p", shown(each.text, WORDS_MAX)),
            tag("p", f"Promised: {GUARANTEES[each.guarantee]}", class_="quiet")
            if each.guarantee in GUARANTEES
            else None,
            class_="strip bad",
        )
        for each in result.violations[:VIOLATIONS_MAX]
    ]
    cards += [
        tag("p", f"Still missing at the end: {shown(each, WORDS_MAX)}", class_="strip warn")
        for each in result.pending[:VIOLATIONS_MAX]
    ]
    cards += [tag("pre", shown(result.error, WORDS_MAX), tabindex="0")] if result.error else []
    hidden = len(result.violations) - VIOLATIONS_MAX
    more = tag("p", f"and {hidden:,} more: result.json has all", class_="quiet") if hidden > 0 else None
    return section("evidence", "What happened", tag("p", VERDICTS.get(result.verdict, "")), cards, more)


# ---- pictures and lists ---------------------------------------------------------------------------------------------


def _picture(kind: str, found: FoundRun, result: "Result") -> Markup:
    """Draw a picture that the browser loads on demand. The page initially shows the end of the run, where readers look first."""
    source = address(f"pictures/{kind}", found.place)
    description = f"{PICTURES[kind]} of {result.name}, seed {result.seed}; opened separately it has tooltips"
    drawn = tag("a", tag("img", src=source, alt=description, loading="lazy"), href=source)
    at_end = " at-end" if kind == SPACETIME and result.violations else ""
    return tag("div", drawn, class_=f"picture {kind}{at_end}", tabindex="0", role="region", aria_label=PICTURES[kind])


def _diagram(found: FoundRun, run: "StoredRun", too_large: str) -> Markup:
    if run.recording is None:
        return tag("p", too_large or "The run was not recorded.", class_="quiet")
    return _picture(SPACETIME, found, run.result)


def _faults(result: "Result") -> Markup:
    if not result.faults:
        return tag("p", "No fault was carried out.", class_="quiet")
    rows = [_fault(each) for each in result.faults[:FAULTS_MAX]]
    more = len(result.faults) - FAULTS_MAX
    return join(
        [
            table(FAULT_COLUMNS, rows, label="Faults as they were carried out"),
            tag("p", f"and {more:,} more: faults.toml has all", class_="quiet") if more > 0 else None,
        ]
    )


def _fault(each: "ExecutedFault") -> Markup:
    times = (seconds(each.at_ns), seconds(each.until_ns) if each.until_ns else NOTHING)
    cells = [tag("td", time, class_="number") for time in times]
    return tag("tr", tag("th", each.kind, scope="row"), tag("td", shown(each.text, WORDS_MAX), class_="wide"), cells)


def _numbers(result: "Result") -> Markup:
    metrics = [
        _pair(name, value_words(value) if math.isfinite(value) else NOTHING)
        for name, value in sorted(result.metrics.items())[:NUMBERS_MAX]
    ]
    hits = [_pair(name, count(hit)) for name, hit in sorted(result.probes.items())[:NUMBERS_MAX] if hit]
    parts = [
        tag("details", tag("summary", name), table(columns, rows, label=name), class_="card")
        for name, columns, rows in (("Metrics", METRIC_COLUMNS, metrics), ("Probes", PROBE_COLUMNS, hits))
        if rows
    ]
    return section("numbers", "Numbers", parts or tag("p", "There are none.", class_="quiet"))


def _pair(name: str, value: str) -> Markup:
    return tag("tr", tag("th", name, scope="row"), tag("td", value, class_="number"))


def _again(found: FoundRun, run: "StoredRun") -> Markup:
    commands = f"snapline sim replay .\nsnapline sim run config.toml --seed {run.result.seed}"
    if run.result.verdict != "pass" and not found.shrunk and not found.of:
        commands += "\nsnapline sim shrink ."
    about = f"Commit {run.provenance.commit or 'unknown'}, trace hash {run.result.trace_hash or 'none'}."
    drawn = tag(
        "details", tag("summary", "The scenario as it was drawn"), tag("pre", run.config, tabindex="0"), class_="card"
    )
    return section(
        "again",
        "Run it again",
        tag("p", "In its folder:"),
        tag("pre", commands, tabindex="0"),
        tag("p", about, class_="quiet"),
        drawn,
    )


# ---- side by side -----------------------------------------------------------------------------------------------------


def pair_body(whole: FoundRun, before: "StoredRun", shrunk: FoundRun, after: "StoredRun", steps: str) -> Markup:
    """Draw a failing run next to its shrunk run, which is the smallest run found in which the same oracle fails."""
    title = tag(
        "div",
        *(tag("h1", f"{before.result.name}, shrunk"), verdict_pill(after.result.verdict)),
        tag("p", f"seed {before.result.seed} · {whole.protocol}", class_="quiet"),
        class_="title",
    )
    sides = ((whole, before, "As found"), (shrunk, after, "Shrunk"))
    columns = [
        tag("div", tag("h3", tag("a", name, href=address("runs", summary.place))), _side(summary, run), class_="side")
        for summary, run, name in sides
    ]
    return join(
        [
            tag("p", tag("a", "All reports", href=PLACE)),
            title,
            section("sizes", "What is left", _sizes(before, after)),
            section("pair", "Side by side", tag("div", columns, class_="pair")),
            section("differences", "The scenario, where it differs", _differences(before.config, after.config)),
            section("steps", "What was left out", _steps(steps)),
        ]
    )


def _sizes(before: "StoredRun", after: "StoredRun") -> Markup:
    rows = []
    for name, old_size, new_size in zip(_size_names(), _size_of(before), _size_of(after), strict=True):
        cells = [
            tag("td", each, class_="half")
            for each in (old_size, tag("b", new_size) if old_size != new_size else new_size)
        ]
        rows.append(tag("tr", tag("th", name, scope="row", class_="half"), cells))
    return table(PAIR_COLUMNS, rows, label="Sizes of both runs")


def _size_names() -> tuple[str, ...]:
    return (
        "What fails",
        "Choices that are not benign",
        "Faults",
        "Messages",
        "Events",
        "Virtual time",
        "Agents",
        "Hosts",
        "Coordinators",
    )


def _size_of(run: "StoredRun") -> Sequence[str]:
    result, fleet = run.result, run.scenario.fleet
    oracles = ", ".join(dict.fromkeys([f"{each.guarantee} {each.oracle}" for each in result.violations]))
    cells = [oracles or result.verdict, NOTHING if run.choices is None else count(len(run.choices))]
    cells += [count(len(result.faults)), count(result.messages), count(result.events), seconds(result.virtual_ns)]
    return [*cells, count(fleet.agents), count(fleet.hosts), count(fleet.coordinators)]


def _side(found: FoundRun, run: "StoredRun") -> Markup:
    result = run.result
    first = result.violations[0] if result.violations else None
    words = (
        f"{first.guarantee} {first.oracle}, at {seconds(first.t_ns)}: {first.text}"
        if first
        else (result.pending or [result.error])[0]
    )
    faults = [tag("li", f"{each.text}, at {seconds(each.at_ns)}") for each in result.faults[:FAULTS_MAX]]
    more = len(result.faults) - FAULTS_MAX
    return join(
        [
            tag("p", shown(words, WORDS_MAX), class_="strip bad"),
            _picture(TIMELINE, found, result),
            _picture(SPACETIME, found, result)
            if run.recording is not None
            else tag("p", "It has no picture.", class_="quiet"),
            tag("p", f"{plural(len(result.faults), 'fault')}:" if faults else "No fault is needed.", class_="quiet"),
            tag("ul", faults) if faults else None,
            tag("p", f"and {more:,} more", class_="quiet") if more > 0 else None,
        ]
    )


def _differences(before: str, after: str) -> Markup:
    first, second = (dict(_flat(tomllib.loads(text))) for text in (before, after))
    names = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    rows = [
        tag(
            "tr",
            tag("th", tag("code", name), scope="row", class_="half"),
            [
                tag("td", tag("code", each[name]) if name in each else NOTHING, class_="half")
                for each in (first, second)
            ],
        )
        for name in names[:NUMBERS_MAX]
    ]
    more = tag("p", f"and {len(names) - NUMBERS_MAX:,} more", class_="quiet") if len(names) > NUMBERS_MAX else None
    body = (
        table(PAIR_COLUMNS, rows, label="Where the scenarios differ")
        if rows
        else tag("p", "They are the same.", class_="quiet")
    )
    return join([body, more])


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value as text, with its dotted key such as `fleet.agents`.

    The key of a list item contains its index.
    """
    match value:
        case Mapping() if value:
            for key, item in value.items():
                yield from _flat(item, f"{name}.{key}" if name else str(key))
        case list() if value and isinstance(value[0], Mapping):
            for number, item in enumerate(value, 1):
                yield from _flat(item, f"{name}[{number}]")
        case Mapping() | list() if not value:
            return  # an empty table
        case _:
            yield name, str(value)


def _steps(steps: str) -> Markup:
    lines = steps.splitlines()
    if not lines:
        return tag("p", "The steps were not recorded.", class_="quiet")
    more = f"\n… {len(lines) - STEPS_MAX:,} more lines: steps.txt has all" if len(lines) > STEPS_MAX else ""
    return tag("pre", shown("\n".join(lines[:STEPS_MAX])), more, tabindex="0")


# -- requests ----------------------------------------------------------------------------------------------------------


_Found = TypeVar("_Found")

OWN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of reports and pictures. The view generates them with inline styles and without scripts."""

OWN_HEADERS = {**HEADERS, "Content-Security-Policy": OWN_POLICY}

EVENTS_MAX = 2_000
"""Largest number of events in a diagram, which is the same as in `report.html`. More events would make a browser slow."""

RUNS_KEPT = 4
"""Number of cached runs. A browser requests a page, its pictures and the pictures of the shrunk run one after another."""

Handler = Callable[[Request], Awaitable[Response]]
Page = Callable[[str, str, Markup], Response]


class SimulationPages:
    """Request handlers for simulation reports.

    `page(id, title, body)` must wrap a screen in the page frame. Each instance may be used from only one event loop.
    """

    def __init__(self, reports: SimReports, page: Page) -> None:
        self._reports = reports
        self._page = page
        self._reading = asyncio.Lock()
        self._stored: dict[tuple[str, float], tuple[StoredRun, str]] = {}

    def routes(self) -> dict[str, Handler]:
        """Return a map from address to request handler."""
        return {
            PLACE: self.show,
            f"{PLACE}/runs/{{place:path}}": self.show_run,
            f"{PLACE}/pairs/{{place:path}}": self.show_pair,
            f"{PLACE}/sweeps/{{place:path}}": self.show_sweep,
            f"{PLACE}/reports/{{place:path}}": self.serve_report,
            f"{PLACE}/pictures/{{kind}}/{{place:path}}": self.serve_picture,
        }

    async def show(self, request: Request) -> Response:
        """Show the list of reports."""
        search = RunSearch(request.query_params.get("q", "").strip(), request.query_params.get("verdict", ""))
        reports = await self._read(self._reports.found)
        return self._page("simulation", "Simulation", simulation_body(reports, search, self._reports.names))

    async def show_run(self, request: Request) -> Response:
        """Show one run."""
        place = request.path_params["place"]

        def read() -> Markup:
            found, (run, too_large) = self._run(place)
            return run_body(found, run, too_large)

        return self._page("simulation", "A run", await self._read(read))

    async def show_pair(self, request: Request) -> Response:
        place = request.path_params["place"]

        def read() -> Markup:
            whole, (before, _) = self._run(place)
            if not whole.shrunk:
                raise NotFoundError(f"{whole.head.name} has no shrunk form: `snapline sim shrink FOLDER` makes one")
            shrunk, (after, _) = self._run(f"{place.rstrip('/')}/{SHRUNK}")
            return pair_body(whole, before, shrunk, after, self._reports.steps(shrunk.place))

        return self._page("simulation", "Shrunk", await self._read(read))

    async def show_sweep(self, request: Request) -> Response:
        """Show one sweep."""
        place = request.path_params["place"]

        def read() -> Markup:
            return sweep_body(self._reports.sweep(place), self._reports.found().runs)

        return self._page("simulation", "A sweep", await self._read(read))

    async def serve_report(self, request: Request) -> Response:
        """Generate a run's report and return it. The report file in the run's folder is not served, because it is not trusted."""
        place = request.path_params["place"]

        def read() -> str:
            return report_of(self._run(place)[1][0])

        return HTMLResponse(await self._read(read), headers=OWN_HEADERS)

    async def serve_picture(self, request: Request) -> Response:
        """Return one picture of a run."""
        kind, place = request.path_params["kind"], request.path_params["place"]
        return Response(
            await self._read(lambda: self._draw(kind, place)), media_type="image/svg+xml", headers=OWN_HEADERS
        )

    def _draw(self, kind: str, place: str) -> str:
        run = self._run(place)[1][0]
        if kind == TIMELINE:
            of = page_of(run)
            return draw_timeline(run.result, run.recording, heal_ns=of.heal_ns, within_ns=of.within_ns)
        if kind != SPACETIME or run.recording is None:
            raise NotFoundError(f"this run has no {kind}")
        is_at_end = bool(run.result.violations)
        return draw_run(run.recording, run.result, events_max=EVENTS_MAX, is_read_from_end=is_at_end)

    def _run(self, place: str) -> "tuple[FoundRun, tuple[StoredRun, str]]":
        """Return a run, which is cached until its files change."""
        summary = self._reports.run(place)
        key = (summary.place, summary.written_s)
        if key not in self._stored:
            stored = self._reports.stored(place)
            while len(self._stored) >= RUNS_KEPT:
                del self._stored[next(iter(self._stored))]
            self._stored[key] = stored
        return summary, self._stored[key]

    async def _read(self, read: Callable[[], _Found]) -> _Found:
        async with self._reading:
            return await asyncio.to_thread(read)
