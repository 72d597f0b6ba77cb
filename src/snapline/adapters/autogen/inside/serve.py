"""AutoGen's process: runs turns for the host that started it, and ends with the host."""

import asyncio
import importlib
import inspect
import os
import socket
import traceback

from snapline.adapters.autogen.inside import turn_random
from snapline.adapters.autogen.inside.live_turn import track_tasks
from snapline.adapters.autogen.inside.runtime import SnaplineRuntime
from snapline.adapters.autogen.inside.serving import serve_frames
from snapline.adapters.autogen.pipe_protocol import to_bytes


def serve_program(program: str) -> None:
    """Serve `module:function` through the socket that is this process's standard input and output."""
    turn_random.replace_sources()
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)  # redirects the program's prints to stderr, away from the frames
    asyncio.run(_serve(program, channel))


async def _serve(program: str, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    try:
        runtime = await _load(program)
    except BaseException as error:
        # The host logs one sentence; the traceback is in this process's own log.
        traceback.print_exc()
        writer.write(to_bytes({"hello": f"{program} cannot be registered: {type(error).__name__}: {error}"}))
        await writer.drain()
        return
    track_tasks(asyncio.get_running_loop())
    writer.write(to_bytes({"hello": ""}))
    await serve_frames(runtime.serve_host(), reader, writer)
    os._exit(0)  # ends running handlers at once: without the host their turns are void


async def _load(program: str) -> SnaplineRuntime:
    """Run the program's registration function; a function without parameters creates its own runtime."""
    module, _, name = program.partition(":")
    function = getattr(importlib.import_module(module), name)
    runtime = None if not inspect.signature(function).parameters else SnaplineRuntime()
    found = function() if runtime is None else function(runtime)
    made = await found if inspect.isawaitable(found) else found
    if not isinstance(runtime or made, SnaplineRuntime):
        raise TypeError(f"it returned a {type(made).__name__}: let it take a runtime, or return a SnaplineRuntime")
    return runtime or made
