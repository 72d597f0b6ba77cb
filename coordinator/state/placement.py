"""Where agents go when a plan is committed: a pure function, equal on every replica."""

import heapq
from collections.abc import Iterable, Sequence


def place(agents: Iterable[tuple[str, str]], hosts: Sequence[str], *, is_even: bool = False) -> dict[str, str]:
    """Return agent → host.

    An agent stays where it is if that host is in `hosts`; if the fleet `is_even`, only as many as that host's share. The others go,
    in the order given, each to the host with the fewest agents so far; of equal ones to the first by name.

    Args:
        agents: (agent, host it is on now or ""), in an order that every replica agrees on.
        hosts: not empty.
    """
    living = list(agents)
    room = _shares(living, sorted(hosts)) if is_even else dict.fromkeys(sorted(hosts), len(living))
    placed: dict[str, str] = {}
    homeless: list[str] = []
    load = dict.fromkeys(room, 0)
    for agent, host in living:
        if load.get(host, 0) < room.get(host, 0):
            load[host] += 1
            placed[agent] = host
        else:
            placed[agent] = ""
            homeless.append(agent)
    queue = [(count, host) for host, count in load.items()]
    heapq.heapify(queue)
    for agent in homeless:
        count, host = queue[0]
        placed[agent] = host
        heapq.heapreplace(queue, (count + 1, host))
    return placed


def _shares(agents: Sequence[tuple[str, str]], hosts: Sequence[str]) -> dict[str, int]:
    """Host → how many of its agents may stay. What is left over by dividing stays with those that have the most, so that few move."""
    least, left_over = divmod(len(agents), len(hosts))
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host in load:
            load[host] += 1
    fullest = sorted(hosts, key=lambda host: -load[host])[:left_over]
    return {host: least + (host in fullest) for host in hosts}


def is_uneven(agents: Iterable[tuple[str, str]], hosts: Sequence[str]) -> bool:
    """Whether one of `hosts` has at least two agents more than another, or an agent is on none of them."""
    load = dict.fromkeys(hosts, 0)
    for _, host in agents:
        if host not in load:
            return True
        load[host] += 1
    return max(load.values()) - min(load.values()) > 1
