"""Several epoch-stamped cores, driven one small step at a time by one random source.

A `World` plays what surrounds the cores: hosts with mailboxes and outboxes, FIFO channels, and a coordinator that
begins, completes and aborts epochs and commits creations and leaves. Every step is small (one message leaves, one
arrives, one turn ends …) and the random source chooses the next, so a seed names one interleaving. Markers are held back
at random behind later sends, words of the coordinator arrive late, reports are stale, turns last for many steps.

The world judges nothing. It keeps what an oracle needs: unique message ids in the order in which each agent sent and
consumed them, and how far both lists were at each record. Single decisions are methods (`_stamp`, `_create_core`,
`_expected_reports` …), so a test puts one fault in by overriding one of them.
"""

from collections import deque
from random import Random

import msgspec

from snapline.protocols.epoch_stamped import (
    AgentReport,
    EpochAnnounced,
    EpochEnded,
    EpochStampedCore,
    Event,
    LeaveCommitted,
    MarkerReceived,
    MessageArrived,
    RecordedPart,
    RecordState,
    SendMarkers,
    TurnBoundaryReached,
    WaitingMessage,
    check_coverage,
)

OPEN_EPOCHS_MAX = 4
"""As many as the coordinator lets be open at once."""

AGENTS_MAX = 12
"""Enough for chains of creations and leaves; more only makes each execution longer."""

SETTLE_ROUNDS_MAX = 100
"""Rounds of `settle` until the world counts as stuck; a few are needed, one per hop of news."""


class Parcel(msgspec.Struct, frozen=True):
    """Something in an outbox: `tokens` for `receiver`, or the request to create `receiver` first."""

    receiver: str
    tokens: int
    is_creation: bool = False


class Marker(msgspec.Struct, frozen=True):
    """A marker on a channel."""

    epoch: int
    last_number: int


class Image(msgspec.Struct, frozen=True):
    """What a host captures at a record; the last two say how much of the agent's history lies inside the cut."""

    tokens: int
    outbox: tuple[Parcel, ...]
    sent_count: int
    consumed_count: int


class Cut(msgspec.Struct, frozen=True):
    """What the coordinator committed for one complete epoch."""

    members: frozenset[str]
    gone: frozenset[str]
    records: dict[str, RecordedPart]


class SimulatedAgent:
    """One agent and its host's part. `phase` goes from running over leaving and left to gone."""

    def __init__(self, name: str, core: EpochStampedCore, tokens: int) -> None:
        self.name = name
        self.core = core
        self.tokens = tokens
        self.phase = "running"
        self.is_busy = False
        self.running_message: WaitingMessage | None = None
        self.mailbox: deque[WaitingMessage] = deque()
        self.outbox: deque[Parcel] = deque()
        self.words: deque[Event] = deque()
        self.markers: deque[tuple[str, Marker]] = deque()
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.sent_ids: list[int] = []
        self.consumed_ids: list[int] = []
        self.images: dict[int, Image] = {}


class Epoch:
    """The coordinator's view of one epoch."""

    def __init__(self, members: frozenset[str], gone: frozenset[str]) -> None:
        self.members = members
        self.gone = gone
        self.records: dict[str, RecordedPart] = {}


