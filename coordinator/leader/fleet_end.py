"""The end of the fleet, by its stop condition or after a failure, and planned stops of single hosts and of this coordinator.

*Holds.* Before the fleet or a host ends, or agents move, a hold makes hosts refuse client inputs or stop starting effects. Several modules
request holds, each for its own reason. All requested holds together are sent to every host whenever they change, and on every new stream.
Because a new plan ends all holds on the hosts, holds that are still requested are then sent again. A host answers a hold as soon as none
of its effects is running. Because an effect with retries may take long, the leader stops waiting after QUIESCE_NS, and `status` names hosts
whose effects are still running.

*Planned ends.* A host or coordinator that stops as planned first waits for a snapshot of all work done so far. Before the snapshot, hosts
stop starting new effects, so that no effect is in doubt afterwards. Once no effect is running, an epoch of all agents begins, even if
agents checkpoint on their own. When the epoch is complete, the waiting hosts receive MayLeave. Work that a host does after that epoch is
lost, but by then no answer is sent as final and no effect is called. If the fleet is not running, hosts may leave at once, because there is
no work to lose. If the epoch for a planned end fails, another epoch is begun. The process that waits for the epoch limits its own wait.

*Stop condition.* Hosts evaluate `stop_when` on the newest complete epoch, one host at a time. `stop_when` is user code and may hang. If a
host does not answer within ANSWER_NS, the leader asks another host about the epoch that is newest at that time. Late answers still count,
because a slow predicate must also be able to end the fleet. A host with an outstanding answer is not asked again. When no host is left to
ask, the fleet continues, and `status` names the hosts with overdue answers. If too many processes died while evaluating `stop_when`, the
fleet fails.

*The last epoch.* When a host's answer arrives, the fleet may have continued: later answers were sent as final, outputs were released, and
effects were called. A fleet ends only in its newest complete epoch, and only if that epoch has no open effects. Turns with an external
effect may run for up to TURNS_NS more, because the agent's state contains the effect's result only after the turn. If the evaluated epoch
is no longer the newest or has open effects, the end is *decided*: hosts accept no more inputs, and new epochs begin. The new epochs are
checked only for open effects, until one of them has none. No epoch can complete between the final check and the end, because none begins
during the check, and the log refuses to end the fleet in an older epoch. A new plan cancels the decision, because it starts from an older
state.

With local recovery, hosts send answers as final and call effects as soon as a commit contains them. So the last epoch must have begun after
all hosts had acknowledged the hold. From then on, answers and effects wait for an epoch.

*Shutdown.* The leader proposes the end until it is in the log. Once the end is in the log, hosts receive Finish, and the leader's run ends
when all hosts have left, or after SHUTDOWN_NS. A fleet that stops in an epoch ends only after that epoch's outputs have been released.
"""

import msgspec

from snapline.coordinator.leader.epochs.publishing import RefPublisher, Releases, Snapshots
from snapline.coordinator.leader.events import EndRun
from snapline.coordinator.leader.hosts.host_sessions import HostSession, HostSessions
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import RUNNING, OperationResult
from snapline.messages.host_messages import (
    STOP_WHEN,
    EvaluateStop,
    Finish,
    MayLeave,
    Quiesce,
    Quiesced,
    StopEvaluated,
    WantLeave,
)
from snapline.messages.status import Concern
from snapline.protocols.names import LOCAL

QUIESCE_NS = 30 * SECOND_NS
"""Longest time to wait for running effects, equal to the longest duration of a call without `timeout_s`. Effects that run longer are in
doubt after the plan."""


LEAVE_HOLD, END_HOLD = "leave", "end"
"""The reasons for holds that this module requests."""


class Hold(msgspec.Struct, frozen=True):
    """A hold on inputs, effects or both, under one plan."""

    plan: int
    inputs: bool = False
    effects: bool = False
    frozen: tuple[str, ...] = ()


