"""The sends and asks of a program: validating the inputs, holding the futures on which the program waits, and building the outcomes. The
outcome of a send or ask is a receipt, a reply or an error.

While a limit on open sends is reached, further sends wait in the order in which they were called. The number of open asks is also limited.
The functions `find`, `offer` and `ask` execute the core's requests. Each of these three functions returns exactly one event for
the core.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import MessageReader, Traceparent, encode_message, with_tail
from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.client import client_events as ev
from snapline.client.host_calls import HostCalls, OfferError
from snapline.errors import (
    AgentMissingError,
    AnswerMissingError,
    EncodingError,
    FleetEndedError,
    HandlerNotPublicError,
    InputDeadLetteredError,
    InputRefusedError,
    InputRejectedError,
    InputUnknownError,
    MessageTooLargeError,
    SnaplineError,
    SnapshotAbortedError,
    UsageError,
)
from snapline.ids import check_id
from snapline.messages.answers import document_of
from snapline.messages.client_requests import KEY_CHARACTERS_MAX, AskOutcome, GivenInput
from snapline.messages.client_wire import encode_ask
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import SnapshotOutcome


class Receipt(msgspec.Struct, frozen=True):
    """Confirmation that an input is durable in the fleet's log. The agent consumes the input exactly once, despite crashes and rollbacks.

    Attributes:
        number: sequence number of the input (1, 2, 3 …) among the inputs of its agent. An agent consumes its inputs in the order of their
            numbers.
        key: idempotency key, unique among the inputs of one agent.
        is_repeated: whether an earlier send had already delivered this input under the same number.
    """

    agent: str
    number: int
    key: str
    is_repeated: bool = False


class Reply(msgspec.Struct, frozen=True):
    """An agent's answer to an input.

    Attributes:
        number: sequence number of the input among the inputs of its agent.
        message: `{"type": type name, "fields": plain values}`, or an instance of the caller's `reply_type`. `message` is None if the turn
            gave no answer, or if the answer was stored too long ago and has been deleted.
        is_early: whether the answer was returned as soon as its turn had ended, in which case a recovery may still change the answer.
        key: idempotency key of the input.
    """

    agent: str
    number: int
    message: Any
    is_early: bool
    key: str


class ReplyReader:
    """Decoder for reply messages. `kind` is the class of the message. If `kind` is None, messages are decoded to plain values."""

    def __init__(self, kind: Any) -> None:
        self._reader = MessageReader(kind, "reply_type", "the answer")

    def read(self, outcome: AskOutcome) -> object:
        """Return the decoded message of the reply, or None if the reply contains none.

        Raises:
            EncodingError: the message does not have the expected type.
        """
        return self._reader.read(outcome.type, outcome.body) if outcome.type else None


def snapshot_of(outcome: SnapshotOutcome) -> dict[str, object]:
    """Return the document that describes a requested snapshot. Raise SnapshotAbortedError if no snapshot was taken."""
    if not outcome.is_complete:
        which = f"epoch {outcome.epoch} was aborted" if outcome.epoch else "no snapshot was taken"
        raise SnapshotAbortedError(f"{which}: {outcome.reason}")
    return document_of(outcome)


def answer_error(said: ev.FinishAsk, receipt: Receipt) -> SnaplineError:
    """Return the error for an ask that ended without a reply."""
    accepted_text = f"it was taken as input {receipt.number} of agent {receipt.agent} under key {receipt.key}"
    error: InputDeadLetteredError | AnswerMissingError
    if said.ending == ev.BURIED:
        error = InputDeadLetteredError(
            f"{accepted_text}, and became a dead letter: `snapline agent dead-letters list` shows the error, in the next snapshot; "
            "after `… retry` the same key gets the answer"
        )
    elif said.ending == ev.LATE:
        error = AnswerMissingError(
            f"{accepted_text}, and its answer did not come in time ({said.reason}): ask again with the same key"
        )
    else:
        error = AnswerMissingError(f"{accepted_text}, and its answer cannot be heard: {said.reason}")
    error.agent, error.key, error.number = receipt.agent, receipt.key, receipt.number
    return error


def ending_of(said: ev.FinishSend, agent: str, key: str) -> Receipt | SnaplineError:
    """Convert the outcome of a send into a receipt or an error for the program."""
    if said.ending == ev.TAKEN:
        return Receipt(agent, said.number, key, said.is_repeated)
    error = _error_of(said.ending, said.reason, agent, key)
    if isinstance(error, _ABOUT_INPUTS):
        error.agent, error.key = agent, key
    return error


_ABOUT_INPUTS = (AgentMissingError, FleetEndedError, InputRejectedError, InputRefusedError, InputUnknownError)


def _error_of(ending: str, reason: str, agent: str, key: str) -> SnaplineError:
    match ending:
        case ev.REFUSED:
            return InputRefusedError(reason)
        case ev.NOT_PUBLIC:
            return HandlerNotPublicError(reason)
        case ev.MISSING:
            return AgentMissingError(reason)
        case ev.ENDED:
            return FleetEndedError(reason)
        case ev.DENIED:
            return UsageError(reason)
        case ev.NOT_TAKEN:
            return InputRejectedError(f"the input with key {key} for agent {agent} was not taken in time: {reason}")
        case _:
            return InputUnknownError(
                f"the input with key {key} for agent {agent} may have been taken, or may be yet ({reason}): "
                "give it again with the same key"
            )


TIMEOUT_S_MAX = 86_400.0
"""Largest timeout of any call, in seconds: one day."""

AgentInput = tuple[str, Any] | tuple[str, Any, str | None]
"""An agent, a message for it, and an optional key."""


class ExternalMessage(msgspec.Struct, frozen=True):
    """A message from an external program, given as the message type's name and the fields as JSON values. If `public_only` is set, only a
    public handler may accept the message."""

    type: str
    fields: Any
    public_only: bool


def check_timeout(timeout_s: float) -> None:
    """Raise UsageError if the timeout is invalid."""
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"timeout_s must be above 0, and a day at most, it is {timeout_s!r}")


def input_of(agent: str, message: Any, key: str | None) -> GivenInput:
    """Return the input as it is sent to a host. If `key` is None, a random key is generated.

    Raises:
        UsageError: `agent` or `key` is invalid.
        EncodingError, MessageTooLargeError: the message cannot be encoded or is too large.
    """
    check_id(agent)
    if key is None:
        key = secrets.token_hex(16)
    elif not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise UsageError(f"{key!r} is no key: use a text of 1 to {KEY_CHARACTERS_MAX} characters")
    if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], str):
        message = ExternalMessage(*message, public_only=False)
    if isinstance(message, ExternalMessage):
        text, name = _json_of(message.type, message.fields), message.type + current_tail().decode()
        return GivenInput(agent, key, text, name, message.public_only)
    return GivenInput(agent, key, with_tail(encode_message(message), current_tail()))


CALLER_TRACE: ContextVar[bytes] = ContextVar("snapline_tail", default=b"")
"""Trace context that a caller has passed. It is used if the program has no current trace of its own, as in a gateway."""


def current_tail() -> bytes:
    """Return a reference to the program's current trace, to append to a message. Return b"" if the current trace is not sampled.

    OpenTelemetry is used only if the program has already imported it.
    """
    api = sys.modules.get("opentelemetry.trace")
    span_context = None if api is None else api.get_current_span().get_span_context()
    if span_context is None or not span_context.is_valid:
        return CALLER_TRACE.get()
    return Traceparent(span_context.trace_id, span_context.span_id).tail() if span_context.trace_flags.sampled else b""


def _json_of(name: str, fields: object) -> bytes:
    try:
        text = msgspec.json.encode(fields)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise EncodingError(f"the fields of {name} cannot be written as JSON: {error}") from error
    if len(text) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(f"the fields of {name} take {len(text):,} bytes, the limit is {MESSAGE_BYTES_MAX:,}")
    return text


class WaitingSend:
    """An input, with the future on which the program waits for its receipt."""

    __slots__ = ("ending", "given")

    def __init__(self, given: GivenInput) -> None:
        self.given = given
        self.ending: asyncio.Future[Receipt | SnaplineError] = asyncio.get_running_loop().create_future()


def fail_all(endings: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    """Set this error on all futures that are not done yet. Without the error, a bug in snapline would make a program wait forever."""
    for ending in endings:
        if not ending.done():
            ending.set_exception(error)
            ending.exception()  # mark the error as retrieved, since the program may have stopped waiting


def late(given: GivenInput) -> SnaplineError:
    """Return the outcome of a send that never reached the core because the client's limits were reached."""
    finish = ev.FinishSend(
        0, ev.NOT_TAKEN, "this client has too many under way: wait for receipts before you send more"
    )
    outcome = ending_of(finish, given.agent, given.key)
    assert isinstance(outcome, SnaplineError), "it was not taken"
    return outcome


