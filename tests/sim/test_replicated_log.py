"""The model of the log: random faults (`log_world.py`), single situations, and mutants that the oracles find."""

from collections import Counter

import pytest
from tests.sim.log_world import SECOND, World

from snapline.coordinator.state.fleet_records import Committed, Rejected
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import UsageError
from snapline.messages.status import Standing
from snapline.sim.choices import RandomChoices, RecordedChoices
from snapline.sim.world.replicated_log import (
    IMAGE_AFTER,
    LEASE_NS,
    MS,
    LeaderTerm,
    RaftModel,
    SimReplica,
    SimulatedLog,
    Then,
)

SEEDS = range(100)

# ---- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "seeds"),
    [
        *((count, SEEDS) for count in (1, 3, 5)),
        *(pytest.param(count, range(1_000, 2_500), marks=pytest.mark.slow) for count in (1, 3, 5)),
    ],
)
def test_no_run_with_faults_breaks_what_callers_rely_on_and_all_that_the_real_library_does_is_seen(
    count: int, seeds: range
) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, count=count)
        assert world.run() == [], f"seed {seed}"
        seen += world.seen
    wanted = (
        "two believe",
        "committed through the successor",
        "another entry took its place",
        "there is no leader",
        "the leader has changed",
        "the leader changed before it answered",
        "no answer within the deadline",
        "the answer was lost",
    )
    assert [what for what in wanted if not seen[what]] == [] or count == 1
    assert seen["leader"] > 3 * len(seeds)


def test_the_same_seed_gives_the_same_run() -> None:
    def trace_of(seed: int) -> list[object]:
        world = World(seed)
        world.run()
        return world.trace

    assert trace_of(3) == trace_of(3) != trace_of(4)


def test_a_recorded_run_is_replayed_from_its_choices_alone() -> None:
    """Every key is asked for once: else a record could not hold both answers."""

    def run_with(choices: RandomChoices | RecordedChoices) -> list[object]:
        world = World(7)
        world.log.raft.pick = lambda key, n: choices.pick("log", key, n)
        world.run()
        return world.trace

    for seed in range(10):
        drawn = RandomChoices(seed, is_recording=True)
        first = run_with(drawn)
        assert drawn.record is not None
        assert run_with(RecordedChoices(drawn.record)) == first


# ---- single situations ------------------------------------------------------------------------------------------------


def calm_world(count: int = 3) -> World:
    """A world without chance that has a leader."""
    world = World(0, count=count, calm=True)
    world.run_until(SECOND)
    assert world.log.leader
    return world


def others(world: World) -> list[str]:
    return [node for node in world.nodes if node != world.log.leader]


def isolate(world: World, node: str) -> None:
    world.blocked |= {pair: None for other in world.nodes for pair in ((node, other), (other, node))}


@pytest.mark.parametrize(("count", "most_ms"), [(1, 1), (3, 11), (5, 11)])
def test_a_commit_takes_a_round_trip_to_a_majority_and_a_sync(count: int, most_ms: int) -> None:
    world = calm_world(count)
    proposal = world.propose(world.log.leader)
    world.run_until(2 * SECOND)
    assert isinstance(proposal.outcomes[0], Committed)
    assert MS // 10 <= proposal.ended_ns - proposal.begun_ns <= most_ms * MS


def test_one_replica_leads_after_a_tenth_of_a_second() -> None:
    world = World(0, count=1, calm=True)
    world.run_until(99 * MS)
    assert world.log.leader == ""
    world.run_until(102 * MS)
    assert world.log.leader == "c1"


def test_a_majority_that_is_connected_has_a_leader_soon() -> None:
    for seed in range(30):
        world = World(seed, count=5)
        world.run_until(2 * SECOND)
        gone = [world.log.leader, others(world)[0]]
        for node in gone:
            world.crash(node) if seed % 2 else isolate(world, node)
        world.run_until(5 * SECOND)
        assert world.log.leader not in ("", *gone), f"seed {seed}"


