"""Placement of agents when a plan is committed. The result is computed by a pure function, so it is equal on every replica."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from snapline.messages.host_messages import PlaceRule


def place(
    agents: Iterable[tuple[str, str]],
    hosts: Sequence[str],
    places: Sequence[PlaceRule] = (),
    *,
    weights: Mapping[str, int] | None = None,
    is_even: bool = False,
) -> dict[str, str]:
    """Return the host of each agent.

    An agent named by a rule may be placed only on the rule's hosts, if any of them is in `hosts`. Other agents may be on any host. An agent
    that is already on a host where it may be stays there; with `is_even`, only as long as the host's share is not exceeded. The remaining
    agents are placed in the given order, those named by a rule first. An agent that must be placed goes to the host with the least weight
    so far; in a tie, to the first host by name. So after a host receives an agent without a rule, the host's weight exceeds that of the
    lightest host by at most the weight of the heaviest moved agent.

    Args:
        agents: pairs (agent, its current host or ""), in an order that is equal on every replica.
        hosts: the hosts that may receive agents; not empty.
        places: placement rules. The first rule that names an agent applies to it.
        weights: host → weight of each agent that is currently on this host. Agents of other hosts have the average weight. The weights are
            ignored if `is_even`; without weights, all agents have the same weight.
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
    """Map each agent that a rule restricts to those of `hosts` on which the agent may be placed."""
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
    """Return host → number of its agents that may stay. The remainder of the division goes to the hosts with the most agents, so that few
    agents move."""
    host_share, remainder = divmod(len(agents), len(hosts))
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host in load:
            load[host] += 1
    fullest = dict.fromkeys(sorted(hosts, key=lambda host: -load[host])[:remainder])
    return {host: host_share + (host in fullest) for host in hosts}
