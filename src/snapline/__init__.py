"""snapline takes consistent global checkpoints of running fleets of Python agents, and recovers the fleets exactly.

    class Shard(snapline.Agent):
        state: ShardState

        @snapline.handler
        async def on_mass(self, message: Mass, ctx: snapline.Context) -> None: ...

    fleet = snapline.Fleet("pagerank", agents={...}, triggers=[snapline.Every(seconds=1)])

Each name is loaded when it is first used (PEP 562), so `import snapline` is fast.
"""

import importlib
from typing import TYPE_CHECKING

from snapline.errors import (
    AgentMissingError,
    AnswerMissingError,
    AuthenticationError,
    CircuitOpenError,
    ConnectionRejectedError,
    CoordinatorUnavailableError,
    DamagedDataError,
    DivergenceError,
    EffectFailedError,
    EncodingError,
    ExternalFailureError,
    FleetDefinitionError,
    FleetEndedError,
    GuardViolationError,
    HandlerNotPublicError,
    InputDeadLetteredError,
    InputRefusedError,
    InputRejectedError,
    InputsError,
    InputUnknownError,
    LogError,
    MessageTooLargeError,
    NotFoundError,
    OlderIncarnationError,
    PeerError,
    ProtocolError,
    SnaplineError,
    SnapshotAbortedError,
    StepCancelledError,
    StepFailedError,
    StoreError,
    StoreKeyError,
    StoreMissingError,
    TraceError,
    UnansweredCallError,
    UnknownOutcomeError,
    UsageError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from snapline.agent_runtime.agent import Agent, Message, handler
    from snapline.agent_runtime.breaker import CircuitBreaker
    from snapline.agent_runtime.context import Context
    from snapline.agent_runtime.durable import Approval
    from snapline.agent_runtime.effect_ledger import Effect
    from snapline.agent_runtime.fleet import Fleet
    from snapline.agent_runtime.guards import TurnOutput
    from snapline.agent_runtime.message_encoding import Output, OutputsReverted
    from snapline.agent_runtime.migrations import migrates
    from snapline.agent_runtime.snapshots.snapshot_cut import (
        Cut,
        DeadLetter,
        PendingSpawn,
        PendingTimer,
        PendingTurn,
        TransitMessage,
    )
    from snapline.agent_runtime.snapshots.snapshot_forks import Fork
    from snapline.agent_runtime.snapshots.snapshot_reader import SavedAgent, Snapshot, SnapshotStore, open_store
    from snapline.agent_runtime.turn_environment import heartbeat
    from snapline.client.client import Certificates, Client
    from snapline.client.operator_commands import DeadLetterResult
    from snapline.client.sends_and_asks import Receipt, Reply
    from snapline.client.sync_client import SyncClient
    from snapline.client.trace_analysis import DominoReport, RecoveryLine, Trace, open_trace
    from snapline.messages.answers import LocatedAgent
    from snapline.messages.approvals import OpenApproval
    from snapline.messages.client_requests import AgentState
    from snapline.messages.past_rollbacks import PastRollback
    from snapline.messages.status import FleetStatus
    from snapline.protocols.policy import Adaptive, Every, EveryMessages, Manual
    from snapline.storage.capture.history import History
    from snapline.storage.capture.torch_state import TorchState
    from snapline.storage.capture.tracked_arrays import mark_dirty, tracked_array
    from snapline.storage.capture.values import Blob, Pickled
    from snapline.storage.packs.checkpoint import AbandonedTurn

__version__ = "0.1.0"

_HOMES = {
    "AbandonedTurn": "snapline.storage.packs.checkpoint",
    "Adaptive": "snapline.protocols.policy",
    "Agent": "snapline.agent_runtime.agent",
    "AgentState": "snapline.messages.client_requests",
    "Approval": "snapline.agent_runtime.durable",
    "Blob": "snapline.storage.capture.values",
    "FleetStatus": "snapline.messages.status",
    "Manual": "snapline.protocols.policy",
    "Certificates": "snapline.client.client",
    "CircuitBreaker": "snapline.agent_runtime.breaker",
    "Client": "snapline.client.client",
    "Context": "snapline.agent_runtime.context",
    "Cut": "snapline.agent_runtime.snapshots.snapshot_cut",
    "DeadLetter": "snapline.agent_runtime.snapshots.snapshot_cut",
    "DominoReport": "snapline.client.trace_analysis",
    "Effect": "snapline.agent_runtime.effect_ledger",
    "Every": "snapline.protocols.policy",
    "EveryMessages": "snapline.protocols.policy",
    "Fleet": "snapline.agent_runtime.fleet",
    "Fork": "snapline.agent_runtime.snapshots.snapshot_forks",
    "History": "snapline.storage.capture.history",
    "LocatedAgent": "snapline.messages.answers",
    "Message": "snapline.agent_runtime.agent",
    "OpenApproval": "snapline.messages.approvals",
    "Output": "snapline.agent_runtime.message_encoding",
    "PendingSpawn": "snapline.agent_runtime.snapshots.snapshot_cut",
    "PendingTimer": "snapline.agent_runtime.snapshots.snapshot_cut",
    "PendingTurn": "snapline.agent_runtime.snapshots.snapshot_cut",
    "Pickled": "snapline.storage.capture.values",
    "Receipt": "snapline.client.sends_and_asks",
    "RecoveryLine": "snapline.client.trace_analysis",
    "Reply": "snapline.client.sends_and_asks",
    "SavedAgent": "snapline.agent_runtime.snapshots.snapshot_reader",
    "DeadLetterResult": "snapline.client.operator_commands",
    "Snapshot": "snapline.agent_runtime.snapshots.snapshot_reader",
    "SnapshotStore": "snapline.agent_runtime.snapshots.snapshot_reader",
    "SyncClient": "snapline.client.sync_client",
    "TorchState": "snapline.storage.capture.torch_state",
    "Trace": "snapline.client.trace_analysis",
    "TurnOutput": "snapline.agent_runtime.guards",
    "TransitMessage": "snapline.agent_runtime.snapshots.snapshot_cut",
    "PastRollback": "snapline.messages.past_rollbacks",
    "OutputsReverted": "snapline.agent_runtime.message_encoding",
    "handler": "snapline.agent_runtime.agent",
    "heartbeat": "snapline.agent_runtime.turn_environment",
    "mark_dirty": "snapline.storage.capture.tracked_arrays",
    "migrates": "snapline.agent_runtime.migrations",
    "open_store": "snapline.agent_runtime.snapshots.snapshot_reader",
    "open_trace": "snapline.client.trace_analysis",
    "tracked_array": "snapline.storage.capture.tracked_arrays",
}

__all__ = [
    "AbandonedTurn",
    "Adaptive",
    "Agent",
    "AgentMissingError",
    "AgentState",
    "AnswerMissingError",
    "Approval",
    "AuthenticationError",
    "Blob",
    "Certificates",
    "CircuitBreaker",
    "CircuitOpenError",
    "Client",
    "ConnectionRejectedError",
    "Context",
    "CoordinatorUnavailableError",
    "Cut",
    "DamagedDataError",
    "DeadLetter",
    "DeadLetterResult",
    "DivergenceError",
    "DominoReport",
    "Effect",
    "EffectFailedError",
    "EncodingError",
    "Every",
    "EveryMessages",
    "ExternalFailureError",
    "Fleet",
    "FleetDefinitionError",
    "FleetEndedError",
    "FleetStatus",
    "Fork",
    "GuardViolationError",
    "HandlerNotPublicError",
    "History",
    "InputDeadLetteredError",
    "InputRefusedError",
    "InputRejectedError",
    "InputUnknownError",
    "InputsError",
    "LocatedAgent",
    "LogError",
    "Manual",
    "Message",
    "MessageTooLargeError",
    "NotFoundError",
    "OlderIncarnationError",
    "OpenApproval",
    "Output",
    "OutputsReverted",
    "PastRollback",
    "PeerError",
    "PendingSpawn",
    "PendingTimer",
    "PendingTurn",
    "Pickled",
    "ProtocolError",
    "Receipt",
    "RecoveryLine",
    "Reply",
    "SavedAgent",
    "SnaplineError",
    "Snapshot",
    "SnapshotAbortedError",
    "SnapshotStore",
    "StepCancelledError",
    "StepFailedError",
    "StoreError",
    "StoreKeyError",
    "StoreMissingError",
    "SyncClient",
    "TorchState",
    "Trace",
    "TraceError",
    "TransitMessage",
    "TurnOutput",
    "UnansweredCallError",
    "UnknownOutcomeError",
    "UsageError",
    "WaitTimeoutError",
    "handler",
    "heartbeat",
    "mark_dirty",
    "migrates",
    "open_store",
    "open_trace",
    "tracked_array",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'snapline' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
