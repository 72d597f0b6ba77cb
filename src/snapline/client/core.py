"""Decisions of a fleet's client: which host to ask, when to try again, and the outcome of a send. No I/O.

Problem
-------
A program outside a fleet wants an agent to have a message, once. The agent lives on some host, which may die at any moment;
another one may own the agent then, and only the coordinator knows which. Requests and answers may be lost, late, or doubled.

Model
-----
A host that owns the agent answers "accepted" or "repeated" when the input is permanently in its log, and then only. It knows inputs by
their keys: it does not take one twice. "retry" means that it was not taken by this request, "refused" that it never
will be; a request that is answered was heard once. A missing answer says nothing: it may have been taken, or may be later, while the request is on
its way. In one request a host decides the inputs of one agent in order: what comes behind one that it did not take for the moment is
not taken either.

Rules
-----
1. *A receipt is a host's answer.* A send ends as taken upon "accepted" or "repeated", and in no other way.
2. *The same key again is always safe*, so a send without a final answer is tried again with the same key until its time is over.
3. *Order.* Per agent one request is under way at most, and what it leaves undecided goes first into the next one. So the inputs
   that have a receipt have their numbers in the order in which they were given. One that ended as unknown may still be taken at
   any place after that.
4. *Doubt stays.* Once a request that held it has ended without an answer, a send that does not end as taken ends as unknown: a later "no" is
   about the later request only.
5. *Every send ends*, at its deadline at the latest.

Where an agent lives is remembered until a host does not take its inputs. A host that knows better says where to go; following that costs no
wait once, then it may be that two hosts send us to each other. Everything else waits: doubled each time, spread by a number that follows from the
client's seed, so that clients that have lost the same host do not come back all at once.

Sends that gather while requests are under way go into the next ones, in batches of one host; nothing else ever waits for a batch to fill.

The caller's duties:
1. Carry out commands in order. Answer each request once, always, and within its limit.
2. Feed TimerFired at `wakeup_ns`, or after it.
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
"""Largest number of requests under way to one host: its log writes one batch at a time, and while it does the next ones may travel."""

ATTEMPT_NS = 5_000_000_000
"""Longest time of one request: keepalive finds a host that is cut off or frozen in about that time, and a store that takes longer is in trouble. Then
it is better to look up the agent's owner again."""

CLOSED = "the client was closed"


class _Request(msgspec.Struct):
    """A request to a host that is under way."""

    place: Place
    entries: list[Entry]


