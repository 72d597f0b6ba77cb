"""The network of a fleet on this machine, with faults: every node is reached through a gate, which forwards, delays or blocks bytes.

Theory of operation
-------------------
Each node has a gate, a TCP proxy whose address is the only one that others know. The gate finds the caller in the kernel's socket tables by the
port of the other end. So it distinguishes both directions between any two nodes, without root and without help of the product. Peers that are no
nodes (tools, the launcher) have no faults.

Bytes on a blocked path wait until the path is open again, like TCP's retransmissions. No byte is lost, so a partition never corrupts a stream;
it can only end by keepalive. A lost packet is a delay, too: TCP's retransmission timeout, doubled each time.
Difference from a real network: a connection to a partitioned node is accepted here, and stays silent (half open).
"""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path

from snapline.chaos.executor import SetPath
from snapline.deploy.data_directory import PORTS
from snapline.errors import ExternalFailureError

READ_BYTES = 65_536

SEGMENT_BYTES = 1_448
"""Size of a TCP segment on Ethernet, the unit of loss."""

RESEND_S, RESENDS_MAX = 0.2, 6
"""Linux retransmits after 0.2 s, then after twice as long, and so on; six losses of one packet in a row are very rare."""

PORT_ATTEMPTS_MAX = 200
"""Largest number of attempts to find a port, as in `deploy/data_directory.py`."""

Path_ = tuple[str, str]


class Gates:
    """All gates, and the faults of the paths between nodes."""

    def __init__(self, nodes: Iterable[str], pids: Callable[[], Mapping[int, str]], seed: int) -> None:
        """Create the gates. `pids`: returns process id → node of the running nodes."""
        self._pids = pids
        self._paths: dict[Path_, SetPath] = {}
        self._changed = asyncio.Event()
        self._random = random.Random(seed)
        self._open: dict[
            asyncio.Task[None], tuple[str, str, asyncio.StreamWriter]
        ] = {}  # task of a connection → caller, callee, writer
        self._gates: dict[str, Gate] = {node: Gate(node, self) for node in nodes}

    async def start(self) -> None:
        for gate in self._gates.values():
            await gate.start()

    async def stop(self) -> None:
        for gate in self._gates.values():
            gate.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def gate(self, node: str) -> "Gate":
        return self._gates[node]

    def set(self, path: SetPath) -> None:
        self._paths[path.sender, path.receiver] = path
        self._changed.set()
        self._changed = asyncio.Event()

    def break_streams(self, one: str, other: str) -> None:
        """Reset all connections between two nodes at both ends."""
        for source, target, writer in list(self._open.values()):
            if {source, target} == {one, other} or (not other and one in (source, target)):
                _reset(writer)

    # ---- connections ----------------------------------------------------------------------------------------------

    def accept(self, gate: "Gate", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection."""
        source = node_of_peer(writer, self._pids())
        task = asyncio.create_task(self._carry(gate, source, reader, writer))
        self._open[task] = (source, gate.node, writer)
        task.add_done_callback(lambda done: self._open.pop(done))

    async def _carry(
        self, gate: "Gate", source: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection from its acceptance to its end."""
        target_writer: asyncio.StreamWriter | None = None
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", gate.target)
            await _first_of(
                self._pump(reader, target_writer, (source, gate.node)),
                self._pump(target_reader, writer, (gate.node, source)),
            )
        except OSError:
            pass
        finally:
            for closing in (writer, target_writer):
                if closing is not None:
                    _reset(closing)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path_) -> None:
        """Forward one direction: read a block, wait for the delay, and write the block; then read what has arrived meanwhile."""
        data = b"-"
        while data:
            try:
                data = await reader.read(READ_BYTES)
            except OSError:
                data = b""  # a reset: the other end sees it after the earlier bytes
            if path in self._paths:
                await asyncio.sleep(self._delay_s(path, len(data)))
                await self._until_open(path)
            writer.write(data)
            await writer.drain()

    async def _until_open(self, path: Path_) -> None:
        while (faults := self._paths.get(path)) is not None and faults.is_blocked:
            await self._changed.wait()

    def _delay_s(self, path: Path_, size: int) -> float:
        """Return the delay. A byte waits for those before it, so its delay may double."""
        faults = self._paths[path]
        delay_s = (faults.least_ns + self._random.random() * faults.jitter_ns) / 1e9
        for _ in range(1 + size // SEGMENT_BYTES if faults.loss_per_mille else 0):
            for resend in range(RESENDS_MAX):
                if self._random.random() * 1000 >= faults.loss_per_mille:
                    break
                delay_s += RESEND_S * 2**resend
        return delay_s


class Gate:
    """Gate through which one node is reached.

    Attributes:
        node: name of the node.
        address: address of the gate.
        target: the node's own port.
    """

    def __init__(self, node: str, network: Gates) -> None:
        self.node = node
        self.address = ""
        self.target = free_port()
        self._network = network
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            lambda reader, writer: self._network.accept(self, reader, writer), "127.0.0.1", 0
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, so that the other end notices the loss even if it has read everything."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _first_of(*pumps: Coroutine[object, object, None]) -> None:
    """Run both directions of a connection until the first one ends."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def node_of_peer(writer: asyncio.StreamWriter, pids: Mapping[int, str]) -> str:
    """Return the node whose process has the other end of a local connection; "" if none has."""
    own_address, peer_address = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    if not own_address or not peer_address:
        return ""
    inode = inode_of(Path("/proc/net/tcp").read_text(), local=peer_address[:2], remote=own_address[:2])
    for pid, node in pids.items() if inode else ():
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) == f"socket:[{inode}]":
                        return node
    return ""


def inode_of(table: str, *, local: tuple[str, int], remote: tuple[str, int]) -> str:
    """Return the inode of the socket with these ends from the kernel's table; "" if it is missing."""
    wanted = [_hex(*local), _hex(*remote)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9] if fields[9] != "0" else ""
    return ""


def _hex(host: str, port: int) -> str:
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"


def free_port() -> int:
    """Return a free port below Linux's ephemeral ports, so that it stays free while the node is down."""
    for port in random.sample(PORTS, PORT_ATTEMPTS_MAX):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ExternalFailureError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")
