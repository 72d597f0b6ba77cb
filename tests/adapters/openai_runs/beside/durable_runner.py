"""A plugin of pytest for the OpenAI Agents SDK's own tests: `Runner.run` runs agents in a durable turn. After a test, it says whether the test
has done so."""

import asyncio
import contextlib
import contextvars
import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import agents
import pytest

from snapline.adapters.openai_agent_runs import current_rounds, run

_path = sys.path[:]
sys.path[:] = [os.environ["SNAPLINE_ROOT"], *(each for each in _path if Path(each or ".").resolve() != Path.cwd())]
Turn: Any = importlib.import_module("tests.adapters.turns").Turn
sys.path[:] = _path
for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
    del sys.modules[name]  # the tests of the SDK are a package of this name, too

_inner = agents.Runner.run
_used: list[str] = []


async def durable_run(starting_agent: Any, input: Any, **options: Any) -> Any:
    if current_rounds() is not None:
        return await _inner(starting_agent, input, **options)
    _used.append("")
    turn = Turn(lambda ctx: run(ctx, starting_agent, input, **options))
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def end() -> None:
        try:
            result, settle = turn.end(), ended.set_result
        except BaseException as error:
            result, settle = error, ended.set_exception
        with contextlib.suppress(RuntimeError):  # the test has ended before
            loop.call_soon_threadsafe(lambda: ended.done() or settle(result))

    # A daemon, since a tool may wait for something that the test's own loop would do.
    threading.Thread(target=contextvars.copy_context().run, args=(end,), daemon=True).start()
    return await ended


agents.Runner.run = staticmethod(durable_run)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    outcome = yield
    report = outcome.get_result()
    if call.when == "call":
        report.user_properties.append(("durable", bool(_used)))
    if call.when == "teardown":
        _used.clear()


def pytest_report_teststatus(report: Any, config: Any) -> Any:
    if report.when == "call" and dict(report.user_properties).get("durable"):
        return report.outcome, report.outcome[0].upper(), f"DURABLE-{report.outcome.upper()}"
    return None
