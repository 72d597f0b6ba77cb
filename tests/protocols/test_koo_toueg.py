"""Koo-Toueg, event by event: one agent's part, and the coordinator's part of a round."""

from collections.abc import Callable

import pytest

from snapline.errors import ProtocolError, UsageError
from snapline.protocols.koo_toueg import (
    AgentLost,
    Answer,
    AnswerReceived,
    AskAgent,
    CheckpointRequested,
    Command,
    Decide,
    Discard,
    Event,
    KooTouegCore,
    KooTouegRound,
    MessageConsumed,
    MessageSent,
    RoundDecided,
    RoundStarted,
    TakeTentative,
    TentativeFailed,
    TimedOut,
)

TRAFFIC = (MessageConsumed("a", 4), MessageConsumed("c", 1), MessageConsumed("a", 5), MessageSent("a", 7))


def feed(core: KooTouegCore, *events: Event) -> list[Command]:
    """The commands of the last of `events`. An image of the core survives each of them."""
    commands: list[Command] = []
    for event in events:
        commands = core.handle(0, event)
        core.validate()
        assert KooTouegCore.restore(core.freeze()).freeze() == core.freeze()
    return commands


@pytest.fixture
def core() -> KooTouegCore:
    """Agent b: 5 from a and 1 from c received, 7 to 8 sent to a, since its last checkpoint."""
    core = KooTouegCore("b")
    feed(core, *TRAFFIC, MessageSent("a", 8))
    return core


# -- the agent --------------------------------------------------------------------------------------------------------


def test_an_initiator_takes_a_tentative_checkpoint_and_asks_with_the_numbers_from_before(core: KooTouegCore) -> None:
    commands = feed(core, CheckpointRequested(1, None, 0))
    assert commands == [TakeTentative(1), Answer(1, None, True, True, {"a": 5, "c": 1})]
    assert core.is_blocked
    assert core.received_from == core.first_sent == {}


@pytest.mark.parametrize(
    ("by", "number", "is_needed"), [("a", 6, False), ("a", 7, True), ("a", 9, True), ("c", 9, False)]
)
def test_asked_an_agent_takes_part_only_if_something_sent_since_its_checkpoint_has_been_received(
    core: KooTouegCore, by: str, number: int, is_needed: bool
) -> None:
    commands = feed(core, CheckpointRequested(1, by, number))
    assert (TakeTentative(1) in commands) == core.is_blocked == is_needed
    assert commands[-1] == Answer(1, by, True, is_needed, {"a": 5, "c": 1} if is_needed else {})


def test_a_repeated_request_gets_the_same_answer_and_no_second_checkpoint(core: KooTouegCore) -> None:
    first = feed(core, CheckpointRequested(1, "a", 7))
    assert feed(core, CheckpointRequested(1, "a", 7)) == first[-1:]


def test_an_abort_leaves_no_trace_but_the_rounds_number(core: KooTouegCore) -> None:
    before = core.freeze()
    assert feed(core, CheckpointRequested(1, None, 0), RoundDecided(1, False)) == [Discard(1)]
    assert core.round == 1
    core.round = 0
    assert core.freeze() == before


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_decision_for_one_without_a_tentative_checkpoint_changes_no_table(
    core: KooTouegCore, is_committed: bool
) -> None:
    assert feed(core, CheckpointRequested(3, "c", 1), RoundDecided(3, is_committed)) == []
    assert feed(core, RoundDecided(2, is_committed), RoundDecided(8, is_committed)) == []
    assert core.received_from == {"a": 5, "c": 1}
    assert core.first_sent == {"a": 7}


@pytest.mark.parametrize(
    "told",
    [
        (CheckpointRequested(2, None, 0), RoundDecided(2, True)),
        (CheckpointRequested(2, None, 0), RoundDecided(2, False)),
        (RoundDecided(2, False),),
        (CheckpointRequested(3, "c", 1),),
    ],
    ids=["committed", "aborted", "aborted before it was asked", "a newer one known"],
)
def test_a_request_of_a_round_that_is_over_is_ignored(core: KooTouegCore, told: tuple[Event, ...]) -> None:
    """Otherwise the agent would block for a decision that never comes."""
    feed(core, *told)
    assert feed(core, CheckpointRequested(2, None, 0)) == []
    assert not core.is_blocked


