"""Trace format of core commands and of the actions of a script's host: `Name(value, name=value)`.

Commands of cores are written field by field: a trace hides nothing that a core says. A
piggyback is written in words, as its protocol means it, with agents by name.
"""

from collections.abc import Mapping, Sequence

import msgspec

from snapline.protocols.piggyback import decode, unpack_entries


def word_of(name: str, *values: object, **fields: object) -> str:
    """`Name(value, field=value)`."""
    parts = [value_of(value) for value in values] + [f"{field}={value_of(value)}" for field, value in fields.items()]
    return f"{name}({', '.join(parts)})"


def command_of(command: msgspec.Struct) -> str:
    """A core's command with all its fields."""
    return word_of(type(command).__name__, **msgspec.structs.asdict(command))


def value_of(value: object) -> str:
    """Lists as [a, b], dictionaries as {a: 1}, in the order in which they are."""
    match value:
        case None:
            return "nobody"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return value.decode()
        case Mapping():
            return "{" + ", ".join(f"{key}: {value_of(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(value_of, value)) + "]"
        case _:
            return str(value)


def piggyback_of(protocol: str, piggyback: bytes, names: Sequence[str]) -> dict[str, object]:
    """Return the content of a piggyback, as fields for `word_of`; none for protocols without one.

    Args:
        protocol: a name of `rules.RULES`.
        piggyback: as a rule made it.
        names: agents by ordinal.
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
    """Checkpoints known, whether a checkpoint lies on the way from the last of them, whether its clock is lower."""
    return f"{value >> 2}{'' if value & 2 else ' taken'}{'' if value & 1 else ' behind'}"


def _bhmr_entry(value: int, row: int, names: Sequence[str]) -> str:
    """Checkpoints known, whether the way from the last of them is simple, and whom it reaches."""
    reached = " ".join(name for agent, name in enumerate(names) if row >> agent & 1)
    return f"{value >> 1}{' simple' if value & 1 else ''} to {reached}"
