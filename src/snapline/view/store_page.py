"""Page of the snapshots of a store at rest, for a file: no coordinator is running to report the fleet's state."""

from snapline.messages.answers import SnapshotList
from snapline.storage.retention.catalog import SnapshotSummary
from snapline.view.frame import section, table
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.number_format import count, plural, size

ROWS_MAX = 256
"""Largest number of snapshots, the newest: as many as the history of epochs has."""

COLUMNS = (
    *(("Epoch", ""), ("Taken", ""), ("Why", ""), ("Plan", "number"), ("Hosts", "number"), ("Agents", "number")),
    *(("States", "number"), ("In transit", "number"), ("Kept as", "wide")),
)


def store_body(listed: SnapshotList) -> Markup:
    """Draw what `snapline snapshot list -o json` prints."""
    newest = listed.snapshots[-1] if listed.snapshots else None
    about = [listed.store, *([newest.fleet, newest.protocol] if newest is not None else [])]
    title = tag("div", tag("h1", "Store"), tag("p", " · ".join(filter(None, about)), class_="quiet"), class_="title")
    shown = list(reversed(listed.snapshots[-ROWS_MAX:]))
    summary = plural(len(listed.snapshots), "snapshot") + (
        f", the newest {ROWS_MAX} are shown" if len(listed.snapshots) > ROWS_MAX else ""
    )
    damage = (
        tag("p", f"Its tags cannot be read: {listed.tags_damage}.", class_="strip bad") if listed.tags_damage else None
    )
    fork = (
        tag("p", f"The fleet was forked from epoch {listed.fork.epoch} of {listed.fork.parent_name}.")
        if listed.fork
        else None
    )
    rows = [_row(each, listed) for each in shown]
    body = table(COLUMNS, rows, label="Snapshots") if rows else tag("p", "It holds no snapshot.", class_="quiet")
    return join([title, damage, fork, section("snapshots", summary, body)])


def _row(each: SnapshotSummary, listed: SnapshotList) -> Markup:
    name = tag("th", tag("a", each.epoch, href=f"/epochs/{each.epoch}"), scope="row")
    if each.damage:
        return tag("tr", name, tag("td", f"cannot be read: {each.damage}", class_="wide bad", colspan=len(COLUMNS) - 1))
    names = [tag for tag, epoch in sorted(listed.tags.items()) if epoch == each.epoch]
    kept = [*names, *(["pinned"] if each.epoch in listed.pins else [])]
    numbers: list[Child] = [
        *(count(each.plan), count(len(each.hosts)), count(each.agent_count), size(each.state_bytes)),
        count(each.channel_state_messages),
    ]
    cells = [tag("td", number, class_="number") for number in numbers]
    created = each.created.replace("T", " ").removesuffix("Z")
    return tag(
        "tr", name, tag("td", created), tag("td", each.trigger), cells, tag("td", ", ".join(kept), class_="wide")
    )
