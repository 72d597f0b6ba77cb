"""The oracles of lines, of useless checkpoints and tracking, and of garbage: each finds what it is for."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.feeds import Feed, Log

from snapline.coordinator.state import operations as op
from snapline.protocols.rules import make_rule
from snapline.sim.oracles.ground_truth_records import (
    NOWHERE,
    AgentHistory,
    Branch,
    Captured,
    ChannelTruth,
    CutPlace,
    CutRecord,
)
from snapline.sim.oracles.line_oracles import maximal
from snapline.sim.oracles.useless import check_branch, intervals_of, untracked, useless
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

# ---- lines -----------------------------------------------------------------------------------------------------------


class LineFeed:
    """A feed whose agents checkpoint alone; every checkpoint is durable at once."""

    def __init__(self, seed: int, *, steps: int = 60, known: bool = True) -> None:
        self.feed = Feed(seed, protocol="uncoordinated")
        self.log = Log(self.feed)
        self.known = known
        self.taken: dict[str, list[AgentCheckpoint]] = {}
        for name in self.feed.names:
            self.take(name, "initial")
        for _ in range(steps):
            self.feed.step()
            if self.feed.random.random() < 0.2:
                self.take(self.feed.random.choice(self.feed.names), "basic")

    def take(self, name: str, basis: str) -> None:
        checkpoint = self.feed.capture(name, basis)
        self.taken.setdefault(name, []).append(checkpoint)
        self.feed.judge.on_checkpoints_durable(0, 1, [checkpoint])
        if self.known:
            self.feed.judge.on_checkpoints_known(1, name, checkpoint.number)

    def lines(self) -> list[dict[str, int]]:
        """All consistent lines, straight from the books' channels and turns."""
        branch = self.feed.judge.ground_truth.branch_of(1)
        names = self.feed.names
        found = []
        for numbers in itertools.product(*(range(len(self.taken[name])) for name in names)):
            line = dict(zip(names, numbers, strict=True))
            if all(self._fits(channel, line) for channel in branch.channels.values()):
                found.append(line)
        return found

    def _fits(self, channel: ChannelTruth, line: dict[str, int]) -> bool:
        sender = self.taken[channel.sender][line[channel.sender]]
        receiver = self.taken[channel.receiver][line[channel.receiver]]
        sent = sum(turn <= sender.turns for turn in channel.sent_at)
        sent -= sum(letter.receiver == channel.receiver for letter in sender.outbox)
        return sum(turn <= receiver.turns for turn in channel.consumed_at) <= sent

    def begin(self) -> None:
        """BeginEpoch is proposed and committed: here the line is taken."""
        self.log.commit(op.BeginEpoch(0, "recovery"))

    def complete(self, line: dict[str, int]) -> list[str]:
        """`line` becomes an epoch, with the channel states that belong to it."""
        branch = self.feed.judge.ground_truth.branch_of(1)
        cut = {}
        for name, number in line.items():
            checkpoint = self.taken[name][number]
            in_transit = {}
            for (sender, receiver), channel in branch.channels.items():
                if receiver == name:
                    giver = self.taken[sender][line[sender]]
                    got = sum(turn <= checkpoint.turns for turn in channel.consumed_at)
                    sent = sum(turn <= giver.turns for turn in channel.sent_at)
                    sent -= sum(letter.receiver == name for letter in giver.outbox)
                    payloads = channel.sent[got:sent]
                    in_transit[sender] = [InTransitMessage(n, 0, x) for n, x in enumerate(payloads, got + 1)]
            cut[name] = msgspec.structs.replace(checkpoint, in_transit=in_transit)
        self.feed.complete(cut, "recovery")
        return self.feed.found


def greatest(lines: list[dict[str, int]]) -> dict[str, int]:
    return max(lines, key=lambda line: sum(line.values()))


@pytest.mark.parametrize("seed", range(12))
def test_the_maximal_line_and_no_other_is_right(seed: int) -> None:
    probe = LineFeed(seed)
    lines = probe.lines()
    best = greatest(lines)
    for line in lines:
        feed = LineFeed(seed)
        feed.begin()
        found = feed.complete(line)
        assert (found == []) == (line == best), (line, best, feed.feed.judge.violations)
        assert found in ([], ["line"])
    assert len(lines) > 1


