"""Simulated operators of a fleet, and a simulated reader of the fleet's outputs.

`SimOperator` retries some dead letters and drops others. If an effect needs a decision by an operator, `SimOperator` looks up the effect in
the service's record and resolves it. At most one request is open at a time. A request contains one or two commands for one agent. The
request and the answer may each be lost, duplicated or delayed. If a request or answer is lost or late, the operator resends the request
with the same keys or gives up. The operator waits before it acts, so a request may name a dead letter that is already settled or rolled
back. The oracle in `oracles/input_output_oracles.py` checks the answers.

At random times, `MovesOperator` drains hosts, resumes hosts and rebalances agents. Each request is sent only once, to the current leader.
After a change of leader, the new leader knows only the drain marks in the log. When all faults have ended, the operator removes all drain
marks, so that every host may run agents again.

`RestoreOperator` sometimes restores the fleet to a kept epoch. The inputs since that epoch are either kept or discarded. `RestoreOperator`
sends its requests to the current leader through the product's own service (`coordinator/service/restore_requests.py`). The operator repeats
each request until the leader answers. Requests with the same token request the same restore. If an agent's request for a rollback
(`ctx.rollback`) was refused, the operator restores the newest epoch. When all faults have ended, `RestoreOperator` only handles refused
rollbacks.

`SimReader` reads all outputs, and keeps its position in a cursor. Sometimes the reader crashes and later resumes from a saved cursor. At
the end of the run, the outputs that the reader has read are compared with the release files.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from snapline.agent_runtime.durable import encode_result
from snapline.agent_runtime.effect_ledger import UNDO
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.coordinator.leader import events as le
from snapline.coordinator.leader.events import AnswerMoves, MovesRequested
from snapline.coordinator.service.restore_requests import AnswerT
from snapline.errors import NotFoundError, SnaplineError, UsageError
from snapline.messages.agent_commands import (
    DROP,
    RETRY,
    DeadLetterCommand,
    EffectResolution,
    dead_letter_command_payload,
    effect_resolution_payload,
    is_effect_resolution,
)
from snapline.messages.answers import RestoreReply
from snapline.messages.client_requests import ACCEPTED, InputOutcome
from snapline.messages.effect_records import outside_key
from snapline.sim.oracles.input_output_oracles import ReadRelease, command_name
from snapline.sim.scenario import reads_outputs
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import MS, Kernel
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.simulated_replica import SimLeader
from snapline.sim.world.steps import Future, VirtualLoop, drive, settle
from snapline.sim.world.world_state import WorldState
from snapline.storage.store.store import Store

# -- dead letters and effects ---------------------------------------------------------------------------------------------

LOOK_NS = 60 * MS
TIMEOUT_NS = 400 * MS
THINKS = (1, 1, 5, 20)
"""Possible delays before the operator sends a request, in multiples of `LOOK_NS`."""

COMMANDS_MAX = 24
"""Maximum number of commands in a run. The limit keeps a dead letter that always fails from keeping the fleet busy forever."""

LOST_ONE_IN, TWICE_ONE_IN, AGAIN_ONE_IN, GIVEN_UP_ONE_IN, DROPS_ONE_IN, TWO_ONE_IN = 10, 8, 5, 20, 3, 2

RETRIES_MAX = 2
"""Number of retries after which a dead letter is dropped. If every retry crashes the agent, the fleet recovers each time and finally fails.
"""

_MEANT = (b"\x05Nudge", b"\x08Numbered", b"\x04Book", UNDO)
"""Payload prefixes of the dead letters that the operator handles. Dropping these dead letters does not violate their
patterns' invariants. A failed undo is never dropped."""


