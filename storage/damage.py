"""Damage found in a store, with its evidence: which file, which epoch, which agent (G11)."""

import msgspec

from snapline.errors import DamagedDataError


class Finding(msgspec.Struct, frozen=True):
    """One damaged, missing or surplus file.

    Attributes:
        path: inside the store, such as `packs/h1.3/7.ab12…`.
        epoch: the epoch it belongs to; None where that cannot be known.
        reason: what is wrong, in words.
        agent: whose checkpoint is hit; empty where no single one is.
    """

    path: str
    epoch: int | None
    reason: str
    agent: str = ""


def damaged(path: str, reason: str, *, epoch: int | None = None, agent: str = "") -> DamagedDataError:
    """Return (not raise) the error for damage; `finding_of` gets the evidence back out of it."""
    where = "" if epoch is None else f" (epoch {epoch})"
    whose = f", agent {agent!r}" if agent else ""
    step = "check the store's disk" if epoch is None else "restore an earlier epoch"
    error = DamagedDataError(f"{path}{where}{whose} is damaged: {reason}; {step}")
    error.__dict__["finding"] = Finding(path=path, epoch=epoch, reason=reason, agent=agent)
    return error


def finding_of(error: DamagedDataError) -> Finding | None:
    """Return the evidence of an error that `storage/` raised; None if it came from elsewhere."""
    finding = error.__dict__.get("finding")
    return finding if isinstance(finding, Finding) else None
