"""The connection to one peer: kept while dials fail, replaced when certificates are."""

import asyncio

import grpc
import grpc.aio

from snapline.coordinator.raft.pysyncobj_settings import RaftNode
from snapline.security.transport import LINK_AGE_S_MAX, Security

ROLE = "coordinator"
"""Role in the certificates of replicas."""


class DialledChannel:
    """The channel to one peer: kept while dials fail, so that its backoff grows; replaced for new certificates."""

    def __init__(self, security: Security, node: RaftNode) -> None:
        self._security = security
        self._node = node
        self._channel: grpc.aio.Channel | None = None
        self._generation = 0
        self._made_s = 0.0

    @property
    def is_old(self) -> bool:
        """Return whether the channel should be replaced, so that an expired or withdrawn certificate is not used any longer."""
        age_s = asyncio.get_running_loop().time() - self._made_s
        return self._generation != self._security.generation or age_s > LINK_AGE_S_MAX

    async def fresh(self) -> grpc.aio.Channel:
        if self._channel is None or self.is_old:
            await self.close()
            self._channel = self._security.open_channel(self._node.address, role=ROLE, name=self._node.id)
            self._generation = self._security.generation
            self._made_s = asyncio.get_running_loop().time()
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
