"""Catalogue of the seeded bugs of sealing host logs."""

from msgspec.structs import replace

from snapline.sim.faults.fault_kinds import CrashFault, DiskFault, PauseFault
from snapline.sim.mutants import inputs
from snapline.sim.mutants.registry import Mutant, template
from snapline.sim.scenario import ClientsPart, FaultPart

FREQUENT_INPUTS = ClientsPart(count=3, inputs=60, pause="10ms")
"""Clients that send inputs throughout the run."""

BUSY = ("random", "bank", "all-to-all", "ring")
SWEPT_OFTEN_MS = 20

FAILING_BATCHES = [
    FaultPart(disk=DiskFault(mode="eio", failpoint="store.log.batch.linked", hit=hit)) for hit in (2, 4, 8)
]
STALLED_BATCHES = [
    FaultPart(pause=PauseFault(failpoint="store.log.batch.synced", hit=hit, lasts="4s")) for hit in (3, 9, 20)
]
ROLLING = [FaultPart(crash=CrashFault(at="600ms", restart_after="200ms", is_rolling=True))]

LOG_MUTANTS: dict[str, Mutant] = {
    "present-log-sealed": Mutant(
        text="who comes to a plan seals the logs of that plan, too",
        patches=inputs.present_sealed,
        scenario=template(patterns=BUSY, faults=ROLLING, clients=FREQUENT_INPUTS),
        oracle="liveness",
        seed=0,
    ),
    "seals-deleted": Mutant(
        text="seals are deleted as garbage, and what was stalled is written after all",
        patches=inputs.seals_deleted,
        scenario=replace(
            template(patterns=BUSY, faults=STALLED_BATCHES, clients=FREQUENT_INPUTS),
            limits={"sweep_ms": SWEPT_OFTEN_MS},
        ),
        oracle="inputs",
        seed=3,
    ),
    "retry-taken-for-another": Mutant(
        text="a batch that is in the log already counts as somebody else's when it is written again",
        patches=inputs.retry_taken_for_another,
        scenario=template(patterns=BUSY, faults=FAILING_BATCHES, clients=FREQUENT_INPUTS),
        oracle="liveness",
        seed=0,
    ),
}
