"""What a Ray launcher has on each node: an actor that starts processes there, as children, and watches them.

A seat starts nothing by itself. If Ray starts it again, on this node or another, it is empty until the launcher asks for its process;
that process registers with the coordinator and is told what to run. So Ray's restart of an actor is never a recovery.

The children are tied to the seat (`deploy/leash.py`): where its process ends, however that is, they end.

Two words of a command line are the node's to fill in: `@node`, its address, and `@private`, a folder that only this process's user
can read, in memory where the system has such a place, for keys and certificates.
"""

import asyncio
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from snapline.deploy.data_directory import PORT_ATTEMPTS_MAX, PORTS
from snapline.deploy.launching import Exit, Handle, ProcessSpec
from snapline.deploy.local import HERE, LocalLauncher
from snapline.deploy.ray_cluster import node_here
from snapline.errors import WorldError

NODE, PRIVATE = "@node", "@private"

MEMORY = Path("/dev/shm")
"""A file system in memory, where Linux has one: keys do not reach a disk."""

PRIVATE_PREFIX = "snapline-seat-"
"""Of the folders there."""


class PrivateFolder:
    """A folder for keys that only this process's user can read.

    Attributes:
        path: where it is; `""` before the first file.
    """

    def __init__(self) -> None:
        self.path = ""

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write these files, over older ones of the same names."""
        if not self.path:
            self.path = tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=MEMORY if MEMORY.is_dir() else None)
        for name, content in files.items():
            path = Path(self.path) / name
            path.touch(mode=0o600)
            path.write_bytes(content)

    def remove(self) -> None:
        """Leave nothing."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = ""


class NodeSeat:
    """The processes of one name on one node. Its methods are called by the launcher, through Ray; structs travel as bytes."""

    def __init__(self, data_dir: str) -> None:
        """On which node it is, it asks where it is made: Ray starts it again elsewhere with the same arguments."""
        self._launcher = LocalLauncher(Path(data_dir))
        self._node_id, self._node_address = node_here()
        self._coordinator_address = ""
        self._private = PrivateFolder()

    async def address(self) -> str:
        """A free address of this node for a coordinator; the same one each time."""
        if not self._coordinator_address:
            port = next((port for port in random.sample(PORTS, PORT_ATTEMPTS_MAX) if self._is_free(port)), None)
            if port is None:
                raise WorldError(f"no free port on {self._node_address} between {PORTS.start} and {PORTS.stop}")
            self._coordinator_address = f"{self._node_address}:{port}"
        return self._coordinator_address

    async def start(self, spec: bytes, files: Mapping[str, bytes]) -> bytes:
        """As `Launcher.start`; `files` go into the private folder first."""
        wanted = msgspec.msgpack.decode(spec, type=ProcessSpec)
        if files:
            await asyncio.to_thread(self._private.write, files)
        command = [
            word.replace(NODE, self._node_address).replace(PRIVATE, self._private.path) for word in wanted.command
        ]
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

    async def close(self) -> None:
        """End everything here; the actor may then be killed."""
        await self._launcher.close()
        await asyncio.to_thread(self._private.remove)

    def _handle(self, handle: bytes) -> Handle:
        """As the local launcher below knows it."""
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
    """What `watch`, `status` and `stop` of a seat answer."""
    return msgspec.msgpack.decode(encoded, type=Exit | None)
