"""Replicas that lost their disks: written out, each with the mutant that shows what the rule is for."""

from collections.abc import Callable
from typing import Any, Self

import pytest
from tests.coordinator.raft.sim import Replica, SafeReplica, World
from tests.coordinator.raft.test_fuzz import CountsWhileLearning, NobodyAsked, TakenAsItIs, VotesWhileLearning

from snapline.coordinator.raft.learner import is_majority_lost, judge
from snapline.errors import LogError
from snapline.storage.disk.store_files import LogMark

OLD, NEW = "old", "new"


def test_a_log_is_marked_before_it_votes_and_a_second_one_learns() -> None:
    assert judge(OLD, False, [], "c1") == (True, LogMark(OLD, True)), "the first log of this replica"
    assert judge(OLD, False, [LogMark(OLD, True)], "c1") == (True, None), "it died between mark and fact"
    assert judge(OLD, True, [LogMark(OLD, True)], "c1") == (True, None)
    assert judge(NEW, False, [LogMark(OLD, True)], "c1") == (False, LogMark(NEW, False))
    assert judge(NEW, False, [LogMark(OLD, True), LogMark(NEW, False)], "c1") == (False, None)
    assert judge(NEW, True, [LogMark(OLD, True), LogMark(NEW, True)], "c1") == (True, None)


def test_an_old_disk_comes_back_unless_its_successor_has_voted() -> None:
    learning = [LogMark(OLD, True), LogMark(NEW, False)]
    assert judge(OLD, True, learning, "c1") == (True, LogMark(OLD, True))
    with pytest.raises(LogError, match="another log took the place of this one of replica c1: empty"):
        judge(OLD, True, [*learning, LogMark(NEW, True)], "c1")
    with pytest.raises(LogError, match="another log"):
        judge(OLD, True, [*learning, LogMark(NEW, True), LogMark("third", False)], "c1")


def test_a_majority_is_lost_when_the_rest_can_elect_nobody() -> None:
    voter, lost = [LogMark(OLD, True)], [LogMark(OLD, True), LogMark(NEW, False)]
    assert is_majority_lost(["c1"], {"c1": lost}) == ["c1"]
    assert is_majority_lost(["c1", "c2", "c3"], {"c1": lost, "c2": voter, "c3": voter}) == []
    assert is_majority_lost(["c1", "c2", "c3"], {"c1": lost, "c2": lost, "c3": voter}) == ["c1", "c2"]
    assert is_majority_lost(["c1", "c2", "c3"], {"c1": lost}) == [], "those that never ran have nothing to lose"
    assert is_majority_lost(["c1", "c2", "c3", "c4"], {"c1": lost, "c2": lost}) == ["c1", "c2"]


# ---- in virtual time --------------------------------------------------------------------------------------------------


