"""May the fleet stop? Hosts are asked of the newest complete epoch, one at a time.

`stop_when` is a user's code, and may hang. A host that has not answered for ANSWER_NS is not waited for any longer: the next one
is asked, of the epoch that is newest by then. Its own answer still counts when it comes, for a predicate that is slow must
be able to end the fleet too; until then it is asked nothing more. If nobody is left to ask, the fleet goes on, and `status`
says who owes an answer.
"""

import msgspec

from snapline.conversation.messages import EvaluateStop, StopEvaluated
from snapline.conversation.status import Concern
from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.epochs.refs import Refs
from snapline.coordinator.leader.hosts.attendance import Attendance, HostSession
from snapline.coordinator.state import operations as op

ANSWER_NS = 5 * SECOND_NS
"""Most predicates take milliseconds; a slow one costs a second host the same work."""


class Asked(msgspec.Struct):
    """One host's question."""

    host: str
    epoch: int
    since_ns: int


class StopQuestion:
    """Who is asked. Volatile: a new leader asks again."""

    def __init__(self, desk: Desk, attendance: Attendance, refs: Refs) -> None:
        self._desk = desk
        self._attendance = attendance
        self._refs = refs
        self._asked: dict[int, Asked] = {}
        """By session."""
        self._evaluated = 0
        """The newest epoch that was answered."""

    def shift(self, late_ns: int) -> None:
        """This process was late by so much: no answer is overdue for that."""
        for asked in self._asked.values():
            asked.since_ns = min(asked.since_ns + late_ns, self._desk.now)

    @property
    def epochs_read(self) -> tuple[int, ...]:
        """Epochs that a host reads just now: they must not be forgotten."""
        return tuple([asked.epoch for asked in self._asked.values()])

    def on_reached(self, session: HostSession, message: StopEvaluated) -> None:
        """A host has answered."""
        asked = self._asked.get(session.id)
        if asked is None or asked.epoch != message.epoch:
            return
        del self._asked[session.id]
        self._evaluated = max(self._evaluated, message.epoch)
        if message.error:
            reason = op.clip(f"stop_when failed on epoch {message.epoch}: {message.error}")
            self._desk.end(message.epoch, "failed", reason)
        elif message.reached:
            self._desk.end(message.epoch, "stopped", f"stop_when holds in epoch {message.epoch}")

    def evaluate(self) -> None:
        """Ask, unless somebody is asked and has time yet."""
        image = self._desk.state.image
        if image.never_stops:
            return
        for number in [number for number in self._asked if self._attendance.session(number) is None]:
            del self._asked[number]
        newest = self._refs.newest_published()
        is_answer_due = any(not self._is_overdue(asked) for asked in self._asked.values())
        if not is_answer_due and newest > self._evaluated and not image.outcome:
            self._ask(newest)

    def _ask(self, epoch: int) -> None:
        """The first host alive that owes no answer."""
        for host in self._attendance.attached():
            session = self._attendance.attached_session(host)
            if session is not None and session.id not in self._asked:
                self._asked[session.id] = Asked(host, epoch, self._desk.now)
                self._desk.send((session.id,), EvaluateStop(epoch, self._desk.state.image.epochs[epoch].root))
                return

    def _is_overdue(self, asked: Asked) -> bool:
        return self._desk.now - asked.since_ns >= ANSWER_NS

    def concerns(self) -> list[Concern]:
        """Who owes an answer."""
        found = []
        for asked in self._asked.values():
            if self._is_overdue(asked):
                lasts_ns = self._desk.now - asked.since_ns
                text = (
                    f"host {asked.host} was asked whether the fleet may stop (stop_when, epoch {asked.epoch}) "
                    f"and has not answered for {lasts_ns / 1e9:.1f} s"
                )
                found.append(Concern("stop", (asked.host,), lasts_ns, text))
        return found
