"""Decisions of a fleet's client: which host to ask, when to retry, and the outcome of a send. No I/O.

Problem
-------
An external program wants an agent to receive a message exactly once. The agent lives on some host, which may crash at any moment.
Another host may then own the agent, and only the coordinator knows which. Requests and answers may be lost, delayed or duplicated.

Model
-----
A host that owns the agent answers "accepted" or "repeated" if and only if the input is durable in its log. It recognizes inputs by their
keys and never accepts one twice. "retry" means that this request did not get the input accepted, "refused" that it never will be. An
answered request was received once. A missing answer proves nothing: the input may have been accepted, or may be accepted later, while
the request is in transit. Within one request, a host decides the inputs of one agent in order: after a "retry", it accepts none of the
inputs of that agent that follow.

Rules
-----
1. *A receipt is a host's answer.* A send ends as accepted upon "accepted" or "repeated", and in no other way.
2. *Repeating a key is always safe*, so a send without a final answer is retried with the same key until its time limit.
3. *Order.* At most one request per agent is in flight, and inputs that it leaves undecided come first in the next one. So the inputs
   that have a receipt are numbered in the order in which they were given. An input that ended as unknown may still be accepted at
   any later position.
4. *Doubt stays.* Once a request that contained a send has ended without an answer, that send ends as accepted or as unknown: a later
   refusal is about the later request only.
5. *Every send ends*, at its deadline at the latest.

The client remembers an agent's place until a host rejects its inputs. A host that knows a newer place names it. The first redirect is
followed immediately; further ones wait, since two hosts may redirect to each other. All other retries wait, with exponential backoff and
jitter from the client's seed, so that clients of a lost host do not all return at once.

Sends that arrive while requests are in flight are batched into the next request to their host; no other send waits for a batch to fill.

The caller's duties:
1. Carry out commands in order. Answer each request exactly once and within its limit.
2. Feed TimerFired at `wakeup_ns` or later.
3. Offer a send with the same key and the same payload in every request.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from snapline.client import events as ev
from snapline.client.asks import OpenAsks
from snapline.client.queues import FINDING_NS, FOUND_MAX, OVER, AgentQueue, AgentQueues, Entry, Place
from snapline.messages.answers import LocatedAgent
from snapline.messages.inputs import ACCEPTED, NOT_PUBLIC, REFUSED, REPEATED, RETRY, InputOutcome

REQUESTS_MAX = 4
"""Largest number of requests in flight to one host: its log writes one batch at a time, while the next ones may travel."""

ATTEMPT_NS = 5_000_000_000
"""Longest time of one request: keepalive detects a dead or frozen host in about that time, and a slower store is in trouble. After that,
it is better to look up the agent's owner again."""

CLOSED = "the client was closed"


class _Request(msgspec.Struct):
    """A request in flight to a host."""

    place: Place
    entries: list[Entry]


