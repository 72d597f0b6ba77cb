"""Operator that drains hosts, resumes them and rebalances agents at drawn times.

Each request goes once to the present leader; the next leader knows only the marks in the log. When the faults are over, the operator removes all
marks, so that agents have hosts to go to.
"""

from collections.abc import Callable

from snapline.coordinator.leader.events import AnswerMoves, MovesRequested
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState

HOME_NS = 200_000_000
"""Period of the `HOME_TIMES` attempts to remove the marks, since there may be no leader at the first one."""

HOME_TIMES = 20

Ask = Callable[[MovesRequested], None]


class MovesOperator:
    """Operator of one run that moves agents."""

    def __init__(self, shared: WorldState, log: SimulatedLog, ask: Ask) -> None:
        self._shared = shared
        self._log = log
        self._ask = ask
        self._numbers = 0
        self._open: dict[int, None] = {}

    def start(self) -> None:
        """Schedule all moves once the fleet works."""
        times, until_ns = self._shared.scenario.run.moves, self._shared.scenario.run.until_ns
        now_ns = self._shared.kernel.now_ns
        for time in range(times):
            after_ns = until_ns * (1 + self._pick("at", time, 64)) // 65
            self._shared.call_at(now_ns + after_ns, lambda time=time: self._come(time))  # type: ignore[misc]  # its own
        for time in range(HOME_TIMES if times else 0):
            self._shared.call_at(now_ns + until_ns + time * HOME_NS, self._resume_all)

    def _pick(self, what: str, time: int, n: int) -> int:
        return self._shared.choices.pick("mover", (what, time), n)

    def _come(self, time: int) -> None:
        hosts = sorted(self._log.canonical.image.hosts)
        if not hosts:
            return
        chosen = hosts[self._pick("host", time, len(hosts))]
        match self._pick("what", time, 4):
            case 0:
                self._say(is_even=True)
            case 1:
                self._say(resumed=(chosen,), is_even=True)
            case _:
                self._say(drained=(chosen,))

    def _resume_all(self) -> None:
        marked = [host for host, record in self._log.canonical.image.hosts.items() if record.is_drained]
        if marked:
            self._say(resumed=tuple(marked))

    def _say(self, *, drained: tuple[str, ...] = (), resumed: tuple[str, ...] = (), is_even: bool = False) -> None:
        self._numbers += 1
        self._open[self._numbers] = None
        self._ask(MovesRequested(self._numbers, drained, resumed, is_even))

    def on_answered(self, answer: AnswerMoves) -> None:
        """Check that each request is answered at most once; a leader that ends leaves requests unanswered."""
        if answer.request not in self._open:
            self._shared.say("answer", "G4", f"request {answer.request} for moves is answered twice, or was never made")
        self._open.pop(answer.request, None)
        plan = self._log.canonical.plan
        is_moved = plan is not None and plan.reason.startswith("agents ")
        self._shared.judge.probes.sometimes(is_moved, "agents moved on purpose")
