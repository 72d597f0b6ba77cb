"""Finds pins of pyproject.toml that may move, with the newest versions of the package index: `make test-pins`. The exit code is 1 if there is one."""

import sys
import tempfile
from pathlib import Path

from release.build import VENVS, prepared, run

TYPER = """
import sys, typer
application = typer.Typer()
@application.command()
def command(number: int = 1) -> None: ...
application([], standalone_mode=False)
print("pydantic" in sys.modules)
"""


def newest(uv: Path, name: str, folder: Path) -> str:
    """Return the newest version of a package."""
    wanted = folder / "wanted.in"
    wanted.write_text(name)
    lines = run(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-deps", wanted).split()
    return lines[0].partition("==")[2]


def movable(folder: Path) -> list[str]:
    """Return a sentence for each pin that may move."""
    python = prepared(sys.executable, VENVS / "pins", "--upgrade", "uv", "typer")
    uv = python.parent / "uv"
    found = []
    if run(python, "-c", TYPER).strip() == "False":
        version = newest(uv, "typer", folder)
        found.append(f"typer {version} builds no adapters of pydantic: try it, and admit it in pyproject.toml")
    if (version := newest(uv, "pysyncobj", folder)) != "0.3.17":
        found.append(
            f"pysyncobj {version} is there: review its files, renew coordinator/raft/pysyncobj_adapter.py, "
            "then run tests/coordinator/raft and make chaos-raft"
        )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = movable(Path(name))
    print("\n".join(found) or "no pin may move: typer builds adapters of pydantic, pysyncobj 0.3.17 is the newest")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
