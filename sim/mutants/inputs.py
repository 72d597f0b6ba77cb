"""Seeded bugs around inputs from outside and the host log (R1), and answers to them (R2)."""

from typing import Any

from msgspec.structs import replace

from snapline.agent_runtime.host import driver, log_files
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.agent_inputs import AgentInputs, PendingInput
from snapline.agent_runtime.host.host_log import OwnLog
from snapline.agent_runtime.host.inputs import Inputs
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.reply_waiters import ReplyWaiters
from snapline.coordinator.service import log_sweeper
from snapline.messages.inputs import ACCEPTED, InputOutcome
from snapline.sim.world.patches import Patch
from snapline.storage.log.garbage import find_garbage
from snapline.storage.log.names import entry_path
from snapline.storage.log.reader import holds_batch
from snapline.storage.packs.checkpoint import NO_INPUTS, SavedInputs
from snapline.storage.store import files
from snapline.storage.store.store import Store


def acknowledged_early() -> list[Patch]:
    """Acknowledge when the batch leaves, not when it is durable."""
    original = OwnLog.append

    def append(self: OwnLog) -> None:
        original(self)
        assert isinstance(self._inputs, Inputs)
        for batch in self._batches.values():
            for pending in batch:
                if isinstance(pending, PendingInput):
                    self._inputs._answer(pending, InputOutcome(ACCEPTED, pending.input.number))

    return [(OwnLog, "append", append)]


def not_sealed() -> list[Patch]:
    """The logs of earlier plans are read, and their hosts may go on writing there."""

    def read_unsealed(store: Store, command: ev.LoadAgents, agents: Any) -> Any:
        return log_files.read_logs(_Unsealed(store), command, agents)  # type: ignore[arg-type]  # on purpose

    return [(driver, "read_logs", read_unsealed)]


class _Unsealed:
    """A store in which nothing is ever sealed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def seal_log(self, log: Any) -> None:
        """Not done."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def present_sealed() -> list[Patch]:
    """Seal all logs when a host comes to a plan, also those of the plan itself: a host that has begun to write there is deaf from then on."""

    def read_all_sealed(store: Store, command: ev.LoadAgents, agents: Any) -> Any:
        for log in store.read_logs():
            store.seal_log(log)
        return log_files.read_logs(store, command, agents)

    return [(driver, "read_logs", read_all_sealed)]


def seals_deleted() -> list[Patch]:
    """Garbage of earlier plans goes with its seals, which are marked as made."""
    sweep = log_sweeper.LogSweeper.sweep

    def with_seals(self: log_sweeper.LogSweeper, command: Any) -> None:
        sweep(self, command)
        disk = self._store._disk
        for log, numbers in self._store.read_logs().items():
            paths = [entry_path(log, number) for number in numbers if log.plan < command.plan]
            files.unlink(disk, [path for path in paths if not holds_batch(disk, path)])

    return [(log_sweeper.LogSweeper, "sweep", with_seals)]


def retry_taken_for_another() -> list[Patch]:
    """A batch that an earlier try has brought into the log counts as somebody else's: the log as sealed."""
    create = files.create_or_compare

    def create_alone(disk: Any, path: str, data: bytes, *, point: str, **more: Any) -> bool:
        if create(disk, path, data, point=point, **more) and point == "store.log.batch":
            raise FileExistsError(path)
        return False

    return [(files, "create_or_compare", create_alone)]


def log_not_read() -> list[Patch]:
    """A plan gives agents nothing of what earlier plans took."""

    def nothing(*_: object) -> log_files.LogContents:
        return log_files.LogContents()

    return [(driver, "read_logs", nothing)]


def number_not_saved() -> list[Patch]:
    """Checkpoints do not say which inputs their agent has consumed."""

    def saved(self: AgentInputs) -> SavedInputs:
        return NO_INPUTS

    return [(AgentInputs, "saved", saved)]


def keys_not_saved() -> list[Patch]:
    """Checkpoints hold the number alone."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed)

    return [(AgentInputs, "saved", saved)]


def newest_key_forgotten() -> list[Patch]:
    """The window of keys is cut on its wrong side."""

    def forget(self: AgentInputs) -> None:
        while len(self.keys) > 3:
            self.keys.popitem()

    return [(AgentInputs, "_forget_keys", forget)]


def log_unknown_to_plans() -> list[Patch]:
    """A host writes without asking the coordinator for a log, so later plans do not seal one that they do not find."""

    def open_at_once(self: OwnLog) -> None:
        self._is_open = True
        self.append()

    return [(OwnLog, "_open", open_at_once)]


def all_batches_deleted() -> list[Patch]:
    """Without a look at what epochs hold; hosts do not notice that numbers are missing, and go on with those that they find."""

    def everything(batches: Any, *_: object) -> Any:
        return [(batch.log, batch.number) for batch in batches]

    return [(log_sweeper, "find_garbage", everything), *_gaps_unnoticed()]


def deleted_at_the_newest_epoch() -> list[Patch]:
    """A batch goes when the newest epoch covers it: that one may yet be condemned."""

    def at_the_newest(batches: Any, epochs: Any, left: Any, turns: Any, settled: Any) -> Any:
        newest = max(epochs, default=0)
        kept = {epoch: numbers for epoch, numbers in epochs.items() if epoch == newest}
        ended = {epoch: numbers for epoch, numbers in turns.items() if epoch == newest}
        return find_garbage(batches, kept, left, ended, settled)

    return [(log_sweeper, "find_garbage", at_the_newest), *_gaps_unnoticed()]


def _gaps_unnoticed() -> list[Patch]:
    add = AgentInputs.add

    def add_any(self: AgentInputs, logged: Any, *, is_durable: bool) -> Any:
        self.consumed += logged.number - self.numbered - 1
        self.numbered = logged.number - 1
        return add(self, logged, is_durable=is_durable)

    def unchecked(*_: object) -> None:
        """Not looked at."""

    return [(log_files, "_check_whole", unchecked), (AgentInputs, "add", add_any)]


def answered_early() -> list[Patch]:
    """Report answers at the end of the turn, as if they were final."""
    original = ReplyWaiters._answer

    def answer(self: ReplyWaiters, agent: LocalAgent, place: Any) -> None:
        assert agent.inputs is not None
        agent.inputs.released = agent.inputs.consumed
        original(self, agent, place)

    return [(ReplyWaiters, "_answer", answer)]


def released_to_the_present() -> list[Patch]:
    """A complete epoch releases what was answered until now, not what it holds."""
    original = ReplyWaiters.epoch_ended

    def epoch_ended(self: ReplyWaiters, event: Any) -> None:
        for name in event.agents:
            agent = self._shared.agents.get(name)
            if agent is not None and agent.inputs is not None:
                agent.inputs.released = agent.inputs.consumed
        original(self, event)

    return [(ReplyWaiters, "epoch_ended", epoch_ended)]


def replies_not_saved() -> list[Patch]:
    """Checkpoints hold the keys of consumed inputs, and not what was answered."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed, [replace(known, reply=b"") for known in self.keys.values()])

    return [(AgentInputs, "saved", saved)]
