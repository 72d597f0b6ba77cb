"""Model of the coordinator's replicated log in virtual time, with the same interface that the coordinator uses in production.

Problem. The library that implements the real log uses its own threads, sockets, clock and files, so it cannot run in a simulated world.
However, the library's interface to the coordinator is small. The library reports the current leader, and each call of `propose` ends with
one of three outcomes: committed, rejected or unknown. This model provides the same interface to the replicas, which are called c1, c2 and
so on. The model can show every behaviour of the real library that was observed within the fault budget. The interface has these rules:

1. *Apply.* One `FleetState` is canonical, namely the state of the replica that committed last. Every other replica applies entries, or
   restores the frozen canonical state, only when its state is accessed or when it becomes the leader. So three replicas cost little more
   than one.
2. *Committed*: the outcome is reported when the proposer's replica has applied the entry, no matter which leader has committed the entry.
3. *Rejected*: there is no leader, the leader that received the forwarded proposal has been replaced, or another entry took the position of
   the proposal. A rejected entry is never committed.
4. *Unknown*: there was no outcome within `PROPOSE_NS`, or the leader was replaced after it had received the forwarded proposal. In
   addition, `set_unknown` sets the probability that a proposal is lost, that it is delayed, or that its answer is lost. The entry of a
   proposal with an unknown outcome may be committed now, later or never.
5. A new leader learns that it leads when its first slot (the barrier) is committed. By then, it has applied all entries that were committed
   earlier.

Outcomes and changes of leader are reported only in calls scheduled with `at`, and never within `propose`.

This module implements G8 in the simulator. Choices are drawn from the random stream "log". Callers must never modify a state that
`state_of` or `canonical` returns; `validate` detects such modifications.

Leaders and commits follow a model of Raft. The model sends no messages. Instead, it copies whole logs, in virtual time. It is based on a
paper by Ongaro and Ousterhout (2014), to which the section numbers refer:

1. A *leader term* is the append-only list of slots that one leader has in its log during one term. The list begins as a copy of the
   leader's log at its election. After this copy, the list continues with an empty slot, which is called the barrier. The durable log of
   every replica consists of the first `length` slots of some leader term. So if two logs contain the same slot, all their earlier slots are
   the same, too (log matching, 5.3).
2. A leader sends its whole log to all replicas that it can reach. Arrival and sync times are computed when the log is sent, and they take
   effect when the receiving replica is next accessed (`settle`). A call is scheduled for the time when a majority will have acknowledged
   the slots. The scheduled call commits the slots if a majority really has them and the barrier is one of them (5.4.2).
3. A replica becomes a candidate if it has heard from no leader for the duration of an election timeout. The candidate needs votes from a
   majority, and its log must be at least as up-to-date as the log of each voter (5.4.1). After a random delay, the candidate is elected in
   a new term, and its voters reject older terms from then on. A replica that has recently heard from a leader usually does not vote. Some
   voters ignore this rule at random, because the real library does not have it.
4. If a leader cannot reach a majority, it still considers itself the leader for `LEASE_NS`, and continues to append slots to its own leader
   term.
5. If a replica crashes, it loses all slots that are not durable. If the leader crashes, a random number of its latest appends in flight is
   also lost. A replica that restarts begins with its durable log.

Departures from Raft: there is no log compaction, appends in flight are not lost when a link is cut, and votes are not synced to disk.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import decode_operation
from snapline.errors import UsageError
from snapline.messages.status import Standing
from snapline.sim.choices import Choices

MS = 1_000_000

TICK_NS = 100 * MS
"""Interval between heartbeats. It is shorter than the shortest election timeout, so that a healthy leader's heartbeats arrive in time."""

ELECTION_NS = 150 * MS
ELECTION_STEP_NS = 10 * MS
ELECTION_STEPS = 16
"""Number of possible election timeouts, from 150 to 300 ms. They are a fifth of the real timeouts, so that a run has more elections."""

LEASE_NS = 1_000 * MS
"""Time for which a leader without a majority still considers itself the leader. It is as long as several elections, so
that stale leaders are common."""

ALONE_NS = 100 * MS
"""Time that a single replica takes to become the leader, which needs no votes."""

VOTE_STEP_NS = 5 * MS
VOTE_STEPS = 10
SYNC_STEP_NS = MS // 10
SYNC_STEPS = 10

SPLITS = 8
DISRUPTIONS = 4
"""One election in `SPLITS` fails because of split votes. One candidate in `DISRUPTIONS` disrupts a healthy leader."""

