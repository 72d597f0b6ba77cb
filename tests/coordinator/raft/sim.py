"""A seeded world for replicas: the library's own code on a simulated clock and network, with files that crashes tear.

One thread, virtual time. A replica is ticked now and then; before a tick it handles the messages that have arrived, as the
transport does: handle all, sync the journal, release the answers. Connections are FIFO and have no duplicates (unless a
test wants some); a connection that breaks loses all that was under way. A crash drops the replica's object: what its journal
was told and did not sync is gone. A replica may be armed to crash at its n-th next step: a send, or a failpoint of the storage.

`SafeReplica` runs the hardened node, `StockReplica` the library as it is, in the same world.
"""

import logging
import pickle
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, Self

import pysyncobj.pickle as library_pickle  # type: ignore[import-untyped]  # the library has no types
from pysyncobj import replicated
from pysyncobj import syncobj as library
from pysyncobj.config import SyncObjConf  # type: ignore[import-untyped]
from pysyncobj.transport import Transport  # type: ignore[import-untyped]
from tests.coordinator.raft.marks import Marks

from snapline import failpoints
from snapline.coordinator.raft import durability, journal
from snapline.coordinator.raft.messages import decode_batch, encode_message
from snapline.coordinator.raft.node import SafeSyncObj
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode, raft_configuration

CREEP_S = 5e-5
"""What the clock moves at each look: the library waits in loops for time to pass."""

SUCCESS = 0
LEADER = library._RAFT_STATE.LEADER

Message = dict[str, Any]


class Crash(BaseException):
    """The process is gone; nothing in it may catch this."""


class FailStop(BaseException):
    """The process would have ended itself."""


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        self.now += CREEP_S
        return self.now


class Quiet:
    """Stands for the library's poller and its pipe: nobody waits in virtual time."""

    def __init__(self, *_: object) -> None:
        self._PipeNotifier__pipeR = self._PipeNotifier__pipeW = -1

    def notify(self) -> None: ...
    def poll(self, _: float) -> None: ...
    def subscribe(self, *_: object) -> None: ...
    def unsubscribe(self, *_: object) -> None: ...


class SimTransport(Transport):  # type: ignore[misc]  # the library has no types
    """Hands messages to the world."""

    def __init__(self, world: "World", name: str, *settings: object) -> None:
        super().__init__(*settings)
        self.world, self.name = world, name
        self.held: list[tuple[str, Message]] | None = None

    def send(self, node: RaftNode, message: Message) -> bool:
        self.world.point("send")
        if (self.name, node.id) not in self.world.wires:
            return False
        copied = self.world.carried(message)
        if self.held is None:
            self.world.post(self.name, node.id, copied)
        else:
            self.held.append((node.id, copied))
        return True


class Replica:
    """One process that can crash and start again; its folder stays."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.folder = world.folder / name
        self.node: Any = None  # the library's object; None while crashed
        self.is_dead = False
        self.entries: list[bytes] = []
        self.restart_at = 0.0
        self.paused_until = 0.0
        self.fuse: int | None = None
        """Steps until it crashes."""

    # the machine
    def apply(self, entry: bytes) -> int:
        self.entries.append(entry)
        self.world.on_applied(self, len(self.entries) - 1, entry)
        return len(self.entries) - 1

    def freeze(self) -> bytes:
        return b"\n".join(self.entries)

    def restore(self, image: bytes) -> None:
        self.entries = image.split(b"\n") if image else []

    # to be overridden
    def build(self, conf: SyncObjConf) -> Any:
        raise NotImplementedError

    def propose(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        raise NotImplementedError

    def sync(self) -> None: ...

    # life
    def start(self) -> None:
        self.entries, self.is_dead = [], False
        self.node = self.world.guard(self, lambda: self.build(self.world.conf(self.name)))

    def crash(self) -> None:
        """From outside or inside; what is still on the stack gets nothing done any more."""
        if self.node is not None:
            node, self.node = self.node, None
            self.fuse, self.is_dead = None, True
            self.world.disconnect(self.name)
            with suppress(Exception):
                self.tear_of(node)

    def tear_of(self, node: Any) -> None:
        """Drop the node's files as a killed process does."""

    def empty(self) -> None:
        """Lose the disk of a crashed process."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def is_learner(self) -> bool:
        return bool(getattr(self.node, "is_learner", False))

    @property
    def is_leader(self) -> bool:
        return self.node is not None and self.node._SyncObj__raftState == LEADER

    @property
    def term(self) -> int:
        return int(self.node._SyncObj__raftCurrentTerm)

    def log(self) -> list[tuple[bytes, int, int]]:
        return list(self.node._SyncObj__raftLog[:])

    def drain(self, messages: list[tuple[str, Message]]) -> None:
        """What the transport's wake pipe does."""
        transport = self.node._SyncObj__transport
        transport.held = []
        for source, message in messages:
            transport._onMessageReceived(self.world.nodes[source], message)
        self.sync()
        held, transport.held = transport.held, None
        for target, message in held:
            self.world.post(self.name, target, message)


