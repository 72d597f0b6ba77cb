"""Makes docs/cli.md from the commands: `python -m docs.make_cli`, or `make docs`.

Arguments and options come from the Click commands, texts from `help=` and the commands' docstrings. Longer texts come from the docstrings of
the classes and modules in `DETAILS`. Nothing is taken from rendered help, which depends on the terminal and on the release of Typer.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import typer
import typer.main
from docs import make_api

from snapline.cli.command import EXIT_CODES, Connection, Display, SecurityOptions
from snapline.cli.main import app
from snapline.cli.settings import DEFAULTS
from snapline.cli.sim_scenarios import ScenarioChanges

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# The command line

`snapline NOUN VERB`, or `python -m snapline NOUN VERB`. `--help` explains every command. Made from the commands by `make docs`; do not edit it.

Results go to stdout; progress, warnings and errors to stderr. A result is a table on a terminal, else JSON with `apiVersion` and `kind`.
Tables leave out columns for which a terminal is too narrow; JSON has all.
[Exit codes](#exit-codes) are the same for all commands. `SNAPLINE_TRACEBACK=1` adds the traceback of an error. `snapline --install-completion`
installs shell completion of commands and options (bash, zsh, fish); `--show-completion` prints it.
"""

SHARED = {
    "output": (
        Display,
        "Most commands have these options; those that run until they are stopped do not.\n",
    ),
    "certificates": (
        SecurityOptions,
        "Commands that call a coordinator, and the processes of a fleet, have these options.\n",
    ),
    "connections": (
        Connection,
        """Commands that call a coordinator have these options. [security.md](security.md) explains which certificates are needed, and what each role may do.
Without `--coordinator` and `--data-dir` the address comes from the environment or `snapline.toml` ([config show](#config-show)).
Without options for certificates, commands for that fleet use the operator's certificate in the folder of the setting `tls`.

The leading replica answers. Calls find it, and wait for an election within their time limit. If too few replicas answer, a line on stderr names
them after three seconds, and the call continues.

Three variables name key files of the store: `SNAPLINE_STORE_KEY`, `SNAPLINE_SIGNING_KEY` and `SNAPLINE_VERIFY_KEY`
([protection.md](protection.md)).
""",
    ),
    "scenarios": (
        ScenarioChanges,
        "Commands of [sim](#sim) have these options. Those with MODULE:FLEET are for your own agents.\n",
    ),
}
"""Groups of options that are described once: their dataclass, and the introduction of their section."""

SEE = {
    "chaos": "chaos.md",
    "sim": "simulation.md",
    "effect": "effects.md",
    "auth": "security.md",
    "keys": "protection.md",
    "agent": "clients.md",
    "agent dead-letters": "dead-letters.md",
    "output": "clients.md#outputs",
    "host": "deploy.md#more-hosts-fewer-new-ones",
    "recovery restore": "going-back.md",
    "snapshot fork": "forks.md",
    "ui export": "ui.md#a-file-for-a-bug-report",
    "advise": "protocols.md#what-suits-a-fleet-that-runs",
    "run": "deploy.md#planned-stops",
    "up": "deploy.md",
    "version": "compiled.md",
    "demo": "protocols.md",
    "gateway run": "gateway.md",
    "ui serve": "ui.md",
    "coordinator backup": "snapshot-format.md",
}
"""Commands or groups whose texts name no page → the page on their topic."""