Key = tuple[str | int, ...]


class Slot:
    """A position in a log. The slot is a barrier if `entry` is None. `result` is valid only after the slot has been committed."""

    __slots__ = ("entry", "index", "proposer", "result", "term")

    def __init__(self, entry: bytes | None, *, index: int, term: int, proposer: str) -> None:
        self.entry, self.index, self.term, self.proposer = entry, index, term, proposer
        self.result = OperationResult("unchanged")


class LeaderTerm:
    """The slots that one leader has in its log during one term.

    Attributes:
        barrier: position of the first slot that was added in this term.
        committed: number of slots that the leader knows to be committed.
        commit_ns: time of the latest commit that is scheduled. Slots are committed in order.
        sends: how often the log was sent since a slot was last added.
        is_deposed: whether the leader's heartbeats are suppressed until another leader is elected.
    """

    def __init__(self, term: int, leader: str, slots: list[Slot]) -> None:
        self.term, self.leader, self.slots = term, leader, slots
        self.barrier = len(slots)
        self.match: dict[str, int] = {}
        self.committed = self.commit_ns = self.sends = 0
        self.is_deposed = False
        slots.append(Slot(None, index=len(slots), term=term, proposer=leader))

    @property
    def is_ready(self) -> bool:
        """Return whether the barrier slot is committed."""
        return self.committed > self.barrier


class Append(msgspec.Struct, frozen=True):
    """An append in flight to a replica. From `durable_ns` on, the first `length` slots of the leader term are durable at the replica."""

    durable_ns: int
    leader_term: LeaderTerm
    length: int
    is_acknowledged: bool


class Waiting(msgspec.Struct, frozen=True):
    """A proposer that is waiting for the outcome of its slot."""

    slot: Slot
    then: Callable[[ProposalOutcome], None]
    deadline_ns: int
    is_forwarded: bool


class SimReplica:
    """A replica of the coordinator, as modelled by the log.

    Attributes:
        run: number that increases at every start and every crash. Callbacks that were scheduled in an earlier run are dropped.
        term: newest term that the replica knows or has voted in. The replica rejects leaders of older terms.
        log, length: the replica's durable log is `log[:length]`.
        appends: appends in flight to the replica, in order. All appends in flight to a replica belong to the same leader term.
        leading: the leader term in which the replica believes it leads, or None.
        heard_from: the leader term of the leader that the replica last heard from, or None.
        heard_ns: time when the replica last heard from a leader or voted.
        majority_ns: time when the replica, as the leader, last reached a majority.
        reported_standing: the standing that was reported last: the term, the leader, and whether the replica leads.
        attempt, timeout_ns, is_disrupting: number of the current election attempt, and the random values drawn for it.
        state: the fleet's state after the applied slots.
        known: number of slots that the replica knows to be committed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = False
        self.run = self.term = 0
        self.log: list[Slot] = []
        self.length = 0
        self.appends: deque[Append] = deque()
        self.leading: LeaderTerm | None = None
        self.heard_from: LeaderTerm | None = None
        self.heard_ns = self.majority_ns = 0
        self.reported_standing = Standing()
        self.attempt = -1
        self.timeout_ns = 0
        self.is_disrupting = False
        self.state = FleetState()
        self.applied = self.known = 0
        self.waiting: list[Waiting] = []
        self.proposals = 0

    @property
    def last(self) -> tuple[int, int]:
        """Return the replica's rank in elections, which consists of the term of its last slot and the length of its log (5.4.1)."""
        return (self.log[self.length - 1].term if self.length else 0), self.length

    def settle(self, now_ns: int) -> None:
        """Extend the durable log by all appends that are durable at the given time."""
        appends = self.appends
        while appends and appends[0].durable_ns <= now_ns:
            append = appends.popleft()
            self.log, self.length = append.leader_term.slots, append.length
            if append.is_acknowledged:
                append.leader_term.match[self.name] = append.length

    def raise_term(self, term: int, now_ns: int) -> None:
        """Reject leaders of older terms from now on. Drop all appends in flight from leaders of older terms."""
        if self.term < term:
            self.settle(now_ns)
            self.term = term
            self.appends.clear()


class LogModel(Protocol):
    """Interface through which the Raft model reports commits and changes of leader. Implemented by `SimulatedLog`."""

    def on_committed(self, leader_term: LeaderTerm, leader: SimReplica, length: int) -> None:
        """Handle a commit. The leader has learned that the first `length` slots of its leader term are committed."""

    def on_standing_changed(self, replica: SimReplica) -> None:
        """Handle a change of a replica's `reported_standing`."""

    def on_leader_changed(self, replica: SimReplica) -> None:
        """Handle the first message that a replica receives from a new leader."""

    def on_beat(self, replica: SimReplica) -> None:
        """Handle a clock tick at a replica that is up."""


