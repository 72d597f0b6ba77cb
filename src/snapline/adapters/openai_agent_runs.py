"""Runs agents of the OpenAI Agents SDK inside durable turns (`run`).

    clerk = agents.Agent("clerk", instructions="…", tools=[refund, look_up])

    class Clerk(snapline.Agent):
        @snapline.handler(durable=True)
        async def on_complaint(self, message: Complaint, ctx: snapline.Context) -> None:
            result = await run(ctx, clerk, message.text, effects=("refund",))
            ctx.reply(Answer(result.final_output))

Requests to models, function tools and MCP servers become steps of the turn, also those of agents to which the run is handed off. A recovery runs the
SDK's code again and finds their results in the turn's journal. Tools of one response run at the same time (`rounds.py`). Tools named in
`effects` are effects, which act under the key that `effect_key` returns. Tools named in `in_turn` run in the turn itself and may use it
(`current_rounds`). An agent that is used as a tool runs as one step.
"""

import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

from agents import (
    Agent,
    AgentOutputSchemaBase,
    FunctionTool,
    Handoff,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResult,
    RunResultStreaming,
    StreamEvent,
)
from agents.items import ModelResponse, TResponseStreamEvent
from agents.models.interface import Model, ModelProvider
from pydantic import BaseModel, TypeAdapter

from snapline.adapters.openai_mcp_servers import StepServer
from snapline.adapters.rounds import Rounds, current_rounds
from snapline.adapters.sdk_requests import StepOptions, digest_of_request, effect_key, make_request
from snapline.agent_runtime.context import Context
from snapline.errors import UsageError
from snapline.telemetry.model_requests import CHAT, EXECUTE_TOOL, Response, SdkRequest, following_run

__all__ = ["StepOptions", "current_rounds", "effect_key", "run"]

_responses = TypeAdapter(ModelResponse)


async def run(
    ctx: Context,
    agent: Agent[Any],
    given: Any,
    *,
    effects: Collection[str] = (),
    in_turn: Collection[str] = (),
    model: StepOptions | None = None,
    tool: StepOptions | None = None,
    run_config: RunConfig | None = None,
    on_event: Callable[[StreamEvent], Awaitable[None]] | None = None,
    **options: Any,
) -> RunResult | RunResultStreaming:
    """Run an agent of the OpenAI Agents SDK in this durable turn, and return its result.

    Args:
        given: input of the run, as for the SDK's `Runner.run`, which also takes `run_config` and the other options.
        effects: names of tools that are effects, also of tools of MCP servers.
        in_turn: names of function tools that run in the turn itself.
        model, tool: options of the steps that run requests to models and to tools.
        on_event: streams the run, and is called in the turn with its events, in order. A model's events come when its response is complete.
            A rerun of the turn repeats the calls.

    Raises:
        StepFailedError: A request to a model failed.
        UsageError: The turn is not durable, a name is that of no tool, or the agent waits for something outside of its tools and models.
    """
    team = _team_of(agent)
    names = {tool.name for each in team for tool in each.tools}
    _check(agent, names, in_turn)
    if not any(each.mcp_servers for each in team):
        _check(agent, names, effects)
    wrapping = _Wrapping(effects, in_turn, model or {}, tool or {})
    config = run_config or RunConfig()
    config = dataclasses.replace(config, model_provider=_StepModels(config.model_provider, wrapping))
    if isinstance(config.model, Model):
        config = dataclasses.replace(config, model=_StepModel(config.model, "model", wrapping))
    rounds = Rounds(ctx)

    async def main() -> RunResult | RunResultStreaming:
        with following_run(agent.name, rounds.now_ns):
            if not names.issuperset(effects):
                _check(agent, names | await wrapping.list_tools(team, options.get("context")), effects)
            copy = wrapping.agent(agent)
            if on_event is None:
                return await Runner.run(copy, given, run_config=config, **options)
            streamed = Runner.run_streamed(copy, given, run_config=config, **options)
            async for event in streamed.stream_events():
                await on_event(event)
            return streamed

    return await rounds.run(main)


