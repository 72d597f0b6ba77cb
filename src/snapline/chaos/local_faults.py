"""Injects faults into a fleet of real processes on this machine. This driver executes the commands from `executor.py` and makes no
decisions.

- `DIR/chaos/controls/NODE` contains the faults of a node's disk and clock (`preload.py`).
- `DIR/chaos/journals/NODE` contains a node's unsynced changes (`preload.c`).
- `DIR/chaos/points/` contains the armed failpoints (`failpoints.py`).
- `DIR/chaos/preload.so` is compiled here if there is a compiler.

Each node has a gate, which is a TCP proxy. Other processes know only the gate's address. A gate forwards, delays or blocks the data of a
connection. The gate finds the process that has connected by looking up its port in the kernel's socket tables. So gates can apply different
faults to the two directions between any two nodes. A gate needs neither root rights nor support in the product. Peers that are not nodes,
such as tools and the launcher, are not affected by faults.

Data on a blocked path waits until the path is open again, as it would with TCP's retransmissions. No data is lost, so a partition never
corrupts a stream. Only a keepalive timeout can end the stream. A lost packet is also simulated as a delay. The delay is TCP's
retransmission timeout, which doubles each time the packet is lost again. One difference from a real network remains. A gate accepts a
connection to a partitioned node, and this connection then stays silent (half open).
"""

import asyncio
import contextlib
import functools
import os
import random
import shutil
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path

import msgspec

from snapline.chaos import executor as cm
from snapline.chaos import preload
from snapline.chaos.failpoints import ArmedPoint, FailpointArmer
from snapline.chaos.fault_wrapper import CONTROLS, LIMITS_FILE, POINTS
from snapline.chaos.preload import FaultCounters
from snapline.chaos.process_faults import Processes, flip
from snapline.deploy.data_directory import PORTS, STORE_FOLDER
from snapline.deploy.launching import SnaplineCommands
from snapline.deploy.local import LocalFleet
from snapline.errors import ExternalFailureError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security
from snapline.sim.scenario import Scenario, coordinator_names, host_names, joining_hosts

READ_BYTES = 65_536

SEGMENT_BYTES = 1_448
"""Size of a TCP segment on Ethernet. Losses are simulated for each segment."""

RESEND_S, RESENDS_MAX = 0.2, 6
"""Linux retransmits a packet after 0.2 s, and doubles this time after each further loss. A packet is very rarely lost six times in a row.
"""

PORT_ATTEMPTS_MAX = 200
"""Maximum number of attempts to find a port, as in `deploy/data_directory.py`."""


