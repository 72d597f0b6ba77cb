"""Dial-back: verify a peer without a certificate by calling its advertised address.

Without TLS a stream's first message names the sender, and anyone who reaches the port can forge this message; a forged first message would
replace the real stream. But the addresses of hosts and replicas are known. So the dialling process puts a random id into the metadata of
its call. The callee then calls `Confirm` at the address in the roster or in the list of members, with this id. Only the process that
listens there can confirm the id, and it confirms only ids that it created. The callee reads no further data and changes nothing before the
answer.

With TLS the certificate identifies the caller, and there is no dial-back.

Bounds. At most one `Confirm` per peer is in progress; later ids wait for the next one. Each has at most `ASKED_MAX` ids, so a
flood of forged hellos costs one small call per round trip. Beyond `WAITING_MAX` a call is refused without dial-back; the
real peer dials again.
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
"""Time limit of a dial-back: less than a dialler waits for its first answer."""

REFUSAL_LOG_S = 1.0
"""Shortest time between two log lines about refused callers, who could otherwise flood the log."""

_Context = grpc.aio.ServicerContext[bytes, bytes]


class OutgoingCalls:
    """Calls that this process makes, and its answers to `Confirm` requests about them."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()

    @contextlib.contextmanager
    def new(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Return the metadata of a call that is about to be made. `Confirm` succeeds for the call until the block ends."""
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
        """Return those of the ids that this process has created."""
        return link_pb2.CallIds(id=[call_id for call_id in asked.id[:ASKED_MAX] if call_id in self._ids])


class DialBackClient:
    """Client of `Confirm`: asks the claimed caller whether a call is its own."""

    def __init__(self, security: Security, *, service: str, role: str) -> None:
        """Create the client. `service`: gRPC service whose `Confirm` the peers serve. `role`: role of the peers."""
        self._security = security
        self._method = f"/{service}/{METHOD}"
        self._role = role
        self._waiting: dict[str, dict[bytes, asyncio.Future[bool]]] = {}
        """By peer, the ids to be confirmed. A task runs for a peer while the peer has an entry."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def is_real(self, context: _Context, peer: str, address: str) -> bool:
        """Return whether `peer`, which listens at `address`, makes this call."""
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
        """Send `Confirm` requests until no call waits. No await separates the last check from the removal of the entry."""
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
        """Log the sentence, or only count it if the last log line is too recent."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._last_s + REFUSAL_LOG_S:
            self._skipped += 1
            return
        more = f" (and {self._skipped} others before)" if self._skipped else ""
        self._last_s, self._skipped = now_s, 0
        self._log.warning("%s%s", sentence, more)


def _call_of(context: _Context) -> bytes | None:
    """Return the id of a call; None if it has none."""
    for key, value in context.invocation_metadata() or ():
        if key == KEY and isinstance(value, str) and len(value) == 2 * ID_BYTES:
            with contextlib.suppress(ValueError):
                return bytes.fromhex(value)
    return None


def _settle(answer: "asyncio.Future[bool]", is_real: bool) -> None:
    if not answer.done():
        answer.set_result(is_real)
