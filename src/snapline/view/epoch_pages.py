"""Draw the screens *Epochs* and *Cut*.

The screen *Cut* shows one snapshot, as printed by `snapline snapshot show`: every agent's state, the messages in transit, and the
differences from another snapshot. A picture shows the agents in a circle, and an arrow for each channel with messages in transit.

The screen *Epochs* shows the outcome and phases of the newest epochs, and for each epoch the host that reported last. Its data comes from
the coordinator's log and survives restarts.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec

from snapline.agent_runtime.snapshots.state_difference import StateChanges, compare
from snapline.diagrams.style import px
from snapline.view.display_text import NOTHING, age, count, pill, plural, seconds, size, tone_of
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import Targets, section, shown_epochs, table, value_tree

Plain = dict[str, object]


class CutMessage(msgspec.Struct, frozen=True):
    """Message in transit, which was sent but not received before the cut."""

    number: int = 0
    message: object = None


class CutChannel(msgspec.Struct, frozen=True):
    """Channel with its messages in transit."""

    sender: str
    receiver: str
    in_transit: tuple[CutMessage, ...] = ()


class CutAgent(msgspec.Struct, frozen=True):
    """Agent in a cut. The items of the agent's lists have the same form as in the output of `snapline snapshot show`."""

    agent: str
    kind: str = ""
    host: str = ""
    incarnation: int = 0
    checkpoint: int = 0
    is_unborn: bool = False
    is_leaving: bool = False
    state_type: str = ""
    state: object = None
    outbox: tuple[Plain, ...] = ()
    spawns: tuple[Plain, ...] = ()
    timers: tuple[Plain, ...] = ()
    durable_turn: Plain | None = None
    put_off: tuple[Plain, ...] = ()
    dead_letters: tuple[Plain, ...] = ()
    dead_letter_count: int = 0

    def rest(self) -> "Iterator[tuple[str, tuple[Plain, ...] | Plain]]":
        """Yield the name and value of each optional part of the agent's state that exists. Most agents have none."""
        for name in ("durable_turn", "timers", "outbox", "put_off", "spawns", "dead_letters"):
            value = getattr(self, name)
            if value:
                yield name.replace("_", " "), value


class CutFacts(msgspec.Struct, frozen=True):
    """One snapshot, as printed by `snapline snapshot show`. Times are in UTC, in RFC 3339 format."""

    epoch: int
    root: str = ""
    created: str = ""
    trigger: str = ""
    fleet: str = ""
    protocol: str = ""
    plan: int = 0
    hosts: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_messages: int = 0
    channel_state_bytes: int = 0
    agents: tuple[CutAgent, ...] = ()
    channels: tuple[CutChannel, ...] = ()

    def messages(self) -> Iterator[tuple[CutChannel, CutMessage]]:
        """Yield each message in transit with its channel, ordered by channel."""
        for channel in self.channels:
            for message in channel.in_transit:
                yield channel, message


def cut_of(document: dict[str, object]) -> CutFacts:
    """Decode the output of `snapline snapshot show`. Raise msgspec.ValidationError if the document is not a snapshot."""
    return msgspec.convert(document, CutFacts)


ROWS_MAX = 100
"""Largest number of agents, and of messages, that a page shows. Viewers find the remaining ones by searching."""

CHANGES_MAX = 200
"""Largest number of differences between two snapshots that are shown."""

AGENT_NODES_MAX = 400
"""Largest number of values that a page shows from one agent's state. The limit bounds the size of a page with a hundred agents."""

MESSAGE_COLUMNS = (("From", ""), ("To", ""), ("Number", "number"), ("Message", "wide"))
CHANGE_COLUMNS = (("Where", ""), ("Before", "wide"), ("After", "wide"))


class CutSearch(msgspec.Struct, frozen=True):
    """A search in a snapshot. `text` must occur in a name, a state or a message. `to` names another snapshot to compare with."""

    text: str = ""
    to: str = ""

    def finds(self, *values: object) -> bool:
        """Return whether the searched text occurs in one of these values, at any depth."""
        text = self.text.casefold()
        return not text or any(text in _said(value).casefold() for value in values)


