"""Advice for a running fleet: examples worked out by hand, and properties over all figures that a fleet could have."""

import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.protocols.advice import (
    BCS_FORCED_RATIO_MAX,
    BCS_MOVED_SHARES,
    SAVING_MIN_S,
    FleetAdvice,
    Mtbf,
    RunningFigures,
    advise,
    best_interval,
    breaks_rpo,
    declared_mtbf,
    observed_mtbf,
    time_text,
)
from snapline.protocols.names import BCS, CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS, UNCOORDINATED
from snapline.protocols.policy import INTERVAL_MIN_S

HOUR = 3_600.0
DAY = 24 * HOUR

PLAIN = RunningFigures(
    protocol=CHANDY_LAMPORT, interval_s=10.0, price_s=0.5, duration_s=2.0, recoveries_s=(4.0, 8.0), completed=100
)


def figures(**changes: object) -> RunningFigures:
    return msgspec.structs.replace(PLAIN, **changes)


# ---- by hand ----------------------------------------------------------------------------------------------------------


def test_a_fleet_that_saves_too_often() -> None:
    """C = 0.5 s, M = 10,000 s: Young's sqrt(2CM) is 100 s, Daly's 99.7 s. Now: 0.5/10 and (5 + 2 + 6)/10,000 are 184.68 s an hour; then
    0.5/99.7 and (49.8 + 2 + 6)/10,000 are 38.9 s."""
    advice = advise(PLAIN, declared_mtbf(10_000.0))
    assert advice.interval is not None and advice.interval.interval_s == pytest.approx(99.67, abs=0.01)
    assert advice.interval.bound == "" and advice.interval.every_s == advice.interval.interval_s
    assert advice.cost_now_s == pytest.approx(184.68) and advice.interval.cost_s == pytest.approx(38.9, abs=0.1)
    assert (advice.protocol, advice.is_other_protocol, advice.is_other_interval) == (CHANDY_LAMPORT, False, True)
    assert any("Daly's formula says 99.7 s" in words for words in advice.why)
    assert any("now it is 185 s an hour" in words for words in advice.why) and advice.missing == []


def test_a_fleet_whose_interval_is_near_the_best_keeps_it() -> None:
    advice = advise(figures(interval_s=90.0), declared_mtbf(10_000.0))
    assert not advice.is_other_interval and not advice.is_other_protocol


def test_failures_seen_give_a_range() -> None:
    """Four failures in 40,000 s: 10,000 s apart, between 3,906 and 36,700 s (Garwood's 1.090 and 10.242)."""
    advice = advise(PLAIN, observed_mtbf(4, 40_000.0))
    assert advice.mtbf.mean_s == 10_000.0 and advice.interval_low_s is not None and advice.interval_high_s is not None
    assert (advice.interval_low_s, advice.interval_high_s) == pytest.approx((62.2, 191.2), abs=0.1)


def test_without_a_failure_it_says_intervals_for_mean_times_and_asks_for_one() -> None:
    advice = advise(figures(recoveries_s=()), observed_mtbf(0, 2 * HOUR))
    assert advice.interval is None and advice.cost_now_s is None and not advice.is_other_interval
    assert [round(each.mtbf_s) for each in advice.intervals] == [2403, 3600, 86_400, 604_800, 2_592_000]
    by_hand = [math.sqrt(2 * 0.5 * each.mtbf_s) for each in advice.intervals]
    assert [each.interval_s for each in advice.intervals] == pytest.approx(by_hand, rel=0.02)
    asked, recovery = advice.missing
    assert asked.startswith(
        "No failure in 2 h: with 95 % confidence they are more than 40.1 min apart. Say how far apart"
    )
    assert "--mtbf" in asked and "How long a recovery takes is not known" in recovery


def test_without_a_price_it_asks_for_a_snapshot() -> None:
    advice = advise(figures(price_s=None, duration_s=None, interval_s=None), declared_mtbf(DAY))
    assert advice.interval is None and advice.intervals == [] and advice.costs == []
    assert any("snapline snapshot create" in words for words in advice.missing)
    assert any("made by hand" in words for words in advice.missing)


def test_the_rpo_bounds_the_interval() -> None:
    """At most interval + duration is lost: of 20 s two go to the epoch."""
    promised = figures(rpo_s=20.0, interval_s=30.0)
    advice = advise(promised, declared_mtbf(10_000.0))
    assert advice.interval is not None and (advice.interval.interval_s, advice.interval.bound) == (18.0, "rpo")
    assert advice.is_other_interval and breaks_rpo(promised), "it costs more, and that was promised"
    advice = advise(figures(rpo_s=2.5), declared_mtbf(10_000.0))
    assert advice.interval is not None and advice.interval.interval_s == 2.0
    assert any("rpo_s=2.5 cannot be kept: an epoch takes 2 s" in words for words in advice.why)


