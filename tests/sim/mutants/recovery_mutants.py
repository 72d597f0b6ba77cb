"""Mutants of recoveries and dead letters.

- The mutants of the coordinator affect recovery lines, plans and epochs.
- The mutants of restores and rollbacks affect the code that discards epochs and drops inputs.
- The mutants of autonomous protocols affect the rules for forced checkpoints and the message logs.
- The mutants of dead letters affect dead letters and operator commands.
"""

from typing import Any

import msgspec
from msgspec.structs import replace
from tests.sim.mutants.registry import Mutant, crash_at, template

from snapline.agent_runtime import durable
from snapline.agent_runtime.host import dead_letters, host_log, turns
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.failures import HostRollbacks
from snapline.agent_runtime.host.host_inputs import Inputs
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.agent_runtime.host.modes.logged import LoggedMode
from snapline.agent_runtime.host.plans import HostPlans
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.coordinator.leader.epochs.open_epochs import Collecting, Deciding, OpenEpoch, StoringManifest
from snapline.coordinator.leader.events import ManifestWritten, PublishEpoch, ScanCheckpoints, StoredCheckpoint
from snapline.coordinator.leader.modes.autonomous_epochs import Freezing
from snapline.coordinator.leader.modes.checkpoint_ledger import Ledger
from snapline.coordinator.leader.modes.coordinated_epochs import Coordinated
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.leader.recovery_plans import Plans
from snapline.coordinator.service import line_store
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state import fleet_state
from snapline.coordinator.state.fleet_records import COMPLETE, VOID
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import DROP, DeadLetterCommand, read_dead_letter_command
from snapline.messages.client_requests import ACCEPTED, InputOutcome
from snapline.protocols.dependency_vector import FdasRule
from snapline.protocols.index_based import BcsRule, HmnrRule
from snapline.sim.faults.fault_kinds import CoordinatorFault, CrashFault
from snapline.sim.scenario import ClientsPart, FaultPart, FleetPart, PatternPart, RestoresPart, TriggerPart
from snapline.sim.world.product_patches import Patch
from snapline.storage.packs.checkpoint import KnownKey
from snapline.storage.store.store import Store


def line_too_new() -> list[Patch]:
    def line(self: Ledger) -> dict[str, int]:
        shift = self._shift
        newest_line = self.history.total_line()
        return {agent: max(self.history.checkpoints_of(agent)) - shift.get(agent, 0) for agent in newest_line}

    return [(Ledger, "line", property(line))]


def line_too_old() -> list[Patch]:
    """Return an outdated line that is not recomputed."""
    original = Ledger.line.fget  # type: ignore[attr-defined]  # `Ledger.line` is a property
    assert original is not None

    def line(self: Ledger) -> dict[str, int]:
        newest_line: dict[str, int] = original(self)
        lines = vars(self).setdefault("_lines", [{}])
        if newest_line != lines[-1]:
            lines.append(dict(newest_line))
        older: dict[str, int] = lines[-2]
        is_possible = all(older.get(agent, -1) >= self.base.get(agent, 0) for agent in newest_line)
        return older if is_possible else newest_line

    return [(Ledger, "line", property(line))]


def older_plan_accepted() -> list[Patch]:
    """Accept checkpoints of older plans, and keep such checkpoints when a new plan should delete them."""
    original = line_store.scan_packs

    def scan_packs(store: Store, command: ScanCheckpoints) -> list[StoredCheckpoint]:
        plans = [msgspec.structs.replace(command, plan=plan) for plan in range(1, command.plan + 1)]
        return [checkpoint for each in plans for checkpoint in original(store, each)]

    return [(line_store, "scan_packs", scan_packs), (StoreKeeper, "sweep_checkpoints", lambda *_: None)]


def plan_from_older_epoch() -> list[Patch]:
    def newest_complete(self: FleetView) -> int:
        complete = self.complete_epochs()
        return complete[-2] if len(complete) > 1 else (complete or [0])[-1]

    return [(FleetView, "newest_complete", newest_complete)]


