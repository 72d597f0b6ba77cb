"""Checks of each launcher method: small programs are started and ended, without a fleet."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from snapline.deploy.conformance.bench import LIMIT_S, Bench, LauncherFaultError, require, until
from snapline.deploy.launching import Exit, Handle, Kind, Launcher, ProcessSpec

ProcessCheck = Callable[[Bench], Awaitable[None]]

SLEEP = "import time; time.sleep(600)"
BEAT_S = 0.1
BEATING = """
import time
while True:
    time.sleep({beat_s})
    with open({beats!r}, "ab") as file:
        file.write(b".")
"""
STUBBORN = "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path({ready!r}).touch(); "


def program(name: str, code: str, kind: Kind = "host", instance: str = "run-1") -> ProcessSpec:
    """A small Python program as a process of a fleet."""
    return ProcessSpec(name, kind, instance, (sys.executable, "-u", "-c", code))


async def an_end_is_seen_with_its_code_and_last_words(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        handle = await launcher.start(program("h1", "print('one'); raise SystemExit('no disk left')"))
        ended = await _end_of(launcher, handle)
        require((ended.code, ended.last_words) == (1, "no disk left"), f"it saw {ended}")
        require(await launcher.status(handle) == ended, "status tells another end than watch")


async def a_name_is_one_process(bench: Bench) -> None:
    """Check that repeating a start, such as after a lost answer, does not start a second process."""
    async with _opened(bench) as launcher:
        first = await launcher.start(program("h1", SLEEP))
        second = await launcher.start(program("h1", SLEEP, instance="run-2"))
        require(second == first, f"{second} runs beside {first}")
        await launcher.kill(first)
        await _end_of(launcher, first)
        third = await launcher.start(program("h1", SLEEP, instance="run-3"))
        require(third.instance == "run-3" and third.pid != first.pid, f"{third} is {first} again")
        require(await launcher.status(third) is None, "the third run does not run")


async def words_about_an_earlier_run_do_not_end_the_next(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        first = await launcher.start(program("h1", SLEEP))
        await launcher.kill(first)
        await _end_of(launcher, first)
        second = await launcher.start(program("h1", SLEEP, instance="run-2"))
        await launcher.kill(first)
        require((await launcher.stop(second, LIMIT_S)).code == -15, "killing the first run has killed the second")
        third = await launcher.start(program("h1", SLEEP, instance="run-3"))
        await launcher.stop(first, 0.1)
        await launcher.kill(third)
        require((await _end_of(launcher, third)).code == -9, "stopping the first run has stopped the third")
        require(await launcher.status(first) is not None, "the first run is said to run")


async def stopping_asks_first(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        handle = await launcher.start(program("h1", SLEEP))
        ended = await launcher.stop(handle, LIMIT_S)
        require(ended.code == -15, f"asked to end, it ended with {ended.text}, not by SIGTERM")


async def stopping_kills_who_does_not_listen(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        ready = bench.folder / "ready"
        handle = await launcher.start(program("h1", STUBBORN.format(ready=str(ready)) + SLEEP))
        await until("the program's word that it is ready", ready.exists)
        ended = await launcher.stop(handle, 0.1)
        require(ended.code == -9, f"it ended with {ended.text}, not by SIGKILL")


async def who_is_frozen_stands_still_until_thawed_or_killed(bench: Bench) -> None:
    async with _opened(bench) as launcher:
        beats = bench.folder / "beats"
        handle = await launcher.start(program("h1", BEATING.format(beats=str(beats), beat_s=BEAT_S)))
        await until("a first beat", beats.exists)
        await launcher.freeze(handle)
        await asyncio.sleep(BEAT_S)  # one beat may still be in progress
        before = beats.stat().st_size
        await asyncio.sleep(10 * BEAT_S)
        require(beats.stat().st_size == before, "frozen, it goes on")
        require(await launcher.status(handle) is None, "frozen, it is said to have ended")
        await launcher.thaw(handle)
        await until("more beats of who was thawed", lambda: beats.stat().st_size > before)
        await launcher.freeze(handle)
        await launcher.kill(handle)
        require((await _end_of(launcher, handle)).code == -9, "frozen, it does not end by SIGKILL")
        await launcher.freeze(handle)
        await launcher.thaw(handle)


async def closing_leaves_nothing(bench: Bench) -> None:
    """Check that closing leaves no process, not even one whose start was just cancelled."""
    async with _opened(bench) as launcher:
        kinds: list[Kind] = ["host", "host", "coordinator"]
        for number, kind in enumerate(kinds):
            await launcher.start(program(f"{kind[0]}{number}", f"{SLEEP}  # {bench.folder}", kind))
        starting = asyncio.create_task(launcher.start(program("h9", f"{SLEEP}  # {bench.folder}")))
        await asyncio.sleep(0)
        starting.cancel()
    await until(f"everything gone, and there is {bench.remains()}", lambda: not bench.remains())


PROCESS_CHECKS: list[ProcessCheck] = [
    an_end_is_seen_with_its_code_and_last_words,
    a_name_is_one_process,
    words_about_an_earlier_run_do_not_end_the_next,
    stopping_asks_first,
    stopping_kills_who_does_not_listen,
    who_is_frozen_stands_still_until_thawed_or_killed,
    closing_leaves_nothing,
]


@asynccontextmanager
async def _opened(bench: Bench) -> AsyncIterator[Launcher]:
    launcher = bench.launcher()
    try:
        await launcher.open(["c1"])
        yield launcher
    finally:
        await launcher.close()


async def _end_of(launcher: Launcher, handle: Handle) -> Exit:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await launcher.watch(handle)
    except TimeoutError:
        raise LauncherFaultError(f"the end of {handle} was not seen within {LIMIT_S:g} s") from None
