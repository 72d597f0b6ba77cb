"""Scenario scripts of the whole host: events in, commands out, as text (`tests/scenarios/host/*.txt`).

    python -m tests.agent_runtime.host_script [--rewrite] FILE…    check scripts, or renew their traces

The form is that of `tests/kit/golden.py`. Hosts, streams and the coordinator that stands in are those of `tests/kit`; here nothing
is drawn by chance: a turn, a word of the coordinator, a frame come when the script says so. A trace has one line for each
command of a host, `h1: …`, and `h1 <- …` is what it heard besides what stands in the script. A frame shows its control items,
each message as `channel:text@stamp` or `…+piggyback`, and acks and credits; not its windows. Channels have credit for 4 messages here.

    fleet agents=a,x,b [hosts=2] [protocol=chandy-lamport]     a goes to h1, x to h2, b to h1 …
    running [busy=a,b] [links=no]  every host applies the plan, and agents have started, but for those whose first turn is to
                                   come yet; between all hosts are links: shown is nothing of that
    hear h1,h2                     all that the coordinator (or the loading of a line) has for these hosts so far
    turn a send=b:m1,x:m2          a's turn, which the host has asked for, runs, and does nothing else; it may also
                                   spawn=c, checkpoint=yes, stop=yes, and fail=why at its end
    carry                          batches end, streams open, and frames go both ways until all is said
    pass 500                       so many milliseconds
    begin; round a                 the coordinator begins an epoch; a koo-toueg round, with this initiator
    stored h1 epoch=1              the host's part of an epoch is durable
    durable h1                     so are the checkpoints that its agents have taken
    answer                         the coordinator comes to the oldest question of a host
    fail                           a failure is noticed: a new plan, or first a freeze
    frozen h1                      the coordinator takes the word of a host that stands still
"""

import itertools
import random
import sys

import msgspec
import pytest
from tests.kit.fleet import FleetWorld
from tests.kit.golden import main, names_of, run_script, show
from tests.kit.host import Host
from tests.kit.logged_fleet import LoggedFleet

import snapline
from snapline.agent_runtime.host import channel_ends
from snapline.agent_runtime.host import host_events as ev
from snapline.channels import channel
from snapline.channels.frame import Frame, Items, Marker, OpenChannel, decode_control
from snapline.channels.link_events import LinkIdentity
from snapline.messages import host_messages as msg
from snapline.messages.payloads import CREATE
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.protocols.names import is_autonomous, is_logged
from snapline.sim.script.script_text import ScriptCommand
from snapline.storage.packs.checkpoint import NO_INPUTS, NO_OUTPUTS, AgentCheckpoint, DeadLetterRecord

CREDIT = 4
HEX_BYTES_MAX = 8
SAY = b"\x03Say"

PLANNED: dict[str, dict[str, str]] = {}
"""What the next turn of an agent does."""


class Say(snapline.Message):
    text: str


class Heard(msgspec.Struct):
    texts: list[str] = []


class Actor(snapline.Agent):
    """Does what the script says."""

    state: Heard
    on_error = "undo"
    retries = (0.5,)

    async def on_start(self, ctx: snapline.Context) -> None:
        self._act(ctx)

    @snapline.handler
    def on_say(self, message: Say, ctx: snapline.Context) -> None:
        self.state.texts.append(message.text)
        self._act(ctx)

    def _act(self, ctx: snapline.Context) -> None:
        plan = PLANNED.pop(ctx.agent, {})
        for child in plan["spawn"].split(",") if "spawn" in plan else ():
            ctx.spawn(child, Actor(Heard()))
        for receiver, _, text in [part.partition(":") for part in plan["send"].split(",")] if "send" in plan else ():
            ctx.send(receiver, Say(text))
        if "checkpoint" in plan:
            ctx.checkpoint()
        if "stop" in plan:
            ctx.stop()
        if "fail" in plan:
            raise ValueError(plan["fail"])


