"""Faults of a fleet's processes, the same for every launcher: kill, end, freeze, slow down, restart.

A launcher's commands take time and may overtake each other. So the commands for one process are sent one after the other. Each reads the target
speed when its turn comes, so that the last request wins.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Sequence

from snapline.chaos import executor as cm
from snapline.deploy.running_fleet import SINGLE_COORDINATOR, LaunchedFleet
from snapline.errors import SnaplineError

DUTY_S = 0.1
"""Period of the duty cycle: a slow process runs for its percentage of it, and is frozen for the rest."""

LOOK_S = 0.02
EXIT_LIMIT_S = 10.0
"""Time limit for a process to end after SIGKILL before it is restarted, and for thawing all processes at the end."""


class Processes:
    """Hosts and coordinators under the scenario's names.

    Attributes:
        fleet: the fleet that they belong to.
    """

    def __init__(
        self,
        fleet: LaunchedFleet,
        *,
        hosts: Sequence[str],
        coordinators: Sequence[str],
        joining: Sequence[str],
    ) -> None:
        """Create the driver; `joining`: the hosts that join later."""
        self.fleet = fleet
        self._hosts = tuple(hosts)
        self._coordinators = tuple(coordinators)
        self._absent = list(joining)
        self._speeds: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to slow down slow processes."""
        self.spawn("slow", self._keep_slow)

    async def stop(self) -> None:
        """Stop all work, and leave no process frozen."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        frozen = [node for node, percent in self._speeds.items() if percent < 100]
        with contextlib.suppress(TimeoutError):  # the launcher ends frozen processes, too
            async with asyncio.timeout(EXIT_LIMIT_S):
                await asyncio.gather(*(self._send(self.fleet.thaw, node) for node in frozen))

    # ---- names ------------------------------------------------------------------------------------------------------

    def node_of(self, name: str) -> str:
        """Return the scenario's name for a process of the fleet."""
        return self._coordinators[0] if name == SINGLE_COORDINATOR else name

    def name_of(self, node: str) -> str:
        """Return the fleet's name for a node."""
        return SINGLE_COORDINATOR if node == self._coordinators[0] and len(self._coordinators) == 1 else node

    def pid(self, node: str) -> int | None:
        """Return the node's process id on its machine; None while it is down."""
        return None if node in self._absent else self.fleet.pid(self.name_of(node))

    # ---- commands -----------------------------------------------------------------------------------------------

    def carry_out(self, command: cm.KillNode | cm.EndNode | cm.StartNode | cm.SetSpeed) -> None:
        """Carry out a command that only concerns processes."""
        match command:
            case cm.KillNode():
                self.fleet.kill(self.name_of(command.node), is_kept_down=True)
            case cm.EndNode():
                self.spawn(f"end {command.node}", functools.partial(self._end, command.node))
            case cm.StartNode():
                self.spawn(f"start {command.node}", functools.partial(self._start_again, command.node))
            case cm.SetSpeed():
                self._speeds[command.node] = command.percent
                self.spawn(f"speed {command.node}", functools.partial(self._set_speed, command.node))

    def spawn(self, key: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run tasks of the same key one after the other."""
        before = self._tasks.get(key)

        async def after() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work()

        self._tasks[key] = asyncio.create_task(after())

    async def gone(self, node: str) -> None:
        """Wait until the node is down; raise TimeoutError after `EXIT_LIMIT_S` seconds."""
        async with asyncio.timeout(EXIT_LIMIT_S):
            while self.pid(node) is not None:
                await asyncio.sleep(LOOK_S)

    async def _start_again(self, node: str) -> None:
        """Restart a node once the tasks that end it and lose its unsynced data are done."""
        for key in (f"power {node}", f"end {node}"):
            if key in self._tasks:
                await asyncio.wait([self._tasks[key]])
        if node in self._absent:
            self._join(node)
            return
        await self.gone(node)
        self.fleet.restart(self.name_of(node))

    def _join(self, host: str) -> None:
        """Add a host. A launcher runs hosts 1 to N; those of them that have not joined yet are kept down."""
        self._absent.remove(host)
        if host not in self.fleet.hosts:
            self.fleet.scale(self._hosts.index(host) + 1)
        for absent in self._absent:
            if absent in self.fleet.hosts:
                self.fleet.kill(absent, is_kept_down=True)
        self.fleet.restart(host)

    async def _end(self, node: str) -> None:
        await self._send(self.fleet.thaw, node)
        await self.fleet.end(self.name_of(node), EXIT_LIMIT_S)

    async def _set_speed(self, node: str) -> None:
        await self._send(self.fleet.thaw if self._speeds[node] else self.fleet.freeze, node)

    async def _keep_slow(self) -> None:
        """Freeze and thaw slow processes in each period of the duty cycle."""
        while True:
            slow = {node: percent for node, percent in self._speeds.items() if 0 < percent < 100}
            began_s = time.monotonic()
            await asyncio.gather(*(self._send(self.fleet.freeze, node) for node in slow))
            for node, percent in sorted(slow.items(), key=lambda each: -each[1]):
                rest_s = DUTY_S * (100 - percent) / 100 - (time.monotonic() - began_s)
                await asyncio.sleep(max(0.0, rest_s))
                if self._speeds[node]:
                    await self._send(self.fleet.thaw, node)
            await asyncio.sleep(max(0.0, DUTY_S - (time.monotonic() - began_s)))

    async def _send(self, word: Callable[[str], Coroutine[object, object, None]], node: str) -> None:
        """Send a command to a running process. A command that fails is dropped, because the next one reads the target state again."""
        if node not in self._absent:
            with contextlib.suppress(SnaplineError):
                await word(self.name_of(node))
