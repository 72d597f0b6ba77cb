"""Decisions of a checkpointing protocol in a host: only here do coordinated and logged fleets differ.

A mode is an object chosen once, when the core is made. The parts call it at the points below in the life of messages, turns and agents, and pass it
the events that only a mode handles (`handlers`).

An epoch may be requested early, for a waiting client or for outputs (`EpochRequest`): once for each epoch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, Entry, HostState, LocalAgent, Mark, Peer
from snapline.channels.link_events import DeliverItems, DeliverMarker
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

Handlers = Mapping[type[ev.Heard], Callable[[Any], None]]


class CheckpointCondition(msgspec.Struct, frozen=True):
    """State of a host's checkpoints.

    Attributes:
        open_epochs, storing: epochs open on this host, and those whose part is being stored.
        log_messages, log_bytes: number and size of messages in the agents' sender logs.
        store_problem: reason why the store takes no checkpoints, or "".
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
    """See the module."""

    # ---- messages -------------------------------------------------------------------------------------------------

    def mark(self, outlet: AgentOutlet, payload: bytes) -> Mark:
        """Return the protocol data that a numbered, departing message carries."""

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        """Return a frame's marks as stamps (one for all, if they are the same) and piggybacks."""

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        """Return the marks of a frame's messages again."""

    def mark_of(self, message: InTransitMessage) -> Mark:
        """Return the mark of a message of the line."""

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Handle a message for an agent that is here, which is not in its mailbox yet."""

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """Handle an entry that a turn, or the dead letters, will consume now."""

    def consumed(self, inlet: AgentInlet) -> None:
        """Handle the next message of this channel, which a turn, or the dead letters, have consumed."""

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        """Let an agent between two turns take the checkpoint that it owes."""

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """Handle a turn that has succeeded, and whose sends have left."""

    def moved(self, agent: LocalAgent) -> None:
        """Note that the agent differs from its last checkpoint, by something else than a message."""

    def tried(self, agent: LocalAgent) -> None:
        """Handle a failed turn whose message waits for a retry; what left its outbox meanwhile has left."""

    def awaited(self, agent: LocalAgent) -> None:
        """Handle a client that waits until a complete epoch holds the turn that has just ended, or will."""

    def outbox_shrank(self, owner: LocalAgent) -> None:
        """Handle parked messages that have left between two turns: perhaps no turn follows."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        """Handle an agent that a plan has placed here."""

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        """Handle an agent that is being created here."""

    def created(self) -> None:
        """Handle the end of one turn's creations, done or discarded."""

    def retiring(self, agent: LocalAgent) -> None:
        """Handle an agent that has stopped, and whose outbox is empty."""

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        """Handle an agent whose leave is committed: it stays until these epochs have ended (`retired_in`)."""

    def removed(self, agent: LocalAgent) -> None:
        """Handle a departed agent."""

    def failed(self, agent: LocalAgent) -> None:
        """Handle an agent that takes no more turns under this plan."""

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        """Handle a departed receiver to which an agent here has sent."""

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        """Return whether the agent must take a checkpoint before it sends anything to this host. Settled by `ends.release`."""

    # ---- plans, links, time ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """A plan ends the history of every agent here."""

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Handle a plan whose agents are here, with their channels."""

    def welcomed(self) -> None:
        """Repeat what the coordinator may not have received."""

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Handle the outcome of an epoch, as the coordinator reports it."""

    def linked(self, peer: Peer) -> None:
        """Handle an opened link: its ends have agreed on its floor."""

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        """Handle a marker item."""

    def clock_passed(self) -> None:
        """Handle the clock, which may have passed a time of `wakeups_ns`."""

    def wakeups_ns(self) -> list[int]:
        """Return when `clock_passed` is wanted."""

    def handlers(self) -> Handlers:
        """Return the handlers of the events that only this mode knows."""

    def standing(self) -> CheckpointCondition:
        """Return the state for the host's heartbeat."""

    def validate(self) -> None:
        """Cross-check the mode's invariants. Raises AssertionError."""


class EpochRequest:
    """Epoch request of all agents here."""

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._take_resolution = False

    def wire(self, mode: HostMode) -> None:
        """Connect the parts above."""
        self._mode = mode

    def say(self, agent: LocalAgent) -> None:
        """Request an epoch that holds the agent's work so far."""
        self._mode.awaited(agent)
        if not self._take_resolution:
            self._take_resolution = True
            self._shared.out.append(msg.WantEpoch(self._shared.plan))

    def reset(self) -> None:
        """Forget the request: an epoch has ended, or a plan all history here, and agents that still wait repeat it."""
        self._take_resolution = False

    def welcomed(self) -> None:
        """Repeat what the coordinator may not have received."""
        if self._take_resolution:
            self._shared.out.append(msg.WantEpoch(self._shared.plan))
