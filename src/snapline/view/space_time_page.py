"""Draw the screen *Space-time*, which shows the events and messages of agents as a space-time diagram. Viewers can open each event.

`SpaceQuery` describes the requested window of events. The addresses of pages, pictures and links contain the encoded `SpaceQuery`.
"""

from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from snapline.diagrams.event_window import (
    CHOSEN_MAX,
    ROWS_MAX,
    ChosenEvent,
    EventLog,
    Rows,
    Window,
    draw_window,
)
from snapline.errors import UsageError
from snapline.ids import HOST_PREFIX, natural_key
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent
from snapline.recovery.trace_merge import MarkerCame, TracedMarkerSend
from snapline.view.display_text import count, plural
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import Partial, Targets, notices, section, value_tree

# -- query -------------------------------------------------------------------------------------------------------------


PAGE = "/space-time"

COUNTS = (60, 120, 240, 480)
"""Numbers of events that viewers can choose to show."""

COUNT = 120
"""Default number of events, which fit into the width of a screen."""

SHOWN_MAX = 1_000
"""Largest number of events on one page. More events would be unreadable, and the page would have several megabytes."""

Source = Literal["live", "trace"]


class SpaceQuery(msgspec.Struct, frozen=True):
    """A request for a window of events.

    Attributes:
        source: "live" for the running fleet, or "trace" for the trace that was given when the view started.
        held: number of a held snapshot of events, or 0 for the current events.
        agents: agent names or parts of them. If the list is empty, the busiest agents are shown.
        first, end: positions of the window, where `end` is excluded, or None for the last `count` events.
        event: position of the event that the viewer has selected, or None.
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
        """Return the address of the page with this window."""
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
        """Return whether the window follows the running fleet."""
        return self.source == "live" and not self.held

    def window(self, event_log: EventLog) -> Window:
        """Return the window of events to show.

        Raises:
            UsageError: If the window is empty or exceeds a page.
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
        return replace(self, first=window.first, end=window.end)


def narrowed(event_log: EventLog, window: Window) -> Window:
    """Return the window, limited to its last events if it has more events than a page may show."""
    shown = event_log.shown(window)
    return window if len(shown) <= SHOWN_MAX else replace(window, first=shown[-SHOWN_MAX])


