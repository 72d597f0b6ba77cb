"""Forked captures: what the child saw, how it fails, and that nothing of it stays."""

import gc
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapline.errors import EncodingError, SnaplineError, UsageError
from snapline.storage.capture import forked
from snapline.storage.capture.forked import ForkBusyError, ForkedImage, ForkFailedError, fork_capture
from snapline.storage.disk.record import Buffer

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests of this process may have imported gRPC, prepared by `tests/conftest.py`."""
    pids: list[int] = []

    def fork(encode: Callable[[], Buffer], descriptor: int) -> int:
        pids.append(right(encode, descriptor))
        return pids[-1]

    right = forked._fork
    monkeypatch.setattr(forked, "_fork", fork)
    yield
    assert not forked._state.running_pids and not forked._state.dying
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # no child of ours any more, not even a zombie


def wait_for_ever() -> bytes:
    signal.pause()
    return b""


def is_killed_by(act: Callable[[ForkedImage], object]) -> bool:
    image = fork_capture(wait_for_ever, timeout_s=WAIT_S)
    pid = image._child.pid
    act(image)
    return not Path(f"/proc/{pid}").exists()


def test_child_encodes_the_state_of_the_fork() -> None:
    """What the parent writes after the fork is not in it."""
    has_moved_on = mmap.mmap(-1, 1)  # shared with the child
    state = {"turn": 1}

    def encode() -> bytes:
        while not has_moved_on[0]:
            os.sched_yield()
        return f"{state} {gc.isenabled()}".encode()

    image = fork_capture(encode, timeout_s=WAIT_S)
    state["turn"] = 2
    has_moved_on[0] = 1
    assert image.result() == b"{'turn': 1} False"
    assert state == {"turn": 2} and gc.isenabled()


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 3_000_001])
def test_bytes_arrive_whole(size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    assert fork_capture(lambda: content, timeout_s=WAIT_S).result() == content


def test_content_of_several_writes_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with more than a gibibyte."""
    monkeypatch.setattr(forked, "_WRITE_BYTES_MAX", 1000)
    content = os.urandom(12_345)
    assert fork_capture(lambda: content, timeout_s=WAIT_S).result() == content


def test_error_of_the_encoder_is_told() -> None:
    def encode() -> bytes:
        raise ValueError("state.lock is a lock" + "!" * 10**6)

    with pytest.raises(EncodingError, match=r"ValueError: state\.lock is a lock!") as caught:
        fork_capture(encode, timeout_s=WAIT_S).result()
    assert len(str(caught.value)) < 100_000


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, MemoryError])
def test_child_never_returns_from_the_fork(stop: type[BaseException]) -> None:
    """It would go on as a second host."""

    def encode() -> bytes:
        raise stop("no")

    with pytest.raises(EncodingError, match=stop.__name__):
        fork_capture(encode, timeout_s=WAIT_S).result()


@pytest.mark.parametrize(
    "end", [lambda: os._exit(0), lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os.abort()]
)
def test_child_that_ends_early_has_failed(end: Callable[[], None]) -> None:
    def encode() -> bytes:
        end()
        return b"never"

    with pytest.raises(ForkFailedError, match="encode in this process"):
        fork_capture(encode, timeout_s=WAIT_S).result()


def test_child_that_takes_too_long_is_killed() -> None:
    def act(image: ForkedImage) -> None:
        image._deadline = 0.0
        with pytest.raises(ForkFailedError, match="took too long"):
            image.result()

    assert is_killed_by(act)


def test_closed_and_dropped_images_leave_no_child() -> None:
    assert is_killed_by(lambda image: image.close())
    image = fork_capture(wait_for_ever, timeout_s=WAIT_S)
    del image
    gc.collect(1)


def test_cancelled_capture_fails_in_the_thread_that_waits() -> None:
    image = fork_capture(wait_for_ever, timeout_s=WAIT_S)
    failures: list[SnaplineError] = []

    def wait() -> None:
        try:
            image.result()
        except SnaplineError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    image.cancel()
    thread.join(WAIT_S)
    assert [type(error) for error in failures] == [ForkFailedError]
    image.cancel()  # too late is no error


def test_result_is_given_once() -> None:
    image = fork_capture(lambda: b"state", timeout_s=WAIT_S)
    assert image.result() == b"state"
    with pytest.raises(UsageError, match="taken already"):
        image.result()


def test_no_more_children_than_the_limit() -> None:
    images = [fork_capture(wait_for_ever, timeout_s=WAIT_S) for _ in range(forked.FORKS_MAX)]
    with pytest.raises(ForkBusyError, match="still being written"):
        fork_capture(lambda: b"", timeout_s=WAIT_S)
    images.pop().close()
    assert fork_capture(lambda: b"state", timeout_s=WAIT_S).result() == b"state"
    for image in images:
        image.close()