def part_missing() -> list[Patch]:
    original = Coordinated._check_reports

    def judge(self: Coordinated, entry: OpenEpoch, stage: Collecting) -> None:
        original(self, entry, stage)
        if isinstance(entry.stage, StoringManifest) and len(entry.stage.manifest.agents) > 1:
            manifest = entry.stage.manifest
            self._shared.out[-1] = cut = msgspec.structs.replace(manifest, agents=manifest.agents[:-1])
            entry.stage = StoringManifest(cut)

    return [(Coordinated, "_check_reports", judge)]


def ref_before_decision() -> list[Patch]:
    original = Coordinated.on_manifest_written

    def on_manifest_written(self: Coordinated, event: ManifestWritten) -> None:
        if not event.error:
            self._shared.out.append(PublishEpoch(event.epoch, event.root))
        original(self, event)

    return [(Coordinated, "on_manifest_written", on_manifest_written)]


def freeze_not_awaited() -> list[Patch]:
    original = Freezing.ask

    def ask(self: Freezing) -> bool:
        original(self)
        return True

    return [(Freezing, "ask", ask)]


def members_never_unborn() -> list[Patch]:
    """Record as unborn only agents that were created after the epoch had begun."""
    original = Coordinated.on_manifest_written

    def on_manifest_written(self: Coordinated, event: ManifestWritten) -> None:
        original(self, event)
        entry, agents = self._open_epochs.get(event.epoch), self._shared.state.image.agents
        if entry is not None and isinstance(entry.stage, Deciding):
            completion = entry.stage.completion
            later = [x for x in completion.unborn_agents if not agents[x].is_member_of(event.epoch)]
            entry.stage = Deciding(msgspec.structs.replace(completion, unborn_agents=tuple(later)))

    return [(Coordinated, "on_manifest_written", on_manifest_written)]


CRASHES = [FaultPart(crash=CrashFault(at=f"{at}ms", restart_after="200ms")) for at in range(600, 4600, 500)]

OFTEN = RestoresPart(times=4, drops_one_in=1)

CHATTY = ClientsPart(count=4, inputs=60, pause="20ms")


def _fleet(protocol: str) -> FleetPart:
    return FleetPart(
        agents=4,
        protocol=protocol,
        pattern=PatternPart(name="random", messages=400),
        trigger=TriggerPart(every="200ms"),
    )


def discard_marks_missing() -> list[Patch]:
    """Do not mark epochs as discarded, so that the next plan starts from them again."""
    return [(fleet_state, "make_void", lambda image, epoch: [])]


def drop_lost() -> list[Patch]:
    """Drop inputs only in the plan of the restore, not in the next plan that starts from the same epoch."""
    original = Plans.directive

    def directive(self: Plans) -> msg.Plan | None:
        directive_found, plan = original(self), self._shared.state.plan
        is_first = plan is not None and plan.restore is not None and plan.restore.drop_inputs
        return directive_found if directive_found is None or is_first else replace(directive_found, drop_before=0)

    return [(Plans, "directive", directive)]


def dropped_reported_as_accepted() -> list[Patch]:
    """Report a dropped input that is sent again as accepted."""
    return [(KnownKey, "is_dropped", property(lambda self: False))]


def discarded_epoch_as_base() -> list[Patch]:
    """Assume that checkpoints build on the newest epoch, even if it is discarded."""

    def base(self: RecoveryLines) -> int | None:
        epochs = self._shared.state.image.epochs
        return next((x for x in reversed(epochs) if epochs[x].status in (COMPLETE, VOID)), 0)

    return [(RecoveryLines, "_base", base)]


def continues_after_rollback_request() -> list[Patch]:
    """Let an agent that has requested a rollback continue to run turns."""
    original = HostRollbacks.want

    def want(self: HostRollbacks, agent: LocalAgent, request: RollbackRequest, *turn: Any) -> None:
        original(self, agent, request, *turn)
        agent.retry_ns = None

    return [(HostRollbacks, "want", want)]


def every_rollback_granted() -> list[Patch]:
    """Grant every rollback request, even if the same rollback was requested before for the same reason."""
    return [(FleetView, "refusal_of_rollback", lambda self, agent, reason, at_most: "")]


