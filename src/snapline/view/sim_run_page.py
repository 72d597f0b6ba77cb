"""One simulated run: its evidence, faults, timeline and space-time diagram; and a failing run next to its shrunk form."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from snapline.sim.report.formatting import GUARANTEES, VERDICTS, seconds, value_words
from snapline.view.formatting import NOTHING, count, plural
from snapline.view.markup import Child, Markup, join, shown, tag
from snapline.view.page_frame import section, table
from snapline.view.sim_reports import FoundRun
from snapline.view.simulation_page import PLACE, address, verdict_pill

if TYPE_CHECKING:
    from snapline.sim.report.folder import StoredRun
    from snapline.sim.result import ExecutedFault, Result

VIOLATIONS_MAX, FAULTS_MAX, ROWS_MAX = 50, 200, 300
"""Largest number of rows of each list: `result.json` has all."""

STEPS_MAX = 150
"""Largest number of shown steps of shrinking."""

WORDS_MAX = 4_000
"""Largest number of characters of one text, such as a traceback."""

TIMELINE, SPACETIME = "timeline", "spacetime"
PICTURES = {TIMELINE: "Timeline", SPACETIME: "Space-time diagram"}

FAULT_COLUMNS = (("Fault", ""), ("What", "wide"), ("From", "number"), ("Until", "number"))
METRIC_COLUMNS, PROBE_COLUMNS = (("Metric", ""), ("Value", "number")), (("Probe that was hit", ""), ("Times", "number"))
PAIR_COLUMNS = (("", "half"), ("As found", "half"), ("Shrunk", "half"))


def run_body(found: FoundRun, run: "StoredRun", too_large: str) -> Markup:
    """Draw the page of one run; `too_large`: why it has no space-time diagram."""
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
    """Draw a picture that a browser loads on demand, scrolled to the end of the run, where inspection begins."""
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
        for name, value in sorted(result.metrics.items())[:ROWS_MAX]
    ]
    hits = [_pair(name, count(hit)) for name, hit in sorted(result.probes.items())[:ROWS_MAX] if hit]
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
    """Draw a failing run, and the smallest that was found in which the same oracle fails."""
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
        for name in names[:ROWS_MAX]
    ]
    more = tag("p", f"and {len(names) - ROWS_MAX:,} more", class_="quiet") if len(names) > ROWS_MAX else None
    body = (
        table(PAIR_COLUMNS, rows, label="Where the scenarios differ")
        if rows
        else tag("p", "They are the same.", class_="quiet")
    )
    return join([body, more])


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value with its dotted key, such as `fleet.agents`; list items by their number."""
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