class RaftModel:
    """Model of elections, replication and commits in Raft.

    Attributes:
        newest: the leader term with the highest term number, or None before the first election.
        term: the highest term number so far.
        at, now, pick: functions that schedule a call, return the current time, and draw a choice.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        log_model: LogModel,
        *,
        at: Callable[[int, Callable[[], None]], None],
        now: Callable[[], int],
        pick: Callable[[Key, int], int],
        delay_ns: Callable[[str, str], int | None],
    ) -> None:
        self.replicas = {name: SimReplica(name) for name in nodes}
        self.newest: LeaderTerm | None = None
        self.term = 0
        self.majority = len(nodes) // 2 + 1
        self.at, self.now, self.pick, self._delay_ns = at, now, pick, delay_ns
        self._log_model = log_model
        self._attempt = 0
        self._is_electing = self._is_ticking = False

    # ---- life -----------------------------------------------------------------------------------------------------

    def bring_up(self, replica: SimReplica) -> None:
        """Start the replica with its durable log."""
        replica.is_up = True
        replica.run += 1
        replica.heard_ns = self.now()
        if len(self.replicas) == 1:
            self._elect_alone(replica)
        elif not self._is_ticking:
            self._is_ticking = True
            self.at(self.now() + TICK_NS, self._on_tick)

    def take_down(self, replica: SimReplica) -> None:
        """Stop the replica. Slots of the stopped replica that are not durable are lost."""
        replica.settle(self.now())
        replica.is_up = False
        replica.run += 1
        replica.appends.clear()
        replica.reported_standing, replica.heard_from = Standing(), None
        leader_term, replica.leading = replica.leading, None
        if leader_term is not None:
            self._lose_tails(leader_term)

    def depose(self) -> None:
        """Suppress the heartbeats of the newest leader until another leader is elected. If there is only one replica, the same replica is
        elected again."""
        leader_term = self.newest
        if leader_term is None or self.replicas[leader_term.leader].leading is not leader_term:
            return
        leader_term.is_deposed = True
        if len(self.replicas) == 1:
            leader = self.replicas[leader_term.leader]
            self._elect_alone(leader)
            self.step_down(leader)

    def _elect_alone(self, replica: SimReplica) -> None:
        run = replica.run
        self.at(self.now() + ALONE_NS, lambda: self._on_votes_counted(replica, run))

    def _lose_tails(self, leader_term: LeaderTerm) -> None:
        """Discard some of a crashed leader's latest appends in flight to each follower. Choices decide how many; 0 means none."""
        for replica in self.replicas.values():
            replica.settle(self.now())
            if replica.appends and replica.appends[-1].leader_term is leader_term:
                key = ("tail", leader_term.term, replica.name)
                for _ in range(self.pick(key, len(replica.appends) + 1)):
                    replica.appends.pop()

    # ---- replication ----------------------------------------------------------------------------------------------

    def replicate(self, leader_term: LeaderTerm) -> None:
        """Send the whole log to all reachable replicas. If a majority will acknowledge the log, schedule the commit."""
        leader, now_ns, length = self.replicas[leader_term.leader], self.now(), len(leader_term.slots)
        leader_term.sends += 1
        sync_ns = (1 + self.pick(("sync", leader_term.term, length, leader_term.sends), SYNC_STEPS)) * SYNC_STEP_NS
        acknowledged = []
        if leader.term == leader_term.term:
            leader.appends.append(Append(now_ns + sync_ns, leader_term, length, True))
            acknowledged.append(now_ns + sync_ns)
        for replica in self.replicas.values():
            there_ns = self.delay(leader, replica) if replica is not leader else None
            if there_ns is None:
                continue
            back_ns = self.delay(replica, leader)
            if replica.term > leader_term.term:
                self._refuse(leader, replica, there_ns, back_ns)
                continue
            self._hear(replica, leader_term, there_ns)
            durable_ns = now_ns + there_ns + sync_ns
            if replica.appends:
                durable_ns = max(durable_ns, replica.appends[-1].durable_ns)
            replica.appends.append(Append(durable_ns, leader_term, length, back_ns is not None))
            if back_ns is not None:
                acknowledged.append(durable_ns + back_ns)
        if len(acknowledged) >= self.majority:
            acknowledged.sort()
            leader_term.commit_ns = max(leader_term.commit_ns, acknowledged[self.majority - 1])
            self.at(leader_term.commit_ns, lambda: self._on_acknowledged(leader_term))

    def _hear(self, replica: SimReplica, leader_term: LeaderTerm, there: int) -> None:
        """Record that a follower hears from a leader. The follower's term changes immediately, but its standing changes only when the
        leader's message arrives."""
        now_ns, run = self.now(), replica.run
        replica.heard_ns = now_ns
        if replica.heard_from is not leader_term:
            replica.heard_from = leader_term
            replica.raise_term(leader_term.term, now_ns)
            self.at(now_ns + there, lambda: self._on_heard(replica, run, leader_term))

    def _on_heard(self, replica: SimReplica, run: int, leader_term: LeaderTerm) -> None:
        if replica.run == run and replica.heard_from is leader_term:
            replica.leading = None
            self.tell(replica, Standing(leader_term.term, leader_term.leader))
            self._log_model.on_leader_changed(replica)

    def _refuse(self, leader: SimReplica, replica: SimReplica, there: int, back: int | None) -> None:
        """Let the leader learn that the replica knows a newer term, unless the replica's answer cannot arrive."""
        run, term = leader.run, replica.term
        if back is not None:
            self.at(self.now() + there + back, lambda: self._on_refused(leader, run, term))

    def _on_refused(self, leader: SimReplica, run: int, term: int) -> None:
        if leader.run == run and leader.leading is not None and leader.leading.term < term:
            leader.raise_term(term, self.now())
            self.step_down(leader)

    def _on_acknowledged(self, leader_term: LeaderTerm) -> None:
        leader, now_ns = self.replicas[leader_term.leader], self.now()
        if leader.leading is not leader_term:
            return
        for replica in self.replicas.values():
            if replica.appends:
                replica.settle(now_ns)
        length = self._agreed(leader_term)
        if length > max(leader_term.committed, leader_term.barrier):
            was_ready = leader_term.is_ready
            leader_term.committed = leader.known = length
            self._log_model.on_committed(leader_term, leader, length)
            if not was_ready and leader.leading is leader_term:
                self.tell(leader, Standing(leader_term.term, leader.name, is_leader=True))

    def _agreed(self, leader_term: LeaderTerm) -> int:
        """Return the number of slots that a majority of the replicas has acknowledged."""
        if len(leader_term.match) < self.majority:
            return 0
        return sorted(leader_term.match.values(), reverse=True)[self.majority - 1]

    # ---- heartbeats -----------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        replicas = [replica for replica in self.replicas.values() if replica.is_up]
        self._is_ticking = bool(replicas)
        if not replicas:
            return
        self.at(self.now() + TICK_NS, self._on_tick)
        for replica in replicas:
            if replica.leading is not None:
                self._beat(replica, replica.leading)
        for replica in replicas:
            self._log_model.on_beat(replica)
        self._stand(replicas)

    def _beat(self, leader: SimReplica, leader_term: LeaderTerm) -> None:
        """Send a heartbeat to each follower. If the leader has not reached a majority for too long, the leader steps down."""
        now_ns, reached, is_lagging = self.now(), 1, leader_term.committed < len(leader_term.slots)
        for replica in self.replicas.values() if not leader_term.is_deposed else ():
            there_ns = self.delay(leader, replica) if replica is not leader else None
            if there_ns is None:
                continue
            back_ns = self.delay(replica, leader)
            if replica.term > leader_term.term:
                self._refuse(leader, replica, there_ns, back_ns)
                continue
            self._hear(replica, leader_term, there_ns)
            is_lagging = self._inform(replica, leader_term) or is_lagging
            reached += back_ns is not None
        if reached >= self.majority:
            leader.majority_ns = now_ns
        elif now_ns - leader.majority_ns >= LEASE_NS:
            self.step_down(leader)
            return
        if is_lagging:
            self.replicate(leader_term)

    def _inform(self, replica: SimReplica, leader_term: LeaderTerm) -> bool:
        """Tell a follower which slots are committed. Return whether the follower still lacks slots of the leader's log."""
        replica.settle(self.now())
        if replica.log is not leader_term.slots:
            return True
        replica.known = max(replica.known, min(leader_term.committed, replica.length))
        return replica.length < len(leader_term.slots)

    # ---- elections ------------------------------------------------------------------------------------------------

    def _stand(self, replicas: list[SimReplica]) -> None:
        """Start an election. Among the replicas that would win, the candidate is the replica that has exceeded its election timeout by the
        longest time."""
        is_deposed = self.newest is not None and self.newest.is_deposed
        standing = []
        for replica in replicas:
            if replica.is_up and replica.leading is None:
                overdue_ns = self.now() - replica.heard_ns - self._timeout_of(replica)
                if overdue_ns >= 0 or is_deposed:
                    standing.append((-overdue_ns, replica.name))
        for _, name in sorted(standing):
            self._forget_leader(self.replicas[name])
        for _, name in sorted(standing):
            replica = self.replicas[name]
            if not self._is_electing and replica.is_up and len(self._voters(replica)) >= self.majority:
                self._campaign(replica)

    def _forget_leader(self, replica: SimReplica) -> None:
        if replica.is_up and replica.leading is None and replica.reported_standing.leader:
            replica.heard_from = None
            self.tell(replica, Standing(replica.term))

    def _campaign(self, candidate: SimReplica) -> None:
        self._is_electing = True
        self._attempt += 1
        run = candidate.run
        wait_ns = (1 + self.pick(("votes", self._attempt), VOTE_STEPS)) * VOTE_STEP_NS
        self.at(self.now() + wait_ns, lambda: self._on_votes_counted(candidate, run))

    def _timeout_of(self, replica: SimReplica) -> int:
        """Return the replica's election timeout. A new timeout is drawn for each election attempt."""
        if replica.attempt != self._attempt:
            replica.attempt = self._attempt
            key = (replica.name, self._attempt)
            replica.timeout_ns = ELECTION_NS + self.pick(("time-out", *key), ELECTION_STEPS) * ELECTION_STEP_NS
            replica.is_disrupting = self.pick(("disrupts", *key), DISRUPTIONS) == DISRUPTIONS - 1
        return replica.timeout_ns

    def _voters(self, candidate: SimReplica) -> list[SimReplica]:
        candidate.settle(self.now())
        return [replica for replica in self.replicas.values() if self._votes_for(replica, candidate)]

    def _votes_for(self, voter: SimReplica, candidate: SimReplica) -> bool:
        if voter is candidate:
            return True
        if self.delay(voter, candidate) is None or self.delay(candidate, voter) is None:
            return False
        voter.settle(self.now())
        return self.is_as_good(candidate, voter) and (candidate.is_disrupting or self._is_free(voter))

    def is_as_good(self, candidate: SimReplica, voter: SimReplica) -> bool:
        """Return whether the candidate's log is at least as up-to-date as the log of the voter. This rule ensures that committed entries
        are preserved (5.4.1)."""
        return candidate.last >= voter.last

    def _is_free(self, voter: SimReplica) -> bool:
        """Return whether no leader prevents the voter from voting. This is true if the voter has not recently heard from a leader or, as
        the leader, has not recently reached a majority. It is also true if the newest leader was deposed."""
        heard_ns = voter.heard_ns if voter.leading is None else voter.majority_ns
        is_deposed = self.newest is not None and self.newest.is_deposed
        return is_deposed or self.now() - heard_ns >= ELECTION_NS

    def _on_votes_counted(self, candidate: SimReplica, run: int) -> None:
        self._is_electing = False
        if candidate.run != run or candidate.leading is not None:
            return
        voters = self._voters(candidate)
        is_split = len(voters) > 1 and self.pick(("split", self._attempt), SPLITS) == SPLITS - 1
        if len(voters) >= self.majority and not is_split:
            self._begin_leader_term(candidate, voters)

    def _begin_leader_term(self, leader: SimReplica, voters: list[SimReplica]) -> None:
        self.term += 1
        now_ns = self.now()
        leader_term = self.newest = LeaderTerm(self.term, leader.name, leader.log[: leader.length])
        for voter in voters:
            voter.raise_term(self.term, now_ns)
            voter.heard_ns = now_ns
        leader.leading = leader.heard_from = leader_term
        leader.majority_ns = now_ns
        for voter in voters:
            if voter.leading is not None and voter.leading is not leader_term:
                self.step_down(voter)
        if leader.leading is leader_term:
            self.replicate(leader_term)

    # ---- helpers --------------------------------------------------------------------------------------------------

    def step_down(self, replica: SimReplica) -> None:
        """Make a replica stop leading. At this point, the replica does not know another leader."""
        replica.leading = None
        replica.heard_ns = self.now()
        self.tell(replica, Standing(replica.term))

    def tell(self, replica: SimReplica, standing: Standing) -> None:
        """Report the replica's standing if it has changed since the last report."""
        if standing != replica.reported_standing:
            replica.reported_standing = standing
            self._log_model.on_standing_changed(replica)

    def delay(self, source: SimReplica, target: SimReplica) -> int | None:
        """Return the current delay between two replicas, or None if one of them is down or the target is unreachable."""
        if not (source.is_up and target.is_up):
            return None
        return self._delay_ns(source.name, target.name)


