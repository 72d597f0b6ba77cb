"""What a supervisor hears of a process, on a socket of its own as systemd has one."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.channels.servers import notify, supervised, watchdog_interval_s

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@pytest.fixture(params=["path", "abstract"])
def supervisor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    address = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as heard:
        heard.bind("\0" + address[1:] if address.startswith("@") else address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield heard


def words(supervisor: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found.append(supervisor.recv(4096).decode())
        except BlockingIOError:
            return found


async def test_a_process_says_that_it_is_ready_and_that_it_stops(supervisor: socket.socket) -> None:
    async with supervised():
        await asyncio.sleep(0)
        assert words(supervisor) == ["READY=1"]
    assert words(supervisor) == ["STOPPING=1"]


async def test_an_event_loop_that_hangs_is_silent(supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    async with supervised():
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 3:
            await asyncio.sleep(0.001)
            heard += words(supervisor)
        time.sleep(0.1)  # noqa: ASYNC251  # it is to hang
        assert words(supervisor) == []
        while "WATCHDOG=1" not in words(supervisor):
            await asyncio.sleep(0.001)
    assert words(supervisor)[-1] == "STOPPING=1"


def test_a_watchdog_of_another_process_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    assert watchdog_interval_s() == 20.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert watchdog_interval_s() == 0.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_interval_s() == 20.0
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    assert watchdog_interval_s() == 0.0


@pytest.mark.parametrize("address", ["", "nowhere", "/nowhere/notify", "@snapline-nobody-listens"])
def test_who_has_no_supervisor_goes_on(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")
