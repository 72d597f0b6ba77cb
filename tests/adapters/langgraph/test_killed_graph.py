"""A graph on our saver, killed two hundred times at random moments: no step that was durable runs again, and none is lost."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.langgraph import playing
from tests.integration.processes import ROOT

assert playing.REASON
pytestmark = [pytest.mark.langgraph, pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 200


def test_a_graph_that_is_killed_again_and_again_goes_on_at_its_last_durable_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SNAPLINE_SEED") or random.randrange(10**9))
    arguments = [str(tmp_path), str(KILLS), str(seed)]
    program = [sys.executable, "-m", "tests.adapters.langgraph.killed_graph", *arguments]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    notes = (tmp_path / "notes").read_text().splitlines()
    assert ended.returncode == 0, f"SNAPLINE_SEED={seed}: {ended.stderr[-2000:]}; {notes[-3:]}"
    lives, repeated = judge(notes)
    with capsys.disabled():
        print(
            f"\nseed {seed}: {KILLS} kills, {lives} lives got as far as the graph, {notes[-1]} steps, {repeated} begun twice"
        )
    assert lives > KILLS // 4, "most were killed before they had opened the saver"


def judge(notes: list[str]) -> tuple[int, int]:
    """Each life finds what was durable when the one before ended, and goes on there; returns lives, and steps that ran again since they were under way."""
    begun, due, lives, repeated = -1, 0, 0, 0
    for line in notes[:-1]:
        what, _, text = line.partition(" ")
        number = int(text)  # of "failed" it is none
        if what == "found":
            assert number in (max(begun, 0), begun + 1), f"{line}, and step {begun} was the last that had begun"
            lives, due = lives + 1, number
        else:
            assert number == due, f"{line}, and step {due} was due"
            repeated += number == begun
            begun, due = number, due + 1
    assert notes[-1] == f"done {begun + 1}"
    return lives, repeated


def test_the_judge_knows_a_step_that_was_lost_and_one_that_was_repeated() -> None:
    whole = ["found 0", "began 0", "began 1", "found 1", "began 1", "found 2", "began 2", "done 3"]
    assert judge(whole) == (3, 1)
    for wrong in (
        ["found 0", "began 0", "began 1", "found 0"],
        ["found 0", "began 0", "began 1", "found 1", "began 0"],
    ):
        with pytest.raises(AssertionError):
            judge([*wrong, "done 2"])
