"""Clients of a simulated fleet. A client program sends inputs and waits for answers, using the product's client core (`client/core.py`).

The program sends a few inputs at once, and may wait for their outcomes before it continues. If the outcome of an input is unknown, the
program resends the input with the same key. The program also resends some inputs for which it already has a receipt. The program may give
up on an input, abandon unfinished sends, or close its client and start a new one. The results of the client core are checked by the oracle
in `oracles/input_output_oracles.py`. Inputs come from the workload (`Workload.input_of`) or from the user. Most of the workload's inputs
are for running agents, and some are for agents that have stopped.

`ClientCalls` executes the core's requests on the simulated network, just as `client/sends_and_asks.py` does on a real network. The core
receives exactly one event per request, within the request's time limit. Any later events for the request are dropped. A request may be
lost, delayed or duplicated, and its answer may be lost. A duplicated request gets no answer, because its stream is broken. If a host is
down or the client has no connection to it, the host cannot have accepted an input. Data written to a connection arrives as soon as the
network is healed or the host resumes. The host then reads the data even if the client no longer waits for an answer.

A lookup of an agent's location reads the coordinator's state at the time when the request arrives at the coordinator. The location may be
outdated when the client receives it, and some locations are wrong on purpose.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

from msgspec.structs import replace

from snapline.agent_runtime.message_encoding import Traceparent, encode_message, with_tail
from snapline.client import client_events as ev
from snapline.client.core import ClientCore
from snapline.client.sends_and_asks import AgentInput
from snapline.coordinator.service.fleet_answers import located
from snapline.errors import SnaplineError
from snapline.messages.answers import LocatedAgent
from snapline.messages.client_requests import ACCEPTED, REPEATED, AskOutcome, GivenInput, InputOutcome
from snapline.sim.choices import DrawnRandom
from snapline.sim.workloads.ledger import Nudge
from snapline.sim.workloads.workload import to_given_input
from snapline.sim.world.host import SimHost
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.kernel import MS, SECOND_NS
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState

# -- requests -------------------------------------------------------------------------------------------------------------


BROKEN_NS = 400 * MS
"""Time until a client notices that a stream has broken."""

LATE_NS = 600 * MS
"""Extra delay of a late request."""

CONNECT_NS = 2000 * MS
"""Timeout of a connection attempt, as in `client/host_calls.py`."""

WRITTEN_NS, WRITTEN_LOOKS = 200 * MS, 25
"""Interval and maximum number of delivery attempts on a blocked connection."""

LOST_ONE_IN, TWICE_ONE_IN, LATE_ONE_IN, ASTRAY_ONE_IN = 12, 12, 20, 10

Pick = Callable[[str, int], int]
"""Function that takes a choice's name and n, and draws a number from 0 to n - 1. Zero is the benign choice."""


class ClientInput:
    """An input that a client sends.

    Attributes:
        given: the input in the form in which it is sent to a host.
        payload: encoded message. If `given` contains JSON, the payload is b"" until a host has converted the JSON.
        serial: sequence number of the latest send of this input, among all sends of the client.
        asks: whether the program requests the answer as soon as the input is accepted.
        is_early: whether the program accepts an answer that may still be rolled back.
    """

    __slots__ = ("asks", "given", "is_early", "payload", "serial")

    def __init__(self, given: GivenInput, serial: int) -> None:
        self.given = given
        self.payload = b"" if given.type else given.payload
        self.serial = serial
        self.asks = self.is_early = False