PROPOSE_NS = 5_000 * MS
"""Time limit for a proposal's outcome, as in the real driver."""

IMAGE_AFTER = 64
"""Maximum number of slots that a replica applies one by one. A replica that lacks more slots restores the whole state, as if from a dump.
"""

Then = Callable[[ProposalOutcome], None]

_LATE = Unknown("no answer within the deadline")


class SimulatedLog:
    """The replicated log. All replicas are down until they are started with `start`.

    Attributes:
        canonical: the fleet's state after all committed entries.
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
        """Create the log. Nothing happens in the simulated log until `start` is called.

        Args:
            delay_ns: function that returns the delay between two nodes that are both up. The function returns None if the second node is
                currently unreachable.
            on_standing: function that is called when a node learns of a new leader or a new term. The function is not called when a node
                starts or crashes.
            on_committed: function that is called at each commit, with the position in `entries`, the proposer, the entry and the entry's
                result.
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
        """Return the leader of the newest term if that leader knows that it leads. Otherwise return ""."""
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
        """Return the state that the replica has applied. The same object is returned until the node crashes. If the node is the leader, the
        state contains all entries that the leader knows to be committed."""
        replica = self._replicas[node]
        if replica.is_up and replica.leading is None:
            self._catch_up(replica, replica.known)
        return replica.state

    # ---- for the world --------------------------------------------------------------------------------------------

    def start(self, node: str) -> None:
        """Start a replica with its durable log. The replica's state is empty until the replica learns which entries are committed."""
        replica = self._replicas[node]
        if replica.is_up:
            raise UsageError(f"replica {node} is up: crash it before you start it again")
        replica.state, replica.applied, replica.known = FleetState(), 0, 0
        self.raft.bring_up(replica)

    def crash(self, node: str) -> None:
        """Crash the replica. The crashed replica loses all slots that are not durable, and its proposers get no outcome. Do nothing if the
        replica is already down."""
        replica = self._replicas[node]
        if replica.is_up:
            replica.waiting = []
            self.raft.take_down(replica)

    def depose(self) -> None:
        """Suppress the heartbeats of the newest leader until another leader is elected."""
        self.raft.depose()

    def set_unknown(self, per_mille: int) -> None:
        """Set how many of a thousand proposals have an unknown outcome. The affected proposals are selected at random."""
        self._unknown_per_mille = per_mille

    def propose(self, node: str, entry: bytes, then: Then) -> None:
        """Propose `entry`. `then` is called once with the outcome, unless the node crashes earlier."""
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
        """Append an entry to the log of the leader. `then` is None if no proposer waits for the outcome."""
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
        """Make the outcome of a proposal unknown. The answer is lost. The proposal itself is appended immediately, appended later, or
        lost."""
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
        """Report outcomes to all proposers whose wait has ended. A proposer's reaction to the outcome may crash the replica."""
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
        """Return the outcome of a proposal whose position in the log now holds a committed entry."""
        if self._committed[slot.index] is slot:
            return Committed(slot.result)
        return Rejected("another entry took its place")

    # ---- states ---------------------------------------------------------------------------------------------------

    def on_committed(self, leader_term: LeaderTerm, leader: SimReplica, length: int) -> None:
        """Apply the slots that the leader has committed. If no replica has applied a slot before, report the slot as committed."""
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
        """Apply the committed slots that this replica has not applied yet. If many slots are missing, restore the whole state instead."""
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
        """Report outcomes to this replica's proposers whose proposals are committed or have reached their time limit."""
        if replica.waiting:
            now_ns = self.raft.now()
            if replica.leading is None:
                self._catch_up(replica, replica.known)
                self._resolve(replica)
            self._settle_waiting(replica, lambda waiting: waiting.deadline_ns <= now_ns, lambda slot: _LATE)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check the invariants of the log, and raise AssertionError if one is violated. Call this method only between events. The check
        takes as long as applying all entries."""
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
        """Return, for each of the given numbers of committed slots, the frozen state after these slots. To compute the states, all slots
        are applied again from the beginning."""
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
