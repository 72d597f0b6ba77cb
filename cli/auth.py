"""`snapline auth …`: make the certificates of a fleet (docs/security.md)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import command
from snapline.cli.options import REPLICAS, Display
from snapline.cli.output import Document, DocumentTables, document, rows_of
from snapline.errors import MisuseError

if TYPE_CHECKING:
    from snapline.channels.certificates import Issued

TOOLS = ("viewer", "operator", "admin", "launcher", "client")
"""Roles of people and programs that get a certificate of their own in a new set."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Certificates: who may do what in a fleet.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the authority and what it signs.")]
Days = Annotated[int, typer.Option("--days", min=1, max=3650, metavar="N", help="How long certificates are valid.")]


@app.command("init")
@command
def init(
    display: Display,
    folder: Folder,
    hosts: Annotated[str, typer.Option("--hosts", metavar="ID,…", help="Names of the hosts.")] = "h1,h2",
    replicas: Annotated[
        str, typer.Option("--replicas", metavar="ID,…", help="Names of the coordinator's replicas.")
    ] = "c1",
    domain: Annotated[
        str, typer.Option("--tls-domain", metavar="DOMAIN", help="Trust domain of the fleet, in every certificate.")
    ] = "snapline",
    days: Days = 365,
) -> None:
    """Make a working set: an authority, and certificates for coordinator, hosts and tools.

    Keys are readable by you alone. Give each process its own files and ca.crt; keep ca.key where no process runs.
    """
    from snapline.channels.certificates import Authority

    wanted = [("coordinator", name) for name in _names(replicas, "--replicas")]
    if len(wanted) not in REPLICAS:
        raise MisuseError(f"a coordinator has 1, 3 or 5 replicas; --replicas names {len(wanted)}")
    wanted += [("host", name) for name in _names(hosts, "--hosts")]
    authority = Authority.create(folder, domain=domain)
    issued = [authority.issue(role, name, days=days) for role, name in [*wanted, *zip(TOOLS, TOOLS, strict=True)]]
    result = document(
        "AuthorityCreated",
        folder=str(folder),
        tls_domain=authority.domain,
        ca=str(folder / "ca.crt"),
        certificates=[_row(made) for made in issued],
    )
    display.printer().result(result, _show)


@app.command("issue")
@command
def issue(
    display: Display,
    folder: Folder,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, operator, admin, host, launcher, coordinator …")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: the id of a host or replica, or a person.")],
    days: Days = 365,
) -> None:
    """Make one more certificate, or a new one in the place of an old one.

    Processes that run take it within a minute.
    """
    from snapline.channels.certificates import Authority

    made = Authority.load(folder).issue(role, name, days=days)
    display.printer().result(document("CertificateIssued", **_row(made)), _show_one)


def _names(listed: str, option: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise MisuseError(f"{option} {listed!r} names nobody, or somebody twice: write ID,ID,…")
    return names


def _row(made: "Issued") -> dict[str, object]:
    return {
        "role": made.role,
        "name": made.name,
        "certificate": str(made.certificate),
        "key": str(made.key),
        "expires": made.expires.isoformat(timespec="seconds"),
    }


def _show(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("ca", "tls_domain"))
    columns = ("role", "name", "certificate", "expires")
    rows = [[row.get(name) for name in columns] for row in rows_of(result, "certificates")]
    tables.table([name.upper() for name in columns], rows)
    tables.line("give each process --tls-cert, --tls-key and --tls-ca; keep ca.key where no process runs")


def _show_one(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("role", "name", "certificate", "key", "expires"))
