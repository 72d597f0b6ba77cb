"""Operations as bytes: what goes in comes out, and nothing too large or too new passes."""

import pytest

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import EpochAccount, PartTimes
from snapline.errors import LogError, UsageError
from snapline.protos.v1 import operation_pb2

KINDS: list[op.Kind] = [
    op.DefineFleet("c", "f", "chandy-lamport", 5, 6, b"\x00\xff", 2),
    op.DefineAgents(3, ("a", "b"), ("m:A", "m:B")),
    op.AdmitHost("h1", "i", "127.0.0.1:1", 0),
    op.LoseHosts((op.LostHost("h1", 3), op.LostHost("h2", 1)), "gone", True, True),
    op.CommitPlan(1, 7, ("h1",), "why", weights=(10, 300)),
    op.Restore(1, 7, ("h1",), "why", 3, 4, "token", True, "a", "m:f:7"),
    op.ConfirmPlan(2, "h1", 3),
    op.BeginEpoch(7, "period"),
    op.CompleteEpoch(
        8, "ab", ("x",), 1, 2, 3, EpochAccount(2, 7, PartTimes("h2", "b", 9, 1, 2, 3, 4), PartTimes("h1"))
    ),
    op.AbortEpoch(8, "late", EpochAccount(1, 7, PartTimes("h2", "b", 9, 1, 2, 3, 4))),
    op.CondemnEpoch(8, "packs/x", "flipped"),
    op.ForgetEpochs((1, 2)),
    op.CreateAgents("h1", 1, 2, ("x",), ("m:X",), "a"),
    op.RemoveAgent("h1", 1, 2, "x"),
    op.EndFleet(9, "stopped", "done"),
    op.ForgetHosts(("h1", "h2")),
    op.DrainHosts(("h1", "h2"), True),
    op.ForgiveTurn("a", b"\x00\xff"),
    op.OpenHostLog("h1", 3, 2, b"\x00\xff", 7),
    op.MakeToken("ada", "operator", b"\x00\xff", 7),
    op.RevokeToken("ada"),
    op.RecordCall("ada", "operator", b"\x00", "h1", "Settle", "one", "allowed"),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_an_operation_comes_back_as_it_was(kind: op.Kind) -> None:
    operation = op.Operation(123, "client", 4, kind)
    assert op.decode_operation(op.encode_operation(operation)) == operation
    assert op.encode_operation(operation) == op.encode_operation(operation)


def test_every_kind_of_the_proto_has_a_struct() -> None:
    names = {field.name for field in operation_pb2.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert len(names) == len(KINDS) == len(op._codec._names)


def test_the_digest_tells_kinds_and_values_apart() -> None:
    digests = [op.digest_of(kind) for kind in KINDS]
    assert len(set(digests)) == len(digests)
    assert op.digest_of(op.AbortEpoch(1, "a")) != op.digest_of(op.AbortEpoch(1, "b"))


def test_64_kib_are_refused() -> None:
    fits = op.Operation(1, "c", 1, op.AbortEpoch(1, "x" * (op.OPERATION_BYTES_MAX - 30)))
    assert len(op.encode_operation(fits)) <= op.OPERATION_BYTES_MAX
    with pytest.raises(UsageError, match="operations end at 65535"):
        op.encode_operation(op.Operation(1, "c", 1, op.AbortEpoch(1, "x" * op.OPERATION_BYTES_MAX)))


def test_other_versions_and_garbage_end_the_process() -> None:
    later = operation_pb2.Operation(version=2, begin_epoch=operation_pb2.BeginEpochOperation())
    with pytest.raises(LogError, match="version 2"):
        op.decode_operation(later.SerializeToString())
    with pytest.raises(LogError, match="no operation"):
        op.decode_operation(operation_pb2.Operation(version=1).SerializeToString())
    with pytest.raises(LogError, match="no operation"):
        op.decode_operation(b"\xff\xff\xff")


def test_an_end_without_an_account_is_the_entry_of_an_older_release() -> None:
    """Else its request id would be another one, and a log of before would read differently."""
    for kind, field in ((op.CompleteEpoch(8, "ab"), "complete_epoch"), (op.AbortEpoch(8, "late"), "abort_epoch")):
        entry = operation_pb2.Operation()
        entry.ParseFromString(op.encode_operation(op.Operation(1, "c", 1, kind)))
        assert not getattr(entry, field).HasField("account")
        assert op.decode_operation(entry.SerializeToString()).kind == kind
