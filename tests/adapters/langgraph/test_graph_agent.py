"""Graphs as agents, one turn at a time: what they keep between turns, what their nodes may ask for, and what is refused."""

import asyncio
import operator
import random
import threading
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import pytest
from tests.adapters.langgraph import playing  # skips where LangGraph is not there
from tests.adapters.turns import Turn

assert playing.REASON

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import _checkpoint
from langgraph.types import Command, Send, interrupt

import snapline
from snapline.adapters.langgraph import (
    GraphInput,
    GraphMemory,
    GraphResult,
    GraphResume,
    SnaplineGraphAgent,
    adurable,
    durable,
    graph_agent,
    graph_turn,
)
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.fleet import restore_agent
from snapline.agent_runtime.message_encoding import encode_body, message_decoder
from snapline.agent_runtime.rollback_errors import RollbackRequestedError
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import FleetDefinitionError, UsageError
from snapline.messages.payloads import split_message

pytestmark = pytest.mark.langgraph


class SameOutside(TurnEnvironment):
    """Time stands still, and chance is the same again for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def now_ns(self) -> int:
        return 1_700_000_000_000_000_000

    def random(self) -> float:
        return self._chance.random()


def turn(seed: int = 0) -> Context:
    return Context("a", 1, "sender", SameOutside(seed))


def restored(agent: SnaplineGraphAgent) -> Any:
    """What a recovery makes of it: nothing but its state is left."""
    return restore_agent(type(agent), image_of(agent))


def image_of(agent: SnaplineGraphAgent) -> bytes:
    return encode_body(agent.state)


def folded(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(item for write in writes for item in write)]


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]
    notes: Annotated[list[str], DeltaChannel(folded, snapshot_frequency=4)]
    answer: str
    large: str


def graph_of(*nodes: Any, state: Any = Talk) -> Any:
    """Nodes one after the other."""
    graph: Any = StateGraph(state)
    for node in nodes:
        graph.add_node(node.__name__, node)
    for one, other in zip([START, *(node.__name__ for node in nodes)], nodes, strict=False):
        graph.add_edge(one, other.__name__)
    return graph


# -- what it keeps ----------------------------------------------------------------------------------------------------


def say(state: Talk) -> dict[str, Any]:
    return {"said": [f"heard {len(state['said'])}"], "notes": ["noted"]}


class Talker(SnaplineGraphAgent):
    graph = graph_of(say)


def test_a_thread_goes_on_where_it_was_whoever_restores_the_agent() -> None:
    talker = Talker()
    talker.invoke({"said": ["one"]}, turn())
    again = restored(talker)
    assert again.invoke({"said": ["two"]}, turn())["said"] == ["one", "heard 1", "two", "heard 3"]
    assert again.invoke({"said": ["else"]}, turn(), thread_id="b")["said"] == ["else", "heard 1"]
    assert (again.values()["said"][-1], again.values("b")["said"][-1], again.values("none")) == (
        "heard 3",
        "heard 1",
        {},
    )
    again.state.forget("b")
    assert again.values("b") == {}


def test_a_delta_channel_is_what_it_is_with_any_saver_and_the_state_does_not_grow_by_turns() -> None:
    agent, plain = Talker(), graph_of(say).compile(checkpointer=InMemorySaver())
    sizes = []
    for number in range(12):
        expected = plain.invoke({"said": ["x"]}, {"configurable": {"thread_id": "t"}})
        assert agent.invoke({"said": ["x"]}, turn()) == expected, number
        agent = restored(agent)
        sizes.append(sum(len(each.checkpoints) for each in agent.state.threads["main"].values()))
    assert len(expected["notes"]) == 12 and max(sizes) <= 6, sizes


def test_a_large_value_that_no_step_changes_stays_the_same_object() -> None:
    """Then a checkpoint of the agent refers to what the one before has stored."""
    talker = Talker()
    talker.invoke({"said": ["one"], "large": "x" * 1_000_000}, turn())
    before = newest(talker).values["large"]
    talker.invoke({"said": ["two"]}, turn())
    assert newest(talker).values["large"] is before and before.large is not None


def newest(agent: SnaplineGraphAgent) -> Any:
    checkpoints = agent.state.threads["main"][""].checkpoints
    return checkpoints[max(checkpoints)]


def reply(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"to {state['messages'][-1].content}")]}


class Chatter(SnaplineGraphAgent):
    graph = graph_of(reply, state=MessagesState)


def test_the_same_turn_leaves_the_same_bytes() -> None:
    """Ids of checkpoints and messages too: else an agent's next turn would be another turn after a recovery."""
    images = []
    for _ in range(2):
        chatter = Chatter()
        chatter.invoke({"messages": [HumanMessage("one")]}, turn())
        chatter.invoke({"messages": [HumanMessage("two")]}, turn(1))
        images.append(image_of(chatter))
    assert images[0] == images[1]
    messages = chatter.values()["messages"]
    assert len({message.id for message in messages}) == 4


