"""Three replicas in one process, over loopback gRPC, with real files: commits, reads, failures, chaos (tests 9, 12 to 15).

The chaos with real processes and SIGKILL belongs to the slow tests of the whole coordinator; this one crashes replicas by
ending their threads without a last sync.
"""

import asyncio
import contextlib
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.coordinator.raft.linearizability import Operation, check_objects, register
from tests.coordinator.raft.marks import Marks
from tests.coordinator.raft.peers_of import Raw, until
from tests.coordinator.raft.replicas import (
    ELECTION_S,
    FALLBACK_S,
    Client,
    Cluster,
    Ledger,
    SecurityOf,
    entry_of,
    real_configuration,
)
from tests.coordinator.raft.test_messages import bombs
from tests.security.certificates import Authority

from snapline.coordinator.raft import transport as transport_module
from snapline.coordinator.raft.journal import SqliteJournal
from snapline.coordinator.raft.messages import Message, decode_batch, encode_message
from snapline.coordinator.raft.node import JOURNAL_FILE, SafeSyncObj
from snapline.coordinator.raft.pysyncobj_adapter import ELECTION_S_MIN, ENTRY_BYTES_MAX
from snapline.coordinator.raft.raft_driver import (
    IN_FLIGHT_MAX,
    Committed,
    Outcome,
    RaftDriver,
    Rejected,
    Replica,
    ReplicaOptions,
    Unknown,
)
from snapline.errors import CoordinatorUnavailableError, MessageTooLargeError, UsageError
from snapline.security.transport import Security


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path, 3).start()
    yield cluster
    await cluster.stop()
    assert cluster.alarms == []


def secured(folder: Path) -> SecurityOf:
    authority = Authority(folder)
    made: dict[str, Security] = {}

    def security_of(name: str) -> Security:
        if name not in made:
            made[name] = authority.issue(name, role="coordinator").security()
        return made[name]

    return security_of


async def add(cluster: Cluster, name: str, client: str, count: int) -> None:
    for sequence in range(1, count + 1):
        outcome = await cluster.replicas[name].driver.propose(entry_of(client, sequence, "x", ("add", 1)))
        assert isinstance(outcome, Committed), outcome


# ---- the plain way --------------------------------------------------------------------------------------------------


async def test_all_replicas_take_proposals_and_answer_reads(three: Cluster) -> None:
    await three.wait_leader()
    for name in three.names:
        await add(three, name, name, 10)
    for name in three.names:
        assert await three.value(name, "x") == 30
    await three.wait_equal()


async def test_alone_a_replica_commits_at_once(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 1).start()
    await cluster.wait_leader()
    began = time.monotonic()
    await add(cluster, "c1", "a", 50)
    assert time.monotonic() - began < 50 * 0.02, "every commit waited for the end of a tick"
    await cluster.stop()
    await cluster.start_one("c1")
    assert await cluster.value("c1", "x") == 50
    await cluster.stop()


async def test_status_metrics_and_transfer(three: Cluster) -> None:
    leader = await three.wait_leader()
    await add(three, leader, "a", 5)
    status = await three.replicas[leader].driver.status()
    assert status.node == leader and status.standing.is_leader and status.has_quorum
    assert status.applied == status.commit_index == status.last_index >= 6
    metrics = three.replicas[leader].metrics()
    assert metrics["raft_committed_total"] == 5 == metrics['raft_commit_seconds_bucket{le="inf"}']
    assert metrics["raft_sync_seconds_count"] > 0 and metrics["raft_sync_max_seconds"] > 0
    assert metrics["raft_streams_opened_total"] >= 2 and metrics["raft_streams_refused_total"] == 0
    target = next(name for name in three.names if name != leader)
    began = time.monotonic()
    assert await three.replicas[leader].driver.transfer_leadership(target) == target
    assert time.monotonic() - began < ELECTION_S[0], "it waited for an election time-out"
    await until(lambda: three.replicas[target].driver.standing.is_leader)
    with pytest.raises(UsageError):
        await three.replicas[leader].driver.transfer_leadership()


async def test_an_entry_that_is_too_large_is_refused_before_it_is_proposed(three: Cluster) -> None:
    leader = await three.wait_leader()
    follower = next(name for name in three.names if name != leader)

    def padded(sequence: int, size: int) -> bytes:
        entry = entry_of("a", sequence, "x", ("add", 1))
        return entry + b" " * (size - len(entry))

    for sequence, name in enumerate((leader, follower), start=1):
        outcome = await three.replicas[name].driver.propose(padded(sequence, ENTRY_BYTES_MAX))
        assert isinstance(outcome, Committed)
        with pytest.raises(MessageTooLargeError):
            await three.replicas[name].driver.propose(padded(9, ENTRY_BYTES_MAX + 1))
    await three.wait_equal()


