"""The judge, which is the only interface through which the simulated world reports events to the ground truth and the oracles.

Theory of operation
-------------------
The world calls a method for each event and command of the production cores, in order. The judge updates the ground truth
(`sim/oracles/ground_truth.py`). The judge also runs the oracles when certain events happen. The following table lists each event with its
oracles, their guarantees and the module.

    a turn ends             exactly-once G3, orphan G1, incarnation G9            ground_truth.py
    a step is run           steps G3                                              ground_truth.py
    a durable turn ends     replay G3                                             replay_oracles.py
    a creation is refused   refused G3                                            here
    an epoch is complete    orphan and clock G1, channel-state G2, restored G3,   cut_oracles.py
                            workload G3, outcome G4; line G5                      line_oracles.py
    an agent is loaded      restored G11, incarnation G9                          here
    an epoch is released    outputs R2                                            input_output_oracles.py
    an entry is committed   outcome G4, line G5, incarnation G9; log G8           log_oracles.py
    a plan is committed     line G5, with survivors                               line_oracles.py
    the fleet has ended     stop G3                                               cut_oracles.py
    files are deleted       garbage G7                                            line_oracles.py
    a core has raised       core                                                  here
    the run is over         replay G3; useless and tracking G6                    replay_oracles.py, useless.py

Findings are appended to `violations`. The world ends the run after the event that caused the first violation has been judged. If a run
exceeds the fault budget, the store may lose complete epochs, so an unreadable epoch is not a violation.

The world has the following duties.

1. Report every event and command of the cores in the order in which they happen.
2. Call `on_turn` before the core learns that the turn has ended. Call `on_captured` at the time when the image is captured.
3. Read epochs and packs without the injected disk faults that hosts experience.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host.host_events import Control
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import APPLIED, OperationResult, ProposalOutcome, Rejected, Unknown
from snapline.coordinator.state.fleet_view import FleetView
from snapline.protocols.names import LOCAL, is_autonomous
from snapline.sim.oracles import cut_oracles
from snapline.sim.oracles.cut_oracles import StopOracle
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import (
    NOWHERE,
    AgentHistory,
    CutPlace,
    CutRecord,
    Finding,
    digest_of,
)
from snapline.sim.oracles.input_output_oracles import check_dead_letters
from snapline.sim.oracles.line_oracles import (
    ExpectedRetention,
    Frozen,
    LineOracle,
    LivePlaces,
    check_deleted,
    check_retained,
    is_covered,
)
from snapline.sim.oracles.log_oracles import LogHistory, Outcomes
from snapline.sim.oracles.probes import Probes
from snapline.sim.oracles.replay_oracles import NOT_POSSIBLE, ReplayOracle
from snapline.sim.oracles.useless import check_branch
from snapline.sim.result import Violation
from snapline.storage.outputs.output_record import Release
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint

VIOLATIONS_MAX = 20
"""Maximum number of violations kept per run. The first violation ends the run, and a single event rarely causes more."""

CUTS_KEPT = 64
"""Number of complete epochs whose cuts are kept, because plans may start from them. A simulated run stores far fewer epochs."""


class JudgeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Options that determine how a run is judged.

    Attributes:
        budget: the scenario's fault budget, which is "within" or "beyond".
        wanted: retention policy that the coordinator must follow, or None.
        check_cut: function that checks the workload's invariant.
        with_clocks, with_replay: whether to run the oracles that use vector clocks, and the oracles that replay turns. These oracles are
            the most expensive.
        is_own: whether the fleet is a user's own.
    """

    protocol: str
    budget: str
    check_cut: Callable[[Cut], str | None]
    with_clocks: bool
    with_replay: bool = True
    is_own: bool = False
    wanted: ExpectedRetention | None = None


class LocalPlans:
    """A judge's knowledge of the plans of a fleet with local recovery.

    Attributes:
        era: the plan of the newest restore. Commits under earlier plans are void.
        eras: for each plan, the era to which it belongs. A host may load the agents of a plan that a later restore has made void.
        points: for each plan, the digests of the commits from which agents start, by agent.
    """

    def __init__(self) -> None:
        self.era = 0
        self.eras: dict[int, int] = {}
        self.points: dict[int, dict[str, bytes]] = {}


