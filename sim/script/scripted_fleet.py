"""Small simulated fleet that is controlled by a script. The fleet has agents, FIFO channels and turns. A `ScriptedProtocol` adds the
checkpointing protocol.

Nothing happens unless the script commands it. A message stays in its channel until the command `deliver` or `arrive` removes it. A marker
stays in its channel until the command `marker` removes it. A turn either is a single step (`deliver`, `turn`) or lasts from the command
`start` to the command `end`. Messages sent during a long turn leave the host when the turn ends. For each core, the host performs the
duties that the core requires of its caller, in order. The host writes its own actions and all of the cores' commands to the trace.

If a core raises `ProtocolError`, the error is written to the trace, because a script may show how a core detects a broken network. For any
other invalid command, a `UsageError` names the line in the script.

The ground truth (`MessageHistory`) records the agents' actions independently of the protocol. Every send, consumption, checkpoint and
recovery becomes one line of a trace that `recovery.trace` can read. From this trace, the package `recovery` computes recovery lines,
orphans and messages in transit. `ScriptedCuts` compares a protocol's cuts with these results.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from snapline.errors import ProtocolError
from snapline.recovery.execution import (
    NOT_RECEIVED,
    Execution,
    Line,
    domino_rounds,
    recovery_line,
    recovery_line_by_checkpoints,
)
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
from snapline.recovery.trace_analysis import analyze
from snapline.sim.script.script_text import ScriptCommand, Verb, dispatch, format_call

# -- ground truth ---------------------------------------------------------------------------------------------------------

RestartLine = dict[str, int | None]
"""Maps each agent to the number of the checkpoint to which it is rolled back. None means that the agent keeps its live state."""


class ScriptedMessage(msgspec.Struct, frozen=True):
    """A message. Only the epoch-stamped protocol uses `stamp`, and only communication-induced protocols use `piggyback`."""

    name: str
    sender: str
    receiver: str
    number: int
    stamp: int = 0
    piggyback: bytes = b""


class MessageHistory:
    """The ground truth: all events, in order.

    Attributes:
        agents: all agents that have existed so far, in the order of creation. An agent's ordinal is its index in this list.
        _lines: lines of a trace that `recovery.trace` can read.
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
        """Record that a recovery has rolled the fleet back to `line`."""
        self._lines.append(encode(Recovery(line)))

    def is_sent(self, name: str) -> bool:
        """Return whether a message with this name has been sent and no recovery has undone the send."""
        return any(isinstance(event, MessageSent) and event.message == name for event in self.trace().events)

    def trace(self) -> Trace:
        """Return the trace of all events, including recoveries."""
        return read_trace([encode(Header(agents=self.agents)), *self._lines])

    def line(self, failed: Collection[str]) -> RestartLine:
        """Return the recovery line after a failure of these agents. Check that both recovery-line algorithms return the same line (G5)."""
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
        """Describe the domino effect. The list contains one line of text for each round of rollbacks after the rollback of the failed
        agents."""
        return [
            f"round {number}: {' '.join(round_.orphans)} never sent, so "
            + ", ".join(f"{agent} goes back to {to}" for agent, to in round_.moved.items())
            for number, round_ in enumerate(domino_rounds(self.trace(), failed))
            if number
        ]

    def useless(self) -> dict[str, list[int]]:
        """Return each agent's useless checkpoints. A useless checkpoint does not belong to any consistent cut."""
        return analyze(self.trace()).useless

    def in_transit(self, line: Mapping[str, int | None]) -> list[ScriptedMessage]:
        """Return the messages that were sent before the recovery line but not consumed before it, in the order in which they were sent.

        An agent that the line does not mention keeps its live state.
        """
        execution = Execution.of(self.trace())
        names = [execution.messages[message] for message in execution.in_transit(_numbers(execution, line))]
        return [self.messages[name] for name in names]

    def orphans(self, line: Mapping[str, int | None]) -> list[str]:
        """Return the names of the orphans, that is, of messages that were consumed before the recovery line but not sent before it."""
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
    """Format a recovery line as text, such as `a=1 b=live`."""
    return " ".join(f"{agent}={'live' if number is None else number}" for agent, number in line.items())


def format_channels(messages: Collection[ScriptedMessage]) -> str:
    """Format messages by channel, such as `a->b m1 m2, b->c m3`, or as `nothing` if there are no messages."""
    channels: dict[str, list[str]] = {}
    for message in messages:
        channels.setdefault(f"{message.sender}->{message.receiver}", []).append(message.name)
    return ", ".join(f"{channel} {' '.join(names)}" for channel, names in sorted(channels.items())) or "nothing"


