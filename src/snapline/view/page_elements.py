"""Draw the elements that all pages use: the page frame, sections, tables, links, and trees of values.

The frame of every screen consists of a head, the navigation, and a notice about problems. Links point only to existing pages, because texts
may name agents that have stopped or snapshots that were deleted.

Plain values (states, messages, documents) are shown as a tree with branches that expand and collapse. Values may be arbitrarily large and
deep. A tree shows at most `NODES_MAX` values, `ITEMS_MAX` items per list, `DEPTH_MAX` levels, and `VALUE_TEXT_MAX` characters per text.
Where a limit applies, the tree states how much was omitted.

*Streams.* Pages that are rendered every few seconds stream their changes to a limited number of viewers. A page consists of parts, and each
viewer receives only the parts that have changed since they were last sent to this viewer.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import StreamingResponse

from snapline.errors import SnaplineError
from snapline.view.display_text import age, plural
from snapline.view.markup import Child, Markup, join, shown, tag
from snapline.view.sign_in import HEADERS

SCREENS = (
    ("fleet", "/", "Fleet"),
    ("epochs", "/epochs", "Epochs"),
    ("recovery", "/recovery", "Recovery"),
    ("waiting", "/waiting", "Waiting"),
)
"""Id, address and name of each screen of a fleet, in the order in which the navigation lists them."""

SPACE_TIME = ("space-time", "/space-time", "Space-time")
"""Id, address and name of the space-time screen, which shows a fleet or a trace."""

ACT = ("act", "/act", "Actions")
"""Id, address and name of the screen for viewers who may run actions."""

SIMULATION = ("simulation", "/simulation", "Simulation")
"""Id, address and name of the screen that shows reports of simulations."""


class PageHead(msgspec.Struct, frozen=True):
    """Values shown in the frame around a screen.

    Attributes:
        screen: id of the screen.
        title: title of the browser tab.
        fleet: name of the fleet, if known.
        events: address of the event stream that updates the page, or "" if the page is static.
        is_signed_in: whether the viewer has signed in and can sign out.
        screens: available screens, in navigation order.
    """

    screen: str
    title: str
    fleet: str = ""
    events: str = ""
    is_signed_in: bool = False
    screens: tuple[tuple[str, str, str], ...] = ()


def page(frame: PageHead, *body: Child) -> Markup:
    """Draw a whole page: the frame, with `body` inside it."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{frame.title} · {frame.fleet or 'snapline'}"),
        tag("link", rel="icon", href="/static/icon.svg"),
        tag("link", rel="stylesheet", href="/static/view.css"),
        tag("script", src="/static/view.js", defer=True),
    )
    main = tag("main", *body, id="main", tabindex="-1")
    content = tag("body", _skip(), _top(frame), main, data_events=frame.events or None)
    return join([Markup("<!DOCTYPE html>\n"), tag("html", head, content, lang="en")])


def _skip() -> Markup:
    return tag("a", "Skip to content", href="#main", class_="skip")


def _top(frame: PageHead) -> Markup:
    links = [
        tag("a", name, href=address, aria_current="page" if screen == frame.screen else None)
        for screen, address, name in frame.screens
    ]
    sign_out = tag("form", tag("button", "Sign out"), method="post", action="/sign-out") if frame.is_signed_in else None
    live = tag("span", "live", id="live", class_="live", role="status") if frame.events else None
    return tag(
        "header",
        tag("a", "snapline", href="/", class_="brand"),
        tag("nav", *links, aria_label="Screens"),
        tag("span", live, sign_out, class_="aside"),
        class_="top",
    )


def trouble(sentence: str, updated_s: float = 0.0) -> Markup | None:
    """Draw a banner at the top of the page that says why the page may be outdated. Return None if `sentence` is empty."""
    if not sentence:
        return None
    since = (" What is shown was heard ", age(updated_s), ".") if updated_s else None
    return tag("p", f"{sentence[:1].upper()}{sentence[1:]}.", since, class_="strip bad", role="alert")


