"""Operations of the replicated log, which are the only way to change the replicated state.

Each operation is one log entry, encoded as canonical protobuf with a version, and takes less than 64 KiB. The proposer supplies ids and the
time, because applying an operation must be deterministic. The request id consists of `client`, `sequence` and the digest of `kind`. An
operation takes effect only once, even if it is proposed again after an unknown outcome.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import cast

import msgspec
from google.protobuf.message import Message

from snapline.coordinator.state.fleet_records import EpochAccount
from snapline.errors import LogError, ProtocolError, UsageError
from snapline.messages.host_messages import PlaceRule, TurnDeath
from snapline.messages.wire import OneofCodec
from snapline.protocols.names import GLOBAL
from snapline.protos.v1 import operation_pb2

OPERATION_VERSION = 1
"""Version of an entry. A reader refuses any other version, because replicas that skipped an entry would diverge."""

OPERATION_BYTES_MAX = 64 * 1024 - 1
"""Largest size of an entry, in bytes. Several entries of this size fit into one frame of the log's transport and one disk write."""

TEXT_CHARACTERS_MAX = 2_000
"""Largest length of a reason, in characters. A limit is needed because a reason may come from a user's exception and is kept in the
state."""


class Kind(msgspec.Struct, frozen=True, gc=False):
    """Base class of all kinds of operations."""


class DefineFleet(Kind, frozen=True, gc=False):
    """The first operation, which defines the fleet. `agents` is the total number of agents in the `DefineAgents` operations that follow.
    `parts` has the same meaning as `Join.definition_parts`. In logs of earlier releases, `recovery` is empty, which means "global"."""

    cluster: str
    name: str
    protocol: str
    period_ns: int
    epoch_timeout_ns: int
    definition_digest: bytes
    agents: int
    never_stops: bool = False
    policy: str = ""
    log_bytes_max: int = 0
    places: tuple[PlaceRule, ...] = ()
    rpo_ns: int = 0
    rto_ns: int = 0
    parts: tuple[str, ...] = ()
    recovery: str = GLOBAL


class DefineAgents(Kind, frozen=True, gc=False):
    """Definition of some of the initial agents, starting at position `first`."""

    first: int
    agents: tuple[str, ...]
    kinds: tuple[str, ...]


class AdmitHost(Kind, frozen=True, gc=False):
    """Admission of a host's process, which is identified by `instance`. The `number` of the operation's result is the host's new start
    number.

    Attributes:
        expected_start: the host's start number when the operation was proposed, so that a late proposal cannot replace a newer run.
        died: `instance` of the previous run if its process died during turns, otherwise "".
        died_in: the turns that the previous process was running when it died.
        ran_until_ns: same as in `LoseHosts`, for the previous run.
        dependencies: report of what the process runs on (`snapline.messages.dependencies`).
    """

    host: str
    instance: str
    address: str
    expected_start: int
    died: str = ""
    died_in: tuple[TurnDeath, ...] = ()
    ran_until_ns: int = 0
    dependencies: dict[str, str] = {}


class LostHost(msgspec.Struct, frozen=True, gc=False):
    """A lost run of a host. `died_in` lists the turns that were running when the run's process died."""

    host: str
    host_start: int
    died_in: tuple[TurnDeath, ...] = ()


class LoseHosts(Kind, frozen=True, gc=False):
    """Loss or departure of host processes, whose later messages are rejected.

    Attributes:
        is_spare: whether the hosts are reachable but prevent the fleet from making progress. The next plan excludes such hosts even if they
            have rejoined.
        ran_until_ns: latest wall-clock time at which any of these hosts is known to have worked; 0 if the hosts may have worked until now.
    """

    hosts: tuple[LostHost, ...]
    reason: str
    is_leaving: bool = False
    is_spare: bool = False
    ran_until_ns: int = 0


class ForgetHosts(Kind, frozen=True, gc=False):
    """Removal of the records of these hosts, none of which may be alive or have agents."""

    hosts: tuple[str, ...]


class DrainHosts(Kind, frozen=True, gc=False):
    """Change of the hosts' drain marks. Agents leave a drained host, and are placed there again only if no other host is available.

    If `is_drained` is false, the marks are removed.
    """

    hosts: tuple[str, ...]
    is_drained: bool