class SafeReplica(Replica):
    """The hardened node, or a mutant of it."""

    node_class: type[SafeSyncObj] = SafeSyncObj

    def build(self, conf: SyncObjConf) -> Any:
        return self.node_class(
            self.world.nodes[self.name],
            [node for name, node in self.world.nodes.items() if name != self.name],
            conf,
            transport_class=partial(SimTransport, self.world, self.name),
            machine=self,
            folder=self.folder,
            cluster="fuzz",
            marks=self.world.marks,
            on_alarm=self.world.alarms.append,
        )

    def propose(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        self.node.propose(entry, callback)

    def sync(self) -> None:
        self.node.sync_journal()

    def tear_of(self, node: Any) -> None:
        node._SyncObj__raftLog.abandon()


class _StockNode(library.SyncObj):  # type: ignore[misc]  # the library has no types
    """The library as it is, with one replicated method."""

    def __init__(self, replica: Replica, *settings: Any, **more: Any) -> None:
        self.replica = replica
        super().__init__(*settings, **more)
        self.entries: list[bytes] = []  # set after the constructor, hence part of the dump

    @replicated  # type: ignore[untyped-decorator]
    def put(self, entry: bytes) -> int:
        self.entries.append(entry)
        self.replica.entries = self.entries
        self.replica.world.on_applied(self.replica, len(self.entries) - 1, entry)
        return len(self.entries) - 1


class StockReplica(Replica):
    """The library with its own journal, dump and pickles."""

    def build(self, conf: SyncObjConf) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        conf.journalFile, conf.fullDumpFile = str(self.folder / "journal"), str(self.folder / "dump")
        others = [node for name, node in self.world.nodes.items() if name != self.name]
        transport = partial(SimTransport, self.world, self.name)
        return _StockNode(self, self.world.nodes[self.name], others, conf, transportClass=transport)

    def propose(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        self.node.put(entry, callback=callback)


class World:
    """Replicas, their connections, and the clock. Enter it (`with`) before starting replicas."""

    def __init__(self, seed: int, *, replicas: int = 3, kind: type[Replica] = SafeReplica, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.settings = settings
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="raft-"))
        self.nodes = {f"c{n}": RaftNode(f"c{n}", f"127.0.0.1:{n}") for n in range(replicas)}
        self.replicas = {name: kind(self, name) for name in self.nodes}
        self.wires: dict[tuple[str, str], deque[tuple[float, Message]]] = {}
        self.late: list[tuple[float, str, str, Message]] = []
        """Duplicates that arrive out of order."""
        self.cuts: set[tuple[str, str]] = set()
        self.delays: dict[tuple[str, str], float] = {}
        self.duplicates = 0.0
        self.running: Replica | None = None
        self.applied: list[bytes] = []
        """What the first replica to come so far applied at each position: all must agree."""
        self.leaders: dict[int, str] = {}
        self.bad: list[str] = []
        self.alarms: list[str] = []
        self.marks = Marks()
        self.trace = blake2b(digest_size=16)

    def conf(self, name: str) -> SyncObjConf:
        """Settings of one replica; ranks do not matter in tests."""
        return raft_configuration(0, **self.settings)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        chance = type("Chance", (), {"random": staticmethod(self.random.random)})
        patches = {"monotonicTime": self.clock, "random": chance, "PipeNotifier": Quiet, "createPoller": Quiet}
        before = {name: getattr(library, name) for name in patches}
        pickles = library_pickle.load, library_pickle.loads
        library_pickle.load, library_pickle.loads = pickle.load, pickle.loads  # the layer forbids them itself
        for name, value in patches.items():
            setattr(library, name, value)
        failpoints.install(self.point)
        new_log_id, journal.new_log_id = journal.new_log_id, lambda: f"{self.random.getrandbits(64):016x}"
        durability.set_fail_stop_hook(self._fail_stop)
        library.logger.disabled = True
        ours = logging.getLogger("snapline.coordinator.raft")
        level = ours.level
        ours.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            ours.setLevel(level)
            library.logger.disabled = False
            durability.set_fail_stop_hook(None)
            failpoints.install(None)
            journal.new_log_id = new_log_id
            library_pickle.load, library_pickle.loads = pickles
            for name, value in before.items():
                setattr(library, name, value)

    def __enter__(self) -> Self:
        self._context = self._patched()
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for replica in self.replicas.values():
            replica.crash()
        self._context.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what replicas do -------------------------------------------------------------------------------------------

    def note(self, *facts: object) -> None:
        """Into the trace, whose digest tells whether two runs were the same."""
        self.trace.update(repr((round(self.clock.now, 6), *facts)).encode())

    def point(self, name: str) -> None:
        """A step at which the running replica may crash."""
        replica = self.running
        if replica is None:
            return
        if replica.is_dead:
            raise Crash
        if replica.fuse is not None:
            replica.fuse -= 1
            if replica.fuse < 0:
                self.note("crash", replica.name, name)
                replica.crash()
                raise Crash

    def _fail_stop(self, reason: str) -> NoReturn:
        if self.running is not None and self.running.is_dead:
            raise Crash  # its files are closed already
        if self.running is not None:
            self.bad.append(f"{self.running.name} ended itself: {reason}")
        raise FailStop(reason)

    def guard(self, replica: Replica, act: Callable[[], Any]) -> Any:
        """Run something of one replica; it may crash."""
        self.running = replica
        try:
            return act()
        except (Crash, FailStop):
            replica.crash()
        except Exception as error:
            self.on_error(replica, error)
        finally:
            self.running = None
        return None

    def on_error(self, replica: Replica, error: Exception) -> None:
        """The library raised; its own tick thread would log it and go on."""
        self.bad.append(f"{replica.name} raised {error!r}")

    def on_applied(self, replica: Replica, position: int, entry: bytes) -> None:
        if position < len(self.applied):
            if self.applied[position] != entry:
                self.bad.append(
                    f"{replica.name} applied {entry[:9]!r} at {position}, not {self.applied[position][:9]!r}"
                )
        else:
            self.applied.append(entry)

    # ---- connections ------------------------------------------------------------------------------------------------

    def post(self, source: str, target: str, message: Message) -> None:
        wire = self.wires.get((source, target))
        if wire is None:
            return
        arrival = self.clock.now + self.random.uniform(0.0005, 0.004) + self.delays.get((source, target), 0.0)
        if wire and wire[-1][0] > arrival:
            arrival = wire[-1][0]
        wire.append((arrival, message))
        if self.duplicates and message["type"] != "apply_command" and self.random.random() < self.duplicates:
            self.late.append(
                (arrival + self.random.choice((0.1, 1, 8)) * self.random.random(), source, target, message)
            )

    def carried(self, message: Message) -> Message:
        """What arrives: through the codec, whose bounds no replica may meet; the stock library's messages as they are."""
        if self.kind is StockReplica:
            return {key: list(value) if isinstance(value, list) else value for key, value in message.items()}
        _, [made] = decode_batch(encode_message(message))
        return made

    def disconnect(self, name: str, other: str | None = None) -> None:
        """Break the connections of one replica, or its connection with another."""
        for source, target in list(self.wires):
            if name in (source, target) and (other is None or other in (source, target)):
                del self.wires[source, target]
                self._tell(target, source, "_onNodeDisconnected")

    def connect(self) -> None:
        """Connect whoever is alive and not cut off."""
        for a in self.replicas:
            for b in self.replicas:
                are_alive = self.replicas[a].node is not None and self.replicas[b].node is not None
                if a < b and are_alive and (a, b) not in self.wires and (a, b) not in self.cuts:
                    self.wires[a, b], self.wires[b, a] = deque(), deque()
                    self._tell(a, b, "_onNodeConnected")
                    self._tell(b, a, "_onNodeConnected")

    def _tell(self, name: str, peer: str, what: str) -> None:
        replica = self.replicas[name]
        if replica.node is not None:
            running, self.running = self.running, None
            getattr(replica.node._SyncObj__transport, what)(self.nodes[peer])
            self.running = running

    def cut(self, a: str, b: str) -> None:
        self.cuts.add((min(a, b), max(a, b)))
        self.disconnect(a, b)

    def arrived(self, name: str) -> list[tuple[str, Message]]:
        """Take what has come for one replica."""
        messages = []
        for (source, target), wire in self.wires.items():
            while target == name and wire and wire[0][0] <= self.clock.now:
                messages.append((source, wire.popleft()[1]))
        for late in [late for late in self.late if late[2] == name and late[0] <= self.clock.now]:
            self.late.remove(late)
            messages.append((late[1], late[3]))
        return messages

    # ---- time -------------------------------------------------------------------------------------------------------

    def tick(self, replica: Replica) -> None:
        """One round of one replica's thread."""
        messages = self.arrived(replica.name)
        if messages:
            self.note(replica.name, [message for _, message in messages])
            self.guard(replica, lambda: replica.drain(messages))
        if replica.node is not None:
            self.guard(replica, lambda: replica.node.doTick(0))
        if replica.is_leader and self.leaders.setdefault(replica.term, replica.name) != replica.name:
            self.bad.append(f"term {replica.term} has two leaders: {self.leaders[replica.term]}, {replica.name}")

    def step(self) -> None:
        """Some milliseconds for everybody."""
        self.clock.now += self.random.uniform(0.002, 0.015)
        for replica in self.replicas.values():
            if replica.node is None and replica.restart_at <= self.clock.now:
                replica.start()
        if len(self.wires) < len(self.replicas) * (len(self.replicas) - 1):
            self.connect()
        for replica in self.replicas.values():
            if replica.node is not None and replica.paused_until <= self.clock.now:
                self.tick(replica)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; whether `until` came true before its end."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            if until():
                return True
            self.step()
        return until()

    @property
    def leader(self) -> Replica | None:
        """The replica that leads in the highest term."""
        leading = [replica for replica in self.replicas.values() if replica.is_leader]
        return max(leading, key=lambda replica: replica.term, default=None)

    def write(self, replica: Replica, entry: bytes) -> list[tuple[object, int]]:
        """Propose; the list holds the outcome once it is known."""
        outcome: list[tuple[object, int]] = []
        replica.propose(entry, lambda result, code: outcome.append((result, code)))
        return outcome
