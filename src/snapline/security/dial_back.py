"""Dial-back: verifies a peer without a certificate by calling the peer's known address.

Without TLS, only a stream's first message identifies the sender, and anyone who can reach the port can forge it. A forged first message
would replace the real sender's stream. However, the addresses of hosts and replicas are known. So the dialling process puts a random id
into the metadata of each call. The callee sends this id in a `Confirm` call to the caller's address in the roster or in the list of
members. Only the process that listens at the caller's known address can confirm the id, and it confirms only ids that it has generated.
Until the id is confirmed, the callee reads no further data from the stream and changes no state.

With TLS, the certificate identifies the caller, so there is no dial-back.

Bounds. At most one `Confirm` call per peer is in progress. Ids that arrive during a `Confirm` call wait for the next one. Each `Confirm`
call contains at most `ASKED_MAX` ids, so a flood of forged first messages costs one small call per round trip. If more than `WAITING_MAX`
ids would wait, further incoming calls are refused without a dial-back. A real peer whose call is refused dials again.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio

from snapline.errors import SnaplineError
from snapline.protos.v1 import link_pb2
from snapline.security.transport import Security

log = logging.getLogger("snapline.channels")

KEY = "snapline-call"
METHOD = "Confirm"

ID_BYTES = 16
ASKED_MAX = 64
WAITING_MAX = 1024

ANSWER_S_MAX = 1.5
"""Time limit of a dial-back in seconds. It is less than the time for which a dialler waits for the first answer to its call."""

REFUSAL_LOG_S = 1.0
"""Shortest time in seconds between two log lines about refused callers. Without a limit, such callers could flood the log."""

_Context = grpc.aio.ServicerContext[bytes, bytes]


class OutgoingCalls:
    """The ids of the calls that this process is currently making. The class answers `Confirm` requests about these ids."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()

    @contextlib.contextmanager
    def new(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Create an id for a new call, and yield the metadata that contains it. While the `with` block runs, `Confirm` requests for this id
        are answered positively."""
        call_id = secrets.token_bytes(ID_BYTES)
        self._ids.add(call_id)
        try:
            yield ((KEY, call_id.hex()),)
        finally:
            self._ids.discard(call_id)

    def handler(self) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the RPC handler of `Confirm`."""
        return grpc.unary_unary_rpc_method_handler(
            self._confirm, link_pb2.CallIds.FromString, link_pb2.CallIds.SerializeToString
        )

    async def _confirm(self, asked: link_pb2.CallIds, _: object) -> link_pb2.CallIds:
        """Return the requested ids that belong to current calls of this process."""
        return link_pb2.CallIds(id=[call_id for call_id in asked.id[:ASKED_MAX] if call_id in self._ids])


class DialBackClient:
    """Client of `Confirm`. The client asks the claimed caller of an RPC whether that process is really making the call."""

    def __init__(self, security: Security, *, service: str, role: str) -> None:
        """Create the client. `service` is the gRPC service that contains the peers' `Confirm` method. `role` is the peers' role."""
        self._security = security
        self._method = f"/{service}/{METHOD}"
        self._role = role
        self._waiting: dict[str, dict[bytes, asyncio.Future[bool]]] = {}
        """Peer → ids to be confirmed. While a peer has an entry, a task runs for it."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def is_real(self, context: _Context, peer: str, address: str) -> bool:
        """Return whether the process that listens at `address` as `peer` confirms that it is making this call. With TLS, return True."""
        if self._security.is_tls:
            return True
        call = _call_of(context)
        waiting = self._waiting.get(peer, {})
        if call is None or call in waiting or len(waiting) >= WAITING_MAX:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting[call] = answer
        if peer not in self._waiting:
            self._waiting[peer] = waiting
            task = asyncio.create_task(self._keep_asking(peer, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _keep_asking(self, peer: str, address: str) -> None:
        """Send `Confirm` requests to the peer until no ids are waiting. There is no `await` between the last check and the removal of the
        peer's entry, so no id can be missed."""
        waiting = self._waiting[peer]
        try:
            while waiting:
                batch = list(waiting)[:ASKED_MAX]
                real = await self._ask(peer, address, batch)
                for call in batch:
                    _settle(waiting.pop(call), call in real)
        finally:
            del self._waiting[peer]
            for answer in waiting.values():
                _settle(answer, False)

    async def _ask(self, peer: str, address: str, asked: list[bytes]) -> frozenset[bytes]:
        try:
            async with self._security.open_channel(address, role=self._role, name=peer) as channel:
                confirm = channel.unary_unary(
                    self._method, link_pb2.CallIds.SerializeToString, link_pb2.CallIds.FromString
                )
                answer: link_pb2.CallIds = await confirm(link_pb2.CallIds(id=asked), timeout=ANSWER_S_MAX)
                return frozenset(answer.id)
        except (grpc.aio.AioRpcError, SnaplineError) as error:
            log.debug("asking %s at %s whether it calls: %r", peer, address, error)
            return frozenset()


class RefusalLog:
    """Rate-limited log of refused callers."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last_s = float("-inf")
        self._skipped = 0

    def say(self, sentence: str) -> None:
        """Log the sentence. If the last log line was written too recently, count the sentence instead of logging it."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._last_s + REFUSAL_LOG_S:
            self._skipped += 1
            return
        more = f" (and {self._skipped} others before)" if self._skipped else ""
        self._last_s, self._skipped = now_s, 0
        self._log.warning("%s%s", sentence, more)


def _call_of(context: _Context) -> bytes | None:
    """Return the id in a call's metadata, or None if there is no valid id."""
    for key, value in context.invocation_metadata() or ():
        if key == KEY and isinstance(value, str) and len(value) == 2 * ID_BYTES:
            with contextlib.suppress(ValueError):
                return bytes.fromhex(value)
    return None


def _settle(answer: "asyncio.Future[bool]", is_real: bool) -> None:
    if not answer.done():
        answer.set_result(is_real)
