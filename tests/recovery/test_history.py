"""The coordinator's view of dependency records: single answers, vectors, random fleets against the oracles."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest
from tests.recovery.history_world import execute

from snapline.errors import NotFoundError, ProtocolError, UsageError
from snapline.recovery.dependency_history import AgentImage, CheckpointImage, FleetHistory, HistoryImage, Line, LineCost
from snapline.recovery.dependency_records import DependencyRecord

MakeHistory = Callable[..., FleetHistory]


@pytest.fixture
def make() -> Iterator[MakeHistory]:
    """Histories are validated at teardown, and an image of each survives."""
    made: list[FleetHistory] = []

    def make_one(*agents: str) -> FleetHistory:
        made.append(FleetHistory(agents))
        return made[-1]

    yield make_one
    for history in made:
        history.validate()
        image = history.freeze()
        assert hash(image) == hash(history.freeze())
        again = FleetHistory.restore(image)
        again.validate()
        assert again.freeze() == image
        assert again.total_line() == history.total_line()


def play(history: FleetHistory, text: str) -> None:
    """The vectors of protocols.md, section 9: `a!` a checkpoint, `a>b` sent and received at once. All live states known."""
    counts: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    for word in text.split():
        if word.endswith("!"):
            agent = word[0]
            numbers[agent] = numbers.get(agent, 0) + 1
            sent = {j: count for (i, j), count in counts.items() if i == agent}
            received = {i: count for (i, j), count in counts.items() if j == agent}
            history.add(agent, numbers[agent], sent, received)
        else:
            channel = (word[0], word[2])
            counts[channel] = counts.get(channel, 0) + 1
    for agent in history.total_line():
        received = {i: count for (i, j), count in counts.items() if j == agent}
        history.report_live(agent, received, {j: count for (i, j), count in counts.items() if i == agent})


F5 = "a! a>b b! a>c c! b>d c>d d! a>b a>c b>d c>d"
F6 = "a>b b! a>c c! b>d c>d d! a>b a>c b>d c>d"
F8 = "b>d c>d d! a>c c! a>b b! a! b>d c>d d! a>c c! a>b b! a! b>d c>d d! a>c c! a>b b! a! a>b a>c b>d c>d"
F10 = "b>d c>d d! a>c c! a>b b! a! b>d c>d d! a>c c! a>b b! a>b a>c b>d c>d"
L1 = "a>b b! b>c c! a>b b>c"

VECTORS = [
    ("ab", "a0 b0", "b>a a! a!"),
    ("ab", "a1 b0", "a! a>b b!"),
    ("ab", "a1 b0", "a! a>b b! b>a " * 50),
    ("a", "a0 b0 c0 d0", "a>b a>c b>d c>d"),
    ("a", "a3 b0 c0 d0", "a! a! a! a>b a>c b>d c>d"),
    ("abcd", "a3 b2 c0 d0", "a! a>b b! a! a>b b! a! a>b a>c b>d c>d"),
    ("b", "a- b0 c- d0", "a>b a>c b>d c>d"),
    ("b", "a- b1 c- d0", F5),
    ("c", "a- b- c1 d0", F6),
    ("c", "a- b- c1 d1", "a>b b! b>d c>d d! a>c c! a>b a>c b>d c>d"),
    ("abcd", "a1 b1 c1 d1", F10),
    ("a", "a0 b0 c0", L1),
    ("b", "a- b1 c0", L1),
    ("c", "a- b- c1", L1),
]


@pytest.mark.parametrize(("failed", "line", "text"), VECTORS)
def test_the_vectors(make: MakeHistory, failed: str, line: str, text: str) -> None:
    expected = {word[0]: None if word[1:] == "-" else int(word[1:]) for word in line.split()}
    history = make(*expected)
    play(history, text)
    assert history.line(failed).checkpoints == expected
    assert history.lines([failed]) == [Line(expected)]
    if len(failed) == len(expected):
        assert history.total_line() == expected


# -- reports ----------------------------------------------------------------------------------------------------------


def test_a_new_agent_has_checkpoint_0(make: MakeHistory) -> None:
    history = make("a")
    history.join("b")
    history.join("b")
    assert history.total_line() == {"a": 0, "b": 0}
    assert history.record_of("b", 0) == DependencyRecord({}, {})


def test_a_record_holds_the_counts_of_channels_that_did_not_change(make: MakeHistory) -> None:
    history = make("a", "b", "c")
    history.add("a", 1, {"b": 2}, {"c": 1})
    history.add("a", 2, {"c": 1}, {})
    history.add("a", 3, {"b": 5}, {})
    assert history.record_of("a", 1) == DependencyRecord({"b": 2}, {"c": 1})
    assert history.record_of("a", 2) == DependencyRecord({"b": 2, "c": 1}, {"c": 1})
    assert history.record_of("a", 3) == DependencyRecord({"b": 5, "c": 1}, {"c": 1})


def test_a_repeat_changes_nothing(make: MakeHistory) -> None:
    history = make("a", "b")
    history.add("a", 1, {"b": 2}, {})
    image = history.freeze()
    history.add("a", 1, {"b": 7}, {})
    history.add("a", 0, {}, {"b": 7})
    assert history.freeze() == image


def test_a_checkpoint_left_out_is_refused(make: MakeHistory) -> None:
    history = make("a")
    with pytest.raises(ProtocolError, match="checkpoint 2, but the last known one is 0"):
        history.add("a", 2, {}, {})


def test_counts_that_fall_are_refused_and_change_nothing(make: MakeHistory) -> None:
    history = make("a", "b")
    history.add("a", 1, {"b": 2}, {"b": 3})
    image = history.freeze()
    with pytest.raises(ProtocolError, match="sent 1 messages to b in all, but checkpoint 1 already had 2"):
        history.add("a", 2, {"b": 1}, {"b": 4})
    with pytest.raises(ProtocolError, match="received 2 messages from b in all"):
        history.add("a", 2, {"b": 4}, {"b": 2})
    assert history.freeze() == image


def test_agents_that_have_not_joined_are_refused(make: MakeHistory) -> None:
    history = make("a")
    history.add("a", 1, {"b": 1}, {})  # b is named; it has not joined
    for call in (
        lambda: history.add("b", 1, {}, {}),
        lambda: history.report_live("b", {}),
        lambda: history.line(["a", "b"]),
        lambda: history.lines([["b"]]),
        lambda: history.forget("b", [0]),
        lambda: history.record_of("b", 0),
        lambda: history.roll_back(Line({"b": 0})),
    ):
        with pytest.raises(NotFoundError, match="there is no agent b"):
            call()
    with pytest.raises(NotFoundError, match="a has no checkpoint 2"):
        history.record_of("a", 2)


def test_a_message_of_an_agent_not_yet_joined_holds_up_the_total_line_only(make: MakeHistory) -> None:
    """Its creation may be reported after what it sent."""
    history = make("a")
    history.add("a", 1, {}, {"b": 1})
    assert history.total_line() == {"a": 0}
    assert history.line(["a"]).checkpoints == {"a": 1}
    history.join("b")
    history.add("b", 1, {"a": 1}, {})
    assert history.total_line() == {"a": 1, "b": 1}


def test_the_first_message_to_an_agent_not_yet_joined_is_in_transit(make: MakeHistory) -> None:
    history = make("a")
    history.add("a", 1, {"b": 1}, {})
    assert history.in_transit(Line({"a": 1})) == {("a", "b"): range(1, 2)}


def test_an_old_live_report_changes_nothing(make: MakeHistory) -> None:
    history = make("a", "b")
    history.report_live("b", {"a": 5})
    history.report_live("b", {"a": 3})
    assert history.line(["a"]).checkpoints == {"a": 0, "b": 0}
    history.add("a", 1, {"b": 4}, {})
    history.add("b", 1, {}, {"a": 4})
    assert history.line(["a"]).checkpoints == {"a": 1, "b": 1}, "it has still received number 5"


def test_a_live_state_never_makes_orphans(make: MakeHistory) -> None:
    """What b received from a was sent, whatever a has reported, as long as a is not set back."""
    history = make("a", "b", "c")
    history.report_live("b", {"a": 5})
    assert history.line(["c"]).checkpoints == {"a": None, "b": None, "c": 0}
    assert history.line(["b"]).checkpoints == {"a": None, "b": 0, "c": None}


# -- what follows -----------------------------------------------------------------------------------------------------


def test_in_transit_needs_an_end_that_goes_back(make: MakeHistory) -> None:
    history = make("a", "b", "c")
    history.add("a", 1, {"b": 4}, {})
    history.report_live("a", {}, {"b": 5, "c": 2})
    history.report_live("b", {"a": 3})
    assert history.in_transit(Line({"a": None, "b": None, "c": 0})) == {("a", "c"): range(1, 3)}
    assert history.in_transit(Line({"a": 1, "b": None, "c": None})) == {("a", "b"): range(4, 5)}
    assert history.in_transit(Line({"a": None, "b": 0, "c": None})) == {("a", "b"): range(1, 6)}
    assert history.in_transit(Line({"a": None, "b": None, "c": None})) == {}


def test_the_cost_of_a_line(make: MakeHistory) -> None:
    history = make("a", "b", "c")
    for number in range(1, 4):
        history.add("a", number, {}, {}, turns=10 * number)
        history.add("b", number, {}, {})
    history.report_live("a", {}, turns=34)
    assert history.cost(Line({"a": 2, "b": 1, "c": None})) == LineCost({"a": 1, "b": 2}, {"a": 14})
    assert history.cost(Line({"a": 3})) == LineCost({"a": 0}, {"a": 4})


def test_a_checkpoint_behind_a_live_state_still_being_written_may_be_needed(make: MakeHistory) -> None:
    """b's live state lies behind its checkpoint 1, which nobody knows yet. Then a's 1 seems useless: b is known to have
    received what a sent after it, before what a received before it was sent. With b's 1 known, it is on the line."""

    def told(taken: int | None) -> FleetHistory:
        history = make("a", "b")
        history.add("a", 1, {}, {"b": 1})
        history.add("a", 2, {"b": 1}, {"b": 2})
        history.report_live("a", {}, {}, taken=2)
        history.report_live("b", {"a": 1}, {"a": 2}, taken=taken)
        return history

    assert told(taken=None).obsolete() == {"a": [1]}
    assert told(taken=1).obsolete() == {}
    history = told(taken=1)
    history.add("b", 1, {"a": 1}, {})
    assert history.total_line() == {"a": 1, "b": 1}
    assert history.obsolete() == {"a": [0], "b": [0]}


