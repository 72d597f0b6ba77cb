"""Commands with which operators handle dead letters and external effects.

Each dead-letter command contains the number and identity of its dead letter, so it can never affect another dead letter. Commands on dead
letters may be repeated, because a dead letter no longer exists once it has been retried or dropped. All commands of one call are sent in
one request to the agent's host. The client repeats this request with the same keys until every command has an outcome.

Effect commands apply to effects that are in doubt or have ended. This module also collects the state of unfinished effects from hosts.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from snapline.agent_runtime.durable import encode_result
from snapline.client import client_events as ev
from snapline.client.host_calls import (
    FIND_S_MAX,
    WAIT_LEAST_S,
    WAIT_MOST_S,
    HostCalls,
    OfferError,
    ask_every_host,
    owner_of,
)
from snapline.client.queues import HostAddress
from snapline.client.sends_and_asks import Receipt, ReplyReader
from snapline.errors import (
    CoordinatorUnavailableError,
    InputDeadLetteredError,
    InputUnknownError,
    NotFoundError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.agent_commands import (
    DROP,
    RETRY,
    TARGET_GONE,
    DeadLetterCommand,
    EffectResolution,
    EffectRetry,
    dead_letter_command_payload,
    effect_request_payload,
    effect_resolution_payload,
    is_effect_request,
    parse_effect_key,
    read_dead_letter_command,
)
from snapline.messages.client_requests import (
    ACCEPTED,
    DESCRIPTION,
    EFFECTS,
    INPUTS_MAX,
    REFUSED,
    REPEATED,
    GivenInput,
    InputOutcome,
    NotHereError,
    Question,
)
from snapline.messages.client_wire import SETTLE_PATH
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.effect_records import NEEDS_PEOPLE, UnfinishedEffect

HANDLED, FAILED, DROPPED, MISSING, NEVER = "handled", "failed", "dropped", "gone", "refused"


Numbers = Iterable[int] | None
"""Numbers of dead letters. None means all current dead letters."""


class DeadLetterResult(msgspec.Struct, frozen=True):
    """Outcome of an operator's command on one dead letter.

    Attributes:
        number: number of the dead letter, unique among its agent's dead letters.
        outcome: "handled" if the retry succeeded. "failed" if the retry failed, in which case a new dead letter exists. "dropped" if the
            dead letter was dropped. "gone" if the dead letter no longer existed, because another client had retried or dropped it or a
            recovery had undone it. "refused" if the host refused the command.
        message: the answer given by the retry, `{"type": …, "fields": …}`, if the dead letter was an input. `message` is None if the retry
            gave no answer.
    """

    agent: str
    number: int
    outcome: str
    message: object = None
    reason: str = ""


class _ReportedDeadLetter(msgspec.Struct):
    """A dead letter as listed in an agent's description."""

    number: int
    identity: str


class _Description(msgspec.Struct):
    dead_letters: list[_ReportedDeadLetter]


def select_dead_letters(agent: str, description: Mapping[str, object], numbers: Numbers) -> list[_ReportedDeadLetter]:
    """Return the dead letters with the given numbers. If `numbers` is None, return all current dead letters of the agent.

    Raises:
        NotFoundError: a given number belongs to no dead letter. The error lists the numbers that exist.
        UsageError: a number occurs twice in `numbers`.
    """
    dead_letters = {
        dead_letter.number: dead_letter for dead_letter in msgspec.convert(description, _Description).dead_letters
    }
    if numbers is None:
        return list(dead_letters.values())
    chosen_numbers = list(numbers)
    if len(set(chosen_numbers)) < len(chosen_numbers):
        raise UsageError("a dead letter is named twice: name each once")
    for number in chosen_numbers:
        if number not in dead_letters:
            known_numbers = ", ".join(map(str, dead_letters)) or "none"
            raise NotFoundError(f"agent {agent!r} has no dead letter {number}; those that it has: {known_numbers}")
    return [dead_letters[number] for number in chosen_numbers]


def dead_letter_commands(
    agent: str, verb: str, description: Mapping[str, object], numbers: Numbers
) -> list[GivenInput]:
    """Return one command for each selected dead letter, each with its own idempotency key. Raises the errors of `select_dead_letters`."""
    stem = secrets.token_hex(12)
    return [
        GivenInput(
            agent,
            f"{verb}-{dead_letter.number}-{stem}",
            dead_letter_command_payload(
                DeadLetterCommand(verb, dead_letter.number, bytes.fromhex(dead_letter.identity))
            ),
        )
        for dead_letter in select_dead_letters(agent, description, numbers)
    ]


