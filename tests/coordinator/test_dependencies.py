"""A host says what it runs on when it joins: what the leader makes of a change, what is kept of it, and that failures are never refused."""

from pathlib import Path

import msgspec
import pytest
from tests.coordinator.bench import Bench
from tests.coordinator.conftest import Agreed
from tests.coordinator.test_fork_founding import Forked, fork_of, parent_store, state_of
from tests.coordinator.test_restoring import asked, restoring

from snapline.coordinator.state import operations as op
from snapline.errors import UsageError
from snapline.messages import host_messages as msg
from snapline.messages.dependencies import merged

OLD = {"numpy": "1", "source:app": "aa"}
NEW = {"numpy": "2", "source:app": "aa"}
REFUSED = {**NEW, "policy:version": "refuse"}


@pytest.fixture
def bench() -> Bench:
    made = Bench(hosts_expected=2)
    made.dependencies = OLD
    made.start_fleet("h1", "h2")
    return made


def warnings(bench: Bench) -> list[str]:
    return [note.text for note in bench.notes if "has other dependencies" in note.text and "rejected" not in note.text]


def reported(bench: Bench, host: str) -> dict[str, str]:
    image = bench.state.image
    return image.reports[image.hosts[host].report]


def leave(bench: Bench, host: str) -> None:
    bench.say(host, msg.Leave())
    bench.pass_time(1)
    assert bench.state.image.hosts[host].state == "left"


def test_equal_reports_are_kept_once_and_dropped_with_their_last_host(bench: Bench) -> None:
    assert bench.state.image.reports == {bench.state.image.hosts["h1"].report: OLD} and not warnings(bench)
    leave(bench, "h2")
    bench.dependencies = NEW
    bench.attach("h2", "h2-2")
    assert (reported(bench, "h1"), reported(bench, "h2"), len(bench.state.image.reports)) == (OLD, NEW, 2)
    leave(bench, "h1")
    bench.attach("h1", "h1-2")
    assert list(bench.state.image.reports.values()) == [NEW]


def test_a_restarted_host_with_other_dependencies_is_admitted_with_a_warning(bench: Bench) -> None:
    leave(bench, "h2")
    bench.dependencies = NEW
    bench.attach("h2", "h2-2")
    assert warnings(bench) == ["host h2 has other dependencies than before: numpy 2 instead of 1"]
    bench.attach("h2", "h2-2")
    assert len(warnings(bench)) == 1, "the same process comes again"


def test_a_restarted_host_is_refused_if_its_fleet_says_so(bench: Bench) -> None:
    leave(bench, "h2")
    bench.dependencies = REFUSED
    number = bench.join("h2", "h2-2")
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and not away.is_final, "h1 goes on"
    assert "numpy 2 instead of 1" in away.reason and "change on_change" in away.reason
    bench.dependencies = OLD
    bench.attach("h2", "h2-3")
    assert bench.state.image.hosts["h2"].state == "alive"


def test_a_drained_host_that_was_ended_is_refused_too(bench: Bench) -> None:
    """A rolling restart drains a host, ends it and starts it again."""
    bench.state.image.hosts["h2"].is_drained = True
    bench.drop("h2")
    bench.pass_time(20)
    bench.dependencies = REFUSED
    number = bench.join("h2", "h2-2")
    assert isinstance(bench.heard[number][-1], msg.TurnedAway)


def test_a_host_that_dies_while_it_is_drained_is_not_refused(bench: Bench) -> None:
    """Its agents are still there, so its new process is part of a recovery."""
    bench.state.image.hosts["h2"].is_drained = True
    bench.drop("h2")
    bench.dependencies = REFUSED
    bench.attach("h2", "h2-2")
    assert bench.state.image.hosts["h2"].instance == "h2-2"


def test_if_no_other_host_runs_the_refusal_is_final(bench: Bench) -> None:
    for host in ("h1", "h2"):
        leave(bench, host)
    bench.dependencies = REFUSED
    number = bench.join("h2", "h2-2")
    away = bench.heard[number][-1]
    assert isinstance(away, msg.TurnedAway) and away.is_final


def test_nobody_is_refused_while_the_agents_of_a_failed_host_must_move(bench: Bench) -> None:
    leave(bench, "h2")
    bench.dependencies = REFUSED
    number = bench.join("h2", "h2-2")
    assert isinstance(bench.heard[number][-1], msg.TurnedAway)
    bench.drop("h1")
    bench.pass_time(20)
    assert bench.state.image.hosts["h1"].state == "lost"
    bench.attach("h2", "h2-2")
    assert bench.state.image.hosts["h2"].state == "alive" and len(warnings(bench)) == 1


