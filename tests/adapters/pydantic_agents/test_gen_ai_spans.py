"""Spans and token counts of Pydantic AI's agents: each request once, however often its turn is run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.adapters.pydantic_agents import team
from tests.adapters.traced_turns import TracedTurn, attributes_of, names_of, parents_of, tokens

from snapline.adapters.pydantic_ai import SnaplineDurability, run
from snapline.telemetry.model_requests import GEN_AI, OPT_IN

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]

MODEL = "function:answer:"
NAMES = Counter(
    {
        "turn Ask": 1,
        "invoke_agent boss": 1,
        f"chat {MODEL}": 3,
        "execute_tool look": 3,
        "execute_tool pay": 1,
    }
)
PROMPT = "where is the treasure?"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OPT_IN, f"http, {GEN_AI}")
    path = tmp_path / "notes"
    path.touch()
    return path


def turn_of(notes: Path, journal: Any = None) -> TracedTurn:
    boss = team.boss_of(str(notes))
    return TracedTurn(lambda ctx: run(ctx, boss, PROMPT), team.Report("the second"), journal)


async def test_a_request_is_one_span_below_the_run_of_its_agent(notes: Path) -> None:
    turn, before = turn_of(notes), tokens()
    assert (await turn.end()).output == team.EXPECTED
    spans = turn.spans()
    assert names_of(spans) == NAMES
    of_run = {"invoke_agent boss"}
    assert parents_of(spans) == {
        "turn Ask": {"caller"},
        "invoke_agent boss": {"turn Ask"},
        f"chat {MODEL}": of_run,
        "execute_tool look": of_run,
        "execute_tool pay": of_run,
    }
    chats = [attributes_of(span) for span in spans if span.name.startswith("chat")]
    sums = {kind: sum(chat[f"gen_ai.usage.{kind}_tokens"] for chat in chats) for kind in ("input", "output")}
    assert tokens() - before == {("boss", MODEL, kind): count for kind, count in sums.items()} and sums["input"] > 50
    assert all(chat["gen_ai.operation.name"] == "chat" and chat["gen_ai.request.model"] == MODEL for chat in chats)
    assert all(chat["gen_ai.provider.name"] == "function" and chat["gen_ai.agent.name"] == "boss" for chat in chats)
    (pay,) = [attributes_of(span) for span in spans if span.name == "execute_tool pay"]
    assert pay == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.name": "boss",
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "pay",
        "snapline.step": "boss__function_toolset__<agent>.call_tool:pay",
    }
    told = " ".join(str(attributes_of(span).values()) for span in spans)
    assert PROMPT not in told and "is fine" not in told and "paid" not in told


async def test_a_recovery_counts_no_request_and_no_token_again(notes: Path) -> None:
    whole, before = turn_of(notes), tokens()
    await whole.end()
    cost, runs = tokens() - before, set()
    for cut in range(1, len(whole.journal)):
        before, killed = tokens(), turn_of(notes)
        await killed.end(cut)
        left = killed.spans()
        assert not {"invoke_agent boss", "turn Ask"} & set(names_of(left)), (
            "the process that ends the turn exports them"
        )
        again = turn_of(notes, killed.journal)
        assert (await again.end()).output == team.EXPECTED
        spans = [*left, *again.spans()]
        assert names_of(spans) == NAMES and tokens() - before == cost
        assert parents_of(spans)[f"chat {MODEL}"] == {"invoke_agent boss"}, "also those of the killed process"
        runs |= {span.context.span_id for span in spans if span.name == "invoke_agent boss" and span.context}
    assert len(runs) == 1


async def test_recorded_answers_cost_nothing(notes: Path) -> None:
    whole = turn_of(notes)
    await whole.end()
    before, fork, asked = tokens(), turn_of(notes), notes.read_text()
    assert (await fork.end(answers=whole.answers())).output == team.EXPECTED
    assert tokens() == before and notes.read_text() == asked
    names = names_of(fork.spans())
    assert not [name for name in names if name.startswith(("chat", "execute_tool"))], names


async def test_without_the_option_spans_are_steps_and_tokens_are_counted(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPT_IN)
    turn, before = turn_of(notes), tokens()
    await turn.end()
    spans = turn.spans()
    assert names_of(spans) == {
        "turn Ask": 1,
        "step boss__model.request": 3,
        "step boss__function_toolset__<agent>.call_tool:look": 3,
        "effect boss__function_toolset__<agent>.call_tool:pay": 1,
    }
    assert not [name for span in spans for name in attributes_of(span) if "gen_ai" in name]
    assert {labels[:2] for labels in tokens() - before} == {("boss", MODEL)}


async def test_a_request_that_fails_names_its_error(notes: Path) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(529, "m", "overloaded")

    agent = Agent(FunctionModel(answer), name="r", capabilities=[SnaplineDurability()])
    turn, before = TracedTurn(lambda ctx: run(ctx, agent, PROMPT), None), tokens()
    await turn.end()
    chat, ran, _ = turn.spans()
    assert (chat.name, attributes_of(chat)["error.type"]) == (f"chat {MODEL}", "ModelHTTPError")
    assert (ran.name, attributes_of(ran)["error.type"]) == ("invoke_agent r", "StepFailedError")
    assert tokens() == before and "ModelHTTPError" in turn.error
