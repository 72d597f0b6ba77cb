"""Faults on an executor that only keeps a log: what begins ends, overlapping faults compose, and `heal` makes all whole."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
import pytest
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from tests.sim.fake_executor import FakeExecutor

from snapline.errors import UsageError
from snapline.sim.choices import RandomChoices, RecordedChoices
from snapline.sim.faults.fault_kinds import (
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    FaultKind,
    HangFault,
    HostFault,
    LastingFault,
    LossFault,
    MembershipFault,
    PartitionFault,
    PauseFault,
    SlowFault,
    duration_ns,
    format_duration,
)
from snapline.sim.faults.faults import FLIP_TRIES, Condition, Conditions, Part, all_pairs, check_budget, heal, schedule
from snapline.sim.scenario import FAULT_KINDS, FaultPart, FleetPart, RunPart, Scenario, SwarmPart, parse_scenario
from snapline.sim.search.swarm import BUILT_IN, draw

MS = 1_000_000


def scenario_of(*words: FaultKind, hosts: int = 3, coordinators: int = 3, keep_epochs: int = 3) -> Scenario:
    names = {
        type(word): name for name in FAULT_KINDS for word in words if word.__class__.__name__.lower() == f"{name}fault"
    }
    faults = [msgspec.structs.replace(FaultPart(), **{names[type(word)]: word}) for word in words]
    fleet = msgspec.convert({"hosts": hosts, "coordinators": coordinators}, FleetPart)
    return Scenario(fleet=fleet, fault=faults, run=RunPart(until="20s", keep_epochs=keep_epochs))


def executed(scenario: Scenario, *, seed: int = 0) -> FakeExecutor:
    executor = FakeExecutor(scenario, RandomChoices(seed))
    schedule(scenario, executor)
    executor.run_until()
    return executor


def names_of(executor: FakeExecutor) -> list[str]:
    return [name for _, name, _ in executor.calls if name != "note_fault"]


drawn = st.builds(
    lambda name, seed, budget: draw(msgspec.structs.replace(BUILT_IN[name], budget=budget), seed),
    st.sampled_from(sorted(BUILT_IN)),
    st.integers(0, 2**63),
    st.sampled_from(["within", "beyond"]),
)


@given(drawn, st.integers(0, 2**63))
def test_after_the_last_end_and_heal_everything_is_whole(scenario: Scenario, seed: int) -> None:
    executor = FakeExecutor(scenario, RandomChoices(seed))
    end_ns = schedule(scenario, executor)
    executor.run_until(end_ns)
    heal(executor)
    assert not executor.problems()
    calls = len(executor.calls)
    executor.run_until()
    assert len(executor.calls) == calls, "something happened after the end"
    assert end_ns <= scenario.run.until_ns


@given(drawn, st.integers(0, 2**63))
def test_only_what_is_for_ever_is_left_before_heal(scenario: Scenario, seed: int) -> None:
    executor = executed(scenario, seed=seed)
    executor.armed.clear()
    left = {*executor.problems()} - set(executor.delays)
    forever = [
        note
        for note in executor.notes
        if note.until_ns == 0 and note.kind in ("crash", "disk", "coordinator", "membership")
    ]
    assert not left or forever
    for path, delay in executor.delays.items():
        usual = scenario.network.delay_of(*path)
        assert delay == (usual.least_ns, usual.jitter_ns)
    assert all(node in executor.down | executor.coordinators_down for node in left)


@given(drawn)
def test_every_fault_is_noted_when_it_begins(scenario: Scenario) -> None:
    noted = {(note.kind, note.at_ns) for note in executed(scenario).notes}
    assert noted >= {(fault.kind, fault.word.at_ns) for fault in scenario.fault}


@given(drawn, st.integers(0, 2**63))
def test_the_same_choices_give_the_same_calls(scenario: Scenario, seed: int) -> None:
    assert executed(scenario, seed=seed).calls == executed(scenario, seed=seed).calls


@given(drawn)
def test_benign_choices_are_enough(scenario: Scenario) -> None:
    """A shrunk record lacks most choices."""
    executor = FakeExecutor(scenario, RecordedChoices({}))
    executor.run_until(schedule(scenario, executor))
    heal(executor)
    assert not executor.problems()


INDEPENDENT = [word for word in FAULT_KINDS if word not in ("coordinator", "membership")]
"""Faults that do not change whom another one means: who leads, and which hosts there are."""


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_leaving_one_fault_out_leaves_the_others_as_they_were(drawing: int, seed: int) -> None:
    scenario = draw(Scenario(swarm=SwarmPart(faults=INDEPENDENT)), drawing)
    assume(scenario.fault)
    *kept, last = scenario.fault
    choices = RandomChoices(seed, is_recording=True)
    whole = FakeExecutor(scenario, choices)
    schedule(scenario, whole)
    whole.run_until()
    assert choices.record is not None
    less_scenario = msgspec.structs.replace(scenario, fault=kept)
    less = FakeExecutor(less_scenario, RecordedChoices(choices.record))
    schedule(less_scenario, less)
    less.run_until()
    others = [note for note in whole.notes if note.kind != last.kind]
    assert [note for note in less.notes if note.kind != last.kind] == others


# Overlapping faults, against intervals on paper.

times = st.integers(0, 12).map(lambda place: format_duration(place * 100 * MS + MS))
lasting = st.integers(1, 12).map(lambda place: format_duration(place * 100 * MS))
hosts = st.sampled_from(["h1", "h2", "*"])
node_pairs = st.sampled_from([["h1", "h2"], ["h2", "h1"], ["h1", "c1"]])

overlapping_words: st.SearchStrategy[FaultKind] = st.one_of(
    st.builds(ClogFault, at=times, lasts=lasting, between=node_pairs),
    st.builds(
        PartitionFault, at=times, lasts=lasting, shape=st.just("isolate-host"), host=st.sampled_from(["h1", "h2"])
    ),
    st.builds(LossFault, at=times, lasts=lasting, between=node_pairs, per_mille=st.integers(1, 1000)),
    st.builds(PauseFault, at=times, lasts=lasting, host=hosts),
    st.builds(HangFault, at=times, lasts=lasting, host=hosts, what=st.sampled_from(["store", "stop"])),
    st.builds(SlowFault, at=times, lasts=lasting, host=hosts, percent=st.integers(1, 99)),
    st.builds(ClockFault, at=times, lasts=lasting, host=hosts, skew=st.sampled_from(["1s", "-2s", "5ms"])),
    st.builds(DiskFault, at=times, lasts=lasting, host=hosts, mode=st.sampled_from(["eio", "full"])),
    st.builds(
        CoordinatorFault, at=times, lasts=lasting, kind=st.just("unknown-outcome"), per_mille=st.integers(1, 1000)
    ),
    st.builds(CoordinatorFault, at=times, lasts=lasting, kind=st.just("kill"), node=st.sampled_from(["c1", "c2"])),
)
overlapping = st.lists(overlapping_words, min_size=1, max_size=6)


OfHost = TypeVar("OfHost", bound=HostFault)


def end_ns(word: FaultKind) -> int:
    assert isinstance(word, LastingFault | CoordinatorFault)
    return word.at_ns + duration_ns(word.lasts)


def expected(words: list[FaultKind], t_ns: int, executor: FakeExecutor) -> dict[str, object]:
    """What is wrong at that time, from begins and durations alone."""
    under_way = [word for word in words if word.at_ns <= t_ns < end_ns(word)]
    nodes = executor.hosts + executor.coordinators

    def hit(kind: type[OfHost]) -> Iterator[tuple[OfHost, str]]:
        for word in under_way:
            if isinstance(word, kind):
                yield from ((word, host) for host in (executor.hosts if word.host == "*" else [word.host]))

    blocked = {(word.between[0], word.between[1]) for word in under_way if isinstance(word, ClogFault)}
    for word in under_way:
        if isinstance(word, PartitionFault):
            blocked |= {(one, other) for one in nodes for other in nodes if one != other and word.host in (one, other)}
    losses: dict[tuple[str, str], int] = {}
    for word in under_way:
        if isinstance(word, LossFault):
            for pair in (tuple(word.between), tuple(word.between[::-1])):
                losses[pair[0], pair[1]] = max(losses.get((pair[0], pair[1]), 0), word.per_mille)
    clocks: dict[str, int] = {}
    speeds: dict[str, int] = {}
    for word, host in hit(ClockFault):
        clocks[host] = clocks.get(host, 0) + word.skew_ns
    for word, host in hit(SlowFault):
        speeds[host] = min(speeds.get(host, 100), word.percent)
    disks = {
        (name, word.mode)
        for word in under_way
        if isinstance(word, DiskFault)
        for name in (nodes if word.host == "*" else [word.host])
    }
    coordinator = [word for word in under_way if isinstance(word, CoordinatorFault)]
    return {
        "blocked": blocked,
        "losses": losses,
        "paused": {host for _, host in hit(PauseFault)},
        "hanging": {(host, word.what) for word, host in hit(HangFault)},
        "clocks": {host: skew for host, skew in clocks.items() if skew},
        "speeds": speeds,
        "disks": disks,
        "unknown": max((word.per_mille for word in coordinator if word.kind == "unknown-outcome"), default=0),
        "killed": {word.node for word in coordinator if word.kind == "kill"},
    }


def seen(executor: FakeExecutor) -> dict[str, object]:
    return {
        "blocked": executor.blocked,
        "losses": {pair: loss for pair, loss in executor.losses.items() if loss},
        "paused": executor.paused,
        "hanging": executor.hanging,
        "clocks": {host: skew for host, (skew, _) in executor.clocks.items() if skew},
        "speeds": {host: percent for host, percent in executor.speeds.items() if percent != 100},
        "disks": executor.disks,
        "unknown": executor.unknown,
        "killed": executor.coordinators_down,
    }


def is_as_on_paper(words: list[FaultKind]) -> bool:
    scenario = scenario_of(*words)
    executor = FakeExecutor(scenario, RandomChoices(0))
    schedule(scenario, executor)
    for place in range(26):
        t_ns = place * 100 * MS + 50 * MS
        executor.run_until(t_ns)
        if seen(executor) != expected(words, t_ns, executor):
            return False
    return True


@given(overlapping)
def test_overlapping_faults_compose(words: list[FaultKind]) -> None:
    assert is_as_on_paper(words)


def _relieve_all(self: Conditions, condition: Condition, part: Part = ()) -> None:
    """A mutant: one end ends it for all."""
    if self._parts.pop(condition, None) is not None:
        self._settle(condition)


def _worsen_only(self: Conditions, condition: Condition, part: Part = ()) -> None:
    """A mutant: the last one who says something is right, and the others are forgotten."""
    self._parts[condition] = [part]
    self._settle(condition)


def _relieve_last(self: Conditions, condition: Condition, part: Part = ()) -> None:
    """A mutant: the end of one fault takes the part of another."""
    parts = self._parts[condition]
    parts.pop()
    if not parts:
        del self._parts[condition]
    self._settle(condition)


MUTANTS: list[tuple[str, Callable[..., None]]] = [
    ("relieve", _relieve_all),
    ("relieve", _relieve_last),
    ("worsen", _worsen_only),
]


@pytest.mark.parametrize(("method", "mutant"), MUTANTS, ids=[mutant.__name__ for _, mutant in MUTANTS])
def test_books_that_do_not_count_are_found(
    method: str, mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conditions, method, mutant)

    def is_found(words: list[FaultKind]) -> bool:
        try:
            return not is_as_on_paper(words)
        except (KeyError, ValueError):
            return True

    try:
        assert find(overlapping, is_found, settings=settings(max_examples=2_000, phases=[Phase.generate]))
    except NoSuchExample:
        pytest.fail(f"{mutant.__name__} was not found")


def test_the_latest_delay_counts_and_then_the_one_before() -> None:
    first = DelayFault(at="1s", lasts="4s", least="10ms", jitter="0s", between=["h1", "h2"])
    second = DelayFault(at="2s", lasts="1s", least="20ms", jitter="1ms", between=["h2", "h1"])
    scenario = scenario_of(first, second)
    executor = FakeExecutor(scenario, RandomChoices(0))
    schedule(scenario, executor)
    said = []
    for t_s in (1, 2, 3, 5):
        executor.run_until(t_s * 10**9)
        said.append(executor.delays["h1", "h2"])
    assert said == [(10 * MS, 0), (20 * MS, MS), (10 * MS, 0), (MS, 4 * MS)]


# Words one by one.


def test_a_host_that_is_killed_comes_back() -> None:
    executor = executed(scenario_of(CrashFault(at="1s", host="h2", restart_after="2s")))
    assert [call for call in executor.calls if call[1] != "note_fault"] == [
        (10**9, "crash_host", ("h2",)),
        (3 * 10**9, "start_host", ("h2",)),
    ]
    assert executor.notes[0].until_ns == 3 * 10**9


def test_a_host_that_is_killed_twice_comes_back_when_both_say_so() -> None:
    words = (CrashFault(at="1s", host="h1", restart_after="3s"), DiskFault(at="2s", host="h1", restart_after="500ms"))
    executor = executed(scenario_of(*words))
    assert [t_ns for t_ns, name, _ in executor.calls if name == "start_host"] == [4 * 10**9]


def test_all_hosts_at_once() -> None:
    executor = executed(scenario_of(CrashFault(is_all=True)))
    assert names_of(executor) == ["crash_host"] * 3 + ["start_host"] * 3


def test_rolling_crashes_never_overlap() -> None:
    executor = executed(scenario_of(CrashFault(at="1s", is_rolling=True, restart_after="300ms"), hosts=4))
    assert names_of(executor) == ["crash_host", "start_host"] * 4
    assert [call[2] for call in executor.calls if call[1] == "crash_host"] == [("h1",), ("h2",), ("h3",), ("h4",)]


@pytest.mark.parametrize(
    ("word", "armed"),
    [
        (CrashFault(failpoint="store.ref.linked", hit=2), ("store.ref.linked", 2, "crash", 500 * MS)),
        (CrashFault(when="recording", restart_after=""), ("world.recording", 1, "crash", 0)),
        (CrashFault(when="recovering", hit=3, restart_after="0s"), ("world.recovering", 3, "crash", 1)),
        (CrashFault(failpoint="store.ref.linked", is_power_cut=True), ("store.ref.linked", 1, "power-cut", 500 * MS)),
        (PauseFault(failpoint="store.ref.linked", lasts="2s"), ("store.ref.linked", 1, "pause", 2000 * MS)),
        (DiskFault(mode="eio", failpoint="store.pack.synced"), ("store.pack.synced", 1, "error", 0)),
    ],
)
def test_what_waits_at_a_failpoint_is_armed_from_the_start_until_heal(
    word: FaultKind, armed: tuple[object, ...]
) -> None:
    scenario = scenario_of(word)
    executor = FakeExecutor(scenario, RandomChoices(0))
    assert schedule(scenario, executor) == scenario.run.until_ns
    executor.run_until()
    assert [call for call in executor.calls if call[1] != "note_fault"] == [(0, "arm_failpoint", armed)]
    heal(executor)
    assert not executor.problems()


def test_a_host_that_joins_is_down_until_then_whatever_restarts() -> None:
    words = (
        CrashFault(at="1s", is_all=True, restart_after="100ms"),
        MembershipFault(kind="join", at="3s", back_after="2s"),
    )
    scenario = scenario_of(*words)
    executor = FakeExecutor(scenario, RandomChoices(0))
    schedule(scenario, executor)
    is_up = []
    for t_s in (0, 2, 3, 6):
        executor.run_until(t_s * 10**9)
        is_up.append("h4" not in executor.down)
    assert is_up == [False, False, True, False]
    assert executor.hosts == ("h1", "h2", "h3", "h4")


def test_a_host_that_leaves_says_goodbye_and_is_not_killed() -> None:
    executor = executed(scenario_of(MembershipFault(host="h1", back_after="1s")))
    assert names_of(executor) == ["leave_host", "start_host"]


def test_a_bit_flip_tries_again_until_there_is_an_older_epoch() -> None:
    scenario = scenario_of(DiskFault(mode="bit-flip", at="1s", lasts="1s"))
    executor = FakeExecutor(scenario, RandomChoices(0))
    executor.flips_refused = 3
    schedule(scenario, executor)
    executor.run_until()
    assert [t_ns // (100 * MS) for t_ns, name, _ in executor.calls if name == "flip_bit"] == [10, 11, 12, 13]
    assert len(executor.notes) == 1 and "a bit flips" in executor.notes[0].text


def test_a_bit_flip_gives_up() -> None:
    scenario = scenario_of(DiskFault(mode="bit-flip", at="1s", lasts="1s"))
    executor = FakeExecutor(scenario, RandomChoices(0))
    executor.flips_refused = 1000
    end_ns = schedule(scenario, executor)
    executor.run_until(end_ns)
    assert names_of(executor) == ["flip_bit"] * (FLIP_TRIES + 1)
    assert "no bit flips" in executor.notes[0].text


@pytest.mark.parametrize("coordinators", [1, 3, 5])
def test_a_lost_quorum_leaves_no_majority(coordinators: int) -> None:
    scenario = scenario_of(CoordinatorFault(kind="lose-quorum", at="1s", lasts="1s"), coordinators=coordinators)
    executor = FakeExecutor(scenario, RandomChoices(5))
    schedule(scenario, executor)
    executor.run_until(10**9)
    assert len(executor.coordinators) - len(executor.coordinators_down) <= coordinators // 2
    executor.run_until()
    assert not executor.problems()


def test_the_leader_is_who_leads_when_the_fault_begins() -> None:
    kill = CoordinatorFault(kind="kill", node="c1", at="1s", lasts="9s")
    scenario = scenario_of(kill, PartitionFault(shape="isolate-leader", at="2s", lasts="1s"))
    executor = FakeExecutor(scenario, RandomChoices(0))
    schedule(scenario, executor)
    executor.run_until(2 * 10**9)
    assert executor.blocked == {pair for pair in all_pairs(executor.hosts + executor.coordinators) if "c2" in pair}


def test_an_isolated_agent_takes_its_host_along() -> None:
    executor = executed(scenario_of(PartitionFault(shape="isolate-agent", agent="a1")))
    assert {call[2] for call in executor.calls if call[1] == "block"} == {
        pair for pair in all_pairs(executor.hosts + executor.coordinators) if "h2" in pair
    }


def test_swizzled_nodes_come_back_within_the_time() -> None:
    for seed in range(50):
        scenario = scenario_of(
            parse_scenario('[[fault]]\nswizzle = { at = "1s", for = "2s" }', source="x").fault[0].word
        )
        executor = executed(scenario, seed=seed)
        cut_ns = [t_ns for t_ns, name, _ in executor.calls if name == "block"]
        back_ns = [t_ns for t_ns, name, _ in executor.calls if name == "unblock"]
        assert min(cut_ns) >= 10**9 and max(cut_ns) < 2 * 10**9 < min(back_ns) and max(back_ns) <= 3 * 10**9
        assert not executor.problems()


def test_a_fleet_of_one_host_has_nothing_to_hold() -> None:
    scenario = parse_scenario("[fleet]\nhosts = 1\n[[fault]]\nhold = {}", source="x")
    executor = executed(scenario)
    assert names_of(executor) == [] and "too few nodes" in executor.notes[0].text


# The budget.

BEYOND_BUDGET: list[tuple[Scenario, str]] = [
    (scenario_of(CrashFault(host="h1", restart_after=""), hosts=1), "1 of 1 hosts"),
    (scenario_of(CrashFault(is_all=True, restart_after="")), "3 of 3 hosts"),
    (scenario_of(DiskFault(host="*", restart_after="")), "3 of 3 hosts"),
    (scenario_of(*[CrashFault(restart_after="")] * 3), "3 of 3 hosts"),
    (scenario_of(*[MembershipFault(host=f"h{number}") for number in (1, 2, 3)]), "3 of 3 hosts"),
    (scenario_of(CoordinatorFault(lasts=""), coordinators=1), "1 of 1 coordinators"),
    (scenario_of(CoordinatorFault(lasts=""), CoordinatorFault(lasts="", kind="kill")), "2 of 3 coordinators"),
    (scenario_of(CoordinatorFault(lasts="", kind="lose-quorum")), "3 of 3 coordinators"),
    (scenario_of(CrashFault(failpoint="store.ref.linked", restart_after=""), coordinators=1), "1 of 1 coordinators"),
    (scenario_of(DiskFault(mode="bit-flip"), keep_epochs=1), "set run.keep_epochs to 2"),
]


@pytest.mark.parametrize(("scenario", "said"), BEYOND_BUDGET, ids=[said for _, said in BEYOND_BUDGET])
def test_faults_beyond_the_budget_are_refused_unless_said_so(scenario: Scenario, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_budget(scenario)
    check_budget(msgspec.structs.replace(scenario, budget="beyond"))


@pytest.mark.parametrize(
    "scenario",
    [
        scenario_of(CrashFault(host="h1", restart_after=""), CrashFault(host="h1", restart_after=""), hosts=2),
        scenario_of(CrashFault(is_all=True), DiskFault(host="*")),
        scenario_of(CoordinatorFault(lasts="", kind="kill", node="c1")),
        scenario_of(CoordinatorFault(kind="lose-quorum"), coordinators=1),
        scenario_of(CoordinatorFault(lasts="", kind="depose"), coordinators=1),
        scenario_of(DiskFault(mode="bit-flip"), DiskFault(mode="eio", restart_after="", host="*")),
    ],
)
def test_faults_within_the_budget_pass(scenario: Scenario) -> None:
    check_budget(scenario)
