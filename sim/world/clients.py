"""Clients of a simulated fleet: they offer inputs, lose answers, say the same again, and give up.

Each has a list of inputs, and one request of a few of them on its way. A request finds its agent's host by the coordinators' state, now
and then another one, and half of the clients go where they were answered last, whatever has become of that host; it may be lost, come twice or late, and so may its answer. Whatever was not acknowledged in time is said
again under the same key. What the product answers is told to the oracle (`oracles/inputs.py`), which believes none of it.
"""

from collections.abc import Callable, Sequence

from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.host import events as ev
from snapline.conversation.inputs import ACCEPTED, REPEATED, InputOutcome
from snapline.sim.workloads.nudge import Nudge
from snapline.sim.world.desk import WorldDesk
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.replicated_log import SimulatedLog

MS = 1_000_000

TIMEOUT_NS = 400 * MS
ASK_TIMEOUT_NS = 1000 * MS
RETRY_NS = 50 * MS
"""After an answer that says: not now."""

REQUEST_MAX = 4
LOST_ONE_IN, TWICE_ONE_IN, ASTRAY_ONE_IN, AGAIN_ONE_IN, GIVEN_UP_ONE_IN, RAISES_ONE_IN = 12, 12, 10, 6, 30, 8
ASKS_ONE_IN, EARLY_ONE_IN = 3, 3
SPEAKS_EVERY = 2
"""Inputs whose handlers emit, where agents speak at all."""


class Clients:
    """All clients of a run."""

    def __init__(self, desk: WorldDesk, log: SimulatedLog, hosts: Hosts) -> None:
        self._log = log
        count = desk.scenario.clients.count
        self._all = [SimClient(desk, log, hosts, f"client{number + 1}") for number in range(count)]

    def start(self) -> None:
        """They do not wait until there is a fleet."""
        for client in self._all:
            client.start()

    def stay(self) -> None:
        """All is whole: nobody gives up any more."""
        for client in self._all:
            client.is_patient = True

    def pending(self) -> list[str]:
        """Who still waits for an answer."""
        if self._log.canonical.image.outcome:
            return []
        return [f"{client.name} waits for an answer" for client in self._all if not client.is_done]

    def deserted(self, since_ns: int) -> list[str]:
        """Who has heard nothing new since then, of agents that live."""
        if self._log.canonical.image.outcome:
            return []
        return [text for client in self._all if client.moved_ns < since_ns and (text := client.waits_for())]


