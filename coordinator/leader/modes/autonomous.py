"""Epochs of fleets whose agents checkpoint by themselves: when one begins, and what survives a failure.

The line is there before the epoch: it is taken when BeginEpoch is proposed, so every agent that has a checkpoint on it was
created before the epoch began, and is a member. An epoch begins

    hand      somebody asks for a snapshot. If the line is still the base, the base is the answer
    period    the period is over and the line has advanced
    log       the sender logs in the store have outgrown half of their limit and the line has advanced
    recovery  the hosts are frozen before a plan and the line has advanced: what survives is made an epoch

Effects and final answers wait for an epoch that holds their agent's checkpoint. Other agents may hold the line back behind it, and may rest: their
policy lets them save nothing. If hosts have waited for a while, the fleet is frozen for an epoch of all live states.

If the logs have outgrown their limit and an epoch does not help, since one agent holds the line back (the domino effect), the
fleet is frozen, the cut of all live states is made an epoch, and the fleet goes on: a coordinated checkpoint, the only way to
keep the logs bounded.
"""

from collections.abc import Mapping, Sequence

from snapline.coordinator.leader.epochs.open_epochs import EpochUnderway, Failing, Stage, StoringLine
from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import SECOND_NS, Desk
from snapline.coordinator.leader.modes.freeze import Freezing
from snapline.coordinator.leader.modes.leaving import Leaving
from snapline.coordinator.leader.modes.line_epochs import LOG_TRIGGER, LineEpochs
from snapline.coordinator.leader.modes.mode import Begun, Later, Losses, Present, Wish
from snapline.coordinator.leader.recovery_lines.lines import Lines
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERY_TRIGGER, RUNNING, OperationResult, PlanRecord
from snapline.messages.host_messages import FreezeAgents, RetireAgent, ThawAgents

FREEZE_PAUSE_NS = 10 * SECOND_NS
"""Between two freezes for the logs: a fleet that stands still all the time would be no better than one whose logs grow."""

RECOVERY_FAILURES_MAX = 10
"""Times that what survives could not be stored. After that the fleet goes back to the newest epoch: late beats never."""

RECOVERY_EPOCHS_MAX = 3
"""Epochs made before one plan. A host that does not freeze may report new checkpoints all the time."""


