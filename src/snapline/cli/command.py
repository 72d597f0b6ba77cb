"""Defines the wrapper of all commands, options that several commands share, and calls from commands to a fleet.

A command may have a dataclass such as `Connection` as a parameter. The fields of the dataclass become options of the command. The command
receives an instance with their values. So options that many commands share are defined only once.

The wrapper turns an error into one sentence on stderr and an exit code (docs/cli.md). The wrapper prints a traceback only on request.
"""

import asyncio
import contextlib
import dataclasses
import errno
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from snapline.cli.output import LISTED, OutputFormat, Printer
from snapline.errors import CoordinatorUnavailableError, ExternalFailureError, SnaplineError, UsageError
from snapline.ids import check_id
from snapline.package_stamp import REPLACED, was_replaced
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.client.client import Client
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.security.transport import Security
    from snapline.telemetry.spans import SpanOptions


INTERRUPTED = 130

OUTPUT_CLOSED = 141
"""Exit code after output that nobody reads any more: the one of programs that SIGPIPE ends."""

PARTIAL = 3
"""Exit code of a partial success, after which some items could not be read or handled."""

EXIT_CODES = {
    0: "Success.",
    1: "Error: the fleet failed, a snapshot was aborted, or a simulated run was broken or not repeatable. "
    "Also a port that is in use, or a name that DNS does not know, after three seconds.",
    UsageError.exit_code: "Usage: an option, MODULE:FLEET or --arg is wrong, a path or address cannot be used, a library is missing, "
    "a host defines another fleet, or the store has another key.",
    PARTIAL: "Partial: something could not be read or handled, and the rest is shown; dead letters with `run --fail-on-dead-letters`; "
    "an undecided simulated run, in which a required event did not happen.",
    4: "No such snapshot, agent or host.",
    5: "Conflict: an older incarnation, a host that a newer process has replaced, or certificates that do not trust each other.",
    6: "Verification failed: data differs from what was written, a trace is invalid or contradicts itself, or a simulated run violated a "
    "guarantee.",
    8: "No coordinator answers.",
    9: "Timeout: the operation may or may not have happened; an input may have been accepted.",
    10: "No store at this place.",
    11: "Locked: another launcher or coordinator uses the folder, the fleet of the store runs, or another process writes the same stream; the message names "
    "process, machine and time.",
    12: "A coordinator replica ended itself: its disk rejected a write, or its files cannot be trusted.",
    13: "The fleet has ended, and accepts no inputs.",
    14: "The input was not accepted in time, and will not be.",
    15: "A host ended itself: code of an agent blocked it for longer than `busy_limit_s`.",
    INTERRUPTED: "Interrupted, or a question was not answered with yes.",
    OUTPUT_CLOSED: "The program that read the output ended before the output did, as in `snapline … | head`.",
}
"""Meaning of each exit code of the commands and processes. docs/cli.md contains this table."""

WRONG_PLACE = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
)
"""System errors that count as usage errors, because another path would avoid them. All other system errors, such as a full disk, are
external failures."""

TRACEBACK_VARIABLE = "SNAPLINE_TRACEBACK"


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn `function` into a typer command. Replace the function's dataclass parameters with options, and handle its errors."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint) and isinstance(hint, type)}

    def run(**values: object) -> None:
        with_groups = {name: _fill(group, values) for name, group in groups.items()}
        try:
            try:
                function(**values, **with_groups)
            finally:
                sys.stdout.flush()
        except (typer.Exit, typer.BadParameter):
            raise
        except typer.Abort as error:  # "no" or Ctrl-C at a question, which each command asks before it changes anything
            raise _exit("nothing was changed, because the question was not answered with yes", INTERRUPTED) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes at its end
            raise typer.Exit(OUTPUT_CLOSED) from error
        except SnaplineError as error:
            raise _exit(str(error), error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except ModuleNotFoundError as error:
            raise _exit(f"that needs {error.name!r}, which is not installed", UsageError.exit_code) from error
        except OSError as error:
            _print_error(describe_path_failure(error))
            raise typer.Exit(UsageError.exit_code if error.errno in WRONG_PLACE else 1) from error
        except Exception as error:
            _print_error(f"unexpected {type(error).__name__}: {error} (set {TRACEBACK_VARIABLE}=1 to see where)")
            raise typer.Exit(1) from error

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__dict__["__signature__"] = _unfold(inspect.signature(function), hints, groups)
    run.__annotations__ = {}
    return run


def _exit(sentence: str, code: int) -> typer.Exit:
    """Print an error. Return the exit with `code`. After a usage error, a process is not started again, unless an installer caused it."""
    if code == UsageError.exit_code and was_replaced():
        sentence, code = f"{sentence}; {REPLACED}", ExternalFailureError.exit_code
    _print_error(sentence)
    return typer.Exit(code)


def _unfold(
    signature: inspect.Signature, hints: Mapping[str, Any], groups: Mapping[str, type[Any]]
) -> inspect.Signature:
    """Return the signature for typer, in which each dataclass parameter is replaced by its fields.

    All parameters are keyword-only, so their order does not matter.
    """
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=types[field.name],
            )
            for field in dataclasses.fields(group)
        ]
    return inspect.Signature(parameters)


