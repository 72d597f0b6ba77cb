"""Scripted fleets that run the Chandy-Lamport protocol, either as in production or as in the original paper. Both produce cuts.

*Production protocol* (`ScriptedStamps`; for the caller's duties, see `protocols/epoch_stamped.py`): messages carry epoch stamps, and
markers are sent only to close channels early. An agent must record its state for each epoch that an announcement, a marker or a stamp
names. The host makes it do so between turns. The scripted coordinator begins epochs, collects reports, and ends an epoch when the reports
cover all agents and channels. All agents learn at once that an epoch has ended. The coordinator's other messages are delivered only by
script commands.

*Plain algorithm* (`ScriptedMarkers`; for the caller's duties, see `sim/explorer/chandy_lamport.py`): the FIFO channels are fixed, and only
markers are used, no stamps. A message counts as received when the core has handled it. So there is no mailbox, and the command `deliver`
combines the message's arrival and its turn.

`ScriptedCuts` stores the complete cuts, and compares each cut with the ground truth.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.protocols import epoch_stamped as es
from snapline.protocols.epoch_stamped import AgentReport, Coverage, EpochStampedCore, RecordedPart, check_coverage
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
from snapline.sim.script.script_text import ScriptCommand, Verb, format_call, format_command, format_value, number_of
from snapline.sim.script.scripted_fleet import (
    COORDINATOR,
    LINE_USAGE,
    Image,
    RestartLine,
    ScriptedAgent,
    ScriptedFleet,
    ScriptedMarker,
    ScriptedMessage,
    ScriptedProtocol,
    format_channels,
)


class ScriptedCut(msgspec.Struct, frozen=True):
    """Complete cut of a scripted fleet.

    Attributes:
        numbers: each agent's checkpoint number, or 0 if the cut precedes the agent's creation.
        unborn: agents that are created after the cut.
        gone: agents that left before the cut. All their actions belong to the cut, and messages to them are dead letters.
    """

    numbers: dict[str, int]
    in_transit: list[ScriptedMessage]
    unborn: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class ScriptedCuts:
    """Complete cuts of a fleet. Every recovery rolls all agents back to the last complete cut.

    Attributes:
        by_number: complete cuts, by number. Cut 0 contains the initial states.
    """

    def __init__(self, fleet: ScriptedFleet, word: str) -> None:
        """`word` is the trace's term for a cut."""
        self._fleet = fleet
        self._word = word
        self.by_number = {0: ScriptedCut(dict.fromkeys(fleet.book.agents, 0), [])}

    def verbs(self, do_marker: Callable[[ScriptedAgent, str, ScriptedMarker], None]) -> dict[str, Verb]:
        """Return the script commands for cuts and markers. When a marker is delivered, `do_marker` is called with the receiver, the sender
        and the marker."""

        def take(command: ScriptCommand, *, overtakes: bool) -> None:
            sender, receiver = self._fleet.channel(command)
            agent = self._fleet.agent(command, receiver)
            do_marker(agent, sender, self._fleet.take_marker(command, overtakes=overtakes))

        return {
            "line": Verb(LINE_USAGE, self._do_line),
            "marker": Verb("marker AGENT->AGENT", lambda command: take(command, overtakes=False)),
            "overtake": Verb("overtake AGENT->AGENT", lambda command: take(command, overtakes=True)),
        }

    def _do_line(self, command: ScriptCommand) -> None:
        """Write the last complete cut to the trace as the recovery line. The recovery line is the same for any value of the option
        `failed`, which is only validated."""
        self._fleet.agents_of(command, command.options.get("failed", "all"))
        number = max(self.by_number)
        self._fleet.trace.append(f"{self._word} {number}: {self._format(self.by_number[number])}")

    def keep(self, number: int, cut: ScriptedCut) -> None:
        """Store a complete cut. Write the cut, and any errors in it, to the trace."""
        self.by_number[number] = cut
        self._fleet.trace.append(f"{self._word} {number}: {self._format(cut)}")
        self._fleet.trace += self._faults(number, cut)

    def _format(self, cut: ScriptedCut) -> str:
        numbers = (f"{agent}={'unborn' if agent in cut.unborn else number}" for agent, number in cut.numbers.items())
        return f"cut {' '.join(numbers)}; in transit: {format_channels(cut.in_transit)}"

    def _faults(self, number: int, cut: ScriptedCut) -> list[str]:
        """Describe each violation of G1 or G2 in a cut, according to the ground truth."""
        line = self._book_line(cut)
        faults = [f"{self._word} {number} IS WRONG: {name} is an orphan" for name in self._fleet.book.orphans(line)]
        expected = [message for message in self._fleet.book.in_transit(line) if message.receiver not in cut.gone]
        if format_channels(expected) != format_channels(cut.in_transit):
            faults.append(f"{self._word} {number} IS WRONG: really in transit: {format_channels(expected)}")
        return faults

    def _book_line(self, cut: ScriptedCut) -> RestartLine:
        """Return a cut as a recovery line. An agent that left before the cut keeps all its actions. An agent that was created after the cut
        keeps none of its actions."""
        return {agent: None if agent in cut.gone else cut.numbers.get(agent, 0) for agent in self._fleet.book.agents}

    def recover_fleet(self) -> None:
        """Roll the whole fleet back to the last complete cut."""
        number = max(self.by_number)
        cut = self.by_number[number]
        self._fleet.say(COORDINATOR, f"recovery to {self._word} {number}")
        self._forget_all_outside(cut)
        self._fleet.roll_back(self._book_line(cut), cut.in_transit)

    def _forget_all_outside(self, cut: ScriptedCut) -> None:
        """Remove the agents that were created after the cut, and bring back the agents that left after the cut."""
        receivers = [message.receiver for message in cut.in_transit]
        for agent in list(self._fleet.agents.values()):
            if agent.name in cut.gone:
                agent.phase = "gone"
            elif agent.name in cut.numbers and (agent.name not in cut.unborn or agent.name in receivers):
                agent.phase = "living"
            else:
                del self._fleet.agents[agent.name]
                self._fleet.say(agent.name, "Forget()")


