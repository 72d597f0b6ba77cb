"""Text format of a scenario script: blocks of commands, `----`, and the trace that they produce.

    # Comment.
    fleet a b
    send a b m1
    deliver a->b
    ----
    a: SendMessage(m1, to=b, number=1, stamp=0)
    b: Deliver(m1)

A line that starts with `#` is a comment; blank lines are separators. The trace ends at the first blank line. The next block
continues with the same fleet, unless it makes a new one. A command is a verb, words, and options of the form `name=value`.
Rewriting changes only traces: everything up to and including `----` is kept. A block without `----` gets one.
"""

import msgspec

from snapline.errors import UsageError

TRACE_FOLLOWS = "----"


class ScriptCommand(msgspec.Struct, frozen=True):
    """Command on one line of a script. `line`: number of the line, from 1."""

    line: int
    text: str
    verb: str
    words: tuple[str, ...]
    options: dict[str, str]

    def error(self, sentence: str) -> UsageError:
        """Return an error about this line."""
        return UsageError(f"line {self.line}: {sentence}")


class Block(msgspec.Struct, frozen=True):
    """Commands with the lines above their trace.

    Attributes:
        written: lines up to the trace, without `----`.
        commands: commands in these lines.
    """

    written: tuple[str, ...]
    commands: tuple[ScriptCommand, ...]


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a script. The last one may have only comments.

    Raises:
        UsageError: a line is not a command, or a trace has no commands.
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
    """Return the block with this trace, without leading blank lines, because blocks are joined by one."""
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
