"""A simulated host's stream to the coordinator: found, lost, and found again, as `agent_runtime/host/session.py` does."""

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
    """Replica of the coordinator, as hosts see it: `simulated_replica.SimulatedReplica`."""

    @property
    def is_up(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def known_leader(self) -> str:
        """Known leader; "" is none."""
        ...

    def attend(
        self, host: HostRun, key: Hashable, received: Callable[[Any], None], closed: Callable[[Any], None]
    ) -> Stream:
        """Speak with the leader here."""
        ...

    def hear_busy(self, host: HostRun, busy_ns: int) -> None:
        """A thread of this run says that a handler blocks it."""
        ...


class SimSession:
    """One run's stream, dialled again for as long as the run lives."""

    def __init__(self, host: HostRun, doors: Mapping[str, ReplicaSession]) -> None:
        self._host = host
        self._doors = doors
        self._nodes = tuple(doors)
        self._node = self._nodes[0]
        self._tries = 0
        self._stream: Stream | None = None

    def send(self, message: HostMessage) -> None:
        """Lost if there is no stream."""
        if self._stream is not None:
            self._stream.send(self._host.name, encode_host_message(message))

    def dial(self, _: object = None) -> None:
        """Try the next replica, or the one that was said to lead."""
        host = self._host
        self._tries += 1
        node = self._node
        door = self._doors[node]
        if not host.shared.network.can_reach(host.name, node) or not door.is_up:
            self._turn_to(self._next())
            return
        if not door.leads:
            self._turn_to(door.known_leader or self._next())
            return
        self._stream = door.attend(host, (host.instance, node, self._tries), self._received, self._closed)
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
        """A thread tells the leader, on a connection of its own, that a handler blocks this host."""
        host = self._host
        for node, door in self._doors.items():
            if door.is_up and door.leads and host.shared.network.can_reach(host.name, node):
                door.hear_busy(host, busy_ns)

    def leave(self, reason: str) -> None:
        """Say goodbye."""
        self.send(Leave(reason))