class ScriptedHost(Host):
    """Writes down what its core wants done; the world's list of warnings takes it, in the order of all hosts."""

    def feed(self, event: ev.Heard) -> None:
        heard = _heard(event)
        if heard:
            self.world.warnings.append(f"    {self.name} <- {heard}")
        super().feed(event)
        self.core.validate()

    def _carry(self, command: ev.HostOutput) -> None:
        self.world.warnings.append(f"{self.name}: {show(command, _short)}")
        super()._carry(command)


class Certain(random.Random):
    """Nothing comes late, and of all that could be chosen the last one is."""

    def random(self) -> float:
        return 0.99


class ScriptedFleet:
    """Hosts whose commands are written down; they are told what a script says."""

    def __init__(self, command: ScriptCommand) -> None:
        options = command.options
        PLANNED.clear()
        protocol = options.get("protocol", "chandy-lamport")
        agents = {agent: Actor(Heard()) for agent in options["agents"].split(",")}
        triggers = [snapline.Manual()] if is_autonomous(protocol) else []
        made = snapline.Fleet("scripted", agents=agents, protocol=protocol, triggers=triggers)
        kind = LoggedFleet if is_logged(protocol) else FleetWorld
        self.world: FleetWorld = kind(made, int(options.get("hosts", "2")), 0, host_class=ScriptedHost)
        self.world.random = Certain()
        self.trace = self.world.warnings
        self.trace.clear()  # every host was welcomed

    def hosts(self, command: ScriptCommand | None = None) -> list[Host]:
        return [self.world.hosts[name] for name in (names_of(command) if command else self.world.names)]

    # ---- commands of a script ---------------------------------------------------------------------------------------

    def do_running(self, command: ScriptCommand) -> None:
        everybody = msgspec.structs.replace(command, words=(",".join(self.world.names),))
        self.do_hear(everybody)  # the plan
        self.do_hear(everybody)  # its agents
        busy = command.options.get("busy", "").split(",")
        for host in self.hosts():
            for turn in [turn for turn in host.queue if turn.agent not in busy]:
                self._run(host, turn)
        self.do_durable(everybody)
        if command.options.get("links") != "no":
            self._link_all()
        self.do_carry(command)
        self.trace.clear()

    def _link_all(self) -> None:
        for host, other in itertools.combinations(self.hosts(), 2):
            shared = host.core.shared
            knock = LinkIdentity(shared.cluster, other.name, other.start, host.name, host.start, shared.plan).hello(
                0, 0, 0
            )
            host.feed(ev.PeerKnocked(knock))

    def do_hear(self, command: ScriptCommand) -> None:
        for host in self.hosts(command):
            for _ in range(len(host.directives)):
                host.feed(host.directives.popleft())

    def do_turn(self, command: ScriptCommand) -> None:
        agent = command.words[0]
        for host in self.hosts():
            for turn in [turn for turn in host.queue if turn.agent == agent]:
                PLANNED[agent] = command.options
                self._run(host, turn)
                return
        raise command.error(f"no host has asked for a turn of {agent}")

    def _run(self, host: Host, turn: ev.StartTurn) -> None:
        host.queue.remove(turn)
        host.queue.appendleft(turn)
        host.run_turn()

    def do_carry(self, command: ScriptCommand) -> None:
        for _ in range(2):  # who is knocked at dials then
            for host in self.hosts():
                for dial in list(self.world.streams.dials(host)):
                    dial()
            while self._carry_one():
                pass

    def _carry_one(self) -> bool:
        for host in self.hosts():
            if host.core.has_batch:
                host.feed(ev.BatchEnded())
        action = next(self.world.streams.actions(), None)
        if action is not None:
            action()
        return action is not None

    def do_pass(self, command: ScriptCommand) -> None:
        self.world.now_ns += int(command.words[0]) * 1_000_000
        for host in self.hosts():
            if host.core.wakeup_ns is not None and host.core.wakeup_ns <= self.world.now_ns:
                host.feed(ev.TimerFired())

    def do_begin(self, command: ScriptCommand) -> None:
        self.world.begin_epoch()

    def do_stored(self, command: ScriptCommand) -> None:
        for host in self.hosts(command):
            host.feed(ev.EpochStored(int(command.options["epoch"]), self.world.plan))

    def do_answer(self, command: ScriptCommand) -> None:
        self.world.answer()

    def do_fail(self, command: ScriptCommand) -> None:
        self.world.fail()

    # ---- logged fleets ------------------------------------------------------------------------------------------------

    @property
    def logged(self) -> LoggedFleet:
        assert isinstance(self.world, LoggedFleet)
        return self.world

    def do_durable(self, command: ScriptCommand) -> None:
        for host in self.hosts(command):
            while host.writing:
                self.logged.write(host)

    def do_round(self, command: ScriptCommand) -> None:
        self.logged.begin_round(names_of(command))

    def do_frozen(self, command: ScriptCommand) -> None:
        for host in self.hosts(command):
            self.logged.take_frozen(host)