class Quiescence:
    """The requested holds, and the hosts that have confirmed them. This state need not be durable, because hosts drop all holds when they
    open a stream to a new leader."""

    def __init__(self, shared: LeaderState, host_sessions: HostSessions) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._requested_holds: dict[str, Hold] = {}
        """Reason → the hold, whose plan is 0."""
        self._held = Hold(0)
        self._number = 0
        self._since_ns = 0
        self._quiet: dict[int, None] = {}
        """Sessions of hosts that have answered the current hold."""

    def want(self, reason: str, *, inputs: bool = False, effects: bool = False, frozen: tuple[str, ...] = ()) -> None:
        """Request a hold on inputs, effects or both, and the freezing of agents, until `drop` is called with the same reason."""
        self._requested_holds[reason] = Hold(0, inputs, effects, frozen)
        self._send_holds()

    def drop(self, reason: str) -> None:
        """Drop the hold that was requested for `reason`."""
        if self._requested_holds.pop(reason, None) is not None:
            self._send_holds()

    @property
    def is_quiet(self) -> bool:
        """Return whether effects are held and either all hosts have reported that no effect is running, or QUIESCE_NS has passed."""
        return self._held.effects and self._is_answered

    @property
    def are_inputs_held(self) -> bool:
        """Return whether all hosts have acknowledged that they take no inputs, or QUIESCE_NS has passed."""
        return self._held.inputs and self._is_answered

    @property
    def _is_answered(self) -> bool:
        if self._held.plan != self._shared.state.plan_number:
            return False
        return self._shared.now >= self._since_ns + QUIESCE_NS or not self._busy()

    @property
    def frozen(self) -> tuple[str, ...]:
        """Return the agents that are frozen and committed, as their hosts have reported under this plan."""
        if self._held.plan != self._shared.state.plan_number:
            return ()
        living = dict(self._shared.state.living_agents())
        homes = {agent: living[agent].host for agent in self._held.frozen if agent in living}
        sessions = {host: self._host_sessions.attached_session(host) for host in dict.fromkeys(homes.values())}
        quiet = [host for host, session in sessions.items() if session is not None and session.id in self._quiet]
        return tuple([agent for agent, host in homes.items() if host in quiet])

    def _busy(self) -> list[str]:
        plan = self._shared.state.plan
        sessions = [(host, self._host_sessions.attached_session(host)) for host in (plan.hosts if plan else ())]
        return [host for host, session in sessions if session is not None and session.id not in self._quiet]

    def on_quiesced(self, session: HostSession, message: Quiesced) -> None:
        """Record a host's report that none of its effects is running."""
        if message.number == self._number:
            self._quiet[session.id] = None

    def shift(self, late_ns: int) -> None:
        """Extend the wait by `late_ns`, the time for which this process was suspended."""
        self._since_ns = min(self._since_ns + late_ns, self._shared.now)

    def evaluate(self) -> None:
        """Send the current holds again if a new plan has ended them on the hosts."""
        self._send_holds()

    def directives_for(self) -> list[Quiesce]:
        """Return the current holds for a host that has just reconnected."""
        is_held = self._held.inputs or self._held.effects
        return [self._directive()] if is_held or self._shared.state.image.recovery == LOCAL else []

    def _send_holds(self) -> None:
        plan = self._shared.state.plan_number
        requested = self._requested_holds.values()
        inputs, effects = any(hold.inputs for hold in requested), any(hold.effects for hold in requested)
        frozen = tuple(dict.fromkeys([agent for hold in requested for agent in hold.frozen]))
        wanted, held = Hold(plan, inputs, effects, frozen), self._held
        if wanted == held:
            return
        self._held = wanted
        is_over = held.plan != plan and not (inputs or effects)
        if is_over:
            return
        if (effects and not (held.effects and held.plan == plan)) or (inputs and not held.inputs):
            self._since_ns = self._shared.now
        self._number += 1
        self._quiet = {}
        self._shared.send(self._host_sessions.all_sessions(), self._directive())

    def _directive(self) -> Quiesce:
        return Quiesce(self._number, self._held.inputs, self._held.effects, self._held.frozen)

    def concerns(self) -> list[Concern]:
        """Return a concern that names the hosts whose effects have been running for over one second since the hold."""
        lasts_ns = self._shared.now - self._since_ns
        busy = self._busy() if self._held.effects and lasts_ns >= SECOND_NS else []
        if not busy:
            return []
        text = (
            f"effects are being called on {', '.join(busy)}: agents do not move, and hosts do not stop, before they have ended, "
            f"for {QUIESCE_NS / 1e9:g} s at most"
        )
        return [Concern("effects", tuple(busy), lasts_ns, text)]


