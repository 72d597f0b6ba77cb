"""Placement by measured load: the pure function by its properties, and what the leader measures and writes into the log."""

import functools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.bench import SECOND, Bench
from tests.coordinator.test_moves import HOSTS, RULES, move, placed, take_epoch

from snapline.coordinator.leader.agent_moves import AT_REST, WEIGHT_MAX, WINDOW_NS
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import REFUSED
from snapline.coordinator.state.operation_rules import place
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import PlaceRule

HOMES = st.lists(st.sampled_from(["", "h1", "h2", "h3", "h4"]), max_size=40)
TARGETS = st.lists(st.sampled_from(["h1", "h2", "h3", "h4", "h5"]), min_size=1, unique=True)
WEIGHTS = st.dictionaries(st.sampled_from(["h1", "h2", "h3", "h4"]), st.integers(1, WEIGHT_MAX))


@given(homes=HOMES, hosts=TARGETS, rules=RULES, weights=WEIGHTS)
def test_agents_are_placed_once_where_they_may_be_and_balanced_by_weight(
    homes: list[str], hosts: list[str], rules: list[PlaceRule], weights: dict[str, int]
) -> None:
    living = [(f"a{number}", host) for number, host in enumerate(homes)]
    found = place(living, hosts, rules, weights=weights)
    assert list(found) == [agent for agent, _ in living] and set(found.values()) <= set(hosts)
    usual = max(1, sum(weights.values()) // len(weights)) if weights else 1
    load, got = dict.fromkeys(hosts, 0), dict.fromkeys(hosts, 0)
    for agent, host in living:
        rule = next((rule for rule in rules if rule.applies_to(agent)), None)
        may = [each for each in hosts if rule and each in rule.hosts] or hosts
        weight = weights.get(host, usual)
        assert found[agent] in may
        assert found[agent] == host or host not in may, "who may stay stays"
        load[found[agent]] += weight
        if found[agent] != host and may == hosts:
            got[found[agent]] = max(got[found[agent]], weight)
    for host, heaviest in got.items():
        assert not heaviest or load[host] <= min(load.values()) + max(got.values())
    assert place(living, list(reversed(hosts)), rules, weights=weights) == found, "the same for the same"
    assert place(found.items(), hosts, rules, weights=weights) == found, "and nobody moves again"


@given(homes=HOMES, hosts=TARGETS, rules=RULES, weights=WEIGHTS, weight=st.integers(1, WEIGHT_MAX))
def test_numbers_count_where_all_weigh_the_same_and_where_agents_are_spread_evenly(
    homes: list[str], hosts: list[str], rules: list[PlaceRule], weights: dict[str, int], weight: int
) -> None:
    """Measured again after each move, weights would have agents move for ever."""
    living = [(f"a{number}", host) for number, host in enumerate(homes)]
    alike = dict.fromkeys(["h1", "h2", "h3", "h4"], weight)
    for is_even in (True, False):
        by_number = place(living, hosts, rules, is_even=is_even)
        assert place(living, hosts, rules, weights=alike, is_even=is_even) == by_number
    assert place(living, hosts, weights=weights, is_even=True) == place(living, hosts, is_even=True)


def test_who_weighs_much_gets_less() -> None:
    living = [("a1", "h1"), ("a2", "h2"), ("a3", "h3"), ("a4", "h3"), ("a5", "h3")]
    found = place(living, ["h1", "h2"], weights={"h1": 50, "h2": 10, "h3": 10})
    assert Counter(found.values()) == {"h1": 1, "h2": 4}


def test_those_that_a_rule_names_weigh_too() -> None:
    living = [("b1", ""), ("b2", ""), ("b3", ""), ("a1", ""), ("a2", "h3"), ("a3", "h3")]
    found = place(living, ["h1", "h2"], [PlaceRule("b*", ("h1",))], weights={"h3": 10})
    assert Counter(found.values()) == {"h1": 3, "h2": 3}


@pytest.fixture
def bench() -> Bench:
    made = Bench(3, agents=6)
    made.start_fleet(*HOSTS)
    return made


def work(bench: Bench, **per_s: int) -> None:
    """From now on these hosts take so many turns in a second."""
    for host, rate in per_s.items():
        bench.beats[host] = functools.partial(_beat, bench, bench.now, rate)


def _beat(bench: Bench, began_ns: int, rate: int) -> msg.Heartbeat:
    return msg.Heartbeat(1, 1_000 + rate * (bench.now - began_ns) // SECOND)


def plans(bench: Bench) -> list[op.CommitPlan]:
    return [kind for kind in bench.log if isinstance(kind, op.CommitPlan)]


def test_agents_of_a_drained_host_go_where_least_is_done(bench: Bench) -> None:
    work(bench, h1=100, h2=0, h3=10)
    bench.pass_time(5)
    assert bench.state.plan_number == 1, "nobody moves for load alone"
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    busy, still, some = plans(bench)[-1].weights
    assert (still, some // 10, busy // 10) == (AT_REST, 6, 51), "of each of two agents, and one turn for being there"
    assert placed(bench) == {"h1": 2, "h2": 4}
    bench.pass_time(3)
    assert bench.state.phase == "recovering" and bench.core.parts.loads.weights() == (), "nobody works now"


def test_the_agents_of_a_lost_host_go_where_least_is_done(bench: Bench) -> None:
    """What it did is known from when it lived."""
    work(bench, h1=100, h2=0, h3=10)
    bench.snapshot(*HOSTS)
    bench.pass_time(5)
    bench.drop("h3")
    for _ in range(40):
        if bench.state.plan_number == 1:
            bench.pass_time(0.5)
    assert bench.state.plan_number == 2 and len(plans(bench)[-1].weights) == 3
    assert placed(bench) == {"h1": 2, "h2": 4}


def test_who_has_not_measured_all_counts(bench: Bench) -> None:
    """A new leader, at first."""
    work(bench, h1=100, h2=0, h3=10)
    bench.pass_time(5)
    bench.start_leader("another")
    for host in HOSTS:
        bench.attach(host, plan=1)
        bench.say(host, msg.PlanApplied(1, bench.state.image.hosts[host].start))
    bench.pass_time(1)
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    assert plans(bench)[-1].weights == ()
    assert placed(bench) == {"h1": 3, "h2": 3}


def test_who_has_not_measured_one_counts(bench: Bench) -> None:
    """It counts its turns from the beginning again."""
    work(bench, h1=100, h2=0, h3=10)
    bench.pass_time(5)
    bench.beats["h2"] = functools.partial(msg.Heartbeat, 1, 0)
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    assert plans(bench)[-1].weights == () and placed(bench) == {"h1": 3, "h2": 3}


def test_where_all_do_the_same_nothing_is_written_of_it(bench: Bench) -> None:
    work(bench, h1=50, h2=50, h3=50)
    bench.pass_time(5)
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    assert plans(bench)[-1].weights == () and placed(bench) == {"h1": 3, "h2": 3}


def test_work_of_long_ago_does_not_count(bench: Bench) -> None:
    work(bench, h1=1000, h2=0, h3=0)
    bench.pass_time(10)
    for host in HOSTS:
        bench.beats[host] = functools.partial(msg.Heartbeat, 1, bench.beats[host]().turns)
    bench.pass_time(3 * WINDOW_NS // SECOND)
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    assert plans(bench)[-1].weights == () and placed(bench) == {"h1": 3, "h2": 3}


def test_weights_that_fit_no_plan_are_refused(bench: Bench) -> None:
    bench.snapshot(*HOSTS)
    for weights in ((1, 2), (1, 2, 0)):
        kind = op.CommitPlan(1, 1, HOSTS, "why", weights=weights)
        found = bench.state.apply(op.Operation(bench.now, "x", len(weights) + sum(weights), kind))
        assert found.status == REFUSED and "weights" in found.reason
