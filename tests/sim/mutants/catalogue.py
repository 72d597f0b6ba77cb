"""Catalogue of the mutants (bugs deliberately put into the product's code).

Each mutant has a scenario template in which its bug is likely to occur, and a seed with which an oracle finds the bug. A test checks that
the oracle finds each bug with its seed.
"""

import contextlib
from collections.abc import Iterator

from msgspec.structs import replace
from tests.sim.mutants import client_mutants, host_mutants, recovery_mutants
from tests.sim.mutants.client_mutants import CLIENT_MUTANTS, LOG_MUTANTS
from tests.sim.mutants.commit_mutants import COMMIT_MUTANTS
from tests.sim.mutants.recovery_mutants import LETTER_MUTANTS, ROLLBACK_MUTANTS
from tests.sim.mutants.registry import (
    BUSY,
    FREQUENT_INPUTS,
    SWEPT_OFTEN_MS,
    Mutant,
    check_replaceable,
    crash_at,
    template,
    unchecked,
)
from tests.sim.mutants.turn_mutants import EFFECT_MUTANTS, TURN_MUTANTS

from snapline.sim.faults.fault_kinds import (
    CaptureFault,
    CrashFault,
    DelayFault,
    DiskFault,
    PauseFault,
    ResetFault,
    SlowFault,
)
from snapline.sim.scenario import ClientsPart, FaultPart, FleetPart, OutputsPart, PatternPart, TriggerPart
from snapline.sim.world.product_patches import patched

CHANDY = "chandy-lamport"
AUTONOMOUS = ("uncoordinated", "bcs", "hmnr")


def _power_cut(*times: str) -> list[FaultPart]:
    return [FaultPart(disk=DiskFault(mode="power-cut", at=at, restart_after="200ms")) for at in times]


RESETS = FaultPart(reset=ResetFault(at="350ms", times=20, every="30ms"))
FLIPS = FaultPart(disk=DiskFault(mode="bit-flip", at="700ms", lasts="5ms"))
UNSAVABLE = [FaultPart(capture=CaptureFault(hit=hit, times=2)) for hit in (20, 45)]
ALL_HOSTS_CRASH = FaultPart(crash=CrashFault(at="706ms", restart_after="200ms", is_all=True))
SLOW_HOSTS = FaultPart(slow=SlowFault(host="*", at="0s", lasts="4s", percent=1))
SLOW_NETWORK = FaultPart(delay=DelayFault(at="0s", lasts="3s", least="20ms", jitter="60ms"))
SLOW_COORDINATOR_TO_H2 = FaultPart(
    delay=DelayFault(between=["c1", "h2"], at="0s", lasts="4s", least="100ms", jitter="0s")
)
SLOW_ANSWERS = FaultPart(delay=DelayFault(between=["c1", "h1"], at="0s", lasts="4s", least="60ms", jitter="0s"))
MANY_EPOCHS = FleetPart(
    agents=3,
    pattern=PatternPart(name="random", messages=400, payload_bytes=256),
    trigger=TriggerPart(every="30ms"),
)
TOKENS = FleetPart(agents=4, pattern=PatternPart(name="bank"), trigger=TriggerPart(every="50ms"))

CRASHES = ("500ms", "900ms", "1.3s")
LONG_PAUSES = [FaultPart(pause=PauseFault(at=at, lasts="4s")) for at in CRASHES]

INPUTS_AND_CRASHES = template(patterns=BUSY, faults=crash_at(*CRASHES), clients=FREQUENT_INPUTS)

INPUTS_WITHOUT_EPOCH_REQUESTS = ClientsPart(count=3, inputs=60, pause="10ms", asks=False)
"""Clients that send inputs but trigger no epoch requests."""

FREQUENT_OUTPUTS = OutputsPart(one_in=2)
OUTPUTS_AND_CRASHES = template(patterns=BUSY, faults=crash_at(*CRASHES), outputs=FREQUENT_OUTPUTS)
DYING_LEADERS = [
    FaultPart(crash=CrashFault(failpoint=point, hit=hit, restart_after="200ms"))
    for point, hit in (("coordinator.epoch.published", 3), ("store.outputs.directory", 2))
]

