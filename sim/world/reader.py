"""Reader of all outputs of a simulated fleet, with a cursor.

Sometimes the reader crashes and resumes from a saved cursor. Its outputs at the end are compared with the files.
"""

from collections.abc import Callable

from snapline.errors import SnaplineError
from snapline.sim.oracles.outputs import ReadRelease
from snapline.sim.scenario import reads_outputs
from snapline.sim.world.world_state import WorldState
from snapline.storage.store.store import Store

READ_NS = 60_000_000
DIES_ONE_IN, STOPS_ONE_IN = 5, 6


class SimReader:
    """Reader of outputs; see the module."""

    def __init__(self, shared: WorldState, store: Store, is_damaged: Callable[[], bool]) -> None:
        """`is_damaged` returns whether a fault has damaged files of the store."""
        self._shared = shared
        self._store = store
        self._is_damaged = is_damaged
        self._reads = 0
        self._had: list[ReadRelease] = []
        self._cursor = ""
        self._saved: tuple[list[ReadRelease], str] = [], ""

    def start(self) -> None:
        """Start reading without waiting for the fleet."""
        if reads_outputs(self._shared.scenario):
            self._later()

    def _later(self) -> None:
        self._shared.call_at(self._shared.kernel.now_ns + READ_NS, self._read)

    def _read(self) -> None:
        self._reads += 1
        if self._is_one_in(DIES_ONE_IN, "dies"):
            self._had, self._cursor = list(self._saved[0]), self._saved[1]
        self.read()
        if self._is_one_in(STOPS_ONE_IN, "writes down"):
            self._saved = list(self._had), self._cursor
        self._later()

    def read(self) -> list[ReadRelease]:
        """Read all outputs available now; return all releases read."""
        try:
            for batch in self._store.read_outputs(self._cursor):
                if batch.undone is not None:
                    after = batch.undone.after
                    self._had = [each for each in self._had if each.epoch <= after]
                outputs = [(x.agent, x.number, x.topic.encode() + b" " + x.payload) for x in batch.outputs]
                self._had.append(ReadRelease(batch.epoch, outputs))
                self._cursor = str(batch.end)
        except SnaplineError as error:
            if not self._is_damaged():
                self._shared.say("reader", "R2", f"a reader of outputs at {self._cursor!r} was told: {error}")
        return self._had

    def _is_one_in(self, n: int, what: str) -> bool:
        return self._shared.choices.pick("outputs", ("reader", what, self._reads), n) == n - 1
