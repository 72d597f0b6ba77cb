"""The oracles of cuts: each finds what it is for, and nothing in runs that are right by construction."""

from collections.abc import Callable

import msgspec
import pytest
from tests.sim.feeds import Feed

from snapline.sim.oracles.judge import VIOLATIONS_MAX
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, SavedTimer


def late_image(feed: Feed) -> None:
    """One agent's image is taken a turn too late: what it consumed then, or sent, is not as the others have it."""
    cut = feed.snapshot()
    sender, receiver = feed.nonempty()
    feed.deliver(feed.now, sender, receiver)
    cut[receiver] = msgspec.structs.replace(feed.capture(receiver), in_transit=cut[receiver].in_transit)
    feed.complete(cut)


def orphaned(feed: Feed) -> None:
    """A message is sent and consumed after the sender's image, and the receiver's image is taken then."""
    cut = feed.snapshot()
    feed.now.actors["a0"].outbox = []
    feed.now.channels["a0", "a1"] = []
    while not feed.now.channels["a0", "a1"]:
        feed.turn(feed.now, "a0", "timer", "", b"")
        feed.release(feed.now, feed.now.actors["a0"])
    feed.judge.on_turn(feed.t_ns, 1, "a1", "message", "a0", expected(feed, "a0", "a1"), [], [])
    for payload in in_transit_payloads(cut["a1"], "a0"):
        assert payload
    cut["a1"] = msgspec.structs.replace(feed.capture("a1"), in_transit=cut["a1"].in_transit)
    feed.complete(cut)


def expected(feed: Feed, sender: str, receiver: str) -> bytes:
    """What the books say comes next on a channel."""
    channel = feed.judge.ground_truth.channel_of(feed.now.plan, sender, receiver)
    return channel.sent[len(channel.consumed_at)]


def in_transit_payloads(checkpoint: AgentCheckpoint, sender: str) -> list[bytes]:
    return [message.payload for message in checkpoint.in_transit.get(sender, [])]


def with_transit(feed: Feed, change: Callable[[list[InTransitMessage]], list[InTransitMessage]]) -> None:
    """The channel state of one channel with two messages or more is changed."""
    sender, receiver = feed.nonempty()
    cut = feed.snapshot()
    found = cut[receiver].in_transit
    cut[receiver] = msgspec.structs.replace(cut[receiver], in_transit={**found, sender: change(found[sender])})
    feed.complete(cut)


def lost_outbox(feed: Feed) -> None:
    feed.wait = 10
    while not any(actor.outbox for actor in feed.now.actors.values()):
        feed.steps(1)
    cut = feed.snapshot()
    name = next(name for name, actor in feed.now.actors.items() if actor.outbox)
    cut[name] = msgspec.structs.replace(cut[name], outbox=[])
    feed.complete(cut)


def other_state(feed: Feed) -> None:
    cut = feed.snapshot()
    cut["a1"] = msgspec.structs.replace(cut["a1"], state=cut["a1"].state + b"!")
    feed.complete(cut)


def lost_timers(feed: Feed) -> None:
    cut = feed.snapshot()
    cut["a1"] = msgspec.structs.replace(cut["a1"], timers=[SavedTimer("tick", 1, b"")])
    feed.complete(cut)


def never_captured(feed: Feed) -> None:
    cut = feed.snapshot()
    cut["a1"] = msgspec.structs.replace(cut["a1"], number=99)
    feed.complete(cut)


def zombie_image(feed: Feed) -> None:
    """An agent's checkpoint in a new epoch was taken under a plan that had been replaced."""
    line = feed.complete(feed.snapshot())
    feed.steps(20)
    old = feed.snapshot()
    feed.start(line)
    feed.steps(20)
    cut = feed.snapshot()
    cut["a1"] = old["a1"]
    feed.complete(cut)


def restored_otherwise(feed: Feed) -> None:
    """What is loaded is not what the epoch held."""
    line = feed.complete(feed.snapshot())
    feed.saved[line]["a1"] = msgspec.structs.replace(feed.saved[line]["a1"], state=b"x")
    feed.start(line)


def restored_without_transit(feed: Feed) -> None:
    feed.nonempty()
    line = feed.complete(feed.snapshot())
    for name, checkpoint in feed.saved[line].items():
        feed.saved[line][name] = msgspec.structs.replace(checkpoint, in_transit={})
    feed.start(line)


def unreadable(feed: Feed) -> None:
    feed.judge.on_epoch_complete(feed.t_ns, 1, "period", None, "packs/1: it is gone")


def unknown_line(feed: Feed) -> None:
    feed.saved[9] = feed.snapshot()
    feed.start(9)


