"""`snapline health`: whether one process is alive or ready. Container runtimes call it every few seconds."""

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from snapline.cli.command import Display, check_address, command
from snapline.cli.output import document
from snapline.errors import ExternalFailureError, UsageError

TIMEOUT_S = 5.0
"""Time limit of the call, which stays on one machine; container runtimes have their own limit."""

app = typer.Typer(rich_markup_mode=None, subcommand_metavar="")


class HealthQuestion(StrEnum):
    """Values of `--is`; names of `telemetry/health.py`."""

    ALIVE = "alive"
    READY = "ready"


@app.callback(invoke_without_command=True)
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
            help="As the process was given it.",
        ),
    ] = "",
    question: Annotated[HealthQuestion, typer.Option("--is", help="What is asked.")] = HealthQuestion.READY,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="For the answer.")
    ] = TIMEOUT_S,
) -> None:
    """Ask a host or a coordinator that was started with --health.

    Exit code 0 if it is so, 1 if not. Who is alive answers; a coordinator is ready while it hears a majority, a host once it has
    joined its fleet. The address may also stand in the variable SNAPLINE_HEALTH.
    """
    import grpc

    from snapline.telemetry.health import is_serving

    if not address:
        raise UsageError("whom to ask? Give the --health of the process, or set SNAPLINE_HEALTH")
    try:
        is_so = asyncio.run(is_serving(check_address(address, "--health"), question.value, timeout))
    except grpc.RpcError as error:
        raise ExternalFailureError(f"nobody answers at {address}: {error.details()}") from error
    if not is_so:
        raise ExternalFailureError(f"the process at {address} is not {question.value}")
    result = document("Health", address=address, answer=question.value)
    display.printer().result(result, lambda shown, tables: tables.line(f"{shown['answer']}"))
