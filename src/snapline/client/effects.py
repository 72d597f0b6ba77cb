"""Operator commands on effects that are in doubt or have ended: selection of the effect, the command, and its outcome. Also the state of
open effects."""

import asyncio
import secrets
from collections.abc import Mapping

import msgspec

from snapline.agent_runtime.results import encode_result
from snapline.client import events as ev
from snapline.client.dead_letters import CommandSender, WaitForAnswer
from snapline.client.hosts import HostCalls
from snapline.client.outcomes import Receipt
from snapline.client.views import ask_every_host
from snapline.errors import InputDeadLetteredError, InputUnknownError, NotFoundError, UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.dead_letters import RETRY, TARGET_GONE
from snapline.messages.effect_commands import (
    EffectResolution,
    EffectRetry,
    effect_request_payload,
    effect_resolution_payload,
    is_effect_request,
    parse_effect_key,
)
from snapline.messages.effect_records import NEEDS_PEOPLE, UnfinishedEffect
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


def resolution_command_for(
    agent: str, key: str, description: Mapping[str, object], *, result: object, not_done: bool
) -> GivenInput:
    """Return the resolution of the effect that the agent waits for, under a key of its own.

    Raises:
        NotFoundError: the agent does not wait for this effect.
        UsageError: it was not done, but a result is given.
        EncodingError, MessageTooLargeError: a journal cannot store the result.
    """
    turn = msgspec.convert(description, _Description).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or opened.key != key:
        position = f"it stands at {opened.key!r}" if opened is not None else "it stands at none"
        raise NotFoundError(f"agent {agent!r} does not stand at effect {key!r}: {position}")
    if not_done and result is not None:
        raise UsageError("what was not done has no result: say one of them")
    encoded = b"" if not_done else encode_result(opened.name, result)
    resolution = EffectResolution(opened.key, opened.generation, opened.number, not not_done, encoded)
    return GivenInput(agent, f"resolve-{secrets.token_hex(12)}", effect_resolution_payload(resolution))


def retry_command_for(agent: str, key: str, description: Mapping[str, object]) -> GivenInput:
    """Return the command that retries an effect, under a key of its own. If it waits for an operator, the command declares it not done.

    Raises:
        UsageError: the agent waits for it, but it needs no operator.
    """
    turn = msgspec.convert(description, _Description).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or (opened.key, opened.generation) != parse_effect_key(key):
        return effect_request_command(agent, RETRY, key)
    if opened.stands != NEEDS_PEOPLE:
        raise UsageError(f"effect {key!r} of agent {agent!r} has not failed: {opened.stands}")
    return resolution_command_for(agent, opened.key, description, result=None, not_done=True)


def effect_request_command(agent: str, verb: str, key: str) -> GivenInput:
    """Return a request about an effect that has ended, under a key of its own."""
    request = EffectRetry(verb, *parse_effect_key(key))
    return GivenInput(agent, f"{verb}-effect-{secrets.token_hex(12)}", effect_request_payload(request))


def is_retry_or_undo(word: GivenInput) -> bool:
    """Return whether the command is a request about an effect that has ended. Such a request has its own turn."""
    return is_effect_request(word.payload)


async def say(
    command_sender: CommandSender, word: GivenInput, key: str, deadline_s: float, wait_for_answer: WaitForAnswer
) -> None:
    """Send the command to the agent, until its turn has consumed it or the command's own turn has ended; raises as `CommandSender.give`.

    Raises:
        UsageError: the command is not needed, or another client has sent it before.
        InputDeadLetteredError: its turn has failed.
        InputUnknownError: its outcome was not known in time.
    """
    (outcome,) = await command_sender.give([word], deadline_s)
    if outcome.status == REFUSED:
        raise UsageError(outcome.reason)
    try:
        async with asyncio.timeout_at(deadline_s):
            ending = await wait_for_answer(Receipt(word.agent, outcome.number, word.key), deadline_s)
    except TimeoutError:
        raise late(word.agent, "nobody has answered yet") from None
    if ending.ending == ev.BURIED:
        raise InputDeadLetteredError(
            f"effect {key!r} of agent {word.agent!r} has failed again: `snapline agent dead-letters list` shows the error"
        )
    if ending.ending != ev.ANSWERED or ending.outcome is None:
        raise late(word.agent, ending.reason)
    if (ending.outcome.type, ending.outcome.body) == ("", TARGET_GONE[1:]):
        raise UsageError(f"{_too_late(word, key)}: another command has resolved it already")


def _too_late(word: GivenInput, key: str) -> str:
    if is_retry_or_undo(word):
        return f"there is nothing left of effect {key!r} of agent {word.agent!r} that could have a turn"
    return f"agent {word.agent!r} does not stand at effect {key!r} any more"


def late(agent: str, reason: str) -> InputUnknownError:
    """Return the error for a command whose outcome is unknown at the deadline."""
    error = InputUnknownError(
        f"whether agent {agent!r} has heard what was said of its effect, or will, is not known ({reason}): `snapline agent describe {agent}` shows where it "
        "stands; saying the same again does no harm"
    )
    error.agent = agent
    return error


async def standing(coordinator: CoordinatorClient, hosts: HostCalls) -> list[UnfinishedEffect]:
    """Return the effects that agents wait for now, as their hosts see them; hosts that do not answer are skipped."""
    replies = await ask_every_host(coordinator, hosts, lambda _: Question("", EFFECTS), list[UnfinishedEffect])
    return [effect for host_effects in replies.values() for effect in host_effects or ()]
