"""Draw the pages of the live fleet.

- *Fleet* shows the hosts and agents, including which agents are busy, parked or waiting. The page updates live.
- The page of an agent shows the agent's state, and what its host reports about it.
- *Coordinators* shows the coordinator's replicas and the state that each of them reports.
"""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import msgspec

from snapline.diagrams.style import px
from snapline.messages.answers import LocatedAgent
from snapline.messages.client_requests import AgentState
from snapline.messages.status import AskedReplica, FleetStatus, HostStatus, ReplicaStatus
from snapline.protocols.names import LOCAL
from snapline.view.display_text import (
    NOTHING,
    TONES,
    Tone,
    count,
    describe_interval,
    describe_recoveries,
    describe_work_at_risk,
    pill,
    plural,
    rate,
    seconds,
    size,
    tone_of,
    worst,
)
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import DEPTH_MAX, Partial, agent_link, section, table, tree, trouble, value_tree
from snapline.view.watch import ENDED, LatestStatus

ROWS_MAX = 100
"""Largest number of agents in the table, because ten thousand rows are unreadable. Viewers find the remaining agents by searching."""

BUSY_MAX = 20
NOTICES_OPEN, NOTICES_MAX = 4, 100
"""Largest number of concerns that are shown expanded below the headline, and largest number shown in total. Hundreds of agents may be
stopped after an upgrade."""

HOSTS_NAMED = 5
TILES_MIN = 13
"""Smallest number of hosts for which the page also shows tiles, because a table of a hundred hosts does not fit on a screen."""

LOADS = 5
"""Number of colour shades that show the load of a host in its tile."""

HOST_COLUMNS = (
    *(("Host", ""), ("State", ""), ("Agents", "number"), ("Turns / s", "number"), ("Busy", "number")),
    *(("Parked", "number"), ("Dead letters", "number"), ("Inputs waiting", "number"), ("Outputs waiting", "number")),
    *(("Start", "number"), ("Address", "")),
)
AGENT_COLUMNS = (("Agent", ""), ("Host", ""), ("Incarnation", "number"), ("State", ""))


class AgentSearch(msgspec.Struct, frozen=True):
    """A search for agents. `text` must occur in the agent's name. `host` and `state` must match the agent's exactly. An empty field matches
    all agents."""

    text: str = ""
    host: str = ""
    state: str = ""

    def finds(self, agents: Iterable[LocatedAgent]) -> list[LocatedAgent]:
        """Return the matching agents in their original order."""
        text = self.text.casefold()
        return [
            agent
            for agent in agents
            if (not text or text in agent.agent.casefold())
            and (not self.host or agent.host == self.host)
            and (not self.state or agent.state == self.state)
        ]


class FleetScreen:
    """Draws the screen *Fleet* and caches parts of it.

    The table of hosts and the results of each search are the same for all viewers, so they are cached until they change.
    """

    SEARCHES_KEPT = 64

    def __init__(self) -> None:
        self._found: dict[AgentSearch, tuple[Sequence[LocatedAgent], Markup]] = {}
        self._drawn: tuple[LatestStatus, list[Partial]] | None = None

    def body(self, standing: LatestStatus, search: AgentSearch) -> Markup:
        """Draw the whole screen."""
        return join([piece.html for piece in self._tops(standing, search) if piece.id != "found"])

    def pieces(self, standing: LatestStatus, search: AgentSearch) -> list[Partial]:
        """Return the elements of the screen that may change while it is shown."""
        return [*self._tops(standing, search), *self._rows(standing)]

    def _rows(self, standing: LatestStatus) -> list[Partial]:
        if self._drawn is None or self._drawn[0] is not standing:
            self._drawn = (standing, _rows(standing))
        return self._drawn[1]

    def _tops(self, standing: LatestStatus, search: AgentSearch) -> list[Partial]:
        return [
            Partial("notices", _notices(standing)),
            Partial("title", _title(standing)),
            Partial("figures", _figures(standing)),
            Partial("tiles", _tiles(standing)),
            Partial("hosts", _host_table(self._rows(standing)), key=" ".join([host.host for host in _hosts(standing)])),
            Partial("busy", _busy(standing)),
            self._section(standing, search),
            Partial("found", self.found(standing, search)),
        ]

    def _section(self, standing: LatestStatus, search: AgentSearch) -> Partial:
        """Return the search form with its results.

        The form is sent again only if its choices change, because a viewer may be typing into it.
        """
        form, key = _form(standing, search)
        return Partial("agents", section("agents", "Agents", form, self.found(standing, search)), key)

    def found(self, standing: LatestStatus, search: AgentSearch) -> Markup:
        """Draw the agents that match the search."""
        known = self._found.get(search)
        if known is None or known[0] is not standing.agents:
            known = (standing.agents, _found(standing, search))
            while len(self._found) >= self.SEARCHES_KEPT:
                del self._found[next(iter(self._found))]
            self._found[search] = known
        return known[1]


