"""Defines the state of a host core: records of agents, peer hosts and epochs, and the state that the core's components share.

A field that only one component uses belongs to that component instead.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from snapline.agent_runtime.durable import GroupEnd
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.agent_io import AgentInputs, AgentOutputs
from snapline.agent_runtime.host.entries import IDLE, Entry, Mark, Stage, TimerEntry
from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.agent_runtime.recorded_answers import AnswerBook, AskedQuestions
from snapline.channels.channel import Inlet, Outlet
from snapline.channels.link import LinkCore
from snapline.messages.effect_records import DONE, FAILED, LEFT, NOT_DONE
from snapline.messages.past_rollbacks import PastRollback
from snapline.protocols.epoch_stamped import EpochStampedCore
from snapline.storage.capture.chunking import SealedJournal, SealedRuns
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import (
    NO_INPUTS,
    NO_OUTPUTS,
    DeadLetterNumbers,
    DeadLetterRecord,
    JournalEntry,
    OpenEffect,
    ParkedMessage,
    SavedApprovals,
    SavedTimer,
    SavedTurn,
    SpawnRequest,
    StashedMessage,
    consecutive_dead_letter_numbers,
)

DEAD_LETTERS_KEPT = 100
"""Number of dead letters that an agent keeps, and that its checkpoints contain. Older dead letters are only counted."""

PARKED_MESSAGES_MAX = 4096
"""Largest number of messages to other agents in an agent's outbox at which the agent still runs its own turns (timers, messages to itself).

So an agent that produces messages runs no faster than its receivers. Turns for other agents' messages are never deferred, since this would
deadlock a fleet with cycles."""


class AgentInlet(Inlet):
    """The receiving end of a channel between two agents.

    Attributes:
        owner: the receiving agent, or None if it has left or never existed. Without an owner, arriving messages are discarded.
        peer: host of the sending agent.
        durable: number of the last message whose consumption is in a durable commit (`commits.py`).
        saved: number of the last message that only this agent's checkpoints still contain, because its sender has forgotten it.
        next: the receiving end that takes over from this one, which drops messages that its sender repeats although they have arrived. None
            for all other receiving ends.
        first_number: number of the first message of this channel that counts towards the window of the link to `peer`. Earlier messages do
            not count, for example because they were in a mailbox after a recovery, or because they arrived before the agent was created.
    """

    __slots__ = ("durable", "first_number", "next", "owner", "peer", "saved")

    durable: int
    first_number: int
    next: "AgentInlet | None"
    saved: int

    owner: "LocalAgent | None"
    peer: "Peer"


UNLIMITED = 2**62
"""Value of `AgentOutlet.released` if messages need not wait for a commit."""


class AgentOutlet(Outlet):
    """The sending end of a channel between two agents. `peer` is None until the coordinator has located the receiving agent.

    Attributes:
        released: number of the last message that may leave the host, because a durable commit contains it (`commits.py`).
        requested: number of the last message that the newest commit lets leave, durable or not.
        repeated: number of the last message that may have left before a recovery. Until it has left again, its agent records no state.
        acked: number of the last message that the receiver has consumed in a durable commit.
        kept: messages that have left, and whose consumption is not known to be durable. The last one has number `number`.
    """

    __slots__ = (
        "acked",
        "inlet",
        "is_waiting",
        "kept",
        "ordinal",
        "owner",
        "peer",
        "released",
        "repeated",
        "requested",
    )

    owner: "LocalAgent"
    peer: "Peer | None"
    inlet: AgentInlet | None  # set if the receiver is on this host
    is_waiting: bool  # whether the outlet is in its peer's queue of outlets with parked messages
    released: int
    requested: int
    repeated: int
    acked: int
    kept: deque[bytes]
    ordinal: int  # the receiver's ordinal, or -1 until the coordinator has located the receiver

    def acknowledge(self, number: int) -> None:
        """Forget the messages up to this number, because the receiver has consumed them in a durable commit."""
        self.acked = max(self.acked, number)
        while self.kept and self.number - len(self.kept) < self.acked:
            self.kept.popleft()


def encode_released(numbers: dict[str, int], *, held: int) -> bytes:
    """Encode, for a checkpoint in a fleet with commits, the number of the last message that may leave to each receiver, and how many of the
    last messages in the outbox wait for the creation of agents. Receivers to which all these messages have left are omitted."""
    found = {**numbers, HELD: held} if held else numbers
    return msgspec.msgpack.encode(found) if found else b""


HELD = ""
"""Key of the number of held messages, which is no agent's id."""