def rollback_request_not_repeated() -> list[Patch]:
    """Do not repeat the agents' rollback requests to a new leader."""

    def welcomed(self: HostRollbacks) -> None:
        """Do nothing, instead of repeating rollback requests."""

    return [(HostRollbacks, "welcomed", welcomed)]


def rollbacks_adopted_from_log() -> list[Patch]:
    """Log what turns have learned of rollbacks, and let turns that run again after a rollback take it from there."""
    return [(host_log, "LOGGED_KINDS", (*durable.LOGGED_KINDS, durable.ROLLED_BACK))]


def rollbacks_in_seeds() -> list[Patch]:
    """Derive the seeds of turns from the number of rollbacks too, so that no turn finds its logged steps after a rollback."""
    original_plan, original_seed, known = HostPlans.on_plan_received, durable.turn_seed, [0]

    def on_plan_received(self: HostPlans, event: ev.PlanReceived) -> None:
        known[0] = event.rollbacks[-1].number if event.rollbacks else 0
        original_plan(self, event)

    def seed(cluster: str, *rest: Any, **named: Any) -> bytes:
        return original_seed(f"{cluster}{known[0] or ''}", *rest, **named)

    return [(HostPlans, "on_plan_received", on_plan_received), (turns, "turn_seed", seed)]


LEADERS_DIE = [
    FaultPart(coordinator=CoordinatorFault(kind="kill-leader", at=f"{at}ms", lasts="400ms")) for at in (400, 900, 1500)
]

ASKING = FleetPart(
    agents=4,
    hosts=2,
    coordinators=3,
    pattern=PatternPart(name="returning", messages=400, rate_per_s=150.0),
    trigger=TriggerPart(every="50ms"),
)

ROLLBACK_MUTANTS = {
    "goes-on-after-asking": Mutant(
        text="an agent that has asked that the fleet goes back takes its next turn",
        patches=continues_after_rollback_request,
        scenario=template(fleet=ASKING),
        oracle="rollback",
        seed=0,
    ),
    "goes-back-each-time": Mutant(
        text="the fleet goes back for the same reason, again and again",
        patches=every_rollback_granted,
        scenario=template(fleet=ASKING),
        oracle="rollback",
        seed=8,
    ),
    "rollbacks-from-the-log": Mutant(
        text="after a rollback, a turn that asks again learns what its abandoned run had learned",
        patches=rollbacks_adopted_from_log,
        scenario=template(fleet=ASKING),
        oracle="rollback",
        seed=1,
    ),
    "rollbacks-in-seeds": Mutant(
        text="after a rollback, turns run their logged steps again",
        patches=rollbacks_in_seeds,
        scenario=template(fleet=ASKING),
        oracle="steps",
        seed=2,
    ),
    "rollback-said-once": Mutant(
        text="a new leader does not hear which agents have asked that the fleet goes back",
        patches=rollback_request_not_repeated,
        scenario=template(fleet=ASKING, faults=LEADERS_DIE),
        oracle="liveness",
        seed=1,
    ),
    "void-marks-missing": Mutant(
        text="epochs above the one that the fleet was taken back to count as before",
        patches=discard_marks_missing,
        scenario=template(fleet=_fleet("chandy-lamport"), faults=CRASHES, restores=OFTEN),
        oracle="outcome",
        seed=1,
    ),
    "drop-lost-after-a-failure": Mutant(
        text="inputs that were dropped come again when the next plan starts from the same epoch",
        patches=drop_lost,
        scenario=template(fleet=_fleet("chandy-lamport"), faults=CRASHES, restores=OFTEN, clients=CHATTY),
        oracle="inputs",
        seed=3,
    ),
    "dropped-inputs-told-as-taken": Mutant(
        text="who says a dropped input again hears that it has been taken",
        patches=dropped_reported_as_accepted,
        scenario=template(fleet=_fleet("chandy-lamport"), faults=CRASHES, restores=OFTEN, clients=CHATTY),
        oracle="inputs",
        seed=4,
    ),
    "void-epoch-as-base": Mutant(
        text="lines are built on an epoch that the fleet was taken back past",
        patches=discarded_epoch_as_base,
        scenario=template(fleet=_fleet("uncoordinated"), faults=CRASHES, restores=OFTEN),
        oracle="line",
        seed=7,
    ),
}


