"""The lineage of an epoch, which consists of the complete epochs before it in its history; also restores, which return the fleet to an
earlier epoch.

The *predecessor* of an epoch is the newest lower epoch that completed under the same plan. If there is none, the predecessor is the
recovery line of that plan (0 means the initial states). The predecessor may have been condemned since, because a plan's history continues
after an epoch whose data is damaged.

A *void* epoch was complete, but the fleet was restored to an earlier epoch. A void epoch is never a recovery line again; otherwise the next
failure would undo the restore. No history contains a void epoch anymore, because all epochs that followed it are above the restored epoch,
so they are void too.

Epochs are forgotten oldest first, except for void epochs. `FleetImage.forgotten` is the highest forgotten epoch. At or below that epoch,
the apparent predecessor may be wrong, unless no epoch of the plan is forgotten.
"""

import msgspec

from snapline.coordinator.state.fleet_records import COMPLETE, CONDEMNED, OPEN, VOID, FleetImage, PlanRecord


class Ancestor(msgspec.Struct, frozen=True, gc=False):
    """An earlier epoch in a lineage. `is_condemned` tells whether its data is damaged."""

    epoch: int
    root: str
    is_condemned: bool


def lineage_of(image: FleetImage, epoch: int) -> tuple[Ancestor, ...] | None:
    """Return the predecessors of a known epoch, newest first, up to the first predecessor that is not condemned.

    Return an empty tuple if only the initial states precede the epoch. Return None if a part of the lineage is forgotten.
    """
    ancestors: list[Ancestor] = []
    plan, below = image.epochs[epoch].plan, epoch
    while True:
        before = _predecessor(image, plan, below)
        if before is None or before == 0:
            return None if before is None else tuple(ancestors)
        record = image.epochs[before]
        ancestors.append(Ancestor(before, record.root, record.status == CONDEMNED))
        if record.status != CONDEMNED:
            return tuple(ancestors)
        plan, below = record.plan, before


def _predecessor(image: FleetImage, plan: int, below: int) -> int | None:
    """Return a plan's newest complete epoch below `below`, or else the plan's recovery line. Return None if the predecessor is, or may be,
    forgotten."""
    for epoch in reversed(image.epochs):
        record = image.epochs[epoch]
        if epoch < below and record.plan == plan and record.status != OPEN:
            return epoch if epoch > image.forgotten or _is_whole(image, plan) else None
    plan_record = _plan(image, plan)
    if plan_record is None or not _is_whole(image, plan):
        return None
    return plan_record.line_epoch if plan_record.line_epoch in image.epochs or not plan_record.line_epoch else None


def _is_whole(image: FleetImage, plan: int) -> bool:
    """Return whether the plan is known and no epoch begun under it is forgotten."""
    plan_record = _plan(image, plan)
    return plan_record is not None and image.forgotten <= plan_record.begun_epoch


def _plan(image: FleetImage, number: int) -> PlanRecord | None:
    return next((plan for plan in image.plans if plan.number == number), None)


def has_fallen_back(image: FleetImage, epoch: int, after: int) -> bool:
    """Return whether the fleet has abandoned complete epochs between `after`, which is the predecessor, and `epoch`."""
    plan = image.epochs[epoch].plan
    passed_over = (CONDEMNED, VOID)
    return any(after < x < epoch and r.status in passed_over and r.plan != plan for x, r in image.epochs.items())


def forgettable_below(image: FleetImage, pending: list[int]) -> int | None:
    """Return the lowest epoch that must be kept while the `pending` epochs are not released, or None if none must be kept."""
    lineages = [lineage_of(image, epoch) for epoch in pending]
    return min(
        [ancestors[-1].epoch if ancestors else 0 for ancestors in lineages if ancestors is not None], default=None
    )


def refusal_of_restore(image: FleetImage, epoch: int) -> str:
    """Return why the fleet cannot return to this epoch, with advice, or "" if it can return."""
    record = image.epochs.get(epoch)
    if record is not None and record.status == COMPLETE:
        return ""
    if record is None and epoch > image.begun:
        return f"there is no epoch {epoch}: `snapline snapshot list` lists what there is"
    if record is None:
        return (
            f"the coordinator does not keep epoch {epoch} any more, or it never was complete: go back to one of "
            f"{_named(image)}, or make a new fleet of that snapshot"
        )
    if record.status == OPEN:
        return f"epoch {epoch} is not complete yet: wait for it, or go back to one of {_named(image)}"
    if record.status == CONDEMNED:
        return f"epoch {epoch} is damaged: go back to one of {_named(image)}"
    return f"epoch {epoch} is void, the fleet went back past it: go back to one of {_named(image)}"


def _named(image: FleetImage) -> str:
    complete = [str(epoch) for epoch, record in image.epochs.items() if record.status == COMPLETE]
    return "epochs " + ", ".join(complete) if complete else "no epoch at all (none is complete)"


def above(image: FleetImage, epoch: int) -> list[int]:
    """Return the complete epochs, ascending, that become void if the fleet returns to `epoch`."""
    return [later for later, record in image.epochs.items() if later > epoch and record.status == COMPLETE]


def make_void(image: FleetImage, epoch: int) -> list[int]:
    """Make all complete epochs above `epoch` void, and return them."""
    discarded = above(image, epoch)
    for later in discarded:
        image.epochs[later].status = VOID
    return discarded
