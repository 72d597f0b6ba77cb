"""Seeded bugs of restores and rollbacks: discarded epochs and dropped inputs."""

from msgspec.structs import replace

from snapline.agent_runtime.host.failures import HostRollbacks
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.coordinator.leader.modes.recovery_line import Lines
from snapline.coordinator.leader.recovery_plans import Plans
from snapline.coordinator.state import fleet_state
from snapline.coordinator.state.fleet_records import COMPLETE, VOID
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages import host_messages as msg
from snapline.sim.faults.fault_kinds import CoordinatorFault, CrashFault
from snapline.sim.mutants.registry import Mutant, template
from snapline.sim.scenario import ClientsPart, FaultPart, FleetPart, PatternPart, RestoresPart, TriggerPart
from snapline.sim.world.product_patches import Patch
from snapline.storage.packs.checkpoint import KnownKey

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
    """Drop inputs only in the restore's own plan, not in the next plan that starts from the same epoch."""
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

    def base(self: Lines) -> int | None:
        epochs = self._shared.state.image.epochs
        return next((x for x in reversed(epochs) if epochs[x].status in (COMPLETE, VOID)), 0)

    return [(Lines, "_base", base)]


def continues_after_rollback_request() -> list[Patch]:
    """Let an agent that has requested a rollback continue to take turns."""
    original = HostRollbacks.want

    def want(self: HostRollbacks, agent: LocalAgent, wish: RollbackRequest) -> None:
        original(self, agent, wish)
        agent.retry_ns = None

    return [(HostRollbacks, "want", want)]


def every_rollback_granted() -> list[Patch]:
    """Grant every rollback, even if it was requested before for the same reason."""
    return [(FleetView, "refusal_of_rollback", lambda self, agent, reason: "")]


def rollback_request_not_repeated() -> list[Patch]:
    """Do not repeat the agents' rollback requests to a new leader."""

    def welcomed(self: HostRollbacks) -> None:
        """Do nothing."""

    return [(HostRollbacks, "welcomed", welcomed)]


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

MUTANTS = {
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
