"""The screen *Coordinators*: the coordinator's replicas, each as it reports its own state."""

from collections.abc import Sequence

from snapline.messages.status import AskedReplica, ReplicaStatus
from snapline.view.frame import section, table
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.number_format import NOTHING, count, plural, size
from snapline.view.tones import pill

COLUMNS = (
    *(("Replica", ""), ("Address", ""), ("Role", ""), ("Connected to", "wide"), ("Term", "number")),
    *(("Committed", "number"), ("Applied", "number"), ("Log", "")),
)


def coordinators_body(replicas: Sequence[AskedReplica]) -> Markup:
    """The whole screen."""
    statuses = [each.status for each in replicas if each.status is not None]
    leader = max([each for each in statuses if each.standing.is_leader], key=_term, default=None)
    led = "none of them leads" if leader is None else f"{leader.node} leads, term {leader.standing.term}"
    summary = f"{len(statuses):,} of {plural(len(replicas), 'replica')} answered; {led}"
    rows = [_row(each, leader) for each in replicas]
    title = tag("div", tag("h1", "Coordinators"), tag("p", summary, class_="quiet"), class_="title")
    more = "Each was asked for this page. Positions are numbers of entries in the coordinator's log."
    return join(
        [title, section("replicas", "Replicas", table(COLUMNS, rows, label="Replicas"), tag("p", more, class_="quiet"))]
    )


def _term(status: ReplicaStatus) -> int:
    return status.standing.term


def role_of(status: ReplicaStatus) -> str:
    """Return "leader", "learner" or "follower"."""
    return "leader" if status.standing.is_leader else "learner" if status.is_learner else "follower"


def _row(replica: AskedReplica, leader: ReplicaStatus | None) -> Markup:
    status, head = replica.status, [tag("th", replica.id, scope="row"), tag("td", replica.address)]
    if status is None:
        known = (
            ""
            if leader is None
            else "; the leader is" + " not" * (replica.id not in leader.connected) + " connected to it"
        )
        why = tag("td", f"{replica.problem}{known}", class_="wide", colspan=len(COLUMNS) - 3)
        return tag("tr", head, tag("td", pill("replica", "silent")), why)
    role: list[Child] = [pill("replica", role_of(status))]
    if status.is_learner:
        role.append(" lost its log, catches up, does not vote")
    connected = ", ".join(status.connected) or NOTHING
    majority = "" if status.has_quorum else "; no majority"
    numbers = (status.standing.term, status.commit_index, status.applied)
    log = f"{status.first_index:,} to {status.last_index:,}, {size(status.journal_bytes)}"
    return tag(
        "tr",
        head,
        tag("td", role, class_="wide"),
        tag("td", f"{connected}{majority}", class_="wide"),
        [tag("td", count(number), class_="number") for number in numbers],
        tag("td", log),
    )