@pytest.mark.parametrize(
    ("node", "members"),
    [
        ("c9", {"c1": "127.0.0.1:1"}),
        ("c1", {"c1": "127.0.0.1:1", "c2": "127.0.0.1:1"}),
        ("c1", {"c1": "127.0.0.1:1", "c/2": "127.0.0.1:2"}),
        ("c1", {"c1": "127.0.0.1:1", "c2": "192.0.2.1:2"}),
    ],
    ids=["not a member", "one address twice", "bad id", "plaintext to another machine"],
)
async def test_members_that_make_no_sense_are_refused(tmp_path: Path, node: str, members: dict[str, str]) -> None:
    options = ReplicaOptions(node=node, members=members, folder=tmp_path / "files", cluster="tests", marks=Marks())
    with pytest.raises(UsageError):
        Replica(options, Ledger(), on_alarm=print)
    assert not (tmp_path / "files").exists()


# ---- a disk that is lost ----------------------------------------------------------------------------------------------


async def test_a_replica_without_its_log_learns_and_then_counts(three: Cluster) -> None:
    """Over real streams: its peers remember sessions of many boots of the log it lost."""
    leader = await three.wait_leader()
    lost, other = (name for name in three.names if name != leader)
    for _ in range(2):
        await three.crash_one(lost)
        await three.start_one(lost)
    chance = random.Random(1)
    client = Client(three, "w", chance)
    await client.write("x", ("write", 1))
    await three.crash_one(lost)
    shutil.rmtree(three.folder / lost)
    replica = await three.start_one(lost)
    async with asyncio.timeout(20):
        while (await replica.driver.status()).is_learner:
            await asyncio.sleep(0.05)
    assert [mark.is_voter for mark in three.marks.of[lost]] == [True, False, True] and not three.marks.lost()
    assert replica.metrics()["raft_is_learner"] == 0
    await three.stop_one(other)
    await client.write("x", ("write", 2), give_up_s=20)
    assert len(client.acked) == 2, "a majority with the one that came back"
    assert await three.value(lost, "x") == 2


# ---- test 13: a leader that is cut off ------------------------------------------------------------------------------


async def test_a_leader_that_is_cut_off_answers_no_read_and_steps_down(three: Cluster) -> None:
    old = await three.wait_leader()
    await add(three, old, "a", 3)
    three.isolate(old)
    began = time.monotonic()
    reading = asyncio.create_task(three.replicas[old].driver.read(lambda: "stale", timeout_s=1.6))
    writing = asyncio.create_task(three.replicas[old].driver.propose(b'["b",1,"x",["add",100]]', timeout_s=1.6))
    await until(lambda: not three.replicas[old].driver.standing.is_leader)
    assert time.monotonic() - began < FALLBACK_S + 0.5, "it led on without a majority"
    new = await three.wait_leader()
    assert new != old
    await add(three, new, "c", 3)
    machine = three.machines[old]
    stale = await three.replicas[old].driver._on_tick_thread(lambda: machine.registers["x"], 1.0)
    assert stale == 3, "its own state is stale: only the barrier keeps that from its readers"
    with pytest.raises(CoordinatorUnavailableError):
        await reading
    assert isinstance(await writing, Unknown | Rejected)
    three.heal()
    state = msgspec.json.decode(await three.wait_equal())
    assert state[0]["x"] in (6, 106), "its own entry is in the log on all replicas, or on none"


# ---- test 12: unknown outcomes --------------------------------------------------------------------------------------


