"""docs/chaos.md: its runs pass here; `test_…_launcher.py` of ssh and Slurm run those on other launchers."""

from pathlib import Path

import pytest
from tests.integration.processes import nothing_left_running
from tests.kit.shown_page import shown

from snapline.chaos.capabilities import Where, check_capabilities
from snapline.sim.scenario import parse_scenario

pytestmark = pytest.mark.timeout(600)

SHORT = {"--minutes 10": "--minutes 0.01"}
"""One seed, however short the time."""


@pytest.mark.slow
def test_the_runs_of_the_page_pass(tmp_path: Path) -> None:
    with nothing_left_running(), shown("docs/chaos.md", tmp_path, SHORT) as page:
        page.run("--seed 7")
        page.take("--on ssh")


def test_the_doctor_of_the_page_and_its_faults(tmp_path: Path) -> None:
    """Its files hold faults that can be injected where the page injects them."""
    with nothing_left_running(), shown("docs/chaos.md", tmp_path) as page:
        for part in ("--seed 7", "--on ssh"):
            doctor, *_ = page.commands(part)
            page.take(part)
            code, out, err = page.shell(doctor.text)
            assert code in (0, 3) and "crash" in "".join(out), (
                err
            )  # 3: others' runs on this machine have left something
        runs: list[tuple[str, Where]] = [("cut.toml", "local"), ("crash.toml", "ssh"), ("crash.toml", "slurm")]
        for file, on in runs:
            check_capabilities(parse_scenario((tmp_path / file).read_text(), source=file), on)