_decode_numbers = msgspec.msgpack.Decoder(dict[str, int]).decode


def decode_released(protocol_state: bytes) -> tuple[dict[str, int], int]:
    """Decode what `encode_released` has encoded."""
    numbers = _decode_numbers(protocol_state) if protocol_state else {}
    return numbers, numbers.pop(HELD, 0)


NEVER_RETRIED_NS = 2**62
"""Value of `retry_ns` for a message that is not retried under the current plan."""


class OpenWait:
    """The wait of a durable turn: when a group ends, and which waiting entries were compared with its requests and did not match.

    Attributes:
        ends_at: when the group ends for which the turn waits.
        mailbox: number of entries at the front of the mailbox that have been compared.
        has_seen_stash: whether all entries that were in the stash at the start of the wait have been compared.
        is_pressed: whether one of the compared entries arrived on a full channel.
    """

    __slots__ = ("ends_at", "has_seen_stash", "is_pressed", "mailbox")

    def __init__(self, ends_at: GroupEnd = "all") -> None:
        self.ends_at = ends_at
        self.mailbox = 0
        self.has_seen_stash = self.is_pressed = False


class DurableTurn:
    """An unfinished durable turn. The object has the fields of `SavedTurn` and the turn's state on this host.

    Attributes:
        is_live: whether the handler is suspended at the wait `waits`. After a recovery, the handler must first be rerun up to its wait.
        problem: reason why the turn cannot continue, or "" if it can continue.
        since_ns: time at which the wait or the problem started on this host (monotonic ns).
        number: number of the turn among the agent's durable turns, starting at 1.
        is_logged: whether the result of `waits` must be in the host log before the turn continues.
        unlogged: number of entries that have been given to the host log and are not durable yet. Until all are, the turn does not continue.
        logged: number of journal entries that are in the host log, are being written to it, or need not be logged.
        rolled: number of journal entries that have been digested, and their digest.
        look: the current wait.
        members, group, abandoned: as in `SavedTurn`.
    """

    __slots__ = (
        "_sealed",
        *("abandoned", "group", "is_live", "is_logged", "journal", "key", "logged", "look"),
        *("members", "number", "payload", "problem"),
        *("rolled", "seed", "sender", "since_ns", "unlogged", "waits", "what"),
    )

    def __init__(self, saved: SavedTurn, number: int = 1) -> None:
        self.what, self.sender, self.payload, self.key = saved.what, saved.sender, saved.payload, saved.key
        self.seed = saved.seed
        self.journal = list(saved.journal)
        self.waits: JournalEntry | None = saved.waits
        self.members = list(saved.members)
        self.group = saved.group
        self.abandoned = saved.abandoned
        self.is_live = self.is_logged = False
        self.problem = ""
        self.since_ns = self.logged = self.unlogged = 0
        self.number = number
        self.rolled = 0, b""
        self.look = OpenWait()
        self._sealed = SealedJournal()

    @property
    def awaited(self) -> JournalEntry | None:
        """Return the entry that the turn is waiting for, or the first unfinished one of a group."""
        return self._from(len(self.journal)).awaited

    def open_requests(self) -> list[tuple[int, JournalEntry]]:
        """Return the requests that have no result yet, with their places in the journal: one, or those of a group."""
        first = len(self.journal)
        if self.waits is not None:
            return [(first, self.waits)]
        return [(first + index, member) for index, member in enumerate(self.members) if not member.outcome]

    def is_open(self, place: int) -> bool:
        """Return whether the turn waits for the request at this place."""
        index = place - len(self.journal)
        if self.waits is not None:
            return index == 0
        return 0 <= index < len(self.members) and not self.members[index].outcome

    def whole(self) -> SavedTurn:
        """Return the turn with its complete journal, from which the turn can be rerun."""
        return self._from(0)

    def saved(self) -> tuple[SavedTurn, SealedRuns | None]:
        """Return the turn as it is saved in a checkpoint, which stores the sealed part of the journal separately."""
        sealed = self._sealed.seal(self.journal)
        return self._from(0 if sealed is None else sealed.count), sealed

    def _from(self, place: int) -> SavedTurn:
        return SavedTurn(
            *(self.what, self.sender, self.payload, self.seed, self.key, self.journal[place:]),
            *(self.waits, list(self.members), self.group, self.abandoned),
        )