class ClientCore:
    """Decides for one client. `handle` is the only entry; `seed`: of its waits."""

    def __init__(self, seed: int = 0) -> None:
        self._now = 0
        self._out: list[ev.Command] = []
        self._is_closed = False
        self._requests_made = 0
        self._queues = AgentQueues(seed)
        self._entries: dict[int, Entry] = {}
        """Sends that are not over."""
        self._deadlines: list[tuple[int, int]] = []
        """Heap of deadline and send."""
        self._finding: dict[int, list[AgentQueue]] = {}
        """The request that looks up agents; one at a time."""
        self._requests: dict[int, _Request] = {}
        self._under_way: dict[Place, int] = {}
        """Requests to each host."""
        self._asks = OpenAsks(self._queues, seed, self._next_request)
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.InputsGiven: self._on_inputs_given,
            ev.SendsDropped: self._on_sends_dropped,
            ev.AnswerWanted: self._on_answer_wanted,
            ev.AskDropped: lambda event: self._asks.drop(event.ask),
            ev.AnswerHeard: lambda event: self._out.extend(self._asks.on_answer_heard(event, self._now)),
            ev.AgentsFound: self._on_agents_found,
            ev.FindingFailed: self._on_finding_failed,
            ev.RequestAnswered: self._on_request_answered,
            ev.RequestFailed: self._on_request_failed,
            ev.TimerFired: _nothing,
            ev.ClientClosed: self._on_client_closed,
        }

    def handle(self, now_ns: int, event: ev.Event) -> list[ev.Command]:
        """Take one event; returns what to do, in order."""
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
        """Next time that TimerFired is due, or None."""
        while self._deadlines and self._deadlines[0][1] not in self._entries:
            heapq.heappop(self._deadlines)
        times = [self._deadlines[0][0] if self._deadlines else None, self._queues.wakeup_ns, self._asks.wakeup_ns]
        return min([time_ns for time_ns in times if time_ns is not None], default=None)

    # ---- the program ----------------------------------------------------------------------------------------------

    def _on_inputs_given(self, event: ev.InputsGiven) -> None:
        for given in event.sends:
            entry = self._entries[given.send] = Entry(given)
            if self._is_closed:
                self._end(entry, ev.NOT_TAKEN, CLOSED)
            else:
                heapq.heappush(self._deadlines, (given.deadline_ns, given.send))
                self._queues.add(entry)

    def _on_sends_dropped(self, event: ev.SendsDropped) -> None:
        for send in event.sends:
            entry = self._entries.pop(send, None)
            if entry is not None:
                entry.is_over = True
                self._queues.take_out(entry)

    def _on_answer_wanted(self, event: ev.AnswerWanted) -> None:
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
        found = {place.agent: place for place in reply.agents}
        for queue in self._finding.pop(event.request):
            if reply.phase in OVER:
                self._end_queue(queue, ev.ENDED, f"{OVER[reply.phase]}{f': {reply.reason}' if reply.reason else ''}")
            else:
                self._settle(queue, found.get(queue.agent), reply.phase)

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
            why = "has stopped" if found.state == "left" else "is not in this fleet"
            self._end_queue(
                queue, ev.MISSING, f"agent {queue.agent!r} {why}: `snapline agent list` names those that are there"
            )

    def _on_finding_failed(self, event: ev.FindingFailed) -> None:
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
        for agent, left in undecided.items():
            queue = self._queue_of(agent)
            self._queues.put_back(queue, [entry for entry, _ in left])
            if left:
                self._try_again(queue, left[0][1], request.place)
            else:
                queue.failures = 0
                self._queues.go(queue)

    def _decide(self, entry: Entry, outcome: InputOutcome) -> None:
        """A word that is final."""
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
        """Send to where the host says, or where the agent is found. The first retry is without a wait."""
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
        """Handle a failed request: nothing is known of its sends, unless nothing was sent."""
        entries: dict[str, list[Entry]] = {}
        for entry in request.entries:
            entry.is_in_doubt = entry.is_in_doubt or not is_unsent
            entries.setdefault(entry.agent, []).append(entry)
        for agent, left in entries.items():
            queue = self._queue_of(agent)
            self._queues.put_back(queue, left)
            self._queues.places.pop(agent, None)
            self._rest(queue, reason)

    def _ended(self, number: int) -> _Request:
        request = self._requests.pop(number)
        self._under_way[request.place] -= 1
        if not self._under_way[request.place]:
            del self._under_way[request.place]
        return request

    # ---- what happens by itself -----------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Time is over."""
        while self._deadlines and self._deadlines[0][0] <= self._now:
            entry = self._entries.get(heapq.heappop(self._deadlines)[1])
            if entry is not None:
                self._give_up(entry, self._queue_of(entry.agent).reason)

    def _find(self) -> None:
        if not self._queues.lost or self._finding:
            return
        queues = self._queues.take_lost(FOUND_MAX)
        number = self._next_request()
        self._finding[number] = queues
        limit_ns = self._limit_ns([entry for queue in queues for entry in queue.waiting])
        agents = tuple([queue.agent for queue in queues])
        self._out.append(ev.FindAgents(number, agents, min(FINDING_NS, limit_ns)))

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
        """Return the limit of a request: as long as any of its sends waits."""
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
        """End a send without an answer. One in a request may have been taken."""
        if not self._queues.take_out(entry):
            entry.is_in_doubt = True
        self._end(entry, ev.NOT_TAKEN, reason)

    def _end(self, entry: Entry, ending: str, reason: str) -> None:
        """Anything but taken (rule 4)."""
        self._over(entry)
        self._out.append(ev.FinishSend(entry.send, ev.UNKNOWN if entry.is_in_doubt else ending, reason))

    def _over(self, entry: Entry) -> None:
        del self._entries[entry.send]
        entry.is_over = True

    def _queue_of(self, agent: str) -> AgentQueue:
        """Return the queue of an agent with a send that is not over, or in a request."""
        queue = self._queues.of(agent)
        assert queue is not None, f"no queue for {agent}"
        return queue

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Cross-check all invariants; AssertionError says which does not hold."""
        agents_out = [agent for x in self._requests.values() for agent in dict.fromkeys([y.agent for y in x.entries])]
        assert len(agents_out) == len(dict.fromkeys(agents_out)), "an agent in two requests"
        finding = {queue.agent for queues in self._finding.values() for queue in queues}
        waiting = self._queues.validate(finding=finding, out=set(agents_out))
        held = [*waiting, *[entry for request in self._requests.values() for entry in request.entries]]
        unfinished = sorted([entry.send for entry in held if not entry.is_over])
        assert unfinished == sorted(self._entries), "a send is nowhere, or twice"
        if not self._is_closed:
            self._asks.validate()
        assert len(self._finding) <= 1 and max(self._under_way.values(), default=0) <= REQUESTS_MAX


def _nothing(_event: ev.Event) -> None:
    """Do nothing: time has passed, and what follows from that follows from every event."""
