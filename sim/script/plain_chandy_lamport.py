"""Scripts of plain Chandy-Lamport: fixed FIFO channels, markers only.

Duties: `sim/explorer/chandy_lamport.py`. A message counts as received when the core has handled it, so there is no mailbox:
`deliver` is both the arrival and the turn.
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
from snapline.sim.script.cuts import ScriptedCut, ScriptedCuts
from snapline.sim.script.script_text import ScriptCommand, Verb, format_call, format_command, number_of
from snapline.sim.script.scripted_fleet import (
    Image,
    ScriptedAgent,
    ScriptedFleet,
    ScriptedMarker,
    ScriptedMessage,
    ScriptedProtocol,
)


class ScriptedMarkers(ScriptedProtocol):
    """Script part of plain Chandy-Lamport, with a `ChandyLamportCore` per agent.

    Attributes:
        _channels: (sender, receiver) of all channels.
        _numbers: open snapshot → agent → its checkpoint.
        _states: open snapshot → agent whose part is complete → channel states.
    """

    keeps_survivors = False
    has_mailboxes = False

    def __init__(self, fleet: ScriptedFleet, channels: Sequence[tuple[str, str]]) -> None:
        self._fleet = fleet
        self._cuts = ScriptedCuts(fleet, "snapshot")
        self._channels = list(channels)
        self._cores: dict[str, ChandyLamportCore] = {}
        self._numbers: dict[int, dict[str, int]] = {}
        self._states: dict[int, dict[str, list[ScriptedMessage]]] = {}

    def verbs(self) -> dict[str, Verb]:
        return self._cuts.verbs(self._take_marker) | {"record": Verb("record AGENT epoch=N", self._do_record)}

    def make_core(self, name: str) -> Image:
        incoming = [sender for sender, receiver in self._channels if receiver == name]
        outgoing = [receiver for sender, receiver in self._channels if sender == name]
        self._cores[name] = ChandyLamportCore(name, incoming=incoming, outgoing=outgoing)
        return Image()

    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """Create a new core: a failure ends all open snapshots."""
        self.make_core(agent.name)

    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        return 0, b"", {}

    def validate(self) -> None:
        for core in self._cores.values():
            core.validate()

    def check_send(self, command: ScriptCommand) -> None:
        if command.words[:2] not in self._channels:
            raise command.error(f"there is no channel {'->'.join(command.words[:2])}: channels are fixed in `fleet`")

    def check_take(self, command: ScriptCommand, channel: tuple[str, str]) -> None:
        items = self._fleet.channels.get(channel, [])
        if items and isinstance(items[0], ScriptedMarker):
            arrow = command.words[0]
            raise command.error(
                f"the marker {items[0].epoch} stands first on {arrow}: release it with `marker {arrow}`"
            )

    def arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        super().arrive(agent, message)
        self._feed(agent, MessageReceived(message.sender, message.name.encode()))

    def _do_record(self, command: ScriptCommand) -> None:
        snapshot = number_of(command, "epoch")
        self._feed(self._fleet.agent(command, command.words[0]), SnapshotStarted(snapshot))

    def _take_marker(self, agent: ScriptedAgent, sender: str, marker: ScriptedMarker) -> None:
        self._feed(agent, MarkerReceived(sender, marker.epoch))

    def _feed(self, agent: ScriptedAgent, event: Event) -> None:
        for command in self._fleet.guard(agent, lambda: self._cores[agent.name].handle(0, event)):
            self._fleet.say(agent.name, format_command(command))
            match command:
                case RecordState():
                    number = self._fleet.store(agent, agent.image())
                    self._numbers.setdefault(command.snapshot, {})[agent.name] = number
                case SendMarker():
                    channel = self._fleet.channels.setdefault((agent.name, command.channel), [])
                    channel.append(ScriptedMarker(command.snapshot))
                case CompleteSnapshot():
                    self._note_complete(agent.name, command)

    def _note_complete(self, agent: str, command: CompleteSnapshot) -> None:
        """Record that an agent's part is complete. The snapshot is complete when all parts are."""
        states = self._states.setdefault(command.snapshot, {})
        names = [payload.decode() for payloads in command.channel_states.values() for payload in payloads]
        states[agent] = [self._fleet.book.messages[name] for name in names]
        if len(states) == len(self._fleet.agents):
            numbers = self._numbers.pop(command.snapshot)
            in_transit = [message for name in self._fleet.agents for message in states[name]]
            del self._states[command.snapshot]
            self._cuts.keep(
                command.snapshot, ScriptedCut({name: numbers[name] for name in self._fleet.agents}, in_transit)
            )

    def recover(self, failed: list[str]) -> None:
        self._numbers, self._states = {}, {}
        self._cuts.recover_fleet()

    def show_core(self, agent: ScriptedAgent) -> list[str]:
        return [
            format_call("Snapshot", number, open=dict(open_states), closed=dict(closed_states))
            for number, open_states, closed_states in self._cores[agent.name].freeze().snapshots
        ]
