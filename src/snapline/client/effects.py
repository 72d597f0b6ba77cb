"""Operator commands on effects in doubt or ended: which one is meant, the command, and whether it was taken. And the state of those that
have not ended."""

import asyncio
import secrets
from collections.abc import Mapping

import msgspec

from snapline.agent_runtime.results import encode_result
from snapline.client import events as ev
from snapline.client.dead_letters import Hear, Settling
from snapline.client.endings import Receipt
from snapline.client.hosts import HostCalls
from snapline.client.views import ask_every_host
from snapline.errors import InputDeadLetteredError, InputUnknownError, NotFoundError, UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.dead_letters import GONE, RETRY
from snapline.messages.effect_records import NEEDS_PEOPLE, StandingEffect
from snapline.messages.effect_words import (
    EffectResolution,
    EffectRetry,
    effect_request_payload,
    effect_word_payload,
    is_effect_request,
    key_of,
)
from snapline.messages.inputs import REFUSED, GivenInput
from snapline.messages.views import EFFECTS, Question


class _Open(msgspec.Struct):
    key: str
    generation: int
    number: int
    name: str
    stands: str = ""


class _Turn(msgspec.Struct):
    effect: _Open | None = None


class _Description(msgspec.Struct):
    durable_turn: _Turn | None = None


def word_for(agent: str, key: str, description: Mapping[str, object], *, result: object, not_done: bool) -> GivenInput:
    """Return the resolution of the effect at which the agent waits, under a key of its own.

    Raises:
        NotFoundError: it does not wait at this one.
        UsageError: it was not done, and has a result.
        EncodingError, MessageTooLargeError: a journal cannot keep the result.
    """
    turn = msgspec.convert(description, _Description).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or opened.key != key:
        stands = f"it stands at {opened.key!r}" if opened is not None else "it stands at none"
        raise NotFoundError(f"agent {agent!r} does not stand at effect {key!r}: {stands}")
    if not_done and result is not None:
        raise UsageError("what was not done has no result: say one of them")
    encoded = b"" if not_done else encode_result(opened.name, result)
    word = EffectResolution(opened.key, opened.generation, opened.number, not not_done, encoded)
    return GivenInput(agent, f"resolve-{secrets.token_hex(12)}", effect_word_payload(word))


def retry_for(agent: str, key: str, description: Mapping[str, object]) -> GivenInput:
    """Return the command that retries an effect, under a key of its own: for one that waits for an operator, that it was not done.

    Raises:
        UsageError: the agent waits at it, and needs no operator.
    """
    turn = msgspec.convert(description, _Description).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or (opened.key, opened.generation) != key_of(key):
        return request_for(agent, RETRY, key)
    if opened.stands != NEEDS_PEOPLE:
        raise UsageError(f"effect {key!r} of agent {agent!r} has not failed: {opened.stands}")
    return word_for(agent, opened.key, description, result=None, not_done=True)


def request_for(agent: str, verb: str, key: str) -> GivenInput:
    """Return a request about an effect that has ended, under a key of its own."""
    wish = EffectRetry(verb, *key_of(key))
    return GivenInput(agent, f"{verb}-effect-{secrets.token_hex(12)}", effect_request_payload(wish))


def is_wish(word: GivenInput) -> bool:
    """Return whether it is about an effect that has ended. That has a turn of its own."""
    return is_effect_request(word.payload)


async def say(settling: Settling, word: GivenInput, key: str, deadline_s: float, hear: Hear) -> None:
    """Give the command to the agent, until its turn has taken it, or the turn of its own has ended; raises as `Settling.give`.

    Raises:
        UsageError: it is not needed, or another client has sent it before.
        InputDeadLetteredError: its turn has failed.
        InputUnknownError: it was not heard of in time.
    """
    (outcome,) = await settling.give([word], deadline_s)
    if outcome.status == REFUSED:
        raise UsageError(outcome.reason)
    try:
        async with asyncio.timeout_at(deadline_s):
            said = await hear(Receipt(word.agent, outcome.number, word.key), deadline_s)
    except TimeoutError:
        raise late(word.agent, "nobody has answered yet") from None
    if said.ending == ev.BURIED:
        raise InputDeadLetteredError(
            f"effect {key!r} of agent {word.agent!r} has failed again: `snapline agent dead-letters list` shows the error"
        )
    if said.ending != ev.ANSWERED or said.outcome is None:
        raise late(word.agent, said.reason)
    if (said.outcome.type, said.outcome.body) == ("", GONE[1:]):
        raise UsageError(f"{_too_late(word, key)}: somebody has said what is to become of it")


def _too_late(word: GivenInput, key: str) -> str:
    if is_wish(word):
        return f"there is nothing left of effect {key!r} of agent {word.agent!r} that could have a turn"
    return f"agent {word.agent!r} does not stand at effect {key!r} any more"


def late(agent: str, reason: str) -> InputUnknownError:
    """Return the error for a command whose outcome is unknown when the time is over."""
    error = InputUnknownError(
        f"whether agent {agent!r} has heard what was said of its effect, or will, is not known ({reason}): `snapline agent describe {agent}` shows where it "
        "stands; saying the same again does no harm"
    )
    error.agent = agent
    return error


async def standing(coordinator: CoordinatorClient, hosts: HostCalls) -> list[StandingEffect]:
    """Return the effects at which agents wait now, as their hosts see it; nothing of a host that does not answer."""
    told = await ask_every_host(coordinator, hosts, lambda _: Question("", EFFECTS), list[StandingEffect])
    return [effect for some in told.values() for effect in some or ()]
