"""No checkpoint that a later recovery line could need is deleted (G7).

Theory of operation
-------------------
Two things can be needed:

- The whole newest complete epoch, from which the next plan starts. The world reads it back after every deletion.
- In autonomous protocols, each checkpoint of the present plan past this epoch, since lines only advance. A later line may hold it, or hold a later
  checkpoint of its agent and need the log of messages sent in between.

No line can hold a checkpoint at or below the epoch's line, or of a replaced plan. An agent that has left the fleet is in no epoch that begins
later, so its checkpoints are not needed once the earlier epochs are over.

In koo-toueg fleets a checkpoint past the line is tentative, and is deleted when its round aborts: only the epoch is judged.
"""

from collections.abc import Iterator, Sequence

from snapline.sim.oracles.ground_truth_records import CutRecord, Finding


def is_covered(cut: CutRecord, plan: int, agent: str, number: int) -> bool:
    """Return whether a checkpoint of `plan` lies at or below one of the plan's lines.

    Deleting checkpoints that a line has made superfluous is right even if the line is condemned later; the last deletions may come late.
    """
    place = cut.places.get(agent)
    return cut.plan == plan and place is not None and place.captured is not None and number <= place.captured.number


def check_deleted(missing: Sequence[tuple[str, int]], base: CutRecord | None, base_epoch: int) -> Iterator[Finding]:
    """Report a deleted checkpoint that a later line may need.

    `missing`: deleted checkpoints of the present plan; `base`: the newest complete epoch, None without one.
    """
    for agent, number in missing:
        place = base.places.get(agent) if base is not None else None
        if place is not None and place.is_gone:
            continue
        kept_number = place.captured.number if place is not None and place.captured is not None else -1
        if number > kept_number:
            status = (
                f"epoch {base_epoch} holds its checkpoint {kept_number}"
                if kept_number >= 0
                else "no complete epoch holds it"
            )
            yield "garbage", "G7", f"checkpoint {number} of {agent} was deleted, and {status}: a later line may need it"
            return
