"""Runs a LangGraph graph as an agent of a fleet (`SnaplineGraphAgent`).

The problem: a graph with its own checkpointer recovers correctly only if it does not communicate with other graphs. If graphs send messages
to each other, a failure rolls one graph back to its last checkpoint, while other graphs have already received messages that it sent after
that checkpoint.

The solution: a graph runs inside the turns of an agent. The checkpoint from which the graph continues in the next turn is part of the
agent's state (`graph_memory.py`). So the same cut contains the graph and the rest of the fleet, and both roll back together. Within a turn,
nothing needs to be saved, since a plain turn is atomic, and a durable turn is rerun from its journal, which contains the calls of the
graph's nodes (`graph_turns.py`). LangGraph uses its own clocks and threads, so this design requires three changes:

1. Ids come from the turn. LangGraph derives the ids of checkpoints, and of messages that have no id, from the clock and from random
   numbers. So if a recovery reran a durable turn, the turn would end in a different state. The agent's next turn would then begin with a
   different state and repeat its calls. A saver cannot choose the ids of checkpoints, since LangGraph derives the ids of tasks and
   interrupts from them before it saves. So this module patches the two id sources once. Within a turn, the patched sources use the turn's
   ids. Outside of turns, they work as before.
2. The nodes of one superstep run one after another, in LangGraph's order. Plain functions run in one thread (`_run_at_submit`), and
   coroutines in the run's event loop.
3. LangGraph saves only when a run ends, not during the run (`durability="exit"`).
"""

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_RUNNER_SUBMIT, INTERRUPT
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph, message
from langgraph.pregel import Pregel, _checkpoint
from langgraph.types import Command

from snapline.adapters.langgraph.graph_memory import MAIN, GraphMemory, GraphMemorySaver
from snapline.adapters.langgraph.graph_turns import GraphTurn, SteppedThread
from snapline.agent_runtime.agent import Agent, Message, OnError, agent_type, handler
from snapline.agent_runtime.context import Context
from snapline.errors import FleetDefinitionError, UsageError

Source = Callable[[], UUID]

drawing: ContextVar[tuple[Source, Source] | None] = ContextVar("snapline-graph-draws", default=None)
"""Id sources of the current turn. The first is for checkpoints, whose ids must increase, and the second for messages."""


def replace_sources() -> None:
    """Patch LangGraph's id sources, unless this has already been done.

    Raises:
        ImportError: this version of LangGraph uses different id sources.
    """
    if getattr(_checkpoint, "_snapline", False):
        return
    try:
        uuid6: Callable[..., UUID] = _checkpoint.uuid6
        uuid4: Callable[[], UUID] = message.uuid.uuid4
    except AttributeError as error:
        raise ImportError(f"it draws its ids elsewhere: {error}") from error
    places: list[tuple[Any, str, Any]] = [
        (_checkpoint, "uuid6", lambda *args, **kwargs: _drawn(0) or uuid6(*args, **kwargs)),
        (message, "uuid", SimpleNamespace(uuid4=lambda: _drawn(1) or uuid4())),
        (_checkpoint, "_snapline", True),
    ]
    for place, name, value in places:
        setattr(place, name, value)


def _drawn(which: int) -> UUID | None:
    sources = drawing.get()
    return None if sources is None else sources[which]()


replace_sources()


class GraphInput(Message):
    """An input for one of a graph's threads."""

    values: Any
    thread_id: str = MAIN


class GraphResume(Message):
    """An answer to an interrupt in one of a graph's threads.

    If `interrupt` is given, only the interrupt with that id is answered.
    """

    value: Any
    thread_id: str = MAIN
    interrupt: str = ""


class GraphResult(Message):
    """Result of running a graph, with the pending interrupts by id. All values are plain values, so LangChain messages are dictionaries."""

    values: Any
    interrupts: dict[str, Any] = {}  # noqa: RUF012  a struct's default is copied


