"""Running again what a folder holds, and runs of the world in another interpreter."""

from pathlib import Path

import pytest
from tests.sim import toys

from snapline.errors import UsageError
from snapline.sim.choices import RandomChoices
from snapline.sim.report.run_folder import write_run
from snapline.sim.scenario import FleetPart, PatternPart, Scenario
from snapline.sim.search.replay import check_determinism, read_repro, replay, repro_warnings
from snapline.sim.search.swarm import STANDARD, draw

SCENARIO = Scenario(name="toy", fleet=FleetPart(pattern=PatternPart(messages=20)))


def written(folder: Path, *, seed: int = 4, is_recording: bool = True) -> Path:
    """The folder of a run of the toy."""
    choices = RandomChoices(seed, is_recording=is_recording)
    result = toys.toy(SCENARIO, seed, choices=choices)
    write_run(folder, SCENARIO, result, None, choices=choices.record, commit="abc")
    return folder


def test_a_folder_holds_what_is_needed_to_run_it_again(tmp_path: Path) -> None:
    choices = RandomChoices(4, is_recording=True)
    toys.toy(SCENARIO, 4, choices=choices)
    assert read_repro(written(tmp_path)) == (SCENARIO, 4, choices.record)


@pytest.mark.parametrize("is_recording", [True, False])
def test_running_it_again_gives_the_same(tmp_path: Path, is_recording: bool) -> None:
    again = replay(written(tmp_path, is_recording=is_recording), commit="abc", runner=toys.toy)
    assert again.is_same and not again.warnings


def test_choices_are_replayed_rather_than_drawn(tmp_path: Path) -> None:
    """A record without choices is the most benign run, not the seed's."""
    folder = written(tmp_path)
    result = toys.toy(SCENARIO, 4)
    write_run(folder, SCENARIO, result, None, choices={}, commit="abc")
    again = replay(folder, runner=toys.toy)
    assert not again.is_same and again.result.probes["late"] == 0


def test_another_commit_is_a_warning(tmp_path: Path) -> None:
    (warning,) = replay(written(tmp_path), commit="def", runner=toys.toy).warnings
    assert "abc" in warning and "def" in warning
    assert repro_warnings(tmp_path, commit="") == []


def test_another_schema_is_refused_with_the_commit_that_can_read_it(tmp_path: Path) -> None:
    path = written(tmp_path) / "result.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2').replace('"schema":1', '"schema":2'))
    with pytest.raises(UsageError, match=r"schema 2.*abc"):
        read_repro(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"result\.json"):
        read_repro(tmp_path)
    (written(tmp_path) / "config.toml").unlink()
    with pytest.raises(UsageError, match=r"config\.toml"):
        read_repro(tmp_path)


# -- the world ----------------------------------------------------------------------------------------------------------


def test_the_world_repeats_itself_in_another_interpreter() -> None:
    assert check_determinism(draw(STANDARD, 25), 25) is None