DAMAGED_EPOCHS = [
    fault
    for at_ms in (900, 1600, 2300)
    for fault in (
        FaultPart(disk=DiskFault(mode="bit-flip", at=f"{at_ms}ms", lasts="5ms")),
        FaultPart(crash=CrashFault(at=f"{at_ms + 6}ms", restart_after="200ms", is_all=True)),
    )
]
"""Faults that damage the newest epoch and then force a recovery, which needs that epoch."""

MUTANTS: dict[str, Mutant] = {
    "deliver-before-record": Mutant(
        text="an agent that owes a record handles one more message first",
        patches=host_mutants.deliver_before_record,
        scenario=template(CHANDY, patterns=BUSY, faults=[SLOW_HOSTS]),
        oracle="orphan",
        seed=5,
        is_unchecked=True,
    ),
    "marker-after-next-sends": Mutant(
        text="markers leave 30 ms after the records, behind what was sent meanwhile, and stamps are not heeded",
        patches=host_mutants.marker_late,
        scenario=template(fleet=TOKENS, faults=[SLOW_COORDINATOR_TO_H2]),
        oracle="orphan",
        seed=0,
        is_unchecked=True,
    ),
    "channel-state-dropped": Mutant(
        text="channel states are stored empty",
        patches=host_mutants.channel_state_dropped,
        scenario=template(CHANDY),
        oracle="channel-state",
        seed=0,
        is_unchecked=True,
    ),
    "channel-state-past-marker": Mutant(
        text="messages that came behind the marker are kept in the channel state",
        patches=host_mutants.channel_state_past_marker,
        scenario=template(CHANDY),
        oracle="channel-state",
        seed=8,
        is_unchecked=True,
    ),
    "channel-state-doubled": Mutant(
        text="the last message of a channel state is stored twice",
        patches=host_mutants.channel_state_doubled,
        scenario=template(CHANDY),
        oracle="channel-state",
        seed=0,
        is_unchecked=True,
    ),
    "markers-not-awaited": Mutant(
        text="a host's part is closed without the markers of the others",
        patches=host_mutants.markers_not_awaited,
        scenario=template(CHANDY),
        oracle="channel-state",
        seed=0,
        is_unchecked=True,
    ),
    "state-one-turn-old": Mutant(
        text="the image is that of the capture before",
        patches=host_mutants.state_one_capture_old,
        scenario=template(CHANDY),
        oracle="workload",
        seed=0,
    ),
    "outbox-lost": Mutant(
        text="a restore forgets the outbox",
        patches=host_mutants.outbox_lost,
        scenario=template(CHANDY, patterns=("spawning",), faults=crash_at(*CRASHES)),
        oracle="channel-state",
        seed=0,
    ),
    "in-transit-lost": Mutant(
        text="a restore counts messages in transit as received",
        patches=host_mutants.in_transit_lost,
        scenario=template(CHANDY, patterns=BUSY, faults=crash_at(*CRASHES)),
        oracle="exactly-once",
        seed=3,
    ),
    "timers-lost": Mutant(
        text="a restore forgets timers",
        patches=host_mutants.timers_lost,
        scenario=template(CHANDY, patterns=("bursts", "skewed", "request-reply"), faults=crash_at(*CRASHES)),
        oracle="workload",
        seed=0,
    ),
    "turns-survive": Mutant(
        text="a plan leaves the agents' old objects in place",
        patches=host_mutants.objects_survive,
        scenario=template(CHANDY, patterns=BUSY, faults=crash_at(*CRASHES)),
        oracle="workload",
        seed=1,
    ),
    "no-dedupe-after-reset": Mutant(
        text="a link sends again what had arrived, and takes it",
        patches=host_mutants.no_dedupe,
        scenario=template(CHANDY, patterns=BUSY, faults=[RESETS]),
        oracle="exactly-once",
        seed=1,
    ),
    "no-resend-after-reset": Mutant(
        text="a link does not send again what was under way when its stream broke, and gaps are taken",
        patches=host_mutants.no_resend,
        scenario=template(CHANDY, patterns=BUSY, faults=[RESETS]),
        oracle="exactly-once",
        seed=1,
    ),
    "bcs-never-forces": Mutant(
        text="bcs forces no checkpoint",
        patches=recovery_mutants.bcs_never_forces,
        scenario=template("bcs"),
        oracle="useless",
        seed=3,
    ),
    "hmnr-without-clocks": Mutant(
        text="hmnr without its first condition",
        patches=recovery_mutants.hmnr_without_clocks,
        scenario=template("hmnr"),
        oracle="useless",
        seed=38,
    ),
    "hmnr-without-cycles": Mutant(
        text="hmnr without its second condition",
        patches=recovery_mutants.hmnr_without_cycles,
        scenario=template("hmnr"),
        oracle="useless",
        seed=6,
    ),
    "fdas-never-forces": Mutant(
        text="fdas forces no checkpoint",
        patches=recovery_mutants.fdas_never_forces,
        scenario=template("fdas"),
        oracle="tracking",
        seed=16,
    ),
    "failed-agent-goes-on": Mutant(
        text="the turn behind a forced checkpoint that could not be taken counts, and its sends leave",
        patches=host_mutants.failed_agent_goes_on,
        scenario=template("cbr", patterns=BUSY, faults=UNSAVABLE),
        oracle="failed",
        seed=15,
    ),
    "log-starts-late": Mutant(
        text="a sender log lacks its first message, and nobody counts it",
        patches=recovery_mutants.log_starts_late,
        scenario=template(*AUTONOMOUS),
        oracle="channel-state",
        seed=28,
        is_unchecked=True,
    ),
    "line-too-new": Mutant(
        text="the line is the newest checkpoint of everybody",
        patches=recovery_mutants.line_too_new,
        scenario=template(*AUTONOMOUS),
        oracle="orphan",
        seed=19,
        is_unchecked=True,
    ),
    "line-too-old": Mutant(
        text="the line is the one before the last checkpoints",
        patches=recovery_mutants.line_too_old,
        scenario=template(*AUTONOMOUS, patterns=BUSY),
        oracle="line",
        seed=6,
    ),
    "older-plan-accepted": Mutant(
        text="checkpoints of older plans are taken for those of the present one",
        patches=recovery_mutants.older_plan_accepted,
        scenario=template(*AUTONOMOUS, patterns=BUSY, faults=[*crash_at(*CRASHES), SLOW_NETWORK]),
        oracle="incarnation",
        seed=2,
        is_unchecked=True,
    ),
    "plan-from-older-epoch": Mutant(
        text="a plan starts from the newest epoch but one",
        patches=recovery_mutants.plan_from_older_epoch,
        scenario=template(CHANDY, faults=crash_at(*CRASHES)),
        oracle="outcome",
        seed=0,
    ),
    "freeze-not-awaited": Mutant(
        text="the line of a recovery is taken before the hosts that live have frozen",
        patches=recovery_mutants.freeze_not_awaited,
        scenario=template(*AUTONOMOUS, patterns=BUSY, faults=crash_at(*CRASHES)),
        oracle="line",
        seed=11,
    ),
    "members-never-unborn": Mutant(
        text="a recovery forgets members of its line that are unborn there, and their creation is refused",
        patches=recovery_mutants.members_never_unborn,
        scenario=template(CHANDY, patterns=("spawning", "orders"), faults=[*crash_at(*CRASHES), SLOW_ANSWERS]),
        oracle="refused",
        seed=76,
    ),
    "stops-too-early": Mutant(
        text="a fleet ends at its first complete cut, whatever its stop_when says",
        patches=host_mutants.stops_too_early,
        scenario=template(patterns=("orders",)),
        oracle="stop",
        seed=1,
    ),
    "part-of-a-host-missing": Mutant(
        text="an epoch is complete without one host's part",
        patches=recovery_mutants.part_missing,
        scenario=template(CHANDY),
        oracle="channel-state",
        seed=0,
        is_unchecked=True,
    ),
    "complete-before-durable": Mutant(
        text="nothing is synced to the disk",
        patches=host_mutants.nothing_synced,
        scenario=template(CHANDY, faults=_power_cut(*CRASHES)),
        oracle="durable",
        seed=1,
    ),
    "ref-before-decision": Mutant(
        text="an epoch's ref is written before it is decided",
        patches=recovery_mutants.ref_before_decision,
        scenario=template(CHANDY),
        oracle="outcome",
        seed=3,
    ),
    "newest-epoch-deleted": Mutant(
        text="the sweep deletes the newest epoch too",
        patches=host_mutants.newest_epoch_deleted,
        scenario=template(CHANDY),
        oracle="garbage",
        seed=1,
    ),
    "needed-pack-deleted": Mutant(
        text="checkpoints that a line needs are deleted",
        patches=host_mutants.needed_pack_deleted,
        scenario=template(*AUTONOMOUS),
        oracle="garbage",
        seed=19,
    ),
    "damage-unnoticed": Mutant(
        text="digests are not compared",
        patches=host_mutants.damage_unnoticed,
        scenario=template(fleet=MANY_EPOCHS, faults=[FLIPS, ALL_HOSTS_CRASH]),
        oracle="restored",
        seed=2,
    ),
    "input-acknowledged-early": Mutant(
        text="an input is acknowledged when its batch leaves, not when it is durable",
        patches=client_mutants.acknowledged_early,
        scenario=INPUTS_AND_CRASHES,
        oracle="receipts",
        seed=9,
    ),
    "log-not-sealed": Mutant(
        text="the logs of earlier plans are read and not sealed",
        patches=client_mutants.not_sealed,
        scenario=template(patterns=BUSY, faults=LONG_PAUSES, clients=FREQUENT_INPUTS),
        oracle="inputs",
        seed=9,
    ),
    "log-unknown-to-plans": Mutant(
        text="a host writes a log that the coordinator does not know of",
        patches=client_mutants.log_unknown_to_plans,
        scenario=template(patterns=BUSY, faults=LONG_PAUSES, clients=FREQUENT_INPUTS),
        oracle="inputs",
        seed=9,
    ),
    "log-not-read": Mutant(
        text="a plan gives agents nothing of what was taken before",
        patches=client_mutants.log_not_read,
        scenario=INPUTS_AND_CRASHES,
        oracle="inputs",
        seed=4,
    ),
    "input-number-not-saved": Mutant(
        text="checkpoints do not say which inputs were consumed",
        patches=client_mutants.input_number_not_saved,
        scenario=INPUTS_AND_CRASHES,
        oracle="inputs",
        seed=0,
    ),
    "input-keys-not-saved": Mutant(
        text="checkpoints do not hold the keys of consumed inputs",
        patches=client_mutants.keys_not_saved,
        scenario=INPUTS_AND_CRASHES,
        oracle="inputs",
        seed=2,
    ),
    "newest-key-forgotten": Mutant(
        text="the newest keys are forgotten instead of the oldest",
        patches=client_mutants.newest_key_forgotten,
        scenario=INPUTS_AND_CRASHES,
        oracle="inputs",
        seed=0,
    ),
    "all-batches-deleted": Mutant(
        text="every batch is deleted but the last of each log",
        patches=client_mutants.all_batches_deleted,
        scenario=template(fleet=TOKENS, faults=crash_at(*CRASHES), clients=INPUTS_WITHOUT_EPOCH_REQUESTS),
        oracle="garbage",
        seed=104,
    ),
    "batches-deleted-at-the-newest-epoch": Mutant(
        text="batches are deleted that the newest epoch covers, and older ones do not",
        patches=client_mutants.deleted_at_the_newest_epoch,
        scenario=replace(
            template(fleet=TOKENS, faults=DAMAGED_EPOCHS, clients=INPUTS_WITHOUT_EPOCH_REQUESTS),
            limits={"sweep_ms": SWEPT_OFTEN_MS},
        ),
        oracle="inputs",
        seed=9,
    ),
    "answered-early": Mutant(
        text="answers are told as final at the end of the turn",
        patches=client_mutants.answered_early,
        scenario=INPUTS_AND_CRASHES,
        oracle="receipts",
        seed=1,
    ),
    "released-to-the-present": Mutant(
        text="a complete epoch releases all answers until now",
        patches=client_mutants.released_to_the_present,
        scenario=INPUTS_AND_CRASHES,
        oracle="receipts",
        seed=10,
    ),
    "replies-not-saved": Mutant(
        text="checkpoints do not hold what was answered",
        patches=client_mutants.replies_not_saved,
        scenario=INPUTS_AND_CRASHES,
        oracle="answers",
        seed=4,
    ),
    **CLIENT_MUTANTS,
    **LOG_MUTANTS,
    **TURN_MUTANTS,
    **EFFECT_MUTANTS,
    "outputs-at-the-end-of-the-turn": Mutant(
        text="what agents have said until now is released with an epoch that does not hold it",
        patches=client_mutants.released_at_the_end_of_the_turn,
        scenario=OUTPUTS_AND_CRASHES,
        oracle="outputs",
        seed=0,
    ),
    "outputs-at-begun": Mutant(
        text="an epoch's outputs are released before the log says that it is complete",
        patches=client_mutants.released_at_begun,
        scenario=template(CHANDY, patterns=BUSY, faults=crash_at(*CRASHES), outputs=FREQUENT_OUTPUTS),
        oracle="outputs",
        seed=0,
    ),
    "outputs-out-of-order": Mutant(
        text="the newest epoch's outputs are released first",
        patches=client_mutants.released_out_of_order,
        scenario=template(CHANDY, fleet=MANY_EPOCHS, faults=[SLOW_HOSTS], outputs=FREQUENT_OUTPUTS),
        oracle="outputs",
        seed=13,
    ),
    "outputs-lost-by-an-aborted-epoch": Mutant(
        text="hosts drop pending outputs when an epoch is aborted",
        patches=client_mutants.lost_by_an_aborted_epoch,
        scenario=OUTPUTS_AND_CRASHES,
        oracle="outputs",
        seed=37,
    ),
    "outputs-dropped-up-to-the-present": Mutant(
        text="hosts drop all pending outputs when an epoch is released",
        patches=client_mutants.dropped_up_to_the_present,
        scenario=OUTPUTS_AND_CRASHES,
        oracle="outputs",
        seed=1,
    ),
    "outputs-lost-with-their-agent": Mutant(
        text="an agent that stops leaves before its outputs are released",
        patches=client_mutants.lost_with_its_agent,
        scenario=template(patterns=("spawning",), outputs=FREQUENT_OUTPUTS),
        oracle="outputs",
        seed=1,
    ),
    "output-number-not-saved": Mutant(
        text="an agent counts its outputs from the beginning when it is restored",
        patches=client_mutants.output_number_not_saved,
        scenario=OUTPUTS_AND_CRASHES,
        oracle="outputs",
        seed=10,
    ),
    "outputs-not-taken-back": Mutant(
        text="a release goes on from the newest epoch, also where the fleet went back behind it",
        patches=client_mutants.not_taken_back,
        scenario=template(patterns=BUSY, faults=DAMAGED_EPOCHS, outputs=FREQUENT_OUTPUTS),
        oracle="outputs",
        seed=2,
    ),
    "outputs-forgotten-by-a-new-leader": Mutant(
        text="a new leader takes all complete epochs for released",
        patches=client_mutants.forgotten_by_a_new_leader,
        scenario=template(patterns=BUSY, faults=DYING_LEADERS, outputs=FREQUENT_OUTPUTS),
        oracle="outputs",
        seed=0,
    ),
    **LETTER_MUTANTS,
    **ROLLBACK_MUTANTS,
    **COMMIT_MUTANTS,
}


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Apply a mutant within a `with` block. Raise UsageError if the cores are compiled, because the functions of compiled code cannot be
    replaced."""
    check_replaceable()
    mutant = MUTANTS[name]
    with patched([*mutant.patches(), *(unchecked() if mutant.is_unchecked else [])]):
        yield
