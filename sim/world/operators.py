"""Operator of a simulated fleet: retries some dead letters and drops others. For effects that need an operator's decision, it checks the service and
resolves them.

The operator has one open request with one or two commands for one agent. The request and its answer may be lost, duplicated or late; then the
operator repeats it with the same keys, or gives up. Since it waits before it acts, it may also name a dead letter that is settled or rolled back. The
answers are reported to the oracle (`oracles/dead_letters.py`).
"""

from collections.abc import Callable, Sequence

from snapline.agent_runtime.compensations import UNDO
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.agent_runtime.results import encode_result
from snapline.messages.dead_letters import DROP, RETRY, DeadLetterCommand, dead_letter_command_payload
from snapline.messages.effect_commands import EffectResolution, effect_resolution_payload, is_effect_resolution
from snapline.messages.effect_records import outside_key
from snapline.messages.inputs import ACCEPTED, InputOutcome
from snapline.sim.oracles.dead_letters import command_name
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState

MS = 1_000_000

LOOK_NS = 60 * MS
TIMEOUT_NS = 400 * MS
THINKS = (1, 1, 5, 20)
"""Delays before a request, in multiples of `LOOK_NS`."""

COMMANDS_MAX = 24
"""Largest number of commands in a run: a dead letter that always fails must not keep the fleet busy."""

LOST_ONE_IN, TWICE_ONE_IN, AGAIN_ONE_IN, GIVEN_UP_ONE_IN, DROPS_ONE_IN, TWO_ONE_IN = 10, 8, 5, 20, 3, 2

RETRIES_MAX = 2
"""Number of retries before a dead letter is dropped: if each retry crashes its agent, the fleet would recover each time and finally fail."""

_MEANT = (b"\x05Nudge", b"\x08Numbered", b"\x04Book", UNDO)
"""Payload prefixes of the dead letters that the operator handles: they do not affect the invariants of their patterns. Failed undos are not dropped."""


class SimOperator:
    """Operator of one run that settles dead letters and effects; see the module."""

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
        """Start without waiting for the fleet."""
        if self._shared.scenario.clients.is_settling or self._shared.workload.fleet.simulate is not None:
            self._later(LOOK_NS, self._look)

    def pending(self) -> list[str]:
        """Return the answers for which the operator waits."""
        is_over = bool(self._log.canonical.image.outcome)
        return ["an operator waits for an answer"] if self._open and not is_over else []

    def _pick(self, what: str, n: int) -> int:
        """Draw a choice; 0 is benign."""
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
        """Resolve an effect that needs an operator, by the service's record; return whether there is one."""
        for run in self._hosts.alive():
            for agent in run.driver.core.agents.values():
                effects = agent.effects
                if effects is None or effects.open is None or not effects.needs_people:
                    continue
                opened = effects.open
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
        """Choose commands about an agent's dead letters, if it has any."""
        agents = self._shared.agents
        agent = agents[self._pick("agent", len(agents))]
        letters = self._letters_of(agent)
        if not letters:
            return
        count = 1 + self._is_one_in(TWO_ONE_IN, "two")
        first = self._pick("letter", len(letters))
        for number, identity, is_undoing in letters[first : first + count]:
            verb = self._verb(agent, identity, may_drop=not is_undoing)
            self._said += 1
            payload = dead_letter_command_payload(DeadLetterCommand(verb, number, identity))
            offered = ev.OfferedInput(agent, f"{verb}-{number}-{self._said}", payload, is_operator_command=True)
            self._shared.judge.books.letters.on_command_given(agent, offered.key, payload)
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

    def _letters_of(self, agent: str) -> list[tuple[int, bytes, bool]]:
        """Return an agent's dead letters: number, identity, and whether it is a failed undo."""
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
        """Handle the answers of a host that worked under this plan when the request arrived; they may be lost."""
        for command, answer in zip(words, answers, strict=True):
            if answer.status == ACCEPTED and not is_effect_resolution(command.payload):
                self._shared.judge.books.inputs.drops.on_taken(plan, command_name(command.key), is_repeated=False)
        if not self._is_one_in(LOST_ONE_IN, "answer lost"):
            self._later(self._way_ns(host, 2), lambda: self._answered(words, answers))

    def _answered(self, words: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome]) -> None:
        for command, answer in zip(words, answers, strict=True):
            self._shared.judge.probes.hit(f"word {answer.status}")
            if answer.status in ("accepted", "repeated") and not is_effect_resolution(command.payload):
                self._shared.judge.books.letters.on_acknowledged(self._shared.kernel.now_ns, command.key)
            is_doubted = answer.status == "accepted" and self._is_one_in(AGAIN_ONE_IN, "again")
            if answer.status != "retry" and not is_doubted and command in self._open:
                self._open.remove(command)

    def _timed_out(self) -> None:
        if self._is_one_in(GIVEN_UP_ONE_IN, "given up"):
            self._open.clear()
        self._send()

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)
