"""Streamed runs of OpenAI's agents: a response is streamed once, and a rerun gives the turn the same events."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.adapters.turns import Turn

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: make test-adapters")

from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from tests.adapters.openai_runs.desk import CONFIG
from tests.adapters.traced_turns import TracedTurn, attributes_of, names_of

from snapline.adapters import openai_agent_runs
from snapline.adapters.openai_agent_runs import run
from snapline.telemetry.model_requests import GEN_AI, OPT_IN

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(240)]

ANSWER = "a refund is on its way"


@function_tool
def look_up(order: int) -> str:
    """Look up an order."""
    return f"order {order} is late"


def agent_of(script: Sequence[Any]) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel(script)
    return Agent("clerk", model=model, tools=[look_up]), model


def script() -> list[Any]:
    return [[function_call("look_up", json.dumps({"order": 1}), call_id="c")], [assistant_message(ANSWER)]]


def turn_of(agent: Agent[Any], seen: list[Any], journal: Any = None) -> Turn:
    async def on_event(event: Any) -> None:
        seen.append(event)

    return Turn(lambda ctx: run(ctx, agent, "hello", run_config=CONFIG, on_event=on_event), journal)


def names_of_events(seen: list[Any]) -> list[str]:
    return [getattr(event, "name", "") or getattr(getattr(event, "data", None), "type", "") for event in seen]


def text_of(seen: list[Any]) -> str:
    return "".join(x.data.delta for x in seen if getattr(getattr(x, "data", None), "type", "").endswith("text.delta"))


def test_a_rerun_asks_nobody_and_gives_the_same_events() -> None:
    agent, model = agent_of(script())
    seen: list[Any] = []
    turn = turn_of(agent, seen)
    assert turn.end().final_output == ANSWER and len(model.calls) == 2
    assert turn.asked == [["step clerk/model_stream"], ["step clerk/look_up"], ["step clerk/model_stream"]]
    names = names_of_events(seen)
    assert names.count("response.completed") == 2 and text_of(seen) == ANSWER
    assert names.index("tool_called") < names.index("tool_output") < names.index("message_output_created")
    again: list[Any] = []
    rerun = turn_of(agent_of([])[0], again, turn.journal)
    assert rerun.end().final_output == ANSWER and rerun.asked == []
    assert names_of_events(again) == names and text_of(again) == ANSWER


def test_pieces_of_one_text_are_one_event() -> None:
    def piece(text: str, number: int, **more: Any) -> dict[str, Any]:
        return {"type": "text.delta", "item_id": "m", "delta": text, "sequence_number": number, **more}

    events = [piece("a", 1), piece("b", 2), piece("c", 3, item_id="n"), {"type": "done"}, piece("d", 5)]
    merged = openai_agent_runs._merged(events)
    assert [event.get("delta") for event in merged] == ["ab", "c", None, "d"]


async def test_a_streamed_response_is_one_span_with_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPT_IN, GEN_AI)

    async def on_event(event: Any) -> None: ...

    agent, _ = agent_of(script())
    turn = TracedTurn(lambda ctx: run(ctx, agent, "hello", run_config=CONFIG, on_event=on_event), None)
    assert (await turn.end()).final_output == ANSWER
    spans = turn.spans()
    assert names_of(spans)["chat clerk"] == 2 and names_of(spans)["execute_tool look_up"] == 1
    assert all("gen_ai.usage.input_tokens" in attributes_of(x) for x in spans if x.name == "chat clerk")
