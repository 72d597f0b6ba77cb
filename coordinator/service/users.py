"""Users of the coordinator: their tokens, the audit log of their calls, and the gRPC service `People`. This module applies the rules in
`state/operation_rules.py`.

Tokens are checked against this replica's copy of the replicated state. The leader's copy includes every acknowledged change. A follower's
copy may lack the newest tokens, so a follower refers callers with an unknown token to the leader. Before a call that changes the fleet is
executed, it is recorded through Raft, and the recording operation checks the token again.
"""

import asyncio
import secrets
import time
from collections.abc import Callable

from google.protobuf.message import Message

from snapline.coordinator.leader.leader_state import SECOND_NS
from snapline.coordinator.raft.raft_driver import RaftDriver
from snapline.coordinator.service.leadership import Leadership, ReplicatedLog
from snapline.coordinator.service.servicer import LeaderHint, with_grpc_errors
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE, UNCHANGED, Committed, OperationResult, Rejected
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operation_rules import CALLS_KEPT, REFUSALS_KEPT, bearer_of, describe_absence
from snapline.errors import CoordinatorUnavailableError, NotFoundError, UnknownOutcomeError, UsageError
from snapline.ids import check_id
from snapline.messages.answers import ReadAuditReply, ReadTokensReply, RecordedCall, TokenStatus
from snapline.messages.wire import writer_of
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.rpc_authorization import RPC_RULES, Caller, Context, RpcGuard
from snapline.security.tokens import ALLOWED, FAILED, REFUSED, USER_ROLES, clipped
from snapline.security.transport import Identity, Security

VALID_S_MAX = 366 * 24 * 3600
"""Longest validity of a token, in seconds."""

PROPOSE_S, AGAIN_S = 10.0, 0.1
"""Time limit, in seconds, for committing an entry (an election takes a second or two), and time between attempts with the same request
id."""

AUDIT_MAX = CALLS_KEPT + REFUSALS_KEPT

HOST_RPC_RULES = {
    rpc.rpartition("/")[2]: rule for rpc, rule in RPC_RULES.items() if rule.changes_state and "v1.Inputs/" in rpc
}
"""The RPCs to hosts by which users change the fleet."""


