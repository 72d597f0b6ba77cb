"""Stop condition: hosts evaluate `stop_when` on the newest complete epoch, one at a time.

`stop_when` is user code and may hang. If a host has not answered for ANSWER_NS, the leader asks the next host about the epoch that is
newest by then. A late answer still counts, since a slow predicate must be able to end the fleet too; until it comes, that host is not
asked again. If no host is left to ask, the fleet continues, and `status` names the hosts that owe an answer. If too many processes died
while evaluating `stop_when`, the fleet fails.

*The last epoch.* The evaluated epoch may be old when the answer comes: later answers were sent as final, outputs released, effects called.
A fleet ends only in its newest complete epoch, and only if that epoch has no open effects. Turns with an external effect get TURNS_NS to
end, because an agent's state holds the effect only then. If the newest epoch is another one, or has open effects, the end is *decided*:
hosts take no more inputs, and new epochs begin. Of these only the open effects are checked, until an epoch has none. No epoch completes
between the answer and the end: none begins during the check, and the log refuses an end in an epoch older than the newest. A plan starts
from an older state, so it cancels the decision.
"""

import msgspec

from snapline.coordinator.leader.epochs.publishing import RefPublisher
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.leader.quiescence import Quiescence
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern
from snapline.messages.host_messages import EvaluateStop, StopEvaluated
from snapline.messages.turn_deaths import STOP_WHEN

ANSWER_NS = 5 * SECOND_NS
"""Time for an answer before another host is asked: most predicates take milliseconds."""


REASON = "end"


TURNS_NS = 5 * SECOND_NS
"""Time for turns to end: a turn resumes within milliseconds of its effect's end. One that waits for a message may never end, as inputs are held."""

AGAIN_NS = SECOND_NS
"""Time between two early epochs that check whether effects have ended: effects may take long."""


class StopQuery(msgspec.Struct):
    """A question to one host."""

    host: str
    epoch: int
    since_ns: int


class StopDecision(msgspec.Struct, frozen=True):
    """Decision that the fleet ends, made by an answer about `epoch`."""

    plan: int
    epoch: int
    outcome: str
    reason: str
    since_ns: int


