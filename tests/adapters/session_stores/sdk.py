"""A model for OpenAI's Agents SDK that answers from a list, without a network."""

from collections.abc import Iterable
from typing import Any

import pytest

REASON = "needs openai-agents: make test-adapters"

pytest.importorskip("agents", reason=REASON)

from agents import Agent, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)


class Scripted(Model):
    """Calls the tool `pay` for each invoice that the conversation has no result of, then says that all is paid."""

    def __init__(self, invoices: Iterable[str]) -> None:
        self._invoices = list(invoices)

    async def get_response(self, system_instructions: Any, input: Any, *arguments: Any, **more: Any) -> ModelResponse:
        done = [
            item["output"] for item in input if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]
        left = [invoice for invoice in self._invoices if invoice not in done]
        made: Any
        if left:
            made = ResponseFunctionToolCall(
                arguments=f'{{"invoice": "{left[0]}"}}', call_id=f"call-{left[0]}", name="pay", type="function_call"
            )
        else:
            text = ResponseOutputText(annotations=[], text=f"paid {len(done)}", type="output_text")
            made = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[made], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **more: Any) -> Any:
        raise TypeError("not asked for here")


def cashier(invoices: Iterable[str]) -> Agent[Any]:
    """An agent that pays."""

    @function_tool
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        return invoice

    return Agent(name="cashier", model=Scripted(invoices), tools=[pay])
