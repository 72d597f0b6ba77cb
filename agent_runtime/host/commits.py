"""The host core's component for commits, which exist in fleets with `recovery="local"`.

A *commit* contains the states of all agents of this host that have changed since the previous commit, at one instant between two turns. It
is durable when its last part is in the host log (`host_log.py`). After a failure, each agent starts again from its newest commit, or from
its checkpoint in the newest complete epoch if that is newer.

Nothing leaves the host before the state that it depends on is durable (commit prior to visible or send; Lowell, Chandra and Chen, OSDI
2000). So no other host, client or service depends on a state that a recovery undoes:

- A message to another host stays parked until a durable commit contains it (`AgentOutlet.released`). Messages between agents of this host do
  not wait, because both agents are in the same commits.
- Credit is granted for messages whose consumption is durable. The sender keeps messages that have left until then (`AgentOutlet.kept`).
- Final answers and effects wait until a durable commit contains the end of their turn or their intent. So do the creation and the departure
  of agents.

A commit contains an agent's messages from the first one whose consumption is not known to be durable, in the outbox. After a recovery they
leave again under their old numbers, because a message's number is its place in its channel. The receiver drops those that it has
(`AgentInlet.next`). A commit also says up to which number messages may have left (`AgentOutlet.repeated`). Until they have left again, the
receiver may be ahead of its sender, so no epoch records the sender.

The state of an agent whose turn runs is its state before the turn, because the turn has changed nothing else yet.

An agent that is about to move is *frozen*: it begins no turn, and the host reports when a durable commit contains all that it has done. No
agent on this host then depends on a state of it that its new host does not find.

One commit is in progress at a time. A commit is due when work waits for it, or when a change is `COMMIT_AGE_NS` old.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import MessageEntry, StashedEntry, TimerEntry
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_log import OwnLog, PendingCommit
from snapline.agent_runtime.host.host_outputs import AgentRetirement, EffectCaller
from snapline.agent_runtime.host.host_state import (
    UNLIMITED,
    AgentInlet,
    AgentOutlet,
    HostState,
    LocalAgent,
    encode_released,
)
from snapline.agent_runtime.host.modes.mode import EpochRequest
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.messages.host_messages import COMMIT_AGE_NS, EndEpoch
from snapline.storage.packs.checkpoint import InTransitMessage, ParkedMessage, SavedTimer

LINES_KEPT = 3
"""Number of complete epochs that recovery may still begin from. A damaged epoch makes an older one the recovery line."""

LOG_BYTES_MAX = 64 * 1024 * 1024
"""Size of the commits since the last complete epoch at which the host requests an epoch, so that commits can be deleted."""


class OutletReleaser(Protocol):
    """Interface that `Commits` requires from `Outlets`."""

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the messages parked at this sending end, as far as commits, credit and room allow."""


class EffectHolder(EffectCaller, Protocol):
    """Interface that `Commits` requires from the component that handles effects."""

    def report_quiesced(self) -> None:
        """Answer the coordinator's Quiesce directive, if there is one and everything that it asks for is done."""


class AgentReservation(AgentRetirement, Protocol):
    """Interface that `Commits` requires from the component that creates and removes agents."""

    def reserve_committed(self, agent: LocalAgent) -> None:
        """Ask the coordinator for the ids of the agents that this agent spawns, unless the request has been made."""


class AnswerSender(Protocol):
    """Interface that `Commits` requires from the component that answers clients."""

    def committed(self, agent: LocalAgent, number: int, early: Sequence[int]) -> None:
        """Send the answers to the agent's inputs up to this number, and to those in `early`, because no recovery can undo their turns."""


class PlanConfirmer(Protocol):
    """Interface that `Commits` requires from the component that applies plans."""

    def confirm(self) -> None:
        """Report that the plan is applied."""


class CapturedAgent(msgspec.Struct):
    """The part of an agent in a commit that takes effect when the commit is durable: the messages that may leave, the messages that are
    consumed, the last settled input and output, inputs that have ended before it, and the requests for the creation of agents."""

    agent: LocalAgent
    outlets: list[tuple[AgentOutlet, int]]
    inlets: list[tuple[AgentInlet, int]]
    inputs: int
    outputs: int
    spawns: list[ev.Spawn]
    early: tuple[int, ...] = ()


