"""The host core's component for outputs. The component numbers outputs, and keeps each output until an epoch has released it.

An output is part of its agent's state (output commit: Strom and Yemini 1985; Elnozahy et al. 2002, section 2.4). The agent's checkpoints
contain the output until it is *released*. An output is released when a complete epoch contains its turn, and the coordinator has copied the
outputs from that epoch's checkpoints to the store. EndEpoch then contains the number of the last released output *in that cut*. Only
outputs up to this number are dropped. Outputs with higher numbers belong to a later epoch. A plan loads pending outputs together with the
checkpoints. The coordinator then repeats which outputs have been released.

Outputs are therefore kept in memory until they are released. If an agent's pending outputs exceed `AGENT_BYTES_MAX`, or those of all agents
together exceed `HOST_BYTES_MAX`, the agent is *full*. A full agent accepts no inputs from outside, runs no turns of its own (timers,
messages to itself), and requests an epoch. It still handles messages from other agents, because deferring them would deadlock a fleet whose
agents send in cycles. An agent that has stopped also requests an epoch, and is kept until its outputs have been released
(`AgentRetirement`).
"""

from typing import Protocol

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_io import AgentOutputs
from snapline.agent_runtime.host.host_state import HostState, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import EpochRequest
from snapline.messages import host_messages as msg


class AgentRetirement(Protocol):
    """Interface that lower components require from the component that creates and removes agents."""

    def retire_if_drained(self, agent: LocalAgent) -> None:
        """Remove an agent that has stopped, if there is no longer a reason to keep it on this host. Call this method when a reason may have
        ended: the outbox is empty, outputs have been released, or replies have been sent."""


AGENT_BYTES_MAX = 16 * 1024 * 1024
"""Largest total size of one agent's pending outputs, which each of its checkpoints contains."""

HOST_BYTES_MAX = 256 * 1024 * 1024
"""Largest total size of all agents' pending outputs on a host. A host can spare this much memory while the store is unavailable."""


class EffectCaller(Protocol):
    """Interface that `Outputs` requires from the component that handles effects."""

    def released(self, agent: LocalAgent) -> None:
        """Handle the release of some of the agent's outputs, which may include the intent that the agent waits for."""