class Three:
    """Three replicas of which the first leads."""

    def __init__(self, kind: type[Replica] = SafeReplica) -> None:
        self.world = World(7, kind=kind)
        self.a, self.b, self.c = self.world.replicas.values()

    def __enter__(self) -> Self:
        self.world.__enter__()
        self.run(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self.world.__exit__(*error)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        return self.world.run(seconds, until)

    def elect(self, replica: Replica) -> None:
        """Have it stand for election now; the others wait."""
        replica.node._SyncObj__raftElectionDeadline = 0.0
        assert self.run(0.5, lambda: replica.is_leader), f"{replica.name} is elected"

    def ack(self, replica: Replica, entry: bytes) -> bool:
        """Write there; whether it is acknowledged soon."""
        outcome = self.world.write(replica, entry)
        return self.run(0.3, lambda: bool(outcome)) and outcome[0][1] == 0

    def empty(self, replica: Replica) -> None:
        """It dies with its disk and starts again."""
        replica.crash()
        replica.empty()
        replica.start()

    def heal(self) -> None:
        self.world.cuts.clear()

    def is_whole(self) -> bool:
        replicas = (self.a, self.b, self.c)
        return not any(each.is_learner for each in replicas) and len({tuple(each.entries) for each in replicas}) == 1


def who_forgot_an_entry_elects_nobody(three: Three) -> None:
    """What two acknowledged must outlive the disk of one of them, though the other is away."""
    three.elect(three.a)
    three.world.cut("c1", "c2")
    three.world.cut("c0", "c2")
    assert three.ack(three.a, b"w")
    three.world.cut("c0", "c1")
    three.empty(three.b)
    three.world.cuts.discard(("c1", "c2"))
    three.run(8.0)
    assert not three.b.is_leader and not three.c.is_leader, "there is no majority that remembers"
    three.heal()
    assert three.run(10.0, lambda: three.is_whole() and b"w" in three.a.entries)


def who_forgot_a_vote_votes_no_second_time(three: Three) -> None:
    """The leader that its lost vote made is in office still when another stands in the same term."""
    three.run(0.2)
    term = three.c.term
    three.world.cut("c0", "c2")
    three.world.cut("c1", "c2")
    three.elect(three.a)
    assert three.a.term == term + 1
    three.world.cut("c0", "c1")
    three.empty(three.b)
    three.world.cuts.discard(("c1", "c2"))
    three.run(0.02)
    three.c.node._SyncObj__raftElectionDeadline = 0.0
    three.run(0.3)
    assert not three.c.is_leader, "two leaders of one term"
    three.heal()
    assert three.run(10.0, three.is_whole)


def who_learns_confirms_nothing_to_a_leader_of_old(three: Three) -> None:
    """Its lost log confirmed an entry of a newer leader, whom it does not know any more."""
    three.elect(three.a)
    three.run(0.1)
    three.world.cut("c0", "c1")
    three.world.cut("c0", "c2")
    three.elect(three.c)
    assert three.ack(three.c, b"x")
    three.world.cut("c1", "c2")
    three.world.cuts.discard(("c0", "c1"))
    three.empty(three.b)
    assert three.a.is_leader
    assert not three.ack(three.a, b"y"), "a second entry in the place of x"
    three.run(0.5)
    assert three.b.is_learner
    three.heal()
    assert three.run(10.0, lambda: three.is_whole() and b"x" in three.a.entries)


SCRIPTS = (
    who_forgot_an_entry_elects_nobody,
    who_forgot_a_vote_votes_no_second_time,
    who_learns_confirms_nothing_to_a_leader_of_old,
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_lost_log_promised_is_kept(script: Callable[[Three], None]) -> None:
    with Three() as three:
        script(three)
        assert not three.world.bad


@pytest.mark.parametrize(
    ("mutant", "script"),
    [
        *[(TakenAsItIs, script) for script in SCRIPTS],
        (VotesWhileLearning, who_forgot_an_entry_elects_nobody),
        (VotesWhileLearning, who_forgot_a_vote_votes_no_second_time),
        (CountsWhileLearning, who_learns_confirms_nothing_to_a_leader_of_old),
        (NobodyAsked, who_learns_confirms_nothing_to_a_leader_of_old),
    ],
)
def test_without_the_rule_it_breaks(mutant: type[Replica], script: Callable[[Three], None]) -> None:
    with Three(mutant) as three:
        try:
            script(three)
        except AssertionError:
            return
        assert three.world.bad


def test_a_learner_that_starts_again_asks_anew_and_an_old_request_does_not_count() -> None:
    """Its own entry of an earlier boot may be applied again after the next loss of memory."""
    with Three() as three:
        three.elect(three.a)
        three.empty(three.b)
        first = three.b.node._learner.request
        three.b.crash()
        three.b.start()
        learner: Any = three.b.node._learner
        assert learner is not None and learner.request != first
        learner.on_request_applied(first, 1)
        assert not learner.applied_term
        assert three.run(10.0, three.is_whole)


def test_all_disks_one_after_the_other_lose_nothing() -> None:
    with Three() as three:
        three.elect(three.a)
        for number, replica in enumerate((three.b, three.c, three.a, three.b)):
            leader = three.world.leader
            assert leader is not None and three.ack(leader, b"%d" % number)
            three.empty(replica)
            assert three.run(20.0, lambda: three.world.leader is not None and three.is_whole()), f"{replica.name}"
        assert three.a.entries == [b"0", b"1", b"2", b"3"] and not three.world.bad
