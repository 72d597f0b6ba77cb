"""Rules for log operations on the fleet's definition, hosts, process deaths, epoch outcomes and users. `fleet_state.py` applies
these rules.

*Definition.* The first operations in a log contain the fleet's definition and its initial agents. The definition takes several operations,
each of which may be repeated. A repetition changes nothing. A different definition is refused. The naming rules also apply to agents that
are created later.

*Deaths* of processes during turns are counted, so that a message that crashes its process is not delivered forever. While a turn runs, its
host keeps a record of the turn outside the process's memory (`agent_runtime/host/turn_marks.py`). After the process has died, the host's
next process or the launcher reports this record. The death is then counted for that turn. Each plan contains the counts, so that hosts
receive them. A message whose count exceeds the limit becomes a dead letter without another turn. The death of a host's process is counted
only once, even if several processes report it.

When a turn succeeds, its count is reset. If a host's process ends between turns, the next process may run different code. So the counts of
all agents on the host are reset.

If several turns were running when the process died, the death is counted for each of them. Exception: if turns on the event loop that
already have a count were running, only these turns are counted. Turns in threads run for a long time and are less likely to be the cause.

The `check_…` functions validate *tools' requests about hosts* before the requests reach the leader core.

*Outcomes* of ended epochs are kept for hosts that repeat a report. Statistics of ended epochs are kept for operators.

*Users.* The state contains only the digest of a token (`security/tokens.py`). When an operator or admin makes a call that changes the
fleet, the call and the digest of its token are recorded in the audit log. The rules below refuse to record the call if its token is no
longer valid. So a token becomes useless on every replica at the log entry that revokes it.

Admitted and refused calls are kept in separate tables, so that a user without rights cannot displace the records of other users. Both
tables are bounded. A host that exceeds its share of a table displaces only its own entries. Calls are numbered consecutively, so dropped
records can be counted.

*Placement* of the agents is computed by a pure function when a plan is committed, so every replica computes the same placement.
"""

import heapq
import hmac
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    AGENTS_EVER_MAX,
    ALIVE,
    APPLIED,
    ENDS_KEPT,
    LEFT,
    OUTCOMES_KEPT,
    OVER,
    REASON_CHARACTERS_MAX,
    REFUSED,
    UNCHANGED,
    AgentRecord,
    CallRecord,
    EpochAccount,
    EpochEnd,
    EpochRecord,
    FleetImage,
    HostRecord,
    LogRecord,
    OperationResult,
    OutcomeRecord,
    TokenRecord,
    agents_max,
    is_id,
    problem_of_agent_size,
)
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import NotFoundError, UsageError
from snapline.messages.host_messages import PlaceRule, TurnDeath
from snapline.protocols.names import GLOBAL, problem_of_recovery
from snapline.security.tokens import ALLOWED, USER_ROLES
from snapline.security.tokens import REFUSED as REFUSED_CALL


def define_fleet(state: FleetView, kind: op.DefineFleet) -> OperationResult:
    """Define the fleet. Repeating the same definition changes nothing. A different definition is refused."""
    image = state.image
    if image.agents_defined:
        if image.definition_digest == kind.definition_digest:
            return OperationResult(UNCHANGED)
        return OperationResult(REFUSED, "another fleet has been defined already")
    if image.fork is not None and image.definition_digest != kind.definition_digest:
        return OperationResult(REFUSED, "the fork was made for another definition of the fleet")
    if not 0 < kind.agents <= agents_max(kind.protocol):
        return OperationResult(REFUSED, f"a fleet has 1 to {agents_max(kind.protocol)} agents, this one {kind.agents}")
    recovery = kind.recovery or GLOBAL
    if problem := problem_of_recovery(recovery, kind.protocol):
        return OperationResult(REFUSED, problem)
    image.cluster, image.name, image.protocol = kind.cluster, kind.name, kind.protocol
    image.period_ns, image.epoch_timeout_ns = kind.period_ns, kind.epoch_timeout_ns
    image.definition_digest, image.agents_defined = kind.definition_digest, kind.agents
    image.never_stops, image.policy, image.log_bytes_max = kind.never_stops, kind.policy, kind.log_bytes_max
    image.definition_parts = list(kind.parts)
    image.places, image.rpo_ns, image.rto_ns = list(kind.places), kind.rpo_ns, kind.rto_ns
    image.recovery = recovery
    return OperationResult(APPLIED)


