"""Pages of the documentation site that only exist there: made from code when the site is built (`make docs-site`), and never committed.

They show, in pages of their own, what the code knows and other pages mention only in passing: exit codes with their errors, settings and
environment variables, faults, the messages on the wire, the public classes of the adapters. README, CONTRIBUTING and CHANGELOG are pages, too.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from docs import make_api
from docs.make_cli import walk

from snapline import errors
from snapline.cli import command, settings
from snapline.cli.main import app
from snapline.sim.faults.fault_kinds import FAILPOINTS
from snapline.sim.faults.faults import describe_faults
from snapline.sim.search.swarm import BUILT_IN
from snapline.storage.keys import key_files

ROOT = Path(__file__).parents[1]
PROTOS = Path("protos/snapline/protos/v1")

ADAPTERS: Mapping[str, tuple[str, ...]] = {
    "snapline.adapters.langgraph": (),
    "snapline.adapters.pydantic_ai": ("SnaplineDurability", "run"),
    "snapline.adapters.openai_agent_runs": ("run",),
    "snapline.adapters.openai_agents": ("SnaplineSession", "SnaplineSessions"),
    "snapline.adapters.microsoft_agent_framework": ("SnaplineCheckpointStorage",),
    "snapline.adapters.llama_workflows": ("SnaplineContexts",),
    "snapline.adapters.crewai_flows": ("SnaplineFlowPersistence",),
    "snapline.adapters.autogen": (),
    "snapline.adapters.grpc": (),
    "snapline.adapters.ray": (),
    "snapline.adapters.torch_checkpoint": (),
    "snapline.deploy.launching": ("ProcessSpec", "Handle", "Launcher"),
}
"""Modules whose public names have no place in `import snapline`; () stands for the names in `__all__`."""

MADE = "Made from the code when the site is built."


def pages() -> dict[str, str]:
    """Return the pages by their file in the site, as Markdown."""
    return {
        "overview.md": moved((ROOT / "README.md").read_text()),
        "contributing.md": moved((ROOT / "CONTRIBUTING.md").read_text()),
        "changelog.md": moved((ROOT / "CHANGELOG.md").read_text()),
        "adapters-api.md": "\n".join(adapters_page()),
        "configuration.md": "\n".join(configuration_page()),
        "exit-codes.md": "\n".join(exit_codes_page()),
        "faults.md": "\n".join(faults_page()),
        "protos.md": "\n".join(protos_page()),
    }


def moved(page: str) -> str:
    """Return a page of the repository's top folder with links as pages of docs/ have them."""
    return re.sub(r"\]\(docs/", "](", page).replace("](CONTRIBUTING.md", "](contributing.md")


def adapters_page() -> Iterator[str]:
    """Yield the reference of the adapters, as instructions for mkdocstrings."""
    yield f"# API of adapters\n\nPublic classes and functions of the adapters and of launchers, next to those of `import snapline` ([API](api.md)). {MADE}\n"
    for module, names in ADAPTERS.items():
        chosen = names or _exported(module)
        yield f"## {module}\n\n::: {module}\n    options:\n      members: [{', '.join(chosen)}]\n"


def _exported(module: str) -> tuple[str, ...]:
    source, _ = make_api.parse_module(module)
    found = re.search(r"^__all__ = \[(.*?)\]", source, re.MULTILINE | re.DOTALL)
    assert found is not None, module
    return tuple(re.findall(r'"(\w+)"', found[1]))