class DurableTurnHistory:
    """The number of durable turns that an agent has started, and the log entries of its unfinished turns.

    Attributes:
        logged: mapping from the number of each unfinished turn to its entries in the host logs of earlier plans.
    """

    __slots__ = ("count", "logged")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.logged: dict[int, tuple[LoggedEntry, ...]] = {}


class LocalAgent:
    """An agent that runs on this host.

    Attributes:
        protocol: the agent's epoch core, used only by the coordinated mode.
        logged: the agent's protocol rule, sender log and clock, used only by the logged mode.
        owes: whether the component for the protocol's mode must be called before the next turn.
        is_held: whether the agent is frozen or is blocked by a round. While the agent is held, it starts no turns, and no messages leave
            its outbox.
        mailbox: entries that have arrived and have not been consumed yet. When the agent records its state, the entries with older stamps
            become part of the channel state.
        deferred: entries for the agent's own turns, which wait while its outbox or its pending outputs exceed their limits.
        is_full: whether the agent's pending outputs exceed a limit.
        current: mailbox entry that the running turn handles, or None while no turn runs.
        timers: mapping from timer names to (due time, tie-breaker, payload). A heap of the host core refers to the timers in this mapping.
        ended: for each sender that has left and whose last message was consumed, the number of that message and the number of epochs that
            were complete then (`CommitProgress.epochs`). Commits contain these numbers.
        held: messages that a finished turn has sent, and that wait until the agents in `spawns` are reserved. While messages are held, no
            turn starts.
        parked: number of messages that are parked in outlets, and that have no sequence number and no stamp yet.
        awaits_creation: whether the agent still waits for the message that creates it, which must be handled in its first turn.
        retry_ns: time at which the first message in the mailbox is retried after its turn failed (monotonic ns). None if no retry is
            pending.
        dead_letter_numbers, last_dead_letter: numbers of the messages in `dead_letters`, and number of the newest dead letter that the
            agent ever had (`dead_letters.py`).
        retired_in: None while the agent is active. After the agent has retired, the epochs for which it must still be kept.
        inputs: the agent's inputs from outside, or None if the agent has received none yet.
        outputs: the agent's outputs, or None if the agent has emitted none yet.
        turn: the agent's unfinished durable turn, or None if there is none.
        begun: history of the agent's durable turns, or None if there are none, neither in this incarnation nor in the logs.
        stash: entries that were consumed during a durable turn and still wait for their own turns.
        effects: the agent's effects, or None if the agent has requested none yet.
        approvals: answers to approvals that the agent keeps, and decisions that it remembers, or None if there are none.
        asked: what the agent has asked, or None if the fleet runs on no recorded answers.
        is_repeating: whether messages that may have left before a recovery must leave again (`AgentOutlet.repeated`).
        committed_outputs: number of the last output in a durable commit.
    """

    __slots__ = (
        "approvals",
        "asked",
        "attempts",
        "awaits_creation",
        "begun",
        "checkpoints",
        "committed_outputs",
        "current",
        "dead_letter_count",
        "dead_letter_numbers",
        "dead_letters",
        "deferred",
        "effects",
        "ended",
        "held",
        "id",
        "incarnation",
        "inlets",
        "inputs",
        "is_born",
        "is_failed",
        "is_full",
        "is_held",
        "is_leaving",
        "is_repeating",
        "is_retiring",
        "is_started",
        "kind",
        "last_dead_letter",
        "logged",
        "mailbox",
        "outlets",
        "outputs",
        "owes",
        "parked",
        "protocol",
        "retired_in",
        "retry_ns",
        "spawns",
        "stage",
        "stash",
        "timers",
        "turn",
    )

    protocol: EpochStampedCore
    logged: LoggedAgent

    def __init__(self, agent: str, kind: str, incarnation: int) -> None:
        self.id = agent
        self.kind = kind
        self.incarnation = incarnation
        self.owes = False
        self.is_held = self.is_full = False
        self.mailbox: deque[Entry] = deque()
        self.deferred: list[Entry] = []
        self.stage: Stage = IDLE
        self.current: Entry | None = None
        self.attempts = 0
        self.inlets: dict[str, AgentInlet] = {}
        self.outlets: dict[str, AgentOutlet] = {}
        self.timers: dict[str, tuple[int, int, bytes]] = {}
        self.ended: dict[str, tuple[int, int]] = {}
        self.held: list[tuple[str, bytes]] = []
        self.spawns: list[ev.Spawn] = []
        self.parked = 0
        self.checkpoints = 0
        self.dead_letters: list[DeadLetterRecord] = []
        self.dead_letter_count = 0
        self.dead_letter_numbers: list[int] = []
        self.last_dead_letter = 0
        self.is_born = True
        self.awaits_creation = False
        self.is_started = False
        self.is_leaving = False
        self.is_retiring = False
        self.is_failed = False
        self.retired_in: dict[int, None] | None = None
        self.retry_ns: int | None = None
        self.inputs: AgentInputs | None = None
        self.outputs: AgentOutputs | None = None
        self.turn: DurableTurn | None = None
        self.begun: DurableTurnHistory | None = None
        self.stash: list[StashedMessage] = []
        self.effects: AgentEffects | None = None
        self.approvals: SavedApprovals | None = None
        self.asked: AskedQuestions | None = None
        self.is_repeating = False
        self.committed_outputs = 0

    @property
    def is_busy(self) -> bool:
        """Return whether the agent is in a turn or another activity. A busy agent takes no checkpoints and starts no turns."""
        return self.stage is not IDLE

    @property
    def may_start(self) -> bool:
        """Return whether the agent may start its next turn."""
        if self.stage is not IDLE or self.spawns or self.awaits_creation or self.retry_ns is not None:
            return False
        return not (self.is_leaving or self.is_held or self.is_failed)

    @property
    def is_crowded(self) -> bool:
        """Return whether the agent's outbox contains too many messages to other agents. Messages to the agent itself do not count, because
        only the agent's own turns consume them."""
        if self.parked <= PARKED_MESSAGES_MAX:
            return False
        outlet = self.outlets.get(self.id)
        return self.parked - len(outlet.queue or () if outlet is not None else ()) > PARKED_MESSAGES_MAX

    @property
    def is_silent(self) -> bool:
        """Return whether messages must stay in the outbox, because the agent is held, or has failed and will lose its work since the last
        checkpoint."""
        return self.is_held or self.is_failed

    def sent(self) -> dict[str, int]:
        """Return, for each receiver, the sequence number of the last message that was sent."""
        return {outlet.receiver: outlet.number for outlet in self.outlets.values() if outlet.number}

    def received(self) -> dict[str, int]:
        """Return, for each sender, the sequence number of the last message that was consumed."""
        return {inlet.sender: inlet.consumed for inlet in self.inlets.values() if inlet.consumed}

    def control(
        self,
        now_ns: int,
        number: int | None = None,
        protocol_state: bytes = b"",
        outbox: list[ParkedMessage] | None = None,
    ) -> ev.Control:
        """Return the contents of a checkpoint taken now, except for the state and the channels. `number` is the number of the checkpoint,
        or None to use the next number. `outbox` is the outbox of a commit, or None for the messages that have not left."""
        if outbox is None:
            outbox = [
                ParkedMessage(outlet.receiver, payload)
                for outlet in self.outlets.values()
                for payload in outlet.queue or ()
            ]
            outbox.extend(ParkedMessage(receiver, payload) for receiver, payload in self.held)
        timers = [SavedTimer(name, max(0, due - now_ns), payload) for name, (due, _, payload) in self.timers.items()]
        timers.extend(
            SavedTimer(entry.name, 0, entry.payload)
            for entry in [*self.deferred, *self.mailbox]
            if isinstance(entry, TimerEntry)
        )
        turn, sealed = self.turn.saved() if self.turn is not None else (None, None)
        is_grouped = self.turn is not None and bool(self.turn.members)
        return ev.Control(
            incarnation=self.incarnation,
            number=self.checkpoints + 1 if number is None else number,
            is_born=self.is_born,
            is_started=self.is_started,
            is_leaving=self.is_leaving,
            outbox=outbox,
            spawns=[SpawnRequest(name, kind, state) for name, kind, state in self.spawns],
            timers=timers,
            dead_letters=list(self.dead_letters),
            dead_letter_count=self.dead_letter_count,
            dead_letter_numbers=self._saved_numbers(),
            protocol_state=protocol_state,
            inputs=self.inputs.saved() if self.inputs is not None else NO_INPUTS,
            outputs=self.outputs.saved() if self.outputs is not None else NO_OUTPUTS,
            turn=turn,
            stash=list(self.stash),
            sealed=sealed,
            durable_turns=self.begun.count if self.begun is not None else 0,
            effects=self.effects.saved(is_grouped=is_grouped) if self.effects is not None else None,
            effect_group=self._open_group() if is_grouped else [],
            approvals=self.approvals,
            asked=self.asked.saved() if self.asked is not None else [],
        )

    def _open_group(self) -> list[tuple[int, OpenEffect]]:
        effects = self.effects.open if self.effects is not None else {}
        return [(place, effect.opened) for place, effect in effects.items()]

    def released(self) -> bytes:
        """Return, for a checkpoint in a fleet with commits, the numbers that `encode_released` encodes."""
        numbers = {
            outlet.receiver: outlet.requested
            for outlet in self.outlets.values()
            if outlet.number < outlet.requested < UNLIMITED
        }
        return encode_released(numbers, held=len(self.held))

    def _saved_numbers(self) -> DeadLetterNumbers | None:
        if not self.last_dead_letter:  # the usual case, checked first since each checkpoint calls this
            return None
        numbers = DeadLetterNumbers(self.last_dead_letter, list(self.dead_letter_numbers))
        return (
            None
            if numbers == consecutive_dead_letter_numbers(self.dead_letter_count, len(self.dead_letters))
            else numbers
        )


