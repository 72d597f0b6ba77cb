"""Golden scenarios of whole cores, in the manner of etcd raft's data-driven tests: commands, `----`, and all that they lead to.

The text has the form of `sim/script/script_text.py`. A driver is made by the first command and told the others: its method `do_VERB`
carries one out and appends to `trace`. A module with such a driver is a program as well, see `main`.
"""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from snapline.sim.script.script_text import ScriptCommand, read_blocks, write_block

TEXT_MAX = 200


class Driver(Protocol):
    """What is told what a script says. `trace`: what the last command led to."""

    trace: list[str]


Make = Callable[[ScriptCommand], Driver]
"""Makes the driver from the command that has its name."""


def run_script(text: str, first: str, make: Make) -> str:
    """The script with its traces renewed. `first` is the command that makes the driver."""
    driver: Driver | None = None
    written = []
    for block in read_blocks(text):
        trace: list[str] = []
        for command in block.commands:
            if command.verb == first:
                driver = make(command)
                trace += driver.trace
            elif driver is None:
                raise command.error(f"there is no {first}: write `{first}` first")
            else:
                trace += _told(driver, command)
        written.append(write_block(block, trace))
    return "\n".join(written)


def _told(driver: Driver, command: ScriptCommand) -> list[str]:
    driver.trace.clear()
    do: Callable[[ScriptCommand], None] | None = getattr(driver, f"do_{command.verb}", None)
    if do is None:
        raise command.error(f"there is no command {command.verb!r}")
    do(command)
    return driver.trace


def check_script(path: Path, renew: Callable[[str], str]) -> str:
    """A unified diff from the file to what its commands lead to, or ""."""
    found = path.read_text(encoding="utf-8")
    pair = found.splitlines(), renew(found).splitlines()
    return "\n".join(difflib.unified_diff(*pair, f"{path.name} as written", f"{path.name} as run", lineterm=""))


def main(arguments: list[str], renew: Callable[[str], str]) -> int:
    """Check the files, or rewrite them: `[--rewrite] FILE…`."""
    is_rewriting = arguments[:1] == ["--rewrite"]
    found = ""
    for path in map(Path, arguments[is_rewriting:]):
        found += check_script(path, renew)
        if is_rewriting:
            path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(found, end="\n" if found else "")
    return 1 if found and not is_rewriting else 0


def names_of(command: ScriptCommand) -> list[str]:
    """`h1,h2`: the first word, taken apart."""
    return command.words[0].split(",")


Short = Callable[[object], str | None]
"""How some values are shown, or None: as all others."""


def show(value: object, short: Short = lambda value: None) -> str:
    """A value as a trace has it: structs by name and fields, without those that are as usual."""
    found = short(value)
    if found is not None:
        return found
    match value:
        case msgspec.Struct():
            fields = zip(value.__struct_fields__, _defaults(value), strict=True)
            shown = [(name, getattr(value, name), usual) for name, usual in fields]
            text = ", ".join([f"{name}={show(each, short)}" for name, each, usual in shown if each != usual])
            return f"{type(value).__name__}({text})"
        case tuple() | list():
            return f"[{', '.join([show(each, short) for each in value])}]"
        case dict():
            pairs = [f"{show(name, short)}: {show(each, short)}" for name, each in value.items()]
            return "{" + ", ".join(pairs) + "}"
        case bytes():
            return f"{len(value)} bytes"
        case str() if not value or " " in value:
            return repr(value[:TEXT_MAX])
    return "yes" if value is True else "no" if value is False else str(value)


def _defaults(value: msgspec.Struct) -> list[object]:
    usual = value.__struct_defaults__
    return [msgspec.NODEFAULT] * (len(value.__struct_fields__) - len(usual)) + list(usual)