class _LastEpoch(msgspec.Struct, frozen=True):
    """Condition that the last epoch must meet: it began after `begun`, under this plan. An epoch that began after `begun` contains all
    work done before effects were held."""

    plan: int
    begun: int


class Departures:
    """Processes that are waiting to leave the fleet. This state need not be durable, because hosts repeat their requests on every new
    stream."""

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, publisher: RefPublisher, quiescence: Quiescence
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._quiescence = quiescence
        self._waiting: dict[int, None] = {}
        """Sessions of hosts that wait for MayLeave."""
        self._may_leave_sent: dict[int, None] = {}
        """Sessions to which MayLeave was sent. Effects are held until these sessions are closed."""
        self._is_ending = False
        """True if this coordinator must stop."""
        self._last: _LastEpoch | None = None
        self._present = 0
        """The epoch that already contains the fleet's current state, so that no new epoch is needed; 0 if there is none."""
        self.is_saved = False
        """True if the last epoch that this coordinator waited for is complete, or if no epoch was needed."""

    def on_wanted(self, session: HostSession, message: WantLeave) -> None:
        """Handle a host's request to leave the fleet, because its process must stop."""
        self._shared.note("info", f"host {session.host} is to stop ({message.reason}): a snapshot is taken before")
        self._waiting[session.id] = None

    def on_coordinator_stop_requested(self) -> None:
        """Record that this coordinator must stop."""
        self._is_ending = True

    def on_present(self, epoch: int) -> None:
        """Record that this epoch contains the fleet's whole current state, as reported by the checkpoint mode."""
        self._present = epoch

    @property
    def wants_epoch(self) -> bool:
        """Return whether an epoch of all agents must begin now for a departure."""
        state, last = self._shared.state, self._last
        if last is None or last.plan != state.plan_number or self._shared.is_pending("begin"):
            return False
        return not self._present and max(state.newest_complete(), *state.open_epochs(), 0) <= last.begun

    def evaluate(self) -> None:
        """Take the next step of the departures: hold effects, request an epoch, or send MayLeave."""
        state = self._shared.state
        for sessions in (self._waiting, self._may_leave_sent):
            for number in [number for number in sessions if self._host_sessions.session(number) is None]:
                del sessions[number]
        if not (self._waiting or self._is_ending):
            self._last, self._present = None, 0
            if not self._may_leave_sent or state.phase != RUNNING:
                self._may_leave_sent.clear()
                self._quiescence.drop(LEAVE_HOLD)
            return
        if state.phase != RUNNING or state.image.outcome or self._host_sessions.is_empty:
            self._send_may_leave(state.newest_complete())
            return
        self._quiescence.want(LEAVE_HOLD, effects=True)
        if self._last is None or self._last.plan != state.plan_number:
            if not self._quiescence.is_quiet:
                return
            self._last, self._present = _LastEpoch(state.plan_number, state.image.begun), 0
        newest = self._publisher.newest_published()
        if newest > self._last.begun or (self._present and self._present == newest):
            self._send_may_leave(newest)

    def _send_may_leave(self, epoch: int) -> None:
        self._shared.send(tuple(self._waiting), MayLeave(epoch))
        self._may_leave_sent.update(self._waiting)
        self._waiting.clear()
        self.is_saved, self._is_ending = self.is_saved or self._is_ending, False


ANSWER_NS = 5 * SECOND_NS
"""Time, in nanoseconds, that a host has to answer before another host is asked. Most predicates take milliseconds."""

TURNS_NS = 5 * SECOND_NS
"""Time, in nanoseconds, for turns to end. A turn resumes within milliseconds after its effect ends; a turn that waits for a message may
never end, because inputs are held."""