class Peer:
    """A host of the plan, with the items that are queued for it until the current batch of turns ends. In the record for this host itself,
    `link` is None.

    `broken_ns` is the time at which the link went down (monotonic ns), or None while the link is up.
    """

    __slots__ = (
        "broken_ns",
        "bytes_room",
        "consumed_bytes",
        "consumed_items",
        "credit_channels",
        "credit_numbers",
        "host",
        "inlets",
        "is_reported",
        "items_room",
        "link",
        "next_channel",
        "out_channels",
        "out_marks",
        "out_payloads",
        "outlets",
        "pending_bytes",
        "start",
        "waiting",
    )

    def __init__(self, host: str, start: int, link: LinkCore | None) -> None:
        self.host = host
        self.start = start
        self.link = link
        self.inlets: dict[int, AgentInlet] = {}
        self.outlets: dict[int, AgentOutlet] = {}
        self.next_channel = 1
        self.out_channels: list[int] = []
        self.out_payloads: list[bytes] = []
        self.out_marks: list[Mark] = []
        self.pending_bytes = 0
        self.items_room = 1
        self.bytes_room = 1
        self.waiting: deque[AgentOutlet] = deque()
        self.consumed_items = 0
        self.consumed_bytes = 0
        self.credit_channels: list[int] = []
        self.credit_numbers: list[int] = []
        self.is_reported = False
        self.broken_ns: int | None = None

    @property
    def floor(self) -> int | None:
        """The newest epoch that does not involve the link. No earlier epoch involves the link either. The value is None until both hosts
        have agreed on the epoch."""
        return None if self.link is None else self.link.floor

    @property
    def is_waited(self) -> bool:
        """Return whether the link has pending items, which may be queued, parked, or not yet acknowledged."""
        if self.link is None:
            return False
        has_queue = bool(self.out_channels or self.waiting) or self.link.has_unacked
        return has_queue or any(outlet.queue for outlet in self.outlets.values())

    @property
    def owes_consumption_report(self) -> bool:
        """Return whether the peer must be informed about consumed messages. The information includes the credit for messages whose window
        space was freed earlier."""
        return bool(self.consumed_items or self.credit_channels)

    def measure_room(self) -> None:
        """Update the remaining room on the link, which is the link's allowance minus the queued items."""
        if self.link is not None:
            self.items_room = self.link.items_room - len(self.out_channels)
            self.bytes_room = self.link.bytes_room - self.pending_bytes


