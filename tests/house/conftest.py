"""The files of this repository, as git sees them."""

import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's folder."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def without_collections() -> Iterator[None]:
    """For modules that parse all files: the garbage collector would take a quarter of the time, and free nothing."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def files(root: Path) -> list[Path]:
    """Tracked and new files (not ignored ones), absolute; links are not followed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        cwd=root,
        capture_output=True,
        text=True,
    )
    paths = [root / name for name in sorted(filter(None, listed.stdout.split("\0")))]
    return [path for path in paths if path.is_symlink() or path.is_file()]  # the index may name deleted ones


@pytest.fixture(scope="session")
def handwritten(root: Path, files: list[Path]) -> list[Path]:
    """Python files written by people."""
    generated = root / "src" / "snapline" / "protos"
    return [path for path in files if path.suffix == ".py" and not path.is_relative_to(generated)]
