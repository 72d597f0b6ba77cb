"""Checkpoint modes, which determine how epochs are made. The fleet's protocol chooses the mode.

coordinated_epochs.py   chandy-lamport: hosts receive BeginEpoch and report their parts of the epoch, which a manifest combines
koo_toueg_epochs.py     koo-toueg: a round asks agents for checkpoints, and the resulting recovery line becomes the epoch
autonomous_epochs.py    all other protocols: agents checkpoint on their own, and the recovery line becomes the epoch

This module contains the interface of the modes, the choice of the mode, and the classes that the last two modes share. Fleets in the last
two modes are called logged fleets, because their agents keep sender logs.

*Epochs made from recovery lines.* In logged fleets, epochs are made by the leader rather than by the hosts. A recovery line, computed from
checkpoints or produced by a round, is stored as an epoch (`recovery_line.py`). An epoch made from a recovery line is treated like any
other epoch. In logged fleets, only one epoch is open at a time. An epoch begun by an earlier leader is aborted, because its recovery line
or round was lost with that leader.

*Stopped agents* remain members of a logged fleet until no recovery line can need them. A stopped agent may leave when the newest epoch
contains its last checkpoint, and all messages that it has ever sent were received (`Lines.finished`). The queue of these agents need not
be durable, because the agent's host repeats its request on every new stream.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import Failing, OpenEpoch, OpenEpochs, Stage, StoringLine
from snapline.coordinator.leader.events import LineMaterialised
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERY_TRIGGER, OperationResult, PlanRecord
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.host_messages import AgentRetired, Directive, RetireAgent


class EpochDemand(msgspec.Struct, frozen=True):
    """Reasons for and against beginning an epoch now.

    Attributes:
        is_asked: whether a tool has requested a snapshot.
        is_due: whether the period has elapsed, or an early epoch may begin.
        is_held: whether a recovery plan is needed, so that only the epoch for that plan may begin.
        is_of_all: whether the epoch must contain all work of every agent, even if agents checkpoint on their own; implies `is_due`.
        is_overdue: whether hosts have waited so long for an epoch that idle agents may be holding back the recovery line.
    """

    is_asked: bool
    is_due: bool
    is_held: bool
    is_of_all: bool = False
    is_overdue: bool = False


class Begun(msgspec.Struct, frozen=True):
    """Result of `try_begin` if BeginEpoch was proposed."""


class Later(msgspec.Struct, frozen=True):
    """Result of `try_begin` if another epoch must end before one can begin. Snapshot requests then wait, and a periodic trigger is
    skipped."""


class Declined(msgspec.Struct, frozen=True):
    """Result of `try_begin` if no epoch can begin now. Snapshot requests are then refused with `reason`."""

    reason: str


class Present(msgspec.Struct, frozen=True):
    """Result of `try_begin` if an existing epoch already is the requested snapshot. `reason` says why no newer epoch can be made."""

    epoch: int
    reason: str


class LossReport(msgspec.Struct, frozen=True):
    """Losses that a plan causes: the number of agents that lose their live state, and the number of durable checkpoints after the plan's
    recovery line."""

    rolled_back: int
    checkpoints: int = 0


class Mode(Protocol):
    """Interface of a checkpoint mode, which makes epochs and decides which states survive a recovery plan."""

    def evaluate(self) -> None:
        """Handle changes in the replicated state. The leader calls this method before it evaluates any other part that uses checkpoints."""

    def try_begin(self, demand: EpochDemand) -> Begun | Later | Declined | Present | None:
        """Propose an epoch if there is a reason for it and nothing prevents it. Return None if no epoch is proposed and no request needs
        an answer."""

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch."""

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Start an epoch whose BeginEpoch is in the log. Return the epoch's first stage, or None if it cannot start yet."""

    def collect(self, entry: OpenEpoch) -> None:
        """Advance an epoch from the stage Collecting or Asking once all hosts have answered."""

    def on_ended(self, entry: OpenEpoch, *, is_complete: bool) -> None:
        """Clean up after an epoch whose outcome is in the log."""

    def directives_for(self, host: str) -> Sequence[Directive]:
        """Return the directives of open epochs for a host that has just reconnected."""

    def is_line_made(self) -> bool:
        """Return whether the next plan can start from the newest complete epoch. The leader calls this method repeatedly until it returns
        True."""

    def on_plan_ended(self) -> None:
        """Reset the mode's per-plan state after CommitPlan."""

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> LossReport:
        """Return what a plan loses if it starts from epoch `line`. `applied` maps each host to the pair (plan, host start) that it has
        last applied."""

    def retire(self, session: HostSession, message: RetireAgent) -> op.RemoveAgent | None:
        """Return the operation that removes a stopped agent, or None if the agent can only leave later. A host whose agent leaves later
        receives its answer then."""


class ModeChoice:
    """Chooses the checkpoint mode as soon as the replicated state contains the fleet's protocol. No caller depends on the mode before the
    protocol is known."""

    def __init__(self, state: FleetView, *, coordinated: Mode, koo_toueg: Mode, autonomous: Mode) -> None:
        self._state = state
        self._coordinated = coordinated
        self._koo_toueg = koo_toueg
        self._autonomous = autonomous
        self._chosen: Mode | None = None

    @property
    def mode(self) -> Mode:
        """Return the mode in which this fleet makes its epochs."""
        if self._chosen is not None:
            return self._chosen
        mode = self._coordinated
        if self._state.is_logged:
            mode = self._autonomous if self._state.is_autonomous else self._koo_toueg
        if self._state.image.protocol:
            self._chosen = mode
        return mode