WaitForAnswer = Callable[[Receipt, float], Awaitable[ev.FinishAsk]]
"""Function that waits until a deadline for the outcome of an input."""


class CommandSender:
    """Resends commands to the host that owns the agent until each command has an outcome. `late` creates the error that is raised if the
    deadline passes first."""

    def __init__(
        self,
        coordinator: Callable[[], CoordinatorClient],
        hosts: HostCalls,
        agent: str,
        late: "Callable[[str, str], InputUnknownError] | None" = None,
    ) -> None:
        self._late = late or dead_letters_timeout_error
        self._coordinator = coordinator
        self._hosts = hosts
        self._agent = agent

    async def settle(
        self, words: Sequence[GivenInput], deadline_s: float, wait_for_answer: WaitForAnswer
    ) -> list[DeadLetterResult]:
        """Send the commands and return the outcome of each. Raises the errors of `give`, and InputUnknownError if at least one outcome
        does not arrive in time."""
        outcomes = await self.give(words, deadline_s)

        async def settled(word: GivenInput, outcome: InputOutcome) -> DeadLetterResult:
            if outcome.status == REFUSED:
                return dead_letter_result(word, refused=outcome.reason)
            return dead_letter_result(
                word, await wait_for_answer(Receipt(word.agent, outcome.number, word.key), deadline_s)
            )

        return list(await asyncio.gather(*[settled(*pair) for pair in zip(words, outcomes, strict=True)]))

    async def give(self, words: Sequence[GivenInput], deadline_s: float) -> list[InputOutcome]:
        """Send the commands, and return one outcome per command: accepted, repeated or refused.

        Raises:
            InputUnknownError: the deadline passed before an answer arrived.
            AgentMissingError, FleetEndedError: the agent or the fleet no longer exists.
            UsageError: this client has no permission.
        """
        loop, wait_s, reason = asyncio.get_running_loop(), WAIT_LEAST_S, "nobody has answered yet"
        decided: dict[str, InputOutcome] = {}
        while (left_s := deadline_s - loop.time()) > 0:
            open_commands = [word for word in words if word.key not in decided][:INPUTS_MAX]
            if not open_commands:
                return [decided[word.key] for word in words]
            try:
                place = await self._owner(min(FIND_S_MAX, left_s))
                for word, outcome in zip(
                    open_commands, await self._offer(place, open_commands, deadline_s), strict=True
                ):
                    reason = outcome.reason or reason
                    if outcome.status in (ACCEPTED, REPEATED, REFUSED):
                        decided[word.key] = outcome
            except OfferError as failed:
                if failed.is_final:
                    raise UsageError(failed.reason) from failed
                reason = failed.reason
            except (CoordinatorUnavailableError, UnknownOutcomeError, NotHereError) as error:
                reason = str(error)
            if len(decided) < len(words):
                await asyncio.sleep(max(0.0, min(wait_s, deadline_s - loop.time())))
                wait_s = min(2 * wait_s, WAIT_MOST_S)
        raise self._late(self._agent, reason)

    async def _owner(self, limit_s: float) -> HostAddress:
        reply = await self._coordinator().locate([self._agent], limit_s)
        owner = owner_of(reply, Question(self._agent, DESCRIPTION))
        assert owner is not None, "an owner, or an error"
        return owner

    async def _offer(
        self, place: HostAddress, words: Sequence[GivenInput], deadline_s: float
    ) -> tuple[InputOutcome, ...]:
        limit_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
        return await self._hosts.offer(*place, words, limit_s, SETTLE_PATH)


def dead_letter_result(word: GivenInput, said: ev.FinishAsk | None = None, refused: str = "") -> DeadLetterResult:
    """Return the outcome of a command on a dead letter.

    Raises:
        InputUnknownError: the deadline passed before an answer arrived.
    """
    about = read_dead_letter_command(word.payload)
    if said is None:
        return DeadLetterResult(word.agent, about.number, NEVER, None, refused)
    if said.ending == ev.BURIED:
        return DeadLetterResult(word.agent, about.number, FAILED)
    answer = said.outcome
    if said.ending != ev.ANSWERED or answer is None:
        raise dead_letters_timeout_error(word.agent, said.reason)
    if (answer.type, answer.body) == ("", TARGET_GONE[1:]):
        return DeadLetterResult(word.agent, about.number, MISSING)
    outcome = DROPPED if about.verb == DROP else HANDLED
    return DeadLetterResult(word.agent, about.number, outcome, ReplyReader(None).read(answer))


