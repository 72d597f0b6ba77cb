"""A support team of three agents that are written with Pydantic AI. They answer complaints, refund money, and ask people before large refunds.

The lead looks at an order, asks the auditor and the inspector at the same time, and then refunds the price. Refunds
above 50 wait for a person. Without `model`, scripted models answer, so that the example needs no key and no network.

    python -m snapline.examples.payment_service payments.jsonl --port 8401
    snapline run snapline.examples.support_team:fleet --hosts 2 --arg service=http://127.0.0.1:8401 --arg complaints=3
    snapline approval list

Each answered complaint has cost one refund, however often hosts were killed.
"""

import functools
from typing import Any

import msgspec
import pydantic_ai
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import snapline
from snapline.adapters.pydantic_ai import SnaplineDurability, current_rounds, effect_key, run
from snapline.examples.payments import pay

ALONE_MOST = 50
"""Largest refund that no person needs to approve."""

OPINIONS = {"auditor": "Rule 3 applies.", "inspector": "The parcel was wet."}
"""What scripted models say."""


class Complaint(snapline.Message):
    """A customer's complaint about an order."""

    order: int


class Answer(snapline.Message):
    """An answer to a complaint."""

    order: int
    text: str


class Question(snapline.Message):
    """A question of the lead to another agent about an order."""

    order: int


class Opinion(snapline.Message):
    """An agent's answer to the lead's question."""

    text: str


class Settings(msgspec.Struct):
    """State of an agent that only answers questions. Empty models are scripted."""

    model: str


class Lead(msgspec.Struct):
    """State of the lead. `answers` contains the answer to each order's complaint."""

    model: str
    service: str
    complaints: int
    answers: dict[int, str] = {}


def price_of(order: int) -> int:
    return 1 + order * 37 % 90


@functools.cache
def lead_agent(model: str, service: str) -> pydantic_ai.Agent[int, str]:
    """Return the lead's agent of Pydantic AI. Its dependency is the order's number."""
    lead = pydantic_ai.Agent(
        model or FunctionModel(_lead_script),
        name="lead",
        deps_type=int,
        capabilities=[SnaplineDurability(tool={"retries": 3})],
        instructions="Look at the order, ask the auditor and the inspector, refund what is due, and answer.",
    )

    @lead.tool
    def look_up(ctx: pydantic_ai.RunContext[int]) -> int:
        """Return the price of the order."""
        return price_of(ctx.deps)

    @lead.tool(metadata={"snapline": False})
    async def ask_colleague(ctx: pydantic_ai.RunContext[int], name: str) -> str:
        """Ask the "auditor" or the "inspector" for an opinion on the order."""
        rounds = current_rounds()
        assert rounds is not None, "the lead runs in durable turns"
        opinion = await rounds.wait(lambda: rounds.ctx.call(name, Question(ctx.deps), Opinion))
        return opinion.text

    @lead.tool(metadata={"snapline": False})
    async def may_refund(ctx: pydantic_ai.RunContext[int], amount: int) -> bool:
        """Return whether the amount may be refunded. A person decides on large amounts."""
        if amount <= ALONE_MOST:
            return True
        rounds, details = current_rounds(), {"order": ctx.deps, "amount": amount}
        assert rounds is not None, "the lead runs in durable turns"
        approval = await rounds.wait(lambda: rounds.ctx.approval(f"refund above {ALONE_MOST}", details))
        return approval.is_granted

    @lead.tool(metadata={"snapline": {"effect": True}})
    def refund(ctx: pydantic_ai.RunContext[int], amount: int) -> str:
        """Refund an amount to the customer."""
        receipt = pay(service, f"order-{ctx.deps}", amount, key=effect_key())
        return f"receipt {receipt.number}"

    return lead


@functools.cache
def colleague_agent(name: str, model: str) -> pydantic_ai.Agent[None, str]:
    """Return an agent of Pydantic AI without tools. `name` is "auditor" or "inspector"."""
    instructions = f"You are the {name} of a support team. Give your opinion on the order in one sentence."
    return pydantic_ai.Agent(
        model or FunctionModel(lambda messages, info: ModelResponse([TextPart(OPINIONS[name])])),
        name=name,
        capabilities=[SnaplineDurability()],
        instructions=instructions,
    )


class SupportLead(snapline.Agent):
    """The agent that answers complaints."""

    state: Lead

    async def on_start(self, ctx: snapline.Context) -> None:
        for order in range(1, self.state.complaints + 1):
            ctx.send(ctx.agent, Complaint(order))

    @snapline.handler(durable=True)
    async def on_complaint(self, message: Complaint, ctx: snapline.Context) -> None:
        state, order = self.state, message.order
        agent = lead_agent(state.model, state.service)
        result = await run(ctx, agent, f"I am not content with order {order}.", deps=order)
        state.answers[order] = result.output
        if ctx.sender != ctx.agent:
            ctx.reply(Answer(order, result.output))


class Colleague(snapline.Agent):
    """An agent that answers the lead's questions."""

    state: Settings

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        agent = colleague_agent(ctx.agent, self.state.model)
        result = await run(ctx, agent, f"What do you think of order {message.order}?")
        ctx.reply(Opinion(result.output))


def has_answered(count: int, cut: snapline.Cut) -> bool:
    state = cut.states["lead"]
    return isinstance(state, Lead) and len(state.answers) == count


def fleet(
    service: str, model: str = "", complaints: str = "0", period: str = "0.2", recovery: str = "global"
) -> snapline.Fleet:
    """Return the fleet. `service` is the URL of the payment service, and `model` is a model of Pydantic AI, such as "openai:gpt-5". If
    `complaints` is 0, they come from outside the fleet."""
    count = int(complaints)
    return snapline.Fleet(
        "support",
        agents={
            "lead": SupportLead(Lead(model, service, count)),
            "auditor": Colleague(Settings(model)),
            "inspector": Colleague(Settings(model)),
        },
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=functools.partial(has_answered, count) if count else None,
        recovery=recovery,
        keep_answers=True,
    )


def _lead_script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    found = _results_of(messages)
    match len(messages):
        case 1:
            colleagues = [ToolCallPart("ask_colleague", {"name": name}, name) for name in OPINIONS]
            return ModelResponse([ToolCallPart("look_up", {}, "price"), *colleagues])
        case 3:
            return ModelResponse([ToolCallPart("may_refund", {"amount": found["price"]}, "may")])
        case 5 if found["may"]:
            return ModelResponse([ToolCallPart("refund", {"amount": found["price"]}, "paid")])
        case _:
            outcome = f"We have refunded {found['price']}" if "paid" in found else "We cannot refund this"
            return ModelResponse([TextPart(f"{outcome}. {found['auditor']} {found['inspector']}")])


def _results_of(messages: list[ModelMessage]) -> dict[str, Any]:
    """Map the id of each tool call to its result."""
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}