# -- head ----------------------------------------------------------------------------------------------------------------


LEADS: Mapping[Tone, str] = {"bad": "Something is wrong: ", "warn": "Worth a look: ", "good": "All is well: "}
"""First words of the headline, by tone, for readers who cannot see the colours."""


class Notice(msgspec.Struct, frozen=True):
    """Notice about the whole fleet. `text` and `remedy` are sentences without their full stops."""

    tone: Tone
    text: str
    since_s: float | None = None
    remedy: str = ""


def _notices(standing: LatestStatus) -> Markup:
    """Draw the most serious notice as a headline, and all other notices below it."""
    strips: list[Child] = [trouble(standing.trouble, standing.updated_s)]
    notices = [] if standing.facts is None else _all_notices(standing.facts)
    if notices and not standing.trouble:
        strips.append(_strip(notices.pop(0), is_headline=True))
    elif standing.trouble:
        notices = [each for each in notices if each.tone in ("warn", "bad")]
    strips += [_strip(each) for each in notices[:NOTICES_OPEN]]
    if hidden := notices[NOTICES_OPEN:NOTICES_MAX]:
        summary = tag("summary", f"and {len(notices) - NOTICES_OPEN:,} more")
        more = tag("p", "`snapline status` has all of them.") if len(notices) > NOTICES_MAX else None
        strips.append(tag("details", summary, [_strip(each) for each in hidden], more, id="more-notices"))
    return tag("div", strips, id="notices")


def _all_notices(facts: FleetStatus) -> list[Notice]:
    """Return at least one notice, in descending order of seriousness."""
    notices: list[Notice] = []
    if facts.phase in ENDED:
        reason = f": {facts.reason}" if facts.reason else ""
        notices.append(Notice(tone_of("fleet", facts.phase), f"the fleet has {facts.phase}{reason}"))
    if facts.store.state == "degraded":
        notices.append(Notice("bad", f"the store fails: {facts.store.reason}", facts.store.since_ns / 1e9))
    for each in sorted(facts.concerns, key=lambda each: -each.since_ns):
        notices.append(Notice(tone_of("concern", each.kind), each.text, each.since_ns / 1e9, each.remedy))
    if not any(each.kind == "hosts" for each in facts.concerns):
        notices += _missing(facts)
    if not notices and facts.phase == "running":
        alive = sum([host.state == "alive" for host in facts.hosts])
        notices.append(Notice("good", f"{plural(facts.agents, 'agent')} on {plural(alive, 'host')}"))
    return sorted(notices or [Notice("warn", f"the fleet is {facts.phase or 'in no phase known here'}")], key=_badness)


def _badness(notice: Notice) -> int:
    return -TONES.index(notice.tone)


