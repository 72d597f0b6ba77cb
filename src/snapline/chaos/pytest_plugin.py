"""Provides the crash kit as a pytest plugin. pytest loads this module at every start, so this module imports other modules only when they
are first used."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapline.chaos.crash_kit import CrashKit


@pytest.fixture
def snapline_crash_kit() -> "CrashKit":
    """Return the crash kit. The kit's method `check(program)` kills a program at every write, and checks that the program resumes
    correctly.

    Without a C compiler the test is skipped.
    """
    from snapline.chaos import preload
    from snapline.chaos.crash_kit import CrashKit

    if preload.reason_against():
        pytest.skip(preload.reason_against())
    return CrashKit()
