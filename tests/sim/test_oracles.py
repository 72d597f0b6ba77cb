"""The oracles: each finds what it is for, and nothing in runs that are right by construction."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.feeds import Feed

import snapline
from snapline.agent_runtime.context import Context, Outside
from snapline.agent_runtime.encoding import encode_body, encode_message
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    APPLIED,
    RECOVERY_TRIGGER,
    Committed,
    OperationResult,
    Rejected,
    Unknown,
)
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import MisuseError
from snapline.protocols.rules import make_rule
from snapline.sim.oracles.book_records import NOWHERE, AgentHistory, Branch, Captured, ChannelBook, CutPlace, CutRecord
from snapline.sim.oracles.books import Books
from snapline.sim.oracles.judge import VIOLATIONS_MAX, Judge, Terms
from snapline.sim.oracles.lines import maximal
from snapline.sim.oracles.log_history import LogCall, LogHistory, is_linearizable
from snapline.sim.oracles.probes import CATALOGUE, Probe, Probes
from snapline.sim.oracles.replay import NOT_POSSIBLE, replay
from snapline.sim.oracles.useless import check_branch, intervals_of, untracked, useless
from snapline.storage.checkpoint import AgentCheckpoint, InTransitMessage, SavedTimer

# ---- cuts -------------------------------------------------------------------------------------------------------------


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
    channel = feed.judge.books.channel_of(feed.now.plan, sender, receiver)
    return channel.sent[len(channel.got_at)]


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


# ---- outcomes -----------------------------------------------------------------------------------------------------------


class Log:
    """The real state machine, and a judge that hears of every proposal, entry and answer."""

    def __init__(self, feed: Feed | None = None) -> None:
        self.state = FleetState()
        self.feed = feed or Feed(0)
        self.index = 0
        self.commit(op.DefineFleet("c", "f", self.feed.protocol, 1, 1, b"", 1))
        self.commit(op.DefineAgents(0, ("a0",), ("m:A",)))
        self.commit(op.AdmitHost("h", "h.1", "x:1", 0))
        self.plan(0)

    def commit(self, kind: op.Kind, result: OperationResult | None = None, sequence: int = 0) -> OperationResult:
        """Apply an operation; the judge may be told of another `result`."""
        self.index += 1
        operation = op.Operation(0, "leader", sequence or self.index, kind)
        judge, proposal = self.feed.judge, 1000 + self.index
        judge.on_proposed(0, proposal, op.encode_operation(operation))
        real = self.state.apply(operation)
        judge.on_committed(0, self.index, operation, result or real, self.state)
        judge.on_outcome(0, proposal, Committed(result or real), self.index)
        return real

    def plan(self, line: int) -> None:
        number = self.state.plan_number
        self.commit(op.CommitPlan(number, line, ("h",), "test"))
        self.commit(op.ConfirmPlan(number + 1, "h", 1))

    def epoch(self) -> int:
        return self.commit(op.BeginEpoch(self.state.image.begun, "period")).number

    @property
    def found(self) -> list[str]:
        return self.feed.found


def test_the_history_of_a_right_log_is_right() -> None:
    log = Log()
    for number in range(1, 5):
        assert log.epoch() == number
        log.commit(op.CompleteEpoch(number, "r") if number % 2 else op.AbortEpoch(number, "late"))
    log.feed.judge.on_published(0, 3, "r")
    log.epoch()
    log.plan(3)
    log.commit(op.CondemnEpoch(3, "packs/x", "flipped"))
    log.plan(1)
    assert log.found == []
    assert log.feed.judge.probes.hits["damaged epoch skipped"] == 1


@pytest.mark.parametrize(
    ("told", "found"), [(None, []), (OperationResult(APPLIED, number=1), ["outcome"])], ids=["says-it", "is-silent"]
)
def test_damage_that_ends_the_epoch_of_a_recovery_must_say_so(told: OperationResult | None, found: list[str]) -> None:
    log = Log(Feed(0, protocol="uncoordinated"))
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.commit(op.CommitPlan(1, 1, ("h",), "test"))
    log.commit(op.BeginEpoch(1, RECOVERY_TRIGGER))
    log.commit(op.CondemnEpoch(1, "packs/x", "flipped"), told)
    assert log.state.open_epochs() == () and log.found == found


def test_a_second_outcome_is_found() -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.commit(op.AbortEpoch(1, "late"), OperationResult(APPLIED, number=1, epochs=(1,)))
    assert "outcome" in log.found


def test_an_outcome_of_what_never_began_is_found() -> None:
    log = Log()
    log.commit(op.CompleteEpoch(7, "r"), OperationResult(APPLIED, number=7))
    assert "outcome" in log.found


def test_a_newest_epoch_that_is_forgotten_is_found() -> None:
    log = Log()
    for number in (1, 2):
        log.epoch()
        log.commit(op.CompleteEpoch(number, "r"))
    del log.state.image.epochs[2]
    log.commit(op.ForgetEpochs((2,)))
    assert log.found == ["outcome"]


def test_a_plan_from_an_older_epoch_is_found() -> None:
    log = Log()
    for number in (1, 2):
        log.epoch()
        log.commit(op.CompleteEpoch(number, "r"))
    log.commit(op.CommitPlan(1, 1, ("h",), "test"), OperationResult(APPLIED, number=2))
    assert log.found == ["line"]


def test_a_plan_number_that_is_used_twice_is_found() -> None:
    log = Log()
    log.commit(op.CommitPlan(0, 0, ("h",), "test"), OperationResult(APPLIED, number=1))
    assert log.found == ["incarnation"]


def test_a_host_under_a_plan_that_is_not_in_the_log_is_found() -> None:
    log = Log()
    log.feed.judge.on_loaded(0, 2, 0, "a0", None)
    assert log.found == ["incarnation"]


@pytest.mark.parametrize(("epoch", "root", "found"), [(1, "r", []), (1, "other", ["outcome"]), (2, "r", ["outcome"])])
def test_refs_name_complete_epochs_only(epoch: int, root: str, found: list[str]) -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"))
    log.epoch()
    log.feed.judge.on_published(0, epoch, root)
    assert log.found == found


def test_the_same_request_again_is_no_second_outcome() -> None:
    log = Log()
    log.epoch()
    log.commit(op.CompleteEpoch(1, "r"), sequence=100)
    log.commit(op.CompleteEpoch(1, "r"), sequence=100)
    assert log.found == []
    assert log.feed.judge.probes.hits["request repeated"] == 1


# ---- the log --------------------------------------------------------------------------------------------------------------

OK = OperationResult(APPLIED)


def violations_of(calls: Sequence[LogCall], log: Sequence[bytes]) -> list[str]:
    """What the oracle says of the calls when the log is filled as late as the answers allow."""
    history = LogHistory()
    found: list[str] = []
    done = 0

    def commit_to(place: int) -> None:
        nonlocal done
        while done <= place and done < len(log):
            found.extend(text for _, _, text in history.on_committed(done, log[done], OK))
            done += 1

    events = [(call.called, 1, number) for number, call in enumerate(calls)]
    events += [(call.answered, 0, number) for number, call in enumerate(calls) if call.outcome != "unknown"]
    for _, is_call, number in sorted(events):
        call = calls[number]
        if is_call:
            history.on_proposed(number, call.value)
        elif call.outcome == "rejected":
            found.extend(text for _, _, text in history.on_outcome(number, Rejected("no"), None))
        else:
            commit_to(call.place)
            found.extend(text for _, _, text in history.on_outcome(number, Committed(OK), call.place))
    commit_to(len(log))
    return found


@given(st.data())
def test_the_log_as_witness_says_the_same_as_all_orders(data: st.DataObject) -> None:
    """Up to five calls with random times and answers, and a random log: linear time against Wing and Gong."""
    count = data.draw(st.integers(1, 5))
    values = [b"%d" % number for number in range(count)]
    times = data.draw(st.permutations(range(2 * count)))
    pairs = [sorted(times[2 * n : 2 * n + 2]) for n in range(count)]
    size = data.draw(st.integers(0, count))
    log = data.draw(st.permutations(values))[:size]
    calls = []
    for value, (called, answered) in zip(values, pairs, strict=True):
        outcome: Any = data.draw(st.sampled_from(("committed", "unknown", "rejected")))
        place = list(log).index(value) if value in log else data.draw(st.integers(0, count))
        calls.append(LogCall(value, called, answered, outcome, place if outcome == "committed" else -1))
    assert (not violations_of(calls, log)) == is_linearizable(calls, log)


def call(value: bytes, called: int, answered: int, outcome: Any, place: int = -1) -> LogCall:
    return LogCall(value, called, answered, outcome, place)


@pytest.mark.parametrize(
    ("calls", "log", "is_right"),
    [
        ([call(b"a", 0, 1, "committed", 0), call(b"b", 2, 3, "committed", 1)], [b"a", b"b"], True),
        ([call(b"a", 0, 9, "committed", 1), call(b"b", 2, 3, "committed", 0)], [b"b", b"a"], True),
        ([call(b"a", 0, 1, "committed", 1), call(b"b", 2, 3, "committed", 0)], [b"b", b"a"], False),
        ([call(b"a", 0, 1, "committed", 0)], [], False),
        ([call(b"a", 0, 1, "rejected")], [b"a"], False),
        ([call(b"a", 0, 1, "unknown"), call(b"b", 2, 3, "committed", 0)], [b"b", b"a"], True),
        ([call(b"a", 0, 1, "unknown")], [], True),
        ([], [b"x"], False),
    ],
    ids=["in order", "overlapping", "out of order", "lost", "rejected", "late", "never came", "invented"],
)
def test_histories_of_the_log(calls: list[LogCall], log: list[bytes], is_right: bool) -> None:
    assert is_linearizable(calls, log) == is_right
    if calls:
        assert (not violations_of(calls, log)) == is_right


def test_one_entry_answers_one_proposal() -> None:
    history = LogHistory()
    history.on_proposed(1, b"a")
    history.on_proposed(2, b"a")
    assert not list(history.on_committed(0, b"a", OK))
    assert not list(history.on_outcome(1, Committed(OK), None))
    assert list(history.on_outcome(2, Committed(OK), None))


def test_an_answer_has_the_result_of_its_entry() -> None:
    history = LogHistory()
    history.on_proposed(1, b"a")
    assert not list(history.on_committed(0, b"a", OK))
    assert list(history.on_outcome(1, Committed(OperationResult(APPLIED, number=3)), None))


def test_what_is_committed_is_never_replaced() -> None:
    history = LogHistory()
    assert not list(history.on_committed(3, b"a", OK))
    assert not list(history.on_committed(3, b"a", OK))
    assert list(history.on_committed(3, b"b", OK))


def test_unknown_outcomes_and_their_repetition_are_right() -> None:
    log = Log()
    judge, entry = log.feed.judge, op.Operation(9, "leader", 50, op.BeginEpoch(0, "period"))
    data = op.encode_operation(entry)
    judge.on_proposed(0, 1, data)
    judge.on_outcome(1, 1, Unknown("late"), None)
    judge.on_proposed(2, 2, data)
    result = log.state.apply(entry)
    for index in (90, 91):
        judge.on_committed(3, index, entry, result, log.state)
    judge.on_outcome(4, 2, Committed(result), None)
    assert log.found == []


def test_the_exhaustive_checker_has_a_bound() -> None:
    with pytest.raises(ValueError, match="at most"):
        is_linearizable([call(b"a", 0, 1, "unknown")] * 7, [])


# ---- lines ------------------------------------------------------------------------------------------------------------------


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
        branch = self.feed.judge.books.branch_of(1)
        names = self.feed.names
        found = []
        for numbers in itertools.product(*(range(len(self.taken[name])) for name in names)):
            line = dict(zip(names, numbers, strict=True))
            if all(self._fits(channel, line) for channel in branch.channels.values()):
                found.append(line)
        return found

    def _fits(self, channel: ChannelBook, line: dict[str, int]) -> bool:
        sender = self.taken[channel.sender][line[channel.sender]]
        receiver = self.taken[channel.receiver][line[channel.receiver]]
        sent = sum(turn <= sender.turns for turn in channel.sent_at)
        sent -= sum(letter.receiver == channel.receiver for letter in sender.outbox)
        return sum(turn <= receiver.turns for turn in channel.got_at) <= sent

    def begin(self) -> None:
        """BeginEpoch is proposed and committed: here the line is taken."""
        self.log.commit(op.BeginEpoch(0, "recovery"))

    def complete(self, line: dict[str, int]) -> list[str]:
        """`line` becomes an epoch, with the channel states that belong to it."""
        branch = self.feed.judge.books.branch_of(1)
        cut = {}
        for name, number in line.items():
            checkpoint = self.taken[name][number]
            in_transit = {}
            for (sender, receiver), channel in branch.channels.items():
                if receiver == name:
                    giver = self.taken[sender][line[sender]]
                    got = sum(turn <= checkpoint.turns for turn in channel.got_at)
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


# ---- useless checkpoints, tracking --------------------------------------------------------------------------------------------


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
    return judge.books.branch_of(1)


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
            sum(turn <= places[channel.receiver][cut[channel.receiver]] for turn in channel.got_at)
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
        channel.left_at.clear()
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
    report = check_branch(feed.judge.books.branch_of(1), "fdi")
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
    assert bool(check_branch(judge.books.branch_of(1), "fdi").findings) is not leaves_in_turn


def test_tracking_is_not_judged_where_a_turn_in_which_a_message_left_never_ended() -> None:
    feed = tried(leaves_in_turn=True)
    feed.judge.on_turn(0, 1, "a3", "message", "a0", b"q", [], [])
    assert not check_branch(feed.judge.books.branch_of(1), "fdi").is_tracking_judged


def test_a_turn_that_was_tried_and_is_not_in_a_cut_is_not_the_next_one_of_the_branch_that_starts_there() -> None:
    """That one may consume what came of the message that left: nothing would ever come first."""
    feed = tried(leaves_in_turn=True)
    books = feed.judge.books
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
    channel = ChannelBook("a", "b", [b"m"], [1], [1], {}, [1])
    image = Captured(1, "a", 1, 0, "basic", 0, 1, 0, {"b": 1}, b"")
    histories = {
        "a": AgentHistory("a", {}, {"b": channel}, [image], [], [], turns=1),
        "b": AgentHistory("b", {"a": channel}, {}, [], [], [], turns=1),
    }
    (flow,) = intervals_of(Branch(1, histories, {("a", "b"): channel}, {})).flows
    assert (flow.sent_in, flow.got_in) == (1, 0)


# ---- garbage -------------------------------------------------------------------------------------------------------------------


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


# ---- running again --------------------------------------------------------------------------------------------------------------


class Number(snapline.Message):
    value: int


class Sums(msgspec.Struct):
    total: int = 0
    luck: float = 0.0


class Summer(snapline.Agent):
    state: Sums

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("s1", Number(1))

    @snapline.handler
    def on_number(self, message: Number, ctx: snapline.Context) -> None:
        self.state.total += message.value
        self.state.luck += ctx.random()
        if message.value < 5:
            ctx.send(ctx.sender, Number(message.value + 1))


class Steps(snapline.Agent):
    state: Sums

    @snapline.handler
    async def on_number(self, message: Number, ctx: snapline.Context) -> None:
        self.state.total += await ctx.step("add", lambda: 1)


class Draws(Outside):
    def __init__(self) -> None:
        self.drawn: list[float | int] = []

    def random(self) -> float:
        self.drawn.append(len(self.drawn) / 8)
        return self.drawn[-1]


SUMS = snapline.Fleet("sums", agents={"s0": Summer(Sums()), "s1": Summer(Sums())})


def summed(judge: Judge | None = None) -> tuple[Books, dict[str, bytes]]:
    """Two agents that run through; returns their books and last states."""
    books = judge.books if judge is not None else Books(_silent, agents=["s0", "s1"], with_clocks=False, with_log=True)
    agents = {name: SUMS.make(name) for name in SUMS.agents}
    queue: list[tuple[str, str, bytes]] = []
    for name, agent in agents.items():
        ctx = Context(name, 1, name, Outside())
        _run(agent.on_start(ctx))
        books.on_turn(0, 1, name, "start", name, b"", ctx.outcome()[0], [])
        queue.extend((name, to, data) for to, data in ctx.outcome()[0])
    while queue:
        sender, receiver, payload = queue.pop(0)
        draws = Draws()
        ctx = Context(receiver, 1, sender, draws)
        agents[receiver].on_number(msgspec.msgpack.decode(payload[7:], type=Number), ctx)  # type: ignore[attr-defined]  # a Summer
        books.on_turn(0, 1, receiver, "message", sender, payload, ctx.outcome()[0], [], tuple(draws.drawn))
        queue.extend((receiver, to, data) for to, data in ctx.outcome()[0])
    return books, {name: encode_body(agent.state) for name, agent in agents.items()}


def _run(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def _silent(*_: object) -> None:
    return


def test_a_history_run_again_ends_in_the_same_state() -> None:
    books, states = summed()
    for name, history in books.branch_of(1).histories.items():
        assert replay(SUMS, history, states[name]) == ""
        assert replay(SUMS, history, None) == ""


def test_another_state_is_found() -> None:
    books, states = summed()
    assert "another state" in replay(SUMS, books.branch_of(1).histories["s0"], states["s1"])


@pytest.mark.parametrize("change", ["sends", "draws", "more draws", "message", "missing turn"])
def test_another_history_is_found(change: str) -> None:
    books, states = summed()
    history = books.branch_of(1).histories["s1"]
    turn = history.log[2]
    match change:
        case "sends":
            turn.sends = []
        case "draws":
            turn.draws = ()
        case "more draws":
            turn.draws = (0.0, 0.0)
        case "message":
            turn.payload = encode_message(Number(77))
        case _:
            del history.log[2]
    assert replay(SUMS, history, states["s1"]) not in ("", NOT_POSSIBLE)


def test_what_waits_for_the_outside_is_not_run_again() -> None:
    fleet = snapline.Fleet("steps", agents={"s0": Steps(Sums())})
    books = Books(_silent, agents=["s0"], with_clocks=False, with_log=True)
    books.on_turn(0, 1, "s0", "start", "s0", b"", [], [])
    books.on_turn(0, 1, "s0", "message", "s0", encode_message(Number(1)), [], [])
    history = books.branch_of(1).histories["s0"]
    assert replay(fleet, history, b"") == NOT_POSSIBLE
    history.log[1].draws = None
    assert replay(fleet, history, b"") == NOT_POSSIBLE


def test_a_state_in_another_form_is_the_same() -> None:
    """A restored state may hold 0.0 where one that never left memory holds 0."""
    books, states = summed()
    state = msgspec.msgpack.decode(states["s1"])
    state["luck"] = int(state["luck"])
    image = msgspec.msgpack.encode(state)
    assert image != states["s1"]
    assert replay(SUMS, books.branch_of(1).histories["s1"], image) == ""


def test_at_the_end_the_judge_runs_everything_again() -> None:
    def judge() -> Judge:
        terms = Terms(protocol="chandy-lamport", budget="within", with_clocks=False, check_cut=lambda cut: None)
        return Judge(terms, fleet=SUMS, agents=["s0", "s1"])

    right = judge()
    states = summed(right)[1]
    right.at_end(0, states, is_quiet=True)
    assert right.violations == [] and right.probes.hits["replayed"] == 2
    wrong = judge()
    summed(wrong)
    wrong.at_end(0, {**states, "s0": states["s1"]}, is_quiet=False)
    assert wrong.violations == []
    wrong.at_end(0, {**states, "s0": states["s1"]}, is_quiet=True)
    assert [x.oracle for x in wrong.violations] == ["replay"]


# ---- probes ---------------------------------------------------------------------------------------------------------------------


def test_a_probe_must_be_in_the_catalogue() -> None:
    with pytest.raises(MisuseError, match="add it to CATALOGUE"):
        Probes().hit("no such thing")


def test_hits_of_many_runs_are_added_up() -> None:
    probes = Probes()
    for hits in ({"recovery": 2}, {"recovery": 1, "dead letter": 1}):
        probes.merge(hits)
    assert probes.hits == {"recovery": 3, "dead letter": 1}
    missing = probes.never_hit()
    assert "recovery" not in missing and "zombie turn" in missing
    assert missing == [name for name in CATALOGUE if name in missing]


def test_each_verb_says_what_its_hits_mean() -> None:
    verbs: list[Any] = ["sometimes", "reachable", "always", "always_or_unreachable", "unreachable"]
    probes = Probes({verb: Probe("for the test", verb) for verb in verbs})
    assert probes.never_hit() == ["sometimes", "reachable", "always"]
    assert probes.failures() == []
    probes.sometimes(False, "sometimes")
    probes.always(True, "always")
    probes.reachable("reachable")
    assert probes.never_hit() == ["sometimes"]
    probes.always(False, "always")
    probes.always_or_unreachable(False, "always_or_unreachable")
    probes.unreachable("unreachable")
    assert probes.failures() == ["always", "always_or_unreachable", "unreachable"]
    assert probes.hits["always"] == 1 and probes.misses["always"] == 1
