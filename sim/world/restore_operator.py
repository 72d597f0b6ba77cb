"""Operator that sometimes restores the fleet to a kept epoch, with or without its inputs.

Requests go to the present leader through the product's service (`coordinator/service/restore_requests.py`), and are repeated until they are answered; the
same token identifies the same restore. When the faults are over, the operator acts only if an agent's rollback request (`ctx.rollback`) was refused:
then the operator restores the newest epoch.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from snapline.coordinator.leader import events as le
from snapline.coordinator.service.restore_requests import AnswerT
from snapline.errors import NotFoundError, SnaplineError, UsageError
from snapline.messages.answers import RestoreReply
from snapline.sim.world.kernel import Future, Kernel, VirtualLoop, drive, settle
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.simulated_replica import SimLeader
from snapline.sim.world.world_state import WorldState

AGAIN_NS = 400_000_000
"""Time before the operator repeats an unanswered request: about as long as an election."""

ASKED_MAX = 8

HELPS_NS = 700_000_000
"""Time between two checks for refused rollbacks: long enough for a restore."""

CALL_WAIT_NS, CALL_WAITS_MAX = 10_000_000, 200
"""Period and number of waits for an effect's call: half of the restores happen during one, if one comes soon."""

READ_S = 0.002
"""Time for which the service reads the store during a restore."""


class RestoreRequest(NamedTuple):
    """One restore. `asked`: number of requests for it."""

    token: str
    epoch: int
    drops: bool
    asked: int


class _LeaderLoop(VirtualLoop):
    """Virtual event loop for the service of one leader. Calls of a leader that is over are dropped."""

    def __init__(self, kernel: Kernel, leader: SimLeader) -> None:
        super().__init__(kernel)
        self._leader = leader

    def run_in_executor(self, _executor: None, function: Callable[[], Any]) -> Future:
        future = self.create_future()
        self.call_later(READ_S, lambda: self._leader.fire((lambda _: settle(future, function), None)))
        return future


class RestoreOperator:
    """Operator of one run that restores the fleet."""

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        leader: Callable[[], SimLeader | None],
        stands: Callable[[], bool],
        is_calling: Callable[[], bool],
    ) -> None:
        """`leader` returns the leader, if any; `stands` whether an agent's rollback was refused; `is_calling` whether an effect is being called."""
        self._shared = shared
        self._log = log
        self._leader = leader
        self._stands = stands
        self._is_calling = is_calling
        self._helps = 0
        self._numbers = 0
        self._open: dict[int, Future] = {}
        self._answered: dict[str, None] = {}

    def start(self) -> None:
        """Schedule restores at drawn times, now that the fleet works."""
        part, until_ns = self._shared.scenario.restores, self._shared.scenario.run.until_ns
        for time in range(part.times):
            after_ns = until_ns * (1 + self._pick("at", time, 64)) // 65
            self._shared.call_at(self._shared.kernel.now_ns + after_ns, lambda time=time: self._come(time))  # type: ignore[misc]  # its own

        if self._shared.workload.requests_rollbacks:
            self._look()

    def _look(self) -> None:
        """Restore the newest epoch if an agent needs it, then check again later."""
        complete = self._log.canonical.complete_epochs()
        if complete and self._stands():
            self._helps += 1
            self._shared.judge.probes.hit("rollback refused")
            self._say(RestoreRequest(f"helper-{self._helps}", complete[-1], False, 0))
        self._shared.call_at(self._shared.kernel.now_ns + HELPS_NS, self._look)

    def _pick(self, what: str, time: int, n: int) -> int:
        return self._shared.choices.pick("operator", (what, time), n)

    def _come(self, time: int, looks: int = 0) -> None:
        if looks < CALL_WAITS_MAX and self._pick("amid", time, 2) == 1 and not self._is_calling():
            later_ns = self._shared.kernel.now_ns + CALL_WAIT_NS
            self._shared.call_at(later_ns, lambda: self._come(time, looks + 1))
            return
        complete = self._log.canonical.complete_epochs()
        if not complete:
            return
        part = self._shared.scenario.restores
        epoch = complete[-1 - self._pick("epoch", time, len(complete))]
        drops = bool(part.drops_one_in) and self._pick("drops", time, part.drops_one_in) == part.drops_one_in - 1
        self._say(RestoreRequest(f"operator-{time}", epoch, drops, 0))

    def _say(self, restore_request: RestoreRequest) -> None:
        if restore_request.token in self._answered or restore_request.asked >= ASKED_MAX:
            return
        leader = self._leader()
        if leader is not None:
            loop = _LeaderLoop(self._shared.kernel, leader)
            drive(
                loop, self._restore(loop, leader, restore_request), lambda answer: self._ended(restore_request, answer)
            )
        again = restore_request._replace(asked=restore_request.asked + 1)
        self._shared.call_at(self._shared.kernel.now_ns + AGAIN_NS, lambda: self._say(again))

    async def _restore(self, loop: VirtualLoop, leader: SimLeader, restore_request: RestoreRequest) -> RestoreReply:
        def ask(question: Callable[[int], le.Event], answer: type[AnswerT]) -> Awaitable[AnswerT]:
            self._numbers += 1
            future = self._open[self._numbers] = loop.create_future()
            leader.tell(question(self._numbers))
            return future

        return await leader.restoring.restore(
            str(restore_request.epoch),
            restore_request.token,
            "the operator wants it",
            is_dropping=restore_request.drops,
            ask=ask,
        )

    def on_answered(self, answer: le.AnswerRestore) -> None:
        """Pass the leader's answer to the service."""
        future = self._open.pop(answer.request, None)
        if future is None:
            self._shared.say(
                "answer", "G4", f"request {answer.request} to go back is answered twice, or was never made"
            )
            return
        future.set_result(answer)

    def _ended(self, restore_request: RestoreRequest, answer: Callable[[], RestoreReply]) -> None:
        """Check that the answer to a restore agrees with the log."""
        probes = self._shared.judge.probes
        try:
            reply = answer()
        except (UsageError, NotFoundError) as error:  # permanent refusal
            self._answered[restore_request.token] = None
            probes.hit("restore refused")
            if "lack inputs" in str(error) and self._shared.scenario.budget == "within":
                self._shared.say(
                    "answer", "R1", f"{restore_request.token} is refused, and no fault has deleted inputs: {error}"
                )
            return
        except SnaplineError:  # temporary refusal
            probes.hit("restore refused")
            return
        self._answered[restore_request.token] = None
        probes.hit("fleet taken back")
        plan = self._log.canonical.plan_of_request(restore_request.token)
        if plan is None or (plan.number, plan.line_epoch) != (reply.plan, reply.epoch):
            self._shared.say(
                "answer", "G4", f"{restore_request.token} is told of plan {reply.plan}, which does not go back for it"
            )
