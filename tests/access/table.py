"""Who may do what, and what it may cost: one table of everything that snapline serves and writes.

It is written a second time beside the product on purpose. `test_table.py` finds what has no row, `test_rpcs.py`, `test_routes.py` and `test_files.py`
carry every row out on what really runs (`served.py`), `test_costs.py` attacks what listens, and `page.py` puts it into docs/security.md.
"""

from typing import NamedTuple

USER_ROLES = ("viewer", "approver", "operator", "admin")
ROLES = (*USER_ROLES, "bearer", "host", "launcher", "coordinator", "client")

READING, ACTING = "viewer approver operator admin", "operator admin"

STRANGERS = ("plaintext", "no certificate", "another authority", "expired")
"""They get no further than the handshake where certificates are used."""

NOBODY = ("no role", "host of another domain", "revoked token", "no token of ours")
"""Their certificate is of the fleet's authority; they may call nothing."""

OTHER_HOST = "host of another name"


# ---- RPCs -----------------------------------------------------------------------------------------------------------


class Rpc(NamedTuple):
    """One row.

    Attributes:
        at: where it is served: "coordinator", "host" or "both".
        roles: that may call it; `host!`: only about itself.
        bytes_max: of a request; of a stream's first message if it is one.
        is_stream: requests are a stream.
    """

    at: str
    roles: str
    bytes_max: int = 256 * 1024
    is_stream: bool = False

    def admits(self, role: str, *, is_itself: bool = True) -> bool:
        """May this role call it, about itself or another?"""
        return role in self.roles.split() or (is_itself and f"{role}!" in self.roles.split())


KIB = 1024
MIB = 1024 * KIB

RPCS = {
    "Coordinator/Attend": Rpc("coordinator", "host!", 64 * KIB, is_stream=True),
    "Coordinator/Status": Rpc("coordinator", f"{READING} launcher client"),
    "Coordinator/CreateSnapshot": Rpc("coordinator", ACTING),
    "Coordinator/ReadSnapshots": Rpc("coordinator", READING),
    "Coordinator/RecoveryLine": Rpc("coordinator", READING),
    "Coordinator/RecoveryHistory": Rpc("coordinator", READING),
    "Coordinator/PreviewRestore": Rpc("coordinator", READING),
    "Coordinator/Restore": Rpc("coordinator", ACTING),
    "Coordinator/ReportHostExit": Rpc("coordinator", f"{ACTING} launcher host!"),
    "Coordinator/ReportHostBusy": Rpc("coordinator", "host!", 4 * KIB),
    "Coordinator/ReadReplica": Rpc("coordinator", READING),
    "Coordinator/TransferLeader": Rpc("coordinator", f"{ACTING} coordinator!"),
    "Coordinator/Backup": Rpc("coordinator", "admin"),
    "Coordinator/ForgetHost": Rpc("coordinator", ACTING),
    "Coordinator/MoveAgents": Rpc("coordinator", ACTING),
    "Coordinator/EndHost": Rpc("coordinator", ACTING),
    "Coordinator/EndReplica": Rpc("coordinator", f"{ACTING} coordinator"),
    "Coordinator/Locate": Rpc("coordinator", f"{READING} client"),
    "Coordinator/ReadOutputs": Rpc("coordinator", f"{READING} client", 4 * KIB),
    "Coordinator/ReadConsumers": Rpc("coordinator", f"{READING} client", KIB),
    "Coordinator/MoveConsumer": Rpc("coordinator", f"{ACTING} client", 4 * KIB),
    "Coordinator/ForgetConsumer": Rpc("coordinator", ACTING, 4 * KIB),
    "People/MakeToken": Rpc("coordinator", "admin", 4 * KIB),
    "People/RevokeToken": Rpc("coordinator", "admin", KIB),
    "People/ReadTokens": Rpc("coordinator", "admin", KIB),
    "People/CheckToken": Rpc("coordinator", "host", KIB),
    "People/RecordCall": Rpc("coordinator", "host", 32 * KIB),
    "People/ReadAudit": Rpc("coordinator", "admin", KIB),
    "Inputs/Offer": Rpc("host", "client", 2 * MIB, is_stream=True),
    "Inputs/Settle": Rpc("host", f"approver {ACTING}", 2 * MIB, is_stream=True),
    "Inputs/Ask": Rpc("host", f"approver {ACTING} client", 4 * KIB),
    "Agents/Show": Rpc("host", READING, 4 * KIB),
    "Raft/Replicate": Rpc("coordinator", "coordinator!", 64 * KIB, is_stream=True),
    "Raft/Confirm": Rpc("coordinator", "coordinator", 2 * KIB),
    "Link/Open": Rpc("host", "host!", 64 * KIB, is_stream=True),
    "Link/Confirm": Rpc("host", "host", 2 * KIB),
    "Health/Check": Rpc("both", " ".join(ROLES), KIB),
    "Health/Watch": Rpc("both", " ".join(ROLES), KIB),
    "ServerReflection/ServerReflectionInfo": Rpc("both", READING, 4 * KIB),
}
"""Without certificates anybody may call all of them."""