class HostEpoch:
    """The state of one epoch on this host.

    Attributes:
        unrecorded: agents on this host that have not yet recorded their states for the epoch.
        awaited: hosts whose marker item has not arrived yet.
        markers: mapping from each agent and receiver to the sequence number of the last message that the agent sent before it recorded its
            state.
        refusal: reason why this host's part must not be used, or "" if it may be used.
        heard_ns: time at which the first message about the epoch arrived on this host (monotonic ns).
        commits_before: number of commits that this host had captured before its first agent recorded its state.
        log_start: as in `EpochReport`.
    """

    __slots__ = (
        *(
            "awaited",
            "commits_before",
            "heard_ns",
            "is_reported",
            "is_stored",
            "log_start",
            "markers",
            "markers_sent",
            "number",
            "refusal",
        ),
        "unrecorded",
    )

    def __init__(
        self,
        number: int,
        unrecorded: dict[str, None],
        awaited: dict[str, None],
        heard_ns: int,
        commits_before: int,
        log_start: int,
    ) -> None:
        self.number = number
        self.commits_before = commits_before
        self.log_start = log_start
        self.heard_ns = heard_ns
        self.unrecorded = unrecorded
        self.awaited = awaited
        self.markers: dict[str, dict[str, int]] = {}
        self.markers_sent = False
        self.is_stored = False
        self.is_reported = False
        self.refusal = ""