class World:
    """A small fleet. `step` makes one random step, `settle` brings every open epoch to its end.

    Attributes:
        messages: by unique id, (sender, receiver, tokens).
        cuts: by epoch, the complete ones. alarms: the orphans that the coordinator saw.
        last_epochs: by agent whose leave is committed, the last epoch it is in.
    """

    core_type: type[EpochStampedCore] = EpochStampedCore

    def __init__(self, random: Random, *, agents: int, tokens: int = 10) -> None:
        self.random = random
        self.agents: dict[str, SimulatedAgent] = {}
        self.channels: dict[tuple[str, str], deque[WaitingMessage | Marker]] = {}
        self.messages: dict[int, tuple[str, str, int]] = {}
        self.begun = 0
        self.open: dict[int, Epoch] = {}
        self.cuts: dict[int, Cut] = {}
        self.alarms: list[tuple[int, tuple[str, str, int, int]]] = []
        self.last_epochs: dict[str, int] = {}
        self.names_taken = 0
        for _ in range(agents):
            self._create_agent(self._new_name(), tokens)
        self._steps = [self._start_turn] * 4 + [self._end_turn] * 4 + [self._drain] * 6 + [self._deliver] * 8
        self._steps += [self._hear] * 3 + [self._record] * 3 + [self._send_marker] * 3 + [self._report] * 5
        self._steps += [self._begin, self._leave, self._commit_leave, self._retire, self._thaw]
        self._rare_steps = [self._abort, self._join]

    def step(self) -> None:
        """Make one random step; it may turn out to be impossible just now, then nothing happens."""
        steps = self._rare_steps if self.random.random() < 0.01 else self._steps
        self.random.choice(steps)()

    def settle(self) -> None:
        """Start no more turns; deliver, record and report until every epoch has ended, or SETTLE_ROUNDS_MAX."""
        for _ in range(SETTLE_ROUNDS_MAX):
            for agent in list(self.agents.values()):
                self._settle_agent(agent)
            for channel in list(self.channels):
                while self.channels[channel]:
                    self._deliver_from(channel)
            if not self.open and not any(agent.words for agent in self.agents.values()):
                return

    def _settle_agent(self, agent: SimulatedAgent) -> None:
        if agent.phase == "gone":
            return
        while agent.words:
            self._hand_in(agent, agent.words.popleft())
        if agent.is_busy:
            self._end_turn_of(agent)
        self._record_agent(agent)
        while agent.markers:
            self._send_marker_of(agent)
        for epoch in agent.core.open_epochs():
            self._take_report(agent, epoch)

    # The host's steps.

    def _pick(self) -> SimulatedAgent:
        return self.random.choice(list(self.agents.values()))

    def _hand_in(self, agent: SimulatedAgent, event: Event) -> None:
        for command in agent.core.handle(0, event):
            match command:
                case RecordState():
                    image = Image(agent.tokens, tuple(agent.outbox), len(agent.sent_ids), len(agent.consumed_ids))
                    agent.images.update(dict.fromkeys(command.epochs, image))
                case SendMarkers():
                    for receiver, number in command.last_numbers.items():
                        agent.markers.append((receiver, Marker(command.epoch, number)))
        agent.core.validate()

    def _start_turn(self) -> None:
        agent = self._pick()
        if agent.phase == "running" and not agent.is_busy and agent.core.owed == agent.core.recorded:
            agent.is_busy = True
            agent.running_message = agent.mailbox.popleft() if agent.mailbox else None

    def _end_turn(self) -> None:
        agent = self._pick()
        if agent.is_busy:
            self._end_turn_of(agent)

    def _end_turn_of(self, agent: SimulatedAgent) -> None:
        message = agent.running_message
        agent.is_busy, agent.running_message = False, None
        if message is not None:
            identity = int(message.payload)
            agent.received[message.channel] = message.number
            agent.consumed_ids.append(identity)
            agent.tokens += self.messages[identity][2]
        if self.random.random() < 0.1 and self.names_taken < AGENTS_MAX:
            child = self._new_name()
            agent.outbox.append(Parcel(child, 0, is_creation=True))
            self._park(agent, child)
        for _ in range(self.random.randrange(3)):
            self._park(agent, self.random.choice(list(self.agents)))

    def _park(self, agent: SimulatedAgent, receiver: str) -> None:
        tokens = self.random.randint(0, agent.tokens)
        agent.tokens -= tokens
        agent.outbox.append(Parcel(receiver, tokens))

    def _drain(self) -> None:
        agent = self._pick()
        if not agent.outbox:
            return
        parcel = agent.outbox.popleft()
        if parcel.is_creation:
            self._create_agent(parcel.receiver, 0)
            return
        identity = len(self.messages)
        self.messages[identity] = (agent.name, parcel.receiver, parcel.tokens)
        agent.sent_ids.append(identity)
        number = agent.sent[parcel.receiver] = agent.sent.get(parcel.receiver, 0) + 1
        message = WaitingMessage(agent.name, number, self._stamp(agent), b"%d" % identity)
        self._channel(agent.name, parcel.receiver).append(message)

    def _stamp(self, agent: SimulatedAgent) -> int:
        return agent.core.recorded

    def _channel(self, sender: str, receiver: str) -> deque[WaitingMessage | Marker]:
        return self.channels.setdefault((sender, receiver), deque())

    def _deliver(self) -> None:
        if self.channels:
            self._deliver_from(self.random.choice(list(self.channels)))

    def _deliver_from(self, channel: tuple[str, str]) -> None:
        sender, receiver = channel
        if not self.channels[channel]:
            return
        item = self.channels[channel].popleft()
        agent = self.agents[receiver]
        if agent.phase == "gone":
            return
        if isinstance(item, Marker):
            self._hand_in(agent, MarkerReceived(sender, item.epoch, item.last_number))
            return
        if item.stamp != agent.core.recorded or self.random.random() < 0.5:  # the host may skip equal stamps
            self._hand_in(agent, MessageArrived(sender, item.number, item.stamp, item.payload))
        agent.mailbox.append(item)

    def _hear(self) -> None:
        agent = self._pick()
        if agent.words and agent.phase != "gone":
            self._hand_in(agent, agent.words.popleft())

    def _record(self) -> None:
        self._record_agent(self._pick())

    def _record_agent(self, agent: SimulatedAgent) -> None:
        if agent.phase != "gone" and not agent.is_busy and agent.core.owed > agent.core.recorded:
            self._hand_in(agent, TurnBoundaryReached(agent.sent, agent.received, tuple(agent.mailbox)))

    def _send_marker(self) -> None:
        agent = self._pick()
        if agent.markers and agent.phase != "gone":
            self._send_marker_of(agent)

    def _send_marker_of(self, agent: SimulatedAgent) -> None:
        receiver, marker = agent.markers.popleft()
        self._channel(agent.name, receiver).append(marker)

    def _thaw(self) -> None:
        """The core is frozen and restored, as in a checkpoint; nothing may change."""
        agent = self._pick()
        image = agent.core.freeze()
        agent.core = self.core_type.restore(image)
        assert agent.core.freeze() == image and hash(agent.core.freeze()) == hash(image), f"{image} does not survive"

    def _report(self) -> None:
        agent = self._pick()
        epochs = agent.core.open_epochs()
        if epochs and agent.phase != "gone":
            self._take_report(agent, self.random.choice(epochs))

    # The coordinator's steps. Words reach each agent late, in the order of the commits.

    def _new_name(self) -> str:
        self.names_taken += 1
        return f"a{self.names_taken}"

    def _create_agent(self, name: str, tokens: int) -> None:
        self.agents[name] = SimulatedAgent(name, self._create_core(name), tokens)

    def _create_core(self, name: str) -> EpochStampedCore:
        return self.core_type(name, recorded=self.begun, unborn_in=self.open)

    def _tell(self, word: Event) -> None:
        for agent in self.agents.values():
            if agent.phase != "gone":
                agent.words.append(word)

    def _begin(self) -> None:
        if len(self.open) < OPEN_EPOCHS_MAX:
            self.begun += 1
            members = frozenset(name for name in self.agents if name not in self.last_epochs)
            self.open[self.begun] = Epoch(members, frozenset(self.last_epochs))
            self._tell(EpochAnnounced(self.begun))

    def _abort(self) -> None:
        if self.open:
            self._end(self.random.choice(list(self.open)))

    def _end(self, epoch: int) -> None:
        del self.open[epoch]
        self._tell(EpochEnded(epoch))

    def _take_report(self, agent: SimulatedAgent, epoch_number: int) -> None:
        epoch = self.open.get(epoch_number)
        if epoch is None or agent.name in epoch.gone:
            return
        epoch.records[agent.name] = agent.core.record_of(epoch_number)
        reports = self._expected_reports(epoch)
        coverage = check_coverage(reports, self._unchecked_receivers(epoch))
        if coverage.orphans:
            self.alarms += [(epoch_number, orphan) for orphan in coverage.orphans]
            self._end(epoch_number)
        elif not coverage.missing and epoch.members <= epoch.records.keys():
            self.cuts[epoch_number] = Cut(epoch.members, epoch.gone, dict(epoch.records))
            self._end(epoch_number)

    def _expected_reports(self, epoch: Epoch) -> dict[str, AgentReport]:
        """The reports so far, and the committed numbers of those who left before."""
        reports = {name: _report_of(name, record) for name, record in epoch.records.items()}
        for name in sorted(epoch.gone):
            agent = self.agents[name]
            reports[name] = AgentReport(name, False, agent.sent, agent.received, {})
        return reports

    def _unchecked_receivers(self, epoch: Epoch) -> frozenset[str]:
        return epoch.gone

    def _join(self) -> None:
        if self.names_taken < AGENTS_MAX:
            self._create_agent(self._new_name(), 0)

    def _leave(self) -> None:
        agent = self._pick()
        running = sum(other.phase == "running" for other in self.agents.values())
        if running > 2 and agent.phase == "running" and not agent.is_busy and self.random.random() < 0.2:
            agent.phase = "leaving"

    def _commit_leave(self) -> None:
        for agent in self.agents.values():
            if agent.phase == "leaving" and not agent.outbox:
                agent.phase = "left"
                self.last_epochs[agent.name] = self.begun
                agent.words.append(LeaveCommitted(self.begun))

    def _retire(self) -> None:
        for agent in self.agents.values():
            if agent.phase == "left" and self._may_go(agent):
                agent.phase = "gone"
                agent.words.clear()

    def _may_go(self, agent: SimulatedAgent) -> bool:
        return all(epoch > self.last_epochs[agent.name] for epoch in self.open)


def _report_of(name: str, record: RecordedPart) -> AgentReport:
    recorded = {channel: len(messages) for channel, messages in record.in_transit.items()}
    return AgentReport(name, record.is_unborn, record.sent, record.received, recorded)
