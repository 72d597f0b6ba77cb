"""What `snapline advise` takes from two answers of the coordinator, worked out by hand, and its first line."""

import msgspec
import pytest
from tests.kit.status import fleet_status

from snapline.cli import advise
from snapline.messages.status import FleetStatus, HostStatus, IntervalStatus, LossStatus, RecoveryTime

S = 1_000_000_000


def status(protocol: str, *hosts: HostStatus, **changes: object) -> FleetStatus:
    return fleet_status(protocol=protocol, hosts=hosts, **{"agents": 10, **changes})


def host(name: str, checkpoints: int, start: int = 1) -> HostStatus:
    return HostStatus(name, "", start, "alive", 5, checkpoints=checkpoints)


def test_a_coordinated_fleet_s_interval_is_that_of_its_epochs() -> None:
    interval = IntervalStatus(2 * S, "", 5, S // 4, S, 3 * S, 1, S // 100)
    found = advise.figures_of(status("chandy-lamport"), status("chandy-lamport", interval=interval), 2.0)
    assert (found.interval_s, found.price_s, found.duration_s) == (3.0, 0.01, 0.25)
    by_hand = msgspec.structs.replace(interval, period_ns=0)
    assert (
        advise.figures_of(status("chandy-lamport"), status("chandy-lamport", interval=by_hand), 2.0).interval_s is None
    )


def test_agents_that_checkpoint_alone_have_the_interval_that_was_seen() -> None:
    """The 5 agents of h1 have taken 8 in 2 s, one each 1.25 s; h2 has started anew. A line each second costs 10 ms, so 1.25 s cost 12.5."""
    interval = IntervalStatus(S, "every 1s", 5, S // 4, S, S, 1, S // 100)
    before = status("bcs", host("h1", 100), host("h2", 100))
    after = status("bcs", host("h1", 108), host("h2", 3, start=2), interval=interval, checkpoints=111, forced=11)
    found = advise.figures_of(before, after, 2.0)
    assert (found.interval_s, found.price_s) == pytest.approx((1.25, 0.0125)) and found.forced_ratio == 0.11


def test_moves_are_no_recoveries_from_failures() -> None:
    past = (RecoveryTime(2, False, 9 * S, 9 * S, 10, 10), RecoveryTime(3, True, S, S, 10, 4, None, 8))
    found = advise.figures_of(status("bcs"), status("bcs", loss=LossStatus(0, 1, S, past)), 2.0)
    assert (found.recoveries_s, found.moved, found.depth) == ((2.0,), 0.4, 2.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "Keep bcs, with a checkpoint every 12 s (9 s to 15 s by what is known of failures)."),
        ({"is_other_interval": False}, "Keep bcs, and its interval; the best would be 12 s."),
        ({"is_other_interval": False, "cost_now_s": 1.0}, "Keep bcs, and its interval."),
        ({"is_other_protocol": True, "protocol": "hmnr"}, "Run it with hmnr instead of bcs."),
        ({"interval": None}, "Keep bcs. Which interval suits it cannot be said yet."),
    ],
)
def test_the_first_line(changes: dict[str, object], says: str) -> None:
    known = {"protocol": "bcs", "is_other_protocol": False, "is_other_interval": True, "evidence": {"protocol": "bcs"}}
    costs = {
        "interval": {"every_s": 12.0, "cost_s": 2.0},
        "cost_now_s": 3.0,
        "interval_low_s": 9.0,
        "interval_high_s": 15.0,
    }
    assert advise._verdict({**known, **costs, **changes}) == says
