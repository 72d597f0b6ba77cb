"""What a leader knows of one epoch on its way; its life is told in `epochs.py`."""

import msgspec

from snapline.conversation.messages import EpochReport
from snapline.coordinator.leader.events import WriteManifest
from snapline.coordinator.state import operations as op

COLLECTING, STORING, DECIDING = "collecting", "storing", "deciding"


class OpenEpoch(msgspec.Struct):
    """What this leader knows of an open epoch. `manifest` is set from "storing" on, in logged protocols never, and
    `completion`, what is to be proposed, from "deciding" on."""

    epoch: int
    hosts: list[str]
    deadline_ns: int
    stage: str = COLLECTING
    reports: dict[str, EpochReport] = {}
    manifest: WriteManifest | None = None
    completion: op.CompleteEpoch | None = None
    problem: str = ""
    trigger: str = ""
