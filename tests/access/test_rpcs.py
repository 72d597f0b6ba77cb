"""Every RPC by every caller, with certificates and without, is as the table says."""

import asyncio
from pathlib import Path

import grpc.aio
from tests.access.table import AT_HEALTH_DOORS, NOBODY, OTHER_HOST, RPCS, STRANGERS, USER_ROLES
from tests.access.world import NO, PATHS, SERVERS, SHUT_OUT, UNKNOWN, YES, Caller, World, call, settling
from tests.kit.command_line import invoke

from snapline.cli.main import app
from snapline.messages.agent_commands import DeadLetterCommand, dead_letter_command_payload
from snapline.messages.approvals import ApprovalAnswer, approval_answer_payload
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import inputs_pb2
from snapline.security.rpc_authorization import RPC_RULES

Outcomes = dict[tuple[str, str], str]
"""Server and RPC → how it ended."""


def expected(name: str) -> Outcomes:
    """What the table says of a caller."""
    return {(server, rpc): _expected(name, server, rpc) for server in SERVERS for rpc in RPCS}


def _expected(name: str, server: str, rpc: str) -> str:
    row = RPCS[rpc]
    if name in STRANGERS:
        return SHUT_OUT
    if row.at not in (server, "both"):
        return UNKNOWN
    role = name.removesuffix(" by token").removesuffix(" of another name")
    return YES if name not in NOBODY and row.admits(role, is_itself=name != OTHER_HOST) else NO


async def outcomes(world: World, caller: Caller) -> Outcomes:
    """All that one caller may call, and may not."""
    found: Outcomes = {}
    for server in SERVERS:
        async with world.channel(caller, server) as channel:
            ended = await asyncio.gather(*(call(channel, rpc) for rpc in RPCS))
        found |= {(server, rpc): how for rpc, how in zip(RPCS, ended, strict=True)}
    return found


def differences(found: dict[str, Outcomes]) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Caller, server and RPC → how it ended, and how it should have."""
    wanted = {name: expected(name) for name in found}
    return {
        (name, *at): (how, wanted[name][at])
        for name, ended in found.items()
        for at, how in ended.items()
        if how != wanted[name][at]
    }


async def test_every_call_by_everybody_is_as_the_table_says(secured: World) -> None:
    found = {name: await outcomes(secured, caller) for name, caller in secured.callers.items()}
    assert differences(found) == {}
    async with secured.channel(secured.callers["coordinator"], "coordinator") as channel:
        of_another = pb.TransferLeaderRequest(only_from="c1").SerializeToString()
        assert await call(channel, "Coordinator/TransferLeader", of_another) == NO, "a replica hands on its own lead"
    await everything_that_people_did_is_in_the_book(secured)
    await an_approver_gives_no_other_commands(secured)


async def an_approver_gives_no_other_commands(world: World) -> None:
    """Nor a request with an answer and another command in it. The audit log has the attempt."""
    command = dead_letter_command_payload(DeadLetterCommand("drop", 7, b"x"))
    request = inputs_pb2.OfferRequest.FromString(settling(approval_answer_payload(ApprovalAnswer("0" * 32, True))))
    request.inputs.add(agent="nobody", key="j", payload=command)
    async with world.channel(world.callers["approver"], "host") as channel:
        for payload in (settling(command), request.SerializeToString()):
            assert await call(channel, "Inputs/Settle", payload) == NO
    admin = CoordinatorClient(world.places["coordinator"], world.security("admin"))
    audit = await admin.read_audit(500)
    await admin.close()
    refused = [each for each in audit.calls if (each.name, each.call, each.outcome) == ("approver", "Settle", "failed")]
    assert len(refused) == 2 and all("verb drop, number 7" in each.about for each in refused)


async def everything_that_people_did_is_in_the_book(world: World) -> None:
    """With who, by what, where, and whether it was let in; hosts, launchers and clients are not people."""
    admin = CoordinatorClient(world.places["coordinator"], world.security("admin"))
    audit = await admin.read_audit(500)
    await admin.close()
    assert [each.number for each in audit.calls] == list(range(1, len(audit.calls) + 1)) and not audit.dropped
    found = {(each.name, each.is_borne, each.at, each.call, each.outcome) for each in audit.calls}
    for rpc, row in RPCS.items():
        if RPC_RULES[PATHS[rpc]].changes_state:
            name, at = rpc.rpartition("/")[2], "h2" if row.at == "host" else ""
            for role in USER_ROLES:
                outcome = "allowed" if row.admits(role) else "refused"
                assert {(role, False, at, name, outcome), (f"{role}-by-token", True, at, name, outcome)} <= found
    assert {name for name, *_ in found} - {"bob"} == {*USER_ROLES, *(f"{role}-by-token" for role in USER_ROLES)}


async def test_without_certificates_anybody_may_call_everything(plain: World) -> None:
    found = await outcomes(plain, plain.callers["plaintext"])
    served = {at: YES if RPCS[at[1]].at in (at[0], "both") else UNKNOWN for at in found}
    assert {at: how for at, how in found.items() if how != served[at]} == {}


async def test_at_a_health_door_anybody_may_ask_and_nothing_else_is_served(secured: World, plain: World) -> None:
    for world in (secured, plain):
        for name in SERVERS.values():
            async with grpc.aio.insecure_channel(world.places[f"health {name}"]) as channel:
                found = {rpc: await call(channel, rpc) for rpc in RPCS}
            assert found == {rpc: YES if rpc in AT_HEALTH_DOORS else UNKNOWN for rpc in RPCS}


async def test_a_request_that_is_too_large_is_refused(secured: World) -> None:
    async def refusal(rpc: str) -> str:
        row = RPCS[rpc]
        async with secured.channel(secured.callers[row.roles.split()[0].rstrip("!")], row.at) as channel:
            return await call(channel, rpc, bytes(row.bytes_max + 1))

    rpcs = [rpc for rpc, row in RPCS.items() if row.at in SERVERS and not row.is_stream]
    for rpc, refused in zip(rpcs, await asyncio.gather(*map(refusal, rpcs)), strict=True):
        size = RPCS[rpc].bytes_max
        assert refused.endswith(f"{size + 1} bytes; {size} are allowed"), (rpc, refused)


def test_people_use_tokens_by_the_command_line(secured: World, tmp_path: Path) -> None:
    """At the coordinator and at a host."""
    where = ("--coordinator", secured.places["coordinator"])
    admin = (*where, *secured.options("admin-admin"))
    made = invoke(app, "auth", "token", "create", "bob", "--role", "operator", *admin)
    assert made.code == 0, made.err
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(made.json["token"])
    bob = (*where, *secured.options("bearer-bearer"), "--auth-token", file)
    done, shown = invoke(app, "snapshot", "create", *bob), invoke(app, "agent", "describe", "a", *bob)
    assert (done.code, shown.code) == (0, 0), done.err + shown.err
    revoked = invoke(app, "auth", "token", "revoke", "bob", *admin)
    refused = invoke(app, "snapshot", "create", *bob)
    assert (revoked.code, refused.code) == (0, 2) and "this token may not do that: it was revoked" in refused.err
