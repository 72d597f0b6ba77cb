"""The pytest plugin as users have it: other pytest runs, in a folder with a module and tests of its own."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.sim import checked_fleets

import snapline
from snapline.sim import pytest_plugin
from snapline.sim.checking import Subject
from snapline.sim.report.run_folder import read_run
from snapline.sim.report.test_report import run_seeds

pytestmark = pytest.mark.processes

TIMEOUT_S = 100
"""Of another pytest run, which takes a second or two; less than the test's own time limit."""

TESTS = """
import asyncio
import my_module
import pytest
import snapline

QUICK = {"faults": "quiet", "hosts": 2, "coordinators": 1, "until": "600ms"}

def test_sound(snapline_sim):
    summary = snapline_sim.check(my_module.sound, seeds=2, invariant=my_module.all_there, until="600ms")
    assert summary.runs == 2 and summary.verdict == "pass" and summary.metrics["epochs_complete"].mean > 0

async def test_name_in_a_loop(snapline_sim):
    await asyncio.sleep(0)
    snapline_sim.check("my_module:sound", seeds=1, **QUICK)

def test_one_run(snapline_sim):
    result = snapline_sim.run(my_module.sound, seed=3, **QUICK)
    assert (result.verdict, result.seed) == ("pass", 3)

def test_own_agents(snapline_sim):
    class Local(my_module.Passer):
        state: my_module.Purse
    agents = {name: Local(my_module.Purse(name, [other])) for name, other in ("ab", "ba")}
    fleet = snapline.Fleet("local", agents=agents)
    snapline_sim.check(fleet, seeds=1, **QUICK)

def test_wrong(snapline_sim):
    snapline_sim.check(my_module.wrong, until="600ms", shrink_s=0.2, invariant=my_module.all_there)

def test_invariant(snapline_sim):
    snapline_sim.check(my_module.sound, until="1s", seeds=20, shrink_s=1, invariant=lambda cut: cut.epoch < 1)

def test_leaking(snapline_sim):
    snapline_sim.check(my_module.leaking, seeds=2, shrink_s=0.2, **QUICK)

def test_dicer(snapline_sim):
    snapline_sim.check(my_module.dicer, seeds=2, shrink_s=0, **QUICK)

def test_babbling(snapline_sim):
    snapline_sim.check(my_module.babbling, seeds=2, **QUICK)

def test_sleeper(snapline_sim):
    snapline_sim.check(my_module.sleeper)

def test_undecided(snapline_sim):
    slow = dict(seeds=1, at_end=lambda states: None, shrink_s=0, **QUICK)
    assert snapline_sim.check(my_module.sound_and_slow, allow_undecided=True, **slow).verdicts["undecided"] == 1
    snapline_sim.check(my_module.sound_and_slow, **slow)

def test_misused(snapline_sim):
    snapline_sim.check(my_module.sound, faults="crash")
"""

CONFIG = """
[pytest]
addopts = --strict-markers --strict-config
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

MORE = """

def sound_and_slow() -> snapline.Fleet:
    return snapline.Fleet("slow", agents={"a": Clock(100)}, triggers=[snapline.Every(2)])
