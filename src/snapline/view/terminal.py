"""Draw the screen *Fleet* in a terminal. The terminal screen shows the fleet's state, the hosts with their turns per second, and long
turns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from snapline.messages.status import FleetStatus, HostStatus
from snapline.security.printable import printable
from snapline.view.display_text import (
    Tone,
    count,
    describe_concern,
    describe_interval,
    describe_recoveries,
    describe_work_at_risk,
    plural,
    rate,
    seconds,
    size,
    tone_of,
)
from snapline.view.text_columns import columns_that_fit
from snapline.view.watch import LatestStatus

COLORS: dict[Tone, str] = {"good": "green", "plain": "", "warn": "yellow", "bad": "red"}

BARS = "▁▂▃▄▅▆▇█"
COURSE_MAX = 40

BUSY_MAX = 5
CONCERNS_MAX, CONCERN_LINES = 8, 2
"""Largest number of concerns shown, and number of terminal lines that one concern usually takes."""

HEAD_LINES = 10
"""Number of terminal lines above and below the hosts."""

COLUMNS = (
    "HOST",
    "STATE",
    "AGENTS",
    "TURNS/S",
    "BUSY",
    "PARKED",
    "DEAD LETTERS",
    "INPUTS",
    "OUTPUTS",
    "START",
    "ADDRESS",
)
NUMBERS = COLUMNS[2:10]
OPTIONAL = ("START", "ADDRESS", "OUTPUTS", "INPUTS", "PARKED", "BUSY", "DEAD LETTERS")
"""Columns that narrow terminals leave out, the first ones first."""


def draw(heard: LatestStatus, *, lines: int, width: int) -> RenderableType:
    """Draw one screen with `lines` lines of `width` characters. The busiest hosts are listed, and the remaining hosts are only counted."""
    facts = heard.facts
    if facts is None:
        return _text(heard.trouble or "nobody has answered yet", style="red" if heard.trouble else "")
    parts: list[RenderableType] = [_title(facts), *_figures(facts, heard)]
    if heard.trouble:
        parts.append(_text(f"! {heard.trouble}; this is how it stood before", style="red"))
    concerns = [
        _text(
            f"! {describe_concern(each.text, each.remedy, since_s=each.since_ns / 1e9, now_s=heard.updated_s)}",
            style=COLORS[tone_of("concern", each.kind)],
        )
        for each in facts.concerns[:CONCERNS_MAX]
    ]
    if len(facts.concerns) > CONCERNS_MAX:
        concerns.append(_text(f"! and {len(facts.concerns) - CONCERNS_MAX} more: `snapline status`", style="yellow"))
    parts += concerns
    busy = sorted(
        [(turn.elapsed_ns, turn.agent, host.host) for host in facts.hosts for turn in host.busy], reverse=True
    )
    room = max(1, lines - HEAD_LINES - CONCERN_LINES * len(concerns) - min(len(busy), BUSY_MAX))
    parts += [Text(), *_hosts(facts.hosts, heard, room, width)]
    parts += [_text(f"{agent} on {host}: in one turn for {seconds(ns / 1e9)}") for ns, agent, host in busy[:BUSY_MAX]]
    return Group(*parts)


def _text(words: str, style: str = "") -> Text:
    return Text(printable(words), style)


def _title(facts: FleetStatus) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(printable(facts.fleet), style="bold").append("  ").append(
        printable(facts.phase), style=COLORS[tone_of("fleet", facts.phase)]
    )
    more = f"  {facts.protocol}  plan {facts.plan}" + (f"  led by {facts.leader}" if facts.leader else "")
    return text.append(printable(f"{more}  {facts.reason}".rstrip()))


def _figures(facts: FleetStatus, heard: LatestStatus) -> list[Text]:
    alive = sum([host.state == "alive" for host in facts.hosts])
    epochs = f"{facts.epochs_completed:,} complete, {facts.epochs_aborted:,} aborted, {facts.epochs_open:,} open"
    dead_letters = facts.total("dead_letters")
    waiting = f"{plural(facts.total('inputs_waiting'), 'input')}, {plural(facts.total('outputs_waiting'), 'output')}"
    store = f"store {facts.store.state}{f': {facts.store.reason}' if facts.store.reason else ''}"
    last = _text(
        f"waiting: {waiting} ({size(facts.total('output_bytes_waiting'))})  parked {facts.total('parked'):,}  "
    )
    last.append(
        plural(dead_letters, "dead letter"), style=COLORS[tone_of("agent", "dead letters") if dead_letters else "plain"]
    ).append(printable(f"  {store}"))
    return [
        _text(
            f"{plural(facts.agents, 'agent')} on {alive:,} of {plural(max(facts.hosts_expected, len(facts.hosts)), 'host')}"
        ),
        _text(f"turns/s {rate(heard.turns_per_s)} {bars(heard.course)}".rstrip()),
        _text(f"epochs: {epochs}; the last complete one is {count(facts.last_complete_epoch or None)}"),
        _text(f"interval: {describe_interval(facts.interval)}"),
        _text(f"work at risk: {describe_work_at_risk(facts)}  recoveries: {describe_recoveries(facts.loss)}"),
        last,
    ]


def bars(course: Sequence[float]) -> str:
    """Draw the latest numbers as a text bar chart, scaled from 0 to the largest number."""
    shown = course[-COURSE_MAX:]
    most = max(shown, default=0.0)
    return "".join(
        [BARS[min(len(BARS) - 1, int(len(BARS) * value / most))] if most > 0 else BARS[0] for value in shown]
    )


def _hosts(hosts: Sequence[HostStatus], heard: LatestStatus, room: int, width: int) -> list[RenderableType]:
    """Draw the hosts in order. If not all hosts fit, draw only those with problems and those with the most turns."""
    rates = heard.host_turns_per_s
    chosen = sorted(hosts, key=lambda host: (host.state == "alive", -rates.get(host.host, 0.0)))[:room]
    names = {host.host for host in chosen}
    rows = [_row(host, rates.get(host.host)) for host in hosts if host.host in names]
    cells = [[Text(column) for column in COLUMNS], *rows]
    widths = [max(row[at].cell_len for row in cells) for at in range(len(COLUMNS))]
    columns = columns_that_fit(widths, map(COLUMNS.index, OPTIONAL), width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at in columns:
        table.add_column(COLUMNS[at], justify="right" if COLUMNS[at] in NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[row[at] for at in columns])
    hidden = len(hosts) - len(chosen)
    return [table, *([_text(f"and {plural(hidden, 'host')} more")] if hidden else [])]


def _row(host: HostStatus, turns_per_s: float | None) -> list[Text]:
    state = _text(host.state, style=COLORS[tone_of("host", host.state)])
    cells = (
        *(count(host.agents), rate(turns_per_s), count(len(host.busy)), count(host.parked), count(host.dead_letters)),
        *(count(host.inputs_waiting), count(host.outputs_waiting), count(host.host_start), host.address),
    )
    return [_text(host.host), state.append(" drained") if host.is_drained else state, *[_text(cell) for cell in cells]]
