"""What a checkpointing protocol decides in a host: the one place where coordinated and logged fleets differ.

A mode is an object chosen once, when the core is made. The parts call it at these moments of a message's, a turn's and an agent's life,
and hand it the events that only it knows (`handlers`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.local_agent import AgentInlet, AgentOutlet, Entry, LocalAgent, Mark, Peer
from snapline.channels.link_events import DeliverItems, DeliverMarker
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

Handlers = Mapping[type[ev.Heard], Callable[[Any], None]]


class HostStanding(msgspec.Struct, frozen=True):
    """How it goes with the checkpoints of a host.

    Attributes:
        open_epochs, storing: epochs that are open here; those whose part is on its way to the store.
        log_messages, log_bytes: in the agents' sender logs.
        store_problem: why the store takes no checkpoints, or "".
        is_standing: the agents stand still, for no more can wait for the store.
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
        """A message has got its number and leaves: what it carries for the protocol."""

    def columns(self, marks: list[Mark]) -> tuple[list[int], list[bytes]]:
        """A frame's marks as stamps (one for all, if they are the same) and piggybacks."""

    def marks(self, items: DeliverItems) -> Sequence[Mark]:
        """The marks of a frame's messages again."""

    def mark_of(self, message: InTransitMessage) -> Mark:
        """The same of a message of the line."""

    def arrived(self, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """A message has come for an agent that is here, and is not in its mailbox yet."""

    def consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """The entry's time has come, whether a turn or the dead letters will consume it."""

    def consumed(self, inlet: AgentInlet) -> None:
        """A turn, or the dead letters, have consumed the next message of this channel."""

    # ---- turns ----------------------------------------------------------------------------------------------------

    def before_turn(self, agent: LocalAgent) -> None:
        """The agent is between two turns: it may take the checkpoint that it owes."""

    def turn_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        """A turn has ended well and its sends have left."""

    def moved(self, agent: LocalAgent) -> None:
        """The agent differs from its last checkpoint, by something else than a message."""

    def tried(self, agent: LocalAgent) -> None:
        """A turn has failed and its message waits to be tried again; what left its outbox meanwhile has left."""

    def awaited(self, agent: LocalAgent) -> None:
        """A client waits until a complete epoch holds the turn that has just ended, or will."""

    def outbox_shrank(self, owner: LocalAgent) -> None:
        """Parked messages have left between two turns: perhaps no turn follows."""

    # ---- agents ---------------------------------------------------------------------------------------------------

    def place(self, agent: LocalAgent, checkpoint: AgentCheckpoint | None) -> None:
        """A plan has placed the agent here."""

    def create(self, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
        """The agent is being created here."""

    def created(self) -> None:
        """The creations of one turn are done, or void."""

    def retiring(self, agent: LocalAgent) -> None:
        """The agent has stopped, and its outbox is empty."""

    def retired(self, agent: LocalAgent, open_epochs: Sequence[int]) -> None:
        """Its leave is committed: it stays until these epochs have ended (`retired_in`)."""

    def removed(self, agent: LocalAgent) -> None:
        """It is gone."""

    def failed(self, agent: LocalAgent) -> None:
        """The agent takes no more turns under this plan."""

    def receiver_gone(self, sender: LocalAgent, receiver: str) -> None:
        """An agent here has sent to one that is gone."""

    def is_behind(self, agent: LocalAgent, peer: Peer) -> bool:
        """Must it take a checkpoint before it sends anything to this host? Settled by `ends.release`."""

    # ---- plans, links, time ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """A plan ends the history of every agent here."""

    def loaded(self, agents: Iterable[ev.LoadedAgent]) -> None:
        """Its agents are here, with their channels."""

    def welcomed(self) -> None:
        """Say again what the coordinator may not have heard."""

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """The coordinator says how an epoch has come out."""

    def linked(self, peer: Peer) -> None:
        """A link has been opened: its ends have agreed on its floor."""

    def marker_received(self, peer: Peer, marker: DeliverMarker) -> None:
        """A marker item has come."""

    def clock_passed(self) -> None:
        """The clock has passed a time of `wakeups_ns`, perhaps."""

    def wakeups_ns(self) -> list[int]:
        """When `clock_passed` is wanted."""

    def handlers(self) -> Handlers:
        """The events that only this mode knows."""

    def standing(self) -> HostStanding:
        """For the host's heartbeat."""

    def validate(self) -> None:
        """Cross-check the mode's invariants. Raises AssertionError."""
