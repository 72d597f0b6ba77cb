"""Patterns end after as many messages as were asked for, and their checks see every cut that is not consistent.

The oracle of what is consistent is `workload_executor`: it has one global order of events, so each of its global states is
a consistent cut, and every change of such a state in `workload_cuts` makes an inconsistent one.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.fleet import Cut, FleetWorld
from tests.sim.workload_cuts import MUTATIONS, Checkpoints
from tests.sim.workload_executor import Executor, PunctualExecutor

import snapline
from snapline.errors import FleetDefinitionError, UsageError
from snapline.examples.forward_push import UNIT
from snapline.sim.scenario import FleetPart, PatternPart, TriggerPart
from snapline.sim.workloads import PATTERNS as ALL_PATTERNS
from snapline.sim.workloads import Workload, make_workload
from snapline.storage.packs.checkpoint import AgentCheckpoint

EXAMPLES = ("pagerank", "bank-example")
_ELSEWHERE = (
    "failing",
    "crashing",
    "killing",
    "memory",
    "orders",
    "stepping",
    "astray",
    "planning",
    "paying",
    "returning",
    "booking",
    "booking-until",
)
PATTERNS = tuple(name for name in ALL_PATTERNS if name not in _ELSEWHERE)
"""Those that the executor here can play: it knows no failed turns, no messages for nobody, no steps, and no states with parts.
`test_failing_workload.py`, `test_astray_workload.py`, `test_memory_workload.py`, `test_orders_workload.py`, `test_planning_workload.py`,
`test_returning_workload.py`, `test_booking_workload.py` and `test_limits.py` have the others."""

OWN = tuple(name for name in PATTERNS if name not in EXAMPLES)

TIMED = ("pipeline", "skewed", "cyclic", "bursts", "domino")
"""Those that have timers without a rate."""


def part_of(name: str, **changed: object) -> FleetPart:
    pattern = {"messages": 60, **{key: changed.pop(key) for key in ("messages", "rate_per_s") if key in changed}}
    return FleetPart(pattern=PatternPart(name=name, **pattern), **{"agents": 5, **changed})  # type: ignore[arg-type]


def judge(workload: Workload, checkpoints: dict[str, AgentCheckpoint]) -> str | None:
    return workload.check_cut(snapline.Cut(1, checkpoints, workload.fleet))


# -- tests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 500.0])
@pytest.mark.parametrize("pattern", OWN)
def test_a_pattern_ends_after_so_many_messages(pattern: str, rate: float) -> None:
    for agents in (2, 5, 13):
        workload = make_workload(part_of(pattern, agents=agents, messages=200, rate_per_s=rate))
        executor = Executor(workload.fleet, agents)
        while executor.steps():
            assert not workload.is_done(executor.states())
            executor.step()
        assert workload.ends and workload.is_done(executor.states())
        assert workload.check_end(executor.states()) is None
        assert 100 < executor.messages < 400, (agents, executor.messages)
        assert executor.messages == len(executor.ids), "ids are unique"
        assert executor.dead_letters == 0


@given(
    pattern=st.sampled_from(OWN),
    agents=st.integers(2, 9),
    messages=st.integers(1, 120),
    rate=st.sampled_from([0.0, 300.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=30)
def test_every_consistent_cut_passes(pattern: str, agents: int, messages: int, rate: float, seed: int) -> None:
    workload = make_workload(part_of(pattern, agents=agents, messages=messages, rate_per_s=rate))
    executor = Executor(workload.fleet, seed)
    assert judge(workload, executor.checkpoints()) is None
    while executor.step():
        if executor.random.random() < 0.2:
            assert judge(workload, executor.checkpoints()) is None
    assert judge(workload, executor.checkpoints()) is None
    assert workload.is_done(executor.states()) and workload.check_end(executor.states()) is None


def moments(workload: Workload, seed: int, *, every: float) -> Iterator[tuple[Checkpoints, Checkpoints]]:
    """Some global states of a run, each with one a few steps later."""
    executor = Executor(workload.fleet, seed)
    while executor.step():
        if executor.random.random() < every:
            before = executor.checkpoints()
            for _ in range(int(executor.random.random() * 6) + 1):
                executor.step()
            yield before, executor.checkpoints()


def unseen(workload: Workload, seed: int, *, every: float) -> tuple[dict[str, int], list[str]]:
    """How many changes of each kind were tried on cuts of a run, and those that passed as consistent."""
    tried = dict.fromkeys(MUTATIONS, 0)
    missed = []
    for before, after in moments(workload, seed, every=every):
        assert judge(workload, before) is None
        for name, mutation in MUTATIONS.items():
            for changed in mutation(before, after):
                tried[name] += 1
                if judge(workload, changed) is None:
                    missed.append(name)
    return tried, missed


@pytest.mark.parametrize(
    ("seeds", "rate"),
    [(range(3), 0.0), *(pytest.param(range(30), rate, marks=pytest.mark.slow) for rate in (0.0, 500.0))],
)
@pytest.mark.parametrize("pattern", OWN)
def test_every_inconsistent_cut_is_found(pattern: str, seeds: range, rate: float) -> None:
    total = dict.fromkeys(MUTATIONS, 0)
    for seed in seeds:
        workload = make_workload(part_of(pattern, agents=4 + seed % 6, messages=150, rate_per_s=rate))
        tried, missed = unseen(workload, seed, every=0.04)
        assert not missed, (seed, missed)
        total = {name: count + tried[name] for name, count in total.items()}
    # A counter of its own for each pair: its channels never hold two messages, its agents never hear of two others.
    never = {"swapped", "moved"} if pattern == "domino" else {"moved"} if pattern in ("ring", "pipeline") else set()
    if rate == 0.0 and pattern not in TIMED:
        never = never | {"forgotten_timer"}
    assert {name for name, count in total.items() if count == 0} <= never, total


# -- on the real cores --------------------------------------------------------------------------------------------------


def play(pattern: str, seed: int) -> FleetWorld:
    """Host cores with crashes and cut streams; every complete cut is judged, and the end."""
    part = part_of(pattern, agents=3 + seed % 4, messages=80, rate_per_s=300.0 * (seed % 2))
    workload = make_workload(part)

    def on_cut(epoch: int, cut: Cut) -> None:
        assert judge(workload, cut) is None, (seed, epoch)

    world = FleetWorld(workload.fleet, 1 + seed % 3, seed, on_cut)
    for _ in range(2000):
        world.step()
        if world.random.random() < 0.01:
            world.begin_epoch()
        if world.random.random() < 0.002:
            world.crash()
    assert world.settle()
    states = {agent: host.turns.object_of(agent).state for host in world.hosts.values() for agent in host.core.agents}
    assert workload.is_done(states) == workload.ends
    assert workload.check_end(states) is None
    return world


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(100, 200), marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_cuts_of_the_real_cores_pass_and_the_work_is_done_once(pattern: str, seeds: range) -> None:
    worlds = [play(pattern, seed) for seed in seeds]
    assert sum(world.completed for world in worlds) > 20 and sum(world.crashes for world in worlds) > 4


# -- the pattern's own promises -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_turn_is_a_function_of_state_message_and_chance_and_to_check_changes_nothing(pattern: str) -> None:
    """Else a repeated run, and a replay after a recovery, would go other ways for no reason. The world hands in live states."""
    images = []
    for is_checked in (True, False):
        workload = make_workload(part_of(pattern))
        executor = Executor(workload.fleet, 7)
        for place in range(100):
            executor.step()
            if is_checked and place % 3 == 0:
                before = executor.checkpoints()
                assert judge(workload, before) is None and judge(workload, before) is None
                workload.is_done(executor.states())
                workload.check_end(executor.states())
                assert executor.checkpoints() == before
        images.append(executor.checkpoints())
    assert images[0] == images[1]


@pytest.mark.parametrize("pattern", OWN)
def test_agents_and_states_stay_small(pattern: str) -> None:
    """What an agent keeps does not grow with the messages, only with the agents that it knows."""
    sizes = []
    for messages in (300, 1200):
        executor = Executor(make_workload(part_of(pattern, messages=messages)).fleet, 1)
        executor.run()
        sizes.append(max(len(found.state) for found in executor.checkpoints().values()))
    assert sizes[1] < sizes[0] + 200 and sizes[1] < 3000, sizes


def test_domino_agents_checkpoint_after_each_receive_and_at_the_end() -> None:
    workload = make_workload(part_of("domino", messages=100))
    executor = Executor(workload.fleet, 1)
    executor.run()
    assert 100 < executor.checkpoints_asked <= 100 + 5


def test_lodgers_come_and_go() -> None:
    executor = Executor(make_workload(part_of("spawning", messages=200)).fleet, 1)
    executor.run()
    assert executor.spawned == executor.left == 20
    assert len(executor.players) == 5


def test_a_message_may_come_before_the_agent_that_it_is_for() -> None:
    """The third agent's token overtakes the creation: the case of an unborn agent with messages from others."""
    early = 0
    for seed in range(20):
        executor = Executor(make_workload(part_of("spawning", messages=100)).fleet, seed)
        while executor.step():
            for (sender, receiver), channel in executor.channels.items():
                is_unborn = receiver in executor.players and executor.players[receiver].made is None
                early += bool(channel) and is_unborn and not receiver.startswith(sender)
    assert early > 20


