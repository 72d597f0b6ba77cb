"""The coordinator's replicated state machine, which contains the fleet's state and the rules by which it changes.

The problem. Hosts, tools and timers send requests concurrently, and the coordinator may die at any instruction. A new leader or another
replica must be able to rebuild the same state from the log alone. So every decision is an operation in the log. The result of
applying an operation depends only on the state and the operation. The state machine reads no clock, uses no randomness, does no I/O, and
never iterates over a set. Applying the same log twice yields the same bytes from `freeze`. Restoring an image and applying the rest of the
log also yields these bytes.

The rules use the terms defined in `docs/protocols.md`:

1. *One outcome* (G4). Each epoch ends exactly once: it is either completed or aborted. An operation that begins an epoch or commits a plan
   is refused if its proposer had outdated epoch or plan numbers. The proposer then reads the state again.
2. *Fences* (G9). Host start numbers, plan numbers, epoch numbers and incarnations only increase. Each plan increases the incarnation of
   every living agent. An operation requested by a host contains the host's plan number and start number. The operation is refused if either
   number is no longer current.
3. *A plan permanently discards* the work that it rolls back. Elnozahy, Alvisi, Wang, Johnson 2002, section 2, explain why an undone
   checkpoint must never be used again. A plan's recovery line is the newest complete epoch that is not condemned. The plan aborts all open
   epochs, and undoes the agent creations and removals after its recovery line. In autonomous protocols, an epoch with the trigger
   "recovery" may begin and complete before the plan is committed. This epoch contains the surviving states, and becomes the plan's recovery
   line. A restore is a plan that also makes all complete epochs above its recovery line permanently void. A restore
   also begins an *era*, in which commits in logs of earlier plans are void. With local recovery, all other plans of the era keep the
   creations and removals after their recovery line, because hosts request them only after a commit that contains them is durable.
   The agents on the surviving hosts then go on in their incarnations, and only the others start again.
4. *Membership.* Epoch e contains the agents that were created before e and not removed before e. Agents created while epoch e was open are
   *unborn* in e. If the manifest of e names an unborn agent, the message that creates this agent is in transit in e. So a recovery to e
   brings the agent back. A member of e is also unborn if its creation is in transit or is still pending in its parent's checkpoint.
5. *Requests* are applied once. If a client repeats a request with the same sequence number and digest, it receives the same result. The
   table of results is part of the state, so every replica gives the same answer. A client has at most `RESULTS_KEPT` outstanding requests.
   A request older than the client's last `RESULTS_KEPT` results is refused, because the state no longer shows whether the request was
   applied.
6. *Validate first, then change.* A refused operation changes only the table of results and the recorded time.

Implements G4 and G9 and, together with the log, G8. The leader core (`leader/core.py`), whose state is volatile, decides which operations
to propose.
"""

from collections.abc import Mapping

import msgspec

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    APPLIED,
    CLIENTS_MAX,
    COMPLETE,
    CONDEMNED,
    EPOCHS_OPEN_MAX,
    LEFT,
    LOGS_KNOWN_MAX,
    LOST,
    OPEN,
    OUTCOMES_KEPT,
    OVER,
    PAST_INSTANCES_KEPT,
    PLANS_KEPT,
    RECOVERING,
    RECOVERY_TRIGGER,
    REFUSED,
    RESULTS_KEPT,
    ROLLBACKS_KEPT,
    RUNNING,
    UNCHANGED,
    VOID,
    AgentRecord,
    CondemnedRecord,
    EpochAccount,
    EpochRecord,
    FleetImage,
    HostRecord,
    OperationResult,
    PlanNeed,
    PlanRecord,
    RememberedResult,
    RestoreRecord,
    decode_image,
    problem_of_host,
)
from snapline.coordinator.state.fleet_view import FleetView, make_void, refusal_of_restore
from snapline.coordinator.state.operation_rules import (
    apply_user_operation,
    are_weights,
    count_process_end,
    define_agents,
    define_fleet,
    drain_hosts,
    forget_hosts,
    forgive,
    keep_report,
    next_ordinal,
    note_aborted,
    note_complete,
    open_host_log,
    place,
    refusal_of_names,
    weights_by_host,
)
from snapline.errors import LogError
from snapline.messages.host_messages import COMMIT_AGE_NS
from snapline.messages.past_rollbacks import PastRollback
from snapline.protocols.names import LOCAL, is_autonomous


