"""Send the view's requests to a running fleet, using `snapline.Client` and the coordinator's client."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from snapline.client.client import TIMEOUT_S, Client, open_client
from snapline.client.host_calls import HostCalls, recent_traces
from snapline.errors import SnaplineError, UsageError
from snapline.messages.answers import LocatedAgent, ReadConsumersReply, ReadOutputsReply
from snapline.messages.approvals import OpenApproval
from snapline.messages.client_requests import AgentState, RecentTrace
from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available
from snapline.messages.status import AskedReplica, FleetStatus, ReplicaStatus
from snapline.security.transport import Security

REPLICA_S = 2.0
"""Longest wait for a replica's reply, in seconds. A replica answers from memory, and a viewer waits for the page."""


class FleetQueries:
    """Client through which the view reads a fleet. The documents have the form that CLI commands print with `-o json`. Failures raise
    SnaplineError."""

    def __init__(
        self, client: Client, coordinator: CoordinatorClient, hosts: HostCalls, security: Security | None = None
    ) -> None:
        self._client = client
        self._coordinator = coordinator
        self._hosts = hosts
        self._security = security

    async def status(self) -> FleetStatus:
        """Return the output of `snapline status`.

        The status may be slightly outdated, which is harmless because the view requests it every second.
        """
        return await retry_until_available(lambda: self._coordinator.status(unconfirmed=True))

    async def agents(self) -> list[LocatedAgent]:
        """Return each agent with the host that runs it."""
        return await self._client.agents()

    async def describe(self, agent: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Return the output of `snapline agent describe`."""
        return await self._client.describe(agent, timeout_s)

    async def state(self, agent: str, *, live: bool = False, timeout_s: float = TIMEOUT_S) -> AgentState:
        """Return the output of `snapline agent state`."""
        return await self._client.state(agent, live=live, timeout_s=timeout_s)

    async def snapshot_at(self, snapshot: str) -> dict[str, object]:
        """Return the output of `snapline snapshot show`."""
        return await retry_until_available(lambda: self._coordinator.read_snapshots("show", snapshot))

    async def line_of(self, failed: Sequence[str]) -> Mapping[str, object]:
        """Return the output of `snapline recovery line`."""
        return await self._client.recovery_line(failed)

    async def lines_of_each(self) -> dict[str, object]:
        """Return the output of `snapline recovery line --each`."""
        return await retry_until_available(self._coordinator.recovery_lines)

    async def recoveries(self) -> dict[str, object]:
        """Return the output of `snapline recovery history`."""
        return await retry_until_available(self._coordinator.recovery_history)

    async def epoch_history(self) -> dict[str, object] | None:
        """Return the output of `snapline snapshot history`, or None if the coordinator's release does not support it."""
        try:
            return await retry_until_available(lambda: self._coordinator.read_snapshots("history"))
        except UsageError as error:
            if "history" not in str(error):
                raise  # the request itself is invalid; the release is not the cause
            return None

    async def replicas(self) -> list[AskedReplica]:
        """Return the coordinator's replicas, each with the status that it reports about itself."""
        answer = await retry_until_available(lambda: self._coordinator.read_replica("members"))
        members = msgspec.convert(answer["members"], list[AskedReplica])
        return await asyncio.gather(*[self._with_status(each) for each in members])

    async def _with_status(self, replica: AskedReplica) -> AskedReplica:
        try:
            coordinator = CoordinatorClient(replica.address, self._security)
            try:
                answer = await coordinator.read_replica("status", REPLICA_S)
            finally:
                await coordinator.close()
            status = msgspec.convert(answer, ReplicaStatus)
        except (SnaplineError, msgspec.ValidationError) as error:
            return msgspec.structs.replace(replica, problem=str(error))
        if status.node != replica.id:
            return msgspec.structs.replace(replica, problem=f"{status.node} answers there")
        return msgspec.structs.replace(replica, status=status)

    async def waiting(self) -> dict[str, object]:
        """Return the reply of `Client.waiting`."""
        return await self._client.waiting()

    async def approvals(self) -> list[OpenApproval]:
        """Return the approvals for which agents wait."""
        return await self._client.approvals()

    async def answer_approval(self, agent: str, approval: str, *, is_granted: bool, note: str) -> str:
        """Answer an approval, as `snapline approval` does."""
        return await self._client.answer_approval(agent, approval, is_granted=is_granted, note=note)

    async def outputs_page(self, after: str, topic: str = "") -> ReadOutputsReply:
        """Return one page of outputs that follow the cursor `after`. If `topic` is "", outputs of all topics chosen by agents are
        included."""
        return await retry_until_available(lambda: self._coordinator.read_outputs(after, topic))

    async def consumers(self) -> ReadConsumersReply:
        """Return the output of `snapline output consumers list`."""
        return await retry_until_available(self._coordinator.read_consumers)

    async def recent_traces(
        self, after: Mapping[str, str], *, every: int, most: int
    ) -> Mapping[str, RecentTrace | None]:
        """Return the events of each host after the host's cursor in `after`. The value is None for a host that does not respond."""
        return await recent_traces(self._coordinator, self._hosts, after, every=every, most=most)


@asynccontextmanager
async def open_fleet_queries(
    address: str, security: Security, name: str
) -> AsyncIterator[tuple[FleetQueries, CoordinatorClient]]:
    """Open the view's client of a fleet, and the coordinator client that it needs. `name` identifies the requester.

    Raises:
        CoordinatorUnavailableError: If no coordinator responds at the address.
    """
    async with await retry_until_available(lambda: open_client(address, security, name)) as client:
        coordinator, hosts = CoordinatorClient(address, security), HostCalls(security, name)
        try:
            yield FleetQueries(client, coordinator, hosts, security), coordinator
        finally:
            await hosts.close()
            await coordinator.close()
