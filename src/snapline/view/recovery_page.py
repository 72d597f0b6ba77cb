"""Draw the screen *Recovery*. The screen *Recovery* shows past recoveries, and what a failure of each agent or host would currently
cost."""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.agent_runtime.effect_ledger import Effect
from snapline.view.display_text import NOTHING, count, plural, seconds
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import Targets, agent_link, section, table
from snapline.view.pending_work_page import EFFECT_COLUMNS, effect_row

ROWS_MAX = 100
CHOICES_MAX = 60
"""Largest number of agents that have a checkbox. Operators type the names of other agents into a text field."""

FATES_MAX = 10
"""Number of newest recoveries whose effects are shown. Use `snapline recovery report PLAN` for older recoveries."""

CELLS_MAX = 6_400
"""Largest number of cells in a heat map, which is eighty by eighty. If a map would be larger, the page only lists its rows."""

HISTORY_COLUMNS = (
    *(("Plan", "number"), ("When", ""), ("Took", "number"), ("Back to epoch", "number"), ("Went back", "number")),
    *(("Delivered again", "number"), ("Why", "wide"), ("OutputsReverted", "wide")),
)


class AgentCost(msgspec.Struct, frozen=True):
    """Work that an agent loses when a recovery rolls it back."""

    to: int | None = None
    checkpoints: int = 0
    turns: int = 0


class LineFacts(msgspec.Struct, frozen=True):
    """The output of `snapline recovery line`. `rolled_back` contains the names of the rolled-back agents, or only how many they are."""

    epoch: int = 0
    failed: tuple[str, ...] = ()
    recovery_line: dict[str, int | None] = {}
    rolled_back: tuple[str, ...] | int = 0
    rollback: dict[str, AgentCost] | None = None
    in_transit: int = 0
    messages_delivered_again: int = 0
    silent_hosts: tuple[str, ...] = ()


class FailureFacts(msgspec.Struct, frozen=True):
    """Cost of a failure. `failed` is an agent's name, or a host in the form `host:h1`."""

    failed: str
    rolled_back: tuple[str, ...] = ()
    turns: int | None = None
    rollback: dict[str, AgentCost] | None = None


class LinesFacts(msgspec.Struct, frozen=True):
    """The output of `snapline recovery line --each`."""

    epoch: int = 0
    lines: tuple[FailureFacts, ...] = ()
    silent_hosts: tuple[str, ...] = ()


class PastFacts(msgspec.Struct, frozen=True):
    """A past recovery. Times are in UTC, in RFC 3339 format."""

    plan: int
    line_epoch: int = 0
    reason: str = ""
    lost_hosts: tuple[str, ...] = ()
    rolled_back: int = 0
    messages_delivered_again: int = 0
    suspected: str = ""
    duration_s: float | None = None
    is_restore: bool = False
    void_epochs: tuple[int, ...] = ()


class HistoryFacts(msgspec.Struct, frozen=True):
    """The output of `snapline recovery history`."""

    recoveries: tuple[PastFacts, ...] = ()


def recovery_body(
    line: LineFacts,
    lines: LinesFacts,
    past: HistoryFacts,
    hosts: Sequence[str],
    agents: Sequence[str],
    effects: Mapping[int, Sequence[Effect]],
    targets: Targets,
) -> Markup:
    """Draw the screen *Recovery*.

    `effects` maps each epoch to the external effects that were unfinished in its cut. `targets` contains the agents and epochs that have
    their own page.
    """
    form = _form(line, hosts, agents)
    one_failure = section("failure", "What a failure would cost now", form, line_result(line))
    each_failure = section("each", "Each failure", heat_map(lines), _silent(lines.silent_hosts))
    return join(
        [
            tag("div", tag("h1", "Recovery"), class_="title"),
            one_failure,
            each_failure,
            _history(past, targets),
            _effects(past, effects, targets),
        ]
    )


# -- one failure ----------------------------------------------------------------------------------------------------------