class ClientCalls:
    """Executes the requests of one client core. The resulting events are passed to the core by calling `feed`."""

    def __init__(
        self,
        shared: WorldState,
        log: SimulatedLog,
        hosts: Hosts,
        name: str,
        pick: Pick,
        feed: Callable[[ev.Event], None],
    ) -> None:
        self._shared = shared
        self._log = log
        self._hosts = hosts
        self._name = name
        self._pick = pick
        self._feed = feed
        self._calls = 0
        self._open: dict[int, None] = {}
        """Requests for which the core has not received an event yet."""
        self._connected: dict[str, None] = {}
        """Hosts that have answered a request and to which no request has failed since."""

    def close(self) -> None:
        """Drop all unfinished requests. For the dropped requests, the core gets no events."""
        self._open.clear()

    # ---- requests -------------------------------------------------------------------------------------------------

    def find(self, command: ev.LookUpAgents) -> None:
        """Ask the leader which hosts run the agents."""
        self._begin(command.request, command.limit_ns, ev.LookupFailed(command.request, "nobody answers"))
        leader = self._log.leader
        way_ns = self._way_ns(leader) if leader else None
        if way_ns is None or self._is_one_in(LOST_ONE_IN, "question lost"):
            self._later(BROKEN_NS, lambda: self._end(command.request, ev.LookupFailed(command.request, "nobody leads")))
        else:
            self._later(way_ns, lambda: self._locate(command, leader))

    def _locate(self, command: ev.LookUpAgents, leader: str) -> None:
        way_ns = self._way_ns(leader)
        if way_ns is None:
            return
        if leader != self._log.leader:
            failed = ev.LookupFailed(command.request, "nobody leads")
            self._later(way_ns, lambda: self._end(command.request, failed))
            return
        reply = located(self._log.canonical, command.agents)
        reply = replace(reply, agents=tuple([self._maybe_mislocated(each) for each in reply.agents]))
        self._later(way_ns, lambda: self._end(command.request, ev.AgentsFound(command.request, reply)))

    def _maybe_mislocated(self, found: LocatedAgent) -> LocatedAgent:
        if found.state != "alive" or not self._is_one_in(ASTRAY_ONE_IN, "astray"):
            return found
        hosts = self._shared.hosts
        host = hosts[self._pick("host", len(hosts))]
        return replace(found, host=host, address=f"{host}:1")

    def offer(self, command: ev.OfferInputs, inputs: Sequence[ClientInput]) -> None:
        """Send some inputs to a host. Some requests are duplicated."""
        request, host = command.request, command.host
        given = [each.given for each in inputs]
        self._begin(request, command.limit_ns, ev.RequestFailed(request, "no answer in time"))
        copies = 1 + self._is_one_in(TWICE_ONE_IN, "twice")

        def arrive(run: SimHost) -> None:
            plan = run.driver.core.plan
            run.offer(
                self._name, given, lambda one, payload: self._on_taking(inputs[given.index(one)], payload),
                lambda outcomes: self._on_outcomes(request, host, inputs, outcomes, plan, is_heard=copies == 1),
            )  # fmt: skip

        self._travel(request, host, copies, arrive)

    def ask(self, command: ev.AskHost, asked: ClientInput) -> None:
        """Request the answer to an input from a host."""
        agent, key, is_early = asked.given.agent, asked.given.key, asked.is_early
        request, host = command.request, command.host
        self._begin(request, command.limit_ns, ev.RequestFailed(request, "no answer in time"))

        def arrive(run: SimHost) -> None:
            run.ask(agent, key, lambda outcome: self._on_answer(request, host, outcome), is_early=is_early)

        self._travel(request, host, 1, arrive)

    # ---- sending --------------------------------------------------------------------------------------------------

    def _travel(self, request: int, host: str, copies: int, arrive: Callable[[SimHost], None]) -> None:
        """Send one or more copies of a request to a host, each with a random delay."""
        broken = ev.RequestFailed(request, "the stream broke")
        if self._way_ns(host) is None:
            if host in self._connected:
                self._deliver_when_reachable(host, lambda: self._arrive(request, host, arrive, is_alone=False))
            else:
                unsent = ev.RequestFailed(request, f"host {host} does not answer", is_unsent=True)
                self._later(CONNECT_NS, lambda: self._end(request, unsent))
            return
        if self._is_one_in(LOST_ONE_IN, "lost"):
            self._later(BROKEN_NS, lambda: self._end(request, broken))
            return
        if copies > 1:
            self._later(BROKEN_NS, lambda: self._end(request, broken))
        late_ns = LATE_NS if self._is_one_in(LATE_ONE_IN, "late") else 0
        for _ in range(copies):
            way_ns = self._way_ns(host)
            if way_ns is not None:
                self._later(way_ns + late_ns, lambda: self._arrive(request, host, arrive, is_alone=copies == 1))

    def _deliver_when_reachable(self, host: str, arrive: Callable[[], None], looks: int = 0) -> None:
        """Deliver a request as soon as the host is reachable. A paused process counts as reachable, because its socket still accepts the
        request."""
        run = self._hosts.run_of(host)
        way_ns = self._way_ns(host)
        if way_ns is not None or (run is not None and run.stops):
            self._later(way_ns or MS, arrive)
        elif looks < WRITTEN_LOOKS:
            self._later(WRITTEN_NS, lambda: self._deliver_when_reachable(host, arrive, looks + 1))

    def _arrive(self, request: int, host: str, arrive: Callable[[SimHost], None], *, is_alone: bool) -> None:
        run = self._hosts.run_of(host)
        if run is not None:
            arrive(run)
            self._watch(request, run)
        elif is_alone:
            self._connected.pop(host, None)
            self._end(request, ev.RequestFailed(request, f"host {host} is down", is_unsent=True))

    def _watch(self, request: int, run: SimHost) -> None:
        """Fail the request as soon as the host has crashed, because the request's stream is then broken."""
        if request not in self._open:
            return
        if run.is_alive:
            self._later(BROKEN_NS, lambda: self._watch(request, run))
        else:
            self._connected.pop(run.name, None)
            self._end(request, ev.RequestFailed(request, "the stream broke"))

    # ---- answers --------------------------------------------------------------------------------------------------

    def _on_taking(self, one: ClientInput, payload: bytes) -> None:
        """Record an input's payload just before a host decides whether to accept the input."""
        if not one.payload:
            one.payload = payload
            self._shared.judge.ground_truth.inputs.on_offered(one.given.agent, self._name, one.serial, payload)

    def _on_outcomes(
        self,
        request: int,
        host: str,
        inputs: Sequence[ClientInput],
        outcomes: Sequence[InputOutcome],
        plan: int,
        *,
        is_heard: bool,
    ) -> None:
        """Handle a host's decisions on whether it accepts inputs. `plan` is the recovery plan that the host was following when the request
        arrived."""
        oracle = self._shared.judge.ground_truth.inputs
        for each, outcome in zip(inputs, outcomes, strict=True):
            self._shared.judge.probes.hit(f"input {outcome.status}")
            if outcome.status in (ACCEPTED, REPEATED):
                oracle.on_taken(each.payload, plan, outcome.number, is_repeated=outcome.status == REPEATED)
        if is_heard:
            self._come_back(request, host, ev.RequestAnswered(request, tuple(outcomes)))

    def _on_answer(self, request: int, host: str, outcome: AskOutcome) -> None:
        self._shared.judge.probes.hit(f"ask {outcome.status}")
        self._come_back(request, host, ev.AnswerHeard(request, outcome))

    def _come_back(self, request: int, host: str, event: ev.Event) -> None:
        way_ns = self._way_ns(host)
        if way_ns is None or self._is_one_in(LOST_ONE_IN, "answer lost"):
            self._connected.pop(host, None)
            broken = ev.RequestFailed(request, "the stream broke")
            self._later(BROKEN_NS, lambda: self._end(request, broken))
        else:
            self._connected[host] = None
            self._later(way_ns, lambda: self._end(request, event))

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _begin(self, request: int, limit_ns: int, failed: ev.Event) -> None:
        self._open[request] = None
        self._later(limit_ns, lambda: self._end(request, failed))

    def _end(self, request: int, event: ev.Event) -> None:
        """Pass an event to the core if it is the first event for this request. Drop it otherwise."""
        if request in self._open:
            del self._open[request]
            self._feed(event)

    def _way_ns(self, node: str) -> int | None:
        self._calls += 1
        return self._shared.network.path_ns(self._name, node, ("client", self._name, self._calls))

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._pick(what, n) == n - 1

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)