def test_endless_patterns_do_not_end() -> None:
    for pattern in OWN:
        workload = make_workload(part_of(pattern, messages=0))
        executor = Executor(workload.fleet, 1)
        for _ in range(300):
            assert executor.step(), pattern
        assert judge(workload, executor.checkpoints()) is None
        assert not workload.ends and not workload.is_done(executor.states())


@pytest.mark.parametrize("pattern", OWN)
def test_the_fleet_keeps_about_to_its_rate(pattern: str) -> None:
    for agents in (2, 5, 8):
        executor = PunctualExecutor(
            make_workload(part_of(pattern, agents=agents, messages=400, rate_per_s=200.0)).fleet, 1
        )
        executor.run()
        rate_per_s = executor.messages * 1e9 / executor.now_ns
        assert 60 < rate_per_s < 300, (agents, rate_per_s)


# -- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_examples_keep_what_they_conserve(pattern: str) -> None:
    for agents in (2, 6):
        workload = make_workload(part_of(pattern, agents=agents, messages=200))
        executor = Executor(workload.fleet, agents)
        while executor.step():
            if executor.random.random() < 0.1:
                assert judge(workload, executor.checkpoints()) is None
        assert judge(workload, executor.checkpoints()) is None
        assert workload.is_done(executor.states()) == workload.ends == (pattern == "pagerank")
        assert workload.check_end(executor.states()) is None
        assert 100 <= executor.messages <= 400, (agents, executor.messages)


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_examples_see_what_is_missing_or_doubled(pattern: str) -> None:
    tried, missed = unseen(make_workload(part_of(pattern, messages=150)), 1, every=0.05)
    for name in ("dropped", "doubled"):  # messages that carry nothing are not missed
        assert tried[name] > 50 and missed.count(name) < tried[name] / 2, (name, tried, missed.count(name))
    assert "missing_agent" not in missed or pattern == "bank-example"


