"""SIGKILL to everything around a fleet, again and again: hosts, the coordinator, and the programs beside it, which are started again."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.processes import LIMIT_S
from tests.integration.running import LOOK_S, Running
from tests.kit.fork_server import ForkedCommand

from snapline.messages.status import FleetStatus

PAUSE_S = 1.0
"""Between the moment at which the fleet runs again and the next kill."""

HOST, COORDINATOR, EVERYTHING = "host", "coordinator", "everything"


class Program:
    """A process beside the fleet: `python -m …`. One that serves says its address in its first line, and gets the same port again.

    Attributes:
        address: what it said.
        text: what it has printed at its end.
    """

    def __init__(self, *arguments: str | Path, serves: str = "") -> None:
        """`serves`: the option that takes a port, such as `--port`, or `--listen` with an address."""
        self._arguments = [str(argument) for argument in arguments]
        self._serves = serves
        self.address = ""
        self.text = ""
        self._process: ForkedCommand | None = None
        self._port = "0"

    async def start(self) -> None:
        """Start it; one that serves does when this returns: if it ends instead, as it finds no coordinator, it is started again."""
        async with asyncio.timeout(LIMIT_S):
            while not await self._starts():
                pass

    async def _starts(self) -> bool:
        where = self._port if self._serves == "--port" else f"127.0.0.1:{self._port}"
        options = [self._serves, where] if self._serves else []
        self._process = await ForkedCommand.start("-m", *self._arguments, *options)
        assert self._process is not None
        if not self._serves:
            return True
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if line:
            self.address, self._port = line, line.rpartition(":")[2]
        return bool(line)

    def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def restart(self) -> None:
        """After a kill; one that has ended well stays so."""
        assert self._process is not None
        if await self._process.wait() != 0:
            await self.start()

    async def finish(self) -> None:
        """Wait until it ends by itself, however often it is killed."""
        while True:
            process = self._process
            assert process is not None
            out, _ = await process.communicate()
            if process.returncode == 0:
                self.text = out.decode()
                return
            assert process.returncode == -signal.SIGKILL, f"{self._arguments} has ended with {process.returncode}"
            while self._process is process:
                await asyncio.sleep(LOOK_S)  # who has killed it starts it again

    async def end(self) -> None:
        if self._process is not None:
            self.kill()
            await self._process.wait()


class Killer:
    """Kills at random.

    Attributes:
        kills: what was killed how often.
    """

    def __init__(self, fleet: Running, programs: Mapping[str, Program], chosen: random.Random) -> None:
        self._fleet = fleet
        self._programs = programs
        self._chosen = chosen
        self.kills: Counter[str] = Counter()
        self.targets = [HOST, COORDINATOR, EVERYTHING, *programs]

    async def while_running(self, work: asyncio.Future[Any], kills_max: int) -> None:
        """Kill on until this work is done, or there were so many kills."""
        while self.kills.total() < kills_max and await self.one_more(work):
            pass

    async def one_more(self, work: asyncio.Future[Any]) -> bool:
        """One kill, a second after the fleet runs again; or none, if this work is done before."""
        await self._fleet.until(is_whole)
        done, _ = await asyncio.wait([work], timeout=PAUSE_S)
        if done:
            work.result()
            return False
        await self.kill(self._chosen.choice(self.targets))
        return True

    async def kill(self, target: str) -> None:
        """SIGKILL this, and see everything up again."""
        self.kills[target] += 1
        hosts = list(self._fleet.local.hosts) if target == EVERYTHING else []
        hosts += [self._chosen.choice(self._fleet.local.hosts)] if target == HOST else []
        beside = list(self._programs) if target == EVERYTHING else [target] if target in self._programs else []
        processes = hosts + ([COORDINATOR] if target in (EVERYTHING, COORDINATOR) else [])
        before = starts(await self._fleet.until(is_whole))
        for program in beside:
            self._programs[program].kill()
        for process in processes:
            self._fleet.local.kill(process, is_kept_down=True)
        for process in processes:
            await self._start_again(process)
        await self._fleet.until(lambda now: True)  # who looks for a coordinator in vain ends
        await asyncio.gather(*[self._programs[program].restart() for program in beside])
        await self._fleet.until(lambda now: is_whole(now) and all(starts(now)[host] > before[host] for host in hosts))

    async def _start_again(self, process: str) -> None:
        """At once: a launcher's growing pauses, and the end of its patience, are for what fails by itself."""
        while self._fleet.local.pid(process) is not None:
            await asyncio.sleep(LOOK_S)
        self._fleet.local.restart(process)


def is_whole(now: FleetStatus) -> bool:
    """All hosts are there, and agents run."""
    return (
        now.phase == "running" and len(now.hosts) == now.hosts_expected and all(x.state == "alive" for x in now.hosts)
    )


def starts(now: FleetStatus) -> dict[str, int]:
    """How often each host has been started."""
    return {host.host: host.host_start for host in now.hosts}