# -- programs -------------------------------------------------------------------------------------------------------------

PATIENCE_NS = (30 * SECOND_NS, 2 * SECOND_NS, 500 * MS)
"""Possible time limits for a send or an answer. The first equals `client.TIMEOUT_S`; the rest are shorter."""

AGAIN_NS = 50 * MS
"""Delay before a program resends an input whose outcome is unknown."""

ASK_AGAIN_NS = 200 * MS

OVERDUE_NS = 1 * MS
"""Maximum time by which a send may end after its deadline."""

REQUEST_MAX, OPEN_MAX = 4, 12
"""Maximum number of inputs that a program sends at once, and maximum number of unfinished inputs if the program does not wait for outcomes.
"""

HASTY_ONE_IN = 3
"""One program in three continues without waiting for outcomes. All other programs wait until each of their inputs has an outcome."""

AGAIN_ONE_IN, GIVEN_UP_ONE_IN, DROPPED_ONE_IN, CLOSES_ONE_IN, STOPPED_ONE_IN = 6, 8, 30, 30, 8
ASKS_ONE_IN, ASKS_AT_ONCE_ONE_IN, EARLY_ONE_IN = 3, 2, 3
SPEAKS_EVERY = 2
"""If outputs are enabled, one input in two makes its handler emit an output."""


