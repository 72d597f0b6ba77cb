"""Screens of actions: possible actions, confirmation and outcome. All work without scripts."""

from collections.abc import Container, Sequence
from urllib.parse import urlencode

from snapline.storage.retention.catalog import SnapshotSummary
from snapline.view.facts import FleetFacts, HostFacts
from snapline.view.frame import section, table
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.number_format import count, size
from snapline.view.operator_actions import ActionField, ActionOutcome, KeptSnapshots, ProposedAction, others_for_agents
from snapline.view.tones import pill

ROWS_MAX = 100

HOST_COLUMNS = (("Host", ""), ("State", ""), ("Agents", "number"), ("Actions", ""))
SNAPSHOT_COLUMNS = (
    *(("Epoch", "number"), ("Taken", ""), ("Agents", "number"), ("States", "number"), ("In transit", "number")),
    *(("Kept as", ""), ("Actions", "")),
)


def action_link(verb: str, words: str, **query: object) -> Markup:
    """Draw a link to a confirmation page; following it changes nothing."""
    address = f"/act/{verb}" + (f"?{urlencode(query)}" if query else "")
    return tag("a", words, href=address, class_="deed")


def links_of_epoch(epoch: int, *, can_restore: bool, is_here: bool) -> Markup:
    """Draw links to the actions on a snapshot."""
    restore = (("restore", "Restore"),) if can_restore else ()
    verbs = [*restore, *((("tag", "Tag"), ("pin", "Pin"), ("fork", "Fork")) if is_here else ())]
    return tag("p", [action_link(verb, f"{label} epoch {epoch}", snapshot=epoch) for verb, label in verbs])


def actions_body(facts: FleetFacts, kept: KeptSnapshots, restorable: Container[int], *, is_here: bool) -> Markup:
    """Draw the possible actions; `restorable`: epochs to which the fleet can go back."""
    title = tag("div", tag("h1", "Actions"), class_="title")
    about = tag("p", "Each action first shows its effects, and runs after confirmation.", class_="quiet")
    now = tag("p", action_link("snapshot", "Take a snapshot"))
    hosts = table(HOST_COLUMNS, [_host(host, facts) for host in facts.hosts], label="Hosts")
    rows = [
        _snapshot(each, kept, can_restore=each.epoch in restorable, is_here=is_here)
        for each in reversed(kept.snapshots[-ROWS_MAX:])
    ]
    held = table(SNAPSHOT_COLUMNS, rows, label="Snapshots") if rows else tag("p", "There is none yet.", class_="quiet")
    hint = "Tags, pins and forks are made where the store is: start the view there, with --data-dir."
    away = None if is_here else tag("p", hint, class_="quiet")
    more = len(kept.snapshots) - ROWS_MAX
    rest = tag("p", f"and {more:,} older ones: see `snapline snapshot list`", class_="quiet") if more > 0 else None
    return join(
        [title, about, now, section("hosts", "Hosts", hosts), section("snapshots", "Snapshots", held, rest, away)]
    )


def _host(host: HostFacts, facts: FleetFacts) -> Markup:
    actions: list[Child] = []
    if host.state == "alive":
        if host.is_drained:
            actions.append(_sole("resume", host))
        elif others_for_agents(facts, host):
            actions.append(_sole("drain", host))
        actions.append(_sole("kill", host))
    state = tag("td", pill("host", host.state), " drained" if host.is_drained else None)
    return tag(
        "tr",
        tag("th", host.host, scope="row"),
        state,
        tag("td", count(host.agents), class_="number"),
        tag("td", actions),
    )


def _sole(verb: str, host: HostFacts) -> Markup:
    return action_link(verb, f"{verb.capitalize()} {host.host}", host=host.host)


def _snapshot(each: SnapshotSummary, kept: KeptSnapshots, *, can_restore: bool, is_here: bool) -> Markup:
    epoch, names = each.epoch, kept.tags_of(each.epoch)
    is_pinned = epoch in kept.pins
    if each.damage:
        return tag(
            "tr", tag("th", epoch, scope="row", class_="number"), tag("td", f"damaged: {each.damage}", colspan=6)
        )
    actions = [action_link("restore", f"Restore {epoch}", snapshot=epoch)] if can_restore else []
    if is_here:
        pin = ("unpin", "Unpin") if is_pinned else ("pin", "Pin")
        verbs = (("tag", "Tag"), pin, ("fork", "Fork"))
        actions += [action_link(verb, f"{label} {epoch}", snapshot=epoch) for verb, label in verbs]
        actions += [action_link("untag", f"Remove tag {name}", name=name) for name in names]
    figures = (count(each.agent_count), size(each.state_bytes), count(each.channel_state_messages))
    return tag(
        "tr",
        tag("th", tag("a", epoch, href=f"/epochs/{epoch}"), scope="row", class_="number"),
        tag("td", each.created),
        [tag("td", figure, class_="number") for figure in figures],
        tag("td", ", ".join([*names, *(["pinned"] if is_pinned else [])])),
        tag("td", actions),
    )


def confirmation_body(proposed: ProposedAction, address: str, hidden: Sequence[tuple[str, str]]) -> Markup:
    """Draw what will happen, and the button that does it."""
    fields = [_field(each) for each in proposed.fields]
    secrets = [tag("input", type="hidden", name=name, value=value) for name, value in hidden]
    button = tag("button", proposed.button, class_="grave" if proposed.is_grave else None)
    leave = tag("a", "Leave it", href="/act")
    form = tag("form", secrets, fields, tag("p", button, leave), method="post", action=address, class_="confirm")
    effects = tag("ul", [tag("li", each) for each in proposed.sentences])
    title = tag("div", tag("h1", f"{proposed.title}?"), class_="title")
    return join([title, effects, proposed.more, form])


def _field(field: ActionField) -> Markup:
    id = f"field-{field.name}"
    label = tag("label", field.label, for_=id)
    if field.choices:
        options = [tag("option", words, value=value) for value, words in field.choices]
        return tag("p", label, tag("select", options, name=field.name, id=id))
    box = tag("input", type="text", name=field.name, id=id, required=field.is_required, maxlength=field.characters_max)
    return tag("p", label, box)


def outcome_body(proposed: ProposedAction, outcome: ActionOutcome | None) -> Markup:
    """Draw the outcome; None: the action is in progress."""
    title = tag("div", tag("h1", proposed.title), class_="title")
    link_back = tag("a", "Actions", href="/act")
    if outcome is None:
        return join([title, tag("p", "It is under way.", class_="strip", role="status"), tag("p", link_back)])
    strip = tag(
        "p",
        outcome.sentence,
        class_="strip bad" if outcome.is_bad else "strip",
        role="alert" if outcome.is_bad else "status",
    )
    where = tag("a", outcome.where, href=outcome.address) if outcome.address != "/act" else None
    return join([title, strip, tag("p", where, class_="deeds"), tag("p", link_back)])
