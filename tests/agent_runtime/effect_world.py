"""One host with one agent that pays outside, in a world of its own: the production core, turns and checkpoints; a service that keeps a ledger of keys; and crashes at
every point. Everything that happens is drawn from a seed.

The books here are the world's own: what was released, what the service was asked and did.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec

import snapline
from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.fleet import restored
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import Capture, checkpoint_of
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages import host_messages as msg
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.payloads import split_message
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

STEPS_MAX = 20_000
MS = 1_000_000

REFUSED_MAX = 3
"""Of one key: a compensation is tried four times."""


class CrashError(BaseException):
    """The host dies at this instant."""


class RefusedError(Exception):
    """The service says no, or its answer is lost."""


class Service:
    """A payment service. `does`: what it has really done, in order; `done`: by key, as a service that `honours` keys does it once."""

    def __init__(self) -> None:
        self.honours = True
        self.done: dict[str, str] = {}
        self.does: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda key: None
        self.after: Callable[[str], None] = lambda key: None

    def do(self, what: str, key: str) -> str:
        """Once for each key; asked again, it says the same again."""
        self.before(key)
        self.calls.append(key)
        if key not in self.done or not self.honours:
            self.done[key] = f"receipt of {what}"
            self.does.append((key, what))
        self.after(key)
        return self.done[key]


service = Service()
"""Compensations are found by their names, so what they use is global. A world brings its own."""


def pay(trip: int, what: str, *, key: str) -> str:
    return service.do(f"{trip} {what}", key)


async def pay_in_time(trip: int, what: str, *, key: str) -> str:
    return service.do(f"{trip} {what}", key)


def take_back(trip: int, what: str, *, key: str) -> None:
    service.do(f"{trip} {what} back", key)


def lose(trip: int, what: str, *, key: str) -> str:
    """It is done, and nobody hears of it."""
    service.do(f"{trip} {what}", key)
    raise RefusedError("the answer is lost")


def find(trip: int, what: str, *, key: str) -> str | None:
    service.before(key)
    return service.done.get(key)


class World:
    """See the module.

    Attributes:
        line: the newest complete epoch's checkpoint; lines: of all there were.
        logs: what host logs hold of durable turns.
        released: the ledger as readers have it.
        problems: what the world has seen that must not be.
    """

    def __init__(self, fleet: snapline.Fleet, seed: int, *, crashes: int = 0, failures: float = 0.0) -> None:
        global service
        service = self.service = Service()
        service.before, service.after = self._before, self._after
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.crashes = crashes
        self.failures = failures
        self.line = b""
        self.lines: list[bytes] = []
        self.epoch = self.plan = 0
        self.logs: list[LoggedEntry] = []
        self.released: list[EffectRecord] = []
        self.released_number = 0
        self.problems: list[str] = []
        self.refused: dict[str, int] = {}
        self.now = 0
        self._boot()

    # ---- the run --------------------------------------------------------------------------------------------------

    def run(self) -> "World":
        """Until nothing is left to do."""
        for _ in range(STEPS_MAX):
            actions = self._actions()
            if not actions:
                return self
            try:
                if self.crashes and self.chance.random() < 0.05:
                    raise CrashError
                self.chance.choice(actions)()
            except CrashError:
                self.crashes -= 1
                for task in self.tasks:
                    task.close()
                self._boot()
        raise AssertionError("it does not end")

    def _actions(self) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        if self.queue:
            actions.append(self._turn)
        if self.tasks:
            actions.append(self._task)
        if self.is_wanted and not self.stored and self.complete is None:
            actions.append(self._begin)
        if self.opening:
            actions.append(self._open_log)
        if self.batch is not None:
            actions.append(self._append)
        if self.stored:
            actions.append(self._complete)
        if self.complete is not None:
            actions.append(self._release)
        outputs = self.core.agents["a"].outputs
        if not actions and outputs is not None and outputs.pending:
            actions.append(self._begin)  # as by the clock
        return actions

    def _boot(self) -> None:
        """A new host takes over, from the line."""
        self.plan += 1
        self.core = HostCore("h1")
        self.queue: list[ev.StartTurn] = []
        self.tasks: list[Any] = []
        self.captures: dict[int, Capture] = {}
        self.stored: dict[int, AgentCheckpoint] = {}
        self.complete: int | None = None
        self.is_wanted = self.opening = False
        self.batch: ev.AppendBatch | None = None
        self.turns = Turns(self.fleet, self.feed, _ignore, _Stub(self), start=self._start, step_ended=self.feed)
        kind = "tests.effects:Payer"
        self.turns.welcomed("c")
        self.feed(msg.Welcome(self.plan, "c"))
        place = ev.Placement("a", kind, "h1", self.plan)
        line = decode_checkpoint(self.line) if self.line else None
        begun = line.epoch if line is not None else 0
        self.feed(ev.PlanReceived(self.plan, begun, "", self.epoch, ("h1",), (place,)))
        is_early = self.chance.random() < 0.5
        if line is not None and is_early:
            self._tell_release(line)
        self.turns.add("a", restored(self.fleet, line) if line is not None else self.fleet.make("a"))
        ended = line.ended_turns if line is not None else 0
        logged = tuple([each for each in self.logs if each.turn > ended])
        self.feed(ev.AgentsLoaded(self.plan, (ev.LoadedAgent("a", self.plan, line),), entries=logged))
        if line is not None and not is_early:
            self.complete = line.epoch

    # ---- what happens ---------------------------------------------------------------------------------------------

    def feed(self, event: ev.Heard) -> None:
        """Hand it to the core, and carry out what it says."""
        self.now += MS
        for command in self.core.handle(self.now, event):
            self._carry(command)
        self.core.validate()

    def _carry(self, command: ev.HostOutput) -> None:
        match command:
            case ev.StartTurn():
                self.queue.append(command)
            case ev.RunStep():
                self.turns.run_step(command)
            case ev.UndoTurn():
                self.turns.undo("a")
            case msg.WantEpoch():
                self.is_wanted = True
            case msg.OpenLog():
                self.opening = True
            case ev.AppendBatch():
                self.batch = command
            case ev.CaptureState():
                known, version, image = self.turns.capture("a")
                for epoch in command.epochs:
                    self.captures[epoch] = Capture(known, version, image, command.control, 0, 0)
            case ev.StoreEpoch():
                found = checkpoint_of("a", command.records["a"], self.captures[command.epoch], [])
                self.stored[command.epoch] = found

    def _append(self) -> None:
        """Written, and then acknowledged, unless the host dies in between."""
        batch, self.batch = self.batch, None
        assert batch is not None
        self.logs.extend(batch.entries)
        self._may_die()
        self.feed(ev.BatchAppended(batch.log, batch.number))

    def _open_log(self) -> None:
        self.opening = False
        self.feed(msg.LogOpened(self.plan))

    def _start(self, coroutine: Any) -> Any:
        self.tasks.append(coroutine)

    def _turn(self) -> None:
        ended = self.turns.run(self.queue.pop(0))
        assert ended is not None
        self.feed(ended)

    def _task(self) -> None:
        task = self.tasks.pop(self.chance.randrange(len(self.tasks)))
        try:
            task.send(None)
        except StopIteration:
            return
        raise AssertionError("a task waits")

    def _begin(self) -> None:
        self.is_wanted = False
        self.epoch += 1
        self.feed(msg.BeginEpoch(self.epoch, self.plan, ("h1",)))

    def _complete(self) -> None:
        ((epoch, found),) = self.stored.items()
        self.stored.clear()
        self.feed(ev.EpochStored(epoch, self.plan))
        if self.chance.random() < 0.1:
            self.feed(msg.EndEpoch(epoch, False, "aborted"))
            return
        self.line = encode_checkpoint(found)
        self.lines.append(self.line)
        self.complete = epoch
        self.feed(msg.EndEpoch(epoch, True))

    def _release(self) -> None:
        self.complete = None
        self._tell_release(decode_checkpoint(self.line))

    def _tell_release(self, line: AgentCheckpoint) -> None:
        """It is written before anybody is told; again it is the same."""
        for output in line.outputs.pending:
            if output.number > self.released_number and output.topic == EFFECTS_TOPIC:
                self.released.append(msgspec.msgpack.decode(split_message(output.payload)[1], type=EffectRecord))
        number = line.outputs.number
        self.released_number = max(self.released_number, number)
        if number:
            self.feed(msg.EndEpoch(line.epoch, True, emitters=("a",), outputs=(number,)))

    # ---- the service ----------------------------------------------------------------------------------------------

    def _before(self, key: str) -> None:
        if not any(record.stage == "intent" and record.outside_key == key for record in self.released):
            self.problems.append(f"{key} was called before its intent was released")
        if any(
            key == "c/a/" + each.entry.sender.removesuffix("#1") and each.entry.outcome == DONE for each in self.logs
        ):
            self.problems.append(f"{key} was called although a host log knows what came of it")
        self._may_die()
        self._may_refuse(key, "not now")

    def _after(self, key: str) -> None:
        self._may_die()
        self._may_refuse(key, "the answer is lost")

    def _may_refuse(self, key: str, why: str) -> None:
        if self.refused.get(key, 0) < REFUSED_MAX and self.chance.random() < self.failures:
            self.refused[key] = self.refused.get(key, 0) + 1
            raise RefusedError(why)

    def _may_die(self) -> None:
        if self.crashes and self.chance.random() < 0.1:
            raise CrashError


class _Stub(TurnEnvironment):
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        return self._world.now

    def random(self) -> float:
        return self._world.chance.random()

    async def step(self, name: str, function: Callable[[], Any]) -> Any:
        found = function()
        return await found if hasattr(found, "__await__") else found

    async def pause(self, seconds: float) -> None:
        pass

    async def limited(self, running: Any, seconds: float) -> Any:
        return await running


def _ignore(_text: str) -> None:
    pass