@pytest.mark.parametrize("seed", range(6))
def test_what_the_coordinator_may_not_have_known_is_allowed_to_be_missing(seed: int) -> None:
    """Without acknowledgements every line is right that is the maximal one of some prefixes, and no other."""
    probe = LineFeed(seed, known=False)
    names, lines = probe.feed.names, probe.lines()
    views = itertools.product(*(range(len(probe.taken[name])) for name in names))
    right = []
    for view in views:
        tops = dict(zip(names, view, strict=True))
        right.append(greatest([x for x in lines if all(x[name] <= tops[name] for name in names)]))
    for line in lines:
        feed = LineFeed(seed, known=False)
        feed.begin()
        assert (feed.complete(line) == []) == (line in right), line


def test_a_checkpoint_that_is_not_durable_is_on_no_line() -> None:
    feed = LineFeed(1)
    feed.begin()
    best = greatest(feed.lines())
    extra = feed.feed.capture("a0", "basic")
    feed.taken["a0"].append(extra)
    assert feed.complete({**best, "a0": extra.number})[0] in ("line", "orphan")


def test_behind_a_checkpoint_that_could_not_be_saved_none_is_on_a_line() -> None:
    """Its part of the log is lost, and the coordinator takes none behind it."""
    feed = LineFeed(1)
    best = greatest(feed.lines())
    feed.feed.capture("a0", "basic")
    feed.take("a0", "basic")
    feed.begin()
    assert feed.complete(best) == []


def test_damage_excuses_an_older_line() -> None:
    feed = LineFeed(3)
    feed.feed.judge.note_damage(1)
    feed.begin()
    assert feed.complete(dict.fromkeys(feed.feed.names, 0)) == []


@given(st.integers(0, 2**32))
def test_two_searches_for_the_maximal_line_agree(seed: int) -> None:
    """`maximal` asserts it; here on arbitrary counts, not only on those of executions."""
    source = Feed(seed).random
    names = ("a", "b", "c")
    counts = {name: source.randint(1, 4) for name in names}

    def rising(count: int) -> list[int]:
        return sorted([0, *(source.randint(0, 5) for _ in range(count - 1))])

    channels = [(s, r, rising(counts[s]), rising(counts[r])) for s in names for r in names]
    maximal({name: count - 1 for name, count in counts.items()}, channels)


# ---- useless checkpoints, tracking -----------------------------------------------------------------------------------


def play(seed: int, protocol: str, *, steps: int = 40, agents: int = 3, basic: float = 0.2) -> Branch:
    """A branch of agents that checkpoint by a real rule, between turns, with forced checkpoints before a message."""
    feed = Feed(seed, agents=agents, protocol=protocol)
    source = feed.random
    rules = [make_rule(protocol, number, agents) for number in range(agents)]
    channels: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    judge = feed.judge
    for step in range(steps):
        me = source.randrange(agents)
        name = feed.names[me]
        waiting = [s for s in range(agents) if channels.get((s, me))]
        what, sender, payload = "timer", 0, b""
        if waiting and source.random() < 0.6:
            what, sender = "message", source.choice(waiting)
            payload, piggyback = channels[sender, me].pop(0)
            if rules[me].forces(sender, piggyback):
                feed.capture(name, "forced")
                rules[me].checkpoint(piggyback)
            rules[me].receive(sender, piggyback)
        to = source.randrange(agents)
        sends = [(feed.names[to], b"%d" % step)] if source.random() < 0.8 else []
        judge.on_turn(step, 1, name, what, feed.names[sender], payload, sends, [])
        feed.now.actors[name].turns += 1
        if sends:
            channels.setdefault((me, to), []).append((sends[0][1], rules[me].send(to)))
            judge.on_left(1, name, sends[0][0], is_in_turn=False)
        if source.random() < basic or (sends and rules[me].checkpoints_after_sends):
            feed.capture(name, "basic")
            rules[me].checkpoint()
    assert judge.violations == []
    return judge.ground_truth.branch_of(1)


