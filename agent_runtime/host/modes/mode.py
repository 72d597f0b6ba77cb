"""Host modes: the decisions of a checkpointing protocol in a host. Coordinated and logged fleets differ only in their mode.

A mode is an object chosen once, when the core is made. The core's parts call the mode at the points below in the life of messages, turns
and agents, and pass it the events that only a mode handles (`handlers`).

A host may request an epoch early, for a waiting client or for outputs, at most once for each epoch (`EpochRequest`).
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
    """State of a host's checkpoints.

    Attributes:
        open_epochs, storing: epochs open on this host, and those whose part is being stored.
        log_messages, log_bytes: number and size of messages in the agents' sender logs.
        store_problem: reason why the store accepts no checkpoints, or "".
        is_standing: the agents are paused, since the queue for the store is full.
        freeze: number of the freeze that the agents are in, or None.
    """

    open_epochs: int = 0
    storing: int = 0
    log_messages: int = 0
    log_bytes: int = 0
    store_problem: str = ""
    is_standing: bool = False
    freeze: int | None = None


class HostMode(Protocol):
    """Interface of a host mode; see the module docstring."""

    # ---- messages -------------------------------------------------------------------------------------------------

    def mark(self, outlet: AgentOutlet, payload: bytes) -> Mark:
        """Return the protocol data that a numbered, departing message carries."""

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        """Return a frame's marks as stamps (one for all, if they are the same) and piggybacks."""

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        """Return the marks of a frame's messages from the stamps and piggybacks that `columns` made."""

    def mark_of(self, message: InTransitMessage) -> Mark:
        """Return the mark of an in-transit message from the recovery line."""

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Handle an arrived message for an agent on this host, before the message enters the mailbox."""

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """Handle an entry just before a turn consumes it, or before it becomes a dead letter."""

    def consumed(self, inlet: AgentInlet) -> None:
        """Handle the next message of this channel after a turn has consumed it, or after it has become a dead letter."""

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        """Let an agent between two turns take the checkpoint that it owes."""

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """Handle a turn that has succeeded, and whose sends have left."""

    def moved(self, agent: LocalAgent) -> None:
        """Record that the agent differs from its last checkpoint for another reason than a message."""

    def tried(self, agent: LocalAgent) -> None:
        """Handle a failed turn whose message waits for a retry. Messages that left the outbox meanwhile are not taken back."""

    def awaited(self, agent: LocalAgent) -> None:
        """Handle a client that waits until a complete epoch contains a turn that has just ended or is about to end."""

    def outbox_shrank(self, owner: LocalAgent) -> None:
        """Handle parked messages that have left between two turns; perhaps no turn follows."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        """Handle an agent that a plan has placed here."""

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        """Handle an agent that is being created here."""

    def created(self) -> None:
        """Handle the end of the creations that one turn requested, whether they were carried out or discarded."""

    def retiring(self, agent: LocalAgent) -> None:
        """Handle an agent that has stopped and whose outbox is empty."""

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        """Handle an agent whose departure is committed. The agent is kept until these epochs have ended (`retired_in`)."""

    def removed(self, agent: LocalAgent) -> None:
        """Handle a departed agent."""

    def failed(self, agent: LocalAgent) -> None:
        """Handle an agent that takes no more turns under this plan."""

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        """Handle a departed receiver to which an agent here has sent."""

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        """Return whether the agent must take a checkpoint before it sends any message to this host. `ends.release` ends this condition."""

    # ---- plans, links, time ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Clear the mode's state, since a recovery plan ends the history of every agent here."""

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Handle a plan whose agents are here, with their channels."""

    def welcomed(self) -> None:
        """Repeat messages that the coordinator may not have received."""

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Handle the outcome of an epoch, as the coordinator reports it."""

    def linked(self, peer: Peer) -> None:
        """Handle an opened link, whose two ends have agreed on its floor."""

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        """Handle a marker item."""

    def clock_passed(self) -> None:
        """Handle the passing of time: the clock may have passed a time of `wakeups_ns`."""

    def wakeups_ns(self) -> list[int]:
        """Return the times at which `clock_passed` must be called."""

    def handlers(self) -> Handlers:
        """Return the handlers of the events that only this mode handles."""

    def standing(self) -> CheckpointCondition:
        """Return the checkpoint state for the host's heartbeat."""

    def validate(self) -> None:
        """Cross-check the mode's invariants. Raises AssertionError."""


class EpochRequest:
    """The epoch request of this host, shared by all its agents."""

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._take_resolution = False

    def wire(self, mode: HostMode) -> None:
        """Connect this part to the parts above it."""
        self._mode = mode

    def say(self, agent: LocalAgent) -> None:
        """Request an epoch that contains the agent's work so far."""
        self._mode.awaited(agent)
        if not self._take_resolution:
            self._take_resolution = True
            self._shared.out.append(msg.WantEpoch(self._shared.plan))

    def reset(self) -> None:
        """Drop the request, since an epoch or the history of all agents has ended. Agents that still wait repeat the request."""
        self._take_resolution = False

    def welcomed(self) -> None:
        """Repeat messages that the coordinator may not have received."""
        if self._take_resolution:
            self._shared.out.append(msg.WantEpoch(self._shared.plan))
