"""Where agents go when a plan is committed: a pure function, equal on every replica."""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from snapline.conversation.messages import PlaceRule


def place(
    agents: Iterable[tuple[str, str]],
    hosts: Sequence[str],
    places: Sequence[PlaceRule] = (),
    *,
    is_even: bool = False,
) -> dict[str, str]:
    """Return agent → host.

    An agent that a rule names belongs on one of its hosts, if any of them is in `hosts`; all others belong on each. Who is where it belongs
    stays; if the fleet `is_even`, only as many on a host as is its share. The rest go, first those that a rule names, in the order given, each
    to the host with the fewest agents so far; of equal ones to the first by name.

    Args:
        agents: (agent, host it is on now or ""), in an order that every replica agrees on.
        hosts: not empty.
        places: of rules that name an agent the first counts.
    """
    living, everywhere = list(agents), sorted(hosts)
    own = _own_hosts([agent for agent, _ in living], everywhere, places) if places else {}
    room = _shares(living, everywhere) if is_even else dict.fromkeys(everywhere, len(living))
    placed: dict[str, str] = {}
    load = dict.fromkeys(everywhere, 0)
    for agent, host in living:
        stays = load.get(host, 0) < room.get(host, 0) and (agent not in own or host in own[agent])
        placed[agent] = host if stays else ""
        if stays:
            load[host] += 1
    homeless = [agent for agent, host in placed.items() if not host]
    for agent in homeless:
        if agent in own:
            host = min(own[agent], key=lambda name: (load[name], name))
            placed[agent] = host
            load[host] += 1
    _fill([agent for agent in homeless if agent not in own], load, placed)
    return placed


def _own_hosts(agents: Sequence[str], hosts: Sequence[str], places: Sequence[PlaceRule]) -> dict[str, Sequence[str]]:
    """Agent → those of `hosts` where it belongs, of those that belong on some only."""
    here = [[host for host in hosts if host in rule.hosts] for rule in places]
    own: dict[str, Sequence[str]] = {}
    for agent in agents:
        at = next((number for number, rule in enumerate(places) if rule.is_about(agent)), None)
        if at is not None and here[at]:
            own[agent] = here[at]
    return own


def _fill(agents: Sequence[str], load: Mapping[str, int], placed: dict[str, str]) -> None:
    """Each to the host that has the fewest."""
    queue = [(count, host) for host, count in load.items()]
    heapq.heapify(queue)
    for agent in agents:
        count, host = queue[0]
        placed[agent] = host
        heapq.heapreplace(queue, (count + 1, host))


def _shares(agents: Sequence[tuple[str, str]], hosts: Sequence[str]) -> dict[str, int]:
    """Host → how many of its agents may stay. What is left over by dividing stays with those that have the most, so that few move."""
    least, left_over = divmod(len(agents), len(hosts))
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host in load:
            load[host] += 1
    fullest = dict.fromkeys(sorted(hosts, key=lambda host: -load[host])[:left_over])
    return {host: least + (host in fullest) for host in hosts}