class Gates:
    """Manages all gates, and the faults of the network paths between nodes."""

    def __init__(self, nodes: Iterable[str], pids: Callable[[], Mapping[int, str]], seed: int) -> None:
        """Create the gates. `pids` returns the running nodes by process id."""
        self._pids = pids
        self._paths: dict[cm.Path, cm.SetPath] = {}
        self._changed = asyncio.Event()
        self._random = random.Random(seed)
        self._open: dict[
            asyncio.Task[None], tuple[str, str, asyncio.StreamWriter]
        ] = {}  # the caller, the callee and the writer for the task of each connection
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

    def set(self, path: cm.SetPath) -> None:
        self._paths[path.sender, path.receiver] = path
        self._changed.set()
        self._changed = asyncio.Event()

    def break_streams(self, one: str, other: str) -> None:
        """Reset all connections between two nodes, on both sides. If `other` is "", reset all connections of the node `one`."""
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
        """Forward the data of one accepted connection until the connection ends."""
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

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: cm.Path) -> None:
        """Forward the data of one direction. Repeatedly read a block, wait for the delay, and write the block. The next block contains the
        data that arrived during the wait."""
        data = b"-"
        while data:
            try:
                data = await reader.read(READ_BYTES)
            except OSError:
                data = b""  # the other end sees the reset after the earlier bytes
            if path in self._paths:
                await asyncio.sleep(self._delay_s(path, len(data)))
                await self._until_open(path)
            writer.write(data)
            await writer.drain()

    async def _until_open(self, path: cm.Path) -> None:
        while (faults := self._paths.get(path)) is not None and faults.is_blocked:
            await self._changed.wait()

    def _delay_s(self, path: cm.Path, size: int) -> float:
        """Return the delay for a block of data. Data that arrives during the delay of the previous block waits for both delays, so its
        delay may double."""
        faults = self._paths[path]
        delay_s = (faults.least_ns + self._random.random() * faults.jitter_ns) / 1e9
        for _ in range(1 + size // SEGMENT_BYTES if faults.loss_per_mille else 0):
            for resend in range(RESENDS_MAX):
                if self._random.random() * 1000 >= faults.loss_per_mille:
                    break
                delay_s += RESEND_S * 2**resend
        return delay_s


class Gate:
    """The gate through which one node is reached.

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
    """Reset the connection, so that the peer notices the loss even if it has read all data."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _first_of(*pumps: Coroutine[object, object, None]) -> None:
    """Forward both directions of a connection until the first of them ends."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def node_of_peer(writer: asyncio.StreamWriter, pids: Mapping[int, str]) -> str:
    """Return the node whose process is the peer of a local connection, or "" if the peer is not a node."""
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
    """Return the inode of the socket with these two addresses from the kernel's table, or "" if the table does not contain the socket."""
    wanted = [_hex(*local), _hex(*remote)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9] if fields[9] != "0" else ""
    return ""


def _hex(host: str, port: int) -> str:
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"


def free_port() -> int:
    """Return a free port below Linux's ephemeral ports, so that the port remains free while the node is down."""
    for port in random.sample(PORTS, PORT_ATTEMPTS_MAX):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ExternalFailureError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


CHAOS_FOLDER, JOURNALS = "chaos", "journals"

SLOW_DISK_US = 30_000
"""Duration of each call on a slow disk, in microseconds. A normal call takes a hundredth of this time."""


class FaultableCommands:
    """Builds the command lines of processes that accept faults and that communicate through gates."""

    def __init__(self, inner: SnaplineCommands, faults: "LocalFaults") -> None:
        self._inner = inner
        self._faults = faults

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        node, gates = self._faults.node_of(name), self._faults.network
        gates.gate(node).target = int(address.rpartition(":")[2])
        peers = {member: gates.gate(member).address for member in members}
        more = [] if members else ["--advertise", gates.gate(node).address]
        return self._faults.wrap_command(node, [*self._inner.coordinator(address, name, peers), *more])

    def host(self, address: str, host: str, instance: str) -> list[str]:
        gates = self._faults.network
        addresses = ",".join(gates.gate(node).address for node in self._faults.coordinators)
        gate = gates.gate(host)
        where = ["--listen", f"127.0.0.1:{gate.target}", "--advertise", gate.address]
        return self._faults.wrap_command(host, [*self._inner.host(addresses, host, instance), *where])


class LocalFaults:
    """Injects a scenario's faults on this machine.

    Attributes:
        fleet: the fleet's processes.
        network: gates between the processes.
        coordinators: names of the coordinators in the scenario.
        lost: descriptions of the data that was lost in power cuts.
        status: last known status of the fleet.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        fleet: str,
        arguments: Mapping[str, str],
        seed: int,
        on_note: Callable[[str], None],
    ) -> None:
        """Create the driver. `fleet` is the fleet definition as MODULE:FLEET, with its arguments. `folder` contains all files of the
        run."""
        self.coordinators = coordinator_names(scenario)
        self.lost: list[str] = []
        self.status: FleetStatus | None = None
        self._scenario = scenario
        self._folder = folder.absolute()
        self._nodes = (*host_names(scenario), *self.coordinators)
        self.network = Gates(self._nodes, self._pids, seed)
        inner = SnaplineCommands(
            data_dir=self._folder,
            fleet=fleet,
            hosts=scenario.fleet.hosts,
            arguments=arguments,
            on_failure="restart",
        )
        self.fleet = LocalFleet(
            FaultableCommands(inner, self),
            data_dir=self._folder,
            hosts=scenario.fleet.hosts,
            coordinators=scenario.fleet.coordinators,
            on_note=on_note,
            on_status=self._on_status,
        )
        self._processes = Processes(
            self.fleet,
            hosts=host_names(scenario),
            coordinators=self.coordinators,
            joining=joining_hosts(scenario),
        )
        self._controls: dict[str, FaultCounters] = {}
        self._library: Path | None = None
        self._failpoint_armer: FailpointArmer | None = None

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the fleet. Raise SnaplineError if the fleet cannot run here."""
        chaos_folder = self._folder / CHAOS_FOLDER
        for subfolder in (CONTROLS, JOURNALS):
            (chaos_folder / subfolder).mkdir(parents=True, exist_ok=True)
        (chaos_folder / LIMITS_FILE).write_bytes(msgspec.json.encode(self._scenario.limits))
        self._failpoint_armer = FailpointArmer(chaos_folder / POINTS)
        self._controls = {node: FaultCounters(chaos_folder / CONTROLS / node) for node in self._nodes}
        if not preload.reason_against():
            self._library = preload.build(chaos_folder)
        await self.network.start()
        await self.fleet.start()
        self._processes.start()

    async def stop(self) -> None:
        await self._processes.stop()
        await self.fleet.stop()
        await self.network.stop()
        for control in self._controls.values():
            control.close()

    def _on_status(self, status: FleetStatus) -> None:
        self.status = status

    # ---- names ------------------------------------------------------------------------------------------------------

    def client(self) -> CoordinatorClient:
        """Return a client that has the rights of a tool on this machine."""
        return CoordinatorClient(self.fleet.address, Security.loopback())

    def node_of(self, name: str) -> str:
        """Return the name that the scenario uses for a process of the fleet."""
        return self._processes.node_of(name)

    def _pids(self) -> Mapping[int, str]:
        nodes = [(self._processes.pid(node), node) for node in self._nodes]
        return {pid: node for pid, node in nodes if pid is not None}

    def wrap_command(self, node: str, command: list[str]) -> list[str]:
        """Return a command line that runs the node's process with support for faults."""
        python, _, _, *rest = command
        chaos_folder = self._folder / CHAOS_FOLDER
        wrapped = [python, "-m", "snapline.chaos.fault_wrapper", str(chaos_folder), node, *rest]
        if self._library is None:
            return wrapped
        root = self._folder
        added = preload.environment(
            self._library, control=chaos_folder / CONTROLS / node, journal=chaos_folder / JOURNALS / node, root=root
        )
        return [shutil.which("env") or "/usr/bin/env", *(f"{key}={value}" for key, value in added.items()), *wrapped]

    # ---- observations -----------------------------------------------------------------------------------------------

    def failpoint_hits(self) -> list[cm.FailpointHit]:
        assert self._failpoint_armer is not None
        return [cm.FailpointHit(number, node) for number, node in self._failpoint_armer.hits().items()]

    # ---- commands -----------------------------------------------------------------------------------------------

    def carry_out(self, command: cm.Command) -> None:
        match command:
            case cm.KillNode() | cm.EndNode() | cm.StartNode() | cm.SetSpeed():
                self._processes.carry_out(command)
            case cm.CutPower():
                self._processes.carry_out(cm.KillNode(command.node))
                self._processes.spawn(f"power {command.node}", functools.partial(self._lose, command))
            case cm.SetPath():
                self.network.set(command)
            case cm.BreakStreams():
                self.network.break_streams(command.one, command.other)
            case cm.SetDisk():
                self._set_disk(command)
            case cm.SetHanging():
                self._controls[command.node].set(f"hang_{command.what}", int(command.is_on))
            case cm.SetClock():
                self._set_clock(command)
            case cm.SetUnknown():
                for node in self.coordinators:
                    self._controls[node].set("unknown_per_mille", command.per_mille)
            case cm.FlipBit():
                flip(self._folder / STORE_FOLDER / command.path, command.bit)
            case cm.ArmFailpoint():
                assert self._failpoint_armer is not None
                self._failpoint_armer.arm(ArmedPoint(command.number, command.name, command.hit, command.action))
            case cm.DisarmFailpoints():
                assert self._failpoint_armer is not None
                self._failpoint_armer.disarm()
            case cm.Note():
                pass
            case _:
                raise AssertionError(f"no way to carry out {command!r}")

    async def _lose(self, command: cm.CutPower) -> None:
        await self._processes.gone(command.node)
        journal = self._folder / CHAOS_FOLDER / JOURNALS / command.node
        self.lost += preload.lose_unsynced(journal, command.seed)

    # ---- disks and clocks -------------------------------------------------------------------------------------------------

    def _set_disk(self, command: cm.SetDisk) -> None:
        control = self._controls[command.node]
        control.set("eio", int("eio" in command.modes))
        control.set("full", int("full" in command.modes))
        control.set("failed_sync", int("failed-sync" in command.modes))
        control.set("slow_us", SLOW_DISK_US * ("slow" in command.modes))

    def _set_clock(self, command: cm.SetClock) -> None:
        control = self._controls[command.node]
        control.set("drift_from_ns", time.monotonic_ns())
        control.set("drift_ppm", command.drift_ppm)
        control.set("skew_ns", command.skew_ns)
