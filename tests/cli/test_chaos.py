"""`snapline chaos …` as far as no fleet is started."""

from pathlib import Path

import pytest
from tests.kit.command_line import Run

from snapline.chaos.process_faults import leftovers


def test_the_doctor_says_it(run: Run) -> None:
    done = run("chaos", "doctor", "-o", "table")
    assert "hold" in done.out and "nothing overtakes" in done.out
    assert run("chaos", "doctor").json["leftovers"] == leftovers()


def test_the_doctor_says_it_of_another_launcher(run: Run) -> None:
    done = run("chaos", "doctor", "--on", "ssh", "-o", "table")
    assert "SSH" in done.out and "its launcher freezes it" in done.out and "gates stand before" in done.out
    words = {word["word"]: word["reason_against"] for word in run("chaos", "doctor", "--on", "podman").json["words"]}
    assert words["pause"] == "" and "container" in words["slow"]


def test_elsewhere_what_cannot_be_is_refused_before_anything_is_tried(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine is asked, and no context makes a fleet suffer by itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapline.toml").write_text('[up]\non = "ssh"\nmachines = ["nowhere.invalid"]\n')
    file = tmp_path / "cut.toml"
    file.write_text('[fleet]\nhosts = 3\n[[fault]]\nclog = { between = ["h1", "h2"] }\n')
    done = run("chaos", "run", file, "--on", "ssh")
    assert done.code == 2 and "fault[0].clog cannot be carried out on real processes on ssh: gates" in done.err
    file.write_text("[fleet]\nhosts = 3\n[[fault]]\nhold = {}\n")
    done = run("chaos", "run", file)
    assert done.code == 2 and "fault[0].hold cannot be carried out on real processes here" in done.err
    done = run("chaos", "run", "quiet", "--invariant", "nowhere:found")
    assert done.code == 2 and "names no function" in done.err
    done = run("chaos", "run", file, "--on", "ssh", "--tls", "set", "--insecure")
    assert done.code == 2 and "--insecure contradicts --tls" in done.err
