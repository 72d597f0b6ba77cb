"""A process that an installer overtakes while it starts ends, instead of running with modules of two releases.

Its exit code lets its launcher start it again: after a usage error, as of a module that is missing, it would not.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "snapline"

HOST = ["host", "run", "--coordinator", "127.0.0.1:1", "--id", "h1", "--fleet", "snapline.examples.bank:fleet"]
COORDINATOR = ["coordinator", "run", "--hosts", "1", "--data-dir", "data"]

OVERTAKEN = """
import os, runpy, shutil, sys
import snapline
import {module}
from {module} import {name} as slow

first = snapline.__file__

def overtaken(*words, **options):
    shutil.copy(first, first + ".new")
    os.replace(first + ".new", first)
    shutil.rmtree(os.path.join(os.path.dirname(first), {removed!r}))
    return slow(*words, **options)

{module}.{name} = overtaken
sys.argv = ["snapline", *{words!r}, "--store", "store"]
runpy.run_module("snapline", run_name="__main__")
"""
"""A program that, when a function of the start is called, replaces the package's first file and removes a folder, as an installer does."""

REPLACED = "the installed package was replaced while this process ran: start it again"


@pytest.mark.parametrize(
    ("module", "name", "removed", "words", "says"),
    [
        ("snapline.cli.fleet", "load", "chaos", HOST, REPLACED),
        ("snapline.cli.processes", "_start_logging", "examples", HOST, f"or set PYTHONPATH; {REPLACED}"),
        ("snapline.storage.retention.epoch_retention", "parse_policy", "chaos", COORDINATOR, REPLACED),
    ],
)
def test_a_process_whose_package_was_replaced_while_it_started_ends(
    tmp_path: Path, module: str, name: str, removed: str, words: list[str], says: str
) -> None:
    shutil.copytree(SOURCES, tmp_path / "snapline", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", OVERTAKEN.format(module=module, name=name, removed=removed, words=words)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.rstrip().endswith(says)
    assert done.returncode == 1
