"""Installs the wheels of dist/ in new environments, and tests each there (`make test-wheel`): `python -m release.check_wheel --pythons python3.11`.

For each interpreter: the pure wheel with the lowest versions of the dependencies and of the extras' that pyproject.toml admits, the same
wheel with the newest, and the compiled wheel, if there is one for it. `release/smoke.py` is copied into an empty folder and runs there;
nothing of the checkout can be imported. Then, for the first interpreter, the pure wheel with each extra that connects a framework, in an
environment of its own (`release/smoke_extras.py`): some of them exclude each other.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import smoke_extras
from release.build import EXTRAS, ROOT, VENVS, ReleaseError, interpreters, prepared, run, settings

PURE = "py3-none-any"

NEEDS = {"langgraph": ("langgraph",)}
"""Extra → packages that its program needs too: the extra itself is for the checkpointer alone."""

NOT_BY_DEFAULT = {
    "torch": "its wheels bring gigabytes for GPUs: make test-wheel ARGS='--extras torch', or make test-torch"
}
"""Extra → why it is tested only if somebody asks for it."""

FROM_WHEELS = ("--only-binary=:all:", "--no-binary=pysyncobj")
"""Options for versions that have a wheel for the interpreter: users have no compiler. pysyncobj has none, and is pure Python."""


def wheels(dist: Path, version: str) -> list[Path]:
    """Return the wheels that fit an interpreter, the pure one first.

    Raises:
        ReleaseError: there is no pure wheel.
    """
    tag = f"-cp{version.replace('.', '')}-"
    found = sorted(dist.glob("*.whl"), key=lambda path: PURE not in path.name)
    if not found or PURE not in found[0].name:
        raise ReleaseError(f"no wheel in {dist}: make release first")
    return [path for path in found if PURE in path.name or tag in path.name]


def pins(uv: Path, python: str, resolution: str, folder: Path) -> Path:
    """Return a file with exact versions of all dependencies."""
    made = folder / f"{resolution}.txt"
    extras = [f"--extra={extra}" for extra in EXTRAS]
    words = ("--quiet", "--no-header", "--no-annotate", "--python", python, "-o", made)
    run(uv, "pip", "compile", f"--resolution={resolution}", *extras, *FROM_WHEELS, *words, ROOT / "pyproject.toml")
    return made


def check(wheel: Path, python: str, uv: Path, resolution: str, expected: str) -> bool:
    """Install a wheel and run the smoke test; return whether it passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv, "venv", "--quiet", "--python", python, folder / "venv")
        made = folder / "venv" / "bin" / "python"
        versions = pins(uv, python, resolution, folder)
        wanted = f"snapline[{','.join(EXTRAS)}] @ {wheel.resolve().as_uri()}"
        run(uv, "pip", "install", "--quiet", *FROM_WHEELS, "--python", made, "-c", versions, wanted)
        passed = smoke(made, "smoke.py", expected, folder / "empty")
        if not passed:
            print(versions.read_text())
        return passed


def smoke(python: Path, script: str, argument: str, empty: Path) -> bool:
    """Run a script of this folder in an empty one; return whether it passed."""
    empty.mkdir()
    shutil.copy(ROOT / "release" / script, empty)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return not subprocess.run([python, script, argument], cwd=empty, env=environment, check=False).returncode


def check_extra(wheel: Path, python: str, uv: Path, extra: str) -> bool:
    """Install a wheel with an extra in its newest versions, and run the program of its framework; return whether it passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv, "venv", "--quiet", "--python", python, folder / "venv")
        made = folder / "venv" / "bin" / "python"
        wanted = f"snapline[{extra}] @ {wheel.resolve().as_uri()}"
        run(uv, "pip", "install", "--quiet", *FROM_WHEELS, "--python", made, wanted, *NEEDS.get(extra, ()))
        passed = smoke(made, "smoke_extras.py", extra, folder / "empty")
        if not passed:
            print(run(uv, "pip", "freeze", "--python", made))
        return passed


def main() -> None:
    parser = argparse.ArgumentParser(description="Test the wheels of a folder in new environments.")
    parser.add_argument("--pythons", nargs="+", default=["python3"], help="interpreters to install for")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels")
    usual = [extra for extra in smoke_extras.CHECKS if extra not in NOT_BY_DEFAULT]
    parser.add_argument("--extras", nargs="*", default=usual, choices=smoke_extras.CHECKS, help="extras to test")
    arguments = parser.parse_args()
    try:
        failed = check_all(arguments.pythons, arguments.dist, arguments.extras)
    except ReleaseError as error:
        sys.exit(f"make test-wheel: {error}")
    if failed:
        sys.exit(f"make test-wheel: failed: {'; '.join(failed)}")


def check_all(names: Sequence[str], dist: Path, extras: Sequence[str]) -> list[str]:
    """Return the names of the checks that failed."""
    failed, (release, _) = [], settings()
    found = dict(interpreters(names))
    if not found:
        raise ReleaseError("no interpreter is there: make test-wheel PYTHONS=python3.11")
    for version, python in found.items():
        uv = prepared(python, VENVS / "uv", "uv").parent / "uv"
        for wheel in wheels(dist, version):
            is_pure = PURE in wheel.name
            expected = release if is_pure else f"{release} (compiled)"
            for resolution in ("lowest-direct", "highest") if is_pure else ("highest",):
                print(f"Python {version}, {wheel.name}, {resolution} versions:", flush=True)
                if not check(wheel, python, uv, resolution, expected):
                    failed.append(f"{wheel.name} with {resolution} versions on Python {version}")
    version, python = next(iter(found.items()))
    uv, wheel = VENVS / "uv" / "bin" / "uv", wheels(dist, version)[0]
    print(f"Python {version}, {wheel.name}, each with one extra:", flush=True)
    failed += [f"{wheel.name}[{extra}]" for extra in extras if not check_extra(wheel, python, uv, extra)]
    for extra, reason in NOT_BY_DEFAULT.items():
        if extra not in extras:
            print(f"  {extra} skipped: {reason}")
    return failed


if __name__ == "__main__":
    main()