def define_agents(state: FleetView, kind: op.DefineAgents) -> OperationResult:
    """Define the next initial agents, in the order of the definition."""
    image = state.image
    position = len(image.agents)
    if state.is_defined or kind.first < position:
        return OperationResult(UNCHANGED, number=position)
    if kind.first > position or len(kind.agents) != len(kind.kinds):
        return OperationResult(
            REFUSED, f"agents from {kind.first} on were defined, {position} is next", number=position
        )
    if position + len(kind.agents) > image.agents_defined:
        return OperationResult(REFUSED, f"more agents than the {image.agents_defined} announced", number=position)
    names = dict.fromkeys(kind.agents)
    if len(names) != len(kind.agents) or not all(is_id(x) and x not in image.agents for x in names):
        return OperationResult(REFUSED, "an agent is defined twice, or has no valid id", number=position)
    for number, (agent, agent_kind) in enumerate(zip(kind.agents, kind.kinds, strict=True), position):
        if problem := problem_of_agent_size(agent, agent_kind, number):
            return OperationResult(REFUSED, problem, number=position)
    for agent, agent_kind in zip(kind.agents, kind.kinds, strict=True):
        image.agents[agent] = AgentRecord(agent_kind, ordinal=next_ordinal(image))
    return OperationResult(APPLIED, number=len(image.agents))


def next_ordinal(image: FleetImage) -> int:
    """Return an ordinal that no agent of this fleet has had, and mark it as used."""
    image.next_ordinal += 1
    return image.next_ordinal - 1


def refusal_of_names(state: FleetView, kind: op.CreateAgents) -> str:
    """Return why these agents cannot be created, or "" if they can."""
    image = state.image
    if not kind.agents or len(kind.agents) != len(kind.kinds):
        return "a creation names agents and their kinds"
    if kind.parent and not is_id(kind.parent):
        return f"{kind.parent!r} is no valid agent id"
    for agent in kind.agents:
        if not is_id(agent):
            return f"{agent!r} is no valid agent id"
        if (agent in image.agents or agent in image.gone) and not state.may_create_again(agent, kind.parent):
            return f"agent {agent} has been created before, and ids are never used again"
    if len(dict.fromkeys(kind.agents)) != len(kind.agents):
        return "an agent is created twice"
    count_max = agents_max(image.protocol)
    new = [(x, y) for x, y in zip(kind.agents, kind.kinds, strict=True) if not state.is_child_of(x, kind.parent)]
    if len(image.agents) + len(new) > count_max:
        return f"a fleet has at most {count_max} agents, those counted that left since the oldest kept epoch"
    for number, (agent, agent_kind) in enumerate(new, len(image.agents)):
        if problem := problem_of_agent_size(agent, agent_kind, number):
            return problem
    if len(image.agents) + len(image.gone) + len(new) > AGENTS_EVER_MAX:
        return f"a fleet has at most {AGENTS_EVER_MAX} agents in all its life"
    return ""


def keep_report(image: FleetImage, kind: op.AdmitHost) -> None:
    """Record what an admitted process runs on. Equal reports are kept once."""
    key = ""
    if kind.dependencies:
        key = blake2b(msgspec.msgpack.encode(sorted(kind.dependencies.items())), digest_size=8).hexdigest()
        image.reports[key] = kind.dependencies
    image.hosts[kind.host].report = key
    drop_reports(image)


def drop_reports(image: FleetImage) -> None:
    """Drop the reports that belong to no known host."""
    used = dict.fromkeys([record.report for record in image.hosts.values()])
    image.reports = {key: report for key, report in image.reports.items() if key in used}