def section(id: str, heading: Child, *body: Child, aside: Child = None) -> Markup:
    """Draw a section of a screen, with a heading."""
    head = tag("div", tag("h2", heading, id=f"{id}-heading"), aside, class_="section-head")
    return tag("section", head, *body, id=id, aria_labelledby=f"{id}-heading")


def table(columns: "tuple[tuple[str, str], ...]", rows: Child, *, label: str, id: str | None = None) -> Markup:
    """Draw a table that scrolls horizontally if it is too wide. `columns` lists the heading and CSS class of each column."""
    heads = [tag("th", name, class_=kind or None, scope="col") for name, kind in columns]
    inner = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", rows), aria_label=label)
    return tag("div", inner, class_="table", tabindex="0", role="region", aria_label=label, id=id)


# -- links -------------------------------------------------------------------------------------------------------------


KEPT = ("complete", "void")
"""Statuses of ended epochs whose snapshots can be viewed until they are deleted."""


class Targets(msgspec.Struct, frozen=True):
    """Agents and epochs to which pages may link.

    None allows all links. The HTML export uses None, because it removes links to missing targets itself (`html_export.py`).
    """

    agents: frozenset[str] | None = None
    epochs: frozenset[int] | None = None

    def agent(self, agent: str) -> Child:
        """Return an agent's name, as a link if the agent's page exists."""
        return agent_link(agent) if self.agents is None or agent in self.agents else agent

    def epoch(self, epoch: int, words: str = "") -> Child:
        """Return an epoch's number or, if given, `words`, as a link if the epoch's page exists."""
        text = words or str(epoch)
        return tag("a", text, href=f"/epochs/{epoch}") if self.epochs is None or epoch in self.epochs else text


def agent_link(agent: str) -> Child:
    """Draw a link to the page of an agent."""
    return tag("a", agent, href=f"/agents/{quote(agent)}")


class EndedEpoch(msgspec.Struct, frozen=True):
    """Fields of the epoch history that show whether an epoch still exists."""

    epoch: int = 0
    status: str = ""


class KeptEpochs(msgspec.Struct, frozen=True):
    """The output of `snapline snapshot history`. `stored` lists the epochs in the store, or is None if they are unknown."""

    epochs: tuple[EndedEpoch, ...] = ()
    stored: tuple[int, ...] | None = None


def shown_epochs(history: dict[str, object] | None) -> frozenset[int]:
    """Return the epochs whose snapshots have a page."""
    kept = KeptEpochs() if history is None else msgspec.convert(history, KeptEpochs)
    damaged = {each.epoch for each in kept.epochs if each.status == "condemned"}
    stored: Iterable[int] = (each.epoch for each in kept.epochs if each.status in KEPT)
    return frozenset(stored if kept.stored is None else kept.stored) - damaged


def restorable_epochs(history: dict[str, object]) -> frozenset[int]:
    """Return the epochs that the fleet can restore."""
    return frozenset([each.epoch for each in msgspec.convert(history, KeptEpochs).epochs if each.status == "complete"])


# -- trees -------------------------------------------------------------------------------------------------------------


NODES_MAX = 2_000
ITEMS_MAX = 200
DEPTH_MAX = 24
VALUE_TEXT_MAX = 2_000


def tree(value: object, *, open_levels: int = 1, nodes_max: int = NODES_MAX) -> Markup:
    """Draw a value as a tree whose first `open_levels` levels are expanded."""
    return tag("div", _Tree(nodes_max).node(value, 0, open_levels), class_="tree")


def value_tree(value: object, *, open_levels: int = 1, nodes_max: int = NODES_MAX) -> Markup:
    """Draw a value in a table cell. If the value contains other values, draw a tree."""
    if isinstance(value, dict | list | tuple) and value:
        return tree(value, open_levels=open_levels, nodes_max=nodes_max)
    return leaf(value)


