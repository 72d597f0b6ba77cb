"""Run a fleet's processes on a Ray cluster, each with a worker actor (`NodeWorker`). Two hosts, or two coordinators, never share a node.

A worker starts its process on a node, as a child that dies with the worker in any way (`deploy/parent_watch.py`), and watches it. A worker starts
no process by itself. A worker that Ray has restarted, on this or another node, has no process until the launcher starts one. That process
registers with the coordinator, which assigns its agents. So Ray's restart of an actor never replaces a recovery. The worker fills in two
placeholders of a command line: `@node`, the node's address, and `@private/NAME`, a certificate or key file.

When Ray reports that an actor or a node is gone, the watch of its process ends, and the supervisor reports the loss to the coordinator.
Heartbeats may detect the loss earlier. Ray's report may be wrong: an actor on a node that Ray has given up, and the actor's process, can
still run. Such a process is harmless: its host has been replaced, so the process's messages are rejected (G9).

A start waits for its worker without a limit: the cluster may get another node later. Meanwhile the fleet continues with the hosts that it has.

A coordinator keeps its first address. Its worker can only move to a node with the same address; elsewhere the process cannot listen and is
given up, while the majority continues without it.
"""

import asyncio
import contextlib
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from snapline.deploy.data_directory import PORT_ATTEMPTS_MAX, PORTS, is_free
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.local import HERE, LocalLauncher
from snapline.deploy.plan import NODE, PRIVATE, Files
from snapline.deploy.ray_cluster import RayCluster, WorkerLostError, answer, node_here
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError


class PrivateFiles:
    """Certificates and keys for processes started here.

    The files are in memory, readable only by this process's user. They disappear with this process, also when its node is killed.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replace files of the same names. The replacement is atomic: a reader sees the old file or the new one."""
        for name, content in files.items():
            descriptor = os.memfd_create(name)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            if name in self._descriptors:
                os.dup2(descriptor, self._descriptors[name], inheritable=False)
                os.close(descriptor)
            else:
                self._descriptors[name] = descriptor

    def path(self, name: str) -> Path:
        """Return the path of a file for processes of this user; valid while this process lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptors[name]}")

    def fill_in(self, word: str) -> str:
        """Return a word of a command line with `@private/NAME` replaced by a path."""
        name = word.removeprefix(f"{PRIVATE}/")
        return str(self.path(name)) if name in self._descriptors and name != word else word

    def remove(self) -> None:
        """Remove all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class NodeWorker:
    """The processes of one name on one node. The launcher calls its methods through Ray; structs are passed as bytes."""

    def __init__(self, data_dir: str) -> None:
        """Create the worker. It looks up its own node, because Ray may restart it elsewhere with the same arguments."""
        self._launcher = LocalLauncher(Path(data_dir))
        self._node_id, self._node_address = node_here()
        self._coordinator_address = ""
        self._private = PrivateFiles()

    async def address(self) -> str:
        """Return a free address of this node for a coordinator; the same one each time."""
        if not self._coordinator_address:
            attempts = random.sample(PORTS, PORT_ATTEMPTS_MAX)
            port = next((port for port in attempts if is_free(self._node_address, port)), None)
            if port is None:
                raise ExternalFailureError(
                    f"no free port on {self._node_address} between {PORTS.start} and {PORTS.stop}"
                )
            self._coordinator_address = f"{self._node_address}:{port}"
        return self._coordinator_address

    async def start(self, spec: bytes, files: Mapping[str, bytes]) -> bytes:
        """Start like `Launcher.start`. Store `files` first, even if the process runs already, so that it gets renewed certificates."""
        wanted = msgspec.msgpack.decode(spec, type=ProcessSpec)
        if files:
            await asyncio.to_thread(self._private.write, files)
        command = [self._private.fill_in(word.replace(NODE, self._node_address)) for word in wanted.command]
        filled = msgspec.structs.replace(wanted, command=(sys.executable, *command[1:]))
        started = await self._launcher.start(filled)
        return msgspec.msgpack.encode(msgspec.structs.replace(started, where=self._node_id))

    async def watch(self, handle: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.watch(self._handle(handle)))

    async def status(self, handle: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.status(self._handle(handle)))

    async def stop(self, handle: bytes, grace_s: float) -> bytes:
        return msgspec.msgpack.encode(await self._launcher.stop(self._handle(handle), grace_s))

    async def kill(self, handle: bytes) -> None:
        await self._launcher.kill(self._handle(handle))

    async def freeze(self, handle: bytes) -> None:
        await self._launcher.freeze(self._handle(handle))

    async def thaw(self, handle: bytes) -> None:
        await self._launcher.thaw(self._handle(handle))

    async def close(self) -> None:
        """End everything here; the actor may then be killed."""
        await self._launcher.close()
        await asyncio.to_thread(self._private.remove)

    def _handle(self, handle: bytes) -> Handle:
        """Return the handle as the local launcher below knows it."""
        return msgspec.structs.replace(msgspec.msgpack.decode(handle, type=Handle), where=HERE)


def exit_from(encoded: bytes) -> Exit | None:
    """Decode the answer of a worker's `watch`, `status` or `stop`."""
    return msgspec.msgpack.decode(encoded, type=Exit | None)


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
        """Describe where to run the fleet; `open` reserves the place.

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
        await asyncio.gather(*(self._end(worker) for worker in workers.values() if worker is not None))
        self._workers.clear()
        return sorted(workers)

    async def _tell(self, handle: Handle, word: str) -> None:
        with contextlib.suppress(WorkerLostError):
            await answer(getattr(self._worker(handle.name), word).remote(msgspec.msgpack.encode(handle)))

    async def _end(self, worker: Any) -> None:
        with contextlib.suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await answer(worker.close.remote())
        self._cluster.end_actor(worker)

    async def _exit(self, handle: Handle, word: str, *arguments: object) -> Exit | None:
        """Ask the worker how its process ended. If the worker is gone, its process is gone, too."""
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
