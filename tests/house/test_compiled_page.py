"""docs/compiled.md: `make compiled`, with which `make test-compiled` begins, builds as the page says, and the page names all that is compiled."""

import re
import tomllib
from pathlib import Path

from tests.house.pages import commands_of

PAGE = "docs/compiled.md"


def test_make_builds_with_the_command_of_the_page(root: Path) -> None:
    (shown,) = commands_of((root / PAGE).read_text())
    command, _, wheel = shown.text.partition("#")
    recipe = (root / "Makefile").read_text().partition("$(COMPILED)/.installed:")[2].partition("\n\n")[0]
    assert command.strip().replace("python", "$(BIN)/python") in recipe
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert wheel.strip() == f"dist/snapline-{version}-cp311-cp311-linux_x86_64.whl"


def test_the_page_names_the_folders_of_all_compiled_modules(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    folders = re.findall(r"^- `([\w/]+)/`:", (root / PAGE).read_text(), re.MULTILINE)
    modules = [name.removeprefix("snapline.").replace(".", "/") for name in settings["tool"]["snapline"]["compiled"]]
    assert folders and [name for name in modules if not name.startswith(tuple(folders))] == []
    assert [folder for folder in folders if not any(name.startswith(folder) for name in modules)] == []
