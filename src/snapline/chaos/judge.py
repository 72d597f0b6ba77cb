"""Judges a fleet of real processes by its store alone, and remembers what each complete epoch held.

| guarantee | oracle | condition for each complete epoch |
| --- | --- | --- |
| G1 | `orphan` | it has no received message whose send is not in it |
| G2 | `channel-state` | of each channel exactly the numbers received + 1 … sent are in transit, in order |
| G3 | `workload` | the workload's sums, or the user's invariant, hold; at the end all work is done once |
| G4 | `outcome` | its root never changes, and the newest epoch never goes back |
| G4 | `durable` | it is readable, unless a fault has damaged it |

Oracles have the same names as those of the simulator with the same check.
"""

from collections.abc import Callable, Mapping

from snapline.agent_runtime.snapshots.cut import Cut, load_cut
from snapline.errors import SnaplineError
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans
from snapline.sim.result import Violation
from snapline.sim.workloads.workload import Workload
from snapline.storage.disk import layout
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store

VIOLATIONS_MAX = 10
"""Largest number of violations that are kept; the first ones are the most useful."""


class StoreJudge:
    """Judges epochs repeatedly while the fleet runs, before the coordinator prunes them.

    Attributes:
        violations: violations so far.
        judged: epochs judged so far.
        newest: cut of the newest judged epoch.
    """

    def __init__(self, location: str, workload: Workload, now_ns: Callable[[], int]) -> None:
        self._location = location
        self._workload = workload
        self._now_ns = now_ns
        self._store: Store | None = None
        self._roots: dict[int, str] = {}
        self.violations: list[Violation] = []
        self.judged: list[int] = []
        self.newest: Cut | None = None

    def look(self, damaged: list[str]) -> None:
        """Judge new epochs. `damaged`: files that a fault has changed; epochs that need them may be unreadable."""
        store = self._opened()
        if store is None:
            return
        epochs = store.epochs()
        if self.judged and (not epochs or epochs[-1] < self.judged[-1]):
            self._add_violation(
                "outcome", "G4", f"epoch {self.judged[-1]} was complete, and the newest is {epochs[-1:] or 'none'}"
            )
        for epoch in epochs:
            try:
                self._judge_epoch(store, epoch, damaged)
            except SnaplineError as error:
                if epoch in store.epochs() and not damaged:
                    self._add_violation("durable", "G4", f"epoch {epoch} is complete and cannot be read: {error}")

    def conclude(self, damaged: list[str], *, is_ended: bool) -> None:
        """Judge the store after the fleet's end. `is_ended`: the fleet ended by itself, so all its work must be done."""
        self.look(damaged)
        store = self._opened()
        if store is None:
            return
        findings = store.verify().findings
        if findings and not damaged:
            self._add_violation("durable", "G4", f"the store is damaged: {findings[0]}")
        if is_ended and self._workload.ends and self.newest is not None:
            self._check("workload", self._workload.check_end(self.newest.states))

    def flippable(self) -> tuple[str, ...]:
        """Return the files of the newest complete epoch; none unless an older epoch is intact."""
        store = self._opened()
        epochs = store.epochs() if store is not None else []
        if store is None or len(epochs) < 2 or epochs[-1] not in self.judged or epochs[-2] not in self.judged:
            return ()
        try:
            root = store.read_ref(epochs[-1])
            packs = [pack.path for pack in store.read_manifest(root, epoch=epochs[-1]).packs]
        except SnaplineError:
            return ()
        return (layout.ref_path(epochs[-1]), layout.manifest_path(root), *packs)

    def _opened(self) -> Store | None:
        """Return the store; None before the fleet has created it."""
        if self._store is None:
            try:
                self._store = Store.open(self._location)
            except SnaplineError:
                return None
        return self._store

    def _judge_epoch(self, store: Store, epoch: int, damaged: list[str]) -> None:
        root = store.read_ref(epoch)
        if self._roots.setdefault(epoch, root) != root:
            self._add_violation("outcome", "G4", f"epoch {epoch} was {self._roots[epoch]}, and is {root}")
        if epoch in self.judged:
            return
        manifest = store.read_manifest(root, epoch=epoch)
        checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
        cut = load_cut(store, epoch, self._workload.fleet)
        for oracle, guarantee, text in channel_problems(checkpoints):
            self._add_violation(oracle, guarantee, f"epoch {epoch}: {text}")
        problem = self._workload.check_cut(cut)
        self._check("workload", problem and f"epoch {epoch}: {problem}")
        self.judged.append(epoch)
        self.newest = cut

    def _check(self, oracle: str, problem: str | None) -> None:
        if problem:
            self._add_violation(oracle, "G3", problem)

    def _add_violation(self, oracle: str, guarantee: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(oracle, guarantee, self._now_ns(), text))


def channel_problems(checkpoints: Mapping[str, AgentCheckpoint]) -> list[tuple[str, str, str]]:
    """Return (oracle, guarantee, description) of the message faults of one cut. Agents outside the cut have left and are ignored."""
    cut = {agent: DependencyRecord(checkpoint.sent, checkpoint.received) for agent, checkpoint in checkpoints.items()}
    named = {name for record in cut.values() for name in (*record.sent, *record.received)}
    gone = named - set(cut)
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, checkpoint in checkpoints.items()
        for sender, messages in checkpoint.in_transit.items()
        if messages and sender not in gone
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut, gone=gone).items()}
    problems = [("orphan", "G1", str(orphan)) for orphan in orphans(cut, gone=gone)]
    for sender, agent in sorted({*saved, *expected}):
        actual, wanted = saved.get((sender, agent), []), expected.get((sender, agent), [])
        if actual != wanted:
            problems.append(
                ("channel-state", "G2", f"{sender} → {agent} holds {actual} as in transit, and {wanted} is")
            )
    return problems