ENDED_KEPT = 64
"""Number of ended epochs that are remembered, so that a late marker or directive does not reopen an ended epoch. At most four epochs are
open at a time."""


UNDONE = "undone"


class HostCounts:
    """Counters of a host's turns, checkpoints, effects and other events since its start.

    Attributes:
        dead_letters: number of new dead letters. The number includes dead letters of this host's agents, and dead letters of messages to
            agents that have left.
        checkpoints, forced: number of checkpoints under a logged protocol, and how many of them the protocol forced.
        put_off: number of basic checkpoints that were deferred because the store was busy.
        piggybacked, piggyback_bytes: number of messages sent under a logged protocol, and total size of the protocol data that they
            carried.
        effects: number of effects, by their recorded outcome. Completed compensations are counted as "undone".
        commits, commit_bytes, commit_ns: number of durable commits, their total size, and the total time from capture until durable.
        hold_ns: total time from the first change in each commit until it was durable. What leaves the host waits for part of it.
        plans, first_plan_ns: number of applied plans, and time of the first plan. Each plan after the first plan means that the fleet has
            recovered.
    """

    __slots__ = (
        *(
            "checkpoints",
            "commit_bytes",
            "commit_ns",
            "hold_ns",
            "commits",
            "dead_letters",
            "effects",
            "first_plan_ns",
            "forced",
            "piggyback_bytes",
            "piggybacked",
            "plans",
        ),
        *("put_off", "turns"),
    )

    def __init__(self) -> None:
        self.turns = self.dead_letters = 0
        self.checkpoints = self.forced = self.put_off = 0
        self.piggybacked = self.piggyback_bytes = 0
        self.commits = self.commit_bytes = self.commit_ns = self.hold_ns = 0
        self.plans = self.first_plan_ns = 0
        self.effects = dict.fromkeys((DONE, FAILED, LEFT, NOT_DONE, UNDONE), 0)


