"""Seeded bugs around inputs from outside and the host log (R1)."""

from typing import Any

from snapline.agent_runtime.host import carrier, log_files
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.agent_inputs import AgentInputs
from snapline.agent_runtime.host.inputs import ACCEPTED, Inputs
from snapline.coordinator.service import log_sweeper
from snapline.coordinator.service.log_sweeper import LogSweeper
from snapline.sim.world.patches import Patch
from snapline.storage.packs.checkpoint import NO_INPUTS, SavedInputs
from snapline.storage.store.store import Store


def acknowledged_early() -> list[Patch]:
    """When the batch leaves, not when it is durable."""
    original = Inputs._append

    def append(self: Inputs) -> None:
        original(self)
        for batch in self._batches.values():
            for pending in batch:
                self._answer(pending, ev.InputAnswer(ACCEPTED, pending.input.number))

    return [(Inputs, "_append", append)]


def taken_early() -> list[Patch]:
    """The turn does not wait until the batch is durable."""
    original, deliver = Inputs._append, Inputs._deliver
    early: dict[int, None] = {}

    def append(self: Inputs) -> None:
        known = dict(self._batches)
        original(self)
        for place, batch in list(self._batches.items()):
            if place not in known:
                for pending in batch:
                    early[id(pending.input)] = None
                    pending.is_durable = True
                    deliver(self, pending.input)

    def later(self: Inputs, logged: Any) -> None:
        if early.pop(id(logged), 0) == 0:
            deliver(self, logged)

    return [(Inputs, "_append", append), (Inputs, "_deliver", later)]


def not_sealed() -> list[Patch]:
    """The logs of earlier plans are read, and their hosts may go on writing there."""

    def read_unsealed(store: Store, command: ev.LoadAgents, agents: Any) -> Any:
        return log_files.read_logs(_Unsealed(store), command, agents)  # type: ignore[arg-type]  # on purpose

    return [(carrier, "read_logs", read_unsealed)]


SEALED = 10**9
"""A number that no log reaches."""


class _Unsealed:
    """A store in which nothing is ever sealed, and everything looks so."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read_logs(self) -> Any:
        return {log: [*numbers, SEALED] for log, numbers in self._store.read_logs().items()}

    def seal_log(self, log: Any) -> None:
        """Not done."""

    def read_batch(self, log: Any, number: int) -> Any:
        return None if number == SEALED else self._store.read_batch(log, number)


def log_not_read() -> list[Patch]:
    """A plan gives agents nothing of what earlier plans took."""

    def nothing(*_: object) -> tuple[()]:
        return ()

    return [(carrier, "read_logs", nothing)]


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

    def forget(self: AgentInputs, newest_ns: int) -> None:
        while len(self.keys) > 3:
            self.keys.popitem()

    return [(AgentInputs, "_forget_keys", forget)]


def log_unknown_to_plans() -> list[Patch]:
    """A host writes without asking the coordinator for a log, so later plans do not seal one that they do not find."""

    def open_at_once(self: Inputs) -> None:
        self._is_open = True
        self._append()

    return [(Inputs, "_open", open_at_once)]


def all_batches_deleted() -> list[Patch]:
    """Without a look at what epochs hold; hosts do not notice that numbers are missing, and go on with those that they find."""

    def everything(batches: Any, *_: object) -> Any:
        return [(batch.log, batch.number) for batch in batches]

    return [(log_sweeper, "find_garbage", everything), *_gaps_unnoticed()]


def _gaps_unnoticed() -> list[Patch]:
    add = AgentInputs.add

    def add_any(self: AgentInputs, logged: Any, *, is_durable: bool) -> Any:
        self.consumed += logged.number - self.numbered - 1
        self.numbered = logged.number - 1
        return add(self, logged, is_durable=is_durable)

    def unchecked(*_: object) -> None:
        """Not looked at."""

    return [(log_files, "_check_whole", unchecked), (AgentInputs, "add", add_any)]


def only_newest_epoch_counts() -> list[Patch]:
    """Batches go that the newest epoch does not need; it may yet be condemned."""
    original = LogSweeper._read_inputs

    def newest(self: LogSweeper, epochs: dict[int, str]) -> dict[int, dict[str, int]]:
        found = original(self, epochs)
        return {max(found): found[max(found)]} if found else {}

    return [(LogSweeper, "_read_inputs", newest)]
