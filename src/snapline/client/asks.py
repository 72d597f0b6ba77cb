"""The part of a client's core that waits for answers to accepted inputs.

The host that owns an agent reports the outcome of an input once it may be released. Until then the client repeats its request to that
host: after "retry", after a call without an answer, and after a long call. A request for an answer changes nothing, so it may be
repeated at any time. Every ask ends, at its deadline at the latest.
"""

import heapq
from collections.abc import Callable, Iterable

from snapline.client import events as ev
from snapline.client.queues import FINDING_NS, FOUND_MAX, OVER, AgentQueues, Place, wait_ns
from snapline.messages import inputs
from snapline.messages.answers import LocatedAgent
from snapline.messages.inputs import AskOutcome

ASKS_AT_ONCE = 32
"""Largest number of concurrent asks of one host: each is a call, a connection allows 64 calls, and inputs share the connection."""

ATTEMPT_NS = 10_000_000_000
"""Longest time of one call. Keepalive detects an unreachable host sooner; this limit is for a live host that no longer owns the agent."""


class _Ask:
    """An open ask. `stage`: "lost", "finding", "ready", "out" or "resting"; `failures`: failures in a row."""

    __slots__ = ("agent", "ask", "deadline_ns", "failures", "reason", "stage")

    def __init__(self, wanted: ev.AnswerRequested) -> None:
        self.ask = wanted.ask
        self.agent = wanted.agent
        self.deadline_ns = wanted.deadline_ns
        self.stage = "lost"
        self.failures = 0
        self.reason = "its agent has not answered yet"


class OpenAsks:
    """Open asks of one client. `number`: assigns numbers to requests. Sends and asks share the known places of agents."""

    def __init__(self, queues: AgentQueues, seed: int, number: Callable[[], int]) -> None:
        self._queues = queues
        self._seed = seed
        self._number = number
        self._asks: dict[int, _Ask] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._rests: list[tuple[int, int]] = []
        self._finding: dict[int, tuple[int, ...]] = {}
        """The current request that looks up agents, at most one, and the asks that wait for it."""
        self._out: dict[int, tuple[Place, int]] = {}
        """Request → host and ask; the ask may have ended already."""

    def owns(self, request: int) -> bool:
        """Return whether this object made the request."""
        return request in self._finding or request in self._out

    # ---- the program ----------------------------------------------------------------------------------------------

    def begin(self, wanted: ev.AnswerRequested) -> None:
        self._asks[wanted.ask] = ask = _Ask(wanted)
        heapq.heappush(self._deadlines, (wanted.deadline_ns, wanted.ask))
        self._go(ask)

    def drop(self, ask: int) -> None:
        """Drop an ask that is no longer waited for."""
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
        """Ask the host named in the reply, or look up the agent. The first retry is immediate."""
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
        """Forget the agent's place, since the agent may have moved, unless another request has already updated it."""
        if self._queues.places.get(ask.agent) == place:
            del self._queues.places[ask.agent]

    # ---- after every event ----------------------------------------------------------------------------------------

    def evaluate(self, now_ns: int) -> list[ev.Command]:
        """Return the commands that follow from the current time and the state."""
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
        """Return the next time at which `evaluate` is needed."""
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
        calls_at: dict[Place, int] = {}
        for place, _ in self._out.values():
            calls_at[place] = calls_at.get(place, 0) + 1
        commands: list[ev.Command] = []
        for ask in [ask for ask in self._asks.values() if ask.stage == "ready"]:
            agent_place = self._queues.places.get(ask.agent)
            if agent_place is None:
                ask.stage = "lost"  # a call of another ask has failed meanwhile
            elif calls_at.get(agent_place, 0) < ASKS_AT_ONCE:
                calls_at[agent_place] = calls_at.get(agent_place, 0) + 1
                request = self._number()
                ask.stage = "out"
                self._out[request] = (agent_place, ask.ask)
                commands.append(ev.AskHost(request, *agent_place, ask.ask, min(ATTEMPT_NS, ask.deadline_ns - now_ns)))
        return [*commands, *self._find(now_ns)]

    def _go(self, ask: _Ask) -> None:
        ask.stage = "ready" if ask.agent in self._queues.places else "lost"

    def _rest(self, ask: _Ask, reason: str, now_ns: int) -> None:
        """Wait before the next attempt, longer after each failure."""
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
        """Cross-check the tables; raise AssertionError if they are inconsistent."""
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
