"""State of a host core: the records of each agent, each other host and each epoch, and the state that the core's parts share.

The shared state contains the host's plan and epochs, its agents and peers, the time, and the commands issued so far. A field that only one
part uses belongs to that part.
"""

from collections import deque
from collections.abc import Iterable

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.agent_io import AgentInputs, AgentOutputs
from snapline.agent_runtime.host.entries import IDLE, Entry, Mark, Stage, TimerEntry
from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.channels.channel import Inlet, Outlet
from snapline.channels.link import LinkCore
from snapline.messages.effect_records import DONE, FAILED, LEFT, NOT_DONE
from snapline.protocols.epoch_stamped import EpochStampedCore
from snapline.storage.capture.chunking import SealedJournal, SealedRuns
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import (
    NO_INPUTS,
    NO_OUTPUTS,
    DeadLetterNumbers,
    DeadLetterRecord,
    JournalEntry,
    ParkedMessage,
    SavedTimer,
    SavedTurn,
    SpawnRequest,
    StashedMessage,
    consecutive_dead_letter_numbers,
)

DEAD_LETTERS_KEPT = 100
"""Number of dead letters kept in an agent's checkpoints, the newest ones; older ones are only counted."""

PARKED_MESSAGES_MAX = 4096
"""Largest number of messages for others in an agent's outbox at which the agent still takes its own turns (timers, messages to itself).

So a source runs no faster than its receivers. Turns for messages of other agents are never held back, since that would deadlock a fleet
with cycles."""


class AgentInlet(Inlet):
    """The receiving end of a channel.

    Attributes:
        owner: receiving agent; None if arriving messages are discarded (the agent left, or never existed).
        peer: host of the sending end.
        first_number: first message of this channel that counts in the window of `peer`'s link; earlier messages were in a mailbox after a
            recovery, or came before their agent was created.
    """

    __slots__ = ("first_number", "owner", "peer")

    first_number: int

    owner: "LocalAgent | None"
    peer: "Peer"


class AgentOutlet(Outlet):
    """The sending end of a channel; `peer` is None until the coordinator has located the receiver."""

    __slots__ = ("inlet", "is_waiting", "owner", "peer")

    owner: "LocalAgent"
    peer: "Peer | None"
    inlet: AgentInlet | None  # set if the receiver is on this host
    is_waiting: bool  # whether the outlet is in its peer's queue of outlets with parked messages


NEVER_RETRIED_NS = 2**62
"""Value of `retry_ns` for a message that is not retried under this plan."""


class UnmatchedEntries:
    """Waiting entries that did not match the wait of a durable turn.

    Attributes:
        mailbox: number of entries compared, from the front of the mailbox.
        has_seen_stash: the whole stash at the start of the wait was compared.
        is_pressed: a compared entry came on a channel that was full.
    """

    __slots__ = ("has_seen_stash", "is_pressed", "mailbox")

    def __init__(self) -> None:
        self.mailbox = 0
        self.has_seen_stash = self.is_pressed = False


class DurableTurn:
    """An unfinished durable turn; see `SavedTurn`.

    Attributes:
        is_live: the handler is suspended at `waits`; after a recovery it first has to run again.
        problem: reason why the turn cannot continue, or "".
        since_ns: start of the wait, or of the problem, on this host.
        number: number among the durable turns in the agent's history, from 1.
        is_logged: the result of `waits` has to be in the host log before the turn continues.
        is_logging: that result is being written to the host log.
        logged: number of journal entries that are in the host log, are being written, or need not be logged.
        rolled, prefix: number of journal entries digested so far, and the resulting digest.
        look: record of the entries that were compared with the wait.
    """

    __slots__ = (
        "_sealed",
        *("is_live", "is_logged", "is_logging", "journal", "key", "logged", "look"),
        *("number", "payload", "prefix", "problem"),
        *("rolled", "seed", "sender", "since_ns", "waits", "what"),
    )

    def __init__(self, saved: SavedTurn, number: int = 1) -> None:
        self.what, self.sender, self.payload, self.key = saved.what, saved.sender, saved.payload, saved.key
        self.seed = saved.seed
        self.journal = list(saved.journal)
        self.waits: JournalEntry | None = saved.waits
        self.is_live = self.is_logged = self.is_logging = False
        self.problem = ""
        self.since_ns = self.logged = self.rolled = 0
        self.number = number
        self.prefix = b""
        self.look = UnmatchedEntries()
        self._sealed = SealedJournal()

    def whole(self) -> SavedTurn:
        """Return the turn with its whole journal, so that it can be run again."""
        return self._from(0)

    def saved(self) -> tuple[SavedTurn, SealedRuns | None]:
        """Return the turn in the form for a checkpoint, where the sealed parts of its journal are stored separately."""
        sealed = self._sealed.seal(self.journal)
        return self._from(0 if sealed is None else sealed.count), sealed

    def _from(self, place: int) -> SavedTurn:
        return SavedTurn(self.what, self.sender, self.payload, self.seed, self.key, self.journal[place:], self.waits)