DETAILS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "run": (("Files of the folder", "snapline.deploy.data_directory", ""),),
    "status": (
        ("Concerns", "snapline.messages.status", "Concern"),
        ("Fields of the result", "snapline.messages.status", "FleetStatus"),
        ("`hosts`", "snapline.messages.status", "HostStatus"),
        ("`store`", "snapline.messages.status", "StoreStatus"),
        ("`loss`", "snapline.messages.status", "LossStatus"),
        ("`loss.recoveries`", "snapline.messages.status", "RecoveryTime"),
        ("`interval`", "snapline.messages.status", "IntervalStatus"),
    ),
    "logs": (("What processes log", "snapline.telemetry.log_lines", ""),),
    "advise": (
        ("Fields of the result", "snapline.protocols.advice", "FleetAdvice"),
        ("`interval`, `intervals`", "snapline.protocols.advice", "BestInterval"),
        ("`mtbf`", "snapline.protocols.advice", "Mtbf"),
    ),
    "analyze": (
        ("Format of traces", "snapline.recovery.trace", ""),
        ("Fields of the result", "snapline.recovery.trace_analysis", "Analysis"),
        ("`rollback`", "snapline.recovery.trace_analysis", "Rollback"),
        ("`domino`", "snapline.recovery.trace_analysis", "Domino"),
    ),
    "recovery restore": (
        ("Fields of `--dry-run`", "snapline.messages.answers", "RestorePreview"),
        ("`inputs`", "snapline.messages.answers", "InputsAgain"),
        ("`outputs`", "snapline.messages.answers", "TopicUndone"),
    ),
    "config show": (("snapline.toml", "snapline.cli.settings", ""),),
}
"""Command → headings, and the class (or the whole module) whose docstring follows."""


class CommandText(NamedTuple):
    """A command or group, with its words."""

    words: str
    command: Any
    is_group: bool


def walk(command: Any, words: tuple[str, ...] = (), *, with_hidden: bool = False) -> Iterator[CommandText]:
    """Return the commands and groups below this one, each group before its commands. Hidden ones are left out unless `with_hidden`."""
    commands = getattr(command, "commands", {})
    below = {name: each for name, each in commands.items() if with_hidden or not each.hidden}
    if words:
        yield CommandText(" ".join(words), command, bool(below))
    for name, each in below.items():
        yield from walk(each, (*words, name), with_hidden=with_hidden)


