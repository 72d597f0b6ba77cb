"""Marks of what runs: they outlive the process that has left them, and say no more than what ran when it died."""

import asyncio
import contextvars
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.forked_process import run_forked

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.host.failures import MessageSample, digest_of_turn
from snapline.agent_runtime.host.turn_marks import (
    SLOT_BYTES,
    SLOTS,
    TurnMarks,
    TurnThreads,
    _mark_in,
    default_marks,
    limit_of,
    mark_of,
    read_marks,
)
from snapline.agent_runtime.turn_environment import TurnEnvironment

GO = b"\x02Go\x01"

DYING = """
import asyncio, contextvars, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from snapline.agent_runtime.host.turn_marks import TurnThreads, TurnMarks, mark_of
from snapline.agent_runtime.turn_environment import TurnEnvironment

marks = TurnMarks()
marks.open(Path(sys.argv[1]), "run-1")
a = mark_of("a", "message", "z", (b"\\x02Go\\x01").ljust({size}, b"\\0"), 2)
b = mark_of("b", "timer", "b", b"\\x04Tick", 1)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_later():
    # When the loop has nothing to do.
    while any(marks._slots[2048:2050]):
        pass
    die()

async def marked(mark, coroutine):
    context = contextvars.copy_context()
    context.run(marks.enter, mark)
    await asyncio.get_running_loop().create_task(marks.around(mark, coroutine), context=context)

async def waits(*events):
    for event in events:
        await event.wait()

async def main():
    asyncio.get_running_loop().set_default_executor(TurnThreads())
    {body}

asyncio.run(main())
"""


def left_by(path: Path, body: str, payload: bytes = GO) -> list[tuple[str, str, str, bool]]:
    """What a process has left that runs `body` and dies."""
    program = DYING.format(body=body.strip().replace("\n", "\n    "), size=len(payload))
    run = run_forked(program, str(path))
    assert run.returncode == -signal.SIGKILL, run.stderr
    instance, died_in = read_marks(path)
    assert instance == ("run-1" if died_in else "")
    for death in died_in:
        expected = (payload, "message", "z", 2) if death.agent == "a" else (b"\x04Tick", "timer", "b", 1)
        assert death.digest == digest_of_turn(*expected[1:3], MessageSample(expected[0]))
        assert death.limit == expected[3]
    return [(death.agent, death.sender, death.type, death.is_beside) for death in died_in]


A, B = ("a", "z", "Go"), ("b", "b", "Tick")


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("marks.begin(a); die()", [(*A, False)]),
        ("marks.begin(a); marks.begin(b); die()", [(*B, False)]),
        ("marks.begin(a); marks.end(); die()", []),
        ("await marked(a, asyncio.to_thread(die_later))", [(*A, True)]),
        ("marks.begin(a)\nmarks.in_thread(a, die)", [(*A, False)]),
        ("marks.begin(b)\nmarks.in_thread(a, die)", [(*B, False), (*A, True)]),
        ("await marked(a, asyncio.to_thread(int)); die()", []),
        ("await marked(a, TurnEnvironment().in_thread(die_later))", [(*A, True)]),
    ],
)
def test_what_ran_is_known_after_the_process_has_died(
    tmp_path: Path, body: str, left: list[tuple[str, str, str, bool]]
) -> None:
    assert left_by(tmp_path / "marks" / "h1", body) == left


WAITING = """
stop = asyncio.Event()
for mark in ({marks}):
    asyncio.create_task(marked(mark, waits(stop)))
await asyncio.sleep(0)
await asyncio.sleep(0)
await asyncio.sleep(0)
{then}
"""


def test_who_only_waits_is_not_blamed_for_what_runs(tmp_path: Path) -> None:
    assert left_by(tmp_path / "h1", WAITING.format(marks="a,", then="marks.begin(b); die()")) == [(*B, False)]


def test_if_nothing_runs_the_one_that_waits_is(tmp_path: Path) -> None:
    """It may have started a thread of its own, say."""
    assert left_by(tmp_path / "h1", WAITING.format(marks="a,", then="die()")) == [(*A, False)]
    assert left_by(tmp_path / "h2", WAITING.format(marks="a, b", then="die()")) == []


def test_a_large_message_leaves_its_mark(tmp_path: Path) -> None:
    assert left_by(tmp_path / "h1", "marks.begin(a); die()", GO + bytes(100_000)) == [(*A, False)]


