"""The People service over gRPC: tokens and the audit log."""

from google.protobuf.message import Message

from snapline.coordinator.service.calls import LeaderHint, with_grpc_errors
from snapline.coordinator.service.users import FleetUsers
from snapline.errors import UsageError
from snapline.messages.answers import ReadAuditReply, ReadTokensReply
from snapline.messages.wire import writer_of
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.rpc_authorization import Caller, Context, RpcGuard, clipped


class UsersServicer(coordinator_pb2_grpc.PeopleServicer):
    """Serves admins, and hosts that users have called."""

    def __init__(self, people: FleetUsers, guard: RpcGuard, leader_hint: LeaderHint) -> None:
        self._people = people
        self._guard = guard
        self.leader_hint = leader_hint

    @with_grpc_errors
    async def MakeToken(self, request: pb.MakeTokenRequest, context: Context) -> pb.MakeTokenReply:
        """Register a token by its digest."""
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
        """Return the name and role of a token's user, for a host that was called."""
        self._people.check_member(self._host(context))
        user = await self._people.holder(request.digest)
        return pb.CheckTokenReply() if user is None else pb.CheckTokenReply(name=user.name, role=user.role)

    @with_grpc_errors
    async def RecordCall(self, request: pb.RecordCallRequest, context: Context) -> pb.RecordCallReply:
        """Record a user's call to a host, under the user in the proof and the host's name."""
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
