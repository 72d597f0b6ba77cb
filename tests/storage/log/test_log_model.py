"""Any mixture of hosts, owners, a collector, failing disks, processes that die and power cuts, against a model that is a dict."""

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.storage.log.logging_hosts import LOG, OTHER, make_batch
from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import SimulatedCrashError, SimulatedDisk

from snapline.errors import StoreError
from snapline.storage.log import log_files as writing
from snapline.storage.log.log_record import LogName, PreparedBatch
from snapline.storage.store.store import Store

LOGS = st.sampled_from([LOG, OTHER])
MOMENTS = st.integers(0, 16)
"""Before which of its calls a process dies, or its disk fails; most take eleven."""


class Logs(RuleBasedStateMachine):
    """The model: for each log what its host was told, and whether its end was told to anybody.

    Attributes:
        taken: log → numbers that were acknowledged, and not deleted.
        used: log → the last number that was acknowledged.
        open: log → a batch whose outcome its host does not know.
        refused: logs whose hosts were told that they are sealed.
        sealed: logs whose seal has returned to somebody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.store = make_store(self.disk)
        self.store_id = self.store.store_id
        self.seed = 0
        self.taken: dict[LogName, set[int]] = {LOG: set(), OTHER: set()}
        self.used = {LOG: 0, OTHER: 0}
        self.open: dict[LogName, PreparedBatch] = {}
        self.refused: set[LogName] = set()
        self.sealed: set[LogName] = set()

    def open_store(self) -> Store:
        """Another process."""
        self.seed += 1
        return Store(self.disk, self.store_id, random_bytes=seeded_bytes(self.seed))

    @rule(log=LOGS)
    def append(self, log: LogName) -> None:
        """The host appends its next batch, or the one whose outcome it does not know."""
        prepared = self._next_batch(log)
        if prepared is not None:
            self._told(prepared, self.store.append_batch(prepared))

    @rule(log=LOGS, moment=MOMENTS)
    def append_and_fail(self, log: LogName, moment: int) -> None:
        """So, on a disk that fails."""
        prepared = self._next_batch(log)
        if prepared is None:
            return
        self.disk.fail_at = len(self.disk.calls) + moment
        try:
            self._told(prepared, self.store.append_batch(prepared))
        except StoreError:
            self.open[log] = prepared
        self.disk.fail_at = None

    @rule(log=LOGS, moment=MOMENTS)
    def append_and_die(self, log: LogName, moment: int) -> None:
        """So, and the host's process dies. It comes back, under its old start; the outcome it did not hear is what the log says."""
        prepared = self._next_batch(log)
        if prepared is None:
            return
        self.disk.crash_after = len(self.disk.calls) + moment
        try:
            self._told(prepared, self.store.append_batch(prepared))
        except SimulatedCrashError:
            self.disk.crash_after = None
            self.store = self.open_store()
            self._look(log)
        self.disk.crash_after = None

    @rule(log=LOGS)
    def seal(self, log: LogName) -> None:
        """An owner."""
        self.open_store().seal_log(log)
        self.sealed.add(log)

    @rule(log=LOGS, moment=st.integers(0, 30))
    def seal_and_die(self, log: LogName, moment: int) -> None:
        """So, and dies."""
        self.disk.crash_after = len(self.disk.calls) + moment
        try:
            self.open_store().seal_log(log)
            self.sealed.add(log)
        except SimulatedCrashError:
            pass
        self.disk.crash_after = None

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """The collector: no epoch needs these; or others."""
        places = [(log, number) for log in (LOG, OTHER) for number in sorted(self.taken[log])]
        chosen = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
        for path in self.open_store().delete_batches([*chosen, (LOG, 99)]):
            log, number = next(place for place in chosen if path == f"{place[0].directory}/{place[1]}")
            self.taken[log].remove(number)

    @rule(data=st.data())
    def cut_the_power(self, data: st.DataObject) -> None:
        """All processes end. What was deleted may be there again."""
        images = list(self.disk.images())
        self.disk = images[data.draw(st.integers(0, len(images) - 1))]
        self.store = self.open_store()
        for log in (LOG, OTHER):
            self._look(log)

    @invariant()
    def what_was_acknowledged_is_found(self) -> None:
        """By any reader, in its own words. On a copy: a reader makes durable what it finds."""
        reader = Store(self.disk.copy(), self.store_id)
        logs = {log: set(numbers) for log, numbers in reader.read_logs().items()}
        for log, numbers in self.taken.items():
            assert numbers <= logs.get(log, set())
            for number in logs.get(log, set()):
                batch = reader.read_batch(log, number)
                assert batch in (None, make_batch(number))
                assert batch is not None or number not in numbers

    @invariant()
    def what_is_sealed_takes_nothing(self) -> None:
        """Tried on a copy: it must not change what is tried next."""
        copy = Store(self.disk.copy(), self.store_id, random_bytes=seeded_bytes(1000 + self.seed))
        for log in self.sealed:
            prepared = self.open.get(log)
            following = self.used[log] + 1
            if prepared is None or not copy.append_batch(prepared):
                assert not copy.append_batch(copy.prepare_batch(log, following, make_batch(following)))
            else:
                assert not copy.append_batch(copy.prepare_batch(log, following + 1, make_batch(following + 1)))

    def teardown(self) -> None:
        """The store is whole."""
        assert Store(self.disk, self.store_id).verify().findings == []

    def _next_batch(self, log: LogName) -> PreparedBatch | None:
        if log in self.refused:
            return None
        number = self.used[log] + 1
        return self.open.pop(log, None) or self.store.prepare_batch(log, number, make_batch(number))

    def _told(self, prepared: PreparedBatch, is_taken: bool) -> None:
        log = prepared.log
        if is_taken:
            assert log not in self.sealed or self._is_there(prepared), "a sealed log has taken something"
            self.taken[log].add(prepared.number)
            self.used[log] = prepared.number
        else:
            self.refused.add(log)

    def _look(self, log: LogName) -> None:
        """A host that has come back reads what its log holds: that counts from now on."""
        self.open.pop(log, None)
        for number in self.store.read_logs().get(log, []):
            if self.store.read_batch(log, number) is None:
                continue
            self.taken[log].add(number)
            self.used[log] = max(self.used[log], number)

    def _is_there(self, prepared: PreparedBatch) -> bool:
        """It had come that far before the seal."""
        return self.disk.read(prepared.path, 0, len(prepared.data)) == prepared.data


