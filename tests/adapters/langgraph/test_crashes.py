"""The crash kit's first customers: LangGraph's shipped savers, and ours, killed at their writes."""

import pytest
from tests.adapters.langgraph import playing  # skips where LangGraph is not there

assert playing.REASON

from tests.adapters.langgraph import crash_programs as programs

from snapline.chaos.crash_kit import CrashKit, Program

pytestmark = [pytest.mark.langgraph, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "program", [programs.snapline, programs.sqlite, programs.sqlite_async], ids=lambda x: x.__name__
)
def test_a_saver_on_disk_resumes_at_the_last_step_that_it_kept(
    snapline_crash_kit: CrashKit, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    report = snapline_crash_kit.check(program, points=200)
    assert report.kills >= len(report.points)
    with capsys.disabled():
        print(f"\n{program.__name__}: {report.kills} kills at {len(report.points)} of {report.moments} moments")


def test_a_saver_in_memory_is_found_out(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.run(programs.memory, points=10)
    assert "lost" in {each.kind for each in report.findings}