class Commits:
    """Captures the commits of this host, and lets out what is durable.

    Attributes:
        adopting: agents that a plan has loaded on this host, and that no durable commit of this host contains yet.
    """

    _outlets: OutletReleaser
    _membership: AgentReservation
    _effects: EffectHolder
    _answers: AnswerSender
    _plans: PlanConfirmer

    def __init__(self, shared: HostState, failures: HostFailures, epoch_request: EpochRequest, log: OwnLog) -> None:
        self._shared = shared
        self._epoch_request = epoch_request
        self._size_bytes = 0
        """Size of the commits since the last complete epoch."""
        self._failures = failures
        self._log = log
        self._captured: list[CapturedAgent] | None = None
        """The commit in progress, or None."""
        self._captured_ns = self._changed_ns = 0
        self.adopting: dict[str, None] = {}

    def wire(
        self,
        outlets: OutletReleaser,
        membership: AgentReservation,
        effects: EffectHolder,
        answers: AnswerSender,
        plans: PlanConfirmer,
    ) -> None:
        """Connect this component to the components of the host core above it."""
        self._outlets, self._membership, self._effects, self._answers = outlets, membership, effects, answers
        self._plans = plans

    def reset(self) -> None:
        """Forget changes and the commit in progress when a recovery plan ends the history of all agents on this host."""
        self._captured = None
        self.adopting.clear()
        self._shared.commits.reset()

    def adopt(self, agents: Iterable[str]) -> None:
        """Commit agents that a plan has loaded. Until then the plan is not confirmed, so later plans know where the agents' states are."""
        self.adopting.update(dict.fromkeys([name for name in agents if self._shared.agents[name].is_born]))
        for name in self.adopting:
            self.say(self._shared.agents[name])

    def say(self, agent: LocalAgent) -> None:
        """Request a commit that contains the agent's work so far."""
        self._shared.note_change(agent.id)
        self._shared.commits.is_wanted = True

    # ---- freezing -------------------------------------------------------------------------------------------------

    def freeze(self, agents: Iterable[str]) -> list[LocalAgent]:
        """Freeze these agents, as far as they are on this host, and commit what they have done. Return the agents that no longer are
        frozen."""
        shared, before = self._shared, self._shared.commits.frozen
        shared.commits.frozen = frozen = dict.fromkeys([name for name in agents if name in shared.agents])
        for name in frozen:
            if name not in before:
                shared.agents[name].is_held = True
                self.say(shared.agents[name])
        thawed = [shared.agents[name] for name in before if name in shared.agents and name not in frozen]
        for agent in thawed:
            agent.is_held = False
        return thawed

    @property
    def are_frozen_committed(self) -> bool:
        """Return whether the frozen agents have ended their turns, and a durable commit contains all that they have done."""
        shared = self._shared
        in_progress = dict.fromkeys([each.agent.id for each in self._captured or ()])
        return not any(
            name in shared.agents
            and (shared.agents[name].is_busy or name in shared.commits.changed or name in in_progress)
            for name in shared.commits.frozen
        )

    # ---- capturing ------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Return whether a commit can and should be captured now."""
        commits = self._shared.commits
        is_wanted = commits.is_wanted or not commits.frozen.keys().isdisjoint(commits.changed)
        return self._may_capture and (is_wanted or self._shared.now >= commits.changed_ns + COMMIT_AGE_NS)

    @property
    def _may_capture(self) -> bool:
        """Return whether a commit may be captured. A failed agent's state is unknown, and other agents may depend on it."""
        shared = self._shared
        is_possible = shared.is_loaded and self._captured is None and not self._log.is_sealed
        return bool(shared.commits.changed) and is_possible and not self._failures.failed

    def wakeups_ns(self) -> list[int]:
        """Return the time at which a commit will be due."""
        return [self._shared.commits.changed_ns + COMMIT_AGE_NS] if self._may_capture else []

    def take_if_due(self) -> None:
        """Capture a commit if one is due. No turn may be ending meanwhile."""
        shared = self._shared
        if not self.is_due:
            return
        changed = [shared.agents[name] for name in shared.commits.changed if name in shared.agents]
        shared.commits.changed.clear()
        shared.commits.is_wanted = False
        captured, committed = [], []
        for agent in [agent for agent in changed if agent.is_born]:
            captured.append(_captured(agent))
            committed.append(_committed(agent, shared.now))
            agent.checkpoints += 1
        if captured:
            shared.commits.captured += 1
            self._captured, self._captured_ns, self._changed_ns = captured, shared.now, shared.commits.changed_ns
            shared.out.append(ev.CaptureCommit(shared.plan, shared.commits.captured, tuple(committed)))

    def on_commit_captured(self, event: ev.CommitCaptured) -> None:
        if (event.plan, event.commit) == (self._shared.plan, self._shared.commits.captured):
            for part in event.parts:
                self._log.put(PendingCommit(part))
                self._size_bytes += len(part.data)
                self._shared.counts.commit_bytes += len(part.data)
            self._log.append()
            if self._size_bytes > LOG_BYTES_MAX and self._captured:
                self._epoch_request.say(self._captured[0].agent)

    def epoch_ended(self, event: EndEpoch) -> None:
        """Count the size of commits anew after a complete epoch, and forget the channels that ended before the third newest one. No
        recovery line contains their messages any longer."""
        if not event.is_complete:
            return
        self._size_bytes = 0
        self._shared.commits.epochs += 1
        for agent in self._shared.agents.values():
            if agent.ended:
                oldest = self._shared.commits.epochs - LINES_KEPT
                agent.ended = {sender: (last, at) for sender, (last, at) in agent.ended.items() if at > oldest}

    def on_commit_failed(self, event: ev.CommitFailed) -> None:
        """Fail an agent whose state cannot be saved. Other agents may depend on it, so the host takes no more commits under this plan."""
        agent = self._shared.agents.get(event.agent)
        if event.plan == self._shared.plan and agent is not None:
            self._failures.fail(agent, event.reason)

    # ---- durable --------------------------------------------------------------------------------------------------

    def appended(self, pending: PendingCommit) -> None:
        """Let out what the commit contains if all its parts are durable."""
        if not pending.part.is_last or self._captured is None:
            return
        captured, self._captured = self._captured, None
        self._shared.counts.commits += 1
        self._shared.counts.commit_ns += self._shared.now - self._captured_ns
        self._shared.counts.hold_ns += self._shared.now - self._changed_ns
        for each in captured:
            self._release(each)
        for agent in [agent for agent in self._shared.agents.values() if agent.is_leaving]:
            self._membership.retire_if_drained(agent)
        if self.adopting:
            committed = {each.agent.id for each in captured}
            left = [name for name in self.adopting if name in self._shared.agents and name not in committed]
            self.adopting = dict.fromkeys(left)
            if not left:
                self._plans.confirm()
        if self._shared.commits.frozen:
            self._effects.report_quiesced()

    def _release(self, durable: CapturedAgent) -> None:
        agent = durable.agent
        if self._shared.agents.get(agent.id) is not agent:
            return
        for inlet, number in durable.inlets:
            self._acknowledge(inlet, number)
        for outlet, number in durable.outlets:
            outlet.released = max(outlet.released, number)
            self._outlets.unpark(outlet)
        agent.committed_outputs = max(agent.committed_outputs, durable.outputs)
        if durable.inputs or durable.early:
            self._answers.committed(agent, durable.inputs, durable.early)
        if agent.effects is not None:
            self._effects.released(agent)
        if durable.spawns and agent.spawns is durable.spawns:
            self._membership.reserve_committed(agent)

    def _acknowledge(self, inlet: AgentInlet, number: int) -> None:
        """Grant the sender credit for messages whose consumption is durable."""
        if number <= inlet.durable:
            return
        inlet.durable = number
        peer = inlet.peer
        if peer.link is not None and inlet.channel:
            inlet.credit_sent = number + CHANNEL_CREDIT
            peer.credit_channels.append(inlet.channel)
            peer.credit_numbers.append(inlet.credit_sent)

    # ---- questions of other components ------------------------------------------------------------------------------

    def keeps(self, agent: LocalAgent) -> bool:
        """Return whether a stopped agent must be kept, because messages that it has sent may be needed again. Nobody else could send
        them."""
        if not self._shared.commits.is_on:
            return False
        if agent.id in self._shared.commits.changed or (
            self._captured and any(each.agent is agent for each in self._captured)
        ):
            self._shared.commits.is_wanted = True
            return True
        return any(
            (outlet.acked if outlet.inlet is None else outlet.inlet.durable) < outlet.number
            for outlet in agent.outlets.values()
            if outlet.receiver != agent.id
        )