class ClientCore:
    """Decisions of one client. `handle` is the only entry; `seed`: seed of its backoff."""

    def __init__(self, seed: int = 0) -> None:
        self._now = 0
        self._out: list[ev.Command] = []
        self._is_closed = False
        self._requests_made = 0
        self._queues = AgentQueues(seed)
        self._entries: dict[int, Entry] = {}
        """Open sends."""
        self._deadlines: list[tuple[int, int]] = []
        """Heap of deadline and send."""
        self._finding: dict[int, list[AgentQueue]] = {}
        """The current request that looks up agents; at most one."""
        self._requests: dict[int, _Request] = {}
        self._under_way: dict[Place, int] = {}
        """Requests to each host."""
        self._asks = OpenAsks(self._queues, seed, self._next_request)
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.InputsGiven: self._on_inputs_given,
            ev.SendsDropped: self._on_sends_dropped,
            ev.AnswerRequested: self._on_answer_wanted,
            ev.AskDropped: lambda event: self._asks.drop(event.ask),
            ev.AnswerHeard: lambda event: self._out.extend(self._asks.on_answer_heard(event, self._now)),
            ev.AgentsFound: self._on_agents_found,
            ev.LookupFailed: self._on_finding_failed,
            ev.RequestAnswered: self._on_request_answered,
            ev.RequestFailed: self._on_request_failed,
            ev.TimerFired: _nothing,
            ev.ClientClosed: self._on_client_closed,
        }

    def handle(self, now_ns: int, event: ev.Event) -> list[ev.Command]:
        """Handle one event; return the commands, in order."""
        self._now = now_ns
        out: list[ev.Command] = []
        self._out = out
        self._handlers[type(event)](event)
        self._expire()
        self._queues.wake(now_ns)
        if not self._is_closed:
            self._find()
            self._offer()
            out.extend(self._asks.evaluate(now_ns))
        return out

    @property
    def wakeup_ns(self) -> int | None:
        """Return the next time at which TimerFired is due, or None."""
        while self._deadlines and self._deadlines[0][1] not in self._entries:
            heapq.heappop(self._deadlines)
        times = [self._deadlines[0][0] if self._deadlines else None, self._queues.wakeup_ns, self._asks.wakeup_ns]
        return min([time_ns for time_ns in times if time_ns is not None], default=None)

    # ---- the program ----------------------------------------------------------------------------------------------

    def _on_inputs_given(self, event: ev.InputsGiven) -> None:
        for send in event.sends:
            entry = self._entries[send.send] = Entry(send)
            if self._is_closed:
                self._end(entry, ev.NOT_TAKEN, CLOSED)
            else:
                heapq.heappush(self._deadlines, (send.deadline_ns, send.send))
                self._queues.add(entry)

    def _on_sends_dropped(self, event: ev.SendsDropped) -> None:
        for send in event.sends:
            entry = self._entries.pop(send, None)
            if entry is not None:
                entry.is_over = True
                self._queues.take_out(entry)

    def _on_answer_wanted(self, event: ev.AnswerRequested) -> None:
        self._asks.begin(event)
        if self._is_closed:
            self._out.extend(self._asks.close(CLOSED))

    def _on_client_closed(self, _event: ev.ClientClosed) -> None:
        self._is_closed = True
        self._out.extend(self._asks.close(CLOSED))
        for entry in list(self._entries.values()):
            self._give_up(entry, CLOSED)

    # ---- where agents live ------------------------------------------------------------------------------------------

    def _on_agents_found(self, event: ev.AgentsFound) -> None:
        if self._asks.owns(event.request):
            self._out.extend(self._asks.on_agents_found(event, self._now))
            return
        reply = event.reply
        places = {place.agent: place for place in reply.agents}
        for queue in self._finding.pop(event.request):
            if reply.phase in OVER:
                self._end_queue(queue, ev.ENDED, f"{OVER[reply.phase]}{f': {reply.reason}' if reply.reason else ''}")
            else:
                self._settle(queue, places.get(queue.agent), reply.phase)

    def _settle(self, queue: AgentQueue, found: LocatedAgent | None, phase: str) -> None:
        """Act on the place found for one agent."""
        if found is None or found.state not in ("alive", "left", "unknown"):
            self._rest(queue, f"the fleet is {phase}, and agent {queue.agent} has no host just now")
        elif found.state == "alive":
            self._queues.remember(queue.agent, (found.host, found.address))
            self._queues.go(queue)
        elif phase == "forming":
            self._rest(queue, "the fleet is forming")
        else:
            problem = "has stopped" if found.state == "left" else "is not in this fleet"
            self._end_queue(
                queue, ev.MISSING, f"agent {queue.agent!r} {problem}: `snapline agent list` names those that are there"
            )

    def _on_finding_failed(self, event: ev.LookupFailed) -> None:
        if self._asks.owns(event.request):
            self._out.extend(self._asks.on_finding_failed(event, self._now))
            return
        for queue in self._finding.pop(event.request):
            if event.is_final:
                self._end_queue(queue, ev.DENIED, event.reason)
            else:
                self._rest(queue, event.reason)

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _on_request_answered(self, event: ev.RequestAnswered) -> None:
        request = self._ended(event.request)
        if len(event.outcomes) != len(request.entries):
            self._fail(
                request, f"host {request.place[0]} answered {len(event.outcomes)} of {len(request.entries)} inputs"
            )
            return
        undecided: dict[str, list[tuple[Entry, InputOutcome]]] = {entry.agent: [] for entry in request.entries}
        for entry, outcome in zip(request.entries, event.outcomes, strict=True):
            if outcome.status == RETRY:
                undecided[entry.agent].append((entry, outcome))
            elif not entry.is_over:
                self._decide(entry, outcome)
        for agent, pending in undecided.items():
            queue = self._queue_of(agent)
            self._queues.put_back(queue, [entry for entry, _ in pending])
            if pending:
                self._try_again(queue, pending[0][1], request.place)
            else:
                queue.failures = 0
                self._queues.go(queue)

    def _decide(self, entry: Entry, outcome: InputOutcome) -> None:
        """End a send with a final outcome."""
        if outcome.status in (ACCEPTED, REPEATED):
            self._over(entry)
            is_repeated = outcome.status == REPEATED
            self._out.append(ev.FinishSend(entry.send, ev.TAKEN, "", outcome.number, is_repeated))
        elif outcome.status == REFUSED:
            self._end(entry, ev.REFUSED, outcome.reason)
        elif outcome.status == NOT_PUBLIC:
            self._end(entry, ev.NOT_PUBLIC, outcome.reason)
        else:
            self._end(entry, ev.UNKNOWN, f"the host answered {outcome.status!r}, which this version does not know")

    def _try_again(self, queue: AgentQueue, outcome: InputOutcome, place: Place) -> None:
        """Send to the host named in the reply, or look up the agent. The first retry is immediate."""
        queues = self._queues
        queues.places.pop(queue.agent, None)
        is_hint = bool(outcome.address) and (outcome.host, outcome.address) != place
        if is_hint:
            queues.remember(queue.agent, (outcome.host, outcome.address))
        if is_hint and not queue.failures:
            queue.failures, queue.reason = 1, outcome.reason
            queues.go(queue)
        else:
            self._rest(queue, outcome.reason)

    def _on_request_failed(self, event: ev.RequestFailed) -> None:
        if self._asks.owns(event.request):
            self._out.extend(self._asks.on_request_failed(event, self._now))
            return
        request = self._ended(event.request)
        if not event.is_final:
            self._fail(request, event.reason, is_unsent=event.is_unsent)
            return
        for entry in request.entries:
            if not entry.is_over:
                self._end(entry, ev.DENIED, event.reason)
        for agent in dict.fromkeys([entry.agent for entry in request.entries]):
            self._end_queue(self._queue_of(agent), ev.DENIED, event.reason)

    def _fail(self, request: _Request, reason: str, *, is_unsent: bool = False) -> None:
        """Handle a failed request: the outcomes of its sends are unknown, unless nothing was sent."""
        entries: dict[str, list[Entry]] = {}
        for entry in request.entries:
            entry.is_in_doubt = entry.is_in_doubt or not is_unsent
            entries.setdefault(entry.agent, []).append(entry)
        for agent, agent_entries in entries.items():
            queue = self._queue_of(agent)
            self._queues.put_back(queue, agent_entries)
            self._queues.places.pop(agent, None)
            self._rest(queue, reason)

    def _ended(self, number: int) -> _Request:
        request = self._requests.pop(number)
        self._under_way[request.place] -= 1
        if not self._under_way[request.place]:
            del self._under_way[request.place]
        return request

    # ---- after every event ----------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """End the sends whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= self._now:
            entry = self._entries.get(heapq.heappop(self._deadlines)[1])
            if entry is not None:
                self._give_up(entry, self._queue_of(entry.agent).reason)

    def _find(self) -> None:
        if not self._queues.lost or self._finding:
            return
        queues = self._queues.take_agents_to_look_up(FOUND_MAX)
        number = self._next_request()
        self._finding[number] = queues
        limit_ns = self._limit_ns([entry for queue in queues for entry in queue.waiting])
        agents = tuple([queue.agent for queue in queues])
        self._out.append(ev.LookUpAgents(number, agents, min(FINDING_NS, limit_ns)))

    def _offer(self) -> None:
        ready = self._queues.ready
        for place in list(ready):
            while place in ready and self._under_way.get(place, 0) < REQUESTS_MAX:
                entries = self._queues.take_batch(place)
                number = self._next_request()
                self._requests[number] = _Request(place, entries)
                self._under_way[place] = self._under_way.get(place, 0) + 1
                sends = tuple([entry.send for entry in entries])
                self._out.append(ev.OfferInputs(number, *place, sends, self._limit_ns(entries)))

    def _limit_ns(self, entries: Iterable[Entry]) -> int:
        """Return the time limit of a request: until the last deadline of its sends."""
        return min(ATTEMPT_NS, max([entry.deadline_ns for entry in entries]) - self._now)

    def _next_request(self) -> int:
        self._requests_made += 1
        return self._requests_made

    # ---- endings --------------------------------------------------------------------------------------------------

    def _rest(self, queue: AgentQueue, reason: str) -> None:
        self._queues.rest(queue, self._now, reason)

    def _end_queue(self, queue: AgentQueue, ending: str, reason: str) -> None:
        """End all sends that wait for this agent."""
        for entry in queue.waiting:
            self._end(entry, ending, reason)
        queue.waiting.clear()
        self._queues.retire(queue)

    def _give_up(self, entry: Entry, reason: str) -> None:
        """End a send without an answer. A send in a request may have been accepted."""
        if not self._queues.take_out(entry):
            entry.is_in_doubt = True
        self._end(entry, ev.NOT_TAKEN, reason)

    def _end(self, entry: Entry, ending: str, reason: str) -> None:
        """End a send that was not accepted (rule 4)."""
        self._over(entry)
        self._out.append(ev.FinishSend(entry.send, ev.UNKNOWN if entry.is_in_doubt else ending, reason))

    def _over(self, entry: Entry) -> None:
        del self._entries[entry.send]
        entry.is_over = True

    def _queue_of(self, agent: str) -> AgentQueue:
        """Return the queue of an agent that has an open send, or a send in a request."""
        queue = self._queues.of(agent)
        assert queue is not None, f"no queue for {agent}"
        return queue

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Cross-check all invariants; raise AssertionError for the first that does not hold."""
        agents_out = [agent for x in self._requests.values() for agent in dict.fromkeys([y.agent for y in x.entries])]
        assert len(agents_out) == len(dict.fromkeys(agents_out)), "an agent in two requests"
        finding = {queue.agent for queues in self._finding.values() for queue in queues}
        waiting = self._queues.validate(finding=finding, out=set(agents_out))
        all_entries = [*waiting, *[entry for request in self._requests.values() for entry in request.entries]]
        unfinished = sorted([entry.send for entry in all_entries if not entry.is_over])
        assert unfinished == sorted(self._entries), "a send is nowhere, or twice"
        if not self._is_closed:
            self._asks.validate()
        assert len(self._finding) <= 1 and max(self._under_way.values(), default=0) <= REQUESTS_MAX


def _nothing(_event: ev.Event) -> None:
    """Do nothing: the checks after every event also handle the passing of time."""