def test_a_request_of_an_older_round_does_not_disturb_the_open_one(core: KooTouegCore) -> None:
    feed(core, CheckpointRequested(3, None, 0))
    assert feed(core, CheckpointRequested(2, "a", 7)) == []
    assert feed(core, RoundDecided(9, True)) == []
    assert core.is_blocked and core.round == 3


def test_a_new_round_before_the_decision_of_the_last_is_an_error(core: KooTouegCore) -> None:
    feed(core, CheckpointRequested(1, None, 0))
    with pytest.raises(ProtocolError, match="round 2 while round 1 is undecided"):
        core.handle(0, CheckpointRequested(2, None, 0))


def test_a_request_needs_a_number(core: KooTouegCore) -> None:
    with pytest.raises(ProtocolError, match="having received 0"):
        core.handle(0, CheckpointRequested(1, "a", 0))


def test_an_unwilling_agent_says_no_and_goes_on_saying_it(core: KooTouegCore) -> None:
    refusal = [Answer(1, "a", False, False, {})]
    assert feed(core, CheckpointRequested(1, "a", 7, is_willing=False)) == refusal
    assert feed(core, CheckpointRequested(1, "a", 7)) == refusal
    assert not core.is_blocked
    assert feed(core, RoundDecided(1, False)) == []
    assert feed(core, CheckpointRequested(2, "a", 7))[0] == TakeTentative(2)


def test_an_unwilling_agent_says_yes_where_it_is_not_needed(core: KooTouegCore) -> None:
    assert feed(core, CheckpointRequested(1, "c", 7, is_willing=False)) == [Answer(1, "c", True, False, {})]


def test_a_tentative_checkpoint_that_cannot_be_stored_is_a_no(core: KooTouegCore) -> None:
    """The agent stays blocked: the abort puts its tables back."""
    feed(core, CheckpointRequested(1, "a", 7))
    assert feed(core, TentativeFailed(1)) == [Answer(1, "a", False, True, {})]
    assert feed(core, CheckpointRequested(1, None, 0)) == [Answer(1, None, False, True, {})]
    assert core.is_blocked
    assert feed(core, RoundDecided(1, False)) == [Discard(1)]
    assert core.first_sent == {"a": 7}
    assert feed(core, TentativeFailed(1)) == []


def test_a_commit_over_a_no_is_an_error(core: KooTouegCore) -> None:
    feed(core, CheckpointRequested(1, "a", 7, is_willing=False))
    with pytest.raises(ProtocolError, match="b has refused"):
        core.handle(0, RoundDecided(1, True))


@pytest.mark.parametrize("event", [MessageSent("a", 9), MessageConsumed("c", 2)])
def test_nothing_happens_while_blocked(core: KooTouegCore, event: Event) -> None:
    feed(core, CheckpointRequested(1, None, 0))
    with pytest.raises(UsageError, match="b is blocked by round 1"):
        core.handle(0, event)


def test_a_restarted_agent_has_empty_tables_and_is_not_blocked(core: KooTouegCore) -> None:
    """Its image was frozen while the round was undecided; that it restarts from it says how the round ended."""
    feed(core, CheckpointRequested(4, None, 0))
    restarted = KooTouegCore.restart(core.freeze(), latest_round=6)
    restarted.validate()
    assert not restarted.is_blocked
    assert restarted.received_from == restarted.first_sent == {}
    assert feed(restarted, CheckpointRequested(6, None, 0)) == []
    assert feed(restarted, CheckpointRequested(7, None, 0))[0] == TakeTentative(7)
    assert KooTouegCore.restart(core.freeze()).round == 4


def test_an_agent_restarts_only_from_an_image_taken_right_after_a_checkpoint(core: KooTouegCore) -> None:
    with pytest.raises(ProtocolError, match="not taken right after a checkpoint"):
        KooTouegCore.restart(core.freeze())


@pytest.mark.parametrize("make", [KooTouegCore.restore, KooTouegCore.restart])
def test_bytes_that_are_no_image_are_refused(make: Callable[[bytes], KooTouegCore]) -> None:
    for image in (b"", b"\x93", b"hello"):
        with pytest.raises(ProtocolError, match="no image"):
            make(image)