# ---- text -------------------------------------------------------------------------------------------------------------


def _heard(event: ev.Heard) -> str:
    """Empty for what stands in the script itself."""
    match event:
        case ev.TurnEnded() | ev.TurnFailed() | ev.BatchEnded() | ev.WriteReady() | ev.TimerFired() | ev.EpochStored():
            return ""
        case ev.FrameReceived():
            return f"a frame of {event.peer}"
    return show(event, _short)


def _short(value: object) -> str | None:
    match value:
        case bytes():
            return _text(value)
        case Frame():
            return _frame(value)
        case AgentCheckpoint():
            names = ("number", "is_unborn", "is_leaving", "sent", "received", "in_transit", "outbox", "dead_letters")
            return _brief(value, names)
        case ev.Control() | RecordedPart():
            return _brief(value, value.__struct_fields__)
        case msg.AgentKind():
            return value.agent
        case DeadLetterRecord():
            return f"{_text(value.payload)} of {value.sender}"  # its error is a traceback
        case ev.Note():
            return f"{value.level}: {value.text}"
    return None


_NOTHING: tuple[object, ...] = (None, False, 0, "", b"", [], {}, (), NO_INPUTS, NO_OUTPUTS)


def _brief(value: msgspec.Struct, names: tuple[str, ...]) -> str:
    """What there is of these fields."""
    fields = {name: getattr(value, name) for name in names}
    found = [f"{name}={show(field, _short)}" for name, field in fields.items() if field not in _NOTHING]
    return f"{type(value).__name__}({', '.join(found)})"


def _text(payload: bytes) -> str:
    if payload.startswith(SAY):
        return str(msgspec.msgpack.decode(payload[len(SAY) :], type=Say).text)
    if payload.startswith(CREATE) and b":Actor" in payload:
        return "create Actor"
    return payload.hex() or "''" if len(payload) <= HEX_BYTES_MAX else f"{len(payload)} bytes"


def _frame(frame: Frame) -> str:
    body = frame.body
    parts = [] if isinstance(body, Items | None) else [f"{type(body).__name__}"]
    if isinstance(body, Items):
        stamps = body.epoch if len(body.epoch) > 1 else body.epoch * len(body.channel)
        piggybacks = body.piggyback or [b""] * len(body.channel)
        parts += [_item(*row) for row in zip(body.channel, body.payload, stamps, piggybacks, strict=True)]
    if frame.credit_channel:
        parts.append(f"credit {dict(zip(frame.credit_channel, frame.credit_number, strict=True))}")
    parts += [f"ack {frame.ack}"] if frame.ack else []
    return f"[{', '.join(parts)}]"


def _item(number: int, payload: bytes, stamp: int, piggyback: bytes) -> str:
    if number:
        return f"{number}:{_text(payload)}@{stamp}" + (f"+{piggyback.hex()}" if piggyback else "")
    match decode_control(payload):
        case OpenChannel() as opened:
            return f"open {opened.channel} {opened.sender}→{opened.receiver} from {opened.first_number}"
        case Marker() as marker:
            return f"marker {marker.epoch} {dict(zip(marker.channels, marker.last_numbers, strict=True))}"
        case closed:
            return show(closed)


def renew(text: str) -> str:
    """The script with its traces renewed."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (channel, channel_ends):
            patch.setattr(module, "CHANNEL_CREDIT", CREDIT)
        return run_script(text, "fleet", ScriptedFleet)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], renew))
