"""`import snapline`: what users may rely on, and what it costs."""

import importlib
import subprocess
import sys

import pytest

import snapline
from snapline import errors

NAMES = {
    *("Agent", "Message", "handler", "heartbeat", "Context", "Fleet", "Every", "Cut", "TransitMessage", "migrates"),
    "CircuitBreaker",
    "TurnOutput",
    *("Blob", "History", "Pickled", "TorchState", "mark_dirty", "tracked_array"),
    *("Adaptive", "Manual", "EveryMessages"),
    *(
        "open_store",
        "SnapshotStore",
        "Snapshot",
        "SavedAgent",
        "Fork",
        "DeadLetter",
        "PendingSpawn",
        "PendingTimer",
        "PendingTurn",
    ),
    *("SnaplineError", "UsageError", "FleetDefinitionError", "EncodingError", "MessageTooLargeError", "NotFoundError"),
    *("PeerError", "ProtocolError", "OlderIncarnationError", "ConnectionRejectedError"),
    *(
        "ExternalFailureError",
        "StoreError",
        "StoreMissingError",
        "StoreKeyError",
        "DamagedDataError",
        "CoordinatorUnavailableError",
    ),
    "AbandonedTurn",
    "Approval",
    "AuthenticationError",
    *("UnknownOutcomeError", "LogError", "TraceError"),
    *(
        "Client",
        "SyncClient",
        "Certificates",
        "Receipt",
        "Reply",
        "OpenApproval",
        "Output",
        "OutputsReverted",
        "PastRollback",
        "Effect",
    ),
    *("FleetStatus", "LocatedAgent", "AgentState", "DeadLetterResult"),
    *("open_trace", "Trace", "DominoReport", "RecoveryLine"),
    *(
        "InputRefusedError",
        "AgentMissingError",
        "InputUnknownError",
        "InputRejectedError",
        "FleetEndedError",
        "HandlerNotPublicError",
        "InputsError",
        "AnswerMissingError",
        "InputDeadLetteredError",
        "SnapshotAbortedError",
        *(
            "CircuitOpenError",
            "GuardViolationError",
            "DivergenceError",
            "StepCancelledError",
            "StepFailedError",
            "EffectFailedError",
            "UnansweredCallError",
            "WaitTimeoutError",
        ),
    ),
}
"""Frozen. Adding a name is a promise for years, taking one away breaks somebody: both need a line in the changelog."""


def test_the_public_names_are_frozen() -> None:
    assert set(snapline.__all__) == NAMES
    assert len(snapline.__all__) == len(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(snapline, name).__name__ == name
    assert name in dir(snapline)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="'snapline' has no attribute 'Nothing'"):
        _ = snapline.Nothing


def test_the_whole_error_tree_is_public_and_drawn() -> None:
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert tree <= NAMES
    assert not [name for name in tree if name not in (errors.__doc__ or "")]


@pytest.mark.parametrize("module", ["snapline", "snapline.errors", "snapline.ids"])
def test_importing_is_next_to_nothing(module: str) -> None:
    code = (
        f"import sys, {module}; print([n for n in ('grpc', 'numpy', 'msgspec', 'google', 'typer') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_distribution_s() -> None:
    metadata = importlib.import_module("importlib.metadata")
    assert snapline.__version__ == metadata.version("snapline")
