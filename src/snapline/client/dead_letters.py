"""Operator commands on dead letters: selection of the dead letters, the commands, and the outcome of each.

A command names a dead letter by number and identity, so it never affects another one. It may be repeated, since a settled dead letter is
gone. One request carries all commands of a call to the agent's owner; it is repeated with the same keys until each has an outcome.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from snapline.client import events as ev
from snapline.client.hosts import HostCalls, OfferError
from snapline.client.outcomes import Receipt, ReplyReader
from snapline.client.queues import Place
from snapline.client.views import FIND_S_MAX, WAIT_LEAST_S, WAIT_MOST_S, owner_of
from snapline.errors import (
    CoordinatorUnavailableError,
    InputUnknownError,
    NotFoundError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.dead_letters import (
    DROP,
    TARGET_GONE,
    DeadLetterCommand,
    dead_letter_command_payload,
    read_dead_letter_command,
)
from snapline.messages.input_wire import SETTLE_PATH
from snapline.messages.inputs import ACCEPTED, INPUTS_MAX, REFUSED, REPEATED, GivenInput, InputOutcome
from snapline.messages.views import DESCRIPTION, NotHereError, Question

HANDLED, FAILED, DROPPED, MISSING, NEVER = "handled", "failed", "dropped", "gone", "refused"


Numbers = Iterable[int] | None
"""Numbers of dead letters; None: all current ones."""


class DeadLetterResult(msgspec.Struct, frozen=True):
    """Outcome of one dead letter.

    Attributes:
        number: number of the dead letter, among those of its agent.
        outcome: "handled": its turn has ended well; "failed": it failed again, as a new dead letter; "dropped"; "gone": it did not exist any more
            at its turn, since another client settled it or a recovery undid it; "refused": `reason` says why.
        message: answer of the turn, for an input that had become a dead letter: `{"type": …, "fields": …}`; None: no answer.
    """

    agent: str
    number: int
    outcome: str
    message: object = None
    reason: str = ""


class _ReportedDeadLetter(msgspec.Struct):
    """A dead letter, as a description reports it."""

    number: int
    identity: str


class _Description(msgspec.Struct):
    dead_letters: list[_ReportedDeadLetter]


def select_dead_letters(agent: str, description: Mapping[str, object], numbers: Numbers) -> list[_ReportedDeadLetter]:
    """Return the selected dead letters; None: all current ones.

    Raises:
        NotFoundError: a number does not exist; the error lists the existing ones.
        UsageError: a number is not valid, or is given twice.
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
    """Return one command for each selected dead letter, under a key of its own; raises as `select_dead_letters`."""
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
"""Function that waits for the outcome of an input, until a deadline."""


class CommandSender:
    """Repeats commands to the agent's owner until each has an outcome. `late`: creates the error to raise after the deadline."""

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
        """Return the outcome of each; raises as `give`, and InputUnknownError if one is not known in time."""
        outcomes = await self.give(words, deadline_s)

        async def settled(word: GivenInput, outcome: InputOutcome) -> DeadLetterResult:
            if outcome.status == REFUSED:
                return dead_letter_result(word, refused=outcome.reason)
            return dead_letter_result(
                word, await wait_for_answer(Receipt(word.agent, outcome.number, word.key), deadline_s)
            )

        return list(await asyncio.gather(*[settled(*pair) for pair in zip(words, outcomes, strict=True)]))

    async def give(self, words: Sequence[GivenInput], deadline_s: float) -> list[InputOutcome]:
        """Return one outcome for each command: accepted, repeated or refused.

        Raises:
            InputUnknownError: there was no answer in time.
            AgentMissingError, FleetEndedError: no agent can accept them.
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

    async def _owner(self, limit_s: float) -> Place:
        reply = await self._coordinator().locate([self._agent], limit_s)
        owner = owner_of(reply, Question(self._agent, DESCRIPTION))
        assert owner is not None, "an owner, or an error"
        return owner

    async def _offer(self, place: Place, words: Sequence[GivenInput], deadline_s: float) -> tuple[InputOutcome, ...]:
        limit_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
        return await self._hosts.offer(*place, words, limit_s, SETTLE_PATH)


def dead_letter_result(word: GivenInput, said: ev.FinishAsk | None = None, refused: str = "") -> DeadLetterResult:
    """Return the outcome of a command.

    Raises:
        InputUnknownError: there was no answer in time.
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
    """Return the error for dead letters whose outcome is unknown at the deadline."""
    error = InputUnknownError(
        f"the outcome for some of these dead letters of agent {agent!r} is not known ({reason}): "
        f"`snapline agent describe {agent}` lists those that are left; doing it again does no harm"
    )
    error.agent = agent
    return error
