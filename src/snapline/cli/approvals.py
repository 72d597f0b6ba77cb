"""`snapline approval …` lists the questions with which agents wait for people, and answers them."""

import asyncio
import contextlib
import getpass
import time
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import CLIENT_NAME, Connection, Display, command
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from snapline.client.client import Client
    from snapline.messages.approvals import OpenApproval

WAIT_S = 0.2
"""Time in seconds between two looks of `--wait`."""

ID_SHOWN, ID_LEAST = 16, 8
"""Number of characters of an approval's id that the list shows, and the fewest that a command takes."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or its first characters, at least eight.")]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="A note for the agent.", show_default=False)]
Name = Annotated[
    str,
    typer.Option(
        "--by", metavar="NAME", help="Your name, if the fleet has no certificates.", show_default="the login name"
    ),
]


@app.command("list")
@command
def list_approvals(
    connection: Connection,
    display: Display,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until there is one, for --timeout at most.")] = False,
) -> None:
    """List the approvals for which agents wait, those first that have waited longest, with all details.

    Hosts that do not answer within 2 s are left out.
    """
    import msgspec

    async def ask(client: "Client") -> "list[OpenApproval]":
        ends_s = time.monotonic() + connection.timeout
        while True:
            found = await client.approvals()
            if found or not wait or time.monotonic() > ends_s:
                return found
            await asyncio.sleep(WAIT_S)

    found = connection.call_agents(ask)
    display.printer().result(document("Approvals", approvals=msgspec.to_builtins(found)), _show)


@app.command("grant")
@command
def grant(connection: Connection, display: Display, approval: Id, note: Note = "", by: Name = "") -> None:
    """Grant what an agent asks. The first answer counts.

    The command returns when no recovery can undo the answer. Exit codes: 0: the agent goes on with it, or will when it asks again
    after a recovery. 2: decided or expired before, or not permitted. 4: no agent waits for it. 9: unknown in time; repeating is safe.
    """
    _answer(connection, display, approval, note, by, is_granted=True)


@app.command("deny")
@command
def deny(connection: Connection, display: Display, approval: Id, note: Note = "", by: Name = "") -> None:
    """Deny what an agent asks. The first answer counts. Exit codes: those of `approval grant`."""
    _answer(connection, display, approval, note, by, is_granted=False)


def _answer(connection: Connection, display: Display, approval: str, note: str, by: str, *, is_granted: bool) -> None:
    if len(approval) < ID_LEAST:
        raise UsageError(f"{approval!r} is too short: give at least {ID_LEAST} characters of the approval's id")

    async def answer(client: "Client") -> tuple["OpenApproval", str]:
        found = _chosen(await client.approvals(), approval)
        return found, await client.answer_approval(
            found.agent, found.id, is_granted=is_granted, note=note, timeout_s=connection.timeout
        )

    found, status = connection.call_agents(answer, by or _login_name())
    result = document(
        "AnsweredApproval", id=found.id, agent=found.agent, title=found.title, is_granted=is_granted, status=status
    )
    display.printer().result(result, _show_answered)


def _chosen(found: "list[OpenApproval]", approval: str) -> "OpenApproval":
    matching = [each for each in found if each.id.startswith(approval.lower())]
    if not matching:
        raise NotFoundError(f"no agent waits for approval {approval!r}: see `snapline approval list`")
    if len(matching) > 1:
        raise UsageError(f"{len(matching)} approvals begin with {approval!r}: give more of the id")
    return matching[0]


def _login_name() -> str:
    from snapline.ids import check_id

    with contextlib.suppress(UsageError, OSError, KeyError):
        return check_id(getpass.getuser())
    return CLIENT_NAME


def _show(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "approvals")
    if not rows:
        tables.line("no approvals are open")
    for row in rows:
        expires_s = row.get("expires_s")
        expiry = f", expires in {_span(expires_s)}" if isinstance(expires_s, float | int) else ""
        tables.line(f"{str(row['id'])[:ID_SHOWN]}  {row['agent']}: {row['title']}")
        tables.line(f"  has waited {_span(row['asked_s'])}{expiry}")
        for name, value in _lines_of(row.get("details")):
            tables.line(f"  {name}: {value}" if name else f"  {value}")


def _lines_of(details: object) -> list[tuple[str, object]]:
    if isinstance(details, dict):
        return [(str(name), value) for name, value in details.items()]
    return [] if details is None else [("", details)]


def _span(seconds: object) -> str:
    assert isinstance(seconds, float | int)
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _show_answered(result: Document, tables: DocumentTables) -> None:
    word = "granted" if result["is_granted"] else "denied"
    later = (
        "; its turn runs again after a recovery, and takes the answer when it asks"
        if result["status"] == "kept"
        else ""
    )
    tables.line(f"{word}: {result['title']}, of agent {result['agent']}{later}")
