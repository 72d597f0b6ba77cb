"""The requested window of events, as written in the addresses of pages, pictures and links."""

from typing import Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from snapline.diagrams.event_window import CHOSEN_MAX, EventLog, Rows, Window
from snapline.errors import UsageError

PAGE = "/space-time"

COUNTS = (60, 120, 240, 480)
"""Numbers of events that may be shown without zooming."""

COUNT = 120
"""Number of events that fit the width of a screen."""

SHOWN_MAX = 1_000
"""Largest number of events of one page: more are unreadable, and a page of megabytes."""

Source = Literal["live", "trace"]


class SpaceQuery(msgspec.Struct, frozen=True):
    """Request for a window of events.

    Attributes:
        source: the running fleet, or the trace that the view was started with.
        held: number of a held snapshot of the fleet; 0: the current one.
        agents: names, or parts of names; none: the busiest agents.
        first, end: positions; None: the last `count` events.
        event: position of the chosen event.
    """

    source: Source = "live"
    held: int = 0
    rows: Rows = "agents"
    agents: tuple[str, ...] = ()
    count: int = COUNT
    first: int | None = None
    end: int | None = None
    event: int | None = None

    def address(self, path: str = PAGE, fragment: str = "") -> str:
        """Return the address where this is shown."""
        parameters = {
            "source": self.source if self.source != "live" else None,
            "held": self.held or None,
            "rows": self.rows if self.rows != "agents" else None,
            "agents": ",".join(self.agents) or None,
            "count": self.count if self.count != COUNT else None,
            "first": self.first,
            "end": self.end,
            "event": self.event,
        }
        query = urlencode({name: value for name, value in parameters.items() if value is not None}, quote_via=quote)
        return f"{path}{f'?{query}' if query else ''}{f'#{fragment}' if fragment else ''}"

    @property
    def is_live(self) -> bool:
        """Return whether it goes on while it is viewed."""
        return self.source == "live" and not self.held

    def window(self, event_log: EventLog) -> Window:
        """Return the window to be shown.

        Raises:
            UsageError: the window is empty, or larger than a page.
        """
        lanes = event_log.rows_of(self.rows, self.agents)
        if self.first is None or self.end is None:
            return event_log.window(self.rows, lanes, count=self.count)
        first, end = max(0, self.first), min(len(event_log), self.end)
        if first >= end:
            raise UsageError(
                f"from {self.first} to {self.end} there are no events: there are {len(event_log)}, from 0 on"
            )
        return narrowed(event_log, Window(self.rows, lanes, first, end))

    def at(self, window: Window) -> "SpaceQuery":
        """Return the same with this window."""
        return replace(self, first=window.first, end=window.end)


def narrowed(event_log: EventLog, window: Window) -> Window:
    """Return the last events of it, if it has more than a page may have."""
    shown = event_log.shown(window)
    return window if len(shown) <= SHOWN_MAX else replace(window, first=shown[-SHOWN_MAX])


def query_of(given: QueryParams, sources: tuple[Source, ...]) -> SpaceQuery:
    """Return the query of a request; `sources`: sources of this view, the default first.

    Raises:
        UsageError: this view does not have these sources or rows.
    """
    named = [*given.getlist("agent"), *given.get("agents", "").split(",")]
    agents = tuple(dict.fromkeys([name.strip() for name in named if name.strip()]))[:CHOSEN_MAX]
    source = given.get("source") or sources[0]
    rows = given.get("rows") or "agents"
    if source not in sources or rows not in ("agents", "hosts"):
        raise UsageError(f"this view shows no {source!r} with rows for {rows!r}")
    return SpaceQuery(
        source="trace" if source == "trace" else "live",
        held=_number(given, "held") or 0,
        rows="hosts" if rows == "hosts" else "agents",
        agents=agents,
        count=min(max(1, _number(given, "count") or COUNT), SHOWN_MAX),
        first=_number(given, "first"),
        end=_number(given, "end"),
        event=_number(given, "event"),
    )


def _number(given: QueryParams, name: str) -> int | None:
    text = given.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f"{name} is no number: {text[:40]!r}")
    return int(text)