class Autonomous:
    """The mode of uncoordinated and communication-induced fleets."""

    def __init__(
        self, desk: Desk, lines: Lines, epochs: LineEpochs, freezing: Freezing, leaving: Leaving, store: StoreWatch
    ) -> None:
        self._desk = desk
        self._lines = lines
        self._epochs = epochs
        self._freezing = freezing
        self._leaving = leaving
        self._store = store
        self._is_freezing = False
        """For the logs: the fleet must be thawed, or an epoch must end."""
        self._freeze_ns = 0
        """No freeze for the logs before."""
        self._log_left = 0
        """Bytes of logs that were left when the last epoch for their sake had completed."""
        self._newest: dict[str, int] = {}
        """Agent → its newest checkpoint, or live state, when the hosts had been frozen."""

    def evaluate(self) -> None:
        """Follow plan and checkpoints. A plan ends the freeze of a fleet that needs one."""
        self._lines.evaluate()
        self._freezing.evaluate()
        if self._desk.state.phase != RUNNING:
            self._is_freezing = False

    # ---- beginning ------------------------------------------------------------------------------------------------

    def try_begin(self, wish: Wish) -> Begun | Later | Present | None:
        """A freeze for the logs that has begun must go on to its end, even if its epoch comes to nothing."""
        if self._epochs.is_busy:
            return Later()
        if wish.is_held:
            return None
        trigger = self._trigger(wish) if wish.is_asked or self._is_freezing or self._store.allows() else ""
        if trigger:
            return Begun() if self._epochs.propose(trigger) else None
        is_wanted = wish.is_asked or (wish.is_of_all and not self._is_freezing)
        return self._present() if is_wanted and self._lines.is_settled else None

    def _trigger(self, wish: Wish) -> str:
        """Why an epoch is to begin now; "" if none is."""
        lines = self._lines
        if not lines.is_ready or not lines.is_settled:
            return ""
        if wish.is_of_all or (wish.is_overdue and lines.is_behind):
            return self._frozen_trigger("period")
        if wish.is_asked and self._present() is None:
            return "hand"
        if wish.is_due and lines.has_advanced:
            return "period"
        return self._frozen_trigger(LOG_TRIGGER) if self._is_freezing else self._log_trigger()

    def _frozen_trigger(self, trigger: str) -> str:
        """The hosts are frozen; when they have answered, the line is the live states of all agents, and if it is new an epoch begins."""
        self._is_freezing = True
        if not self._freezing.ask():
            return ""
        if self._lines.has_advanced:
            return trigger
        self._thaw()
        return ""

    def _present(self) -> Present | None:
        """The epoch that already holds the present line."""
        ledger = self._lines.ledger
        if ledger is None or ledger.base_epoch == 0 or ledger.has_advanced:
            return None
        return Present(ledger.base_epoch, op.clip(ledger.why_not_advanced()))

    def _log_trigger(self) -> str:
        limit, size = self._desk.state.image.log_bytes_max, self._lines.log_bytes
        if not limit:
            return ""
        has_advanced = self._lines.has_advanced
        if has_advanced and size > max(limit // 2, self._log_left + limit // 4):
            return LOG_TRIGGER
        if size > limit and (not has_advanced or self._log_left > limit) and self._desk.now >= self._freeze_ns:
            self._desk.note(
                "warning",
                f"sender logs take {size} bytes of at most {limit}, and the recovery line does not advance: the fleet is "
                "stopped for a checkpoint of all its agents. A shorter checkpoint policy, or a protocol that forces "
                "checkpoints, would make that unnecessary",
            )
            self._is_freezing = True
            self._freezing.ask()
        return ""

    def _thaw(self) -> None:
        self._is_freezing, self._freeze_ns = False, self._desk.now + FREEZE_PAUSE_NS
        self._freezing.thaw()

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """What it begins with is known."""
        self._epochs.on_begin_ended(result)

    def start(self, epoch: int, plan: PlanRecord) -> Stage | None:
        """Make the line of its beginning the epoch."""
        begun, ledger = self._epochs.take(epoch), self._lines.ledger
        if begun is None or isinstance(begun, Failing) or ledger is None:
            return begun if isinstance(begun, Failing) else None
        if any(number > ledger.newest.get(agent, 0) for agent, number in begun.line.items()):
            return Failing("a checkpoint of its line was found damaged")
        self._lines.materialise(epoch, begun.line, self._desk.state.member_records(epoch))
        return StoringLine()

    def collect(self, entry: EpochUnderway) -> None:
        """There is nothing to wait for: the line was there first."""

    def on_ended(self, entry: EpochUnderway, *, is_complete: bool) -> None:
        """A fleet that was frozen for it goes on."""
        if is_complete and entry.trigger != RECOVERY_TRIGGER:
            self._log_left = self._lines.log_bytes
        if self._is_freezing:
            self._thaw()

    def directives_for(self, host: str) -> Sequence[FreezeAgents | ThawAgents]:
        """What holds now: a freeze or none."""
        return self._freezing.directives_for(host)

    # ---- what survives ----------------------------------------------------------------------------------------------

    def is_line_made(self) -> bool:
        """Whether what survives is in the newest complete epoch, or cannot get there."""
        lines, epochs = self._lines, self._epochs
        if not self._freezing.ask() or not lines.is_settled or epochs.is_busy:
            return False
        self._newest = lines.newest()
        records, number = self._desk.state.image.epochs.values(), self._desk.state.plan_number
        made = [x for x in records if x.plan == number and x.trigger == RECOVERY_TRIGGER]
        is_enough = len(made) >= RECOVERY_EPOCHS_MAX or epochs.recovery_failures >= RECOVERY_FAILURES_MAX
        if not lines.has_advanced or is_enough:
            return True
        epochs.propose(RECOVERY_TRIGGER)
        return False

    def on_plan_ended(self) -> None:
        """Another plan looks at what survives anew."""
        self._newest = {}
        self._epochs.on_plan_ended()

    def losses(self, line: int, applied: Mapping[str, tuple[int, int]]) -> Losses:
        """Who stands at its newest checkpoint, and that is on the line, keeps its live state."""
        state, ledger = self._desk.state, self._lines.ledger
        living = list(state.living_agents())
        if ledger is None or ledger.base_epoch != line:
            return Losses(len(living))
        kept = passed = 0
        for agent, record in living:
            start = state.image.hosts[record.host].start if record.host else 0
            is_same_run = applied.get(record.host) == (state.plan_number, start)
            past = self._newest.get(agent, 0) - ledger.base.get(agent, 0)
            passed += past
            kept += is_same_run and not past and self._freezing.has_kept(record.host, agent)
        return Losses(len(living) - kept, passed)

    def retire(self, session: HostSession, message: RetireAgent) -> None:
        """It leaves when no line can need it."""
        self._leaving.on_asked(session, message)
