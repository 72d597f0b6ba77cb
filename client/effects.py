"""What people say about effects that are in doubt: which doubt is meant, the word that says it, and whether it was taken."""

import asyncio
import secrets
from collections.abc import Mapping

import msgspec

from snapline.agent_runtime.results import encode_result
from snapline.client import events as ev
from snapline.client.endings import Receipt
from snapline.client.letters import Hear, Settling
from snapline.conversation.effect_words import EffectWord, effect_word_payload
from snapline.conversation.inputs import REFUSED, GivenInput
from snapline.conversation.letters import GONE
from snapline.errors import InputUnknownError, MisuseError, NotFoundError


class _Open(msgspec.Struct):
    key: str
    generation: int
    number: int
    name: str


class _Turn(msgspec.Struct):
    effect: _Open | None = None


class _Description(msgspec.Struct):
    durable_turn: _Turn | None = None


def word_for(agent: str, key: str, description: Mapping[str, object], *, result: object, not_done: bool) -> GivenInput:
    """What is said of the effect at which the agent stands, under a key of its own.

    Raises:
        NotFoundError: it does not stand at this one.
        MisuseError: it was not done, and has a result.
        EncodingError, MessageTooLargeError: a journal cannot keep the result.
    """
    turn = msgspec.convert(description, _Description).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or opened.key != key:
        stands = f"it stands at {opened.key!r}" if opened is not None else "it stands at none"
        raise NotFoundError(f"agent {agent!r} does not stand at effect {key!r}: {stands}")
    if not_done and result is not None:
        raise MisuseError("what was not done has no result: say one of them")
    encoded = b"" if not_done else encode_result(opened.name, result)
    word = EffectWord(opened.key, opened.generation, opened.number, not not_done, encoded)
    return GivenInput(agent, f"resolve-{secrets.token_hex(12)}", effect_word_payload(word))


async def resolve(settling: Settling, word: GivenInput, key: str, deadline_s: float, hear: Hear) -> None:
    """Give the word to the agent, until its turn has taken it; raises as `Settling.give`.

    Raises:
        MisuseError: nobody has to say it, or somebody else has said it before.
        InputUnknownError: it was not heard of in time.
    """
    (outcome,) = await settling.give([word], deadline_s)
    if outcome.status == REFUSED:
        raise MisuseError(outcome.reason)
    try:
        async with asyncio.timeout_at(deadline_s):
            said = await hear(Receipt(word.agent, outcome.number, word.key), deadline_s)
    except TimeoutError:
        raise late(word.agent, "nobody has answered yet") from None
    if said.ending != ev.ANSWERED or said.outcome is None:
        raise late(word.agent, said.reason)
    if (said.outcome.type, said.outcome.body) == ("", GONE[1:]):
        raise MisuseError(
            f"agent {word.agent!r} does not stand at effect {key!r} any more: somebody has said what came of it"
        )


def late(agent: str, reason: str) -> InputUnknownError:
    """What is known when the time is over."""
    error = InputUnknownError(
        f"whether agent {agent!r} has heard what came of its effect, or will, is not known ({reason}): `snapline agent describe {agent}` shows where it "
        "stands; saying the same again does no harm"
    )
    error.agent = agent
    return error