# -- agents ---------------------------------------------------------------------------------------------------------------


class ScriptedMarker(msgspec.Struct, frozen=True):
    """Marker in a channel. The plain Chandy-Lamport algorithm does not use `last_number`."""

    epoch: int
    last_number: int = 0


class Image(msgspec.Struct, frozen=True):
    """An agent's checkpoint: the agent's state, the message numbers on its channels, and the core's image if the protocol saves one."""

    state: tuple[str, ...] = ()
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    core: bytes = b""


class ScriptedAgent:
    """A scripted agent. The agent's state is the list of messages that its turns have consumed.

    Attributes:
        sent, received: for each other agent, the number of the last message sent to it, and of the last message consumed from it.
        outbox: messages, as (receiver, name), that a turn has sent but that have not left the host yet.
        running: message that the running turn consumes, or None if there is none.
        phase: "living", "left" (the agent has left, but open epochs still need it) or "gone".
        failure: error raised by the agent's core, or "" if there was none. A failed agent cannot be used until the fleet is rolled back.
    """

    def __init__(self, name: str, first_image: Image) -> None:
        self.name = name
        self.phase = "living"
        self.images = [first_image]
        self.roll_back(0)

    def roll_back(self, number: int) -> None:
        """Restore the checkpoint with this number, and discard all later checkpoints."""
        del self.images[number + 1 :]
        image = self.images[number]
        self.state = list(image.state)
        self.sent = dict(image.sent)
        self.received = dict(image.received)
        self.mailbox: list[ScriptedMessage] = []
        self.outbox: list[tuple[str, str]] = []
        self.running: ScriptedMessage | None = None
        self.has_running_turn = False
        self.failure = ""

    def image(self, core: bytes = b"") -> Image:
        """Return a checkpoint of the agent's current state."""
        return Image(tuple(self.state), dict(self.sent), dict(self.received), core)


# -- protocol -------------------------------------------------------------------------------------------------------------


