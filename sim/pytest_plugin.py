"""The pytest plugin: a user's fleet is run with many seeds, and a failure comes back small.

    def test_my_fleet(snapline_sim):
        snapline_sim.check(my_module.fleet, seeds=200)

pytest loads this module at each start, whatever is tested. So it imports pytest alone, and the rest when a test asks for it.
"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Unpack

import pytest

if TYPE_CHECKING:
    from snapline.sim.checking import Options, Subject, Target
    from snapline.sim.choices import Choices
    from snapline.sim.report.plugin import Failure
    from snapline.sim.result import Result
    from snapline.sim.search.sweep import SweepSummary
    from snapline.sim.workloads.checked import AtEnd, Invariant
    from snapline.sim.world.recording import Recording

SEEDS = 100
"""Default number of seeds of a check: some ten seconds for a small fleet."""

SHRINK_S = 20.0
"""Longest time for making a failure small: most are small after a few seconds, and a test should not hang."""


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
    """(Number, whether it multiplies)."""
    number = text.removesuffix("x")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError
    return int(number), text.endswith("x")


_seeds.__name__ = "number of seeds, such as 1000 or 10x,"  # argparse says "invalid … value"


@pytest.fixture
def snapline_sim(request: pytest.FixtureRequest) -> "Simulation":
    """Runs fleets in virtual time, with faults, and judges them: see `check` and `run`."""
    return Simulation(request)


class Simulation:
    """Value of the fixture `snapline_sim`."""

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
        """Run a fleet with many seeds; the test fails at the first run that is not well, with the smallest such run.

        Args:
            target: a snapline.Fleet, a function that returns one (called for each run), "module:fleet"; or a Scenario, or
                the path of its TOML file.
            seeds: how many, or which.
            invariant: called with every complete cut, a snapline.Cut. It may `assert`, or return a sentence or False.
            at_end: called with the states (agent → state) of the fleet at rest, when it is; a fleet that does not come to
                rest is undecided.
            allow_undecided: go on after runs in which something that had to happen did not.
            shrink_s: longest time for making a failure small; 0 for none.
            options: what surrounds a fleet, see `snapline.sim.checking.Options`.

        Returns:
            What the runs have in common: verdicts, probes, metrics.
        """
        from snapline.errors import UsageError
        from snapline.sim.report.plugin import run_folder, run_seeds

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
        """One run; the test looks at its result. Arguments as of `check` and `snapline.sim.checking.run_fleet`."""
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
        """The test's, or those of the command line."""
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
        from snapline.sim.report.plugin import TestLocation, explain

        given: float | None = self._config.getoption("--snapline-shrink-s")
        limit_s = shrink_s if given is None else min(given, shrink_s)
        nodeid = str(self._config.cwd_relative_nodeid(self._request.node.nodeid))
        place = TestLocation(f"pytest {shlex.quote(nodeid)}", self._folder())
        _say(explain(subject, failure, place, shrink_s=limit_s))

    def _folder(self) -> Path:
        given: str | None = self._config.getoption("--snapline-folder")
        if given is not None:
            return self._config.invocation_params.dir / given
        made: Path = self._request.getfixturevalue("tmp_path")
        return made


def _say(text: str) -> NoReturn:
    """Fail with words alone: what the plugin's own frames look like helps nobody."""
    raise pytest.fail.Exception(text, pytrace=False) from None
