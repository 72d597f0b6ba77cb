"""A front desk that hands complaints to a clerk, both agents of the OpenAI Agents SDK. Models and tools say outside that they are asked."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from agents import Agent, RunConfig, function_tool
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage

import snapline
from snapline.adapters.openai_agent_runs import current_rounds, effect_key, run

CONFIG = RunConfig(tracing_disabled=True)


def note(notes: str, text: str) -> None:
    with Path(notes).open("a") as file:
        file.write(f"{text}\n")


class Answering(Model):
    """A model whose answer follows from what it is given. `answers`: for the number of tool outputs so far."""

    def __init__(self, notes: str, name: str, answers: dict[int, list[Any]]) -> None:
        self._notes, self._name, self._answers = notes, name, answers

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        outputs = [
            item for item in options["input"] if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]
        note(self._notes, f"{self._name} {len(outputs)}")
        answer = self._answers[len(outputs)]
        made = [each([item["output"] for item in outputs]) if callable(each) else each for each in answer]
        return ModelResponse(output=made, usage=Usage(requests=1, input_tokens=7, output_tokens=3), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def tools_of(notes: str) -> list[Any]:
    @function_tool
    def look_up(order: int) -> str:
        """Look up an order."""
        note(notes, f"look {order}")
        return f"order {order} is late"

    @function_tool
    async def ask_boss(text: str) -> str:
        """Ask the boss."""
        rounds = current_rounds()
        assert rounds is not None
        answer = await rounds.wait(lambda: rounds.ctx.call("boss", Question(text), Told))
        return answer.text

    @function_tool
    def refund(amount: int) -> str:
        """Pay back."""
        note(notes, f"refund {amount} {effect_key()}")
        return f"paid {amount}"

    return [look_up, ask_boss, refund]


def said(outputs: list[str]) -> Any:
    return assistant_message("; ".join(outputs[1:]))  # the first is that of the handoff


def front_of(notes: str) -> Agent[Any]:
    def call(name: str, **arguments: Any) -> Any:
        return function_call(name, json.dumps(arguments), call_id=f"{name}-{sorted(arguments.items())}")

    clerk_answers = {
        1: [call("look_up", order=1), call("look_up", order=2), call("ask_boss", text="may I?")],
        4: [call("refund", amount=30)],
        5: [said],
    }
    clerk: Agent[Any] = Agent("clerk", model=Answering(notes, "clerk", clerk_answers), tools=tools_of(notes))
    hand_off = {0: [call("transfer_to_clerk")]}
    return Agent("front", model=Answering(notes, "front", hand_off), handoffs=[clerk])


EXPECTED = "order 1 is late; order 2 is late; yes; paid 30"


class Question(snapline.Message):
    text: str


class Told(snapline.Message):
    text: str


class Book(msgspec.Struct):
    notes: str
    answers: list[str] = []


class Desk(snapline.Agent):
    state: Book

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Question("where is it?"))

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        front, pays, asks = front_of(self.state.notes), ("refund",), ("ask_boss",)
        result = await run(ctx, front, message.text, run_config=CONFIG, effects=pays, in_turn=asks)
        self.state.answers.append(result.final_output)


class Boss(snapline.Agent):
    state: Book

    @snapline.handler
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        self.state.answers.append(message.text)
        ctx.reply(Told("yes"))


def is_over(cut: snapline.Cut) -> bool:
    state = cut.states["desk"]
    assert isinstance(state, Book)
    return bool(state.answers)


def fleet(notes: str, recovery: str = "global") -> snapline.Fleet:
    return snapline.Fleet(
        "desk",
        agents={"desk": lambda: Desk(Book(notes)), "boss": lambda: Boss(Book(notes))},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=is_over,
        recovery=recovery,
    )