class FleetUsers:
    """The users' tokens and the audit log. Each replica has one FleetUsers object."""

    def __init__(
        self,
        state: FleetState,
        raft: RaftDriver,
        log: ReplicatedLog,
        leadership: Leadership,
        leader_hint: LeaderHint,
        *,
        node: str,
        security: Security,
    ) -> None:
        self._state = state
        self._raft = raft
        self._log = log
        self._leadership = leadership
        self._who_leads = leader_hint
        self._security = security
        self._verified_names = _certificate_check() if security.is_tls else None
        self._client = f"{node}.people.{secrets.token_hex(8)}"
        self._sequence = 0

    # ---- authorization --------------------------------------------------------------------------------------------------

    async def holder(self, digest: bytes) -> Identity | None:
        """Return the owner of this token, or None if the token is invalid; see `rpc_authorization.People`."""
        bearer = bearer_of(self._state.image, digest, time.time_ns())
        if bearer is None:
            self._check_leading()
            return None
        return Identity(bearer[1], bearer[0])

    async def record(self, caller: Caller, call: str, about: str, outcome: str, at: str = "") -> None:
        """Record a call in the audit log; see `rpc_authorization.People`."""
        self._check_leading()
        assert caller.identity is not None, "nobody is not written down"
        role, name = caller.identity
        result = await self._propose(op.RecordCall(name, role, caller.digest, at, call, about, outcome))
        if result.is_refused:
            raise UsageError(result.reason)

    def check_member(self, host: str) -> None:
        """Check that a host is a living member of the fleet, which a host certificate alone does not prove.

        Raises:
            UsageError: the fleet has no such host.
            CoordinatorUnavailableError: the host is lost or has left, or this replica neither knows the host nor leads.
        """
        record = self._state.image.hosts.get(host)
        if record is not None and record.state == ALIVE:
            return
        self._check_leading()
        if record is None:
            raise UsageError(f"host {host} is no member of this fleet: people are not written down for it")
        raise CoordinatorUnavailableError(f"host {host} {describe_absence(record)}: it asks again when it has joined")

    async def record_at(self, host: str, proof: Caller, call: str, about: str, outcome: str) -> None:
        """Record a call that a user has made to a host. Each host may only report calls to itself.

        Raises:
            UsageError: `proof` does not identify a user who may have made this call, or the host is not a member of the fleet.
        """
        self._check_leading()
        self.check_member(host)
        rule = HOST_RPC_RULES.get(call)
        identity = self._identity_by(proof)
        if rule is None or outcome not in (ALLOWED, REFUSED, FAILED) or identity.role not in USER_ROLES:
            raise UsageError(f"{call!r} to a host, {outcome!r}, by a {identity.role!r} is not written down")
        if (outcome == REFUSED) == (identity.role in rule.roles):
            raise UsageError(f"{call} by {identity.role} {identity.name} cannot have been {outcome}")
        await self.record(Caller(identity, proof.digest), call, about, outcome, host)

    def _identity_by(self, proof: Caller) -> Identity:
        """Return the identity that is proved by a token's digest or a certificate."""
        if proof.digest:
            bearer = bearer_of(self._state.image, proof.digest, time.time_ns())
            if bearer is None:
                raise UsageError("the token is not good, or not any more")
            return Identity(bearer[1], bearer[0])
        if not proof.certificate:
            raise UsageError("a host that has calls written down shows the person's token digest or certificate")
        if self._verified_names is None:
            raise UsageError(
                "the coordinator has no library to check certificates: install snapline[crypto] where it runs, or use a token"
            )
        identity = self._security.identity_in(self._verified_names(proof.certificate, self._security.authority()))
        if identity is None:
            raise UsageError("the certificate names nobody of this fleet")
        return identity

    def redirect_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._who_leads.metadata()

    # ---- tokens ---------------------------------------------------------------------------------------------------------

    async def make_token(self, name: str, role: str, digest: bytes, valid_s: int) -> int:
        """Create a token. Return the token's expiry time, in nanoseconds by this replica's wall clock."""
        check_id(name, "token")
        if not 1 <= valid_s <= VALID_S_MAX:
            raise UsageError(f"a token is good for a second up to {VALID_S_MAX // 86_400} days, not for {valid_s} s")
        expires_ns = time.time_ns() + valid_s * SECOND_NS
        result = await self._propose(op.MakeToken(name, role, digest, expires_ns))
        if result.is_refused:
            raise UsageError(result.reason)
        return expires_ns

    async def revoke_token(self, name: str) -> None:
        """Revoke a token. The token becomes invalid when the revocation is in the log."""
        result = await self._propose(op.RevokeToken(name))
        if result.status == UNCHANGED:
            raise NotFoundError(f"there is no token {name!r}: `snapline auth token list` shows those that there are")

    async def tokens(self) -> ReadTokensReply:
        """Return all tokens."""
        await self._be_current()
        now_ns = time.time_ns()
        rows = [
            TokenStatus(name, token.role, token.made_ns, token.expires_ns, now_ns >= token.expires_ns)
            for name, token in self._state.image.tokens.items()
        ]
        return ReadTokensReply(tuple(rows))

    async def audit(self, count: int) -> ReadAuditReply:
        """Return the last `count` recorded calls, both allowed and refused, in the order of recording."""
        await self._be_current()
        image = self._state.image
        kept = sorted((*image.calls, *image.refusals), key=lambda each: each.number)
        last = kept[max(0, len(kept) - min(count, AUDIT_MAX)) :]
        rows = [
            RecordedCall(x.number, x.made_ns, x.name, x.role, x.is_borne, x.at, x.call, x.about, x.outcome)
            for x in last
        ]
        return ReadAuditReply(tuple(rows), image.calls_made - len(kept))

    # ---- the log ----------------------------------------------------------------------------------------------------

    def _check_leading(self) -> None:
        if self._leadership.runner is None:
            raise CoordinatorUnavailableError(self._who_leads.sentence())

    async def _be_current(self) -> None:
        """Ensure that later reads see every change acknowledged before this call."""
        self._check_leading()
        await self._raft.read(lambda: None)

    async def _propose(self, kind: op.Kind) -> OperationResult:
        """Commit an operation and return its result. While the outcome is unknown, propose the operation again with the same request id."""
        self._sequence += 1
        entry = op.encode_operation(op.Operation(time.time_ns(), self._client, self._sequence, kind))
        try:
            async with asyncio.timeout(PROPOSE_S):
                while True:
                    outcome = await self._log.propose(entry)
                    if isinstance(outcome, Committed):
                        return outcome.result
                    if isinstance(outcome, Rejected):
                        raise CoordinatorUnavailableError(f"it cannot be written down just now: {outcome.reason}")
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise UnknownOutcomeError(f"the coordinator's log did not answer within {PROPOSE_S:g} s") from None


