"""The crash kit on real processes: a store that is right stands every kill, and each wrong one is found for what it is."""

from pathlib import Path

import pytest
from tests.chaos import crash_programs as programs

from snapline.chaos import crash_kit
from snapline.chaos.crash_child import CrashNote, load
from snapline.chaos.crash_kit import CrashKit, Program, said
from snapline.errors import ExternalFailureError, UsageError


def test_a_right_store_stands_a_kill_at_each_write(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(programs.right)
    assert report.points == tuple(range(1, report.moments + 1)), "each of them"
    assert report.moments >= 6 * len(programs.STEPS), "a name, what is in it, a sync, another name; and two words"
    assert report.kills > report.moments, "second lives are killed, too"


def test_a_program_may_be_asynchronous(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(programs.right_and_asynchronous, points=4)
    assert (len(report.points), report.kills >= 4) == (4, True)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (programs.hasty, "lost"),
        *[
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (programs.inventive, "invented"),
                (programs.counting, "different"),
                (programs.repeating, "repeated"),
            )
        ],
    ],
)
def test_a_wrong_store_is_found_for_what_it_is(snapline_crash_kit: CrashKit, program: Program, kind: str) -> None:
    report = snapline_crash_kit.run(program, points=12)
    assert kind in {each.kind for each in report.findings}, report
    point = next(x.at for x in report.findings if x.kind == kind)
    wanted = rf"{program.__name__} does not resume rightly[^¿]*\n  {kind}, [^¿]*points=\["
    with pytest.raises(AssertionError, match=wanted):  # one point is enough to see it again
        snapline_crash_kit.check(program, points=[point])


def test_what_is_wrong_without_a_kill_is_told_before_any(snapline_crash_kit: CrashKit) -> None:
    for program, kind in ((programs.forgetful, "repeated"), (programs.once_more, "unsettled")):
        report = snapline_crash_kit.run(program)
        assert (report.points, report.kills) == ((), 0) and {each.kind for each in report.findings} == {kind}
    assert "unsettled, without a kill: once more after its end it gives 2, not 1" in said(report, "once_more")


def test_a_program_that_does_not_work_is_misuse(snapline_crash_kit: CrashKit) -> None:
    with pytest.raises(UsageError, match="ends_badly does not work undisturbed: ValueError: no store"):
        snapline_crash_kit.run(programs.ends_badly)
    with pytest.raises(UsageError, match="writes_nothing changes no file below its folder"):
        snapline_crash_kit.run(programs.writes_nothing)


def test_a_program_that_does_not_end_or_ends_more_than_itself(
    snapline_crash_kit: CrashKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_kit, "LIFE_S_MAX", 1.0)
    with pytest.raises(UsageError, match="talks_for_ever does not work undisturbed: hangs"):
        snapline_crash_kit.run(programs.talks_for_ever)
    with pytest.raises(ExternalFailureError, match="the process in which the program lives has ended"):
        snapline_crash_kit.run(programs.takes_all_along)


def test_a_program_whose_file_cannot_be_loaded_says_why(snapline_crash_kit: CrashKit, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import os\nif os.environ.get('LD_PRELOAD'):\n    raise RuntimeError('half')\ndef program(folder, note): ...\n"
    )
    with pytest.raises(ExternalFailureError, match="RuntimeError: half"):
        snapline_crash_kit.run(load(str(tmp_path / "half.py"), "program"))


def test_a_program_must_be_a_function_of_a_module(snapline_crash_kit: CrashKit) -> None:
    def inner(folder: Path, note: CrashNote) -> None: ...

    for program in (inner, lambda folder, note: None):
        with pytest.raises(UsageError, match="is no function of a module"):
            snapline_crash_kit.run(program)


def test_each_kind_of_change_is_a_moment(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.run(programs.each_change)
    assert report.moments == programs.CHANGES
    killed_at = {each.at for each in report.findings}
    assert killed_at >= set(range(2, programs.CHANGES + 1)), "it does not resume at all, so it was killed there"


def test_a_torn_write_is_found_told_and_found_again_with_the_same_seed(snapline_crash_kit: CrashKit) -> None:
    first, again = [snapline_crash_kit.run(programs.torn, points=8, seed=3) for _ in range(2)]
    assert first == again and "broken" in {each.kind for each in first.findings}
    text = said(first, "torn")
    assert text.startswith("torn does not resume rightly") and "broken, killed at" in text
