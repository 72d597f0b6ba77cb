"""`snapline sim compare`: protocols × workloads × intervals × failure rates, in one table, with a recommendation."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.command import Display, FleetArguments, command, seconds_of
from snapline.cli.output import Document, DocumentTables, document
from snapline.cli.progress import RunProgress
from snapline.cli.sim_scenarios import ScenarioArgument, ScenarioChanges, Seeds, is_reference, parse_list, parse_seeds
from snapline.cli.sim_sweeps import Jobs, check_writable, finite, processors
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.compare import Comparison
    from snapline.sim.search.compare_report import Advice

EVERY = "all"

WORK_WITHIN = "5m"
"""Limit in virtual time for the work of a user's fleet: ten times what the built-in ones take."""


@command
def compare(
    display: Display,
    scenario: ScenarioArgument,
    protocols: Annotated[
        str, typer.Option("--protocols", metavar="A,B", help="Others are compared with the first; all is every one.")
    ] = "chandy-lamport,koo-toueg,uncoordinated,bcs,hmnr",
    patterns: Annotated[
        str | None,
        typer.Option("--patterns", metavar="A,B", help="Workloads.", show_default="that of the scenario"),
    ] = None,
    intervals: Annotated[
        str, typer.Option("--intervals", metavar="A,B", help="Between checkpoints, such as 100ms,500ms.")
    ] = "500ms",
    failure_rates: Annotated[
        str, typer.Option("--failure-rates", metavar="A,B", help="Host crashes per virtual second.")
    ] = "0,0.5",
    mtbf: Annotated[
        str, typer.Option("--mtbf", metavar="DURATION", help="Between failures of your fleet, for the recommendation.")
    ] = "1h",
    seeds: Seeds = "0:20",
    jobs: Jobs = None,
    arg: FleetArguments = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the overhead of all cells there.")
    ] = None,
) -> None:
    """Compare protocols on the same work with the same failures, and recommend one.

    A cell is one protocol, workload, interval and failure rate. All cells run the same seeds and are compared seed by seed.
    The recommendation needs the failure rate 0 and one above it. Times are virtual. A fleet of your own runs under each protocol
    in turn, until nothing moves in it any more. Exit code: 0, or 3 if a run did not pass.
    """
    from snapline.sim.search.compare_report import figure

    printer = display.printer()
    template = _comparable(scenario, arg, patterns)
    check_writable(svg)
    mtbf_s = seconds_of(mtbf, "--mtbf")
    told: list[RunProgress] = []

    def tell(done: int, total: int) -> None:
        if not told:
            told.append(RunProgress(printer, total))
        told[0].reached(done)

    comparison = _compare(
        template,
        protocols=protocols,
        patterns=patterns,
        intervals=intervals,
        failure_rates=failure_rates,
        seeds=seeds,
        jobs=jobs,
        on_progress=tell,
    )
    for progress in told:
        progress.end()
    if svg is not None:
        svg.write_text(figure(comparison), encoding="utf-8")
        printer.progress(f"wrote {svg}")
    advice, why_none = _advice(comparison, mtbf_s)
    result = _document(comparison, advice, why_none)
    printer.result(result, lambda _, tables: _show(comparison, advice, why_none, tables))
    raise typer.Exit(3 if any(cell.failed for cell in comparison.cells) else 0)


def _comparable(word: str, arg: list[str] | None, patterns: str | None) -> "Scenario":
    """Return the scenario. A user's fleet has no faults except the compared failures, and a longer time limit."""
    import msgspec

    from snapline.sim.scenario import LivenessPart

    if not is_reference(word):
        return ScenarioChanges(arg=arg).template(word)
    if patterns:
        raise UsageError(f"--patterns names built-in workloads, and {word} is a fleet: leave one of them out")
    template = ScenarioChanges(arg=arg, faults="quiet").template(word)
    return msgspec.structs.replace(template, liveness=LivenessPart(within=WORK_WITHIN))


def _compare(
    template: "Scenario",
    *,
    protocols: str,
    patterns: str | None,
    intervals: str,
    failure_rates: str,
    seeds: str,
    jobs: int | None,
    on_progress: Any,  # a callback of `compare_cells`
) -> "Comparison":
    from snapline.protocols.names import PROTOCOLS
    from snapline.sim.search.compare import compare as compare_cells

    return compare_cells(
        template,
        protocols=PROTOCOLS if protocols == EVERY else parse_list(protocols, "--protocols"),
        patterns=_patterns(patterns),
        intervals=parse_list(intervals, "--intervals"),
        failure_rates_per_s=[_rate(rate) for rate in parse_list(failure_rates, "--failure-rates")],
        seeds=parse_seeds(seeds),
        jobs=processors() if jobs is None else jobs,
        on_progress=on_progress,
    )


def _patterns(text: str | None) -> list[str]:
    from snapline.sim.workloads import PATTERNS

    names = parse_list(text, "--patterns") if text else []
    for name in names:
        if name not in PATTERNS:
            raise UsageError(f"--patterns names {name!r}: use some of {', '.join(PATTERNS)}")
    return names


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise UsageError(f"--failure-rates has {text!r}: give numbers of 0 or more, such as 0,0.5")
    return rate


def _advice(found: "Comparison", mtbf_s: float) -> "tuple[Advice | None, str]":
    """Return the recommendation, or None and the reason."""
    from snapline.sim.search.compare_report import recommend

    if all(math.isnan(value) for values in found.bare.values() for value in values):
        return None, (
            f"no recommendation: no run of {', '.join(found.patterns)} came to rest, and only work that ends can be compared; "
            "give it an end for this, such as a number of rounds"
        )
    try:
        return recommend(found, mtbf_s), ""
    except UsageError as error:
        return None, f"no recommendation: {error}"


def _document(found: "Comparison", advice: "Advice | None", why_none: str) -> Document:
    import msgspec

    recommendation = None if advice is None else finite(msgspec.to_builtins(advice))
    fields = finite(msgspec.to_builtins(found))
    return document("SimulationComparison", recommendation=recommendation, note=why_none, **fields)


def _show(found: "Comparison", advice: "Advice | None", why_none: str, tables: DocumentTables) -> None:
    from snapline.sim.search.compare_report import advice_text, table

    tables.line(table(found))
    tables.line(why_none if advice is None else advice_text(advice).rstrip("\n"))