class ScriptedProtocol(ABC):
    """Base class of the protocols that a scripted fleet can run. Where a core requires a duty of its caller, `ScriptedFleet` calls one of
    these methods.

    Attributes:
        keeps_survivors: whether agents that have not failed may keep their live states during a recovery.
        has_mailboxes: whether messages that arrive wait in a mailbox for a turn. Without mailboxes, messages are consumed on arrival.
    """

    keeps_survivors = True
    has_mailboxes = True

    @abstractmethod
    def verbs(self) -> dict[str, Verb]:
        """Return the script commands that the protocol defines."""

    @abstractmethod
    def make_core(self, name: str) -> Image:
        """Create a core for a new agent, and return the agent's initial checkpoint."""

    @abstractmethod
    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """Restore the core of an agent that has been rolled back to `image`."""

    @abstractmethod
    def recover(self, failed: list[str]) -> None:
        """Recover the fleet after these agents have crashed."""

    @abstractmethod
    def show_core(self, agent: ScriptedAgent) -> list[str]:
        """Describe the state of an agent's core."""

    @abstractmethod
    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        """Return the stamp and piggyback for a message that is about to be sent, and the trace fields that show them."""

    def check_send(self, command: ScriptCommand) -> None:  # noqa: B027  # a hook
        """Raise an error if the protocol does not allow this `send` command."""

    def check_take(self, command: ScriptCommand, channel: tuple[str, str]) -> None:  # noqa: B027  # a hook
        """Raise an error if the channel's first message may not be delivered now."""

    def arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """Move a message from its channel to the mailbox."""
        agent.mailbox.append(message)

    def admit(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """Handle the start of a turn that consumes a message."""

    def note_consumed(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:  # noqa: B027  # a hook
        """Handle the consumption of a message by a turn."""

    def note_sends(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """Handle the end of a turn that has sent messages."""

    def between_turns(self, agent: ScriptedAgent) -> None:  # noqa: B027  # a hook
        """Perform the protocol's actions that must wait until no turn is running."""

    def is_blocked(self, agent: ScriptedAgent) -> bool:
        """Return whether the agent is blocked, that is, may neither start a turn nor send messages."""
        return False

    def validate(self) -> None:  # noqa: B027  # a hook
        """Check the invariants of all cores."""


# -- fleet ----------------------------------------------------------------------------------------------------------------

_Answer = TypeVar("_Answer")

COORDINATOR = "coordinator"

LINE_USAGE = "line [failed=AGENT,AGENT,…]"
"""Usage text of the command `line`, which is the same for all protocols."""


class ScriptedFleet:
    """Fleet of scripted agents that all run the same protocol.

    Attributes:
        agents: agents by name, in the order of creation. An agent is absent if a recovery has undone its creation.
        channels: items in transit in each channel (sender, receiver), in the order in which they were sent.
        trace: trace lines written by the current command.
    """

    def __init__(self, names: Sequence[str], make: Callable[["ScriptedFleet"], ScriptedProtocol]) -> None:
        """`make` creates the protocol for this fleet."""
        self.book = MessageHistory(names)
        self.agents: dict[str, ScriptedAgent] = {}
        self.channels: dict[tuple[str, str], list[ScriptedMessage | ScriptedMarker]] = {}
        self.trace: list[str] = []
        self._protocol = make(self)
        for name in names:
            self.agents[name] = ScriptedAgent(name, self._protocol.make_core(name))

    def run(self, command: ScriptCommand) -> list[str]:
        """Execute a command, and return the trace lines that it writes.

        Raises:
            UsageError: If the command is unknown or not possible in the current state. The message names the line in the script.
        """
        self.trace = []
        dispatch(command, self._verbs())
        self._protocol.validate()
        return self.trace

    def _verbs(self) -> dict[str, Verb]:
        common = {
            "send": Verb("send AGENT AGENT MESSAGE", self._do_send),
            "deliver": Verb("deliver AGENT->AGENT", self._do_deliver),
            "crash": Verb("crash AGENT,AGENT,…", self._do_crash),
            "show": Verb("show AGENT", self._do_show),
        }
        mailboxes = {
            "arrive": Verb("arrive AGENT->AGENT", self._do_arrive),
            "turn": Verb("turn AGENT", self._do_turn),
            "start": Verb("start AGENT", self._do_start),
            "end": Verb("end AGENT", self._do_end),
        }
        return common | (mailboxes if self._protocol.has_mailboxes else {}) | self._protocol.verbs()

    # -- words of commands --------------------------------------------------------------------------------------------

    def agent(self, command: ScriptCommand, name: str) -> ScriptedAgent:
        """Return the agent with this name. Raise an error if the agent does not exist, has a failed core or is gone."""
        agent = self.agents.get(name)
        if agent is None:
            raise command.error(f"there is no agent {name!r}: the fleet has {', '.join(self.agents)}")
        if agent.failure:
            raise command.error(f"the core of {name} has raised an error: make a new fleet")
        if agent.phase == "gone":
            raise command.error(f"{name} has left the fleet: name another agent")
        return agent

    def agents_of(self, command: ScriptCommand, names: str) -> list[ScriptedAgent]:
        """Return the agents in a list such as `a,b`. The text `all` means every living agent."""
        if names == "all":
            return [agent for agent in self.agents.values() if agent.phase == "living"]
        return [self.agent(command, name) for name in dict.fromkeys(names.split(","))]

    def idle_agent(self, command: ScriptCommand, name: str) -> ScriptedAgent:
        """Return the agent with this name. Raise an error if the agent cannot start a turn."""
        agent = self.agent(command, name)
        if agent.phase != "living":
            raise command.error(f"{name} has left and takes no more turns: name another agent")
        if agent.has_running_turn:
            raise command.error(f"a turn of {name} runs: end it with `end {name}`, or use `arrive`")
        if self._protocol.is_blocked(agent):
            raise command.error(f"{name} is blocked until the round is decided and takes no turn: use `arrive`")
        return agent

    def channel(self, command: ScriptCommand) -> tuple[str, str]:
        """Return the channel that is the command's first word, such as `a->b`."""
        sender, arrow, receiver = command.words[0].partition("->")
        if not arrow or sender not in self.book.agents or receiver not in self.agents:
            raise command.error(f"{command.words[0]!r} is no channel: write AGENT->AGENT")
        return sender, receiver

    def take_message(self, command: ScriptCommand, channel: tuple[str, str]) -> ScriptedMessage:
        """Remove the first message from a channel, and return the message."""
        self._protocol.check_take(command, channel)
        for item in self.channels.get(channel, []):
            if isinstance(item, ScriptedMessage):
                self.channels[channel].remove(item)
                return item
        raise command.error(f"no message is on its way from {channel[0]} to {channel[1]}: send one first")

    def take_marker(self, command: ScriptCommand, *, overtakes: bool) -> ScriptedMarker:
        """Remove the first marker from the channel named by the command, and return the marker.

        If `overtakes` is set, any messages before the marker stay in the channel. Otherwise, raise an error if there are messages before
        the marker.
        """
        channel = self.channel(command)
        ahead: list[str] = []
        for item in self.channels.get(channel, []):
            if isinstance(item, ScriptedMarker):
                if ahead and not overtakes:
                    raise command.error(f"{ahead[0]} stands before the marker on {command.words[0]}: deliver it first")
                self.channels[channel].remove(item)
                return item
            ahead.append(item.name)
        raise command.error(f"no marker is on its way from {channel[0]} to {channel[1]}: record {channel[0]} first")

    # -- the commands -------------------------------------------------------------------------------------------------

    def _do_send(self, command: ScriptCommand) -> None:
        self._protocol.check_send(command)
        agent = self.agent(command, command.words[0])
        receiver, name = command.words[1:]
        if receiver not in self.agents or self.agents[receiver].phase == "gone":
            raise command.error(f"there is no agent {receiver!r}: the fleet has {', '.join(self.agents)}")
        if agent.phase != "living":
            raise command.error(f"{agent.name} has left and sends nothing more: name another agent")
        if self.book.is_sent(name) or any(
            name == parked for other in self.agents.values() for _, parked in other.outbox
        ):
            raise command.error(f"there is a message {name} already: give each its own name")
        if agent.has_running_turn or self._protocol.is_blocked(agent):
            agent.outbox.append((receiver, name))
            self.say(agent.name, format_call("ParkMessage", name, to=receiver))
            return
        self.leave(agent, receiver, name)
        self._protocol.note_sends(agent)
        self._protocol.between_turns(agent)

    def _do_deliver(self, command: ScriptCommand) -> None:
        channel = self.channel(command)
        if self._discards(command, channel):
            return
        agent = self.idle_agent(command, channel[1])
        message = self.take_message(command, channel)
        self._protocol.arrive(agent, message)
        self.carry_out_duties(agent)
        while message in agent.mailbox and not agent.failure:
            self._take_turn(agent)

    def _do_arrive(self, command: ScriptCommand) -> None:
        channel = self.channel(command)
        if self._discards(command, channel):
            return
        agent = self.agent(command, channel[1])
        message = self.take_message(command, channel)
        self.say(agent.name, format_call("Enqueue", message.name))
        self._protocol.arrive(agent, message)
        self.carry_out_duties(agent)

    def _discards(self, command: ScriptCommand, channel: tuple[str, str]) -> bool:
        """Move the channel's first message to the dead letters and return True if the receiver has left. If an open epoch still needs the
        receiver, the receiver's core handles the message first."""
        agent = self.agents[channel[1]]
        if agent.phase == "living":
            return False
        message = self.take_message(command, channel)
        if agent.phase == "left":
            self._protocol.arrive(agent, message)
            agent.mailbox.clear()
        self.say(agent.name, format_call("DiscardMessage", message.name))
        return True

    def _do_turn(self, command: ScriptCommand) -> None:
        agent = self.idle_agent(command, command.words[0])
        if not agent.mailbox:
            raise command.error(f"the mailbox of {agent.name} is empty: let a message arrive first")
        self._take_turn(agent)

    def _do_start(self, command: ScriptCommand) -> None:
        agent = self.idle_agent(command, command.words[0])
        if agent.mailbox:
            self._protocol.admit(agent, agent.mailbox[0])
            agent.running = agent.mailbox.pop(0)
        agent.has_running_turn = True
        self.say(agent.name, format_call("StartTurn", *([agent.running.name] if agent.running else [])))

    def _do_end(self, command: ScriptCommand) -> None:
        agent = self.agent(command, command.words[0])
        if not agent.has_running_turn:
            raise command.error(f"no turn of {agent.name} runs: begin one with `start {agent.name}`")
        message, agent.running, agent.has_running_turn = agent.running, None, False
        self.say(agent.name, format_call("EndTurn"))
        if message is not None:
            self._consume(agent, message)
        self.empty_outbox(agent)
        self._protocol.between_turns(agent)

    def _do_crash(self, command: ScriptCommand) -> None:
        failed = [agent.name for agent in self.agents_of(command, command.words[0])]
        busy = [agent.name for agent in self.agents.values() if agent.has_running_turn and agent.name not in failed]
        if busy and self._protocol.keeps_survivors:
            raise command.error(f"a turn of {busy[0]} runs, and survivors freeze between turns: `end {busy[0]}` first")
        for name in failed:
            self.say(name, format_call("Crash"))
        self._protocol.recover(failed)

    def _do_show(self, command: ScriptCommand) -> None:
        agent = self.agent(command, command.words[0])
        mailbox = [message.name for message in agent.mailbox]
        outbox = [name for _, name in agent.outbox]
        numbers = {"sent": agent.sent, "received": agent.received}
        self.say(agent.name, format_call("State", state=agent.state, **numbers, mailbox=mailbox, outbox=outbox))
        for line in self._protocol.show_core(agent):
            self.say(agent.name, line)

    # -- steps --------------------------------------------------------------------------------------------------------

    def say(self, who: str, what: str) -> None:
        """Write a line to the trace. The line names the agent or component that acts."""
        self.trace.append(f"{who}: {what}")

    def guard(self, agent: ScriptedAgent, call: Callable[[], list[_Answer]]) -> list[_Answer]:
        """Call an agent's core. If the core raises a `ProtocolError`, record it as the agent's failure."""
        try:
            return call()
        except ProtocolError as error:
            agent.failure = str(error)
            self.say(agent.name, f"ProtocolError: {error}")
            return []

    def carry_out_duties(self, agent: ScriptedAgent) -> None:
        """Perform the protocol's duties between turns. Do nothing if a turn is running or the agent's core has failed."""
        if not agent.has_running_turn and not agent.failure:
            self._protocol.between_turns(agent)

    def _take_turn(self, agent: ScriptedAgent) -> None:
        self._protocol.admit(agent, agent.mailbox[0])
        message = agent.mailbox.pop(0)
        self.say(agent.name, format_call("Deliver", message.name))
        self._consume(agent, message)
        self._protocol.between_turns(agent)

    def _consume(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        agent.received[message.sender] = message.number
        agent.state.append(message.name)
        self.book.receive(message)
        self._protocol.note_consumed(agent, message)

    def leave(self, agent: ScriptedAgent, receiver: str, name: str) -> None:
        """Put a message into its channel."""
        stamp, piggyback, words = self._protocol.mark(agent, receiver)
        number = agent.sent[receiver] = agent.sent.get(receiver, 0) + 1
        message = ScriptedMessage(name, agent.name, receiver, number, stamp, piggyback)
        self.channels.setdefault((agent.name, receiver), []).append(message)
        self.book.send(message)
        self.say(agent.name, format_call("SendMessage", name, to=receiver, number=number, **words))

    def empty_outbox(self, agent: ScriptedAgent) -> None:
        """Send all messages in an agent's outbox."""
        if not agent.outbox:
            return
        for receiver, name in agent.outbox:
            self.leave(agent, receiver, name)
        agent.outbox.clear()
        self._protocol.note_sends(agent)

    def add(self, command: ScriptCommand, **words: object) -> None:
        """Add the agent that the command names."""
        name = command.words[0]
        if name in self.book.agents:
            raise command.error(f"there is, or was, an agent {name}: ids are never used again")
        self.book.agents.append(name)
        self.agents[name] = ScriptedAgent(name, self._protocol.make_core(name))
        self.say(name, format_call("Join", **words))

    def store(self, agent: ScriptedAgent, image: Image, **words: object) -> int:
        """Store an image as the agent's next checkpoint. Return the checkpoint's number."""
        number = len(agent.images)
        agent.images.append(image)
        self.book.checkpoint(agent.name, number, "forced" if words.get("basis") == "forced" else "basic")
        self.say(agent.name, format_call("StoreCheckpoint", number=number, **words, state=image.state))
        return number

    def roll_back(self, line: RestartLine, in_transit: Sequence[ScriptedMessage]) -> None:
        """Roll each agent back to its checkpoint on the recovery line. Put the given messages in transit back into their channels, and drop
        all other messages."""
        self.book.recover(line)
        self.channels.clear()
        for agent in self.agents.values():
            number = line.get(agent.name)
            agent.mailbox.clear()
            if number is not None:
                agent.roll_back(number)
                self._protocol.restore_core(agent, agent.images[number])
                self.say(agent.name, format_call("Restore", checkpoint=number, state=agent.state))
        for message in in_transit:
            self._deliver_again(message)

    def _deliver_again(self, message: ScriptedMessage) -> None:
        if self._protocol.has_mailboxes:
            self.agents[message.receiver].mailbox.append(message)
            self.say(message.receiver, format_call("Enqueue", message.name))
        else:
            self.channels.setdefault((message.sender, message.receiver), []).append(message)
            self.say(message.sender, format_call("SendAgain", message.name, to=message.receiver))
