"""AutoGen's process: runs turns for the host that has started it, and ends with it."""

import asyncio
import functools
import importlib
import inspect
import os
import socket
import traceback
from typing import Any

from snapline.adapters.autogen.frames import read_frame, to_bytes
from snapline.adapters.autogen.inside import turn_chance
from snapline.adapters.autogen.inside.live_turn import track_tasks
from snapline.adapters.autogen.inside.runtime import SnaplineRuntime
from snapline.adapters.autogen.inside.turns import TurnRunner

Frame = dict[str, Any]


def serve_program(program: str) -> None:
    """Serve `module:function` through the socket that is this process's input and output."""
    turn_chance.replace_sources()
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)  # what a program prints is no frame
    asyncio.run(_serve(program, channel))


async def _serve(program: str, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    try:
        runtime = await _load(program)
    except BaseException as error:
        # A sentence for the host's log; the traceback is in this process's own.
        traceback.print_exc()
        writer.write(to_bytes({"hello": f"{program} cannot be registered: {type(error).__name__}: {error}"}))
        await writer.drain()
        return
    track_tasks(asyncio.get_running_loop())
    writer.write(to_bytes({"hello": ""}))
    await serve_frames(runtime.runner, reader, writer)
    os._exit(0)  # whatever an agent is in the middle of: its host is gone, and so is the turn


async def _load(program: str) -> SnaplineRuntime:
    """What the program registers; a function without arguments makes its own runtime."""
    module, _, name = program.partition(":")
    function = getattr(importlib.import_module(module), name)
    runtime = None if not inspect.signature(function).parameters else SnaplineRuntime()
    found = function() if runtime is None else function(runtime)
    made = await found if inspect.isawaitable(found) else found
    if not isinstance(runtime or made, SnaplineRuntime):
        raise TypeError(f"it returned a {type(made).__name__}: let it take a runtime, or return a SnaplineRuntime")
    return runtime or made


async def serve_frames(runner: TurnRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Do what a host asks, until it is gone. Turns of several agents go on beside each other."""
    under_way: dict[str, asyncio.Task[None]] = {}
    while (frame := await read_frame(reader)) is not None:
        key = frame["turn"]
        earlier = under_way.pop(key, None)
        if frame["do"] == "drop":
            if earlier is not None:
                earlier.cancel()
            runner.drop(frame)
            continue
        task = asyncio.get_running_loop().create_task(_answer(runner, frame, writer))
        under_way[key] = task
        task.add_done_callback(functools.partial(_over, under_way, key))


def _over(under_way: dict[str, asyncio.Task[None]], key: str, task: asyncio.Task[None]) -> None:
    if under_way.get(key) is task:
        del under_way[key]


async def _answer(runner: TurnRunner, frame: Frame, writer: asyncio.StreamWriter) -> None:
    if frame["do"] == "begin":
        found: Frame | None = await runner.begin(frame)
    else:
        found = await runner.go_on(frame)
    try:
        answer = to_bytes({"number": frame["number"], "segment": found})
    except ValueError as error:
        answer = to_bytes({"number": frame["number"], "failed": str(error)})
    writer.write(answer)
    await writer.drain()