def query_of(given: QueryParams, sources: tuple[Source, ...]) -> SpaceQuery:
    """Parse the query of an HTTP request. `sources` lists the sources of this view, the default first.

    Raises:
        UsageError: If this view lacks the requested source or rows.
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


# -- screen ------------------------------------------------------------------------------------------------------------


LISTED_MAX = 200
"""Largest number of events in the list next to the picture. The list contains the newest events."""

CLOCK_MAX = 100
"""Largest number of entries that the page shows of a vector clock."""

BOXES_MAX = 48
"""Largest number of agents that have a checkbox. The busiest agents have one."""


class SpaceFacts(msgspec.Struct, frozen=True):
    """The content of the screen *Space-time*.

    Attributes:
        query: the requested window.
        sources: sources of this view.
        chosen: selected event, which is described in detail.
        epochs: epochs in whose cuts the selected event's message was in transit.
        content: content of the selected event's message, if known.
        sampled: N if only every N-th message of each channel was traced.
        silent: hosts that do not respond.
        is_missing: whether some hosts had more events than they could report.
        omitted: number of events omitted at the beginning of the trace.
        trace: name of the trace, or "" if the events are those of a fleet.
        held: number of the held snapshot of events.
        targets: epochs that have their own page.
    """

    query: SpaceQuery
    sources: tuple[Source, ...]
    event_log: EventLog
    window: Window
    chosen: ChosenEvent | None = None
    epochs: tuple[int, ...] = ()
    content: tuple[object, ...] = ()
    sampled: int = 1
    silent: tuple[str, ...] = ()
    is_missing: bool = False
    omitted: int = 0
    trace: str = ""
    held: int = 0
    targets: Targets = Targets()


def space_body(facts: SpaceFacts) -> Markup:
    """Draw the screen *Space-time*."""
    return join([_title(facts), notices(), _form(facts), space_results(facts)])


def space_results(facts: SpaceFacts) -> Markup:
    """Draw everything below the form, which includes the picture and the selected event."""
    by_id = {piece.id: piece.html for piece in space_pieces(facts)}
    label = "Space-time diagram: its events are listed below"
    box = tag("div", by_id["picture"], class_="picture", tabindex="0", role="region", aria_label=label)
    links = None if facts.query.is_live else "found"
    return tag("div", by_id["about"], box, _event(facts), by_id["events"], id="found", data_links=links)


def space_pieces(facts: SpaceFacts) -> list[Partial]:
    """Return the elements of the screen that may change while it is shown."""
    return [
        Partial("choice", _choice_of_agents(facts)),
        Partial("about", _about(facts)),
        Partial("picture", _picture(facts)),
        Partial("events", _events(facts)),
    ]


def still(facts: SpaceFacts) -> SpaceQuery:
    """Return a query that selects exactly the events that are shown. For a running fleet, the query refers to a held snapshot of events."""
    query = facts.query.at(facts.window)
    return replace(query, held=facts.held) if query.source == "live" else query


# -- head ----------------------------------------------------------------------------------------------------------------


def _title(facts: SpaceFacts) -> Markup:
    query, names = facts.query, {"live": "The fleet, live", "trace": f"Trace {facts.trace}"}
    links = [
        tag(
            "a",
            names[source],
            href=SpaceQuery(source=source).address(),
            aria_current="true" if source == query.source else None,
        )
        for source in facts.sources
    ]
    badge = tag("span", "held", class_="pill warn") if query.held else None
    link_back = tag(
        "a", "Back to the last seconds", href=replace(query, held=0, first=None, end=None, event=None).address()
    )
    chosen = tag("p", links, class_="sources") if len(links) > 1 else tag("p", names[query.source], class_="quiet")
    return tag("div", tag("h1", "Space-time"), badge, chosen, link_back if query.held else None, class_="title")


def _form(facts: SpaceFacts) -> Markup:
    query, event_log = facts.query, facts.event_log
    busiest = frozenset(_busiest(event_log))
    hidden = [
        tag("input", type="hidden", name=name, value=value)
        for name, value in (("source", query.source), ("held", query.held), ("first", query.first), ("end", query.end))
        if value and (name != "source" or len(facts.sources) > 1)
    ]
    if query.first == 0 and query.end:
        hidden.append(tag("input", type="hidden", name="first", value="0"))
    rows = _choice("rows", "Rows", [("agents", "Rows: agents"), ("hosts", "Rows: hosts")], query.rows)
    counts = [(str(number), f"Last {number:,} events") for number in sorted({*COUNTS, query.count})]
    events = None if query.first is not None else _choice("count", "How many events", counts, str(query.count))
    typed = ",".join([name for name in query.agents if name not in busiest])
    field = tag(
        "input",
        type="search",
        name="agents",
        value=typed,
        placeholder="Agents: names or parts, with commas",
        aria_label="Agents",
    )
    return tag(
        "form",
        hidden,
        rows if event_log.hosts or query.source == "live" else None,
        events,
        field,
        tag("button", "Show"),
        _choice_of_agents(facts),
        method="get",
        action=PAGE,
        class_="search",
        data_live="found",
    )


def _choice(name: str, label: str, options: Sequence[tuple[str, str]], chosen: str) -> Markup:
    options_drawn = [tag("option", words, value=value, selected=value == chosen) for value, words in options]
    return tag("select", options_drawn, name=name, aria_label=label)


def _choice_of_agents(facts: SpaceFacts) -> Markup:
    """Draw checkboxes for the busiest agents. In a running fleet, the busiest agents may change over time."""
    chosen = facts.query.agents
    boxes = [
        tag("label", tag("input", type="checkbox", name="agent", value=agent, checked=agent in chosen), agent)
        for agent in sorted(_busiest(facts.event_log), key=natural_key)
    ]
    legend = tag("legend", f"Rows of these; none of them: of the busiest {ROWS_MAX}", class_="quiet")
    inner = (tag("summary", "Choose agents"), tag("fieldset", legend, boxes, class_="boxes"))
    is_open = any(agent in chosen for agent in _busiest(facts.event_log))
    choice = tag("details", inner, id="choose", open=is_open) if boxes else None
    return tag("div", choice, class_="choose", id="choice")


def _busiest(event_log: EventLog) -> list[str]:
    return [agent for agent, _ in event_log.busy.most_common(BOXES_MAX)]


def _about(facts: SpaceFacts) -> Markup:
    """Draw links to neighbouring windows, and notes about omitted events."""
    links = tag("nav", _moves(facts), aria_label="Window", class_="moves")
    return tag("div", links, [tag("p", note, class_="quiet") for note in _notes(facts)], id="about")


def _moves(facts: SpaceFacts) -> Child:
    event_log, window, query = facts.event_log, facts.window, still(facts)
    shown = len(event_log.shown(window))
    half = max(1, shown // 2)
    begin = event_log.moved(replace(window, first=0, end=min(1, len(event_log))), first=0, end=max(1, shown - 1))
    earlier, later = (event_log.moved(window, first=count, end=count) for count in (-half, half))
    steps = (
        ("⇤", "First", begin, "", begin != window),
        (
            "−",
            "Zoom out",
            wider := event_log.moved(window, first=-half, end=half),
            "-",
            wider != window and shown < SHOWN_MAX,
        ),
        ("+", "Zoom in", inner := _zoomed(event_log, window, _middle(facts)), "+", inner != window),
        ("←", "Earlier", earlier, "ArrowLeft", earlier.first < window.first),
        ("→", "Later", later, "ArrowRight", later.end > window.end),
    )
    buttons: list[Child] = []
    for sign, name, to, key, can in steps:
        label = (tag("span", sign, aria_hidden="true"), f" {name}")
        address = query.at(to).address() if can else None
        buttons.append(
            tag("a", label, href=address, data_key=key or None) if can else tag("span", label, class_="quiet")
        )
    if facts.query.first is not None:
        buttons.append(tag("a", tag("span", "⇥", aria_hidden="true"), " Last", href=_last(facts.query).address()))
    if shown:
        buttons.append(tag("a", "SVG", href=query.address(f"{PAGE}.svg"), download=True))
        buttons.append(tag("a", "ShiViz", href=query.address(f"{PAGE}.shiviz"), download=True))
    return buttons


def _last(query: SpaceQuery) -> SpaceQuery:
    return replace(query, first=None, end=None, event=None)


def _middle(facts: SpaceFacts) -> int | None:
    """Return the event on which zooming is centred. The result is the selected event if it is in the window, otherwise None."""
    event = facts.query.event
    return event if event is not None and facts.window.first <= event < facts.window.end else None


def _zoomed(event_log: EventLog, window: Window, around: int | None) -> Window:
    shown = event_log.shown(window)
    if len(shown) < 4:
        return window
    middle = len(shown) // 2 if around is None else sum(position < around for position in shown)
    first = min(max(0, middle - len(shown) // 4), len(shown) - len(shown) // 2)
    part = shown[first : first + len(shown) // 2]
    return replace(window, first=part[0], end=part[-1] + 1)


def _notes(facts: SpaceFacts) -> list[str]:
    event_log, window = facts.event_log, facts.window
    rows = sum(not lane.startswith(HOST_PREFIX) for lane in window.lanes)
    notes = []
    if not len(event_log):
        notes.append("Nothing has happened yet: hosts trace from the first look on.")
    if window.rows == "agents" and rows < len(event_log.busy):
        notes.append(
            f"{rows:,} of {plural(len(event_log.busy), 'agent')} have a row here: choose others, or rows of hosts."
        )
    if window.rows == "hosts":
        notes.append("Messages within a host are left out, and what its agents record for one epoch is one mark.")
    if facts.sampled > 1:
        notes.append(
            f"The fleet does too much to be followed: every {facts.sampled:,}th message of each channel is here."
        )
    if facts.is_missing:
        notes.append("Hosts had more events than they could report: some are missing.")
    if facts.silent:
        notes.append(f"Not told by {', '.join(facts.silent)}.")
    if facts.omitted:
        notes.append(f"The first {plural(facts.omitted, 'event')} of the trace are left out.")
    return notes


# -- the picture ---------------------------------------------------------------------------------------------------------


def _picture(facts: SpaceFacts) -> Markup:
    query = still(facts)

    def href(position: int) -> str:
        return replace(query, event=position).address(fragment="event")

    drawn = draw_window(facts.event_log, facts.window, facts.chosen, href=href)
    return tag("div", Markup(drawn), id="picture")


# -- one event -----------------------------------------------------------------------------------------------------------


def _event(facts: SpaceFacts) -> Markup | None:
    chosen, event_log = facts.chosen, facts.event_log
    if chosen is None:
        return None
    rows: list[tuple[str, Child]] = [("when", event_log.when(chosen.position)), *_details(facts, chosen.position)]
    rows.append(("vector clock", _clock(chosen, facts)))
    listed = tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="facts")
    aside = tag("span", _neighbours(facts, chosen.position), class_="moves")
    return section("event", event_log.description_of(chosen.position), listed, aside=aside)


def _details(facts: SpaceFacts, position: int) -> list[tuple[str, Child]]:
    traced = facts.event_log.events[position]
    event = traced.event
    rows: list[tuple[str, Child]] = [("event", f"{position:,} of {len(facts.event_log):,}, counted from 0")]
    if traced.host:
        rows.append(("host", traced.host))
    match event:
        case CheckpointTaken():
            rows.append(("checkpoint", f"{count(event.number)}, {event.kind if not traced.epochs else 'coordinated'}"))
            rows += [("epoch", _epoch(epoch, facts)) for epoch in traced.epochs]
        case MessageSent() | MessageReceived():
            rows += [("message", event.message), *_in_transit(facts), *_stamp(facts, position)]
        case TracedMarkerSend() | MarkerCame():
            rows.append(("epoch", _epoch(event.epoch, facts)))
    if facts.event_log.past.is_undone(position):
        rows.append(("undone", "by a recovery"))
    return rows


def _in_transit(facts: SpaceFacts) -> list[tuple[str, Child]]:
    rows: list[tuple[str, Child]] = [("in transit in the cut of", _epoch(epoch, facts)) for epoch in facts.epochs]
    content = [value_tree(each, open_levels=2) for each in facts.content]
    return rows + [("content", each) for each in content]


def _stamp(facts: SpaceFacts, position: int) -> list[tuple[str, Child]]:
    """Return the last epoch that the agent had recorded before the event, as one row of a table. Return no row if the epoch is unknown."""
    agent = getattr(facts.event_log.events[position].event, "agent", "")
    for earlier in range(position - 1, -1, -1):
        traced = facts.event_log.events[earlier]
        if traced.epochs and isinstance(traced.event, CheckpointTaken) and traced.event.agent == agent:
            return [("after the record of", _epoch(max(traced.epochs), facts))]
    return []


def _epoch(epoch: int, facts: SpaceFacts) -> Child:
    return facts.targets.epoch(epoch, f"epoch {epoch}")


def _clock(chosen: ChosenEvent, facts: SpaceFacts) -> Child:
    own = _own(facts.event_log.row_at(chosen.position, facts.window.rows), chosen)
    entries = sorted(chosen.clock.items(), key=lambda entry: entry[0] != own)
    shown = [
        tag("span", tag("span", name, class_="key"), tag("b", f"{number:,}"), class_="entry")
        for name, number in entries[:CLOCK_MAX]
    ]
    more = f"and {len(entries) - CLOCK_MAX:,} more" if len(entries) > CLOCK_MAX else None
    explanation = "It counts the events of these rows that came before this one or are this one" + (
        ", since the fleet began." if facts.event_log.is_whole else ", as far back as is known."
    )
    return (tag("div", shown, more, class_="clock"), tag("p", explanation, class_="quiet"))


def _own(row: str, chosen: ChosenEvent) -> str:
    """Return the name of the vector clock component that counts the events of this row's current incarnation."""
    lives = [name for name in chosen.clock if name == row or name.startswith(f"{row}#")]
    return lives[-1] if lives else row


