"""Gives a graph's nodes access to the turn that runs the graph.

A node may use the turn anywhere in its code, even deep inside a tool or a model wrapper. The turn is stored in a context variable, which
LangGraph propagates to nodes. The turn's methods need no `await`, so nodes remain plain functions. The agent's handler awaits slow
operations on behalf of nodes, so the turn's journal contains the results.

A durable turn's handler is a coroutine driven by the runtime, while a graph's nodes are plain functions called by LangGraph's loop. The
graph therefore runs in a thread that alternates with the handler (`stepped_thread.py`).
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.langgraph.graph_memory import GraphMemory
from snapline.adapters.rounds import Rounds
from snapline.adapters.stepped_thread import SteppedThread
from snapline.agent_runtime.context import Context
from snapline.errors import UsageError

_Reply = TypeVar("_Reply")
_Result = TypeVar("_Result")

_running: ContextVar["GraphTurn | None"] = ContextVar("snapline-graph-turn", default=None)

SAVED = "langgraph"
"""First element of a step's result that was encoded by LangGraph's serializer."""


class GraphTurn:
    """The turn of the agent that runs the graph. The object is valid until the run of the graph ends.

    Attributes:
        ctx: the context of the turn. Nodes can call its methods `send`, `reply`, `emit`, `now`, `random` and `uuid` directly. Pass the
            awaitables that other methods return to `wait`.
    """

    def __init__(
        self, ctx: Context, memory: GraphMemory, serde: SerializerProtocol, waits: SteppedThread | Rounds | None
    ) -> None:
        """`waits` lets nodes wait. It is None in a plain turn, and of the type `Rounds` if nodes are coroutines."""
        self.ctx = ctx
        self._memory = memory
        self._serde = serde
        self._waits = waits

    def wait(self, wanted: Awaitable[_Result]) -> _Result:
        """Wait for an awaitable that the context has returned, as in `turn.wait(turn.ctx.sleep(1))`, and return its result. No other node
        runs meanwhile.

        Raises:
            UsageError: the graph runs in a plain turn, which cannot wait.
        """
        if self._waits is None:
            getattr(wanted, "close", lambda: None)()
            raise UsageError(
                f"a node of agent {self.ctx.agent!r} waits, and its graph runs in a plain turn: mark the handler "
                "@snapline.handler(durable=True), and run the graph there with `await self.ainvoke(…)`"
            )
        if isinstance(self._waits, Rounds):
            return self._waits.block(wanted)
        result: _Result = self._waits.wait(wanted)
        return result

    async def until(self, make: Callable[[], Awaitable[_Result]]) -> _Result:
        """Wait for an awaitable of the context, as in `await turn.until(lambda: turn.ctx.sleep(1))`, while other nodes of the same
        superstep run and wait too. Only nodes that are coroutines call this method."""
        assert isinstance(self._waits, Rounds), "a graph with coroutines as nodes runs in rounds"
        return await self._waits.wait(make)

    async def acall(self, agent: str, message: object, reply_type: type[_Reply], *, timeout_s: float = 60.0) -> _Reply:
        """Call another agent as with `Context.call`, while other nodes wait too."""
        return await self.until(lambda: self.ctx.call(agent, message, reply_type, timeout_s=timeout_s))

    def call(self, agent: str, message: object, reply_type: type[_Reply], *, timeout_s: float = 60.0) -> _Reply:
        """Call another agent as with `Context.call`."""
        return self.wait(self.ctx.call(agent, message, reply_type, timeout_s=timeout_s))

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        heartbeat_s: float | None = None,
        retries: int | Sequence[float] = 0,
        durability: str = "log",
    ) -> Any:  # whatever the function returns
        """Run external I/O as a step, as with `Context.step`. If the turn is rerun, completed steps are not repeated.

        The result must be a value that LangGraph's serializer can encode, such as a LangChain message. If the turn is rerun, the step's
        arguments are not compared with the original ones.
        """
        options: dict[str, Any] = {"timeout_s": timeout_s, "heartbeat_s": heartbeat_s}
        work = functools.partial(_Saving(function, self._serde), *args)
        return self._loaded(self.wait(self.ctx.step(name, work, **options, retries=retries, durability=durability)))

    async def astep(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run external I/O as a step, as `step` does, while other nodes wait too."""
        work = functools.partial(_Saving(function, self._serde), *args)
        return self._loaded(await self.until(lambda: self.ctx.step(name, work, **options)))

    def _loaded(self, result: Any) -> Any:
        if isinstance(result, list) and len(result) == 3 and result[0] == SAVED:
            return self._serde.loads_typed((result[1], result[2]))
        return result  # the result of a stub in the simulator

    # -- internal ------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Make this turn available to all nodes that run in the current context."""
        _running.set(self)

    def checkpoint_id(self) -> UUID:
        """Return the next checkpoint id.

        In LangGraph's ids (UUIDs of version 6), a counter replaces the time. The ids in one memory are therefore unique and increasing.
        """
        self._memory.drawn += 1
        return UUID(int=self._memory.drawn << 80 | 6 << 76 | 2 << 62)

    def message_id(self) -> UUID:
        """Return a new id for a message that has no id.

        Message ids must be unique among all turns of all agents, because agents send the messages to each other.
        """
        return self.ctx.uuid()


def graph_turn() -> GraphTurn:
    """Return the turn that runs the calling node's graph.

    Raises:
        UsageError: the graph was not started by a turn.
    """
    turn = _running.get()
    if turn is None:
        raise UsageError("no turn of an agent runs this graph: run it by a SnaplineGraphAgent's invoke or ainvoke")
    return turn


def durable(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:  # the function's own result
    """Call `function(*args)` as a step of the turn that runs the calling node's graph (`GraphTurn.step`). If the turn is rerun, completed
    calls are not repeated.

    If no turn runs the graph, for example in a test of the graph alone, call the function directly.
    """
    return function(*args) if _running.get() is None else graph_turn().step(name, function, *args, **options)


async def adurable(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call `function(*args)` as a step, as `durable` does, in a node that is a coroutine. Nodes of one superstep wait for their calls at the
    same time."""
    if _running.get() is None:
        result = function(*args)
        return await result if inspect.isawaitable(result) else result
    return await graph_turn().astep(name, function, *args, **options)


class _Saving:
    """Wrapper of a step's function that encodes the function's result for the turn's journal, using LangGraph's serializer."""

    def __init__(self, function: Callable[..., Any], serde: SerializerProtocol) -> None:
        self._function = function
        self._serde = serde

    def __call__(self, *args: Any) -> Any:
        result = self._function(*args)
        return self._later(result) if inspect.isawaitable(result) else self._saved(result)

    async def _later(self, found: Awaitable[Any]) -> Any:
        return self._saved(await found)

    def _saved(self, found: Any) -> Any:
        return [SAVED, *self._serde.dumps_typed(found)]
