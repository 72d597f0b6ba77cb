"""Processes on a Ray cluster: a seat (`deploy/ray_worker.py`) for each, spread so that no two hosts and no two coordinators share a node.

Ray's report that an actor or a node is gone ends the watch of its process, which the keeper reports to the coordinator. Heartbeats may be quicker;
whichever comes first. The report may also be wrong: an actor on a node that Ray has given up can live on and answer, and so can its process.
Neither does harm: the process is of a host start that has been replaced, and is refused (G9).

A start waits for its seat as long as it takes: a cluster without a spare node gets one later, or does not, and the fleet goes on with the
hosts that it has.

A coordinator keeps the address that it was given first. Its seat may move to another node of the same address only; on another one
the process cannot listen, and is given up while a majority goes on without it.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from snapline.deploy.launching import Exit, Handle, ProcessSpec
from snapline.deploy.plan import Files
from snapline.deploy.ray_cluster import RayCluster, WorkerLostError, answer
from snapline.deploy.ray_worker import NodeWorker, exit_from

SEAT_PAUSE_S = 0.2
"""Time between two checks whether a seat is there again: Ray takes seconds to find it a node."""

CLOSE_S = 10.0
"""Time for a seat to end what it has started; one that does not answer is ended by Ray."""

KEEPER = "keeper"
"""The actor that keeps a fleet that was taken up by `snapline up`; it outlives its launcher, to say how the fleet ended."""

NODE_NEEDS = {"CPU": 1.0}
"""Resources that a host reserves on its node by default."""


class RayLauncher:
    """Processes of one fleet on a Ray cluster."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        data_dir: str,
        hosts: int,
        node: Mapping[str, float] | None = None,
        files: Files = lambda kind, name: {},
    ) -> None:
        """Describe a place; `open` takes it.

        Args:
            cluster: it is left when the launcher is closed.
            data_dir: a path on every node: logs, and the coordinators' own. It need not be shared.
            hosts: how many nodes are wanted at least.
            node: Ray's resources that each host reserves on its node.
            files: what each process needs to be trusted; written where only its user can read.
        """
        self._cluster = cluster
        self._data_dir = data_dir
        self._places = hosts
        self._node = dict(node or NODE_NEEDS)
        self._files = files
        self._seats: dict[str, Any] = {}  # Any: Ray's handles of actors

    @property
    def where(self) -> str:
        return f"Ray's namespace {self._cluster.namespace}"

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/logs on its nodes"

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Reserve nodes and ask the coordinators' seats for addresses.

        Raises:
            ExternalFailureError: the cluster has not so many nodes to spare.
        """
        self._places = max(self._places, len(coordinators))
        await self._cluster.spread(self._places, self._node)
        found = await asyncio.gather(*(self._ask(name, "address") for name in coordinators))
        return {name: str(address) for name, address in zip(coordinators, found, strict=True)}

    async def start(self, spec: ProcessSpec) -> Handle:
        encoded, files = msgspec.msgpack.encode(spec), dict(self._files(spec.kind, spec.name))
        handle = await self._ask(spec.name, "start", encoded, files)
        return msgspec.msgpack.decode(handle, type=Handle)

    async def watch(self, handle: Handle) -> Exit:
        return await self._exit(handle, "watch") or Exit(None, "gone", log=self.logs)

    async def status(self, handle: Handle) -> Exit | None:
        return await self._exit(handle, "status")

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        return await self._exit(handle, "stop", grace_s) or Exit(None, "gone", log=self.logs)

    async def kill(self, handle: Handle) -> None:
        await self._tell(handle, "kill")

    async def freeze(self, handle: Handle) -> None:
        await self._tell(handle, "freeze")

    async def thaw(self, handle: Handle) -> None:
        await self._tell(handle, "thaw")

    async def close(self) -> None:
        """Close; also end seats of this fleet that an earlier launcher left behind."""
        await self.sweep()
        self._cluster.leave(is_over=True)

    async def sweep(self) -> list[str]:
        """End all seats of this fleet, of any launcher; return the names of their processes."""
        seats = {name: self._cluster.actor(name) for name in self._cluster.names() if name != KEEPER}
        await asyncio.gather(*(self._end(seat) for seat in seats.values() if seat is not None))
        self._seats.clear()
        return sorted(seats)

    async def _tell(self, handle: Handle, word: str) -> None:
        with contextlib.suppress(WorkerLostError):
            await answer(getattr(self._seat(handle.name), word).remote(msgspec.msgpack.encode(handle)))

    async def _end(self, seat: Any) -> None:
        with contextlib.suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await answer(seat.close.remote())
        self._cluster.end_actor(seat)

    async def _exit(self, handle: Handle, word: str, *arguments: object) -> Exit | None:
        """Return how a process ended, from its seat; a seat that is gone has taken it along."""
        try:
            seat = self._seat(handle.name)
            return exit_from(await answer(getattr(seat, word).remote(msgspec.msgpack.encode(handle), *arguments)))
        except WorkerLostError as error:
            return Exit(None, str(error), log=self.logs)

    async def _ask(self, name: str, word: str, *arguments: object) -> Any:
        """Call a seat, and wait for it as long as it takes."""
        while True:
            try:
                return await answer(getattr(self._seat(name), word).remote(*arguments))
            except WorkerLostError:
                self._seats.pop(name, None)  # Ray starts it again; or it is gone for good, and a new one is made
                await asyncio.sleep(SEAT_PAUSE_S)

    def _seat(self, name: str) -> Any:
        if name not in self._seats:
            found = self._cluster.actor(name)
            self._seats[name] = found or self._cluster.make_actor(NodeWorker, name, self._bundle(name), self._data_dir)
        return self._seats[name]

    def _bundle(self, name: str) -> int:
        """h1 and c1 sit on the first node, h2 and c2 on the second …"""
        number = re.search(r"\d+", name)
        return (int(number[0]) - 1 if number else 0) % self._places
