"""CONTRIBUTING.md: its set-up works in a clone, its layers are those that are checked, and every make target that a page names exists."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.kit.shown_page import shown


@pytest.mark.processes
def test_the_set_up_works_in_a_clone_and_layers_are_those_that_are_checked(root: Path, tmp_path: Path) -> None:
    """The clone is of this repository, and `make -n` prints what `make` would run: it would run this test again."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    (layers,) = [each["layers"] for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    run = {"git clone …": f"git clone --quiet --shared {root} snapline", "$ make test\n": "$ make -n test\n"}
    with shown("CONTRIBUTING.md", tmp_path, run) as page:
        assert page.take("agent_runtime | coordinator").splitlines() == layers
        clone, make = page.commands("git clone")
        page.take("git clone")
        code, out, err = page.shell(f"{clone.text} && {make.text}")
    assert code == 0 and "-m pytest" in "".join(out), err


def test_every_make_target_that_a_page_names_exists(root: Path, files: list[Path]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.relative_to(root).as_posix(), target)
        for path in files
        if path.suffix == ".md" and path.name != "CHANGELOG.md"
        for target in re.findall(r"(?:`|^\$ )make ([a-z][a-z-]*)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 30 and [each for each in sorted(named) if each[1] not in targets] == []