def dead_letters_timeout_error(agent: str, reason: str) -> InputUnknownError:
    """Return the error for dead letters whose outcome is still unknown at the deadline."""
    error = InputUnknownError(
        f"the outcome for some of these dead letters of agent {agent!r} is not known ({reason}): "
        f"`snapline agent describe {agent}` lists those that are left; doing it again does no harm"
    )
    error.agent = agent
    return error


class _Open(msgspec.Struct):
    key: str
    generation: int
    number: int
    name: str
    stands: str = ""


class _Turn(msgspec.Struct):
    effect: _Open | None = None


class _EffectsDescription(msgspec.Struct):
    durable_turn: _Turn | None = None


def resolution_command_for(
    agent: str, key: str, description: Mapping[str, object], *, result: object, not_done: bool
) -> GivenInput:
    """Return a command, with a new idempotency key, that resolves the effect on which the agent waits.

    Raises:
        NotFoundError: the agent is not waiting for this effect.
        UsageError: a result is given although `not_done` is set.
        EncodingError, MessageTooLargeError: the result cannot be stored in the agent's journal.
    """
    turn = msgspec.convert(description, _EffectsDescription).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or opened.key != key:
        position = f"it waits for {opened.key!r}" if opened is not None else "it waits for none"
        raise NotFoundError(f"agent {agent!r} does not wait for effect {key!r}: {position}")
    if not_done and result is not None:
        raise UsageError("what was not done has no result: say one of them")
    encoded = b"" if not_done else encode_result(opened.name, result)
    resolution = EffectResolution(opened.key, opened.generation, opened.number, not not_done, encoded)
    return GivenInput(agent, f"resolve-{secrets.token_hex(12)}", effect_resolution_payload(resolution))


def retry_command_for(agent: str, key: str, description: Mapping[str, object]) -> GivenInput:
    """Return a command, with a new idempotency key, that retries an effect. If the effect is waiting for an operator, the command states
    that the effect was not executed.

    Raises:
        UsageError: the agent is waiting for the effect, but no operator needs to resolve it.
    """
    turn = msgspec.convert(description, _EffectsDescription).durable_turn
    opened = turn.effect if turn is not None else None
    if opened is None or (opened.key, opened.generation) != parse_effect_key(key):
        return effect_request_command(agent, RETRY, key)
    if opened.stands != NEEDS_PEOPLE:
        raise UsageError(f"effect {key!r} of agent {agent!r} has not failed: {opened.stands}")
    return resolution_command_for(agent, opened.key, description, result=None, not_done=True)


def effect_request_command(agent: str, verb: str, key: str) -> GivenInput:
    """Return a command, with a new idempotency key, for an effect that has ended, such as a retry or an undo."""
    request = EffectRetry(verb, *parse_effect_key(key))
    return GivenInput(agent, f"{verb}-effect-{secrets.token_hex(12)}", effect_request_payload(request))


def is_retry_or_undo(word: GivenInput) -> bool:
    """Return whether the command applies to an effect that has ended. The agent handles commands of this kind in a separate turn."""
    return is_effect_request(word.payload)


async def say(
    command_sender: CommandSender, word: GivenInput, key: str, deadline_s: float, wait_for_answer: WaitForAnswer
) -> None:
    """Send the command, and wait until the turn that waits for the effect has used it, or the command's separate turn has ended. Raises
    the errors of `CommandSender.give`.

    Raises:
        UsageError: the host refused the command, or an earlier command has already resolved the effect.
        InputDeadLetteredError: the turn that handled the command failed.
        InputUnknownError: the deadline passed before the outcome was known.
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
        raise UsageError(f"{_too_late(word, key)}: another command, or the undoing of its turn, came first")


def _too_late(word: GivenInput, key: str) -> str:
    if is_retry_or_undo(word):
        return f"there is nothing left of effect {key!r} of agent {word.agent!r} that could have a turn"
    return f"agent {word.agent!r} does not wait for effect {key!r} any more"


def late(agent: str, reason: str) -> InputUnknownError:
    """Return the error for a command whose outcome is still unknown at the deadline."""
    error = InputUnknownError(
        f"whether agent {agent!r} has heard what was said of its effect, or will, is not known ({reason}): `snapline agent describe {agent}` shows what "
        "it waits for; repeating the command does no harm"
    )
    error.agent = agent
    return error


async def standing(coordinator: CoordinatorClient, hosts: HostCalls) -> list[UnfinishedEffect]:
    """Return the effects on which agents are currently waiting, as reported by their hosts. Hosts that do not answer are skipped."""
    replies = await ask_every_host(coordinator, hosts, lambda _: Question("", EFFECTS), list[UnfinishedEffect])
    return [effect for host_effects in replies.values() for effect in host_effects or ()]