def test_ids_of_other_turns_are_others_and_outside_of_turns_chance_draws_them() -> None:
    graph = Chatter.graph.compile()
    first, second = (graph.invoke({"messages": [HumanMessage("x")]})["messages"][0].id for _ in range(2))
    assert first != second
    a, b = Chatter(), Chatter()
    for agent, ctx in ((a, turn()), (b, Context("b", 1, "sender", TurnEnvironment()))):
        agent.invoke({"messages": [HumanMessage("x")]}, ctx)
    assert a.values()["messages"][0].id != b.values()["messages"][0].id


class Purse(GraphMemory):
    """A state with a field of the agent's own."""

    coins: int = 5


class Owner(SnaplineGraphAgent):
    graph = graph_of(say)
    state: Purse


def test_a_state_may_have_fields_beside_the_graph() -> None:
    owner = Owner()
    owner.state.coins -= 1
    owner.invoke({"said": ["one"]}, turn())
    assert (restored(owner).state.coins, restored(owner).values()["said"]) == (4, ["one", "heard 1"])
    assert agent_type(Owner).state_type is Purse


# -- interrupts -------------------------------------------------------------------------------------------------------


def ask(state: Talk) -> dict[str, Any]:
    return {"answer": interrupt("what now?"), "notes": ["asked"]}


def before(state: Talk) -> dict[str, Any]:
    RUNS.append("before")
    return {"notes": ["inner"]}


def beside(state: Talk) -> dict[str, Any]:
    RUNS.append("beside")
    return {"said": ["beside"]}


RUNS: list[str] = []
"""What has run, in one test."""


def _asking() -> Any:
    """A subgraph that asks a person in its middle, with a task beside it."""
    graph: Any = StateGraph(Talk)
    graph.add_node("inner", graph_of(before, ask).compile())
    graph.add_node("beside", beside)
    graph.add_edge(START, "inner")
    graph.add_edge(START, "beside")
    return graph


class Asker(SnaplineGraphAgent):
    graph = _asking()


def test_an_interrupt_is_answered_in_a_later_turn_and_what_had_ended_does_not_run_again() -> None:
    asker, plain = Asker(), _asking().compile(checkpointer=InMemorySaver())
    for number in range(3):
        for given in ({"said": ["hello"]}, Command(resume=f"answer {number}")):
            expected = plain.invoke(given, {"configurable": {"thread_id": "t"}})
            RUNS.clear()
            found = asker.invoke(given, turn())
            assert without_ids(found) == without_ids(expected)
            assert [each.value for each in found.get("__interrupt__", ())] == ["what now?"] * (given.__class__ is dict)
            assert sorted(RUNS) == ["before", "beside"] * (given.__class__ is dict)
            asker = restored(asker)
        assert list(asker.state.threads["main"]) == [""], "nobody needs what its subgraph has saved"


def client_turn() -> Context:
    """One whose turn has an answer."""
    return Context("a", 1, "@client", SameOutside())


def answer_of(ctx: Context) -> Any:
    name, body = split_message(ctx.outcome().reply)
    assert name == "GraphResult"
    return message_decoder(GraphResult).decode(body)


async def told(agent: SnaplineGraphAgent, message: Any) -> Any:
    """What the agent answers to this message from outside."""
    ctx = client_turn()
    await agent.on_graph_input(message, ctx)
    return answer_of(ctx)