def _check(agent: Agent[Any], names: Collection[str], given: Collection[str]) -> None:
    """Raise UsageError if a name is that of no tool."""
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UsageError(
            f"agent {agent.name!r} has no tool {unknown[0]!r}; its tools: {', '.join(sorted(names)) or 'none'}"
        )


def _team_of(agent: Agent[Any]) -> list[Agent[Any]]:
    """Return the agent and all agents to which it or they hand off directly."""
    found: list[Agent[Any]] = []
    open_agents = [agent]
    while open_agents:
        each = open_agents.pop()
        if all(each is not other for other in found):
            found.append(each)
            open_agents += [other for other in each.handoffs if isinstance(other, Agent)]
    return found


class _Wrapping:
    """Copies agents so that their requests are steps. Each agent has one copy, as agents may hand off to each other in circles.

    Attributes:
        model_options: options of the steps that run requests to models.
        asking: name of the agent that makes the next request to a model.
    """

    def __init__(
        self, effects: Collection[str], in_turn: Collection[str], model: StepOptions, tool: StepOptions
    ) -> None:
        self._effects = effects
        self._in_turn = in_turn
        self.model_options = model
        self.asking = ""
        self._tool_options = tool
        self._copies: dict[int, Agent[Any]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if id(agent) in self._copies:
            return self._copies[id(agent)]
        copy = self._copies[id(agent)] = agent.clone()
        if isinstance(agent.model, Model):
            copy.model = _StepModel(agent.model, agent.name, self)
        copy.get_system_prompt = self._announced(agent.name, copy.get_system_prompt)
        copy.tools = [self._tool(tool, agent.name) for tool in agent.tools]
        copy.mcp_servers = [
            StepServer(each, agent.name, effects=self._effects, options=self._tool_options)
            for each in agent.mcp_servers
        ]
        copy.handoffs = [self._handoff(each) for each in agent.handoffs]
        return copy

    async def list_tools(self, team: Collection[Agent[Any]], context: Any) -> set[str]:
        """Return the names of all tools of the team's MCP servers. `context` is the run's, for the servers' filters."""
        copies = [self.agent(each) for each in team]
        listed = [
            await server.list_tools(RunContextWrapper(context), each) for each in copies for server in each.mcp_servers
        ]
        return {tool.name for tools in listed for tool in tools}

    def _announced(self, agent: str, get_system_prompt: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Wrap the method that the SDK calls before each request of an agent to a model. The model is not told which agent asks."""

        async def announced(*arguments: Any) -> Any:
            self.asking = agent
            return await get_system_prompt(*arguments)

        return announced

    def _handoff(self, each: Any) -> Any:
        if isinstance(each, Agent):
            return self.agent(each)
        assert isinstance(each, Handoff)
        invoke = each.on_invoke_handoff

        async def invoked(context: Any, arguments: str) -> Any:
            return self.agent(await invoke(context, arguments))

        return dataclasses.replace(each, on_invoke_handoff=invoked)

    def _tool(self, tool: Any, owner: str) -> Any:
        if not isinstance(tool, FunctionTool) or tool.name in self._in_turn:
            return tool
        invoke, name = tool.on_invoke_tool, f"{owner}/{tool.name}"
        options: StepOptions = {**self._tool_options, "effect": tool.name in self._effects}

        async def invoked(context: Any, arguments: str) -> Any:
            rounds = current_rounds()
            if rounds is None:
                return await invoke(context, arguments)

            async def body() -> object:
                return _plain(await invoke(context, arguments))

            call = getattr(context, "tool_call_id", "")
            details = {"gen_ai.tool.type": "function", "gen_ai.tool.call.id": call}
            request = SdkRequest(EXECUTE_TOOL, tool.name, owner, details)
            return await make_request(rounds, name, body, options, arguments=(arguments, call), request=request)

        return dataclasses.replace(tool, on_invoke_tool=invoked)


def _plain(result: Any) -> object:
    """Return a tool's result as the SDK passes it to the model: text, or structured outputs as dictionaries."""
    if isinstance(result, list):
        return [_plain(each) for each in result]
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json")
    return result if isinstance(result, str | dict) else str(result)


def _response_of(result: Any) -> Response:
    usage = result["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Response(usage["input_tokens"], usage["output_tokens"], cached, id=result["response_id"] or "")


@functools.cache
def _events() -> TypeAdapter[Any]:
    """Return the type of a streamed response's events. Only streamed runs build this large type."""
    return TypeAdapter(TResponseStreamEvent)


def _merged(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of a response, with one event for each row of pieces of the same text. A journal would else hold one for each token."""
    found: list[dict[str, Any]] = []
    for event in events:
        piece, before = event.get("delta"), found[-1] if found else {}
        changing = ("delta", "sequence_number", "logprobs", "obfuscation")
        if isinstance(piece, str) and {**event, **dict.fromkeys(changing)} == {**before, **dict.fromkeys(changing)}:
            before["delta"] += piece
        else:
            found.append(event)
    return found


def _response_of_stream(events: Any) -> Response:
    response = events[-1]["response"]
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Response(usage["input_tokens"], usage["output_tokens"], cached, response["model"], response["id"])


def _asked(value: Any) -> object:
    """Return the part of an argument for a model that the model sees, as plain values."""
    if isinstance(value, list):
        return [_asked(each) for each in value]
    if isinstance(value, FunctionTool):
        return [value.name, value.description, value.params_json_schema]
    if isinstance(value, Handoff):
        return [value.tool_name, value.tool_description, value.input_json_schema]
    if isinstance(value, AgentOutputSchemaBase):
        return None if value.is_plain_text() else value.json_schema()
    return value if isinstance(value, str | dict | ModelSettings) else type(value).__qualname__


class _StepModels(ModelProvider):
    """Provider whose models make their requests as steps."""

    def __init__(self, inner: ModelProvider, wrapping: _Wrapping) -> None:
        self._inner = inner
        self._wrapping = wrapping

    def get_model(self, model_name: str | None) -> Model:
        return _StepModel(self._inner.get_model(model_name), model_name or "model", self._wrapping)


class _StepModel(Model):
    """Model whose requests are steps of the turn that runs the agent."""

    def __init__(self, inner: Model, name: str, wrapping: _Wrapping) -> None:
        self._inner = inner
        self._name = name
        self._wrapping = wrapping

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        rounds = current_rounds()
        if rounds is None:
            return await self._inner.get_response(*arguments, **options)

        async def body() -> object:
            response = await self._inner.get_response(*arguments, **options)
            return _responses.dump_python(response, mode="json")

        asked = (digest_of_request([_asked(each) for each in (*arguments, *options.values())]),)
        options_of_step, request = self._wrapping.model_options, self._request(_response_of)
        made = make_request(rounds, f"{self._name}/model", body, options_of_step, arguments=asked, request=request)
        return _responses.validate_python(await made)

    def _request(self, read: Callable[[Any], Response]) -> SdkRequest:
        model, kind = getattr(self._inner, "model", None), type(self._inner)
        provider = "openai" if kind.__module__.startswith("agents.models.openai") else kind.__qualname__
        name = model if isinstance(model, str) else self._name
        return SdkRequest(CHAT, name, self._wrapping.asking, {"gen_ai.provider.name": provider}, read)

    async def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        rounds = current_rounds()
        if rounds is None:
            async for event in self._inner.stream_response(*arguments, **options):
                yield event
            return

        async def body() -> object:
            stream = self._inner.stream_response(*arguments, **options)
            return _merged([_events().dump_python(event, mode="json") async for event in stream])

        asked = (digest_of_request([_asked(each) for each in (*arguments, *options.values())]),)
        name, request = f"{self._name}/model_stream", self._request(_response_of_stream)
        options_of_step = self._wrapping.model_options
        for event in await make_request(rounds, name, body, options_of_step, arguments=asked, request=request):
            yield _events().validate_python(event)
