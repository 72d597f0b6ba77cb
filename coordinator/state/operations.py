"""The operations of the replicated log: all that can change what the fleet has agreed on.

One operation is one entry: canonical protobuf, a version inside, under 64 KiB. The proposer supplies ids and time, since
applying draws none. (`client`, `sequence`, digest of the kind) is the request id: proposing it again, after an unknown
outcome, has the effect of one request.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import cast

import msgspec
from google.protobuf.message import Message

from snapline.coordinator.state.epoch_records import EpochAccount
from snapline.errors import LogError, ProtocolError, UsageError
from snapline.messages.codec import OneofCodec
from snapline.messages.host_messages import PlaceRule
from snapline.messages.turn_deaths import TurnDeath
from snapline.protos.v1 import operation_pb2

OPERATION_VERSION = 1
"""A reader refuses any other: skipping an entry would make replicas diverge."""

OPERATION_BYTES_MAX = 64 * 1024 - 1
"""An entry must fit into one frame of the log's transport with its neighbours, and be written by one disk write."""

TEXT_CHARACTERS_MAX = 2_000
"""Largest length of a reason: it may come from a user's exception, and stays in the state."""


class Kind(msgspec.Struct, frozen=True, gc=False):
    """Base of what an operation does."""


class DefineFleet(Kind, frozen=True, gc=False):
    """The first one: what the fleet is. `agents` counts those that DefineAgents will name. `parts`: as `Join.definition_parts`."""

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


class DefineAgents(Kind, frozen=True, gc=False):
    """Definition of initial agents: those from position `first` on."""

    first: int
    agents: tuple[str, ...]
    kinds: tuple[str, ...]


class AdmitHost(Kind, frozen=True, gc=False):
    """A run of a host (`instance`) joins; the result's number is its host start.

    `expected_start` is the host's start when this was proposed: a proposal that is late does not replace a newer run. `died`: the run
    before it, if its process died in the middle of turns, `died_in`. `ran_until_ns`: as of `LoseHosts`, of the run before it.
    """

    host: str
    instance: str
    address: str
    expected_start: int
    died: str = ""
    died_in: tuple[TurnDeath, ...] = ()
    ran_until_ns: int = 0


class LostHost(msgspec.Struct, frozen=True, gc=False):
    """Lost run of a host; `died_in`: turns in whose middle its process died."""

    host: str
    host_start: int
    died_in: tuple[TurnDeath, ...] = ()


class LoseHosts(Kind, frozen=True, gc=False):
    """Loss of host runs that failed, or leave: nothing of them counts from here on.

    `is_spare`: they are reachable, but hold the fleet up; the plan that answers this excludes them, be they back or not.
    `ran_until_ns`: wall-clock time until which any of them is known to have worked; 0: until now.
    """

    hosts: tuple[LostHost, ...]
    reason: str
    is_leaving: bool = False
    is_spare: bool = False
    ran_until_ns: int = 0


class ForgetHosts(Kind, frozen=True, gc=False):
    """The records of these hosts go; none of them is alive or has agents."""

    hosts: tuple[str, ...]


class DrainHosts(Kind, frozen=True, gc=False):
    """Agents are to leave these hosts, and none comes there while there are others; or, not `is_drained`, they may again."""

    hosts: tuple[str, ...]
    is_drained: bool


class ForgiveTurn(Kind, frozen=True, gc=False):
    """The deaths that are counted of this turn are forgotten: it has ended well."""

    agent: str
    digest: bytes


class CommitPlan(Kind, frozen=True, gc=False):
    """The fleet rolls back to a complete epoch (0: the initial states), under the next plan number.

    `rolled_back` counts the agents that do not keep their live state, `checkpoints_lost` their durable checkpoints past the
    line; both are shown, and nothing is decided from them. `is_even`: hosts get equally many agents, though some must move that
    need not. `is_move`: nothing has failed, agents are to move; shown as well. `weights`: what an agent on each host of the plan before
    this one weighs, by what it was measured to do; empty: all weigh the same.
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


class Restore(Kind, frozen=True, gc=False):
    """Restore of the fleet: complete epochs above `line_epoch` are void, and a plan starts from it, in one entry.

    `request` names who asked, and for which time: the same again is the same restore. `agent`, `place`: of `ctx.rollback`, who
    asked and where in its code.
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


