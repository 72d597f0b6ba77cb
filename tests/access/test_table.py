"""The table has a row for everything that snapline serves, and says of each limit what the product says."""

import ast
import importlib
import pkgutil
from pathlib import Path

from starlette.routing import Route as ServedRoute
from tests.access.table import GATEWAY, METRICS_READERS, NO_PORTS, PORTS, ROLES, RPCS, VIEW
from tests.access.world import PATHS
from tests.integration.processes import ROOT
from tests.view.simulated import SimulatedFleet

from snapline.client.client import Client
from snapline.gateway.app import Gateway, clients_of_people
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.protos import v1
from snapline.security import rpc_authorization
from snapline.security.rpc_authorization import RPC_RULES
from snapline.security.tokens import USER_ROLES
from snapline.security.transport import Security
from snapline.telemetry import metrics_server as metrics_endpoint
from snapline.view.action_requests import Operators
from snapline.view.view_app import View

OTHERS = {"Health/Check", "Health/Watch", "ServerReflection/ServerReflectionInfo"}
"""RPCs that gRPC's own libraries describe."""


def test_every_rpc_has_a_row() -> None:
    modules = [importlib.import_module(f"{v1.__name__}.{each.name}") for each in pkgutil.iter_modules(v1.__path__)]
    files = [module.DESCRIPTOR for module in modules if hasattr(module, "DESCRIPTOR")]
    services = [service for file in files for service in file.services_by_name.values()]
    assert {f"{service.name}/{method.name}" for service in services for method in service.methods} | OTHERS == set(RPCS)
    assert set(PATHS) == set(RPCS), "the guard lets nothing else pass"


def test_the_guard_goes_by_the_same_roles_and_sizes() -> None:
    assert set(ROLES) == set(rpc_authorization.ROLES)
    for rpc, row in RPCS.items():
        door = RPC_RULES[PATHS[rpc]]
        assert set(door.roles) == {role.rstrip("!") for role in row.roles.split()}, rpc
        assert door.is_self_only == ("!" in row.roles), rpc
        assert door.request_bytes_max == (0 if row.is_stream else row.bytes_max), rpc
    assert set(metrics_endpoint.READERS) == set(METRICS_READERS.split())


def test_an_error_names_what_a_user_may_not_do() -> None:
    users = {*USER_ROLES, rpc_authorization.CLIENT}
    for rpc, rule in RPC_RULES.items():
        is_for_some_users = bool(users & {*rule.roles}) and {*rule.roles} != {*rpc_authorization.ROLES}
        assert bool(rule.action) == is_for_some_users, rpc


def routes_of(routes: object) -> set[str]:
    """`METHOD /path` of each; HEAD is asked for where GET is."""
    assert isinstance(routes, list) and all(isinstance(each, ServedRoute) for each in routes)
    return {f"{method} {each.path}" for each in routes for method in (each.methods or set()) - {"HEAD"}}


async def test_every_route_has_a_row(tmp_path: Path) -> None:
    people = clients_of_people("127.0.0.1:1", Security.loopback())
    gateway = Gateway(Client.__new__(Client), token="", openapi={}, people=people)
    assert routes_of(gateway.app().routes) == {row.route for row in GATEWAY}
    coordinator = CoordinatorClient("127.0.0.1:1")
    operators = Operators(coordinator, tmp_path, has_certificates=False)
    view = View(SimulatedFleet(), operators=operators, trace=tmp_path, reports=[tmp_path])
    assert routes_of(view.app().routes) == {row.route for row in VIEW}
    assert routes_of(View(None, trace=tmp_path, reports=[tmp_path]).app().routes) < {row.route for row in VIEW}
    await coordinator.close()


LISTENING = {
    "grpc.aio.server",
    "grpc.server",
    "start_server",
    "start_unix_server",
    "create_server",
    "ThreadingHTTPServer",
}
"""Functions and classes by which Python listens."""


def listens(path: Path) -> bool:
    """Does the code of this file call one of them, or derive from it?"""
    text = path.read_text()
    if not any(name in text for name in LISTENING):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    named = [node.func for node in nodes if isinstance(node, ast.Call)]
    named += [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    words = {ast.unparse(each) for each in named}
    return bool(LISTENING & (words | {word.rpartition(".")[2] for word in words}))


def test_every_port_has_a_row() -> None:
    rooms = [link.resolve() for link in (ROOT / "src" / "snapline").iterdir() if link.is_dir()]
    files = [path for room in rooms for path in room.rglob("*.py") if "conformance" not in path.parts]
    found = {path.relative_to(ROOT).as_posix().removeprefix("src/snapline/") for path in files if listens(path)}
    assert found == {file for port in PORTS.values() for file in port.made_in} | set(NO_PORTS)


def test_limits_are_what_the_table_says() -> None:
    for constant, value in {limit for port in PORTS.values() for limit in port.limits.values()}:
        module, _, name = constant.rpartition(".")
        assert getattr(importlib.import_module(f"snapline.{module}"), name) == value, constant
