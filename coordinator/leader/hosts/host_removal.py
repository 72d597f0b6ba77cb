"""Hosts that are over: a host that is lost or has left, and has no agents, is forgotten after ten minutes, or when an operator says so.

An operator's word may come too early, while agents are still placed there or the log is slow. So it is proposed again for some
seconds, and the answer says what came of it.
"""

import msgspec

from snapline.coordinator.leader.host_words import AnswerForgetting, ForgetHostRequested
from snapline.coordinator.leader.leader_state import SECOND_NS, Desk
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ALIVE

FORGET_NS = 600 * SECOND_NS
"""A host that is over is shown for so long; time enough to see in `status` what happened."""

REFUSE_NS = 5 * SECOND_NS
"""For an operator's word to be carried out: an entry of the log takes milliseconds."""


class OperatorsWord(msgspec.Struct, frozen=True):
    """Which host, and when it came."""

    host: str
    asked_ns: int


class HostRemoval:
    """Whose record goes next. Volatile."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._over_ns: dict[str, int] = {}
        """Hosts that are over and have no agents: since when, as this leader saw it."""
        self._asked: dict[int, OperatorsWord] = {}
        """By request."""

    def on_requested(self, event: ForgetHostRequested) -> None:
        """An operator says that this host does not come back."""
        self._asked[event.request] = OperatorsWord(event.host, self._desk.now)

    def evaluate(self) -> None:
        """Propose to forget who has been over for long, or is named by an operator; answer the operators."""
        state, now = self._desk.state, self._desk.now
        for request, asked in list(self._asked.items()):
            self._follow(request, asked)
        if state.image.outcome:
            return
        self._over_ns = {host: self._over_ns.get(host, now) for host in state.image.hosts if state.may_forget(host)}
        due = tuple([host for host, since_ns in self._over_ns.items() if now - since_ns >= FORGET_NS])
        if due:
            self._desk.propose("forget-hosts", op.ForgetHosts(due))

    def _follow(self, request: int, asked: OperatorsWord) -> None:
        host, state = asked.host, self._desk.state
        record = state.image.hosts.get(host)
        if record is None or record.state == ALIVE:
            self._answer(request, "")
        elif self._desk.now >= asked.asked_ns + REFUSE_NS:
            self._answer(request, f"host {host} is not forgotten yet: ask again in a moment")
        elif state.may_forget(host):
            self._desk.propose(f"forget-host/{host}", op.ForgetHosts((host,)))

    def _answer(self, request: int, refused: str) -> None:
        del self._asked[request]
        self._desk.out.append(AnswerForgetting(request, refused))
