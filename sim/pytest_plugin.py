"""A pytest plugin that runs a user's fleet in simulation with many seeds and shrinks failures.

    def test_my_fleet(snapline_sim):
        snapline_sim.check(my_module.fleet, seeds=200)

pytest loads this module whenever it starts. So the module imports only pytest at first, and imports everything else when a test uses the
fixture.
"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

import pytest

if TYPE_CHECKING:
    from snapline.sim.checking import Options, Subject, Target
    from snapline.sim.choices import Choices
    from snapline.sim.report.test_report import Failure
    from snapline.sim.result import Result
    from snapline.sim.search.sweep import SweepSummary
    from snapline.sim.workloads.workload import AtEnd, Invariant
    from snapline.sim.world.recording import Recording

SEEDS = 100
"""Default number of seeds per check. A small fleet takes about ten seconds for them."""

SHRINK_S = 20.0
"""Default maximum time for shrinking a failing run. Most runs shrink within a few seconds, and a test should not hang."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("snapline", "simulation of fleets")
    group.addoption("--snapline-seeds", metavar="N", type=_seeds, help="seeds of each check: 1000, or 10x what it says")
    group.addoption("--snapline-seed", metavar="N", type=int, help="run this seed alone")
    group.addoption(
        "--snapline-shrink-s", metavar="S", type=float, help="longest time for making a failure small; 0: none"
    )
    group.addoption("--snapline-replay", metavar="DIR", help="run what a failed run's folder holds, and nothing else")
    group.addoption("--snapline-folder", metavar="DIR", help="where to write failed runs")


def _seeds(text: str) -> tuple[int, bool]:
    """Parse the value of the option for the number of seeds, such as "1000" or "10x". Return the number, and whether it is a factor for the
    test's own number of seeds."""
    number = text.removesuffix("x")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError
    return int(number), text.endswith("x")


_seeds.__name__ = "number of seeds, such as 1000 or 10x,"  # argparse says "invalid … value"


@pytest.fixture
def snapline_sim(request: pytest.FixtureRequest) -> "Simulation":
    """Run fleets in virtual time with faults, and check their guarantees: see `check` and `run`."""
    return Simulation(request)


class Simulation:
    """Object that the fixture `snapline_sim` provides to a test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._config = request.config

    def check(
        self,
        target: "Target",
        *,
        seeds: int | Iterable[int] = SEEDS,
        invariant: "Invariant | None" = None,
        at_end: "AtEnd | None" = None,
        allow_undecided: bool = False,
        shrink_s: float = SHRINK_S,
        **options: "Unpack[Options]",
    ) -> "SweepSummary":
        """Run a fleet with many seeds. At the first run that does not pass, the test fails and reports a shrunk form of this run.

        Args:
            target: the fleet to run. The target is a snapline.Fleet, a function that is called for each run and returns a fleet,
                "module:fleet", a Scenario, or the path of a scenario's TOML file.
            seeds: number of seeds, or the seeds themselves.
            invariant: function that is called with every complete cut, which is a snapline.Cut. To report a violation, the invariant
                function raises AssertionError or returns a message or False.
            at_end: function that is called with the state of each agent when the fleet is idle. If the fleet does not become idle, the
                run's verdict is "undecided".
            allow_undecided: whether to continue with the next seed after a run in which a required event did not happen.
            shrink_s: maximum time for shrinking a failing run, in seconds. 0 disables shrinking.
            options: options that define the fleet's environment (see `snapline.sim.checking.Options`).

        Returns:
            A summary of all runs, with verdicts, probes and metrics.
        """
        from snapline.errors import UsageError
        from snapline.sim.report.test_report import run_folder, run_seeds

        subject = self._subject(target, invariant=invariant, at_end=at_end, **options)
        folder: str | None = self._config.getoption("--snapline-replay")
        try:
            if folder is not None:
                failure, summary = run_folder(subject, self._config.invocation_params.dir / folder)
                shrink_s = 0.0
            else:
                failure, summary = run_seeds(subject, self._chosen(seeds), allow_undecided=allow_undecided)
        except UsageError as error:
            _say(str(error))
        if failure is not None:
            self._fail(subject, failure, shrink_s)
        return summary

    def run(
        self,
        target: "Target",
        seed: int = 0,
        *,
        choices: "Choices | None" = None,
        recording: "Recording | None" = None,
        invariant: "Invariant | None" = None,
        at_end: "AtEnd | None" = None,
        **options: "Unpack[Options]",
    ) -> "Result":
        """Run a fleet once, and return the result for the test to check. The arguments are described in `check` and
        `snapline.sim.checking.run_fleet`."""
        from snapline.errors import UsageError

        subject = self._subject(target, invariant=invariant, at_end=at_end, **options)
        try:
            return subject.run(subject.scenario(seed), seed, choices, recording=recording)
        except UsageError as error:
            _say(str(error))

    def _subject(
        self,
        target: "Target",
        *,
        invariant: "Invariant | None",
        at_end: "AtEnd | None",
        **options: "Unpack[Options]",
    ) -> "Subject":
        from snapline.errors import UsageError
        from snapline.sim.checking import Subject

        place = str(self._request.node.nodeid)
        try:
            return Subject(target, place=place, invariant=invariant, at_end=at_end, **options)
        except UsageError as error:
            _say(str(error))

    def _chosen(self, seeds: int | Iterable[int]) -> list[int]:
        """Return the seeds given on the command line, or the test's own seeds if the command line has none."""
        only: int | None = self._config.getoption("--snapline-seed")
        if only is not None:
            return [only]
        number, is_factor = self._config.getoption("--snapline-seeds") or (1, True)
        if not is_factor:
            return list(range(number))
        if isinstance(seeds, int):
            return list(range(seeds * number))
        return list(seeds)

    def _fail(self, subject: "Subject", failure: "Failure", shrink_s: float) -> NoReturn:
        from snapline.sim.report.test_report import TestLocation, explain

        option: float | None = self._config.getoption("--snapline-shrink-s")
        limit_s = shrink_s if option is None else min(option, shrink_s)
        nodeid = str(self._config.cwd_relative_nodeid(self._request.node.nodeid))
        place = TestLocation(f"pytest {shlex.quote(nodeid)}", self._folder())
        _say(explain(subject, failure, place, shrink_s=limit_s))

    def _folder(self) -> Path:
        option: str | None = self._config.getoption("--snapline-folder")
        if option is not None:
            return self._config.invocation_params.dir / option
        temporary: Path = self._request.getfixturevalue("tmp_path")
        return temporary


def _say(text: str) -> NoReturn:
    """Fail the test with this text alone, without the plugin's stack frames."""
    raise pytest.fail.Exception(text, pytrace=False) from None
