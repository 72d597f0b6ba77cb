"""Everything that snapline serves, in one process: `python -m tests.access.served FOLDER`.

A coordinator and host `h2` with one agent, each with its health and metrics doors; a gateway, a view of an operator and one of a viewer. If the
folder holds certificates, they are used, and gateway and views ask for a token; else everything is in plaintext. Prints where each is, as JSON, once the fleet runs.
"""

import asyncio
import json
import os
import resource
import sys
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

import snapline
from snapline.agent_runtime.host.process import HostOptions, run_host
from snapline.client.client import open_client
from snapline.coordinator.service.server import CoordinatorOptions, read_address, run_coordinator
from snapline.deploy.data_directory import COORDINATOR_FOLDER, METRICS_FOLDER, STORE_FOLDER, TRACES_FOLDER, marks_of
from snapline.gateway.app import NOTHING, Gateway, clients_of_people, openapi_of
from snapline.gateway.http_server import AsgiApp, address_of, listening, server_of
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.telemetry.metrics_server import MetricsPlace
from snapline.view.action_requests import Operators
from snapline.view.fleet_queries import open_fleet_queries
from snapline.view.view_app import View

CERTIFICATES, DATA, RUNS = "certificates", "data", "runs"
TOKEN = "a token that nobody guesses"
LOOK_S, LIMIT_S = 0.02, 20.0

FILES_MAX = 400
"""What this process may have open: so floods are small."""


class Paid(snapline.Message):
    amount: int


class Book(msgspec.Struct):
    amount: int = 0


class Clerk(snapline.Agent):
    state: Book

    @snapline.handler(public=True)
    async def on_paid(self, message: Paid, ctx: snapline.Context) -> None:
        self.state.amount += message.amount


FLEET = snapline.Fleet("books", agents={"a": Clerk(Book())})


def security_of(folder: Path, owner: str) -> Security:
    """That of ROLE-NAME; loopback where there are no certificates."""
    made = folder / CERTIFICATES
    if not made.is_dir():
        return Security.loopback()
    return Security.tls(authority=made / "ca.crt", certificate=made / f"{owner}.crt", key=made / f"{owner}.key")


class Served:
    """What runs in this process. `places`: name → where it is."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.places: dict[str, str] = {}
        self._folder = folder
        self._stack = stack
        self._token = TOKEN if security_of(folder, "").is_tls else ""
        self._tasks: list[asyncio.Task[object]] = []

    async def start(self) -> None:
        """Start everything, and wait until the fleet runs."""
        folder = self._folder / DATA
        store, data_dir = str(folder / STORE_FOLDER), folder / COORDINATOR_FOLDER
        own = {"store": store, "security": security_of(self._folder, "coordinator-c1"), **self._doors("c1")}
        self._run(run_coordinator(CoordinatorOptions(data_dir=data_dir, hosts_expected=1, **own)))
        while not (address := read_address(data_dir)):
            await asyncio.sleep(LOOK_S)
        own = {"store": store, "security": security_of(self._folder, "host-h2"), **self._doors("h2")}
        own |= {"marks": str(marks_of(folder, "h2")), "trace": str(folder / TRACES_FOLDER)}
        self._run(run_host(HostOptions(host="h2", instance="i", fleet=FLEET, coordinator=address, **own)))
        self.places["coordinator"], self.places["host"] = address, await self._until_running(address)
        for name in ("c1", "h2"):
            found = json.loads((folder / METRICS_FOLDER / f"{name}.json").read_text())
            self.places[f"metrics {name}"] = found[0]["targets"][0]
        await self._start_gateway(address)
        (self._folder / RUNS).mkdir()
        for role in ("operator", "viewer"):
            await self._start_view(role, address)

    def _doors(self, name: str) -> dict[str, Any]:
        folder = self._folder / DATA
        self.places[f"health {name}"] = health = f"unix:{folder / name}.health"
        return {"health": health, "metrics": MetricsPlace("127.0.0.1:0", folder / METRICS_FOLDER / f"{name}.json")}

    async def _until_running(self, address: str) -> str:
        """Where the host is, once the fleet runs and has a snapshot."""
        client = CoordinatorClient(address, security_of(self._folder, "operator-operator"))
        while (status := await client.status()).phase != "running":
            await asyncio.sleep(LOOK_S)
        await client.create_snapshot(LIMIT_S)
        await client.close()
        return status.hosts[0].address

    async def _start_gateway(self, address: str) -> None:
        security = security_of(self._folder, "client-client")
        client = await self._stack.enter_async_context(await open_client(address, security, "gateway"))
        people = clients_of_people(address, security)
        document = openapi_of(FLEET, NOTHING, has_approvals=True)
        self._serve("gateway", Gateway(client, token=self._token, openapi=document, people=people).app())

    async def _start_view(self, role: str, address: str) -> None:
        security = security_of(self._folder, f"{role}-{role}")
        opened = await self._stack.enter_async_context(open_fleet_queries(address, security, "view"))
        operators = Operators(opened[1], self._folder / DATA, has_certificates=security.is_tls, people=opened[0])
        view = View(opened[0], token=self._token, operators=operators, reports=[self._folder / RUNS])
        self._stack.push_async_callback(view.close)
        self._serve(f"view of {role}", view.app())

    def _serve(self, name: str, app: AsgiApp) -> None:
        socket = listening("127.0.0.1", 0)
        self.places[name] = address_of(socket)
        self._run(server_of(app).serve([socket]))

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(_end)


def _end(task: "asyncio.Task[object]") -> None:
    """What ends here has failed."""
    if not task.cancelled():
        print(task.exception() or "it has ended", file=sys.stderr)
        os._exit(1)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


async def main(folder: Path) -> None:
    (folder / DATA).mkdir()
    os.umask(0)  # modes are what the product says
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    async with AsyncExitStack() as stack:
        served = Served(folder, stack)
        await served.start()
        print(json.dumps(served.places), flush=True)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
