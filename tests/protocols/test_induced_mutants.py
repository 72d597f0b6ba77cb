"""The faults that the promises and the pinned counts must find; each is one rule with one line changed.

A fault of the first kind leaves a useless checkpoint or an untracked path. One of the second kind only forces too much:
the counts of fixed scripts are pinned. One of the third kind spoils the deltas, not the protocol: it shows by forcing
elsewhere, or ending in another state, than the same rule with absolute piggybacks.
"""

from collections.abc import Iterator
from random import Random
from typing import ClassVar

import pytest
from tests.protocols.executions import (
    REFERENCES,
    Full,
    Graph,
    Script,
    agents_of,
    drive,
    parse,
    random_script,
    small_scripts,
)

from snapline.protocols.dependency_vector import BhmrRule, FdasRule, FdiRule, NrasRule
from snapline.protocols.index_based import BcsRule, HmnrRule
from snapline.protocols.piggyback import Entries, EntryChanges
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES

RuleType = type[CheckpointRule]

EXECUTIONS_MAX = 3_000
STRANGER = 9
"""An ordinal of no agent in any script."""

TRACKING = ("fdas", "fdi", "bhmr", "nras")


def rules(rule_type: RuleType, script: Script) -> list[CheckpointRule]:
    return [rule_type(agent) for agent in range(agents_of(script))]


def breaks_its_promise(rule_type: RuleType, script: Script) -> bool:
    graph = Graph(drive(script, rules(rule_type, script)).histories)
    return bool(graph.useless()) or (rule_type.name in TRACKING and bool(graph.untracked()))


def first_found(rule_type: RuleType, seeds: range) -> int | None:
    """The first seed whose execution breaks the promise."""
    for seed, script in zip(seeds, small_scripts(seeds, is_fifo=True), strict=True):
        if breaks_its_promise(rule_type, script):
            return seed
    return None


# -- found by the promise ---------------------------------------------------------------------------------------------


def merging_first(rule_type: RuleType) -> RuleType:
    """Merges before the test."""

    class MergingFirst(rule_type):  # type: ignore[misc, valid-type]  # a mutant of any rule
        def forces(self, sender: int, piggyback: bytes) -> bool:
            self.receive(sender, piggyback)
            return bool(super().forces(sender, piggyback))

    return MergingFirst


class BcsNever(BcsRule):
    def forces(self, sender: int, piggyback: bytes) -> bool:
        return False


class BcsWithoutMessageIndex(BcsRule):
    """A forced checkpoint bears the own next index, not the message's; and nothing is merged."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        super().checkpoint(None)

    def receive(self, sender: int, piggyback: bytes) -> None:
        pass


class HmnrWithoutC1(HmnrRule):
    def _lets_a_clock_fall(self, clock: int, entries: Entries) -> bool:
        return False


class HmnrWithoutC2(HmnrRule):
    def _closes_a_cycle(self, entries: Entries) -> bool:
        return False


class HmnrOwnGreater(HmnrRule):
    """C1 looks at the own `greater`."""

    def _lets_a_clock_fall(self, clock: int, entries: Entries) -> bool:
        return clock > self._clock and self._sent_to & ~self._not_greater != 0


class HmnrWithoutTaken(HmnrRule):
    """No `taken |=`."""

    def _merge_count(self, ordinal: int, count: int, *, is_taken: bool) -> None:
        if count > self._count.get(ordinal, 0):
            super()._merge_count(ordinal, count, is_taken=is_taken)


class BhmrWithoutPaths(BhmrRule):
    def _leaves_a_path_untracked(self, received: dict[int, tuple[int, bool, int]]) -> bool:
        return False


class BhmrWithoutCycles(BhmrRule):
    def _closes_a_cycle(self, received: dict[int, tuple[int, bool, int]]) -> bool:
        return False


class BhmrOwnCausal(BhmrRule):
    """The first test looks at the own `causal`."""

    def _leaves_a_path_untracked(self, received: dict[int, tuple[int, bool, int]]) -> bool:
        own = {
            ordinal: (entry, is_simple, self._causal.get(ordinal, 1 << ordinal))
            for ordinal, (entry, is_simple, _) in received.items()
        }
        return super()._leaves_a_path_untracked(own)


class BhmrKeepingSimple(BhmrRule):
    """`simple` survives a checkpoint."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        simple = self._simple
        super().checkpoint(cause)
        self._simple = simple


