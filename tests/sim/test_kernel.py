"""The order of calls, and the journal's hash."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from snapline.sim.choices import RandomStreams
from snapline.sim.world.kernel import PIECE, Journal, Kernel

TIMES = st.lists(st.integers(0, 20), max_size=40)


@given(TIMES)
def test_calls_come_by_time_and_among_equals_in_the_order_of_asking(times: list[int]) -> None:
    kernel = Kernel()
    seen: list[tuple[int, int]] = []
    for number, at_ns in enumerate(times):
        kernel.at(at_ns, seen.append, (at_ns, number))
    assert kernel.run(1_000)
    assert seen == sorted(seen) and len(seen) == len(times) == kernel.events


@given(TIMES, TIMES)
def test_time_never_goes_back_and_what_is_late_comes_now(times: list[int], later: list[int]) -> None:
    kernel, seen, more = Kernel(), [], list(later)

    def call(_: object) -> None:
        seen.append(kernel.now_ns)
        if more:
            kernel.at(more.pop(), call)

    for at_ns in times:
        kernel.at(at_ns, call)
    kernel.run(1_000)
    assert seen == sorted(seen)
    assert kernel.now_ns == max([0, *seen])


def test_neither_functions_nor_arguments_are_compared() -> None:
    class Opaque:
        def __lt__(self, other: object) -> bool:
            raise AssertionError("compared")

    kernel, seen = Kernel(), []
    for _ in range(9):
        argument = Opaque()
        kernel.at(5, lambda found: seen.append(found), argument)
    kernel.run(10)
    assert len(seen) == 9


def test_a_run_ends_when_it_is_over_or_had_too_many_events() -> None:
    kernel, count = Kernel(), [0]

    def again(_: object) -> None:
        count[0] += 1
        kernel.is_over = count[0] == 7
        kernel.at(kernel.now_ns + 1, again)

    kernel.at(0, again)
    assert not kernel.run(5), "five are not enough"
    kernel.at(0, again)
    assert kernel.run(5)
    assert count == [7]


ENTRIES = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.binary(max_size=5)), max_size=30)


def journal_of(entries: list[tuple[Any, ...]], pages: list[int], times: int = 1) -> Journal:
    """Entries so many times over; a page is turned after those at these places."""
    journal = Journal()
    for index, entry in enumerate(entries * times):
        journal.add(entry)
        if index in pages:
            journal.hash_full_pieces()
    return journal


@given(ENTRIES, st.lists(st.integers(0, 3_000), max_size=5))
def test_the_hash_does_not_depend_on_when_pages_are_turned(entries: list[tuple[Any, ...]], pages: list[int]) -> None:
    one, other = journal_of(entries, pages, times=150), journal_of(entries, [], times=150)
    assert one.close() == other.close()
    assert one.waypoints == other.waypoints
    assert len(one.waypoints) == -(-150 * len(entries) // PIECE)


@given(ENTRIES, ENTRIES)
def test_other_entries_have_another_hash(entries: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    assert (journal_of(entries, []).close() == journal_of(others, []).close()) == (entries == others)


def test_waypoints_and_a_window_show_where_two_runs_part() -> None:
    one, other = Journal(window_at=1), Journal(window_at=1)
    for number in range(3 * PIECE):
        one.add((number, "same"))
        other.add((number, "same" if number != PIECE + 7 else "other"))
    assert one.close() != other.close()
    assert [x == y for x, y in zip(one.waypoints, other.waypoints, strict=True)] == [True, False, False]
    assert len(one.window) == PIECE
    assert [place for place, (x, y) in enumerate(zip(one.window, other.window, strict=True)) if x != y] == [7]


def test_text_and_bytes_of_the_same_letters_differ() -> None:
    assert journal_of([("a",)], []).close() != journal_of([(b"a",)], []).close()


NAMES = st.lists(st.sampled_from("abc"), max_size=30)


@given(st.integers(0, 2**64), NAMES)
def test_streams_of_agents_do_not_depend_on_each_other(seed: int, order: list[str]) -> None:
    together, alone = RandomStreams(seed, "agent"), {name: RandomStreams(seed, "agent") for name in "abc"}
    assert [together.random(name) for name in order] == [alone[name].random(name) for name in order]


def test_a_stream_is_spread_over_its_range() -> None:
    randoms = RandomStreams(3, "agent")
    drawn = [randoms.random("a") for _ in range(4_000)]
    assert all(0 <= each < 1 for each in drawn)
    counts = [sum(int(each * 8) == part for each in drawn) for part in range(8)]
    assert all(400 < count < 600 for count in counts), counts
    following = [sum(x < 0.5 and y < 0.5 for x, y in zip(drawn, drawn[lag:], strict=False)) for lag in (1, 2, 3)]
    assert all(900 < count < 1100 for count in following), following