class DurableTurnHistory:
    """Durable turns in an agent's history, and in the logs.

    Attributes:
        count: number of durable turns begun in the agent's history.
        logged: number of an unfinished turn → entries for it in the host logs of earlier plans.
    """

    __slots__ = ("count", "logged")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.logged: dict[int, tuple[LoggedEntry, ...]] = {}


class LocalAgent:
    """One agent on this host.

    Attributes:
        protocol: epoch core of the agent; only the coordinated mode sets and reads it.
        logged: rule, log and clock of the agent; only the logged mode sets and reads it.
        owes: the host mode must be called between two turns.
        is_held: the agent is frozen, or blocked by a round: it takes no turn, and nothing leaves its outbox.
        mailbox: entries that arrived and are not consumed; when the agent records, entries with older stamps become channel state.
        deferred: the agent's own turns, held back while its outbox or its pending outputs are over the bound.
        is_full: the pending outputs are over a bound.
        stage: what the agent does.
        current: entry of the running turn, or None while no turn runs.
        timers: name → (due, tie-breaker, payload); the host core's heap refers to these.
        held: sends of a finished turn that wait until `spawns` are reserved; no turn starts meanwhile.
        parked: number of messages in outlets, which have no number and no stamp yet.
        awaits_creation: the creation message has not arrived; no other entry may be the first turn.
        retry_ns: when the first message of the mailbox, whose turn has failed, is retried; None: no retry is due.
        dead_letter_numbers, last_dead_letter: numbers of `dead_letters`, and of the newest dead letter ever (`dead_letters.py`).
        retired_in: None while the agent is active; afterwards the epochs for which the agent must still be kept.
        inputs: inputs from outside; None if there were none yet.
        outputs: outputs; None if there were none yet.
        turn: the unfinished durable turn, if any.
        begun: history of durable turns; None if there were none, even in the logs.
        stash: entries that were consumed during a durable turn and still wait for their turns.
        effects: effects on the outside; None if there were none yet.
    """

    __slots__ = (
        "attempts",
        "awaits_creation",
        "begun",
        "checkpoints",
        "current",
        "dead_letter_count",
        "dead_letter_numbers",
        "dead_letters",
        "deferred",
        "effects",
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

    @property
    def is_busy(self) -> bool:
        """Return whether the agent is not between two turns: it takes no checkpoint, and starts no turn."""
        return self.stage is not IDLE

    @property
    def may_start(self) -> bool:
        """Return whether the next turn may start, if there is one."""
        if self.stage is not IDLE or self.spawns or self.awaits_creation or self.retry_ns is not None:
            return False
        return not (self.is_leaving or self.is_held or self.is_failed)

    @property
    def is_crowded(self) -> bool:
        """Return whether the agent's outbox holds too many messages for other agents. Messages to the agent itself do not count, since only
        the agent's own turns consume them."""
        if self.parked <= PARKED_MESSAGES_MAX:
            return False
        outlet = self.outlets.get(self.id)
        return self.parked - len(outlet.queue or () if outlet is not None else ()) > PARKED_MESSAGES_MAX

    @property
    def is_silent(self) -> bool:
        """Return whether no message leaves the outbox: the agent is held, or has failed and loses its work since the last checkpoint."""
        return self.is_held or self.is_failed

    def sent(self) -> dict[str, int]:
        """Return the number of the last message that left, by receiver."""
        return {outlet.receiver: outlet.number for outlet in self.outlets.values() if outlet.number}

    def received(self) -> dict[str, int]:
        """Return the number of the last message that was consumed, by sender."""
        return {inlet.sender: inlet.consumed for inlet in self.inlets.values() if inlet.consumed}

    def control(self, now_ns: int, number: int | None = None, protocol_state: bytes = b"") -> ev.Control:
        """Return the contents of a checkpoint taken now, without state and channels; `number`: number of that checkpoint."""
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
            effects=self.effects.saved() if self.effects is not None else None,
        )

    def _saved_numbers(self) -> DeadLetterNumbers | None:
        if not self.last_dead_letter:  # the usual case; called at each checkpoint
            return None
        numbers = DeadLetterNumbers(self.last_dead_letter, list(self.dead_letter_numbers))
        return (
            None
            if numbers == consecutive_dead_letter_numbers(self.dead_letter_count, len(self.dead_letters))
            else numbers
        )