class SimClient:
    """One client.

    Attributes:
        is_done: it has had an answer to all, or has given up.
        is_patient: it does not give up.
        moved_ns: when it heard, or began, anything new.
    """

    def __init__(self, desk: WorldDesk, log: SimulatedLog, hosts: Hosts, name: str) -> None:
        self.name = name
        self.is_done = self.is_patient = False
        self.moved_ns = 0
        self._desk = desk
        self._log = log
        self._hosts = hosts
        self._left = desk.scenario.clients.inputs
        self._asks = desk.scenario.clients.asks
        self._serial = 0
        self._attempt = 0
        self._open: list[ev.OfferedInput] = []
        self._asked: dict[str, ev.OfferedInput] = {}
        self._remembers = self._pick("remembers", 2) == 1
        self._known: dict[str, str] = {}
        """Agent → the host that has answered for it last."""

    def _pick(self, what: str, n: int) -> int:
        """0 is benign."""
        return self._desk.choices.pick("clients", (self.name, what, self._serial, self._attempt), n)

    def start(self) -> None:
        self._next()

    def waits_for(self) -> str:
        """What it has no answer to, though the agent is there; "" if there is nothing of the kind."""
        for offered in (*self._open, *self._asked.values()):
            record = self._log.canonical.image.agents.get(offered.agent)
            if record is not None and record.left_plan is None:
                what = "been told whether it was taken" if offered in self._open else "had an answer to it"
                return f"{self.name} has said {offered.key} to {offered.agent}, and has not {what}"
        return ""

    # ---- requests -------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """The next request, after a pause."""
        if self._open or self.is_done:
            return
        if not self._left:
            self.is_done = not self._asked
            return
        self.moved_ns = self._desk.kernel.now_ns
        count = min(self._left, 1 + self._pick("count", REQUEST_MAX))
        self._left -= count
        agents = self._desk.agents
        for _ in range(count):
            self._serial += 1
            self._make(agents[self._pick("agent", len(agents))])
        pause_ns = self._desk.scenario.clients.pause_ns
        self._later(pause_ns * self._pick("pause", 8) // 4, self._send)

    def _make(self, agent: str) -> None:
        speaks = bool(self._desk.scenario.outputs.one_in) and self._serial % SPEAKS_EVERY == 0
        made = self._desk.workload.input_of(agent, self.name, self._serial, self._pick)
        payload = encode_message(
            made or Nudge(self.name, self._serial, self._is_one_in(RAISES_ONE_IN, "raises"), speaks)
        )
        self._desk.judge.books.inputs.on_offered(agent, self.name, self._serial, payload)
        self._open.append(ev.OfferedInput(agent, f"{self.name}-{self._serial}", payload))

    def _send(self) -> None:
        """Say what is open, to the host of the first of them; what lives elsewhere is said there the next time."""
        if not self._open:
            return
        self._attempt += 1
        attempt = self._attempt
        hosts = {agent: self._host_of(agent) for agent in dict.fromkeys(each.agent for each in self._open)}
        host = hosts[self._open[0].agent]
        there = [each for each in self._open if hosts[each.agent] == host]
        if host and not self._is_one_in(LOST_ONE_IN, "lost"):
            for copy in range(1 + self._is_one_in(TWICE_ONE_IN, "twice")):
                self._later(self._way_ns(host, copy), lambda: self._deliver(host, attempt, there))
        self._later(TIMEOUT_NS, lambda: self._timed_out(attempt))

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._pick(what, n) == n - 1

    def _host_of(self, agent: str) -> str:
        hosts = self._desk.hosts
        if self._is_one_in(ASTRAY_ONE_IN, "astray"):
            return hosts[self._pick("host", len(hosts))]
        if agent in self._known:
            return self._known[agent]
        record = self._log.canonical.image.agents.get(agent)
        return record.host if record is not None and record.left_plan is None else ""

    def _way_ns(self, host: str, copy: int) -> int:
        way_ns = self._desk.network.path_ns(self.name, host, ("client", self._attempt, copy))
        return TIMEOUT_NS if way_ns is None else way_ns

    def _deliver(self, host: str, attempt: int, inputs: Sequence[ev.OfferedInput]) -> None:
        run = self._hosts.run_of(host)
        if run is not None:
            plan = run.carrier.core.plan
            run.offer(self.name, inputs, lambda answers: self._answer(host, attempt, inputs, answers, plan))

    def _answer(
        self,
        host: str,
        attempt: int,
        inputs: Sequence[ev.OfferedInput],
        answers: Sequence[InputOutcome],
        plan: int,
    ) -> None:
        """The host, which was of this plan when it was asked, has spoken; its word may be lost, and then the client never knows."""
        for offered, answer in zip(inputs, answers, strict=True):
            if answer.status in (ACCEPTED, REPEATED):
                drops = self._desk.judge.books.inputs.drops
                drops.on_taken(plan, offered.payload, is_repeated=answer.status == REPEATED)
        if not self._is_one_in(LOST_ONE_IN, "answer lost"):
            self._later(self._way_ns(host, 2), lambda: self._answered(host, attempt, inputs, answers))

    # ---- answers --------------------------------------------------------------------------------------------------

    def _note(self, host: str, inputs: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome]) -> None:
        """Who takes an agent's inputs is asked for the next ones, too."""
        for offered, answer in zip(inputs, answers, strict=True):
            if self._remembers and answer.status in (ACCEPTED, REPEATED):
                self._known[offered.agent] = host
            else:
                self._known.pop(offered.agent, None)

    def _answered(
        self,
        host: str,
        attempt: int,
        inputs: Sequence[ev.OfferedInput],
        answers: Sequence[InputOutcome],
    ) -> None:
        oracle, now_ns = self._desk.judge.books.inputs, self._desk.kernel.now_ns
        self._note(host, inputs, answers)
        for offered, answer in zip(inputs, answers, strict=True):
            self._desk.judge.probes.hit(f"input {answer.status}")
            if answer.status in ("accepted", "repeated"):
                oracle.on_acknowledged(now_ns, offered.payload, answer.number)
            if answer.status != "retry" and offered in self._open and not self._says_again(answer):
                self._open.remove(offered)
                self.moved_ns = now_ns
                if answer.status != "refused" and self._asks and self._is_one_in(ASKS_ONE_IN, "asks"):
                    self._ask(offered)
        if self._open and attempt == self._attempt:
            self._later(RETRY_NS, lambda: self._again(attempt))
        self._next()

    # ---- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, offered: ev.OfferedInput) -> None:
        """Wait for the answer, and ask again if it does not come."""
        self._asked[offered.key] = offered
        host = self._host_of(offered.agent)
        is_early = self._is_one_in(EARLY_ONE_IN, "early")
        run = self._hosts.run_of(host)
        if run is not None:
            run.ask(
                offered.agent,
                offered.key,
                lambda answer: self._later(
                    self._way_ns(host, 3), lambda: self._told(offered, answer, is_early=is_early)
                ),
                is_early=is_early,
            )
        self._later(ASK_TIMEOUT_NS, lambda: self._ask_again(offered))

    def _ask_again(self, offered: ev.OfferedInput) -> None:
        if offered.key in self._asked:
            self._known.pop(offered.agent, None)
            self._ask(offered)

    def _told(self, offered: ev.OfferedInput, answer: ev.AskAnswer, *, is_early: bool) -> None:
        self._desk.judge.probes.hit(f"ask {answer.status}")
        if offered.key in self._asked and "was dropped" in answer.reason:
            del self._asked[offered.key]
            self._next()
        if offered.key not in self._asked or answer.status not in ("replied", "buried"):
            return
        del self._asked[offered.key]
        self.moved_ns = self._desk.kernel.now_ns
        if not is_early:
            self._desk.judge.books.inputs.on_answered(self._desk.kernel.now_ns, offered.payload, answer.reply)
        self._next()

    def _says_again(self, answer: InputOutcome) -> bool:
        """Some do not believe the first answer."""
        return answer.status == "accepted" and self._is_one_in(AGAIN_ONE_IN, "again")

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._send()

    def _timed_out(self, attempt: int) -> None:
        if attempt != self._attempt or not self._open:
            return
        self._known.clear()
        if not self.is_patient and self._is_one_in(GIVEN_UP_ONE_IN, "given up"):
            for offered in self._open:
                self._desk.judge.books.inputs.on_given_up(offered.payload)
            self._open.clear()
            self._next()
        else:
            self._send()

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._desk.call_at(self._desk.kernel.now_ns + delay_ns, call)
