"""Epochs of logged protocols: when one begins, and how its line is found and made.

In autonomous protocols the line is there before the epoch: it is taken when BeginEpoch is proposed, so every agent that
has a checkpoint on it was created before the epoch began, and is a member. In koo-toueg the epoch is a round, which makes its
line. Either way the line is then materialised (`lines.py`). One epoch at a time. An epoch that this leader did not begin is
aborted: the line, or the round, died with the leader that began it.

An autonomous epoch begins

    hand      somebody asks for a snapshot. If the line is still the base, the base is the answer
    period    the period is over and the line has advanced
    log       the sender logs in the store have outgrown half of their limit and the line has advanced; in koo-toueg, those in the
              memory of some host are large: all agents are asked, for only rounds bring logs into the store
    recovery  the hosts are frozen before a plan and the line has advanced (`plans.py`)

If the logs have outgrown their limit and an epoch does not help, since one agent holds the line back (the domino effect), the
fleet is frozen, the cut of all live states is made an epoch, and the fleet goes on: a coordinated checkpoint, the only way to
keep the logs bounded.
"""

from snapline.coordinator.leader.attendance import Attendance
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.freezing import Freezing
from snapline.coordinator.leader.lines import Lines
from snapline.coordinator.leader.rounds import Rounds
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RECOVERY_TRIGGER, RUNNING, OperationResult

RETRY_NS = 1 * SECOND_NS
"""Before an epoch for the logs or for a recovery is tried again when it could not be stored: a full disk is not emptied faster."""

FREEZE_PAUSE_NS = 10 * SECOND_NS
"""Between two freezes for the logs: a fleet that stands still all the time would be no better than one whose logs grow."""

LOG_TRIGGER = "log"

ROUND_LOG_BYTES = 64 * 1024 * 1024
"""Of sender logs in the memory of one host: a quarter of what makes its agents stand still (`agent_runtime/host/backlog.py`)."""


class LineEpochs:
    """Decides for `Epochs` in logged protocols."""

    def __init__(self, desk: Desk, attendance: Attendance, lines: Lines, rounds: Rounds, freezing: Freezing) -> None:
        self._desk = desk
        self._attendance = attendance
        self._lines = lines
        self._rounds = rounds
        self._freezing = freezing
        self._proposed: tuple[int, dict[str, int], tuple[str, ...]] | None = None
        """(plan, line, initiators) of the BeginEpoch on its way."""
        self._begun: dict[int, tuple[int, dict[str, int], tuple[str, ...]]] = {}
        self._is_freezing = False
        self._freeze_ns = 0
        self._retry_ns = 0
        self._log_left = 0
        """Bytes of logs that were left when the last epoch for their sake had completed."""

    # ---- beginning ------------------------------------------------------------------------------------------------

    def trigger(self, *, is_asked: bool, is_due: bool) -> str:
        """Why an epoch is to begin now; "" if none is."""
        lines = self._lines
        if not lines.is_ready or not lines.is_settled:
            return ""
        if not self._desk.state.is_autonomous:
            return "hand" if is_asked else "period" if is_due else self._memory_trigger()
        if is_asked and self.base_for_requests() < 0:
            return "hand"
        return "period" if is_due and lines.has_advanced else self._log_trigger()

    def base_for_requests(self) -> int:
        """The epoch that already holds the present line; -1: none does."""
        ledger = self._lines.ledger
        if ledger is None or not self._desk.state.is_autonomous or ledger.base_epoch == 0 or ledger.has_advanced:
            return -1
        return ledger.base_epoch

    def why_base(self) -> str:
        """Why the base is the answer to whoever asks for a snapshot now."""
        assert self._lines.ledger is not None, "only a ledger has a base"
        return op.clip(self._lines.ledger.why_not_advanced())

    def _memory_trigger(self) -> str:
        return LOG_TRIGGER if self._attendance.log_bytes() > ROUND_LOG_BYTES else ""

    def _log_trigger(self) -> str:
        limit, size = self._desk.state.image.log_bytes_max, self._lines.log_bytes
        if not limit:
            return ""
        if self._is_freezing:
            if not self._freezing.ask():
                return ""
            if self._lines.has_advanced:
                return LOG_TRIGGER
            self._thaw()
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

    def propose(self, trigger: str) -> bool:
        """Propose BeginEpoch; return whether it left."""
        state, ledger = self._desk.state, self._lines.ledger
        if ledger is None or (self._desk.now < self._retry_ns and trigger in (LOG_TRIGGER, RECOVERY_TRIGGER)):
            return False
        initiators: tuple[str, ...] = ()
        if not state.is_autonomous:
            initiators = self._rounds.initiators(is_everybody=trigger in ("hand", LOG_TRIGGER))
            if not initiators:
                return False
        if not self._desk.propose("begin", op.BeginEpoch(state.image.begun, trigger)):
            return False
        self._proposed = (state.plan_number, dict(ledger.line), initiators)
        return True

    def on_begin_ended(self, result: OperationResult | None) -> None:
        """BeginEpoch came back."""
        proposed, self._proposed = self._proposed, None
        if proposed is not None and result is not None and not result.is_refused:
            self._begun[result.number] = proposed

    @property
    def is_freezing(self) -> bool:
        """Whether the fleet is frozen for the logs: it must be thawed, or an epoch must end."""
        return self._is_freezing

    # ---- on the way -----------------------------------------------------------------------------------------------

    def start(self, epoch: int) -> str:
        """The epoch is open: take what it begins with. Returns why it must be aborted, or ""."""
        begun, ledger = self._begun.pop(epoch, None), self._lines.ledger
        if begun is None:
            return "the coordinator that began it has ended"
        plan, line, initiators = begun
        if plan != self._desk.state.plan_number or ledger is None:
            return "the checkpoints in the store are being read"
        if initiators:
            self._rounds.start(epoch, initiators)
            return ""
        if any(number > ledger.newest.get(agent, 0) for agent, number in line.items()):
            return "a checkpoint of its line was found damaged"
        self._lines.materialise(epoch, line)
        return ""

    def is_collecting(self, epoch: int) -> bool:
        """Whether the round still asks; otherwise its line is being materialised from here on."""
        line = self._rounds.line(epoch)
        if line is None:
            return True
        self._lines.materialise(epoch, line)
        return False

    def problem(self) -> str:
        """Why the round cannot be committed."""
        return self._rounds.problem

    def on_failed(self) -> None:
        """The store could not be used."""
        self._retry_ns = self._desk.now + RETRY_NS

    def on_ended(self, epoch: int, trigger: str, *, is_complete: bool) -> None:
        """The epoch has its outcome."""
        self._rounds.end(epoch, is_complete=is_complete)
        if is_complete and trigger != RECOVERY_TRIGGER:
            self._log_left = self._lines.log_bytes
        if self._is_freezing:
            self._thaw()

    def evaluate(self) -> None:
        """A plan ends the freeze of a fleet that needs one."""
        if self._desk.state.phase != RUNNING:
            self._is_freezing = False