class _Tree:
    def __init__(self, nodes_max: int) -> None:
        self._left = nodes_max

    def node(self, value: object, depth: int, open_levels: int) -> Markup:
        self._left -= 1
        match value:
            case Mapping() if value:
                items = ((str(key), item) for key, item in value.items())
                return self._branch(items, len(value), "field", depth, open_levels, "{}")
            case list() | tuple() if value:
                items = ((str(index), item) for index, item in enumerate(value))
                return self._branch(items, len(value), "item", depth, open_levels, "[]")
        return leaf(value)

    def _branch(
        self, items: Iterable[tuple[str, object]], count: int, word: str, depth: int, open_levels: int, ends: str
    ) -> Markup:
        if depth >= DEPTH_MAX:
            return tag("span", f"{ends[0]} {plural(count, word)}, too deep to show {ends[1]}", class_="quiet")
        rows: list[Child] = []
        for number, (key, value) in enumerate(items):
            if number >= ITEMS_MAX or self._left <= 0:
                rows.append(tag("li", f"… and {count - number:,} more", class_="quiet"))
                break
            rows.append(tag("li", tag("span", key, class_="key"), self.node(value, depth + 1, open_levels)))
        summary = tag("summary", f"{ends[0]} {plural(count, word)} {ends[1]}", class_="quiet")
        return tag("details", summary, tag("ul", rows), open=depth < open_levels)


def leaf(value: object) -> Markup:
    """Draw a scalar value."""
    match value:
        case None:
            return tag("span", "null", class_="value none")
        case bool():
            return tag("span", "true" if value else "false", class_="value word")
        case int() | float():
            return tag("span", shown(str(value), VALUE_TEXT_MAX), class_="value digits")
        case str():
            return tag("span", shown(value, VALUE_TEXT_MAX) if value else "“”", class_="value text")
        case Mapping():
            return tag("span", "{ }", class_="value none")
        case list() | tuple():
            return tag("span", "[ ]", class_="value none")
    return tag("span", shown(str(value), VALUE_TEXT_MAX), class_="value text")


class Partial(msgspec.Struct, frozen=True):
    """Page element, identified by its HTML id.

    Attributes:
        html: HTML of the element.
        key: value whose change causes the element to be sent again. If the key is "", the HTML itself is used. If the element contains
            other parts, its key covers only its remaining content.
    """

    id: str
    html: Markup
    key: str = ""


class ViewerState:
    """Records which version of each page part a viewer has received."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def changes(self, pieces: Iterable[Partial]) -> list[tuple[str, Markup]]:
        """Return the changed elements, which replace those that the viewer has. Outer elements come before inner elements."""
        changed = []
        for piece in pieces:
            key = piece.key or piece.html
            if self._keys.get(piece.id) != key:
                self._keys[piece.id] = key
                changed.append((piece.id, piece.html))
        return changed


RENDER_PERIOD_S = 2.0
"""Time in seconds between two renderings of a page."""

STREAMS_MAX = 64
"""Largest number of concurrent streams for one screen."""

Look = Callable[[], Awaitable[Sequence[Partial]]]


class Streams:
    """Streams the changes of one screen to its viewers."""

    def __init__(self, period_s: float = RENDER_PERIOD_S) -> None:
        self._period_s = period_s
        self._count = 0

    def response(self, look: Look) -> StreamingResponse:
        """Return a response that streams the changes as server-sent events. Errors are shown in the page's element `notices`."""
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(self.events(look), media_type="text/event-stream", headers=headers)

    async def events(self, look: Look) -> AsyncGenerator[str, None]:
        """Yield one server-sent event with the changes after each rendering."""
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
    """Draw the element `notices`, which says why the page is outdated, or is empty if it is up to date."""
    return tag("div", trouble(sentence), id="notices")


def event(changes: Iterable[tuple[str, Markup]]) -> str:
    """Encode the changes as one server-sent event."""
    pieces = list(changes)
    return f"data: {json.dumps(pieces, separators=(',', ':'))}\n\n" if pieces else ": nothing new\n\n"


def action_link(verb: str, words: str, **query: object) -> Markup:
    """Draw a link to a confirmation page. Opening the page changes nothing."""
    address = f"/act/{verb}" + (f"?{urlencode(query)}" if query else "")
    return tag("a", words, href=address, class_="deed")


def approval_details(details: object) -> Markup:
    """Draw what people need to know for an approval."""
    if isinstance(details, dict):
        return tag("dl", [[tag("dt", str(name)), tag("dd", str(value))] for name, value in details.items()])
    return tag("p", "" if details is None else str(details))
