"""Drives one host core, `h1` unless the test says otherwise, by hand: events in, commands out. Its peer `h2` is a bare link that the test speaks for."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.modes.coordinated import CoordinatedMode
from snapline.agent_runtime.host.modes.logged import LoggedMode
from snapline.channels import link_events as lk
from snapline.channels.link import LinkCore
from snapline.messages import host_messages as msg
from snapline.messages.past_rollbacks import PastRollback
from snapline.storage.log.log_record import LoggedEntry, LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint

MS = 1_000_000
SECOND = 1_000_000_000

_Command = TypeVar("_Command", bound=ev.HostOutput)


class Remote:
    """The other end of the link to `h2`.

    Attributes:
        heard: what h1's link delivered, in order: ("item", channel, payload, stamp) or ("marker", epoch, numbers).
        opened: h1's channels: number → (sender, receiver, first number).
        credits: the newest credit that h1 told, by channel of h2.
    """

    def __init__(self, plan: int, peer: str) -> None:
        self.link = LinkCore(
            cluster="c", host="h2", host_start=1, peer=peer, peer_start=1, plan=plan, is_dialler=peer > "h2"
        )
        self.now = 0
        self.heard: list[tuple[object, ...]] = []
        self.opened: dict[int, tuple[str, str, int]] = {}
        self.credits: dict[int, int] = {}
        self.channels: dict[tuple[str, str], int] = {}

    def carry(self, commands: Iterable[lk.Command]) -> list[lk.Command]:
        left: list[lk.Command] = []
        for command in commands:
            match command:
                case lk.AcceptChannel():
                    self.opened[command.channel] = (command.sender, command.receiver, command.first_number)
                case lk.DeliverItems():
                    stamps = command.epochs if len(command.epochs) > 1 else command.epochs * len(command.channels)
                    rows = zip(command.channels, command.payloads, stamps, strict=True)
                    self.heard.extend(("item", self.opened[channel][:2], *rest) for channel, *rest in rows)
                    self.carry(self.link.handle(self.now, lk.ItemsConsumed(len(stamps), 0, [], [])))
                case lk.DeliverMarker():
                    names = [self.opened[channel][:2] for channel in command.channels]
                    numbers = dict(zip(names, command.last_numbers, strict=True))
                    self.heard.append(("marker", command.epoch, numbers))
                case lk.RaiseCredit():
                    self.credits.update(zip(command.channels, command.numbers, strict=True))
                case _:
                    left.append(command)
        return left

    def send(self, sender: str, receiver: str, *payloads: bytes, stamp: int = 0, incarnation: int = 1) -> None:
        channel = self.channels.get((sender, receiver))
        if channel is None:
            channel = self.channels[sender, receiver] = len(self.channels) + 1
            self.open(channel, sender, receiver, 1, incarnation)
        count = len(payloads)
        self.carry(self.link.handle(self.now, lk.ItemsSent([channel] * count, list(payloads), [stamp])))

    def open(self, channel: int, sender: str, receiver: str, first_number: int, incarnation: int = 1) -> None:
        self.channels[sender, receiver] = channel
        opened = lk.ChannelOpened(channel, sender, receiver, 1, incarnation, first_number)
        self.carry(self.link.handle(self.now, opened))

    def mark(self, epoch: int, numbers: Mapping[tuple[str, str], int]) -> None:
        channels = [self.channels[names] for names in numbers]
        self.carry(self.link.handle(self.now, lk.MarkerSent(epoch, channels, list(numbers.values()))))


class Driver:
    """See the module.

    Attributes:
        said: every command so far.
        turns: turns that are running: agent → its StartTurn.
    """

    def __init__(
        self,
        *,
        here: Iterable[str] = ("a", "b"),
        there: Iterable[str] = ("z",),
        checkpoints: Mapping[str, AgentCheckpoint] | None = None,
        begun: int = 0,
        plan: int = 1,
        starts: bool = True,
        protocol: str = "",
        host: str = "h1",
        is_local: bool = False,
    ) -> None:
        options: dict[str, Any] = {"protocol": protocol, "is_local": is_local}
        self.core = HostCore(host, **{name: value for name, value in options.items() if value})  # modules replace it
        self.host = host
        self.now = 0
        self.said: list[ev.HostOutput] = []
        self.turns: dict[str, ev.StartTurn] = {}
        self.remote = Remote(plan, host)
        self.plan = plan
        self.is_connected = False
        self.here = tuple(here)
        self.there = tuple(there)
        self.checkpoints = dict(checkpoints or {})
        self.feed(msg.Welcome(1, "c"))
        self.feed(msg.Roster((msg.RosterEntry(host, "", 1), msg.RosterEntry("h2", "", 1))))
        self.receive_plan(plan, begun)
        self.load(plan)
        if starts:
            for agent in [agent for agent, turn in self.turns.items() if turn.what == "start"]:
                self.end(agent)

    # ---- events -----------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Heard, after_ns: int = MS) -> list[ev.HostOutput]:
        self.now += after_ns
        commands = self.core.handle(self.now, event)
        self.said += commands
        for command in commands:
            match command:
                case ev.StartTurn():
                    assert command.agent not in self.turns, f"two turns of {command.agent} at once"
                    self.turns[command.agent] = command
                case ev.CancelTurns():
                    self.turns.clear()
                case ev.CaptureState():
                    assert command.agent not in self.turns, f"{command.agent} is captured in the middle of a turn"
        self.core.validate()
        return commands

    def receive_plan(
        self, plan: int, begun: int = 0, line: int = 0, rollbacks: tuple[PastRollback, ...] = ()
    ) -> list[ev.HostOutput]:
        if plan > self.plan:
            self.plan, self.remote, self.is_connected = plan, Remote(plan, self.host), False
        placements = [ev.Placement(agent, "k", self.host, plan) for agent in self.here]
        placements += [ev.Placement(agent, "k", "h2", plan) for agent in self.there]
        received = ev.PlanReceived(plan, line, "", begun, (self.host, "h2"), tuple(placements), rollbacks=rollbacks)
        return self.feed(received)

    def load(
        self,
        plan: int,
        *inputs: LoggedInput,
        dropped: tuple[LoggedInput, ...] = (),
        entries: tuple[LoggedEntry, ...] = (),
        passed_ns: int = 0,
    ) -> list[ev.HostOutput]:
        loaded = [ev.LoadedAgent(agent, plan, self.checkpoints.get(agent), passed_ns) for agent in self.here]
        return self.feed(ev.AgentsLoaded(plan, tuple(loaded), inputs, dropped, entries))

    @property
    def logged(self) -> tuple[LoggedEntry, ...]:
        """What host logs hold of durable turns."""
        return tuple([entry for batch in self.all_of(ev.AppendBatch) for entry in batch.entries])

    def end(self, agent: str, *sends: tuple[str, bytes], **outcome: object) -> list[ev.HostOutput]:
        """The running turn of `agent` ends well."""
        turn = self.turns.pop(agent)
        return self.feed(ev.TurnEnded(agent, turn.incarnation, list(sends), **outcome))  # type: ignore[arg-type]

    def fail(self, agent: str, error: str = "ValueError: no", **outcome: object) -> list[ev.HostOutput]:
        turn = self.turns.pop(agent)
        return self.feed(ev.TurnFailed(agent, turn.incarnation, error, 5, **outcome))  # type: ignore[arg-type]

    def wake(self, agent: str = "a") -> None:
        """Give an idle agent a turn from outside its channels."""
        self.remote_sends("z", agent, b"\x01w")

    def end_all(self) -> None:
        """End turns, without sends, until none runs."""
        while self.turns:
            self.end(next(iter(self.turns)))

    # ---- the link ---------------------------------------------------------------------------------------------------

    def connect(self, attempt: int = 1) -> None:
        self.is_connected = True
        self.feed(ev.StreamOpened("h2", attempt))
        self.remote.link.handle(self.now, lk.StreamOpened(attempt))
        self.pump()

    def disconnect(self) -> None:
        self.is_connected = False
        self.feed(ev.StreamClosed("h2"))
        self.remote.link.handle(self.now, lk.StreamClosed())

    def pump(self) -> None:
        """Carry frames both ways until both sides have said all."""
        for _ in range(10_000):
            self.remote.now = self.now
            ours, theirs = self.core.peers["h2"].link, self.remote.link
            assert ours is not None
            if ours.wants_write:
                for command in self.feed(ev.WriteReady("h2")):
                    if isinstance(command, ev.WriteFrame):
                        self.remote.carry(theirs.handle(self.now, lk.FrameReceived(command.frame)))
            elif theirs.wants_write:
                for written in theirs.handle(self.now, lk.WriteReady()):
                    assert isinstance(written, lk.WriteFrame)
                    self.feed(ev.FrameReceived("h2", written.frame))
            else:
                return
        raise AssertionError("the link does not come to rest")

    def flush(self) -> None:
        """End the batch and let everything arrive at the other host, acks and credits too."""
        if not self.is_connected:
            self.connect()
        self.feed(ev.BatchEnded())
        self.pump()
        self.now += 30 * MS
        self.remote.link.handle(self.now, lk.TimerFired())
        self.feed(ev.TimerFired())
        self.pump()

    def remote_sends(self, sender: str, receiver: str, *payloads: bytes, stamp: int = 0) -> None:
        if not self.is_connected:
            self.connect()
        self.remote.send(sender, receiver, *payloads, stamp=stamp, incarnation=self.plan)
        self.pump()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def all_of(self, kind: type[_Command]) -> list[_Command]:
        return [command for command in self.said if isinstance(command, kind)]

    def last(self, kind: type[_Command]) -> _Command:
        return self.all_of(kind)[-1]

    def captures(self, agent: str) -> list[ev.CaptureState]:
        return [capture for capture in self.all_of(ev.CaptureState) if capture.agent == agent]

    def items(self) -> list[tuple[object, ...]]:
        """What h2 got: (sender, receiver), payload, stamp."""
        return [row[1:] for row in self.remote.heard if row[0] == "item"]

    def notes(self) -> str:
        return "\n".join(note.text for note in self.all_of(ev.Note))


def coordinated(core: HostCore) -> CoordinatedMode:
    assert isinstance(core.mode, CoordinatedMode)
    return core.mode


def logged(core: HostCore) -> LoggedMode:
    assert isinstance(core.mode, LoggedMode)
    return core.mode


def checkpoint(agent: str, **fields: object) -> AgentCheckpoint:
    """A checkpoint of a started agent, of epoch 3."""
    return AgentCheckpoint(agent=agent, kind="k", epoch=3, **{"is_started": True, **fields})  # type: ignore[arg-type]