AT_HEALTH_DOORS = ("Health/Check",)
"""What is served there, to anybody."""

METRICS_READERS = f"{READING} launcher client"
"""Roles that may read `GET /metrics`; without certificates anybody may."""


# ---- HTTP routes ----------------------------------------------------------------------------------------------------


class Route(NamedTuple):
    """One row: the statuses that callers get; 0: `ok`.

    Attributes:
        example: a request's path.
        ok: when it is served.
        nobody, wrong: where a token is asked for, without one, and with another one.
        this_machine, other_name, other_site: where none is asked for: a program or a page from here; a browser that asks for another machine's
            name; a page of another site.
        as_viewer: with the token, from a view that has a viewer's certificate.
    """

    route: str
    example: str
    ok: int = 200
    nobody: int = 401
    wrong: int = 401
    this_machine: int = 0
    other_name: int = 421
    other_site: int = 0
    as_viewer: int = 0


def _open_to_all(route: str, example: str, ok: int = 200) -> Route:
    return Route(route, example, ok, nobody=0, wrong=0, other_name=0)


GATEWAY = (
    Route("POST /agents/{agent}/{message}", "/agents/a/Paid", 202, other_site=403),
    Route("GET /outputs", "/outputs", other_site=403),
    Route("GET /outputs/{topic}", "/outputs/bills", other_site=403),
    Route("GET /approvals", "/approvals", 401, this_machine=200, other_site=403),
    Route("POST /approvals/{id}", "/approvals/none", 401, this_machine=404, other_site=403),
    Route("GET /openapi.json", "/openapi.json", other_site=403),
    Route("GET /health", "/health", nobody=0, wrong=0, other_site=403),
)

VIEW = (
    _open_to_all("GET /static/{file}", "/static/view.js"),
    Route("GET /sign-in", "/sign-in", nobody=0, wrong=0, this_machine=303, other_name=303, other_site=303),
    Route("POST /sign-in", "/sign-in", 303, other_name=303),
    _open_to_all("POST /sign-out", "/sign-out", 303),
    _open_to_all("GET /health", "/health"),
    Route("GET /", "/", nobody=303, wrong=303),
    Route("GET /agents/{agent}", "/agents/a"),
    Route("GET /coordinators", "/coordinators"),
    Route("GET /epochs", "/epochs"),
    Route("GET /epochs/{epoch}", "/epochs/1"),
    Route("GET /recovery", "/recovery"),
    Route("GET /waiting", "/waiting"),
    Route("GET /events/waiting", "/events/waiting"),
    Route("GET /events/fleet", "/events/fleet"),
    Route("GET /space-time", "/space-time"),
    Route("GET /events/space-time", "/events/space-time"),
    Route("GET /space-time.svg", "/space-time.svg"),
    Route("GET /space-time.shiviz", "/space-time.shiviz"),
    Route("GET /act", "/act", as_viewer=403),
    Route("GET /act/{verb}", "/act/snapshot", as_viewer=403),
    Route("POST /deeds", "/deeds", 403, other_site=403, as_viewer=403),
    Route("GET /deeds/{key}", "/deeds/none", 400, as_viewer=400),
    Route("GET /simulation", "/simulation"),
    Route("GET /simulation/runs/{place:path}", "/simulation/runs/runs/none", 404),
    Route("GET /simulation/pairs/{place:path}", "/simulation/pairs/runs/none", 404),
    Route("GET /simulation/sweeps/{place:path}", "/simulation/sweeps/runs/none", 404),
    Route("GET /simulation/reports/{place:path}", "/simulation/reports/runs/none", 404),
    Route("GET /simulation/pictures/{kind}/{place:path}", "/simulation/pictures/timeline/runs/none", 404),
)


# ---- ports and their limits -------------------------------------------------------------------------------------------


class Port(NamedTuple):
    """What listens.

    Attributes:
        made_in: the files of the product that do so.
        strangers: what a peer may do there that has proved nothing.
        limits: what the others cost at most: words → the constant that says so, and its value.
    """

    made_in: tuple[str, ...]
    strangers: str
    limits: dict[str, tuple[str, float]]