async def test_what_is_unknown_is_done_once_when_it_is_repeated(tmp_path: Path) -> None:
    """Every proposal is given up at once, so its outcome is unknown, and is repeated until it is known: across dumps,
    transfers of leadership and a crash of all."""
    cluster = await Cluster(tmp_path, 3, compaction_entries=20).start()
    chance = random.Random(4)
    outcomes: Counter[str] = Counter()
    for round_number in range(2):
        leader = await cluster.wait_leader()
        for sequence in range(1, 21):
            entry = entry_of(f"r{round_number}", sequence, "x", ("add", 1))
            for attempt in range(100):
                name = chance.choice(cluster.names)
                timeout_s = 0.0005 if attempt < 3 else 1.0
                outcome = await cluster.replicas[name].driver.propose(entry, timeout_s=timeout_s)
                outcomes[type(outcome).__name__] += 1
                if isinstance(outcome, Committed):
                    assert outcome.result == round_number * 20 + sequence
                    break
                if sequence == 10 and attempt == 1 and leader in cluster.replicas:
                    await asyncio.gather(cluster.replicas[leader].driver.transfer_leadership(), return_exceptions=True)
            else:
                raise AssertionError("never committed")
        for name in cluster.names:
            await cluster.crash_one(name)
        await asyncio.gather(*[cluster.start_one(name) for name in cluster.names])
    state = msgspec.json.decode(await cluster.wait_equal())
    assert state[0] == {"x": 40}
    assert outcomes["Unknown"] > 15, outcomes
    assert any((tmp_path / name / "raft.dump").exists() for name in cluster.names)
    await cluster.stop()
    assert cluster.alarms == []


# ---- test 14: what a replica's certificate does not allow -----------------------------------------------------------


async def test_forwarded_membership_version_and_pickled_commands_do_nothing(tmp_path: Path) -> None:
    security_of = secured(tmp_path)
    cluster = await Cluster(tmp_path, 3, security_of=security_of).start()
    leader = await cluster.wait_leader()
    guest = next(name for name in cluster.names if name != leader)
    await cluster.stop_one(guest)
    await add(cluster, leader, "a", 3)
    status = await cluster.replicas[leader].driver.status()

    channel = security_of(guest).open_channel(cluster.members[leader], role="coordinator", name=leader)
    raw = Raw("", channel)
    assert await raw.hello(guest, 1, 1000)
    trace = tmp_path / "ran"
    sent = [message for message in bombs(trace) if message["type"] == "apply_command" and message["command"][0] != 0]
    for first in b"\1\2\3\4\xff":
        sent.append({"type": "apply_command", "command": bytes([first]) + b"rest", "request_id": 7})
    await raw.write(*sent)
    await asyncio.sleep(0.5)
    after = await cluster.replicas[leader].driver.status()
    assert after.last_index == status.last_index, "something foreign is in the log"
    dumps = [m | {"term": after.standing.term + 1} for m in bombs(trace) if "serialized" in m]
    await raw.write(*dumps)
    await asyncio.sleep(0.3)
    assert not trace.exists(), "a pickle ran"
    await raw.close()
    await cluster.start_one(guest)
    await cluster.wait_leader()
    assert msgspec.json.decode(await cluster.wait_equal())[0] == {"x": 3}
    await cluster.stop()


# ---- test 15: flood -------------------------------------------------------------------------------------------------


async def test_a_flood_of_ten_times_the_limit_is_bounded_and_does_no_harm(tmp_path: Path) -> None:
    """What is refused costs less than what is taken: ten times as much at once less than ten times, in the processor's time of the same moment."""
    three = await Cluster(tmp_path, 3, configuration=real_configuration).start()
    leader = await three.wait_leader()
    follower = next(name for name in three.names if name != leader)
    for name in (leader, follower):
        driver = three.replicas[name].driver
        alone = [entry_of(f"{name}-alone", n, "x", ("add", 1)) for n in range(IN_FLIGHT_MAX)]
        entries = [entry_of(name, n, "x", ("add", 1)) for n in range(10 * IN_FLIGHT_MAX)]
        taken, alone_s = await _proposed(driver, alone)
        outcomes, flood_s = await _proposed(driver, entries)
        assert flood_s < 10 * alone_s, f"{flood_s} s for ten times what costs {alone_s} s"
        refused = [isinstance(outcome, Rejected) and "under way" in outcome.reason for outcome in outcomes]
        assert refused == [False] * IN_FLIGHT_MAX + [True] * 9 * IN_FLIGHT_MAX
        # Where a leader was lost meanwhile, the same request is proposed again, and is done once.
        for entry, outcome in zip([*alone, *entries[:IN_FLIGHT_MAX]], [*taken, *outcomes], strict=False):
            known = outcome
            while not isinstance(known, Committed):
                known = await driver.propose(entry)
    state = msgspec.json.decode(await three.wait_equal())
    assert state[0] == {"x": 4 * IN_FLIGHT_MAX}
    await three.stop()
    assert three.alarms == []


async def _proposed(driver: RaftDriver, entries: list[bytes]) -> tuple[list[Outcome], float]:
    """All at once; and the processor's seconds that it took."""
    began_s = time.process_time()
    return await asyncio.gather(*[driver.propose(entry) for entry in entries]), time.process_time() - began_s