def _missing(facts: FleetStatus) -> list[Notice]:
    """Return notices about lost hosts, and about a fleet that has not started or has not resumed."""
    lost = [host.host for host in facts.hosts if host.state == "lost"]
    notices = []
    if lost and facts.phase not in ENDED:
        named = ", ".join(lost[:HOSTS_NAMED]) + (f" and {len(lost) - HOSTS_NAMED:,} more" if lost[HOSTS_NAMED:] else "")
        verb = "hosts are" if len(lost) > 1 else "host is"
        remedy = "`snapline host logs ID` says why; start it again, or `snapline host forget ID`"
        notices.append(Notice(tone_of("host", "lost"), f"{len(lost):,} {verb} lost: {named}", remedy=remedy))
    if facts.phase in ("forming", "recovering"):
        text = "the fleet recovers" if facts.phase == "recovering" else "the fleet waits for its hosts"
        notices.append(Notice(tone_of("fleet", facts.phase), text))
    return notices


def _strip(notice: Notice, *, is_headline: bool = False) -> Markup:
    lead = LEADS.get(notice.tone, "") if is_headline else ""
    text = notice.text if lead else f"{notice.text[:1].upper()}{notice.text[1:]}"
    since = "" if notice.since_s is None else f" For {seconds(notice.since_s)}."
    remedy = f" To do: {notice.remedy}." if notice.remedy else ""
    quiet = tag("span", f"{since}{remedy}", class_="quiet") if since or remedy else None
    kind = f"strip {notice.tone}{' headline' if is_headline else ''}"
    return tag("p", tag("b", lead) if lead else None, f"{text}.", quiet, class_=kind)


def _title(standing: LatestStatus) -> Markup:
    facts = standing.facts
    if facts is None:
        return tag("div", tag("h1", "Waiting for the fleet"), id="title", class_="title")
    protocol = f"{facts.protocol} ({facts.mode})" if facts.mode else facts.protocol
    if facts.recovery == LOCAL:
        protocol += ", local recovery"
    led = f"{facts.leader} leads, term {facts.term}" if facts.leader else "nobody leads"
    replicas = tag("a", plural(len(facts.replicas), "coordinator"), href="/coordinators")
    return tag(
        "div",
        tag("h1", facts.fleet or "Fleet"),
        pill("fleet", facts.phase),
        tag("p", f"{protocol} · plan {facts.plan} · ", replicas, f", {led}", class_="quiet"),
        id="title",
        class_="title",
    )


def _figures(standing: LatestStatus) -> Markup:
    facts = standing.facts or FleetStatus()
    alive = sum([host.state == "alive" for host in facts.hosts])
    expected = max(facts.hosts_expected, len(facts.hosts))
    waiting, dead_letters = facts.total("inputs_waiting"), facts.total("dead_letters")
    epochs = f"{facts.epochs_completed:,} complete, {facts.epochs_aborted:,} aborted, {facts.epochs_open:,} open"
    tiles = [
        _figure("Agents", count(facts.agents), f"on {alive:,} of {plural(expected, 'host')}"),
        _figure("Turns per second", rate(standing.turns_per_s), sparkline(standing.course)),
        _figure(
            "Last complete epoch",
            count(facts.last_complete_epoch or None),
            f"{epochs}; {describe_interval(facts.interval)}",
            is_broad=True,
        ),
        _figure(
            "Work at risk",
            describe_work_at_risk(facts),
            f"recoveries: {describe_recoveries(facts.loss)}",
            tone=worst([tone_of("concern", kind) for kind in facts.loss.missed]),
        ),
        _figure(
            "Inputs waiting",
            count(waiting),
            f"{facts.total('outputs_waiting'):,} outputs ({size(facts.total('output_bytes_waiting'))})",
        ),
        _figure("Parked", count(facts.total("parked")), f"{plural(facts.total('agents_full'), 'agent')} full"),
        _figure(
            "Dead letters", count(dead_letters), "", tone=tone_of("agent", "dead letters") if dead_letters else "plain"
        ),
    ]
    return tag("dl", *tiles, id="figures", class_="figures")


