"""Holds on inputs and effects, before the fleet or a host ends or agents move: hosts take no client inputs, or begin no effects.

Several parts request holds, each for its own reason. The union is sent whenever it changes, and to every new stream. A new plan ends
all holds at the hosts, so those still requested are sent again. A host answers when it is calling no effect. An effect with its retries
may take long: the leader stops waiting after QUIESCE_NS, and `status` names the hosts.
"""

import msgspec

from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.messages.concerns import Concern
from snapline.messages.planned_ends import Quiesce, Quiesced

QUIESCE_NS = 30 * SECOND_NS
"""Longest wait for running effects: the longest duration of a call without `timeout_s`. Effects that run longer are in doubt after
the plan."""


class Hold(msgspec.Struct, frozen=True):
    """A hold on inputs and effects, under a plan."""

    plan: int
    inputs: bool = False
    effects: bool = False


class Quiescence:
    """Requested holds, and the hosts that have answered. Volatile: a new leader's streams end all holds."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._requested_holds: dict[str, tuple[bool, bool]] = {}
        """Reason → whether inputs, and effects, are to be held."""
        self._held = Hold(0)
        self._number = 0
        self._since_ns = 0
        self._quiet: dict[int, None] = {}
        """Sessions that have answered the present hold."""

    def want(self, reason: str, *, inputs: bool = False, effects: bool = False) -> None:
        """Hold inputs, effects or both until `drop`."""
        self._requested_holds[reason] = inputs, effects
        self._send_holds()

    def drop(self, reason: str) -> None:
        """Drop the holds for `reason`."""
        if self._requested_holds.pop(reason, None) is not None:
            self._send_holds()

    @property
    def is_quiet(self) -> bool:
        """Return whether all hosts have reported that they call no effect, or QUIESCE_NS is over."""
        if not self._held.effects or self._held.plan != self._shared.state.plan_number:
            return False
        return self._shared.now >= self._since_ns + QUIESCE_NS or not self._busy()

    def _busy(self) -> list[str]:
        plan = self._shared.state.plan
        sessions = [(host, self._host_sessions.attached_session(host)) for host in (plan.hosts if plan else ())]
        return [host for host, session in sessions if session is not None and session.id not in self._quiet]

    def on_quiesced(self, session: HostSession, message: Quiesced) -> None:
        """Note that a host calls no effect any more."""
        if message.number == self._number:
            self._quiet[session.id] = None

    def shift(self, late_ns: int) -> None:
        """Extend the wait by `late_ns`, by which this process was late."""
        self._since_ns = min(self._since_ns + late_ns, self._shared.now)

    def evaluate(self) -> None:
        """Send the holds again under a new plan, which has ended them."""
        self._send_holds()

    def directives_for(self) -> list[Quiesce]:
        """Return the holds for a host that has just come back."""
        return [self._directive()] if self._held.inputs or self._held.effects else []

    def _send_holds(self) -> None:
        plan = self._shared.state.plan_number
        inputs = any(inputs for inputs, _ in self._requested_holds.values())
        effects = any(effects for _, effects in self._requested_holds.values())
        wanted, held = Hold(plan, inputs, effects), self._held
        if wanted == held:
            return
        self._held = wanted
        is_over = held.plan != plan and not (inputs or effects)
        if is_over:
            return
        if effects and not (held.effects and held.plan == plan):
            self._since_ns = self._shared.now
        self._number += 1
        self._quiet = {}
        self._shared.send(self._host_sessions.all_sessions(), self._directive())

    def _directive(self) -> Quiesce:
        return Quiesce(self._number, self._held.inputs, self._held.effects)

    def concerns(self) -> list[Concern]:
        """Return the hosts whose effects are still running."""
        lasts_ns = self._shared.now - self._since_ns
        busy = self._busy() if self._held.effects and lasts_ns >= SECOND_NS else []
        if not busy:
            return []
        text = (
            f"effects are being called on {', '.join(busy)}: agents do not move, and hosts do not stop, before they have ended, "
            f"for {QUIESCE_NS / 1e9:g} s at most"
        )
        return [Concern("effects", tuple(busy), lasts_ns, text)]