def test_equal_states_have_equal_images_whatever_the_order_of_events() -> None:
    one, other = KooTouegCore("b"), KooTouegCore("b")
    feed(one, MessageSent("a", 1), MessageSent("c", 1))
    feed(other, MessageSent("c", 1), MessageSent("a", 1))
    assert one.freeze() == other.freeze()


# -- the round --------------------------------------------------------------------------------------------------------


def yes(agent: str, by: str | None, requests: dict[str, int] | None = None, *, round: int = 1) -> AnswerReceived:
    """`agent` says yes to `by`; with `requests`, as a participant."""
    return AnswerReceived(agent, Answer(round, by, True, requests is not None, requests or {}))


def no(agent: str, by: str | None) -> AnswerReceived:
    return AnswerReceived(agent, Answer(1, by, False, False, {}))


Handled = AskAgent | Decide


def play(round: KooTouegRound, *events: RoundStarted | AnswerReceived | AgentLost | TimedOut) -> list[Handled]:
    """The commands of the last of `events`. An image of the round survives each of them."""
    commands: list[Handled] = []
    for event in events:
        commands = round.handle(0, event)
        round.validate()
        image = round.freeze()
        assert hash(image) == hash(KooTouegRound.restore(image).freeze())
        assert KooTouegRound.restore(image).freeze() == image
    return commands


def test_a_round_asks_on_and_commits_when_every_question_is_answered() -> None:
    round = KooTouegRound(1, ["a"])
    assert play(round, RoundStarted()) == [AskAgent("a", None, 0)]
    assert play(round, yes("a", None, {"c": 2, "b": 5})) == [AskAgent("b", "a", 5), AskAgent("c", "a", 2)]
    assert play(round, yes("b", "a", {"a": 1, "c": 9})) == [AskAgent("c", "b", 9)]
    assert play(round, yes("c", "a")) == []
    assert round.open_questions == [AskAgent("c", "b", 9)]
    assert play(round, yes("c", "b")) == [Decide(True)]
    assert (round.decision, round.participants, round.asked) == (True, ("a", "b"), ("a", "b", "c"))
    assert round.open_questions == []


def test_several_initiators_are_asked_in_the_order_of_their_names() -> None:
    round = KooTouegRound(1, {"c", "a", "b"})
    assert play(round, RoundStarted()) == [AskAgent(agent, None, 0) for agent in "abc"]
    assert play(round, RoundStarted()) == []


def test_answers_may_come_twice_and_from_older_rounds() -> None:
    round = KooTouegRound(1, ["a", "b"])
    play(round, RoundStarted(), yes("a", None, {"c": 1}))
    assert play(round, yes("a", None, {"c": 1})) == []
    assert play(round, yes("b", None, {"c": 7}, round=0)) == []
    assert round.participants == ("a",)


@pytest.mark.parametrize("event", [no("b", None), no("c", "a"), TimedOut(), AgentLost("a"), AgentLost("c")])
def test_a_no_a_loss_and_the_timeout_abort(event: AnswerReceived | TimedOut | AgentLost) -> None:
    round = KooTouegRound(1, ["a", "b"])
    assert play(round, RoundStarted(), yes("a", None, {"c": 1}), event) == [Decide(False)]
    assert play(round, yes("b", None, {}), TimedOut(), AgentLost("a"), no("c", "a")) == []
    assert round.decision is False


def test_the_loss_of_an_agent_that_nobody_has_asked_aborts_only_when_it_would_be_asked() -> None:
    round = KooTouegRound(1, ["a", "b"])
    assert play(round, RoundStarted(), AgentLost("c"), yes("a", None, {})) == []
    assert play(round, yes("b", None, {"c": 1})) == [Decide(False)]


def test_agents_that_have_left_are_not_asked() -> None:
    round = KooTouegRound(1, ["a"], gone=["b"])
    assert play(round, RoundStarted(), yes("a", None, {"b": 3})) == [Decide(True)]


def test_an_answer_without_a_question_is_an_error() -> None:
    round = KooTouegRound(1, ["a"])
    play(round, RoundStarted())
    with pytest.raises(ProtocolError, match="b answers a question that round 1 did not ask"):
        round.handle(0, yes("b", "a"))


def test_a_round_needs_initiators_that_are_there() -> None:
    with pytest.raises(UsageError, match="no initiator"):
        KooTouegRound(1, [])
    with pytest.raises(UsageError, match="a has left"):
        KooTouegRound(1, ["a"], gone=["a"])
