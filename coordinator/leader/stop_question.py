"""Stop condition: hosts evaluate `stop_when` on the newest complete epoch, one at a time.

`stop_when` is a user's code, and may hang. A host that has not answered for ANSWER_NS is not waited for any longer: the next one
is asked, about the epoch that is newest by then. Its own answer still counts when it comes, for a slow predicate must
be able to end the fleet too; until then it gets no other question. If no host is left to ask, the fleet goes on, and `status`
names the hosts that owe an answer. If too many processes have died while it was asked, the fleet fails.

*The last epoch.* An answer is about an epoch that may be old by then: since it began answers were sent as final, outputs released,
effects called. A fleet ends in the newest complete epoch, and in none with open effects. Turns with an external effect get TURNS_NS to
end: their agents' states hold it only then. If the answer was about another epoch, it is *decided* that the fleet ends: hosts take no
more inputs, epochs begin, and of each of them only its open effects are checked, until one has none. No epoch completes between the
answer and the end: none begins during the check, and the log refuses an end in an older epoch than the newest. A plan starts from an
older state, and cancels the decision.
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
"""Time for an answer: most predicates take milliseconds; a slow one costs a second host the same work."""


REASON = "end"


TURNS_NS = 5 * SECOND_NS
"""Time for turns to end: a turn goes on within milliseconds of its effect's end. One that waits for a message may never end, as inputs are held."""

AGAIN_NS = SECOND_NS
"""Time between two early epochs that check whether effects have ended: effects may take long."""


class Asked(msgspec.Struct):
    """A question to one host."""

    host: str
    epoch: int
    since_ns: int


class Decided(msgspec.Struct, frozen=True):
    """Decision that the fleet ends, by an answer about this epoch."""

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
        self._decided: Decided | None = None
        self._open_effects: tuple[str, ...] = ()
        """Effects open in the newest epoch that was checked since."""
        self._turns_ns = 0
        """Time of the last answer that named more, or less, than turns which go on after an effect."""
        self._again_ns = 0
        """Earliest time of the next early epoch for the end."""
        self._asked: dict[int, Asked] = {}
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

    def on_reached(self, session: HostSession, message: StopEvaluated) -> None:
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
            told = f"stop_when holds in epoch {epoch}"
            if epoch != decided.epoch:
                told = f"stop_when holds, and epoch {epoch} is the last one (it was asked of epoch {decided.epoch})"
            self._shared.end(epoch, decided.outcome, told if decided.outcome == "stopped" else decided.reason)

    def _decide(self, message: StopEvaluated) -> None:
        """Decide the end by the first answer that says so."""
        shared, epoch = self._shared, message.epoch
        if self._decided is not None or not (message.reached or message.error or message.open_effects):
            return
        outcome, reason = "stopped", ""
        if message.error:
            outcome, reason = "failed", op.clip(f"stop_when failed on epoch {epoch}: {message.error}")
        self._turns_ns = shared.now
        self._decided = Decided(shared.state.plan_number, epoch, outcome, reason, shared.now)

    @property
    def wants_epoch(self) -> bool:
        """Return whether the fleet is to end, and its newest epoch was checked and is not its last one."""
        state = self._shared.state
        is_looked_at = not self._asked and state.newest_complete() <= self._evaluated
        is_due = self._decided is not None and self._shared.now >= self._again_ns
        return is_due and is_looked_at and not state.open_epochs()

    @property
    def is_judging(self) -> bool:
        """Return whether an epoch is being checked that may be the last one, or is about to be: no other one begins.

        An epoch that began now would be newer than the checked one, and with snapshots often enough there would always be one.
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
            self._asked[session.id] = Asked(session.host, epoch, self._shared.now)
            root, is_decided = self._shared.state.image.epochs[epoch].root, self._decided is not None
            self._shared.send((session.id,), EvaluateStop(epoch, root, is_decided))

    def _free_session(self) -> HostSession | None:
        """Return the session of the first living host that owes no answer."""
        sessions = map(self._host_sessions.attached_session, self._host_sessions.attached())
        return next((each for each in sessions if each is not None and each.id not in self._asked), None)

    def _is_overdue(self, asked: Asked) -> bool:
        return self._shared.now - asked.since_ns >= ANSWER_NS

    def concerns(self) -> list[Concern]:
        """Return the hosts that owe an answer, and the open effects that the end waits for."""
        found = []
        for asked in self._asked.values():
            if self._is_overdue(asked):
                lasts_ns = self._shared.now - asked.since_ns
                text = (
                    f"host {asked.host} was asked whether the fleet may stop (stop_when, epoch {asked.epoch}) "
                    f"and has not answered for {lasts_ns / 1e9:.1f} s"
                )
                found.append(Concern("stop", (asked.host,), lasts_ns, text))
        if self._decided is not None and self._open_effects:
            lasts_ns = self._shared.now - self._decided.since_ns
            text = f"the fleet ends (stop_when) when these effects have ended: {'; '.join(self._open_effects)}"
            found.append(Concern("stop", (), lasts_ns, text))
        return found
