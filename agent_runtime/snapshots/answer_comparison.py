"""Compares the answers that several fleets have got, such as forks of one snapshot: what each has asked, what the answers were, and what they cost.

Token counts are those that SDKs put into the results of requests to models, under `usage`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.durable import FAILED, describe_result
from snapline.agent_runtime.snapshots.answer_collection import collect
from snapline.storage.log.answer_files import RecordedAnswer
from snapline.storage.store.reader import StoreReader

_TOKENS = (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens"))

_Place = tuple[str, str, str, bytes, int]
"""Agent, question and occurrence of an answer."""


class FleetAnswers(msgspec.Struct, frozen=True):
    """The answers of one fleet.

    Attributes:
        store: location of the fleet's store.
        epoch: snapshot after which the answers begin; 0 for the fleet's beginning.
        answers: number of answers, including failures.
        recorded: how many of them were recorded answers of another fleet, so that nobody was asked.
        input_tokens, output_tokens: tokens in all answers.
        new_input_tokens, new_output_tokens: tokens in the answers that were not recorded, which the fleet itself has paid for.
    """

    store: str
    epoch: int
    answers: int
    recorded: int
    input_tokens: int
    output_tokens: int
    new_input_tokens: int
    new_output_tokens: int


class DifferentAnswer(msgspec.Struct, frozen=True):
    """A request to which not all fleets have got the same answer.

    Attributes:
        arguments: digest of the arguments, in hexadecimal digits.
        results: the answer of each fleet as text, or None if the fleet has not asked this.
    """

    agent: str
    kind: str
    name: str
    arguments: str
    occurrence: int
    results: list[str | None]


class AnswerComparison(msgspec.Struct, frozen=True):
    """A comparison of the answers of several fleets.

    Attributes:
        fleets: the fleets, in the given order.
        same: number of requests to which all fleets have got the same answer.
        different: all other requests, sorted by agent, request and occurrence.
    """

    fleets: list[FleetAnswers]
    same: int
    different: list[DifferentAnswer]


def compare_answers(stores: Sequence[StoreReader]) -> AnswerComparison:
    """Compare what fleets have asked and been answered. The answers of a fork, and of its parent, begin at the snapshot from which the fork
    was made, and all others at their fleet's beginning.

    Raises:
        NotFoundError: If that snapshot is not kept any more.
        DamagedDataError, StoreError: If a store is damaged or unreadable.
    """
    forks = [store.fork_record() for store in stores]
    begins = {fork.parent: fork.epoch for fork in forks if fork is not None}
    begins |= {fork.store: fork.epoch for fork in forks if fork is not None}
    fleets, found = [], []
    for store in stores:
        epoch = begins.get(store.store_id)
        answers = {_place(each): each for each in collect(store, epoch, has_failures=True).answers}
        book = store.recorded_answers()
        taken = {_place(each): each.result for each in book.answers} if book is not None else {}
        new = [each for place, each in answers.items() if taken.get(place) != each.result]
        fleets.append(_summary(store.location, epoch or 0, list(answers.values()), new))
        found.append(answers)
    places = sorted({place for answers in found for place in answers})
    different = [_difference(place, [answers.get(place) for answers in found]) for place in places]
    kept = [each for each in different if each is not None]
    return AnswerComparison(fleets, len(different) - len(kept), kept)


def _place(answer: RecordedAnswer) -> _Place:
    return answer.agent, answer.kind, answer.name, answer.digest, answer.occurrence


def _difference(place: _Place, answers: list[RecordedAnswer | None]) -> DifferentAnswer | None:
    if len({None if each is None else each.result for each in answers}) == 1:
        return None
    agent, kind, name, digest, occurrence = place
    results = [
        None if each is None else describe_result(each.result, is_done=each.outcome != FAILED) for each in answers
    ]
    return DifferentAnswer(agent, kind, name, digest.hex(), occurrence, results)


def _summary(store: str, epoch: int, answers: list[RecordedAnswer], new: list[RecordedAnswer]) -> FleetAnswers:
    tokens, tokens_new = _tokens_of(answers), _tokens_of(new)
    return FleetAnswers(store, epoch, len(answers), len(answers) - len(new), *tokens, *tokens_new)


def _tokens_of(answers: list[RecordedAnswer]) -> tuple[int, int]:
    counts = [tokens_in(each.result) for each in answers if each.kind == "step"]
    return sum([count for count, _ in counts]), sum([count for _, count in counts])


def tokens_in(result: bytes) -> tuple[int, int]:
    """Return the numbers of input and output tokens that an encoded result says it has cost, or zeros if it says nothing."""
    try:
        value: Any = msgspec.msgpack.decode(result)
    except (msgspec.MsgspecError, ValueError):
        return 0, 0
    usage = value.get("usage") if isinstance(value, dict) else None
    for names in _TOKENS:
        asked, answered = [usage.get(name) if isinstance(usage, dict) else None for name in names]
        if isinstance(asked, int) and isinstance(answered, int):
            return asked, answered
    return 0, 0
