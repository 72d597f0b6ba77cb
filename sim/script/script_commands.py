"""Commands of a scripted fleet: verbs, with a usage text that also defines the form of a command."""

from collections.abc import Callable, Mapping

import msgspec

from snapline.sim.script.script_text import ScriptCommand


class Verb(msgspec.Struct, frozen=True):
    """Verb of a command. In `usage`, words in capitals are placeholders, and parts in brackets are optional."""

    usage: str
    run: Callable[[ScriptCommand], None]


def dispatch(command: ScriptCommand, verbs: Mapping[str, Verb]) -> None:
    """Carry out a command.

    Raises:
        UsageError: the verb is unknown, the form is wrong, or the verb itself fails.
    """
    verb = verbs.get(command.verb)
    if verb is None:
        raise command.error(f"{command.verb!r} is no command of this fleet: use one of {', '.join(sorted(verbs))}")
    check_form(command, verb.usage)
    verb.run(command)


def check_form(command: ScriptCommand, usage: str) -> None:
    """Check that a command has the words and options of `usage`, and no others."""
    _, *parts = usage.split()
    words = [part for part in parts if "=" not in part]
    options = {part.strip("[]").partition("=")[0]: part.startswith("[") for part in parts if "=" in part}
    least = sum(not word.startswith("[") for word in words)
    most = len(command.words) if any(word.endswith("…]") for word in words) else len(words)
    is_fitting = least <= len(command.words) <= most and all(name in options for name in command.options)
    if not is_fitting or any(not may_miss and name not in command.options for name, may_miss in options.items()):
        raise command.error(f"{command.text!r} is not understood: write {usage}")


def number_of(command: ScriptCommand, option: str) -> int:
    """Return the value of an option that must be a number from 1 on."""
    value = command.options[option]
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise command.error(f"{option}={value} is no number: write {option}=1, 2, 3 …")
    return int(value)