# ---- test 9: chaos --------------------------------------------------------------------------------------------------


def check_claims(history: list[Operation], acked: set[str], applied: list[str]) -> None:
    """G8: none lost, none twice, and one order explains every answer."""
    assert len(applied) == len(set(applied)), "a request was done twice"
    assert acked <= set(applied), "an acknowledged write is lost"
    verdicts = check_objects(history, register, 0)
    bad = {name: verdict.order[-3:] for name, verdict in verdicts.items() if not verdict.is_linearizable}
    assert not bad, f"not linearizable: {bad}"


async def watch(cluster: Cluster, leaders: dict[int, set[str]]) -> None:
    """Note who leads in which term."""
    while True:
        for name, replica in cluster.replicas.items():
            standing = replica.driver.standing
            if standing.is_leader:
                leaders.setdefault(standing.term, set()).add(name)
        await asyncio.sleep(0.005)


async def chaos(cluster: Cluster, seconds: float, seed: int, *, acked_min: int, unknown_min: int = 0) -> Counter[str]:
    """Clients work while the leader is cut off, replicas crash, connections break; then all must agree.

    It goes on until each client has `acked_min` acknowledged operations, and all together have `unknown_min` whose outcome nobody knows.
    """
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    leaders: dict[int, set[str]] = {}
    counts: Counter[str] = Counter()

    clients = [Client(cluster, f"k{number}", random.Random(seed * 100 + number)) for number in range(5)]

    def unknown() -> int:
        return sum(operation.answered is None for client in clients for operation in client.history)

    async def work(client: Client) -> None:
        done = 0
        while time.monotonic() < end or len(client.acked) < acked_min or unknown() < unknown_min:
            name = f"r{client.chance.randrange(3)}.{int(2 * (end - time.monotonic()))}"
            asked: Any = client.chance.choice(
                [("add", 1), ("write", done), ("cas", done % 3, done % 5), ("read",), ("read",)]
            )
            done += 1
            # Some give up before they know: such a write may have happened, or happen later.
            give_up_s = client.chance.choice([0.004] + 9 * [8.0])
            await (client.read(name) if asked == ("read",) else client.write(name, asked, give_up_s=give_up_s))
            await asyncio.sleep(client.chance.uniform(0, 0.02))

    async def harm() -> None:
        while time.monotonic() < end - 1.0:
            await asyncio.sleep(chance.uniform(0.3, 0.8))
            name = cluster.leader() if chance.random() < 0.6 else chance.choice(cluster.names)
            what = chance.choice(["isolate", "crash", "crash", "cut", "cut", "crash all"])
            if name is None:
                continue
            counts[what] += 1
            if what == "isolate":
                cluster.isolate(name)
                await asyncio.sleep(chance.uniform(0.3, 1.5))
                cluster.heal()
            elif what == "cut":
                for replica in cluster.replicas.values():
                    for other in cluster.names:
                        replica.streams.cut(other)
            else:
                names = cluster.names if what == "crash all" else [name]
                for each in names:
                    await cluster.crash_one(each)
                await asyncio.sleep(chance.uniform(0, 0.3))
                for each in names:
                    await cluster.start_one(each)

    watching = asyncio.create_task(watch(cluster, leaders))
    await asyncio.gather(harm(), *map(work, clients))
    cluster.heal()
    await cluster.wait_leader(20)
    _, _, applied = msgspec.json.decode(await cluster.wait_equal(20))
    watching.cancel()

    history = [operation for client in clients for operation in client.history]
    acked = set().union(*[client.acked for client in clients])
    check_claims(history, acked, applied)
    assert all(len(names) == 1 for names in leaders.values()), leaders
    assert cluster.alarms == []
    counts["operations"], counts["acked"], counts["terms"] = len(history), len(acked), len(leaders)
    counts["unknown"] = unknown()
    return counts


async def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def encode(message: Message) -> bytes:
        piece = encode_message(message)
        assert decode_batch(piece) == (None, [message]), "the codec changed a real message"
        seen[message["type"] + (" dump" if "serialized" in message else "")] += 1
        return piece

    monkeypatch.setattr(transport_module, "encode_message", encode)
    cluster = await Cluster(tmp_path, 3, compaction_entries=60).start()
    await cluster.wait_leader()
    await chaos(cluster, 3.0, seed=1, acked_min=5)
    await cluster.stop()
    assert {"request_vote", "response_vote", "append_entries", "next_node_idx", "apply_command"} <= set(seen), seen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [3, 5])