def cut_body(cut: CutFacts, search: CutSearch, other: CutFacts | None = None) -> Markup:
    """Draw the screen *Cut*. `other` is another snapshot to compare with."""
    return join([_title(cut), _figures(cut), _form(cut, search), cut_results(cut, search, other)])


def cut_results(cut: CutFacts, search: CutSearch, other: CutFacts | None = None) -> Markup:
    """Draw the agents and messages that match the search."""
    difference = _difference(other, cut, search) if other is not None else None
    found = [
        each
        for each in cut.agents
        if search.finds(each.agent, each.kind, each.host, each.state, *dict(each.rest()).values())
    ]
    shown = frozenset([each.agent for each in found[:ROWS_MAX]])
    return tag("div", difference, _in_transit(cut, search, shown), _agents(cut, found), id="found")


def _said(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# -- head ----------------------------------------------------------------------------------------------------------------


def _title(cut: CutFacts) -> Markup:
    about = [cut.created, cut.trigger, cut.protocol, f"plan {cut.plan}", f"root {cut.root[:12]}"]
    return tag("div", tag("h1", f"Epoch {cut.epoch}"), tag("p", " · ".join(about), class_="quiet"), class_="title")


def _figures(cut: CutFacts) -> Markup:
    timers, dead_letters = (
        sum([len(getattr(each, name)) for each in cut.agents]) for name in ("timers", "dead_letters")
    )
    turns = sum([each.durable_turn is not None for each in cut.agents])
    unborn = sum([each.is_unborn for each in cut.agents])
    busy = sum([bool(each.in_transit) for each in cut.channels])
    figures = (
        ("Agents", count(len(cut.agents)), f"on {plural(len(cut.hosts), 'host')}; {unborn:,} not born yet"),
        ("States", size(cut.state_bytes), "encoded"),
        (
            "In transit",
            count(cut.channel_state_messages),
            f"in {plural(busy, 'channel')}; {size(cut.channel_state_bytes)}",
        ),
        ("Timers", count(timers), "that had not fired"),
        ("Durable turns", count(turns), "in their middle"),
        ("Dead letters", count(dead_letters), "the newest of each agent"),
    )
    tiles = [
        tag("div", tag("dt", name), tag("dd", value), tag("dd", more, class_="more")) for name, value, more in figures
    ]
    return tag("dl", tiles, class_="figures")


def _form(cut: CutFacts, search: CutSearch) -> Markup:
    text = tag(
        "input",
        type="search",
        name="q",
        value=search.text,
        placeholder="In names, states, messages",
        aria_label="Search",
    )
    to = tag("input", name="to", value=search.to, placeholder="Compare with: epoch or tag", aria_label="Compare with")
    where = {"method": "get", "action": f"/epochs/{cut.epoch}", "data_live": "found"}
    return tag("form", text, to, tag("button", "Search"), class_="search", **where)


# -- messages in transit ---------------------------------------------------------------------------------------------------


def _in_transit(cut: CutFacts, search: CutSearch, shown: Container[str]) -> Markup:
    """Draw the messages in transit. `shown` lists the agents whose cards appear further down the page."""
    found = [
        (channel, message)
        for channel, message in cut.messages()
        if search.finds(channel.sender, channel.receiver, message.message)
    ]
    if not found:
        notice = "Nothing was in transit." if not search.text else "No message is found."
        return section("transit", "In transit", tag("p", notice, class_="quiet"))
    rows = [_message(channel, message, shown) for channel, message in found[:ROWS_MAX]]
    counts = Counter((channel.sender, channel.receiver) for channel, _ in found)
    body = table(MESSAGE_COLUMNS, rows, label="Messages in transit")
    aside = tag("span", _count_text(len(found), cut.channel_state_messages, "message"), class_="quiet", role="status")
    return section("transit", "In transit", cut_picture(counts), body, aside=aside)


def _message(channel: CutChannel, message: CutMessage, shown: Container[str]) -> Markup:
    return tag(
        "tr",
        tag("th", _agent_link(channel.sender, shown), scope="row"),
        tag("td", _agent_link(channel.receiver, shown)),
        tag("td", count(message.number), class_="number"),
        tag("td", _value(_in_words(message.message)), class_="wide"),
    )


def _agent_link(agent: str, shown: Container[str]) -> Child:
    return tag("a", agent, href=f"#agent-{quote(agent)}") if agent in shown else agent


def _in_words(message: object) -> object:
    """Convert an encoded message to a mapping from type name to fields, such as `{"Mass": {"amount": 3}}`.

    Return a message in any other form unchanged.
    """
    match message:
        case {"type": str() as name, "fields": fields, **rest} if not rest:
            return {name: fields}
    return message


def _value(value: object) -> Child:
    return value_tree(value, open_levels=2, nodes_max=AGENT_NODES_MAX)


def _count_text(found: int, total: int, what: str) -> str:
    summary = plural(total, what) if found == total else f"{found:,} of {plural(total, what)}"
    return summary if found <= ROWS_MAX else f"{summary}, the first {ROWS_MAX} are shown"


# -- picture of the messages in transit --------------------------------------------------------------------------------


CIRCLE_AGENTS_MAX = 32
"""Largest number of agents in one circle. A circle with more agents would be unreadable."""

RADIUS, MARGIN, NODE = 150.0, 110.0, 5.0
CURVE = 0.16
"""Curvature of an arrow, as a fraction of the arrow's length. Curved arrows in opposite directions do not cover each other."""


def cut_picture(counts: Mapping[tuple[str, str], int]) -> Markup | None:
    """Draw the picture of the messages in transit.

    `counts` maps each pair of sender and receiver to the number of messages. Return None if no messages are in transit, or if there are too
    many agents for a picture.
    """
    agents = sorted({agent for channel in counts for agent in channel})
    if not 2 <= len(agents) <= CIRCLE_AGENTS_MAX:
        return None
    positions = {agent: _on_circle(number, len(agents)) for number, agent in enumerate(agents)}
    arrows = [
        _arrow(channel, messages, max(counts.values()), positions) for channel, messages in sorted(counts.items())
    ]
    nodes = [_node(agent, *positions[agent]) for agent in agents]
    head = tag(
        "marker",
        tag("path", d="M0 0L8 4L0 8z"),
        id="head",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=6,
        markerHeight=6,
        orient="auto",
    )
    width, height = 2 * (RADIUS + MARGIN), 2 * RADIUS + 60
    label = f"{plural(sum(counts.values()), 'message')} in transit in {plural(len(counts), 'channel')}"
    box = f"{-width / 2:g} {-height / 2:g} {width:g} {height:g}"
    return tag("svg", tag("defs", head), arrows, nodes, class_="cut", viewBox=box, role="img", aria_label=label)


def _on_circle(number: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * number / count - math.pi / 2
    return RADIUS * math.cos(angle), RADIUS * math.sin(angle)


def _arrow(channel: tuple[str, str], many: int, most: int, places: Mapping[str, tuple[float, float]]) -> Markup:
    (x1, y1), (x2, y2) = places[channel[0]], places[channel[1]]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    bend_x, bend_y = (x1 + x2) / 2 - along_y * CURVE * length, (y1 + y2) / 2 + along_x * CURVE * length
    end_x, end_y = x2 - along_x * 2 * NODE, y2 - along_y * 2 * NODE
    label = f"{channel[0]} → {channel[1]}: {plural(many, 'message')}"
    path = f"M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {end_x:.1f} {end_y:.1f}"
    weight = 1 + min(3, int(3 * many / most))
    drawn = tag("path", tag("title", label), d=path, class_=f"arrow weight-{weight}", marker_end="url(#head)")
    count_x, count_y = (x1 + 2 * bend_x + end_x) / 4, (y1 + 2 * bend_y + end_y) / 4
    return tag("g", drawn, tag("text", many, x=f"{count_x:.1f}", y=f"{count_y + 4:.1f}", class_="many"))


def _node(agent: str, x: float, y: float) -> Markup:
    anchor = "middle" if abs(x) < RADIUS / 3 else ("start" if x > 0 else "end")
    out = 1 + 14 / RADIUS
    name = tag("text", agent, x=f"{x * out:.1f}", y=f"{y * out + 4:.1f}", text_anchor=anchor)
    return tag("g", tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{NODE:g}"), name)


# -- agents --------------------------------------------------------------------------------------------------------------


def _agents(cut: CutFacts, found: Sequence[CutAgent]) -> Markup:
    aside = tag("span", _count_text(len(found), len(cut.agents), "agent"), class_="quiet", role="status")
    cards = [_card(each, is_open=len(found) <= 8) for each in found[:ROWS_MAX]]
    return section("agents", "Agents", cards or tag("p", "No agent is found.", class_="quiet"), aside=aside)


def _card(agent: CutAgent, *, is_open: bool) -> Markup:
    more = [
        tag(
            "span",
            f"{name}: {len(value)}" if isinstance(value, tuple) else name,
            class_=f"pill {tone_of('agent', name)}",
        )
        for name, value in agent.rest()
    ]
    about = f"{agent.kind} on {agent.host}, incarnation {agent.incarnation}"
    state: Child = _value(agent.state) if not agent.is_unborn else tag("span", "not born yet", class_="quiet")
    rows = [("state", state), *[(name, _value(value)) for name, value in agent.rest()]]
    facts = tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="facts")
    head = tag("summary", tag("b", agent.agent), tag("span", about, class_="quiet"), *more)
    return tag("details", head, facts, class_="card", id=f"agent-{agent.agent}", open=is_open)


# -- differences ---------------------------------------------------------------------------------------------------------


def _difference(before: CutFacts, after: CutFacts, search: CutSearch) -> Markup:
    """Draw the differences between two cuts, grouped by agent."""
    changes = StateChanges(CHANGES_MAX)
    _compare_agents(_comparable(before.agents), _comparable(after.agents), changes)
    _compare_messages(before, after, changes)
    changes_found = [each for each in changes.shown if search.finds(each)]
    rows = [
        tag(
            "tr",
            tag("th", tag("code", str(each["path"])), scope="row"),
            tag("td", _value(each["before"]) if "before" in each else None, class_="wide"),
            tag("td", _value(each["after"]) if "after" in each else _what(each), class_="wide"),
        )
        for each in changes_found
    ]
    summary = plural(len(changes_found) + changes.more, "change")
    aside = tag(
        "span", f"{summary}, the first {CHANGES_MAX} are looked at" if changes.more else summary, class_="quiet"
    )
    body: Child = (
        table(CHANGE_COLUMNS, rows, label="Changes") if rows else tag("p", "They are the same.", class_="quiet")
    )
    return section("changes", f"From epoch {before.epoch} to {after.epoch}", body, aside=aside)


def _compare_agents(before: Mapping[str, object], after: Mapping[str, object], changes: StateChanges) -> None:
    for agent, old in before.items():
        if agent in after:
            compare(old, after[agent], changes, agent)
        else:
            changes.add(agent, "removed", before=old)
    for agent in sorted(after.keys() - before.keys()):
        changes.add(agent, "added", after=after[agent])


def _comparable(agents: Iterable[CutAgent]) -> dict[str, object]:
    """Return the values to compare for each agent. Checkpoint numbers are omitted, because they always differ."""
    return {
        each.agent: {"host": each.host, "incarnation": each.incarnation, "state": each.state, **dict(each.rest())}
        for each in agents
    }


def _compare_messages(before: CutFacts, after: CutFacts, changes: StateChanges) -> None:
    old, new = ({(c.sender, c.receiver, m.number): m.message for c, m in cut.messages()} for cut in (before, after))
    for channel in sorted(old.keys() - new.keys()):
        changes.add(_place(channel), "removed", before=_in_words(old[channel]))
    for come in sorted(new.keys() - old.keys()):
        changes.add(_place(come), "added", after=_in_words(new[come]))


def _place(message: tuple[str, str, int]) -> str:
    return f"{message[0]} → {message[1]}, message {message[2]}"


def _what(change: dict[str, object]) -> Child:
    """Draw the details of a difference. Return None if there are none."""
    rest = {name: value for name, value in change.items() if name not in ("path", "change", "before")}
    return _value(rest) if rest else None


BAR, GAP, HEIGHT = 5, 1, 120
"""Width of a bar, gap between bars, and height of the chart. All are in SVG units."""

PHASES = (
    ("start", "start_delay_s", "waited for a turn to end"),
    ("capture", "capture_s", "its state was captured"),
    ("alignment", "alignment_s", "waited for what other agents had sent before"),
    ("store", "store_s", "stored"),
)
"""CSS class, field and description of each phase of an epoch, in chronological order."""

COLUMNS = (
    ("Epoch", ""),
    ("Begun", ""),
    ("Why", ""),
    ("Ended", ""),
    ("Took", "number"),
    ("New", "number"),
    ("Full", "number"),
    ("In transit", "number"),
    ("Last, and why", "wide"),
)


class PartFacts(msgspec.Struct, frozen=True):
    """Times that one host reports for an epoch. Times are in seconds. A time is None if the host runs a release that does not report it."""

    host: str = ""
    agent: str = ""
    after_s: float = 0.0
    start_delay_s: float | None = None
    capture_s: float | None = None
    alignment_s: float | None = None
    store_s: float | None = None

    def phases(self) -> list[tuple[str, float, str]]:
        """Return the CSS class, the duration and a description of each phase whose duration is known."""
        all_phases = [(name, getattr(self, figure), label) for name, figure, label in PHASES]
        return [(name, time_s, label) for name, time_s, label in all_phases if time_s is not None]


class EpochFacts(msgspec.Struct, frozen=True):
    epoch: int = 0
    status: str = ""
    plan: int = 0
    trigger: str = ""
    begun_s: float = 0.0
    took_s: float = 0.0
    reason: str = ""
    state_bytes: int | None = None
    channel_state_messages: int | None = None
    new_bytes: int | None = None
    last: PartFacts | None = None
    late: PartFacts | None = None

    @property
    def is_aborted(self) -> bool:
        """Return whether the epoch was aborted, so that it left no data."""
        return self.status == "aborted"


class EndedEpochs(msgspec.Struct, frozen=True):
    """Ended epochs recorded in the coordinator's log, oldest first."""

    protocol: str = ""
    epochs: tuple[EpochFacts, ...] = ()


def epochs_body(document: dict[str, object]) -> Markup:
    """Draw the screen *Epochs* from the JSON output of `snapline snapshot history`."""
    history = msgspec.convert(document, EndedEpochs)
    title = tag("div", tag("h1", "Epochs"), class_="title")
    if not history.epochs:
        return join([title, tag("p", "No epoch has ended yet.", class_="quiet")])
    targets = Targets(epochs=shown_epochs(document))
    rows = [_row(epoch, targets) for epoch in reversed(history.epochs)]
    aborted = sum([epoch.is_aborted for epoch in history.epochs])
    summary = f"{plural(len(history.epochs), 'epoch')}, {aborted:,} aborted"
    chart = section("course", "How long they took", _chart(history.epochs), _legend(history.epochs))
    return join([title, chart, section("ended", summary, table(COLUMNS, rows, label="Epochs that have ended"))])


def no_history() -> Markup:
    """Draw the screen *Epochs* for a coordinator whose release is too old to report the history."""
    notice = "This coordinator keeps no history of epochs: it is of an older release. `snapline snapshot list` has what is in the store."
    return join([tag("div", tag("h1", "Epochs"), class_="title"), tag("p", notice, class_="strip warn")])


# ---- the chart ------------------------------------------------------------------------------------------------------


def _chart(epochs: Sequence[EpochFacts]) -> Markup:
    """Draw a bar chart with one bar per epoch, oldest first.

    The longest complete epoch determines the scale, since an aborted epoch may have waited for minutes.
    """
    most_s = max([epoch.took_s for epoch in epochs if not epoch.is_aborted], default=0.0)
    most_s = most_s or max([epoch.took_s for epoch in epochs]) or 1.0
    bars = [_bar(index * (BAR + GAP), epoch, most_s) for index, epoch in enumerate(epochs)]
    box = f"0 0 {max(60, len(epochs)) * (BAR + GAP)} {HEIGHT}"
    label = f"Duration of {plural(len(epochs), 'epoch')}, up to {seconds(most_s)}; the table has the figures"
    return tag("svg", *bars, class_="epochs", viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


def _bar(x: int, epoch: EpochFacts, most_s: float) -> Markup:
    about = tag("title", f"epoch {epoch.epoch}: {epoch.status}, {seconds(epoch.took_s)}")
    bar_height = min(HEIGHT, max(1.0, HEIGHT * epoch.took_s / most_s))
    if epoch.is_aborted:
        return tag("g", about, _part(x, HEIGHT - bar_height, bar_height, "aborted"))
    parts, y = [_part(x, HEIGHT - bar_height, bar_height, "rest")], float(HEIGHT)
    for name, time_s, _ in epoch.last.phases() if epoch.last is not None else ():
        height = min(HEIGHT * time_s / most_s, y - (HEIGHT - bar_height))
        y -= height
        parts.append(_part(x, y, height, name))
    return tag("g", about, *parts)


def _part(x: int, y: float, height: float, name: str) -> Markup:
    return tag("rect", x=x, y=px(y), width=BAR, height=px(height), class_=name)


def _legend(epochs: Sequence[EpochFacts]) -> Markup:
    names = [
        *[(name, f"the last host {label}") for name, _, label in PHASES],
        ("rest", "the coordinator, and the network"),
    ]
    marks = [tag("span", tag("i", class_=f"mark {name}"), label) for name, label in (*names, ("aborted", "aborted"))]
    unknown = any(epoch.last is None and not epoch.is_aborted for epoch in epochs)
    more = "Of epochs that no host reports, made of checkpoints that agents take on their own, phases are not known."
    return tag("p", *marks, f" {more}" if unknown else None, class_="legend quiet")


# ---- the table ------------------------------------------------------------------------------------------------------


def _row(epoch: EpochFacts, targets: Targets) -> Markup:
    figures = (
        seconds(epoch.took_s),
        size(epoch.new_bytes),
        size(epoch.state_bytes),
        count(epoch.channel_state_messages),
    )
    cells = [
        tag("td", targets.epoch(epoch.epoch)),
        tag("td", age(epoch.begun_s)),
        tag("td", epoch.trigger),
        tag("td", pill("epoch", epoch.status)),
    ]
    cells += [tag("td", figure, class_="number") for figure in figures]
    return tag("tr", *cells, tag("td", _why(epoch), class_="wide"))


def _why(epoch: EpochFacts) -> Child:
    last, late = epoch.last, epoch.late
    sentences = [f"{epoch.reason}."] if epoch.reason else []
    if last is None:
        return sentences[0] if sentences else NOTHING
    sentences.append(f"{last.host} reported last, {_ms(last.after_s)} after the begin{_longest(last)}.")
    if late is not None and late.host != last.host and late.agent:
        took_s = (late.start_delay_s or 0.0) + (late.capture_s or 0.0)
        sentences.append(f"Recorded latest: {late.agent} on {late.host}, after {_ms(took_s)}.")
    return " ".join(sentences)


def _longest(last: PartFacts) -> str:
    """Describe the phase that took the host the most time."""
    phases = last.phases()
    if not phases:
        return "; its release does not say why"
    _, time_s, words = max(phases, key=lambda phase: phase[1])
    agent = f" {last.agent}" if last.agent else " it"
    return (
        f":{agent} {words} for {_ms(time_s)}" if words.startswith("waited") else f":{agent}, {words} in {_ms(time_s)}"
    )


def _ms(time_s: float) -> str:
    return f"{time_s * 1000:.1f} ms" if time_s < 1 else seconds(time_s)