_GRPC = {
    "connections, or half of the files that its process may have open": ("channels.servers.CONNECTIONS_MAX", 2_000),
    "ms for a handshake": ("channels.servers.HANDSHAKE_MS_MAX", 10_000),
    "bytes of a call's metadata": ("channels.servers.METADATA_BYTES_MAX", 16 * KIB),
    "bytes of a message": ("channels.servers.RECEIVE_BYTES_MAX", 2 * MIB),
    "seconds for a request, or the first message of a stream": ("security.rpc_authorization.FIRST_S_MAX", 10),
    "calls at once on one connection": ("channels.servers.STREAMS_MAX", 64),
    "calls of one caller under way": ("security.rpc_authorization.CALLS_MAX", 4_096),
    "bytes of answers that a caller has not taken": ("security.rpc_authorization.UNREAD_BYTES_MAX", 64 * MIB),
}

_HTTP = {
    "connections, or half of the files that its process may have open": ("gateway.http_server.CONNECTIONS_MAX", 800),
    "seconds for a request": ("gateway.http_server.REQUEST_S_MAX", 30),
    "bytes of a head": ("gateway.http_server.HEAD_BYTES_MAX", 16 * KIB),
    "seconds for a part of an answer to be taken": ("gateway.http_server.READER_S_MAX", 60),
}

PORTS = {
    "coordinator, host": Port(
        ("coordinator/service/server.py", "channels/grpc_link.py"),
        "with certificates nothing, without them everything",
        {
            **_GRPC,
            "bytes of a request": ("security.rpc_authorization.REQUEST_BYTES_MAX", 256 * KIB),
            "bytes of a stream's first message": ("security.rpc_authorization.FIRST_BYTES_MAX", 64 * KIB),
            "bytes of inputs under way at a host": ("agent_runtime.host.input_service.UNDER_WAY_BYTES_MAX", 64 * MIB),
            "questions to a host that wait for answers": ("agent_runtime.host.input_service.ASKS_MAX", 10_000),
            "looks at agents of a host at once": ("agent_runtime.host.view_service.SHOWS_MAX", 8),
        },
    ),
    "`--health`": Port(
        ("telemetry/health.py",),
        "ask whether the process lives, and whether it is ready",
        {
            "connections": ("telemetry.health.CONNECTIONS_MAX", 64),
            "ms that a connection may be idle": ("telemetry.health.IDLE_MS_MAX", 10_000),
            "questions at once": ("telemetry.health.CHECKS_MAX", 64),
        },
    ),
    "`--metrics`": Port(
        ("telemetry/metrics_server.py",),
        "with certificates nothing, without them read metrics",
        {
            "connections; beyond them the oldest is cut": ("telemetry.metrics_server.CONNECTIONS_MAX", 16),
            "seconds for handshake, request and answer": ("telemetry.metrics_server.REQUEST_S_MAX", 10),
            "bytes of a head": ("telemetry.metrics_server.HEAD_BYTES_MAX", 16 * KIB),
        },
    ),
    "gateway": Port(
        ("gateway/http_server.py",),
        "with a token ask for `/health`, without one what the routes below allow",
        {
            **_HTTP,
            "bytes of a body": ("channels.channel.MESSAGE_BYTES_MAX", 16 * MIB),
            "requests at once": ("gateway.app.REQUESTS_MAX", 600),
            "bytes of bodies at once": ("gateway.app.BYTES_MAX", 32 * MIB),
            "streams of outputs": ("gateway.app.STREAMS_MAX", 64),
        },
    ),
    "view": Port(
        ("gateway/http_server.py",),
        "with a token sign in, without one what the routes below allow",
        {
            **_HTTP,
            "bytes of a form": ("view.sign_in.FORM_BYTES_MAX", 4 * KIB),
            "streams of the fleet's screen": ("view.watch.VIEWERS_MAX", 64),
            "streams of each other screen": ("view.page_elements.STREAMS_MAX", 64),
            "people who have signed in": ("view.sign_in.SESSIONS_MAX", 256),
            "seconds before a wrong token is answered": ("view.view_app.WRONG_S", 0.5),
        },
    ),
    "sockets of a launcher's post and of AutoGen's runtime": Port(
        ("deploy/launch_agent.py", "adapters/autogen/inside/home.py"),
        "nothing: they are in a folder of their user alone",
        {"bytes of a request to a post": ("deploy.launch_agent_client.LINE_BYTES_MAX", 4 * MIB)},
    ),
}

NO_PORTS = {
    "chaos/local_faults.py": "cables of experiments, on loopback, from one process of a fleet to another",
    "examples/payment_service.py": "an example's own service, on loopback",
}
"""Files that listen, and serve nothing of ours."""


# ---- files ------------------------------------------------------------------------------------------------------------

PRIVATE, WITHIN, PUBLIC = "its owner alone", "in a folder of its owner alone", "whoever the umask lets"
"""Who may read: by its own mode (0600, or 0700 of a folder) whatever the umask is; by that of a folder above it; by the umask."""