def test_a_leader_without_a_majority_believes_on_for_a_while_and_then_steps_down() -> None:
    world = calm_world()
    stale = world.log.leader
    isolate(world, stale)
    world.run_until(world.now_ns + LEASE_NS * 9 // 10)
    assert world.standings[stale].is_leader and world.log.leader not in ("", stale)
    world.run_until(world.now_ns + LEASE_NS * 3 // 10)
    assert not world.standings[stale].is_leader


def test_what_a_stale_leader_proposed_is_rejected_once_others_took_its_place() -> None:
    world = calm_world()
    stale = world.log.leader
    isolate(world, stale)
    lost = world.propose(stale)
    world.run_until(world.now_ns + 700 * MS)
    kept = world.propose(world.log.leader)
    world.blocked.clear()
    world.run_until(world.now_ns + SECOND)
    assert isinstance(lost.outcomes[0], Rejected)
    assert [entry for _, entry, _ in world.committed] == [kept.entry]


def test_what_a_stale_leader_sent_is_committed_by_its_successor() -> None:
    """The leader's word arrives, the answers do not: it learns of the commit as a follower."""
    world = calm_world()
    stale = world.log.leader
    world.blocked |= {(node, stale): None for node in others(world)}
    proposal = world.propose(stale)
    world.run_until(world.now_ns + 500 * MS)
    assert proposal.outcomes == [] and world.committed == []
    isolate(world, stale)
    world.run_until(world.now_ns + SECOND)
    assert [entry for _, entry, _ in world.committed] == [proposal.entry]
    world.blocked.clear()
    world.run_until(world.now_ns + SECOND)
    assert isinstance(proposal.outcomes[0], Committed)


def test_nothing_acknowledged_is_lost_when_all_restart() -> None:
    world = calm_world()
    proposal = world.propose(world.log.leader)
    while not proposal.outcomes:
        world.run_until(world.now_ns + MS // 10)
    for node in world.nodes:
        world.crash(node)
    for node in world.nodes:
        world.start(node)
    assert all(not world.log.state_of(node).image.requests for node in world.nodes)
    world.run_until(world.now_ns + 2 * SECOND)
    assert world.log.entries == [proposal.entry]
    assert list(world.log.state_of(world.log.leader).image.requests) == ["w0"]
    world.log.validate()


def test_a_proposal_on_its_way_when_its_leader_dies_may_be_kept_or_lost() -> None:
    fates: Counter[int] = Counter()
    for seed in range(30):
        world = World(seed)
        world.run_until(2 * SECOND)
        leader = world.log.leader
        proposal = world.propose(leader)
        world.crash(leader)
        world.run_until(5 * SECOND)
        assert proposal.outcomes == []
        fates[len(world.committed)] += 1
    assert fates[0] > 3 and fates[1] > 3


def test_a_replica_that_lacks_much_takes_the_state_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    world = calm_world()
    late = others(world)[0]
    world.crash(late)
    for _ in range(IMAGE_AFTER + 1):
        world.propose(world.log.leader)
    world.run_until(2 * SECOND)
    restored: list[bytes] = []
    restore = FleetState.restore

    def noticing(image: bytes) -> FleetState:
        restored.append(image)
        return restore(image)

    monkeypatch.setattr(FleetState, "restore", noticing)
    world.start(late)
    world.run_until(3 * SECOND)
    state = world.log.state_of(late)
    assert state.freeze() == world.log.canonical.freeze() and len(restored) == 1
    assert world.log.state_of(late) is state


def test_a_deposed_leader_is_followed_by_another() -> None:
    for count in (1, 3):
        world = calm_world(count)
        before, term = world.log.leader, world.log.raft.term
        world.log.depose()
        world.run_until(world.now_ns + SECOND)
        assert world.log.raft.term == term + 1 and world.log.leader
        assert (world.log.leader == before) == (count == 1)


def test_unknown_means_kept_lost_or_late() -> None:
    world = World(5)
    world.run_until(SECOND)
    world.log.set_unknown(1000)
    for _ in range(60):
        world.propose(world.log.leader)
    world.run_until(10 * SECOND)
    assert world.seen["the answer was lost"] == 60
    assert 20 < len(world.committed) < 60
    assert [entry for _, entry, _ in world.committed] != sorted(entry for _, entry, _ in world.committed)


def test_who_is_up_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="c1 is up"):
        calm_world().log.start("c1")


def test_validate_finds_a_state_that_somebody_changed() -> None:
    world = calm_world()
    world.log.validate()
    world.log.state_of(world.log.leader).image.begun += 1
    with pytest.raises(AssertionError):
        world.log.validate()


# ---- mutants: the oracles above can fail ------------------------------------------------------------------------------


class ForgetsTheLast(RaftModel):
    """A new leader begins without its last slot."""

    def _begin_leader_term(self, leader: SimReplica, voters: list[SimReplica]) -> None:
        leader.length = max(0, leader.length - 1)
        super()._begin_leader_term(leader, voters)


class VotesForAnybody(RaftModel):
    def is_as_good(self, candidate: SimReplica, voter: SimReplica) -> bool:
        return True


class AcknowledgesEarly(SimulatedLog):
    """Tells the proposer before a majority has it."""

    def _append(self, leader_term: LeaderTerm, proposer: SimReplica, entry: bytes, then: Then | None) -> None:
        super()._append(leader_term, proposer, entry, None)
        if then is not None:
            result = FleetState.restore(proposer.state.freeze()).apply(decode_operation(entry))
            self._tell_later(proposer, proposer.run, MS, then, Committed(result))


class CommitsWithoutMajority(RaftModel):
    def _agreed(self, leader_term: LeaderTerm) -> int:
        return max(leader_term.match.values(), default=0)


class ForgetsItsVote(RaftModel):
    """Old leaders are not refused."""

    def _begin_leader_term(self, leader: SimReplica, voters: list[SimReplica]) -> None:
        terms = {voter.name: voter.term for voter in voters if voter is not leader}
        super()._begin_leader_term(leader, voters)
        for voter in voters:
            voter.term = terms.get(voter.name, voter.term)


class LosesWhatIsDurable(RaftModel):
    def take_down(self, replica: SimReplica) -> None:
        super().take_down(replica)
        replica.length = max(0, replica.length - 1)


class RejectsWhatIsUnknown(SimulatedLog):
    """Takes a change of the leader for proof that nothing was appended."""

    def on_leader_changed(self, replica: SimReplica) -> None:
        self._settle_waiting(replica, lambda waiting: True, lambda slot: Rejected("the leader has changed"))


class AppendsTwice(SimulatedLog):
    """A forwarded proposal whose answer is late is sent again."""

    def _append(self, leader_term: LeaderTerm, proposer: SimReplica, entry: bytes, then: Then | None) -> None:
        if proposer.name != leader_term.leader:
            super()._append(leader_term, proposer, entry, None)
        super()._append(leader_term, proposer, entry, then)


class LeadsBeforeItsBarrier(RaftModel):
    def _begin_leader_term(self, leader: SimReplica, voters: list[SimReplica]) -> None:
        super()._begin_leader_term(leader, voters)
        self.tell(leader, Standing(self.term, leader.name, is_leader=True))


class SharesTerms(RaftModel):
    def _begin_leader_term(self, leader: SimReplica, voters: list[SimReplica]) -> None:
        self.term -= self.term > 1
        super()._begin_leader_term(leader, voters)


class AppliesOutOfOrder(SimulatedLog):
    def _catch_up(self, replica: SimReplica, length: int) -> None:
        slots = self._committed[replica.applied : length]
        for slot in reversed(slots) if len(slots) < IMAGE_AFTER else ():
            if slot.entry is not None:
                replica.state.apply(decode_operation(slot.entry))
            replica.applied = length
        super()._catch_up(replica, length)


MUTANTS: tuple[type[SimulatedLog | RaftModel], ...] = (
    ForgetsTheLast,
    VotesForAnybody,
    AcknowledgesEarly,
    CommitsWithoutMajority,
    ForgetsItsVote,
    LosesWhatIsDurable,
    RejectsWhatIsUnknown,
    AppendsTwice,
    LeadsBeforeItsBarrier,
    SharesTerms,
    AppliesOutOfOrder,
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_mutant_is_found_where_the_model_is_not(mutant: type[SimulatedLog | RaftModel]) -> None:
    seed = next(seed for seed in range(200) if World(seed, kind=mutant).run())
    assert World(seed).run() == []
