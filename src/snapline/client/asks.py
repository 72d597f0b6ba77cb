"""The part of a client's core that waits for answers to inputs that have been taken.

A host that owns the agent reports the outcome of an input, once that may be reported. Until then the client asks, repeatedly, the host that owns
the agent: after "retry", after a call without an answer, and when a call has lasted long. Asking changes nothing, so it may be
done at any time and any number of times. Every ask ends, at its deadline at the latest.
"""

import heapq
from collections.abc import Callable, Iterable

from snapline.client import events as ev
from snapline.client.queues import FINDING_NS, FOUND_MAX, OVER, AgentQueues, Place, wait_ns
from snapline.messages import inputs
from snapline.messages.answers import LocatedAgent
from snapline.messages.inputs import AskOutcome

ASKS_AT_ONCE = 32
"""Largest number of asks of one host, the others wait: each is a call, a connection takes 64, and inputs go over the same one."""

ATTEMPT_NS = 10_000_000_000
"""Longest time of one call. Keepalive finds a host that is cut off sooner; this is for one that lives and does not own the agent any more."""


class _Ask:
    """An ask that is not over. `stage`: "lost", "finding", "ready", "out" or "resting"; `failures`: in a row."""

    __slots__ = ("agent", "ask", "deadline_ns", "failures", "reason", "stage")

    def __init__(self, wanted: ev.AnswerWanted) -> None:
        self.ask = wanted.ask
        self.agent = wanted.agent
        self.deadline_ns = wanted.deadline_ns
        self.stage = "lost"
        self.failures = 0
        self.reason = "its agent has not answered yet"


