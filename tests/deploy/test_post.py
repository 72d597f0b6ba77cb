"""A launcher's post on another machine: who holds it, what a broken connection leaves, what nobody can read. No ssh is needed."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from snapline.deploy.conformance.bench import processes_naming, until
from snapline.deploy.conformance.launcher_checks import SLEEP, program
from snapline.deploy.launch_agent import LaunchAgent, runtime_folder
from snapline.deploy.launch_agent_client import (
    LaunchAgentClient,
    LaunchAgentConnection,
    LaunchAgentGoneError,
    LaunchAgentMissingError,
    LaunchAgentReply,
    LaunchAgentRequest,
    ReplacedError,
)
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.errors import ExternalFailureError, UsageError


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[LaunchAgent]:
    made = LaunchAgent(tmp_path / "runtime", tmp_path / "data")
    yield made
    await made.answer(LaunchAgentRequest("last", "hold"))
    await made.answer(LaunchAgentRequest("last", "close"))


async def start(post: LaunchAgent, holder: str, spec: ProcessSpec) -> LaunchAgentReply:
    return await post.answer(LaunchAgentRequest(holder, "start", spec=spec))


async def test_a_post_that_nobody_holds_does_nothing(post: LaunchAgent) -> None:
    assert (await start(post, "a", program("h1", SLEEP))).fault == "unheld"


async def test_who_was_replaced_can_neither_start_nor_end_anything(post: LaunchAgent) -> None:
    await post.answer(LaunchAgentRequest("a", "hold"))
    handle = (await start(post, "a", program("h1", SLEEP))).handle
    await post.answer(LaunchAgentRequest("b", "hold"))
    assert (await start(post, "a", program("h2", SLEEP))).fault == "replaced"
    for word in ("kill", "freeze", "stop", "close"):
        assert (await post.answer(LaunchAgentRequest("a", word, handle=handle))).fault == "replaced"
    assert (await post.answer(LaunchAgentRequest("b", "status", handle=handle))).exit is None
    assert (await start(post, "b", program("h1", SLEEP, instance="run-2"))).handle == handle


async def test_a_start_that_is_said_again_is_one_run_even_when_it_has_ended(post: LaunchAgent) -> None:
    await post.answer(LaunchAgentRequest("a", "hold"))
    first = (await start(post, "a", program("h1", "pass"))).handle
    assert (await post.answer(LaunchAgentRequest("a", "watch", handle=first))).exit is not None
    assert (await start(post, "a", program("h1", "pass"))).handle == first
    assert (await start(post, "a", program("h1", "pass", instance="run-2"))).handle != first


async def test_a_process_stands_still_while_its_holder_says_so(post: LaunchAgent) -> None:
    await post.answer(LaunchAgentRequest("a", "hold"))
    handle = (await start(post, "a", program("h1", SLEEP))).handle
    assert handle is not None
    status = Path(f"/proc/{handle.pid}/stat")

    def state() -> str:
        return status.read_text().rpartition(")")[2].split()[0]

    assert (await post.answer(LaunchAgentRequest("a", "freeze", handle=handle))).fault == ""
    await until("it stands still", lambda: state() == "T")
    assert (await post.answer(LaunchAgentRequest("a", "thaw", handle=handle))).fault == ""
    await until("it goes on", lambda: state() != "T")


async def test_a_coordinator_keeps_its_port(post: LaunchAgent) -> None:
    await post.answer(LaunchAgentRequest("a", "hold"))
    ports = [
        (await post.answer(LaunchAgentRequest("a", "port", name=name, address="127.0.0.1"))).port for name in "ccd"
    ]
    assert ports[0] == ports[1] != ports[2]
    refused = await post.answer(LaunchAgentRequest("a", "port", name="e", address="192.0.2.1"))
    assert refused.fault == "failed" and "no free port on 192.0.2.1" in refused.reason


LEAVING = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); open({ready!r}, 'w'); time.sleep(600)"
"""A host that is asked to end leaves its fleet, and ends with 0."""


async def test_a_farewell_is_said_before_its_process_is_asked_to_end(post: LaunchAgent, tmp_path: Path) -> None:
    """Its 0 is not told as one: it would mean that the fleet is over, and that nothing is to be started again."""
    await post.answer(LaunchAgentRequest("a", "hold"))
    shutdown = (sys.executable, "-c", f"import pathlib; pathlib.Path({str(tmp_path / 'said')!r}).touch()")
    leaving = program("h1", LEAVING.format(ready=str(tmp_path / "ready")))
    handle = (await post.answer(LaunchAgentRequest("a", "start", spec=leaving, shutdown=shutdown))).handle
    other = (await start(post, "a", program("c1", SLEEP, "coordinator"))).handle
    await until("it listens", (tmp_path / "ready").exists)
    watching = asyncio.create_task(post.answer(LaunchAgentRequest("a", "watch", handle=handle)))
    assert await post.shut_down()
    ended = (await watching).exit
    assert ended is not None and (ended.code, ended.text) == (None, "ended by its place")
    assert (tmp_path / "said").exists()
    assert (await post.answer(LaunchAgentRequest("a", "status", handle=other))).exit is None, (
        "a process without one stays"
    )


async def test_a_post_that_is_ended_tells_of_its_processes_that_their_place_has_ended(tmp_path: Path) -> None:
    """As when the machine is shut down, or the job cancelled."""
    launcher = caller(tmp_path, "a")
    await launcher.hold()
    handle = await launcher.start(program("h1", LEAVING.format(ready=str(tmp_path / "ready"))), {})
    await until("it listens", (tmp_path / "ready").exists)
    watching = asyncio.create_task(launcher.watch(handle))
    assert await launcher.status(handle) is None
    os.kill(parent_of(handle), signal.SIGTERM)
    assert (await watching).code is None
    await launcher.leave()
    await until("nothing", lambda: processes_naming(str(tmp_path)) == [])
    assert "Traceback" not in (tmp_path / "logs" / "post.log").read_text()


def bridge(folder: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "snapline.deploy.launch_agent", "bridge", str(folder), "--data-dir", str(folder)]
    return [*command, *more]


def caller(folder: Path, holder: str) -> LaunchAgentClient:
    return LaunchAgentClient("m1", holder, lambda: LaunchAgentConnection.open(bridge(folder)))


def lines(folder: Path) -> list[int]:
    """Process ids of the bridges."""
    found = [path for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) != os.getpid()]
    wanted = b"\0bridge\0" + str(folder).encode()
    return [int(path.name) for path in found if wanted in read(path / "cmdline")]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_broken_connection_ends_nothing_and_the_next_launcher_finds_what_runs(tmp_path: Path) -> None:
    first = caller(tmp_path, "a")
    await first.hold()
    handle = await first.start(program("h1", f"{SLEEP}  # {tmp_path}"), {})
    watching = asyncio.create_task(first.watch(handle))
    (pid,) = lines(tmp_path)
    os.kill(pid, signal.SIGKILL)
    await until("another connection", lambda: lines(tmp_path) not in ([], [pid]))
    assert await first.status(handle) is None and not watching.done()
    second = caller(tmp_path, "b")
    await second.hold()
    assert await second.start(program("h1", SLEEP, instance="run-2"), {}) == handle
    with pytest.raises(ReplacedError, match="has taken this fleet over on m1"):
        await first.start(program("h2", SLEEP), {})
    await first.close()
    await second.kill(handle)
    assert (await second.watch(handle)).code == -signal.SIGKILL
    await second.close()
    watching.cancel()
    await until("nothing", lambda: processes_naming(str(tmp_path)) == [])
    assert not runtime_folder(str(tmp_path)).exists()


async def test_a_killed_post_takes_its_processes_along_and_a_new_one_starts_them_again(tmp_path: Path) -> None:
    launcher = caller(tmp_path, "a")
    await launcher.hold()
    handle = await launcher.start(program("h1", f"{SLEEP}  # {tmp_path}"), {"own.key": b"secret"})
    watching = asyncio.create_task(launcher.watch(handle))
    os.kill(parent_of(handle), signal.SIGKILL)
    assert (await watching).code is None
    await until("its process gone", lambda: not Path(f"/proc/{handle.pid}").exists())
    again = await launcher.start(program("h1", SLEEP, instance="run-2"), {})
    assert again.pid != handle.pid
    assert not list(runtime_folder(str(tmp_path)).glob("keys/*/*")), "keys of the post that was killed"
    await launcher.close()
    await until("nothing", lambda: processes_naming(str(tmp_path)) == [])


async def test_keys_are_read_by_their_user_alone_and_gone_with_the_post(tmp_path: Path) -> None:
    launcher = caller(tmp_path, "a")
    await launcher.hold()
    show = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"
    spec = ProcessSpec("h1", "host", "run-1", ("python", "-c", show, "@private/own.key"))
    ended = await launcher.watch(await launcher.start(spec, {"own.key": b"secret"}))
    assert (ended.code, ended.last_words) == (0, "secret")
    (key,) = runtime_folder(str(tmp_path)).glob("keys/h1/*")
    folders = [key.parent, key.parent.parent, runtime_folder(str(tmp_path)), runtime_folder(str(tmp_path)).parent]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, *folders)] == [0o600, 0o700, 0o700, 0o700, 0o700]
    assert processes_naming("secret") == []
    await launcher.close()
    await until("no key", lambda: not key.exists())


async def test_a_bridge_that_must_not_start_a_post_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchAgentMissingError) as refused:
        await LaunchAgentConnection.open(bridge(tmp_path, "--must-run"))
    assert refused.value.code == 69
    assert processes_naming(str(tmp_path)) == []


async def test_a_post_of_another_version_is_refused(tmp_path: Path) -> None:
    greeting = (
        'import sys; print(\'Welcome!\'); print(\'{"snapline":"0.0.1","address":""}\', flush=True); sys.stdin.read()'
    )
    with pytest.raises(ExternalFailureError, match=r"snapline 0.0.1 is installed there, and .* here"):
        await LaunchAgentConnection.open([sys.executable, "-c", greeting])


async def test_who_gives_a_post_up_is_told_so_to_whoever_waits() -> None:
    async def dial() -> LaunchAgentConnection:
        raise LaunchAgentGoneError("its node died")

    post = LaunchAgentClient("n1", "a", dial)
    ended = await post.watch(Handle("h1", "run-1", "n1", 1))
    assert (ended.code, ended.text) == (None, "its node died")
    with pytest.raises(LaunchAgentGoneError):
        await post.start(program("h1", SLEEP), {})


def test_a_runtime_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapline.deploy.launch_agent.MEMORY", tmp_path)
    assert runtime_folder("a") != runtime_folder("b")
    (root,) = tmp_path.iterdir()
    root.chmod(0o755)
    with pytest.raises(UsageError, match="not a folder of this user alone"):
        runtime_folder("a")


def parent_of(handle: Handle) -> int:
    return int(Path(f"/proc/{handle.pid}/stat").read_text().rpartition(")")[2].split()[1])
