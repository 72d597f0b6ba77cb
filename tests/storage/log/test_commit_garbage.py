"""No commit is deleted that a recovery could need, even if the newest epoch is damaged; void commits are deleted."""

from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import Phase, given, settings
from tests.storage.log.logging_hosts import LOG

from snapline.storage.log import log_files
from snapline.storage.log.log_files import BatchNumbers, CommitBase, base_of, batch_numbers, find_garbage
from snapline.storage.log.log_record import CommitPart, LogBatch, LoggedInput, LogName
from snapline.storage.packs.manifest import Metadata


def about(epoch: int, plan: int, **floors: int) -> Metadata:
    return Metadata(epoch=epoch, plan=plan, log_floors={name.replace("_", "-"): x for name, x in floors.items()})


BASE, NEWEST = about(8, 2, h1_1=2), about(9, 3, h1_1=5)


@pytest.mark.parametrize(
    ("epochs", "era", "wanted"),
    [
        ([], 0, []),
        ([NEWEST], 0, []),
        ([BASE, NEWEST], 0, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]),
        ([NEWEST, about(1, 1), BASE], 0, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]),
        ([about(8, 2, h1_2=2, h2_1=2), NEWEST], 0, [(1, 1), (1, 2), (1, 3)]),
        ([NEWEST], 2, [(1, 1), (1, 2), (1, 3)]),
        ([BASE, NEWEST], 3, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]),
        ([], 3, []),
    ],
)
def test_the_second_newest_epoch_covers_commits_and_the_era_voids_them(
    epochs: list[Metadata], era: int, wanted: list[tuple[int, int]]
) -> None:
    batches = [BatchNumbers(LogName(plan, "h1", 1), x, {}, has_commit=True) for plan in (1, 2, 3) for x in (1, 2, 3)]
    known = {metadata.epoch: metadata for metadata in epochs}
    found = find_garbage(batches, {epoch: {} for epoch in known}, {}, base=base_of(known, era))
    assert [(log.plan, number) for log, number in found] == wanted


def test_a_covered_commit_stays_with_an_input_that_an_epoch_needs() -> None:
    part = CommitPart(1, 0, True, b"")
    both = batch_numbers(LOG, 1, LogBatch([LoggedInput("a", 1, "c", "k", b"", 0)], saved_commits=[part]))
    alone = batch_numbers(LOG, 2, LogBatch(saved_commits=[part]))
    assert both.has_commit and alone.has_commit and not batch_numbers(LOG, 3, LogBatch()).has_commit
    base = CommitBase(LOG.plan + 1)
    assert find_garbage([both, alone], {5: {}}, {}, base=base) == [(LOG, 2)]
    assert find_garbage([both, alone], {5: {"a": 1}}, {}, base=base) == [(LOG, 1), (LOG, 2)]
    assert find_garbage([both, alone], {5: {"a": 1}}, {}) == []


# ---- against a small fleet --------------------------------------------------------------------------------------------

HOSTS = {"h1": ("a", "b"), "h-2": ("c",)}
AGENTS = [agent for agents in HOSTS.values() for agent in agents]
Versions = dict[str, int]


class Cut(msgspec.Struct):
    """An epoch. `is_complete` is false from a damage or a restore on."""

    about: Metadata
    versions: Versions
    is_complete: bool = True