def configuration_page() -> Iterator[str]:
    """Yield the settings, and the environment variables of all commands."""
    yield f"# Configuration\n\nSettings of the command line, and environment variables; what a fleet itself sets is in [`Fleet`](api.md#fleet). {MADE}\n\n## Settings\n"
    yield f"{inspect.cleandoc(settings.__doc__ or '')}\n"
    yield "| setting | variable | default |\n| --- | --- | --- |"
    yield from (
        f"| `{key}` | `SNAPLINE_{key.upper()}` | {f'`{value}`' if value else ''} |"
        for key, value in settings.DEFAULTS.items()
    )
    yield "\n## Variables of options\n\n| variable | option | commands |\n| --- | --- | --- |"
    found: dict[tuple[str, str], list[str]] = {}
    for each in walk(typer.main.get_command(app)):
        for option in () if each.is_group else each.command.params:
            if option.envvar:
                found.setdefault((str(option.envvar), option.opts[0]), []).append(each.words)
    yield from (
        f"| `{variable}` | `{option}` | {', '.join(_command_link(words) for words in commands)} |"
        for (variable, option), commands in sorted(found.items())
    )
    yield "\n## Other variables\n\n| variable | meaning |\n| --- | --- |"
    yield f"| `{settings.FILE_VARIABLE}` | path of the settings file |\n| `{settings.CONTEXT_VARIABLE}` | context in it |"
    for variable in (key_files.STORE_KEY_VARIABLE, key_files.SIGNING_KEY_VARIABLE, key_files.VERIFY_KEY_VARIABLE):
        yield f"| `{variable}` | a key file of the store ([encryption and signatures](protection.md)) |"
    yield f"| `{command.TRACEBACK_VARIABLE}` | 1: errors of commands with their traceback |"


def _command_link(words: str) -> str:
    return f"[{words}](cli.md#{words.replace(' ', '-')})"


def exit_codes_page() -> Iterator[str]:
    """Yield the exit codes, with the errors that end a command with each."""
    yield f"# Exit codes\n\nAll commands and processes use the same codes; an unknown one means failure. {MADE}\n"
    yield "| code | meaning | errors ([all](api.md#errors)) |\n| --- | --- | --- |"
    by_code: dict[int, list[str]] = {}
    for name in sorted(vars(errors)):
        error: Any = getattr(errors, name)
        if inspect.isclass(error) and issubclass(error, errors.SnaplineError):
            by_code.setdefault(error.exit_code, []).append(f"`{name}`")
    for code, meaning in command.EXIT_CODES.items():
        yield f"| {code} | {meaning} | {', '.join(by_code.get(code, []))} |"


def faults_page() -> Iterator[str]:
    """Yield the faults, the failpoints and the built-in templates of the simulator."""
    yield f"# Faults\n\nFaults that the simulator injects; [chaos](chaos.md#supported-faults) injects most of them into real processes. [Simulation](simulation.md#faults) explains fault files. {MADE}\n"
    yield "| class | word | effect |\n| --- | --- | --- |"
    yield from (f"| {kind} | `{word}` | {text} |" for kind, word, text in describe_faults())
    yield "\n## Templates\n\n| template | faults that it draws from |\n| --- | --- |"
    for name, template in BUILT_IN.items():
        drawn = "" if template.swarm is None else ", ".join(f"`{word}`" for word in template.swarm.faults) or "all"
        yield f"| `{name}` | {drawn} |"
    yield f"\n## Failpoints\n\n{len(FAILPOINTS)} named points of the code, for `failpoint`:\n"
    yield from (f"- `{point}`" for point in FAILPOINTS)


def protos_page() -> Iterator[str]:
    """Yield the calls of all services, and the files with their comments."""
    yield f"# Wire protocol\n\nServices and messages with which processes of a fleet, clients and tools talk gRPC. {MADE}\n"
    files = sorted((ROOT / PROTOS).glob("*.proto"))
    yield "| service | call | request | reply |\n| --- | --- | --- | --- |"
    for file in files:
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", file.read_text(), re.MULTILINE | re.DOTALL):
            for name, request, reply in re.findall(r"rpc (\w+)\(([^)]*)\) returns \(([^)]*)\)", body):
                yield f"| [{service}](#{file.stem}) | `{name}` | `{request}` | `{reply}` |"
    for file in files:
        yield f"\n## {file.stem}\n\n`{PROTOS / file.name}`\n\n```proto\n{file.read_text().strip()}\n```"