class Clients:
    """All clients of a simulated run."""

    def __init__(self, shared: WorldState, log: SimulatedLog, hosts: Hosts) -> None:
        self._log = log
        count = shared.scenario.clients.count if shared.workload.takes_inputs else 0
        inputs = shared.workload.inputs
        source = inputs.inputs_of_run(DrawnRandom(shared.choices, "inputs")) if inputs is not None else None
        self._all = [SimClient(shared, log, hosts, f"client{number + 1}", source) for number in range(count)]

    def start(self) -> None:
        """Start all clients, even if the fleet is not ready to accept inputs."""
        for client in self._all:
            client.start()

    def make_patient(self) -> None:
        """Make all clients patient, so that no client gives up on an input. This method is called when all faults have ended."""
        for client in self._all:
            client.is_patient = True

    def validate(self) -> None:
        """Check the invariants of all client cores. Raise AssertionError if an invariant is violated."""
        for client in self._all:
            client.core.validate()

    def pending(self) -> list[str]:
        """Describe each client that is still waiting for an answer. Return an empty list if the fleet has ended."""
        if self._log.canonical.image.outcome:
            return []
        return [f"{client.name} waits for an answer" for client in self._all if not client.is_done]

    def without_progress(self, since_ns: int) -> list[str]:
        """Describe each client that waits for a running agent and has made no progress since `since_ns`."""
        if self._log.canonical.image.outcome:
            return []
        return [text for client in self._all if client.moved_ns < since_ns and (text := client.waits_for())]


