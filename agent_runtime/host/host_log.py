"""The host core's component that writes the host log. The log contains records that must be durable before they take effect, in consecutive
batches.

An input is acknowledged when the batch with the input is durable. A turn continues after a step when the batch with the step's result is
durable. Only one batch is written at a time, and later records go into the next batch.

Each log belongs to one plan and to one run of a host. The coordinator opens the log before any batch is written. The coordinator therefore
knows all logs. Under a later plan, the hosts seal the log before they read it. Either all hosts find a given batch in the sealed log, or
the batch can never be written (`storage/log/`).

In a signed store, the coordinator's reply contains a certificate for this host's key, and each batch includes this certificate. In a signed
or encrypted store, the host reports the number of its newest durable batch to the coordinator. The number is reported immediately, but not
more than once a second. If a reported batch is later removed, the removal is therefore detected. Inputs are acknowledged without waiting
for the report to the coordinator.

*Steps of durable turns* (`StepLog`). When a step has ended, its journal entry is logged. All earlier entries that only the log can restore
(`LOGGED_KINDS`) are logged together with the step's entry, unless they are already logged. Without the earlier entries, a rerun turn could
not match the step's entry. The turn continues when all logged entries are durable. A completed step is therefore not run again, regardless
of the checkpoint from which a recovery starts. If a plan arrives while an entry is being written, either the log contains the entry, or the
step runs again.

After a recovery, each agent gets the logged entries of those turns that have not ended in its checkpoint. A rerun turn adopts an entry only
if the turn and the place in its journal are the same (`agent_runtime/durable.py`). If an agent is not in the plan, it gets its entries when
it is created again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from snapline.agent_runtime.durable import DECISION, DONE, FAILED, LOGGED_KINDS, rolled
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects, undone_by
from snapline.agent_runtime.host.agent_io import PendingInput
from snapline.agent_runtime.host.host_state import DurableTurn, DurableTurnHistory, HostState, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import BEGUN, EFFECT, CommitPart, LoggedEntry, LogName
from snapline.storage.packs.checkpoint import JournalEntry, OpenEffect

BATCH_ITEMS_MAX = 4096
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest total size of payloads and results in one batch, unless a single item is larger. A disk writes this amount in some tens of
milliseconds."""

COMMITS_KNOWN = 1024
"""Number of commits whose batch is known. An epoch that began before them lets no batch be deleted that it might need."""

REQUEST_RETRY_NS = 1_000_000_000

REPORT_INTERVAL_NS = 1_000_000_000
"""Minimum time between two reports of the newest durable batch. Each host that writes batches thus adds at most one entry a second to the
coordinator's log. If a host dies, the removal of its unreported batches would not be detected."""


class PendingEntry:
    """An entry of a durable turn's journal that is being logged. `is_mark` is set if the entry records that an effect is about to be
    called."""

    __slots__ = ("entry", "is_mark", "turn")

    def __init__(self, entry: LoggedEntry, turn: DurableTurn, *, is_mark: bool = False) -> None:
        self.entry = entry
        self.turn = turn
        self.is_mark = is_mark


class PendingCommit:
    """A part of a commit that is being logged."""

    __slots__ = ("part",)

    def __init__(self, part: CommitPart) -> None:
        self.part = part


Pending = PendingInput | PendingEntry | PendingCommit


class CommitReleaser(Protocol):
    """Interface that `OwnLog` requires from the component that captures commits."""

    def appended(self, pending: PendingCommit) -> None:
        """Handle a part of a commit that has become durable in the log of the current plan."""


class InputAcknowledger(Protocol):
    """Interface that `OwnLog` requires from the component that handles inputs."""

    def appended(self, pending: PendingInput, *, is_present: bool) -> None:
        """Handle an input that has become durable. `is_present` is set if the input is in the log of the current plan."""

    def lost(self, pending: PendingInput) -> None:
        """Handle an input that will never be in the log."""


class StepAcknowledger(Protocol):
    """Interface that `OwnLog` requires from `StepLog`."""

    def awaits(self, pending: PendingEntry) -> bool:
        """Return whether a turn on this host waits for the entry."""

    def appended(self, pending: PendingEntry) -> None:
        """Handle an entry that has become durable in the log of the current plan."""


