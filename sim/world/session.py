"""A simulated host's stream to the coordinator, redialled like that of `agent_runtime/host/session.py`."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from snapline.messages.host_messages import HostMessage, Leave
from snapline.messages.wire import decode_directive, encode_host_message
from snapline.sim.world.host_run import HostRun
from snapline.sim.world.network import Stream

RETRY_LEAST_NS, RETRY_STEP_NS, RETRY_STEPS = 50_000_000, 50_000_000, 9
"""Retry delay: from 0.05 to 0.5 s, as in production."""


class ReplicaSession(Protocol):
    """Interface of a replica of the coordinator to hosts: `simulated_replica.SimulatedReplica`."""

    @property
    def is_up(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def known_leader(self) -> str:
        """Return the known leader; "" is none."""
        ...

    def open_session(
        self, host: HostRun, key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """Open a stream to the leader here."""
        ...

    def receive_busy_report(self, host: HostRun, busy_ns: int) -> None:
        """Receive the report of a host's thread that a handler blocks the host."""
        ...


class SimSession:
    """One run's stream to the coordinator, redialled while the run is alive."""

    def __init__(self, host: HostRun, replicas: Mapping[str, ReplicaSession]) -> None:
        self._host = host
        self._replicas = replicas
        self._nodes = tuple(replicas)
        self._node = self._nodes[0]
        self._tries = 0
        self._stream: Stream | None = None

    def send(self, message: HostMessage) -> None:
        """Send a message; it is lost without a stream."""
        if self._stream is not None:
            self._stream.send(self._host.name, encode_host_message(message))

    def dial(self, _: object = None) -> None:
        """Try the next replica, or the reported leader."""
        host = self._host
        self._tries += 1
        node = self._node
        replica = self._replicas[node]
        if not host.shared.network.can_reach(host.name, node) or not replica.is_up:
            self._turn_to(self._next())
            return
        if not replica.leads:
            self._turn_to(replica.known_leader or self._next())
            return
        self._stream = replica.open_session(host, (host.instance, node, self._tries), self._received, self._closed)
        died, died_in = host.notes.died.get(host.name, ("", ()))
        hello = host.driver.hello(instance=host.instance, address=f"{host.name}:1")
        self.send(replace(hello, died=died, died_in=died_in))

    def _next(self) -> str:
        return self._nodes[(self._nodes.index(self._node) + 1) % len(self._nodes)]

    def _turn_to(self, node: str) -> None:
        self._node = node
        host = self._host
        wait_ns = RETRY_LEAST_NS + RETRY_STEP_NS * host.shared.choices.pick(
            "net", ("redial", host.instance, self._tries), RETRY_STEPS
        )
        host.later(host.shared.kernel.now_ns + wait_ns, self.dial)

    def _received(self, item: object) -> None:
        if self._stream is not None:
            assert isinstance(item, bytes)
            self._host.driver.directive_received(decode_directive(item))

    def _closed(self, _: object = None) -> None:
        if self._stream is not None:
            self._stream = None
            self._turn_to(self._node)

    def report_busy(self, busy_ns: int) -> None:
        """Report to the leader, from a thread with its own connection, that a handler blocks this host."""
        host = self._host
        for node, replica in self._replicas.items():
            if replica.is_up and replica.leads and host.shared.network.can_reach(host.name, node):
                replica.receive_busy_report(host, busy_ns)

    def leave(self, reason: str) -> None:
        """Tell the coordinator that this host leaves."""
        self.send(Leave(reason))
