"""A simulated person who answers the approvals for which agents wait (`Context.approval`).

`SimApprover` grants or denies what is asked, sometimes twice with different answers, sometimes late, so that the approval has expired or is
decided. Requests and answers may be lost, duplicated or delayed. A request is repeated with the same key until a host has decided on it, and
then the approver asks for the final outcome until it is known. The oracle in `oracles/approval_oracle.py` checks what the approver learns.
"""

from collections.abc import Callable

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.approvals import open_approvals
from snapline.agent_runtime.host.durable_turns import timer_of
from snapline.messages.approvals import ApprovalAnswer, approval_answer_payload, read_outcome
from snapline.messages.client_requests import ACCEPTED, REPEATED, REPLIED, RETRY, AskOutcome, InputOutcome
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import MS
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState

LOOK_NS, TIMEOUT_NS, AGAIN_NS = 30 * MS, 400 * MS, 2000 * MS

THINKS_MS = (0, 5, 50, 400)
"""Possible delays before an answer, in milliseconds."""

DENIES_ONE_IN, TWICE_ONE_IN, LATER_ONE_IN, IGNORES_ONE_IN, LOST_ONE_IN, COPIES_ONE_IN = 3, 4, 6, 8, 10, 8


class OpenAnswer(msgspec.Struct):
    """An answer that the approver gives. `key` is the key of the input, and also the note of the answer. `is_taken` means that a host has
    accepted the input."""

    agent: str
    approval: str
    key: str
    payload: bytes
    is_taken: bool = False


class SimApprover:
    """Simulated person. See the module docstring."""

    name = "approver"

    def __init__(self, shared: WorldState, log: SimulatedLog, hosts: Hosts) -> None:
        self._shared = shared
        self._log = log
        self._hosts = hosts
        self._oracle = shared.judge.ground_truth.steps.approvals
        self._seen_ns: dict[str, int] = {}
        """Approvals that the approver has looked at, each with the time."""
        self._count = 0
        self._open: dict[str, OpenAnswer] = {}
        self._attempt = 0

    def start(self) -> None:
        """Start the approver if the fleet's agents may ask for approvals."""
        workload = self._shared.workload
        if workload.asks_people or workload.fleet.simulate is not None:
            self._later(LOOK_NS, self._look)

    def pending(self) -> list[str]:
        """Describe the outcome for which the approver waits. Return an empty list if it waits for none."""
        is_over = bool(self._log.canonical.image.outcome)
        return ["an approver waits for an outcome"] if self._open and not is_over else []

    def _pick(self, what: str, about: str, n: int) -> int:
        """Draw an integer from 0 to n - 1. The value 0 is the benign choice."""
        return self._shared.choices.pick("approver", (what, about, self._attempt), n)

    def _is_one_in(self, n: int, what: str, about: str) -> bool:
        return self._pick(what, about, n) == n - 1

    def _look(self) -> None:
        for run in self._hosts.alive():
            for agent in run.driver.core.agents.values():
                turn = agent.turn
                for approval, place, _ in open_approvals(turn) if turn is not None else ():
                    assert turn is not None
                    self._consider(agent.id, approval, expires=timer_of(turn, place) in agent.timers)
        self._later(LOOK_NS, self._look)

    def _consider(self, agent: str, approval: str, *, expires: bool) -> None:
        """Answer an open approval, or leave it to its expiry. If it is still open after a while, answer again, because the fleet may have
        returned to before the answer."""
        now_ns = self._shared.kernel.now_ns
        is_seen = now_ns < self._seen_ns.get(approval, -AGAIN_NS) + AGAIN_NS
        if is_seen or any(answer.approval == approval for answer in self._open.values()):
            return
        self._seen_ns[approval] = now_ns
        if not (expires and self._is_one_in(IGNORES_ONE_IN, "ignores", approval)):
            self._answer(agent, approval)

    def _answer(self, agent: str, approval: str) -> None:
        is_granted = not self._is_one_in(DENIES_ONE_IN, "denies", approval)
        self._give(agent, approval, is_granted=is_granted)
        if self._is_one_in(TWICE_ONE_IN, "twice", approval):
            self._give(agent, approval, is_granted=not is_granted)
        if self._is_one_in(LATER_ONE_IN, "later", approval):
            self._later(4 * TIMEOUT_NS, lambda: self._give(agent, approval, is_granted=not is_granted))

    def _give(self, agent: str, approval: str, *, is_granted: bool) -> None:
        self._count += 1
        key = f"{approval}-{self._count}"
        payload = approval_answer_payload(ApprovalAnswer(approval, is_granted, key))
        self._open[key] = OpenAnswer(agent, approval, key, payload)
        self._oracle.on_given(approval, key, is_granted=is_granted)
        self._later(THINKS_MS[self._pick("thinks", key, len(THINKS_MS))] * MS, lambda: self._try(key))

    def _try(self, key: str) -> None:
        """Give the answer to the agent's host or, if the answer has been accepted, ask for its outcome. Repeat this until it is known."""
        if key not in self._open:
            return
        self._attempt += 1
        answer = self._open[key]
        record = self._log.canonical.image.agents.get(answer.agent)
        if record is None or record.left_plan is not None:
            del self._open[key]
            return
        if not self._is_one_in(LOST_ONE_IN, "lost", key):
            for copy in range(1 + self._is_one_in(COPIES_ONE_IN, "copies", key)):
                way_ns = self._shared.network.path_ns(self.name, record.host, ("approver", self._attempt, copy))
                self._later(TIMEOUT_NS if way_ns is None else way_ns, lambda: self._deliver(record.host, answer))
        self._later(TIMEOUT_NS, lambda: self._try(key))

    def _deliver(self, host: str, answer: OpenAnswer) -> None:
        run = self._hosts.run_of(host)
        if run is None:
            return
        if answer.is_taken:
            run.ask(answer.agent, answer.key, lambda outcome: self._learn(answer, outcome), is_early=False)
            return
        offered = ev.OfferedInput(answer.agent, answer.key, answer.payload, is_operator_command=True)
        run.settle(self.name, (offered,), lambda outcomes: self._hear(answer, outcomes[0]))

    def _hear(self, answer: OpenAnswer, outcome: InputOutcome) -> None:
        self._shared.judge.probes.hit(f"approval {outcome.status}")
        if outcome.status in (ACCEPTED, REPEATED):
            answer.is_taken = True
        elif outcome.status != RETRY and not answer.is_taken:
            self._open.pop(answer.key, None)

    def _learn(self, answer: OpenAnswer, outcome: AskOutcome) -> None:
        if outcome.status == RETRY or answer.key not in self._open:
            return
        del self._open[answer.key]
        if outcome.status == REPLIED:
            found = read_outcome(outcome.body)
            self._shared.judge.probes.hit(f"answer {found.status}")
            self._oracle.on_final(self._shared.kernel.now_ns, answer.key, found)

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)