AGAIN_NS = SECOND_NS
"""Time, in nanoseconds, between two extra epochs that check whether effects have ended. Effects may take long."""


class StopQuery(msgspec.Struct):
    """A query that asks one host whether `stop_when` holds."""

    host: str
    epoch: int
    since_ns: int


class StopDecision(msgspec.Struct, frozen=True):
    """The decision to end the fleet, based on an answer about `epoch`."""

    plan: int
    epoch: int
    outcome: str
    reason: str
    since_ns: int


class StopQuestion:
    """Open queries about `stop_when`, and the decision to end the fleet. This state need not be durable, because a new leader
    asks again."""

    def __init__(
        self, shared: LeaderState, host_sessions: HostSessions, publisher: RefPublisher, quiescence: Quiescence
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._quiescence = quiescence
        self._decided: StopDecision | None = None
        self._open_effects: tuple[str, ...] = ()
        """Open effects of the newest epoch that was checked since the decision."""
        self._turns_ns = 0
        """Time of the decision, or of a later answer in which `stop_when` does not hold or no effect is open. TURNS_NS counts from this
        time."""
        self._again_ns = 0
        """Earliest time of the next extra epoch that checks whether effects have ended."""
        self._asked: dict[int, StopQuery] = {}
        """Session → its unanswered query."""
        self._evaluated = 0
        """Newest epoch for which a host has answered."""
        self._begun_before_hold: int | None = None
        """With local recovery, the newest epoch that had begun when all hosts had acknowledged the hold."""

    def shift(self, late_ns: int) -> None:
        """Extend the deadlines of all queries by `late_ns`, the time for which this process was suspended."""
        for asked in self._asked.values():
            asked.since_ns = min(asked.since_ns + late_ns, self._shared.now)

    @property
    def epochs_read(self) -> tuple[int, ...]:
        """Return the epochs on which hosts are evaluating `stop_when`, which must not be deleted."""
        return tuple([asked.epoch for asked in self._asked.values()])

    def on_stop_evaluated(self, session: HostSession, message: StopEvaluated) -> None:
        """Handle a host's answer about `stop_when`."""
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
        is_newest = epoch == self._shared.state.newest_complete()
        if is_answer and not is_waiting and is_newest and self._may_be_last(epoch):
            reason = f"stop_when holds in epoch {epoch}"
            if epoch != decided.epoch:
                reason = f"stop_when holds, and epoch {epoch} is the last one (it was asked of epoch {decided.epoch})"
            self._shared.end(epoch, decided.outcome, reason if decided.outcome == "stopped" else decided.reason)

    def _may_be_last(self, epoch: int) -> bool:
        """Return whether no host has sent a final answer or called an effect that the epoch does not contain."""
        if self._shared.state.image.recovery != LOCAL or self._shared.state.image.outcome:
            return True
        return self._begun_before_hold is not None and epoch > self._begun_before_hold

    def _decide(self, message: StopEvaluated) -> None:
        """Decide to end the fleet after the first answer that says that `stop_when` holds or failed, or that names open effects."""
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
        """Return whether the end is decided but the newest epoch, which has been checked, cannot be the last."""
        state = self._shared.state
        is_looked_at = not self._asked and state.newest_complete() <= self._evaluated
        is_due = self._decided is not None and self._shared.now >= self._again_ns
        return is_due and is_looked_at and not state.open_epochs()

    @property
    def is_checking_candidate(self) -> bool:
        """Return whether a possible last epoch is being checked or will be checked soon. No other epoch may begin while a possible last
        epoch is being checked.

        A new epoch would replace the checked epoch as the newest, so with frequent snapshots the check would never succeed.
        """
        if self._decided is None:
            return False
        state = self._shared.state
        is_unchecked = bool(state.open_epochs()) or state.newest_complete() > self._evaluated
        is_answer_due = any(not self._is_overdue(asked) for asked in self._asked.values())
        return is_answer_due or (is_unchecked and self._free_session() is not None)

    def evaluate(self) -> None:
        """Ask a host whether `stop_when` holds in the newest epoch, unless another host still has time to answer."""
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
        """Hold inputs as long as the end is decided, and cancel the decision under a new plan."""
        decided, shared = self._decided, self._shared
        if decided is not None and decided.plan != shared.state.plan_number:
            self._decided, self._evaluated, self._open_effects, self._begun_before_hold = None, 0, (), None
        if self._decided is None or shared.state.image.outcome:
            self._quiescence.drop(END_HOLD)
        elif shared.ending is None:
            self._quiescence.want(END_HOLD, inputs=True)
            if self._begun_before_hold is None and self._quiescence.are_inputs_held:
                self._begun_before_hold = shared.state.image.begun

    def _ask(self, epoch: int) -> None:
        """Ask the first attached host that has no outstanding answer."""
        session = self._free_session()
        if session is not None:
            self._asked[session.id] = StopQuery(session.host, epoch, self._shared.now)
            root, is_decided = self._shared.state.image.epochs[epoch].root, self._decided is not None
            self._shared.send((session.id,), EvaluateStop(epoch, root, is_decided))

    def _free_session(self) -> HostSession | None:
        """Return the session of the first attached host without an outstanding answer, or None if there is none."""
        sessions = map(self._host_sessions.attached_session, self._host_sessions.attached())
        return next((session for session in sessions if session is not None and session.id not in self._asked), None)

    def _is_overdue(self, asked: StopQuery) -> bool:
        return self._shared.now - asked.since_ns >= ANSWER_NS

    def concerns(self) -> list[Concern]:
        """Return concerns about hosts with overdue answers and about open effects that delay the end."""
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


SHUTDOWN_NS = 5 * SECOND_NS
"""Time, in nanoseconds, for hosts to receive Finish and leave."""


class Shutdown:
    """Shuts down the fleet, and then ends this leader's run."""

    def __init__(
        self,
        shared: LeaderState,
        host_sessions: HostSessions,
        publisher: RefPublisher,
        releases: Releases,
        snapshots: Snapshots,
    ) -> None:
        self._shared = shared
        self._host_sessions = host_sessions
        self._publisher = publisher
        self._releases = releases
        self._snapshots = snapshots
        self._finish_sent_ns: int | None = None
        """Time when Finish was sent; None while the fleet has not ended."""
        self._is_over = False

    def on_end_ended(self, result: OperationResult) -> None:
        """Drop the requested end if EndFleet was refused because its reason no longer holds."""
        if result.is_refused:
            self._shared.ending = None

    def directives_for(self) -> list[Finish]:
        """Return Finish for a host that has just reconnected, if other hosts have already received it."""
        return [] if self._finish_sent_ns is None else [self._finish()]

    def evaluate(self) -> None:
        """Propose the requested end of the fleet. Once the end is in the log, send Finish to the hosts and end the run."""
        shared, image = self._shared, self._shared.state.image
        if not image.outcome:
            if shared.ending is not None and not self._is_awaited(*shared.ending):
                shared.propose("end", op.EndFleet(*shared.ending, is_newest=bool(shared.ending[0])))
            return
        if self._finish_sent_ns is None:
            self._finish_sent_ns = shared.now
            shared.note("info", f"the fleet has {image.outcome}: {image.ending}")
            shared.send(self._host_sessions.all_sessions(), self._finish())
        is_time_over = shared.now >= self._finish_sent_ns + SHUTDOWN_NS
        is_stored = not self._publisher.unpublished and self._releases.is_settled
        is_settled = self._host_sessions.is_empty and is_stored and self._snapshots.is_settled
        if shared.options.exit_when_finished and not self._is_over and (is_time_over or is_settled):
            self._is_over = True
            shared.out.append(EndRun(0 if image.outcome == "stopped" else 1, image.ending))

    def _is_awaited(self, epoch: int, outcome: str, _reason: str) -> bool:
        """Return whether the end must wait for the release of the last epoch's outputs, which is only the case if the fleet stops."""
        return outcome == "stopped" and self._releases.has_unreleased_up_to(epoch)

    def _finish(self) -> Finish:
        image = self._shared.state.image
        return Finish(image.outcome_epoch, image.outcome, image.ending)