class StopQuestion:
    """Open questions and the decision. Volatile: a new leader asks again."""

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, publisher: RefPublisher, quiescence: Quiescence
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._quiescence = quiescence
        self._decided: StopDecision | None = None
        self._open_effects: tuple[str, ...] = ()
        """Effects open in the newest epoch that was checked since the decision."""
        self._turns_ns = 0
        """Time of the last answer that did not both hold and name open effects; TURNS_NS counts from it."""
        self._again_ns = 0
        """Earliest time of the next early epoch for the end."""
        self._asked: dict[int, StopQuery] = {}
        """Questions by session."""
        self._evaluated = 0
        """Newest epoch with an answer."""

    def shift(self, late_ns: int) -> None:
        """Move all questions by `late_ns`, by which this process was late."""
        for asked in self._asked.values():
            asked.since_ns = min(asked.since_ns + late_ns, self._shared.now)

    @property
    def epochs_read(self) -> tuple[int, ...]:
        """Epochs that hosts are reading: they must not be forgotten."""
        return tuple([asked.epoch for asked in self._asked.values()])

    def on_stop_evaluated(self, session: HostSession, message: StopEvaluated) -> None:
        """Take a host's answer."""
        asked = self._asked.get(session.id)
        if asked is None or asked.epoch != message.epoch:
            return
        del self._asked[session.id]
        self._evaluated = max(self._evaluated, message.epoch)
        self._decide(message)
        decided, epoch = self._decided, message.epoch
        if decided is None:
            return
        self._open_effects = message.open_effects
        self._again_ns = self._shared.now + (AGAIN_NS if message.open_effects else 0)
        if not (message.reached and message.open_effects):
            self._turns_ns = self._shared.now
        is_waiting = bool(message.open_effects) and not (
            message.reached and self._shared.now >= self._turns_ns + TURNS_NS
        )
        is_answer = message.reached or bool(message.error)
        if is_answer and not is_waiting and epoch == self._shared.state.newest_complete():
            reason = f"stop_when holds in epoch {epoch}"
            if epoch != decided.epoch:
                reason = f"stop_when holds, and epoch {epoch} is the last one (it was asked of epoch {decided.epoch})"
            self._shared.end(epoch, decided.outcome, reason if decided.outcome == "stopped" else decided.reason)

    def _decide(self, message: StopEvaluated) -> None:
        """Decide the end by the first answer that holds, failed, or names open effects."""
        shared, epoch = self._shared, message.epoch
        if self._decided is not None or not (message.reached or message.error or message.open_effects):
            return
        outcome, reason = "stopped", ""
        if message.error:
            outcome, reason = "failed", op.clip(f"stop_when failed on epoch {epoch}: {message.error}")
        self._turns_ns = shared.now
        self._decided = StopDecision(shared.state.plan_number, epoch, outcome, reason, shared.now)

    @property
    def wants_epoch(self) -> bool:
        """Return whether the fleet is to end but its newest epoch was checked and cannot be the last one."""
        state = self._shared.state
        is_looked_at = not self._asked and state.newest_complete() <= self._evaluated
        is_due = self._decided is not None and self._shared.now >= self._again_ns
        return is_due and is_looked_at and not state.open_epochs()

    @property
    def is_checking_candidate(self) -> bool:
        """Return whether a candidate for the last epoch is being checked, or soon will be: then no other epoch begins.

        An epoch that began now would be newer than the checked one; with frequent snapshots the check would never succeed.
        """
        if self._decided is None:
            return False
        state = self._shared.state
        is_unchecked = bool(state.open_epochs()) or state.newest_complete() > self._evaluated
        is_answer_due = any(not self._is_overdue(asked) for asked in self._asked.values())
        return is_answer_due or (is_unchecked and self._free_session() is not None)

    def evaluate(self) -> None:
        """Ask a host, unless another one still has time to answer."""
        image = self._shared.state.image
        if image.never_stops:
            return
        for number in [number for number in self._asked if self._host_sessions.session(number) is None]:
            del self._asked[number]
        self._follow_decision()
        newest = self._publisher.newest_published()
        is_answer_due = any(not self._is_overdue(asked) for asked in self._asked.values())
        if not is_answer_due and newest > self._evaluated and not image.outcome:
            killer = next((x for x in image.deaths if x.what == STOP_WHEN and x.times > x.limit), None)
            if killer is None:
                self._ask(newest)
            else:
                self._shared.end(newest, "failed", f"{killer.sentence()}, and it is not asked again")

    def _follow_decision(self) -> None:
        """Hold inputs while the last epoch is made."""
        decided, shared = self._decided, self._shared
        if decided is not None and decided.plan != shared.state.plan_number:
            self._decided, self._evaluated, self._open_effects = None, 0, ()
        if self._decided is None or shared.state.image.outcome:
            self._quiescence.drop(REASON)
        elif shared.ending is None:
            self._quiescence.want(REASON, inputs=True)

    def _ask(self, epoch: int) -> None:
        """Ask the first living host that owes no answer."""
        session = self._free_session()
        if session is not None:
            self._asked[session.id] = StopQuery(session.host, epoch, self._shared.now)
            root, is_decided = self._shared.state.image.epochs[epoch].root, self._decided is not None
            self._shared.send((session.id,), EvaluateStop(epoch, root, is_decided))

    def _free_session(self) -> HostSession | None:
        """Return the session of the first living host that owes no answer."""
        sessions = map(self._host_sessions.attached_session, self._host_sessions.attached())
        return next((session for session in sessions if session is not None and session.id not in self._asked), None)

    def _is_overdue(self, asked: StopQuery) -> bool:
        return self._shared.now - asked.since_ns >= ANSWER_NS

    def concerns(self) -> list[Concern]:
        """Return the hosts that owe an answer, and the open effects that the end waits for."""
        concerns = []
        for asked in self._asked.values():
            if self._is_overdue(asked):
                lasts_ns = self._shared.now - asked.since_ns
                text = (
                    f"host {asked.host} was asked whether the fleet may stop (stop_when, epoch {asked.epoch}) "
                    f"and has not answered for {lasts_ns / 1e9:.1f} s"
                )
                concerns.append(Concern("stop", (asked.host,), lasts_ns, text))
        if self._decided is not None and self._open_effects:
            lasts_ns = self._shared.now - self._decided.since_ns
            text = f"the fleet ends (stop_when) when these effects have ended: {'; '.join(self._open_effects)}"
            concerns.append(Concern("stop", (), lasts_ns, text))
        return concerns
