"""The ledger of effects, folded: each has one fate, the one that its newest words say."""

import pytest

from snapline.agent_runtime.effect_ledger import Effect, fold, open_at
from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord


def word(
    stage: str, key: str = "k", *, epoch: int = 1, generation: int = 1, undoes: str = "", **more: object
) -> Output:
    record = EffectRecord(stage, key, generation, "pay", f"c/a/{key}", undoes=undoes, undoes_generation=1, **more)  # type: ignore[arg-type]
    return Output("a", 1, EFFECTS_TOPIC, record, f"{epoch}.1", epoch, epoch)


def fates(*words: Output | OutputsReverted) -> dict[str, str]:
    return {f"{each.key}#{each.generation}": each.fate for each in fold(words)}


@pytest.mark.parametrize(
    ("stages", "fate"),
    [
        (["intent"], "open"),
        (["intent", "done"], "done"),
        (["intent", "failed"], "failed"),
        (["intent", "failed", "intent"], "open"),
        (["intent", "failed", "intent", "done"], "done"),
        (["intent", "done", "left"], "left"),
        (["done"], "done"),
    ],
)
def test_an_effect_is_what_its_newest_word_says(stages: list[str], fate: str) -> None:
    assert fates(*[word(stage) for stage in stages]) == {"k#1": fate}


def test_an_effect_is_compensated_when_its_undoing_is_done_and_can_be_done_again() -> None:
    words = [word("intent"), word("done"), word("intent", "k/undo", undoes="k")]
    assert fates(*words) == {"k#1": "done", "k/undo#1": "open"}
    words.append(word("failed", "k/undo", undoes="k"))
    assert fates(*words) == {"k#1": "done", "k/undo#1": "failed"}
    words += [word("done", "k/undo", undoes="k"), word("intent", generation=2)]
    assert fates(*words) == {"k#1": "compensated", "k/undo#1": "done", "k#2": "open"}


def test_a_fleet_that_goes_back_undoes_what_came_after() -> None:
    words = [word("intent", "one"), word("done", "one"), word("intent", "two"), word("done", "two", epoch=5)]
    back = OutputsReverted(3, (5,), "6.0")
    assert fates(*words, back) == {"one#1": "done", "two#1": "open"}, "its turn stands at it again"
    words[2] = word("intent", "two", epoch=4)
    assert fates(*words, back) == {"one#1": "done", "two#1": "undone"}
    assert fates(*words, back, word("intent", "two", epoch=7)) == {"one#1": "done", "two#1": "open"}


def test_what_is_known_of_an_effect_comes_from_its_intent() -> None:
    asked = word("intent", arguments="[7]", undo="m:undo", saga="trip")
    assert fold([asked, word("done", epoch=4, result='"receipt"')]) == [
        Effect("a", "k", 1, "pay", "c/a/k", "done", "[7]", '"receipt"', "m:undo", "", "trip", 1, 4)
    ]


def test_what_was_open_in_the_cut_of_an_epoch_is_told_with_its_fate_now() -> None:
    words = [
        word("intent", "one"),
        word("intent", "two"),
        word("done", "one", epoch=2),
        word("intent", "three", epoch=3),
    ]
    later = [*words, word("failed", "two", epoch=4)]
    told = [[(each.key, each.fate) for each in open_at(later, epoch)] for epoch in range(5)]
    assert told == [
        [],
        [("one", "done"), ("two", "failed")],
        [("two", "failed")],
        [("two", "failed"), ("three", "open")],
        [("three", "open")],
    ]
    back: list[Output | OutputsReverted] = [*later, OutputsReverted(2, (3, 4), "5.0"), word("intent", "four", epoch=6)]
    assert [(each.key, each.fate) for each in open_at(back, 6)] == [("two", "open"), ("four", "open")]
