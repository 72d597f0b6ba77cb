"""Nothing that a later recovery line could need is deleted (G7).

Theory of operation
-------------------
Two things can be needed. The newest complete epoch, whole: the next plan starts from it (the world reads it back after every
deletion). And in autonomous protocols each checkpoint of the present plan that lies past this epoch, since lines only advance: a
later line may hold it, or hold a later one of its agent and need the log of what was sent in between. What lies at or below the
epoch's line, or belongs to a plan that has been replaced, no line can hold any more. An agent that has left the fleet is in no epoch that begins later:
its checkpoints are needed by none, once the epochs that began before are over.

In koo-toueg fleets a checkpoint past the line is tentative, and goes when its round is aborted: only the epoch is judged.
"""

from collections.abc import Iterator, Sequence

from snapline.sim.oracles.ground_truth_records import CutRecord

Finding = tuple[str, str, str]


def is_covered(cut: CutRecord, plan: int, agent: str, number: int) -> bool:
    """Return whether a checkpoint of `plan` lies at or below a line of it.

    What a line that was condemned later had made superfluous was rightly deleted, and the last of it may be gone only now.
    """
    place = cut.places.get(agent)
    return cut.plan == plan and place is not None and place.captured is not None and number <= place.captured.number


def check_deleted(missing: Sequence[tuple[str, int]], base: CutRecord | None, base_epoch: int) -> Iterator[Finding]:
    """`missing`: checkpoints of the present plan that are gone; `base`: the newest complete epoch, None without one."""
    for agent, number in missing:
        place = base.places.get(agent) if base is not None else None
        if place is not None and place.is_gone:
            continue
        kept = place.captured.number if place is not None and place.captured is not None else -1
        if number > kept:
            what = f"epoch {base_epoch} holds its checkpoint {kept}" if kept >= 0 else "no complete epoch holds it"
            yield "garbage", "G7", f"checkpoint {number} of {agent} was deleted, and {what}: a later line may need it"
            return