class ForgiveTurn(Kind, frozen=True, gc=False):
    """Reset of the number of deaths counted for this turn, after the turn has ended successfully."""

    agent: str
    digest: bytes


class CommitPlan(Kind, frozen=True, gc=False):
    """A plan that rolls the fleet back to the complete epoch `line_epoch`, or to the initial states if this is 0.

    Attributes:
        rolled_back: number of agents whose current state is discarded; for display only.
        checkpoints_lost: number of durable checkpoints that are newer than the recovery line; for display only.
        is_even: whether to spread the agents evenly over the hosts, even if this moves more agents.
        is_move: whether the plan moves agents without a failure; for display only.
        weights: measured weight of each agent on the respective host of the previous plan; empty if all agents have the same weight.
        restarted: hosts whose agents start again with local recovery although the hosts have not failed.
        placed: hosts to which agents move by request, by agent. Placement rules take precedence.
        frozen: agents that, with local recovery, their hosts have frozen and committed. If only such agents leave a host, its others go on.
    """

    expected_plan: int
    line_epoch: int
    hosts: tuple[str, ...]
    reason: str
    rolled_back: int = 0
    checkpoints_lost: int = 0
    is_even: bool = False
    is_move: bool = False
    weights: tuple[int, ...] = ()
    restarted: tuple[str, ...] = ()
    placed: dict[str, str] = {}
    frozen: tuple[str, ...] = ()


class Restore(Kind, frozen=True, gc=False):
    """A restore of the fleet. A single log entry makes all complete epochs above `line_epoch` void and commits a plan that starts from
    `line_epoch`.

    Attributes:
        request: token that the client has chosen for this restore, so that a repeated request is recognized.
        agent, place: the agent that called `ctx.rollback`, and the code location of the call; both are "" if an operator requested the
            restore.
        asked, done, at_most: reason as the agent gave it, what its turn had requested, and number of rollbacks that it may cause, as in
            `WantRollback`.
    """

    expected_plan: int
    line_epoch: int
    hosts: tuple[str, ...]
    reason: str
    rolled_back: int = 0
    checkpoints_lost: int = 0
    request: str = ""
    drop_inputs: bool = False
    agent: str = ""
    place: str = ""
    asked: str = ""
    done: bytes = b""
    at_most: int = 1


class ConfirmPlan(Kind, frozen=True, gc=False):
    """Confirmation that a host has applied the plan."""

    plan: int
    host: str
    host_start: int


class BeginEpoch(Kind, frozen=True, gc=False):
    """Start of the next epoch. The `number` of the operation's result is the number of the new epoch.

    `trigger` is "period", "hand" (on request), "log" (large sender logs) or "recovery". While the fleet recovers, only epochs with the
    trigger "recovery" may begin.
    """

    expected_begun: int
    trigger: str


class CompleteEpoch(Kind, frozen=True, gc=False):
    """Completion of an epoch whose data is durable, complete and verified. `root` is the root of the epoch's manifest.

    `account` summarizes the times that hosts reported, or is None if there were no reports.
    """

    epoch: int
    root: str
    unborn_agents: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    account: EpochAccount | None = None


class AbortEpoch(Kind, frozen=True, gc=False):
    """Abort of an open epoch, whose data is then no longer needed."""

    epoch: int
    reason: str
    account: EpochAccount | None = None


class CondemnEpoch(Kind, frozen=True, gc=False):
    """Report that the data of a complete epoch is damaged, so that no later plan uses this epoch."""

    epoch: int
    path: str
    reason: str


class ForgetEpochs(Kind, frozen=True, gc=False):
    """Removal of complete, condemned or void epochs that are no longer needed. The files of removed epochs may be deleted afterwards."""

    epochs: tuple[int, ...]


class CreateAgents(Kind, frozen=True, gc=False):
    """Creation of agents on the requesting host. If recovery is local, `parent` is the agent that creates them. The same parent may create
    them again, because it may have been restarted at a state before the answer."""

    host: str
    host_start: int
    plan: int
    agents: tuple[str, ...]
    kinds: tuple[str, ...]
    parent: str = ""


class RemoveAgent(Kind, frozen=True, gc=False):
    """Removal of an agent. The agent takes no more turns and is not a member of epochs that begin later."""

    host: str
    host_start: int
    plan: int
    agent: str


