"""The doors of a real fleet: every call by everybody, and what callers who were not let in make it cost."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.integration.callers import (
    CALLERS,
    LEAD,
    LEAD_OF_C1,
    OTHER_HOST,
    Secured,
    as_table,
    declared,
    knock,
    knock_bearing,
    secured,
)
from tests.integration.processes import snapline, together

from snapline.channels.doors import COORDINATOR, DOORS
from snapline.channels.options import RECEIVE_BYTES_MAX

pytestmark = pytest.mark.timeout(180)

SETTLE = "/snapline.protos.v1.Inputs/Settle"

MIB = 1024 * 1024
COST_MAX = 32 * MIB
"""Of 16 MiB."""

COST_OF_SIX_MAX = 64 * MIB
"""Of 96 MiB at once: they are read one after the other, and what is freed stays with the process for a while."""

SIX_LARGE = (6, 16 * MIB - 1024)
"""Messages of empty names at once: larger than a server takes."""

ONE_LARGE = (1, 16 * MIB - 1024)
MANY = (8, RECEIVE_BYTES_MAX - 1024)
"""As large as a server takes, 16 MiB together."""


async def test_every_call_by_everybody_is_as_declared(tmp_path: Path) -> None:
    async with secured(tmp_path) as fleet:
        callers = fleet.make_callers()
        found: dict[str, dict[str, str]] = {}
        for rpc in DOORS:
            outcomes = await asyncio.gather(*(knock(fleet, rpc, callers[caller]) for caller in CALLERS))
            found[rpc] = dict(zip(CALLERS, outcomes, strict=True))
        print("\n" + as_table(found))
        assert found == {rpc: {caller: declared(rpc, caller) for caller in CALLERS} for rpc in DOORS}
        other = await knock(fleet, LEAD, callers[COORDINATOR], LEAD_OF_C1.SerializeToString())
        assert other == "no", "a replica hands on its own lead only"
        assert (await fleet.until_running()).plan == 1, "nobody has done harm"
        await people_use_tokens(fleet)
        asked = await together(*(("health", "--health", fleet.health(name)) for name in fleet.processes))
        assert [each.code for each in asked] == [0, 0, 0], "who has no certificate may ask how a process is"
        assert await fleet.end() == [0, 0, 0]


async def people_use_tokens(fleet: Secured) -> None:
    """By the command line, at the coordinator and at a host; and all that was knocked above is in the book."""
    admin = ("--coordinator", fleet.address, *fleet.options("admin", "admin"))
    made = await snapline("auth", "token", "create", "bob", "--role", "operator", *admin, "-o", "json")
    assert made.code == 0, made.err
    file = fleet.folder / "token"
    file.touch(mode=0o600)
    file.write_text(json.loads(made.out)["token"])
    bob = ("--coordinator", fleet.address, *fleet.options("bearer", "bearer"), "--auth-token", file)
    done, shown = await together(("snapshot", "create", *bob), ("agent", "describe", "teller-0", *bob))
    assert (done.code, shown.code) == (0, 0), done.err + shown.err
    assert await knock_bearing(fleet, SETTLE, file.read_text()) == "yes"
    assert await knock_bearing(fleet, SETTLE, "snapline_nonsense") == "no"
    revoked = await snapline("auth", "token", "revoke", "bob", *admin)
    refused = await snapline("snapshot", "create", *bob)
    assert (revoked.code, refused.code) == (0, 2) and "this token may not do that: it was revoked" in refused.err
    told = json.loads((await snapline("audit", "-n", "500", *admin, "-o", "json")).out)
    assert [each["number"] for each in told["calls"]] == list(range(1, len(told["calls"]) + 1)) and told["dropped"] == 0
    found = {(each["who"], each["by"], each["host"], each["call"], each["outcome"]) for each in told["calls"]}
    acting = {rpc.rpartition("/")[2]: door for rpc, door in DOORS.items() if door.acts}
    for call, door in acting.items():
        for role in ("viewer", "operator", "admin"):
            outcome = "allowed" if role in door.roles else "refused"
            assert (role, "certificate", "h2" if call == "Settle" else None, call, outcome) in found
    assert {("bob", "token", None, "CreateSnapshot", "allowed")} <= found
    assert ("bob", "token", "h2", "Settle", "allowed") in found
    assert not {each[0] for each in found} - {"viewer", "operator", "admin", "bob"}, (
        "hosts, launchers and clients are not people"
    )


async def say(channel: grpc.aio.Channel, rpc: str, data: bytes) -> None:
    """As a stream: what is refused may be refused before all of it is there."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(rpc)(timeout=30)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(data)
        await call.read()
    call.cancel()


async def throw(
    fleet: Secured, pair: tuple[bytes, bytes] | None, server: str, rpcs: list[str], bombs: tuple[int, int]
) -> None:
    """Call each of these with all bombs at once."""
    count, size = bombs
    bomb = b"\x0a\x00" * (size // 2)
    async with fleet.channel(pair, server) as channel:
        for rpc in rpcs:
            await asyncio.gather(*(say(channel, rpc, bomb) for _ in range(count)))


def memory(pid: int, field: str) -> int:
    """In bytes: "VmRSS" now, "VmHWM" at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")


async def cost(pid: int, attack: Awaitable[None]) -> int:
    """How much the process has grown at most while it was attacked."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the maximum begins anew
    before = memory(pid, "VmRSS")
    await attack
    return memory(pid, "VmHWM") - before


@pytest.mark.slow
async def test_16_mib_of_anything_cost_the_unadmitted_nothing_and_the_fleet_little(tmp_path: Path) -> None:
    """Who has no role is not read. Who has one and has not said who he is, is read one message at a time."""
    async with secured(tmp_path) as fleet:
        callers = fleet.make_callers()
        pids = {name: process.pid for name, process in fleet.processes.items()}
        link, attend = "/snapline.protos.v1.Link/Open", "/snapline.protos.v1.Coordinator/Attend"
        line = "/snapline.protos.v1.Coordinator/RecoveryLine"
        offer = "/snapline.protos.v1.Inputs/Offer"
        everything = [rpc for rpc in DOORS if "Link" not in rpc and rpc != offer]
        attacks = [
            ("c1", "no role", everything, SIX_LARGE),
            ("c1", "no role", [line], MANY),
            ("c1", "no role", [attend], MANY),
            *[("c1", OTHER_HOST, [attend], bombs) for bombs in (ONE_LARGE, MANY, SIX_LARGE)],
            *[("c1", "viewer", [line], bombs) for bombs in (ONE_LARGE, MANY, SIX_LARGE)],
            ("h1", "no role", [link], SIX_LARGE),
            *[("h1", OTHER_HOST, [link], bombs) for bombs in (ONE_LARGE, MANY, SIX_LARGE)],
            ("h1", "no role", [offer], SIX_LARGE),
            *[("h1", "client", [offer], bombs) for bombs in (ONE_LARGE, MANY, SIX_LARGE)],
        ]
        for name, caller, rpcs, bombs in attacks:
            server = name if name != "c1" else ""
            paid = await cost(pids[name], throw(fleet, callers[caller], server, rpcs, bombs))
            print(f"{name} attacked by {caller}, {bombs[0]} of {bombs[1] / MIB:.0f} MiB: {paid / MIB:.1f} MiB")
            assert paid <= (COST_OF_SIX_MAX if bombs == SIX_LARGE and caller != "no role" else COST_MAX)
        assert (await fleet.until_running()).plan == 1
