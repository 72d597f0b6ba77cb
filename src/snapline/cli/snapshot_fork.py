"""`snapline snapshot fork`: a new fleet out of a snapshot of another."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Display, FleetArguments, parse_arguments
from snapline.cli.output import Document, DocumentTables, count, document, text
from snapline.cli.snapshot_retention import StorePlace
from snapline.errors import UsageError

_SNAPSHOT = typer.Argument(metavar="ID", help="Epoch number, `latest`, tag, or first digits of a root.")


NAMES_SHOWN = 20


class InputsChoice(StrEnum):
    """Values of `--inputs`."""

    COPY = "copy"
    DROP = "drop"


@command
def fork(
    place: StorePlace,
    display: Display,
    snapshot: Annotated[str, _SNAPSHOT],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the fork.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder of the fork; made if needed.")],
    to_store: Annotated[
        str, typer.Option("--to-store", metavar="STORE", help="Its store, as path or URL.", show_default="DIR/store")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AGENT.FIELD=JSON", help="Change a field of a state; repeatable. Takes --fleet."),
    ] = None,
    fleet: Annotated[
        str, typer.Option("--fleet", metavar="MODULE:FLEET", help="The code that the fork is run with, if it is new.")
    ] = "",
    arg: FleetArguments = None,
    inputs: Annotated[
        InputsChoice, typer.Option("--inputs", help="What becomes of inputs that the agents have not consumed.")
    ] = InputsChoice.DROP,
    live: Annotated[bool, typer.Option("--live", help="Let it do effects.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="First remove what an unfinished fork has left at the same place.")
    ] = False,
) -> None:
    """Make a new fleet out of a snapshot.

    The fleet of the snapshot may run meanwhile, and is not changed. `snapline run --data-dir DIR` then runs the fork beside it.
    """
    import msgspec

    from snapline.agent_runtime.snapshots.forking import ForkRequest, fork_snapshot
    from snapline.cli.fleet import check_reference, load
    from snapline.deploy.data_directory import folder_of_fork

    if arg and not fleet:
        raise UsageError("--arg is for the function that --fleet names: give --fleet MODULE:FLEET")
    if fleet:
        check_reference(fleet)
    request = ForkRequest(
        name=name,
        settings=parse_settings(settings or []),
        fleet=load(fleet, parse_arguments(arg)) if fleet else None,
        inputs=inputs.value,
        is_live=live,
    )
    source = place.open()
    epoch = source.resolve(snapshot)
    with folder_of_fork(to) as store:
        forked = fork_snapshot(source, epoch, to_store or str(store), request, begin_again=again)
    display.printer().result(document("Fork", data_dir=str(to), **msgspec.to_builtins(forked)), _show)


def parse_settings(settings: list[str]) -> dict[str, bytes]:
    """Convert `["a.count=3"]` to `{"a.count": b"3"}`.

    Raises:
        UsageError: a setting is not AGENT.FIELD=JSON, or a field is given twice.
    """
    from snapline.messages.json_text import read_json

    parsed: dict[str, bytes] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not path or not equals:
            raise UsageError(f"--set {setting!r} is not AGENT.FIELD=JSON")
        if path in parsed:
            raise UsageError(f"--set {path}=… is given twice: give it once")
        try:
            read_json(value)
        except UsageError as error:
            raise UsageError(
                f"--set {path}={value} is no JSON ({error}): text takes quotation marks, as in '\"a\"'"
            ) from error
        parsed[path] = value.encode()
    return parsed


def describe(fork: Mapping[str, object]) -> str:
    """Describe a fork's origin in a few words."""
    refusal = "" if fork.get("is_live") else "; effects are refused"
    return f"{text(fork.get('name'))}: fork of {text(fork.get('parent_name'))}, epoch {fork.get('epoch')}{refusal}"


def _show(result: Document, tables: DocumentTables) -> None:
    agents, messages = (
        count(_number(result, name), word) for name, word in (("agents", "agent"), ("messages", "message"))
    )
    tables.line(f"{describe(result)}")
    tables.line(f"{agents}, {messages} in transit, in {result.get('data_dir')}")
    copied, dropped = _number(result, "inputs_copied"), _number(result, "inputs_dropped")
    if copied or dropped:
        tables.line(f"{count(copied, 'input')} taken along, {dropped} dropped")
    refused = _number(result, "effects_refused")
    if refused:
        tables.line(f"{count(refused, 'effect')} of the parent's left to it, and refused here")
    for place in _texts(result, "changed"):
        tables.line(f"set {place}")
    absent = _texts(result, "not_begun")
    if absent:
        shown = ", ".join(absent[:NAMES_SHOWN]) + (", …" if len(absent) > NAMES_SHOWN else "")
        tables.line(f"not in the snapshot, and so not begun: {shown}")


def _number(result: Document, name: str) -> int:
    value = result.get(name)
    return value if isinstance(value, int) else 0


def _texts(result: Document, name: str) -> list[str]:
    value = result.get(name)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
