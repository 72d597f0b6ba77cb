"""Scripts of plain Chandy-Lamport: fixed FIFO channels, markers only.

Duties: `sim/explorer/chandy_lamport.py`. A message counts as received when the core has seen it, so there is no mailbox:
each `deliver` is the arrival and the turn.
"""

from collections.abc import Sequence

from snapline.sim.explorer.chandy_lamport import (
    ChandyLamportCore,
    CompleteSnapshot,
    Event,
    MarkerReceived,
    MessageReceived,
    RecordState,
    SendMarker,
    SnapshotStarted,
)
from snapline.sim.script.agent import Image, ScriptedAgent, ScriptedMarker
from snapline.sim.script.book import ScriptedMessage
from snapline.sim.script.coordinated import CoordinatedFleet, ScriptedCut
from snapline.sim.script.text import ScriptCommand
from snapline.sim.script.verbs import Verb, number_of
from snapline.sim.script.words import command_of, word_of


class MarkersFleet(CoordinatedFleet):
    """A fleet with a `ChandyLamportCore` per agent.

    Attributes:
        _incoming: by agent, the senders of its channels.
        _numbers: by open snapshot, by agent, its checkpoint in it.
        _states: by open snapshot, by agent that is through, the channel states.
    """

    cut_word = "snapshot"

    def __init__(self, protocol: str, names: Sequence[str], channels: Sequence[tuple[str, str]]) -> None:
        self._channels = list(channels)
        self._cores: dict[str, ChandyLamportCore] = {}
        self._numbers: dict[int, dict[str, int]] = {}
        self._states: dict[int, dict[str, list[ScriptedMessage]]] = {}
        self.cuts = {0: ScriptedCut(dict.fromkeys(names, 0), [])}
        super().__init__(protocol, names)

    def _verbs(self) -> dict[str, Verb]:
        verbs = super()._verbs() | {"record": Verb("record AGENT epoch=N", self._do_record)}
        return {name: verb for name, verb in verbs.items() if name not in ("arrive", "turn", "start", "end")}

    def _make_core(self, name: str) -> Image:
        incoming = [sender for sender, receiver in self._channels if receiver == name]
        outgoing = [receiver for sender, receiver in self._channels if sender == name]
        self._cores[name] = ChandyLamportCore(name, incoming=incoming, outgoing=outgoing)
        return Image()

    def _restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """Open snapshots end with the failure: a core starts anew."""
        self._make_core(agent.name)

    def _mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        return 0, b"", {}

    def _validate(self) -> None:
        for core in self._cores.values():
            core.validate()

    def _do_send(self, command: ScriptCommand) -> None:
        if command.words[:2] not in self._channels:
            raise command.error(f"there is no channel {'->'.join(command.words[:2])}: channels are fixed in `fleet`")
        super()._do_send(command)

    def _take_message(self, command: ScriptCommand, channel: tuple[str, str]) -> ScriptedMessage:
        items = self.channels.get(channel, [])
        if items and isinstance(items[0], ScriptedMarker):
            arrow = command.words[0]
            raise command.error(
                f"the marker {items[0].epoch} stands first on {arrow}: release it with `marker {arrow}`"
            )
        return super()._take_message(command, channel)

    def _arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        super()._arrive(agent, message)
        self._feed(agent, MessageReceived(message.sender, message.name.encode()))

    def _do_record(self, command: ScriptCommand) -> None:
        snapshot = number_of(command, "epoch")
        self._feed(self._agent(command, command.words[0]), SnapshotStarted(snapshot))

    def _do_marker(self, command: ScriptCommand, *, overtakes: bool) -> None:
        sender, receiver = self._channel(command)
        agent = self._agent(command, receiver)
        marker = self._take_marker(command, overtakes=overtakes)
        self._feed(agent, MarkerReceived(sender, marker.epoch))

    def _feed(self, agent: ScriptedAgent, event: Event) -> None:
        for command in self._guard(agent, lambda: self._cores[agent.name].handle(0, event)):
            self._say(agent.name, command_of(command))
            match command:
                case RecordState():
                    number = self._store(agent, agent.image())
                    self._numbers.setdefault(command.snapshot, {})[agent.name] = number
                case SendMarker():
                    channel = self.channels.setdefault((agent.name, command.channel), [])
                    channel.append(ScriptedMarker(command.snapshot))
                case CompleteSnapshot():
                    self._note_complete(agent.name, command)

    def _note_complete(self, agent: str, command: CompleteSnapshot) -> None:
        """A part is complete; the whole is, when all parts are."""
        states = self._states.setdefault(command.snapshot, {})
        names = [payload.decode() for payloads in command.channel_states.values() for payload in payloads]
        states[agent] = [self.book.messages[name] for name in names]
        if len(states) == len(self.agents):
            numbers = self._numbers.pop(command.snapshot)
            in_transit = [message for name in self.agents for message in states[name]]
            del self._states[command.snapshot]
            self._keep(command.snapshot, ScriptedCut({name: numbers[name] for name in self.agents}, in_transit))

    def _recover(self, failed: list[str]) -> None:
        self._numbers, self._states = {}, {}
        self._go_back()

    def _deliver_again(self, message: ScriptedMessage) -> None:
        """There are no mailboxes: it stands in its channel again."""
        self.channels.setdefault((message.sender, message.receiver), []).append(message)
        self._say(message.sender, word_of("SendAgain", message.name, to=message.receiver))

    def _show_core(self, agent: ScriptedAgent) -> list[str]:
        return [
            word_of("Snapshot", number, open=dict(open_states), closed=dict(closed_states))
            for number, open_states, closed_states in self._cores[agent.name].freeze().snapshots
        ]
