"""Host logs in the replicated state and at the leader: opened before they are written, named in later plans with their newest batch."""

import msgspec
import pytest
from tests.coordinator.bench import Bench
from tests.coordinator.conftest import Agreed

from snapline.coordinator.state import fleet_state
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import OVER, UNCHANGED
from snapline.messages.host_messages import HostLog, LogOpened, OpenLog, Plan
from snapline.storage.log.log_record import LogName


def known(agreed: Agreed) -> list[tuple[int, str, int, int]]:
    return [(x.plan, x.host, x.host_start, x.newest) for x in agreed.state.image.logs]


def recover(agreed: Agreed, host: str, *others: str) -> None:
    """The host is lost and comes back; all apply the next plan."""
    agreed.lose(host)
    agreed.do(op.AdmitHost(host, f"{host}-again", "x:1", agreed.state.image.hosts[host].start))
    agreed.plan(host, *others)


def test_newest_batch_of_a_log_only_rises(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.do(op.OpenHostLog("h1", 1, 1))
    for newest, status in ((7, "applied"), (7, UNCHANGED), (3, UNCHANGED), (0, UNCHANGED)):
        assert agreed.try_(op.OpenHostLog("h1", 1, 1, b"key", newest)).status == status
    assert known(agreed) == [(1, "h1", 1, 7)]


def test_word_of_an_earlier_plan_comes_too_late(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.do(op.OpenHostLog("h2", 1, 1, b"", 2))
    agreed.lose("h1")
    agreed.plan("h2")
    assert agreed.try_(op.OpenHostLog("h2", 1, 1, b"", 3)).status == OVER


def test_sealed_logs_are_remembered_where_a_batch_of_them_is_known(agreed: Agreed) -> None:
    """Inputs in them may be needed long after all hosts have sealed them; and somebody may take them away until then."""
    agreed.start("h1", "h2")
    agreed.do(op.OpenHostLog("h1", 1, 1))
    agreed.do(op.OpenHostLog("h2", 1, 1, b"", 4))
    recover(agreed, "h1", "h2")
    assert agreed.state.phase == "running" and known(agreed) == [(1, "h2", 1, 4)]


def test_no_more_than_so_many_sealed_logs_are_remembered(monkeypatch: pytest.MonkeyPatch, agreed: Agreed) -> None:
    monkeypatch.setattr(fleet_state, "LOGS_KNOWN_MAX", 2)
    agreed.start("h1", "h2")
    for plan in (1, 2, 3, 4):
        agreed.do(op.OpenHostLog("h2", 1, plan, b"", 10 * plan))
        recover(agreed, "h1", "h2")
    assert known(agreed) == [(3, "h2", 1, 30), (4, "h2", 1, 40)]


def test_state_of_an_earlier_log_knows_no_batches(agreed: Agreed) -> None:
    image = msgspec.msgpack.decode(msgspec.msgpack.encode(agreed.state.image))
    image["logs"] = [{"plan": 1, "host": "h1", "host_start": 1}]
    (log,) = msgspec.convert(image, type(agreed.state.image)).logs
    assert log.newest == 0


def certify(log: LogName, public: bytes) -> bytes:
    return f"{log.directory} {public.decode()}".encode()


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.options = msgspec.structs.replace(bench.options, certify=certify)
    bench.start_leader()
    bench.start_fleet("h1", "h2")
    return bench


def test_host_gets_the_certificate_of_its_key_for_this_log(bench: Bench) -> None:
    bench.say("h1", OpenLog(1, b"public"))
    assert bench.last("h1") == LogOpened(1, b"log/1/h1-1 public")


def test_host_without_a_key_gets_no_certificate(bench: Bench) -> None:
    bench.say("h1", OpenLog(1))
    assert bench.last("h1") == LogOpened(1)


def test_next_plan_names_the_newest_batch_that_was_told(bench: Bench) -> None:
    bench.say("h1", OpenLog(1, b"public"))
    bench.say("h1", OpenLog(1, b"public", 5))
    assert bench.last("h1") == LogOpened(1, b"log/1/h1-1 public", 5)
    bench.say("h2", OpenLog(1))
    bench.drop("h1")
    bench.pass_time(60)
    plan = next(x for x in reversed(bench.directives("h2")) if isinstance(x, Plan))
    assert plan.number > 1 and sorted(plan.logs, key=str) == [HostLog(1, "h1", 1, 5), HostLog(1, "h2", 1)]
