"""The books: histories that branch, consumptions that must fit, positions of images."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.feeds import Feed, make_fleet, nothing

from snapline.agent_runtime.host.host_events import Control
from snapline.agent_runtime.host.plans import creation_payload
from snapline.sim.oracles.judge import Judge, JudgeTerms


def make_judge(agents: int = 2) -> Judge:
    terms = JudgeTerms(protocol="chandy-lamport", budget="within", with_clocks=True, check_cut=nothing)
    return Judge(terms, fleet=make_fleet(agents), agents=[f"a{number}" for number in range(agents)])


def test_messages_of_one_channel_are_consumed_in_order() -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a0", "start", "a0", b"", [("a1", b"1"), ("a1", b"2"), ("a0", b"own")], [])
    judge.on_turn(1, 1, "a1", "message", "a0", b"1", [], [])
    judge.on_turn(2, 1, "a0", "message", "a0", b"own", [], [])
    judge.on_turn(3, 1, "a1", "message", "a0", b"2", [], [])
    assert judge.violations == []
    assert judge.ground_truth.messages == 3


@pytest.mark.parametrize(
    ("consumed", "oracle", "guarantee"),
    [
        ([b"2"], "exactly-once", "G3"),
        ([b"1", b"1"], "exactly-once", "G3"),
        ([b"1", b"2", b"3"], "orphan", "G1"),
        ([b"x"], "orphan", "G1"),
    ],
    ids=["lost", "doubled", "never sent", "altered"],
)
def test_a_consumption_that_does_not_fit_is_named(consumed: list[bytes], oracle: str, guarantee: str) -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a0", "start", "a0", b"", [("a1", b"1"), ("a1", b"2")], [])
    for payload in consumed:
        judge.on_turn(7, 1, "a1", "message", "a0", payload, [], [])
    assert [(x.oracle, x.guarantee, x.t_ns) for x in judge.violations] == [(oracle, guarantee, 7)]


def test_a_message_of_an_undone_turn_is_named_by_its_incarnation() -> None:
    judge = make_judge()
    judge.on_loaded(0, 1, 0, "a0", None)
    judge.on_loaded(0, 2, 0, "a0", None)
    judge.on_turn(1, 1, "a0", "start", "a0", b"", [("a1", b"old")], [])
    assert judge.violations == []  # a host that has not heard of plan 2 may go on
    judge.on_turn(2, 2, "a1", "message", "a0", b"old", [], [])
    assert [(x.oracle, x.guarantee) for x in judge.violations] == [("incarnation", "G9")]
    assert judge.ground_truth.zombie_turns == 1


def test_a_creation_comes_before_the_other_sends_of_its_turn() -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a0", "start", "a0", b"", [("c", b"1")], [("c", "m:C", b"state")])
    judge.on_turn(1, 1, "c", "create", "a0", creation_payload("m:C", b"state"), [], [])
    judge.on_turn(2, 1, "c", "message", "a0", b"1", [], [])
    assert judge.violations == []


def test_void_messages_are_skipped() -> None:
    """A refused creation and a message for nobody never arrive; what is sent later on the channel does."""
    judge = make_judge()
    creation = creation_payload("m:C", b"state")
    judge.on_turn(0, 1, "a0", "start", "a0", b"", [("c", b"1")], [("c", "m:C", b"state")])
    judge.on_unroutable(1, 1, "a0", "c", creation)
    judge.on_turn(2, 1, "c", "message", "a0", b"1", [], [])
    assert judge.violations == []
    judge.on_unroutable(3, 1, "a0", "c", b"1")
    assert [x.oracle for x in judge.violations] == ["exactly-once"]


def test_a_dead_letter_of_the_receiver_counts_as_consumed() -> None:
    judge = make_judge()
    judge.on_turn(0, 1, "a0", "start", "a0", b"", [("a1", b"1"), ("a1", b"2"), ("a1", b"3")], [])
    judge.on_dead_lettered(1, 1, "a1", "message", "a0", b"1")
    judge.on_dead_lettered(1, 1, "a1", "message", "a0", None)
    judge.on_turn(2, 1, "a1", "message", "a0", b"3", [], [])
    assert judge.violations == []
    judge.on_dead_lettered(3, 1, "a1", "message", "a0", b"3")
    assert [x.oracle for x in judge.violations] == ["exactly-once"]


@given(
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 4),
    spawning=st.booleans(),
    rounds=st.lists(st.tuples(st.integers(1, 60), st.sampled_from(("epoch", "recover", "zombie"))), max_size=8),
)
def test_what_is_consistent_by_construction_is_found_so(
    seed: int, agents: int, spawning: bool, rounds: list[tuple[int, str]]
) -> None:
    """Any order of turns, epochs and recoveries to any epoch, with hosts that go on under an older plan."""
    feed = Feed(seed, agents=agents, spawning=spawning)
    for count, what in rounds:
        feed.steps(count)
        if what == "epoch":
            feed.complete(feed.snapshot())
        else:
            feed.start(feed.random.randint(0, feed.epoch), keeps_zombie=what == "zombie")
    feed.steps(30)
    feed.complete(feed.snapshot())
    feed.judge.at_end(feed.t_ns, {}, is_quiet=False)
    assert feed.judge.violations == []


def test_a_branch_holds_what_was_inside_its_cut_and_nothing_else() -> None:
    feed = Feed(1)
    feed.steps(50)
    line = feed.complete(feed.snapshot())
    inside = {name: actor.turns for name, actor in feed.now.actors.items()}
    feed.steps(50)
    feed.start(line)
    branch = feed.judge.ground_truth.branch_of(2)
    assert {name: history.turns for name, history in branch.histories.items()} == inside
    for channel in branch.channels.values():
        assert channel.sent_at == sorted(x for x in channel.sent_at if x <= inside[channel.sender])
        assert all(turn <= inside[channel.receiver] for turn in channel.consumed_at)
        assert feed.judge.ground_truth.branch_of(1).channels[channel.sender, channel.receiver].sent is not channel.sent


def drop(feed: Feed) -> None:
    channel = feed.nonempty()
    feed.now.channels[channel].pop(0)
    feed.deliver(feed.now, *channel)


def double(feed: Feed) -> None:
    channel = feed.nonempty()
    queue = feed.now.channels[channel]
    queue.insert(0, queue[0])
    feed.deliver(feed.now, *channel)
    feed.deliver(feed.now, *channel)


def swap(feed: Feed) -> None:
    channel = feed.nonempty()
    queue = feed.now.channels[channel]
    queue[0], queue[1] = queue[1], queue[0]
    feed.deliver(feed.now, *channel)


def invent(feed: Feed) -> None:
    sender, receiver = feed.nonempty()
    feed.consume(feed.now, sender, receiver, b"invented")


def misdirect(feed: Feed) -> None:
    """A message of one channel is handed over on another one."""
    sender, receiver = feed.nonempty()
    other = next(name for name in feed.names if name != sender)
    feed.consume(feed.now, other, receiver, feed.now.channels[sender, receiver][0])


def keep_old_channels(feed: Feed) -> None:
    """After a recovery something that was sent by an undone turn is handed over."""
    feed.complete(feed.snapshot())
    before = {key: len(queue) for key, queue in feed.now.channels.items()}
    feed.steps(60)
    key, queue = next((k, q) for k, q in feed.now.channels.items() if len(q) > before.get(k, 0) and q)
    feed.start(feed.epoch)
    feed.consume(feed.now, *key, queue[-1])


@pytest.mark.parametrize(
    ("mutation", "oracles"),
    [
        (drop, ["exactly-once"]),
        (double, ["exactly-once"]),
        (swap, ["exactly-once"]),
        (invent, ["orphan"]),
        (misdirect, ["orphan"]),
        (keep_old_channels, ["incarnation", "exactly-once"]),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_every_mutation_of_deliveries_is_found(mutation: Callable[[Feed], None], oracles: list[str], seed: int) -> None:
    feed = Feed(seed)
    feed.steps(60)
    assert feed.found == []
    mutation(feed)
    assert feed.found and feed.found[0] in oracles, feed.judge.violations


def test_an_image_holds_what_had_happened_when_it_was_taken() -> None:
    """A message that was buried a moment later, in the same instant, is not in it."""
    books = make_judge().ground_truth
    books.on_turn(1, 1, "a1", "start", "a1", b"", [("a0", b"x")], [])
    books.on_turn(1, 1, "a0", "start", "a0", b"", [], [])
    control = Control(1, 1, True, True, False, [], [], [], [], 0)
    assert books.on_captured(2, 1, "a0", control, b"", "basic", 0).turns == 1
    books.on_dead_lettered(2, 1, "a0", "message", "a1", b"x")
    control = Control(1, 2, True, True, False, [], [], [], [], 0)
    assert books.on_captured(2, 1, "a0", control, b"", "basic", 0).turns == 2