def _certificate_check() -> Callable[[bytes, bytes], list[str]] | None:
    """Return the function that verifies certificates, or None if its library is not installed. Called at the start, because the package
    may be replaced while this process runs."""
    try:
        from snapline.security.certificates import verified_names
    except UsageError:
        return None
    return verified_names


class UsersServicer(coordinator_pb2_grpc.PeopleServicer):
    """gRPC handlers for calls from admins, and for calls from hosts about users who have called them."""

    def __init__(self, people: FleetUsers, guard: RpcGuard, leader_hint: LeaderHint) -> None:
        self._people = people
        self._guard = guard
        self.leader_hint = leader_hint

    @with_grpc_errors
    async def MakeToken(self, request: pb.MakeTokenRequest, context: Context) -> pb.MakeTokenReply:
        """Create a token. The request contains the token's digest instead of the token."""
        expires_ns = await self._people.make_token(request.name, request.role, request.digest, request.valid_s)
        return pb.MakeTokenReply(expires_ns=expires_ns)

    @with_grpc_errors
    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenReply:
        """Revoke a token."""
        await self._people.revoke_token(request.name)
        return pb.RevokeTokenReply()

    @with_grpc_errors
    async def ReadTokens(self, request: pb.ReadTokensRequest, context: Context) -> Message:
        """Return all tokens, without their digests."""
        return writer_of(ReadTokensReply, pb.ReadTokensReply)(await self._people.tokens())

    @with_grpc_errors
    async def CheckToken(self, request: pb.CheckTokenRequest, context: Context) -> pb.CheckTokenReply:
        """Tell a host the name and role of the owner of a token that a caller has used."""
        self._people.check_member(self._host(context))
        user = await self._people.holder(request.digest)
        return pb.CheckTokenReply() if user is None else pb.CheckTokenReply(name=user.name, role=user.role)

    @with_grpc_errors
    async def RecordCall(self, request: pb.RecordCallRequest, context: Context) -> pb.RecordCallReply:
        """Record a call that a user has made to a host. The user is identified by the proof in the request, and the host by its
        certificate."""
        proof = Caller(None, request.digest, request.certificate)
        await self._people.record_at(self._host(context), proof, request.call, clipped(request.about), request.outcome)
        return pb.RecordCallReply()

    def _host(self, context: Context) -> str:
        """Return the name of the calling host."""
        host = self._guard.identity(context)
        if host is None:
            raise UsageError("without certificates nobody is known, and nothing is written down")
        return host.name

    @with_grpc_errors
    async def ReadAudit(self, request: pb.ReadAuditRequest, context: Context) -> Message:
        """Return the last recorded calls."""
        return writer_of(ReadAuditReply, pb.ReadAuditReply)(await self._people.audit(request.count))
