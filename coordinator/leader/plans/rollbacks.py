"""Agents that want the fleet to go back (`ctx.rollback`): their wishes become restores, and the second one for the same reason goes to people.

Who has asked stands, and loses nothing: its turn had no effect, and what it was for waits. Its host says the wish again on every new stream, so
a leader that dies forgets nothing that it needs. A wish is of one life of its agent. Whatever plan comes first ends that life, and the
wish with it: the turn is taken again, and asks again if it still wants to.

Nobody who went back remembers why, so the log does: the plans of earlier wishes, as long as they are kept, and up to the last restore of an operator. He has looked.
"""

import msgspec

from snapline.coordinator.leader.events import ResolveSnapshot, SnapshotResolved
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import Desk
from snapline.coordinator.leader.plans.restores import Restores, WantedRestore
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern
from snapline.messages.host_messages import RollbackRefused, WantRollback

LAST = "last"


class RollbackAsked(msgspec.Struct):
    """Of one life of an agent.

    Attributes:
        epoch: that it means; 0 while that is being looked up.
        refused: why it is not done, for people; "" while it may be.
        heard_ns: when this leader first heard it.
    """

    said: WantRollback
    heard_ns: int
    epoch: int = 0
    refused: str = ""

    @property
    def token(self) -> str:
        """The same however often it is said."""
        return f"{self.said.agent}@{self.said.incarnation}"

    @property
    def reason(self) -> str:
        """As the plan has it: the same again, from the same place, is the same."""
        return op.clip(f"agent {self.said.agent} asked to go back, at {self.said.place}: {self.said.reason}")


class Rollbacks:
    """Who stands and wants that. Volatile: hosts say it again."""

    def __init__(self, desk: Desk, attendance: HostSessions, restores: Restores) -> None:
        self._desk = desk
        self._attendance = attendance
        self._restores = restores
        self._wishes: dict[str, RollbackAsked] = {}

    def on_wanted(self, session: HostSession, message: WantRollback) -> None:
        """A turn wants it, perhaps said again."""
        record = self._desk.state.image.agents.get(message.agent)
        if record is None or record.host != session.host or not self._is_of_now(message):
            return
        known = self._wishes.get(message.agent)
        if known is None or known.said.incarnation != message.incarnation:
            self._wishes[message.agent] = wish = RollbackAsked(message, self._desk.now)
            if message.snapshot != LAST:
                self._desk.out.append(ResolveSnapshot(message.snapshot))
            self._desk.note("warning", wish.reason)
        elif known.refused:
            self._tell(known)

    def on_resolved(self, event: SnapshotResolved) -> None:
        """Which epoch is meant, or why none is."""
        for wish in self._wishes.values():
            if wish.said.snapshot == event.snapshot and not wish.refused:
                wish.epoch = event.epoch
                if event.error:
                    self._refuse(wish, event.error)

    def evaluate(self) -> None:
        """One restore at a time: the next wish is handed on, those that are over are forgotten."""
        for agent, wish in list(self._wishes.items()):
            if not self._is_of_now(wish.said) or self._desk.state.image.outcome:
                del self._wishes[agent]
                self._restores.withdraw(wish.token)
            elif not wish.refused:
                self._pursue(wish)

    def _is_of_now(self, said: WantRollback) -> bool:
        record = self._desk.state.image.agents.get(said.agent)
        return record is not None and record.left_plan is None and record.incarnation == said.incarnation

    def _pursue(self, wish: RollbackAsked) -> None:
        refused = self._restores.take_refusal(wish.token)
        refused = refused or self._desk.state.refusal_of_rollback(wish.said.agent, wish.reason)
        if refused:
            self._refuse(wish, refused)
            return
        epoch = wish.epoch or (self._desk.state.newest_complete() if wish.said.snapshot == LAST else 0)
        if wish.said.snapshot == LAST and not epoch:
            self._refuse(wish, "no snapshot is complete yet")
        elif epoch and self._restores.wanted is None:
            said = wish.said
            self._restores.want(
                WantedRestore(
                    wish.token, epoch, wish.reason, False, self._desk.now, agent=said.agent, place=op.clip(said.place)
                )
            )

    def _refuse(self, wish: RollbackAsked, why: str) -> None:
        wish.refused = f"{wish.reason}. The fleet does not go back: {why}. The agent stands"
        self._desk.note("error", wish.refused)
        self._tell(wish)

    def _tell(self, wish: RollbackAsked) -> None:
        said = wish.said
        session = self._attendance.attached_session(self._desk.state.image.agents[said.agent].host)
        if session is not None:
            self._desk.send((session.id,), RollbackRefused(said.agent, said.incarnation, wish.refused))

    def concerns(self) -> list[Concern]:
        """Who stands until people have looked."""
        now, wishes = self._desk.now, [x for x in self._wishes.values() if x.refused]
        return [Concern("rollback", (), now - x.heard_ns, x.refused, (x.said.agent,)) for x in wishes]