def test_an_interval_is_not_shorter_than_its_epoch() -> None:
    """C = 1 ms, M = 100 s: Daly's 0.45 s."""
    cheap = figures(price_s=0.001)
    bound = best_interval(cheap, 100.0)
    assert (bound.interval_s, bound.bound) == (2.0, "duration") and bound.formula_s == pytest.approx(0.446, abs=0.001)
    assert best_interval(msgspec.structs.replace(cheap, duration_s=0.1), 100.0).interval_s == INTERVAL_MIN_S


def test_recoveries_longer_than_the_rto_are_named_and_no_interval_is_blamed() -> None:
    words = advise(figures(rto_s=5.0), declared_mtbf(DAY)).why
    assert words[-2].startswith(
        "Recoveries took 6 s on average and 8 s at most, more than rto_s=5. No interval changes that"
    )
    assert words[-1].startswith("Each failure took all agents back.")
    local = advise(figures(rto_s=5.0, recovery="local"), declared_mtbf(DAY)).why
    assert local == words[:-1], "it has what would be named"
    assert "rto_s" not in " ".join(advise(figures(rto_s=9.0), declared_mtbf(DAY)).why)


# ---- the protocol -----------------------------------------------------------------------------------------------------


def test_epochs_that_take_longer_than_their_interval_speak_for_agents_that_wait_for_nobody() -> None:
    advice = advise(figures(duration_s=45.0, interval_s=30.0, longest_turn_s=40.0), observed_mtbf(0, HOUR))
    assert (advice.protocol, advice.is_other_protocol) == (BCS, True)
    assert advice.why[0].startswith(
        "An epoch takes 45 s, longer than the 30 s between two; the longest turn just now has lasted 40 s"
    )


def test_epochs_that_are_aborted_do_so_too() -> None:
    assert advise(figures(aborted=30), declared_mtbf(DAY)).protocol == BCS
    assert advise(figures(aborted=5), declared_mtbf(DAY)).protocol == CHANDY_LAMPORT


def test_a_line_that_stays_behind_is_a_domino() -> None:
    alone = figures(protocol=UNCOORDINATED, behind_s=300.0)
    advice = advise(alone, declared_mtbf(DAY))
    assert advice.protocol == BCS and "300 s" not in advice.why[0] and "5 min behind, 30 intervals" in advice.why[0]
    assert advise(msgspec.structs.replace(alone, behind_s=12.0), declared_mtbf(DAY)).protocol == UNCOORDINATED


def test_a_rule_that_forces_more_than_bcs_ever_did() -> None:
    forcing = figures(protocol="fdas", checkpoints=1_000, forced=920)
    advice = advise(forcing, declared_mtbf(DAY))
    assert advice.protocol == BCS and advice.why[0].startswith("fdas has forced 11.5 checkpoints for each basic one")
    assert advise(msgspec.structs.replace(forcing, forced=500), declared_mtbf(DAY)).protocol == "fdas"
    assert advise(msgspec.structs.replace(forcing, protocol=BCS), declared_mtbf(DAY)).protocol == BCS


def test_forced_checkpoints_count_as_checkpoints() -> None:
    """Three forced for each basic one: a trigger every 40 s is a checkpoint every 10 s."""
    best = best_interval(figures(protocol=BCS, checkpoints=400, forced=300), 10_000.0)
    assert best.every_s == pytest.approx(4 * best.interval_s)


def test_under_koo_toueg_the_epoch_is_the_price_and_the_default_is_clearly_cheaper() -> None:
    """Participants stand 2 s: sqrt(2 · 2 · 10,000) is 200 s, and costs 72 s an hour without what both have; half a second costs 36 s."""
    advice = advise(figures(protocol=KOO_TOUEG), declared_mtbf(10_000.0))
    assert advice.interval is not None and advice.interval.formula_s == pytest.approx(198.7, abs=0.1)
    own, default, _ = advice.costs
    assert own.low_s - default.low_s == pytest.approx(36.0, rel=0.02)
    assert advice.protocol == CHANDY_LAMPORT and advice.is_other_protocol
    assert any("no agent is paused until the round is decided" in words for words in advice.why)


