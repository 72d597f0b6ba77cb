"""Directed pairs of nodes that a partition cuts, and the order in which nodes are drawn.

The shapes are those of Jepsen's nemeses. Nodes are hosts and coordinators alike, so that a partition splits the fleet, the
coordinator, or separates the two. Every order comes from choices; all zeros give the order of names.
"""

from collections.abc import Iterable, Sequence

from snapline.sim.choices import Choices

Pair = tuple[str, str]
"""Sender and receiver."""


def shuffled(nodes: Sequence[str], choices: Choices, index: int, what: str) -> list[str]:
    """Return the nodes in a drawn order, for the fault with this index in the scenario."""
    left = list(nodes)
    return [left.pop(choices.pick("fault", (index, what, step), len(left))) for step in range(len(nodes))]


def all_pairs(nodes: Sequence[str]) -> list[Pair]:
    return [(sender, receiver) for sender in nodes for receiver in nodes if sender != receiver]


def pairs_cut_off(isolated: Sequence[str], nodes: Sequence[str]) -> list[Pair]:
    """Return all pairs between the isolated nodes and the others; pairs with an isolated sender come first."""
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
    """Return one direction of each pair that is cut in both: the first one listed, or for `way` 1 the other."""
    kept: dict[Pair, None] = {}
    for sender, receiver in pairs:
        if (receiver, sender) not in kept:
            kept[sender, receiver] = None
    return [(receiver, sender) if way else (sender, receiver) for sender, receiver in kept]


def _pairs_of_ring(order: Sequence[str]) -> list[Pair]:
    """Return the pairs to cut so that each node sees its nearest neighbours on both sides: a different majority for each node."""
    count = len(order)
    reach = (count // 2 + 1) // 2
    return [
        (order[one], order[other])
        for one in range(count)
        for other in range(count)
        if one != other and min((one - other) % count, (other - one) % count) > reach
    ]
