"""Access of a graph's nodes to the turn in whose name they run.

A node asks from wherever it is, a tool or a model's wrapper deep inside: the turn is found through the context variables, which LangGraph takes along.
It is asked without `await`: plain nodes stay plain. What takes time is awaited by the agent's handler (`stepped_thread.py`), and so is in the
turn's journal.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from langgraph.checkpoint.serde.base import SerializerProtocol

from snapline.adapters.langgraph.graph_memory import GraphMemory
from snapline.adapters.langgraph.stepped_thread import SteppedThread
from snapline.agent_runtime.context import Context
from snapline.errors import UsageError

_Reply = TypeVar("_Reply")
_Result = TypeVar("_Result")

_running: ContextVar["GraphTurn | None"] = ContextVar("snapline-graph-turn", default=None)

SAVED = "langgraph"
"""Prefix of what LangGraph's serializer has made of a step's result."""


class GraphTurn:
    """The turn of an agent that runs a graph. Good until the graph's run ends.

    Attributes:
        ctx: the turn's context. `send`, `reply`, `emit`, `now`, `random` and `uuid` are used as they are; what is awaited there goes through `wait`.
    """

    def __init__(
        self, ctx: Context, memory: GraphMemory, serde: SerializerProtocol, thread: SteppedThread | None
    ) -> None:
        self.ctx = ctx
        self._memory = memory
        self._serde = serde
        self._thread = thread

    @property
    def may_wait(self) -> bool:
        """Return whether it is a durable turn's run, whose nodes may wait."""
        return self._thread is not None

    def wait(self, wanted: Awaitable[_Result]) -> _Result:
        """Wait for what the context gives: `turn.wait(turn.ctx.sleep(1))`.

        Raises:
            UsageError: the graph runs in a plain turn, which cannot wait.
        """
        if self._thread is None:
            getattr(wanted, "close", lambda: None)()
            raise UsageError(
                f"a node of agent {self.ctx.agent!r} waits, and its graph runs in a plain turn: mark the handler "
                "@snapline.handler(durable=True), and run the graph there with `await self.ainvoke(…)`"
            )
        found: _Result = self._thread.wait(wanted)
        return found

    def call(self, agent: str, message: object, reply_type: type[_Reply], *, timeout_s: float = 60.0) -> _Reply:
        """Ask another agent, as `Context.call`."""
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
    ) -> Any:  # the function's own result
        """Run outside I/O, as `Context.step`: a call that has ended is not made again.

        The result may be whatever LangGraph's serializer takes, messages of LangChain too. Arguments are not compared when the turn runs again.
        """
        work = functools.partial(_Saving(function, self._serde), *args)
        options: dict[str, Any] = {"timeout_s": timeout_s, "heartbeat_s": heartbeat_s}
        found = self.wait(self.ctx.step(name, work, **options, retries=retries, durability=durability))
        if isinstance(found, list) and len(found) == 3 and found[0] == SAVED:
            return self._serde.loads_typed((found[1], found[2]))
        return found  # of a stub of the simulator

    # -- for the agent -------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Run this context's nodes in its name from here on."""
        _running.set(self)

    def checkpoint_id(self) -> UUID:
        """Greater than all before: a number where LangGraph's own (version 6) have the time. No chance: within one memory it is unique."""
        self._memory.drawn += 1
        return UUID(int=self._memory.drawn << 80 | 6 << 76 | 2 << 62)

    def message_id(self) -> UUID:
        """Return an id for a message without one. Agents send these to each other, so no other turn of any agent may have it."""
        return self.ctx.uuid()


def graph_turn() -> GraphTurn:
    """Return the turn that runs this node's graph.

    Raises:
        UsageError: no turn does.
    """
    found = _running.get()
    if found is None:
        raise UsageError("no turn of an agent runs this graph: run it by a SnaplineGraphAgent's invoke or ainvoke")
    return found


def durable(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:  # the function's own result
    """Call `function(*args)` as a step of the turn that runs this node's graph (`GraphTurn.step`): a call that has ended is not made again.

    Where no turn runs the graph, as in a test of the graph alone, the function is called, and that is all.
    """
    return function(*args) if _running.get() is None else graph_turn().step(name, function, *args, **options)


class _Saving:
    """A step's function, whose result the journal keeps as LangGraph's serializer writes it."""

    def __init__(self, function: Callable[..., Any], serde: SerializerProtocol) -> None:
        self._function = function
        self._serde = serde

    def __call__(self, *args: Any) -> Any:
        found = self._function(*args)
        return self._later(found) if inspect.isawaitable(found) else self._saved(found)

    async def _later(self, found: Awaitable[Any]) -> Any:
        return self._saved(await found)

    def _saved(self, found: Any) -> Any:
        return [SAVED, *self._serde.dumps_typed(found)]
