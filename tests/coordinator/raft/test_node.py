"""Whole clusters in virtual time, and one replica in real time (acceptance tests 4, 11, 13)."""

import gc
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types
from pysyncobj.transport import Transport  # type: ignore[import-untyped]  # as above
from tests.coordinator.raft.marks import Marks
from tests.coordinator.raft.sim import SUCCESS, Replica, SafeReplica, StockReplica, World

from snapline.coordinator.raft import durability, node
from snapline.coordinator.raft.node import ApplyFailed, SafeSyncObj
from snapline.coordinator.raft.pysyncobj_adapter import ENTRY_BYTES_MAX, FALLBACK_S, RaftNode, raft_configuration
from snapline.errors import LogError, MessageTooLargeError, UsageError

BOTH = pytest.mark.parametrize("kind", [SafeReplica, StockReplica])


def led(world: World) -> Replica:
    """The leader, once there is one and it has committed something."""
    assert world.run(20, lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    written(world, leader, b"first")
    return leader


def written(world: World, replica: Replica, entry: bytes) -> object:
    outcome = world.write(replica, entry)
    assert world.run(10, lambda: bool(outcome)) and outcome[0][1] == SUCCESS, outcome
    return outcome[0][0]


def are_equal(world: World, count: int) -> bool:
    return all(len(replica.entries) == count for replica in world.replicas.values())


# ---- V1 -------------------------------------------------------------------------------------------------------------


@BOTH
def test_killing_all_between_dump_and_trim_loses_nothing(kind: type[Replica]) -> None:
    """Acceptance test 4. Two replicas hold 40 writes, have applied 20 and make a dump of these; the power goes; the third
    does not come back. The library finds dump and journal at odds, and clears the journal.
    """
    with World(1, kind=kind) as world:
        leader = led(world)
        followers = [replica for replica in world.replicas.values() if replica is not leader]
        for number in range(19):
            written(world, leader, b"%d" % number)
        assert world.run(5, lambda: are_equal(world, 20))
        outcomes = [world.write(leader, b"%d" % number) for number in range(19, 39)]
        world.tick(leader)
        world.clock.now += 0.05
        for follower in followers:
            follower.drain(world.arrived(follower.name))
        world.clock.now += 0.05
        world.tick(leader)
        assert all(outcome and outcome[0][1] == SUCCESS for outcome in outcomes), "all 40 are acknowledged"
        for follower in followers:
            assert len(follower.entries) == 20
            follower.node.forceLogCompaction()
            follower.node.doTick(0)  # makes the dump; only a later one makes the trim durable
            follower.crash()
        leader.restart_at = 1e9
        leader.crash()
        survivor = led(world)
        acknowledged = [b"first", *(b"%d" % number for number in range(39))]
        assert survivor.entries == (acknowledged if kind is SafeReplica else acknowledged[:20]) + [b"first"]


# ---- H10, H11 -------------------------------------------------------------------------------------------------------


class Raising(SafeReplica):
    """Its machine cannot apply b"bad"."""

    calls: dict[str, int]

    def apply(self, entry: bytes) -> int:
        if entry == b"bad":
            self.calls[self.name] = self.calls.get(self.name, 0) + 1
            raise KeyError("of the machine")
        return super().apply(entry)


def test_an_apply_that_raises_is_called_once_on_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acceptance test 11. The library runs it again for ever, on all replicas."""
    calls: dict[str, int] = {}
    monkeypatch.setattr(Raising, "calls", calls, raising=False)
    with World(2, kind=Raising) as world:
        leader = led(world)
        result = written(world, leader, b"bad")
        written(world, leader, b"good")
        assert world.run(5, lambda: are_equal(world, 2))
        world.run(1)
        assert calls == dict.fromkeys(world.replicas, 1)
        assert isinstance(result, ApplyFailed) and isinstance(result.error, KeyError)
        assert len(world.alarms) == 3 and "KeyError" in world.alarms[0]
        assert world.bad == []


@pytest.mark.parametrize("error", [LogError("an operation of a later release"), MemoryError()])
def test_an_entry_that_is_not_understood_ends_the_replica(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on without it, the replicas would differ."""

    def apply(self: Replica, entry: bytes) -> NoReturn:
        raise error

    monkeypatch.setattr(SafeReplica, "apply", apply)
    with World(2, replicas=1) as world:
        assert world.run(5, lambda: world.leader is not None)
        world.write(world.replicas["c0"], b"x")
        assert world.run(1, lambda: bool(world.bad))
        assert "cannot be applied" in world.bad[0]


@pytest.mark.parametrize("at", ["c0", "c1", "c2"])
def test_a_callback_that_raises_changes_nothing(at: str) -> None:
    """Acceptance test 11. With the library the entry is applied twice, on that replica only."""

    def raises(*_: object) -> NoReturn:
        raise ValueError("of the callback")

    with World(3) as world:
        led(world)
        world.replicas[at].node.propose(b"x", raises)
        assert world.run(5, lambda: are_equal(world, 2))
        world.run(1)
        assert are_equal(world, 2) and world.bad == []
        assert [alarm for alarm in world.alarms if "ValueError" in alarm] == world.alarms != []


def test_an_alarm_that_raises_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(list[str]):
        def append(self, _: str) -> NoReturn:
            raise OSError("nobody listens")

    monkeypatch.setattr(Raising, "calls", {}, raising=False)
    with World(3, replicas=1, kind=Raising) as world:
        world.alarms = Deaf()
        replica = led(world)
        assert isinstance(written(world, replica, b"bad"), ApplyFailed)
        assert world.bad == []


def test_a_state_callback_that_raises_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[tuple[int, int]] = []

    def changed(before: int, after: int) -> None:
        states.append((before, after))
        raise ValueError

    class Watched(World):
        def conf(self, name: str) -> Any:
            conf = super().conf(name)
            conf.onStateChanged = changed
            return conf

    with Watched(3) as world:
        led(world)
        assert states and world.bad == [] and world.alarms


# ---- leaders and reads ----------------------------------------------------------------------------------------------


def test_an_isolated_leader_reads_nothing_and_steps_down() -> None:
    """Acceptance test 13. The library answers reads from its memory, for half a minute."""
    with World(4) as world:
        leader = led(world)
        codes: list[int] = []
        leader.node.barrier(lambda _, code: codes.append(code))
        assert world.run(1, lambda: codes == [SUCCESS])
        cut_at = world.clock.now
        for other in world.nodes:
            if other != leader.name:
                world.cut(leader.name, other)
        stale: list[int] = []

        def read_until_follower() -> bool:
            leader.node.barrier(lambda _, code: stale.append(code))
            return not leader.is_leader

        assert world.run(FALLBACK_S + 0.2, read_until_follower)
        assert world.clock.now - cut_at <= FALLBACK_S + 0.1, "the fallback, a heartbeat's age and a tick"
        world.run(10, lambda: False)
        successor = world.leader
        assert successor is not None and successor is not leader
        written(world, successor, b"behind its back")
        leader.node.barrier(lambda _, code: stale.append(code))
        world.run(2)
        assert SUCCESS not in stale and stale[-1] == FAIL_REASON.MISSING_LEADER


def test_a_follower_that_passed_a_barrier_has_all_that_was_acknowledged() -> None:
    with World(5) as world:
        leader = led(world)
        follower = next(replica for replica in world.replicas.values() if replica is not leader)
        seen: list[int] = []

        def read(_: object, code: int) -> None:
            seen.append(len(follower.entries) if code == SUCCESS else -1)

        for number in range(30):
            written(world, leader, b"%d" % number)
            follower.node.barrier(read)
            assert world.run(2, lambda: len(seen) > number)  # noqa: B023  # called before the next number
        assert seen == list(range(2, 32))


def test_leadership_can_be_handed_over() -> None:
    with World(6) as world:
        leader = led(world)
        assert world.run(2, lambda: are_equal(world, 1))
        at = world.clock.now
        leader.node.transferLeadership()
        assert world.run(2, lambda: world.leader not in (None, leader))
        assert world.clock.now - at < 0.2


@pytest.mark.parametrize("length", [300])
def test_a_long_divergent_tail_is_replaced_soon(length: int) -> None:
    """Stepping back one entry for each answer took a heartbeat each."""
    with World(7) as world:
        leader = led(world)
        assert world.run(2, lambda: are_equal(world, 1))
        for other in world.nodes:
            if other != leader.name:
                world.cut(leader.name, other)
        for number in range(length):
            leader.propose(b"lost %d" % number, lambda *_: None)
        assert world.run(10, lambda: not leader.is_leader) and len(leader.log()) > length
        assert world.run(10, lambda: world.leader not in (None, leader))
        successor = world.leader
        assert successor is not None
        for number in range(length // 2):
            written(world, successor, b"kept %d" % number)
        world.cuts.clear()
        at = world.clock.now
        assert world.run(20, lambda: are_equal(world, 1 + length // 2))
        assert world.clock.now - at < 1.5


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_an_entry_is_bounded() -> None:
    with World(8, replicas=1) as world:
        replica = led(world)
        written(world, replica, bytes(ENTRY_BYTES_MAX))
        with pytest.raises(MessageTooLargeError, match="at most 65536 bytes, not 65537"):
            replica.propose(bytes(ENTRY_BYTES_MAX + 1), lambda *_: None)
        with pytest.raises(UsageError, match="call `barrier`"):
            replica.propose(b"", lambda *_: None)


def test_a_long_journal_is_compacted_however_few_its_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "JOURNAL_BYTES_MAX", 1_000_000)
    with World(9) as world:
        leader = led(world)
        for _ in range(40):
            written(world, leader, bytes(60_000))
        world.run(node.FORCED_DUMP_S)
        assert all(len(replica.log()) < 30 for replica in world.replicas.values())
        assert all((replica.folder / "raft.dump").exists() for replica in world.replicas.values())


# ---- files that do not fit ------------------------------------------------------------------------------------------


def compacted(world: World) -> Replica:
    """A lone replica that has a dump and entries behind it, and is down."""
    replica = led(world)
    for number in range(10):
        written(world, replica, b"%d" % number)
    replica.node.forceLogCompaction()
    world.run(1)
    written(world, replica, b"behind the dump")
    replica.restart_at = 1e9
    replica.crash()
    return replica


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["raft.dump"], "raft.dump is missing, but the journal begins at entry"),
        (["raft.sqlite", "raft.sqlite-wal", "raft.sqlite-shm"], "raft.sqlite is missing beside"),
    ],
)
def test_a_replica_that_lost_a_file_does_not_start(files: list[str], says: str) -> None:
    """V8. The library starts empty, or votes a second time."""
    with World(10, replicas=1) as world:
        replica = compacted(world)
        for name in files:
            (replica.folder / name).unlink(missing_ok=True)
        replica.start()
        assert says in world.bad[0]


