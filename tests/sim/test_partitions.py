"""Shapes of partitions: what each cuts, and what it leaves."""

from hypothesis import assume, given
from hypothesis import strategies as st

from snapline.sim.faults.faults import one_way, pairs_of_shape

node_orders = st.integers(1, 9).map(lambda count: [f"n{number}" for number in range(count)]).flatmap(st.permutations)
SHAPES = ("one", "majority", "minority-third", "majorities-ring", "bridge")


def reachable(order: list[str], cut: set[tuple[str, str]], node: str) -> frozenset[str]:
    """The nodes that it hears and that hear it, and itself."""
    return frozenset(other for other in order if (node, other) not in cut and (other, node) not in cut)


@given(node_orders, st.sampled_from(SHAPES))
def test_a_partition_cuts_both_directions_of_a_pair_once(order: list[str], shape: str) -> None:
    pairs = pairs_of_shape(shape, order)
    assert len({*pairs}) == len(pairs)
    assert {(receiver, sender) for sender, receiver in pairs} == {*pairs}
    assert all(sender != receiver for sender, receiver in pairs)


@given(node_orders)
def test_what_each_shape_leaves(order: list[str]) -> None:
    count = len(order)
    assume(count >= 2)
    sizes = {}
    for shape in SHAPES:
        cut = {*pairs_of_shape(shape, order)}
        sizes[shape] = sorted(len(reachable(order, cut, node)) for node in order)
    assert sizes["one"][0] == 1 and (count == 2 or sizes["one"][-1] == count - 1)
    assert 2 * sizes["majority"][-1] > count or count == 2
    assert sizes["minority-third"][0] == max(1, count // 3)
    assert all(2 * size > count for size in sizes["majorities-ring"])
    assert sizes["bridge"][-1] == count


@given(node_orders)
def test_in_a_ring_no_two_majorities_are_the_same(order: list[str]) -> None:
    cut = {*pairs_of_shape("majorities-ring", order)}
    assume(cut)
    assert len({reachable(order, cut, node) for node in order}) == len(order)


@given(node_orders, st.sampled_from(SHAPES), st.sampled_from([0, 1]))
def test_one_way_cuts_exactly_one_direction_of_each_pair(order: list[str], shape: str, way: int) -> None:
    both = pairs_of_shape(shape, order)
    cut = one_way(both, way)
    assert len(cut) * 2 == len(both)
    assert {*cut} | {(receiver, sender) for sender, receiver in cut} == {*both}
