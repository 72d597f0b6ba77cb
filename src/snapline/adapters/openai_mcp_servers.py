"""Makes the requests of OpenAI's agents to MCP servers as steps and effects of the turn that runs the agents.

A connection to an MCP server belongs to one task and event loop, which a turn outlives. So steps connect: the first of those that overlap
opens the connection, the others share it, and the last one closes it. After an error, steps that begin wait for a new connection.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from agents.mcp import MCPServer
from mcp.types import CallToolResult, Tool
from pydantic import TypeAdapter

from snapline.adapters.rounds import current_rounds
from snapline.adapters.sdk_requests import StepOptions, effect_key, make_request
from snapline.errors import UsageError
from snapline.telemetry.model_requests import EXECUTE_TOOL, SdkRequest

KEY = "snapline/effect-key"
"""Field of a request's `_meta` that tells an MCP server the idempotency key of an effect."""

_tools = TypeAdapter(list[Tool])


class _Connection:
    """Open connection to an MCP server, held by a task of its own.

    Attributes:
        users: number of steps that use the connection.
        is_closing: whether no further step may use the connection.
    """

    def __init__(self, server: MCPServer) -> None:
        self.users = 0
        self.is_closing = False
        self._is_free = asyncio.Event()
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(server))

    async def _hold(self, server: MCPServer) -> None:
        try:
            await server.connect()
        except BaseException as error:  # a cancelled connection must not keep steps waiting
            self._is_open.set_exception(error if isinstance(error, Exception) else ConnectionError(repr(error)))
            return
        self._is_open.set_result(None)
        await self._is_free.wait()
        await server.cleanup()

    async def enter(self) -> None:
        """Begin to use the connection. Raise the error if it cannot be opened."""
        self.users += 1
        await asyncio.shield(self._is_open)

    async def leave(self) -> None:
        """End the use of the connection. The last user closes it."""
        self.users -= 1
        if not self.users:
            self.is_closing = True
            self._is_free.set()
            await self.closed()

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.wait([self._task])


_connections: WeakKeyDictionary[MCPServer, _Connection] = WeakKeyDictionary()
"""Newest connection to each server. Only the loop of this process's requests uses this variable."""


@asynccontextmanager
async def _connected(server: MCPServer) -> AsyncIterator[None]:
    while (connection := _connections.get(server)) is not None and connection.is_closing:
        await connection.closed()
        if _connections.get(server) is connection:
            del _connections[server]
    if connection is None:
        connection = _connections[server] = _Connection(server)
    try:
        await connection.enter()
        yield
    except BaseException:
        connection.is_closing = True
        raise
    finally:
        await connection.leave()


class StepServer(MCPServer):
    """MCP server of one agent whose requests are steps of the turn that runs the agent.

    A run lists a server's tools once for each agent.
    """

    def __init__(self, inner: MCPServer, owner: str, *, effects: Collection[str], options: StepOptions) -> None:
        self.__dict__.update(inner.__dict__)  # guardrails, approvals and other settings, which the SDK reads
        self._inner = inner
        self._owner = owner
        self._effects = effects
        self._options = options
        self._listed: list[Tool] | None = None

    @property
    def name(self) -> str:
        """Name of the server. It is part of the names of steps, so that it must not depend on the machine."""
        return self._inner.name

    async def connect(self) -> None:
        """Do nothing, since steps connect."""

    async def cleanup(self) -> None:
        """Do nothing, since steps close their connections."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        if self._listed is None:

            async def body() -> object:
                async with _connected(self._inner):
                    return _tools.dump_python(await self._inner.list_tools(run_context, agent), mode="json")

            found = await self._make("list_tools", body, (), self._options, None)
            self._listed = _tools.validate_python(found)
        return self._listed

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        async def body() -> object:
            key = {KEY: effect_key()} if effect_key() else {}
            async with _connected(self._inner):
                result = await self._inner.call_tool(tool_name, arguments, {**(meta or {}), **key} or None)
            return result.model_dump(mode="json")

        options: StepOptions = {**self._options, "effect": tool_name in self._effects}
        request = SdkRequest(EXECUTE_TOOL, tool_name, self._owner, {"gen_ai.tool.type": "function"})
        return CallToolResult.model_validate(await self._make(tool_name, body, (arguments,), options, request))

    async def _make(
        self, name: str, body: Any, asked: tuple[Any, ...], options: StepOptions, request: SdkRequest | None
    ) -> Any:
        rounds = current_rounds()
        if rounds is None:
            return await body()
        name = f"{self._owner}/{self.name}.{name}"
        return await make_request(rounds, name, body, options, arguments=asked, request=request)

    async def list_prompts(self) -> Any:
        raise self._unsupported()

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        raise self._unsupported()

    def _unsupported(self) -> UsageError:
        return UsageError(f"prompts of MCP server {self.name!r} cannot be read in a durable turn: read them in a step")
