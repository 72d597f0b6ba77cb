"""Actor of a Ray launcher on each node: it starts processes there, as children, and watches them.

A worker starts nothing by itself. If Ray restarts it, on this or another node, it has no process until the launcher starts one. That process
registers with the coordinator, which assigns its agents. So Ray's restart of an actor never takes the place of a recovery.

The children die with the worker, in any way (`deploy/parent_watch.py`).

The node fills in two placeholders of a command line: `@node`, its address, and `@private/NAME`, a certificate or key file.
"""

import asyncio
import os
import random
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from snapline.deploy.data_directory import PORT_ATTEMPTS_MAX, PORTS
from snapline.deploy.launching import Exit, Handle, ProcessSpec
from snapline.deploy.local import HERE, LocalLauncher
from snapline.deploy.plan import NODE, PRIVATE
from snapline.deploy.ray_cluster import node_here
from snapline.errors import ExternalFailureError


class PrivateFiles:
    """Certificates and keys for processes started here: in memory, readable by this process's user only, gone when it ends.

    They are in no file system, so they do not stay behind when a node is killed.
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
            port = next((port for port in random.sample(PORTS, PORT_ATTEMPTS_MAX) if self._is_free(port)), None)
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

    def _is_free(self, port: int) -> bool:
        family = socket.AF_INET6 if ":" in self._node_address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._node_address, port))
            except OSError:
                return False
        return True


def exit_from(encoded: bytes) -> Exit | None:
    """Decode the answer of a worker's `watch`, `status` or `stop`."""
    return msgspec.msgpack.decode(encoded, type=Exit | None)
