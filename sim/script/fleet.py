"""The small host and network of a script: agents, FIFO channels, turns. What a protocol adds, its subclass says.

Nothing happens by itself: a message stays in its channel until `deliver` or `arrive`, a marker until `marker`. A turn
is one step (`deliver`, `turn`), unless it is meant to last: `start`, then `end`; what it sends meanwhile leaves at
its end. The host does what the duties of each core ask for, in their order, and writes down every command of the
cores and what itself does.

A `ProtocolError` of a core is part of the trace, since a script may show how a broken network is found out.
Everything else that is wrong with a command is a `MisuseError` with its line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from snapline.errors import ProtocolError
from snapline.sim.script.agent import Image, ScriptedAgent, ScriptedMarker
from snapline.sim.script.book import Book, RestartLine, ScriptedMessage, channels_in_words, line_in_words
from snapline.sim.script.hooks import Hooks
from snapline.sim.script.text import ScriptCommand
from snapline.sim.script.verbs import Verb, dispatch
from snapline.sim.script.words import word_of

_Answer = TypeVar("_Answer")

COORDINATOR = "coordinator"


class ScriptedFleet(Hooks, ABC):
    """A fleet under one protocol.

    Attributes:
        protocol: its name. book: what really happened.
        agents: by name, in the order of coming; those that a recovery has made unborn are not among them.
        channels: by sender and receiver, what is on its way, in the order of sending.
    """

    def __init__(self, protocol: str, names: Sequence[str]) -> None:
        self.protocol = protocol
        self.book = Book(names)
        self.agents: dict[str, ScriptedAgent] = {}
        self.channels: dict[tuple[str, str], list[ScriptedMessage | ScriptedMarker]] = {}
        self._trace: list[str] = []
        for name in names:
            self.agents[name] = ScriptedAgent(name, self._make_core(name))

    def run(self, command: ScriptCommand) -> list[str]:
        """Carry one command out; returns its trace.

        Raises:
            MisuseError: it is none of this fleet, or cannot be done now; the sentence names the line.
        """
        self._trace = []
        dispatch(command, self._verbs())
        self._validate()
        return self._trace

    # -- what a protocol adds -----------------------------------------------------------------------------------------

    @abstractmethod
    def _make_core(self, name: str) -> Image:
        """Make the core of an agent that starts now; returns its initial checkpoint."""

    @abstractmethod
    def _restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """The agent has been set back to `image`: so must its core be."""

    @abstractmethod
    def _recover(self, failed: list[str]) -> None:
        """These agents have crashed: bring the fleet back."""

    @abstractmethod
    def _do_line(self, command: ScriptCommand) -> None:
        """Write the recovery line."""

    @abstractmethod
    def _show_core(self, agent: ScriptedAgent) -> list[str]:
        """The core's state in words."""

    @abstractmethod
    def _mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        """Stamp and piggyback of a message that leaves now, and both in words."""

    def _verbs(self) -> dict[str, Verb]:
        return {
            "send": Verb("send AGENT AGENT MESSAGE", self._do_send),
            "deliver": Verb("deliver AGENT->AGENT", self._do_deliver),
            "arrive": Verb("arrive AGENT->AGENT", self._do_arrive),
            "turn": Verb("turn AGENT", self._do_turn),
            "start": Verb("start AGENT", self._do_start),
            "end": Verb("end AGENT", self._do_end),
            "crash": Verb("crash AGENT,AGENT,…", self._do_crash),
            "show": Verb("show AGENT", self._do_show),
            "line": Verb("line [failed=AGENT,AGENT,…]", self._do_line),
        }

    # -- words of commands --------------------------------------------------------------------------------------------

    def _agent(self, command: ScriptCommand, name: str) -> ScriptedAgent:
        agent = self.agents.get(name)
        if agent is None:
            raise command.error(f"there is no agent {name!r}: the fleet has {', '.join(self.agents)}")
        if agent.failure:
            raise command.error(f"the core of {name} has raised an error and is of no further use: make a new fleet")
        if agent.phase == "gone":
            raise command.error(f"{name} has left the fleet: name another agent")
        return agent

    def _agents(self, command: ScriptCommand, names: str) -> list[ScriptedAgent]:
        """Of a list `a,b`; `all` stands for everyone that lives."""
        if names == "all":
            return [agent for agent in self.agents.values() if agent.phase == "living"]
        return [self._agent(command, name) for name in dict.fromkeys(names.split(","))]

    def _idle_agent(self, command: ScriptCommand, name: str) -> ScriptedAgent:
        """An agent that may start a turn."""
        agent = self._agent(command, name)
        if agent.phase != "living":
            raise command.error(f"{name} has left and takes no more turns: name another agent")
        if agent.is_busy:
            raise command.error(f"a turn of {name} runs: end it with `end {name}`, or use `arrive`")
        if self._is_blocked(agent):
            raise command.error(f"{name} is blocked until the round is decided and takes no turn: use `arrive`")
        return agent

    def _channel(self, command: ScriptCommand) -> tuple[str, str]:
        sender, arrow, receiver = command.words[0].partition("->")
        if not arrow or sender not in self.book.agents or receiver not in self.agents:
            raise command.error(f"{command.words[0]!r} is no channel: write AGENT->AGENT")
        return sender, receiver

    def _take_message(self, command: ScriptCommand, channel: tuple[str, str]) -> ScriptedMessage:
        for item in self.channels.get(channel, []):
            if isinstance(item, ScriptedMessage):
                self.channels[channel].remove(item)
                return item
        raise command.error(f"no message is on its way from {channel[0]} to {channel[1]}: send one first")

    def _take_marker(self, command: ScriptCommand, *, overtakes: bool) -> ScriptedMarker:
        channel = self._channel(command)
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
        agent = self._agent(command, command.words[0])
        receiver, name = command.words[1:]
        if receiver not in self.agents or self.agents[receiver].phase == "gone":
            raise command.error(f"there is no agent {receiver!r}: the fleet has {', '.join(self.agents)}")
        if agent.phase != "living":
            raise command.error(f"{agent.name} has left and sends nothing more: name another agent")
        if self.book.is_sent(name) or any(
            name == parked for other in self.agents.values() for _, parked in other.outbox
        ):
            raise command.error(f"there is a message {name} already: give each its own name")
        if agent.is_busy or self._is_blocked(agent):
            agent.outbox.append((receiver, name))
            self._say(agent.name, word_of("ParkMessage", name, to=receiver))
            return
        self._leave(agent, receiver, name)
        self._note_sends(agent)
        self._between_turns(agent)

    def _do_deliver(self, command: ScriptCommand) -> None:
        channel = self._channel(command)
        if self._discards(command, channel):
            return
        agent = self._idle_agent(command, channel[1])
        message = self._take_message(command, channel)
        self._arrive(agent, message)
        self._settle(agent)
        while message in agent.mailbox and not agent.failure:
            self._take_turn(agent)

    def _do_arrive(self, command: ScriptCommand) -> None:
        channel = self._channel(command)
        if self._discards(command, channel):
            return
        agent = self._agent(command, channel[1])
        message = self._take_message(command, channel)
        self._say(agent.name, word_of("Enqueue", message.name))
        self._arrive(agent, message)
        self._settle(agent)

    def _discards(self, command: ScriptCommand, channel: tuple[str, str]) -> bool:
        """What reaches an agent that has left is a dead letter; its core sees it while an epoch needs it."""
        agent = self.agents[channel[1]]
        if agent.phase == "living":
            return False
        message = self._take_message(command, channel)
        if agent.phase == "left":
            self._arrive(agent, message)
            agent.mailbox.clear()
        self._say(agent.name, word_of("DiscardMessage", message.name))
        return True

    def _do_turn(self, command: ScriptCommand) -> None:
        agent = self._idle_agent(command, command.words[0])
        if not agent.mailbox:
            raise command.error(f"the mailbox of {agent.name} is empty: let a message arrive first")
        self._take_turn(agent)

    def _do_start(self, command: ScriptCommand) -> None:
        agent = self._idle_agent(command, command.words[0])
        if agent.mailbox:
            self._admit(agent, agent.mailbox[0])
            agent.running = agent.mailbox.pop(0)
        agent.is_busy = True
        self._say(agent.name, word_of("StartTurn", *([agent.running.name] if agent.running else [])))

    def _do_end(self, command: ScriptCommand) -> None:
        agent = self._agent(command, command.words[0])
        if not agent.is_busy:
            raise command.error(f"no turn of {agent.name} runs: begin one with `start {agent.name}`")
        message, agent.running, agent.is_busy = agent.running, None, False
        self._say(agent.name, word_of("EndTurn"))
        if message is not None:
            self._consume(agent, message)
        self._empty_outbox(agent)
        self._between_turns(agent)

    def _do_crash(self, command: ScriptCommand) -> None:
        failed = [agent.name for agent in self._agents(command, command.words[0])]
        busy = [agent.name for agent in self.agents.values() if agent.is_busy and agent.name not in failed]
        if busy and self._keeps_survivors():
            raise command.error(f"a turn of {busy[0]} runs, and survivors freeze between turns: `end {busy[0]}` first")
        for name in failed:
            self._say(name, word_of("Crash"))
        self._recover(failed)

    def _do_show(self, command: ScriptCommand) -> None:
        agent = self._agent(command, command.words[0])
        mailbox = [message.name for message in agent.mailbox]
        outbox = [name for _, name in agent.outbox]
        numbers = {"sent": agent.sent, "received": agent.received}
        self._say(agent.name, word_of("State", state=agent.state, **numbers, mailbox=mailbox, outbox=outbox))
        for line in self._show_core(agent):
            self._say(agent.name, line)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _say(self, who: str, what: str) -> None:
        self._trace.append(f"{who}: {what}")

    def _guard(self, agent: ScriptedAgent, call: Callable[[], list[_Answer]]) -> list[_Answer]:
        """Call a core. What it raises is its last word."""
        try:
            return call()
        except ProtocolError as error:
            agent.failure = str(error)
            self._say(agent.name, f"ProtocolError: {error}")
            return []

    def _settle(self, agent: ScriptedAgent) -> None:
        if not agent.is_busy and not agent.failure:
            self._between_turns(agent)

    def _take_turn(self, agent: ScriptedAgent) -> None:
        self._admit(agent, agent.mailbox[0])
        message = agent.mailbox.pop(0)
        self._say(agent.name, word_of("Deliver", message.name))
        self._consume(agent, message)
        self._between_turns(agent)

    def _consume(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        agent.received[message.sender] = message.number
        agent.state.append(message.name)
        self.book.receive(message)
        self._note_consumed(agent, message)

    def _leave(self, agent: ScriptedAgent, receiver: str, name: str) -> None:
        stamp, piggyback, words = self._mark(agent, receiver)
        number = agent.sent[receiver] = agent.sent.get(receiver, 0) + 1
        message = ScriptedMessage(name, agent.name, receiver, number, stamp, piggyback)
        self.channels.setdefault((agent.name, receiver), []).append(message)
        self.book.send(message)
        self._say(agent.name, word_of("SendMessage", name, to=receiver, number=number, **words))

    def _empty_outbox(self, agent: ScriptedAgent) -> None:
        if not agent.outbox:
            return
        for receiver, name in agent.outbox:
            self._leave(agent, receiver, name)
        agent.outbox.clear()
        self._note_sends(agent)

    def _store(self, agent: ScriptedAgent, image: Image, **words: object) -> int:
        """The image is the agent's next checkpoint; returns its number."""
        number = len(agent.images)
        agent.images.append(image)
        self.book.checkpoint(agent.name, number, "forced" if words.get("basis") == "forced" else "basic")
        self._say(agent.name, word_of("StoreCheckpoint", number=number, **words, state=image.state))
        return number

    def _set_back(self, line: RestartLine, in_transit: Sequence[ScriptedMessage]) -> None:
        """Every agent to its place on the line; then what is in transit comes again, all else on its way never was."""
        self.book.recover(line)
        self.channels.clear()
        for agent in self.agents.values():
            number = line.get(agent.name)
            agent.mailbox.clear()
            if number is not None:
                agent.set_back(number)
                self._restore_core(agent, agent.images[number])
                self._say(agent.name, word_of("Restore", checkpoint=number, state=agent.state))
        for message in in_transit:
            self._deliver_again(message)

    def _deliver_again(self, message: ScriptedMessage) -> None:
        self.agents[message.receiver].mailbox.append(message)
        self._say(message.receiver, word_of("Enqueue", message.name))


class LoggedFleet(ScriptedFleet):
    """A fleet whose agents keep checkpoints of their own: the line is computed, and survivors keep what they can."""

    def _verbs(self) -> dict[str, Verb]:
        return super()._verbs() | {
            "join": Verb("join AGENT", self._do_join),
            "useless": Verb("useless", self._do_useless),
        }

    def _recover(self, failed: list[str]) -> None:
        line = self.book.line(failed)
        self._say(COORDINATOR, f"recovery line {line_in_words(line)}")
        self._set_back(line, self.book.in_transit(line))

    def _do_line(self, command: ScriptCommand) -> None:
        names = command.options.get("failed", "all")
        failed = [agent.name for agent in self._agents(command, names)]
        line = self.book.line(failed)
        self._trace += [f"if {','.join(failed)} fails: {line_in_words(line)}", *self.book.rounds(failed)]
        self._trace.append(f"in transit: {channels_in_words(self.book.in_transit(line))}")

    def _do_useless(self, command: ScriptCommand) -> None:
        found = [f"{agent} {number}" for agent, numbers in self.book.useless().items() for number in numbers]
        self._trace.append(f"useless checkpoints: {', '.join(found) or 'none'}")

    def _do_join(self, command: ScriptCommand) -> None:
        name = command.words[0]
        if name in self.book.agents:
            raise command.error(f"there is, or was, an agent {name}: ids are never used again")
        self.book.agents.append(name)
        self.agents[name] = ScriptedAgent(name, self._make_core(name))
        self._say(name, word_of("Join"))
