"""Ground truth of a script: a record of the agents' actions, independent of the protocol.

Every send, consumption, checkpoint and recovery is one line of a trace that `recovery.trace` reads. So `recovery` computes
recovery lines, orphans and messages in transit, and a protocol's cuts can be compared with them.
"""

from collections.abc import Collection, Mapping

import msgspec

from snapline.recovery.analysis import analyze
from snapline.recovery.execution import NOT_RECEIVED, Execution, Line
from snapline.recovery.lines import domino_rounds, recovery_line, recovery_line_by_checkpoints
from snapline.recovery.trace import (
    CheckpointTaken,
    Header,
    Kind,
    MessageReceived,
    MessageSent,
    Recovery,
    Trace,
    encode,
    read_trace,
)

RestartLine = dict[str, int | None]
"""Agent → checkpoint that it is rolled back to; None: it keeps its live state."""


class ScriptedMessage(msgspec.Struct, frozen=True):
    """Message in transit. `stamp`: used by coordinated protocols. `piggyback`: used by the others."""

    name: str
    sender: str
    receiver: str
    number: int
    stamp: int = 0
    piggyback: bytes = b""


class MessageHistory:
    """Record of all events, in order.

    Attributes:
        agents: all agents so far, in the order of creation; the index of an agent is its ordinal.
        messages: latest message of each name.
        _lines: lines of the trace.
    """

    def __init__(self, agents: Collection[str]) -> None:
        self.agents = list(agents)
        self.messages: dict[str, ScriptedMessage] = {}
        self._lines: list[bytes] = []

    def checkpoint(self, agent: str, number: int, kind: Kind = "basic") -> None:
        self._lines.append(encode(CheckpointTaken(agent, number, kind)))

    def send(self, message: ScriptedMessage) -> None:
        self.messages[message.name] = message
        self._lines.append(encode(MessageSent(message.sender, message.name, message.receiver)))

    def receive(self, message: ScriptedMessage) -> None:
        self._lines.append(encode(MessageReceived(message.receiver, message.name)))

    def recover(self, line: RestartLine) -> None:
        """Record a recovery of the fleet to `line`."""
        self._lines.append(encode(Recovery(line)))

    def is_sent(self, name: str) -> bool:
        """Return whether a message of this name exists that no recovery has undone."""
        return any(isinstance(event, MessageSent) and event.message == name for event in self.trace().events)

    def trace(self) -> Trace:
        """Return the trace of all events, including recoveries."""
        return read_trace([encode(Header(agents=self.agents)), *self._lines])

    def line(self, failed: Collection[str]) -> RestartLine:
        """Return the recovery line if these agents fail. Both algorithms must agree (G5)."""
        execution = Execution.of(self.trace())
        ordinals = execution.ordinals(failed)
        numbers = recovery_line(execution, ordinals)
        assert numbers == recovery_line_by_checkpoints(execution, ordinals), f"two recovery lines if {failed} fail"
        lives = execution.live_line()
        return {
            agent: None if number == live else number
            for agent, number, live in zip(execution.agents, numbers, lives, strict=True)
        }

    def rounds(self, failed: Collection[str]) -> list[str]:
        """Return a description of the domino effect: one line per round after the rollback of the failed agents."""
        return [
            f"round {number}: {' '.join(round_.orphans)} never sent, so "
            + ", ".join(f"{agent} goes back to {to}" for agent, to in round_.moved.items())
            for number, round_ in enumerate(domino_rounds(self.trace(), failed))
            if number
        ]

    def useless(self) -> dict[str, list[int]]:
        """Return the checkpoints that are part of no consistent cut, by agent."""
        return analyze(self.trace()).useless

    def in_transit(self, line: Mapping[str, int | None]) -> list[ScriptedMessage]:
        """Return messages sent but not consumed inside the line, in the order of sending.

        An agent without an entry in the line keeps its live state.
        """
        execution = Execution.of(self.trace())
        names = [execution.messages[message] for message in execution.in_transit(_numbers(execution, line))]
        return [self.messages[name] for name in names]

    def orphans(self, line: Mapping[str, int | None]) -> list[str]:
        """Return the names of messages consumed but not sent inside the line."""
        execution = Execution.of(self.trace())
        inside = _numbers(execution, line)
        return [
            execution.messages[message]
            for message, (sent, received) in enumerate(zip(execution.sent, execution.received, strict=True))
            if received != NOT_RECEIVED
            and execution.is_inside(received, inside)
            and not execution.is_inside(sent, inside)
        ]


def _numbers(execution: Execution, line: Mapping[str, int | None]) -> Line:
    lives = zip(execution.agents, execution.live_line(), strict=True)
    return [live if (number := line.get(agent)) is None else number for agent, live in lives]


def format_line(line: Mapping[str, int | None]) -> str:
    """Format a line as `a=1 b=live`."""
    return " ".join(f"{agent}={'live' if number is None else number}" for agent, number in line.items())


def format_channels(messages: Collection[ScriptedMessage]) -> str:
    """Format messages as `a->b m1 m2, b->c m3`, or `nothing`."""
    channels: dict[str, list[str]] = {}
    for message in messages:
        channels.setdefault(f"{message.sender}->{message.receiver}", []).append(message.name)
    return ", ".join(f"{channel} {' '.join(names)}" for channel, names in sorted(channels.items())) or "nothing"