class Peer:
    """A host of the plan, with the items queued for it until the batch ends. For this host itself `link` is None.

    `broken_ns`: time since when the link is down; None while it is established.
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
        """Newest epoch that does not involve the link; earlier epochs do not either. None: the two ends have not agreed yet."""
        return None if self.link is None else self.link.floor

    @property
    def is_waited(self) -> bool:
        """Return whether the link has pending items: queued, parked, or not acked."""
        if self.link is None:
            return False
        has_queue = bool(self.out_channels or self.waiting) or self.link.has_unacked
        return has_queue or any(outlet.queue for outlet in self.outlets.values())

    @property
    def owes_consumption_report(self) -> bool:
        """Return whether consumption must be reported, even if only credit has changed and the window was freed before."""
        return bool(self.consumed_items or self.credit_channels)

    def measure_room(self) -> None:
        """Update the room: the link's allowance, less the queued items."""
        if self.link is not None:
            self.items_room = self.link.items_room - len(self.out_channels)
            self.bytes_room = self.link.bytes_room - self.pending_bytes


class HostEpoch:
    """State of one epoch on this host.

    Attributes:
        unrecorded: agents of this host that have not recorded yet.
        awaited: hosts whose marker item has not arrived.
        markers: agent → receiver → number of the last message sent before the agent recorded.
        refusal: reason why this host's part must not be used, or "".
        heard_ns: arrival time of the first message about the epoch.
    """

    __slots__ = (
        *("awaited", "heard_ns", "is_reported", "is_stored", "markers", "markers_sent", "number", "refusal"),
        "unrecorded",
    )

    def __init__(self, number: int, unrecorded: dict[str, None], awaited: dict[str, None], heard_ns: int) -> None:
        self.number = number
        self.heard_ns = heard_ns
        self.unrecorded = unrecorded
        self.awaited = awaited
        self.markers: dict[str, dict[str, int]] = {}
        self.markers_sent = False
        self.is_stored = False
        self.is_reported = False
        self.refusal = ""


ENDED_KEPT = 64
"""Number of ended epochs remembered, so that a late marker or directive does not reopen one. At most four epochs are open."""


UNDONE = "undone"


class HostCounts:
    """Counts of what a host has done since its start.

    Attributes:
        turns: turns that succeeded.
        dead_letters: dead letters of this host's agents, and messages for departed agents.
        checkpoints, forced: checkpoints of agents of a logged protocol, and the forced ones; put_off: basic checkpoints deferred because
            the store was busy.
        piggybacked, piggyback_bytes: messages sent in a logged protocol, and the size of their piggybacks.
        effects: recorded outcomes of effects; completed compensations count as "undone".
        plans, first_plan_ns: number of applied plans, and time of the first; each later plan is a failure of the fleet.
    """

    __slots__ = (
        *(
            "checkpoints",
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
        self.plans = self.first_plan_ns = 0
        self.effects = dict.fromkeys((DONE, FAILED, LEFT, NOT_DONE, UNDONE), 0)


class HostState:
    """State shared by the parts of one host core, which change it only inside `handle`.

    Attributes:
        host: id of this host.
        trace_every: trace every N-th message of each channel; 0 = none. It changes while a viewer is connected.
        is_watched: an observer wants to know when each logged message leaves.
        start: number of this run of the host, from the coordinator; 0 before the first Welcome.
        cluster: id of this fleet's run.
        plan: number of the plan applied, or being applied; 0 before the first.
        plan_hosts: the hosts of that plan.
        begun_epoch: the latest epoch known to have begun; in logged protocols, the latest one when the plan was made.
        plan_epoch: latest epoch begun when the plan was made.
        is_loaded: the plan's agents are here.
        ended: newest epochs that have ended under this plan.
        agents: the agents here, by id.
        routes: agent → (host, incarnation), as far as known.
        ordinals: agent → index in the protocol's vectors, for all receivers of messages.
        peers: the other hosts of the plan that have a link, by id.
        local: the peer of this host's own channels.
        counts: counts since the start of the host.
        now: time of the event being handled.
        out: commands given so far in this event.
    """

    def __init__(self, host: str, *, trace_every: int, is_watched: bool) -> None:
        self.host = host
        self.trace_every = trace_every
        self.is_watched = is_watched
        self.start = 0
        self.cluster = ""
        self.plan = 0
        self.plan_hosts: tuple[str, ...] = ()
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
        """Return the number for the next query to the coordinator."""
        self._requests += 1
        return self._requests

    def not_ended(self, epochs: Iterable[int]) -> dict[int, None]:
        """Return those of the epochs that have not ended yet."""
        return {epoch: None for epoch in epochs if epoch not in self.ended}

    def note(self, level: str, text: str) -> None:
        """Log a message."""
        self.out.append(ev.Note(level, text))
