"""Sweeps on a Ray cluster of two nodes, on this machine. Skipped where Ray is not installed."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim import toys

from snapline.deploy.conformance.local_ray import raylets
from snapline.errors import UsageError
from snapline.sim.result import Result
from snapline.sim.scenario import FleetPart, PatternPart, Scenario
from snapline.sim.search.ray_sweep import sweep_on_ray
from snapline.sim.search.sweep import SweepSummary, sweep

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'snapline[ray]'"
)

TEMPLATE = Scenario(name="toy", fleet=FleetPart(pattern=PatternPart(messages=20)))


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'snapline\[ray\]'"):
        sweep_on_ray(TEMPLATE, range(3), runner=toys.toy)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two nodes, which can import these tests."""
    with raylets(1, [str(Path(__file__).resolve().parents[2])]) as made:
        yield made.address


def without_time(summary: SweepSummary) -> SweepSummary:
    summary.elapsed_s = 0.0
    return summary


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_same_summary_as_this_process(address: str, tmp_path: Path) -> None:
    here = sweep(TEMPLATE, range(300), jobs=0, runner=toys.many_verdicts, metrics_csv=tmp_path / "here.csv")
    there = sweep_on_ray(
        TEMPLATE,
        range(300),
        address=address,
        runner=toys.many_verdicts,
        chunk_seeds=10,
        metrics_csv=tmp_path / "there.csv",
    )
    assert without_time(here) == without_time(there)
    assert (tmp_path / "here.csv").read_text() == (tmp_path / "there.csv").read_text()


@needs_ray
@pytest.mark.slow
def test_both_nodes_work(address: str) -> None:
    nodes: set[float] = set()
    sweep_on_ray(
        TEMPLATE,
        range(40),
        address=address,
        runner=toys.telling_its_process,
        chunk_seeds=2,
        is_determinism_checked=False,
        on_result=lambda result: nodes.add(result.metrics["process"]),
    )
    assert len(nodes) >= 2


@needs_ray
@pytest.mark.slow
def test_seeds_that_end_their_process_are_broken_and_no_others(address: str) -> None:
    found: dict[int, Result] = {}

    def take(result: Result) -> None:
        assert result.seed not in found
        found[result.seed] = result

    sweep_on_ray(
        TEMPLATE,
        range(40),
        address=address,
        runner=toys.dying,
        chunk_seeds=8,
        is_determinism_checked=False,
        on_result=take,
    )
    assert sorted(found) == list(range(40))
    assert [seed for seed in sorted(found) if found[seed].verdict == "broken"] == [3, 7, 20]
    assert "died" in found[7].error


@needs_ray
@pytest.mark.slow
def test_a_cluster_stops_after_so_many_failures(address: str) -> None:
    summary = sweep_on_ray(
        TEMPLATE, range(5000), address=address, runner=toys.many_verdicts, chunk_seeds=10, stop_after=2
    )
    assert summary.is_stopped and summary.runs < 500


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:1"):
        sweep_on_ray(TEMPLATE, range(3), address="127.0.0.1:1", runner=toys.toy)