def _figure(name: str, value: str, more: Child, *, tone: Tone = "plain", is_broad: bool = False) -> Markup:
    figure = tag("dd", value, class_=tone)
    return tag("div", tag("dt", name), figure, tag("dd", more, class_="more"), class_="broad" if is_broad else None)


SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 120, 28


def sparkline(values: Sequence[float]) -> Markup:
    """Draw a time series as an SVG line, scaled from 0 to the largest value."""
    most = max(values, default=0.0)
    if len(values) < 2 or most <= 0:
        points = f"0,{SPARKLINE_HEIGHT - 1} {SPARKLINE_WIDTH},{SPARKLINE_HEIGHT - 1}"
    else:
        step = SPARKLINE_WIDTH / (len(values) - 1)
        points = " ".join(
            [f"{px(n * step)},{px(1 + (SPARKLINE_HEIGHT - 2) * (1 - v / most))}" for n, v in enumerate(values)]
        )
    line = tag("polyline", points=points, fill="none")
    box = f"0 0 {SPARKLINE_WIDTH} {SPARKLINE_HEIGHT}"
    return tag("svg", line, class_="sparkline", viewBox=box, preserveAspectRatio="none", aria_hidden="true")


# -- hosts ---------------------------------------------------------------------------------------------------------------


def _hosts(standing: LatestStatus) -> Sequence[HostStatus]:
    return () if standing.facts is None else standing.facts.hosts


def _host_table(rows: Sequence[Partial]) -> Markup:
    nobody = tag("p", "No host has come yet.", class_="quiet")
    body = table(HOST_COLUMNS, [row.html for row in rows], label="Hosts") if rows else nobody
    return section("hosts", "Hosts", body)


def _rows(standing: LatestStatus) -> list[Partial]:
    most = max([each.agents for each in _hosts(standing)], default=0)
    fastest = max(standing.host_turns_per_s.values(), default=0.0)
    return [_row(host, standing, most=most, fastest=fastest) for host in _hosts(standing)]


def _row(host: HostStatus, standing: LatestStatus, *, most: int, fastest: float) -> Partial:
    turns = standing.host_turns_per_s.get(host.host)
    id = f"host-{host.host}"
    row = tag(
        "tr",
        tag("th", tag("a", host.host, href=f"/?host={quote(host.host)}#agents"), scope="row"),
        tag("td", pill("host", host.state), " drained" if host.is_drained else None),
        _bar(count(host.agents), host.agents, most),
        _bar(rate(turns), turns or 0.0, fastest),
        _number(len(host.busy)),
        _number(host.parked),
        _number(host.dead_letters, tone_of("agent", "dead letters")),
        _number(host.inputs_waiting),
        _number(host.outputs_waiting),
        _number(host.host_start),
        tag("td", tag("code", host.address)),
        id=id,
    )
    return Partial(id, row)


def _number(value: int, kind: str = "") -> Markup:
    return tag("td", count(value), class_=f"number {kind if value else 'zero'}".rstrip())


def _bar(words: str, value: float, most: float) -> Markup:
    """Draw a number, and a bar that shows its ratio to the largest number.

    The bar is an SVG image, because the page's content security policy forbids inline styles.
    """
    width = 0 if most <= 0 else max(0, min(100, round(100 * value / most)))
    bar = tag("rect", class_="bar-fill", width=width, height=4)
    drawn = tag("svg", bar, class_="bar", viewBox="0 0 100 4", preserveAspectRatio="none", aria_hidden="true")
    return tag("td", words, drawn, class_="number")


