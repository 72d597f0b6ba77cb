"""The coordinator's replicated log in virtual time, with the interface that the coordinator uses.

Problem. The library of the real log owns threads, sockets, clock and files, so it cannot run in a simulated world. Its interface
to the coordinator is small: `propose → committed, rejected, unknown`, and the leader. This model has the same interface for
replicas c1 … cn, and allows all behaviour of the real library that was observed within the fault budget. `raft_model.py` models
the lower half: leaders and commits. This module defines:

1. *Apply.* One `FleetState` is canonical: the state of the replica that committed last. Other replicas apply entries, or
   restore the frozen canonical state, only on access or when they take over, so three replicas cost little more than one.
2. *Committed*: this outcome is reported after the proposer's replica has applied the entry, under any leader.
3. *Rejected*: there is no leader, the leader to which the proposal was forwarded has been replaced, or another entry took its
   position. The entry never gets into the log.
4. *Unknown*: there is no outcome within `PROPOSE_NS`, or the leader was replaced after forwarding. With a probability set by
   `set_unknown`, the answer or the proposal is lost, or the proposal is delayed. The entry may be in the log, now or later.
5. A new leader is notified when its barrier is committed. By then the leader has applied all earlier committed entries.

Outcomes and standings are reported only from events scheduled with `at`, never from within `propose`.

This module carries G8 in the simulator. Choices come from the stream "log". Duty of callers: never change a state returned by
`state_of` or `canonical`; `validate` detects such changes.
"""

from collections.abc import Callable

from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import UsageError
from snapline.messages.status import Standing
from snapline.sim.choices import Choices
from snapline.sim.world.raft_model import MS, LeaderTerm, RaftModel, SimReplica, Slot, Waiting

PROPOSE_NS = 5_000 * MS
"""Time limit of a proposal, as in the real driver."""

IMAGE_AFTER = 64
"""Maximum number of slots applied one by one. A replica that lacks more slots restores the whole state, as from a dump."""

Then = Callable[[ProposalOutcome], None]

_LATE = Unknown("no answer within the deadline")