class _Epoch(msgspec.Struct):
    """Open epoch of the scripted coordinator. `gone` contains the final message numbers of agents that left before the epoch."""

    members: tuple[str, ...]
    gone: dict[str, AgentReport]
    records: dict[str, RecordedPart] = {}


class ScriptedStamps(ScriptedProtocol):
    """Scripted chandy-lamport protocol. Each agent has an `EpochStampedCore`, and one coordinator manages the epochs.

    Attributes:
        _begun: number of the newest epoch that has begun.
        _last_epochs: for each agent that has left, the last epoch that includes the agent.
    """

    keeps_survivors = False

    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet
        self._cuts = ScriptedCuts(fleet, "epoch")
        self._cores: dict[str, EpochStampedCore] = {}
        self._begun = 0
        self._open: dict[int, _Epoch] = {}
        self._numbers: dict[int, dict[str, int]] = {}
        self._last_epochs: dict[str, int] = {}

    def verbs(self) -> dict[str, Verb]:
        return self._cuts.verbs(self._take_marker) | {
            "begin": Verb("begin epoch=N", self._do_begin),
            "record": Verb("record AGENT,AGENT,… epoch=N", self._do_record),
            "report": Verb("report AGENT,AGENT,… epoch=N", self._do_report),
            "abort": Verb("abort epoch=N", self._do_abort),
            "join": Verb("join AGENT [by=AGENT]", self._do_join),
            "stop": Verb("stop AGENT", self._do_stop),
        }

    # -- agents -------------------------------------------------------------------------------------------------------

    def make_core(self, name: str) -> Image:
        self._cores[name] = EpochStampedCore(name, recorded=self._begun, unborn_in=self._open)
        return Image()

    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        """Create a new core after a rollback. All open epochs have been aborted by the recovery."""
        self._cores[agent.name] = EpochStampedCore(agent.name, recorded=self._begun)

    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        stamp = self._cores[agent.name].recorded
        return stamp, b"", {"stamp": stamp}

    def arrive(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        """Pass a message first to the core and then to the mailbox. This order ensures that no recorded state counts the message twice."""
        arrived = es.MessageArrived(message.sender, message.number, message.stamp, message.name.encode())
        self._feed(agent, arrived)
        agent.mailbox.append(message)

    def between_turns(self, agent: ScriptedAgent) -> None:
        core = self._cores[agent.name]
        if core.owed > core.recorded:
            waiting = tuple(
                es.WaitingMessage(message.sender, message.number, message.stamp, message.name.encode())
                for message in agent.mailbox
            )
            self._feed(agent, es.TurnBoundaryReached(agent.sent, agent.received, waiting))

    def _feed(self, agent: ScriptedAgent, event: es.Event) -> None:
        for command in self._fleet.guard(agent, lambda: self._cores[agent.name].handle(0, event)):
            self._fleet.say(agent.name, format_command(command))
            match command:
                case es.RecordState():
                    number = self._fleet.store(agent, agent.image())
                    for epoch in command.epochs:
                        self._numbers.setdefault(epoch, {})[agent.name] = number
                case es.SendMarkers():
                    for receiver, last_number in command.last_numbers.items():
                        marker = ScriptedMarker(command.epoch, last_number)
                        self._fleet.channels.setdefault((agent.name, receiver), []).append(marker)

    def validate(self) -> None:
        for name, core in self._cores.items():
            if name in self._fleet.agents and not self._fleet.agents[name].failure:
                core.validate()

    def _do_record(self, command: ScriptCommand) -> None:
        """Announce an epoch to the agents named by the command. If the epoch is the next one, begin it first."""
        epoch = number_of(command, "epoch")
        if epoch == self._begun + 1:
            self._begin()
        elif epoch > self._begun:
            raise command.error(f"epoch {epoch} has not begun: epoch {self._begun + 1} comes first")
        for agent in self._fleet.agents_of(command, command.words[0]):
            self._feed(agent, es.EpochAnnounced(epoch))
            self._fleet.carry_out_duties(agent)

    def _take_marker(self, agent: ScriptedAgent, sender: str, marker: ScriptedMarker) -> None:
        self._feed(agent, es.MarkerReceived(sender, marker.epoch, marker.last_number))
        self._fleet.carry_out_duties(agent)

    # -- members ------------------------------------------------------------------------------------------------------

    def _do_join(self, command: ScriptCommand) -> None:
        maker = self._fleet.idle_agent(command, command.options["by"]) if "by" in command.options else None
        self._fleet.add(command, unborn_in=list(self._open))
        if maker is not None:
            name = command.words[0]
            self._fleet.leave(maker, name, f"create-{name}")

    def _do_stop(self, command: ScriptCommand) -> None:
        agent = self._fleet.idle_agent(command, command.words[0])
        agent.phase = "left"
        self._last_epochs[agent.name] = self._begun
        self._fleet.say(agent.name, format_call("Leave", last_epoch=self._begun))
        self._feed(agent, es.LeaveCommitted(self._begun))
        self._retire()

    def _retire(self) -> None:
        """Remove each agent that has left, unless an open epoch still needs the agent."""
        for agent in self._fleet.agents.values():
            is_needed = any(epoch <= self._last_epochs.get(agent.name, 0) for epoch in self._open)
            if agent.phase == "left" and not is_needed:
                agent.phase = "gone"
                self._fleet.say(agent.name, format_call("Go"))

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def _do_begin(self, command: ScriptCommand) -> None:
        epoch = number_of(command, "epoch")
        if epoch != self._begun + 1:
            raise command.error(f"epochs begin in order, and epoch {self._begun + 1} is next: write that number")
        self._begin()
        self._fleet.say(COORDINATOR, format_call("BeginEpoch", epoch=epoch, members=self._open[epoch].members))

    def _begin(self) -> None:
        self._begun += 1
        members = tuple(agent.name for agent in self._fleet.agents.values() if agent.phase == "living")
        gone = {
            agent.name: AgentReport(agent.name, False, dict(agent.sent), dict(agent.received), {})
            for agent in self._fleet.agents.values()
            if agent.phase != "living"
        }
        self._open[self._begun] = _Epoch(members, gone)

    def _do_report(self, command: ScriptCommand) -> None:
        number = number_of(command, "epoch")
        for agent in self._fleet.agents_of(command, command.words[0]):
            if number not in self._open:
                raise command.error(f"epoch {number} is not open: begin it first")
            if number not in self._cores[agent.name].open_epochs():
                raise command.error(f"{agent.name} has not recorded epoch {number}: `record` it first")
            self._take_report(agent, number)

    def _take_report(self, agent: ScriptedAgent, number: int) -> None:
        epoch = self._open[number]
        record = epoch.records[agent.name] = self._cores[agent.name].record_of(number)
        report = _report_of(agent.name, record)
        self._fleet.say(agent.name, format_command(report))
        reports = {name: _report_of(name, part) for name, part in epoch.records.items()} | epoch.gone
        self._evaluate_coverage(number, epoch, check_coverage(reports, epoch.gone))

    def _evaluate_coverage(self, number: int, epoch: _Epoch, coverage: Coverage) -> None:
        missing = [f"{member} has not reported" for member in epoch.members if member not in epoch.records]
        missing += [f"{sender}->{receiver} {why}" for sender, receiver, why in coverage.missing if why not in missing]
        if coverage.orphans:
            self._fleet.say(COORDINATOR, f"orphans {format_value(coverage.orphans)}")
            self._end(number, "AbortEpoch")
        elif missing:
            self._fleet.say(COORDINATOR, f"epoch {number} waits: {'; '.join(missing)}")
        else:
            self._fleet.say(COORDINATOR, format_call("CompleteEpoch", epoch=number))
            self._cuts.keep(number, self._cut_of(number, epoch))
            self._end(number)

    def _cut_of(self, number: int, epoch: _Epoch) -> ScriptedCut:
        numbers = self._numbers.get(number, {})
        in_transit = [
            self._fleet.book.messages[message.payload.decode()]
            for record in epoch.records.values()
            for messages in record.in_transit.values()
            for message in messages
        ]
        unborn = tuple(name for name, record in epoch.records.items() if record.is_unborn)
        order = [name for name in self._fleet.book.agents if name in epoch.records]
        return ScriptedCut({name: numbers.get(name, 0) for name in order}, in_transit, unborn, tuple(epoch.gone))

    def _do_abort(self, command: ScriptCommand) -> None:
        epoch = number_of(command, "epoch")
        if epoch not in self._open:
            raise command.error(f"epoch {epoch} is not open: begin it first")
        self._end(epoch, "AbortEpoch")

    def _end(self, epoch: int, word: str = "") -> None:
        if word:
            self._fleet.say(COORDINATOR, format_call(word, epoch=epoch))
        del self._open[epoch]
        self._numbers.pop(epoch, None)
        for agent in self._fleet.agents.values():
            if agent.phase != "gone" and not agent.failure:
                self._feed(agent, es.EpochEnded(epoch))
        self._retire()

    def recover(self, failed: list[str]) -> None:
        for epoch in list(self._open):
            self._fleet.say(COORDINATOR, format_call("AbortEpoch", epoch=epoch))
        self._open, self._numbers = {}, {}
        self._cuts.recover_fleet()
        self._last_epochs = {
            agent.name: self._last_epochs[agent.name] for agent in self._fleet.agents.values() if agent.phase == "gone"
        }

    def show_core(self, agent: ScriptedAgent) -> list[str]:
        core = self._cores[agent.name]
        lines = [format_call("Core", recorded=core.recorded, owed=core.owed, open=core.open_epochs())]
        for epoch in core.freeze().open_epochs:
            in_transit = {channel: [message.payload for message in messages] for channel, messages in epoch.in_transit}
            lines.append(format_call("Epoch", epoch.epoch, in_transit=in_transit, closed=dict(epoch.markers)))
        return lines


def _report_of(name: str, record: RecordedPart) -> AgentReport:
    recorded = {channel: len(messages) for channel, messages in record.in_transit.items()}
    return AgentReport(name, record.is_unborn, record.sent, record.received, recorded)


class ScriptedMarkers(ScriptedProtocol):
    """Scripted plain Chandy-Lamport algorithm. Each agent has a `ChandyLamportCore`.

    Attributes:
        _states: for each open snapshot, the channel states that each agent has recorded, once the agent has completed its part.
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
        """Create a new core after a rollback, because a failure cancels all open snapshots."""
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
        """Record that an agent has completed its part of a snapshot. When all agents have completed their parts, store the complete cut."""
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