def _fill(group: type[Any], values: dict[str, object]) -> object:
    return group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})


def describe_path_failure(error: OSError) -> str:
    """Return a message such as `/proc/x cannot be used: No such file or directory`."""
    path = error.filename2 or error.filename
    why = "a file of this name exists, so give another path" if error.errno == errno.EEXIST else error.strerror
    return f"{path or 'the system'} cannot be used: {why or error}"


def _print_error(sentence: str) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        print(printable(traceback.format_exc()), end="", file=sys.stderr)
    print(printable("snapline: " + " ".join(sentence.split())), file=sys.stderr)


_Reply = TypeVar("_Reply")

TIMEOUT_S = 120.0
"""Default time limit in seconds for a call to a coordinator, which is longer than a snapshot's default limit of 60 s. A missing coordinator
is detected much sooner."""

TIMEOUT_S_MAX = 86_400.0
"""Largest value of `--timeout` in seconds, which is one day."""

REPLICAS = (1, 3, 5)
"""Allowed numbers of coordinator replicas. An even number tolerates no more losses than the odd number below it."""

RUNS = Path("runs")
"""Default folder for the runs of `snapline sim` and their reports."""

FleetReference = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FLEET", help="A snapline.Fleet, or a function that returns one; the same on every host."
    ),
]
FleetArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="KEY=VALUE", help="Keyword argument, as text, for a FLEET that is a function. Repeatable."
    ),
]

AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Accept changed dependencies that the fleet's on_change refuses."),
]

FleetMetrics = Annotated[
    bool,
    typer.Option("--metrics", help="Serve Prometheus metrics in every process; DIR/metrics/*.json has the addresses."),
]


