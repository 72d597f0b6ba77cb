"""The pytest plugin of the crash kit. pytest loads this module at every start, so it imports only pytest, and the rest on first use."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapline.chaos.crash_kit import CrashKit


@pytest.fixture
def snapline_crash_kit() -> "CrashKit":
    """Kills a program at every write, and checks that it resumes correctly: `check(program)`. Skips the test if there is no C compiler."""
    from snapline.chaos import preload
    from snapline.chaos.crash_kit import CrashKit

    if preload.reason_against():
        pytest.skip(preload.reason_against())
    return CrashKit()