class OpenHostLog(Kind, frozen=True, gc=False):
    """Opening of a host's input log under this plan. The hosts of later plans seal the log before they use it.

    The operation is repeated with a higher `newest` after batches up to this number have become durable. The hosts of later plans must then
    find these batches in the log.
    """

    host: str
    host_start: int
    plan: int
    key: bytes = b""
    newest: int = 0


class EndFleet(Kind, frozen=True, gc=False):
    """End of the fleet. `outcome` is "stopped" or "failed". If `is_newest` is true, the operation requires that no complete epoch is newer
    than `epoch`."""

    epoch: int
    outcome: str
    reason: str
    is_newest: bool = False


class MakeToken(Kind, frozen=True, gc=False):
    """Creation of a user's token. The log contains only the token's `digest`."""

    name: str
    role: str
    digest: bytes
    expires_ns: int


class RevokeToken(Kind, frozen=True, gc=False):
    """Revocation of a user's token."""

    name: str


class RecordCall(Kind, frozen=True, gc=False):
    """Audit record of a user's call that changes the fleet. The record is written before the call is executed, or after the call was
    refused or failed.

    `digest` is the digest of the caller's token, or empty if the caller has a certificate. `at` is the host that was called, or "".
    """

    name: str
    role: str
    digest: bytes
    at: str
    call: str
    about: str
    outcome: str


UserOperation = MakeToken | RevokeToken | RecordCall
"""The operations that `apply_user_operation` applies."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """An entry of the log. `now_ns` is the proposer's wall-clock time."""

    now_ns: int
    client: str
    sequence: int
    kind: Kind


_codec: OneofCodec[Kind] = OneofCodec(
    operation_pb2.Operation,
    {
        "define_fleet": DefineFleet,
        "define_agents": DefineAgents,
        "admit_host": AdmitHost,
        "lose_hosts": LoseHosts,
        "commit_plan": CommitPlan,
        "confirm_plan": ConfirmPlan,
        "begin_epoch": BeginEpoch,
        "complete_epoch": CompleteEpoch,
        "abort_epoch": AbortEpoch,
        "condemn_epoch": CondemnEpoch,
        "forget_epochs": ForgetEpochs,
        "create_agents": CreateAgents,
        "remove_agent": RemoveAgent,
        "end_fleet": EndFleet,
        "forget_hosts": ForgetHosts,
        "open_host_log": OpenHostLog,
        "restore": Restore,
        "make_token": MakeToken,
        "revoke_token": RevokeToken,
        "record_call": RecordCall,
        "drain_hosts": DrainHosts,
        "forgive_turn": ForgiveTurn,
    },
)
_parse: Callable[[bytes], Message] = _codec.parse


def encode_operation(operation: Operation) -> bytes:
    """Return the log entry for `operation`.

    Raises:
        UsageError: the entry is too large, or a number does not fit into its protobuf field.
    """
    try:
        envelope = _codec.wrap(
            operation.kind,
            version=OPERATION_VERSION,
            now_ns=operation.now_ns,
            client=operation.client,
            sequence=operation.sequence,
        )
        data = envelope.SerializeToString(deterministic=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a {type(operation.kind).__name__} that cannot be encoded: {error}") from error
    if len(data) > OPERATION_BYTES_MAX:
        raise UsageError(
            f"a {type(operation.kind).__name__} of {len(data)} bytes: operations end at {OPERATION_BYTES_MAX}"
        )
    return data


def decode_operation(data: bytes) -> Operation:
    """Return the operation encoded in a log entry.

    Raises:
        LogError: the entry is not an operation, or its version is unknown to this release. After this error, the process must exit.
    """
    try:
        envelope = cast(operation_pb2.Operation, _parse(data))
        if envelope.version != OPERATION_VERSION:
            raise LogError(
                f"the log holds an operation of version {envelope.version}, this release knows {OPERATION_VERSION}: "
                "run the coordinator with the newer release"
            )
        return Operation(envelope.now_ns, envelope.client, envelope.sequence, _codec.unwrap(envelope))
    except ProtocolError as error:
        raise LogError(f"the log holds an entry that is no operation: {error}") from error


def digest_of(kind: Kind) -> bytes:
    """Return the digest of `kind`, which is part of the operation's request id."""
    return blake2b(_codec.kind_bytes(kind), digest_size=16).digest()


def clip(text: str) -> str:
    """Return `text`, truncated to TEXT_CHARACTERS_MAX characters."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"