def test_a_forked_child_does_not_touch_its_parents_marks(tmp_path: Path) -> None:
    body = """
marks.begin(a)
pid = os.fork()
if pid == 0:
    marks.end()
    os._exit(0)
os.waitpid(pid, 0)
die()
"""
    assert left_by(tmp_path / "h1", body) == [(*A, False)]


def test_who_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    marks = TurnMarks()
    marks.open(tmp_path / "h1", "run-1")
    marks.begin(mark_of("a", "message", "z", GO, 2))
    marks.close()
    assert list(tmp_path.iterdir()) == [] and read_marks(tmp_path / "h1") == ("", ())


@pytest.mark.parametrize(
    "spoil", [lambda content: content[:100], lambda content: b"x" + content[1:], lambda content: b""]
)
def test_a_file_that_is_none_says_nothing(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "h1"
    marks = TurnMarks()
    marks.open(path, "run-1")
    marks.begin(mark_of("a", "message", "z", GO, 2))
    content = path.read_bytes()
    path.write_bytes(spoil(content))
    assert read_marks(path) == ("", ())


def test_a_torn_slot_says_nothing(tmp_path: Path) -> None:
    """After a loss of power any page may be old, or empty."""
    path = tmp_path / "h1"
    marks = TurnMarks()
    marks.open(path, "run-1")
    marks.begin(mark_of("a", "message", "z", GO, 2))
    content = bytearray(path.read_bytes())
    content[SLOT_BYTES + 2 : SLOT_BYTES + 20] = bytes(18)
    path.write_bytes(content)
    assert read_marks(path) == ("", ())


async def test_suspects_run_one_at_a_time_in_threads() -> None:
    marks = TurnMarks(lambda mark: mark.agent == "a")
    at_once = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0}
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(TurnThreads())

    def work(agent: str) -> None:
        at_once[agent] += 1
        most[agent] = max(most[agent], at_once[agent])
        if agent == "b" and at_once["b"] == 2:
            loop.call_soon_threadsafe(gate.set)
        while agent == "b" and not gate.is_set():
            pass
        at_once[agent] -= 1

    async def asked(agent: str) -> None:
        marks.enter(mark_of(agent, "message", "z", GO, 2))
        await asyncio.to_thread(work, agent)

    await asyncio.gather(*[loop.create_task(asked(agent), context=contextvars.copy_context()) for agent in "bbaaaa"])
    assert most == {"a": 1, "b": 2}


async def test_a_suspect_that_runs_in_a_thread_waits_for_nobody() -> None:
    marks = TurnMarks(lambda mark: True)
    mark = mark_of("a", "message", "z", GO, 2)
    marks.enter(mark)
    async with asyncio.timeout(30):
        await TurnEnvironment().in_thread(lambda: marks.in_thread(mark, int))


def test_more_threads_than_slots_run_unmarked() -> None:
    marks = TurnMarks()
    mark = mark_of("a", "message", "z", GO, 2)

    def deep(left: int) -> int:
        return marks.in_thread(mark, deep, left - 1) if left else 7

    assert deep(SLOTS + 5) == 7
    assert deep(SLOTS + 5) == 7, "slots come back"


@pytest.mark.parametrize(("retries", "limit"), [(0, 1), (1, 1), (5, 5)])
def test_one_death_alone_condemns_no_message(retries: int, limit: int) -> None:
    class Tried(snapline.Agent):
        state: dict[str, int]

    Tried.retries = retries
    assert limit_of(agent_type(Tried)) == limit and limit_of(None) == 1


def test_a_turn_is_marked_as_a_message_is() -> None:
    for payload in (GO, GO + bytes(5000)):
        slow, fast = TurnMarks(), TurnMarks()
        slow.begin(mark_of("a", "message", "z", payload, 2))
        fast.begin_turn("a", "message", "z", payload, 2)
        found = [_mark_in(bytes(marks._slots), 1) for marks in (slow, fast)]
        assert found[0] and found[1] and found[0].death(is_in_thread=False) == found[1].death(is_in_thread=False)


def test_the_file_of_a_host_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    names = {default_marks(where, host) for where in ("c:1", "c:2") for host in ("h1", "h2")}
    assert len(names) == 4 and all(Path(name).parent.parent == tmp_path for name in names)
    Path(names.pop()).parent.chmod(0o777)
    assert default_marks("c:1", "h1") == "", "others could write there"
