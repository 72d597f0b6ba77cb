"""CheckMate's queries give out exactly what plain Python says, under every mode and after a failure; and the figures are what they are said to be."""

import math
from itertools import pairwise

import pytest
from benchmarks.checkmate import generator, measure, queries, virtual
from benchmarks.checkmate.costs import RULE_NS, rule_ns
from benchmarks.checkmate.generator import Stream, at_ns, due, happening
from benchmarks.checkmate.oracle import expected
from benchmarks.checkmate.queries import NONE, QUERIES, bucket, middle_s, streams
from benchmarks.checkmate.virtual import Look, Measured, QueryWork, Setting, growth, play, quantile, recovered
from hypothesis import given
from hypothesis import strategies as st

from snapline.sim.run import run
from snapline.sim.workloads.workload import Costs
from snapline.sim.world.recording import Recording

MODES = ("chandy-lamport", "uncoordinated", "hmnr")


def small(query: str, protocol: str, hot: float = 0.2) -> Setting:
    """Some 250 events in six seconds, with a checkpoint every second, and a host that dies in their midst."""
    return Setting(
        query=query,
        protocol=protocol,
        workers=3,
        rate_per_s=40.0,
        seconds=6.0,
        every_s=1.0,
        hot=hot,
        fails_at=3.5,
        stands_for=100,
    )


# ---- the rows that come out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", MODES)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_out_what_the_oracle_says_though_a_host_died(query: str, protocol: str) -> None:
    found = play(small(query, protocol))
    assert found.metrics["agents_rolled_back"] >= 1, "the failure has undone nothing"
    assert 0 < found.restart_s <= found.recovery_s


@pytest.mark.parametrize("query", QUERIES)
def test_the_oracle_expects_rows(query: str) -> None:
    rows, _ = expected(query, streams(query, 3, 40.0, 240, 0.2, 0.25))
    assert rows > 5


def test_checkpoints_are_needed_for_nothing_but_failures() -> None:
    found = play(small("q12", NONE))
    assert found.metrics["lost_turns"] > 50, "without checkpoints a failure undoes all"


def fails(setting: Setting) -> str:
    """What the oracles have to say of a run that is wrong."""
    work = QueryWork(setting)
    result = run(virtual.scenario_of(setting), 1, workload=work, on_world=work.begin)
    assert result.verdict == "violation", f"{result.verdict} {result.pending} {result.error}"
    return result.violations[0].oracle


def test_a_source_that_says_something_else_the_second_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []

    def forgetful(stream: Stream, number: int, started_ns: int = 0) -> generator.Happening:
        said.append(number)
        return happening(stream, number + len(said) // 400, started_ns)  # later on each event is another one

    monkeypatch.setattr(queries, "happening", forgetful)
    assert fails(small("q12", "chandy-lamport")) in ("workload", "replay")


def test_a_window_that_is_forgotten_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "WINDOW_NS", 10**9)
    monkeypatch.setattr("benchmarks.checkmate.oracle.WINDOW_NS", 10**9)
    play(small("q12", "uncoordinated"))
    monkeypatch.setattr(queries, "forget", lambda windows, oldest: windows.clear())
    assert fails(small("q12", "uncoordinated")) == "workload"


