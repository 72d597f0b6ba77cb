"""A compiled build does what the sources do: run by `make test-compiled`, skipped where nothing is compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.mutants.catalogue import mutated

import snapline
from snapline.compiled import is_compiled
from snapline.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SITE = str(Path(snapline.__file__).parents[1])

pytestmark = pytest.mark.skipif(not is_compiled(), reason="the cores are not compiled here: make test-compiled")

SEEDS = """
from snapline.compiled import is_compiled
from snapline.sim.search.swarm import STANDARD, draw
from snapline.sim.run import run
print(is_compiled(), *[run(draw(STANDARD, seed), seed).trace_hash for seed in range(20, 26)])
"""


def printed(*words: str, path: str = SITE) -> str:
    """By another interpreter. Without a path it finds the sources, as its environment was made for them."""
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True).stdout


def test_a_seed_is_the_same_run_with_and_without() -> None:
    """Protocols, faults, workloads and limits are drawn: what limits replace, compiled code looks up."""
    with_it, *hashes = printed("-c", SEEDS).split()
    without, *others = printed("-c", SEEDS, path="").split()
    assert (with_it, without) == ("True", "False")
    assert hashes == others and len(set(hashes)) == 6


@pytest.mark.timeout(900)
def test_the_demo_recovers_exactly() -> None:
    answer = json.loads(printed("-m", "snapline", "demo", "-o", "json"))
    assert answer["kind"] == "DemoResult" and answer["exact"], answer


def test_the_version_says_it() -> None:
    assert printed("-m", "snapline", "--version") == "snapline 0.1.0 (compiled)\n"


def test_the_wheel_has_the_name_of_the_page() -> None:
    shown = "snapline-0.1.0-cp311-cp311-linux_x86_64.whl"
    assert shown in (ROOT / "docs" / "compiled.md").read_text()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (wheel,) = (Path(SITE).parent / "wheel").glob("*.whl")
    assert wheel.name == shown.replace("cp311", python)
    assert json.loads(printed("-m", "snapline", "version", "-o", "json"))["is_compiled"] is True


def test_no_mutant_is_put_in() -> None:
    with pytest.raises(UsageError, match="without SNAPLINE_COMPILE"), mutated("deliver-before-record"):
        pass
