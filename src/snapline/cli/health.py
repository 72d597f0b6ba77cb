"""`snapline health` checks whether one process is alive or ready. Container runtimes call this command every few seconds."""

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from snapline.cli.command import Display, check_address, command
from snapline.cli.output import document
from snapline.errors import ExternalFailureError, UsageError

TIMEOUT_S = 5.0
"""Time limit in seconds for the call, which does not leave the machine. Container runtimes have their own limit."""


class HealthQuestion(StrEnum):
    """Values of the option `--is`, with the same names as in `telemetry/health.py`."""

    ALIVE = "alive"
    READY = "ready"


@command
def health(
    display: Display,
    address: Annotated[
        str,
        typer.Option(
            "--health",
            metavar="HOST:PORT",
            envvar="SNAPLINE_HEALTH",
            show_envvar=False,
            help="Address, as for the process's own --health: HOST:PORT or unix:PATH.",
        ),
    ] = "",
    question: Annotated[HealthQuestion, typer.Option("--is", help="Condition to check.")] = HealthQuestion.READY,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Time limit of the answer.")
    ] = TIMEOUT_S,
) -> None:
    """Check whether a host or coordinator process is alive or ready.

    A process that answers is alive; restart only one that is not. A coordinator is ready while it is connected to a majority, a host
    once it has joined its fleet. Other programs can call the gRPC health service of the process (`Check`, not `Watch`) with the names
    `alive` and `ready`. Exit codes: 0: it is so. 1: it is not, or no answer.
    """
    import grpc

    from snapline.telemetry.health import is_serving

    if not address:
        raise UsageError("which process? Give its --health, or set SNAPLINE_HEALTH")
    try:
        is_so = asyncio.run(is_serving(check_address(address, "--health"), question.value, timeout))
    except grpc.RpcError as error:
        raise ExternalFailureError(f"nothing answers at {address}: {error.details()}") from error
    if not is_so:
        raise ExternalFailureError(f"the process at {address} is not {question.value}")
    result = document("Health", address=address, answer=question.value)
    display.printer().result(result, lambda shown, tables: tables.line(f"{shown['answer']}"))
