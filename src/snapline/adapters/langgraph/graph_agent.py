"""`SnaplineGraphAgent`: a graph of LangGraph as an agent of a fleet.

The problem: a graph with a checkpointer of its own is exact for itself alone. Where graphs message each other, a failure takes one of them back to its
last checkpoint, and the others remember what it has never said.

So a graph runs inside turns of an agent, and what it goes on from between two turns, its checkpoint, is the agent's state (`graph_memory.py`). It is
then in the same cut as everything else, and goes back with it. Within a turn nothing of the graph is saved: a plain turn is atomic, and a durable one is run again by its journal, in which
the calls of its nodes stand (`graph_turns.py`). That asks for three things of LangGraph, which has clocks and threads of its own:

1. Ids come from the turn (`chance.py`).
2. Nodes of one superstep run one after the other, in LangGraph's order: plain ones in one thread (`_in_line`), coroutines in an event loop of the run's own.
3. It saves when a run ends, and not while it goes on (`durability="exit"`).
"""

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONFIG_KEY_RUNNER_SUBMIT, INTERRUPT
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command

from snapline.adapters.langgraph import chance
from snapline.adapters.langgraph.graph_memory import MAIN, GraphMemory, GraphMemorySaver
from snapline.adapters.langgraph.graph_turns import GraphTurn
from snapline.adapters.langgraph.stepped_thread import SteppedThread
from snapline.agent_runtime.agent import Agent, Message, OnError, agent_type, handler
from snapline.agent_runtime.context import Context
from snapline.errors import FleetDefinitionError, UsageError

chance.replace_sources()


class GraphInput(Message):
    """An input for a graph, or for one of its threads."""

    values: Any
    thread_id: str = MAIN


class GraphResume(Message):
    """An answer to the interrupt at which a graph, or one of its threads, waits; to none but `interrupt`, if its id is given."""

    value: Any
    thread_id: str = MAIN
    interrupt: str = ""


class GraphResult(Message):
    """Result of a graph, and its questions at the interrupts where it waits, by their ids: as plain values, messages of LangChain as dictionaries."""

    values: Any
    interrupts: dict[str, Any] = {}  # noqa: RUF012  a struct's default is copied


class SnaplineGraphAgent(Agent):
    """Base of agents that run a graph. A subclass says which:

        class Writer(SnaplineGraphAgent):
            graph = builder

    It takes a `GraphInput` or `GraphResume`, and answers those who ask with a `GraphResult`. Handlers of its own map other messages to inputs of the
    graph, and results to messages: with `ainvoke` in durable turns, with `invoke` in plain ones.

    Attributes:
        graph: a `StateGraph`, or what its `compile` has given, without a checkpointer.
        serde: LangGraph's serializer of values.
        state: a `GraphMemory`, or a subclass of it with fields of your own.
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
        """One run of the graph. Nodes may reply in its place."""
        given = self._resume(message, ctx) if isinstance(message, GraphResume) else message.values
        found = await self.ainvoke(given, ctx, thread_id=message.thread_id)
        interrupts = found.pop(INTERRUPT, ()) if isinstance(found, dict) else ()
        if ctx.may_reply:
            ctx.reply(GraphResult(plain(found), {each.id: plain(each.value) for each in interrupts}))

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
    ) -> Any:  # what the graph gives
        """Run the graph within a plain turn, as LangGraph's `invoke`: to its end, or an `interrupt`. Its nodes wait for nothing.

        Args:
            input: the graph's input; `Command(resume=…)` answers an interrupt, in whatever later turn.
            thread_id: each thread is a conversation of its own, and goes on from where it was.
            config: LangGraph's, besides.
            options: others of LangGraph's `invoke`, such as `context`.
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
    ) -> Any:  # what the graph gives
        """The same within a durable turn, where nodes may wait: for `durable(…)`, and whatever `graph_turn()` gives."""
        run = self._runner(input, thread_id, config, options)
        thread = SteppedThread(lambda: run(turn))
        turn = self._turn(ctx, thread)
        return await thread.run()

    def values(self, thread_id: str = MAIN) -> dict[str, Any]:
        """The graph's values, as `GraphMemory.values`."""
        return self.state.values(thread_id, self.serde)

    def _turn(self, ctx: Context, thread: SteppedThread | None) -> GraphTurn:
        return GraphTurn(ctx, self.state, self.serde, thread)

    def _runner(
        self, input: object, thread_id: str, config: RunnableConfig | None, options: dict[str, Any]
    ) -> Callable[[GraphTurn], Any]:
        """Return what runs the graph in the name of a turn. Its context variables stay as they are set."""
        compiled, memory = _compiled(type(self)), self.state
        play = _play_async if _has_coroutines(compiled) else _play

        def run(turn: GraphTurn) -> Any:
            if play is _play_async and not turn.may_wait:
                raise UsageError(
                    f"the graph of {type(self).__qualname__} has coroutines as nodes: mark the handler "
                    "@snapline.handler(durable=True), and run it there with `await self.ainvoke(…)`"
                )
            turn.enter()
            chance.drawing.set((turn.checkpoint_id, turn.message_id))
            saver = GraphMemorySaver(memory, self.serde)
            try:
                return play(compiled.copy({"checkpointer": saver}), input, _config(config, thread_id), options)
            finally:
                saver.settle(thread_id)

        return run


def plain(value: Any) -> Any:
    """A value as messages hold it: models of Pydantic, which messages of LangChain are, as dictionaries."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
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
    """Return whether there is a node that LangGraph's `invoke` cannot run."""
    graphs = [compiled, *(found for _, found in compiled.get_subgraphs(recurse=True))]
    return any(getattr(node.bound, "func", compiled) is None for graph in graphs for node in graph.nodes.values())


def _play(graph: Pregel[Any, Any, Any, Any], input: object, config: RunnableConfig, options: dict[str, Any]) -> Any:
    config["configurable"][CONFIG_KEY_RUNNER_SUBMIT] = lambda: _in_line
    return graph.invoke(input, config, durability="exit", **options)


def _play_async(
    graph: Pregel[Any, Any, Any, Any], input: object, config: RunnableConfig, options: dict[str, Any]
) -> Any:
    config["max_concurrency"] = 1
    return asyncio.run(graph.ainvoke(input, config, durability="exit", **options))


def _config(config: RunnableConfig | None, thread_id: str) -> RunnableConfig:
    given = config or RunnableConfig()
    return {**given, "configurable": {**given.get("configurable", {}), "thread_id": thread_id}}


def _in_line(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Run a task when it is submitted, in place of LangGraph's pool of threads."""
    for option in [name for name in kwargs if name.startswith("__")]:
        del kwargs[option]
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:  # what is none ends the run
        future.set_exception(error)
    return future
