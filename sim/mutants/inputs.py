"""Seeded bugs of client inputs and the host log (R1), and of answers (R2)."""

from typing import Any

from msgspec.structs import replace

from snapline.agent_runtime.host import driver, epoch_files
from snapline.agent_runtime.host import host_events
from snapline.agent_runtime.host.agent_io import AgentInputs, PendingInput
from snapline.agent_runtime.host.host_log import OwnLog
from snapline.agent_runtime.host.inputs import Inputs, ReplyWaiters
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.coordinator.service import log_sweeper
from snapline.messages.client_requests import ACCEPTED, InputOutcome
from snapline.sim.world.product_patches import Patch
from snapline.storage.disk import store_files
from snapline.storage.log.log_deletions import find_garbage
from snapline.storage.log.log_files import holds_batch
from snapline.storage.log.log_record import entry_path
from snapline.storage.packs.checkpoint import NO_INPUTS, SavedInputs
from snapline.storage.store.store import Store


def acknowledged_early() -> list[Patch]:
    """Acknowledge inputs when their batch is written, not when it is durable."""
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
    """Read the logs of earlier plans without sealing them, so that their hosts may continue to write."""

    def read_unsealed(store: Store, command: host_events.LoadAgents, agents: Any) -> Any:
        return epoch_files.read_logs(_Unsealed(store), command, agents)  # type: ignore[arg-type]  # on purpose

    return [(driver, "read_logs", read_unsealed)]


class _Unsealed:
    """Store that never seals a log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def seal_log(self, log: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def present_sealed() -> list[Patch]:
    """Seal all logs when a host starts a plan, even those of the plan itself. Hosts that write to them then accept no inputs."""

    def read_all_sealed(store: Store, command: host_events.LoadAgents, agents: Any) -> Any:
        for log in store.read_logs():
            store.seal_log(log)
        return epoch_files.read_logs(store, command, agents)

    return [(driver, "read_logs", read_all_sealed)]


def seals_deleted() -> list[Patch]:
    """Delete the seals of earlier plans' logs together with their garbage."""
    sweep = log_sweeper.LogSweeper.sweep

    def with_seals(self: log_sweeper.LogSweeper, command: Any) -> None:
        sweep(self, command)
        disk = self._store._disk
        for log, numbers in self._store.read_logs().items():
            paths = [entry_path(log, number) for number in numbers if log.plan < command.plan]
            store_files.unlink(disk, [path for path in paths if not holds_batch(disk, path)])

    return [(log_sweeper.LogSweeper, "sweep", with_seals)]


def retry_taken_for_another() -> list[Patch]:
    """Take a batch that an earlier attempt has written for one of another host, and so the log for sealed."""
    create = store_files.create_or_compare

    def create_alone(disk: Any, path: str, data: bytes, *, point: str, **more: Any) -> bool:
        if create(disk, path, data, point=point, **more) and point == "store.log.batch":
            raise FileExistsError(path)
        return False

    return [(store_files, "create_or_compare", create_alone)]


def log_not_read() -> list[Patch]:
    """Give agents no inputs that earlier plans accepted."""

    def nothing(*_: object) -> epoch_files.LogContents:
        return epoch_files.LogContents()

    return [(driver, "read_logs", nothing)]


def input_number_not_saved() -> list[Patch]:
    """Save no number of consumed inputs in checkpoints."""

    def saved(self: AgentInputs) -> SavedInputs:
        return NO_INPUTS

    return [(AgentInputs, "saved", saved)]


def keys_not_saved() -> list[Patch]:
    """Save only the number of consumed inputs in checkpoints, without keys."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed)

    return [(AgentInputs, "saved", saved)]


def newest_key_forgotten() -> list[Patch]:
    """Forget the newest keys instead of the oldest."""

    def forget(self: AgentInputs) -> None:
        while len(self.keys) > 3:
            self.keys.popitem()

    return [(AgentInputs, "_forget_keys", forget)]


def log_unknown_to_plans() -> list[Patch]:
    """Write a log without registering it at the coordinator, so that later plans do not seal it."""

    def open_at_once(self: OwnLog) -> None:
        self._is_open = True
        self.append()

    return [(OwnLog, "_open", open_at_once)]


def all_batches_deleted() -> list[Patch]:
    """Delete batches that epochs still need. Hosts ignore missing numbers."""

    def everything(batches: Any, *_: object) -> Any:
        return [(batch.log, batch.number) for batch in batches]

    return [(log_sweeper, "find_garbage", everything), *_input_gaps_unnoticed()]


def deleted_at_the_newest_epoch() -> list[Patch]:
    """Delete a batch when the newest epoch covers it, although that epoch may still turn out to be damaged."""

    def at_the_newest(batches: Any, epochs: Any, left: Any, turns: Any, settled: Any) -> Any:
        newest = max(epochs, default=0)
        kept = {epoch: numbers for epoch, numbers in epochs.items() if epoch == newest}
        ended = {epoch: numbers for epoch, numbers in turns.items() if epoch == newest}
        return find_garbage(batches, kept, left, ended, settled)

    return [(log_sweeper, "find_garbage", at_the_newest), *_input_gaps_unnoticed()]


def _input_gaps_unnoticed() -> list[Patch]:
    add = AgentInputs.add

    def add_any(self: AgentInputs, logged: Any, *, is_durable: bool) -> Any:
        self.consumed += logged.number - self.numbered - 1
        self.numbered = logged.number - 1
        return add(self, logged, is_durable=is_durable)

    def unchecked(*_: object) -> None:
        """Check nothing."""

    return [(epoch_files, "_check_whole", unchecked), (AgentInputs, "add", add_any)]


def answered_early() -> list[Patch]:
    """Report answers at the end of the turn, as if they were final."""
    original = ReplyWaiters._answer

    def answer(self: ReplyWaiters, agent: LocalAgent, place: Any) -> None:
        assert agent.inputs is not None
        agent.inputs.released = agent.inputs.consumed
        original(self, agent, place)

    return [(ReplyWaiters, "_answer", answer)]


def released_to_the_present() -> list[Patch]:
    """Release all answers so far when an epoch completes, not only those that it covers."""
    original = ReplyWaiters.epoch_ended

    def epoch_ended(self: ReplyWaiters, event: Any) -> None:
        for name in event.agents:
            agent = self._shared.agents.get(name)
            if agent is not None and agent.inputs is not None:
                agent.inputs.released = agent.inputs.consumed
        original(self, event)

    return [(ReplyWaiters, "epoch_ended", epoch_ended)]


def replies_not_saved() -> list[Patch]:
    """Save the keys of consumed inputs in checkpoints, without the answers."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed, [replace(known, reply=b"") for known in self.keys.values()])

    return [(AgentInputs, "saved", saved)]
