"""The line of a recovery holds the survivors (G5): the live states of agents that froze in time, as far as they are consistent.

Theory of operation
-------------------
Before an autonomous fleet gets a new plan, its hosts are asked to freeze, and frozen agents are saved to the store. So the plan
starts from the greatest line over durable checkpoints *and live states*. The coordinator's knowledge does not show whether it
waited for these states; the knowledge that it could have had does.

A host *froze in time* if it had been asked when the plan was proposed, it answered within the time limit, and the stream of the
request was still open when the plan was committed. A correct coordinator has had this answer before its proposal. A host of the
plan that has not answered on such a stream counts as well while its time is not over, since the coordinator had to wait for it. A
host that is late or had no stream does not count. Neither does a host that answers after the proposal of a plan without it, since
the coordinator does not wait for an evicted host.

The ground truth provides the frozen places at the moment of the freeze (or of the plan, if the host has not frozen yet). A place has
the turns and departed messages of each agent that was not in a turn and whose state could be saved. The greatest consistent line of
these places and of the acknowledged checkpoints, above the line of the plan, must be the line of the plan itself. The oracle uses
no code of `recovery/`.
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
    """A host that froze in time. `is_awaited`: it has not answered, and its time is not over. `start`: host generation; 0 if not known."""

    host: str
    plan: int
    number: int
    running: tuple[str, ...] = ()
    is_awaited: bool = False
    start: int = 0


class _FreezeRequest(msgspec.Struct):
    host: str
    plan: int
    number: int
    t_ns: int
    answer: Frozen | None = None
    answered_ns: int = 0


class Freezes:
    """Freeze requests of one leader and their answers, by stream number."""

    def __init__(self) -> None:
        self._asked: dict[int, _FreezeRequest] = {}
        self._proposed: dict[Request, tuple[int, dict[int, _FreezeRequest]]] = {}

    def on_freeze_sent(self, stream: int, host: str, freeze: FreezeAgents, t_ns: int) -> None:
        """Record a FreezeAgents request."""
        known = self._asked.get(stream)
        if known is None or (known.plan, known.number) != (freeze.plan, freeze.number):
            self._asked[stream] = _FreezeRequest(host, freeze.plan, freeze.number, t_ns)

    def on_answered(self, stream: int, answer: AgentsFrozen, t_ns: int) -> None:
        """Record an AgentsFrozen answer."""
        asked = self._asked.get(stream)
        is_matching = asked is not None and (asked.plan, asked.number) == (answer.plan, answer.number)
        if asked is not None and is_matching and t_ns <= asked.t_ns + FREEZE_NS:
            asked.answer = Frozen(asked.host, answer.plan, answer.number, answer.running, start=answer.host_start)
            asked.answered_ns = t_ns

    def on_closed(self, stream: int) -> None:
        """Forget the request of a stream that has ended."""
        self._asked.pop(stream, None)

    def on_plan_proposed(self, request: Request, t_ns: int) -> None:
        """Record a proposed CommitPlan; a repeated proposal is the same decision."""
        self._proposed.setdefault(request, (t_ns, dict(self._asked)))

    def in_time(self, request: Request, hosts: Sequence[str]) -> Iterator[Frozen]:
        """Yield the hosts that froze in time for this committed proposal; `hosts`: the hosts of the plan."""
        proposed_ns, asked = self._proposed.get(request, (0, {}))
        for stream, request_ in asked.items():
            if self._asked.get(stream) is not request_:
                continue
            if request_.answer is not None:
                if request_.host in hosts or request_.answered_ns <= proposed_ns:
                    yield request_.answer
            elif request_.host in hosts and proposed_ns < request_.t_ns + FREEZE_NS:
                yield Frozen(request_.host, request_.plan, request_.number, is_awaited=True)


class LivePlaces:
    """Places of agents when their hosts froze, from the ground truth."""

    def __init__(self, books: GroundTruth) -> None:
        self._ground_truth = books
        self._places: dict[tuple[str, int, int, int], dict[str, CutPlace]] = {}

    def on_frozen(self, host: str, start: int, plan: int, number: int, agents: Sequence[str]) -> None:
        """Record the places of a host's frozen agents that are not in a turn. Only the first report counts.

        A restarted host gets the same request, under the same number, and has no frozen agents.
        """
        if (host, start, plan, number) in self._places:
            return
        histories = self._ground_truth.branch_of(plan).histories
        self._places[host, start, plan, number] = {
            agent: _place(histories[agent]) for agent in agents if agent in histories
        }

    def on_unsaved(self, host: str, start: int, plan: int, number: int, agent: str) -> None:
        """Remove the place of a frozen agent whose checkpoint could not be taken."""
        self._places.get((host, start, plan, number), {}).pop(agent, None)

    def of(self, frozen: Sequence[Frozen], plan: int) -> Mapping[str, CutPlace]:
        """Return agent → place, for the agents that froze in time under a plan."""
        return dict(self._of(frozen, plan))

    def _of(self, frozen: Sequence[Frozen], plan: int) -> Iterator[tuple[str, CutPlace]]:
        for freeze in frozen:
            if freeze.plan == plan:
                for agent, place in self._places.get((freeze.host, freeze.start, plan, freeze.number), {}).items():
                    if agent not in freeze.running:
                        yield agent, place


def _place(history: AgentHistory) -> CutPlace:
    """Return the live place of an agent; its parked messages are those sent that have not left."""
    parked = {
        receiver: len(channel.sent) - len(channel.void) - len(channel.departed_at)
        for receiver, channel in history.outward.items()
    }
    return CutPlace(history.turns, history.voids, {receiver: count for receiver, count in parked.items() if count > 0})
