"""Reads settings and records where each of them comes from.

A command line option takes precedence over an environment variable, the variable over snapline.toml, and snapline.toml over the default.
The settings file has a table `[up]` for all contexts. A table such as `[context.prod]` adds or overrides settings for one context.

`up`, `down`, `status` and all commands with --coordinator take missing options from the settings. The following settings have no option.

- `machines` contains the machines for ssh, separated by commas.
- `ssh` contains the ssh program and its options.
- `python` is the Python interpreter on machines that ssh or Slurm provides.
- `code` is the folder on these machines that contains the fleet's module. For podman, `code` is a local folder.
- `sbatch` contains options for all Slurm jobs.
- `image` is the image for podman containers.
- `on_failure` is "restart" or "move". The setting `on_failure` applies to dead hosts of fleets that do not run on this machine.

The settings file is `snapline.toml` in the current folder, or the path in SNAPLINE_CONFIG. The environment variables have names such as
SNAPLINE_ON and SNAPLINE_HOSTS. The context is selected by --context, by SNAPLINE_CONTEXT, or by the file that `snapline config context use`
writes next to snapline.toml.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from snapline.errors import NotFoundError, UsageError

FILE, FILE_VARIABLE = "snapline.toml", "SNAPLINE_CONFIG"
CONTEXT_FILE, CONTEXT_VARIABLE = ".snapline-context", "SNAPLINE_CONTEXT"

DEFAULTS = {
    "on": "local",
    "name": "fleet",
    "address": "auto",
    "machines": "",
    "ssh": "ssh",
    "sbatch": "",
    "python": "",
    "image": "snapline",
    "code": "",
    "hosts": "3",
    "coordinators": "1",
    "data_dir": "",
    "store": "",
    "tls": "",
    "tls_domain": "snapline",
    "cpus": "1",
    "on_failure": "move",
    "log_format": "text",
    "log_level": "info",
}
"""All settings and their defaults, as text. `address` is the address of the cluster, and `tls` is a folder that `snapline auth init`
created."""


class UserSetting(NamedTuple):
    """The value of a setting, together with the origin of this value."""

    key: str
    value: str
    origin: str


class UserSettings:
    """The settings from the environment and from the settings file.

    Attributes:
        context: name of the current context, or `""` if there is none.
    """

    def __init__(self, context: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Read the settings file if it exists.

        Raises:
            UsageError: If the file is unreadable, or contains unknown tables or keys.
        """
        self._environment = os.environ if environment is None else environment
        self.path = Path(self._environment.get(FILE_VARIABLE) or FILE)
        self._tables = self._read()
        self.context = context or self._environment.get(CONTEXT_VARIABLE) or self._used()

    @property
    def contexts(self) -> list[str]:
        """Return the sorted names of all contexts."""
        return sorted(name.removeprefix("context.") for name in self._tables if name.startswith("context."))

    def get(self, key: str, flag: object = None) -> UserSetting:
        """Return one setting. `flag` is the value of the command line option, or None if the option was not given.

        Raises:
            NotFoundError: If the file does not contain the current context.
        """
        if self.context:
            self._check(self.context)
        if flag is not None:
            return UserSetting(key, str(flag), f"--{key.replace('_', '-')}")
        variable = f"SNAPLINE_{key.upper()}"
        if self._environment.get(variable):
            return UserSetting(key, self._environment[variable], variable)
        for table in (f"context.{self.context}", "up"):
            if key in self._tables.get(table, {}):
                return UserSetting(key, self._tables[table][key], f"{self.path} [{table}]")
        return UserSetting(key, DEFAULTS[key], "default")

    def all(self) -> list[UserSetting]:
        """Return all settings with the values that apply if no command line options are given."""
        return [self.get(key) for key in DEFAULTS]

    def use(self, context: str) -> None:
        """Record that later commands use this context. If `context` is empty, they use no context.

        Raises:
            NotFoundError: If the file does not contain this context.
        """
        if context:
            self._check(context)
        (self.path.parent / CONTEXT_FILE).write_text(f"{context}\n")

    def _check(self, context: str) -> None:
        if context not in self.contexts:
            raise NotFoundError(f"{self.path} has no context {context!r}: it has {', '.join(self.contexts) or 'none'}")

    def _used(self) -> str:
        try:
            return (self.path.parent / CONTEXT_FILE).read_text().strip()
        except OSError:
            return ""

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            content = tomllib.loads(self.path.read_text())
        except FileNotFoundError:
            if self._environment.get(FILE_VARIABLE):
                raise UsageError(f"{FILE_VARIABLE} names {self.path}, which is not there") from None
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error
        contexts = content.pop("context", {})
        tables = {"up": content.pop("up", {})}
        if content or not isinstance(contexts, dict):
            raise UsageError(
                f"{self.path}: there is no table {next(iter(content), 'context')!r}, only up and context.NAME"
            )
        tables.update({f"context.{name}": table for name, table in contexts.items()})
        return {name: self._checked(name, table) for name, table in tables.items()}

    def _checked(self, name: str, table: object) -> dict[str, str]:
        if not isinstance(table, dict):
            raise UsageError(f"{self.path}: {name} is no table")
        unknown = [key for key in table if key not in DEFAULTS]
        if unknown:
            raise UsageError(f"{self.path} [{name}]: there is no setting {unknown[0]!r}: {', '.join(DEFAULTS)}")
        return {
            key: ",".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in table.items()
        }
