"""Placement of agents when a plan is committed: a pure function, equal on every replica."""

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
    """Return agent → host.

    An agent that a rule names belongs on one of its hosts, if any of them is in `hosts`; all others belong on each. Who is where it belongs
    stays; if the fleet `is_even`, only as many on a host as is its share. The rest go, first those that a rule names, in the order given, each
    to the host whose agents weigh least so far; of equal ones to the first by name. So no host that gets one without a rule weighs more
    than the lightest by more than the heaviest of those that go.

    Args:
        agents: (agent, host it is on now or ""), in an order that every replica agrees on.
        hosts: not empty.
        places: of rules that name an agent the first counts.
        weights: host → what an agent that is on it now weighs; of those on others what is usual. Not looked at if the fleet `is_even`, which
            is about numbers; without them all weigh the same.
    """
    living, everywhere = list(agents), sorted(hosts)
    own = _own_hosts([agent for agent, _ in living], everywhere, places) if places else {}
    room = _shares(living, everywhere) if is_even else None
    weighed = weights if weights and not is_even else {}
    usual = max(1, sum(weighed.values()) // len(weighed)) if weighed else 1
    placed: dict[str, str] = {}
    load = dict.fromkeys(everywhere, 0)
    homeless: dict[str, int] = {}
    for agent, host in living:
        weight = weighed.get(host, usual)
        is_here = host in load and (room is None or load[host] < room[host])
        if is_here and (agent not in own or host in own[agent]):
            placed[agent] = host
            load[host] += weight
        else:
            placed[agent], homeless[agent] = "", weight
    for agent, weight in homeless.items():
        if agent in own:
            host = min(own[agent], key=lambda name: (load[name], name))
            placed[agent] = host
            load[host] += weight
    _fill({agent: weight for agent, weight in homeless.items() if agent not in own}, load, placed)
    return placed


def are_weights(weights: Sequence[int], hosts: Sequence[str]) -> bool:
    """Return whether they are of these hosts, one each, from 1; or none."""
    return not weights or (len(weights) == len(hosts) and min(weights) > 0)


def weights_by_host(hosts: Sequence[str], weights: Sequence[int]) -> dict[str, int]:
    """Return an agent's weight on each host of a plan, in their order; none: nobody has measured."""
    return dict(zip(hosts, weights, strict=True)) if weights else {}


def _own_hosts(agents: Sequence[str], hosts: Sequence[str], places: Sequence[PlaceRule]) -> dict[str, Sequence[str]]:
    """Agent → those of `hosts` where it belongs, of those that belong on some only."""
    here = [[host for host in hosts if host in rule.hosts] for rule in places]
    own: dict[str, Sequence[str]] = {}
    for agent in agents:
        at = next((number for number, rule in enumerate(places) if rule.is_about(agent)), None)
        if at is not None and here[at]:
            own[agent] = here[at]
    return own


def _fill(agents: Mapping[str, int], load: Mapping[str, int], placed: dict[str, str]) -> None:
    """Give each, with its weight, to the host whose agents weigh least."""
    queue = [(weight, host) for host, weight in load.items()]
    heapq.heapify(queue)
    for agent, weight in agents.items():
        least, host = queue[0]
        placed[agent] = host
        heapq.heapreplace(queue, (least + weight, host))


def _shares(agents: Sequence[tuple[str, str]], hosts: Sequence[str]) -> dict[str, int]:
    """Host → how many of its agents may stay. What is left over by dividing stays with those that have the most, so that few move."""
    least, left_over = divmod(len(agents), len(hosts))
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host in load:
            load[host] += 1
    fullest = dict.fromkeys(sorted(hosts, key=lambda host: -load[host])[:left_over])
    return {host: least + (host in fullest) for host in hosts}
