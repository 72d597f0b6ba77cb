"""JSON documents that tools print for an answer. Their names and order are a contract with readers of `-o json`."""

from collections.abc import Iterable

import msgspec

from snapline.messages import answers
from snapline.messages.answers import AgentOnLine
from snapline.messages.outputs import ReadConsumersReply
from snapline.messages.status import FleetStatus, SnapshotOutcome
from snapline.storage.timestamps import instant

Rows = dict[str, object]


def document(kind: str, **fields: object) -> Rows:
    """Return a document with the two fields common to all."""
    return {"apiVersion": "snapline/v1", "kind": kind, **fields}


def document_of(answer: answers.Answer | FleetStatus | SnapshotOutcome | ReadConsumersReply) -> Rows:
    """Return the document that shows `answer`."""
    match answer:
        case answers.Document():
            return msgspec.json.decode(answer.json, type=dict[str, object])
        case FleetStatus():
            return _status(answer)
        case SnapshotOutcome():
            is_new = answer.is_complete and not answer.reason
            return document("SnapshotCreated", is_new=is_new, **_plain(answer))
        case answers.SnapshotList():
            return _list(answer)
        case answers.StoreVerification():
            findings = [
                {"path": x.path, "epoch": x.epoch, "agent": x.agent, "reason": x.reason} for x in answer.findings
            ]
            return document("Verification", **_plain(answer) | {"findings": findings})
        case answers.CoordinatedLine():
            return document("RecoveryLine", **_plain(answer))
        case answers.CoordinatedLines():
            lines = [{"failed": name, "rolled_back": list(answer.rolled_back)} for name in answer.failures]
            return document("RecoveryLines", epoch=answer.epoch, lines=lines)
        case answers.AutonomousLine():
            return _line(answer)
        case answers.AutonomousLines():
            rows = [_failure(line) for line in answer.lines]
            return document("RecoveryLines", lines=rows, silent_hosts=list(answer.silent_hosts))
        case answers.RecoveryHistoryReply():
            return document("RecoveryHistory", **_plain(answer))
        case answers.RestorePreview():
            return document("RestorePreview", **_plain(answer))
        case answers.RestoreReply():
            return document("FleetRestored", **_plain(answer))
        case answers.LocateReply():
            return document("AgentList", **_plain(answer))
        case ReadConsumersReply():
            rows = [
                {"name": x.name, "cursor": x.cursor, "acknowledged": instant(x.acknowledged_ns / 1e9)}
                for x in answer.consumers
            ]
            return document("OutputConsumers", consumers=rows)
        case answers.LeaderTransferred():
            return document("LeaderTransferred", **_plain(answer))
        case _:
            raise AssertionError(f"no document shows {answer!r}")


def _plain(answer: msgspec.Struct) -> Rows:
    """Return the struct as JSON would decode it, with lists instead of tuples."""
    return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, object])


IN_SECONDS = {"store": 3, "concerns": 3, "loss": 6, "interval": 6}
"""Parts of a fleet's status whose times are printed in seconds → number of digits: an agent's pause takes microseconds."""


def _status(answer: FleetStatus) -> Rows:
    fields = _plain(answer)
    fields |= {name: _in_seconds(fields[name], digits) for name, digits in IN_SECONDS.items()}
    if answer.fork is None:
        del fields["fork"]
    return document("FleetStatus", **fields)


def _in_seconds(value: object, digits: int) -> object:
    """Return the value with its times in seconds, at any depth."""
    match value:
        case dict():
            return {_in_s(name): _time(name, inner, digits) for name, inner in value.items()}
        case list():
            return [_in_seconds(inner, digits) for inner in value]
    return value


def _in_s(name: str) -> str:
    return name.removesuffix("_ns") + "_s" if name.endswith("_ns") else name


def _time(name: str, value: object, digits: int) -> object:
    if name.endswith("_ns") and isinstance(value, int):
        return round(value / 1e9, digits)
    return _in_seconds(value, digits)


def _list(answer: answers.SnapshotList) -> Rows:
    snapshots: list[Rows] = []
    for snapshot in answer.snapshots:
        row = {"epoch": snapshot.epoch, "damage": snapshot.damage} if snapshot.damage else _plain(snapshot)
        if not snapshot.damage:
            del row["damage"], row["pack_count"]
        snapshots.append(row)
    optional_fields: Rows = {"tags_damage": answer.tags_damage} if answer.tags_damage else {}
    if answer.fork is not None:
        optional_fields["fork"] = _plain(answer.fork)
    pins = list(answer.pins)
    return document(
        "SnapshotList", store=answer.store, snapshots=snapshots, pins=pins, tags=answer.tags, **optional_fields
    )


def _line(answer: answers.AutonomousLine) -> Rows:
    return document(
        "RecoveryLine",
        failed=list(answer.failed),
        epoch=answer.epoch,
        root=answer.root,
        recovery_line={x.agent: x.to for x in answer.agents},
        rolled_back=[x.agent for x in answer.agents if x.to is not None],
        rollback=_rollback(answer.agents),
        in_transit=answer.in_transit,
        silent_hosts=list(answer.silent_hosts),
    )


def _failure(line: answers.FailureCost) -> Rows:
    return {
        "failed": line.failed,
        "rolled_back": [x.agent for x in line.agents],
        "checkpoints": sum(x.checkpoints for x in line.agents),
        "turns": sum(x.turns for x in line.agents),
        "rollback": _rollback(line.agents),
    }


def _rollback(agents: Iterable[AgentOnLine]) -> Rows:
    return {x.agent: {"to": x.to, "checkpoints": x.checkpoints, "turns": x.turns} for x in agents if x.to is not None}