class CommitProgress:
    """Progress of a host's commits, which the components of its core share with the component that captures commits (`commits.py`).

    Attributes:
        is_on: whether the fleet has `recovery="local"`, so that hosts commit their agents' changes.
        is_ending: whether the fleet is about to end. Answers and effects then wait for an epoch although hosts commit changes.
        changed: agents that have changed since the last commit.
        changed_ns: time of the oldest of these changes.
        is_wanted: whether work waits for the next commit.
        frozen: agents of this host that are about to move, and begin no turn.
        captured: number of commits that this host has captured under this plan.
        epochs: number of epochs that have become complete since this host started.
    """

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.epochs = 0
        self.is_ending = False
        self.frozen: dict[str, None] = {}
        self.reset()

    def note(self, agent: str, now_ns: int) -> None:
        """Record that an agent has changed, so that the host's next commit contains it."""
        if not self.changed:
            self.changed_ns = now_ns
        self.changed[agent] = None

    def reset(self) -> None:
        """Forget all changes when a plan ends."""
        self.changed: dict[str, None] = {}
        self.changed_ns = self.captured = 0
        self.is_wanted = False


class HostState:
    """The state that the components of one host core share. The components change this state only within `HostCore.handle`.

    Attributes:
        trace_every: every N-th message of each channel is traced, or none if this is 0. The value changes while a viewer is connected.
        is_watched: whether an observer must be informed when a logged message is sent.
        keeps_answers: whether the fleet keeps the answers of the outside world, so that all of them must be in the host log.
        answers: recorded answers that agents take instead of asking, or None.
        start: number that the coordinator has assigned to this run of the host, or 0 before the first Welcome.
        cluster: id that identifies one run of the fleet.
        plan: number of the plan that has been applied or is being applied, or 0 before the first plan.
        begun_epoch: newest epoch that is known to have begun. With a logged protocol, `begun_epoch` is the newest epoch that had begun when
            the plan was made.
        plan_epoch: newest epoch that had begun when the plan was made.
        is_loaded: whether the agents of the plan have been loaded.
        ended: the newest epochs that have ended under this plan.
        routes: mapping from agents to (host, incarnation), as far as known on this host.
        ordinals: mapping from each agent that receives messages to its index in the protocol's vectors.
        peers: other hosts in the plan to which this host has a link, by id.
        local: record that represents this host itself, used for channels between its own agents.
        commits: the progress of this host's commits.
        rollbacks: the newest returns of the fleet to earlier snapshots, as the plan names them.
        now: time of the event that is being handled (monotonic ns).
        out: commands that have been issued so far for this event.
    """

    def __init__(self, host: str, *, trace_every: int, is_watched: bool, is_local: bool = False) -> None:
        self.host = host
        self.keeps_answers = False
        self.answers: AnswerBook | None = None
        self.commits = CommitProgress(is_on=is_local)
        self.trace_every = trace_every
        self.is_watched = is_watched
        self.start = 0
        self.cluster = ""
        self.plan = 0
        self.plan_hosts: tuple[str, ...] = ()
        self.rollbacks: tuple[PastRollback, ...] = ()
        self.begun_epoch = self.plan_epoch = 0
        self.is_loaded = False
        self.ended: deque[int] = deque(maxlen=ENDED_KEPT)
        self.agents: dict[str, LocalAgent] = {}
        self.routes: dict[str, tuple[str, int]] = {}
        self.ordinals: dict[str, int] = {}
        self.peers: dict[str, Peer] = {}
        self.local = Peer(host, 0, None)
        self.counts = HostCounts()
        self.now = 0
        self.out: list[ev.HostOutput] = []
        self._requests = 0

    def next_request(self) -> int:
        """Return the request number for the next request to the coordinator."""
        self._requests += 1
        return self._requests

    def note_change(self, agent: str) -> None:
        """Record that an agent has changed, if hosts commit changes."""
        if self.commits.is_on:
            self.commits.note(agent, self.now)

    def not_ended(self, epochs: Iterable[int]) -> dict[int, None]:
        """Return the given epochs that have not ended yet."""
        return {epoch: None for epoch in epochs if epoch not in self.ended}

    def note(self, level: str, text: str) -> None:
        """Write a line to the log of the process."""
        self.out.append(ev.Note(level, text))
