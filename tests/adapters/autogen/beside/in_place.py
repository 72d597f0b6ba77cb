"""A plugin of pytest for AutoGen's own tests: where they say `SingleThreadedAgentRuntime` they get ours, and for a package that is not distributed
what was written in its place. Each runtime that a test has left open is closed after it."""

import sys
from collections.abc import AsyncIterator
from typing import Any

import autogen_core
import pytest_asyncio
import stand_ins  # type: ignore[import-not-found]  # beside this file
import telemetry_stand_ins  # type: ignore[import-not-found]

from snapline.adapters.autogen.inside.runtime import SnaplineRuntime

opened: list[SnaplineRuntime] = []


class OpenedRuntime(SnaplineRuntime):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        opened.append(self)


autogen_core.SingleThreadedAgentRuntime = OpenedRuntime
sys.modules["autogen_test_utils"] = stand_ins
sys.modules["autogen_test_utils.telemetry_test_utils"] = telemetry_stand_ins


@pytest_asyncio.fixture(autouse=True, loop_scope="function")
async def closing() -> AsyncIterator[None]:
    yield
    while opened:
        await opened.pop().close()
