"""The list of seeded bugs, and how one is put in for the time of a run.

A mutant replaces functions of the product. The product checks itself twice over: the coordinator refuses an epoch whose
channels do not balance, and a line whose messages are not all there. A mutant may switch these checks off as well
(`is_unchecked`), since what is to be shown is that the *world's* oracles find the bug, from books of their own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from snapline.coordinator import epoch_reports, line_store
from snapline.sim.mutants import hosts, recoveries, rules, stores

Patch = tuple[Any, str, Any]
"""Object, attribute, replacement."""


class Mutant(msgspec.Struct, frozen=True):
    """One seeded bug.

    Attributes:
        text: what is wrong.
        patches: makes what replaces what.
        protocols: under which it can show; empty: all coordinated by epochs.
        faults: words of faults that it takes; empty: any.
        patterns: workloads that it takes; empty: any.
    """

    text: str
    patches: Callable[[], list[Patch]]
    protocols: tuple[str, ...] = ("chandy-lamport",)
    faults: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    is_unchecked: bool = False


RESTARTS = ("crash",)
AUTONOMOUS = ("uncoordinated", "bcs", "hmnr")

MUTANTS: dict[str, Mutant] = {
    "deliver-before-record": Mutant(
        "a message stamped with a new epoch is handled before the state is recorded",
        hosts.deliver_before_record,
        is_unchecked=True,
    ),
    "channel-state-dropped": Mutant("channel states are stored empty", hosts.channel_state_dropped, is_unchecked=True),
    "channel-state-doubled": Mutant(
        "the last message of a channel state is stored twice", hosts.channel_state_doubled, is_unchecked=True
    ),
    "markers-not-awaited": Mutant(
        "a host's part is closed without the markers of the others", hosts.markers_not_awaited, is_unchecked=True
    ),
    "state-one-turn-old": Mutant("the image is that of the capture before", hosts.state_one_capture_old),
    "outbox-lost": Mutant("a restore forgets the outbox", hosts.outbox_lost, faults=RESTARTS),
    "in-transit-lost": Mutant("a restore forgets messages in transit", hosts.in_transit_lost, faults=RESTARTS),
    "timers-lost": Mutant("a restore forgets timers", hosts.timers_lost, faults=RESTARTS),
    "turns-survive": Mutant("a plan leaves the agents' old objects in place", hosts.objects_survive, faults=RESTARTS),
    "no-dedupe-after-reset": Mutant("a link takes what it had received before", hosts.no_dedupe, faults=("reset",)),
    "bcs-never-forces": Mutant("bcs forces no checkpoint", rules.bcs_never_forces, ("bcs",)),
    "hmnr-without-clocks": Mutant("hmnr without its first condition", rules.hmnr_without_clocks, ("hmnr",)),
    "hmnr-without-cycles": Mutant("hmnr without its second condition", rules.hmnr_without_cycles, ("hmnr",)),
    "fdas-never-forces": Mutant("fdas forces no checkpoint", rules.fdas_never_forces, ("fdas",)),
    "log-starts-late": Mutant(
        "a sender log lacks its first message", rules.log_starts_late, AUTONOMOUS, is_unchecked=True
    ),
    "line-too-new": Mutant(
        "the line is the newest checkpoint of everybody", recoveries.line_too_new, AUTONOMOUS, is_unchecked=True
    ),
    "line-too-old": Mutant("the line is one checkpoint too old for an agent", recoveries.line_too_old, AUTONOMOUS),
    "older-plan-accepted": Mutant(
        "checkpoints of an older plan are taken for new ones",
        recoveries.older_plan_accepted,
        AUTONOMOUS,
        ("crash", "delay", "pause"),
        is_unchecked=True,
    ),
    "plan-from-older-epoch": Mutant(
        "a plan starts from the newest epoch but one", recoveries.plan_from_older_epoch, faults=RESTARTS
    ),
    "part-of-a-host-missing": Mutant(
        "an epoch is complete without one host's part", recoveries.part_missing, is_unchecked=True
    ),
    "complete-before-durable": Mutant("nothing is synced to the disk", stores.nothing_synced, faults=("disk", "crash")),
    "ref-before-decision": Mutant("an epoch's ref is written before it is decided", recoveries.ref_before_decision),
    "newest-epoch-deleted": Mutant("the sweep deletes the newest epoch too", stores.newest_epoch_deleted),
    "needed-pack-deleted": Mutant("checkpoints that a line needs are deleted", stores.needed_pack_deleted, AUTONOMOUS),
    "damage-unnoticed": Mutant("digests are not compared", stores.damage_unnoticed, faults=("disk", "crash")),
}


def _unchecked() -> list[Patch]:
    return [
        (epoch_reports, "_cover", lambda *arguments: None),
        (line_store, "_check_channel", lambda *arguments: None),
    ]


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Put the bug in, and take it out again."""
    mutant = MUTANTS[name]
    patches = mutant.patches() + (_unchecked() if mutant.is_unchecked else [])
    before = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in before:
            if original is None:  # it was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)