async def test_chaos_over_mutual_tls(tmp_path: Path, count: int) -> None:
    (tmp_path / "certificates").mkdir()
    cluster = await Cluster(
        tmp_path, count, security_of=secured(tmp_path / "certificates"), compaction_entries=150
    ).start()
    await cluster.wait_leader()
    counts = await chaos(cluster, 60.0, seed=count, acked_min=100, unknown_min=11)
    await cluster.stop()
    print(dict(counts))


async def holders_after_a_crash_of_all(cluster: Cluster) -> int:
    """How many replicas hold the last acknowledged entry in their files when all have ended at once."""
    leader = await cluster.wait_leader()
    await add(cluster, leader, "a", 30)
    last = (await cluster.replicas[leader].driver.status()).commit_index
    await asyncio.gather(*[cluster.crash_one(name) for name in cluster.names])
    held = 0
    for name in cluster.names:
        with contextlib.closing(sqlite3.connect(cluster.folder / name / JOURNAL_FILE)) as journal:
            held += journal.execute("SELECT max(idx) FROM log").fetchone()[0] >= last
    return held


async def test_what_is_acknowledged_is_in_the_files_of_a_majority(tmp_path: Path) -> None:
    assert await holders_after_a_crash_of_all(await Cluster(tmp_path, 3).start()) >= 2


async def test_a_crash_finds_replicas_that_do_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the crashes of these tests lose what was not made durable."""
    monkeypatch.setattr(SafeSyncObj, "sync_journal", lambda self: None)
    monkeypatch.setattr(SqliteJournal, "onOneSecondTimer", lambda self: None)
    assert await holders_after_a_crash_of_all(await Cluster(tmp_path, 3).start()) < 2


class Forgetful(Ledger):
    """Does not know repeated requests."""

    def apply(self, entry: bytes) -> object:
        self.results.clear()
        return super().apply(entry)


async def test_the_claims_of_the_chaos_can_fail(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path, 3, machine=Forgetful).start()
    leader = await cluster.wait_leader()
    client = Client(cluster, "k", random.Random(1))
    await client.write("x", ("add", 1))
    await cluster.replicas[leader].driver.propose(entry_of("k", 1, "x", ("add", 1)))
    await client.read("x")
    image = msgspec.json.decode(await cluster.wait_equal())
    with pytest.raises(AssertionError, match="twice"):
        check_claims(client.history, client.acked, image[2])
    with pytest.raises(AssertionError, match="linearizable"):
        check_claims(client.history, client.acked, ["k/1"])
    with pytest.raises(AssertionError, match="lost"):
        check_claims(client.history, client.acked, [])
    await cluster.stop()


# ---- test 15: a state at its limit ----------------------------------------------------------------------------------


class Heavy(Ledger):
    """A state of 16 MiB."""

    PADDING = random.Random(0).randbytes(16 * 1024 * 1024)

    def freeze(self) -> bytes:
        return self.PADDING + super().freeze()

    def restore(self, image: bytes) -> None:
        assert image.startswith(self.PADDING)
        super().restore(image[len(self.PADDING) :])


async def test_a_state_at_its_limit_is_dumped_and_installed_without_an_election(tmp_path: Path) -> None:
    """With the real times: a dump stops the tick, and an installed one passes through streams, inbox and outbox."""
    cluster = await Cluster(tmp_path, 3, machine=Heavy, compaction_entries=60, configuration=real_configuration).start()
    leader = await cluster.wait_leader()
    behind = next(name for name in cluster.names if name != leader)
    await add(cluster, leader, "a", 10)
    await cluster.crash_one(behind)
    term = cluster.replicas[leader].driver.standing.term
    await add(cluster, leader, "b", 120)
    first = (await cluster.replicas[leader].driver.status()).first_index
    assert first > 12, "the leader can still send single entries"
    await cluster.start_one(behind)
    await cluster.replicas[behind].driver.wait_ready()
    assert await cluster.value(behind, "x") == 130
    assert (await cluster.replicas[behind].driver.status()).first_index >= first
    assert {replica.driver.standing.term for replica in cluster.replicas.values()} == {term}, "an election"
    longest = max(replica.metrics()["raft_tick_max_seconds"] for replica in cluster.replicas.values())
    assert 0 < longest < ELECTION_S_MIN, "followers would not have waited"
    await cluster.stop()
    assert cluster.alarms == []