class OwnLog:
    """The log that this host writes under the current plan.

    Attributes:
        why_none: reason why the store accepts no logs, or "" if it accepts them.
        problem: reason why the writing of a batch is delayed, or "" if there is no delay.
        is_sealed: whether a later plan has sealed the log, so that no more batches can be written.
        queued_bytes: total size in bytes of the items that wait for a batch.
    """

    _inputs: InputAcknowledger
    _steps: StepAcknowledger
    _commits: CommitReleaser

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._commit_batches: deque[tuple[int, int]] = deque(maxlen=COMMITS_KNOWN)
        """The newest commits of the current log, each with the number of the batch that ends it."""
        self._queue: list[Pending] = []
        """Items that wait for the next batch."""
        self._batches: dict[tuple[LogName, int], list[Pending]] = {}
        """Batches that are being written: at most one of the current log, and earlier plans' batches whose outcome is unknown."""
        self._number = 0
        """Number of the last batch of the current log."""
        self._is_open = False
        """Whether the coordinator knows the log, so that later plans will seal it. The first item triggers the request to open the log."""
        self._ask_ns: int | None = None
        """Time of the next request to open the log, or of the next report, or None if neither is due."""
        self._asked_ns = 0
        """Time of the last such request or report."""
        self._key = self._certificate = b""
        self._is_reported = False
        """Whether the newest batch must be reported to the coordinator."""
        self._has_orphans = False
        """Whether the earlier logs contain inputs or entries of agents that are not in the plan. Those agents may be created again."""
        self._durable = self._known = 0
        """Number of the newest durable batch of the current log, and number of the newest batch that the coordinator knows."""
        self.queued_bytes = 0
        self.why_none = ""
        self.problem = ""
        self.is_sealed = False

    def wire(self, inputs: InputAcknowledger, steps: StepAcknowledger, commits: CommitReleaser) -> None:
        """Connect this component to the components of the host core above it."""
        self._inputs, self._steps, self._commits = inputs, steps, commits

    @property
    def name(self) -> LogName:
        """Return the name of the log that this host writes under the current plan."""
        return LogName(self._shared.plan, self._shared.host, self._shared.start)

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Record, when the plan's agents have been loaded, whether the store accepts logs and whether it is signed or encrypted."""
        self.why_none = event.why_no_log
        self._key, self._is_reported = event.log_key, event.is_authenticated
        agents = [*[x.agent for x in (*event.inputs, *event.dropped)], *[x.agent for x in event.entries]]
        self._has_orphans = any(agent not in self._shared.routes for agent in agents)

    def reset(self) -> None:
        """End the log when its plan ends. For batches that are still being written, a later event reports whether the log contains them."""
        queue, self._queue = self._queue, []
        self._drop_batch(queue)
        self.queued_bytes = self._number = self._durable = self._known = 0
        self.problem = ""
        self._is_open = self.is_sealed = self._has_orphans = False
        self._ask_ns = None
        self._commit_batches.clear()

    def carry_over(self) -> None:
        """End the log when its plan ends, while the agents on this host go on. Entries of their turns that wait for a batch go into the log
        of the new plan, and so do those of a batch that turns out not to be in the log."""
        entries = [pending for pending in self._queue if isinstance(pending, PendingEntry)]
        self._queue = [pending for pending in self._queue if not isinstance(pending, PendingEntry)]
        has_orphans = self._has_orphans
        self.reset()
        self._has_orphans = has_orphans
        for pending in entries:
            self.put(pending)

    @property
    def awaits_earlier(self) -> bool:
        """Return whether it is unknown if a batch is in the log of an earlier plan."""
        return any(log != self.name for log, _ in self._batches)

    def batch_of_commit(self, commit: int) -> int:
        """Return the number of the batch with the end of this commit or of an earlier one, or 0 if none is known."""
        return max([batch for number, batch in self._commit_batches if number <= commit], default=0)

    def start_beyond_states(self) -> int:
        """Return the number of the first batch of the current log that may contain something that the present states of this host's agents
        do not contain, or 0 if the logs of earlier plans may contain something too.

        The states contain the results of all steps so far, but an effect is marked as called only when its mark is durable.
        """
        agents = self._shared.agents.values()
        is_rerun = any(agent.begun is not None and agent.begun.logged for agent in agents)
        if self.awaits_earlier or self._has_orphans or is_rerun:
            return 0
        first = self._number + ((self.name, self._number) not in self._batches)
        waiting = [x for agent in agents if agent.inputs is not None for x in agent.inputs.waiting.values()]
        written = [pending for pending in waiting if pending.is_durable or pending.batch]
        if any(pending.plan != self._shared.plan for pending in written):
            return 0
        return min([first, *[pending.batch for pending in written]])

    # ---- out ------------------------------------------------------------------------------------------------------

    def put(self, pending: Pending) -> None:
        """Queue an item to be written in the next batch."""
        self._queue.append(pending)
        self.queued_bytes += _size_of(pending)

    def append(self) -> None:
        """Send the next batch to the store if the log is open and no other batch is being written."""
        if self._queue and not self._is_open:
            self._open()
            return
        log = self.name
        if not self._queue or self.is_sealed or (log, self._number) in self._batches:
            return
        batch = self._take_batch()
        self._number += 1
        self._batches[log, self._number] = batch
        inputs = [pending.input for pending in batch if isinstance(pending, PendingInput)]
        entries = [pending.entry for pending in batch if isinstance(pending, PendingEntry)]
        commits = [pending.part for pending in batch if isinstance(pending, PendingCommit)]
        self._commit_batches.extend([(part.commit, self._number) for part in commits if part.is_last])
        for pending in batch:
            if isinstance(pending, PendingInput):
                pending.plan, pending.batch = log.plan, self._number
        command = ev.AppendBatch(log, self._number, tuple(inputs), tuple(entries), self._certificate, tuple(commits))
        self._shared.out.append(command)

    def _take_batch(self) -> list[Pending]:
        size_bytes = count = 0
        for pending in self._queue[:BATCH_ITEMS_MAX]:
            size = _size_of(pending)
            if count and size_bytes + size > BATCH_BYTES_MAX:
                break
            size_bytes += size
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        self.queued_bytes -= size_bytes
        return batch

    def _open(self) -> None:
        """Ask the coordinator to open the log. The request is repeated until the coordinator replies, because a leader may lose the
        request."""
        if self._ask_ns is None or self._ask_ns <= self._shared.now:
            self._asked_ns, self._ask_ns = self._shared.now, self._shared.now + REQUEST_RETRY_NS
            self._shared.out.append(
                msg.OpenLog(self._shared.plan, self._key, self._durable if self._is_reported else 0)
            )

    def wakeups_ns(self) -> list[int]:
        """Return the times (monotonic, in nanoseconds) at which `clock_passed` must be called."""
        return [] if self._ask_ns is None else [self._ask_ns]

    def clock_passed(self) -> None:
        """Resend a request or report to the coordinator if it is due again."""
        if self._ask_ns is not None:
            self._open()

    def welcomed(self) -> None:
        """Resend requests and reports on a new stream, because the coordinator may not have received them."""
        if self._ask_ns is not None:
            self._ask_ns = self._shared.now
            self._open()

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def on_log_opened(self, event: msg.LogOpened) -> None:
        """Start to write batches if the log that was opened belongs to the current plan."""
        if event.plan == self._shared.plan and self._shared.is_loaded:
            self._is_open, self._certificate = True, event.certificate
            self._known = max(self._known, event.newest)
            self._ask_ns = None
            self._tell()
            self.append()

    def _tell(self) -> None:
        """Report the newest durable batch, either immediately or as soon as the next report is due."""
        if self._is_reported and self._ask_ns is None and self._durable > self._known:
            self._ask_ns = self._asked_ns + REPORT_INTERVAL_NS
            self._open()

    def on_batch_appended(self, event: ev.BatchAppended) -> None:
        """Handle a batch that has become durable. If a later plan has ended the batch's log, the agents' current hosts will find the batch
        in the log."""
        is_present = event.log == self.name and self._shared.is_loaded
        for pending in self._batches.pop((event.log, event.number)):
            if isinstance(pending, PendingInput):
                self._inputs.appended(pending, is_present=is_present)
            elif isinstance(pending, PendingEntry):
                self._steps.appended(pending)  # turns of agents that a plan has replaced do not go on
            elif is_present and isinstance(pending, PendingCommit):
                self._commits.appended(pending)
        if is_present:
            self.problem = ""
            self._durable = event.number
            self._tell()
            self.append()

    def on_log_sealed(self, event: ev.LogSealed) -> None:
        """Handle a batch that will never be in the log. Entries of turns that go on under the next plan go into its log."""
        batch = self._batches.pop((event.log, event.number))
        self._drop_batch(batch)
        self.is_sealed |= event.log == self.name
        for pending in [each for each in batch if isinstance(each, PendingEntry) and self._steps.awaits(each)]:
            self.put(pending)
        self.append()

    def _drop_batch(self, batch: list[Pending]) -> None:
        """Discard a batch that was not written. Turns that wait for entries in the batch wait until the next plan ends them."""
        for pending in batch:
            if isinstance(pending, PendingInput):
                self._inputs.lost(pending)

    def on_log_status_changed(self, event: ev.LogStatusChanged) -> None:
        """Record the reason why the writing of a batch is delayed. Delays of earlier plans' batches are ignored, because no batch of
        the current log would end them."""
        if event.log == self.name:
            self.problem = event.problem


