"""The line of a recovery holds what survives (G5): the live states of those who froze in time, as far as they are consistent.

Theory of operation
-------------------
Before an autonomous fleet is given a new plan its hosts are asked to stand still, and what stands still is in the store: so
the plan starts from the greatest line over durable checkpoints *and live states*. Whether the coordinator has waited for
these cannot be seen in what it knew; it can be seen in what it could have known.

A host *froze in time* if it had been asked when the plan was proposed, answered within the time that hosts have for it, and if
the stream on which it was asked still stood when the plan was committed. A coordinator that waits as it should has had this
answer before it proposed. One that has not answered, of the plan's own hosts, on such a stream, counts as well, if its time was
not over: nobody had the right to go on without it. Who is late, or had no stream, demands nothing; nor does a host that answers after
the proposal of a plan that goes on without it, since one that was put out is not waited for.

What stood still is taken from the books at the moment of the freeze (or of the plan, if the host has not frozen yet): turns, and
what had left, of each agent that was not in the middle of a turn, and whose state could be saved. Their greatest consistent line, above the line of the plan,
with the checkpoints that the coordinator had acknowledged, must be the line of the plan itself. Nothing of `recovery/` is used.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from snapline.coordinator.leader.modes.freeze import FREEZE_NS
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import AgentHistory, CutPlace

Request = tuple[str, int]
"""Client and sequence of a proposal."""


class Frozen(msgspec.Struct, frozen=True):
    """A host that froze in time. `is_awaited`: it has not answered, and had the time to. `start`: which run of it; 0: not known."""

    host: str
    plan: int
    number: int
    running: tuple[str, ...] = ()
    is_awaited: bool = False
    start: int = 0


class _Asked(msgspec.Struct):
    host: str
    plan: int
    number: int
    t_ns: int
    answer: Frozen | None = None
    answered_ns: int = 0


class Freezes:
    """Freeze requests of one leader and the answers, by the number of the stream."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._proposed: dict[Request, tuple[int, dict[int, _Asked]]] = {}

    def on_asked(self, stream: int, host: str, freeze: FreezeAgents, t_ns: int) -> None:
        """FreezeAgents leaves."""
        known = self._asked.get(stream)
        if known is None or (known.plan, known.number) != (freeze.plan, freeze.number):
            self._asked[stream] = _Asked(host, freeze.plan, freeze.number, t_ns)

    def on_answered(self, stream: int, answer: AgentsFrozen, t_ns: int) -> None:
        """AgentsFrozen has come."""
        asked = self._asked.get(stream)
        is_right = asked is not None and (asked.plan, asked.number) == (answer.plan, answer.number)
        if asked is not None and is_right and t_ns <= asked.t_ns + FREEZE_NS:
            asked.answer = Frozen(asked.host, answer.plan, answer.number, answer.running, start=answer.host_start)
            asked.answered_ns = t_ns

    def on_closed(self, stream: int) -> None:
        """The stream has ended."""
        self._asked.pop(stream, None)

    def on_plan_proposed(self, request: Request, t_ns: int) -> None:
        """CommitPlan is proposed; again, it is the same decision."""
        self._proposed.setdefault(request, (t_ns, dict(self._asked)))

    def in_time(self, request: Request, hosts: Sequence[str]) -> Iterator[Frozen]:
        """Yield hosts that froze in time for this proposal, now that it is committed; `hosts`: of the plan."""
        proposed_ns, asked = self._proposed.get(request, (0, {}))
        for stream, each in asked.items():
            if self._asked.get(stream) is not each:
                continue
            if each.answer is not None:
                if each.host in hosts or each.answered_ns <= proposed_ns:
                    yield each.answer
            elif each.host in hosts and proposed_ns < each.t_ns + FREEZE_NS:
                yield Frozen(each.host, each.plan, each.number, is_awaited=True)


class LivePlaces:
    """Places of agents when their hosts froze, from the books."""

    def __init__(self, books: GroundTruth) -> None:
        self._books = books
        self._places: dict[tuple[str, int, int, int], dict[str, CutPlace]] = {}

    def on_frozen(self, host: str, start: int, plan: int, number: int, agents: Sequence[str]) -> None:
        """Record the places of the frozen agents of a host's run, those in no turn. If repeated, the first time counts.

        A run that is started later gets the same request, under the same number, and has no frozen agents.
        """
        if (host, start, plan, number) in self._places:
            return
        histories = self._books.branch_of(plan).histories
        self._places[host, start, plan, number] = {
            agent: _place(histories[agent]) for agent in agents if agent in histories
        }

    def on_unsaved(self, host: str, start: int, plan: int, number: int, agent: str) -> None:
        """Remove an agent's place: its checkpoint could not be made, so it was frozen in vain."""
        self._places.get((host, start, plan, number), {}).pop(agent, None)

    def of(self, frozen: Sequence[Frozen], plan: int) -> Mapping[str, CutPlace]:
        """Agent → its place, of those who froze in time under a plan."""
        return dict(self._of(frozen, plan))

    def _of(self, frozen: Sequence[Frozen], plan: int) -> Iterator[tuple[str, CutPlace]]:
        for each in frozen:
            if each.plan == plan:
                for agent, place in self._places.get((each.host, each.start, plan, each.number), {}).items():
                    if agent not in each.running:
                        yield agent, place


def _place(history: AgentHistory) -> CutPlace:
    """The live place of an agent. What had not left its outbox is known by what had."""
    parked = {
        receiver: len(channel.sent) - len(channel.void) - len(channel.left_at)
        for receiver, channel in history.outward.items()
    }
    return CutPlace(history.turns, history.voids, {receiver: count for receiver, count in parked.items() if count > 0})
