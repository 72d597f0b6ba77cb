"""Documents that tools print. Who reads `-o json` counts on names and order."""

import json

import msgspec
from tests.kit.status import fleet_status

from snapline.messages.answers import (
    AgentOnLine,
    AutonomousLine,
    AutonomousLines,
    CoordinatedLine,
    CoordinatedLines,
    FailureCost,
    RecoveryLineReply,
    SnapshotList,
    StoreVerification,
    document_of,
)
from snapline.messages.host_messages import OpenTurn
from snapline.messages.status import (
    Concern,
    FleetStatus,
    ForkedFrom,
    HostStatus,
    IntervalStatus,
    LossStatus,
    RecoveryTime,
    StoreStatus,
)
from snapline.storage.disk.record import Finding
from snapline.storage.store.catalog import SnapshotSummary

BACK = AgentOnLine("a", 3, 1, 4)


def shown(answer: RecoveryLineReply | SnapshotList | StoreVerification) -> str:
    return json.dumps(document_of(answer)).removeprefix('{"apiVersion": "snapline/v1", ')


def test_lines_of_coordinated_fleets() -> None:
    line = CoordinatedLine(("a",), 2, "r", {"a": 2, "b": 2}, ("b",), 2, 5)
    assert shown(line) == (
        '"kind": "RecoveryLine", "failed": ["a"], "epoch": 2, "root": "r", "recovery_line": {"a": 2, "b": 2}, '
        '"unborn": ["b"], "rolled_back": 2, "messages_delivered_again": 5}'
    )
    assert shown(CoordinatedLines(2, ("a", "host:h1"), ("a", "b"))) == (
        '"kind": "RecoveryLines", "epoch": 2, "lines": [{"failed": "a", "rolled_back": ["a", "b"]}, '
        '{"failed": "host:h1", "rolled_back": ["a", "b"]}]}'
    )


def test_lines_of_autonomous_fleets() -> None:
    assert shown(AutonomousLine(("a",), 2, "r", (BACK, AgentOnLine("b", None, 0, 0)), 6, ("h2",))) == (
        '"kind": "RecoveryLine", "failed": ["a"], "epoch": 2, "root": "r", "recovery_line": {"a": 3, "b": null}, '
        '"rolled_back": ["a"], "rollback": {"a": {"to": 3, "checkpoints": 1, "turns": 4}}, "in_transit": 6, '
        '"silent_hosts": ["h2"]}'
    )
    assert shown(AutonomousLines((FailureCost("host:h1", (BACK,)),), ())) == (
        '"kind": "RecoveryLines", "lines": [{"failed": "host:h1", "rolled_back": ["a"], "checkpoints": 1, "turns": 4, '
        '"rollback": {"a": {"to": 3, "checkpoints": 1, "turns": 4}}}], "silent_hosts": []}'
    )


def test_lists_and_verifications() -> None:
    rows = (SnapshotSummary(1, damage="gone"), SnapshotSummary(2, "r", hosts=("h1",)))
    assert shown(SnapshotList("s", rows, (2,), {"good": 2}, "torn")) == (
        '"kind": "SnapshotList", "store": "s", "snapshots": [{"epoch": 1, "damage": "gone"}, {"epoch": 2, "root": "r", '
        '"created": "", "trigger": "", "fleet": "", "protocol": "", "plan": 0, "hosts": ["h1"], "agent_count": 0, '
        '"state_bytes": 0, "channel_state_messages": 0, "channel_state_bytes": 0, "stored_bytes": 0}], "pins": [2], '
        '"tags": {"good": 2}, "tags_damage": "torn"}'
    )
    found = (Finding("p", None, "torn", "a", 4),)
    assert shown(StoreVerification("s", None, False, 1, 2, found, ("x",))) == (
        '"kind": "Verification", "store": "s", "epoch": null, "is_whole": false, "checked_files": 1, "checked_bytes": 2, '
        '"findings": [{"path": "p", "epoch": null, "agent": "a", "reason": "torn"}], "unreferenced": ["x"]}'
    )


def test_the_status_tells_times_in_seconds() -> None:
    host = HostStatus("h1", "x:1", 2, "alive", 3, busy=(OpenTurn("a", 5),))
    concern = Concern("cut", ("h1", "h2"), 1_234_567_890, "a sentence")
    store = StoreStatus("file", "degraded", 2_000_000_000, "full", 1_500_000_000, 4)
    recovery = RecoveryTime(2, True, 250_000_000, 1_500_000, agents=3, rolled_back=2)
    loss = LossStatus(1_500_000_000, 1, 9, (recovery,), 3_000_000_000, 0, ("rpo",))
    fork = ForkedFrom("what-if", "ab", "f", 7, is_live=False)
    parts = {"hosts": (host,), "store": store, "concerns": (concern,), "fork": fork}
    fleet = fleet_status(7, loss=loss, interval=IntervalStatus(pause_ns=12_345), **parts)
    found = document_of(fleet)
    assert found["store"] == {
        "location": "file", "state": "degraded", "since_s": 2.0, "reason": "full", "next_try_s": 1.5, "skipped": 4
    }  # fmt: skip
    assert found["concerns"] == [
        {"kind": "cut", "hosts": ["h1", "h2"], "since_s": 1.235, "text": "a sentence", "agents": [], "remedy": ""}
    ]
    assert found["loss"] == {
        "at_risk_s": 1.5, "failures": 1, "observed_s": 0.0, "recoveries": [
            {"plan": 2, "is_failure": True, "plan_s": 0.25, "load_s": 0.0015, "agents": 3, "rolled_back": 2, "lost_s": None, "checkpoints_lost": 0}
        ], "rpo_s": 3.0, "rto_s": 0.0, "missed": ["rpo"]
    }  # fmt: skip
    interval = found["interval"]
    assert isinstance(interval, dict) and (interval["pause_s"], interval["capture_s"]) == (0.000012, None)
    assert list(found) == ["apiVersion", "kind", *FleetStatus.__struct_fields__]
    assert found["fork"] == {"name": "what-if", "parent": "ab", "parent_name": "f", "epoch": 7, "is_live": False}
    assert "fork" not in document_of(msgspec.structs.replace(fleet, fork=None))
    assert isinstance(found["hosts"], list) and found["hosts"][0]["busy"] == [{"agent": "a", "elapsed_ns": 5}]
