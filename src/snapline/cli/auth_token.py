"""`snapline auth token …`: tokens of people (docs/security.md)."""

from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import Connection, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.ids import check_id

if TYPE_CHECKING:
    from snapline.messages.users import TokenStatus

DAY_S = 24 * 3600

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Tokens of people: made, listed and revoked by admins."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; the audit log shows it.")]


@app.command("create")
@command
def create(
    connection: Connection,
    display: Display,
    name: Name,
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="viewer, operator or admin.")] = "viewer",
    days: Annotated[int, typer.Option("--days", min=1, max=365, metavar="N", help="Validity in days.")] = 30,
) -> None:
    """Make a token for a person, and print it once: the fleet keeps its digest alone.

    Put it into a file that only they can read; commands take it by --auth-token.
    """
    from snapline.security.tokens import digest_of, new_token
    from snapline.storage.timestamps import instant

    check_id(name, "token")
    token = new_token()
    created = connection.ask(
        lambda client: client.make_token(name, role, digest_of(token), days * DAY_S, connection.timeout)
    )
    expires = instant(created.expires_ns / 1e9)
    display.printer().result(document("TokenCreated", name=name, role=role, expires=expires, token=token), _show_one)


@app.command("list")
@command
def list_tokens(connection: Connection, display: Display) -> None:
    """List tokens: whose they are, what they may do, and until when. What they are, nobody knows."""
    listed = connection.ask(lambda client: client.read_tokens(connection.timeout))
    rows = [_row(token) for token in listed.tokens]
    display.printer().result(document("TokenList", tokens=rows), _show)


@app.command("revoke")
@command
def revoke(connection: Connection, display: Display, name: Name) -> None:
    """Make a token good for nothing, at once; hosts believe it for five seconds more, for calls that only read."""
    connection.ask(lambda client: client.revoke_token(name, connection.timeout))
    display.printer().result(
        document("TokenRevoked", name=name),
        lambda shown, tables: tables.line(f"the token of {shown['name']} is revoked"),
    )


def _row(each: "TokenStatus") -> dict[str, object]:
    from snapline.storage.timestamps import instant

    created, expires = (instant(at_ns / 1e9) for at_ns in (each.made_ns, each.expires_ns))
    return {"name": each.name, "role": each.role, "created": created, "expires": expires, "is_expired": each.is_expired}


def _show(result: Document, tables: DocumentTables) -> None:
    columns = ("name", "role", "created", "expires", "is_expired")
    rows = [[row.get(name) for name in columns] for row in rows_of(result, "tokens")]
    tables.table([name.upper() for name in columns], rows)


def _show_one(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("name", "role", "expires", "token"))
    tables.line("it is not shown again")