class BhmrKeepingCausal(BhmrRule):
    """The own row of `causal` survives a checkpoint."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        row = self._causal[self.agent]
        super().checkpoint(cause)
        self._causal[self.agent] = row


class FdasByReference(FdasRule):
    """The piggyback is the sender's vector as it is when the message is received."""

    live: ClassVar[dict[int, FdasRule]] = {}

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self.live[agent] = self

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return super().forces(sender, self._now(sender))

    def receive(self, sender: int, piggyback: bytes) -> None:
        super().receive(sender, self._now(sender))

    def _now(self, sender: int) -> bytes:
        rule = self.live[sender]
        return rule._encode(list(rule._vector))


class FdiOfOwnEntry(FdiRule):
    """Looks only for news of the receiver itself, of which there is none."""

    def _raises_the_vector(self, sender: int, entries: Entries) -> bool:
        return self.agent in entries


class NrasForgetting(NrasRule):
    """Forces by the last receive, not by the sends since the last checkpoint."""

    def receive(self, sender: int, piggyback: bytes) -> None:
        self._has_sent = False

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return not self._has_sent


UNSAFE: list[RuleType] = [
    *(merging_first(RULES[name]) for name in ("bcs", "hmnr", "fdas", "fdi", "bhmr")),
    BcsNever,
    BcsWithoutMessageIndex,
    HmnrWithoutC1,
    HmnrWithoutC2,
    HmnrOwnGreater,
    HmnrWithoutTaken,
    BhmrWithoutPaths,
    BhmrWithoutCycles,
    BhmrOwnCausal,
    BhmrKeepingSimple,
    BhmrKeepingCausal,
    FdasByReference,
    FdiOfOwnEntry,
    NrasForgetting,
]


@pytest.mark.parametrize("rule_type", UNSAFE, ids=lambda rule_type: f"{rule_type.__name__}-{rule_type.name}")
def test_the_promise_finds(rule_type: RuleType) -> None:
    assert first_found(rule_type, range(EXECUTIONS_MAX)) is not None


# -- found by pinned counts -------------------------------------------------------------------------------------------


class BcsForcingEquals(BcsRule):
    """`>=` for `>`."""

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return self._read(piggyback) >= self.index


class HmnrByReference(HmnrRule):
    """The piggyback is the sender's state as it is when the message is received."""

    live: ClassVar[dict[int, HmnrRule]] = {}

    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self.live[agent] = self

    def forces(self, sender: int, piggyback: bytes) -> bool:
        return super().forces(sender, self._now(sender))

    def receive(self, sender: int, piggyback: bytes) -> None:
        super().receive(sender, self._now(sender))

    def _now(self, sender: int) -> bytes:
        rule = self.live[sender]
        return rule._encode(list(rule._changes.ordinals()))


class HmnrKeepingSentTo(HmnrRule):
    """`sent_to` survives a checkpoint."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        sent_to = getattr(self, "_sent_to", 0)
        super().checkpoint(cause)
        self._sent_to = sent_to


class HmnrOwnGreaterKept(HmnrRule):
    """greater[i] is taken over from the message."""

    def _merge_clock(self, clock: int, not_greater: int) -> None:
        is_own_greater = clock > self._clock and not not_greater & self._own
        super()._merge_clock(clock, not_greater)
        if is_own_greater:
            self._not_greater &= ~self._own


class HmnrWithoutGreater(HmnrRule):
    """No `greater &=`."""

    def _merge_clock(self, clock: int, not_greater: int) -> None:
        if clock > self._clock:
            super()._merge_clock(clock, not_greater)


class FdasWithoutMerge(FdasRule):
    def receive(self, sender: int, piggyback: bytes) -> None:
        pass


class FdasKeepingHasSent(FdasRule):
    """`has_sent` survives a checkpoint."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        has_sent = self._is_fixed
        super().checkpoint(cause)
        self._is_fixed = has_sent


