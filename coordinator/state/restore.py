"""Restores: which epochs the fleet may return to, and which epochs become void.

A *void* epoch was complete, but the fleet was restored to an earlier one. It is never a line again: otherwise the next failure would undo the
restore. All epochs that followed it are above the same target, so they are void, too.
"""

from snapline.coordinator.state.fleet_records import COMPLETE, CONDEMNED, OPEN, VOID, FleetImage


def refusal_of_restore(image: FleetImage, epoch: int) -> str:
    """Return why the fleet cannot return to this epoch, with the next step; "": it can."""
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
    """Return the complete epochs that become void if the fleet returns to `epoch`, ascending."""
    return [later for later, record in image.epochs.items() if later > epoch and record.status == COMPLETE]


def make_void(image: FleetImage, epoch: int) -> list[int]:
    """Make all complete epochs above `epoch` void, and return them."""
    voided = above(image, epoch)
    for later in voided:
        image.epochs[later].status = VOID
    return voided
