"""Core of a client that sends inputs to a fleet's agents. The core decides which host to contact, when to retry, and how each send ends,
without doing any I/O.

Problem
-------
An external program wants to deliver a message to an agent exactly once. The agent's host may crash at any moment. After a crash, the
agent may run on another host, and only the coordinator knows which one. Requests and answers may be lost, delayed or duplicated.

Model
-----
A host that runs the agent answers "accepted" or "repeated" if and only if the input is durable in the host's log. A host detects
duplicate inputs by their keys and never accepts an input twice. The answer "retry" means that the host has not accepted the input in this
request. The answer "refused" means that the host will never accept the input. If a request was answered, the host has processed that
request exactly once. If no answer arrives, the host may have accepted the input, or may still accept it while the request is in transit.
Within one request, a host processes each agent's inputs in order. After a host has answered "retry" for an input, it accepts none of the
agent's later inputs in that request.

Rules
-----
1. *Only a host's answer is a receipt.* A send is reported as accepted if and only if a host has answered "accepted" or "repeated".
2. *Repeating a key is always safe.* The client therefore retries each send with the same key until it gets a final answer or reaches its
   time limit.
3. *Order.* At most one request per agent is in flight. Inputs for which the host answers "retry" are sent first in the agent's next
   request. Inputs with receipts are therefore numbered in the order in which the program sent them. If a send ended as unknown, its input
   may still be accepted later, after inputs that were sent after it.
4. *Doubt is permanent.* If a request ends without an answer, each of its sends can only be reported as accepted or as unknown. A refusal of
   a later request does not prove that the unanswered request was refused too.
5. *Every send ends* by its deadline.

The client caches an agent's host until that host rejects the agent's inputs. A host that knows where the agent has moved redirects the
client to that host. The client follows the first redirect immediately, but waits before further redirects, since two hosts may redirect to
each other. Every other retry uses exponential backoff, with jitter from the client's seed, so that the clients of a lost host do not all
retry at once.

Sends that arrive while requests are in flight are batched into the next request to their host. No send waits just to fill a batch.

*Answers.* An ask waits for the answer to an accepted input (`OpenAsks`). The agent's host reports the outcome of an input as soon as the
outcome may be released. Until then, the client repeats its request whenever a host replies "retry", or a call fails or takes too long. A
request for an answer changes nothing, so it may be repeated at any time. Every ask ends by its deadline.

The caller's duties:
1. Carry out commands in order. Answer each request exactly once and within its time limit.
2. Pass TimerFired to the core at `wakeup_ns` or later.
3. Use the same key and the same payload in every request that contains a send.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from snapline.client import client_events as ev
from snapline.client.queues import FINDING_NS, FOUND_MAX, OVER, AgentQueue, AgentQueues, Entry, HostAddress, wait_ns
from snapline.messages import client_requests
from snapline.messages.answers import LocatedAgent
from snapline.messages.client_requests import ACCEPTED, NOT_PUBLIC, REFUSED, REPEATED, RETRY, AskOutcome, InputOutcome

ASKS_AT_ONCE = 32
"""Largest number of asks that wait for the same host concurrently. Each ask is one call. A connection allows 64 calls, and inputs share the
connection with asks."""

ASK_ATTEMPT_NS = 10_000_000_000
"""Longest duration of one call for an answer. The limit is meant for live hosts that no longer own the agent. Keepalive detects an
unreachable host sooner."""


class _Ask:
    """An open ask. `failures` is the number of consecutive failed attempts."""

    __slots__ = ("agent", "ask", "deadline_ns", "failures", "reason", "stage")

    def __init__(self, wanted: ev.AnswerRequested) -> None:
        self.ask = wanted.ask
        self.agent = wanted.agent
        self.deadline_ns = wanted.deadline_ns
        self.stage = "lost"
        self.failures = 0
        self.reason = "its agent has not answered yet"


class OpenAsks:
    """The open asks of one client. `number` returns the number to assign to the next request. Asks and sends share one cache of the
    agents' hosts."""

    def __init__(self, queues: AgentQueues, seed: int, number: Callable[[], int]) -> None:
        self._queues = queues
        self._seed = seed
        self._number = number
        self._asks: dict[int, _Ask] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._rests: list[tuple[int, int]] = []
        self._finding: dict[int, tuple[int, ...]] = {}
        """The pending request that looks up agents, mapped to the asks that wait for its reply. At most one such request is pending."""
        self._out: dict[int, tuple[HostAddress, int]] = {}
        """Request → the host and the ask that it is for. The ask may have ended already."""

    def owns(self, request: int) -> bool:
        """Return whether the request belongs to an ask rather than to a send."""
        return request in self._finding or request in self._out

    # ---- the program ----------------------------------------------------------------------------------------------

    def begin(self, wanted: ev.AnswerRequested) -> None:
        self._asks[wanted.ask] = ask = _Ask(wanted)
        heapq.heappush(self._deadlines, (wanted.deadline_ns, wanted.ask))
        self._go(ask)

    def drop(self, ask: int) -> None:
        """Drop an ask that the program has cancelled."""
        self._asks.pop(ask, None)

    def close(self, reason: str) -> list[ev.Command]:
        """End all asks."""
        return [self._end(ask, ev.LATE, reason) for ask in list(self._asks.values())]

    # ---- where agents live ------------------------------------------------------------------------------------------

    def on_agents_found(self, event: ev.AgentsFound, now_ns: int) -> list[ev.Command]:
        places = {place.agent: place for place in event.reply.agents}
        commands: list[ev.Command] = []
        for ask in self._living(self._finding.pop(event.request)):
            place = places.get(ask.agent)
            if event.reply.phase in OVER:
                commands.append(self._end(ask, ev.ENDED, OVER[event.reply.phase]))
            elif place is not None and place.state == "left":
                commands.append(self._end(ask, ev.MISSING, f"agent {ask.agent} has stopped"))
            else:
                self._settle(ask, place, event.reply.phase, now_ns)
        return commands

    def _settle(self, ask: _Ask, place: LocatedAgent | None, phase: str, now_ns: int) -> None:
        if place is None or place.state != "alive":
            self._rest(ask, f"the fleet is {phase}, and agent {ask.agent} has no host just now", now_ns)
        else:
            self._queues.remember(ask.agent, (place.host, place.address))
            self._go(ask)

    def on_finding_failed(self, event: ev.LookupFailed, now_ns: int) -> list[ev.Command]:
        asks = self._living(self._finding.pop(event.request))
        if event.is_final:
            return [self._end(ask, ev.DENIED, event.reason) for ask in asks]
        for ask in asks:
            self._rest(ask, event.reason, now_ns)
        return []

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def on_answer_heard(self, event: ev.AnswerHeard, now_ns: int) -> list[ev.Command]:
        place, number = self._out.pop(event.request)
        ask, outcome = self._asks.get(number), event.outcome
        if ask is None:
            return []
        match outcome.status:
            case client_requests.REPLIED:
                return [self._end(ask, ev.ANSWERED, "", outcome)]
            case client_requests.BURIED:
                return [self._end(ask, ev.BURIED, "", outcome)]
            case client_requests.UNKNOWN:
                return [self._end(ask, ev.FORGOTTEN, outcome.reason)]
            case client_requests.RETRY:
                self._try_again(ask, outcome, place, now_ns)
                return []
        return [self._end(ask, ev.DENIED, f"the host answered {outcome.status!r}, which this version does not know")]

    def _try_again(self, ask: _Ask, outcome: AskOutcome, place: HostAddress, now_ns: int) -> None:
        """Ask the host named in the reply immediately, if it is a different host and the ask has not failed before. Otherwise, wait and
        then look up the agent's host."""
        self._forget(ask, place)
        if outcome.address and (outcome.host, outcome.address) != place and not ask.failures:
            self._queues.remember(ask.agent, (outcome.host, outcome.address))
            ask.failures, ask.reason = 1, outcome.reason
            self._go(ask)
        else:
            self._rest(ask, outcome.reason, now_ns)

    def on_request_failed(self, event: ev.RequestFailed, now_ns: int) -> list[ev.Command]:
        place, number = self._out.pop(event.request)
        ask = self._asks.get(number)
        if ask is None:
            return []
        if event.is_final:
            return [self._end(ask, ev.DENIED, event.reason)]
        self._forget(ask, place)
        self._rest(ask, event.reason, now_ns)
        return []

    def _forget(self, ask: _Ask, place: HostAddress) -> None:
        """Remove the agent's host from the cache, because the agent may have moved. Keep the cache entry if another request has already
        changed it."""
        if self._queues.places.get(ask.agent) == place:
            del self._queues.places[ask.agent]

    # ---- after every event ----------------------------------------------------------------------------------------

    def evaluate(self, now_ns: int) -> list[ev.Command]:
        """End asks whose deadline has passed, resume asks whose backoff has ended, and return the resulting commands."""
        commands: list[ev.Command] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            expired = self._asks.get(heapq.heappop(self._deadlines)[1])
            if expired is not None:
                commands.append(self._end(expired, ev.LATE, expired.reason))
        while self._rests and self._rests[0][0] <= now_ns:
            rested = self._asks.get(heapq.heappop(self._rests)[1])
            if rested is not None:
                self._go(rested)
        return [*commands, *self._find(now_ns), *self._ask(now_ns)]

    @property
    def wakeup_ns(self) -> int | None:
        """Return the time of the next call to `evaluate`, or None if no call is needed."""
        while self._deadlines and self._deadlines[0][1] not in self._asks:
            heapq.heappop(self._deadlines)
        while self._rests and self._rests[0][1] not in self._asks:
            heapq.heappop(self._rests)
        return min([heap[0][0] for heap in (self._deadlines, self._rests) if heap], default=None)

    def _find(self, now_ns: int) -> list[ev.Command]:
        lost_asks = [ask for ask in self._asks.values() if ask.stage == "lost"]
        if not lost_asks or self._finding:
            return []
        agents = tuple(dict.fromkeys([ask.agent for ask in lost_asks]))[:FOUND_MAX]
        agent_set = dict.fromkeys(agents)
        asks_to_find = [ask for ask in lost_asks if ask.agent in agent_set]
        for ask in asks_to_find:
            ask.stage = "finding"
        request = self._number()
        self._finding[request] = tuple([ask.ask for ask in asks_to_find])
        return [ev.LookUpAgents(request, agents, min(FINDING_NS, _longest_ns(asks_to_find, now_ns)))]

    def _ask(self, now_ns: int) -> list[ev.Command]:
        calls_at: dict[HostAddress, int] = {}
        for place, _ in self._out.values():
            calls_at[place] = calls_at.get(place, 0) + 1
        commands: list[ev.Command] = []
        for ask in [ask for ask in self._asks.values() if ask.stage == "ready"]:
            agent_place = self._queues.places.get(ask.agent)
            if agent_place is None:
                ask.stage = "lost"  # a call of another ask has failed meanwhile and forgotten the place
            elif calls_at.get(agent_place, 0) < ASKS_AT_ONCE:
                calls_at[agent_place] = calls_at.get(agent_place, 0) + 1
                request = self._number()
                ask.stage = "out"
                self._out[request] = (agent_place, ask.ask)
                commands.append(
                    ev.AskHost(request, *agent_place, ask.ask, min(ASK_ATTEMPT_NS, ask.deadline_ns - now_ns))
                )
        return [*commands, *self._find(now_ns)]

    def _go(self, ask: _Ask) -> None:
        ask.stage = "ready" if ask.agent in self._queues.places else "lost"

    def _rest(self, ask: _Ask, reason: str, now_ns: int) -> None:
        """Schedule the next attempt after a backoff that grows with each failure."""
        ask.failures += 1
        ask.stage, ask.reason = "resting", reason
        due_ns = now_ns + wait_ns(ask.failures, f"{self._seed}/ask {ask.ask}/{ask.failures}")
        heapq.heappush(self._rests, (due_ns, ask.ask))

    def _end(self, ask: _Ask, ending: str, reason: str, outcome: AskOutcome | None = None) -> ev.Command:
        del self._asks[ask.ask]
        return ev.FinishAsk(ask.ask, ending, reason, outcome)

    def _living(self, asks: Iterable[int]) -> list[_Ask]:
        return [self._asks[ask] for ask in asks if ask in self._asks]

    def validate(self) -> None:
        """Check that the tables are consistent. Raise AssertionError if the tables are inconsistent."""
        out = sorted([ask for _, ask in self._out.values() if ask in self._asks])
        finding = sorted([ask for asks in self._finding.values() for ask in asks if ask in self._asks])
        resting = {ask for _, ask in self._rests}
        staged = {stage: sorted([x.ask for x in self._asks.values() if x.stage == stage]) for stage in _STAGES}
        assert staged["out"] == out and staged["finding"] == finding, "an ask is nowhere, or twice"
        assert set(staged["resting"]) <= resting, "an ask rests for ever"
        assert sum([len(asks) for asks in staged.values()]) == len(self._asks), "a stage that is none"
        assert not staged["lost"] or self._finding, "nobody looks for a lost agent"