class LogFormat(StrEnum):
    """Values of `--log-format`."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Values of `--log-level`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True)
class LogLines:
    """Options for logging in one process or in all processes of a launcher."""

    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            envvar="SNAPLINE_LOG_FORMAT",
            show_envvar=False,
            help="Format of the log on stderr: text, or JSON objects with the ids of their subjects.",
        ),
    ] = LogFormat.TEXT
    log_level: Annotated[
        LogLevel,
        typer.Option("--log-level", envvar="SNAPLINE_LOG_LEVEL", show_envvar=False, help="Lowest level to log."),
    ] = LogLevel.INFO

    def arguments(self) -> tuple[str, ...]:
        """Return these options as arguments for child processes."""
        return ("--log-format", self.log_format.value, "--log-level", self.log_level.value)


@dataclass(frozen=True)
class Spans:
    """Options for OpenTelemetry in one process or in all processes of a launcher."""

    otel: Annotated[
        float | None,
        typer.Option(
            "--otel",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            envvar="SNAPLINE_OTEL",
            show_envvar=False,
            help="Export spans to OpenTelemetry (see its OTEL_… variables): of epochs, recoveries, requests with a trace, "
            "and a SHARE (0 to 1) of other requests. Needs snapline[otel].",
            show_default="off",
        ),
    ] = None

    def options(self) -> "SpanOptions":
        """Build the `SpanOptions` from these options."""
        from snapline.telemetry.spans import SpanOptions

        return SpanOptions(self.otel)

    def checked(self) -> "Spans":
        """Return self after checking that processes on this machine can use these options. Raise UsageError if OpenTelemetry is missing."""
        self.options().check()
        return self

    def arguments(self) -> tuple[str, ...]:
        """Return these options as arguments for child processes."""
        return () if self.otel is None else ("--otel", f"{self.otel:g}")


@dataclass(frozen=True)
class Display:
    """Options for the output format and the progress display."""

    output: Annotated[
        OutputFormat | None,
        typer.Option("--output", "-o", help="Format of the result.", show_default="table on a terminal, else json"),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; results and warnings stay.")] = (
        False
    )
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours; the variable NO_COLOR has the same effect.")
    ] = False

    def printer(self) -> Printer:
        """Return a printer that follows these options."""
        return Printer(self.output, quiet=self.quiet, no_color=self.no_color)


def limit_option(noun: str) -> Any:
    """Return the option `--limit` of a list of such things, for `Printer.limit`."""
    default = f"{LISTED} in a table, all in json"
    return typer.Option("--limit", metavar="N", min=1, help=f"Number of {noun} to list.", show_default=default)


@dataclass(frozen=True)
class SecurityOptions:
    """Security options: either three TLS files, or `--insecure`, or neither. If neither is given, only connections on this machine are
    allowed."""

    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="Own certificate (PEM). Give all three TLS files, or none."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate (PEM).")
    ] = None
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Certificates of the trusted authority (PEM).")
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Allow plaintext beyond loopback addresses, for networks that nobody else can reach."
        ),
    ] = False
    tls_domain: Annotated[
        str, typer.Option("--tls-domain", metavar="DOMAIN", help="Trust domain of the fleet, which certificates name.")
    ] = "snapline"

    def security(self) -> "Security":
        """Build the `Security` from these options.

        Raises:
            UsageError: If the options contradict each other.
        """
        return self._security("")

    def _security(self, token: str) -> "Security":
        from snapline.security.transport import Security

        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(file is not None for file in files):
            if self.insecure:
                raise UsageError("--insecure contradicts --tls-…: leave one out")
            if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
                raise UsageError("--tls-cert, --tls-key and --tls-ca belong together: give all three")
            return Security.tls(
                authority=self.tls_ca,
                certificate=self.tls_cert,
                key=self.tls_key,
                domain=self.tls_domain,
                token=token,
            )
        if token:
            raise UsageError("a token travels inside TLS only: give --tls-cert, --tls-key and --tls-ca too")
        return Security.insecure() if self.insecure else Security.loopback()


Stale = Annotated[
    bool,
    typer.Option("--stale", help="Accept the answer of any replica: perhaps outdated, but available without a leader."),
]


OPERATOR = "operator-operator"
"""Name of the operator's certificate and key in a folder that `snapline auth init` has made."""

CLIENT_NAME = "cli"
"""Name of the sender of inputs from a client without a certificate."""


