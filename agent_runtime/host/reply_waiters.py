"""The part of a host core that tracks waiters for answers to inputs, and decides when an answer may be sent.

An *early* answer is sent when its turn has ended: a recovery may undo that turn, and the repeated turn may give another answer. Other answers are
sent when a complete epoch holds the turn, and are never reverted (R2; output commit: Strom and Yemini 1985).

Answers are kept with the keys of consumed inputs (`agent_inputs.py`), so they belong to the agent's state: a client that asks again, at the agent's
next host, gets the same answer. Only a dead letter is not final: after an operator's retry the new turn gives the answer.
"""

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_request import EpochRequest
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.outputs import AgentRetirement
from snapline.messages import host_messages as msg
from snapline.messages.inputs import BURIED, REPLIED, RETRY, UNKNOWN

Place = tuple[str, str]
"""Agent and key."""


class ReplyWaiters:
    """Requests that wait for answers of the agents here."""

    _membership: AgentRetirement

    def __init__(self, shared: HostState, epoch_request: EpochRequest) -> None:
        self._shared = shared
        self._epoch_request = epoch_request
        self._waiting: dict[Place, list[tuple[int, bool]]] = {}
        """Requests, and whether they accept an early answer."""

    def wire(self, membership: AgentRetirement) -> None:
        """Connect the membership above this part."""
        self._membership = membership

    def reset(self) -> None:
        """Answer all requests with a retry: a plan ends the history of every agent here, and clients ask the agent's next owner."""
        waiting, self._waiting = self._waiting, {}
        for requests in waiting.values():
            for request, _ in requests:
                self._tell(request, ev.AskAnswer(RETRY, reason="the fleet recovers"))

    def on_reply_awaited(self, event: ev.ReplyAwaited) -> None:
        agent = self._shared.agents.get(event.agent)
        if agent is None or not self._shared.is_loaded:
            self._tell(
                event.request, ev.AskAnswer(RETRY, reason=f"agent {event.agent} is not on host {self._shared.host}")
            )
            return
        inputs = agent.inputs
        if inputs is None or (event.key not in inputs.keys and event.key not in inputs.waiting):
            reason = f"agent {agent.id} knows no input of key {event.key!r}: it was never sent, or too long ago"
            self._tell(event.request, ev.AskAnswer(UNKNOWN, reason=reason))
            return
        if event.key in inputs.keys and inputs.keys[event.key].is_dropped:
            self._tell(event.request, ev.AskAnswer(UNKNOWN, reason=dropped_reason(event.key, agent.id)))
            return
        self._waiting.setdefault((agent.id, event.key), []).append((event.request, event.is_early))
        self.consumed(agent, event.key)

    def consumed(self, agent: LocalAgent, key: str) -> None:
        """Answer requests for the input of this key, if its turn has ended or it is a dead letter. After an operator command, also answer those for
        the input of its dead letter."""
        inputs = agent.inputs
        if inputs is None:
            return
        for input_key in (key, inputs.retries.get(key)):
            place = agent.id, input_key or ""
            if place in self._waiting:
                self._answer(agent, place)
                known = inputs.answered(place[1])
                if place in self._waiting and known is not None and not known.is_open:
                    self._epoch_request.say(agent)

    def keeps(self, agent: LocalAgent) -> bool:
        """Return whether an agent that has stopped must stay for an answer that is not sent as final yet; if so, request an epoch."""
        inputs = agent.inputs
        if inputs is None or inputs.consumed <= inputs.released:
            return False
        fresh = [known for known in inputs.keys.values() if known.number > inputs.released]
        is_of_letters = agent.last_dead_letter > 0  # an operator asks only after the command was accepted
        is_untold = any(is_of_letters or known.reply or (agent.id, known.key) in self._waiting for known in fresh)
        if is_untold:
            self._epoch_request.say(agent)
        return is_untold

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Send the answers to inputs that the epoch holds as consumed: they are never reverted. Others wait for the next epoch."""
        for name, number in zip(event.agents, event.inputs, strict=True):
            agent = self._shared.agents.get(name)
            if agent is not None and agent.inputs is not None:
                agent.inputs.released = max(agent.inputs.released, number)
                if agent.is_leaving:
                    self._membership.retire_if_drained(agent)
        for place in list(self._waiting):
            agent = self._shared.agents.get(place[0])
            if agent is not None:
                self.consumed(agent, place[1])

    def removed(self, agent: str) -> None:
        """Answer the requests about an agent that has left."""
        for place in [place for place in self._waiting if place[0] == agent]:
            for request, _ in self._waiting.pop(place):
                self._tell(request, ev.AskAnswer(UNKNOWN, reason=f"agent {agent} has stopped"))

    def _answer(self, agent: LocalAgent, place: Place) -> None:
        assert agent.inputs is not None
        known = agent.inputs.answered(place[1])
        if known is None or known.is_open:
            return
        is_released = known.number <= agent.inputs.released
        requests = self._waiting.pop(place)
        answer = ev.AskAnswer(BURIED if known.is_dead_lettered else REPLIED, known.number, known.reply)
        for request, is_early in requests:
            if is_early or is_released:
                self._tell(request, answer)
            else:
                self._waiting.setdefault(place, []).append((request, is_early))

    def _tell(self, request: int, answer: ev.AskAnswer) -> None:
        self._shared.out.append(ev.AnswerAsk(request, answer))


def dropped_reason(key: str, agent: str) -> str:
    """Return the error for a client that sends, or asks for, an input that was dropped."""
    return f"the fleet went back on purpose, and the input of key {key!r} for {agent} was dropped: give it again with another key"