class FdiForcingAlways(FdiRule):
    """Does not look at the vector."""

    def _raises_the_vector(self, sender: int, entries: Entries) -> bool:
        return True


class BhmrKeepingSentTo(BhmrRule):
    """`sent_to` survives a checkpoint."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        sent_to = self._sent_to
        super().checkpoint(cause)
        self._sent_to = sent_to


class BhmrWithoutOwnColumn(BhmrRule):
    """No `causal[k][i] = true` at i."""

    def _merge(self, ordinal: int, entry: int, is_simple: bool, row: int) -> None:
        super()._merge(ordinal, entry, is_simple, row & ~self._own)


PINNED = {"bcs": 128, "hmnr": 104, "fdas": 467, "fdi": 623, "bhmr": 353}
"""Forced checkpoints in the fixed scripts."""


def fixed_scripts() -> list[Script]:
    return [
        random_script(Random(seed), agents=3 + seed % 3, steps=200, basic=0.08, in_turns=seed % 2 == 1)
        for seed in range(12)
    ]


def forced_in_fixed_scripts(rule_type: RuleType) -> int:
    return sum(len(drive(script, rules(rule_type, script)).forced) for script in fixed_scripts())


@pytest.mark.parametrize("name", PINNED)
def test_the_fixed_scripts_force_as_often_as_pinned(name: str) -> None:
    assert forced_in_fixed_scripts(RULES[name]) == PINNED[name]


@pytest.mark.parametrize(
    "rule_type",
    [
        BcsForcingEquals,
        HmnrByReference,
        HmnrKeepingSentTo,
        HmnrOwnGreaterKept,
        HmnrWithoutGreater,
        FdasWithoutMerge,
        FdasKeepingHasSent,
        FdiForcingAlways,
        BhmrKeepingSentTo,
        BhmrWithoutOwnColumn,
    ],
)
def test_pinned_counts_find_what_only_forces_too_much(rule_type: RuleType) -> None:
    assert forced_in_fixed_scripts(rule_type) > PINNED[rule_type.name]


# -- faults of the deltas ---------------------------------------------------------------------------------------------


class HmnrSilentOnTaken(HmnrRule):
    """A checkpoint makes `taken` true everywhere, and only the own entry is noted as changed."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._not_taken = self._own
        super().checkpoint(cause)


class HmnrSilentOnMergedTaken(HmnrRule):
    """`taken |=` is not noted as a change."""

    def _merge_count(self, ordinal: int, count: int, *, is_taken: bool) -> None:
        if count == self._count.get(ordinal, 0) and is_taken:
            self._not_taken &= ~(1 << ordinal)
        else:
            super()._merge_count(ordinal, count, is_taken=is_taken)


class HmnrSilentOnClocks(HmnrRule):
    """What a higher clock brings in `greater` is not noted as a change."""

    def _merge_clock(self, clock: int, not_greater: int) -> None:
        if clock > self._clock:
            self._clock, self._not_greater = clock, not_greater | self._own
        else:
            super()._merge_clock(clock, not_greater)


class HmnrSilentOnGreater(HmnrRule):
    """`greater &=` is not noted as a change."""

    def _merge_clock(self, clock: int, not_greater: int) -> None:
        if clock == self._clock:
            self._not_greater |= not_greater
        else:
            super()._merge_clock(clock, not_greater)


class FdiSilent(FdiRule):
    """What is known already and grows is not noted as a change."""

    def receive(self, sender: int, piggyback: bytes) -> None:
        for ordinal, value in self._read(piggyback).items():
            if value > self._vector.get(ordinal, 0):
                if ordinal not in self._vector:
                    self._changes.note(ordinal)
                self._vector[ordinal] = value
        self._is_fixed = True