class SnaplineGraphAgent(Agent):
    """Base class of agents that run a graph. A subclass sets `graph`:

        class Writer(SnaplineGraphAgent):
            graph = builder

    The agent accepts `GraphInput` and `GraphResume`, and replies with a `GraphResult`. A subclass may have handlers that convert other
    messages to inputs of the graph, and the graph's results to messages. Such handlers run the graph with `ainvoke` in durable turns, or
    with `invoke` in plain turns.

    Attributes:
        graph: a `StateGraph`, or a graph compiled without a checkpointer.
        serde: LangGraph's serializer for values.
        state: a `GraphMemory`, or an instance of a subclass with additional fields.
    """

    graph: ClassVar[Any] = None
    serde: ClassVar[SerializerProtocol] = JsonPlusSerializer()
    on_error: ClassVar[OnError | None] = "undo"
    state: GraphMemory

    def __init__(self, state: GraphMemory | None = None) -> None:
        _compiled(type(self))
        super().__init__(agent_type(type(self)).state_type() if state is None else state)

    @handler(durable=True)
    async def on_graph_input(self, message: GraphInput | GraphResume, ctx: Context) -> None:
        """Run the graph until its end or an interrupt, and reply with the result unless a node has already replied."""
        graph_input = self._resume(message, ctx) if isinstance(message, GraphResume) else message.values
        output = await self.ainvoke(graph_input, ctx, thread_id=message.thread_id)
        interrupts = output.pop(INTERRUPT, ()) if isinstance(output, dict) else ()
        if ctx.may_reply:
            ctx.reply(GraphResult(plain(output), {pending.id: plain(pending.value) for pending in interrupts}))

    def _resume(self, message: GraphResume, ctx: Context) -> Command[Any]:
        if message.thread_id not in self.state.threads:
            raise UsageError(
                f"nothing waits for this answer: thread {message.thread_id!r} of agent {ctx.agent!r} has not begun. Send a GraphInput first"
            )
        return Command(resume={message.interrupt: message.value} if message.interrupt else message.value)

    def invoke(
        self,
        input: object,
        ctx: Context,
        *,
        thread_id: str = MAIN,
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Any:  # whatever the graph returns
        """Run the graph within a plain turn until its end or an `interrupt`, like LangGraph's `invoke`. The graph's nodes must not wait.

        Args:
            input: the graph's input. `Command(resume=…)` answers an interrupt, which may be from any earlier turn.
            thread_id: id of the graph's thread, which is a conversation. Each thread continues from where it ended.
            config: additional configuration for LangGraph.
            options: other options of LangGraph's `invoke`, such as `context`.
        """
        run = self._runner(input, thread_id, config, options)
        return contextvars.copy_context().run(run, self._turn(ctx, None))

    async def ainvoke(
        self,
        input: object,
        ctx: Context,
        *,
        thread_id: str = MAIN,
        config: RunnableConfig | None = None,
        **options: Any,
    ) -> Any:  # whatever the graph returns
        """Run the graph within a durable turn, like `invoke`. Its nodes may wait for `durable(…)` and for the methods of `graph_turn()`."""
        run = self._runner(input, thread_id, config, options)
        thread = SteppedThread(lambda: run(turn))
        turn = self._turn(ctx, thread)
        return await thread.run()

    def values(self, thread_id: str = MAIN) -> dict[str, Any]:
        """Return the graph's current values, like `GraphMemory.values`."""
        return self.state.values(thread_id, self.serde)

    def _turn(self, ctx: Context, thread: SteppedThread | None) -> GraphTurn:
        return GraphTurn(ctx, self.state, self.serde, thread)

    def _runner(
        self, input: object, thread_id: str, config: RunnableConfig | None, options: dict[str, Any]
    ) -> Callable[[GraphTurn], Any]:
        """Return a function that runs the graph on behalf of a turn. The function does not reset the context variables that it sets."""
        compiled, memory = _compiled(type(self)), self.state
        play = _play_async if _has_coroutines(compiled) else _play

        def run(turn: GraphTurn) -> Any:
            if play is _play_async and not turn.may_wait:
                raise UsageError(
                    f"the graph of {type(self).__qualname__} has coroutines as nodes: mark the handler "
                    "@snapline.handler(durable=True), and run it there with `await self.ainvoke(…)`"
                )
            turn.enter()
            drawing.set((turn.checkpoint_id, turn.message_id))
            saver = GraphMemorySaver(memory, self.serde)
            try:
                return play(compiled.copy({"checkpointer": saver}), input, _config(config, thread_id), options)
            finally:
                saver.settle(thread_id)

        return run


def plain(value: Any) -> Any:
    """Return a value in a form that messages can contain. Pydantic models, such as LangChain messages, become dictionaries."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _compiled(agent_class: type[SnaplineGraphAgent]) -> Pregel[Any, Any, Any, Any]:
    return _compile(agent_class.__qualname__, agent_class.graph)


@functools.cache
def _compile(name: str, graph: Any) -> Pregel[Any, Any, Any, Any]:
    compiled = graph.compile() if isinstance(graph, StateGraph) else graph
    if not isinstance(compiled, Pregel):
        raise FleetDefinitionError(
            f"{name}.graph is a {type(graph).__qualname__}: give it a StateGraph, or a compiled graph"
        )
    if compiled.checkpointer is not None:
        raise FleetDefinitionError(
            f"{name}.graph has a checkpointer, and its checkpoints are to be the agent's state: compile it without one"
        )
    return compiled


@functools.cache
def _has_coroutines(compiled: Pregel[Any, Any, Any, Any]) -> bool:
    """Return whether the graph or a subgraph has a node that is a coroutine function, which LangGraph's `invoke` cannot run."""
    graphs = [compiled, *(subgraph for _, subgraph in compiled.get_subgraphs(recurse=True))]
    return any(getattr(node.bound, "func", compiled) is None for graph in graphs for node in graph.nodes.values())


def _play(graph: Pregel[Any, Any, Any, Any], input: object, config: RunnableConfig, options: dict[str, Any]) -> Any:
    config["configurable"][CONFIG_KEY_RUNNER_SUBMIT] = lambda: _run_at_submit
    return graph.invoke(input, config, durability="exit", **options)


def _play_async(
    graph: Pregel[Any, Any, Any, Any], input: object, config: RunnableConfig, options: dict[str, Any]
) -> Any:
    config["max_concurrency"] = 1
    return asyncio.run(graph.ainvoke(input, config, durability="exit", **options))


def _config(config: RunnableConfig | None, thread_id: str) -> RunnableConfig:
    base = config or RunnableConfig()
    return {**base, "configurable": {**base.get("configurable", {}), "thread_id": thread_id}}


def _run_at_submit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Run a task immediately when it is submitted, instead of in LangGraph's thread pool."""
    for option in [name for name in kwargs if name.startswith("__")]:
        del kwargs[option]
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:  # a BaseException ends the run
        future.set_exception(error)
    return future
