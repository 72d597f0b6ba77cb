"""Reports what a process runs a fleet on: versions, sources, environment variables and descriptions.

`snapline.messages.dependencies` describes reports and compares them.
"""

import inspect
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.errors import FleetDefinitionError, SnaplineError
from snapline.messages.dependencies import (
    ENTRIES_MAX,
    KINDS,
    MISSING,
    POLICIES,
    TEXT_CHARACTERS_MAX,
    WARN,
)

if TYPE_CHECKING:
    from snapline.storage.store.store import Store

log = logging.getLogger(__name__)

ALWAYS = ("snapline", "msgspec", "grpcio", "numpy")
"""Distributions whose versions are always reported if they are installed, since states are written and sent with them."""

SOURCES_MAX = 100
"""Largest number of modules that are reported one by one. The sources of further modules are reported as one digest."""

_DIGEST_BYTES = 8

AgentSource = Agent | Callable[[], Agent]


class DeclaredDependencies:
    """Declarations of a fleet about its dependencies. The arguments are those of `Fleet`."""

    def __init__(
        self,
        dependencies: Iterable[str],
        variables: Iterable[str],
        describes: Mapping[str, str],
        on_change: str | Mapping[str, str],
    ) -> None:
        self.dependencies = _names("dependencies", dependencies)
        self.variables = _names("variables", variables)
        self.describes = dict(describes)
        for name, text in self.describes.items():
            _check_text("describes", name)
            _check_text("describes", text)
        self.policies = dict.fromkeys(KINDS, on_change) if isinstance(on_change, str) else dict(on_change)
        for kind, policy in self.policies.items():
            if kind not in KINDS or policy not in POLICIES:
                raise FleetDefinitionError(
                    f"on_change has {kind!r}: {policy!r}: use {', '.join(KINDS)}, and {', '.join(POLICIES)}"
                )
        if len(self.dependencies) + len(self.variables) + len(self.describes) > ENTRIES_MAX - SOURCES_MAX - 16:
            raise FleetDefinitionError(
                f"dependencies, variables and describes have more than {ENTRIES_MAX - SOURCES_MAX - 16} entries together"
            )


def _names(option: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise FleetDefinitionError(f"{option} is a list: write {option}=[{given!r}]")
    names = tuple(given)
    for name in names:
        _check_text(option, name)
    return names


def _check_text(option: str, text: object) -> None:
    if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= TEXT_CHARACTERS_MAX:
        raise FleetDefinitionError(
            f"{option} has {text!r}: use printable text of 1 to {TEXT_CHARACTERS_MAX} characters"
        )


def dependency_report(
    agents: Mapping[str, AgentSource], declared: DeclaredDependencies, open_store: Callable[[], "Store"]
) -> dict[str, str]:
    """Return what this process runs the fleet on. The function reads files, and may take a tenth of a second.

    Args:
        agents, declared: as in the fleet's definition.
        open_store: function that opens the fleet's store, whose key makes the digests of variables. In a store without encryption, variables
            are not reported, because short values can be guessed from digests.
    """
    report = _versions([*ALWAYS, *declared.dependencies])
    report |= _sources(agents)
    if declared.variables:
        report |= _variables(declared.variables, open_store)
    report |= {f"describes:{name}": text for name, text in declared.describes.items()}
    return report | {f"policy:{kind}": policy for kind, policy in declared.policies.items() if policy != WARN}


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    from importlib import metadata  # imported here because the module takes a twentieth of the total import time

    versions = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)[:TEXT_CHARACTERS_MAX]
        except metadata.PackageNotFoundError:
            if name not in ALWAYS:
                versions[name] = MISSING
    return versions


def _sources(agents: Mapping[str, AgentSource]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for module in sorted(dict.fromkeys(_modules(agents))):
        path = getattr(sys.modules.get(module), "__file__", None)
        try:
            digest = blake3(Path(path or "").read_bytes()).hexdigest(_DIGEST_BYTES)
        except OSError:
            continue  # the module has no file, as in an interactive session
        sources[f"source:{module}"[:TEXT_CHARACTERS_MAX]] = digest
    if len(sources) <= SOURCES_MAX:
        return sources
    rest = [f"{name} {digest}" for name, digest in list(sources.items())[SOURCES_MAX - 1 :]]
    kept = dict(list(sources.items())[: SOURCES_MAX - 1])
    return kept | {f"source:{len(rest)} more modules": blake3("\n".join(rest).encode()).hexdigest(_DIGEST_BYTES)}


def _modules(agents: Mapping[str, AgentSource]) -> Iterator[str]:
    """Yield the modules that define the fleet's agents, states and messages. Modules of Python and of snapline are left out."""
    seen: dict[object, None] = {}
    for source in agents.values():
        made_by: object = type(source) if isinstance(source, Agent) else source
        while isinstance(made_by, partial):
            made_by = made_by.func
        if made_by not in seen:
            seen[made_by] = None
            yield from filter(_is_users, _modules_of(made_by))


def _modules_of(made_by: object) -> Iterator[str]:
    if not (inspect.isclass(made_by) and issubclass(made_by, Agent)):
        yield getattr(made_by, "__module__", "")
        return
    known = agent_type(made_by)
    yield from [base.__module__ for base in made_by.__mro__]
    yield from [handler.message_type.__module__ for handler in known.handlers.values()]
    yield getattr(known.state_type, "__module__", "")


def _is_users(module: str) -> bool:
    package = module.partition(".")[0]
    return package not in ("", "snapline") and package not in sys.stdlib_module_names


def _variables(names: Iterable[str], open_store: Callable[[], "Store"]) -> dict[str, str]:
    try:
        store = open_store()
        if not store.is_encrypted:
            log.warning(
                "the fleet's variables are not recorded, as short values can be guessed: encrypt the store, or use describes"
            )
            return {}
        key_id = store.digest(b"snapline variables").hex()[:8]
        digests = {
            name: store.digest(f"snapline variable {name}\0{os.environ[name]}".encode()).hex()[: 2 * _DIGEST_BYTES]
            for name in names
            if name in os.environ
        }
    except (SnaplineError, OSError):
        return {}  # the host reports the store's problem
    return {f"variable:{name}": f"{key_id}:{digests.get(name, 'unset')}" for name in names}