async def test_messages_give_inputs_and_answers_to_a_graph_and_its_results_come_back() -> None:
    """Also an answer that comes twice, late, or before there was anything to answer."""
    asker = Asker()
    with pytest.raises(UsageError, match="thread 'main' of agent 'a' has not begun"):
        await told(asker, GraphResume("early"))
    first = await told(asker, GraphInput({"said": ["hello"]}))
    assert first.values["said"] == ["hello", "beside"] and list(first.interrupts.values()) == ["what now?"]
    asker = restored(asker)
    (asked,) = first.interrupts
    assert (await told(asker, GraphResume("one", interrupt=asked))).values["answer"] == "one"
    assert (await told(asker, GraphResume("again", interrupt=asked))).values["answer"] == "one"
    second = await told(asker, GraphInput({"said": ["more"]}))
    late = await told(asker, GraphResume("late", interrupt=asked))
    assert late.interrupts == second.interrupts != {} and late.values["answer"] == "one"
    assert (await told(asker, GraphResume("two"))).values["answer"] == "two"


async def test_results_are_plain_and_who_has_not_asked_gets_none() -> None:
    found = await told(Chatter(), GraphInput({"messages": [{"role": "user", "content": "x"}]}))
    assert [message["content"] for message in found.values["messages"]] == ["x", "to x"]
    ctx = turn()
    await Talker().on_graph_input(GraphInput({"said": []}), ctx)
    assert ctx.outcome().sends == []


def without_ids(result: Any) -> Any:
    return {name: value for name, value in result.items() if name != "__interrupt__"}


# -- what nodes ask for -----------------------------------------------------------------------------------------------


def call(state: Talk) -> dict[str, Any]:
    return {"said": [durable("call", shout, state["said"][-1]).content]}


def shout(text: str) -> AIMessage:
    return AIMessage(text.upper())


class Caller(SnaplineGraphAgent):
    graph = graph_of(call)


async def test_a_step_gives_messages_of_langchain_back() -> None:
    assert (await Caller().ainvoke({"said": ["hey"]}, turn()))["said"] == ["hey", "HEY"]


def test_outside_of_a_fleet_a_durable_call_is_a_call() -> None:
    assert Caller.graph.compile().invoke({"said": ["hey"]})["said"] == ["hey", "HEY"]


def split(state: Talk) -> list[Send]:
    return [Send("task", {"said": [f"{number}"]}) for number in range(5)]


def task(state: Talk) -> dict[str, Any]:
    name = state["said"][0]
    return {"said": [durable(f"first {name}", str, name), durable(f"second {name}", str.upper, f"x{name}")]}


def _fanned() -> Any:
    graph: Any = StateGraph(Talk)
    graph.add_node("task", task)
    graph.add_conditional_edges(START, split, ["task"])
    return graph


class Fanned(SnaplineGraphAgent):
    graph = _fanned()


