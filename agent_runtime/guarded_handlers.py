"""Runs handlers that have guards (`guards.py`), and what follows a violation."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from snapline.agent_runtime.agent import Agent, AgentType, Handler
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import REASON_CHARACTERS_MAX
from snapline.agent_runtime.guards import OutputGuard
from snapline.agent_runtime.rollback_errors import RESTARTS_MAX
from snapline.errors import GuardViolationError


def function_of(handler: Handler) -> Callable[..., Any]:
    """Return the handler's function."""
    return handler.function


def guarded(
    handler: Handler,
    agent: Agent,
    known: AgentType,
    ctx: Context,
    image_of: Callable[[], bytes],
    *,
    function_of: Callable[[Handler], Callable[..., Any]] = function_of,
) -> Callable[..., Any]:
    """Return the function that runs a handler in a turn with this context. If the handler has a guard, the function also runs the guard.

    `image_of` returns the agent's encoded state from before the turn, and is called before the handler. `function_of` returns the function
    that runs a handler.
    """
    if handler.guard is None:
        return function_of(handler)
    fallback = handler.guard.fallback
    output_guard = OutputGuard(handler.name, agent, handler.guard.check)
    ctx.guard_with(output_guard)
    return GuardedHandler(
        function_of(handler),
        function_of(msgspec.structs.replace(handler, function=fallback)) if fallback is not None else None,
        *(output_guard, handler.guard.on_violation == "escalate", known),
        image_of() if fallback is not None else b"",
    ).run


class GuardedHandler(msgspec.Struct, frozen=True):
    """A handler that runs with a guard, and what follows a violation.

    Attributes:
        function, fallback: the handler, and the one that replaces it after a violation, if there is one.
        guard: the guard of the turn.
        is_final: whether a violation makes the message a dead letter at once.
        known: description of the agent's class.
        image: the agent's encoded state from before the turn, for the fallback.
    """

    function: Callable[..., Any]
    fallback: Callable[..., Any] | None
    guard: OutputGuard
    is_final: bool
    known: AgentType
    image: bytes

    async def run(self, agent: Agent, message: object, ctx: Context) -> None:
        """Run the handler, check its output, and handle a violation that the handler has not caught.

        A retried durable turn would take the same results from its journal and do the same, so such a turn begins again instead.
        """
        try:
            await self._attempt(self.function, agent, message, ctx)
            return
        except GuardViolationError as error:
            if error is not self.guard.violation:
                raise
            self.guard.is_final = self.is_final or self.fallback is not None
            if self.fallback is None:
                if ctx.journal is not None and not self.is_final:
                    ctx.restart_turn(str(error)[:REASON_CHARACTERS_MAX], at_most=min(self.known.retries, RESTARTS_MAX))
                raise
        agent.state = self.known.state_decoder.decode(self.image)
        await self._attempt(self.fallback, agent, message, ctx)

    async def _attempt(self, function: Callable[..., Any], agent: Agent, message: object, ctx: Context) -> None:
        outcome = function(agent, message, ctx)
        if inspect.isawaitable(outcome):
            await outcome
        elif outcome is not None:
            raise TypeError(f"the handler returned a {type(outcome).__qualname__}: nothing uses the return value")
        ctx.check_output(is_over=True)