def began_anew(feed: Feed) -> None:
    line = feed.complete(feed.snapshot())
    feed.judge.on_loaded(feed.t_ns, 2, line, "a0", None)


def creation_outside(feed: Feed) -> None:
    """An agent was created inside the cut, and the epoch does not hold it."""
    feed.judge.on_turn(feed.t_ns, 1, "a0", "timer", "", b"", [], [("c9", "m:C", b"")])
    feed.complete({name: feed.capture(name) for name in feed.names})


MUTATIONS: list[tuple[Callable[[Feed], None], list[str]]] = [
    (late_image, ["channel-state", "orphan"]),
    (orphaned, ["orphan", "channel-state"]),
    (lambda feed: with_transit(feed, lambda messages: messages[1:]), ["channel-state"]),
    (lambda feed: with_transit(feed, lambda messages: messages[:-1]), ["channel-state"]),
    (lambda feed: with_transit(feed, lambda messages: messages[::-1]), ["channel-state"]),
    (lambda feed: with_transit(feed, lambda messages: [*messages, messages[0]]), ["channel-state"]),
    (lost_outbox, ["restored"]),
    (lost_timers, ["restored"]),
    (other_state, ["restored"]),
    (never_captured, ["restored"]),
    (zombie_image, ["incarnation"]),
    (restored_otherwise, ["restored"]),
    (restored_without_transit, ["restored"]),
    (unreadable, ["outcome"]),
    (unknown_line, ["outcome"]),
    (began_anew, ["restored"]),
    (creation_outside, ["channel-state"]),
]


@pytest.mark.parametrize(("mutation", "oracles"), MUTATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_every_mutation_of_cuts_is_found(mutation: Callable[[Feed], None], oracles: list[str], seed: int) -> None:
    feed = Feed(seed)
    feed.wait = 0
    feed.steps(60)
    assert feed.found == []
    mutation(feed)
    assert feed.found and feed.found[0] in oracles, feed.judge.violations


def test_vector_clocks_find_an_orphan_by_themselves() -> None:
    """a1 heard of a0's second turn, and the cut holds only the first."""
    feed = Feed(0, agents=2)
    judge = feed.judge
    judge.on_turn(0, 1, "a0", "timer", "", b"", [], [])
    first = feed.capture("a0")
    judge.on_turn(1, 1, "a0", "timer", "", b"", [("a1", b"late")], [])
    judge.on_turn(2, 1, "a1", "message", "a0", b"late", [], [])
    feed.complete({"a0": first, "a1": feed.capture("a1")})
    assert feed.found[:2] == ["orphan", "clock"]


def test_what_still_waits_in_an_outbox_and_was_consumed_is_an_orphan() -> None:
    """A restart would send it once more."""
    feed = Feed(0, agents=2)
    feed.judge.on_turn(0, 1, "a0", "timer", "", b"", [("a1", b"m")], [])
    feed.now.actors["a0"].outbox = [("a1", b"m")]
    held = feed.capture("a0")
    feed.judge.on_turn(1, 1, "a1", "message", "a0", b"m", [], [])
    feed.complete({"a0": held, "a1": feed.capture("a1")})
    assert feed.found[0] == "orphan"


def test_the_workloads_own_check_is_asked() -> None:
    feed = Feed(0, check_cut=lambda cut: f"a coin too few in {cut.epoch}")
    feed.complete(feed.snapshot())
    assert [x.text for x in feed.judge.violations] == ["epoch 1: a coin too few in 1"]


def test_beyond_the_budget_an_epoch_may_be_lost_and_must_not_lie() -> None:
    feed = Feed(0, budget="beyond")
    feed.steps(30)
    unreadable(feed)
    feed.judge.on_deleted(0, False, [])
    assert feed.found == []
    other_state(feed)
    assert feed.found == ["restored"]


@pytest.mark.parametrize(("is_whole", "found"), [(True, ["outcome"]), (False, [])])
def test_only_what_is_damaged_is_condemned(is_whole: bool, found: list[str]) -> None:
    feed = Feed(0)
    feed.judge.on_condemned(0, 1, is_whole=is_whole)
    assert feed.found == found


def test_only_the_first_violations_are_kept() -> None:
    feed = Feed(0)
    for _ in range(2 * VIOLATIONS_MAX):
        unreadable(feed)
    assert len(feed.judge.violations) == VIOLATIONS_MAX


def test_a_core_that_raises_is_a_violation() -> None:
    feed = Feed(0)
    feed.judge.on_core_failed(5, "h1", AssertionError("a parked message has a number"), "validate, core.py:7")
    assert [(x.oracle, x.guarantee) for x in feed.judge.violations] == [("core", "core")]
