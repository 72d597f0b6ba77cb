"""Serve the requests of one host, frame by frame."""

import asyncio
import functools
from typing import Any

from snapline.adapters.autogen.inside.turns import TurnRunner
from snapline.adapters.autogen.pipe_protocol import read_frame, to_bytes

_Frame = dict[str, Any]


async def serve_frames(runner: TurnRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a host's requests until it disconnects. Turns of different agents run in parallel."""
    under_way: dict[str, asyncio.Task[None]] = {}
    turns_seen: dict[str, None] = {}
    while (frame := await read_frame(reader)) is not None:
        key = frame["turn"]
        turns_seen[key] = None
        earlier = under_way.pop(key, None)
        if frame["do"] == "drop":
            if earlier is not None:
                earlier.cancel()
            runner.drop(frame)
            continue
        task = asyncio.get_running_loop().create_task(_answer(runner, frame, writer))
        under_way[key] = task
        task.add_done_callback(functools.partial(_over, under_way, key))
    for key in turns_seen:
        if key in under_way:
            under_way[key].cancel()
        runner.drop({"turn": key})


def _over(under_way: dict[str, asyncio.Task[None]], key: str, task: asyncio.Task[None]) -> None:
    if under_way.get(key) is task:
        del under_way[key]


async def _answer(runner: TurnRunner, frame: _Frame, writer: asyncio.StreamWriter) -> None:
    if frame["do"] == "begin":
        segment: _Frame | None = await runner.begin(frame)
    else:
        segment = await runner.go_on(frame)
    try:
        reply = to_bytes({"number": frame["number"], "segment": segment})
    except ValueError as error:
        reply = to_bytes({"number": frame["number"], "failed": str(error)})
    writer.write(reply)
    await writer.drain()