class BhmrSilentOnSimple(BhmrRule):
    """A checkpoint clears `simple`, and only the own entry is noted as changed."""

    def checkpoint(self, cause: bytes | None = None) -> None:
        self._simple = self._own
        super().checkpoint(cause)


class BhmrSilentOnMerges(BhmrRule):
    """Merging into an entry of equal age is not noted as a change."""

    def _merge(self, ordinal: int, entry: int, is_simple: bool, row: int) -> None:
        if entry == self._vector.get(ordinal, 0):
            if not is_simple:
                self._simple &= ~(1 << ordinal)
            self._causal[ordinal] |= row
        else:
            super()._merge(ordinal, entry, is_simple, row)


class ChangesForAll(EntryChanges):
    """One message to anyone counts as one to everyone."""

    def send(self, to: int) -> list[int]:
        return super().send(0)


class FdasSendingToAll(FdasRule):
    def __init__(self, agent: int, agents: int = 1) -> None:
        super().__init__(agent, agents)
        self._changes = ChangesForAll()
        self._changes.note(agent)


DELTA_FAULTS: list[RuleType] = [
    HmnrSilentOnTaken,
    HmnrSilentOnMergedTaken,
    HmnrSilentOnClocks,
    HmnrSilentOnGreater,
    FdiSilent,
    BhmrSilentOnSimple,
    BhmrSilentOnMerges,
    FdasSendingToAll,
]


@pytest.mark.parametrize("rule_type", DELTA_FAULTS)
def test_states_show_spoiled_deltas(rule_type: RuleType) -> None:
    assert any(deltas_are_spoiled(rule_type, script) for script in repetitive_scripts())


@pytest.mark.parametrize("name", ["hmnr", "fdas", "fdi", "bhmr"])
def test_deltas_leave_the_states_that_absolute_piggybacks_leave(name: str) -> None:
    assert not any(deltas_are_spoiled(RULES[name], script) for script in repetitive_scripts())


REPETITIVE_SEEDS = (262, 808, *range(60))
"""The first two find `BhmrSilentOnMerges` and `HmnrSilentOnGreater`, all others are found by one of the next twenty."""


def repetitive_scripts() -> Iterator[Script]:
    """Few agents, so that many messages have a predecessor on their channel, to which the delta is relative."""
    yield parse("b! b! a>b b>d a>c c! c>b b>d")  # between b's messages to d, `taken |=` alone changes anything
    for seed in REPETITIVE_SEEDS:
        yield random_script(
            Random(seed), agents=2 + seed % 3, steps=40, basic=(0.02, 0.1)[seed % 2], in_turns=seed % 3 == 0
        )


def deltas_are_spoiled(rule_type: RuleType, script: Script) -> bool:
    """Whether the rule with deltas forces elsewhere than with absolute piggybacks, or ends in another state."""
    plain, full = rules(rule_type, script), rules(rule_type, script)
    forced = drive(script, plain).forced
    return forced != drive(script, list(map(Full, full))).forced or list(map(state, plain)) != list(map(state, full))


def state(rule: CheckpointRule) -> object:
    """All that a message can tell of the rule, whatever the order of its entries: what a stranger reads."""
    stranger = type(rule)(STRANGER)
    return stranger._read(rule.send_full(STRANGER))  # type: ignore[attr-defined]  # of the rules with vectors


@pytest.mark.parametrize("name", ["hmnr", "fdas", "fdi", "bhmr"])
def test_channels_that_are_not_fifo_need_absolute_piggybacks(name: str) -> None:
    """With deltas a rule forces elsewhere there."""
    scripts = small_scripts(range(EXECUTIONS_MAX), is_fifo=False)
    assert any(forces_elsewhere(RULES[name], script) for script in scripts)


def forces_elsewhere(rule_type: RuleType, script: Script) -> bool:
    agents = agents_of(script)
    reference = drive(script, [REFERENCES[rule_type.name](agent, agents) for agent in range(agents)])
    return drive(script, rules(rule_type, script)).forced != reference.forced
