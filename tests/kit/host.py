"""One run of a host: the production core, turns and agents; a store, a coordinator and streams that the fleet plays."""

from collections import deque
from typing import TYPE_CHECKING

from snapline.agent_runtime.fleet import restored
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import Capture
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.channels.frame import Frame
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

if TYPE_CHECKING:
    from tests.kit.fleet import FleetWorld

SLOW_TURNS = 0.15
"""So many turns take their time: the handler has run, its end is reported later."""


class _VirtualOutside(TurnEnvironment):
    """Time and chance of handlers, from the seed."""

    def __init__(self, world: "FleetWorld") -> None:
        self._of = world

    def now_ns(self) -> int:
        return self._of.now_ns

    def random(self) -> float:
        return self._of.random.random()


class Host:
    """See the module.

    Attributes:
        queue: turns that may start. running: turns whose end is still to be reported.
        directives: words of the coordinator that it has not heard yet.
        captures: by epoch, what was captured and is not stored. writing: checkpoints that are not durable yet.
        frozen: what it says when all of `writing` is durable.
        wakeup_ns: that of the core, which only events change.
    """

    def __init__(self, world: "FleetWorld", name: str, start: int) -> None:
        self.world = world
        self.name = name
        self.start = start
        self.core = HostCore(name, protocol=world.fleet.protocol, policy=world.fleet.policy)
        self.core.shared.trace_every = world.trace_every
        self.turns = Turns(world.fleet, self.feed, world.warnings.append, _VirtualOutside(world))
        self.queue: deque[ev.StartTurn] = deque()
        self.running: list[ev.TurnEnded | ev.TurnFailed] = []
        self.captures: dict[int, dict[str, Capture]] = {}
        self.writing: deque[AgentCheckpoint] = deque()
        self.frozen: ev.ReportFrozen | None = None
        self.dialled: dict[str, int] = {}
        self.directives: deque[ev.Heard] = deque()
        self.frame: Frame | None = None
        self.wakeup_ns = self.core.wakeup_ns

    def feed(self, event: ev.Heard) -> None:
        for command in self.core.handle(self.world.now_ns, event):
            self._carry(command)
        self.wakeup_ns = self.core.wakeup_ns

    def run_turn(self) -> None:
        ended = self.turns.run(self.queue.popleft())
        assert isinstance(ended, ev.TurnEnded | ev.TurnFailed), "agents of this world must not await"
        if self.world.random.random() < SLOW_TURNS:
            self.running.append(ended)
        else:
            self.feed(ended)

    def end_turn(self) -> None:
        self.feed(self.running.pop(self.world.random.randrange(len(self.running))))

    def _carry(self, command: ev.HostOutput) -> None:
        world = self.world
        match command:
            case ev.StartTurn():
                self.queue.append(command)
            case ev.WriteFrame():
                self.frame = command.frame
            case ev.UndoTurn():
                self.turns.undo(command.agent)
            case ev.CaptureState():
                self._capture(command)
            case ev.TakeCheckpoint():
                self._take(command)
            case ev.StoreEpoch():
                world.store_epoch(self, command)
            case ev.DropEpoch():
                self.captures.pop(command.epoch, None)
            case ev.CancelTurns():
                self._cancel()
            case ev.LoadAgents():
                self._load(command)
            case ev.ForgetAgent():
                self.turns.forget(command.agent)
            case ev.DialPeer():
                self.dialled[command.peer] = self.dialled.get(command.peer, 0)
            case ev.KnockAtPeer():
                world.streams.knocks.append((command.peer, command.hello))
            case ev.UndialPeer():
                self.dialled.pop(command.peer, None)
                world.cut(self.name, command.peer)
            case ev.CloseStream() | ev.RefuseStream():
                world.cut(self.name, command.peer)
            case ev.ReportFrozen():
                self.frozen = command
            case ev.Trace():
                # Under an older plan it is undone already by one that is committed.
                if self.core.plan == world.plan and command.what != "checkpoint":
                    world.note_message(command)
            case _:
                world.ask_coordinator(self, command)

    def _cancel(self) -> None:
        """A plan: what was under way is void."""
        for waiting in (self.queue, self.running, self.writing):
            waiting.clear()
        self.frozen = None
        self.turns.forget_all()

    def _check_at_rest(self, agent: str) -> None:
        assert agent not in [ended.agent for ended in self.running], f"{agent} is recorded in the middle of a turn"

    def _capture(self, command: ev.CaptureState) -> None:
        self._check_at_rest(command.agent)
        if command.control.is_born:
            known, version, image = self.turns.capture(command.agent)
            for epoch in command.epochs:
                found = Capture(known, version, image, command.control, self.world.now_ns, 0)
                self.captures.setdefault(epoch, {})[command.agent] = found
        self._note_checkpoint(command.agent, command.control.number, "basic")

    def _take(self, command: ev.TakeCheckpoint) -> None:
        self._check_at_rest(command.agent)
        known, version, image = self.turns.capture(command.agent)
        control = command.control
        checkpoint = AgentCheckpoint(
            agent=command.agent, kind=known.kind, incarnation=control.incarnation, number=control.number, epoch=0,
            basis=command.basis, round=command.round, is_started=control.is_started,
            is_leaving=control.is_leaving, state=image.skeleton, state_type=known.state_name, state_version=version,
            state_fields=known.state_fields, sent=command.sent, received=command.received,
            protocol_state=control.protocol_state, sender_log=command.log, outbox=control.outbox,
            spawns=control.spawns, timers=control.timers, dead_letters=control.dead_letters,
            dead_letter_count=control.dead_letter_count, turns=command.turns,
        )  # fmt: skip
        self.writing.append(decode_checkpoint(encode_checkpoint(checkpoint)))
        if command.basis in ("basic", "forced"):
            self._note_checkpoint(command.agent, control.number, command.basis)

    def _note_checkpoint(self, agent: str, number: int, kind: str) -> None:
        if self.core.plan == self.world.plan:
            self.world.note_checkpoint(agent, number, kind)

    def _load(self, command: ev.LoadAgents) -> None:
        line = self.world.lines.get(command.line_epoch, {})
        loaded = []
        for place in command.agents:
            checkpoint = line.get(place.agent)
            if checkpoint is None:
                self.turns.add(place.agent, self.world.fleet.make(place.agent))
            elif not checkpoint.is_unborn:
                self.turns.add(place.agent, restored(self.world.fleet, checkpoint))
            loaded.append(ev.LoadedAgent(place.agent, place.incarnation, checkpoint))
        self.directives.append(ev.AgentsLoaded(command.plan, tuple(loaded)))