class SimOperator:
    """Operator that settles dead letters and resolves effects. See the module docstring."""

    name = "operator"

    def __init__(self, shared: WorldState, log: SimulatedLog, hosts: Hosts) -> None:
        self._shared = shared
        self._log = log
        self._hosts = hosts
        self._stubs = hosts.steps.stubs
        self._said = self._said_of_effects = 0
        self._attempt = 0
        self._open: list[ev.OfferedInput] = []
        self._retried: dict[tuple[str, bytes], int] = {}

    def start(self) -> None:
        """Start the operator, even if the fleet is not running yet."""
        if self._shared.scenario.clients.is_settling or self._shared.workload.fleet.simulate is not None:
            self._later(LOOK_NS, self._look)

    def pending(self) -> list[str]:
        """Describe the answer for which the operator waits. Return an empty list if it does not wait for an answer."""
        is_over = bool(self._log.canonical.image.outcome)
        return ["an operator waits for an answer"] if self._open and not is_over else []

    def _pick(self, what: str, n: int) -> int:
        """Draw an integer from 0 to n - 1. The value 0 is the benign choice."""
        return self._shared.choices.pick("operators", (what, self._said, self._attempt), n)

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._pick(what, n) == n - 1

    # ---- looking --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._attempt += 1
        if (
            not self._open
            and not self._resolve()
            and self._said < COMMANDS_MAX
            and self._shared.scenario.clients.is_settling
        ):
            self._choose()
        self._later(LOOK_NS, self._look)

    def _resolve(self) -> bool:
        """Resolve an effect that needs an operator's decision, according to the service's record. Return whether such an effect was
        found."""
        for run in self._hosts.alive():
            for agent in run.driver.core.agents.values():
                waiting = [x.opened for x in agent.effects.open.values() if x.needs_people] if agent.effects else []
                if not waiting:
                    continue
                opened = waiting[self._pick("effects", len(waiting))] if len(waiting) > 1 else waiting[0]
                key = outside_key(self._shared.stores.id, agent.id, opened.key, opened.generation)
                if self._stubs.is_in_transit(key):
                    continue
                is_done = key in self._stubs.done
                result = encode_result(opened.name, self._stubs.done[key]) if is_done else b""
                resolution = EffectResolution(opened.key, opened.generation, opened.number, is_done, result)
                self._said_of_effects += 1
                payload = effect_resolution_payload(resolution)
                self._open.append(
                    ev.OfferedInput(agent.id, f"resolve-{self._said_of_effects}", payload, is_operator_command=True)
                )
                self._shared.judge.probes.hit("effect resolved as done" if is_done else "effect resolved as not done")
                self._later(LOOK_NS * THINKS[self._pick("thinks", len(THINKS))], self._send)
                return True
        return False

    def _choose(self) -> None:
        """Draw an agent. If the agent has dead letters, choose commands for some of them."""
        agents = self._shared.agents
        agent = agents[self._pick("agent", len(agents))]
        dead_letters = self._dead_letters_of(agent)
        if not dead_letters:
            return
        count = 1 + self._is_one_in(TWO_ONE_IN, "two")
        first = self._pick("letter", len(dead_letters))
        for number, identity, is_undoing in dead_letters[first : first + count]:
            verb = self._verb(agent, identity, may_drop=not is_undoing)
            self._said += 1
            payload = dead_letter_command_payload(DeadLetterCommand(verb, number, identity))
            offered = ev.OfferedInput(agent, f"{verb}-{number}-{self._said}", payload, is_operator_command=True)
            self._shared.judge.ground_truth.dead_letters.on_command_given(agent, offered.key, payload)
            self._open.append(offered)
        self._later(LOOK_NS * THINKS[self._pick("thinks", len(THINKS))], self._send)

    def _verb(self, agent: str, identity: bytes, *, may_drop: bool) -> str:
        retried = self._retried.get((agent, identity), 0)
        if not may_drop:
            return RETRY
        if retried >= RETRIES_MAX or self._is_one_in(DROPS_ONE_IN, "drops"):
            return DROP
        self._retried[agent, identity] = retried + 1
        return RETRY

    def _dead_letters_of(self, agent: str) -> list[tuple[int, bytes, bool]]:
        """Return, for each dead letter of the agent that the operator may handle, its number, its identity, and whether it is a failed
        undo."""
        run = self._hosts.run_of(self._host_of(agent))
        local_agent = run.driver.core.agents.get(agent) if run is not None else None
        if local_agent is None:
            return []
        pairs = zip(local_agent.dead_letter_numbers, local_agent.dead_letters, strict=True)
        eligible = [(number, each) for number, each in pairs if each.payload.startswith(_MEANT)]
        return [(number, identity_of(each), each.payload.startswith(UNDO)) for number, each in eligible]

    def _host_of(self, agent: str) -> str:
        record = self._log.canonical.image.agents.get(agent)
        return record.host if record is not None and record.left_plan is None else ""

    # ---- requests -------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if not self._open:
            return
        self._attempt += 1
        host = self._host_of(self._open[0].agent)
        if host and not self._is_one_in(LOST_ONE_IN, "lost"):
            for copy in range(1 + self._is_one_in(TWICE_ONE_IN, "twice")):
                self._later(self._way_ns(host, copy), lambda: self._deliver(host, list(self._open)))
        self._later(TIMEOUT_NS, self._timed_out)

    def _way_ns(self, host: str, copy: int) -> int:
        way_ns = self._shared.network.path_ns(self.name, host, ("operator", self._attempt, copy))
        return TIMEOUT_NS if way_ns is None else way_ns

    def _deliver(self, host: str, words: Sequence[ev.OfferedInput]) -> None:
        run = self._hosts.run_of(host)
        if run is not None and words:
            plan = run.driver.core.plan
            run.settle(self.name, words, lambda answers: self._answer(host, words, answers, plan))

    def _answer(self, host: str, words: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome], plan: int) -> None:
        """Handle a host's answers to the operator's request. `plan` is the recovery plan that the host was following when the request
        arrived. The answers may be lost."""
        for command, answer in zip(words, answers, strict=True):
            if answer.status == ACCEPTED and not is_effect_resolution(command.payload):
                self._shared.judge.ground_truth.inputs.drops.on_taken(
                    plan, command_name(command.key), is_repeated=False
                )
        if not self._is_one_in(LOST_ONE_IN, "answer lost"):
            self._later(self._way_ns(host, 2), lambda: self._answered(words, answers))

    def _answered(self, words: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome]) -> None:
        for command, answer in zip(words, answers, strict=True):
            self._shared.judge.probes.hit(f"word {answer.status}")
            if answer.status in ("accepted", "repeated") and not is_effect_resolution(command.payload):
                self._shared.judge.ground_truth.dead_letters.on_acknowledged(self._shared.kernel.now_ns, command.key)
            is_doubted = answer.status == "accepted" and self._is_one_in(AGAIN_ONE_IN, "again")
            if answer.status != "retry" and not is_doubted and command in self._open:
                self._open.remove(command)

    def _timed_out(self) -> None:
        if self._is_one_in(GIVEN_UP_ONE_IN, "given up"):
            self._open.clear()
        self._send()

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)


