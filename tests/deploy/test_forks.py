"""Children that are forked: what distinguishes them from new programs, which is nothing that a fleet could see."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.deploy.test_child import EXIT_LIMIT_S, is_alive, wait_until_dead
from tests.kit import fork_server

from snapline.cli.fork_server import reason_against, stamps
from snapline.deploy import child as child_module
from snapline.deploy.child import Child, ForkedProcess, ForkServer, StartFork
from snapline.deploy.starting import environment_of, start_fork_server_early, take_early_server

SNAPLINE = [sys.executable, "-m", "snapline"]
SPEAKING = """
import os, random, sys, time
print(random.random(), os.environ.get("WORD", "no word"), os.getcwd() == sys.path[0], flush=True)
time.sleep(float(os.environ.get("SLEEP_S", "0")))
os._exit(int(os.environ.get("CODE", "0")))
"""
"""A module of a fleet that says what its process is like, and then ends it."""

IN_MODULE = pytest.mark.asyncio(loop_scope="module")
"""For tests that share a server, which belongs to one event loop."""


@contextlib.asynccontextmanager
async def started_in(folder: Path) -> AsyncIterator[ForkServer]:
    """A server in a folder with the module `speaking`; the folder is the current one meanwhile."""
    (folder / "speaking.py").write_text(SPEAKING)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("PYTHONSAFEPATH", raising=False)
        started = await ForkServer.start(environment_of(None))
        assert started is not None
        yield started
        started.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForkServer]:
    """One for the tests that leave it running."""
    async with started_in(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest_asyncio.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[ForkServer]:
    """For a test that ends it."""
    async with started_in(tmp_path) as started:
        yield started


def host(*more: str, fleet: str = "speaking:fleet") -> list[str]:
    where = ("--coordinator", "127.0.0.1:1", "--id", "h1", "--store", "nowhere", "--fleet", fleet)
    return [*SNAPLINE, "host", "run", *where, *more]


def start(server: ForkServer | None, folder: Path, command: list[str], **environment: str) -> Child:
    return Child.start("h1", command, log_path=folder / "h1.log", environment=environment, forks=server)


def is_forked(child: Child) -> bool:
    return isinstance(child._process, ForkedProcess)


async def said(child: Child) -> str:
    async with asyncio.timeout(EXIT_LIMIT_S):
        while not child.last_line():
            await asyncio.sleep(0.01)
    return child.last_line()


@IN_MODULE
async def test_it_ends_and_says_what_a_new_program_would(server: ForkServer, tmp_path: Path) -> None:
    for words, code in ((["--version"], 0), (["host", "run", "--id", "h1"], 2), (host("--arg", "x"), 2)):
        command = [*SNAPLINE, *words] if words[0] != sys.executable else words
        forked, other = start(server, tmp_path / "a", command), start(None, tmp_path / "b", command)
        assert (is_forked(forked), is_forked(other)) == (True, False)
        assert [await forked.wait(), await other.wait()] == [code, code]
        assert forked.log_path.read_text() == other.log_path.read_text() != ""
        forked.log_path.unlink()
        other.log_path.unlink()


@IN_MODULE
async def test_what_a_dead_one_has_started_dies_with_it(server: ForkServer, tmp_path: Path) -> None:
    Path("dying.py").write_text(
        "import os, signal, subprocess\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = start(server, tmp_path, host(fleet="dying:fleet"))
    assert is_forked(child)
    assert await child.wait() == -signal.SIGKILL
    assert wait_until_dead(int(child.last_line()))


async def test_one_that_was_begun_early_is_the_next_launcher_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the environment that it was begun in: what has changed since is told with each child."""
    (tmp_path / "speaking.py").write_text(SPEAKING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    start_fork_server_early()
    monkeypatch.setenv("WORD", "later")
    found = [await ForkServer.start(environment_of(None)) for _ in range(2)]
    try:
        assert take_early_server() is None
        for server in found:
            child = start(server, tmp_path, host())
            assert is_forked(child) and await child.wait() == 0
            assert child.last_line().split(" ", 1)[1] == "later True"
        children = [start(found[0], tmp_path / str(n), host()) for n in range(4)]
        for child in children:
            await child.wait()
    finally:
        for server in found:
            assert server is not None
            server.close()
    assert not [child.pid for child in children if Path(f"/proc/{child.pid}").exists()], "who has ended is reaped"


@IN_MODULE
async def test_each_has_chances_and_variables_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    first = start(server, tmp_path / "a", host(), WORD="one", CODE="3")
    second = start(server, tmp_path / "b", host())
    assert [await first.wait(), await second.wait()] == [3, 0]
    one, two = first.last_line().split(" ", 1), second.last_line().split(" ", 1)
    assert (one[1], two[1]) == ("one True", "no word True")
    assert one[0] != two[0]


@IN_MODULE
async def test_it_leads_a_session_under_its_own_command_line(server: ForkServer, tmp_path: Path) -> None:
    command = host("--trace-every", "7")
    child = start(server, tmp_path, command, SLEEP_S="60")
    await said(child)
    words = Path(f"/proc/{child.pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert words == command
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
    descriptors = {os.readlink(path) for path in Path(f"/proc/{child.pid}/fd").iterdir()}
    assert not [name for name in descriptors if name.startswith("socket")], "the server's door is not a child's"
    assert await child.kill() == -signal.SIGKILL
    assert not is_alive(child.pid)


@IN_MODULE
async def test_its_end_is_told_while_others_are_started(server: ForkServer, tmp_path: Path) -> None:
    children = [start(server, tmp_path / str(n), host(), CODE=str(n)) for n in range(12)]
    assert [await child.wait() for child in children] == list(range(12))
    assert len({child.pid for child in children}) == 12


@IN_MODULE
async def test_a_word_that_was_read_while_another_was_started_is_not_missed(server: ForkServer, tmp_path: Path) -> None:
    """The loop has seen the word, and a start in the same round of it reads it first. The server was taken for gone, and all that it had started with it."""
    lasting = start(server, tmp_path / "lasting", host(), SLEEP_S="60")
    first = start(server, tmp_path / "first", host(), CODE="5")
    while not (select.select([server._connection], [], [], 0)[0]):
        os.sched_yield()  # the loop stands: it has not read that the first one has ended
    second = start(server, tmp_path / "second", host(), CODE="6")
    assert first.exit_code == 5
    server._listen()
    assert server.is_open and lasting.exit_code is None
    assert await second.wait() == 6
    assert await lasting.kill() == -signal.SIGKILL


async def test_a_server_that_does_not_answer_is_ended_and_a_program_started(
    own_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "REPLY_S", 0.1)
    os.kill(own_server._process.pid, signal.SIGSTOP)
    child = start(own_server, tmp_path, [*SNAPLINE, "--version"])
    assert not is_forked(child) and not own_server.is_open
    assert await child.wait() == 0


async def test_a_server_that_is_killed_takes_its_children_along(own_server: ForkServer, tmp_path: Path) -> None:
    children = [start(own_server, tmp_path / str(n), host(), SLEEP_S="60") for n in range(2)]
    for child in children:
        await said(child)
    own_server._process.kill()
    async with asyncio.timeout(EXIT_LIMIT_S):
        assert [await child.wait() for child in children] == [-signal.SIGKILL] * 2
    assert not own_server.is_open
    other = start(own_server, tmp_path / "other", [*SNAPLINE, "--version"])
    assert not is_forked(other) and await other.wait() == 0


@IN_MODULE
async def test_what_only_counts_at_a_start_is_a_new_program(server: ForkServer, tmp_path: Path) -> None:
    command = [*SNAPLINE, "--version"]
    for variables in ({"LD_PRELOAD": "/nowhere.so"}, {"PYTHONHASHSEED": "7"}):
        child = start(server, tmp_path, command, **variables)
        assert not is_forked(child) and await child.wait() == 0
    child = start(server, tmp_path, [sys.executable, "-c", "print('another')"])
    assert not is_forked(child) and await child.wait() == 0


@IN_MODULE
async def test_elsewhere_it_is_a_new_program(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    child = start(server, tmp_path, [*SNAPLINE, "--version"])
    assert not is_forked(child) and await child.wait() == 0


def test_code_that_has_changed_is_not_forked(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("old")
    wanted = StartFork(["--version"], {}, os.getcwd())
    known = {**stamps(), str(file): file.stat().st_mtime_ns}
    assert reason_against(wanted, known) == ""
    os.utime(file, ns=(1, 1))
    assert reason_against(wanted, known) == f"{file} has changed"
    file.unlink()
    assert reason_against(wanted, known) == f"{file} is gone"


def test_children_and_server_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "speaking.py").write_text(SPEAKING)
    code = """
        import asyncio
        from pathlib import Path
        from tests.deploy.test_forks import *

        async def main():
            server = await ForkServer.start(environment_of(None))
            child = start(server, Path("."), host(), SLEEP_S="60")
            await said(child)
            print(server._process.pid, child.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    try:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
    finally:
        with contextlib.suppress(ProcessLookupError):
            launcher.kill()
        launcher.communicate()
    assert all(wait_until_dead(pid) for pid in pids)


def test_the_server_of_the_tests_does_not_keep_the_variables_of_the_test_that_starts_it() -> None:
    """Else it forks nothing for the tests after it: they have other variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "_servers", [])
        patch.setenv("PYTHONHASHSEED", "1")
        server = fork_server.SharedForkServer.shared()
    try:
        assert server._changes(os.environ) is not None
    finally:
        server.end()