def forget_hosts(state: FleetView, kind: op.ForgetHosts) -> OperationResult:
    """Remove the records of lost and departed hosts. A new host gets a larger start number than any removed host had (G9)."""
    image = state.image
    needed = [host for host in kind.hosts if host in image.hosts and not state.may_forget(host)]
    if needed:
        return OperationResult(REFUSED, f"host {needed[0]} is alive, or agents are placed there until the next plan")
    removed = [image.hosts.pop(host) for host in kind.hosts if host in image.hosts]
    drop_reports(image)
    image.forgotten_start = max([image.forgotten_start, *[record.start for record in removed]])
    return OperationResult(APPLIED) if removed else OperationResult(UNCHANGED, "no such host is known")


def drain_hosts(state: FleetView, kind: op.DrainHosts) -> OperationResult:
    """Set or clear the drain mark of hosts. The next plan moves the agents of drained hosts."""
    records = [state.image.hosts[host] for host in kind.hosts if host in state.image.hosts]
    changed = [record for record in records if record.is_drained != kind.is_drained]
    for record in changed:
        record.is_drained = kind.is_drained
    return OperationResult(APPLIED if changed else UNCHANGED)


def open_host_log(state: FleetView, kind: op.OpenHostLog) -> OperationResult:
    """Record a host's input log and its newest batch, so that the hosts of later plans know both."""
    end = state.why_work_is_over(kind.host, kind.host_start, kind.plan)
    if end:
        return OperationResult(OVER, end)
    logs = state.image.logs
    record = LogRecord(kind.plan, kind.host, kind.host_start, kind.newest)
    for index, known in enumerate(logs):
        if (known.plan, known.host, known.host_start) == (record.plan, record.host, record.host_start):
            if known.newest >= record.newest:
                return OperationResult(UNCHANGED)
            logs[index] = record
            return OperationResult(APPLIED)
    logs.append(record)
    return OperationResult(APPLIED)


DEATHS_KEPT = 256
"""Largest number of turns for which deaths are counted. A turn takes about 200 bytes in the image and in each plan. The least recently
counted turn is forgotten first."""


def count_process_end(image: FleetImage, host: str, record: HostRecord, died_in: tuple[TurnDeath, ...]) -> None:
    """Record that a host's process ended while the turns `died_in` were running. If `died_in` is empty, the process is assumed to have
    ended between turns."""
    if record.died == record.instance:
        return
    if not died_in:
        agents = image.agents
        image.deaths = [x for x in image.deaths if x.agent not in agents or agents[x.agent].host != host]
        return
    record.died = record.instance
    for death in _counted(image, died_in):
        times = 1 + max([x.times for x in image.deaths if is_same(x, death)], default=0)
        others = [x for x in image.deaths if not is_same(x, death)]
        image.deaths = [*others, replace(death, times=times)][-DEATHS_KEPT:]


def _counted(image: FleetImage, died_in: tuple[TurnDeath, ...]) -> tuple[TurnDeath, ...]:
    on_loop = tuple([x for x in died_in if not x.is_beside and any(is_same(x, counted) for counted in image.deaths)])
    return on_loop or died_in


def is_same(one: TurnDeath, other: TurnDeath) -> bool:
    """Return whether both turns handle the same message to the same agent."""
    return one.agent == other.agent and one.digest == other.digest


def forgive(image: FleetImage, kind: op.ForgiveTurn) -> OperationResult:
    """Reset the death count of a turn."""
    others = [x for x in image.deaths if x.agent != kind.agent or x.digest != kind.digest]
    is_changed = len(others) < len(image.deaths)
    image.deaths = others
    return OperationResult(APPLIED if is_changed else UNCHANGED)


def note_complete(image: FleetImage, kind: op.CompleteEpoch, record: EpochRecord) -> None:
    """Record that the epoch is complete."""
    sizes = (kind.state_bytes, kind.channel_state_bytes, kind.channel_state_messages)
    begun = (kind.epoch, record.plan, record.trigger, record.begun_ns)
    _note(image, EpochEnd(*begun, record.ended_ns, True, "", *sizes, account=kind.account))


def note_aborted(
    image: FleetImage, epoch: int, record: EpochRecord, reason: str, account: EpochAccount | None = None
) -> None:
    """Record that the epoch was aborted."""
    begun = (epoch, record.plan, record.trigger, record.begun_ns)
    _note(image, EpochEnd(*begun, image.now_ns, False, reason, account=account))