def test_counts_of_kept_checkpoints_stay_right(make: MakeHistory) -> None:
    history = make("a", "b")
    history.add("a", 1, {"b": 1}, {"b": 1})
    history.add("a", 2, {"b": 2}, {})
    history.add("a", 3, {}, {})
    for number in range(1, 3):
        history.add("b", number, {"a": number}, {"a": number})
    assert history.obsolete() == {"a": [0, 1, 2], "b": [0, 1]}
    history.forget("a", [2, 1])
    history.forget("a", [0, 1])
    history.forget("b", [0, 1])
    assert history.record_of("a", 3) == DependencyRecord({"b": 2}, {"b": 1})
    assert (history.checkpoints_of("a"), history.checkpoints_of("b")) == ([3], [2])
    assert history.obsolete() == {}


def test_what_is_needed_cannot_be_forgotten(make: MakeHistory) -> None:
    history = make("a")
    history.add("a", 1, {}, {"b": 1})
    for number in (0, 1, 2):
        with pytest.raises(UsageError, match=f"checkpoint {number} of a is not obsolete"):
            history.forget("a", [number])


def test_after_a_rollback_numbers_are_used_again(make: MakeHistory) -> None:
    history = make("a", "b")
    history.add("a", 1, {"b": 1}, {})
    history.add("a", 2, {"b": 9}, {})
    history.report_live("a", {"b": 4})
    history.report_live("b", {"a": 1})
    history.roll_back(Line({"a": 1, "b": None}))
    history.add("a", 2, {"b": 3}, {"b": 1})
    assert history.record_of("a", 2) == DependencyRecord({"b": 3}, {"b": 1})
    assert history.line(["b"]).checkpoints == {"a": 1, "b": 0}, "b's live report stands; it never sent what a received"


