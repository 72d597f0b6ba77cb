"""Numbers formatted for people: counts, rates, sizes, times."""

from datetime import UTC, datetime

from snapline.view.markup import Markup, tag

_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")
NOTHING = "–"


def count(number: int | None) -> str:
    """`12,345`."""
    return NOTHING if number is None else f"{number:,}"


def plural(number: int, one: str, many: str = "") -> str:
    """`1 host`, `3 hosts`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def rate(per_s: float | None) -> str:
    """Format a rate as `1,234`, `12.3`, `0.4`; a dash if unknown."""
    if per_s is None:
        return NOTHING
    return f"{per_s:,.0f}" if per_s >= 100 or per_s == 0 else f"{per_s:.1f}"


def size(number: int | None) -> str:
    """`1.5 MiB`."""
    if number is None:
        return NOTHING
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_BYTES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{number:,} bytes" if unit == 0 else f"{value:.1f} {_BYTES[unit]}"


def seconds(time_s: float | None) -> str:
    """`0.42 s`, `12.3 s`, `4 min`, `3.1 h`."""
    if time_s is None:
        return NOTHING
    if time_s < 10:
        return f"{time_s:.2f} s"
    if time_s < 120:
        return f"{time_s:.1f} s"
    return f"{time_s / 60:.0f} min" if time_s < 7200 else f"{time_s / 3600:.1f} h"


def moment(since_1970_s: float | None) -> Markup | str:
    """Return the time of day in UTC; the page shows its age."""
    if since_1970_s is None:
        return NOTHING
    at = datetime.fromtimestamp(since_1970_s, UTC)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return tag("time", text, datetime=at.isoformat(timespec="milliseconds"), title=f"{text} UTC")


def age(since_1970_s: float | None) -> Markup | str:
    """Draw the age of a time, which the page's script keeps current."""
    if since_1970_s is None:
        return NOTHING
    at = datetime.fromtimestamp(since_1970_s, UTC)
    text = at.strftime("%H:%M:%S UTC")
    return tag("time", text, datetime=at.isoformat(timespec="milliseconds"), data_age=True, title=f"at {text}")
