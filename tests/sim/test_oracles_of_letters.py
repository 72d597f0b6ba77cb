"""The oracle of dead letters: what it says of words that took effect twice, or never, and of letters that are not as they were buried."""

from collections.abc import Sequence

import msgspec
import pytest

from snapline.messages.agent_commands import DROP, RETRY, TARGET_GONE, DeadLetterCommand, dead_letter_command_payload
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import AgentHistory, CutPlace, CutRecord
from snapline.sim.oracles.input_output_oracles import KnownDeadLetter, check_dead_letters, command_name, dead_letters_of
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterNumbers, DeadLetterRecord

PLAN = 1
SAID_NS = 5


class Scene:
    """Agent a, with messages that nobody can handle, and an operator."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.books = GroundTruth(
            lambda *finding: self.said.append(finding[3]), agents=["a"], with_clocks=False, with_log=False
        )

    def bury(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.books.on_dead_lettered(0, PLAN, "a", "timer", "a", payload)

    def say(self, verb: str, number: int, payload: bytes, *, key: str = "k", is_acknowledged: bool = True) -> bytes:
        word = dead_letter_command_payload(
            DeadLetterCommand(verb, number, KnownDeadLetter(number, "a", payload).identity)
        )
        self.books.dead_letters.on_command_given("a", key, word)
        if is_acknowledged:
            self.books.dead_letters.on_acknowledged(SAID_NS, key)
        return word

    def take(self, word: bytes, told: bytes) -> None:
        self.books.on_command_consumed(0, PLAN, "a", word, told)

    def handle(self, payload: bytes) -> None:
        self.books.on_turn(0, PLAN, "a", "letter", "a", payload, [], [])

    def fail_again(self, word: bytes) -> None:
        self.books.on_dead_lettered(0, PLAN, "a", "letter", "@operator", word)

    @property
    def history(self) -> AgentHistory:
        return self.books.history_of(PLAN, "a")

    def numbers(self) -> list[int]:
        return [letter.number for letter in dead_letters_of(self.history)]

    def end(self) -> list[str]:
        histories, drops = self.books.branch_of(PLAN).histories, self.books.inputs.drops
        self.books.dead_letters.check_end(0, histories, ["a"], drops, PLAN)
        return self.said


def test_words_that_do_what_they_say_are_well() -> None:
    scene = Scene()
    scene.bury(b"1", b"2", b"3")
    scene.take(scene.say(DROP, 1, b"1", key="one"), b"")
    scene.say(RETRY, 2, b"2", key="two")
    scene.handle(b"2")
    scene.fail_again(scene.say(RETRY, 3, b"3", key="three"))
    scene.take(scene.say(RETRY, 3, b"3", key="four"), TARGET_GONE)
    assert scene.numbers() == [4]
    assert scene.end() == []


@pytest.mark.parametrize("times", [0, 2])
def test_an_acknowledged_word_takes_effect_once(times: int) -> None:
    scene = Scene()
    scene.bury(b"1")
    word = scene.say(DROP, 1, b"1")
    for told in (b"", TARGET_GONE)[:times]:
        scene.take(word, told)
    assert len(scene.end()) == 1 and f"took effect {times} times" in scene.said[0]


def test_a_word_of_which_nobody_knows_may_take_effect_or_not() -> None:
    for takes_effect in (True, False):
        scene = Scene()
        scene.bury(b"1")
        word = scene.say(DROP, 1, b"1", is_acknowledged=False)
        if takes_effect:
            scene.take(word, b"")
        assert scene.end() == []


@pytest.mark.parametrize(
    ("told", "number", "text"), [(TARGET_GONE, 1, "it has it"), (b"", 2, "it has none"), (b"", 1, "was to be retried")]
)
def test_what_is_told_of_a_letter_is_so(told: bytes, number: int, text: str) -> None:
    scene = Scene()
    scene.bury(b"1")
    scene.take(scene.say(RETRY, number, b"1"), told)
    assert len(scene.said) == 1 and text in scene.said[0]


def test_a_letter_that_was_retried_has_one_turn() -> None:
    scene = Scene()
    scene.bury(b"1")
    scene.handle(b"1")
    assert scene.said == []
    scene.handle(b"1")
    assert len(scene.said) == 1 and "has none" in scene.said[0]


def checkpoint_with(numbers: Sequence[int], payloads: Sequence[bytes], count: int) -> AgentCheckpoint:
    letters = [DeadLetterRecord("a", payload, "no", 1, 0) for payload in payloads]
    known = DeadLetterNumbers(max(numbers, default=0), list(numbers))
    made = AgentCheckpoint(agent="a", kind="m:A", epoch=7, incarnation=PLAN, number=1)
    return msgspec.structs.replace(made, dead_letters=letters, dead_letter_count=count, saved_numbers=known)


@pytest.mark.parametrize(
    ("numbers", "payloads", "count", "is_well"),
    [
        ([2], [b"2"], 2, True),
        ([2], [b"2"], 1, False),
        ([1], [b"1"], 2, False),
        ([1], [b"2"], 2, False),
        ([1, 2], [b"1", b"2"], 2, False),
        ([], [], 2, False),
    ],
)
def test_a_checkpoint_holds_the_letters_of_its_place(
    numbers: list[int], payloads: list[bytes], count: int, is_well: bool
) -> None:
    scene = Scene()
    scene.bury(b"1", b"2")
    scene.take(scene.say(DROP, 1, b"1"), b"")
    place = CutPlace(scene.history.turns, 0, {})
    scene.bury(b"3")
    found = list(check_dead_letters(scene.history, place, checkpoint_with(numbers, payloads, count), 7))
    assert (not found) == is_well, found


# ---- words that are dropped when the fleet is taken back ------------------------------------------------------------


def take_back(scene: Scene, at_ns: int) -> None:
    """The plan starts from a cut before all turns, and drops what earlier plans took."""
    cut = CutRecord(1, 0, {"a": CutPlace(0, 0, {})}, {})
    scene.books.inputs.drops.on_plan(at_ns, PLAN, cut, is_dropping=True)


def accept(scene: Scene, key: str, plan: int) -> None:
    scene.books.inputs.drops.on_taken(plan, command_name(key), is_repeated=False)


@pytest.mark.parametrize(("plan", "is_well"), [(PLAN - 1, True), (PLAN, False)])
def test_an_acknowledged_word_may_be_missing_if_it_was_taken_before_the_plan_that_drops(
    plan: int, is_well: bool
) -> None:
    scene = Scene()
    scene.bury(b"1")
    scene.say(DROP, 1, b"1")
    accept(scene, "k", plan)
    take_back(scene, SAID_NS + 1)
    assert (scene.end() == []) == is_well


@pytest.mark.parametrize(("at_ns", "is_well"), [(SAID_NS + 1, False), (SAID_NS - 1, True)])
def test_a_word_that_was_dropped_has_no_effect_any_more(at_ns: int, is_well: bool) -> None:
    scene = Scene()
    scene.bury(b"1")
    scene.say(RETRY, 1, b"1")
    accept(scene, "k", PLAN - 1)
    take_back(scene, at_ns)
    scene.handle(b"1")
    assert (scene.end() == []) == is_well
    assert is_well or "after they were dropped by plan 1" in scene.said[0]


@pytest.mark.parametrize(("turn", "is_well"), [(0, True), (1, False)])
def test_a_word_that_the_cut_holds_as_put_off_is_not_dropped(turn: int, is_well: bool) -> None:
    """The agent had consumed it before the cut, in a durable turn, for a later turn."""
    scene = Scene()
    scene.bury(b"1")
    word = scene.say(RETRY, 1, b"1")
    accept(scene, "k", PLAN - 1)
    scene.history.put_off.append((turn, word, "last"))
    take_back(scene, SAID_NS + 1)
    scene.handle(b"1")
    assert (scene.end() == []) == is_well