def test_a_line_that_does_not_exist_is_refused_and_nothing_changes(make: MakeHistory) -> None:
    history = make("a", "b")
    history.add("a", 1, {}, {})
    with pytest.raises(NotFoundError, match="b has no checkpoint 1"):
        history.roll_back(Line({"a": 0, "b": 1}))
    assert history.checkpoints_of("a") == [0, 1]


def test_a_leader_builds_the_history_from_full_records_of_what_the_store_keeps() -> None:
    a = AgentImage(
        "a", (CheckpointImage(4, (("b", 3),), (), 9), CheckpointImage(6, (("b", 3), ("c", 1)), (("b", 1),), 12))
    )
    b = AgentImage("b", (CheckpointImage(2, (("a", 2),), (("a", 3),)),))
    history = FleetHistory.restore(HistoryImage((a, b)))
    assert history.total_line() == {"a": 6, "b": 2}
    assert history.record_of("a", 6) == DependencyRecord({"b": 3, "c": 1}, {"b": 1})
    history.add("a", 7, {"b": 4}, {})
    assert history.record_of("a", 7) == DependencyRecord({"b": 4, "c": 1}, {"b": 1})
    history.validate()
    with pytest.raises(ProtocolError, match="checkpoint 4 comes behind 6"):
        FleetHistory.restore(HistoryImage((AgentImage("a", a.checkpoints[::-1]),)))


# -- many at once -----------------------------------------------------------------------------------------------------