def test_a_reachability_that_joins_one_way_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that come before their links go on too."""

    def only_links(reach: queries.Reach, ctx: object, born_ns: int, nodes: list[int]) -> None:
        reach.state.paths.setdefault(nodes[-1], []).append(nodes)

    monkeypatch.setattr(queries.Reach, "_go_on", only_links)
    assert fails(small("reachable", "hmnr")) == "workload"


@pytest.mark.parametrize("protocol", ["chandy-lamport", "bcs"])
def test_who_looks_at_a_run_changes_nothing_in_it(protocol: str) -> None:
    setting = small("q1", protocol)
    unseen, seen = QueryWork(setting), QueryWork(setting)
    one = run(virtual.scenario_of(setting), 1, workload=unseen)
    other = run(virtual.scenario_of(setting), 1, workload=seen, on_world=seen.begin)
    assert one.trace_hash == other.trace_hash and seen.looks and not unseen.looks


def test_checkpoint_s_is_what_epochs_take_from_begin_to_end() -> None:
    setting, recording = small("q1", "chandy-lamport"), Recording()
    result = run(virtual.scenario_of(setting), 1, workload=QueryWork(setting), recording=recording)
    took_s = [(x.ended_ns - x.begun_ns) / 1e9 for x in recording.epochs.values() if x.outcome == "complete"]
    assert len(took_s) >= 5
    assert math.isclose(result.metrics["checkpoint_s"], sum(took_s) / len(took_s))


def test_checkpoint_s_of_agents_that_save_on_their_own_lies_between_image_and_report() -> None:
    found = play(small("q1", "uncoordinated"))
    assert found.metrics["checkpoint_s"] >= 0.001, "the store takes a millisecond at least"
    assert found.metrics["checkpoint_s"] < 0.1


@given(st.floats(0.05, 40.0))
def test_the_sustained_rate_is_found_to_three_percent(factor: float) -> None:
    """Whatever the guess was."""
    setting = small("q1", "hmnr")
    limit = factor * measure.guessed(setting)
    asked: list[float] = []

    def played(tried: Setting) -> Measured:
        asked.append(tried.rate_per_s)
        nan = math.nan
        return Measured(9, 0.5 if tried.rate_per_s > limit else 0.0, nan, nan, nan, nan, nan, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "play", played)
        found = measure.sustained(setting)
    assert found <= limit < found * 1.03
    assert len(asked) <= measure.RATES_MAX


# ---- the input ------------------------------------------------------------------------------------------------------

A_STREAM = st.builds(
    Stream,
    kind=st.just("bids"),
    partition=st.integers(0, 6),
    workers=st.just(7),
    rate_per_s=st.floats(0.5, 500),
    events=st.integers(1, 5_000),
)


@given(A_STREAM, st.integers(0, 10**11))
def test_what_is_due_is_what_has_happened(stream: Stream, t_ns: int) -> None:
    number = due(stream, t_ns)
    assert 0 <= number <= stream.events
    assert number == 0 or at_ns(stream, number - 1) <= t_ns
    assert number == stream.events or at_ns(stream, number) > t_ns


@pytest.mark.parametrize("hot", [0.0, 0.3])
def test_popular_persons_have_their_part_and_one_worker(hot: float) -> None:
    stream = Stream("bids", 2, 5, 100.0, 4_000, hot)
    bids = [happening(stream, number) for number in range(stream.events)]
    first = sum(bid.bidder % 5 == 0 for bid in bids if isinstance(bid, generator.Bid)) / len(bids)
    assert abs(first - (hot + (1 - hot) / 5)) < 0.03


def test_persons_and_auctions_are_one_to_three_and_ids_are_of_one_person() -> None:
    of = [Stream("people", place, 4, 100.0, 2_000) for place in range(4)]
    events = [happening(stream, number) for stream in of for number in range(stream.events)]
    persons = [event.id for event in events if isinstance(event, generator.Person)]
    assert len(persons) * 4 == len(events)
    assert len(set(persons)) == len(persons)
    sellers = {event.seller for event in events if isinstance(event, generator.Auction)}
    assert len(sellers & set(persons)) > 100


# ---- the figures ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**13))
def test_a_latency_is_found_again_within_three_percent(ns: int) -> None:
    assert math.isclose(middle_s(bucket(ns)), ns / 1e9, rel_tol=0.03, abs_tol=2e-6)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_buckets_are_in_the_order_of_time(one: int, other: int) -> None:
    assert (bucket(min(one, other))) <= bucket(max(one, other))


def test_half_of_the_rows_are_below_the_median() -> None:
    assert quantile({bucket(10**9): 50, bucket(10**7): 51}, 0.5) == middle_s(bucket(10**7))
    assert quantile({bucket(10**9): 52, bucket(10**7): 48}, 0.5) == middle_s(bucket(10**9))
    assert math.isnan(quantile({}, 0.5))


def work_of(lags: list[float | None], failed_s: float = 0.0, back_s: float = 0.0) -> QueryWork:
    """One look a second, of a run of that many seconds that began at 0."""
    work = QueryWork(Setting(query="q1", protocol=NONE, workers=1, rate_per_s=1.0, seconds=float(len(lags))))
    work.looks = [Look(float(t_s), lag_s) for t_s, lag_s in enumerate(lags)]
    work.began_s, work.failed_s, work.back_s = 0.0, failed_s, back_s
    return work


def test_growth_is_the_slope_of_the_lag() -> None:
    assert growth(work_of([0.1] * 40)) == 0.0
    assert math.isclose(growth(work_of([t_s * 0.05 for t_s in range(40)])), 0.05)


def test_recovery_lasts_until_the_lag_stays_what_it_was() -> None:
    calm, late = [0.3] * 20, [None, None, 6.0, 4.0, 2.0, 0.5]
    restart_s, recovery_s = recovered(work_of([*calm, *late, *([0.2] * 14)], failed_s=20.0, back_s=22.0))
    assert (restart_s, recovery_s) == (2.0, 5.0)
    assert all(map(math.isnan, recovered(work_of(list(calm)))))


def test_a_message_that_stands_for_many_costs_as_many_and_a_checkpoint_what_it_costs() -> None:
    costs = Costs(turn_ns=1, batch_ns=2, capture_ns=3, capture_byte_ns=4, send_ns=5)
    assert costs.for_messages(10) == Costs(turn_ns=10, batch_ns=2, capture_ns=3, capture_byte_ns=40, send_ns=50)


@pytest.mark.parametrize("protocol", RULE_NS)
def test_costs_go_through_the_measured_points(protocol: str) -> None:
    points = RULE_NS[protocol]
    assert [rule_ns(protocol, agents) for agents, _ in points] == [ns for _, ns in points]
    assert all(rule_ns(protocol, few) <= rule_ns(protocol, many) for few, many in pairwise(range(0, 400, 10)))
    assert rule_ns("uncoordinated", 100) == 0


def test_work_that_costs_more_takes_longer_in_virtual_time() -> None:
    fast, slow = (
        play(Setting(query="q1", protocol=NONE, workers=2, rate_per_s=20, seconds=4, stands_for=x)) for x in (1, 500)
    )
    assert slow.p50_s > fast.p50_s + 3 * 0.015