_STAGES = ("lost", "finding", "ready", "out", "resting")


def _longest_ns(asks: Iterable[_Ask], now_ns: int) -> int:
    return max([ask.deadline_ns for ask in asks]) - now_ns


REQUESTS_MAX = 4
"""Largest number of requests in flight to one host. While the host's log writes one batch, the next requests are already in transit."""

ATTEMPT_NS = 5_000_000_000
"""Longest duration of one request, after which the client looks up the agent's owner again. Keepalive detects a dead or frozen host in
about that time, and a store that takes longer is faulty."""

CLOSED = "the client was closed"


class _Request(msgspec.Struct):
    """A request in flight to a host."""

    place: HostAddress
    entries: list[Entry]


class ClientCore:
    """Core of one client, which makes all its decisions. All events enter through `handle`. `seed` determines the jitter of the backoff."""

    def __init__(self, seed: int = 0) -> None:
        self._now = 0
        self._out: list[ev.Command] = []
        self._is_closed = False
        self._requests_made = 0
        self._queues = AgentQueues(seed)
        self._entries: dict[int, Entry] = {}
        """Open sends by number."""
        self._deadlines: list[tuple[int, int]] = []
        """Heap of pairs (deadline, send)."""
        self._finding: dict[int, list[AgentQueue]] = {}
        """The pending request that looks up agents, mapped to the queues that wait for its reply. At most one such request is pending."""
        self._requests: dict[int, _Request] = {}
        self._under_way: dict[HostAddress, int] = {}
        """Number of requests in flight to each host."""
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
        """Handle one event. Return the commands to execute, in order."""
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
        """Return the time at which the next TimerFired event is due, or None if no timer is needed."""
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
        """Continue an agent's queue according to the result of its lookup."""
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
        """End a send with the final outcome reported by a host."""
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

    def _try_again(self, queue: AgentQueue, outcome: InputOutcome, place: HostAddress) -> None:
        """Send to the host named in the reply immediately, if it is a different host and no attempt has failed before. Otherwise, retry
        after a wait."""
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
        """Handle a failed request. The outcome of each send in the request is then in doubt, unless the request definitely changed nothing
        (`is_unsent`)."""
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
        """End all sends whose deadline has passed."""
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
        """Return the time until the latest deadline of the request's sends, but at most ATTEMPT_NS."""
        return min(ATTEMPT_NS, max([entry.deadline_ns for entry in entries]) - self._now)

    def _next_request(self) -> int:
        self._requests_made += 1
        return self._requests_made

    # ---- endings --------------------------------------------------------------------------------------------------

    def _rest(self, queue: AgentQueue, reason: str) -> None:
        self._queues.rest(queue, self._now, reason)

    def _end_queue(self, queue: AgentQueue, ending: str, reason: str) -> None:
        """End all sends that are waiting in this queue."""
        for entry in queue.waiting:
            self._end(entry, ending, reason)
        queue.waiting.clear()
        self._queues.retire(queue)

    def _give_up(self, entry: Entry, reason: str) -> None:
        """End a send at its deadline, or when the client is closed. The outcome is unknown if the send is part of a pending request,
        because the host may have accepted the input."""
        if not self._queues.take_out(entry):
            entry.is_in_doubt = True
        self._end(entry, ev.NOT_TAKEN, reason)

    def _end(self, entry: Entry, ending: str, reason: str) -> None:
        """End a send for which no receipt has arrived, applying rule 4."""
        self._over(entry)
        self._out.append(ev.FinishSend(entry.send, ev.UNKNOWN if entry.is_in_doubt else ending, reason))

    def _over(self, entry: Entry) -> None:
        del self._entries[entry.send]
        entry.is_over = True

    def _queue_of(self, agent: str) -> AgentQueue:
        """Return the queue of an agent that has an open send or a send in a pending request."""
        queue = self._queues.of(agent)
        assert queue is not None, f"no queue for {agent}"
        return queue

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check all invariants. Raise AssertionError if an invariant is violated."""
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
    """Ignore the event, because `handle` checks all deadlines after every event."""