@pytest.mark.parametrize("is_noticed", [False, True])
def test_who_takes_the_place_of_a_failed_process_is_never_refused(bench: Bench, is_noticed: bool) -> None:
    bench.drop("h2")
    if is_noticed:
        bench.pass_time(20)
        assert bench.state.image.hosts["h2"].state == "lost"
    bench.dependencies = REFUSED
    bench.attach("h2", "h2-2")
    assert bench.state.image.hosts["h2"].state == "alive" and len(warnings(bench)) == 1


def test_an_admitted_process_that_left_the_leader_is_not_compared_again(bench: Bench) -> None:
    """Its stream breaks after it was asked to leave, and comes again."""
    leave(bench, "h2")
    bench.dependencies = OLD
    bench.attach("h2", "h2-2")
    bench.drop("h2")
    bench.attach("h2", "h2-2")
    assert not warnings(bench)


def test_a_new_host_is_compared_with_the_others(bench: Bench) -> None:
    bench.dependencies = REFUSED
    number = bench.join("h3")
    assert isinstance(bench.heard[number][-1], msg.TurnedAway)
    bench.dependencies = NEW
    bench.attach("h3")
    assert warnings(bench) == ["host h3 has other dependencies than before: numpy 2 instead of 1"]
    bench.dependencies = REFUSED
    bench.attach("h4")
    assert bench.state.image.hosts["h4"].state == "alive", "h3 runs on the same"


def test_hosts_of_an_earlier_release_report_nothing_and_are_not_compared() -> None:
    bench = Bench(hosts_expected=1)
    bench.start_fleet("h1")
    assert not bench.state.image.reports and bench.state.image.hosts["h1"].report == ""
    leave(bench, "h1")
    bench.dependencies = REFUSED
    bench.attach("h1", "h1-2")
    assert reported(bench, "h1") == REFUSED and not warnings(bench)


def test_the_first_hosts_of_a_fork_are_compared_with_its_snapshot(tmp_path: Path) -> None:
    parent = parent_store(tmp_path, dependencies=merged({"h1": OLD, "h2": OLD | {"numpy": "1.5"}}))
    state = state_of(fork_of(parent, tmp_path))
    bench = Forked(state)
    bench.dependencies = REFUSED
    number = bench.join("h1")
    assert isinstance(bench.heard[number][-1], msg.TurnedAway)
    bench.dependencies = OLD | {"numpy": "1.5"}
    bench.attach("h1")
    assert bench.state.image.hosts["h1"].state == "alive" and not warnings(bench)


def test_a_report_too_large_for_an_operation_is_cut(bench: Bench) -> None:
    bench.dependencies = {f"describes:{number}": "x" * 1000 for number in range(500)}
    bench.attach("h3")
    assert 0 < len(reported(bench, "h3")) < 50
    (admitted,) = [kind for kind in bench.log if isinstance(kind, op.AdmitHost) and kind.host == "h3"]
    assert len(msgspec.msgpack.encode(admitted)) < op.OPERATION_BYTES_MAX


# -- restores ---------------------------------------------------------------------------------------------------------


def admit(agreed: Agreed, host: str, instance: str, dependencies: dict[str, str]) -> None:
    record = agreed.state.image.hosts.get(host)
    start = 0 if record is None else record.start
    agreed.do(op.AdmitHost(host, instance, "h:1", start, dependencies=dependencies))


async def test_a_restore_shows_changes_and_is_refused_if_the_fleet_says_so(
    agreed: Agreed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = restoring(agreed, 5, 6, 7)
    shelf = made._store
    read = shelf.read_manifest

    def read_manifest(root: str, *, epoch: int) -> object:
        manifest = read(root, epoch=epoch)
        manifest.metadata.dependencies.update(OLD)
        return manifest

    monkeypatch.setattr(shelf, "read_manifest", read_manifest)
    admit(agreed, "h8", "h8-1", NEW)
    (change,) = (await made.preview("1", is_dropping=False)).dependencies
    assert (change.name, change.before, change.now, change.is_refused) == ("numpy", ("1",), ("2",), False)
    admit(agreed, "h9", "h9-1", REFUSED)
    with pytest.raises(UsageError, match=r"other dependencies than in epoch 1: numpy 2 instead of 1.*--accept-changes"):
        await made.restore("1", "t", "", is_dropping=False, ask=asked(agreed))
    accepted = await made.restore("1", "t", "", is_dropping=False, accepts_changes=True, ask=asked(agreed))
    assert accepted.epoch == 1
