"""Durations as text with a unit: "250us", "1ms", "1.5s"."""

import re
from decimal import Decimal
from typing import Annotated

import msgspec

from snapline.errors import UsageError

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}

_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,9})?(ns|us|ms|s|m|h)"

_DURATION = re.compile(r"(-?[0-9]{1,30}(?:\.[0-9]{1,9})?)(ns|us|ms|s|m|h)")

Duration = Annotated[str, msgspec.Meta(pattern=f"^{_NUMBER}\\Z")]

OptionalDuration = Annotated[str, msgspec.Meta(pattern=f"^({_NUMBER})?\\Z")]
"""Optional duration; the key documents the meaning of ""."""

SignedDuration = Annotated[str, msgspec.Meta(pattern=f"^-?{_NUMBER}\\Z")]


def duration_ns(text: str) -> int:
    """Return a duration such as "250us", "1ms", "1.5s" or "-3m" in nanoseconds; "" is 0.

    Raises:
        UsageError: the text is not a duration.
    """
    if not text:
        return 0
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise UsageError(f"{text!r} is not a duration: write 250us, 1ms, 1.5s or 3m")
    return int(Decimal(parts[1]) * _UNITS_NS[parts[2]])


def format_duration(ns: int) -> str:
    """Return the shortest whole number with a unit; the inverse of `duration_ns`."""
    for unit in ("h", "m", "s", "ms", "us"):
        if ns and ns % _UNITS_NS[unit] == 0:
            return f"{ns // _UNITS_NS[unit]}{unit}"
    return f"{ns}ns" if ns else "0s"