class OpenAsks:
    """Open asks of one client. `number`: gives requests their numbers; places are those that its sends know as well."""

    def __init__(self, queues: AgentQueues, seed: int, number: Callable[[], int]) -> None:
        self._queues = queues
        self._seed = seed
        self._number = number
        self._asks: dict[int, _Ask] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._rests: list[tuple[int, int]] = []
        self._finding: dict[int, tuple[int, ...]] = {}
        """The request that looks for agents, one at a time, and the asks that wait for it."""
        self._out: dict[int, tuple[Place, int]] = {}
        """Request → host and ask; it may be over."""

    def owns(self, request: int) -> bool:
        """Return whether this object made the request."""
        return request in self._finding or request in self._out

    # ---- the program ----------------------------------------------------------------------------------------------

    def begin(self, wanted: ev.AnswerWanted) -> None:
        self._asks[wanted.ask] = ask = _Ask(wanted)
        heapq.heappush(self._deadlines, (wanted.deadline_ns, wanted.ask))
        self._go(ask)

    def drop(self, ask: int) -> None:
        """Drop an ask that is no longer waited for."""
        self._asks.pop(ask, None)

    def close(self, reason: str) -> list[ev.Command]:
        """End all."""
        return [self._end(ask, ev.LATE, reason) for ask in list(self._asks.values())]

    # ---- where agents live ------------------------------------------------------------------------------------------

    def on_agents_found(self, event: ev.AgentsFound, now_ns: int) -> list[ev.Command]:
        found = {place.agent: place for place in event.reply.agents}
        said: list[ev.Command] = []
        for ask in self._living(self._finding.pop(event.request)):
            place = found.get(ask.agent)
            if event.reply.phase in OVER:
                said.append(self._end(ask, ev.ENDED, OVER[event.reply.phase]))
            elif place is not None and place.state == "left":
                said.append(self._end(ask, ev.MISSING, f"agent {ask.agent} has stopped"))
            else:
                self._settle(ask, place, event.reply.phase, now_ns)
        return said

    def _settle(self, ask: _Ask, place: LocatedAgent | None, phase: str, now_ns: int) -> None:
        if place is None or place.state != "alive":
            self._rest(ask, f"the fleet is {phase}, and agent {ask.agent} has no host just now", now_ns)
        else:
            self._queues.remember(ask.agent, (place.host, place.address))
            self._go(ask)

    def on_finding_failed(self, event: ev.FindingFailed, now_ns: int) -> list[ev.Command]:
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
            case inputs.REPLIED:
                return [self._end(ask, ev.ANSWERED, "", outcome)]
            case inputs.BURIED:
                return [self._end(ask, ev.BURIED, "", outcome)]
            case inputs.UNKNOWN:
                return [self._end(ask, ev.FORGOTTEN, outcome.reason)]
            case inputs.RETRY:
                self._try_again(ask, outcome, place, now_ns)
                return []
        return [self._end(ask, ev.DENIED, f"the host answered {outcome.status!r}, which this version does not know")]

    def _try_again(self, ask: _Ask, outcome: AskOutcome, place: Place, now_ns: int) -> None:
        """Ask where the host says, or where the agent is found. The first retry is without a wait."""
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

    def _forget(self, ask: _Ask, place: Place) -> None:
        """Forget the agent's place unless another request has already updated it: the agent may live elsewhere."""
        if self._queues.places.get(ask.agent) == place:
            del self._queues.places[ask.agent]

    # ---- what happens by itself -----------------------------------------------------------------------------------

    def evaluate(self, now_ns: int) -> list[ev.Command]:
        """Do what follows from the time, and from all that was heard."""
        said: list[ev.Command] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            late = self._asks.get(heapq.heappop(self._deadlines)[1])
            if late is not None:
                said.append(self._end(late, ev.LATE, late.reason))
        while self._rests and self._rests[0][0] <= now_ns:
            rested = self._asks.get(heapq.heappop(self._rests)[1])
            if rested is not None:
                self._go(rested)
        return [*said, *self._find(now_ns), *self._ask(now_ns)]

    @property
    def wakeup_ns(self) -> int | None:
        """Return when the time matters next."""
        while self._deadlines and self._deadlines[0][1] not in self._asks:
            heapq.heappop(self._deadlines)
        while self._rests and self._rests[0][1] not in self._asks:
            heapq.heappop(self._rests)
        return min([heap[0][0] for heap in (self._deadlines, self._rests) if heap], default=None)

    def _find(self, now_ns: int) -> list[ev.Command]:
        lost = [ask for ask in self._asks.values() if ask.stage == "lost"]
        if not lost or self._finding:
            return []
        agents = tuple(dict.fromkeys([ask.agent for ask in lost]))[:FOUND_MAX]
        wanted = dict.fromkeys(agents)
        asks = [ask for ask in lost if ask.agent in wanted]
        for ask in asks:
            ask.stage = "finding"
        request = self._number()
        self._finding[request] = tuple([ask.ask for ask in asks])
        return [ev.FindAgents(request, agents, min(FINDING_NS, _longest_ns(asks, now_ns)))]

    def _ask(self, now_ns: int) -> list[ev.Command]:
        out: dict[Place, int] = {}
        for place, _ in self._out.values():
            out[place] = out.get(place, 0) + 1
        said: list[ev.Command] = []
        for ask in [ask for ask in self._asks.values() if ask.stage == "ready"]:
            where = self._queues.places.get(ask.agent)
            if where is None:
                ask.stage = "lost"  # another one's call has failed meanwhile
            elif out.get(where, 0) < ASKS_AT_ONCE:
                out[where] = out.get(where, 0) + 1
                request = self._number()
                ask.stage = "out"
                self._out[request] = (where, ask.ask)
                said.append(ev.AskHost(request, *where, ask.ask, min(ATTEMPT_NS, ask.deadline_ns - now_ns)))
        return [*said, *self._find(now_ns)]

    def _go(self, ask: _Ask) -> None:
        ask.stage = "ready" if ask.agent in self._queues.places else "lost"

    def _rest(self, ask: _Ask, reason: str, now_ns: int) -> None:
        """Wait, longer each time."""
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
        """Cross-check the tables; AssertionError says which do not agree."""
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