class NotedOutside(SameOutside):
    """Notes the steps, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    async def step(self, name: str, function: Any) -> Any:
        self.steps.append(name)
        return await super().step(name, function)


async def test_steps_of_parallel_nodes_come_in_one_order() -> None:
    """A journal is a sequence: it could not be replayed otherwise."""
    outside = NotedOutside()
    found = await Fanned().ainvoke({"said": []}, Context("a", 1, "sender", outside))
    assert outside.steps == [f"{which} {number}" for number in range(5) for which in ("first", "second")]
    assert found["said"] == [text for number in range(5) for text in (f"{number}", f"X{number}")]


async def later(state: Talk) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"said": [durable("later", shout, "later").content]}


class Later(SnaplineGraphAgent):
    graph = graph_of(later, say)


async def test_nodes_may_be_coroutines_in_durable_turns() -> None:
    agent = Later()
    assert (await agent.ainvoke({"said": ["hey"]}, turn()))["said"] == ["hey", "LATER", "heard 2"]
    with pytest.raises(UsageError, match="coroutines as nodes"):
        agent.invoke({"said": ["hey"]}, turn())


async def waiting_task(state: Talk) -> dict[str, Any]:
    name = state["said"][0]
    if name == "1":
        return {"said": [durable("at once", str, name)]}  # blocks the others, in the same order in each run
    first = await adurable(f"first {name}", str, name)
    answer = await graph_turn().acall("z", GraphInput({"of": name}), GraphResult)
    return {"said": [first, await adurable(f"second {name}", _later_upper, answer.values["said"])]}


async def _later_upper(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


class Waiting(SnaplineGraphAgent):
    graph = StateGraph(Talk).add_node("task", waiting_task).add_conditional_edges(START, split, ["task"])


def test_nodes_that_are_coroutines_wait_at_the_same_time() -> None:
    async def handler(ctx: Context) -> Any:
        return (await Waiting().ainvoke({"said": []}, ctx))["said"]

    turn = Turn(handler, reply=GraphResult({"said": "yes"}))
    said = turn.end()
    others = [0, 2, 3, 4]
    assert turn.asked == [
        ["step at once"],
        [f"step first {n}" for n in others],
        ["call z"] * 4,
        [f"step second {n}" for n in others],
    ]
    assert said == ["0", "YES", "1", "2", "YES", "3", "YES", "4", "YES"]
    for length in range(1, len(turn.journal)):  # a host died at any moment: no request was made twice
        begun = Turn(handler, reply=GraphResult({"said": "yes"}))
        assert begun.end(length - 1) is None
        rerun = Turn(handler, begun.journal, reply=GraphResult({"said": "yes"}))
        assert rerun.end() == said
        assert begun.asked + rerun.asked == turn.asked


async def test_outside_of_a_fleet_an_asynchronous_durable_call_is_a_call() -> None:
    assert await adurable("any", str.upper, "a") == "A"
    assert await adurable("any", _later_upper, "a") == "A"


class Left(SnaplineGraphAgent):
    graph = graph_of(call)


async def test_a_turn_that_is_given_up_leaves_no_thread() -> None:
    running = Left().ainvoke({"said": ["hey"]}, Context("a", 1, "sender", Standing()))
    waits = running.send(None)
    assert waits is None and any(each.name == "snapline-stepped" for each in threading.enumerate())
    running.close()
    assert not any(each.name == "snapline-stepped" for each in threading.enumerate())


class Standing(SameOutside):
    """A step that never ends."""

    async def step(self, name: str, function: Any) -> Any:
        while True:
            await asyncio.sleep(0)


# -- errors -----------------------------------------------------------------------------------------------------------


def fail(state: Talk) -> dict[str, Any]:
    raise RuntimeError("no more paper")


class Failing(SnaplineGraphAgent):
    graph = graph_of(say, fail)


async def test_what_a_node_raises_comes_out_of_the_handler() -> None:
    with pytest.raises(RuntimeError, match="no more paper"):
        Failing().invoke({"said": ["hey"]}, turn())
    with pytest.raises(RuntimeError, match="no more paper"):
        await Failing().ainvoke({"said": ["hey"]}, turn())


def test_a_node_that_waits_in_a_plain_turn_hears_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"durable=True.*ainvoke"):
        Caller().invoke({"said": ["hey"]}, turn())


def go_back(state: Talk) -> dict[str, Any]:
    graph_turn().ctx.rollback("it was all wrong")


class GoingBack(SnaplineGraphAgent):
    graph = graph_of(go_back)


async def test_a_node_may_ask_that_the_fleet_goes_back() -> None:
    """What the context raises for that is no Exception, and passes LangGraph's retries and handlers."""
    with pytest.raises(RollbackRequestedError):
        GoingBack().invoke({"said": []}, turn())
    with pytest.raises(RollbackRequestedError):
        await GoingBack().ainvoke({"said": []}, turn())


def test_another_langgraph_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that makes ids elsewhere would run, and end in another state each time."""
    monkeypatch.delattr(_checkpoint, "_snapline")
    monkeypatch.delattr(_checkpoint, "uuid6")
    with pytest.raises(ImportError, match="draws its ids elsewhere"):
        graph_agent.replace_sources()


def test_outside_of_a_turn_there_is_none() -> None:
    with pytest.raises(UsageError, match="SnaplineGraphAgent"):
        graph_turn()


class NoGraph(SnaplineGraphAgent):
    pass


class OwnSaver(SnaplineGraphAgent):
    graph = graph_of(say).compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize(
    ("agent_class", "says"), [(NoGraph, r"NoGraph\.graph is a NoneType"), (OwnSaver, "compile it without one")]
)
def test_a_class_without_a_usable_graph_is_refused(agent_class: type[SnaplineGraphAgent], says: str) -> None:
    with pytest.raises(FleetDefinitionError, match=says):
        agent_class()


def test_a_fleet_takes_it_as_any_agent() -> None:
    fleet = snapline.Fleet("talkers", agents={"a": Talker(), "b": Chatter()})
    assert isinstance(fleet.make("a").state, GraphMemory)
