"""Removal of hosts: a lost or departed host without agents is forgotten after ten minutes, or when an operator requests it.

An operator's request may come while agents are still placed on the host, or the log is slow. The removal is then proposed again for some
seconds before the request is answered.
"""

import msgspec

from snapline.coordinator.leader.events import AnswerForgetHost, ForgetHostRequested
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE

FORGET_NS = 600 * SECOND_NS
"""Time that a lost or departed host stays in `status`, so that operators see what happened."""

REFUSE_NS = 5 * SECOND_NS
"""Time limit for an operator's request: a log entry takes milliseconds."""


class OperatorRequest(msgspec.Struct, frozen=True):
    """An operator's request: its host and time."""

    host: str
    asked_ns: int


class HostRemoval:
    """Hosts whose records are to be removed. Volatile."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._over_ns: dict[str, int] = {}
        """Lost or departed host without agents → time since when, as seen by this leader."""
        self._requests: dict[int, OperatorRequest] = {}
        """Operators' requests, by number."""

    def on_requested(self, event: ForgetHostRequested) -> None:
        """Take an operator's request to forget a host."""
        self._requests[event.request] = OperatorRequest(event.host, self._shared.now)

    def evaluate(self) -> None:
        """Propose to forget hosts after FORGET_NS, or at an operator's request; answer operators."""
        state, now = self._shared.state, self._shared.now
        for request, asked in list(self._requests.items()):
            self._follow(request, asked)
        if state.image.outcome:
            return
        self._over_ns = {host: self._over_ns.get(host, now) for host in state.image.hosts if state.may_forget(host)}
        due = tuple([host for host, since_ns in self._over_ns.items() if now - since_ns >= FORGET_NS])
        if due:
            self._shared.propose("forget-hosts", op.ForgetHosts(due))

    def _follow(self, request: int, asked: OperatorRequest) -> None:
        host, state = asked.host, self._shared.state
        record = state.image.hosts.get(host)
        if record is None or record.state == ALIVE:
            self._answer(request, "")
        elif self._shared.now >= asked.asked_ns + REFUSE_NS:
            self._answer(request, f"host {host} is not forgotten yet: ask again in a moment")
        elif state.may_forget(host):
            self._shared.propose(f"forget-host/{host}", op.ForgetHosts((host,)))

    def _answer(self, request: int, refused: str) -> None:
        del self._requests[request]
        self._shared.out.append(AnswerForgetHost(request, refused))
