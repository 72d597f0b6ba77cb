"""Requests of a simulated client: the counterpart of `client/requests.py` on the simulated network.

Each request returns as one event to the core, by its time limit; later events are dropped. A request may be lost, late or duplicated, and its
answer may be lost. As over a stream, a duplicated request has no answer, since its stream has broken. A host that is down, or without a connection,
has certainly accepted nothing. Data written to a connection arrives when the network is healed or the host resumes, and the host reads it then,
whether or not the client still waits.

The location of agents is read from the coordinator's state when the request arrives there, so the answer may be out of date. Sometimes it names a
wrong host.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from snapline.client import events as ev
from snapline.coordinator.service.fleet_answers import located
from snapline.messages.answers import LocatedAgent
from snapline.messages.inputs import ACCEPTED, REPEATED, AskOutcome, GivenInput, InputOutcome
from snapline.sim.world.host import SimHost
from snapline.sim.world.hosts import Hosts
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState

MS = 1_000_000

BROKEN_NS = 400 * MS
"""Time until a client notices a broken stream."""

LATE_NS = 600 * MS
"""Extra delay of a late request."""

CONNECT_NS = 2000 * MS
"""Timeout of a connection attempt, as in `client/hosts.py`."""

WRITTEN_NS, WRITTEN_LOOKS = 200 * MS, 25
"""Period and number of retransmissions on a blocked connection."""

LOST_ONE_IN, TWICE_ONE_IN, LATE_ONE_IN, ASTRAY_ONE_IN = 12, 12, 20, 10

Pick = Callable[[str, int], int]
"""Function that draws a choice by name, from 0 … n - 1; 0 is benign."""


class ClientInput:
    """One input of a client.

    Attributes:
        given: the input as sent to a host.
        payload: encoded message; b"" until a host has converted the JSON in `given`.
        serial: place among the client's inputs.
        asks: the program wants the answer. is_early: an answer that may still be rolled back suffices.
    """

    __slots__ = ("asks", "given", "is_early", "payload", "serial")

    def __init__(self, given: GivenInput, serial: int) -> None:
        self.given = given
        self.payload = b"" if given.type else given.payload
        self.serial = serial
        self.asks = self.is_early = False


class ClientCalls:
    """Requests of one client's core; `feed` receives the events."""

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
        """Requests without an event yet."""
        self._connected: dict[str, None] = {}
        """Hosts that have answered, without a failed request since."""

    def close(self) -> None:
        """Drop all open requests."""
        self._open.clear()

    # ---- requests -------------------------------------------------------------------------------------------------

    def find(self, command: ev.LookUpAgents) -> None:
        """Ask the leader where agents live."""
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
        """Send inputs to a host."""
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
        """Wait at a host for an answer."""
        agent, key, is_early = asked.given.agent, asked.given.key, asked.is_early
        request, host = command.request, command.host
        self._begin(request, command.limit_ns, ev.RequestFailed(request, "no answer in time"))

        def arrive(run: SimHost) -> None:
            run.ask(agent, key, lambda outcome: self._on_answer(request, host, outcome), is_early=is_early)

        self._travel(request, host, 1, arrive)

    # ---- sending --------------------------------------------------------------------------------------------------

    def _travel(self, request: int, host: str, copies: int, arrive: Callable[[SimHost], None]) -> None:
        """Send copies of a request to a host."""
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
        """Deliver once a path exists; the socket of a paused process also accepts the request."""
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
        """Break the stream of a host that has crashed since."""
        if request not in self._open:
            return
        if run.is_alive:
            self._later(BROKEN_NS, lambda: self._watch(request, run))
        else:
            self._connected.pop(run.name, None)
            self._end(request, ev.RequestFailed(request, "the stream broke"))

    # ---- answers --------------------------------------------------------------------------------------------------

    def _on_taking(self, one: ClientInput, payload: bytes) -> None:
        """Record the payload of a message that a host is about to accept, or already has."""
        if not one.payload:
            one.payload = payload
            self._shared.judge.books.inputs.on_offered(one.given.agent, self._name, one.serial, payload)

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
        """Handle the decisions of a host that worked under this plan when the request arrived."""
        oracle = self._shared.judge.books.inputs
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
        """Deliver the first event of a request; later ones are dropped."""
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
