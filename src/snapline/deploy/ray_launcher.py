"""Processes on a Ray cluster: one worker actor (`deploy/ray_worker.py`) each. Two hosts, or two coordinators, never share a node.

When Ray reports that an actor or a node is gone, the watch of its process ends, and the supervisor reports the loss to the coordinator.
Heartbeats may detect it earlier. Ray's report may be wrong: an actor on a node that Ray has given up, and its process, can still run. This is
harmless: the host has been replaced, so the process's messages are rejected (G9).

A start waits for its worker without a limit: the cluster may get another node later. Meanwhile the fleet continues with the hosts that it has.

A coordinator keeps its first address. Its worker can only move to a node with the same address; elsewhere the process cannot listen and is
given up, while the majority continues without it.
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

WORKER_POLL_S = 0.2
"""Interval between two checks whether a worker is back: Ray takes seconds to find it a node."""

CLOSE_S = 10.0
"""Time limit for a worker to end its processes; Ray ends a worker that does not answer."""

SUPERVISOR_NAME = "keeper"
"""Name of the actor that supervises a fleet started by `snapline up`; it outlives the launcher, to report how the fleet ended."""

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
            cluster: the connection; closing the launcher closes it.
            data_dir: a path on every node for logs and the coordinators' files; it need not be shared.
            hosts: smallest number of nodes to reserve.
            node: Ray's resources that each host reserves on its node.
            files: certificates and keys of each process; readable by its user only.
        """
        self._cluster = cluster
        self._data_dir = data_dir
        self._places = hosts
        self._node = dict(node or NODE_NEEDS)
        self._files = files
        self._workers: dict[str, Any] = {}  # Any: Ray's handles of actors

    @property
    def where(self) -> str:
        return f"Ray's namespace {self._cluster.namespace}"

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/logs on its nodes"

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Reserve nodes, and ask the coordinators' workers for addresses.

        Raises:
            ExternalFailureError: the cluster has too few free nodes.
        """
        self._places = max(self._places, len(coordinators))
        await self._cluster.spread(self._places, self._node)
        addresses = await asyncio.gather(*(self._ask(name, "address") for name in coordinators))
        return {name: str(address) for name, address in zip(coordinators, addresses, strict=True)}

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
        """Close; also end workers of this fleet that an earlier launcher left behind."""
        await self.sweep()
        self._cluster.leave(is_over=True)

    async def sweep(self) -> list[str]:
        """End all workers of this fleet, of any launcher; return the names of their processes."""
        workers = {name: self._cluster.actor(name) for name in self._cluster.names() if name != SUPERVISOR_NAME}
        await asyncio.gather(*(self._end(seat) for seat in workers.values() if seat is not None))
        self._workers.clear()
        return sorted(workers)

    async def _tell(self, handle: Handle, word: str) -> None:
        with contextlib.suppress(WorkerLostError):
            await answer(getattr(self._worker(handle.name), word).remote(msgspec.msgpack.encode(handle)))

    async def _end(self, seat: Any) -> None:
        with contextlib.suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await answer(seat.close.remote())
        self._cluster.end_actor(seat)

    async def _exit(self, handle: Handle, word: str, *arguments: object) -> Exit | None:
        """Ask the worker how its process ended. If the worker is gone, so is the process."""
        try:
            worker = self._worker(handle.name)
            return exit_from(await answer(getattr(worker, word).remote(msgspec.msgpack.encode(handle), *arguments)))
        except WorkerLostError as error:
            return Exit(None, str(error), log=self.logs)

    async def _ask(self, name: str, word: str, *arguments: object) -> Any:
        """Call a worker, and wait for it without a limit."""
        while True:
            try:
                return await answer(getattr(self._worker(name), word).remote(*arguments))
            except WorkerLostError:
                self._workers.pop(name, None)  # Ray restarts it, or it is gone permanently and is created again
                await asyncio.sleep(WORKER_POLL_S)

    def _worker(self, name: str) -> Any:
        if name not in self._workers:
            existing = self._cluster.actor(name)
            self._workers[name] = existing or self._cluster.make_actor(
                NodeWorker, name, self._bundle(name), self._data_dir
            )
        return self._workers[name]

    def _bundle(self, name: str) -> int:
        """Return the number of the reserved place: h1 and c1 run on the first node, h2 and c2 on the second …"""
        number = re.search(r"\d+", name)
        return (int(number[0]) - 1 if number else 0) % self._places
