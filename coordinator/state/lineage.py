"""Complete epochs before an epoch in its history.

The *predecessor* of an epoch is the newest lower one that ended complete and was begun under the same plan; if there is none, the line of
that plan; 0: the initial states. It may be condemned by now: a plan's history goes on over an epoch whose bytes are damaged.

A void epoch is in no history any more: all that came after it is void with it.

Epochs are forgotten oldest first, but for those that are void. `FleetImage.forgotten` is the highest of them: a predecessor at or below
it may be another than the true one, unless nothing that was begun under the plan is forgotten.
"""

import msgspec

from snapline.coordinator.state.fleet_records import CONDEMNED, OPEN, VOID, FleetImage, PlanRecord


class Ancestor(msgspec.Struct, frozen=True, gc=False):
    """An epoch that another one comes after. `is_condemned`: its bytes are damaged."""

    epoch: int
    root: str
    is_condemned: bool


def lineage_of(image: FleetImage, epoch: int) -> tuple[Ancestor, ...] | None:
    """The predecessor of a known epoch, that one's predecessor, and so on, down to the first that is not condemned.

    Empty: there is none but the initial states. None: a part of it is forgotten.
    """
    found: list[Ancestor] = []
    plan, below = image.epochs[epoch].plan, epoch
    while True:
        before = _predecessor(image, plan, below)
        if before is None or before == 0:
            return None if before is None else tuple(found)
        record = image.epochs[before]
        found.append(Ancestor(before, record.root, record.status == CONDEMNED))
        if record.status != CONDEMNED:
            return tuple(found)
        plan, below = record.plan, before


def _predecessor(image: FleetImage, plan: int, below: int) -> int | None:
    """The newest complete epoch of a plan below a number, or the plan's line; None: it is, or may be, forgotten."""
    for epoch in reversed(image.epochs):
        record = image.epochs[epoch]
        if epoch < below and record.plan == plan and record.status != OPEN:
            return epoch if epoch > image.forgotten or _is_whole(image, plan) else None
    known = _plan(image, plan)
    if known is None or not _is_whole(image, plan):
        return None
    return known.line_epoch if known.line_epoch in image.epochs or not known.line_epoch else None


def _is_whole(image: FleetImage, plan: int) -> bool:
    """Return whether no epoch begun under this plan is forgotten."""
    known = _plan(image, plan)
    return known is not None and image.forgotten <= known.begun_epoch


def _plan(image: FleetImage, number: int) -> PlanRecord | None:
    return next((plan for plan in image.plans if plan.number == number), None)


def has_fallen_back(image: FleetImage, epoch: int, after: int) -> bool:
    """Return whether the fleet has given up complete epochs between an epoch and its predecessor."""
    plan = image.epochs[epoch].plan
    passed_over = (CONDEMNED, VOID)
    return any(after < x < epoch and r.status in passed_over and r.plan != plan for x, r in image.epochs.items())


def forgettable_below(image: FleetImage, pending: list[int]) -> int | None:
    """The lowest epoch that must be known as long as these epochs are not released; None: there is none."""
    lowest = [lineage_of(image, epoch) for epoch in pending]
    return min([ancestors[-1].epoch if ancestors else 0 for ancestors in lowest if ancestors is not None], default=None)