def _form(line: LineFacts, hosts: Sequence[str], agents: Sequence[str]) -> Markup:
    names = [f"host:{host}" for host in hosts]
    names += agents if len(agents) <= CHOICES_MAX else []
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", name="failed", value=name, checked=name in line.failed),
            name.replace("host:", "host "),
        )
        for name in names
    ]
    typed = ",".join([name for name in line.failed if name not in names])
    field = tag(
        "input", type="search", name="others", value=typed, placeholder="Others, with commas", aria_label="Others"
    )
    legend = tag("legend", "These fail; none of them: all do", class_="quiet")
    ask = tag("button", "Ask")
    return tag(
        "form",
        tag("fieldset", legend, boxes, class_="boxes"),
        field if len(agents) > CHOICES_MAX else None,
        ask,
        method="get",
        action="/recovery",
        class_="search",
        data_live="line",
    )


def line_result(line: LineFacts) -> Markup:
    """Draw the checkpoint to which each rolled-back agent would return."""
    rolled_back = _back(line)
    named = ", ".join([name.replace("host:", "host ") for name in line.failed])
    condition = f"{named} {'fails' if len(line.failed) == 1 else 'fail'}" if named else "all fail"
    summary = f"{len(rolled_back):,} of {plural(len(line.recovery_line), 'agent')} go back if {condition}."
    again = line.in_transit if line.rollback is not None else line.messages_delivered_again
    known = f"No line falls below epoch {line.epoch}." if line.epoch else "No epoch is complete yet."
    if line.rollback is None:
        known = f"They go back to epoch {line.epoch}." if line.epoch else "They start again: no epoch is complete yet."
    more = f"{known} {plural(again, 'message')} would be delivered again."
    return tag(
        "div",
        tag("p", tag("b", summary), role="status"),
        tag("p", more),
        _silent(line.silent_hosts),
        _costs(line, rolled_back),
        id="line",
    )


def _back(line: LineFacts) -> list[str]:
    return [agent for agent, to in line.recovery_line.items() if to is not None]


def _costs(line: LineFacts, back: Sequence[str]) -> Markup | None:
    """Draw the work that each agent would lose. Return None if it is unknown.

    Losses differ between agents if agents take checkpoints independently.
    """
    if line.rollback is None or not back:
        return None
    costs = {agent: line.rollback.get(agent, AgentCost()) for agent in back}
    rows = []
    for agent, cost in sorted(costs.items(), key=lambda each: -each[1].turns)[:ROWS_MAX]:
        numbers = (line.recovery_line[agent], cost.checkpoints, cost.turns)
        cells = [tag("td", count(number), class_="number") for number in numbers]
        rows.append(tag("tr", tag("th", agent_link(agent), scope="row"), cells))
    columns = (("Agent", ""), ("To checkpoint", "number"), ("Passed over", "number"), ("Turns undone", "number"))
    more = f"and {len(back) - ROWS_MAX:,} more" if len(back) > ROWS_MAX else None
    return join([table(columns, rows, label="Who goes back"), tag("p", more, class_="quiet") if more else None])


def _silent(hosts: Sequence[str]) -> Markup | None:
    notice = f"An estimate: not heard in time: {', '.join(hosts)}."
    return tag("p", notice, class_="strip warn") if hosts else None


# -- each failure ----------------------------------------------------------------------------------------------------------


def heat_map(lines: LinesFacts) -> Child:
    """Draw a heat map with a row for each possible failure and a column for each agent.

    Cells of agents that would be rolled back are coloured, and are darker the more turns are lost.
    """
    if not lines.lines:
        return tag("p", "No agent or host can fail yet.", class_="quiet")
    agents = sorted({agent for failure in lines.lines for agent in failure.rolled_back})
    ordered = sorted(
        lines.lines, key=lambda failure: (-len(failure.rolled_back), -(failure.turns or 0), failure.failed)
    )
    drawn = _map(ordered, agents) if 0 < len(agents) * len(ordered) <= CELLS_MAX else None
    rows = [
        tag(
            "tr",
            tag("th", failure.failed.replace("host:", "host "), scope="row"),
            tag("td", count(len(failure.rolled_back)), class_="number"),
            tag("td", count(failure.turns), class_="number"),
        )
        for failure in ordered[:ROWS_MAX]
    ]
    columns = (("If this fails", ""), ("Agents go back", "number"), ("Turns undone", "number"))
    more = f"and {len(ordered) - ROWS_MAX:,} more, which cost less" if len(ordered) > ROWS_MAX else None
    listed = table(columns, rows, label="Each failure")
    summary = tag("summary", "As a table", class_="quiet")
    table_of = listed if drawn is None else tag("details", summary, listed, id="each-table")
    return join([drawn, table_of, tag("p", more, class_="quiet") if more else None])