def _tiles(standing: LatestStatus) -> Markup:
    hosts = _hosts(standing)
    if len(hosts) < TILES_MIN:
        return tag("div", id="tiles", hidden=True)
    fastest = max(standing.host_turns_per_s.values(), default=0.0)
    tiles = []
    for host in hosts:
        turns = standing.host_turns_per_s.get(host.host, 0.0)
        load = 0 if fastest <= 0 else min(LOADS - 1, int(LOADS * turns / fastest))
        tooltip = f"{host.host}: {host.state}, {plural(host.agents, 'agent')}, {rate(turns)} turns a second"
        marks = f"tile {tone_of('host', host.state)} load-{load}"
        tiles.append(tag("a", href=f"#host-{host.host}", class_=marks, title=tooltip, aria_label=tooltip))
    return tag("div", *tiles, id="tiles", class_="tiles", role="group", aria_label="Hosts by turns per second")


# -- agents --------------------------------------------------------------------------------------------------------------


def _busy(standing: LatestStatus) -> Markup:
    turns = sorted(
        [(turn.elapsed_ns, turn.agent, host.host) for host in _hosts(standing) for turn in host.busy], reverse=True
    )
    if not turns:
        return tag("div", id="busy", hidden=True)
    rows = [
        tag(
            "tr",
            tag("th", agent_link(agent), scope="row"),
            tag("td", host),
            tag("td", seconds(ns / 1e9), class_="number"),
        )
        for ns, agent, host in turns[:BUSY_MAX]
    ]
    more = tag("p", f"and {len(turns) - BUSY_MAX:,} more", class_="quiet") if len(turns) > BUSY_MAX else None
    columns = (("Agent", ""), ("Host", ""), ("In one turn for", "number"))
    return section("busy", "Long turns", table(columns, rows, label="Long turns"), more)


def _found(standing: LatestStatus, search: AgentSearch) -> Markup:
    matches = search.finds(standing.agents)
    rows = [
        tag(
            "tr",
            tag("th", agent_link(each.agent), scope="row"),
            tag("td", each.host),
            tag("td", count(each.incarnation), class_="number"),
            tag("td", pill("agent", each.state)),
        )
        for each in matches[:ROWS_MAX]
    ]
    total = len(standing.agents)
    summary = plural(total, "agent") if len(matches) == total else f"{len(matches):,} of {plural(total, 'agent')}"
    if len(matches) > ROWS_MAX:
        summary += f", the first {ROWS_MAX} are shown"
    body = table(AGENT_COLUMNS, rows, label="Agents") if rows else tag("p", "No agent is found.", class_="quiet")
    return tag("div", tag("p", summary, class_="quiet", role="status"), body, id="found")


def _form(standing: LatestStatus, search: AgentSearch) -> tuple[Markup, str]:
    """Return the search form, and a key that changes with the choices that the form offers."""
    hosts = [host.host for host in _hosts(standing)]
    states = sorted({agent.state for agent in standing.agents} | ({search.state} if search.state else set()))
    field = tag("input", type="search", name="q", value=search.text, placeholder="Part of a name", aria_label="Name")
    form = tag(
        "form",
        field,
        _select("host", "Host", "all hosts", hosts, search.host),
        _select("state", "State", "all states", states, search.state),
        tag("button", "Search"),
        method="get",
        action="/",
        class_="search",
        data_live="found",
    )
    return form, " ".join([*hosts, "/", *states])


def _select(name: str, label: str, all_of: str, values: Sequence[str], chosen: str) -> Markup:
    options = [tag("option", value, value=value, selected=value == chosen) for value in values]
    return tag("select", tag("option", all_of, value=""), *options, name=name, aria_label=label)


# -- coordinators ------------------------------------------------------------------------------------------------------


REPLICA_COLUMNS = (
    *(("Replica", ""), ("Address", ""), ("Role", ""), ("Connected to", "wide"), ("Term", "number")),
    *(("Committed", "number"), ("Applied", "number"), ("Log", "")),
)