class World:
    """A fleet with local recovery. Each change gives an agent a higher version than any before."""

    def __init__(self) -> None:
        self.plan, self.era, self.changes = 1, 0, 0
        self.versions: Versions = dict.fromkeys(AGENTS, 0)
        self.changed: dict[str, None] = {}
        self.batches: dict[tuple[LogName, int], Versions] = {}
        self.deleted: dict[tuple[LogName, int], Versions] = {}
        self.cuts: list[Cut] = []
        self.parts: dict[str, tuple[Versions, int]] = {}
        self.is_damage_tolerated = False

    def step(self, action: str, agent: str) -> None:
        host = next(host for host, agents in HOSTS.items() if agent in agents)
        match action:
            case "change":
                self.changes += 1
                self.versions[agent] = self.changes
                self.changed[agent] = None
            case "commit":
                log = LogName(self.plan, host, 1)
                changed = [x for x in HOSTS[host] if x in self.changed]
                self.batches[log, self.last(log) + 1] = {x: self.versions[x] for x in changed}
                self.changed = {x: None for x in self.changed if x not in changed}
            case "record":
                self.record(host)
            case "fail":
                self.go_back(self.points(self.complete[-1:], self.everything))
            case "damage" if self.is_damage_tolerated:
                self.complete[-1].is_complete, self.is_damage_tolerated = False, False
            case "restore" if self.complete:
                target = self.complete[self.changes % len(self.complete)]
                for cut in self.complete:
                    cut.is_complete = cut.about.epoch <= target.about.epoch
                self.go_back(target.versions)
                self.era = self.plan

    def last(self, log: LogName) -> int:
        return max((number for known, number in self.everything if known == log), default=0)

    @property
    def everything(self) -> dict[tuple[LogName, int], Versions]:
        return {**self.deleted, **self.batches}

    @property
    def complete(self) -> list[Cut]:
        return [cut for cut in self.cuts if cut.is_complete]

    def record(self, host: str) -> None:
        """The host's part of an epoch, which is complete with the last part."""
        if host in self.parts:
            return
        self.parts[host] = {x: self.versions[x] for x in HOSTS[host]}, self.last(LogName(self.plan, host, 1))
        if len(self.parts) == len(HOSTS):
            floors = {f"{name}-1": floor for name, (_, floor) in self.parts.items() if floor}
            versions = {x: version for part, _ in self.parts.values() for x, version in part.items()}
            number = len(self.cuts) + 1
            self.cuts.append(Cut(Metadata(epoch=number, plan=self.plan, log_floors=floors), versions))
            self.parts, self.is_damage_tolerated = {}, len(self.complete) > 1

    def go_back(self, versions: Versions) -> None:
        self.plan, self.versions, self.parts, self.changed = self.plan + 1, dict(versions), {}, {}

    def points(self, line: list[Cut], batches: Mapping[tuple[LogName, int], Versions]) -> Versions:
        """Where a recovery from this epoch, or from the initial states, takes the agents."""
        found = dict(line[0].versions) if line else dict.fromkeys(AGENTS, 0)
        for (log, _), versions in batches.items():
            if log.plan >= self.era:
                found.update({x: max(version, found[x]) for x, version in versions.items()})
        return found

    def sweep(self) -> None:
        """Assert that no recovery misses what is deleted, and that void commits go."""
        candidates = [key for key in self.batches if key[1] < self.last(key[0])]
        known = {cut.about.epoch: cut.about for cut in self.complete}
        batches = [BatchNumbers(log, number, {}, has_commit=True) for log, number in candidates]
        for key in find_garbage(batches, {epoch: {} for epoch in known}, {}, base=log_files.base_of(known, self.era)):
            self.deleted[key] = self.batches.pop(key)
        lines = [self.complete[-1:], *([self.complete[-2:-1]] if self.is_damage_tolerated else [])]
        for line in lines:
            assert self.points(line, self.batches) == self.points(line, self.everything)
        void = [key for key in candidates if key in self.batches and key[0].plan < self.era]
        assert not known or not void, "void commits stay"


ACTIONS = st.sampled_from(["change", "change", "commit", "commit", "record", "record", "fail", "damage", "restore"])
STEPS = st.lists(st.tuples(ACTIONS, st.sampled_from(AGENTS)), max_size=60)


def run_world(steps: list[tuple[str, str]]) -> None:
    world = World()
    for action, agent in steps:
        world.step(action, agent)
        if action not in ("change", "commit"):
            world.sweep()
    world.sweep()


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_no_recovery_misses_a_deleted_commit(steps: list[tuple[str, str]]) -> None:
    run_world(steps)


def newest_is_base(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
    if not epochs:
        return CommitBase(era=era)
    newest = epochs[max(epochs)]
    return CommitBase(newest.plan, newest.log_floors, era)


def without_era(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
    return base_of(epochs, 0)


def whole_plan(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
    base = base_of(epochs, era)
    return CommitBase(base.plan + 1, base.floors, era) if base.plan else base


def floors_of_the_newest(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
    base = base_of(epochs, era)
    return CommitBase(base.plan, epochs[max(epochs)].log_floors, era) if base.plan else base


@pytest.mark.parametrize("mutant", [newest_is_base, without_era, whole_plan, floors_of_the_newest])
def test_mutants_are_caught(
    mutant: Callable[[Mapping[int, Metadata], int], CommitBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "base_of", mutant)

    @given(STEPS)
    @settings(
        max_examples=3000,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    def run(steps: list[tuple[str, str]]) -> None:
        run_world(steps)

    with pytest.raises(AssertionError):
        run()