QUICK = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_logs_keep_their_promises() -> None:
    run_state_machine_as_test(Logs, settings=QUICK)


def forget_syncs(self: writing.LogWriter, log: LogName) -> None:
    self._known_directories.add(log)
    for directory in ("log", log.directory.rpartition("/")[0], log.directory):
        try:
            self._disk.make_directory(directory)
        except FileExistsError:
            continue


def jump(self: writing.LogWriter, log: LogName, number: int) -> int:
    assert self._create_seal(log, number + 3)
    return number + 3


def believe(self: writing.LogWriter, prepared: PreparedBatch) -> bool:
    append(self, prepared)
    return True


def believe_the_name(self: writing.LogWriter, prepared: PreparedBatch) -> bool:
    """A batch that is there is durable."""
    nodes = self._disk.nodes  # type: ignore[attr-defined]  # of the simulated disk
    node = nodes.get(prepared.path)
    return (node is not None and node.data == prepared.data) or append(self, prepared)


append = writing.LogWriter.append

MUTANTS: dict[str, list[tuple[object, str, object]]] = {
    "nothing is sealed below": [
        (writing.LogWriter, "_seal_below", lambda self, log, top: None),
        (writing.LogWriter, "_seal_above", jump),
    ],
    "no sync of new directories": [(writing.LogWriter, "_prepare_directory", forget_syncs)],
    "a name that is taken is ours": [(writing.LogWriter, "append", believe)],
    "a batch that is there is durable": [(writing.LogWriter, "append", believe_the_name)],
}


SEED = 8
"""Of the hunt. Some mutant takes hundreds of examples, and how many depends on the modules that are loaded, from which Hypothesis takes constants."""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, attribute, mutant in MUTANTS[name]:
        monkeypatch.setattr(place, attribute, mutant)
    hunting = settings(QUICK, max_examples=10_000, database=None, phases=[Phase.generate])
    hunted = seed(SEED)(type("Hunted", (Logs,), {}))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(hunted, settings=settings(hunting, report_multiple_bugs=False))