class Judge:
    """The ground truth and the oracles of one run.

    Attributes:
        violations: the violations found so far, up to `VIOLATIONS_MAX`.
        on_turn, on_dead_lettered, on_unroutable, on_left: methods of the ground truth that the world calls directly for speed.
        on_frozen: method of `LivePlaces` to call when a host has frozen its agents.
        on_unsaved: method of `LivePlaces` to call when a frozen agent cannot be saved.
    """

    def __init__(self, terms: JudgeTerms, *, fleet: Fleet, agents: Sequence[str]) -> None:
        self.violations: list[Violation] = []
        self.probes = Probes()
        self.ground_truth = GroundTruth(
            self.report, agents=agents, with_clocks=terms.with_clocks, with_log=terms.with_replay
        )
        self.on_turn = self.ground_truth.on_turn
        self.on_dead_lettered = self.ground_truth.on_dead_lettered
        self.on_unroutable = self.ground_truth.on_unroutable
        self.on_left = self.ground_truth.on_left
        self._terms = terms
        self._fleet = fleet
        self._outcomes = Outcomes()
        self._log = LogHistory()
        self._lines = LineOracle(self.ground_truth)
        self._stop = StopOracle(fleet)
        self.replays = ReplayOracle(self.report, fleet, is_own=terms.is_own)
        self._live = LivePlaces(self.ground_truth)
        self.on_frozen = self._live.on_frozen
        self.on_unsaved = self._live.on_unsaved
        self._cuts: dict[int, CutRecord] = {}
        self._local = LocalPlans()
        self._damaged: dict[int, None] = {}

    # ---- agents ---------------------------------------------------------------------------------------------------

    def on_captured(
        self, t_ns: int, plan: int, agent: str, control: Control, state: bytes, basis: str, round_: int
    ) -> None:
        """Record an image that a TakeCheckpoint or CaptureState command has just captured. For CaptureState, `basis` is "coordinated"."""
        if control.is_born:
            self.ground_truth.on_captured(t_ns, plan, agent, control, state, basis, round_)
            if basis == "forced":
                self.probes.hit("forced checkpoint")

    def on_stopping(self, plan: int, agent: str) -> None:
        """Record that the agent's last turn called `ctx.stop()`."""
        self.ground_truth.on_stopping(plan, agent)
        self.probes.hit("agent stopped")

    def on_refused(self, t_ns: int, plan: int, parent: str, child: str, payload: bytes) -> None:
        """Check that the refusal of a creation was correct. A refusal is correct if an agent with this id has already been created in this
        history.

        A refusal is also correct on a host that follows an older plan, and in a fleet that has reached its maximum size.
        """
        self.ground_truth.on_unroutable(t_ns, plan, parent, child, payload)
        is_old = self._outcomes.is_used and plan < self._outcomes.plan
        is_full = len(self.ground_truth.branch_of(plan).histories) > fleet_records.AGENTS_MAX
        if is_old or is_full or child in self._fleet.agents or self.ground_truth.is_created(plan, child):
            return
        text = f"{parent} was refused the creation of {child}, which nobody has created under plan {plan} or before it"
        self.report("refused", "G3", t_ns, text)

    def on_loaded(self, t_ns: int, plan: int, line_epoch: int, agent: str, checkpoint: AgentCheckpoint | None) -> None:
        """Check the state of an agent that a host has loaded from a plan's recovery line. If `checkpoint` is None, the agent was loaded in
        its initial state."""
        cut = self._cuts.get(line_epoch)
        if plan not in self.ground_truth.branches:
            self._start_branch(t_ns, plan, line_epoch, cut)
        point = self._local.points.get(plan, {}).get(agent)
        if point is not None:
            self._check_point(t_ns, plan, agent, checkpoint, point)
            return
        if checkpoint is None:
            if line_epoch:
                text = f"{agent} began anew, and plan {plan} starts from epoch {line_epoch}"
                self.report("restored", "G3", t_ns, text)
            return
        is_new = plan in self._local.points and checkpoint.is_unborn
        if cut is not None and not is_new and cut.checkpoints.get(agent) != digest_of(encode_checkpoint(checkpoint)):
            text = f"the checkpoint of {agent} is not the one that epoch {line_epoch} held when it was complete"
            self.report("restored", "G11", t_ns, f"plan {plan}: {text}")
        if not checkpoint.is_unborn:
            self._check_captured(t_ns, f"plan {plan} has restored", checkpoint)
        self.probes.sometimes(any(checkpoint.in_transit.values()), "messages delivered again")

    def on_kept(self, plan: int, agents: Iterable[str]) -> None:
        """Record that a host's agents go on under a new plan without a restart."""
        self.probes.hit("agents went on")
        self._continue_branch(plan)
        self.ground_truth.keep(plan, agents)

    def _continue_branch(self, plan: int) -> None:
        """Start the branch of a plan with local recovery. Agents that start again are taken back to their points when they are loaded."""
        if plan not in self.ground_truth.branches:
            self._check_plan(0, plan)
            self.ground_truth.continue_branch(plan)

    def on_points(
        self,
        t_ns: int,
        plan: int,
        line_epoch: int,
        agents: Iterable[str],
        read_commits: Callable[[int, int], Mapping[str, AgentCheckpoint]],
    ) -> None:
        """Take the agents that a host is about to load back to their points: their newest commits or, if that is newer, the line. The host
        has sealed the logs of all earlier plans. The world reads the commits under plans from the first number and below the second.

        No agent may have consumed a message that its sender's point does not contain.
        """
        era = self._local.eras.get(plan, self._local.era)
        if plan in (1, era):
            return
        self._continue_branch(plan)
        base, commits = self._cuts.get(line_epoch), read_commits(era, plan)
        points = self._local.points.setdefault(plan, {})
        for agent in agents:
            place, checkpoint = base.places.get(agent, NOWHERE) if base is not None else NOWHERE, commits.get(agent)
            captured = self.ground_truth.find(checkpoint) if checkpoint is not None else None
            if checkpoint is not None and captured is None:
                self.report("restored", "G11", t_ns, f"a commit holds a checkpoint of {agent} that was never captured")
            elif checkpoint is None or captured is None:
                pass
            elif place.captured is None or captured.number > place.captured.number:
                place = CutPlace(captured.turns, captured.voids, {}, captured)
                points[agent] = _digest_of_point(checkpoint)
            self.ground_truth.take_back(plan, agent, place)
        self._report_all(t_ns, cut_oracles.check_consumed(self.ground_truth, plan))
        self.probes.sometimes(bool(points), "recovery to commits")

    def _check_point(self, t_ns: int, plan: int, agent: str, checkpoint: AgentCheckpoint | None, point: bytes) -> None:
        if checkpoint is None or _digest_of_point(checkpoint) != point:
            text = f"plan {plan}: {agent} has not started from its newest commit"
            self.report("restored", "G11", t_ns, text)
        else:
            self._check_captured(t_ns, f"plan {plan} has restored", checkpoint)

    def _check_captured(self, t_ns: int, what: str, checkpoint: AgentCheckpoint) -> None:
        difference = self.ground_truth.difference(checkpoint)
        if difference:
            name = f"checkpoint {checkpoint.number} of {checkpoint.agent}, incarnation {checkpoint.incarnation}"
            self.report("restored", "G11", t_ns, f"{what} {name}, which {difference}")

    def _start_branch(self, t_ns: int, plan: int, line_epoch: int, cut: CutRecord | None) -> None:
        self._check_plan(t_ns, plan)
        if line_epoch and cut is None and self._is_within:
            text = f"plan {plan} starts from epoch {line_epoch}, which was never seen complete"
            self.report("outcome", "G4", t_ns, text)
        self.probes.sometimes(plan > 1 and line_epoch == 0, "recovery to the initial states")
        self.ground_truth.start_branch(plan, cut)

    def _check_plan(self, t_ns: int, plan: int) -> None:
        if self._outcomes.is_used and plan > self._outcomes.plan:
            self.report("incarnation", "G9", t_ns, f"a host works under plan {plan}, which is not in the log")
        if plan > 1:
            self.probes.hit("recovery")

    # ---- the log --------------------------------------------------------------------------------------------------

    def on_committed(
        self, t_ns: int, index: int, operation: op.Operation, result: OperationResult, state: FleetView
    ) -> None:
        """Check an entry that was committed to the coordinator's log. `state` is the coordinator's state after this entry."""
        self._report_all(t_ns, self._log.on_committed(index, op.encode_operation(operation), result))
        is_repeated = self._outcomes.is_repeated(operation)
        self._report_all(t_ns, self._outcomes.on_committed(operation, result, state))
        self.probes.sometimes(is_repeated, "request repeated")
        if result.status == APPLIED and not is_repeated:
            self._note_applied(t_ns, operation, result, state)

    def _note_applied(self, t_ns: int, operation: op.Operation, result: OperationResult, state: FleetView) -> None:
        probes = self.probes
        match operation.kind:
            case op.BeginEpoch():
                probes.sometimes(len(self._outcomes.open_epochs()) > 1, "concurrent epochs")
                if self._is_autonomous:
                    self._lines.on_begun(operation.client, operation.sequence, result.number)
            case op.AbortEpoch():
                probes.hit("epoch aborted")
            case op.LoseHosts(is_leaving=is_leaving, is_spare=is_spare):
                probes.sometimes(is_leaving, "host left")
                probes.sometimes(is_spare, "host put out")
                if result.epochs:
                    probes.hit("epoch aborted", len(result.epochs))
                    probes.hit("crash while recording")
            case op.AdmitHost():
                probes.sometimes(result.number > 1, "host came back")
            case op.CompleteEpoch() as kind:
                is_local = self._fleet.recovery == LOCAL
                history = max(1, self._local.era) if is_local else self._plan_of(kind.epoch)
                self.ground_truth.outputs.on_complete(kind.epoch, history)
            case op.RemoveAgent() as kind:
                self.ground_truth.outputs.on_left(t_ns, self.ground_truth.history_of(kind.plan, kind.agent))
            case op.CommitPlan() as kind:
                if state.image.era == state.plan_number:
                    self._local.era = state.plan_number
                self._local.eras[state.plan_number] = state.image.era
                self._note_plan(t_ns, state.plan_number, kind.line_epoch)
                self._probe_plan(kind, state)
            case op.Restore() as kind:
                self._local.era = self._local.eras[state.plan_number] = state.plan_number
                self.ground_truth.on_restored(t_ns, kind, state.plan_number)
                self._note_plan(t_ns, state.plan_number, kind.line_epoch, is_dropping=kind.drop_inputs)
            case op.EndFleet() as kind:
                if self._is_within:
                    self._report_all(t_ns, self._stop.on_ended(t_ns, kind))
                probes.sometimes(kind.outcome == "stopped", "stopped by itself")
            case _:
                pass

    def _note_plan(self, t_ns: int, plan: int, line: int, *, is_dropping: bool = False) -> None:
        if self._fleet.recovery != LOCAL or plan in (1, self._local.era):  # other plans revert no released output
            self.ground_truth.outputs.on_plan(plan, line)
        cut = self._cuts.get(line)
        self.ground_truth.inputs.drops.on_plan(t_ns, plan, cut, is_dropping=is_dropping)

    def _probe_plan(self, kind: op.CommitPlan, state: FleetView) -> None:
        plans = state.image.plans
        self.probes.sometimes(len(plans) > 1 and not plans[-2].done_ns, "recovery killed")
        if any(epoch > kind.line_epoch for epoch in plans[-1].condemned):
            self.probes.hit("damaged epoch skipped")
            if (
                self._fleet.recovery != LOCAL or self._local.era == state.plan_number
            ):  # otherwise commits replace the epoch
                self.ground_truth.inputs.on_bytes_lost()
        if self._is_autonomous and kind.line_epoch == 0 and kind.expected_plan:
            durable = self._lines.durable_of(kind.expected_plan)
            self.probes.sometimes(any(durable.values()), "domino to the initial states")

    def on_survivors(self, t_ns: int, operation: op.Operation, frozen: Sequence[Frozen]) -> None:
        """Check that a committed plan takes account of the live states on all hosts that froze in time. If the world never calls this
        method, recovery lines are checked only against durable checkpoints."""
        kind = operation.kind
        assert isinstance(kind, op.CommitPlan)
        plan, cut = kind.expected_plan, self._cuts.get(kind.line_epoch)
        live = self._live.of(frozen, plan)
        request = (operation.client, operation.sequence)
        # If an agent has no stored checkpoint, it cannot be part of a recovery line, so only the initial states are
        # possible.
        is_possible = cut is not None or (not kind.line_epoch and self._lines.knows(request, self._fleet.agents))
        if live and is_possible and not self._outcomes.is_limited(plan) and self._is_autonomous and self._is_within:
            self.probes.hit("survivors judged")
            self._report_all(t_ns, self._lines.check_plan(plan, cut, live, request))

    def on_proposed(self, t_ns: int, proposal: int, entry: bytes) -> None:
        """Record that a leader has proposed an entry."""
        self._log.on_proposed(proposal, entry)
        if self._is_autonomous:
            operation = op.decode_operation(entry)
            if isinstance(operation.kind, op.BeginEpoch | op.CommitPlan):
                self._lines.on_proposed(operation.client, operation.sequence, self._outcomes.plan)

    def on_outcome(self, t_ns: int, proposal: int, outcome: ProposalOutcome, index: int | None) -> None:
        """Check the outcome of a proposal as a leader has received it. `index` is the index of the proposal's entry in the log, or None if
        the world does not know it."""
        self._report_all(t_ns, self._log.on_outcome(proposal, outcome, index))
        self.probes.sometimes(isinstance(outcome, Unknown), "unknown outcome")
        self.probes.sometimes(isinstance(outcome, Rejected), "proposal rejected")

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def on_damaged_base(self, epoch: int) -> None:
        """Record that an epoch that is about to be reported as complete refers to a damaged file from an earlier epoch.

        A writer that reuses stored bytes does not read them again, so it cannot detect damage. A recovery that needs the damaged bytes
        detects the damage and uses an older epoch.
        """
        self._damaged[epoch] = None
        self._lines.note_damage(self._plan_of(epoch))

    def on_epoch_complete(
        self, t_ns: int, epoch: int, trigger: str, checkpoints: Mapping[str, AgentCheckpoint] | None, error: str
    ) -> None:
        """Check a complete epoch. The world has read its checkpoints from the store as they were written."""
        self.probes.hit("epoch complete")
        if checkpoints is None or error:
            if self._is_within:
                self.report("outcome", "G4", t_ns, f"epoch {epoch} is complete and cannot be read: {error}")
            return
        cut, findings = cut_oracles.record_cut(self.ground_truth, epoch, self._plan_of(epoch), checkpoints)
        base_epoch = self._base_of(epoch)
        base = self._cuts.get(base_epoch)
        self._cuts[epoch] = cut
        if len(self._cuts) > CUTS_KEPT:
            del self._cuts[next(iter(self._cuts))]
        self._report_all(t_ns, findings)
        if not findings:
            self._check_epoch(t_ns, cut, checkpoints)
        if not findings and self._is_autonomous and (base is not None or not base_epoch):
            self._check_line(t_ns, cut, base)

    def on_read_back(
        self, t_ns: int, epoch: int, checkpoints: Mapping[str, AgentCheckpoint] | None, error: str
    ) -> None:
        """Check that a retained epoch, read again long after it became complete, is unchanged."""
        cut = self._cuts.get(epoch)
        if cut is None or not self._is_within:
            return
        self.probes.hit("old epoch read back")
        if checkpoints is None:
            self.report("durable", "G7", t_ns, f"epoch {epoch} is kept, and cannot be read any more: {error}")
            return
        digests = {agent: digest_of(encode_checkpoint(checkpoint)) for agent, checkpoint in checkpoints.items()}
        if digests != cut.checkpoints:
            text = f"epoch {epoch} is kept, and does not hold any more what it held when it was complete"
            self.report("restored", "G11", t_ns, text)

    def on_retained(self, t_ns: int, before_ms: Mapping[int, int], after: set[int], *, now_ms: int) -> None:
        """Check that a deletion of files follows the retention policy. `before_ms` contains the creation times of the epochs that had a ref
        before the deletion, and `after` contains the epochs that still have a ref."""
        if self._terms.wanted is not None:
            self.probes.sometimes(len(after) < len(before_ms), "epoch deleted under a policy")
            self._report_all(t_ns, check_retained(before_ms, after, self._terms.wanted, now_ms=now_ms))

    def _check_epoch(self, t_ns: int, cut: CutRecord, checkpoints: Mapping[str, AgentCheckpoint]) -> None:
        """Compare an epoch with the ground truth. The images of all its checkpoints must be known to the ground truth."""
        self._report_all(t_ns, cut_oracles.check_counts(self.ground_truth, cut, checkpoints))
        if self._terms.with_clocks:
            self._report_all(t_ns, cut_oracles.check_clocks(self.ground_truth, cut))
        for agent, checkpoint in checkpoints.items():
            self._check_dead_letters(t_ns, cut, agent, checkpoint)
        whole_cut = Cut(cut.epoch, checkpoints, self._fleet)
        self._stop.on_cut(t_ns, whole_cut)
        broken = self._terms.check_cut(whole_cut)
        if broken:
            self.report("workload", "G3", t_ns, f"epoch {cut.epoch}: {broken}")
        for name in cut_oracles.situations(self.ground_truth, cut, checkpoints):
            self.probes.hit(name)

    def _check_dead_letters(self, t_ns: int, cut: CutRecord, agent: str, checkpoint: AgentCheckpoint) -> None:
        history, place = self.ground_truth.branch_of(cut.plan).histories.get(agent), cut.places[agent]
        if history is not None and place.captured is not None:
            for text in check_dead_letters(history, place, checkpoint, cut.epoch):
                self.report("letters", "G3", t_ns, text)

    def _check_line(self, t_ns: int, cut: CutRecord, base: CutRecord | None) -> None:
        self._report_all(t_ns, self._lines.check(cut, base))
        self.probes.sometimes(self._lines.is_in_doubt(cut), "line in doubt")
        self.probes.hit("line advanced")

    def _plan_of(self, epoch: int) -> int:
        line = self._outcomes.epochs.get(epoch)
        return line.plan if line is not None else self.ground_truth.newest_plan

    def _base_of(self, epoch: int) -> int:
        """Return the newest complete epoch other than this epoch. The world may report the given epoch either before or after its
        completion is committed."""
        return max([each for each in self._outcomes.complete_epochs() if each != epoch], default=0)

    def on_published(self, t_ns: int, epoch: int, root: str) -> None:
        """Check a ref that was published."""
        self.probes.hit("ref published")
        self._report_all(t_ns, self._outcomes.on_published(epoch, root))

    def on_released(self, t_ns: int, epoch: int, release: Release | None) -> None:
        """Check the outputs of an epoch that a leader reports as released. `release` is None if there is no release file."""
        cut = self._cuts.get(epoch)
        branch = self.ground_truth.branch_of(self._plan_of(epoch) if cut is None else cut.plan)
        is_void = self._outcomes.is_void(epoch)
        self.ground_truth.outputs.on_released(t_ns, epoch, release, cut, branch, is_void=is_void)

    def on_condemned(self, t_ns: int, epoch: int, *, is_whole: bool) -> None:
        """Check that the decision to condemn an epoch as damaged was correct. `is_whole` means that every byte of the epoch on the disk is
        intact, so the epoch should not have been condemned."""
        if is_whole:
            text = f"epoch {epoch} was condemned as damaged, and every byte of it is as it was written"
            self.report("outcome", "G4", t_ns, text)

    # ---- checkpoints of single agents -------------------------------------------------------------------------------

    def on_checkpoints_durable(self, t_ns: int, plan: int, checkpoints: Sequence[AgentCheckpoint]) -> None:
        """Check the checkpoints in a pack that has become durable, and record them as durable."""
        for checkpoint in checkpoints:
            self._check_captured(t_ns, "a pack holds", checkpoint)
            captured = self.ground_truth.find(checkpoint)
            if captured is not None and self._is_autonomous:
                self._lines.on_durable(plan, captured)

    def on_checkpoints_known(self, plan: int, agent: str, number: int) -> None:
        """Record that the coordinator has acknowledged this checkpoint. If the world never calls this method, recovery
        lines are checked less strictly."""
        self._lines.on_known(plan, agent, number)

    def note_damage(self, plan: int) -> None:
        """Record that a checkpoint file was damaged or hidden, so recovery lines under this plan need not contain its checkpoints."""
        self._lines.note_damage(plan)

    def on_deleted(self, t_ns: int, newest_readable: bool, missing: Sequence[tuple[str, int]], plan: int = 0) -> None:
        """Check that a deletion of files has deleted no checkpoint that a recovery may need. `missing` lists the agent and number of each
        deleted checkpoint in packs of `plan`.

        If `plan` is 0, the plan is unknown, and only checkpoints whose numbers occur in no pack of an earlier plan are checked.
        """
        epoch = self._outcomes.newest_complete
        if not newest_readable and self._is_within:
            self.report("garbage", "G7", t_ns, f"after files were deleted epoch {epoch}, the newest, cannot be read")
        self.probes.sometimes(bool(missing), "checkpoints deleted")
        now = self._outcomes.plan or self.ground_truth.newest_plan
        if not self._is_autonomous or plan not in (0, now) or epoch in self._damaged:
            return
        if not plan:
            missing = [each for each in missing if self._lines.is_of_one_plan(now, *each)]
        missing = [each for each in missing if not self._outcomes.is_removed(now, each[0])]
        condemned = [self._cuts[each] for each in self._outcomes.condemned if each in self._cuts]
        missing = [each for each in missing if not any(is_covered(cut, now, *each) for cut in condemned)]
        self._report_all(t_ns, check_deleted(missing, self._cuts.get(epoch), epoch))

    def rollback_of(self, plan: int, line_epoch: int) -> list[tuple[int, int]]:
        """Return, for each affected agent, how many turns and checkpoints it loses if the plan after `plan` starts from this epoch."""
        source = self.ground_truth.branches.get(plan)
        cut = self._cuts.get(line_epoch)
        losses = []
        for agent, history in source.histories.items() if source is not None else ():
            kept = cut.places[agent].turns if cut is not None and agent in cut.places else 0
            if history.turns > kept:
                losses.append((history.turns - kept, sum(image.turns > kept for image in history.captured)))
        return losses

    def holds_input(self, epoch: int, agent: str, payload: bytes) -> bool:
        """Return whether the agent has consumed this input inside an epoch's cut. If the cut does not contain the agent, return True."""
        return self._holds(epoch, agent, payload, lambda history: history.inputs)

    def holds_answer(self, epoch: int, agent: str, payload: bytes) -> bool:
        """Return whether an epoch's cut contains the turn that answered the input or answered the dead letter that the input had become. If
        the cut does not contain the agent, return True."""
        return self._holds(epoch, agent, payload, lambda history: {**history.inputs, **history.answered})

    def has_committed_answer(
        self, agent: str, payload: bytes, read_commits: Callable[[int, int], Mapping[str, AgentCheckpoint]]
    ) -> bool:
        """Return whether the agent's newest commit contains the turn that answered the input. The agent's host may not know of the newest
        plans yet, under which the agent goes on."""
        plans = sorted(self.ground_truth.branches)
        commit = read_commits(self._local.era, max(plans, default=0) + 1).get(agent)
        captured = self.ground_truth.find(commit) if commit is not None else None
        known = [x for x in plans if x in (1, self._local.era) or agent in self.ground_truth.branch_of(x).settled]
        for plan in dict.fromkeys([*known[-1:], *plans[-1:]]):
            history = self.ground_truth.branch_of(plan).histories.get(agent)
            turn = {**history.inputs, **history.answered}.get(payload) if history is not None else None
            if captured is not None and turn is not None and turn <= captured.turns:
                return True
        return False

    def _holds(
        self, epoch: int, agent: str, payload: bytes, turns: Callable[[AgentHistory], Mapping[bytes, int]]
    ) -> bool:
        cut = self._cuts.get(epoch)
        if not epoch:
            return False
        if cut is None or agent not in cut.places or cut.places[agent].is_gone:
            return True
        history = self.ground_truth.branch_of(cut.plan).histories.get(agent)
        turn = turns(history).get(payload) if history is not None else None
        return turn is not None and turn <= cut.places[agent].turns

    def checkpoint_numbers(self, epoch: int) -> dict[str, int] | None:
        """Return the number of each agent's checkpoint in an epoch's cut, or None if the cut is unknown. Epoch 0 contains no checkpoint."""
        cut = self._cuts.get(epoch)
        if cut is None:
            return None if epoch else {}
        captured = {agent: place.captured for agent, place in cut.places.items()}
        return {agent: image.number for agent, image in captured.items() if image is not None}

    def beyond_line(self) -> list[str]:
        """Return the ids of the agents that have finished turns after the cut of the newest complete epoch."""
        branch = self.ground_truth.branches.get(self.ground_truth.newest_plan)
        cut = self._cuts.get(self._outcomes.newest_complete)
        places = cut.places if cut is not None else {}
        histories = branch.histories.values() if branch is not None else ()
        return [history.agent for history in histories if history.turns > places.get(history.agent, NOWHERE).turns]

    def required_stop_reason(self) -> str:
        """Return the reason why the fleet must end because of `stop_when`, or "" if it need not end."""
        return self._stop.required_reason(self._outcomes.newest_complete)

    def turns_of(self, agent: str) -> int:
        """Return how many turns the agent has finished in the history of the newest plan."""
        branch = self.ground_truth.branches.get(self.ground_truth.newest_plan)
        history = branch.histories.get(agent) if branch is not None else None
        return history.turns if history is not None else 0

    # ---- the end --------------------------------------------------------------------------------------------------

    def on_core_failed(self, t_ns: int, node: str, error: BaseException, place: str) -> None:
        """Report that one of the product's cores has raised an exception or violated one of its invariants."""
        self.report("core", "core", t_ns, f"{node}: {type(error).__name__}: {error} ({place})")

    def at_end(
        self,
        t_ns: int,
        states: Mapping[str, bytes],
        *,
        heard: Sequence[str] = (),
        is_quiet: bool,
        is_released: bool = True,
    ) -> None:
        """Run the final checks.

        `states` contains the state of each agent that is not in a turn. `is_quiet` means that no turn is running. In this case, the inputs
        of the agents in `heard` are checked, all of which must have received their messages. `is_released` means that the outputs of the
        newest complete epoch have been released.
        """
        self.probes.sometimes(is_quiet, "fleet quiet at the end")
        for name in cut_oracles.situations_at_end(self.ground_truth, self._fleet.agents):
            self.probes.hit(name)
        branch = self.ground_truth.branches.get(self._outcomes.plan or self.ground_truth.newest_plan)
        if branch is None or self.violations:
            return
        if is_quiet:
            self.ground_truth.inputs.check_end(t_ns, branch.histories, heard, branch.plan)
            self.ground_truth.dead_letters.check_end(
                t_ns, branch.histories, heard, self.ground_truth.inputs.drops, branch.plan
            )
            newest = self._outcomes.newest_complete
            if is_released:
                plan = self.ground_truth.branch_of(self._plan_of(newest))
                self.ground_truth.outputs.check_end(t_ns, newest, self._cuts.get(newest), plan)
        report = check_branch(branch, self._terms.protocol)
        self._report_all(t_ns, report.findings)
        self.probes.sometimes(report.is_tracking_judged, "tracking judged")
        if report.useless:
            self.probes.hit("useless checkpoint", report.useless)
        if not self._terms.with_replay:
            return
        for agent, history in branch.histories.items():
            different = self.replays.check(history, states.get(agent))
            self.probes.hit("replay not possible" if different == NOT_POSSIBLE else "replayed")
            if different and different != NOT_POSSIBLE:
                self.report("replay", "G3", t_ns, different)

    @property
    def _is_within(self) -> bool:
        return self._terms.budget == "within"

    @property
    def _is_autonomous(self) -> bool:
        return is_autonomous(self._terms.protocol)

    # ---- reporting ------------------------------------------------------------------------------------------------

    def report(self, oracle: str, guarantee: str, t_ns: int, text: str) -> None:
        """Record a violation."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(oracle, guarantee, t_ns, text))

    def _report_all(self, t_ns: int, findings: Iterable[Finding]) -> None:
        for oracle, guarantee, text in findings:
            self.report(oracle, guarantee, t_ns, text)


def _digest_of_point(checkpoint: AgentCheckpoint) -> bytes:
    """Return the digest of a commit's checkpoint, without its messages in transit, to which a host adds those of the recovery line, and
    without its basis, which is not in the log."""
    return digest_of(encode_checkpoint(msgspec.structs.replace(checkpoint, in_transit={}, basis="")))