# -- moves ----------------------------------------------------------------------------------------------------------------

HOME_NS = 200_000_000
"""Interval between the `HOME_TIMES` attempts to remove the drain marks. One attempt may fail because there is no leader."""

HOME_TIMES = 20

Ask = Callable[[MovesRequested], None]


class MovesOperator:
    """Operator that moves agents between hosts."""

    def __init__(self, shared: WorldState, log: SimulatedLog, ask: Ask) -> None:
        self._shared = shared
        self._log = log
        self._ask = ask
        self._numbers = 0
        self._open: dict[int, None] = {}

    def start(self) -> None:
        """Schedule all moves. This method is called when the fleet starts to work."""
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
        if self._pick("placed", time, 4) == 0:
            agents = [agent for agent, _ in self._log.canonical.living_agents()]
            moved = [x for x in agents if not self._shared.choices.pick("mover", ("agent", time, x), 3)]
            self._say(resumed=(chosen,), placed=dict.fromkeys(moved, chosen))
            return
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

    def _say(
        self,
        *,
        drained: tuple[str, ...] = (),
        resumed: tuple[str, ...] = (),
        is_even: bool = False,
        placed: dict[str, str] | None = None,
    ) -> None:
        self._numbers += 1
        self._open[self._numbers] = None
        self._ask(MovesRequested(self._numbers, drained, resumed, is_even, placed or {}))

    def on_answered(self, answer: AnswerMoves) -> None:
        """Check that the operator has sent the request and that the request has not been answered before. Some requests are never answered,
        because their leader has crashed or was replaced."""
        if answer.request not in self._open:
            self._shared.say("answer", "G4", f"request {answer.request} for moves is answered twice, or was never made")
        self._open.pop(answer.request, None)
        plan = self._log.canonical.plan
        is_moved = plan is not None and plan.reason.startswith("agents ")
        self._shared.judge.probes.sometimes(is_moved, "agents moved on purpose")


# -- restores -------------------------------------------------------------------------------------------------------------

AGAIN_NS = 400_000_000
"""Time after which the operator repeats an unanswered request. It is about the duration of an election."""

ASKED_MAX = 8

HELPS_NS = 700_000_000
"""Interval at which the operator checks for refused rollbacks. It is long enough for a restore to finish."""

CALL_WAIT_NS, CALL_WAITS_MAX = 10_000_000, 200
"""Interval and maximum number of checks while a restore waits for an effect to be called. Half of the restores wait, so
that they happen during such a call if one occurs soon."""

READ_S = 0.002
"""Time that the service needs to read the store during a restore."""