def _never(*_: object) -> bool:
    return False


def bcs_never_forces() -> list[Patch]:
    return [(BcsRule, "forces", _never)]


def hmnr_without_clocks() -> list[Patch]:
    return [(HmnrRule, "_lets_a_clock_fall", _never)]


def hmnr_without_cycles() -> list[Patch]:
    return [(HmnrRule, "_closes_a_cycle", _never)]


def fdas_never_forces() -> list[Patch]:
    return [(FdasRule, "forces", _never)]


def log_starts_late() -> list[Patch]:
    original = LoggedAgent.keep

    def keep(self: LoggedAgent, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        if self.log:
            original(self, receiver, number, payload, piggyback)
        else:
            self.log[receiver] = []
            self.has_moved = True

    return [(LoggedAgent, "keep", keep), (LoggedMode, "validate", lambda *_: None)]


def handled_dead_letter_stays() -> list[Patch]:
    """Keep a dead letter whose retry has succeeded."""

    def handled(agent: LocalAgent, payload: bytes, key: str) -> None:
        """Do nothing, so that the dead letter stays."""

    return [(dead_letters, "handled", handled)]


def numbers_not_saved() -> list[Patch]:
    """Save checkpoints without the numbers of dead letters."""

    def saved(self: LocalAgent) -> None:
        return None

    return [(LocalAgent, "_saved_numbers", saved)]


def dropped_counts_as_handled() -> list[Patch]:
    """Count a dropped dead letter as handled."""
    original = dead_letters.settled

    def settled(agent: LocalAgent, payload: bytes) -> bytes | None:
        reply = original(agent, payload)
        agent.dead_letter_count -= reply == b""
        return reply

    return [(dead_letters, "settled", settled)]


def known_by_number_alone() -> list[Patch]:
    """Apply a command to whichever dead letter has the command's number at that time."""

    def place_of(agent: LocalAgent, word: DeadLetterCommand) -> int | None:
        return agent.dead_letter_numbers.index(word.number) if word.number in agent.dead_letter_numbers else None

    return [(dead_letters, "_place_of", place_of)]


def command_not_logged() -> list[Patch]:
    """Drop a dead letter at once when a command arrives, without logging the command."""
    original = Inputs._take

    def take(self: Inputs, event: ev.InputsOffered, place: int, offered: ev.OfferedInput) -> InputOutcome | None:
        agent = self._shared.agents.get(offered.agent)
        if agent is None or not offered.is_operator_command or read_dead_letter_command(offered.payload).verb != DROP:
            return original(self, event, place, offered)
        dead_letters.settled(agent, offered.payload)
        return InputOutcome(ACCEPTED)

    return [(Inputs, "_take", take)]


SETTLED = template(
    patterns=("failing", "random", "bank"),
    faults=crash_at("500ms", "900ms", "1.3s"),
    clients=ClientsPart(count=3, inputs=60, pause="10ms", is_settling=True),
)

LETTER_MUTANTS: dict[str, Mutant] = {
    "handled-letter-stays": Mutant(
        text="a dead letter that was retried and handled is still there",
        patches=handled_dead_letter_stays,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "letter-numbers-not-saved": Mutant(
        text="checkpoints do not say which numbers dead letters have",
        patches=numbers_not_saved,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "dropped-letter-counts-as-handled": Mutant(
        text="a dead letter that is dropped counts as work that was done",
        patches=dropped_counts_as_handled,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "letter-known-by-its-number-alone": Mutant(
        text="a word hits whatever dead letter has its number when its turn comes",
        patches=known_by_number_alone,
        scenario=SETTLED,
        oracle="letters",
        seed=10,
    ),
    "word-not-logged": Mutant(
        text="a dead letter is dropped as soon as somebody says so, and no log holds that",
        patches=command_not_logged,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
}
