"""Text format of scenario scripts. A script consists of blocks, each with commands, the line `----`, and the trace that
the commands produce.

    # Comment.
    fleet a b
    send a b m1
    deliver a->b
    ----
    a: SendMessage(m1, to=b, number=1, stamp=0)
    b: Deliver(m1)

A line that starts with `#` is a comment, and a trace ends at the first blank line. Each block continues with the fleet of the previous
block, unless it creates a new fleet. Rewriting a script changes only the traces and keeps everything up to and including the `----` lines.
If a block has no `----` line, rewriting adds one.

A command consists of a verb, words, and options of the form `name=value`. The usage text of a verb defines which words and options its
commands may have.

Each line in a trace is a command from a core or an action of the host, in the form `Name(value, name=value)`. A core's command is written
with all its fields. A piggyback (protocol data attached to a message) is decoded according to its protocol, and agents in it are shown by
name.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from snapline.errors import UsageError
from snapline.protocols.piggyback import decode, unpack_entries

# -- blocks ---------------------------------------------------------------------------------------------------------------

TRACE_FOLLOWS = "----"


class ScriptCommand(msgspec.Struct, frozen=True):
    """A command on one line of a script. `line` is the number of the line, counted from 1."""

    line: int
    text: str
    verb: str
    words: tuple[str, ...]
    options: dict[str, str]

    def error(self, sentence: str) -> UsageError:
        """Return an error whose message names this line."""
        return UsageError(f"line {self.line}: {sentence}")


class Block(msgspec.Struct, frozen=True):
    """A block's commands, and the lines that precede its trace.

    Attributes:
        written: the lines that precede the trace, without the `----` line.
    """

    written: tuple[str, ...]
    commands: tuple[ScriptCommand, ...]


def read_blocks(text: str) -> list[Block]:
    """Parse a script into its blocks. The last block may consist only of comments.

    Raises:
        UsageError: If a line is not a command, or if a trace has no commands.
    """
    blocks: list[Block] = []
    written: list[str] = []
    commands: list[ScriptCommand] = []
    is_trace = False
    for number, line in enumerate(text.splitlines(), 1):
        if is_trace:
            is_trace = bool(line.strip())
        elif line.strip() == TRACE_FOLLOWS:
            if not commands:
                raise UsageError(f"line {number}: no command stands above this {TRACE_FOLLOWS}: write one")
            blocks.append(Block(tuple(written), tuple(commands)))
            written, commands, is_trace = [], [], True
        else:
            written.append(line.rstrip())
            if line.strip() and not line.startswith("#"):
                commands.append(_read_command(number, line))
    if any(written):
        blocks.append(Block(tuple(written), tuple(commands)))
    return blocks


def write_block(block: Block, trace: list[str]) -> str:
    """Return the text of a block that contains this trace. Leading blank lines are omitted, because the caller puts a blank line between
    blocks."""
    lines = list(block.written)
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    if block.commands:
        lines += [TRACE_FOLLOWS, *(trace or ["(nothing)"])]
    return "\n".join(lines) + "\n"


def _read_command(number: int, line: str) -> ScriptCommand:
    verb, *rest = line.split()
    words = tuple(word for word in rest if "=" not in word)
    options: dict[str, str] = {}
    for word in rest:
        name, sign, value = word.partition("=")
        if not sign:
            continue
        if not name or not value or name in options:
            raise UsageError(f"line {number}: {word!r} is no option: write each once, as name=value")
        options[name] = value
    return ScriptCommand(number, line.strip(), verb, words, options)


# -- commands -------------------------------------------------------------------------------------------------------------


class Verb(msgspec.Struct, frozen=True):
    """Verb of a command. In `usage`, words in capitals are placeholders, and parts in brackets are optional."""

    usage: str
    run: Callable[[ScriptCommand], None]


def dispatch(command: ScriptCommand, verbs: Mapping[str, Verb]) -> None:
    """Execute a command.

    Raises:
        UsageError: If the verb is unknown, if the command has the wrong form, or if the command cannot be executed.
    """
    verb = verbs.get(command.verb)
    if verb is None:
        raise command.error(f"{command.verb!r} is no command of this fleet: use one of {', '.join(sorted(verbs))}")
    check_form(command, verb.usage)
    verb.run(command)


def check_form(command: ScriptCommand, usage: str) -> None:
    """Check that a command has the words and options that `usage` requires, and no others than `usage` allows."""
    _, *parts = usage.split()
    words = [part for part in parts if "=" not in part]
    options = {part.strip("[]").partition("=")[0]: part.startswith("[") for part in parts if "=" in part}
    least = sum(not word.startswith("[") for word in words)
    most = len(command.words) if any(word.endswith("…]") for word in words) else len(words)
    is_fitting = least <= len(command.words) <= most and all(name in options for name in command.options)
    if not is_fitting or any(not may_miss and name not in command.options for name, may_miss in options.items()):
        raise command.error(f"{command.text!r} is not understood: write {usage}")


def number_of(command: ScriptCommand, option: str) -> int:
    """Return the value of an option, which must be a positive integer."""
    value = command.options[option]
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise command.error(f"{option}={value} is no number: write {option}=1, 2, 3 …")
    return int(value)


# -- traces ---------------------------------------------------------------------------------------------------------------


def format_call(name: str, *values: object, **fields: object) -> str:
    """Format a call as `Name(value, field=value)`."""
    parts = [format_value(value) for value in values] + [
        f"{field}={format_value(value)}" for field, value in fields.items()
    ]
    return f"{name}({', '.join(parts)})"


def format_command(command: msgspec.Struct) -> str:
    """Format a command from a core, with all its fields."""
    return format_call(type(command).__name__, **msgspec.structs.asdict(command))


def format_value(value: object) -> str:
    """Format a value. Lists have the form [a, b] and dictionaries the form {a: 1}, both in their own order."""
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
    """Return the contents of a piggyback (protocol data attached to a message) as fields for `format_call`. If the protocol uses no
    piggybacks, return no fields.

    Args:
        protocol: the protocol's name in `rules.RULES`.
        names: agent names, in the order of the agents' ordinals.
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
    """Format an entry. The text contains the number of known checkpoints, "taken" if the path from the last of them contains another
    checkpoint, and "behind" if the agent's clock is lower."""
    return f"{value >> 2}{'' if value & 2 else ' taken'}{'' if value & 1 else ' behind'}"


def _bhmr_entry(value: int, row: int, names: Sequence[str]) -> str:
    """Format an entry. The text contains the number of known checkpoints, "simple" if the path from the last of them is simple, and the
    agents that the path reaches."""
    reached = " ".join(name for agent, name in enumerate(names) if row >> agent & 1)
    return f"{value >> 1}{' simple' if value & 1 else ''} to {reached}"