"""


class Runs:
    """Other pytest runs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = Path(checked_fleets.__file__).read_text()
        (folder / "my_module.py").write_text(source + MORE)
        (folder / "test_mine.py").write_text(TESTS)
        (folder / "pytest.ini").write_text(CONFIG)

    def run(self, *arguments: str, code: int) -> str:
        """What it printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded(), *arguments]
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def loaded() -> list[str]:
    """pytest finds the plugin by its entry point, unless snapline was installed before it had one."""
    points = importlib.metadata.entry_points(group="pytest11")
    return [] if any(point.name == "snapline" for point in points) else ["-p", "snapline.sim.pytest_plugin"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def failures(runs: Runs) -> dict[str, str]:
    """All tests, run once: name → what its failure says."""
    printed = runs.run("--snapline-folder", "failed", "--basetemp", "all", code=1)
    found = re.split(r"^[_=]{3,} (\w+|short test .*) [_=]{3,}$", printed.partition(" FAILURES ")[2], flags=re.MULTILINE)
    return {name: said for name, said in zip(found[1::2], found[2::2], strict=True) if name.startswith("test_")}


def test_sound_fleets_pass_whatever_names_them(failures: dict[str, str]) -> None:
    names = ("wrong", "invariant", "leaking", "dicer", "babbling", "sleeper", "undecided", "misused")
    assert sorted(failures) == sorted(f"test_{name}" for name in names)


def test_a_failure_says_what_and_how_to_see_it_again(failures: dict[str, str]) -> None:
    said = failures["test_invariant"].strip().splitlines()
    assert said[0] == "passers: seed 0 ended as 'violation'"
    assert any(line.startswith("G3 workload, at ") for line in said)
    assert any(line.startswith("  epoch 1: the invariant is False (") for line in said)
    assert "repeat: pytest test_mine.py::test_invariant --snapline-seed 0" in said
    assert any(re.match(r"shrunk in \d+ runs, .* to \d+ choices, \d+ faults, ", line) for line in said)
    assert '  module = "my_module:sound"' in said
    assert "Traceback" not in failures["test_invariant"] and "pytest_plugin.py" not in failures["test_invariant"]


def test_a_failure_leaves_a_folder_that_can_be_replayed(failures: dict[str, str], runs: Runs) -> None:
    (folder,) = re.findall(r"^files: (.*)$", failures["test_invariant"], flags=re.MULTILINE)
    assert Path(folder).parent == runs.folder / "failed" / "passers"
    stored = read_run(Path(folder))
    assert (stored.result.verdict, stored.choices, stored.scenario.fleet.agents) == ("violation", {}, 3)
    (line,) = re.findall(r"^replay: pytest (.*)$", failures["test_invariant"], flags=re.MULTILINE)
    assert (Path(folder) / "repro.txt").read_text().startswith(f"pytest {line}\n")
    said = runs.run(*shlex.split(line), "--basetemp", "replayed", code=1)
    assert "epoch 1: the invariant is False" in said and "shrunk" not in said


def test_a_memory_outside_of_the_state_is_found_shrunk_and_hinted_at(failures: dict[str, str]) -> None:
    said = failures["test_wrong"]
    assert "G3 replay, at " in said or "G3 workload, at " in said
    assert "shrunk in " in said
    assert "values kept outside of an agent's state" in " ".join(said.split())


def test_a_fleet_that_does_not_repeat_is_said_to(failures: dict[str, str]) -> None:
    assert "The seed ran again and went another way." in failures["test_babbling"]
    assert "shrunk" not in failures["test_babbling"]


def test_a_variable_that_outlives_a_run_is_named_and_the_run_repeats(failures: dict[str, str]) -> None:
    said = " ".join(failures["test_leaking"].split())
    assert "uses the global variable SEEN" in said
    assert "The seed ran again" not in said and "shrunk in " in said


def test_the_first_seed_runs_twice_since_a_difference_may_break_nothing() -> None:
    """Who hears another word each time does nothing wrong, but no failure of it could be repeated."""
    words = iter("abcd")
    talker, listener = checked_fleets.Talker, checked_fleets.Talker([])

    def fleet() -> snapline.Fleet:
        return snapline.Fleet("talkers", agents={"a": talker([next(words)]), "listener": listener})

    subject = Subject(fleet, faults="quiet", hosts=1, coordinators=1, until="300ms")
    failure, _ = run_seeds(subject, [0, 1], allow_undecided=False)
    assert failure is not None and not failure.is_repeatable
    assert failure.result.error.startswith("The seed ran again and went another way.")


def test_who_draws_with_random_is_told_of_ctx_random(failures: dict[str, str]) -> None:
    assert "random and time instead of ctx.random()" in " ".join(failures["test_dicer"].split())


def test_a_handler_that_sleeps_is_named_with_the_way_out(failures: dict[str, str]) -> None:
    said = failures["test_sleeper"]
    assert "sleeper: seed 0 ended as 'broken'" in said
    assert "awaits something that is not snapline's" in said and "my_module.py" in said
    assert "await ctx.step(name, function)" in said


def test_undecided_fails_unless_it_is_allowed(failures: dict[str, str]) -> None:
    said = failures["test_undecided"]
    assert "ended as 'undecided'" in said and "missing: the workload is not done" in said and "shrunk in" not in said


def test_a_wrong_call_is_one_sentence(failures: dict[str, str]) -> None:
    assert failures["test_misused"].strip().startswith("faults is 'crash': use quiet, crashes")
    assert len(failures["test_misused"].strip().splitlines()) == 1


class Given:
    """A pytest request with these options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.config = SimpleNamespace(getoption=options.get)


@pytest.mark.parametrize(
    ("options", "count", "named"),
    [
        ({}, [0, 1], [5, 7]),
        ({"--snapline-seeds": (3, False)}, [0, 1, 2], [0, 1, 2]),
        ({"--snapline-seeds": (2, True)}, [0, 1, 2, 3], [5, 7]),
        ({"--snapline-seed": 9, "--snapline-seeds": (2, True)}, [9], [9]),
    ],
)
def test_the_command_line_says_which_seeds(options: dict[str, Any], count: list[int], named: list[int]) -> None:
    simulation = pytest_plugin.Simulation(Given(options))  # type: ignore[arg-type]  # enough of a request
    assert simulation._chosen(2) == count
    assert simulation._chosen([5, 7]) == named


def test_numbers_of_seeds_are_read() -> None:
    assert pytest_plugin._seeds("1000") == (1000, False)
    assert pytest_plugin._seeds("10x") == (10, True)
    for text in ("", "x", "0", "0x", "-1", "1.5", "many"):
        with pytest.raises(ValueError):
            pytest_plugin._seeds(text)


def test_a_wrong_number_of_seeds_is_refused(runs: Runs) -> None:
    said = runs.run("--snapline-seeds", "many", "--collect-only", code=4)
    assert "invalid number of seeds, such as 1000 or 10x, value: 'many'" in said


def test_one_seed_can_be_chosen_from_the_command_line(runs: Runs) -> None:
    chosen = ("test_mine.py::test_invariant", "--snapline-seed", "9", "--snapline-shrink-s", "0", "--basetemp", "one")
    said = runs.run(*chosen, code=1)
    assert "passers: seed 9 ended as 'violation'" in said and "shrunk" not in said


def test_pytest_starts_without_anything_heavy() -> None:
    """The plugin is imported at each start of pytest, whatever is tested."""
    heavy = "grpc google msgspec numpy lz4 blake3 typer snapline.sim.run snapline.agent_runtime"
    script = f"import sys, pytest, snapline.sim.pytest_plugin; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout == "[]\n"