def useless_by_definition(branch: Branch) -> set[tuple[str, int]]:
    """Checkpoints that no consistent cut contains, by trying all cuts; the live states are candidates too."""
    names = list(branch.histories)
    places = {
        name: [0, *(x.turns for x in history.captured if x.basis != "initial"), history.turns + 1]
        for name, history in branch.histories.items()
    }
    used: set[tuple[str, int]] = set()
    for numbers in itertools.product(*(range(len(places[name])) for name in names)):
        cut = dict(zip(names, numbers, strict=True))
        if all(
            sum(turn <= places[channel.receiver][cut[channel.receiver]] for turn in channel.consumed_at)
            <= sum(turn <= places[channel.sender][cut[channel.sender]] for turn in channel.sent_at)
            for channel in branch.channels.values()
        ):
            used |= set(cut.items())
    every = {(name, number) for name in names for number in range(1, len(places[name]) - 1)}
    return every - used


@given(st.integers(0, 2**32))
def test_checkpoints_on_cycles_are_those_in_no_consistent_cut(seed: int) -> None:
    branch = play(seed, "uncoordinated", steps=25)
    assert {(x.agent, x.number) for x in useless(intervals_of(branch))} == useless_by_definition(branch)


def test_a_useless_checkpoint_built_by_hand_is_found() -> None:
    """Netzer and Xu's smallest Z-cycle: a0 takes c after it got m2; m2 left a1 in the interval in which a1 gets m1 of after c."""
    feed = Feed(0, agents=2, protocol="bcs")
    judge = feed.judge
    judge.on_turn(0, 1, "a1", "timer", "", b"", [("a0", b"m2")], [])
    judge.on_turn(1, 1, "a0", "message", "a1", b"m2", [], [])
    feed.now.actors["a0"].turns = 1
    feed.capture("a0", "basic")
    judge.on_turn(2, 1, "a0", "timer", "", b"", [("a1", b"m1")], [])
    judge.on_turn(3, 1, "a1", "message", "a0", b"m1", [], [])
    judge.at_end(4, {}, is_quiet=True)
    assert feed.found == ["useless"]
    assert judge.probes.hits["useless checkpoint"] == 1


@pytest.mark.parametrize("protocol", ["bcs", "hmnr", "fdas", "fdi", "bhmr", "nras", "cbr", "cas"])
def test_what_the_real_rules_promise_holds(protocol: str) -> None:
    for seed in range(12):
        report = check_branch(play(seed, protocol, steps=120, agents=4), protocol)
        assert report.findings == []
        assert report.is_tracking_judged == (protocol not in ("bcs", "hmnr"))


def test_without_a_rule_checkpoints_are_useless_and_dependencies_untracked() -> None:
    """Otherwise the test above would say nothing."""
    branches = [play(seed, "uncoordinated", steps=120, agents=4) for seed in range(12)]
    assert all(check_branch(branch, "bcs").findings for branch in branches)
    assert all(list(untracked(branch, intervals_of(branch))) for branch in branches)
    assert all(check_branch(branch, "uncoordinated").useless for branch in branches)


def test_bcs_leaves_dependencies_untracked() -> None:
    branches = [play(seed, "bcs", steps=120, agents=4) for seed in range(12)]
    assert any(list(untracked(branch, intervals_of(branch))) for branch in branches)


def test_tracking_is_not_judged_where_nobody_says_when_messages_leave() -> None:
    branch = play(1, "fdas")
    for channel in branch.channels.values():
        channel.departed_at.clear()
    assert not check_branch(branch, "fdas").is_tracking_judged


def tried(*, leaves_in_turn: bool) -> Feed:
    """a0 has consumed m from a1, and tries n from a2. Its q leaves, n fails and is tried again after a forced checkpoint."""
    feed = Feed(0, agents=4, protocol="fdi")
    judge = feed.judge
    judge.on_turn(0, 1, "a1", "timer", "", b"", [("a0", b"m")], [])
    judge.on_left(1, "a1", "a0", is_in_turn=False)
    judge.on_turn(0, 1, "a2", "timer", "", b"", [("a0", b"n"), ("a3", b"r")], [])
    judge.on_left(1, "a2", "a0", is_in_turn=False)
    judge.on_left(1, "a2", "a3", is_in_turn=False)
    judge.on_turn(0, 1, "a0", "message", "a1", b"m", [("a3", b"q")], [])
    judge.on_left(1, "a0", "a3", is_in_turn=leaves_in_turn)
    feed.now.actors["a0"].turns = 1
    feed.capture("a0", "forced")
    return feed