class Kind(NamedTuple):
    """Files of one kind: who may read them, what they hold, and which file of the product writes them."""

    readers: str
    holds: str
    written_by: str = ""


FILES = {
    "certificates/": Kind(PRIVATE, "what `snapline auth init` makes", "security/certificates.py"),
    "certificates/*.key": Kind(PRIVATE, "private keys"),
    "certificates/*.crt": Kind(PUBLIC, "certificates"),
    "keys/wrapping": Kind(PRIVATE, "a key for snapshots", "storage/keys/key_files.py"),
    "keys/signing": Kind(PRIVATE, "a key that signs snapshots"),
    "keys/verify": Kind(PUBLIC, "its public half"),
    "memory/snapline-posts-*/keys/*.key": Kind(PRIVATE, "private keys, in memory", "deploy/launch_agent.py"),
    "memory/snapline-posts-*/": Kind(PRIVATE, "what posts have"),
    "memory/snapline-posts-*/post.sock": Kind(WITHIN, "a socket: what a launcher may"),
    "data/coordinator/": Kind(PRIVATE, "the coordinator's state"),
    "data/coordinator/raft.sqlite*": Kind(PRIVATE, "its log", "coordinator/raft/journal.py"),
    "data/coordinator/*": Kind(WITHIN, "its address and its lock", "coordinator/service/server.py"),
    "data/store/": Kind(PRIVATE, "snapshots: what agents know", "storage/disk/local_disk.py"),
    "data/store/*": Kind(WITHIN, "snapshots"),
    "data/logs/": Kind(PRIVATE, "what processes printed", "deploy/child.py"),
    "data/logs/*": Kind(WITHIN, "logs"),
    "data/traces/": Kind(PRIVATE, "names of agents, and when they spoke", "agent_runtime/host/host_trace.py"),
    "data/traces/*": Kind(WITHIN, "traces"),
    "data/marks/": Kind(PRIVATE, "messages in whose turn a process is", "agent_runtime/host/turn_marks.py"),
    "data/marks/*": Kind(PRIVATE, "marks"),
    "data/metrics/*": Kind(PUBLIC, "addresses", "telemetry/metrics_server.py"),
    "data/coordinator.json*": Kind(PUBLIC, "addresses", "deploy/data_directory.py"),
    "data/launcher.lock": Kind(PUBLIC, "nothing", "storage/disk/local_disk.py"),
    "data/launcher.*": Kind(PUBLIC, "a process id, and what the launcher printed", "cli/fleet_locations.py"),
    "data/plan.json": Kind(PUBLIC, "what runs where, no secrets", "deploy/detached_fleet.py"),
    "data/hosts-wanted": Kind(PUBLIC, "a number", "deploy/running_fleet.py"),
    "data/*.health": Kind(PUBLIC, "a socket: whether a process lives"),
    "cache/snapline/": Kind(PRIVATE, "lists of snapshots", "storage/store/catalog.py"),
    "cache/snapline/*": Kind(WITHIN, "one for each store"),
    "page.html": Kind(PRIVATE, "a fleet, as `snapline ui export` saves it", "view/html_export.py"),
    "fleet.backup": Kind(PRIVATE, "the coordinator's state", "coordinator/raft/durability.py"),
    "snapshot.tar": Kind(PRIVATE, "a snapshot", "storage/transfer/archive.py"),
    "run.answers": Kind(PRIVATE, "what models and people have answered", "cli/answers.py"),
    "field.npy": Kind(PRIVATE, "a value of a snapshot", "storage/capture/saved_value_formats.py"),
}
"""Patterns of paths, the first that fits; folders end in `/`; `*` stands for anything. The folders `data`, `keys`, `cache` and `memory` were there before."""

OTHER_WRITERS = {
    "adapters/autogen/inside/home.py": "a temporary folder of its user alone",
    "adapters/autogen/session.py": "in that folder",
    "security/transport.py": "a certificate and its key, in memory that only this process's user reads",
    "chaos/preload.py": "in the folder of an experiment, which is its user's alone (`chaos/run.py`), or of a test",
    "chaos/crash_kit.py": "in a temporary folder of its user alone",
    "chaos/failpoints.py": "in the folder of an experiment",
    "chaos/run.py": "the folder of an experiment, its user's alone",
    "chaos/local_faults.py": "in the folder of an experiment",
    "cli/analyze.py": "a report, where its user wants it",
    "cli/chaos.py": "in the folder of an experiment",
    "cli/demo.py": "a temporary folder of its user alone, and a picture, where its user wants it",
    "cli/settings.py": "a name, beside the settings",
    "deploy/ray_fleet.py": "keys, in memory that only this process's user reads",
    "folders.py": "makes private folders and files for others",
}
"""Files that write as well: what, and where."""