class Outputs:
    """Numbers and keeps the outputs of the agents on this host. `size_bytes` is the total size of all pending outputs' payloads."""

    _membership: AgentRetirement
    _effects: EffectCaller

    def __init__(self, shared: HostState, mailboxes: Mailboxes, epoch_request: EpochRequest) -> None:
        self._shared = shared
        self._mailboxes = mailboxes
        self._epoch_request = epoch_request
        self.size_bytes = 0
        self._is_full = False
        self._is_watched = False
        """Whether a client is waiting for new outputs."""
        self._reported: dict[str, int] = {}
        """Numbers of the last released outputs, by agent, as reported while the plan's agents were loading."""

    def wire(self, membership: AgentRetirement, effects: EffectCaller) -> None:
        """Connect this component to the components of the host core above it."""
        self._membership, self._effects = membership, effects

    # ---- plans ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Clear all outputs when a recovery plan ends the history of all agents on this host."""
        self.size_bytes = 0
        self._is_full = False
        self._reported = {}

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Load the pending outputs from the agents' checkpoints."""
        for loaded in event.agents:
            if loaded.checkpoint is not None and loaded.checkpoint.outputs.number:
                outputs = self._shared.agents[loaded.agent].outputs = AgentOutputs(loaded.checkpoint.outputs)
                outputs.release(self._reported.get(loaded.agent, 0))
                self.size_bytes += outputs.size_bytes
        self._reported = {}
        for agent in self._emitters():
            self._judge(agent)

    # ---- emitting ---------------------------------------------------------------------------------------------------

    def emit(self, agent: LocalAgent, emissions: list[ev.Emission]) -> None:
        """Number and keep the given outputs, for example the outputs of a turn that has succeeded."""
        if agent.outputs is None:
            agent.outputs = AgentOutputs()
        self._shared.note_change(agent.id)
        before = agent.outputs.size_bytes
        for emission in emissions:
            agent.outputs.add(emission)
        self.size_bytes += agent.outputs.size_bytes - before
        self._judge(agent)
        if self._is_watched or agent.is_full:
            self._epoch_request.say(agent)

    def await_release(self, agent: LocalAgent) -> None:
        """Request an epoch, because the agent can continue only when its outputs have been released."""
        self._epoch_request.say(agent)

    def keeps(self, agent: LocalAgent) -> bool:
        """Return whether a stopped agent must be kept because it has pending outputs. If the agent must be kept, request an epoch."""
        if agent.outputs is None or not agent.outputs.pending:
            return False
        self._epoch_request.say(agent)
        return True

    def on_outputs_watched(self, event: msg.OutputsWatched) -> None:
        """Record whether a client is waiting for new outputs."""
        self._is_watched = event.is_watched
        self._ask_again()

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Drop the outputs that the epoch has released. The coordinator reports the release of a complete epoch's outputs after the epoch's
        end. Until the release is reported, no other epoch is requested."""
        if not self._shared.is_loaded:
            self._reported.update(zip(event.emitters, event.outputs, strict=True))
            return
        for name, number in zip(event.emitters, event.outputs, strict=True):
            agent = self._shared.agents.get(name)
            if agent is not None and agent.outputs is not None and agent.outputs.pending:
                self._release(agent, agent.outputs, number)
        if event.emitters or event.reason or not event.is_complete:
            self._ask_again()

    def _release(self, agent: LocalAgent, outputs: AgentOutputs, number: int) -> None:
        before = outputs.size_bytes
        outputs.release(number)
        self.size_bytes -= before - outputs.size_bytes
        self._judge(agent)
        if agent.effects is not None:
            self._effects.released(agent)
        if agent.is_leaving and not outputs.pending:
            self._membership.retire_if_drained(agent)

    def _ask_again(self) -> None:
        """Request an epoch for each agent with pending outputs if a client or the agent itself waits for their release."""
        for agent in self._emitters():
            is_by_epochs = not self._shared.commits.is_on or self._shared.commits.is_ending
            waits_for_intent = is_by_epochs and _waits_for_intent(agent)
            is_awaited = self._is_watched or agent.is_full or agent.is_leaving or waits_for_intent
            if is_awaited and agent.outputs is not None and agent.outputs.pending:
                self._epoch_request.say(agent)

    # ---- limits ---------------------------------------------------------------------------------------------------

    def _judge(self, agent: LocalAgent) -> None:
        """Update which agents are full, because the pending outputs of an agent have changed."""
        is_full = self.size_bytes > HOST_BYTES_MAX
        if is_full != self._is_full:
            self._is_full = is_full
            for other in self._emitters():
                self._mark(other)
        else:
            self._mark(agent)

    def _mark(self, agent: LocalAgent) -> None:
        outputs = agent.outputs
        assert outputs is not None
        agent.is_full = outputs.size_bytes > AGENT_BYTES_MAX or (self._is_full and bool(outputs.pending))
        if not agent.is_full and (agent.deferred or agent.turn is not None):
            self._mailboxes.go_on(agent)

    def _emitters(self) -> list[LocalAgent]:
        return [agent for agent in self._shared.agents.values() if agent.outputs is not None]

    def removed(self, agent: LocalAgent) -> None:
        """Subtract the outputs of an agent that has left from the total size."""
        if agent.outputs is not None:
            self.size_bytes -= agent.outputs.size_bytes

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        all_outputs = [agent.outputs for agent in self._emitters() if agent.outputs is not None]
        assert self.size_bytes == sum([outputs.size_bytes for outputs in all_outputs])
        for outputs in all_outputs:
            outputs.validate()


def _waits_for_intent(agent: LocalAgent) -> bool:
    effects, outputs = agent.effects, agent.outputs
    if effects is None or outputs is None:
        return False
    return any(outputs.holds(effect.opened.number) for effect in effects.open.values())