def test_a_dump_that_ends_before_the_journal_begins_is_refused() -> None:
    with World(11, replicas=1) as world:
        replica = compacted(world)
        older = (replica.folder / "raft.dump").read_bytes()
        replica.restart_at = 0
        led(world)
        for number in range(10):
            written(world, replica, b"later %d" % number)
        replica.node.forceLogCompaction()
        world.run(1)
        replica.crash()
        (replica.folder / "raft.dump").write_bytes(older)
        replica.start()
        world.step()
        assert "the dump begins at entry" in world.bad[0]


def test_what_lies_behind_the_dump_is_there_after_a_restart() -> None:
    with World(12, replicas=1) as world:
        replica = compacted(world)
        assert world.bad == []
        replica.restart_at = 0
        led(world)
        assert replica.entries == [b"first", *(b"%d" % number for number in range(10)), b"behind the dump", b"first"]


# ---- in real time ---------------------------------------------------------------------------------------------------


class Nobody(Transport):  # type: ignore[misc]  # its base is Any
    """The transport of a replica that is alone."""


class Words:
    """A machine."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, entry: bytes) -> int:
        self.words.append(entry)
        return len(self.words)

    def freeze(self) -> bytes:
        return b" ".join(self.words)

    def restore(self, image: bytes) -> None:
        self.words = image.split()


def opened(folder: Path, words: Words) -> SafeSyncObj:
    conf = raft_configuration(0, election_s=(0.04, 0.05), heartbeat_s=0.01)
    make = partial(SafeSyncObj, transport_class=Nobody, cluster="real", marks=Marks(), on_alarm=print)
    return make(RaftNode("c0", "127.0.0.1:1"), [], conf, machine=words, folder=folder)


def test_one_replica_alone_commits_without_waiting_for_a_tick(tmp_path: Path) -> None:
    """With ticks of 0.1 s: no answer would wake it to commit what it has just written."""
    words = Words()
    replica = opened(tmp_path, words)
    while not replica.is_leader:
        replica.doTick(0.01)
    waits: list[float] = []
    for number in range(9):
        began = time.monotonic()
        replica.propose(b"%d" % number, lambda *_, began=began: waits.append(time.monotonic() - began))
        while len(waits) <= number:
            replica.doTick(0.1)
    replica.destroy()
    assert sorted(waits)[4] < 0.05
    again = Words()
    replica = opened(tmp_path, again)
    while len(again.words) < 9:
        replica.doTick(0.01)
    replica.destroy()
    assert again.words == words.words


def test_replicas_that_end_leave_no_files_open(tmp_path: Path) -> None:
    def count() -> int:
        gc.collect()  # also what earlier tests have left
        return len(os.listdir("/proc/self/fd"))

    opened(tmp_path, Words()).destroy()
    before = count()
    for _ in range(3):
        replica = opened(tmp_path, Words())
        replica.destroy()
        replica.destroy()
    assert count() == before


def test_a_replica_that_ended_takes_no_proposals(tmp_path: Path) -> None:
    replica = opened(tmp_path, Words())
    replica.destroy()
    codes: list[int] = []
    replica.propose(b"x", lambda _, code: codes.append(code))
    assert codes == [FAIL_REASON.MISSING_LEADER]


def test_files_of_another_cluster_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path, Words()).destroy()
    monkeypatch.setattr(durability, "_hook", _raise)
    with pytest.raises(LogError, match="real"):
        SafeSyncObj(
            RaftNode("c0", "127.0.0.1:1"),
            [],
            raft_configuration(0),
            transport_class=Nobody,
            machine=Words(),
            folder=tmp_path,
            cluster="other",
            marks=Marks(),
            on_alarm=print,
        )


def _raise(reason: str) -> NoReturn:
    raise LogError(reason)
