"""`snapline auth …` and `snapline audit` manage a fleet's certificates and people's tokens, and show the log of operator requests
(docs/security.md)."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import REPLICAS, Connection, Display, command
from snapline.cli.output import Document, DocumentTables, document, rows_of, utc_time
from snapline.cli.settings import UserSettings
from snapline.cli.up import Address, Context, Name
from snapline.errors import UsageError
from snapline.ids import check_id

if TYPE_CHECKING:
    from snapline.messages.answers import RecordedCall, TokenStatus
    from snapline.security.certificates import Issued


DAY_S = 24 * 3600

token_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Tokens of users; admins create, list and revoke them. Needs certificates and snapline[crypto].",
)

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Owner of the token, as the audit log shows it.")]


@token_app.command("create")
@command
def create(
    connection: Connection,
    display: Display,
    name: TokenName,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="Role: viewer, approver, operator or admin.")
    ] = "viewer",
    days: Annotated[int, typer.Option("--days", min=1, max=365, metavar="N", help="Validity in days.")] = 30,
) -> None:
    """Create a token for a user, and print it once: the fleet keeps only its digest.

    Write it to a file that only its owner can read. Commands take the file with --auth-token, next to a certificate of the role `bearer`.
    """
    from snapline.security.tokens import digest_of, new_token
    from snapline.storage.timestamps import instant

    check_id(name, "token")
    token = new_token()
    created = connection.ask(
        lambda client: client.make_token(name, role, digest_of(token), days * DAY_S, connection.timeout)
    )
    expires = instant(created.expires_ns / 1e9)
    display.printer().result(
        document("TokenCreated", name=name, role=role, expires=expires, token=token), _show_new_token
    )


@token_app.command("list")
@command
def list_tokens(connection: Connection, display: Display) -> None:
    """List tokens: owner, role and expiry. The tokens themselves are not stored."""
    listed = connection.ask(lambda client: client.read_tokens(connection.timeout))
    rows = [_token_row(token) for token in listed.tokens]
    display.printer().result(document("TokenList", tokens=rows), _show_tokens)


@token_app.command("revoke")
@command
def revoke(connection: Connection, display: Display, name: TokenName) -> None:
    """Revoke a token. Hosts may accept it for five more seconds, for read-only calls."""
    connection.ask(lambda client: client.revoke_token(name, connection.timeout))
    display.printer().result(
        document("TokenRevoked", name=name),
        lambda shown, tables: tables.line(f"the token of {shown['name']} is revoked"),
    )


def _token_row(each: "TokenStatus") -> dict[str, object]:
    from snapline.storage.timestamps import instant

    created, expires = (instant(at_ns / 1e9) for at_ns in (each.made_ns, each.expires_ns))
    return {"name": each.name, "role": each.role, "created": created, "expires": expires, "is_expired": each.is_expired}


def _show_tokens(result: Document, tables: DocumentTables) -> None:
    columns = ("name", "role", "created", "expires", "is_expired")
    rows = [[row.get(name) for name in columns] for row in rows_of(result, "tokens")]
    tables.table([name.upper() for name in columns], rows)


def _show_new_token(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("name", "role", "expires", "token"))
    tables.line("it is not shown again")


TOOLS = ("viewer", "approver", "operator", "admin", "launcher", "client", "bearer")
"""Roles of users and programs for each of which `snapline auth init` creates a certificate."""

DELIVER_S = 120.0
"""Time limit in seconds for delivering certificates. Ray starts a process for the supervisor, which takes a minute on a busy machine."""

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(token_app, name="token")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the authority and its certificates.")]
Days = Annotated[
    int, typer.Option("--days", min=1, max=3650, metavar="N", help="Validity of the certificates in days.")
]


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
    """Make the certificates of a fleet: authority, coordinator, hosts and tools.

    DIR must be new or empty. Only you can read the keys. Give each process its own files and ca.crt; keep ca.key where no process runs.
    """
    from snapline.security.certificates import Authority

    wanted = [("coordinator", name) for name in _names(replicas, "--replicas")]
    if len(wanted) not in REPLICAS:
        raise UsageError(f"a coordinator has 1, 3 or 5 replicas; --replicas names {len(wanted)}")
    wanted += [("host", name) for name in _names(hosts, "--hosts")]
    authority = Authority.create(folder, domain=domain)
    issued = [authority.issue(role, name, days=days) for role, name in [*wanted, *zip(TOOLS, TOOLS, strict=True)]]
    result = document(
        "AuthorityCreated",
        folder=str(folder),
        tls_domain=authority.domain,
        ca=str(folder / "ca.crt"),
        certificates=[_row(certificate) for certificate in issued],
    )
    display.printer().result(result, _show)


@app.command("issue")
@command
def issue(
    display: Display,
    folder: Folder,
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="Role: viewer, approver, operator, admin, bearer, host, launcher, coordinator or client.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Owner: the id of a host or replica, or a user.")],
    days: Days = 365,
) -> None:
    """Make one more certificate, or replace an old one of the same name.

    Running processes load it within seconds.
    """
    from snapline.security.certificates import Authority

    issued = Authority.load(folder).issue(role, name, days=days)
    display.printer().result(document("CertificateIssued", **_row(issued)), _show_one)


@app.command("renew")
@command
def renew(display: Display, folder: Folder, days: Days = 365) -> None:
    """Renew all certificates of a folder, with new keys.

    Processes that read this folder load theirs within seconds; `snapline auth deliver` sends them to a fleet elsewhere.
    """
    from snapline.security.certificates import Authority

    renewed = Authority.load(folder).renew(days=days)
    result = document(
        "CertificatesRenewed", folder=str(folder), certificates=[_row(certificate) for certificate in renewed]
    )
    display.printer().result(result, _show_rows)


@app.command("deliver")
@command
def deliver(
    display: Display,
    folder: Folder,
    name: Name = None,
    address: Address = None,
    context: Context = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Time limit until all processes have theirs.")
    ] = DELIVER_S,
) -> None:
    """Send the certificates of a folder to a running fleet on a Ray cluster.

    The fleet was started by `snapline up --on ray --tls`. Each process gets its own certificate and loads it within seconds. So
    certificates can be short-lived: run `snapline auth renew`, then this. Exit code 9: some processes do not run; they get theirs when
    they start.
    """
    from snapline.deploy import ray_fleet
    from snapline.deploy.ray_cluster import RayCluster

    settings = UserSettings(context)
    fleet = settings.get("name", name).value
    cluster = RayCluster(fleet, settings.get("address", address).value)
    try:
        status = asyncio.run(ray_fleet.renew(cluster, fleet, folder, timeout_s=timeout))
    finally:
        cluster.leave(is_over=False)
    result = document("CertificatesDelivered", name=fleet, folder=str(folder), processes=sorted(status.nodes))
    sentence = f"{len(status.nodes)} processes of fleet {fleet} have the certificates of {folder}"
    display.printer().result(result, lambda _, tables: tables.line(sentence))


def _names(listed: str, option: str) -> list[str]:
    names = [name.strip() for name in listed.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"{option} {listed!r} names nobody, or somebody twice: write ID,ID,…")
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
    _show_rows(result, tables)
    tables.line("give each process --tls-cert, --tls-key and --tls-ca; keep ca.key where no process runs")


def _show_rows(result: Document, tables: DocumentTables) -> None:
    columns = ("role", "name", "certificate", "expires")
    rows = [[row.get(name) for name in columns] for row in rows_of(result, "certificates")]
    tables.table([name.upper() for name in columns], rows)


def _show_one(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("role", "name", "certificate", "key", "expires"))


@command
def audit(
    connection: Connection,
    display: Display,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=2500, metavar="N", help="Number of calls to show.")
    ] = 50,
) -> None:
    """Show changes to the fleet that operators and admins requested, oldest first.

    Each call is recorded before it runs. The last 2000 allowed and the last 500 rejected calls are kept; `dropped` counts older ones.
    Columns: `number`, without gaps; `at`, by the leader's clock; `who`, `role`; `by`, token or certificate; `host`, empty for the
    coordinator; `call`, `about`; and `outcome`. An outcome is `allowed`, `refused`, or `failed`: allowed, but without effect. Needs
    certificates and snapline[crypto].
    """
    log = connection.ask(lambda client: client.read_audit(count, connection.timeout))
    rows = [_call_row(call) for call in log.calls]
    display.printer().result(document("Audit", calls=rows, dropped=log.dropped), _show_calls)


def _call_row(each: "RecordedCall") -> dict[str, object]:
    from snapline.storage.timestamps import instant

    return {
        "number": each.number,
        "at": instant(each.made_ns / 1e9),
        "who": each.name,
        "role": each.role,
        "by": "token" if each.is_borne else "certificate",
        "host": each.at or None,
        "call": each.call,
        "about": each.about,
        "outcome": each.outcome,
    }


def _show_calls(result: Document, tables: DocumentTables) -> None:
    names = ("number", "at", "who", "role", "by", "host", "call", "outcome", "about")
    rows = [
        [utc_time(row[name]) if name == "at" else row.get(name) for name in names] for row in rows_of(result, "calls")
    ]
    if not rows:
        tables.line("no calls are recorded: only those with certificates or tokens are")
        return
    headings = ["AT (UTC)" if name == "at" else name.upper() for name in names]
    tables.table(headings, rows, optional=("BY", "ROLE", "HOST"))
    if result.get("dropped"):
        tables.line(f"{result['dropped']} older ones are not kept any more")