LINE_RETRY_NS = 1 * SECOND_NS
"""Time, in nanoseconds, before an epoch for the logs or a recovery is retried after the store failed. A full disk is rarely cleared
faster."""

LOG_TRIGGER = "log"


class Begin(msgspec.Struct, frozen=True):
    """Facts that were fixed when an epoch was proposed: the plan, the recovery line and, for Koo-Toueg rounds, the initiators."""

    plan: int
    line: dict[str, int]
    initiators: tuple[str, ...]


class LineEpochs:
    """Manages the epochs of a logged fleet, of which only one is open at a time.

    Attributes:
        recovery_failures: number of failed attempts, since the last plan, to store a recovery epoch.
    """

    def __init__(self, shared: LeaderState, open_epochs: OpenEpochs, lines: RecoveryLines) -> None:
        self._shared = shared
        self._open_epochs = open_epochs
        self._lines = lines
        self._proposed: Begin | None = None
        """The start that belongs to the pending BeginEpoch."""
        self._begun: dict[int, Begin] = {}
        self._retry_ns = 0
        self.recovery_failures = 0

    @property
    def is_busy(self) -> bool:
        """Return whether an epoch is open or a BeginEpoch is pending."""
        return bool(self._shared.state.open_epochs()) or self._shared.is_pending("begin")

    # ---- begin ----------------------------------------------------------------------------------------------------

    def may_begin(self, trigger: str) -> bool:
        """Return whether the ledger is loaded, and no retry delay is running for this trigger."""
        is_urgent = trigger in (LOG_TRIGGER, RECOVERY_TRIGGER)
        return self._lines.ledger is not None and not (is_urgent and self._shared.now < self._retry_ns)

    def propose(self, trigger: str, initiators: tuple[str, ...] = ()) -> bool:
        """Propose BeginEpoch. Return whether the operation was proposed."""
        state, ledger = self._shared.state, self._lines.ledger
        if ledger is None or not self.may_begin(trigger):
            return False
        if not self._shared.propose("begin", op.BeginEpoch(state.image.begun, trigger)):
            return False
        self._proposed = Begin(state.plan_number, dict(ledger.line), initiators)
        return True

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """Handle the result of BeginEpoch."""
        proposed, self._proposed = self._proposed, None
        if proposed is not None and result is not None and not result.is_refused:
            self._begun[result.number] = proposed

    def take(self, epoch: int) -> Begin | Failing | None:
        """Remove and return what was fixed when this epoch was proposed, or return the stage Failing if this leader cannot make the epoch.

        Return None while any BeginEpoch is pending, because only its result shows whether this leader began the epoch.
        """
        if self._shared.is_pending("begin"):
            return None
        begun = self._begun.pop(epoch, None)
        if begun is None:
            return Failing("the coordinator that began it has ended")
        if begun.plan != self._shared.state.plan_number or self._lines.ledger is None:
            return Failing("the checkpoints in the store are being read")
        return begun

    # ---- progress -------------------------------------------------------------------------------------------------

    def on_materialised(self, event: LineMaterialised) -> None:
        """Move an epoch to Deciding after its recovery line has been stored, or fail it after an error. Damage to a file is handled even
        if the epoch is already failing."""
        entry = self._open_epochs.get(event.epoch)
        if entry is None or not isinstance(entry.stage, StoringLine | Failing):
            return
        if event.error or event.damaged_path:
            self._fail(entry, event)
        elif isinstance(entry.stage, StoringLine):
            sizes = (event.state_bytes, event.channel_state_bytes, event.channel_state_messages)
            self._lines.on_materialised(event)
            self._open_epochs.decide(entry, op.CompleteEpoch(entry.epoch, event.root, event.unborn, *sizes))

    def _fail(self, entry: OpenEpoch, event: LineMaterialised) -> None:
        problem = f"its line could not be stored: {event.error or event.damaged_path}"
        self._shared.note("error", f"epoch {event.epoch}: {problem}")
        if event.damaged_path:
            self._open_epochs.fail(entry, problem)
            self._lines.on_damaged(event)
        else:
            self._open_epochs.fail_to_store(entry, problem)
            self.recovery_failures += entry.trigger == RECOVERY_TRIGGER
            self._retry_ns = self._shared.now + LINE_RETRY_NS

    def on_plan_ended(self) -> None:
        """Reset the failure count after CommitPlan."""
        self.recovery_failures = 0


class PendingRemovals:
    """Stopped agents that are waiting for their removal. This state need not be durable, because hosts repeat their requests under a new
    leader."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions, lines: RecoveryLines) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._lines = lines
        self._waiting: dict[str, tuple[HostSession, RetireAgent]] = {}

    def on_asked(self, session: HostSession, message: RetireAgent) -> None:
        """Handle a host's request to remove a stopped agent."""
        self._waiting[message.agent] = (session, message)

    def evaluate(self) -> None:
        """Propose the removal of agents that may leave, and notify the hosts of completed removals."""
        state = self._shared.state
        for agent, (session, asked) in list(self._waiting.items()):
            if asked.plan != state.plan_number or self._host_sessions.session(session.id) is not session:
                del self._waiting[agent]  # the host asks again under the next plan, or on the next stream
            elif state.has_left(agent):
                del self._waiting[agent]
                self._lines.on_left(agent)
                self._shared.send((session.id,), AgentRetired(asked.request, state.open_epochs()))
            elif agent in self._lines.finished:
                self._shared.propose(f"leave/{agent}", op.RemoveAgent(session.host, session.start, asked.plan, agent))