def _map(lines: Sequence[FailureFacts], agents: Sequence[str]) -> Markup:
    size, left = 12, 150
    most = max([cost.turns for failure in lines for cost in (failure.rollback or {}).values()], default=0)
    column = {agent: left + size * number for number, agent in enumerate(agents)}
    drawn: list[Child] = []
    for number, failure in enumerate(lines):
        y = size * number
        name = failure.failed.replace("host:", "host ")
        drawn.append(tag("text", name if len(name) <= 20 else f"{name[:19]}…", x=left - 6, y=y + 10, text_anchor="end"))
        for agent in failure.rolled_back:
            turns = (failure.rollback or {}).get(agent, AgentCost()).turns
            lost = f", {plural(turns, 'turn')} undone" if failure.rollback is not None else ""
            shade = 3 if failure.rollback is None else 1 + min(2, int(3 * turns / most)) if most else 1
            tooltip = tag("title", f"{name} fails: {agent} goes back{lost}")
            cell = {"x": column[agent], "y": y + 1, "width": size - 1, "height": size - 1}
            drawn.append(tag("rect", tooltip, class_=f"heat-{shade}", **cell))
    width, height = left + size * len(agents) + 4, size * len(lines) + 2
    label = f"{plural(len(lines), 'failure')}, {plural(len(agents), 'agent')}: who goes back"
    picture = tag(
        "svg", drawn, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=label
    )
    return tag("div", picture, class_="heat", tabindex="0", role="region", aria_label=label)


# -- past recoveries -------------------------------------------------------------------------------------------------------


def _history(past: HistoryFacts, targets: Targets) -> Markup:
    rows = [_recovery(recovery, targets) for recovery in reversed(past.recoveries[-ROWS_MAX:])]
    body = table(HISTORY_COLUMNS, rows, label="Recoveries") if rows else tag("p", "There was none yet.", class_="quiet")
    return section("history", "Recoveries", body)


def _recovery(each: PastFacts, targets: Targets) -> Markup:
    void = f"{plural(len(each.void_epochs), 'epoch')} void" if each.void_epochs else ""
    lost = f"lost {', '.join(each.lost_hosts)}" if each.lost_hosts else ""
    epoch = targets.epoch(each.line_epoch) if each.line_epoch else NOTHING
    return tag(
        "tr",
        tag("th", each.plan, scope="row", class_="number"),
        tag("td", each.suspected.replace("T", " ").removesuffix("Z")),
        tag("td", "lasts" if each.duration_s is None else seconds(each.duration_s), class_="number"),
        tag("td", epoch, class_="number"),
        tag("td", count(each.rolled_back), class_="number"),
        tag("td", count(each.messages_delivered_again), class_="number"),
        tag("td", ": ".join(filter(None, ["on purpose" if each.is_restore else "", each.reason])), class_="wide"),
        tag("td", ", ".join(filter(None, [lost, void])), class_="wide"),
    )


def _effects(past: HistoryFacts, effects: Mapping[int, Sequence[Effect]], targets: Targets) -> Markup:
    """Draw the outcomes of external effects that were unfinished in the cuts restored by the newest recoveries."""
    recoveries = [
        (recovery, effects.get(recovery.line_epoch, ())) for recovery in reversed(past.recoveries[-FATES_MAX:])
    ]
    parts = [
        tag(
            "details",
            tag(
                "summary",
                f"Plan {recovery.plan}: {plural(len(effects_open), 'effect')} open in {_line_words(recovery)}",
            ),
            table(
                EFFECT_COLUMNS,
                [effect_row(effect, targets) for effect in effects_open[:ROWS_MAX]],
                label=f"Effects of plan {recovery.plan}",
            ),
            tag("p", f"and {len(effects_open) - ROWS_MAX:,} more", class_="quiet")
            if len(effects_open) > ROWS_MAX
            else None,
            id=f"effects-{recovery.plan}",
            open=True,
        )
        for recovery, effects_open in recoveries
        if effects_open
    ]
    none = tag("p", "No effect was open where the last recoveries went back to.", class_="quiet")
    return section("effects", "Fates of effects", parts or none)


def _line_words(each: PastFacts) -> str:
    return f"epoch {each.line_epoch}" if each.line_epoch else "the initial states"
