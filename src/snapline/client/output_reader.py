"""Reader of the fleet's outputs, which requests them from the coordinator page by page. Each output is read exactly once, even if the
leader changes.

`OutputReaderState` decides what to request next and how to handle a failure, without doing any I/O. A *cursor* is a reader's position in
the stream of outputs. If a page is lost, the reader requests it again with the last received cursor, so no output is repeated or skipped.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import MessageReader, Output, OutputsReverted
from snapline.client.sends_and_asks import check_timeout
from snapline.errors import CoordinatorUnavailableError, DamagedDataError, StoreError, UnknownOutcomeError, UsageError
from snapline.ids import check_id
from snapline.messages.answers import ReadOutputsReply, ReleasedOutputs
from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available
from snapline.messages.payloads import split_message
from snapline.storage.outputs.output_record import parse_cursor

WAIT_S = 10.0
"""Longest time in seconds that one call waits for new outputs. If none arrive, the reader makes the next call."""

CALL_S = 10.0
"""Time limit of a call in seconds, in addition to the wait for new outputs. After this limit the call is repeated."""

PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
"""Pause in seconds after the first failure, and its maximum. The pause doubles with each consecutive failure. For comparison, a leader
election takes a second or two."""

AHEAD_BYTES_MAX = 4 * 1024 * 1024
"""Page size in bytes above which a reader does not prefetch the next page. A page of this size holds an output that is nearly as large."""

_PASSING = (CoordinatorUnavailableError, UnknownOutcomeError, StoreError)
"""Errors that may be transient. DamagedDataError is a StoreError, but is never transient."""


class OutputReaderState:
    """State of one reader of outputs.

    Attributes:
        cursor: current position in the stream of outputs.
        is_over: whether all outputs have been read and no more will arrive.
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
        """Maximum time, in seconds, that the next call may wait for outputs."""
        return WAIT_S if self._is_following else 0.0

    def on_page(self, page: ReadOutputsReply) -> tuple[ReleasedOutputs, ...]:
        """Process a page. Return the outputs on that page."""
        is_end = page.cursor == self.cursor and not page.releases
        self.is_over = page.is_over or (is_end and not self._is_following)
        self.cursor = page.cursor
        self._failures = 0
        return page.releases

    def on_failure(self, now_s: float, error: Exception) -> float:
        """Return the pause, in seconds, before the failed call is repeated. Raise the error if it is permanent or if calls have been
        failing for too long."""
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
    """Arguments of `Client.outputs`, which are documented there."""

    topic: str
    after: str
    consumer: str
    message_type: Any
    follow: bool
    timeout_s: float


async def requested_outputs(
    coordinator: Callable[[], CoordinatorClient], wanted: OutputsRequest
) -> AsyncGenerator[Output | OutputsReverted, None]:
    """Yield the requested outputs, as `Client.outputs` describes."""
    check_timeout(wanted.timeout_s)
    parse_cursor(wanted.after)
    if wanted.topic:
        check_id(wanted.topic.removeprefix("@"), "topic")
    reader = MessageReader(wanted.message_type, "message_type", "the output")
    start = await retry_until_available(lambda: start_of(coordinator(), wanted.after, wanted.consumer))
    reading = OutputReaderState(start, is_following=wanted.follow, patience_s=wanted.timeout_s)
    async with contextlib.aclosing(follow_outputs(coordinator, wanted.topic, reading, reader)) as outputs:
        async for output in outputs:
            yield output


async def follow_outputs(
    coordinator: Callable[[], CoordinatorClient], topic: str, reading: OutputReaderState, reader: MessageReader
) -> AsyncGenerator[Output | OutputsReverted, None]:
    """Yield outputs as soon as they are released. `coordinator` is called before each request to get the current connection, because
    connections may be renewed.

    Unless the current page is large, the next page is requested while the program processes the current page. Requesting pages early also
    makes the reader notice early that the fleet has ended.
    """
    next_page = asyncio.create_task(_next_page(coordinator, topic, reading))
    try:
        while True:
            releases = reading.on_page(await next_page)
            is_over, is_large = reading.is_over, _size_bytes(releases) > AHEAD_BYTES_MAX
            if not is_over and not is_large:
                next_page = asyncio.create_task(_next_page(coordinator, topic, reading))
            for release in releases:
                for item in items_of(release, reader):
                    yield item
            if is_over:
                return
            if is_large:
                next_page = asyncio.create_task(_next_page(coordinator, topic, reading))
    finally:
        next_page.cancel()
        await asyncio.gather(next_page, return_exceptions=True)


def _size_bytes(releases: Sequence[ReleasedOutputs]) -> int:
    return sum([len(output.payload) for release in releases for output in release.outputs])


async def _next_page(
    coordinator: Callable[[], CoordinatorClient], topic: str, reading: OutputReaderState
) -> ReadOutputsReply:
    while True:
        try:
            return await coordinator().read_outputs(reading.cursor, topic, reading.wait_s, CALL_S)
        except Exception as error:
            await asyncio.sleep(reading.on_failure(asyncio.get_running_loop().time(), error))


async def start_of(coordinator: CoordinatorClient, after: str, consumer: str) -> str:
    """Return the cursor at which reading starts. If no consumer has this name, it is created, and from then on its unacknowledged outputs
    are retained.

    Raises:
        UsageError: both `after` and `consumer` are given.
    """
    if after and consumer:
        raise UsageError("after and consumer both say where to begin: give one of them")
    return await coordinator.move_consumer(consumer) if consumer else after


def items_of(release: ReleasedOutputs, reader: MessageReader) -> "Iterator[Output | OutputsReverted]":
    """Yield the outputs in a release, after a notice of any outputs that the release reverts. A message is decoded only when it is
    yielded, because it takes up to 30 times its encoded size in memory. May raise EncodingError."""
    if release.undone is not None:
        yield OutputsReverted(release.undone.after, release.undone.epochs, release.undone.cursor)
    for output in release.outputs:
        name, body = split_message(output.payload)
        message = reader.read(name, body)
        yield Output(
            output.agent, output.number, output.topic, message, output.cursor, release.epoch, output.emitted_ns
        )