def _neighbours(facts: SpaceFacts, position: int) -> Child:
    """Draw links to the matching send or receive event, and to the previous and next event in the same row."""
    event_log, window, query = facts.event_log, facts.window, still(facts)
    row = event_log.row_at(position, window.rows)
    own = [each for each in event_log.shown(window) if event_log.row_at(each, window.rows) == row]
    before = [each for each in own if each < position]
    after = [each for each in own if each > position]
    partner = event_log.partner(position)
    steps = (
        ("Before", before[-1] if before else None),
        ("Its other end", partner),
        ("Next", after[0] if after else None),
    )
    links: list[Child] = []
    for name, to in steps:
        if to is not None:
            around = query if window.first <= to < window.end else query.at(_around(event_log, window, to))
            links.append(tag("a", name, href=replace(around, event=to).address(fragment="event")))
    return links


def _around(event_log: EventLog, window: Window, position: int) -> Window:
    """Return a window of the same size that is centred on the event at `position`."""
    half = max(1, len(event_log.shown(window)) // 2)
    bare = replace(window, first=position, end=position + 1)
    return event_log.moved(bare, first=-half, end=half)


# -- the list ------------------------------------------------------------------------------------------------------------


def _events(facts: SpaceFacts) -> Markup:
    """Draw the events as a list, for screen readers and keyboard users."""
    event_log, query = facts.event_log, still(facts)
    shown = event_log.shown(facts.window)
    rows = [
        tag(
            "li",
            tag("span", event_log.when(position), class_="quiet"),
            " ",
            tag("a", event_log.description_of(position), href=replace(query, event=position).address(fragment="event")),
        )
        for position in shown[-LISTED_MAX:]
    ]
    summary = plural(len(shown), "event")
    heading = summary if len(shown) <= LISTED_MAX else f"{summary}, the last {LISTED_MAX}"
    return tag(
        "details", tag("summary", f"{heading} in words"), tag("ol", rows, class_="events"), id="events", class_="list"
    )
