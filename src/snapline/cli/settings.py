"""Settings and their origins.

A flag takes precedence over the environment, the environment over snapline.toml, and snapline.toml over the default.

    [up]                        settings for all contexts
    on = "ray"
    hosts = 3

    [context.prod]              additional or overriding settings in one context
    address = "10.0.0.7:6379"

`up`, `down`, `status` and all commands with --coordinator take missing options from the settings. The following settings have no option:

- `machines`: machines for ssh, separated by commas. `ssh`: the ssh program and its options.
- `python`, `code`: the interpreter, and the folder with the fleet's module, on machines of ssh and Slurm. For podman, `code` is a local
  folder.
- `sbatch`: options for all Slurm jobs.
- `image`: image for podman containers.
- `on_failure`: "restart" or "move", for dead hosts of fleets that do not run on this machine.

The file is `snapline.toml` in the current folder, or the path in SNAPLINE_CONFIG. The environment variables have names such as SNAPLINE_ON
and SNAPLINE_HOSTS. --context, SNAPLINE_CONTEXT, or the file that `snapline config context use` writes next to snapline.toml selects the
context.
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
    """The value of a setting, and the origin of this value."""

    key: str
    value: str
    origin: str


class UserSettings:
    """The settings in the environment and in the settings file.

    Attributes:
        context: the context in use, or `""` if none is in use.
    """

    def __init__(self, context: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Read the settings file if it exists.

        Raises:
            UsageError: If the file cannot be read, or contains unknown tables or keys.
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
        """Return one setting. `flag` is the value of the command's option, or None if the option was not given.

        Raises:
            NotFoundError: If the file does not contain the context in use.
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
        """Return all settings, as if no options were given."""
        return [self.get(key) for key in DEFAULTS]

    def use(self, context: str) -> None:
        """Record that this context is used from now on. If it is empty, no context is used.

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