class RestoreRequest(NamedTuple):
    """A restore requested by the operator. `asked` is the number of requests that were sent for this restore."""

    token: str
    epoch: int
    drops: bool
    asked: int


class _LeaderLoop(VirtualLoop):
    """Virtual event loop for the service of one leader. Worker calls are dropped if the leader is replaced or crashes."""

    def __init__(self, kernel: Kernel, leader: SimLeader) -> None:
        super().__init__(kernel)
        self._leader = leader

    def run_in_executor(self, _executor: None, function: Callable[[], Any]) -> Future:
        future = self.create_future()
        self.call_later(READ_S, lambda: self._leader.fire((lambda _: settle(future, function), None)))
        return future


class RestoreOperator:
    """Operator that requests restores of the fleet."""

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        leader: Callable[[], SimLeader | None],
        is_refused: Callable[[], bool],
        is_calling: Callable[[], bool],
    ) -> None:
        """Each argument is a function that returns a fact about the fleet's current state.

        Args:
            leader: returns the current leader, or None if there is no leader.
            is_refused: returns whether a rollback request of some agent was refused.
            is_calling: returns whether some effect is currently being called.
        """
        self._shared = shared
        self._log = log
        self._leader = leader
        self._is_refused = is_refused
        self._is_calling = is_calling
        self._helps = 0
        self._numbers = 0
        self._open: dict[int, Future] = {}
        self._answered: dict[str, None] = {}

    def start(self) -> None:
        """Schedule restores at random times. This method is called when the fleet starts to work."""
        part, until_ns = self._shared.scenario.restores, self._shared.scenario.run.until_ns
        for time in range(part.times):
            after_ns = until_ns * (1 + self._pick("at", time, 64)) // 65
            self._shared.call_at(self._shared.kernel.now_ns + after_ns, lambda time=time: self._come(time))  # type: ignore[misc]  # its own

        if self._shared.workload.requests_rollbacks:
            self._look()

    def _look(self) -> None:
        """Restore the newest epoch if a rollback request of some agent was refused. Afterwards, schedule the next check."""
        complete = self._log.canonical.complete_epochs()
        if complete and self._is_refused():
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
        """Pass an answer from a leader to the restore service."""
        future = self._open.pop(answer.request, None)
        if future is None:
            self._shared.say(
                "answer", "G4", f"request {answer.request} to go back is answered twice, or was never made"
            )
            return
        future.set_result(answer)

    def _ended(self, restore_request: RestoreRequest, answer: Callable[[], RestoreReply]) -> None:
        """Check that the answer to a restore request agrees with the log of the coordinator."""
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


# -- outputs --------------------------------------------------------------------------------------------------------------

READ_NS = 60_000_000
DIES_ONE_IN, STOPS_ONE_IN = 5, 6


class SimReader:
    """Reads the fleet's outputs. See the module docstring."""

    def __init__(self, shared: WorldState, store: Store, is_damaged: Callable[[], bool]) -> None:
        """`is_damaged` returns whether a fault has damaged any file in the store."""
        self._shared = shared
        self._store = store
        self._is_damaged = is_damaged
        self._reads = 0
        self._had: list[ReadRelease] = []
        self._cursor = ""
        self._saved: tuple[list[ReadRelease], str] = [], ""

    def start(self) -> None:
        """Start to read outputs, even if the fleet is not running yet."""
        if reads_outputs(self._shared.scenario):
            self._later()

    def _later(self) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + READ_NS, self._read)

    def _read(self) -> None:
        self._reads += 1
        if self._is_one_in(DIES_ONE_IN, "dies"):
            self._had, self._cursor = list(self._saved[0]), self._saved[1]
        self.read()
        if self._is_one_in(STOPS_ONE_IN, "writes down"):
            self._saved = list(self._had), self._cursor
        self._later()

    def read(self) -> list[ReadRelease]:
        """Read all outputs that are available now. Return all releases that have been read and have not been undone since."""
        try:
            for batch in self._store.read_outputs(self._cursor):
                if batch.undone is not None:
                    after = batch.undone.after
                    self._had = [each for each in self._had if each.epoch <= after]
                outputs = [(x.agent, x.number, x.topic.encode() + b" " + x.payload) for x in batch.outputs]
                self._had.append(ReadRelease(batch.epoch, outputs))
                self._cursor = str(batch.end)
        except SnaplineError as error:
            if not self._is_damaged():
                self._shared.say("reader", "R2", f"a reader of outputs at {self._cursor!r} was told: {error}")
        return self._had

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._shared.choices.pick("outputs", ("reader", what, self._reads), n) == n - 1
