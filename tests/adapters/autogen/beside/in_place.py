"""A plugin of pytest for AutoGen's own tests: where they say `SingleThreadedAgentRuntime` they get ours. Each runtime that a test has left open is closed after it."""

from collections.abc import AsyncIterator
from typing import Any

import autogen_core
import pytest_asyncio

from snapline.adapters.autogen.inside.runtime import SnaplineRuntime

opened: list[SnaplineRuntime] = []


class OpenedRuntime(SnaplineRuntime):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        opened.append(self)


autogen_core.SingleThreadedAgentRuntime = OpenedRuntime


@pytest_asyncio.fixture(autouse=True, loop_scope="function")
async def closing() -> AsyncIterator[None]:
    yield
    while opened:
        await opened.pop().close()