class SimulatedLog:
    """The replicated log. All nodes are down until `start`.

    Attributes:
        canonical: state after all committed entries.
        entries: committed entries, in order.
        raft: model of leaders and commits.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        *,
        at: Callable[[int, Callable[[], None]], None],
        now: Callable[[], int],
        choices: Choices,
        delay_ns: Callable[[str, str], int | None],
        on_standing: Callable[[str, Standing], None],
        on_committed: Callable[[int, str, bytes, OperationResult], None],
    ) -> None:
        """Create the log; nothing happens before `start`.

        Args:
            at: function that schedules a call at a time in virtual nanoseconds.
            delay_ns: function that returns the delay between two nodes that are both up; None if the second is unreachable now.
            on_standing: function that is called when a node learns of another leader or term, but not for its crash or start.
            on_committed: function that is called at the commit with (position in `entries`, proposer, entry, result).
        """
        self.raft = RaftModel(
            nodes, self, at=at, now=now, pick=lambda key, n: choices.pick("log", key, n), delay_ns=delay_ns
        )
        self._replicas = self.raft.replicas
        self._tell_standing, self._tell_committed = on_standing, on_committed
        self._committed: list[Slot] = []
        self._unknown_per_mille = 0
        self.canonical = FleetState()
        self.entries: list[bytes] = []

    @property
    def leader(self) -> str:
        """Return the leader of the newest term if it knows that it leads; "" if there is none."""
        leader_term = self.raft.newest
        if (
            leader_term is None
            or not leader_term.is_ready
            or self._replicas[leader_term.leader].leading is not leader_term
        ):
            return ""
        return leader_term.leader

    def is_up(self, node: str) -> bool:
        """Return whether the node is running."""
        return self._replicas[node].is_up

    def state_of(self, node: str) -> FleetState:
        """Return the replica's applied state, which stays the same object until the node crashes. A leader's state has all entries it knows
        to be committed."""
        replica = self._replicas[node]
        if replica.is_up and replica.leading is None:
            self._catch_up(replica, replica.known)
        return replica.state

    # ---- for the world --------------------------------------------------------------------------------------------

    def start(self, node: str) -> None:
        """Start a replica with its durable log. Its state is empty until the replica learns which entries are committed."""
        replica = self._replicas[node]
        if replica.is_up:
            raise UsageError(f"replica {node} is up: crash it before you start it again")
        replica.state, replica.applied, replica.known = FleetState(), 0, 0
        self.raft.bring_up(replica)

    def crash(self, node: str) -> None:
        """Crash the replica. Slots that are not durable are lost, and its proposers get no outcome. Has no effect if the replica is
        down."""
        replica = self._replicas[node]
        if replica.is_up:
            replica.waiting = []
            self.raft.take_down(replica)

    def depose(self) -> None:
        """Suppress the newest leader's heartbeats until another leader is elected."""
        self.raft.depose()

    def set_unknown(self, per_mille: int) -> None:
        """Set the rate per thousand of proposals whose outcome is made unknown by a random draw."""
        self._unknown_per_mille = per_mille

    def propose(self, node: str, entry: bytes, then: Then) -> None:
        """Propose `entry`; `then` gets its outcome once, unless the node crashes before that."""
        replica = self._replicas[node]
        if not replica.is_up:
            return
        replica.proposals += 1
        if self._unknown_per_mille and self._is_unlucky(replica):
            self._propose_into_the_dark(replica, entry, then)
        elif replica.leading is not None:
            self._append(replica.leading, replica, entry, then)
        elif replica.reported_standing.leader:
            self._forward(replica, self._replicas[replica.reported_standing.leader], entry, then)
        else:
            self._tell_later(replica, replica.run, 0, then, Rejected("there is no leader"))

    # ---- proposals ------------------------------------------------------------------------------------------------

    def _append(self, leader_term: LeaderTerm, proposer: SimReplica, entry: bytes, then: Then | None) -> None:
        """Append the entry to the leader's log; `then` is None if no proposer waits for the outcome."""
        slot = Slot(entry, index=len(leader_term.slots), term=leader_term.term, proposer=proposer.name)
        leader_term.slots.append(slot)
        leader_term.sends = 0
        if then is not None:
            is_forwarded = proposer.name != leader_term.leader
            proposer.waiting.append(Waiting(slot, then, self.raft.now() + PROPOSE_NS, is_forwarded))
        self.raft.replicate(leader_term)

    def _forward(self, replica: SimReplica, leader: SimReplica, entry: bytes, then: Then) -> None:
        there_ns, run = self.raft.delay(replica, leader), replica.run
        if there_ns is None:
            self._tell_later(replica, run, PROPOSE_NS, then, _LATE)
        else:
            self.raft.at(self.raft.now() + there_ns, lambda: self._on_forwarded(replica, run, leader, entry, then))

    def _on_forwarded(self, replica: SimReplica, run: int, leader: SimReplica, entry: bytes, then: Then) -> None:
        if leader.leading is not None:
            self._append(leader.leading, replica, entry, then if replica.run == run else None)
            return
        back_ns = self.raft.delay(leader, replica)
        if back_ns is None:
            self._tell_later(replica, run, PROPOSE_NS, then, _LATE)
        else:
            self._tell_later(replica, run, back_ns, then, Rejected("the leader has changed"))

    def _is_unlucky(self, replica: SimReplica) -> bool:
        return self.raft.pick(("unknown", replica.name, replica.proposals), 1000) >= 1000 - self._unknown_per_mille

    def _propose_into_the_dark(self, replica: SimReplica, entry: bytes, then: Then) -> None:
        """Make the outcome of a proposal unknown: the answer is lost, and the proposal itself is appended, delayed or lost."""
        key, run = (replica.name, replica.proposals), replica.run
        wait_ns = (5, 200, 5_000)[self.raft.pick(("unknown for", *key), 3)] * MS
        self._tell_later(replica, run, wait_ns, then, Unknown("the answer was lost"))
        match self.raft.pick(("unknown what", *key), 3):
            case 0:
                self._append_unheard(replica, run, entry)
            case 1:
                late_ns = (1 + self.raft.pick(("unknown late", *key), 10)) * 50 * MS
                self.raft.at(self.raft.now() + late_ns, lambda: self._append_unheard(replica, run, entry))

    def _append_unheard(self, replica: SimReplica, run: int, entry: bytes) -> None:
        if replica.run == run and replica.leading is not None:
            self._append(replica.leading, replica, entry, None)

    def _tell_later(self, replica: SimReplica, run: int, wait_ns: int, then: Then, outcome: ProposalOutcome) -> None:
        def tell() -> None:
            if replica.run == run:
                then(outcome)

        self.raft.at(self.raft.now() + wait_ns, tell)

    def _settle_waiting(
        self, replica: SimReplica, is_over: Callable[[Waiting], bool], outcome_of: Callable[[Slot], ProposalOutcome]
    ) -> None:
        """Pass outcomes to proposers whose wait is over. Their reaction may crash the replica."""
        done = [waiting for waiting in replica.waiting if is_over(waiting)]
        if done:
            replica.waiting = [waiting for waiting in replica.waiting if not is_over(waiting)]
        run = replica.run
        for waiting in done:
            if replica.run == run:
                waiting.then(outcome_of(waiting.slot))

    def _resolve(self, replica: SimReplica) -> None:
        applied = replica.applied
        self._settle_waiting(replica, lambda waiting: waiting.slot.index < applied, self._outcome_of)

    def _outcome_of(self, slot: Slot) -> ProposalOutcome:
        """Return the outcome of a slot whose position is committed."""
        if self._committed[slot.index] is slot:
            return Committed(slot.result)
        return Rejected("another entry took its place")

    # ---- states ---------------------------------------------------------------------------------------------------

    def on_committed(self, leader_term: LeaderTerm, leader: SimReplica, length: int) -> None:
        """Apply the leader's committed slots. Slots that no replica has applied before are reported as committed."""
        done = len(self._committed)
        self._catch_up(leader, min(length, done))
        if length > done:
            self._commit(leader_term, leader, length)
        self._resolve(leader)

    def _commit(self, leader_term: LeaderTerm, leader: SimReplica, length: int) -> None:
        done = len(self._committed)
        assert not done or leader_term.slots[done - 1] is self._committed[-1], (
            f"term {leader_term.term} lost committed entries"
        )
        state = self.canonical = leader.state
        leader.applied = length
        for slot in leader_term.slots[done:length]:
            self._committed.append(slot)
            if slot.entry is not None:
                slot.result = state.apply(decode_operation(slot.entry))
                self.entries.append(slot.entry)
                self._tell_committed(len(self.entries) - 1, slot.proposer, slot.entry, slot.result)

    def _catch_up(self, replica: SimReplica, length: int) -> None:
        """Apply the committed slots that this replica lacks, or restore the whole state if it lacks too many."""
        missing = length - replica.applied
        if missing <= 0:
            return
        if missing > IMAGE_AFTER and length == len(self._committed):
            replica.state.image = FleetState.restore(self.canonical.freeze()).image
        else:
            for slot in self._committed[replica.applied : length]:
                if slot.entry is not None:
                    replica.state.apply(decode_operation(slot.entry))
        replica.applied = length

    # ---- hooks ----------------------------------------------------------------------------------------------------

    def on_standing_changed(self, replica: SimReplica) -> None:
        self._tell_standing(replica.name, replica.reported_standing)

    def on_leader_changed(self, replica: SimReplica) -> None:
        changed = Unknown("the leader changed before it answered")
        self._settle_waiting(replica, lambda waiting: waiting.is_forwarded, lambda slot: changed)

    def on_beat(self, replica: SimReplica) -> None:
        """Pass outcomes to a follower's proposers whose proposals are committed or past their time limit."""
        if replica.waiting:
            now_ns = self.raft.now()
            if replica.leading is None:
                self._catch_up(replica, replica.known)
                self._resolve(replica)
            self._settle_waiting(replica, lambda waiting: waiting.deadline_ns <= now_ns, lambda slot: _LATE)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold between events. The check costs as much as applying all entries."""
        entries = [slot.entry for slot in self._committed if slot.entry is not None]
        assert entries == self.entries, "the entries are not those that were committed"
        wanted = {replica.applied: None for replica in self._replicas.values()} | {len(self._committed): None}
        folds = self._folds(wanted)
        assert self.canonical.freeze() == folds[len(self._committed)], "the canonical state is not what was committed"
        for replica in self._replicas.values():
            assert replica.state.freeze() == folds[replica.applied], f"the state of {replica.name} was tampered with"
        holders = [replica.name for replica in self._replicas.values() if self._holds_all(replica)]
        assert len(holders) >= self.raft.majority, f"only {holders} hold all that is committed"
        if self.raft.newest is not None and self._committed:
            last = len(self._committed) - 1
            assert self.raft.newest.slots[last] is self._committed[last], "the newest leader lacks committed entries"

    def _folds(self, wanted: dict[int, None]) -> dict[int, bytes]:
        """Return the frozen state after each wanted number of committed slots, computed from the beginning."""
        state, folds = FleetState(), {}
        for length, slot in enumerate([None, *self._committed]):
            if slot is not None and slot.entry is not None:
                state.apply(decode_operation(slot.entry))
            if length in wanted:
                folds[length] = state.freeze()
        return folds

    def _holds_all(self, replica: SimReplica) -> bool:
        replica.settle(self.raft.now())
        length = len(self._committed)
        return replica.length >= length and all(
            own is committed for own, committed in zip(replica.log[:length], self._committed, strict=True)
        )
