"""Directed pairs of nodes that a partition cuts, and the order in which nodes are drawn.

Shapes are those of Jepsen's nemeses. Nodes are hosts and coordinators alike, so that a partition falls through the fleet,
through the coordinator, or between them. Every order comes from choices; 0 everywhere is the order of names.
"""

from collections.abc import Iterable, Sequence

from snapline.sim.choices import Choices

Pair = tuple[str, str]
"""Sender and receiver."""


def shuffled(nodes: Sequence[str], choices: Choices, index: int, what: str) -> list[str]:
    """The nodes in a drawn order, for the fault with this place in the scenario."""
    left = list(nodes)
    return [left.pop(choices.pick("fault", (index, what, step), len(left))) for step in range(len(nodes))]


def all_pairs(nodes: Sequence[str]) -> list[Pair]:
    return [(sender, receiver) for sender in nodes for receiver in nodes if sender != receiver]


def pairs_cut_off(isolated: Sequence[str], nodes: Sequence[str]) -> list[Pair]:
    """Return all pairs between the isolated nodes and the others, those that the isolated ones send first."""
    others = [node for node in nodes if node not in isolated]
    return [(inner, outer) for inner in isolated for outer in others] + [
        (outer, inner) for inner in isolated for outer in others
    ]


def pairs_of_shape(shape: str, order: Sequence[str]) -> list[Pair]:
    """Return the pairs that a shape cuts in an order of nodes, in both directions; none if there are too few."""
    count = len(order)
    match shape:
        case "one":
            return pairs_cut_off(order[:1], order)
        case "pair":
            return pairs_cut_off(order[:1], order[:2])
        case "majority":
            return pairs_cut_off(order[: max(1, (count - 1) // 2)], order)
        case "minority-third":
            return pairs_cut_off(order[: max(1, count // 3)], order)
        case "bridge":
            half = 1 + (count - 1) // 2
            return pairs_cut_off(order[1:half], order[1:])
        case "majorities-ring":
            return _pairs_of_ring(order)
        case _:
            raise AssertionError(f"{shape} needs more than an order")


def one_way(pairs: Iterable[Pair], way: int) -> list[Pair]:
    """Return one of the two directions of each pair that is cut in both: the first that comes, or for `way` 1 the other."""
    kept: dict[Pair, None] = {}
    for sender, receiver in pairs:
        if (receiver, sender) not in kept:
            kept[sender, receiver] = None
    return [(receiver, sender) if way else (sender, receiver) for sender, receiver in kept]


def _pairs_of_ring(order: Sequence[str]) -> list[Pair]:
    """Return the pairs to cut so that each node sees the nearest on both sides, a majority with itself, and no two the same."""
    count = len(order)
    reach = (count // 2 + 1) // 2
    return [
        (order[one], order[other])
        for one in range(count)
        for other in range(count)
        if one != other and min((one - other) % count, (other - one) % count) > reach
    ]