def test_child_that_was_slow_to_die_is_reaped_by_the_next_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_kill", lambda child: None)
    monkeypatch.setattr(forked, "REAP_TIMEOUT_S", 0.0)
    images = [fork_capture(wait_for_ever, timeout_s=WAIT_S) for _ in range(forked.FORKS_MAX)]
    pids = [image._child.pid for image in images]
    for image in images:
        image.close()
    assert sorted(forked._state.dying) == sorted(pids)
    with pytest.raises(ForkBusyError):
        fork_capture(lambda: b"", timeout_s=WAIT_S)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert fork_capture(lambda: b"state", timeout_s=WAIT_S).result() == b"state"


def test_child_reaped_by_someone_else_still_delivers() -> None:
    """Some process managers wait for every child."""
    image = fork_capture(lambda: b"state", timeout_s=WAIT_S)
    os.waitpid(image._child.pid, 0)
    assert image.result() == b"state"


@pytest.mark.parametrize("place", [0, 8, 9, 41, 45, 49, 60])
def test_flipped_bit_is_found(place: int) -> None:
    """In magic, outcome, digest, length and content (G11)."""
    image = fork_capture(lambda: b"state" * 10, timeout_s=WAIT_S)
    os.waitid(os.P_PID, image._child.pid, os.WEXITED | os.WNOWAIT)
    (byte,) = os.pread(image._child.content, 1, place)
    os.pwrite(image._child.content, bytes([byte ^ 1]), place)
    with pytest.raises(ForkFailedError, match="other bytes"):
        image.result()


def test_child_holds_no_descriptor_of_its_parent() -> None:
    """A killed host must not look alive to its peers for as long as its child lives."""
    ours, theirs = socket.socketpair()
    image = fork_capture(wait_for_ever, timeout_s=WAIT_S)
    ours.close()
    theirs.settimeout(WAIT_S)
    assert theirs.recv(1) == b""  # the end of the stream, though the child lives
    image.close()
    theirs.close()


def test_child_holds_only_what_it_writes_to() -> None:
    def encode() -> bytes:
        return " ".join(os.listdir("/proc/self/fd")).encode()

    image = fork_capture(encode, timeout_s=WAIT_S)
    content = image._child.content
    listed = [int(name) for name in image.result().split()]
    assert content in listed and len(listed) == 2  # and the folder that it listed


def test_signals_of_the_parent_do_not_run_in_the_child() -> None:
    def encode() -> bytes:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return b"state"

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert fork_capture(encode, timeout_s=WAIT_S).result() == b"state"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_child_does_not_touch_other_captures() -> None:
    """It has copies of their objects, and may drop them."""
    first = fork_capture(wait_for_ever, timeout_s=WAIT_S)
    holder = [first]

    def encode() -> bytes:
        holder.clear()
        forked._end(first._child)
        first.cancel()
        return b"state"

    assert fork_capture(encode, timeout_s=WAIT_S).result() == b"state"
    assert Path(f"/proc/{first._child.pid}").exists()
    first.close()


SCRIPT = """
import os, signal, sys, threading
from snapline.storage.disk.record import Buffer
from snapline.storage.capture.forked import fork_capture
def encode():
    signal.pause()
    return b""
image = fork_capture(encode, timeout_s=60)
print(image._child.pid, flush=True)
signal.pause()
"""


def test_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        parent.kill()
        parent.wait(WAIT_S)
    poll = select.poll()
    poll.register(handle, select.POLLIN)  # readable when its process has ended
    assert poll.poll(WAIT_S * 1000)
    os.close(handle)


@pytest.mark.parametrize("timeout_s", [0, -1.0, 1e9, float("nan")])
def test_timeout_is_bounded(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        fork_capture(lambda: b"", timeout_s=timeout_s)


REASON = """
import os, sys
from snapline.storage.capture import forked
{steps}
print(forked.fork_unsafe_reason())
"""


@pytest.mark.parametrize(
    ("steps", "variable", "reason"),
    [
        ("", None, ""),
        ("import grpc", "0", ""),
        ("import grpc", None, "without GRPC_ENABLE_FORK_SUPPORT=0"),
        ("import grpc", "1", "children would crash"),
        ("forked.prepare(); import grpc", None, ""),
        ("forked.prepare(); import grpc; forked.prepare()", "1", ""),
        ("import grpc; forked.prepare(); os.environ['GRPC_ENABLE_FORK_SUPPORT'] = '0'", None, "without GRPC"),
    ],
)
def test_fork_is_refused_where_grpc_would_crash_the_child(steps: str, variable: str | None, reason: str) -> None:
    """The variable counts only if it was set before gRPC was imported: after is too late."""
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_ENABLE_FORK_SUPPORT"}
    if variable is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = variable
    command = [sys.executable, "-c", REASON.format(steps=steps)]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    assert (found == "") == (reason == "") and reason in found


def test_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "fork_unsafe_reason", lambda: f"gRPC was imported; {forked._STEP}")
    with pytest.raises(UsageError, match="set GRPC_ENABLE_FORK_SUPPORT=0"):
        fork_capture(lambda: b"", timeout_s=WAIT_S)
