"""What is said of losses, recoveries and the price of epochs, in words."""

import pytest

from snapline.messages.status import FleetStatus, IntervalStatus, LossStatus, RecoveryTime
from snapline.view.display_text import brief, describe_interval, describe_recoveries, describe_work_at_risk, percent

MS, SECOND = 1_000_000, 1_000_000_000


def test_work_at_risk() -> None:
    running = LossStatus(at_risk_ns=1234 * MS)
    assert describe_work_at_risk(FleetStatus("f", mode="coordinated", loss=running)) == "1.23 s"
    assert describe_work_at_risk(FleetStatus("f", mode="uncoordinated", loss=running)) == "at most 1.23 s"
    assert describe_work_at_risk(FleetStatus("f")) == "–"
    promised = LossStatus(at_risk_ns=1234 * MS, rpo_ns=10 * SECOND, rto_ns=60 * SECOND, missed=("rto",))
    assert describe_work_at_risk(FleetStatus("f", loss=promised)) == "1.23 s (RPO 10.0 s)"
    assert describe_recoveries(promised) == "none yet (RTO 60.0 s, missed)"


def test_recoveries_the_newest_first() -> None:
    past = [RecoveryTime(x, plan_ns=500 * MS, load_ns=250 * MS, lost_ns=x * SECOND) for x in range(2, 7)]
    words = describe_recoveries(LossStatus(0, 5, 600 * SECOND, tuple(past)))
    assert words == (
        "0.75 s (plan 6, which undid 6.00 s), 0.75 s (plan 5, which undid 5.00 s), 0.75 s (plan 4, which undid 4.00 s); "
        "5 failures in 10 min"
    )
    once = LossStatus(0, 1, 60 * SECOND, (RecoveryTime(2, load_ns=SECOND),))
    assert describe_recoveries(once) == "1.00 s (plan 2); 1 failure in 60.0 s"
    assert describe_recoveries(LossStatus()) == "none yet"


def test_the_interval() -> None:
    known = IntervalStatus(
        2 * SECOND, "", 3, 50 * MS, 100 * MS, 2500 * MS, 300_000, 5 * MS, new_bytes=2048, state_bytes=1 << 20
    )
    assert describe_interval(known) == (
        "every 2.50 s; an epoch takes 0.05 s (at most 0.10 s); agents of a host wait 5.00 ms, 0.2 % of the time, "
        "each at most 0.30 ms; 2.0 KiB written for 1.0 MiB of states"
    )
    assert describe_interval(IntervalStatus(SECOND, "every 2s")) == "every 1.00 s, every 2s"
    assert describe_interval(IntervalStatus()) == "by hand"
    unknown = IntervalStatus(capture_ns=100 * MS, pause_ns=MS)
    assert describe_interval(unknown) == "by hand; agents of a host wait 100 ms, each at most 1.00 ms"


@pytest.mark.parametrize(("share", "words"), [(0.000_123, "0.012 %"), (0.0345, "3.5 %"), (0.5, "50 %"), (0.0, "0 %")])
def test_shares(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(("time_s", "words"), [(0.000_35, "0.35 ms"), (0.0123, "12 ms"), (1.2, "1.20 s")])
def test_short_times(time_s: float, words: str) -> None:
    assert brief(time_s) == words