def test_what_the_figures_cannot_tell_is_said_with_the_way_to_tell_it() -> None:
    words = " ".join(advise(PLAIN, declared_mtbf(10_000.0)).why)
    assert "bcs could save" in words and "snapline sim compare MODULE:FLEET --protocols chandy-lamport,bcs" in words
    assert "No protocol that was weighed could save" in " ".join(advise(PLAIN, declared_mtbf(300 * DAY)).why)


def test_the_shares_are_those_of_the_page() -> None:
    """docs/protocols.md is made by a benchmark: when it changes, so do these."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "protocols.md").read_text()
    moved, forced = [], []
    for row in re.findall(r"^\| bcs \| ([^|]*) \|[^|]*\|[^|]*\| ([^|]*) \|", page, re.MULTILINE):
        forced += [float(number) for number in row[0].split(" / ")]
        moved += [float(number.rstrip(" %")) / 100 for number in row[1].split(" / ")]
    assert len(moved) == 14 and (min(moved), max(moved)) == BCS_MOVED_SHARES and max(forced) == BCS_FORCED_RATIO_MAX


# ---- properties -------------------------------------------------------------------------------------------------------

MAYBE = st.one_of(st.none(), st.floats(1e-6, 1e4))

ANY = st.builds(
    RunningFigures,
    protocol=st.sampled_from(PROTOCOLS),
    interval_s=MAYBE,
    price_s=st.one_of(st.none(), st.floats(0.0, 100.0)),
    duration_s=MAYBE,
    behind_s=MAYBE,
    recoveries_s=st.lists(st.floats(0.0, 1e4), max_size=4).map(tuple),
    moved=st.one_of(st.none(), st.floats(0.01, 1.0)),
    depth=st.floats(0.0, 50.0),
    checkpoints=st.integers(0, 10**6),
    forced=st.integers(0, 10**5),
    completed=st.integers(0, 10**6),
    aborted=st.integers(0, 10**6),
    longest_turn_s=st.floats(0.0, 1e4),
    rpo_s=MAYBE,
    rto_s=MAYBE,
)

MTBFS = st.one_of(
    st.floats(1.0, 1e8).map(declared_mtbf),
    st.builds(observed_mtbf, st.integers(0, 64), st.floats(1.0, 1e8)),
)


@given(ANY, MTBFS)
def test_any_figures_get_an_answer_that_says_what_it_does_not_know(found: RunningFigures, mtbf: Mtbf) -> None:
    advice = advise(found, mtbf)
    assert advice.protocol in PROTOCOLS and advice.is_other_protocol == (advice.protocol != found.protocol)
    assert (advice.interval is None) == (mtbf.mean_s is None or found.price_s is None)
    if advice.interval is None:
        assert advice.missing
    assert bool(advice.intervals) == (mtbf.mean_s is None and found.price_s is not None)
    for best in [*advice.intervals, *([advice.interval] if advice.interval else [])]:
        assert math.isfinite(best.interval_s) and best.interval_s >= max(INTERVAL_MIN_S, found.duration_s or 0.0)
        assert best.every_s >= best.interval_s and math.isfinite(best.cost_s) and best.cost_s > 0
    assert msgspec.convert(msgspec.to_builtins(advice), FleetAdvice) == advice


@given(ANY, st.floats(60.0, 1e8))
def test_the_interval_keeps_the_rpo_wherever_any_may(found: RunningFigures, mtbf_s: float) -> None:
    priced = msgspec.structs.replace(found, price_s=found.price_s or 1.0, rpo_s=found.rpo_s or 60.0)
    best, duration_s = best_interval(priced, mtbf_s), priced.duration_s or 0.0
    assert priced.rpo_s is not None
    if priced.rpo_s >= duration_s + max(INTERVAL_MIN_S, duration_s):
        assert best.interval_s + duration_s <= priced.rpo_s * 1.000001


@given(st.floats(1e-3, 10.0), st.floats(1e4, 1e7), st.floats(0.5, 100.0))
def test_no_other_interval_is_much_cheaper_for_a_coordinated_fleet(
    price_s: float, mtbf_s: float, factor: float
) -> None:
    found = figures(price_s=price_s, duration_s=0.1)
    best = best_interval(found, mtbf_s)
    other = msgspec.structs.replace(found, interval_s=max(best.interval_s * factor, INTERVAL_MIN_S))
    now_s = advise(other, declared_mtbf(mtbf_s)).cost_now_s
    assert now_s is not None and best.cost_s <= 1.01 * now_s + SAVING_MIN_S


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0, "0 s"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (100.0, "100 s"),
        (300.0, "5 min"),
        (7_200.0, "2 h"),
        (10 * DAY, "10 d"),
    ],
)
def test_times_in_words(time_s: float, text: str) -> None:
    assert time_text(time_s) == text
