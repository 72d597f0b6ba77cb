"""Where agents go when a plan is committed: a pure function, equal on every replica."""

import heapq
from collections.abc import Iterable, Sequence


def place(agents: Iterable[tuple[str, str]], hosts: Sequence[str]) -> dict[str, str]:
    """Return agent → host.

    An agent stays where it is if that host is in `hosts`. The others go, in the order given, each to the host with the
    fewest agents so far; of equal ones to the first by name.

    Args:
        agents: (agent, host it is on now or ""), in an order that every replica agrees on.
        hosts: not empty.
    """
    placed: dict[str, str] = {}
    homeless: list[str] = []
    load = dict.fromkeys(sorted(hosts), 0)
    for agent, host in agents:
        if host in load:
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