def test_what_left_in_a_turn_that_was_tried_carries_all_that_its_interval_had_consumed() -> None:
    """The turn itself ends in the next interval. What the interval had consumed before it was forgotten."""
    feed = tried(leaves_in_turn=True)
    feed.judge.on_turn(0, 1, "a0", "message", "a2", b"n", [], [])
    feed.judge.on_turn(0, 1, "a3", "message", "a0", b"q", [], [])
    report = check_branch(feed.judge.ground_truth.branch_of(1), "fdi")
    assert report.findings == [] and report.is_tracking_judged


@pytest.mark.parametrize("leaves_in_turn", [True, False])
def test_what_left_in_a_turn_that_was_tried_carries_what_that_brought(*, leaves_in_turn: bool) -> None:
    """The path a2 - r - a3 - s - a1, where s leaves a3 before r is consumed, is shown: s carries what q had brought of a2."""
    feed = tried(leaves_in_turn=leaves_in_turn)
    judge = feed.judge
    judge.on_turn(0, 1, "a0", "message", "a2", b"n", [], [])
    judge.on_turn(0, 1, "a3", "message", "a0", b"q", [("a1", b"s")], [])
    judge.on_left(1, "a3", "a1", is_in_turn=False)
    judge.on_turn(0, 1, "a3", "message", "a2", b"r", [], [])
    feed.now.actors["a1"].turns = 1
    feed.capture("a1", "forced")
    judge.on_turn(0, 1, "a1", "message", "a3", b"s", [], [])
    assert bool(check_branch(judge.ground_truth.branch_of(1), "fdi").findings) is not leaves_in_turn


def test_tracking_is_not_judged_where_a_turn_in_which_a_message_left_never_ended() -> None:
    feed = tried(leaves_in_turn=True)
    feed.judge.on_turn(0, 1, "a3", "message", "a0", b"q", [], [])
    assert not check_branch(feed.judge.ground_truth.branch_of(1), "fdi").is_tracking_judged


def test_a_turn_that_was_tried_and_is_not_in_a_cut_is_not_the_next_one_of_the_branch_that_starts_there() -> None:
    """That one may consume what came of the message that left: nothing would ever come first."""
    feed = tried(leaves_in_turn=True)
    books = feed.judge.ground_truth
    captured = books.branch_of(1).histories["a0"].captured[-1]
    places = {name: CutPlace(1, 0, {}) for name in ("a1", "a2")}
    places |= {"a0": CutPlace(1, 0, {}, captured), "a3": NOWHERE}
    branch = books.start_branch(2, CutRecord(1, 1, places, {}))
    books.on_turn(0, 2, "a3", "message", "a0", b"q", [("a0", b"s")], [])
    books.on_left(2, "a3", "a0", is_in_turn=False)
    books.on_turn(0, 2, "a0", "message", "a3", b"s", [], [])
    report = check_branch(branch, "fdi")
    assert report.findings == [] and not report.is_tracking_judged


def test_an_outbox_at_an_image_moves_the_message_to_the_next_interval() -> None:
    channel = ChannelTruth("a", "b", [b"m"], [1], [1], {}, [1])
    image = Captured(1, "a", 1, 0, "basic", 0, 1, 0, {"b": 1}, b"")
    histories = {
        "a": AgentHistory("a", {}, {"b": channel}, [image], [], [], turns=1),
        "b": AgentHistory("b", {"a": channel}, {}, [], [], [], turns=1),
    }
    (flow,) = intervals_of(Branch(1, histories, {("a", "b"): channel}, {})).flows
    assert (flow.sent_in, flow.got_in) == (1, 0)


