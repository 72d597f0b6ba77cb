"""Defines the interface of host modes, which make a checkpointing protocol's decisions on a host. The host cores of coordinated fleets and
of fleets with sender logs differ only in their mode.

The host core calls the mode's methods at certain points in the life of messages, turns and agents. The host core also passes the mode the
events that only a mode handles (`handlers`).

A host may request an early epoch for a waiting client or for outputs. A host makes at most one such request per epoch (`EpochRequest`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Entry, Mark
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, HostState, LocalAgent, Peer
from snapline.channels.link_events import DeliverItems, DeliverMarker
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

Handlers = Mapping[type[ev.Heard], Callable[[Any], None]]


class CheckpointCondition(msgspec.Struct, frozen=True):
    """The checkpoint state of a host, as reported in heartbeats.

    Attributes:
        open_epochs, storing: number of epochs that are open on this host, and number of epochs that this host is storing.
        log_messages, log_bytes: number and total size of the messages in the agents' sender logs.
        store_problem: reason why the store accepts no checkpoints, or "" if it accepts them.
        is_standing: whether the agents are paused because the backlog is full.
        freeze: number of the current freeze, or None.
    """

    open_epochs: int = 0
    storing: int = 0
    log_messages: int = 0
    log_bytes: int = 0
    store_problem: str = ""
    is_standing: bool = False
    freeze: int | None = None


class HostMode(Protocol):
    """Interface that the host core requires from a mode."""

    # ---- messages -------------------------------------------------------------------------------------------------

    def mark(self, outlet: AgentOutlet, payload: bytes) -> Mark:
        """Return the protocol data (the mark) to attach to a departing message, which already has its sequence number."""

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        """Split the marks of a frame's messages into stamps and piggybacks. If all stamps are equal, a single stamp represents them."""

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        """Return the marks of a frame's messages from the stamps and piggybacks that the sender's `columns` returned."""

    def mark_of(self, message: InTransitMessage) -> Mark:
        """Return the protocol data (the mark) of a message that is in transit in the recovery line."""

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Handle a message that has arrived for an agent on this host, before it enters the mailbox."""

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """Handle an entry just before its turn starts or just before it becomes a dead letter."""

    def consumed(self, inlet: AgentInlet) -> None:
        """Record that the next message of this channel was consumed, because its turn has ended or it has become a dead letter."""

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        """Let an agent that is between two turns take the checkpoint that it owes."""

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """Handle a turn that has succeeded, after its messages have left or been parked."""

    def moved(self, agent: LocalAgent) -> None:
        """Record that something other than a consumed message has changed the agent since its last checkpoint."""

    def tried(self, agent: LocalAgent) -> None:
        """Handle a failed turn whose message waits for a retry. Messages that left the outbox during the turn are not revoked."""

    def awaited(self, agent: LocalAgent) -> None:
        """Handle a client's request for a complete epoch that contains a turn of this agent, which has just ended or is about to end."""

    def outbox_shrank(self, owner: LocalAgent) -> None:
        """Handle parked messages that have just left between two turns. Possibly no turn follows."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        """Handle an agent that a plan has placed on this host."""

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        """Handle an agent that is being created on this host."""

    def created(self) -> None:
        """Handle the end of the creation requests of one turn, whether the agents were created or not."""

    def retiring(self, agent: LocalAgent) -> None:
        """Handle a stopped agent whose outbox is empty."""

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        """Handle an agent whose departure has been committed. The agent is kept until `open_epochs` have ended (`retired_in`)."""

    def removed(self, agent: LocalAgent) -> None:
        """Handle an agent that has left and is removed from this host."""

    def failed(self, agent: LocalAgent) -> None:
        """Handle an agent that has failed and runs no more turns under the current plan."""

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        """Handle the departure of an agent to which an agent on this host has sent messages."""

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        """Return whether the agent must record its state before it may send messages to this peer. The mode calls `ends.release` once the
        agent has recorded."""

    # ---- plans, links, time ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Clear the mode's state because a recovery plan has ended the history of all agents on this host."""

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Handle a plan whose agents and channels have been loaded."""

    def welcomed(self) -> None:
        """Resend messages that the coordinator may not have received."""

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Handle the outcome of an epoch."""

    def linked(self, peer: Peer) -> None:
        """Handle a newly opened link. Both hosts have agreed on the newest epoch that does not involve the link (`floor`)."""

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        """Handle a marker item from a peer."""

    def clock_passed(self) -> None:
        """Handle the passing of time, which may have reached one of the times in `wakeups_ns`."""

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must call `clock_passed`."""

    def handlers(self) -> Handlers:
        """Return this mode's handlers for events that only a mode handles, by event type."""

    def standing(self) -> CheckpointCondition:
        """Return the checkpoint state for the host's heartbeat."""

    def validate(self) -> None:
        """Check the mode's invariants. Raise AssertionError if an invariant does not hold."""


class EpochRequest:
    """A host's request for an early epoch, which all agents on the host share."""

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._take_resolution = False

    def wire(self, mode: HostMode) -> None:
        """Store references to parts of the host core that are created after this part."""
        self._mode = mode

    def say(self, agent: LocalAgent) -> None:
        """Request an epoch that contains the agent's work so far, unless this host has already requested an epoch."""
        self._mode.awaited(agent)
        if not self._take_resolution:
            self._take_resolution = True
            self._shared.out.append(msg.WantEpoch(self._shared.plan))

    def reset(self) -> None:
        """Forget the request because an epoch, or the history of all agents, has ended. Agents that still wait request an epoch again."""
        self._take_resolution = False

    def welcomed(self) -> None:
        """Resend messages that the coordinator may not have received."""
        if self._take_resolution:
            self._shared.out.append(msg.WantEpoch(self._shared.plan))