def _captured(agent: LocalAgent) -> CapturedAgent:
    """Return what becomes durable with the agent's state. Messages between agents of this host that are consumed are not needed again,
    because both agents are in the commit."""
    outlets = []
    for outlet in agent.outlets.values():
        inlet, queue = outlet.inlet, outlet.queue
        if inlet is not None:
            if outlet.kept and inlet.owner is not None and inlet.owner.is_born:
                outlet.acknowledge(inlet.consumed)
        elif queue:
            outlet.requested = max(outlet.requested, min(outlet.number + len(queue), outlet.credit))
            outlets.append((outlet, outlet.requested))
    inlets = [(inlet, inlet.consumed) for inlet in agent.inlets.values() if inlet.consumed > inlet.durable]
    inputs = agent.inputs.saved().settled if agent.inputs is not None else 0
    outputs = agent.outputs.number if agent.outputs is not None else 0
    early = tuple(agent.inputs.early) if agent.inputs is not None else ()
    return CapturedAgent(agent, outlets, inlets, inputs, outputs, agent.spawns, early)


def _committed(agent: LocalAgent, now_ns: int) -> ev.CommittedAgent:
    """Return the agent's part of a commit. If its turn runs, the entry of the turn still waits."""
    outbox: list[ParkedMessage] = []
    sent, left = {}, {}
    for receiver, outlet in agent.outlets.items():
        kept, queue, number = outlet.kept, outlet.queue, outlet.number
        first = number - len(kept)
        if first:
            sent[receiver] = first
        last = max(number, outlet.repeated, outlet.requested if outlet.requested < UNLIMITED else 0)
        if last > first:
            left[receiver] = last
        if kept:
            outbox += [ParkedMessage(receiver, payload) for payload in kept]
        if queue:
            outbox += [ParkedMessage(receiver, payload) for payload in queue]
    outbox += [ParkedMessage(receiver, payload) for receiver, payload in agent.held]
    control = agent.control(now_ns, protocol_state=encode_released(left, held=len(agent.held)), outbox=outbox)
    current = agent.current
    if isinstance(current, TimerEntry):
        timers = [SavedTimer(current.name, 0, current.payload), *control.timers]
        control = msgspec.structs.replace(control, timers=timers)
    elif isinstance(current, StashedEntry):
        control = msgspec.structs.replace(control, stash=[current.stashed, *control.stash])
    if agent.turn is not None:
        control = msgspec.structs.replace(control, turn=agent.turn.whole(), sealed=None)
    received = agent.received()
    if agent.ended:
        received = {**{sender: last for sender, (last, _) in agent.ended.items()}, **received}
    return ev.CommittedAgent(agent.id, control, sent, received, _only_saved_here(agent))


def _only_saved_here(agent: LocalAgent) -> dict[str, list[InTransitMessage]]:
    """Return the waiting messages that their senders have forgotten, because they were in the channel state of a recovery line."""
    found: dict[str, list[InTransitMessage]] = {}
    if all(inlet.consumed >= inlet.saved for inlet in agent.inlets.values()):
        return found
    numbers = {inlet.sender: inlet.consumed for inlet in agent.inlets.values()}
    current = [] if agent.current is None else [agent.current]
    for entry in [*current, *agent.deferred, *agent.mailbox]:
        if isinstance(entry, MessageEntry):
            inlet = entry.inlet
            number = numbers[inlet.sender] = numbers[inlet.sender] + 1
            if number <= inlet.saved:
                assert isinstance(entry.mark, int)
                found.setdefault(inlet.sender, []).append(InTransitMessage(number, entry.mark, entry.payload))
    return found
