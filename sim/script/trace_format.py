"""Trace format of core commands and of the host's actions: `Name(value, name=value)`.

Core commands are written with all their fields. A piggyback is decoded by its protocol, with agents by name.
"""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.protocols.piggyback import decode, unpack_entries


def format_call(name: str, *values: object, **fields: object) -> str:
    """Format as `Name(value, field=value)`."""
    parts = [format_value(value) for value in values] + [
        f"{field}={format_value(value)}" for field, value in fields.items()
    ]
    return f"{name}({', '.join(parts)})"


def format_command(command: msgspec.Struct) -> str:
    """Format a core's command with all its fields."""
    return format_call(type(command).__name__, **msgspec.structs.asdict(command))


def format_value(value: object) -> str:
    """Format a value: lists as [a, b], dictionaries as {a: 1}, both in their order."""
    match value:
        case None:
            return "nobody"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return value.decode()
        case Mapping():
            return "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(format_value, value)) + "]"
        case _:
            return str(value)


def piggyback_of(protocol: str, piggyback: bytes, names: Sequence[str]) -> dict[str, object]:
    """Return the content of a piggyback, as fields for `format_call`; none for protocols without one.

    Args:
        protocol: name of a rule in `rules.RULES`.
        piggyback: piggyback made by the rule.
        names: agent names by ordinal.
    """
    numbers = decode(piggyback)
    match protocol:
        case "bcs":
            return {"index": numbers[0]}
        case "hmnr":
            entries = unpack_entries(numbers[1:])
            knows = {names[agent]: _hmnr_entry(value) for agent, value in sorted(entries.items())}
            return {"clock": numbers[0], "knows": knows} if numbers else {"knows": {}}
        case "fdas" | "fdi":
            return {"knows": {names[agent]: count for agent, count in sorted(unpack_entries(numbers).items())}}
        case "bhmr":
            triples = sorted(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
            return {"knows": {names[agent]: _bhmr_entry(value, row, names) for agent, value, row in triples}}
        case _:
            return {}


def _hmnr_entry(value: int) -> str:
    """Format: number of known checkpoints; "taken": a checkpoint lies on the path from the last one; "behind": its clock is lower."""
    return f"{value >> 2}{'' if value & 2 else ' taken'}{'' if value & 1 else ' behind'}"


def _bhmr_entry(value: int, row: int, names: Sequence[str]) -> str:
    """Format: number of known checkpoints; "simple": the path from the last one is simple; agents that it reaches."""
    reached = " ".join(name for agent, name in enumerate(names) if row >> agent & 1)
    return f"{value >> 1}{' simple' if value & 1 else ''} to {reached}"
