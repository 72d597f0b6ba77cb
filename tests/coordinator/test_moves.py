"""The leader core: agents that move on purpose."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import LEFT, LOST, HostRecord
from snapline.coordinator.state.operation_rules import check_end, place
from snapline.errors import UsageError
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import PlaceRule

HOSTS = ("h1", "h2", "h3")


@pytest.fixture
def bench() -> Bench:
    made = Bench(3, agents=6)
    made.start_fleet(*HOSTS)
    return made


def move(bench: Bench, *drained: str, resumed: tuple[str, ...] = (), even: bool = False, request: int = 1) -> None:
    bench.feed(words.MovesRequested(request, drained, resumed, even))


def move_to(bench: Bench, host: str, *agents: str) -> None:
    bench.feed(words.MovesRequested(1, (), (), False, dict.fromkeys(agents, host)))


def test_single_agents_move_and_stay(bench: Bench) -> None:
    """All others stay where they are. A later plan leaves all of them there."""
    before = {agent: record.host for agent, record in bench.state.living_agents()}
    chosen = [agent for agent, host in before.items() if host != "h2"][:3]
    move_to(bench, "h2", *chosen)
    assert answers(bench) == [words.AnswerMoves(1, "", 1, True)]
    take_epoch(bench, *HOSTS)
    after = {agent: record.host for agent, record in bench.state.living_agents()}
    assert after == {**before, **dict.fromkeys(chosen, "h2")} and bench.state.plan_number == 2
    bench.apply_plan(*HOSTS)
    bench.commands.clear()
    move_to(bench, "h2", *chosen)
    assert answers(bench) == [words.AnswerMoves(1, "", 2, False)], "they are there"


def test_an_agent_does_not_move_to_a_host_that_is_gone(bench: Bench) -> None:
    bench.drop("h2")
    move_to(bench, "h2", "a0")
    assert not answers(bench)[0].is_moving


def answers(bench: Bench) -> list[words.AnswerMoves]:
    return [x for x in bench.commands if isinstance(x, words.AnswerMoves)]


def placed(bench: Bench) -> Counter[str]:
    return Counter(record.host for _, record in bench.state.living_agents())


def take_epoch(bench: Bench, *hosts: str) -> None:
    """The epoch that begins by itself."""
    bench.pass_time(1)
    (epoch,) = bench.state.open_epochs()
    for host in hosts:
        bench.report(host, epoch)


def test_no_epoch_is_lost_for_it(bench: Bench) -> None:
    """An epoch that is open when a host is drained ends as it would have, and one that begins meanwhile, too."""
    bench.feed(ev.SnapshotRequested(1))
    move(bench, "h3")
    for host in HOSTS:
        bench.report(host, 1)
    assert bench.state.plan_number == 1, "that epoch had begun before"
    bench.pass_time(1)
    bench.feed(ev.SnapshotRequested(1))
    for host in HOSTS:
        bench.report(host, 2)
    assert bench.state.plan_number == 1 and bench.state.open_epochs() == (3,)
    for host in HOSTS:
        bench.report(host, 3)
    assert bench.state.plan_number == 2 and bench.state.image.aborted == 0


def test_every_later_plan_does_without_it_and_a_new_leader_goes_on(bench: Bench) -> None:
    move(bench, "h3")
    bench.start_leader("second")
    for host in HOSTS:
        bench.attach(host, plan=1)
    take_epoch(bench, *HOSTS)
    bench.apply_plan("h1", "h2")
    bench.drop("h2")
    bench.pass_time(8, silent=("h2",))
    bench.apply_plan("h1")
    assert placed(bench) == {"h1": 6}


def test_a_drained_host_is_used_when_nobody_else_is_left(bench: Bench) -> None:
    move(bench, "h3")
    take_epoch(bench, *HOSTS)
    bench.apply_plan("h1", "h2")
    for host in ("h1", "h2"):
        bench.drop(host)
    bench.pass_time(8, silent=("h1", "h2"))
    bench.apply_plan("h3")
    assert placed(bench) == {"h3": 6} and bench.state.phase == "running"
    begun = bench.state.image.begun
    bench.pass_time(5, silent=("h1", "h2"))
    assert bench.state.image.begun == begun, "there is nowhere to go: nothing begins for it"


def test_resumed_before_the_move_nothing_moves(bench: Bench) -> None:
    move(bench, "h3")
    move(bench, resumed=("h3",), request=2)
    bench.pass_time(5)
    assert bench.state.plan_number == 1 and [x.request for x in answers(bench)] == [1, 2]


def test_a_fleet_that_has_ended_says_so(bench: Bench) -> None:
    bench.state.apply(op.Operation(1, "x", 1, op.EndFleet(0, "failed", "why")))
    move(bench, "h3")
    assert [x.refused for x in answers(bench)] == ["the fleet has ended"]


def test_a_host_that_is_ended_is_told_and_does_not_count(bench: Bench) -> None:
    heard = bench.directives("h2")
    bench.feed(words.EndHostRequested("h2"))
    away = [x for x in heard if isinstance(x, msg.TurnedAway)]
    assert [x.is_final for x in away] == [True] and bench.state.image.hosts["h2"].state == "lost"
    assert bench.state.image.need is not None and "an operator has ended it" in bench.state.image.need.reason


@given(
    agents=st.lists(st.sampled_from(["", "h1", "h2", "h3", "h4"]), max_size=40),
    hosts=st.lists(st.sampled_from(["h1", "h2", "h3", "h4", "h5"]), min_size=1, unique=True),
)
def test_even_placement_is_even_and_moves_no_more_than_it_must(agents: list[str], hosts: list[str]) -> None:
    living = [(f"a{number}", host) for number, host in enumerate(agents)]
    found = place(living, hosts, is_even=True)
    load = Counter({host: 0 for host in hosts})
    load.update(found.values())
    assert list(found) == [agent for agent, _ in living] and set(load) == set(hosts)
    assert max(load.values()) - min(load.values()) <= 1 and place(found.items(), hosts, is_even=True) == found
    # Of n agents on k hosts, n mod k hosts hold one more: most stay where those are the hosts that have most.
    here = Counter({host: 0 for host in hosts})
    here.update(host for _, host in living if host in hosts)
    least, more = divmod(len(living), len(hosts))
    most = sum(min(count, least + (n < more)) for n, (_, count) in enumerate(here.most_common()))
    assert sum(found[agent] == host for agent, host in living) == most


RULES = st.lists(
    st.builds(
        PlaceRule,
        st.sampled_from(["a*", "a1", "a1*", "a20", "b*"]),
        st.lists(st.sampled_from(["h1", "h2", "h3", "h9"]), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    max_size=4,
)


@given(
    agents=st.lists(st.sampled_from(["", "h1", "h2", "h3", "h4"]), max_size=40),
    hosts=st.lists(st.sampled_from(["h1", "h2", "h3", "h4", "h5"]), min_size=1, unique=True),
    rules=RULES,
    is_even=st.booleans(),
)
def test_agents_are_where_they_belong_as_long_as_that_is_there(
    agents: list[str], hosts: list[str], rules: list[PlaceRule], is_even: bool
) -> None:
    living = [(f"a{number}", host) for number, host in enumerate(agents)]
    found = place(living, hosts, rules, is_even=is_even)
    assert list(found) == [agent for agent, _ in living]
    for agent, before in living:
        pattern = next(
            (
                x
                for x in rules
                if agent == x.agents or (x.agents[-1] == "*" and agent[: len(x.agents) - 1] == x.agents[:-1])
            ),
            None,
        )
        own = [host for host in hosts if pattern is None or host in pattern.hosts] or hosts
        assert found[agent] in own, (agent, pattern)
        assert is_even or before not in own or found[agent] == before, "it moves without need"
    # Of those that nothing is said of, nobody is left on a host that has two more than another.
    if is_even and not any(rule.applies_to(agent) for rule in rules for agent in found):
        load = Counter({host: 0 for host in hosts})
        load.update(found.values())
        assert max(load.values()) - min(load.values()) <= 1


def test_a_fleet_s_places_hold_from_its_first_plan_and_while_it_is_spread(bench: Bench) -> None:
    other = Bench(3, agents=6)
    other.definition = msgspec.structs.replace(
        other.definition, places=(PlaceRule("a0", ("h3",)), PlaceRule("a*", ("h1", "h2", "nobody")))
    )
    other.start_fleet(*HOSTS)
    where = {agent: record.host for agent, record in other.state.living_agents()}
    assert where["a0"] == "h3" and placed(other) == {"h1": 3, "h2": 2, "h3": 1}
    move(other, even=True)
    assert [(x.is_moving, x.plan) for x in answers(other)] == [(False, 1)], "it is as even as it may be"
    other.drop("h3")
    other.pass_time(8, silent=("h3",))
    other.apply_plan("h1", "h2")
    assert placed(other) == {"h1": 3, "h2": 3}, "a0 belongs to h3 as long as that is there"


def test_too_many_rules_are_no_fleet() -> None:
    bench = Bench(1, agents=1)
    bench.definition = msgspec.structs.replace(bench.definition, places=(PlaceRule("a*", ("h1",)),) * 65)
    bench.attach("h1")
    assert not bench.state.is_defined


def test_a_host_that_has_left_is_said_to_have_left() -> None:
    hosts = {state: HostRecord(1, "x", "127.0.0.1:1", state=state) for state in (LEFT, LOST)}
    for host, said in ((LEFT, "host left has left the fleet: "), (LOST, "host lost is lost: ")):
        with pytest.raises(UsageError, match=said):
            check_end(hosts, host)
