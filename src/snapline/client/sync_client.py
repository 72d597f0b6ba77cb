"""`snapline.SyncClient`: the client for programs without an event loop. `SyncClient` runs an event loop in a separate thread.

A process should have only one SyncClient, because gRPC misbehaves if several event loops in one process use it. One SyncClient can serve
all threads of a program.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from snapline.agent_runtime.effect_ledger import Effect
from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.client.client import TIMEOUT_S, Certificates, Client
from snapline.client.operator_commands import DeadLetterResult
from snapline.client.sends_and_asks import AgentInput, Receipt, Reply
from snapline.client.trace_analysis import RecoveryLine
from snapline.errors import UsageError
from snapline.messages.answers import LocatedAgent
from snapline.messages.approvals import OpenApproval
from snapline.messages.client_requests import AgentState
from snapline.messages.coordinator_client import SNAPSHOT_TIMEOUT_S
from snapline.messages.coordinator_client import TIMEOUT_S as CALL_S_MAX
from snapline.messages.status import FleetStatus

_Result = TypeVar("_Result")


class SyncClient:
    """`snapline.Client` for programs without an event loop. `connect` creates it. All methods block, and may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="snapline-client", daemon=True)
        self._client: Client | None = None

    @classmethod
    def connect(
        cls,
        address: str = "",
        *,
        data_dir: str | Path | None = None,
        tls: Certificates | None = None,
        insecure: bool = False,
        name: str = "client",
    ) -> "SyncClient":
        """Connect to a fleet, in the same way as `Client.connect`."""
        made = cls(asyncio.new_event_loop())
        made._thread.start()
        connecting = Client.connect(address, data_dir=data_dir, tls=tls, insecure=insecure, name=name)
        try:
            made._client = made._run(connecting)
        except BaseException:
            made._stop()
            raise
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, in the same way as `Client.close`. A second call has no effect."""
        if self._client is not None:
            client, self._client = self._client, None
            self._run(_close(client))
            self._stop()

    def send(self, agent: str, message: Any, key: str | None = None, timeout_s: float = TIMEOUT_S) -> Receipt:
        """Send an input to an agent, as `Client.send` does."""
        return self._run(self._open.send(agent, message, key, timeout_s))

    def send_many(self, inputs: Iterable[AgentInput], timeout_s: float = TIMEOUT_S) -> list[Receipt]:
        """Send many inputs, as `Client.send_many` does."""
        return self._run(self._open.send_many(inputs, timeout_s))

    def ask(
        self,
        agent: str,
        message: Any,
        key: str | None = None,
        early: bool = False,
        timeout_s: float = TIMEOUT_S,
        *,
        reply_type: Any = None,
    ) -> Reply:
        """Send an input and wait for the answer, as `Client.ask` does."""
        return self._run(self._open.ask(agent, message, key, early, timeout_s, reply_type=reply_type))

    def outputs(
        self,
        topic: str = "",
        *,
        after: str = "",
        consumer: str = "",
        message_type: Any = None,
        follow: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[Output | OutputsReverted]:
        """Yield outputs, as `Client.outputs` does. Each iteration blocks until an output is available."""
        outputs = self._open.outputs(
            topic, after=after, consumer=consumer, message_type=message_type, follow=follow, timeout_s=timeout_s
        )
        try:
            while (output := self._run(_next(outputs))) is not None:
                yield output
        finally:
            if self._client is not None:
                self._run(outputs.aclose())

    def waiting(self) -> dict[str, object]:
        """Return pending work, as `Client.waiting` does."""
        return self._run(self._open.waiting())

    def effects(self) -> list[Effect]:
        """Return effects, as `Client.effects` does."""
        return self._run(self._open.effects())

    def acknowledge(self, consumer: str, last: Output | OutputsReverted | str) -> None:
        """Acknowledge outputs, as `Client.acknowledge` does."""
        self._run(self._open.acknowledge(consumer, last))

    def status(self) -> FleetStatus:
        """Return the status of the fleet, as `Client.status` does."""
        return self._run(self._open.status())

    def agents(self) -> list[LocatedAgent]:
        """Return the agents, as `Client.agents` does."""
        return self._run(self._open.agents())

    def snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> dict[str, object]:
        """Take a snapshot, as `Client.snapshot` does."""
        return self._run(self._open.snapshot(timeout_s))

    def restore(
        self,
        snapshot: str | int,
        *,
        drop_inputs: bool = False,
        accept_changes: bool = False,
        reason: str = "",
        timeout_s: float = SNAPSHOT_TIMEOUT_S,
    ) -> dict[str, object]:
        """Restore the fleet to a snapshot, as `Client.restore` does."""
        restored = self._open.restore(
            snapshot, drop_inputs=drop_inputs, accept_changes=accept_changes, reason=reason, timeout_s=timeout_s
        )
        return self._run(restored)

    def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = CALL_S_MAX) -> RecoveryLine:
        """Return a recovery line, as `Client.recovery_line` does."""
        return self._run(self._open.recovery_line(failed, timeout_s))

    def state(self, agent: str, *, live: bool = False, field: str = "", timeout_s: float = TIMEOUT_S) -> AgentState:
        """Return an agent's state, as `Client.state` does."""
        return self._run(self._open.state(agent, live=live, field=field, timeout_s=timeout_s))

    def describe(self, agent: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Describe an agent, as `Client.describe` does."""
        return self._run(self._open.describe(agent, timeout_s))

    def retry_dead_letters(
        self, agent: str, numbers: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Retry dead letters, as `Client.retry_dead_letters` does."""
        return self._run(self._open.retry_dead_letters(agent, numbers, timeout_s))

    def drop_dead_letters(
        self, agent: str, numbers: Iterable[int] | None = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Drop dead letters, as `Client.drop_dead_letters` does."""
        return self._run(self._open.drop_dead_letters(agent, numbers, timeout_s))

    def resolve_effect(
        self, agent: str, key: str, *, result: Any = None, not_done: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Resolve an effect, as `Client.resolve_effect` does."""
        self._run(self._open.resolve_effect(agent, key, result=result, not_done=not_done, timeout_s=timeout_s))

    def approvals(self) -> list[OpenApproval]:
        """Return open approvals, as `Client.approvals` does."""
        return self._run(self._open.approvals())

    def answer_approval(
        self, agent: str, approval: str, *, is_granted: bool, note: str = "", timeout_s: float = TIMEOUT_S
    ) -> str:
        """Answer an approval, as `Client.answer_approval` does."""
        return self._run(
            self._open.answer_approval(agent, approval, is_granted=is_granted, note=note, timeout_s=timeout_s)
        )

    def retry_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Retry an effect, as `Client.retry_effect` does."""
        self._run(self._open.retry_effect(agent, key, timeout_s))

    def undo_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Undo an effect, as `Client.undo_effect` does."""
        self._run(self._open.undo_effect(agent, key, timeout_s))

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise UsageError("this client is closed")
        return self._client

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run the coroutine on the event loop's thread, and return its result. A keyboard interrupt in the calling thread cancels the
        coroutine."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(found: AsyncGenerator[Output | OutputsReverted, None]) -> Output | OutputsReverted | None:
    return await anext(found, None)


async def _close(client: Client) -> None:
    """Close the client, and wait for all its tasks on the event loop, because other threads may be waiting for their results."""
    await client.close()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
