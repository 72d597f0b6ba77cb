"""What is said of losses, recoveries and the price of epochs, in words."""

import pytest

from snapline.view.display_text import brief, describe_interval, describe_recoveries, describe_work_at_risk, percent
from snapline.view.facts import FleetFacts, IntervalFacts, LossFacts, RecoveryFacts


def test_work_at_risk() -> None:
    running = LossFacts(at_risk_s=1.234)
    assert describe_work_at_risk(FleetFacts("f", mode="coordinated", loss=running)) == "1.23 s"
    assert describe_work_at_risk(FleetFacts("f", mode="uncoordinated", loss=running)) == "at most 1.23 s"
    assert describe_work_at_risk(FleetFacts("f")) == "–"
    promised = LossFacts(at_risk_s=1.234, rpo_s=10.0, rto_s=60.0, missed=("rto",))
    assert describe_work_at_risk(FleetFacts("f", loss=promised)) == "1.23 s (RPO 10.0 s)"
    assert describe_recoveries(promised) == "none yet (RTO 60.0 s, missed)"


def test_recoveries_the_newest_first() -> None:
    past = tuple([RecoveryFacts(plan, plan_s=0.5, load_s=0.25, lost_s=float(plan)) for plan in range(2, 7)])
    words = describe_recoveries(LossFacts(0.0, 5, 600.0, past))
    assert words == (
        "0.75 s (plan 6, which undid 6.00 s), 0.75 s (plan 5, which undid 5.00 s), 0.75 s (plan 4, which undid 4.00 s); "
        "5 failures in 10 min"
    )
    assert (
        describe_recoveries(LossFacts(0.0, 1, 60.0, (RecoveryFacts(2, load_s=1),)))
        == "1.00 s (plan 2); 1 failure in 60.0 s"
    )
    assert describe_recoveries(LossFacts()) == "none yet"


def test_the_interval() -> None:
    known = IntervalFacts(2.0, "", 3, 0.05, 0.1, 2.5, 0.0003, 0.005, 2048, 1 << 20, 0)
    assert describe_interval(known) == (
        "every 2.50 s; an epoch takes 0.05 s (at most 0.10 s); agents of a host wait 5.00 ms, 0.2 % of the time, "
        "each at most 0.30 ms; 2.0 KiB written, of 1.0 MiB"
    )
    assert describe_interval(IntervalFacts(1.0, "every 2s")) == "every 1.00 s, every 2s"
    assert describe_interval(IntervalFacts()) == "by hand"
    assert IntervalFacts(capture_s=0.1).share is None, "by hand: nobody knows how often"


@pytest.mark.parametrize(("share", "words"), [(0.000_123, "0.012 %"), (0.0345, "3.5 %"), (0.5, "50 %"), (0.0, "0 %")])
def test_shares(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(("time_s", "words"), [(0.000_35, "0.35 ms"), (0.0123, "12 ms"), (1.2, "1.20 s")])
def test_short_times(time_s: float, words: str) -> None:
    assert brief(time_s) == words
