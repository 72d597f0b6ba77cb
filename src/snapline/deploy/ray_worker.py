"""Actor of a Ray launcher on each node: it starts processes there, as children, and watches them.

A seat starts nothing by itself. If Ray starts it again, on this node or another, it is empty until the launcher starts its process; that process
registers with the coordinator, which assigns what to run. So Ray's restart of an actor is never a recovery.

The children are tied to the seat (`deploy/parent_watch.py`): where its process ends, however that is, they end.

Two words of a command line are the node's to fill in: `@node`, its address, and `@private/NAME`, a file of certificates or a key.
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
    """Certificates and keys for processes started here: in memory, readable by this process's user alone, gone when it ends.

    They lie in no file system, so nothing of them stays where a node is killed.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write these files over older ones of the same names: a reader has an old one or a new one, whole."""
        for name, content in files.items():
            made = os.memfd_create(name)
            with open(made, "wb", closefd=False) as file:
                file.write(content)
            if name in self._descriptors:
                os.dup2(made, self._descriptors[name], inheritable=False)
                os.close(made)
            else:
                self._descriptors[name] = made

    def path(self, name: str) -> Path:
        """Return the path where processes of this user read it, while this process lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptors[name]}")

    def fill_in(self, word: str) -> str:
        """A word of a command line, with its `@private/NAME` as a path."""
        name = word.removeprefix(f"{PRIVATE}/")
        return str(self.path(name)) if name in self._descriptors and name != word else word

    def remove(self) -> None:
        """Leave nothing."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class NodeWorker:
    """The processes of one name on one node. Its methods are called by the launcher, through Ray; structs travel as bytes."""

    def __init__(self, data_dir: str) -> None:
        """Create the seat. It looks up its node here: Ray starts it again elsewhere with the same arguments."""
        self._launcher = LocalLauncher(Path(data_dir))
        self._node_id, self._node_address = node_here()
        self._coordinator_address = ""
        self._private = PrivateFiles()

    async def address(self) -> str:
        """A free address of this node for a coordinator; the same one each time."""
        if not self._coordinator_address:
            port = next((port for port in random.sample(PORTS, PORT_ATTEMPTS_MAX) if self._is_free(port)), None)
            if port is None:
                raise ExternalFailureError(
                    f"no free port on {self._node_address} between {PORTS.start} and {PORTS.stop}"
                )
            self._coordinator_address = f"{self._node_address}:{port}"
        return self._coordinator_address

    async def start(self, spec: bytes, files: Mapping[str, bytes]) -> bytes:
        """Start like `Launcher.start`; store `files` first, also where the process runs already: so renewed certificates come to it."""
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
    """Return the decoded answer of a seat's `watch`, `status` or `stop`."""
    return msgspec.msgpack.decode(encoded, type=Exit | None)
