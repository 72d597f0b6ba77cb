"""How much work a recovery says that it has undone: time in which no process ran is none."""

import pytest
from tests.coordinator.bench import SECOND, Bench

NIGHT_S = 8 * 3600


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start_fleet("h1", "h2")
    made.snapshot("h1", "h2")
    made.pass_time(3)
    made.snapshot("h1", "h2")
    return made


def undone_s(bench: Bench) -> float:
    """By all recoveries together."""
    assert bench.state.plan_number > 1
    return sum(plan.lost_ns for plan in bench.state.image.plans) / SECOND


def test_a_night_without_processes_is_no_work(bench: Bench) -> None:
    bench.now += NIGHT_S * SECOND
    bench.start_leader("second")
    for host in ("h1", "h2"):
        bench.attach(host, f"{host}-anew")
    bench.pass_time(3)
    assert undone_s(bench) < 1


def test_nor_for_a_host_that_stays_away(bench: Bench) -> None:
    bench.now += NIGHT_S * SECOND
    bench.start_leader("second")
    bench.attach("h1", "h1-anew")
    bench.pass_time(60)
    assert undone_s(bench) < 1


def test_hosts_that_this_leader_has_heard_have_worked(bench: Bench) -> None:
    bench.start_leader("second")
    for host in ("h1", "h2"):
        bench.attach(host)
    bench.pass_time(100)
    bench.attach("h1", "h1-anew")
    bench.pass_time(3)
    assert 100 <= undone_s(bench) < 110
