"""Single messages, one by one, to one replica: each mend does what it is for, and the library without it does not.

The other replicas are played by the test. (Acceptance tests 6, 7 and 14, and what was found while writing the layer.)
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.sim import Message, Replica, SafeReplica, StockReplica, World

from snapline.coordinator.raft.dump import Dump, encode_dump
from snapline.coordinator.raft.pysyncobj_adapter import ENTRY_BYTES_MAX, RaftNode

Entry = tuple[bytes, int, int]


class Play:
    """Replica c0 is real, the others are lines of the test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replica = world.replicas["c0"]
        for replica in world.replicas.values():
            replica.restart_at = 1e9
        self.start()

    def start(self) -> None:
        self.replica.restart_at = 0.0
        self.replica.start()
        for name in list(self.world.nodes)[1:]:
            self.world.wires["c0", name] = deque()
            self.world.wires[name, "c0"] = deque()
            self.world._tell("c0", name, "_onNodeConnected")
        self.tick()

    def restart(self) -> None:
        self.replica.crash()
        self.start()

    @property
    def node(self) -> Any:
        return self.replica.node

    def tick(self, seconds: float = 0.0) -> None:
        self.world.clock.now += seconds
        self.world.guard(self.replica, lambda: self.node.doTick(0))

    def hear(self, source: str, *messages: Message) -> list[Message]:
        """Let these arrive together; the answers to `source`."""
        self.sent(source)
        self.world.guard(self.replica, lambda: self.replica.drain([(source, message) for message in messages]))
        return self.sent(source)

    def sent(self, target: str) -> list[Message]:
        """Take what was sent to one replica."""
        wire = self.world.wires.get(("c0", target))
        messages = [message for _, message in wire or ()]
        if wire is not None:
            wire.clear()
        return messages

    def lead(self) -> int:
        """Make c0 the leader; the term."""
        self.tick(3)
        term = self.replica.term
        for name in list(self.world.nodes)[1 : len(self.world.nodes) // 2 + 1]:
            self.hear(name, {"type": "response_vote", "term": term})
        assert self.replica.is_leader
        return term

    @property
    def log(self) -> list[tuple[int, int]]:
        return [entry[1:] for entry in self.replica.log()]


@contextmanager
def play(kind: type[Replica] = SafeReplica, replicas: int = 3, **settings: Any) -> Iterator[Play]:
    with World(0, replicas=replicas, kind=kind, **settings) as world:
        yield Play(world)


def entry(index: int, term: int, kind: type[Replica] = SafeReplica) -> Entry:
    """Operation number `index`, as a leader of this kind would write it."""
    text = b"%d-%d" % (index, term)
    return (b"\0" + (text if kind is SafeReplica else pickle.dumps((0, (text,)), 2)), index, term)


def entries(term: int, *, commit: int, prev: tuple[int, int], new: list[Entry] = []) -> Message:  # noqa: B006
    facts = {"type": "append_entries", "term": term, "commit_index": commit, "entries": new}
    return facts | {"prevLogIdx": prev[0], "prevLogTerm": prev[1]}


def grown(play: Play, until: int, term: int, *, commit: int = 1) -> None:
    """A follower that holds entries 2 to `until` of one term."""
    kind = type(play.replica)
    new = [entry(index, term, kind) for index in range(2, until + 1)]
    (answer,) = play.hear("c1", entries(term, commit=commit, prev=(1, 0), new=new))
    assert answer["success"] and answer["next_node_idx"] == until + 1
    play.tick()


BOTH = pytest.mark.parametrize("kind", [SafeReplica, StockReplica])


def is_safe(kind: type[Replica]) -> bool:
    return kind is SafeReplica


# ---- V3, V4, V5, V7: following ---------------------------------------------------------------------------------------


@BOTH
def test_a_dump_under_way_does_not_commit_what_was_not_compared(kind: type[Replica]) -> None:
    """V3. Entries 3 to 5 are of a leader that is gone; the new one holds others there and is about to send its dump."""
    with play(kind) as p:
        grown(p, 5, term=1, commit=2)
        p.hear("c2", {"type": "append_entries", "term": 2, "commit_index": 5, "serialized": None})
        p.tick()
        assert p.node.raftCommitIndex == (2 if is_safe(kind) else 5)
        assert len(p.replica.entries) == (1 if is_safe(kind) else 4)


@BOTH
def test_answers_to_later_messages_do_not_undo_a_conflict(kind: type[Replica]) -> None:
    """V4. A divergent tail and a backlog of several messages: the leader hears the last answer last."""
    with play(kind) as p:
        grown(p, 9, term=1)
        backlog = [entries(3, commit=1, prev=(index, 2)) for index in (8, 20, 30)]
        answers = p.hear("c2", *backlog)
        assert all(answer["reset"] and not answer["success"] for answer in answers)
        heard = [answer["next_node_idx"] for answer in answers]
        assert heard == ([2, 2, 2] if is_safe(kind) else [8, 10, 10])
        if is_safe(kind):
            p.world.clock.now += 1  # long after: the leader may have been replaced
            assert p.hear("c2", entries(3, commit=1, prev=(20, 2)))[0]["next_node_idx"] == 10


def test_agreement_ends_the_hint() -> None:
    with play() as p:
        grown(p, 9, term=1)
        p.hear("c2", entries(3, commit=1, prev=(8, 2)))
        (answer,) = p.hear("c2", entries(3, commit=1, prev=(1, 0), new=[entry(2, 3)]))
        assert (answer["success"], answer["next_node_idx"]) == (True, 3)
        assert p.log == [(1, 0), (2, 3)]
        (answer,) = p.hear("c2", entries(3, commit=1, prev=(7, 3)))
        assert answer["next_node_idx"] == 3


def test_a_conflict_goes_back_a_whole_term_but_not_behind_what_is_committed() -> None:
    """One round trip per term instead of per entry: a tail of 4,096 would take minutes."""
    with play() as p:
        grown(p, 100, term=1, commit=40)
        assert p.hear("c2", entries(3, commit=1, prev=(90, 2)))[0]["next_node_idx"] == 41


@BOTH
def test_a_leader_does_not_skip_what_a_follower_asked_for(kind: type[Replica]) -> None:
    """V4 at the leader: "I lack prev" behind "we differ from 3 on"."""
    with play(kind) as p:
        term = p.lead()
        for number in range(8):
            p.world.write(p.replica, b"%d" % number)
        p.tick()
        answer = {"type": "next_node_idx", "reset": True, "success": False, "term": term}
        p.hear("c1", answer | {"next_node_idx": 3}, answer | {"next_node_idx": 10})
        assert p.node.getStatus()["next_node_idx_server_c1"] == (3 if is_safe(kind) else 10)


@BOTH
def test_an_answer_of_an_older_term_acknowledges_nothing(kind: type[Replica]) -> None:
    """V7. What c1 held in term 1 may have been replaced since."""
    with play(kind) as p:
        term = p.lead()
        outcome = p.world.write(p.replica, b"x")
        p.tick()
        answer = {"type": "next_node_idx", "reset": False, "success": True, "next_node_idx": p.log[-1][0] + 1}
        p.hear("c1", answer | {"term": term - 1})
        p.tick()
        assert bool(outcome) is not is_safe(kind)
        p.hear("c1", answer | {"term": term})
        p.tick()
        assert outcome == [(0, 0)]


def test_an_answer_without_a_term_acknowledges_nothing() -> None:
    with play() as p:
        p.lead()
        outcome = p.world.write(p.replica, b"x")
        p.tick()
        p.hear("c1", {"type": "next_node_idx", "reset": False, "success": True, "next_node_idx": p.log[-1][0] + 1})
        p.tick()
        assert outcome == []


def test_answers_carry_their_term() -> None:
    with play() as p:
        (answer,) = p.hear("c1", entries(7, commit=1, prev=(1, 0)))
        assert answer["term"] == 7


@BOTH
def test_a_heartbeat_that_reaches_back_cuts_nothing(kind: type[Replica]) -> None:
    """V5. It matches at 3 and brings nothing: 4 to 9 were acknowledged, and may be committed."""
    with play(kind) as p:
        grown(p, 9, term=1, commit=7)
        p.hear("c1", entries(1, commit=7, prev=(3, 1)))
        assert p.log[-1] == ((9, 1) if is_safe(kind) else (3, 1))
        assert p.node.raftCommitIndex == (7 if is_safe(kind) else 3)


def test_entries_of_another_term_replace_the_tail() -> None:
    with play() as p:
        grown(p, 9, term=1, commit=4)
        p.hear("c2", entries(2, commit=4, prev=(5, 1), new=[entry(6, 2)]))
        assert p.log == [(1, 0), *((index, 1) for index in range(2, 6)), (6, 2)]
        p.restart()
        assert p.log[-1] == (6, 2)


def test_a_leader_that_contradicts_a_committed_entry_ends_the_replica() -> None:
    with play() as p:
        grown(p, 9, term=1, commit=7)
        p.hear("c2", entries(2, commit=7, prev=(5, 1), new=[entry(6, 2)]))
        assert "contradicts committed entry 7" in p.world.bad[0]
        p.restart()
        assert p.log[-1] == (9, 1), "nothing of it became durable"


# ---- votes ----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_vote_that_arrives_twice_counts_once(kind: type[Replica]) -> None:
    with play(kind, replicas=5) as p:
        p.tick(3)
        vote = {"type": "response_vote", "term": p.replica.term}
        p.hear("c1", vote, vote)
        assert p.replica.is_leader is not is_safe(kind)
        p.hear("c2", vote)
        assert p.replica.is_leader


def test_a_late_vote_does_not_make_room_for_a_second_one() -> None:
    with play(replicas=5) as p:
        p.tick(3)
        p.tick(3)
        vote = {"type": "response_vote", "term": p.replica.term}
        p.hear("c1", vote, vote | {"term": p.replica.term - 1}, vote)
        assert not p.replica.is_leader


def test_votes_and_terms_outlive_a_crash() -> None:
    ask = {"type": "request_vote", "term": 5, "last_log_index": 9, "last_log_term": 4}
    with play() as p:
        assert p.hear("c1", ask) == [{"type": "response_vote", "term": 5}]
        p.restart()
        assert p.hear("c2", ask) == []
        assert p.hear("c2", ask | {"term": 6}) == [{"type": "response_vote", "term": 6}]


# ---- dumps ----------------------------------------------------------------------------------------------------------


def sent_dump(last: Entry, prev: Entry, state: bytes = b"a\nb", cluster: str = "fuzz") -> bytes:
    return b"".join(encode_dump(Dump(cluster, "c2", last, prev, state)))


def pieces(data: bytes, term: int, size: int = 40) -> list[Message]:
    cut = [data[at : at + size] for at in range(0, len(data), size)] + [b""]
    facts = {"type": "append_entries", "term": term, "commit_index": 99}
    return [facts | {"serialized": (piece, at == 0, at == len(cut) - 1)} for at, piece in enumerate(cut)]


def test_an_installed_dump_replaces_a_log_that_ends_before_it() -> None:
    with play() as p:
        grown(p, 5, term=1, commit=3)
        (answer,) = p.hear("c2", *pieces(sent_dump(entry(9, 2), entry(8, 2)), 3))
        assert (answer["success"], answer["next_node_idx"]) == (True, 10)
        for _ in range(2):
            assert p.log == [(8, 2), (9, 2)] and p.replica.entries == [b"a", b"b"]
            assert p.node.raftLastApplied == p.node.raftCommitIndex == 9
            p.restart()


def test_a_dump_leaves_the_entries_behind_it_but_does_not_acknowledge_them() -> None:
    """The log holds the dump's last entry, and two more that the leader may not have."""
    with play() as p:
        grown(p, 6, term=1, commit=2)
        (answer,) = p.hear("c2", *pieces(sent_dump(entry(4, 1), entry(3, 1)), 2))
        assert (answer["success"], answer["next_node_idx"]) == (True, 5)
        for _ in range(2):
            assert p.log == [(3, 1), (4, 1), (5, 1), (6, 1)] and p.replica.entries == [b"a", b"b"]
            p.restart()


def test_a_dump_replaces_a_log_that_contradicts_it() -> None:
    with play() as p:
        grown(p, 6, term=1, commit=2)
        p.hear("c2", *pieces(sent_dump(entry(4, 2), entry(3, 2)), 2))
        assert p.log == [(3, 2), (4, 2)]


def damaged() -> dict[str, Callable[[bytes], bytes]]:
    flips = {f"bit {at} flipped": (lambda data, at=at: _flipped(data, at)) for at in (3, 200, 999, 1500)}
    return flips | {"torn": lambda data: data[:-40], "first piece lost": lambda data: data[40:], "empty": lambda _: b""}


def _flipped(data: bytes, bit: int) -> bytes:
    at = bit // 8 % len(data)
    return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


@pytest.mark.parametrize("damage", damaged())
def test_a_damaged_dump_is_refused_and_harms_nothing(damage: str) -> None:
    """Acceptance test 7 (G11)."""
    with play() as p:
        p.hear("c2", *pieces(sent_dump(entry(9, 2), entry(8, 2)), 3))
        before = p.replica.folder / "raft.dump"
        own = before.read_bytes()
        later = sent_dump(entry(30, 3), entry(29, 3), b"evil")
        assert p.hear("c2", *pieces(damaged()[damage](later), 3)) == []
        for _ in range(2):
            assert before.read_bytes() == own
            assert p.log == [(8, 2), (9, 2)] and p.replica.entries == [b"a", b"b"]
            p.restart()
        p.hear("c2", *pieces(later, 3))
        assert p.replica.entries == [b"evil"], "whole, it is installed"


@pytest.mark.parametrize("last", [9, 8, 4])
def test_a_stale_or_repeated_dump_is_refused(last: int) -> None:
    """V6. The leader sent it long ago, or twice."""
    with play() as p:
        p.hear("c2", *pieces(sent_dump(entry(9, 2), entry(8, 2)), 3))
        own = (p.replica.folder / "raft.dump").read_bytes()
        p.hear("c2", entries(3, commit=10, prev=(9, 2), new=[entry(10, 3)]))
        p.tick()
        assert p.replica.entries == [b"a", b"b", b"10-3"]
        assert p.hear("c2", *pieces(sent_dump(entry(last, 2), entry(last - 1, 2), b"old"), 3)) == []
        for _ in range(2):
            assert (p.replica.folder / "raft.dump").read_bytes() == own
            assert p.replica.entries == [b"a", b"b", b"10-3"] and p.log == [(8, 2), (9, 2), (10, 3)]
            p.restart()
            p.hear("c2", entries(3, commit=10, prev=(10, 3)))
            p.tick()


@BOTH
def test_a_follower_that_asks_when_a_dump_was_just_made_gets_it(kind: type[Replica]) -> None:
    """The library says "there is no dump yet" as often as it can for a tenth of a second, and does nothing else."""
    with play(kind) as p:
        answer = {"type": "next_node_idx", "reset": False, "success": True, "term": p.lead()}
        for _ in range(2):
            for number in range(9):
                p.world.write(p.replica, b"%d" % number)
            p.tick()
            p.hear("c1", answer | {"next_node_idx": p.log[-1][0] + 1})
            p.tick()
            p.node.forceLogCompaction()
            p.tick()
        p.hear("c2", answer | {"reset": True, "success": False, "next_node_idx": 2})
        p.tick(0.2)
        frames = [message["serialized"] for message in p.sent("c2") if "serialized" in message]
        if is_safe(kind):
            assert [frame[1:] for frame in frames] == [(True, False), (False, True)]
        else:
            assert set(frames) == {None} and len(frames) > 500


def test_a_dump_of_another_cluster_is_refused() -> None:
    with play() as p:
        assert p.hear("c2", *pieces(sent_dump(entry(9, 2), entry(8, 2), cluster="other"), 3)) == []
        assert not (p.replica.folder / "raft.dump").exists()


def test_what_a_dump_jumped_over_has_an_unknown_outcome() -> None:
    """The proposal was forwarded and is inside the dump; its callback could never be called."""
    with play() as p:
        grown(p, 3, term=1)
        outcome = p.world.write(p.replica, b"x")
        p.tick()
        (forwarded,) = p.sent("c1")
        assert (forwarded["type"], forwarded["command"]) == ("apply_command", b"\0x")
        answer = {"type": "apply_command_response", "request_id": forwarded["request_id"], "log_idx": 4, "log_term": 1}
        p.hear("c1", answer)
        assert outcome == []
        p.hear("c1", *pieces(sent_dump(entry(9, 1), entry(8, 1)), 1))
        assert outcome == [(None, FAIL_REASON.UNKNOWN_OUTCOME)]


def test_what_was_forwarded_to_a_leader_that_is_gone_has_an_unknown_outcome() -> None:
    with play() as p:
        grown(p, 3, term=1)
        outcome = p.world.write(p.replica, b"x")
        p.tick()
        p.world.disconnect("c0", "c2")
        assert outcome == [], "not the leader"
        p.world.disconnect("c0", "c1")
        assert outcome == [(None, FAIL_REASON.LEADER_CHANGED)]


# ---- foreign commands -----------------------------------------------------------------------------------------------

BOMB = b"csnapline.errors\nnothing_of_this_name\n."
FOREIGN = {
    "no-op": b"\1",
    "membership": b"\2" + pickle.dumps(["rem", "c1"]),
    "version": b"\3" + pickle.dumps(9),
    "unknown kind": b"\7x",
    "none at all": b"",
    "a byte too long": b"\0" + bytes(ENTRY_BYTES_MAX + 1),
}


@pytest.mark.parametrize("command", FOREIGN)
def test_a_forwarded_command_of_another_kind_is_denied(command: str) -> None:
    """H13. The library obeys membership commands even with dynamicMembershipChange=False."""
    with play() as p:
        p.lead()
        p.sent("c1")
        length = len(p.log)
        answers = p.hear("c1", {"type": "apply_command", "command": FOREIGN[command], "request_id": 4})
        p.hear("c1", {"type": "apply_command", "command": FOREIGN[command]})
        p.tick()
        refused = {"type": "apply_command_response", "request_id": 4, "error": FAIL_REASON.REQUEST_DENIED}
        assert answers == [refused] and len(p.log) == length


def test_the_replica_itself_changes_neither_members_nor_versions() -> None:
    with play() as p:
        p.lead()
        length = len(p.log)
        denied: list[int] = []
        p.node.conf.dynamicMembershipChange = True  # even then
        p.node.addNodeToCluster(RaftNode("c9", ""), lambda _, code: denied.append(code))
        p.node.removeNodeFromCluster(p.world.nodes["c1"], lambda _, code: denied.append(code))
        p.node.setCodeVersion(0, lambda _, code: denied.append(code))
        p.tick()
        assert denied == [FAIL_REASON.REQUEST_DENIED] * 3 and len(p.log) == length


@pytest.mark.parametrize("kind", [b"\2", b"\3", b"\7", b""])
def test_a_committed_entry_of_another_kind_ends_the_replica_unread(kind: bytes) -> None:
    """H12. Only another program can have written it."""
    with play() as p:
        p.hear("c1", entries(1, commit=2, prev=(1, 0), new=[(kind + BOMB if kind else b"", 2, 1)]))
        p.tick()
        assert "another program wrote it" in p.world.bad[0]


def test_entries_in_pieces_are_dropped_unread() -> None:
    """H12. The library unpickles them."""
    with play() as p:
        for transmission in ("start", "process", "finish"):
            message = entries(1, commit=2, prev=(1, 0)) | {"transmission": transmission, "data": BOMB}
            assert p.hear("c1", message) == []
        assert p.log == [(1, 0)] and p.world.bad == []


def test_messages_of_strangers_are_dropped() -> None:
    with play() as p:
        p.world.nodes["c9"] = RaftNode("c9", "127.0.0.1:9")
        p.hear("c9", entries(9, commit=1, prev=(1, 0), new=[entry(2, 9)]))
        assert p.log == [(1, 0)] and p.replica.term == 0