class FleetState(FleetView):
    """The replicated state machine. Only `handle` may change `image`. Other code may read it, but only on the event loop's thread."""

    # ---- entry ----------------------------------------------------------------------------------------------------

    def handle(self, now_ns: int, event: op.Operation) -> list[OperationResult]:
        """Apply one committed operation, and return a list that contains only its result.

        `now_ns` is the time recorded in the operation, so the result does not depend on when the operation is applied.
        """
        digest = op.digest_of(event.kind)
        earlier_result = _earlier_result_of(self.image, event, digest)
        if earlier_result is not None:
            return [earlier_result]
        self.image.now_ns = max(self.image.now_ns, now_ns)
        result = self._apply(event.kind, now_ns)
        _remember_result(self.image, event, digest, result)
        return [result]

    def apply(self, operation: op.Operation) -> OperationResult:
        """Apply one committed operation, and return its result."""
        return self.handle(operation.now_ns, operation)[0]

    def _apply(self, kind: op.Kind, now_ns: int) -> OperationResult:
        match kind:
            case op.BeginEpoch():
                return self._begin_epoch(kind, now_ns)
            case op.CompleteEpoch():
                return self._complete_epoch(kind, now_ns)
            case op.AbortEpoch():
                return self._abort_epoch(kind)
            case op.ForgetEpochs():
                return self._forget_epochs(kind)
            case op.CreateAgents():
                return self._create_agents(kind)
            case op.RemoveAgent():
                return self._remove_agent(kind)
            case op.AdmitHost():
                return self._admit_host(kind, now_ns)
            case op.ForgetHosts():
                return forget_hosts(self, kind)
            case op.DrainHosts():
                return drain_hosts(self, kind)
            case op.ForgiveTurn():
                return forgive(self.image, kind)
            case op.LoseHosts():
                return self._lose_hosts(kind, now_ns)
            case op.CommitPlan():
                return self._commit_plan(kind, now_ns)
            case op.Restore():
                return self._restore(kind, now_ns)
            case op.ConfirmPlan():
                return self._confirm_plan(kind, now_ns)
            case op.CondemnEpoch():
                return self._condemn_epoch(kind, now_ns)
            case op.DefineFleet():
                return define_fleet(self, kind)
            case op.DefineAgents():
                return define_agents(self, kind)
            case op.OpenHostLog():
                return open_host_log(self, kind)
            case op.EndFleet():
                return self._end_fleet(kind)
            case op.MakeToken() | op.RevokeToken() | op.RecordCall():
                return apply_user_operation(self.image, kind, now_ns)
        raise LogError(f"no rule for an operation {type(kind).__name__}")

    # ---- hosts ----------------------------------------------------------------------------------------------------

    def _admit_host(self, kind: op.AdmitHost, now_ns: int) -> OperationResult:
        image = self.image
        if image.outcome:
            return OperationResult(REFUSED, "the fleet has ended")
        record = image.hosts.get(kind.host)
        if record is None:
            problem = problem_of_host(kind.host, len(image.hosts))
            if problem or not kind.instance:
                return OperationResult(REFUSED, problem or "a host's run has a name")
            start = image.forgotten_start + 1
            image.hosts[kind.host] = HostRecord(start, kind.instance, kind.address)
            keep_report(image, kind)
            return OperationResult(APPLIED, number=start)
        if kind.instance in record.past:
            return OperationResult(
                REFUSED, f"a newer process has taken the place of this host {kind.host}", number=record.start
            )
        aborted: tuple[int, ...] = ()
        if kind.instance != record.instance:
            if kind.expected_start != record.start:
                return OperationResult(
                    REFUSED, f"host {kind.host} has start {record.start} by now", number=record.start
                )
            if record.state == ALIVE:
                aborted = self._end_host_run(
                    kind.host, f"host {kind.host} was started again", now_ns, kind.ran_until_ns
                )
            count_process_end(image, kind.host, record, kind.died_in if kind.died == record.instance else ())
            record.past = [*record.past, record.instance][-PAST_INSTANCES_KEPT:]
            record.start, record.instance, record.spare = record.start + 1, kind.instance, ""
            keep_report(image, kind)
        elif record.state == ALIVE and record.address == kind.address:
            return OperationResult(UNCHANGED, number=record.start)
        record.address, record.state = kind.address, ALIVE
        return OperationResult(APPLIED, number=record.start, epochs=aborted)

    def _lose_hosts(self, kind: op.LoseHosts, now_ns: int) -> OperationResult:
        aborted: tuple[int, ...] = ()
        is_changed = False
        for lost in kind.hosts:
            record = self.image.hosts.get(lost.host)
            if record is None or record.start != lost.host_start or record.state == LEFT:
                continue
            if lost.died_in:
                count_process_end(self.image, lost.host, record, lost.died_in)
                is_changed = True
            if record.state == LOST and not kind.is_leaving:
                continue
            if record.state == ALIVE:
                aborted += self._end_host_run(lost.host, kind.reason, now_ns, kind.ran_until_ns)
            record.state = LEFT if kind.is_leaving else LOST
            record.spare = kind.reason if kind.is_spare else record.spare
            is_changed = True
        if not is_changed:
            return OperationResult(UNCHANGED, "no such run is alive")
        return OperationResult(APPLIED, epochs=aborted)

    def _end_host_run(self, host: str, reason: str, now_ns: int, ran_until_ns: int) -> tuple[int, ...]:
        """Record that the current run of `host` has ended. If the current plan places agents on the host, record that the fleet needs a new
        plan."""
        if self.plan is None or host not in self.plan.hosts or self.image.outcome:
            return ()
        return self._need_plan(reason, [host], now_ns, ran_until_ns)

    def _need_plan(self, reason: str, lost: list[str], now_ns: int, ran_until_ns: int = 0) -> tuple[int, ...]:
        image = self.image
        if image.need is None:
            image.need = PlanNeed(reason, [], now_ns)
        if lost:
            image.need.worked_until_ns = max(image.need.worked_until_ns, ran_until_ns or now_ns)
        image.need.lost += [host for host in lost if host not in image.need.lost]
        return self._abort_open_epochs(reason)

    # ---- plans ----------------------------------------------------------------------------------------------------

    def _commit_plan(self, kind: op.CommitPlan, now_ns: int) -> OperationResult:
        refusal = self._refusal_of_plan(kind)
        if refusal:
            return OperationResult(REFUSED, refusal, number=self.plan_number)
        return self._make_plan(kind, None, now_ns)

    def _restore(self, kind: op.Restore, now_ns: int) -> OperationResult:
        """Make later epochs void and commit the plan in one log entry, because a failure between two entries would undo the restore."""
        done_plan = self.plan_of_request(kind.request)
        if done_plan is not None:
            return OperationResult(UNCHANGED, number=done_plan.number)
        refusal = self._refusal_of_plan(kind) or self.refusal_of_rollback(kind.agent, kind.reason, kind.at_most)
        if refusal:
            return OperationResult(REFUSED, refusal, number=self.plan_number)
        discarded = make_void(self.image, kind.line_epoch)
        if kind.drop_inputs:
            self.image.epochs[kind.line_epoch].drop_before = self.plan_number + 1
        rollbacks = self.image.rollbacks
        number, asked = 1 + (rollbacks[-1].number if rollbacks else 0), kind.asked or kind.reason
        rollbacks.append(PastRollback(number, kind.line_epoch, kind.agent, kind.place, asked, kind.done))
        del rollbacks[:-ROLLBACKS_KEPT]
        return self._make_plan(kind, RestoreRecord(kind.request, kind.drop_inputs, discarded, kind.agent), now_ns)

    def _make_plan(
        self, kind: op.CommitPlan | op.Restore, restore: RestoreRecord | None, now_ns: int
    ) -> OperationResult:
        image = self.image
        number, line = self.plan_number + 1, kind.line_epoch
        aborted = self._abort_open_epochs(f"plan {number} rolls the fleet back to epoch {line}: {kind.reason}")
        record = image.epochs[line] if line else EpochRecord(0, "", 0)
        if number == self.start_plan:
            image.era_line = line
        if restore is not None or number == image.era or self._are_commits_lost(line):
            image.era, image.era_line, image.is_era_adopted = number, line, False
            image.base = min(image.base, line)  # no commit of this era has been deleted
        if image.recovery != LOCAL or number <= image.era:
            self._restore_membership(line, record.unborn)
        agents, sources, sources_since = self._restart_agents(number, kind)
        used = dict.fromkeys(image.agents[agent].host for agent in agents)
        need = image.need or PlanNeed(kind.reason, [], now_ns)
        lost_ns = 0
        if (
            not self.is_autonomous and image.plans and image.plans[-1].done_ns
        ):  # no agent has worked under a plan that was never applied
            lost_ns = self.work_since_line_ns(need.worked_until_ns or need.suspected_ns)
        if image.recovery == LOCAL and number != image.era:
            lost_ns = min(lost_ns, COMMIT_AGE_NS)
        is_move = image.need is None and isinstance(kind, op.CommitPlan) and kind.is_move
        image.need = None
        for host in kind.hosts:
            image.hosts[host].spare = ""
        image.plans.append(
            PlanRecord(
                number=number,
                line_epoch=line,
                line_root=record.root,
                begun_epoch=image.begun,
                hosts=sorted(used),
                reason=kind.reason,
                unborn=list(record.unborn),
                agents=len(agents),
                messages=record.channel_state_messages,
                lost=need.lost,
                condemned=[x.epoch for x in image.condemned if x.plan == number - 1],
                suspected_ns=need.suspected_ns,
                committed_ns=now_ns,
                rolled_back=self._restarted_count(number) if image.recovery == LOCAL else kind.rolled_back,
                checkpoints_lost=kind.checkpoints_lost,
                restore=restore,
                drop_before=record.drop_before,
                lost_ns=lost_ns,
                is_move=is_move,
                era=image.era,
                sources=sources,
                sources_since=sources_since,
            )
        )
        if not used:
            image.plans[-1].done_ns = max(1, now_ns)
        del image.plans[:-PLANS_KEPT]
        return OperationResult(APPLIED, number=number, epochs=aborted)

    def _refusal_of_plan(self, kind: op.CommitPlan | op.Restore) -> str:
        image = self.image
        if image.outcome:
            return "the fleet has ended"
        if not self.is_defined:
            return "the fleet is not defined yet"
        if kind.expected_plan != self.plan_number:
            return f"plan {self.plan_number} is current, not {kind.expected_plan}"
        if isinstance(kind, op.Restore) and (refusal := refusal_of_restore(image, kind.line_epoch)):
            return refusal
        if isinstance(kind, op.CommitPlan) and kind.line_epoch != self.newest_complete():
            return f"epoch {self.newest_complete()} is the line, not {kind.line_epoch}"
        if isinstance(kind, op.CommitPlan) and not are_weights(kind.weights, self.plan.hosts if self.plan else ()):
            return "weights are of the hosts of the plan before, one each, from 1"
        if self.is_fork_without_epoch:
            return "a fork has no initial states"
        if not kind.hosts or len(dict.fromkeys(kind.hosts)) != len(kind.hosts):
            return "a plan needs hosts, each once"
        for host in kind.hosts:
            if host not in image.hosts or image.hosts[host].state != ALIVE:
                return f"host {host} is not alive"
        return ""

    def _restore_membership(self, line: int, unborn: list[str]) -> None:
        """Undo agent creations and removals that happened after the recovery line (rule 3). Keep agents that are unborn in that epoch (rule
        4).

        An agent that left before the line stays removed, and its id is not reused.
        """
        image = self.image
        recreated = dict.fromkeys(unborn)
        for agent, record in list(image.agents.items()):
            if record.is_member_of(line) or agent in recreated:
                record.left_epoch = record.left_plan = None
            elif line == 0 or record.born_epoch >= line:
                del image.agents[agent]
        if line == 0:
            image.gone = {}

    def _restart_agents(self, number: int, kind: op.CommitPlan | op.Restore) -> tuple[list[str], list[str], int]:
        """Place all agents, and give those that start again a new incarnation. Return the agents, and `sources` and `sources_since` of the
        plan.

        An agent has been on its present host since its incarnation began, so since then only the logs of this host contain entries of it.
        """
        image, is_even, weights, requested = self.image, False, {}, {}
        if isinstance(kind, op.CommitPlan):
            requested = kind.placed
            is_even, weights = kind.is_even, weights_by_host(self.plan.hosts if self.plan else (), kind.weights)
        living = [(agent, requested.get(agent, record.host)) for agent, record in self.living_agents()]
        placed = place(living, kind.hosts, image.places, weights=weights, is_even=is_even)
        kept = self._kept_hosts(kind, placed)
        sources: dict[str, None] = {}
        since = 0
        for agent, host in placed.items():
            record = image.agents[agent]
            if record.host != host or host not in kept:
                sources[record.host] = None
                since = max(since, record.incarnation)
                record.host, record.incarnation = host, number
        is_local = image.recovery == LOCAL and number not in (image.era, self.start_plan)
        return list(placed), sorted(sources) if is_local else [], since if is_local else 0

    def _restarted_count(self, number: int) -> int:
        """Return how many agents start again under this plan, which is none under the first plan of the fleet."""
        if number == self.start_plan:
            return 0
        return sum([record.incarnation == number for _, record in self.living_agents()])

    def _kept_hosts(self, kind: op.CommitPlan | op.Restore, placed: Mapping[str, str]) -> set[str]:
        """Return the hosts whose agents go on under the next plan without a restart, in their present incarnations (rule 3).

        Such a host has confirmed the plan before, so that it has all its agents, and its run has not ended since. All its agents stay,
        because the agents of a host may depend on messages of each other that no commit contains. Only frozen agents may leave.
        """
        image, plan = self.image, self.plan
        if image.recovery != LOCAL or plan is None or image.era > plan.number:
            return set()
        assert isinstance(kind, op.CommitPlan)
        frozen = dict.fromkeys(kind.frozen)
        leaving = {
            image.agents[agent].host
            for agent, host in placed.items()
            if image.agents[agent].host != host and agent not in frozen
        }
        lost = image.need.lost if image.need is not None else []
        return {*plan.confirmed} - {*lost, *kind.restarted} - leaving

    def _are_commits_lost(self, line: int) -> bool:
        """Return whether commits that a recovery from this epoch needs may not exist. They may have been deleted when a later epoch was
        complete, or agents may have been loaded from a later epoch and not have been committed since. That epoch is damaged now."""
        image = self.image
        is_above = line < image.base or (line < image.era_line and not image.is_era_adopted)
        return image.recovery == LOCAL and is_above

    def _confirm_plan(self, kind: op.ConfirmPlan, now_ns: int) -> OperationResult:
        image, plan = self.image, self.plan
        if plan is None or kind.plan != plan.number or image.need is not None or image.outcome:
            return OperationResult(REFUSED, f"plan {kind.plan} is not, or no longer, to be confirmed")
        host = image.hosts.get(kind.host)
        if host is None or host.start != kind.host_start or host.state != ALIVE or kind.host not in plan.hosts:
            return OperationResult(REFUSED, f"plan {kind.plan} does not wait for this run of host {kind.host}")
        if kind.host in plan.confirmed:
            return OperationResult(UNCHANGED, number=plan.number)
        plan.confirmed.append(kind.host)
        if len(plan.confirmed) == len(plan.hosts):
            plan.done_ns = max(1, now_ns)
            image.is_era_adopted = True
            # A host that applies a plan has sealed the logs of all earlier plans.
            logs_with_batch = [log for log in image.logs if log.plan < plan.number and log.newest]
            image.logs = logs_with_batch[-LOGS_KNOWN_MAX:] + [log for log in image.logs if log.plan >= plan.number]
        return OperationResult(APPLIED, number=plan.number)

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def _begin_epoch(self, kind: op.BeginEpoch, now_ns: int) -> OperationResult:
        image = self.image
        may_recover = kind.trigger == RECOVERY_TRIGGER and is_autonomous(image.protocol)
        if self.phase != RUNNING and not (may_recover and self.phase == RECOVERING):
            return OperationResult(REFUSED, f"the fleet is {self.phase}", number=image.begun)
        if kind.expected_begun != image.begun:
            return OperationResult(REFUSED, f"epoch {image.begun} has begun since", number=image.begun)
        if len(self.open_epochs()) >= EPOCHS_OPEN_MAX:
            return OperationResult(REFUSED, f"{EPOCHS_OPEN_MAX} epochs are open", number=image.begun)
        image.begun += 1
        plan = self.plan
        drop_before = 0 if plan is None else plan.drop_before  # an agent may be unchanged since the plan's line
        image.epochs[image.begun] = EpochRecord(self.plan_number, kind.trigger, now_ns, drop_before=drop_before)
        return OperationResult(APPLIED, number=image.begun)

    def _complete_epoch(self, kind: op.CompleteEpoch, now_ns: int) -> OperationResult:
        record = self.image.epochs.get(kind.epoch)
        if record is None or record.status != OPEN:
            if record is not None and record.root == kind.root:
                return OperationResult(UNCHANGED, number=kind.epoch)
            return OperationResult(REFUSED, f"epoch {kind.epoch} is not open", number=kind.epoch)
        if not kind.root:
            return OperationResult(REFUSED, "a complete epoch has a root", number=kind.epoch)
        if not all(agent in self.image.agents for agent in kind.unborn_agents):
            return OperationResult(REFUSED, "an agent that is unborn in it was never created", number=kind.epoch)
        record.status, record.root, record.ended_ns = COMPLETE, kind.root, now_ns
        record.unborn = list(kind.unborn_agents)
        record.channel_state_messages = kind.channel_state_messages
        self.image.completed += 1
        self.image.base = max([self.image.base, *self.complete_epochs()[-2:-1]])
        note_complete(self.image, kind, record)
        return OperationResult(APPLIED, number=kind.epoch)

    def _abort_epoch(self, kind: op.AbortEpoch) -> OperationResult:
        record = self.image.epochs.get(kind.epoch)
        if record is None or record.status != OPEN:
            return OperationResult(REFUSED, f"epoch {kind.epoch} is not open", number=kind.epoch)
        self._move_open_to_aborted(kind.epoch, kind.reason, kind.account)
        return OperationResult(APPLIED, number=kind.epoch, epochs=(kind.epoch,))

    def _abort_open_epochs(self, reason: str) -> tuple[int, ...]:
        epochs = self.open_epochs()
        for epoch in epochs:
            self._move_open_to_aborted(epoch, reason)
        return epochs

    def _move_open_to_aborted(self, epoch: int, reason: str, account: EpochAccount | None = None) -> None:
        record = self.image.epochs.pop(epoch)
        self.image.aborted += 1
        note_aborted(self.image, epoch, record, reason, account)

    def _condemn_epoch(self, kind: op.CondemnEpoch, now_ns: int) -> OperationResult:
        record = self.image.epochs.get(kind.epoch)
        if record is None or record.status != COMPLETE:
            return OperationResult(UNCHANGED, f"epoch {kind.epoch} is not complete", number=kind.epoch)
        record.status = CONDEMNED
        self.image.condemned.append(CondemnedRecord(kind.epoch, self.plan_number, kind.path, kind.reason))
        del self.image.condemned[:-OUTCOMES_KEPT]
        plan = self.plan
        aborted: tuple[int, ...] = ()
        if plan is not None and plan.line_epoch == kind.epoch and self.phase == RECOVERING:
            aborted = self._need_plan(f"epoch {kind.epoch} is damaged: {kind.path}: {kind.reason}", [], now_ns)
        return OperationResult(APPLIED, number=kind.epoch, epochs=aborted)

    def _forget_epochs(self, kind: op.ForgetEpochs) -> OperationResult:
        image = self.image
        kept = {self.newest_complete()}
        if self.phase != RUNNING and self.plan is not None:
            kept.add(self.plan.line_epoch)
        named = dict.fromkeys(kind.epochs)  # a dict, because leaders of older releases named some epochs twice
        old = [epoch for epoch in named if epoch in image.epochs and epoch not in kept]
        records = {epoch: image.epochs.pop(epoch) for epoch in old if image.epochs[epoch].status != OPEN}
        forgotten = list(records)
        histories = [epoch for epoch, record in records.items() if record.status != VOID]
        image.forgotten = max([image.forgotten, *histories])
        self._forget_agents()
        return OperationResult(APPLIED if forgotten else UNCHANGED, epochs=tuple(forgotten))

    def _forget_agents(self) -> None:
        """Reduce the record of each agent that left before the oldest complete epoch to the agent's id."""
        image = self.image
        complete = self.complete_epochs()
        if not complete:
            return
        named = {agent for record in image.epochs.values() for agent in record.unborn}
        for agent, record in list(image.agents.items()):
            has_left = record.left_epoch is not None and record.left_epoch < complete[0]
            if has_left and not record.is_initial and agent not in named:
                del image.agents[agent]
                image.gone[agent] = None

    # ---- agents ---------------------------------------------------------------------------------------------------

    def _create_agents(self, kind: op.CreateAgents) -> OperationResult:
        image = self.image
        end = self.why_work_is_over(kind.host, kind.host_start, kind.plan)
        if end:
            return OperationResult(OVER, end)
        refusal = refusal_of_names(self, kind)
        if refusal:
            return OperationResult(REFUSED, refusal)
        for agent, agent_kind in zip(kind.agents, kind.kinds, strict=True):
            if not self.may_create_again(agent, kind.parent):
                image.agents[agent] = AgentRecord(
                    agent_kind,
                    kind.host,
                    kind.plan,
                    False,
                    born_epoch=image.begun,
                    created_plan=kind.plan,
                    ordinal=next_ordinal(image),
                    parent=kind.parent if image.recovery == LOCAL else "",
                )
        return OperationResult(APPLIED, number=kind.plan, begun=image.begun, epochs=self.open_epochs())

    def _remove_agent(self, kind: op.RemoveAgent) -> OperationResult:
        end = self.why_work_is_over(kind.host, kind.host_start, kind.plan)
        if end:
            return OperationResult(OVER, end)
        record = self.image.agents.get(kind.agent)
        if record is None or record.host != kind.host:
            return OperationResult(REFUSED, f"agent {kind.agent} is not on host {kind.host}")
        if record.left_plan is not None:
            return OperationResult(UNCHANGED, epochs=self.open_epochs())
        record.left_epoch, record.left_plan = self.image.begun, kind.plan
        return OperationResult(APPLIED, epochs=self.open_epochs())

    # ---- end of fleet ---------------------------------------------------------------------------------------------

    def _end_fleet(self, kind: op.EndFleet) -> OperationResult:
        image = self.image
        if image.outcome:
            return OperationResult(UNCHANGED, "the fleet has ended already")
        if kind.outcome not in ("stopped", "failed"):
            return OperationResult(REFUSED, f"{kind.outcome!r} is no outcome")
        if kind.outcome == "stopped" and kind.epoch not in self.complete_epochs():
            return OperationResult(REFUSED, f"epoch {kind.epoch} is not complete")
        if kind.is_newest and kind.epoch < self.newest_complete():
            return OperationResult(REFUSED, f"epoch {self.newest_complete()} is newer than {kind.epoch}")
        aborted = self._abort_open_epochs("the fleet has ended")
        image.outcome, image.outcome_epoch, image.ending = kind.outcome, kind.epoch, kind.reason
        return OperationResult(APPLIED, number=kind.epoch, epochs=aborted)

    # ---- images and checks ----------------------------------------------------------------------------------------

    def freeze(self) -> bytes:
        """Serialize the whole state. Equal states yield equal bytes."""
        return msgspec.msgpack.encode(self.image)

    @classmethod
    def restore(cls, image: bytes) -> "FleetState":
        """Decode a state that `freeze` has encoded.

        Raises:
            LogError: `image` is not a state that this version can decode.
        """
        state = cls()
        state.image = decode_image(image)
        return state


def _earlier_result_of(image: FleetImage, operation: op.Operation, digest: bytes) -> OperationResult | None:
    """Return the result if this request was answered before, conflicts with an earlier request, or is too old. Return None for a new
    request."""
    client, sequence = operation.client, operation.sequence
    results = image.requests.get(client, [])
    for remembered in reversed(results):
        if remembered.sequence == sequence:
            if remembered.digest != digest:
                return OperationResult(REFUSED, f"request {sequence} of {client} was another one before")
            return remembered.result
    if len(results) == RESULTS_KEPT and sequence < results[0].sequence:
        return OperationResult(REFUSED, f"request {sequence} of {client} is too old to be known")
    return None


def _remember_result(image: FleetImage, operation: op.Operation, digest: bytes, result: OperationResult) -> None:
    results = image.requests.pop(operation.client, [])
    results.append(RememberedResult(operation.sequence, digest, result))
    results.sort(key=lambda x: x.sequence)
    del results[:-RESULTS_KEPT]
    image.requests[operation.client] = results
    while len(image.requests) > CLIENTS_MAX:
        del image.requests[next(iter(image.requests))]