def coordinators_body(replicas: Sequence[AskedReplica]) -> Markup:
    """Draw the whole screen."""
    statuses = [each.status for each in replicas if each.status is not None]
    leader = max([each for each in statuses if each.standing.is_leader], key=_term, default=None)
    led = "none of them leads" if leader is None else f"{leader.node} leads, term {leader.standing.term}"
    summary = f"{len(statuses):,} of {plural(len(replicas), 'replica')} answered; {led}"
    rows = [_replica_row(each, leader) for each in replicas]
    title = tag("div", tag("h1", "Coordinators"), tag("p", summary, class_="quiet"), class_="title")
    more = "Each was asked for this page. Positions are numbers of entries in the coordinator's log."
    return join(
        [
            title,
            section(
                "replicas", "Replicas", table(REPLICA_COLUMNS, rows, label="Replicas"), tag("p", more, class_="quiet")
            ),
        ]
    )


def _term(status: ReplicaStatus) -> int:
    return status.standing.term


def role_of(status: ReplicaStatus) -> str:
    """Return the replica's role, which is "leader", "learner" or "follower"."""
    return "leader" if status.standing.is_leader else "learner" if status.is_learner else "follower"


def _replica_row(replica: AskedReplica, leader: ReplicaStatus | None) -> Markup:
    status, head = replica.status, [tag("th", replica.id, scope="row"), tag("td", replica.address)]
    if status is None:
        known = (
            ""
            if leader is None
            else "; the leader is" + " not" * (replica.id not in leader.connected) + " connected to it"
        )
        why = tag("td", f"{replica.problem}{known}", class_="wide", colspan=len(REPLICA_COLUMNS) - 3)
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


# -- one agent ---------------------------------------------------------------------------------------------------------


AGENT_HEAD = ("apiVersion", "kind", "agent", "agent_kind", "host", "incarnation", "life")

OPEN_BYTES_MAX = 2_000
"""Largest state, in bytes of JSON, that the page shows expanded. The fields of a larger state are collapsed."""


def agent_body(document: dict[str, object], state: AgentState | None = None, problem: str = "") -> Markup:
    """Draw an agent's page from the reply of `Client.describe` and the agent's state.

    `problem` says why the state is unknown or not live.
    """
    facts = [(name, document.get(name)) for name in document if name not in AGENT_HEAD]
    about = f"{document.get('agent_kind')} on {document.get('host')}, incarnation {document.get('incarnation')}"
    title = tag(
        "div",
        tag("h1", str(document.get("agent", ""))),
        pill("agent", str(document.get("life", ""))),
        tag("p", about, class_="quiet"),
        class_="title",
    )
    rows = [tag("div", tag("dt", name.replace("_", " ")), tag("dd", value_tree(value))) for name, value in facts]
    listed = section("status", "Status", tag("dl", *rows, class_="facts"))
    return join([title, _state(state, problem), listed])


def saved_body(agent: str, state: AgentState, problem: str) -> Markup:
    """Draw the page of an agent that no host can currently describe. `problem` says why."""
    title = tag(
        "div", tag("h1", agent), tag("p", f"{state.kind}, last on {state.host}", class_="quiet"), class_="title"
    )
    return join([title, _state(state, problem)])


def _state(state: AgentState | None, problem: str) -> Markup:
    why = tag("p", f"{problem[:1].upper()}{problem[1:]}.", class_="strip warn") if problem else None
    if state is None:
        return section("state", "State", why)
    about: Child = f"As it was at {state.time}, between two turns; a recovery may undo it."
    if not state.is_live:
        epoch = tag("a", f"epoch {state.epoch}", href=f"/epochs/{state.epoch}")
        about = ["As of ", epoch, f", {state.time}."]
    value = _opened(state.state) if not state.is_unborn else tag("p", "It is not born yet.", class_="quiet")
    return section("state", "State", why, tag("p", about, class_="quiet"), value)


def _opened(state: object) -> Markup:
    is_small = len(msgspec.json.encode(state)) <= OPEN_BYTES_MAX
    return tree(state, open_levels=DEPTH_MAX if is_small else 1)
