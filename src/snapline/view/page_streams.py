"""Stream the changes of a page that is rendered every few seconds to a bounded number of viewers.

A page consists of parts. Each viewer receives only the parts that have changed since the viewer last received them.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

import msgspec
from starlette.responses import StreamingResponse

from snapline.errors import SnaplineError
from snapline.view.markup import Markup, tag
from snapline.view.page_elements import trouble
from snapline.view.sign_in import HEADERS


class Partial(msgspec.Struct, frozen=True):
    """An element of a page, identified by its HTML id.

    Attributes:
        html: HTML of the element.
        key: the element is sent again when the key changes. If "", the HTML is the key. An element that contains other pieces has a key for
            the rest of its content.
    """

    id: str
    html: Markup
    key: str = ""


class ViewerState:
    """State of one viewer: the pieces that the viewer has received."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def changes(self, pieces: Iterable[Partial]) -> list[tuple[str, Markup]]:
        """Return the elements to replace, outer elements before inner ones."""
        changed = []
        for piece in pieces:
            key = piece.key or piece.html
            if self._keys.get(piece.id) != key:
                self._keys[piece.id] = key
                changed.append((piece.id, piece.html))
        return changed


RENDER_PERIOD_S = 2.0
"""Time between two renderings of the page."""

STREAMS_MAX = 64
"""Largest number of concurrent streams for one screen."""

Look = Callable[[], Awaitable[Sequence[Partial]]]


class Streams:
    """Streams of the changes of one screen."""

    def __init__(self, period_s: float = RENDER_PERIOD_S) -> None:
        self._period_s = period_s
        self._count = 0

    def response(self, look: Look) -> StreamingResponse:
        """Return a response that streams the changes as server-sent events. Errors are shown in the page's element `notices`."""
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(self.events(look), media_type="text/event-stream", headers=headers)

    async def events(self, look: Look) -> AsyncGenerator[str, None]:
        """Yield one server-sent event after each rendering."""
        if self._count >= STREAMS_MAX:
            yield f"event: refused\ndata: {json.dumps(f'{STREAMS_MAX} viewers look already: close one')}\n\n"
            return
        self._count += 1
        try:
            shown = ViewerState()
            while True:
                yield event(shown.changes(await _pieces(look)))
                await asyncio.sleep(self._period_s)
        finally:
            self._count -= 1


async def _pieces(look: Look) -> list[Partial]:
    try:
        return [Partial("notices", notices()), *await look()]
    except SnaplineError as error:
        return [Partial("notices", notices(str(error)))]


def notices(sentence: str = "") -> Markup:
    """Draw the element that shows a notice when the page is out of date."""
    return tag("div", trouble(sentence), id="notices")


def event(changes: Iterable[tuple[str, Markup]]) -> str:
    """Return the changes encoded as one server-sent event."""
    pieces = list(changes)
    return f"data: {json.dumps(pieces, separators=(',', ':'))}\n\n" if pieces else ": nothing new\n\n"
