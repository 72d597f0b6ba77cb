"""Spans and token counts of OpenAI's agents: each request once, however often its turn is run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: make test-adapters")

from agents import Agent, RunConfig
from agents.models.interface import Model, ModelProvider
from agents.testing import assistant_message
from tests.adapters.openai_runs import desk
from tests.adapters.traced_turns import TracedTurn, attributes_of, names_of, parents_of, tokens

from snapline.adapters.openai_agent_runs import run
from snapline.telemetry.model_requests import GEN_AI, OPT_IN

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(240)]

NAMES = Counter(
    {
        "turn Ask": 1,
        "invoke_agent front": 1,
        "chat front": 1,
        "chat clerk": 3,
        "execute_tool look_up": 2,
        "execute_tool refund": 1,
    }
)
OPTIONS: dict[str, Any] = {"effects": ("refund",), "in_turn": ("ask_boss",), "run_config": desk.CONFIG}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OPT_IN, GEN_AI)
    path = tmp_path / "notes"
    path.touch()
    return path


def turn_of(notes: Path, journal: Any = None) -> TracedTurn:
    front = desk.front_of(str(notes))
    return TracedTurn(lambda ctx: run(ctx, front, "where is it?", **OPTIONS), desk.Told("yes"), journal)


async def test_requests_of_all_agents_are_below_the_run(notes: Path) -> None:
    turn, before = turn_of(notes), tokens()
    assert (await turn.end()).final_output == desk.EXPECTED
    spans = turn.spans()
    assert names_of(spans) == NAMES
    parents = parents_of(spans)
    assert (parents.pop("turn Ask"), parents.pop("invoke_agent front")) == ({"caller"}, {"turn Ask"})
    assert all(parent == {"invoke_agent front"} for parent in parents.values())
    chats = [attributes_of(span) for span in spans if span.name == "chat clerk"]
    assert {(chat["gen_ai.agent.name"], chat["gen_ai.provider.name"]) for chat in chats} == {("clerk", "Answering")}
    assert {(chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) for chat in chats} == {(7, 3)}
    assert tokens() - before == {
        ("front", "front", "input"): 7,
        ("front", "front", "output"): 3,
        ("clerk", "clerk", "input"): 21,
        ("clerk", "clerk", "output"): 9,
    }
    (refund,) = [attributes_of(span) for span in spans if span.name == "execute_tool refund"]
    assert (refund["gen_ai.tool.call.id"], refund["snapline.step"]) == ("refund-[('amount', 30)]", "clerk/refund")
    told = " ".join(str(attributes_of(span).values()) for span in spans)
    assert "where is it?" not in told and "is late" not in told and "paid" not in told


async def test_a_recovery_counts_no_request_and_no_token_again(notes: Path) -> None:
    whole, before = turn_of(notes), tokens()
    await whole.end()
    cost = tokens() - before
    for cut in range(1, len(whole.journal)):
        before, killed = tokens(), turn_of(notes)
        await killed.end(cut)
        again = turn_of(notes, killed.journal)
        assert (await again.end()).final_output == desk.EXPECTED
        assert names_of([*killed.spans(), *again.spans()]) == NAMES and tokens() - before == cost


async def test_recorded_answers_cost_nothing(notes: Path) -> None:
    whole = turn_of(notes)
    await whole.end()
    before, fork = tokens(), turn_of(notes)
    assert (await fork.end(answers=whole.answers())).final_output == desk.EXPECTED
    assert tokens() == before
    assert not [name for name in names_of(fork.spans()) if name.startswith(("chat", "execute_tool"))]


class Named(Model):
    """A model that knows its name, as OpenAI's do."""

    def __init__(self, inner: Model) -> None:
        self.model = "gpt-9"
        self._inner = inner

    async def get_response(self, *arguments: Any, **options: Any) -> Any:
        return await self._inner.get_response(*arguments, **options)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


class OneModel(ModelProvider):
    def __init__(self, model: Model) -> None:
        self._model = model

    def get_model(self, model_name: str | None) -> Model:
        return self._model


async def test_a_model_of_a_provider_has_its_own_name_and_that_of_the_agent_that_asks(notes: Path) -> None:
    answers = {0: [assistant_message("hello")]}
    provider = OneModel(Named(desk.Answering(str(notes), "any", answers)))
    agent: Agent[Any] = Agent("greeter", model="gpt-9-alias")
    config = RunConfig(tracing_disabled=True, model_provider=provider)
    turn, before = TracedTurn(lambda ctx: run(ctx, agent, "hello", run_config=config), None), tokens()
    assert (await turn.end()).final_output == "hello"
    chat, _, _ = turn.spans()
    assert (chat.name, attributes_of(chat)["snapline.step"]) == ("chat gpt-9", "gpt-9-alias/model")
    assert {labels[:2] for labels in tokens() - before} == {("greeter", "gpt-9")}