def make_page() -> str:
    """Return the page."""
    commands = list(walk(typer.main.get_command(app)))
    parts = [HEAD, "| command | effect |\n| --- | --- |"]
    parts += [
        f"| [`snapline {each.words}`](#{each.words.replace(' ', '-')}) | {_inline(_summary(each.command))} |"
        for each in commands
        if not each.is_group
    ]
    for name, (kind, introduction) in SHARED.items():
        example = next(each for each in commands if name in _groups_of(each.command))
        options = [one for one in _visible(example.command) if _key(one) in _keys_of(kind)]
        parts += [f"\n## Options of {name}\n", introduction, *_table(options)]
    for each in commands:
        parts += ["", *_section(each)]
    parts += ["## Exit codes\n", "| code | meaning |\n| --- | --- |"]
    parts += [f"| {code} | {_inline(meaning)} |" for code, meaning in EXIT_CODES.items()]
    parts.append("\nAn unknown code means failure.\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def _section(each: CommandText) -> Iterator[str]:
    level = "##" if " " not in each.words else "###"
    yield f"{level} {each.words}\n"
    see = f" See [{SEE[each.words].partition('#')[0]}]({SEE[each.words]})." if each.words in SEE else ""
    if each.is_group:
        yield f"{_inline(each.command.help)}{see}\n"
        return
    yield f"```\n{_usage(each)}\n```\n"
    yield _inline("\n\n".join(" ".join(part.split()) for part in each.command.help.split("\n\n"))) + f"{see}\n"
    names = _groups_of(each.command)
    shared = set().union(*(_keys_of(SHARED[name][0]) for name in names))
    own = [one for one in _visible(each.command) if _key(one) not in shared]
    if own:
        yield from _table(own)
    if names:
        links = " and of ".join(f"[{name}](#options-of-{name})" for name in names)
        yield f"\n{'Also' if own else 'It has'} the options of {links}.\n"
    for heading, module, name in DETAILS.get(each.words, ()):
        yield f"\n#### {heading}\n"
        definition = make_api.find(module, name)[1] if name else make_api.parse_module(module)[1]
        text = re.sub(r"^.+\n-{4,}\n", "", "\n".join(make_api.render(definition)), flags=re.MULTILINE)
        yield _with_links(text.replace("```python", "```"))
    if each.words == "config show":
        yield "| setting | variable | default |\n| --- | --- | --- |"
        yield "\n".join(f"| `{key}` | `SNAPLINE_{key.upper()}` | {_code(value)} |" for key, value in DEFAULTS.items())


def _usage(each: CommandText) -> str:
    words = ["snapline", each.words]
    for one in each.command.params:
        if one.param_type_name == "option" and one.required:
            words += [one.opts[0], _values(one)]
    words.append("[OPTIONS]")
    for one in each.command.params:
        if one.param_type_name == "argument":
            name = _values(one)
            words.append(name if one.required or name.startswith("[") else f"[{name}]")
    return " ".join(words)


def _table(parameters: Iterable[Any]) -> Iterator[str]:
    yield "| option | default | meaning |\n| --- | --- | --- |"
    for one in parameters:
        is_option = one.param_type_name == "option"
        names = [f"{name} {_values(one)}".strip() for name in one.opts] if is_option else [_values(one)]
        variable = f" Variable: `{one.envvar}`." if one.envvar else ""
        yield f"| {', '.join(_code(name) for name in names)} | {_default(one)} | {_cell(_inline(one.help or ''))}{_limits(one)}{variable} |"


def _values(one: Any) -> str:
    """Return the metavar of an option, or its choices."""
    choices = [str(getattr(each, "value", each)) for each in getattr(one.type, "choices", ())]
    if getattr(one, "is_flag", False):
        return ""
    return one.metavar or "|".join(choices) or str(one.name).upper()


def _limits(one: Any) -> str:
    low, high = getattr(one.type, "min", None), getattr(one.type, "max", None)
    if low is None:
        return ""
    return f" At least {low:g}." if high is None else f" From {low:g} to {high:,.10g}."


def _default(one: Any) -> str:
    """Return the default: its description if it has one, or its value."""
    if one.required:
        return "required"
    if isinstance(described := getattr(one, "show_default", None), str):
        return _cell(_inline(described))
    value = getattr(one.default, "value", one.default)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path):
        return ""  # a flag, or no value: releases of Click have different objects for it
    return _code(f"{value:g}" if isinstance(value, float) else str(value))


def _groups_of(command: Any) -> list[str]:
    """Return the names of the groups in `SHARED` whose options the command has."""
    keys = {_key(one) for one in command.params}
    return [name for name, (kind, _) in SHARED.items() if keys >= _keys_of(kind)]


def _visible(command: Any) -> list[Any]:
    return [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]


def _keys_of(group: type[Any]) -> set[tuple[str, str]]:
    """Return the keys of a group's options, without those that it inherits."""
    hints = get_type_hints(group, include_extras=True)
    options = [hints[name].__metadata__[0] for name in inspect.get_annotations(group)]
    return {(str(option.default), option.help or "") for option in options}


def _key(one: Any) -> tuple[str, str]:
    return one.opts[0], getattr(one, "help", None) or ""


def _summary(command: Any) -> str:
    return " ".join(command.help.partition("\n\n")[0].split())


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _inline(text: str) -> str:
    """Return a text of help as Markdown: options become code, pages links."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else _plain(piece) for piece in pieces)


def _plain(text: str) -> str:
    text = re.sub(r"(?<![\w-])(--?[a-z][a-z-]*|[A-Z]+/\S*\*\S*\w|\*\.\w+)", r"`\1`", text)
    return _with_links(text)


def _with_links(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


if __name__ == "__main__":
    made = make_page()
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if PAGE.read_text() == made else f"{PAGE.name} is not current: run `make docs`")
    PAGE.write_text(made)
