"""Damage found in a store, with its evidence: which file, which epoch, which agent (G11)."""

from typing import Protocol

import msgspec

from snapline.errors import DamagedDataError
from snapline.storage.disk.layout import CHECKPOINTS, parse_checkpoint_name, parse_pack_path


class Finding(msgspec.Struct, frozen=True):
    """One damaged, missing or surplus file.

    Attributes:
        path: inside the store, such as `packs/h1.3/7.ab12…`.
        epoch: the epoch of the file; None if unknown, and for files that belong to none.
        reason: description of the problem.
        agent: the agent whose checkpoint is damaged; empty if it is not a single one.
        number: number of that checkpoint, in a checkpoint pack; otherwise None.
    """

    path: str
    epoch: int | None
    reason: str
    agent: str = ""
    number: int | None = None

    @property
    def plan(self) -> int | None:
        """The plan of a damaged checkpoint pack; None for other files."""
        name = parse_pack_path(self.path, CHECKPOINTS)
        return None if name is None else name.number


def damaged(path: str, reason: str, *, epoch: int | None = None, blob: str = "") -> DamagedDataError:
    """Return (not raise) the error for damage; `finding_of` extracts its evidence again.

    `blob`: name of the damaged blob, which names its agent; empty if it is not a single one.
    """
    agent, number = owner_of(path, blob)
    finding = Finding(path=path, epoch=epoch, reason=reason, agent=agent, number=number)
    owner = f", agent {agent!r}" if agent else ""
    owner += "" if number is None else f", checkpoint {number}"
    if epoch is not None:
        context, step = f" (epoch {epoch})", "restore an earlier epoch"
    elif finding.plan is not None:
        context, step = f" (plan {finding.plan})", "a recovery goes back to a checkpoint before it"
    else:
        context, step = "", "check the store's disk"
    error = DamagedDataError(f"{path}{context}{owner} is damaged: {reason}; {step}")
    error.__dict__["finding"] = finding
    return error


class PlacedRecord(Protocol):
    """A record that names its store and path."""

    @property
    def store(self) -> str: ...

    @property
    def path(self) -> str: ...


def check_place(record: PlacedRecord, path: str, store_id: str | None) -> None:
    """Raise DamagedDataError if the record at `path` belongs elsewhere; `store_id` None skips that comparison."""
    if record.path != path:
        raise damaged(path, f"it is the file {record.path}")
    check_store(record.store, path, store_id)


def check_store(store: str, path: str, store_id: str | None, *, epoch: int | None = None) -> None:
    """Raise DamagedDataError if the data at `path` belongs to another store; `store_id` None accepts any."""
    if store_id is not None and store != store_id:
        raise damaged(path, f"it belongs to store {store}, this is {store_id}", epoch=epoch)


def owner_of(path: str, blob: str) -> tuple[str, int | None]:
    """Return the agent, and in a checkpoint pack the number, of the checkpoint blob `blob` in the pack at `path`."""
    known = parse_checkpoint_name(blob) if parse_pack_path(path, CHECKPOINTS) is not None else None
    return known or (blob, None)


def finding_of(error: DamagedDataError) -> Finding | None:
    """Return the finding in an error that `storage/` raised; None if it came from elsewhere."""
    finding = error.__dict__.get("finding")
    return finding if isinstance(finding, Finding) else None
