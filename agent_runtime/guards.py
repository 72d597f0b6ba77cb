"""Guards of handlers, which check what a turn would pass on before any of it leaves.

A plain turn passes on its output when its handler has returned. A durable turn passes on, at each wait, what it has requested since the wait
before. The guard therefore checks a turn's output in *parts*: in a durable turn before each wait, and in all turns at the end. Each part is
checked once. A rejected part is dropped, and `GuardViolationError` is raised in the handler, at its wait or at its end.

A guard is pure, and its violations are entries of the turn's journal. A rerun turn takes them from there, and a part that has left is not
checked again (`TurnJournal.violation`). So a rerun turn decides as the first run did, even if the guard has changed meanwhile.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import msgspec

from snapline.agent_runtime.durable import REASON_CHARACTERS_MAX, read_message
from snapline.errors import FleetDefinitionError, GuardViolationError, UsageError
from snapline.ids import is_plain

OnViolation = Literal["retry", "escalate"] | Callable[..., Any]


class TurnOutput(msgspec.Struct, frozen=True):
    """The output of a turn, as its handler's guard sees it before it leaves.

    Attributes:
        sent: receivers and messages, in order. Calls (`ctx.call`) are among them.
        emitted: topics and outputs, in order.
        reply: the reply to the input or call that the turn handles, or None if the handler has not replied since the check before.
    """

    sent: tuple[tuple[str, Any], ...] = ()
    emitted: tuple[tuple[str, Any], ...] = ()
    reply: Any = None


class HandlerGuard(msgspec.Struct, frozen=True):
    """The guard of a handler: `check(agent, output)` returns why the output is rejected, or None. `on_violation` is as in `handler`."""

    check: Callable[[Any, TurnOutput], str | None]
    on_violation: OnViolation = "retry"

    @property
    def fallback(self) -> Callable[..., Any] | None:
        """Return the handler that replaces a handler whose output is rejected, or None if there is none."""
        return self.on_violation if callable(self.on_violation) else None


def handler_guard(check: object, on_violation: object, *, is_durable: bool) -> HandlerGuard | None:
    """Return the guard of a handler, or None if it has none.

    Raises:
        FleetDefinitionError: If an argument of `handler` is invalid.
    """
    if check is None:
        if on_violation != "retry":
            raise FleetDefinitionError(f"a handler has on_violation={on_violation!r} and no guard: give it guard=")
        return None
    if not callable(check) or inspect.iscoroutinefunction(check):
        raise FleetDefinitionError(f"the guard {check!r} is no plain function: write `def check(self, output)`")
    if on_violation not in ("retry", "escalate") and not callable(on_violation):
        raise FleetDefinitionError(f'on_violation is {on_violation!r}: use "retry", "escalate" or another handler')
    if is_durable and callable(on_violation) and not inspect.iscoroutinefunction(on_violation):
        raise FleetDefinitionError(
            f"on_violation of a durable handler is {on_violation!r}: write `async def fallback(self, message, ctx)`"
        )
    return HandlerGuard(check, on_violation)


class OutputGuard:
    """The guard of one turn, and the turn's output that it has not checked yet. The messages are kept with their encoded form, from which
    the guard gets them: a handler may have changed its object since it was sent.

    Attributes:
        violation: the error that was raised last, or None.
        is_final: whether the violation must not be retried.
        checked: what the context had gathered at the last check: number of messages, other requests, reply, and whether the agent stops.
    """

    __slots__ = ("_agent", "_check", "_emitted", "_name", "_reply", "_sent", "checked", "is_final", "violation")

    def __init__(self, name: str, agent: object, check: Callable[[Any, TurnOutput], str | None]) -> None:
        self._name = name
        self._agent = agent
        self._check = check
        self._sent: list[tuple[str, object, bytes]] = []
        self._emitted: list[tuple[str, object, bytes]] = []
        self._reply: list[tuple[object, bytes]] = []
        self.violation: GuardViolationError | None = None
        self.is_final = False
        self.checked: tuple[int, Any, bytes | None, bool] = (0, None, None, False)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to check."""
        return not (self._sent or self._emitted or self._reply)

    def add_sent(self, to: str, message: object, payload: bytes) -> None:
        """Add a message."""
        self._sent.append((to, message, payload))

    def add_emitted(self, topic: str, message: object, payload: bytes) -> None:
        """Add an output."""
        self._emitted.append((topic, message, payload))

    def add_reply(self, message: object, payload: bytes) -> None:
        """Add the reply."""
        self._reply.append((message, payload))

    def clear(self) -> None:
        """Forget what has been checked."""
        self._sent, self._emitted, self._reply = [], [], []

    def rejects(self) -> str:
        """Return why the guard rejects the output, or "".

        Raises:
            UsageError: If the guard returns something else.
            EncodingError: If a message cannot be decoded as its own type.
        """
        replies = [self._decoded(message, payload) for message, payload in self._reply]
        output = TurnOutput(
            tuple([(to, self._decoded(message, payload)) for to, message, payload in self._sent]),
            tuple([(topic, self._decoded(message, payload)) for topic, message, payload in self._emitted]),
            replies[0] if replies else None,
        )
        found = self._check(self._agent, output)
        if not found:
            return ""
        if not is_plain(found):
            raise UsageError(f"the guard of handler {self._name!r} returned {found!r:.100}: return a text, or None")
        return found[:REASON_CHARACTERS_MAX]

    def _decoded(self, message: object, payload: bytes) -> object:
        return read_message(payload, type(message), f"a message that the guard of handler {self._name!r} checks")

    def raise_violation(self, reason: str) -> NoReturn:
        """Raise GuardViolationError for this reason."""
        self.violation = GuardViolationError(f"the guard of handler {self._name!r} rejects the turn's output: {reason}")
        raise self.violation
