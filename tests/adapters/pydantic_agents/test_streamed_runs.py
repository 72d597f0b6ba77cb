"""Streamed runs of Pydantic AI's agents: a response is streamed once, within its step, and a rerun gives the turn the same events."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.adapters.turns import Turn

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.adapters.traced_turns import TracedTurn, attributes_of, names_of

from snapline.adapters.pydantic_ai import SnaplineDurability, current_rounds, run
from snapline.telemetry.model_requests import GEN_AI, OPT_IN

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]


class Seen:
    """A handler of events: their kinds, and whether a turn ran the handler."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bool]] = []

    async def __call__(self, ctx: Any, events: Any) -> None:
        async for event in events:
            self.events.append((event.event_kind, current_rounds() is not None))


def agent_of(calls: list[int], handler: Any = None) -> Agent[None, str]:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        calls.append(len(messages))
        if len(messages) == 1:
            yield {0: DeltaToolCall("look", '{"n": 1}', tool_call_id="c1")}
        else:
            for piece in ("all ", "is ", "well"):
                yield piece

    durability: Any = SnaplineDurability(event_stream_handler=handler)
    agent: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name="r", capabilities=[durability])

    @agent.tool_plain
    def look(n: int) -> str:
        return f"seen {n}"

    return agent


def test_a_handler_of_the_capability_sees_pieces_in_the_steps_and_nothing_twice() -> None:
    calls: list[int] = []
    seen, again = Seen(), Seen()
    turn = Turn(lambda ctx: run(ctx, agent_of(calls, seen), "hello"))
    assert turn.end().output == "all is well" and calls == [1, 3]
    kinds = [kind for kind, _ in seen.events]
    assert kinds.count("part_delta") == 2 and not any(is_in_turn for _, is_in_turn in seen.events)
    assert kinds.index("function_tool_call") < kinds.index("function_tool_result") < kinds.index("part_delta")
    rerun = Turn(lambda ctx: run(ctx, agent_of(calls, again), "hello"), turn.journal)
    assert rerun.end().output == "all is well" and calls == [1, 3] and again.events == [] and rerun.asked == []


def test_a_handler_of_the_run_sees_whole_parts_in_the_turn_and_a_rerun_repeats_them() -> None:
    calls: list[int] = []
    seen, again = Seen(), Seen()
    turn = Turn(lambda ctx: run(ctx, agent_of(calls), "hello", event_stream_handler=seen))
    assert turn.end().output == "all is well"
    kinds = [kind for kind, _ in seen.events]
    assert kinds.count("part_end") == 2 and all(is_in_turn for _, is_in_turn in seen.events)
    rerun = Turn(lambda ctx: run(ctx, agent_of(calls), "hello", event_stream_handler=again), turn.journal)
    assert rerun.end().output == "all is well" and again.events == seen.events and calls == [1, 3]


async def test_a_streamed_response_is_one_span_with_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPT_IN, GEN_AI)
    agent = agent_of([])
    turn = TracedTurn(lambda ctx: run(ctx, agent, "hello", event_stream_handler=Seen()), None)
    assert (await turn.end()).output == "all is well"
    chats = [span for span in turn.spans() if span.name.startswith("chat")]
    assert sum(names_of(chats).values()) == 2
    assert all(attributes_of(chat)["gen_ai.usage.output_tokens"] > 0 for chat in chats)
