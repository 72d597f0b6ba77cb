"""Observer of a host's driver: the interface through which a judge or spans follow what the driver does.

The driver calls the hooks in the thread of its loop. By default each does nothing, so an observer implements only those it needs.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import CheckpointWriter
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.turns import Turns
from snapline.messages.host_messages import Directive

RunTurn = Callable[[ev.StartTurn], ev.Event | None]
"""Run a turn; return how it ended, or None while it waits."""

Execute = Callable[[Any], None]
"""Carry out a command."""


class ObservedDriver(Protocol):
    """Interface of the driver that an observer needs."""

    core: HostCore
    turns: Turns
    checkpoints: CheckpointWriter

    def wrap_turns(self, wrap: Callable[[RunTurn], RunTurn]) -> None:
        """Wrap each turn, or segment, that runs on the loop."""


class HostObserver:
    """Observer that does nothing."""

    def attached(self, driver: ObservedDriver) -> None:
        """Note the driver, and wrap its turns; called once, in its constructor, before all other hooks."""

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        """Return the observed kinds of command. The function of a kind gets each command, and what carries it out."""
        return {}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        """Note that a waiting turn has ended; return the event for the core."""
        return event

    def checkpoint_failed(self, event: ev.CheckpointFailed) -> None:
        """Note that an agent could not be captured; the core gets the event afterwards."""

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        """Note how the loading of a plan's agents ended, before they take their places."""

    def directive_received(self, directive: Directive) -> None:
        """Note a directive of the coordinator, before the driver handles it."""

    def directive_handled(self) -> None:
        """Note that the last directive was handled."""