class SimClient:
    """A simulated program and its client core.

    Attributes:
        is_done: whether the program has sent all its inputs and has an outcome for each input on which it has not given up.
        moved_ns: time when the program last made progress.
    """

    def __init__(
        self, shared: WorldState, log: SimulatedLog, hosts: Hosts, name: str, source: Iterator[AgentInput] | None
    ) -> None:
        """`source` is an iterator over the user's inputs, which all clients share. If `source` is None, the workload creates the inputs."""
        self.name = name
        self._source = source
        self.is_done = self.is_patient = False
        self.moved_ns = 0
        self._shared = shared
        self._log = log
        self._hosts = hosts
        self._oracle = shared.judge.ground_truth.inputs
        self._left = shared.scenario.clients.inputs
        self._inputs = 0
        """Number of inputs created so far."""
        self._given = self._numbers = 0
        """Number of sends so far, and number of sends and asks so far."""
        self._is_waiting = False
        """Whether the program's next request is already scheduled."""
        self._resting = 0
        """Number of inputs whose resend or ask is scheduled for later."""
        self._sends: dict[int, ClientInput] = {}
        self._asks: dict[int, ClientInput] = {}
        self._timer_ns: int | None = None
        self._seen: dict[str, None] = {}
        self._room = OPEN_MAX - REQUEST_MAX if self._is_one_in(HASTY_ONE_IN, "hasty") else 0
        self._open_client()

    def _open_client(self) -> None:
        self.core = ClientCore(self._pick("seed", 1 << 16))
        self._calls = ClientCalls(self._shared, self._log, self._hosts, self.name, self._draw_fault, self._feed)
        self._timer_ns = None

    def _pick(self, what: str, n: int) -> int:
        """Draw an integer from 0 to n - 1. The value 0 is the benign choice."""
        return self._shared.choices.pick("clients", (self.name, what, self._given), n)

    def _draw_fault(self, what: str, n: int) -> int:
        """Draw whether a fault affects one of this client's requests, where 0 means no fault. When all faults have ended, the result is
        always 0."""
        return 0 if self.is_patient else self._pick(what, n)

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._pick(what, n) == n - 1

    def _gives_up(self, one_in: int, what: str) -> bool:
        """Return whether the program gives up on an input. The program never gives up on a user's input, because the user may rely on its
        outcome."""
        return self._source is None and not self.is_patient and self._is_one_in(one_in, what)

    def start(self) -> None:
        self._go_on()

    def waits_for(self) -> str:
        """Describe an input that has no outcome or answer although its agent is running. Return "" if there is no such input."""
        sent = [(each, "been told whether it was taken") for each in self._sends.values()]
        asked = [(each, "had an answer to it") for each in self._asks.values()]
        for each, what in (*sent, *asked):
            record = self._log.canonical.image.agents.get(each.given.agent)
            if record is not None and record.left_plan is None:
                return f"{self.name} has said {each.given.key} to {each.given.agent}, and has not {what}"
        return ""

    # ---- the core -------------------------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        """Pass an event to the client core, and execute the commands that the core returns, just as `client/client.py` does."""
        try:
            commands = self.core.handle(self._shared.kernel.now_ns, event)
        except Exception as error:
            self._shared.core_failed(self.name, error)
            return
        for command in commands:
            match command:
                case ev.LookUpAgents():
                    self._calls.find(command)
                case ev.OfferInputs():
                    self._calls.offer(command, [self._sends[send] for send in command.sends])
                case ev.AskHost():
                    self._calls.ask(command, self._asks[command.ask])
                case ev.FinishSend():
                    self._send_ended(command)
                case ev.FinishAsk():
                    self._ask_ended(command)
        self._set_timer()

    def _set_timer(self) -> None:
        wakeup_ns = self.core.wakeup_ns
        if wakeup_ns is not None and wakeup_ns != self._timer_ns:
            self._timer_ns = wakeup_ns
            core = self.core
            self._shared.call_at(wakeup_ns, lambda: self._timer_fired(core, wakeup_ns))

    def _timer_fired(self, core: ClientCore, wakeup_ns: int) -> None:
        if core is self.core and self._timer_ns == wakeup_ns:
            self._timer_ns = None
            self._feed(ev.TimerFired())

    # ---- sending --------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Schedule the program's next request after a pause, unless too many inputs are unfinished."""
        if self._is_waiting or self.is_done:
            return
        if not self._left:
            self.is_done = not (self._sends or self._asks or self._resting)
        elif len(self._sends) + self._resting <= self._room:
            self._is_waiting = True
            pause_ns = self._shared.scenario.clients.pause_ns
            self._later(pause_ns * self._pick("pause", 8) // 4, self._give_some)

    def _give_some(self) -> None:
        self._is_waiting = False
        self.moved_ns = self._shared.kernel.now_ns
        if not self.is_patient and self._is_one_in(CLOSES_ONE_IN, "closes"):
            self._close()
        count = min(self._left, 1 + self._pick("count", REQUEST_MAX))
        self._left -= count
        new_inputs = [each for each in [self._make() for _ in range(count)] if each is not None]
        self._give(new_inputs)
        if new_inputs and self._gives_up(DROPPED_ONE_IN, "drops"):
            self._later(AGAIN_NS * self._pick("drops after", 8), lambda: self._drop(new_inputs))
        self._go_on()

    def _make(self) -> ClientInput | None:
        self._inputs += 1
        try:
            input_ = self._drawn() if self._source is None else self._taken(self._source)
        except SnaplineError as error:
            self._shared.misused(str(error))
            return None
        except Exception:
            self._shared.misused(f"the function that makes inputs raised\n{traceback.format_exc()}")
            return None
        if input_ is None:
            return None
        self._given += 1
        client_input = ClientInput(input_, self._given)
        if client_input.payload:
            self._oracle.on_offered(input_.agent, self.name, client_input.serial, client_input.payload)
        if self._shared.scenario.clients.asks and self._is_one_in(ASKS_ONE_IN, "asks"):
            client_input.asks, client_input.is_early = True, self._is_one_in(EARLY_ONE_IN, "early")
        return client_input

    def _drawn(self) -> GivenInput | None:
        """Draw an agent, and return an input that the workload creates for it, or None if the workload creates none."""
        agent = self._agent()
        message = self._shared.workload.input_of(agent, self.name, self._inputs, self._pick)
        if message is None:
            return None
        if isinstance(message, Nudge) and self._shared.scenario.outputs.one_in:
            message = replace(message, speaks=self._inputs % SPEAKS_EVERY == 0)
        return GivenInput(agent, self._key(), encode_message(message))

    def _taken(self, source: Iterator[AgentInput]) -> GivenInput | None:
        """Return the user's next input, or None if there is none. A trace parent is added to the input, so that its bytes are unique."""
        each = next(source, None)
        if each is None:
            self._left = 0
            return None
        input_ = to_given_input(each, self._key())
        tail = Traceparent(crc32(self.name.encode()) + 1, self._inputs).tail()
        if input_.type:
            return replace(input_, type=input_.type + tail.decode())
        return replace(input_, payload=with_tail(input_.payload, tail))

    def _key(self) -> str:
        return f"{self.name}-{self._inputs}"

    def _agent(self) -> str:
        """Draw an agent. The drawn agent is usually running, but it may have stopped."""
        living = dict.fromkeys([agent for agent, _ in self._log.canonical.living_agents()] or self._shared.agents)
        stopped = [agent for agent in self._seen if agent not in living]
        self._seen.update(living)
        is_stopped = bool(stopped) and self._is_one_in(STOPPED_ONE_IN, "stopped")
        agents = stopped if is_stopped else list(living)
        return agents[self._pick("agent", len(agents))]

    def _give(self, inputs: list[ClientInput]) -> None:
        if not inputs:
            return
        deadline_ns = self._deadline_ns()
        sends = []
        for each in inputs:
            self._numbers += 1
            self._sends[self._numbers] = each
            sends.append(ev.Send(self._numbers, each.given.agent, len(each.given.payload), deadline_ns))
            self._look_later(deadline_ns, self._sends, self._numbers)
            if each.asks and self._is_one_in(ASKS_AT_ONCE_ONE_IN, "at once"):
                self._ask_later(each, 0)
        self._feed(ev.InputsGiven(tuple(sends)))

    def _resend(self, inputs: list[ClientInput]) -> None:
        """Resend some inputs with their original keys. Each resent input gets a new serial number."""
        self._resting -= len(inputs)
        for each in inputs:
            self._given += 1
            each.serial = self._given
            if each.payload:
                self._oracle.on_offered_again(each.payload, each.serial)
        self._give(inputs)
        self._go_on()

    def _deadline_ns(self) -> int:
        patience_ns = PATIENCE_NS[0 if self.is_patient else self._pick("patience", len(PATIENCE_NS))]
        return self._shared.kernel.now_ns + patience_ns

    def _drop(self, inputs: list[ClientInput]) -> None:
        """Abandon the unfinished sends of these inputs, so that the client stops waiting for them."""
        dropped = [send for send, each in self._sends.items() if each in inputs]
        for send in dropped:
            self._give_up(self._sends.pop(send))
        self._feed(ev.SendsDropped(tuple(dropped)))
        self._go_on()

    def _give_up(self, one: ClientInput) -> None:
        if one.payload:
            self._oracle.on_given_up(one.payload)

    def _close(self) -> None:
        """Close the client core and create a new one. The closed core must immediately end all its unfinished sends and asks."""
        self._feed(ev.ClientClosed())
        for each in (*self._sends.values(), *self._asks.values()):
            self._oracle.on_overdue(self._shared.kernel.now_ns, self.name, f"{each.given.key}, though it has closed")
        self._calls.close()
        self._open_client()

    # ---- outcomes of sends ----------------------------------------------------------------------------------------

    def _send_ended(self, end: ev.FinishSend) -> None:
        one = self._sends.pop(end.send)
        now_ns, payload = self._shared.kernel.now_ns, one.payload
        self._shared.judge.probes.hit(f"send {end.ending}")
        match end.ending:
            case ev.TAKEN:
                self._oracle.on_acknowledged(now_ns, payload, end.number)
                self.moved_ns = now_ns
                if one.asks:
                    one.asks = False
                    self._ask_later(one, 0)
                if not end.is_repeated and self._is_one_in(AGAIN_ONE_IN, "again"):
                    self._again(one)
            case ev.UNKNOWN:
                self._give_up(one)
                self._retry_input(one)
            case ev.NOT_TAKEN:
                self._on_denied(one, end)
                self._retry_input(one)
            case _:
                self._on_denied(one, end)
                self.moved_ns = now_ns
        if end.ending == ev.MISSING and self._is_always_there(one.given.agent):
            self._oracle.on_missing(now_ns, self.name, one.given.agent)
        self._go_on()

    def _on_denied(self, one: ClientInput, end: ev.FinishSend) -> None:
        if one.payload:
            self._oracle.on_denied(self._shared.kernel.now_ns, one.payload, f"{end.ending}: {end.reason}")

    def _is_always_there(self, agent: str) -> bool:
        return agent in self._shared.agents and not self._shared.judge.ground_truth.has_stopped(agent)

    def _retry_input(self, one: ClientInput) -> None:
        """Resend an input that was not accepted in time or whose outcome is unknown. Do nothing if the fleet has ended or the program gives
        up on the input."""
        is_over = bool(self._log.canonical.image.outcome)
        if not is_over and not self._gives_up(GIVEN_UP_ONE_IN, "given up"):
            self._again(one)

    def _again(self, one: ClientInput) -> None:
        self._resting += 1
        self._later(AGAIN_NS, lambda: self._resend([one]))

    # ---- asking ---------------------------------------------------------------------------------------------------

    def _ask_later(self, one: ClientInput, wait_ns: int) -> None:
        self._resting += 1
        self._later(wait_ns, lambda: self._ask(one))

    def _ask(self, one: ClientInput) -> None:
        """Request the answer to an input, unless a request for this answer is already open."""
        self._resting -= 1
        if one in self._asks.values():
            return
        self._numbers += 1
        self._asks[self._numbers] = one
        deadline_ns = self._deadline_ns()
        self._look_later(deadline_ns, self._asks, self._numbers)
        self._feed(ev.AnswerRequested(self._numbers, one.given.agent, deadline_ns))

    def _ask_ended(self, end: ev.FinishAsk) -> None:
        one = self._asks.pop(end.ask)
        now_ns, payload = self._shared.kernel.now_ns, one.payload
        if end.ending == ev.ANSWERED:
            assert end.outcome is not None
            name = end.outcome.type.encode()
            reply = bytes([len(name)]) + name + end.outcome.body if name else b""
            tell = self._oracle.on_answered_early if one.is_early else self._oracle.on_answered
            tell(now_ns, payload, reply)
        elif end.ending == ev.BURIED and not one.is_early:
            self._oracle.on_dead_letter_reported(payload)
        if end.ending in (ev.LATE, ev.FORGOTTEN) and self._asks_again(one, end):
            self._ask_later(one, ASK_AGAIN_NS)
        else:
            self.moved_ns = now_ns
        self._go_on()

    def _asks_again(self, one: ClientInput, end: ev.FinishAsk) -> bool:
        """Return whether to request the answer again. The result is False if no answer can ever arrive, if the answer was already requested
        with the input, or if the program gives up on the input."""
        if one.asks or self._log.canonical.image.outcome:
            return False
        is_over = "was dropped" in end.reason or "has stopped" in end.reason
        return not is_over and not self._gives_up(GIVEN_UP_ONE_IN, "asks no more")

    # ---- time -----------------------------------------------------------------------------------------------------

    def _look_later(self, deadline_ns: int, open_: dict[int, ClientInput], number: int) -> None:
        def look() -> None:
            if number in open_:
                what = f"{open_[number].given.key} for {open_[number].given.agent}"
                self._oracle.on_overdue(self._shared.kernel.now_ns, self.name, what)

        self._shared.call_at(deadline_ns + OVERDUE_NS, look)

    def _later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + delay_ns, call)