def _note(image: FleetImage, end: EpochEnd) -> None:
    image.outcomes.append(OutcomeRecord(end.epoch, end.is_complete, end.reason))
    del image.outcomes[:-OUTCOMES_KEPT]
    image.ends.append(_short(end))
    del image.ends[:-ENDS_KEPT]


def _short(end: EpochEnd) -> EpochEnd:
    if len(end.reason) <= REASON_CHARACTERS_MAX:
        return end
    sizes = (end.state_bytes, end.channel_state_bytes, end.channel_state_messages)
    reason = end.reason[: REASON_CHARACTERS_MAX - 1] + "…"
    begun = (end.epoch, end.plan, end.trigger, end.begun_ns)
    return EpochEnd(*begun, end.ended_ns, end.is_complete, reason, *sizes, account=end.account)


TOKENS_MAX = 256
"""Largest number of tokens. A limit is needed because each call of a user compares its token with all tokens."""

CALLS_KEPT, REFUSALS_KEPT = 2000, 500
"""Numbers of admitted and of refused calls that are kept. Each record takes about 500 bytes, so all records take less than 2 MiB of the
state's 16 MiB. To keep more records, save the output of `snapline audit` regularly."""

HOST_SHARE = 8
"""Divisor that limits the share of a table that one host's calls may fill: one eighth, which is 250 admitted or 62 refused calls."""

DIGEST_BYTES = 32


def apply_user_operation(image: FleetImage, kind: op.UserOperation, now_ns: int) -> OperationResult:
    """Apply an operation that concerns users: MakeToken, RevokeToken or RecordCall."""
    match kind:
        case op.MakeToken():
            return _make_token(image, kind, now_ns)
        case op.RevokeToken():
            return _revoke_token(image, kind)
        case op.RecordCall():
            return _record_call(image, kind, now_ns)


def bearer_of(image: FleetImage, digest: bytes, now_ns: int) -> tuple[str, str] | None:
    """Return the name and role of the token with this digest, or None if the token is not valid.

    The digest is compared with all tokens in constant time, so the running time reveals nothing about the tokens.
    """
    bearer = None
    for name, record in image.tokens.items():
        is_match = hmac.compare_digest(record.digest, digest)
        if is_match and now_ns < record.expires_ns:
            bearer = (name, record.role)
    return bearer


def _make_token(image: FleetImage, kind: op.MakeToken, now_ns: int) -> OperationResult:
    if not is_id(kind.name) or kind.role not in USER_ROLES or len(kind.digest) != DIGEST_BYTES:
        return OperationResult(REFUSED, f"a token has a name, and one of the roles {', '.join(USER_ROLES)}")
    valid_tokens = {name: record for name, record in image.tokens.items() if now_ns < record.expires_ns}
    existing = valid_tokens.get(kind.name)
    if existing is not None and (existing.role, existing.digest, existing.expires_ns) == (
        kind.role,
        kind.digest,
        kind.expires_ns,
    ):
        return OperationResult(UNCHANGED)
    if existing is not None:
        return OperationResult(REFUSED, f"there is a token {kind.name}: revoke it first, or choose another name")
    if len(valid_tokens) >= TOKENS_MAX:
        return OperationResult(REFUSED, f"a fleet has at most {TOKENS_MAX} tokens: revoke one that nobody uses")
    image.tokens = {**valid_tokens, kind.name: TokenRecord(kind.role, kind.digest, now_ns, kind.expires_ns)}
    return OperationResult(APPLIED)


def _revoke_token(image: FleetImage, kind: op.RevokeToken) -> OperationResult:
    if image.tokens.pop(kind.name, None) is None:
        return OperationResult(UNCHANGED, f"there is no token {kind.name}")
    return OperationResult(APPLIED)


