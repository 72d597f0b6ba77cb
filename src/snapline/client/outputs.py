"""Reading outputs at the coordinator: page after page, over every change of leaders, each output once.

`OutputReading` decides without I/O: what to ask next, and what a failure means. A reader's place is its cursor alone. A page that is lost
on the way is requested again with the cursor of the last one that came: so nothing comes twice, and nothing is left out.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.reading import MessageReader, Output, OutputsReverted
from snapline.client.giving import check_timeout
from snapline.errors import CoordinatorUnavailableError, DamagedDataError, StoreError, UnknownOutcomeError, UsageError
from snapline.ids import check_id
from snapline.messages.coordinator_client import CoordinatorClient, patiently
from snapline.messages.outputs import ReadOutputsReply, ReleasedOutputs
from snapline.messages.payloads import split_message
from snapline.storage.outputs.names import parse_cursor

WAIT_S = 10.0
"""Longest wait of a call for new outputs, if it is wanted; then the next call is made."""

CALL_S = 10.0
"""Time limit of a call beyond its wait; then it is made again."""

PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
"""Pause after a failure, doubled after each further one: an election takes a second or two."""

AHEAD_BYTES_MAX = 4 * 1024 * 1024
"""Size of a page above which a reader holds no other one next to it: such a page holds an output of nearly that size."""

_PASSING = (CoordinatorUnavailableError, UnknownOutcomeError, StoreError)
"""Errors that may be over in a moment, unless it is damage."""


class OutputReading:
    """State of one reader.

    Attributes:
        cursor: where it is.
        is_over: nothing comes any more.
    """

    def __init__(self, cursor: str, *, is_following: bool, patience_s: float) -> None:
        self.cursor = cursor
        self.is_over = False
        self._is_following = is_following
        self._patience_s = patience_s
        self._failures = 0
        self._failing_since_s = 0.0

    @property
    def wait_s(self) -> float:
        """Longest time that the next call may wait."""
        return WAIT_S if self._is_following else 0.0

    def on_page(self, page: ReadOutputsReply) -> tuple[ReleasedOutputs, ...]:
        """Take a page; return what is new in it."""
        is_end = page.cursor == self.cursor and not page.releases
        self.is_over = page.is_over or (is_end and not self._is_following)
        self.cursor = page.cursor
        self._failures = 0
        return page.releases

    def on_failure(self, now_s: float, error: Exception) -> float:
        """Return how long to wait before the call is made again; raise the error if that is of no use."""
        if not isinstance(error, _PASSING) or isinstance(error, DamagedDataError):
            raise error
        if not self._failures:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s >= self._patience_s:
            raise error
        self._failures += 1
        pause_s: float = PAUSE_S * 2 ** min(self._failures - 1, 10)
        return min(PAUSE_S_MAX, pause_s)


class OutputsRequest(msgspec.Struct, frozen=True):
    """Arguments of `Client.outputs`; see there."""

    topic: str
    after: str
    consumer: str
    message_type: Any
    follow: bool
    timeout_s: float


async def wanted_outputs(
    coordinator: Callable[[], CoordinatorClient], wanted: OutputsRequest
) -> AsyncGenerator[Output | OutputsReverted, None]:
    """Yield the requested outputs; see `Client.outputs`."""
    check_timeout(wanted.timeout_s)
    parse_cursor(wanted.after)
    if wanted.topic:
        check_id(wanted.topic.removeprefix("@"), "topic")
    reader = MessageReader(wanted.message_type, "message_type", "the output")
    start = await patiently(lambda: start_of(coordinator(), wanted.after, wanted.consumer))
    reading = OutputReading(start, is_following=wanted.follow, patience_s=wanted.timeout_s)
    async with contextlib.aclosing(follow_outputs(coordinator, wanted.topic, reading, reader)) as found:
        async for each in found:
            yield each


async def follow_outputs(
    coordinator: Callable[[], CoordinatorClient], topic: str, reading: OutputReading, reader: MessageReader
) -> AsyncGenerator[Output | OutputsReverted, None]:
    """Yield outputs as they come; `coordinator` is called for each request, for connections are renewed.

    The next page is requested while the program takes this one, unless this one is large: so it is there soon, and the end of the fleet is heard.
    """
    coming = asyncio.create_task(_next_page(coordinator, topic, reading))
    try:
        while True:
            releases = reading.on_page(await coming)
            is_over, is_large = reading.is_over, _size_bytes(releases) > AHEAD_BYTES_MAX
            if not is_over and not is_large:
                coming = asyncio.create_task(_next_page(coordinator, topic, reading))
            for release in releases:
                for found in items_of(release, reader):
                    yield found
            if is_over:
                return
            if is_large:
                coming = asyncio.create_task(_next_page(coordinator, topic, reading))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _size_bytes(releases: Sequence[ReleasedOutputs]) -> int:
    return sum([len(each.payload) for release in releases for each in release.outputs])


async def _next_page(
    coordinator: Callable[[], CoordinatorClient], topic: str, reading: OutputReading
) -> ReadOutputsReply:
    while True:
        try:
            return await coordinator().read_outputs(reading.cursor, topic, reading.wait_s, CALL_S)
        except Exception as error:
            await asyncio.sleep(reading.on_failure(asyncio.get_running_loop().time(), error))


async def start_of(coordinator: CoordinatorClient, after: str, consumer: str) -> str:
    """Return the cursor to begin with. A missing consumer is created: from now on its outputs are kept for it.

    Raises:
        UsageError: both say it.
    """
    if after and consumer:
        raise UsageError("after and consumer both say where to begin: give one of them")
    return await coordinator.move_consumer(consumer) if consumer else after


def items_of(release: ReleasedOutputs, reader: MessageReader) -> "Iterator[Output | OutputsReverted]":
    """Yield the items of a release for programs, each made on demand: messages take up to 30 times the space of their bytes. EncodingError."""
    if release.undone is not None:
        yield OutputsReverted(release.undone.after, release.undone.epochs, release.undone.cursor)
    for each in release.outputs:
        name, body = split_message(each.payload)
        message = reader.read(name, body)
        yield Output(each.agent, each.number, each.topic, message, each.cursor, release.epoch, each.emitted_ns)