class ConfirmPlan(Kind, frozen=True, gc=False):
    """A host has applied the plan."""

    plan: int
    host: str
    host_start: int


class BeginEpoch(Kind, frozen=True, gc=False):
    """The next epoch begins; the result's number is the epoch.

    `trigger`: "period", "hand", "log" (too much of sender logs), or "recovery", which may begin while the fleet recovers.
    """

    expected_begun: int
    trigger: str


class CompleteEpoch(Kind, frozen=True, gc=False):
    """The epoch is durable, whole and verified: its manifest has this root. `account`: of its reports; None: there were none."""

    epoch: int
    root: str
    unborn_agents: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    account: EpochAccount | None = None


class AbortEpoch(Kind, frozen=True, gc=False):
    """The epoch never was."""

    epoch: int
    reason: str
    account: EpochAccount | None = None


class CondemnEpoch(Kind, frozen=True, gc=False):
    """A complete epoch whose bytes are damaged: no plan uses it any more."""

    epoch: int
    path: str
    reason: str


class ForgetEpochs(Kind, frozen=True, gc=False):
    """Complete or condemned epochs that nobody needs; their files may be deleted afterwards."""

    epochs: tuple[int, ...]


class CreateAgents(Kind, frozen=True, gc=False):
    """A host creates agents on itself."""

    host: str
    host_start: int
    plan: int
    agents: tuple[str, ...]
    kinds: tuple[str, ...]


class RemoveAgent(Kind, frozen=True, gc=False):
    """An agent takes no more turns and is in no epoch that begins later."""

    host: str
    host_start: int
    plan: int
    agent: str


class OpenHostLog(Kind, frozen=True, gc=False):
    """A host is about to log inputs under this plan: the owners of later plans will seal its log before they use it.

    Again with another `newest`: batches up to that number are durable, and the owners of later plans will look for them.
    """

    host: str
    host_start: int
    plan: int
    key: bytes = b""
    newest: int = 0


class EndFleet(Kind, frozen=True, gc=False):
    """The fleet ends. `outcome`: "stopped" or "failed". `is_newest`: in no older epoch than the newest complete one; else it is refused."""

    epoch: int
    outcome: str
    reason: str
    is_newest: bool = False


class MakeToken(Kind, frozen=True, gc=False):
    """A token for a person: `digest` is all that is known of it."""

    name: str
    role: str
    digest: bytes
    expires_ns: int


class RevokeToken(Kind, frozen=True, gc=False):
    """Revocation of a token."""

    name: str


class RecordCall(Kind, frozen=True, gc=False):
    """A person's call that changes something: before it is made, or when it was refused or has failed.

    `digest` of the token that it bore; empty: a certificate named the caller. `at`: the host that was called.
    """

    name: str
    role: str
    digest: bytes
    at: str
    call: str
    about: str
    outcome: str


OfPeople = MakeToken | RevokeToken | RecordCall
"""Operations that `users.py` applies."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """Entry of the log. `now_ns` is the proposer's wall clock: it is shown, and decides nothing."""

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
    """Return the entry for `operation`.

    Raises:
        UsageError: it has 64 KiB or more, or a number that no protobuf field holds.
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
    """Return the operation in an entry.

    Raises:
        LogError: it is none, or of a version that this release does not know. The process must end.
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
    """Return the digest of `kind`, part of its request id."""
    return blake2b(_codec.kind_bytes(kind), digest_size=16).digest()


def clip(text: str) -> str:
    """Return `text`, cut to what an operation takes for a reason."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"
