"""Commands of `snapline` in tests: run inside this process, which is quick and the same code from arguments to exit code."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.testing import CliRunner


@dataclass
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


def invoke(app: typer.Typer, *arguments: object, environment: Mapping[str, str] | None = None) -> Outcome:
    done = CliRunner().invoke(app, list(map(str, arguments)), env=environment, prog_name="snapline")
    return Outcome(done.exit_code, done.stdout, done.stderr)