def _record_call(image: FleetImage, kind: op.RecordCall, now_ns: int) -> OperationResult:
    is_borne = bool(kind.digest)
    if is_borne and kind.outcome == ALLOWED and bearer_of(image, kind.digest, now_ns) != (kind.name, kind.role):
        return OperationResult(REFUSED, f"the token of {kind.name} is not good any more")
    image.calls_made += 1
    made = CallRecord(
        image.calls_made, now_ns, kind.name, kind.role, is_borne, kind.at, kind.call, kind.about, kind.outcome
    )
    table, kept = (image.refusals, REFUSALS_KEPT) if kind.outcome == REFUSED_CALL else (image.calls, CALLS_KEPT)
    if kind.at:
        own_indices = [index for index, earlier in enumerate(table) if earlier.at == kind.at]
        if len(own_indices) >= kept // HOST_SHARE:
            del table[own_indices[0]]
    table.append(made)
    del table[:-kept]
    return OperationResult(APPLIED, number=made.number)


Hosts = Mapping[str, HostRecord]


def check_moves(hosts: Hosts, drained: Sequence[str], resumed: Sequence[str]) -> None:
    """Check that all named hosts exist, and that agents can be moved away from the `drained` hosts.

    Raises:
        NotFoundError: one of the hosts does not exist.
        UsageError: no host would be left for the agents.
    """
    for host in (*drained, *resumed):
        _host_record(hosts, host)
    remaining = [
        host
        for host, record in hosts.items()
        if record.state == ALIVE and host not in drained and (host in resumed or not record.is_drained)
    ]
    if drained and not remaining:
        raise UsageError("no other host would be left for the agents: start one first")


def describe_absence(record: HostRecord) -> str:
    """Return what messages say of a host that is not alive."""
    return "has left the fleet" if record.state == LEFT else f"is {record.state}"


def check_placed(state: FleetView, placed: Mapping[str, str]) -> None:
    """Check that the agents in `placed` exist, and may run on the hosts to which `placed` maps them.

    Raises:
        NotFoundError: an agent or host does not exist.
        UsageError: a host is not alive or is drained, or a placement rule names other hosts for an agent.
    """
    living = dict(state.living_agents())
    for agent, host in placed.items():
        if agent not in living:
            raise NotFoundError(f"no agent {agent!r} in this fleet: `snapline agent list` lists its agents")
        record = _host_record(state.image.hosts, host)
        if record.state != ALIVE:
            raise UsageError(f"host {host} {describe_absence(record)}: `snapline host list` lists the hosts")
        if record.is_drained:
            raise UsageError(f"host {host} is drained: `snapline host resume {host}` lets agents come there")
        allowed = _own_hosts([agent], sorted(state.image.hosts), state.image.places).get(agent)
        if allowed is not None and host not in allowed:
            raise UsageError(
                f"agent {agent!r} is to run on {', '.join(allowed)}, as `place` in the fleet's definition says"
            )


def check_end(hosts: Hosts, host: str, host_start: int = 0) -> None:
    """Check that the host is alive and that its current start number is `host_start`. If `host_start` is 0, accept any start number.

    Raises:
        NotFoundError: the host does not exist.
        UsageError: the host is not alive, or has a different start number.
    """
    record = _host_record(hosts, host)
    if host_start and record.start != host_start:
        raise UsageError(f"start {host_start} of host {host} is over already: it runs as start {record.start}")
    if record.state != ALIVE:
        raise UsageError(f"host {host} {describe_absence(record)}: there is nothing to end")


def check_forgetting(state: FleetView, host: str) -> None:
    """Check that the host's record is no longer needed.

    Raises:
        NotFoundError: the host does not exist.
        UsageError: the host's record is still needed.
    """
    record = _host_record(state.image.hosts, host)
    if not state.may_forget(host):
        is_alive = record.state == ALIVE
        why = "is alive: end its process first" if is_alive else "still has agents: they move with the next recovery"
        raise UsageError(f"host {host} {why}")


def _host_record(hosts: Hosts, host: str) -> HostRecord:
    if host not in hosts:
        raise NotFoundError(f"no host {host!r} in this fleet: `snapline host list` lists its hosts")
    return hosts[host]