def test_a_wrong_pagerank_is_seen_at_the_end() -> None:
    workload = make_workload(part_of("pagerank"))
    executor = Executor(workload.fleet, 1)
    executor.run()
    states = executor.states()
    first = states["shard-0"]
    first.rank[0, 0] -= UNIT  # type: ignore[attr-defined]
    assert not workload.is_done(states)
    first.rank[1, 0] += UNIT  # type: ignore[attr-defined]
    assert workload.is_done(states)
    found = workload.check_end(states)
    assert found is not None and "differ" in found


# -- fleets ---------------------------------------------------------------------------------------------------------------


def test_triggers() -> None:
    def triggers(kind: str, protocol: str, pattern: str = "ring") -> tuple[object, ...]:
        trigger = TriggerPart(kind=kind, messages=9)  # type: ignore[arg-type]
        return make_workload(part_of(pattern, protocol=protocol, trigger=trigger)).fleet.triggers

    assert triggers("messages", "hmnr") == (snapline.EveryMessages(9),)
    assert triggers("adaptive", "bcs") == (snapline.Adaptive(least_s=0.5),)
    assert triggers("none", "fdas") == (snapline.Manual(),)
    assert triggers("none", "chandy-lamport") == triggers("none", "koo-toueg") == ()
    assert triggers("period", "uncoordinated", "domino") == (snapline.Manual(),)
    assert triggers("period", "koo-toueg", "domino") == (snapline.Every(0.5, 0.1),)
    with pytest.raises(FleetDefinitionError, match="chandy-lamport takes"):
        triggers("messages", "chandy-lamport")


def test_the_users_own_fleet() -> None:
    part = FleetPart(module="snapline.examples.domino:fleet", arguments={"pairs": "2"})
    workload = make_workload(part)
    assert list(workload.fleet.agents) == ["a0", "b0", "a1", "b1"]
    assert not workload.ends and not workload.is_done({})
    assert workload.check_cut(snapline.Cut(1, {}, workload.fleet)) is None and workload.check_end({}) is None
    with pytest.raises(FleetDefinitionError, match="no module"):
        make_workload(FleetPart(module="no_such_module:fleet"))


def test_what_cannot_be_played_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="'rign': use one of ring, pipeline"):
        make_workload(part_of("rign"))
    with pytest.raises(UsageError, match=r"fleet.agents is 1: pattern ring needs at least 2"):
        make_workload(part_of("ring", agents=1))
    with pytest.raises(UsageError, match=r"pattern pagerank takes at most 256"):
        make_workload(part_of("pagerank", agents=257))


@pytest.mark.parametrize("pattern", ["ring", "random", "grid", "tree", "clusters"])
def test_large_fleets_have_small_states(pattern: str) -> None:
    agents = 10_000
    workload = make_workload(part_of(pattern, agents=agents, messages=3 * agents))
    made = [workload.fleet.agents[f"a{index}"] for index in range(0, agents, 501)]
    peers = [source().state.peers for source in made if callable(source)]
    assert all(1 <= len(each) <= 4 and len(set(each)) == len(each) for each in peers)
    assert all(other in workload.fleet.agents for each in peers for other in each)


@given(st.integers(2, 400))
@settings(max_examples=30, deadline=None)
def test_graphs_lead_from_everywhere_to_everywhere(agents: int) -> None:
    for pattern in ("random", "clusters", "tree", "star", "grid"):
        fleet = make_workload(part_of(pattern, agents=agents)).fleet
        peers = {agent: made().state.peers for agent, made in fleet.agents.items() if callable(made)}
        assert all(agent not in others for agent, others in peers.items())
        back: dict[str, list[str]] = {agent: [] for agent in peers}
        for agent, others in peers.items():
            for other in others:
                back[other].append(agent)
        assert len(reached(peers)) == len(reached(back)) == agents, pattern


def reached(graph: dict[str, list[str]]) -> dict[str, None]:
    found = {"a0": None}
    waiting = ["a0"]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in found:
                found[other] = None
                waiting.append(other)
    return found