@dataclass(frozen=True)
class Connection(SecurityOptions):
    """Options that specify the coordinator to call and the time limit for calls."""

    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            metavar="HOST:PORT,…",
            help="Address of the coordinator; for several replicas, all addresses.",
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Folder of a local fleet, whose coordinator.json has the address of the coordinator.",
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=TIMEOUT_S_MAX, metavar="SECONDS", help="Time limit of the whole call."),
    ] = TIMEOUT_S
    auth_token: Annotated[
        Path | None,
        typer.Option(
            "--auth-token",
            metavar="FILE",
            help="File with your token (`auth token create`), whose role counts; next to a certificate of the role "
            "`bearer`.",
        ),
    ] = None

    def security(self) -> "Security":
        """Build the `Security` from these options, including the token.

        If the settings select the fleet and these options name no files, use the operator's certificate in the folder of the setting `tls`.
        """
        token = read_token(self.auth_token)
        given = (self.coordinator, self.data_dir, self.tls_cert, self.tls_key, self.tls_ca)
        if token or self.insecure or any(option is not None for option in given):
            return self._security(token)
        from snapline.cli.settings import UserSettings

        settings = UserSettings()
        folder = settings.get("tls").value
        if not folder:
            return self._security("")
        own, domain = Path(folder, OPERATOR), settings.get("tls_domain").value
        files = SecurityOptions(
            own.with_suffix(".crt"), own.with_suffix(".key"), own.with_name("ca.crt"), tls_domain=domain
        )
        return files.security()

    def address(self) -> str:
        """Return the address of the coordinator to call.

        Raises:
            UsageError: If the options specify no coordinator or two different coordinators.
        """
        from snapline.deploy.data_directory import ADDRESS_FILE, read_address

        if self.coordinator is not None and self.data_dir is not None:
            raise UsageError("--coordinator and --data-dir both name a coordinator: give one of them")
        if self.coordinator is not None:
            return check_addresses(self.coordinator, "--coordinator")
        if self.data_dir is None:
            from snapline.cli.fleet_locations import default_address

            return default_address()
        address = read_address(self.data_dir)
        if address is None and not self.data_dir.exists():
            raise UsageError(
                f"there is no folder {self.data_dir} here: run this where `snapline up` ran, or give its path"
            )
        if address is None:
            raise UsageError(
                f"{self.data_dir / ADDRESS_FILE} names no coordinator: is {self.data_dir} the folder of a local fleet?"
            )
        return address

    def folder(self) -> Path:
        """Return the folder of the local fleet, as specified by --data-dir, the environment or snapline.toml."""
        from snapline.cli.fleet_locations import folder_of
        from snapline.cli.settings import UserSettings

        if self.data_dir is not None:
            return self.data_dir
        settings = UserSettings()
        return folder_of(settings, settings.get("name").value, None, settings.get("on").value)

    def ask(self, call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
        """Make one call to the coordinator, and return its reply. `call` must apply the time limit `timeout` itself. Raises the same errors
        as `ask`."""

        address = self.address()
        with self._explaining(address):
            return ask(address, self.security(), call)

    def call_agents(self, call: "Callable[[Client], Awaitable[_Reply]]", name: str = CLIENT_NAME) -> _Reply:
        """Make one call to the fleet's agents, and return the result. `call` must apply the time limit `timeout` itself. `name` is the name
        of the client if the fleet has no certificates."""

        address = self.address()
        with self._explaining(address):
            return call_agents(address, self.security(), call, name)

    @contextlib.contextmanager
    def _explaining(self, address: str) -> Iterator[None]:
        """Raise a CoordinatorUnavailableError with the next step, if nobody answers, and `snapline up` kept the fleet and does not any
        more."""
        try:
            yield
        except CoordinatorUnavailableError as error:
            from snapline.cli.fleet_locations import failure_of, is_down

            if self.coordinator is not None or not is_down(folder := self.folder()):
                raise
            command = "snapline up MODULE:FLEET" + ("" if self.data_dir is None else f" --data-dir {self.data_dir}")
            if failure := failure_of(folder):
                raise CoordinatorUnavailableError(
                    f"{failure}; when that is mended, `{command}` continues it"
                ) from error
            raise CoordinatorUnavailableError(
                f"no `snapline up` keeps the fleet in {folder} any more, and nothing answers at {address}; `{command}` continues it"
            ) from error


def read_token(file: Path | None) -> str:
    """Read the token in `file`, or return "" if no file is given.

    Raises:
        UsageError: If the file is unreadable, is accessible to other users, or contains no token.
    """
    if file is None:
        return ""
    from snapline.storage.keys.key_files import read_token_file

    return read_token_file(file)


def parse_arguments(pairs: list[str] | None) -> dict[str, str]:
    """Convert `["a=1", "b=x=y"]` to `{"a": "1", "b": "x=y"}`.

    Raises:
        UsageError: If a pair has no `=`, or a key is given twice.
    """
    arguments: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--arg {pair!r} is not KEY=VALUE with a name as the key")
        if key in arguments:
            raise UsageError(f"--arg {key}=… is given twice: give it once")
        arguments[key] = value
    return arguments


def check_address(address: str, option: str) -> str:
    """Return `address` if it has the form HOST:PORT, [IPv6]:PORT or unix:PATH.

    Raises:
        UsageError: If the address has any other form.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or (host and port.isdecimal() and int(port) < 65_536):
        return address
    raise UsageError(f"{option} {address!r} is no address: write HOST:PORT")


def check_addresses(addresses: str, option: str) -> str:
    """Return the comma-separated `addresses` without blanks. Each address must satisfy `check_address`.

    Raises:
        UsageError: If an address is invalid, or is given twice.
    """
    checked = [check_address(address.strip(), option) for address in addresses.split(",")]
    if len(set(checked)) < len(checked):
        raise UsageError(f"{option} names an address twice: give each replica's once")
    return ",".join(checked)


def parse_peers(peers: str, node: str) -> dict[str, str]:
    """Convert `"c1=HOST:PORT,c2=HOST:PORT"` to a dict in the same order. Return an empty dict if `peers` is "".

    Raises:
        UsageError: If the text has any other form, does not name `node`, or does not list 1, 3 or 5 replicas.
    """
    if not peers:
        return {}
    members: dict[str, str] = {}
    for peer in peers.split(","):
        name, equals, address = peer.strip().partition("=")
        if not equals:
            raise UsageError(f"--peers {peer.strip()!r} is not ID=HOST:PORT")
        if check_id(name, "replica") in members:
            raise UsageError(f"--peers names {name} twice: give each replica once")
        members[name] = check_address(address, "--peers")
    if node not in members:
        raise UsageError(f"--peers must name all replicas, this one too: {node} is not among {', '.join(members)}")
    if len(members) not in REPLICAS:
        raise UsageError(f"a coordinator has 1, 3 or 5 replicas; --peers names {len(members)}")
    return members


def seconds_of(text: str, option: str) -> float:
    """Convert a positive duration, such as `30m`, to seconds.

    Raises:
        UsageError: If the text is not a positive duration. The message names the option.
    """
    from snapline.sim.scenario import duration_ns

    duration_s = duration_ns(text) / 1e9
    if duration_s <= 0:
        raise UsageError(f"{option} is {text!r}: give a duration above 0, such as 30m")
    return duration_s


def allow_current_folder() -> None:
    """Make the modules in the current folder importable. `python -m` does this automatically, but an installed script does not."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


LAST_SNAPSHOT_S = 20.0
"""Default time limit in seconds for the last snapshot before a stop. The snapshot takes tens of milliseconds, plus the time until running
effects have finished."""

BeginAnew = Annotated[
    bool,
    typer.Option(
        "--begin-anew",
        help="Restart from the initial states if all snapshots are damaged. Without it such a fleet waits, and "
        "`status` shows it.",
    ),
]
LastSnapshot = Annotated[
    float,
    typer.Option(
        "--last-snapshot-s",
        min=0,
        metavar="SECONDS",
        help="Time limit of the last snapshot before a stop by SIGTERM or SIGINT; 0: no snapshot. A second signal ends "
        "the wait at once.",
    ),
]


def ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    """Make one call to a coordinator, with retries, and return the reply. The call must have its own time limit.

    Raises the same errors as `CoordinatorClient`.
    """
    return asyncio.run(_ask(address, security, call))


async def _ask(address: str, security: "Security", call: "Callable[[CoordinatorClient], Awaitable[_Reply]]") -> _Reply:
    from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available

    client = CoordinatorClient(address, security, on_trouble=_print_trouble)
    try:
        return await retry_until_available(lambda: call(client))
    finally:
        await client.close()


def call_agents(
    address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]", name: str = CLIENT_NAME
) -> _Reply:
    """Make one call to a fleet's agents, and return the result. Raises the same errors as `Client`."""
    return asyncio.run(_call_agents(address, security, call, name))


async def _call_agents(
    address: str, security: "Security", call: "Callable[[Client], Awaitable[_Reply]]", name: str
) -> _Reply:
    from snapline.client.client import open_client

    async with await open_client(address, security, name) as client:
        return await call(client)


def _print_trouble(trouble: str) -> None:
    print(printable(f"snapline: {trouble}"), file=sys.stderr, flush=True)
