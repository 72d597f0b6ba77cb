"""Counts of `snapline sim coverage`: probes, and failpoints of the product's code that a run passes.

A run counts probes by itself, but passes of failpoints (`failpoints.py`) only matter to it if a fault is armed there. So each run's hook is
wrapped by one that counts. The counts are returned among the probes, under a prefix that no probe has.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from snapline import failpoints
from snapline.cli.output import Document, DocumentTables, count, document, rows_of

if TYPE_CHECKING:
    from snapline.sim.choices import Choices
    from snapline.sim.result import Result
    from snapline.sim.scenario import Scenario

POINT = "point "
"""Prefix of a failpoint's name among the probes."""

Hook = Callable[[str], None]


def run_watched(scenario: "Scenario", seed: int, *, choices: "Choices | None" = None, mutant: str = "") -> "Result":
    """Run `snapline.sim.run.run`, and add the passes of failpoints to the result's probes."""
    from snapline.sim.run import run

    passed: dict[str, int] = {}
    with _watching(passed):
        result = run(scenario, seed, choices=choices, mutant=mutant)
    result.probes |= {POINT + name: passes for name, passes in sorted(passed.items())}
    return result


@contextmanager
def _watching(passed: dict[str, int]) -> Iterator[None]:
    """Count in `passed` all passes of hooks that are installed in the block."""
    install = failpoints.install

    def install_counting(hook: Hook | None) -> None:
        def counting(name: str) -> None:
            passed[name] = passed.get(name, 0) + 1
            if hook is not None:
                hook(name)

        install(None if hook is None else counting)

    vars(failpoints)["install"] = install_counting
    try:
        yield
    finally:
        vars(failpoints)["install"] = install


def coverage_document(name: str, verdicts: Mapping[str, int], hits: Mapping[str, int], expected: list[str]) -> Document:
    """Build the document of all runs' hits."""
    from snapline.sim.faults.points import FAILPOINTS
    from snapline.sim.oracles.probes import CATALOGUE

    points = {name.removeprefix(POINT): passes for name, passes in hits.items() if name.startswith(POINT)}
    return document(
        "SimulationCoverage",
        of=name,
        runs=sum(verdicts.values()),
        verdicts=dict(verdicts),
        probes=[{"name": name, "hits": hits.get(name, 0), "text": probe.text} for name, probe in CATALOGUE.items()],
        probes_never_hit=[name for name in expected if not hits.get(name)],
        points=[
            {"name": name, "passes": points.get(name, 0)} for name in dict.fromkeys([*FAILPOINTS, *sorted(points)])
        ],
        points_never_passed=[name for name in FAILPOINTS if not points.get(name)],
    )


def show_coverage(result: Document, tables: DocumentTables) -> None:
    """Print the tables; probes and points that were never hit come last, where they are noticed."""
    tables.table(("PROBE", "HITS", ""), [(row["name"], row["hits"], row["text"]) for row in rows_of(result, "probes")])
    tables.line()
    points = rows_of(result, "points")
    tables.table(("POINT OF THE CODE", "PASSES"), [(row["name"], row["passes"]) for row in points])
    tables.line()
    verdicts, runs = result["verdicts"], result["runs"]
    assert isinstance(verdicts, dict) and isinstance(runs, int)
    ended = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items() if number)
    tables.line(f"{count(runs, 'run')}: {ended}")
    for words, name in (("probes never hit", "probes_never_hit"), ("points never passed", "points_never_passed")):
        missing = result[name]
        assert isinstance(missing, list)
        tables.line(f"{words}: {', '.join(missing) or 'none'}")