def check_random_fleets(seeds: Sequence[int]) -> None:
    coverage: dict[str, int] = {}
    for seed in seeds:
        try:
            world = execute(seed)
        except AssertionError as error:
            raise AssertionError(f"execute({seed}): {error}") from error
        for what, number in world.coverage.items():
            coverage[what] = coverage.get(what, 0) + number
    for what in ("brute force", "recoveries", "survivors", "passed over", "deleted"):
        assert coverage[what] > len(seeds), f"{what}: {coverage}"


def test_random_fleets() -> None:
    """G5 and G7: all answers, at any time, against oracles on events; recoveries in the middle, reports late."""
    check_random_fleets((*range(150), 192, 552))


@pytest.mark.slow
def test_ten_thousand_random_fleets() -> None:
    check_random_fleets(range(600, 20_000))


class Traffic:
    """A fleet whose messages are consumed at once; without domino, all agents take a checkpoint now and then."""

    def __init__(self, random: Random, agents: int) -> None:
        self.random = random
        self.names = [f"a{number}" for number in range(agents)]
        self.counts: dict[tuple[str, str], int] = {}

    def sent(self, agent: str) -> dict[str, int]:
        return {j: count for (i, j), count in self.counts.items() if i == agent}

    def received(self, agent: str) -> dict[str, int]:
        return {i: count for (i, j), count in self.counts.items() if j == agent}

    def reports(self, count: int, *, is_domino: bool) -> Iterator[tuple[str, int, dict[str, int], dict[str, int]]]:
        numbers = dict.fromkeys(self.names, 0)
        for step in range(count):
            for _ in self.names:
                channel = (self.random.choice(self.names), self.random.choice(self.names))
                self.counts[channel] = self.counts.get(channel, 0) + 1
            for agent in [self.random.choice(self.names)] if is_domino or step % 5 else self.names:
                numbers[agent] += 1
                yield agent, numbers[agent], self.sent(agent), self.received(agent)


@pytest.mark.parametrize("is_domino", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_total_line_kept_up_to_date_is_the_one_computed_anew(seed: int, is_domino: bool) -> None:
    """Larger fleets than the oracles can check, where reasons to be blocked form deep forests."""
    traffic = Traffic(Random(seed), 12)
    history = FleetHistory(traffic.names)
    before = history.total_line()
    advanced = 0
    for step, (agent, number, sent, received) in enumerate(traffic.reports(150, is_domino=is_domino)):
        history.add(agent, number, sent, received)
        total = history.total_line()
        assert all(total[name] >= place for name, place in before.items()), "it fell"
        advanced += total != before
        before = total
        if step % 5 == 0:
            history.validate()
            assert FleetHistory.restore(history.freeze()).total_line() == total
        if step % 40 == 39:
            for name, numbers in history.obsolete().items():
                history.forget(name, numbers)
            assert history.total_line() == total
    assert is_domino or advanced > 10


@pytest.mark.parametrize("seed", range(20))
def test_at_most_n_times_n_plus_1_over_2_are_kept(seed: int) -> None:
    """And the newest of each agent, where all has been reported: the cut is the present."""
    random = Random(seed)
    agents = random.randint(2, 6)
    traffic = Traffic(random, agents)
    history = FleetHistory(traffic.names)
    for agent, number, sent, received in traffic.reports(200, is_domino=True):
        history.add(agent, number, sent, received)
    for agent in traffic.names:
        history.report_live(agent, traffic.received(agent), traffic.sent(agent))
    kept = sum(len(history.checkpoints_of(agent)) for agent in history.total_line())
    for agent, numbers in history.obsolete().items():
        history.forget(agent, numbers)
    lines = history.lines([[agent] for agent in history.total_line()])
    needed = {(agent, number) for line in lines for agent, number in line.checkpoints.items() if number is not None}
    left = {(agent, number) for agent in history.total_line() for number in history.checkpoints_of(agent)}
    newest = {(agent, history.checkpoints_of(agent)[-1]) for agent in history.total_line()}
    assert kept > len(left)
    assert needed <= left
    assert len(needed) <= agents * (agents + 1) // 2
    assert len(left - newest) <= agents * (agents + 1) // 2


def test_the_staircase_of_a_thousand_steps_is_walked_and_not_searched(make: MakeHistory) -> None:
    """Minutes if any step were exponential or quadratic; the suite's time limit is the check."""
    history = make("a", "b")
    for step in range(1, 1_001):
        history.add("a", step, {"b": step - 1}, {"b": step - 1})
        history.add("b", step, {"a": step - 1}, {"a": step})
        assert history.total_line() == {"a": 1, "b": 0}
    assert history.line(["a", "b"]).checkpoints == {"a": 1, "b": 0}
    assert history.lines([["b"], ["a"]])[1].checkpoints == {"a": 1, "b": 0}