def place(
    agents: Iterable[tuple[str, str]],
    hosts: Sequence[str],
    places: Sequence[PlaceRule] = (),
    *,
    weights: Mapping[str, int] | None = None,
    is_even: bool = False,
) -> dict[str, str]:
    """Assign a host to each agent.

    If a placement rule names an agent, the agent may run only on the rule's hosts, unless none of them is in `hosts`. An agent that no rule
    names may run on any host. An agent stays on its current host if it may run there. With `is_even`, the agent must move if the host
    already has its share of agents. The remaining agents are placed in the given order, but agents that a rule names are placed first. An
    agent is placed on the permitted host with the least weight so far, or in a tie, on the first host by name. So the weight of a host that
    receives an agent without a rule exceeds the smallest weight of any host by at most the weight of the heaviest moved agent.

    Args:
        agents: pairs of an agent and its current host (or ""), in an order that is the same on every replica.
        hosts: the hosts that may receive agents; must not be empty.
        places: placement rules. The first rule that names an agent applies to it.
        weights: maps each host to the weight of every agent that is currently on it. Agents on other hosts have the average weight. If
            `is_even` is set or no weights are given, all agents have the same weight.
        is_even: whether to spread the number of agents evenly over the hosts.
    """
    living, everywhere = list(agents), sorted(hosts)
    rule_hosts = _own_hosts([agent for agent, _ in living], everywhere, places) if places else {}
    shares = _shares(living, everywhere) if is_even else None
    host_weights = weights if weights and not is_even else {}
    average_weight = max(1, sum(host_weights.values()) // len(host_weights)) if host_weights else 1
    placed: dict[str, str] = {}
    load = dict.fromkeys(everywhere, 0)
    unplaced: dict[str, int] = {}
    for agent, host in living:
        weight = host_weights.get(host, average_weight)
        is_here = host in load and (shares is None or load[host] < shares[host])
        if is_here and (agent not in rule_hosts or host in rule_hosts[agent]):
            placed[agent] = host
            load[host] += weight
        else:
            placed[agent], unplaced[agent] = "", weight
    for agent, weight in unplaced.items():
        if agent in rule_hosts:
            host = min(rule_hosts[agent], key=lambda name: (load[name], name))
            placed[agent] = host
            load[host] += weight
    _fill({agent: weight for agent, weight in unplaced.items() if agent not in rule_hosts}, load, placed)
    return placed


def are_weights(weights: Sequence[int], hosts: Sequence[str]) -> bool:
    """Return whether `weights` is empty or contains one positive weight for each host."""
    return not weights or (len(weights) == len(hosts) and min(weights) > 0)


def weights_by_host(hosts: Sequence[str], weights: Sequence[int]) -> dict[str, int]:
    """Map each host to the weight of each agent on it. Return an empty dictionary if `weights` is empty."""
    return dict(zip(hosts, weights, strict=True)) if weights else {}


def _own_hosts(agents: Sequence[str], hosts: Sequence[str], places: Sequence[PlaceRule]) -> dict[str, Sequence[str]]:
    """Map each agent that a rule restricts to the available hosts on which the agent may run."""
    rule_hosts = [[host for host in hosts if host in rule.hosts] for rule in places]
    own: dict[str, Sequence[str]] = {}
    for agent in agents:
        rule_index = next((number for number, rule in enumerate(places) if rule.applies_to(agent)), None)
        if rule_index is not None and rule_hosts[rule_index]:
            own[agent] = rule_hosts[rule_index]
    return own


def _fill(agents: Mapping[str, int], load: Mapping[str, int], placed: dict[str, str]) -> None:
    """Place each agent on the host with the least weight so far."""
    queue = [(weight, host) for host, weight in load.items()]
    heapq.heapify(queue)
    for agent, weight in agents.items():
        lightest, host = queue[0]
        placed[agent] = host
        heapq.heapreplace(queue, (lightest + weight, host))


def _shares(agents: Sequence[tuple[str, str]], hosts: Sequence[str]) -> dict[str, int]:
    """Map each host to the number of its agents that may stay there. The remainder of the division goes to the hosts that have the most
    agents, so that few agents move."""
    host_share, remainder = divmod(len(agents), len(hosts))
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host in load:
            load[host] += 1
    fullest = dict.fromkeys(sorted(hosts, key=lambda host: -load[host])[:remainder])
    return {host: host_share + (host in fullest) for host in hosts}
