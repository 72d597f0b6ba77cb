"""Points in time, as manifests and documents write them."""

from datetime import UTC, datetime


def instant(now_s: float) -> str:
    """Return the time in UTC as manifests have it."""
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