SENDS_MAX = 10_000
SENDS_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size in bytes of the inputs that a client holds at once. It is enough for requests to many hosts. When a limit is reached,
further inputs wait."""


class Sends:
    """The open sends of one client. `feed` passes an event to the client's core. `waiting` maps each open send's number to the send."""

    def __init__(self, feed: Callable[[ev.Event], None]) -> None:
        self._feed = feed
        self.waiting: dict[int, WaitingSend] = {}
        self._bytes = 0
        self._count = 0
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()

    async def outcomes(self, inputs: Sequence[GivenInput], timeout_s: float) -> list[Receipt | SnaplineError]:
        """Send the inputs. Return the outcome of each input, in order."""
        check_timeout(timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        entered: dict[int, WaitingSend] = {}
        try:
            await self._enter(inputs, deadline_s, entered)
            endings = [await waiting.ending for waiting in entered.values()]
        except asyncio.CancelledError:
            self._drop(entered)
            raise
        return [*endings, *[late(given) for given in inputs[len(endings) :]]]

    async def _enter(self, inputs: Sequence[GivenInput], deadline_s: float, entered: dict[int, WaitingSend]) -> None:
        """Pass the inputs to the core in calling order, waiting whenever a limit on open sends is reached. Stop at the deadline, even if
        some inputs have not been passed on."""
        try:
            async with asyncio.timeout_at(deadline_s), self._gate:
                at = 0
                while at < len(inputs):
                    await self._wait_for_room()
                    at += self._enter_some(inputs[at:], deadline_s, entered)
        except TimeoutError:
            return

    async def _wait_for_room(self) -> None:
        while len(self.waiting) >= SENDS_MAX or self._bytes >= SENDS_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    def _enter_some(self, inputs: Sequence[GivenInput], deadline_s: float, entered: dict[int, WaitingSend]) -> int:
        """Pass at least one input to the core, and more as long as the limits allow. Return the number of inputs passed."""
        sends: list[ev.Send] = []
        for item in inputs:
            if sends and (len(self.waiting) >= SENDS_MAX or self._bytes >= SENDS_BYTES_MAX):
                break
            self._count += 1
            size_bytes = len(item.payload)
            entered[self._count] = self.waiting[self._count] = WaitingSend(item)
            self._bytes += size_bytes
            sends.append(ev.Send(self._count, item.agent, size_bytes, round(deadline_s * 1e9)))
        self._feed(ev.InputsGiven(tuple(sends)))
        return len(sends)

    def _drop(self, entered: dict[int, WaitingSend]) -> None:
        """Drop sends that the program has cancelled. Inputs that are already part of a request may still be accepted."""
        dropped = tuple([send for send in entered if send in self.waiting])
        for send in dropped:
            self._forget(send)
        self._feed(ev.SendsDropped(dropped))

    def _forget(self, send: int) -> WaitingSend:
        waiting = self.waiting.pop(send)
        self._bytes -= len(waiting.given.payload)
        self._room.set()
        return waiting

    def finish(self, said: ev.FinishSend) -> None:
        """Report the outcome of a send to the program that waits for it."""
        waiting = self._forget(said.send)
        if not waiting.ending.done():
            waiting.ending.set_result(ending_of(said, waiting.given.agent, waiting.given.key))


ASKS_MAX = 1000
"""Largest number of answers for which a client waits at once. Further asks wait until one of the open asks ends."""

ROOM_S = 1.0
"""Extra time in seconds that an ask waits after its deadline, so that the core can end the ask first."""


class _Waiting:
    __slots__ = ("ending", "question")

    def __init__(self, question: bytes) -> None:
        self.question = question
        self.ending: asyncio.Future[ev.FinishAsk] = asyncio.get_running_loop().create_future()


class WaitingAsks:
    """The waiting asks of one client. `feed` passes an event to the client's core."""

    def __init__(self, feed: Callable[[ev.Event], None]) -> None:
        self._feed = feed
        self._room = asyncio.Semaphore(ASKS_MAX)
        self._waiting: dict[int, _Waiting] = {}
        self._count = 0

    async def wait_for_answer(self, agent: str, key: str, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of the accepted input with this key, until the event loop's clock reaches `deadline_s`."""
        try:
            async with asyncio.timeout_at(deadline_s + ROOM_S), self._room:
                return await self._ask(agent, key, deadline_s, is_early=is_early)
        except TimeoutError:
            return ev.FinishAsk(0, ev.LATE, "this client waits for too many answers")

    async def wait_for_answer_to(self, receipt: Receipt, deadline_s: float, *, is_early: bool = False) -> ev.FinishAsk:
        """Wait for the outcome of the input that this receipt confirms."""
        return await self.wait_for_answer(receipt.agent, receipt.key, deadline_s, is_early=is_early)

    async def _ask(self, agent: str, key: str, deadline_s: float, *, is_early: bool) -> ev.FinishAsk:
        self._count += 1
        number = self._count
        waiting = self._waiting[number] = _Waiting(encode_ask(agent, key, is_early=is_early))
        try:
            self._feed(ev.AnswerRequested(number, agent, round(deadline_s * 1e9)))
            return await waiting.ending
        except asyncio.CancelledError:
            self._feed(ev.AskDropped(number))
            raise
        finally:
            self._waiting.pop(number, None)

    def question(self, ask: int) -> bytes:
        """Return the encoded request that asks a host for the answer."""
        return self._waiting[ask].question

    def finish(self, said: ev.FinishAsk) -> None:
        """Report the outcome of an ask to the program, if the program is still waiting."""
        waiting = self._waiting.get(said.ask)
        if waiting is not None and not waiting.ending.done():
            waiting.ending.set_result(said)

    @property
    def endings(self) -> list[asyncio.Future[ev.FinishAsk]]:
        """Return the futures of all waiting asks."""
        return [waiting_ask.ending for waiting_ask in self._waiting.values()]


async def find(coordinator: CoordinatorClient, command: ev.LookUpAgents) -> ev.Event:
    """Ask the coordinator on which hosts agents run. Return the reply as an event for the core."""
    try:
        return ev.AgentsFound(command.request, await coordinator.locate(command.agents, command.limit_ns / 1e9))
    except Exception as error:  # Every request must return an event, or the sends to its agents would wait forever.
        return ev.LookupFailed(command.request, str(error), is_final=isinstance(error, UsageError))


async def offer(hosts: HostCalls, command: ev.OfferInputs, inputs: list[GivenInput]) -> ev.Event:
    """Send inputs to a host. Return the host's answer, or the failure, as an event for the core."""
    try:
        outcomes = await hosts.offer(command.host, command.address, inputs, command.limit_ns / 1e9)
        return ev.RequestAnswered(command.request, outcomes)
    except Exception as error:
        return _failed(command.request, error)


async def ask(hosts: HostCalls, command: ev.AskHost, question: bytes) -> ev.Event:
    """Wait for a host's answer to an input. Return the host's answer, or the failure, as an event for the core."""
    try:
        outcome = await hosts.ask(command.host, command.address, question, command.limit_ns / 1e9)
        return ev.AnswerHeard(command.request, outcome)
    except Exception as error:
        return _failed(command.request, error)


def _failed(request: int, error: Exception) -> ev.RequestFailed:
    if isinstance(error, OfferError):
        return ev.RequestFailed(request, error.reason, error.is_unsent, error.is_final)
    return ev.RequestFailed(request, f"{type(error).__name__}: {error}")
