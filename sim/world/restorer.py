"""An operator who takes the fleet back now and then, to some epoch that is kept, with or without its inputs.

He asks whoever leads, and again until he is answered: the same token is the same restore. When the faults are over he comes only where an agent stands that has asked to go back
(`ctx.rollback`), and that was refused: then he takes the fleet back to its newest epoch.
"""

from collections.abc import Callable
from typing import NamedTuple

from snapline.coordinator.leader import events as le
from snapline.sim.world.desk import WorldDesk
from snapline.sim.world.replicated_log import SimulatedLog

AGAIN_NS = 400_000_000
"""Without an answer he asks again: an election takes as long."""

ASKED_MAX = 8

HELPS_NS = 700_000_000
"""Between two looks of his: long enough for a restore."""

Ask = Callable[[le.RestoreRequested], None]
"""Says it to whoever leads, if anybody does."""


class OperatorsRestore(NamedTuple):
    """One restore; `asked`: how often."""

    token: str
    epoch: int
    drops: bool
    asked: int


class Restorer:
    """Of one run."""

    def __init__(self, desk: WorldDesk, log: SimulatedLog, ask: Ask, stands: Callable[[], bool]) -> None:
        """`stands`: an agent does, and was refused."""
        self._desk = desk
        self._log = log
        self._ask = ask
        self._stands = stands
        self._helps = 0
        self._numbers = 0
        self._open: dict[int, str] = {}
        self._answered: dict[str, None] = {}

    def start(self) -> None:
        """The fleet has begun to work: from now on he comes at moments that are drawn."""
        part, until_ns = self._desk.scenario.restores, self._desk.scenario.run.until_ns
        for time in range(part.times):
            after_ns = until_ns * (1 + self._pick("at", time, 64)) // 65
            self._desk.call_at(self._desk.kernel.now_ns + after_ns, lambda time=time: self._come(time))  # type: ignore[misc]  # its own

        if self._desk.workload.rolls_back:
            self._look()

    def _look(self) -> None:
        """Every now and then, whether somebody needs him."""
        complete = self._log.canonical.complete_epochs()
        if complete and self._stands():
            self._helps += 1
            self._desk.judge.probes.hit("rollback refused")
            self._say(OperatorsRestore(f"helper-{self._helps}", complete[-1], False, 0))
        self._desk.call_at(self._desk.kernel.now_ns + HELPS_NS, self._look)

    def _pick(self, what: str, time: int, n: int) -> int:
        return self._desk.choices.pick("operator", (what, time), n)

    def _come(self, time: int) -> None:
        complete = self._log.canonical.complete_epochs()
        if not complete:
            return
        part = self._desk.scenario.restores
        epoch = complete[-1 - self._pick("epoch", time, len(complete))]
        drops = bool(part.drops_one_in) and self._pick("drops", time, part.drops_one_in) == part.drops_one_in - 1
        self._say(OperatorsRestore(f"operator-{time}", epoch, drops, 0))

    def _say(self, wish: OperatorsRestore) -> None:
        if wish.token in self._answered or wish.asked >= ASKED_MAX:
            return
        self._numbers += 1
        self._open[self._numbers] = wish.token
        self._ask(le.RestoreRequested(self._numbers, wish.token, wish.epoch, "on purpose", wish.drops))
        again = wish._replace(asked=wish.asked + 1)
        self._desk.call_at(self._desk.kernel.now_ns + AGAIN_NS, lambda: self._say(again))

    def on_answered(self, answer: le.AnswerRestore) -> None:
        """What he is told must be so in the log."""
        token = self._open.pop(answer.request, "")
        if not token:
            self._desk.say("answer", "G4", f"request {answer.request} to go back is answered twice, or was never made")
            return
        probes = self._desk.judge.probes
        probes.sometimes(not answer.refused, "fleet taken back")
        probes.sometimes(bool(answer.refused), "restore refused")
        if not answer.may_pass:
            self._answered[token] = None
        plan = self._log.canonical.plan_asked_for(token)
        if not answer.refused and (plan is None or plan.number != answer.plan):
            self._desk.say("answer", "G4", f"{token} is told of plan {answer.plan}, which does not go back for it")
