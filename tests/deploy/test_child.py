"""Child processes: their log, their end, and that nothing outlives the launcher."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from snapline.deploy import child as child_module
from snapline.deploy.child import Child, describe_exit, last_words

EXIT_LIMIT_S = 10.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def is_alive(pid: int) -> bool:
    """A zombie counts as dead: it waits for its parent. So does a process that its parent has waited for and that the kernel is removing (X)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_dead(pid: int) -> bool:
    deadline = time.monotonic() + EXIT_LIMIT_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


async def test_what_it_prints_goes_to_its_log(tmp_path: Path) -> None:
    child = Child.start("h1", python("print('one'); raise SystemExit('two')"), log_path=tmp_path / "l" / "h1.log")
    assert await child.wait() == 1
    assert child.log_path.read_text() == "one\ntwo\n"
    assert child.last_line() == "two"


async def test_the_last_line_is_this_run_s_not_an_earlier_one_s(tmp_path: Path) -> None:
    log = tmp_path / "h1.log"
    log.write_text("words of the run before\n")
    child = Child.start("h1", python("pass"), log_path=log)
    await child.wait()
    assert child.last_line() == ""
    assert log.read_text() == "words of the run before\n"


def test_the_reason_for_an_exit_is_not_what_an_interpreter_prints_at_its_end() -> None:
    noise = "Exception ignored in: <function f at 0x1>\nTraceback (most recent call last):\nsys:1: RuntimeWarning: x\n"
    assert last_words(f"INFO starts\nsnapline: first\nsnapline: the reason\n{noise}\n") == "snapline: the reason"
    assert (last_words("one\n  two \n\n"), last_words("\n")) == ("two", "")


async def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES_MAX", 10)
    log = tmp_path / "h1.log"
    log.write_text("more than ten bytes\n")
    child = Child.start("h1", python("print('new')"), log_path=log)
    await child.wait()
    assert log.read_text() == "new\n"
    assert (tmp_path / "h1.log.1").read_text() == "more than ten bytes\n"


async def test_a_kill_takes_its_own_children_along(tmp_path: Path) -> None:
    code = """
        import subprocess, sys, time
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
        time.sleep(60)
    """
    child = Child.start("h1", python(code), log_path=tmp_path / "h1.log")
    while not child.last_line():
        await asyncio.sleep(0.01)
    grandchild = int(child.last_line())
    assert is_alive(grandchild)
    await child.kill()
    assert wait_until_dead(grandchild)


async def test_a_death_takes_its_own_children_along(tmp_path: Path) -> None:
    """Nobody signalled the group: the child alone was killed, as by the kernel when memory is short."""
    code = """
        import os, signal, subprocess, sys
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = Child.start("h1", python(code), log_path=tmp_path / "h1.log")
    assert await child.wait() == -signal.SIGKILL
    assert wait_until_dead(int(child.last_line()))


async def test_a_signal_to_an_ended_child_is_nothing(tmp_path: Path) -> None:
    child = Child.start("h1", python("pass"), log_path=tmp_path / "h1.log")
    await child.wait()
    child.signal(signal.SIGKILL)
    assert await child.stop(1.0) == 0


def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL runs no clean-up code: the kernel must do it."""
    launcher = subprocess.Popen(
        python(
            f"""
            import asyncio, sys
            from pathlib import Path
            from snapline.deploy.child import Child

            async def main():
                command = [sys.executable, "-c", "print('up'); import time; time.sleep(60)"]
                child = Child.start("h1", command, log_path=Path({str(tmp_path / "h1.log")!r}))
                while child.last_line() != "up":
                    await asyncio.sleep(0.01)
                print(child.pid, flush=True)
                await asyncio.sleep(60)

            asyncio.run(main())
            """
        ),
        stdout=subprocess.PIPE,
    )
    try:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        assert is_alive(pid)
        assert os.getpgid(pid) == pid, "a session of its own"
    finally:
        launcher.kill()
        launcher.communicate()
    assert wait_until_dead(pid)


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-999, "signal 999")]
)
def test_exits_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text
