"""`snapline chaos …` as far as no fleet is started."""

from pathlib import Path

from tests.kit.command_line import Run

from snapline.chaos.leftovers import leftovers


def test_the_doctor_says_it(run: Run) -> None:
    done = run("chaos", "doctor", "-o", "table")
    assert "hold" in done.out and "nothing overtakes" in done.out
    assert run("chaos", "doctor").json["leftovers"] == leftovers()


def test_a_run_that_cannot_be_is_one_sentence(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "held.toml"
    file.write_text("[fleet]\nhosts = 3\n[[fault]]\nhold = {}\n")
    done = run("chaos", "run", file)
    assert done.code == 2 and "fault[0].hold cannot be carried out" in done.err
    done = run("chaos", "run", "quiet", "--invariant", "nowhere:found")
    assert done.code == 2 and "names no function" in done.err
