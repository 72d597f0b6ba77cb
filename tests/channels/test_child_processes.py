"""Children that are forked while a process handles signals and listens: nothing that they do, or that is done to them, reaches the parent."""

import signal
import socket
import subprocess
import sys

import pytest

from snapline.channels.child_processes import CHILD_EXIT_CODE, listening_ports

PARENT = """
import asyncio, multiprocessing, os, signal, socket, sys, time
from snapline.channels.child_processes import exit_if_child, handle_signal, close_in_children

async def main():
    loop, told = asyncio.get_running_loop(), []
    for number in (signal.SIGTERM, signal.SIGINT):
        handle_signal(loop, number, told.append, number)
    listener = socket.create_server(("127.0.0.1", 0))
    close_in_children(loop, lambda: [])
    port = listener.getsockname()[1]
    {body}
    await asyncio.sleep(0)
    loop.call_soon_threadsafe(told.append, "awake")
    while "awake" not in told:
        await asyncio.sleep(0.01)
    print([each for each in told if each != "awake"], result)

asyncio.run(main())
"""


def played(body: str) -> str:
    """What a parent says in which `body`, of user code, sets `result`."""
    program = PARENT.format(body=body.strip().replace("\n", "\n    "))
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


SIGNALLED = """
def signalled(number, fork):
    pid = fork()
    os.kill(pid, number)
    return os.waitpid(pid, 0)[1]
def fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("where", ["signalled({0}, fork)", "await asyncio.to_thread(signalled, {0}, fork)"])
def test_a_signal_for_a_child_ends_the_child_and_no_other(number: signal.Signals, where: str) -> None:
    result = played(SIGNALLED + "result = os.WIFSIGNALED(" + where.format(int(number)) + ")")
    assert result == "[] True"


def test_a_pool_that_ends_its_workers_ends_nobody_else() -> None:
    pooled = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    result = sum(pool.map(abs, range(10)))
"""
    assert played(pooled) == "[] 45"


def test_a_child_that_lives_on_keeps_no_port() -> None:
    """The next process on the port is alone there."""
    body = """
hears, says = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(says, b"x")
    time.sleep(60)
    os._exit(0)
os.read(hears, 1)
listener.close()
result = socket.socket().connect_ex(("127.0.0.1", port)) != 0
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""
    assert played(body) == "[] True"


def test_a_child_cannot_deafen_the_parents_loop() -> None:
    """A child that leaves by an exception closes the loop as if it were its own."""
    body = """
pid = os.fork()
if pid == 0:
    try:
        loop.remove_reader(loop._ssock.fileno())
    finally:
        os._exit(0)
result = os.waitpid(pid, 0)[1]
"""
    assert played(body) == "[] 0"


def test_a_child_that_comes_back_ends() -> None:
    body = """
pid = os.fork()
exit_if_child()
result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    assert played(body) == f"[] {CHILD_EXIT_CODE}"


def test_ports_that_are_listened_on_are_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[1] in listening_ports()
