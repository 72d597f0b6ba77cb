"""The gate of pieces, played by chance: no cut falls into a piece, nothing old is left behind a recovery, and nobody waits for ever."""

import random
from dataclasses import dataclass, field

import pytest

from snapline.adapters.grpc.member_threads import LAPSE_NS, PATIENCE_NS, QuiescenceGate

WORLDS, STEPS, STEP_NS, ASK_NS = 200, 400, 1_000_000, 5_000_000


class NeverShut(QuiescenceGate):
    """A cut waits for those inside, and more come in: it may wait for ever."""

    def may_enter(self, now_ns: int) -> bool:
        return True


class NeverOpen(QuiescenceGate):
    """Who stands at the gate with a lock that somebody inside wants is never let in, and nobody beside one who is inside for long."""

    def may_enter(self, now_ns: int) -> bool:
        return not self._is_wanted(now_ns)


class AlwaysAsLong(QuiescenceGate):
    """It is never shut for longer than pieces take."""

    def may_enter(self, now_ns: int) -> bool:
        passed = (now_ns - self._wanted_since_ns) // PATIENCE_NS
        return not self._is_wanted(now_ns) or passed % 2 == 1


class StaysShut(QuiescenceGate):
    """It does not notice that nobody wants a cut any more."""

    def _is_wanted(self, now_ns: int) -> bool:
        return self._asked_ns is not None


class AsksNobody(QuiescenceGate):
    """A cut is taken at once."""

    def ask(self, now_ns: int) -> bool:
        super().ask(now_ns)
        return True


class CountsThoseInside(QuiescenceGate):
    """It takes a thread that waits for one that has ended."""

    def are_over(self, plan: int) -> bool:
        return all(self.begun[thread] == plan for thread in self.inside)


class ForgetsThePlan(QuiescenceGate):
    """A thread that comes in again counts as new."""

    def enter(self, thread: int, plan: int) -> None:
        self.begun[thread] = self.plan_now
        super().enter(thread, plan)

    plan_now = 0


@dataclass
class Thread:
    """It raises `one`, then `other`, in each of its pieces: a cut within would see them differ."""

    plan: int
    left: int
    waits: bool = True
    half: bool = False


@dataclass
class World:
    """Threads, cuts and recoveries. What the service holds are two numbers."""

    chance: random.Random
    gate: QuiescenceGate
    now_ns: int = 0
    plan: int = 1
    one: int = 0
    other: int = 0
    cuts: int = 0
    begun: int = 0
    wanted_ns: int | None = None
    threads: dict[int, Thread] = field(default_factory=dict)

    def step(self) -> None:
        self.now_ns += STEP_NS
        if isinstance(self.gate, ForgetsThePlan):
            self.gate.plan_now = self.plan
        if self.wanted_ns is None and self.chance.random() < 0.05:
            self.wanted_ns = self.now_ns
        if self.wanted_ns is not None and self.now_ns % ASK_NS == 0:
            self.cut()
        if self.plan and self.chance.random() < 0.01:
            self.plan, self.wanted_ns = -self.plan, None
        if self.plan < 0 and self.gate.are_over(self.plan):
            self.plan, self.one, self.other = 1 - self.plan, 0, 0
        if self.plan > 0 and len(self.threads) < 6:
            self.threads[self.begun] = Thread(self.plan, self.chance.randint(1, 4))
            self.begun += 1
        for number in self.chance.sample(list(self.threads), len(self.threads)):
            self.go_on(number, self.threads[number])

    def cut(self) -> None:
        if self.gate.ask(self.now_ns):
            assert self.one == self.other, "a cut has fallen into a piece"
            self.gate.open()
            self.wanted_ns, self.cuts = None, self.cuts + 1

    def go_on(self, number: int, thread: Thread) -> None:
        if thread.waits and thread.plan != self.plan and number not in self.gate.begun:
            del self.threads[number]  # it stood at the gate and had not begun
        elif thread.waits and self.chance.random() < 0.7 and self.gate.may_enter(self.now_ns):
            self.gate.enter(number, thread.plan)
            thread.waits = False
        elif thread.half and self.chance.random() < 0.5:
            self.other, thread.half = self.other + 1, False
            assert thread.plan == abs(self.plan), "what is of before a recovery has changed what came after it"
            self.piece_ended(number, thread)
        elif not thread.waits and not thread.half:
            self.one, thread.half = self.one + 1, True

    def piece_ended(self, number: int, thread: Thread) -> None:
        thread.left -= 1
        if thread.left > 0:
            thread.waits = True
            self.gate.leave(number)
        else:
            del self.threads[number]
            self.gate.end(number)


