"""Formatting of times in manifests and documents."""

from datetime import UTC, datetime


def instant(now_s: float) -> str:
    """Return the UTC time in the format of manifests."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
