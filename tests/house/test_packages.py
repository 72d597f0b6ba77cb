"""What is packed is what lies in the folders. Without symbolic links most modules vanish from a wheel without a word."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

NOT_PACKED = ("tests", "benchmarks", "docs", "release")
NOT_INSTALLED = tuple(f"src/snapline/deploy/{folder}/" for folder in ("helm", "grafana", "prometheus"))
"""What other programs read is taken from the repository."""

PACKED_SUFFIXES = (".py", ".pyi", ".html", ".js", ".css", ".svg", ".json", ".service", ".conf", ".c")


@pytest.fixture(scope="module")
def packages(root: Path, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Names inside the sdist and inside the wheel, built from a copy of what git knows, without a network."""
    copy, made = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("made")
    for path in files:
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", made, copy],
        check=False,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next(made.glob("*.tar.gz"))) as sdist:
        in_sdist = [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]
    with zipfile.ZipFile(next(made.glob("*.whl"))) as wheel:
        in_wheel = wheel.namelist()
    return in_sdist, in_wheel


def modules(root: Path, files: list[Path]) -> list[str]:
    """What must be installed under `snapline/`, told from the folders."""
    rooms = {path.name: path.resolve() for path in (root / "src" / "snapline").iterdir() if path.is_symlink()}
    assert len(rooms) == 4, "four packages are links in src/snapline"
    expected = []
    for path in files:
        name = path.relative_to(root)
        if path.is_symlink() or (path.suffix not in PACKED_SUFFIXES and path.name != "py.typed"):
            continue
        if name.as_posix().startswith(NOT_INSTALLED):
            continue
        if name.parts[0] in rooms:
            assert rooms[name.parts[0]] == root / name.parts[0]
            expected.append(f"snapline/{name.as_posix()}")
        elif name.parts[:2] == ("src", "snapline"):
            expected.append(name.relative_to("src").as_posix())
    return sorted(expected)


def test_every_folder_of_code_is_a_room(root: Path, files: list[Path]) -> None:
    """A folder nobody linked would work in a test and be missing in a wheel."""
    tops = {path.relative_to(root).parts[0] for path in files if path.name == "__init__.py"}
    linked = {path.name for path in (root / "src" / "snapline").iterdir() if path.is_symlink()}
    assert tops - {"src"} == linked


def test_the_wheel_holds_the_modules_of_the_folders(
    root: Path, files: list[Path], packages: tuple[list[str], list[str]]
) -> None:
    in_wheel = sorted(name for name in packages[1] if ".dist-info/" not in name)
    assert in_wheel == modules(root, files)


def test_the_sdist_holds_what_a_wheel_is_built_from(
    root: Path, files: list[Path], packages: tuple[list[str], list[str]]
) -> None:
    in_sdist = set(packages[0])
    expected = {f"src/{name}" for name in modules(root, files)}
    expected |= {path.relative_to(root).as_posix() for path in (root / "protos").rglob("*.proto")}
    expected |= {"pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    assert expected <= in_sdist, sorted(expected - in_sdist)
    code = {name for name in in_sdist if name.endswith(PACKED_SUFFIXES)}
    assert code <= expected, sorted(code - expected)
    assert not [name for name in in_sdist if name.startswith(tuple(f"{folder}/" for folder in NOT_PACKED))]