def test_an_agent_that_has_stopped_need_not_move_on() -> None:
    """What reaches it then is counted in its checkpoints, and consumed by nobody (swarm, seed 4117)."""
    for seed in range(12):
        probe = LineFeed(seed)
        lines = probe.lines()
        best = greatest(lines)
        behind = [(line, agent) for line in lines for agent in best if line == {**best, agent: best[agent] - 1}]
        for line, agent in behind:
            feed = LineFeed(seed)
            feed.begin()
            history = feed.feed.judge.ground_truth.history_of(1, agent)
            history.stopped_at = feed.taken[agent][line[agent]].turns
            if history.stopped_at:
                assert feed.complete(line) == []
                return
    raise AssertionError("no such line")


# ---- garbage ---------------------------------------------------------------------------------------------------------


def test_checkpoints_past_the_newest_epoch_must_stay() -> None:
    feed = LineFeed(2)
    feed.begin()
    best = greatest(feed.lines())
    assert feed.complete(best) == []
    feed.log.commit(op.CompleteEpoch(1, "r"))
    judge = feed.feed.judge
    judge.on_deleted(0, True, list(best.items()), plan=1)
    assert feed.feed.found == []
    judge.on_deleted(0, True, [(name, number + 1) for name, number in best.items()], plan=1)
    assert feed.feed.found == ["garbage"]


def test_what_an_agent_that_has_left_had_past_the_newest_epoch_may_go_when_no_older_epoch_is_open() -> None:
    """A stopped agent took a checkpoint before it dead-lettered what came late (swarm, seed 1535)."""
    feed = LineFeed(2)
    judge, best = feed.feed.judge, greatest(feed.lines())
    feed.begin()
    assert feed.complete(best) == []
    feed.log.commit(op.CompleteEpoch(1, "r"))
    feed.log.commit(op.BeginEpoch(1, "recovery"))
    gone, stays = feed.feed.names[:2]
    feed.log.commit(op.RemoveAgent("h", 1, 1, gone))
    judge.on_deleted(0, True, [(gone, best[gone] + 1)], plan=1)
    assert feed.feed.found == ["garbage"], "the epoch that is open may hold it"
    feed.log.commit(op.AbortEpoch(2, "over"))
    judge.on_deleted(0, True, [(gone, best[gone] + 1)], plan=1)
    assert feed.feed.found == ["garbage"]
    judge.on_deleted(0, True, [(stays, best[stays] + 1)], plan=1)
    assert feed.feed.found == ["garbage"] * 2


def test_what_an_epoch_covered_that_was_condemned_since_may_be_gone() -> None:
    """Its deletion was right when it began; it may be seen after the epoch was found damaged."""
    feed = LineFeed(2)
    judge = feed.feed.judge
    first = dict.fromkeys(feed.feed.names, 0)
    judge.note_damage(1)
    feed.begin()
    assert feed.complete(first) == []
    feed.log.commit(op.CompleteEpoch(1, "r"))
    feed.log.commit(op.BeginEpoch(1, "recovery"))
    feed.log.commit(op.BeginEpoch(1, "recovery"))
    best = greatest(feed.lines())
    assert feed.complete(best) == []
    feed.log.commit(op.CompleteEpoch(2, "s"))
    feed.log.commit(op.CondemnEpoch(2, "p", "flipped"))
    judge.on_deleted(0, True, list(best.items()), plan=1)
    assert feed.feed.found == []
    judge.on_deleted(0, True, [(name, number + 1) for name, number in best.items()], plan=1)
    assert feed.feed.found == ["garbage"]


def test_before_the_first_epoch_everything_must_stay() -> None:
    feed = LineFeed(2)
    feed.feed.judge.on_deleted(0, True, [("a0", 0)])
    assert feed.feed.found == ["garbage"]


def test_what_earlier_plans_left_may_go() -> None:
    feed = LineFeed(2)
    feed.log.plan(0)
    feed.feed.start(0)
    feed.feed.judge.on_deleted(0, True, [("a0", 0), ("a0", 1)], plan=1)
    assert feed.feed.found == []


def test_the_newest_epoch_must_stay_readable() -> None:
    feed = Feed(0)
    feed.judge.on_deleted(0, False, [])
    assert feed.found == ["garbage"]
