"""What tools are told of going back on purpose: which epoch is meant, what comes again, what is missing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.conftest import Agreed

from snapline.agent_runtime.effect_ledger import fold
from snapline.agent_runtime.message_encoding import Output, encode_message
from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.restore_requests import Ask, Restoring, effects_left
from snapline.coordinator.state import operations as op
from snapline.errors import ExternalFailureError, NotFoundError, UsageError
from snapline.messages.effect_records import DONE, EFFECTS_TOPIC, FAILED, INTENT, LEFT, EffectRecord
from snapline.storage.log.log_record import LogBatch, LoggedEntry, LoggedInput, LogName
from snapline.storage.outputs.output_record import EmittedOutput, Release
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.packs.manifest import Manifest, Metadata


class Shelf:
    """A store that holds what a test says.

    Attributes:
        inputs: epoch → what its agents have consumed. logged: numbers of inputs of agent a0 in its log.
    """

    def __init__(self, inputs: dict[int, dict[str, int]], logged: tuple[int, ...]) -> None:
        self.inputs, self.logged = inputs, logged
        self.entries: list[LoggedEntry] = []

    def resolve(self, snapshot: str) -> int:
        if snapshot != "tagged":
            raise NotFoundError(f"no snapshot {snapshot}")
        return 1

    def read_manifest(self, root: str, *, epoch: int) -> Manifest:
        about = Metadata(
            epoch=epoch,
            created="2026-11-23T05:00:00+00:00",
            cluster="fleet",
            inputs=self.inputs[epoch],
            durable_turns={"a0": 2},
        )
        return Manifest(about, [], [])

    def read_logs(self) -> dict[LogName, list[int]]:
        return {LogName(1, "h1", 1): [1, 2]}

    def read_batch(self, log: LogName, number: int) -> LogBatch | None:
        found = [LoggedInput("a0", x, "shop", f"k{x}", b"p", 1) for x in self.logged]
        return LogBatch(found, self.entries) if number == 1 else None

    def output_epochs(self) -> list[int]:
        return [1, 3]

    def read_release(self, epoch: int) -> Release:
        outputs = [EmittedOutput("a0", epoch, topic, b"", 1) for topic in ("even", "odd", "odd")]
        outputs += [EmittedOutput("a0", epoch, EFFECTS_TOPIC, encode_message(PAID), 1)]
        return Release(epoch, epoch - 1, "root", 1, outputs)


PAID = EffectRecord(DONE, "order-1", 1, "pay", "fleet/a0/order-1")


def restoring(agreed: Agreed, *logged: int, newest: int = 7) -> Restoring:
    """Epochs 1 to 3; at 1 agent a0 had consumed 4 inputs, at 3 `newest`."""
    agreed.start("h1")
    agreed.epoch()
    agreed.create("kid")
    agreed.remove("a3")
    agreed.epoch()
    agreed.epoch()
    shelf = Shelf({1: {"a0": 4}, 2: {"a0": 5}, 3: {"a0": newest}}, logged)
    return Restoring(agreed.state, shelf)  # type: ignore[arg-type]  # all of a store that it asks


async def test_preview_says_what_is_undone(agreed: Agreed) -> None:
    found = await restoring(agreed, 5, 6, 7).preview("tagged", is_dropping=False)
    assert (found.epoch, found.void_epochs, found.agents_gone, found.agents_back) == (1, (2, 3), ("kid",), ("a3",))
    assert [(x.agent, x.first, x.count, x.missing) for x in found.inputs] == [("a0", 5, 3, ())]
    assert [(x.topic, x.count) for x in found.outputs] == [(EFFECTS_TOPIC, 1), ("even", 1), ("odd", 2)], (
        "of epoch 3 alone"
    )
    assert found.effects == ("a0: pay, done, key fleet/a0/order-1",)


def logged(turn: int, key: str, outcome: str, generation: int = 1) -> LoggedEntry:
    return LoggedEntry(
        "a0", turn, b"s", 0, b"p", JournalEntry("effect", "pay", b"", outcome, b"", f"{key}#{generation}")
    )


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([logged(2, "old", "done")], []),
        ([logged(3, "k", "begun"), logged(3, "k", "done")], ["a0: pay, done, key fleet/a0/k"]),
        (
            [
                msgspec.structs.replace(logged(3, "k", ""), entry=JournalEntry("effect", "pay", b"", outcome))
                for outcome in ("adopted", "refused")
            ],
            [],
        ),
        ([logged(3, "k", "begun")], ["a0: pay, asked for, perhaps done, key fleet/a0/k"]),
        ([logged(3, "k", "failed", 2)], ["a0: pay, failed, perhaps done, key fleet/a0/k#2"]),
        ([logged(3, "k", "done"), logged(4, "k/undo", "done")], []),
    ],
)
async def test_effects_whose_outputs_are_deleted_or_not_released_are_known_from_the_logs(
    agreed: Agreed, entries: list[LoggedEntry], left: list[str]
) -> None:
    made = restoring(agreed, 5, 6, 7)
    shelf: Any = made._store
    shelf.output_epochs = list
    shelf.entries = entries
    assert list((await made.preview("tagged", is_dropping=False)).effects) == left


LIVES = ("I", "IF", "IFID", "ID", "D", "IDL", "IDi", "IDif", "IDid", "i", "id", "IFif")
"""Words about one effect since the target: intent, failed, done, left; in small letters those of its compensation. What is missing came before."""

STAGES = {"i": INTENT, "f": FAILED, "d": DONE, "l": LEFT}


def word_of(letter: str, key: str) -> EffectRecord:
    if letter.isupper():
        return EffectRecord(STAGES[letter.lower()], key, 1, "pay", "outside")
    return EffectRecord(STAGES[letter], f"{key}/undo", 1, "undo", "outside", undoes=key, undoes_generation=1)


@given(st.data())
def test_what_stays_outside_is_what_the_ledger_has_not_seen_undone(data: st.DataObject) -> None:
    """The ledger is folded elsewhere: all but what is compensated stays, and the compensations that have undone something of these."""
    lives = data.draw(st.lists(st.sampled_from(LIVES), max_size=6))
    order = data.draw(st.permutations([number for number, life in enumerate(lives) for _ in life]))
    letters = [iter(life) for life in lives]
    words = [(f"a{number % 2}", word_of(next(letters[number]), f"k{number}")) for number in order]
    folded = fold([Output(agent, 1, EFFECTS_TOPIC, record, "", 1) for agent, record in words])
    undone = {(x.agent, x.key) for x in folded if x.fate == "compensated"}
    staying = [
        x for x in folded if x.fate != "compensated" and not (x.fate == "done" and (x.agent, x.undoes) in undone)
    ]
    found = sorted(line.split(",")[0] for line in effects_left(words))
    assert found == sorted(f"{x.agent}: {x.name}" for x in staying)


def test_an_effect_that_its_compensation_has_undone_does_not_stay_and_one_of_before_leaves_its_compensation() -> None:
    undone = word_of("d", PAID.key)
    assert effects_left([("a0", PAID), ("a0", undone)]) == ()
    assert effects_left([("a0", undone)]) == ("a0: undo, done, key outside",)
    assert len(effects_left([("a0", PAID), ("a1", undone)])) == 2
    assert effects_left([("a0", word_of("L", "k"))]) == (), "it was done before"


async def test_last_is_the_newest_of_the_log_and_an_unknown_number_is_told_what_there_is(agreed: Agreed) -> None:
    made = restoring(agreed)
    assert (await made.preview("last", is_dropping=False)).epoch == 3
    agreed.do(op.ForgetEpochs((1,)))
    with pytest.raises(NotFoundError, match="go back to one of epochs 2, 3"):
        await made.preview("1", is_dropping=False)
    with pytest.raises(NotFoundError):
        await made.preview("nobody", is_dropping=False)


@pytest.mark.parametrize(
    ("logged", "missing"), [((5, 7), "6 to 6"), ((6, 7), "5 to 5"), ((5,), "6 to 7"), ((), "5 to 7")]
)
async def test_inputs_that_no_log_holds_are_named_unless_they_are_dropped_anyway(
    agreed: Agreed, logged: tuple[int, ...], missing: str
) -> None:
    made = restoring(agreed, *logged)
    with pytest.raises(UsageError, match=f"lack inputs {missing} of agent a0"):
        await made.restore("1", "t", "", is_dropping=False, ask=asked(agreed))
    assert (await made.restore("1", "t", "", is_dropping=True, ask=asked(agreed))).void_epochs == (2, 3)


async def test_what_logs_hold_of_an_agent_that_had_left_lacks_nothing(agreed: Agreed) -> None:
    """Its earlier inputs are deleted, since nobody will consume them: a batch is kept for others (swarm, seed 2655)."""
    agreed.start("h1")
    agreed.epoch()
    agreed.remove("a0")
    agreed.epoch()
    made = Restoring(agreed.state, Shelf({1: {"a0": 4}, 2: {}}, (7,)))  # type: ignore[arg-type]  # as above
    assert (await made.preview("last", is_dropping=False)).inputs == ()
    assert (await made.restore("last", "t", "", is_dropping=False, ask=asked(agreed))).epoch == 2
    with pytest.raises(UsageError, match="lack inputs 5 to 6 of agent a0"):
        await made.restore("1", "u", "", is_dropping=False, ask=asked(agreed))


async def test_same_token_is_the_same_restore_and_refusals_say_whether_they_may_pass(agreed: Agreed) -> None:
    made = restoring(agreed, 5, 6, 7)
    with pytest.raises(ExternalFailureError, match="later"):
        await made.restore("2", "t", "", is_dropping=False, ask=asked(agreed, refused="later", may_pass=True))
    with pytest.raises(UsageError, match="never"):
        await made.restore("2", "t", "", is_dropping=False, ask=asked(agreed, refused="never"))
    done = await made.restore("2", "t", "why", is_dropping=False, ask=asked(agreed))
    again = await made.restore("2", "t", "why", is_dropping=False, ask=asked(agreed, refused="not asked at all"))
    assert done == again and agreed.state.plan is not None
    assert agreed.state.plan.reason == "back to epoch 2 on purpose: why"
    with pytest.raises(UsageError, match="token"):
        await made.restore("2", "", "", is_dropping=False, ask=asked(agreed))


def asked(agreed: Agreed, *, refused: str = "", may_pass: bool = False) -> Ask:
    """A leader that does at once what it is asked for, or refuses."""

    async def ask(question: object, answer: object) -> ev.AnswerRestore:
        event = question(1)  # type: ignore[operator]
        if not refused:
            number = agreed.state.plan_number
            agreed.do(op.Restore(number, event.epoch, ("h1",), event.reason, 0, 0, event.token, event.drop_inputs))
        return ev.AnswerRestore(1, refused=refused, may_pass=may_pass)

    return ask  # type: ignore[return-value]  # of one kind of answer
