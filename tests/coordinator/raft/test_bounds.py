"""Numbers out of range, from a peer that lies or is broken: refused before anything is believed or made durable (G8).

A term is durable before it is answered: one that nobody can follow would end elections for good, over restarts too.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.raft.sim import Message, Replica, SafeReplica, World

from snapline.coordinator.raft import messages as codec
from snapline.coordinator.raft.dump import Dump, DumpFile, encode_dump
from snapline.coordinator.raft.messages import NUMBER_MAX, decode_batch
from snapline.coordinator.raft.node import TERM_JUMP_MAX, SafeSyncObj
from snapline.errors import ProtocolError
from snapline.protos.v1 import raft_pb2 as pb

HUGE = 2**64 - 1


def entries(
    term: int = 5, prev: tuple[int, int] | None = (3, 2), terms: Sequence[int] = (), **columns: Any
) -> pb.RaftMessage:
    made = pb.LogEntries(term=terms, **columns)
    if prev is not None:
        made.prev_log_index, made.prev_log_term = prev
    return pb.RaftMessage(append_entries=pb.AppendEntries(term=term, commit_index=1, entries=made))


def response(**outcome: Any) -> pb.RaftMessage:
    return pb.RaftMessage(apply_command_response=pb.ApplyCommandResponse(request_id=1, **outcome))


HOSTILE: dict[str, pb.RaftMessage] = {
    "a vote in the last term there is": pb.RaftMessage(request_vote=pb.RequestVote(term=HUGE)),
    "a vote with the longest log there is": pb.RaftMessage(request_vote=pb.RequestVote(term=3, last_log_index=HUGE)),
    "a vote with a log of a later term": pb.RaftMessage(request_vote=pb.RequestVote(term=3, last_log_term=4)),
    "a vote given in the last term": pb.RaftMessage(response_vote=pb.ResponseVote(term=HUGE)),
    "an order to stand in the last term": pb.RaftMessage(timeout_now=pb.TimeoutNow(term=HUGE)),
    "a leader in the last term": entries(term=HUGE),
    "all is committed": pb.RaftMessage(
        append_entries=pb.AppendEntries(term=1, commit_index=HUGE, entries=pb.LogEntries())
    ),
    "a dump in the last term": pb.RaftMessage(append_entries=pb.AppendEntries(term=HUGE, dump=pb.DumpPart())),
    "entries after the last": entries(prev=(HUGE, 2)),
    "entries with a gap": entries(command=[b"a", b"b"], index=[4, 6], terms=[2, 2]),
    "entries that go back": entries(command=[b"a", b"b"], index=[4, 4], terms=[2, 2]),
    "entries that do not follow": entries(command=[b"a"], index=[9], terms=[2]),
    "entries that follow nothing": entries(prev=None, command=[b"a"], index=[4], terms=[2]),
    "terms that fall": entries(command=[b"a", b"b"], index=[4, 5], terms=[3, 2]),
    "a term below the one before": entries(command=[b"a"], index=[4], terms=[1]),
    "an entry of a term to come": entries(command=[b"a"], index=[4], terms=[6]),
    "all is confirmed": pb.RaftMessage(next_node_index=pb.NextNodeIndex(next_node_index=HUGE, success=True)),
    "less than nothing is asked for": pb.RaftMessage(next_node_index=pb.NextNodeIndex(reset=True)),
    "a success that is called an error": response(error=0),
    "an error that there is not": response(error=8),
    "a position behind the last": response(position=pb.LogPosition(index=HUGE, term=1)),
}

MUTANTS = {
    "numbers are not bounded": ("if max(numbers) > NUMBER_MAX:", "if False:"),
    "entries are not compared": ("if index != last_index + 1 or not last_term <= entry_term:", "if False:"),
    "terms may fall": ("or not last_term <= entry_term:", "or False:"),
    "gaps are taken": ("if index != last_index + 1 or", "if False or"),
    "a leader sends what is not its own": ("if last_term > term:", "if False:"),
    "entries follow nothing": ("        if entries:\n            raise", "        if False:\n            raise"),
    "0 is an error": ("if found.error not in ERRORS:", "if False:"),
    "entry 0 is asked for": ("if not found.next_node_index:", "if False:"),
    "a log may be newer than its term": (
        'if numbers.get("last_log_term", 0) > numbers["term"]:',
        "if False:",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_replica_says_is_not_decoded(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(pb.RaftBatch(messages=[HOSTILE[name]]).SerializeToString())


@pytest.mark.parametrize("name", MUTANTS)
def test_without_one_bound_something_hostile_passes(name: str) -> None:
    right, wrong = MUTANTS[name]
    source = Path(codec.__file__).read_text()
    assert source.count(right) == 1, right
    made: dict[str, Any] = {"__name__": "mutant"}
    exec(compile(source.replace(right, wrong), "mutant", "exec"), made)  # noqa: S102  # our own source

    def passes(message: pb.RaftMessage) -> bool:
        try:
            made["decode_batch"](pb.RaftBatch(messages=[message]).SerializeToString())
        except ProtocolError:
            return False
        return True

    assert any(map(passes, HOSTILE.values()))


# ---- what only the node can judge --------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as made:
        assert made.run(20, lambda: made.leader is not None)
        assert lead_is_confirmed(made)
        yield made


def lead_is_confirmed(world: World) -> bool:
    leader = world.leader
    assert leader is not None
    outcome = world.write(leader, b"first")
    return world.run(5, lambda: bool(outcome) and all(len(each.entries) == 1 for each in world.replicas.values()))


def hear(world: World, replica: Replica, source: str, message: Message) -> None:
    world.guard(replica, lambda: replica.drain([(source, message)]))


def test_a_term_far_ahead_is_dropped_and_not_written_down(world: World) -> None:
    """The most there is to lose: all replicas hear it, all start again, and the cluster goes on."""
    term = max(replica.term for replica in world.replicas.values())
    far = term + TERM_JUMP_MAX + 1
    vote = {"type": "request_vote", "term": far, "last_log_index": 1, "last_log_term": 0}
    append = {
        "type": "append_entries",
        "term": far,
        "commit_index": 1,
        "entries": [],
        "prevLogIdx": 1,
        "prevLogTerm": 0,
    }
    for replica in world.replicas.values():
        for other in world.replicas:
            if other != replica.name:
                hear(world, replica, other, vote)
                hear(world, replica, other, append)
                hear(
                    world,
                    replica,
                    other,
                    {"type": "append_entries", "term": far, "commit_index": 1, "serialized": None},
                )
    assert {replica.term for replica in world.replicas.values()} == {term}
    assert world.alarms and f"speaks of term {far}" in world.alarms[0]
    for replica in world.replicas.values():
        replica.crash()
        replica.start()
        assert replica.node._SyncObj__raftLog.getCurrentTerm() == term
    assert world.run(20, lambda: world.leader is not None) and not world.bad


def test_a_term_within_reach_is_followed(world: World) -> None:
    follower = next(replica for replica in world.replicas.values() if not replica.is_leader)
    near = follower.term + TERM_JUMP_MAX
    hear(world, follower, "c0" if follower.name != "c0" else "c1", {
        "type": "request_vote", "term": near, "last_log_index": 1, "last_log_term": 0,
    })  # fmt: skip
    assert follower.term == near


class ForgedDump:
    """A whole dump of this cluster that ends in a term nobody has reached."""

    def __init__(self, term: int) -> None:
        last, previous = (b"\x01", 900, term), (b"\x01", 899, 1)
        self.data = b"".join(encode_dump(Dump("fuzz", "c9", last, previous, b"")))

    def message(self, term: int) -> Message:
        return {"type": "append_entries", "term": term, "commit_index": 1, "serialized": (self.data, True, True)}


def test_a_dump_of_a_later_term_touches_no_file(world: World) -> None:
    """Its last entry would stand in the journal before its term began: the process would end, and never start again."""
    leader = world.leader
    follower = next(replica for replica in world.replicas.values() if not replica.is_leader)
    assert leader is not None
    hear(world, follower, leader.name, ForgedDump(follower.term + 1).message(follower.term))
    assert not world.bad and not (follower.folder / "raft.dump").exists()
    hear(world, follower, leader.name, ForgedDump(follower.term).message(follower.term))
    assert (follower.folder / "raft.dump").exists(), "one of this term is taken"


def test_nobody_confirms_what_is_not_made_yet(world: World) -> None:
    """It would count for entries to come, which would then be acknowledged with one replica."""
    leader = world.leader
    assert leader is not None
    others = [name for name in world.replicas if name != leader.name]
    for name in others:
        far = {"type": "next_node_idx", "next_node_idx": 10**6, "reset": False, "success": True, "term": leader.term}
        hear(world, leader, name, far)
        world.cut(leader.name, name)
    outcome = world.write(leader, b"second")
    world.run(0.5)
    assert not outcome or outcome[0][1] != 0, "acknowledged by nobody else"


class Credulous(SafeReplica):
    """Any term is followed."""

    class node_class(SafeSyncObj):
        def _filter_message(self, node: Any, message: Message) -> Message | None:
            return super()._filter_message(node, message) if message["type"] == "next_node_idx" else message


class EarlyConfirmations(SafeReplica):
    """What a follower confirms is believed, whatever it is."""

    class node_class(SafeSyncObj):
        def _filter_answer(self, node: Any, message: Message) -> Message | None:
            return message if self.is_leader else None


class AnyDump(SafeReplica):
    """A dump's term is not looked at."""

    class node_class(SafeSyncObj):
        def _open_dump(self, *settings: Any) -> DumpFile:
            made = super()._open_dump(*settings)
            made._term = lambda: NUMBER_MAX
            return made


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (Credulous, test_a_term_far_ahead_is_dropped_and_not_written_down),
        (EarlyConfirmations, test_nobody_confirms_what_is_not_made_yet),
        (AnyDump, test_a_dump_of_a_later_term_touches_no_file),
    ],
)
def test_without_the_bound_it_is_found(mutant: type[Replica], test: Any) -> None:
    with World(3, kind=mutant) as made:
        assert made.run(20, lambda: made.leader is not None) and lead_is_confirmed(made)
        with pytest.raises(AssertionError):
            test(made)
