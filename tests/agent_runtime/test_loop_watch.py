"""Code that holds a host's event loop is named in the log and to the coordinator, and above the limit the process ends."""

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from snapline.agent_runtime.host import loop_watch
from snapline.agent_runtime.host.loop_watch import HELD_EXIT_CODE, LoopWatch

pytestmark = pytest.mark.timeout(60)

Logged = pytest.LogCaptureFixture


class Reports:
    """Instead of the coordinator. `heard`: is set by each report."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.heard = threading.Event()
        self.is_closed = False

    def busy(self, _busy_s: float, what: str) -> None:
        self.said.append(what)
        self.heard.set()

    def ends(self, reason: str) -> None:
        self.said.append(f"ends: {reason}")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: Logged) -> None:
    for name in ("LOOP_BLOCKED_S", "LOOK_S", "GIL_BLOCKED_S"):
        monkeypatch.setattr(loop_watch, name, 0.1)
    caplog.set_level(logging.WARNING, logger="snapline.host")


def holder(codes: list[CodeType]) -> str:
    return "agent a1, handler on_go" if on_go.__code__ in codes else ""


def on_go(block: Callable[[], object]) -> None:
    block()


async def watched(block: Callable[[], object], reports: Reports, **options: Any) -> None:
    loop = asyncio.get_running_loop()
    with LoopWatch(loop, reports, holder, **{"limit_s": None, **options}).watching():  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        on_go(block)
        while not reports.is_closed and not options.get("is_locked"):
            await asyncio.sleep(0.01)


async def test_what_blocks_the_loop_is_logged_and_reported_while_it_does(caplog: Logged) -> None:
    reports = Reports()
    await watched(lambda: reports.heard.wait(30), reports)
    assert reports.said[0].startswith(f"agent a1, handler on_go ({__file__}:"), reports.said
    assert "block" in reports.said[0] or "heard.wait" in reports.said[0], "the line"
    texts = [record.message for record in caplog.records]
    assert any("agent a1, handler on_go" in text and "has held the event loop" in text for text in texts)
    assert any("has let go" in text for text in texts)


async def test_what_held_pythons_lock_is_logged_afterwards(caplog: Logged) -> None:
    def hold() -> None:
        ctypes.PyDLL(None).usleep(1_000_000)

    loop = asyncio.get_running_loop()
    with LoopWatch(loop, Reports(), holder, limit_s=None).watching():  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        on_go(hold)
        while not any("no other thread could run" in record.message for record in caplog.records):
            await asyncio.sleep(0.01)
    (text,) = [record.message for record in caplog.records if "no other thread" in record.message]
    assert "agent a1, handler on_go" in text and "usleep" in text, text


async def test_above_the_limit_the_process_ends_and_says_why(caplog: Logged) -> None:
    reports, ended = Reports(), threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    await watched(lambda: ended.wait(30), reports, limit_s=0.3, end=end)
    assert codes[0] == HELD_EXIT_CODE
    (reason,) = {said for said in reports.said if said.startswith("ends: ")}
    assert "agent a1, handler on_go" in reason and "busy_limit_s (0.3 s)" in reason
    assert any(record.levelname == "ERROR" and "Raise busy_limit_s" in record.message for record in caplog.records)


async def test_the_thread_ends_with_the_host() -> None:
    with LoopWatch(asyncio.get_running_loop(), Reports(), holder, limit_s=None).watching():  # type: ignore[arg-type]
        assert "snapline-loop-watch" in [thread.name for thread in threading.enumerate()]
    deadline_s = time.monotonic() + 30
    while "snapline-loop-watch" in [thread.name for thread in threading.enumerate()]:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