def play(gate: type[QuiescenceGate], seed: int) -> int:
    world = World(random.Random(seed), gate())
    for _ in range(STEPS):
        world.step()
        since_ns = world.now_ns - (world.wanted_ns or world.now_ns)
        assert since_ns < 6 * PATIENCE_NS, "a cut has waited for long"
        assert world.one < 1000
    return world.cuts


def lock_across_a_call(gate: QuiescenceGate) -> None:
    """One waits outside and has a lock, the other wants it and is inside: both go on, and the cut is taken."""
    gate.enter(1, 1)
    gate.leave(1)
    gate.enter(2, 1)
    for now_ns in range(0, 2 * PATIENCE_NS, ASK_NS):
        if gate.ask(now_ns):
            return
        if 1 in gate.begun and gate.may_enter(now_ns):
            gate.enter(1, 1)
            gate.end(1)
            gate.end(2)
    raise AssertionError("they wait for each other")


def long_pieces(gate: QuiescenceGate, piece_ns: int = 7 * PATIENCE_NS) -> None:
    """Four threads, each inside for long and then outside for a moment, at times of their own."""
    ends = {thread: thread * piece_ns // 4 for thread in range(1, 5)}
    for thread in ends:
        gate.enter(thread, 1)
    for now_ns in range(0, 6 * piece_ns, ASK_NS):
        for thread, end_ns in ends.items():
            if thread in gate.inside and end_ns <= now_ns:
                gate.leave(thread)
            elif thread not in gate.inside and gate.may_enter(now_ns):
                gate.enter(thread, 1)
                ends[thread] = now_ns + piece_ns
        if gate.ask(now_ns):
            return
    raise AssertionError("the cut is never taken")


def beside_one_that_stays(gate: QuiescenceGate, waits_ns: int = 100 * PATIENCE_NS) -> None:
    """One is inside all the time: the others have a good part of it, since no cut would be taken anyway."""
    gate.enter(1, 1)
    open_ns = 0
    for now_ns in range(0, waits_ns, ASK_NS):
        assert not gate.ask(now_ns)
        open_ns += ASK_NS * gate.may_enter(now_ns)
    assert waits_ns / 3 < open_ns < 2 * waits_ns / 3, f"the gate was open for {open_ns / waits_ns:.0%}"


def lapse(gate: QuiescenceGate) -> None:
    """A cut is asked for once, and never again."""
    gate.enter(1, 1)
    assert not gate.ask(0)
    assert gate.may_enter(LAPSE_NS), "it is shut for nobody"


def check(gate: type[QuiescenceGate]) -> int:
    lapse(gate())
    lock_across_a_call(gate())
    long_pieces(gate())
    beside_one_that_stays(gate())
    return sum(play(gate, seed) for seed in range(WORLDS))


def test_no_cut_falls_into_a_piece_and_nothing_old_is_left_behind_a_recovery() -> None:
    assert check(QuiescenceGate) > 5 * WORLDS


@pytest.mark.parametrize(
    "mutant",
    [NeverShut, NeverOpen, AlwaysAsLong, StaysShut, AsksNobody, CountsThoseInside, ForgetsThePlan],
    ids=lambda x: x.__name__,
)
def test_mutants_fall(mutant: type[QuiescenceGate]) -> None:
    with pytest.raises(AssertionError):
        check(mutant)
