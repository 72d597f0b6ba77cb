"""Runs agents of Pydantic AI inside durable turns (`SnaplineDurability`, `run`).

    researcher = pydantic_ai.Agent("openai:gpt-5", name="researcher", capabilities=[SnaplineDurability()])

    class Researcher(snapline.Agent):
        @snapline.handler(durable=True)
        async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
            result = await run(ctx, researcher, message.question)
            ctx.reply(Report(result.output))

Requests to models, tools and MCP servers become steps of the turn. A recovery runs the agent's code again and finds their results in the
turn's journal, so no finished request is paid twice. Tools of one response run at the same time (`rounds.py`). A tool with the metadata
`{"snapline": {"effect": True}}` becomes an effect: it is called when the request for it is durable, under the key that `effect_key` returns.
A tool with `{"snapline": False}` runs in the turn itself and may use it (`current_rounds`), for example to call another agent.

An answer belongs to what was asked: the conversation so far and the model's settings, without times and ids of runs. So an agent whose
prompt has changed takes no recorded answer (`snapline answers`), and a turn that began with the earlier prompt stands until its code is back.

Outside of `run`, the capability changes nothing.
"""

import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic_ai import _utils
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext

from snapline.adapters.rounds import Rounds, current_rounds, outside
from snapline.adapters.sdk_requests import StepOptions, digest_of_request, effect_key, make_request
from snapline.agent_runtime.context import Context
from snapline.errors import EncodingError
from snapline.telemetry.model_requests import CHAT, EXECUTE_TOOL, Response, SdkRequest, following_run

__all__ = ["SnaplineDurability", "StepOptions", "current_rounds", "effect_key", "run"]


async def run(ctx: Context, agent: AbstractAgent[Any, Any], prompt: Any = None, **options: Any) -> AgentRunResult[Any]:
    """Run an agent of Pydantic AI in this durable turn, and return its result. The arguments are those of the agent's method `run`. The
    agent needs a `SnaplineDurability`.

    Raises:
        StepFailedError: A request to the model failed, and the agent has not handled it.
        UsageError: The turn is not durable, or the agent waits for something outside of its tools and models.
    """

    async def main() -> AgentRunResult[Any]:
        with _utils.disable_threads():  # a thread's end would decide which requests are in one round
            return await agent.run(prompt, **options)

    return await Rounds(ctx).run(main)


@dataclass(init=False, kw_only=True)
class SnaplineDurability(BaseDurabilityCapability[AgentDepsT]):
    """Capability that lets an agent run in durable turns (`run`). It belongs into the agent's `capabilities`.

    Args:
        models: additional models by id, for runs with another model than the agent's.
        event_stream_handler: handler of the events of model responses. It runs inside the steps.
        name: name of the agent's steps. By default, the agent's name.
        model, tool: options of the steps that run requests to models and to tools. A tool's own options are in its metadata, under
            "snapline".
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="snapline",
        durable_unit_noun="step",
        durable_container_noun="durable turn",
        codec=JSON_CODEC,
        serialization_failure=lambda error: EncodingError(f"the turn's journal cannot keep this result: {error}"),
        unsupported_runtime_toolset_kinds=frozenset({"mcp", "dynamic"}),
        # Each step opens its own connection to an MCP server: the run would close a shared one in another event loop than that of the steps.
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-never", "dynamic": "enter-never"},
        tool_config_key="snapline",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options: StepOptions = model or {}
        self._tool_options: StepOptions = tool or {}

    @property
    def in_durable_context(self) -> bool:
        """Return whether a durable turn runs the agent."""
        return current_rounds() is not None

    def get_default_run_id(self) -> str | None:
        rounds = current_rounds()
        return None if rounds is None else str(rounds.ctx.uuid())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        rounds = current_rounds()
        return None if rounds is None else rounds.now()

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        rounds = current_rounds()
        if rounds is None:
            return await handler()
        with following_run(_name_of(ctx), rounds.now_ns):
            return await handler()

    def get_durable_operation_backend(self) -> DurableOperationBackend[StepOptions]:
        def tool_options(operation_id: DurableOperationId, tool: Any, tool_name: str) -> StepOptions | Literal[False]:
            found: StepOptions | Literal[False] = self._build_resolve_tool_config(self._tool_options)(tool, tool_name)
            return found

        options = RoleBasedOperationConfig[StepOptions](
            model=self._model_options,
            event=self._model_options,
            capability=self._tool_options,
            tool=self._tool_options,
            resolve_tool=tool_options,
        )
        return _StepBackend(agent_name=self.name, default_model_id=self.default_model_id, config=options)

    def _toolset_base_config(self, kind: Any) -> Any:
        return self._tool_options


class _StepBackend(JournalCallableOperationBackend[StepOptions]):
    """Runs an agent's requests as steps and effects of the turn."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        rounds = current_rounds()
        if rounds is None:
            return await body()
        context = outside()
        context.run(_utils._disable_threads.set, False)  # it was set for the run, and tools may use threads
        arguments, request = _arguments(cache_key), _request_of(operation_id, cache_key)
        return await make_request(rounds, name, body, config, arguments=arguments, request=request, context=context)


def _arguments(asked: tuple[object, ...]) -> tuple[object, ...]:
    """Return what identifies an operation: the arguments of a tool, and a digest of the conversation before it."""
    contexts = [each for each in asked if isinstance(each, RunContext)]
    parts = [each for each in asked if isinstance(each, str | list | dict | ModelRequestParameters)]
    has_messages = any(isinstance(each, list) for each in parts)
    conversation = [(each.tool_call_id, [] if has_messages else each.messages) for each in contexts]
    tools = [each for each in parts if isinstance(each, dict) and not has_messages]
    return *tools, digest_of_request([parts, conversation])


def _request_of(operation: DurableOperationId, asked: tuple[object, ...]) -> SdkRequest | None:
    """Return what to tell of an operation, or None if it goes neither to a model nor to a tool."""
    context = next((each for each in asked if isinstance(each, RunContext)), None)
    if context is None or not isinstance(operation, ModelRequestId | ToolsetCallToolId):
        return None
    if isinstance(operation, ModelRequestId):
        details = {"gen_ai.provider.name": context.model.system}
        return SdkRequest(CHAT, operation.model_name, _name_of(context), details, _response_of)
    details = {"gen_ai.tool.type": "function", "gen_ai.tool.call.id": context.tool_call_id or ""}
    return SdkRequest(EXECUTE_TOOL, str(asked[0]), _name_of(context), details)


def _name_of(context: RunContext[Any]) -> str:
    return (context.agent.name if context.agent is not None else None) or "agent"


def _response_of(result: Any) -> Response:
    usage, finish_reason = result["usage"], result["finish_reason"]
    return Response(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["cache_read_tokens"],
        result["model_name"] or "",
        result["provider_response_id"] or "",
        finish_reason or "",
    )


def _replace_clock() -> None:
    """Let messages of a run in a turn have the turn's time, unless this has already been done.

    With other times, a turn that is run again would end in another state. The agent's next turn would then start from another state, and
    make its requests anew.
    """
    if hasattr(_utils, "_snapline_now"):
        return
    clock = types.FunctionType(_utils.now_utc.__code__, vars(_utils))

    def now() -> datetime:
        rounds = current_rounds()
        found: datetime = clock() if rounds is None else rounds.now()
        return found

    _utils._snapline_now = now
    _utils.now_utc.__code__ = (lambda: _snapline_now()).__code__  # type: ignore[name-defined]  # noqa: F821


_replace_clock()