def _size_of(pending: Pending) -> int:
    match pending:
        case PendingInput():
            return len(pending.input.payload)
        case PendingEntry():
            return len(pending.entry.entry.result)
        case _:
            return len(pending.part.data)


class MarkHandler(Protocol):
    """Interface that `StepLog` requires from the component that handles effects."""

    def marked(self, agent: LocalAgent, turn: DurableTurn, mark: JournalEntry) -> None:
        """Call an effect, because the log now records that the effect is about to be called."""


class StepLog:
    """Writes the steps of this host's agents to the host log, and restores the steps after a recovery."""

    _effects: MarkHandler

    def __init__(self, shared: HostState, mailboxes: Mailboxes, log: OwnLog) -> None:
        self._shared = shared
        self._mailboxes = mailboxes
        self._log = log
        self._orphans: dict[str, list[LoggedEntry]] = {}
        """Entries of agents that are not in the plan."""
        self._has_warned = False
        """Whether a warning has been logged that the store accepts no host logs."""

    def wire(self, effects: MarkHandler) -> None:
        """Connect this component to the component above it that handles effects."""
        self._effects = effects

    # ---- plans ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Clear all entries when a recovery plan ends the history of all agents on this host."""
        self._orphans.clear()

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Restore the number of durable turns of each agent, and give each agent the logged entries of turns that will be rerun."""
        agents, routes = self._shared.agents, self._shared.routes
        for loaded in event.agents:
            if loaded.checkpoint is not None and loaded.checkpoint.durable_turns:
                agent = agents[loaded.agent]
                agent.begun = DurableTurnHistory(loaded.checkpoint.durable_turns)
                if agent.turn is not None:
                    agent.turn.number = agent.begun.count
        for logged in event.entries:
            agent_here = agents.get(logged.agent)
            if agent_here is not None:
                _restore(agent_here, logged)
            elif logged.agent not in routes:
                self._orphans.setdefault(logged.agent, []).append(logged)

    def created(self, agent: LocalAgent) -> None:
        """Give a newly created agent its logged entries if the agent existed before a recovery."""
        for logged in self._orphans.pop(agent.id, ()):
            _restore(agent, logged)

    # ---- turns ----------------------------------------------------------------------------------------------------

    def began(self, agent: LocalAgent) -> int:
        """Count a durable turn that starts, and return the turn's number."""
        if agent.begun is None:
            agent.begun = DurableTurnHistory()
        agent.begun.count += 1
        return agent.begun.count

    def ended(self, agent: LocalAgent) -> None:
        """Discard the logged entries of the agent's last durable turn, because the turn has ended."""
        if agent.begun is not None:
            agent.begun.logged.pop(agent.begun.count, None)

    def retried(self, agent: LocalAgent, *, place: int) -> None:
        """Discard logged failures of the retried turn's steps at this place of its journal and behind it, so that these steps run again."""
        begun = agent.begun
        number = 0 if begun is None else begun.count + (agent.turn is None)
        if begun is not None and number in begun.logged:
            begun.logged[number] = tuple(
                entry
                for entry in begun.logged[number]
                if entry.place < place or entry.entry.kind not in ("step", DECISION) or entry.entry.outcome != FAILED
            )

    def put(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """Log the journal entries of a turn whose step has ended. The turn continues when the log contains the step's entry and all earlier
        entries."""
        if self._log.why_none:
            self._tell(self._log.why_none)
            return
        self._put(turn, self._take_fresh(agent, turn))

    def put_member(self, agent: LocalAgent, turn: DurableTurn, index: int, decision: JournalEntry | None) -> None:
        """Log the entry of a step or an effect of a group, the entries before the group, and how the group ended if it ended early. After the last member
        of the group has ended, the turn continues when the log contains all entries."""
        if self._log.why_none:
            self._tell(self._log.why_none)
            return
        place, member = len(turn.journal) + index, turn.members[index]
        fresh = self._take_fresh(agent, turn)
        requests, prefix = _requests_of(turn), self._prefix_of(turn, place)
        fresh.append(LoggedEntry(agent.id, turn.number, turn.seed, place, prefix, member))
        if decision is not None:
            behind = rolled(prefix, requests[index:])
            fresh.append(LoggedEntry(agent.id, turn.number, turn.seed, len(turn.journal), behind, decision))
        self._put(turn, fresh)

    def group_ended(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """Count the entries of a group as logged, which are about to enter the journal. Its steps and effects were logged as they ended."""
        if not self._log.why_none and any(member.kind in ("step", EFFECT) for member in turn.members):
            self._put(turn, self._take_fresh(agent, turn))
            turn.logged += len(turn.members)

    def _put(self, turn: DurableTurn, entries: Iterable[LoggedEntry]) -> None:
        for entry in entries:
            self._log.put(PendingEntry(entry, turn))
            turn.unlogged += 1
        self._log.append()

    def _take_fresh(self, agent: LocalAgent, turn: DurableTurn) -> list[LoggedEntry]:
        """Return the entries of the turn's journal that must be logged and have not been given to the log."""
        known = self._places_known(agent, turn)
        kinds = (*LOGGED_KINDS, "approval") if self._shared.keeps_answers else LOGGED_KINDS
        fresh = [
            place
            for place in range(turn.logged, len(turn.journal))
            if turn.journal[place].kind in kinds and place not in known
        ]
        turn.logged = len(turn.journal)
        return [
            LoggedEntry(agent.id, turn.number, turn.seed, place, self._prefix_of(turn, place), turn.journal[place])
            for place in fresh
        ]

    def _tell(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._shared.note(
                "warning",
                f"{why}: steps of durable turns are in checkpoints only, and may be run again after a recovery",
            )

    def _places_known(self, agent: LocalAgent, turn: DurableTurn) -> dict[int, None]:
        """Return the places of journal entries that the logs of earlier plans already contain for exactly this turn. The logs are searched
        only when the turn logs its first entry."""
        places: dict[int, None] = {}
        logged = agent.begun.logged.get(turn.number, ()) if agent.begun is not None and not turn.logged else ()
        by_place: dict[tuple[int, bytes], list[JournalEntry]] = {}
        for logged_entry in logged:
            if logged_entry.seed == turn.seed:
                by_place.setdefault((logged_entry.place, logged_entry.prefix), []).append(logged_entry.entry)
        if by_place:
            prefix = b""
            for place, entry in enumerate(turn.journal):
                if entry in by_place.get((place, prefix), ()):
                    places[place] = None
                prefix = rolled(prefix, (entry,))
        return places

    def logged_of(
        self, agent: LocalAgent, turn: DurableTurn, place: int, waits: JournalEntry, identity: str
    ) -> JournalEntry | None:
        """Return the logged entry of the effect that the turn waits for at this place. If there is no entry for this history and this
        generation, return None."""
        logged = agent.begun.logged.get(turn.number, ()) if agent.begun is not None else ()
        request = waits.kind, waits.name, waits.digest, identity
        for logged_entry in logged:
            entry = logged_entry.entry
            is_it = (entry.kind, entry.name, entry.digest, entry.sender) == request and entry.outcome in (DONE, FAILED)
            if (
                is_it
                and (logged_entry.seed, logged_entry.place) == (turn.seed, place)
                and logged_entry.prefix
                == rolled(rolled(b"", turn.journal), _requests_of(turn)[: place - len(turn.journal)])
            ):
                return entry
        return None

    def _prefix_of(self, turn: DurableTurn, place: int) -> bytes:
        """Return the digest of what precedes the given place: journal entries, and for a member of a group, the requests of earlier
        members. Normally, each entry is digested only once, because places are requested in ascending order. For a place before the last
        one, the digest is computed again from the beginning."""
        begun = min(place, len(turn.journal))
        count, prefix = turn.rolled if turn.rolled[0] <= begun else (0, b"")
        turn.rolled = begun, rolled(prefix, turn.journal[count:begun])
        return rolled(turn.rolled[1], _requests_of(turn)[: place - begun]) if place > begun else turn.rolled[1]

    def mark(self, agent: LocalAgent, turn: DurableTurn, place: int, opened: OpenEffect) -> None:
        """Log that the effect that the turn waits for at this place is about to be called. When this record is durable,
        `MarkHandler.marked` is called."""
        logged = LoggedEntry(agent.id, turn.number, turn.seed, place, self._prefix_of(turn, place), mark_of(opened))
        self._log.put(PendingEntry(logged, turn, is_mark=True))
        self._log.append()

    def has_mark(self, agent: LocalAgent, opened: OpenEffect, since: int) -> bool:
        """Return whether the logs of earlier plans contain a mark of this effect with a higher output number than `since`. Numbers of the
        same call differ between histories, because members of a group may end in another order."""
        turns = agent.begun.logged.values() if agent.begun is not None else ()
        marks = [logged.entry for entries in turns for logged in entries if is_mark(logged.entry)]
        its = opened.name, opened.digest, f"{opened.key}#{opened.generation}"
        return any((x.name, x.digest, x.sender) == its and int.from_bytes(x.result, "big") > since for x in marks)

    def awaits(self, pending: PendingEntry) -> bool:
        agent = self._shared.agents.get(pending.entry.agent)
        return agent is not None and agent.turn is pending.turn

    def appended(self, pending: PendingEntry) -> None:
        """Continue a turn whose entry has become durable, unless the agent no longer has this turn."""
        agent = self._shared.agents.get(pending.entry.agent)
        if agent is None or agent.turn is not pending.turn:
            return
        if pending.is_mark:
            self._effects.marked(agent, pending.turn, pending.entry.entry)
            return
        pending.turn.unlogged -= 1
        if not pending.turn.unlogged:
            self._mailboxes.next_turn(agent)


def _requests_of(turn: DurableTurn) -> list[JournalEntry]:
    """Return the requests of the group for which the turn waits, without their outcomes."""
    return [JournalEntry(each.kind, each.name, each.digest) for each in turn.members]


def mark_of(opened: OpenEffect) -> JournalEntry:
    """Return the log entry that records that an effect is about to be called. The entry contains the number of the output with the effect's
    intent. This number distinguishes the call from an earlier call that an operator resolved as not made."""
    number = opened.number.to_bytes(8, "big")
    return JournalEntry(EFFECT, opened.name, opened.digest, BEGUN, number, f"{opened.key}#{opened.generation}")


def is_mark(entry: JournalEntry) -> bool:
    """Return whether the log entry records that an effect is about to be called."""
    return (entry.kind, entry.outcome) == (EFFECT, BEGUN)


def _restore(agent: LocalAgent, logged: LoggedEntry) -> None:
    begun = agent.begun
    ended_count = 0 if begun is None else begun.count - (agent.turn is not None)
    if logged.turn > ended_count:
        if begun is None:
            begun = agent.begun = DurableTurnHistory()
        begun.logged[logged.turn] = (*begun.logged.get(logged.turn, ()), logged)
        _note_earlier_compensation(agent, logged.entry)
        _note_earlier_call(agent, logged.entry)
        _note_discarded_effect(agent, logged.entry)


def _note_earlier_compensation(agent: LocalAgent, entry: JournalEntry) -> None:
    """Record that an effect was undone in a discarded history. An effect that was undone counts as not done, even if the log says that it
    is done."""
    undone = undone_by(entry)
    if undone is not None:
        if agent.effects is None:
            agent.effects = AgentEffects()
        agent.effects.note_earlier_undo(*undone)


def _note_earlier_call(agent: LocalAgent, entry: JournalEntry) -> None:
    """Record that an earlier incarnation was about to call the agent's open effect. From now on, checkpoints record the call, because the
    logs of discarded histories are eventually deleted."""
    for effect in agent.effects.open.values() if agent.effects is not None else ():
        if entry == mark_of(effect.opened):
            effect.begun()


def _note_discarded_effect(agent: LocalAgent, entry: JournalEntry) -> None:
    """Record that an effect was called in a history that a rollback has discarded. The agent then knows that the effect was performed or
    may have been performed."""
    if entry.kind == EFFECT and entry.outcome in (DONE, FAILED, BEGUN):
        if agent.effects is None:
            agent.effects = AgentEffects()
        agent.effects.note_earlier_call(entry)
