"""A replica's door for people: what it says when it does not lead, and when nobody knows what became of an entry."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from tests.security.certificates import Authority, Leaf

from snapline.coordinator.raft.raft_driver import RaftDriver, Replica
from snapline.coordinator.service.leadership import LeaderRunner, Leadership
from snapline.coordinator.service.servicer import LeaderHint
from snapline.coordinator.service.users import FleetUsers
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ALIVE,
    LOST,
    Committed,
    HostRecord,
    ProposalOutcome,
    Rejected,
    Unknown,
)
from snapline.coordinator.state.fleet_state import FleetState
from snapline.errors import CoordinatorUnavailableError, UsageError
from snapline.security.rpc_authorization import Caller
from snapline.security.tokens import digest_of
from snapline.security.transport import Identity, Security

DIGEST = digest_of("the token of ada")
ADA = Caller(Identity("operator", "ada"), DIGEST)
SECURITY = Security.loopback()


class Elsewhere(LeaderHint):
    def __init__(self) -> None:
        super().__init__(Leadership(lambda: cast(LeaderRunner, None)), cast(Replica, None), {})

    def sentence(self) -> str:
        return "another replica, c2, leads the coordinator"


class Log:
    """Applies what is proposed, and answers as it was told to: the last answer for ever."""

    def __init__(self, state: FleetState, *answers: str) -> None:
        self.state = state
        self.answers = list(answers)
        self.entries: list[bytes] = []

    async def propose(self, entry: bytes) -> ProposalOutcome:
        self.entries.append(entry)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "rejected":
            return Rejected("no majority")
        result = self.state.apply(op.decode_operation(entry))
        return Unknown("no answer") if answer == "unknown" else Committed(result)


def people(
    *answers: str, leads: bool = True, security: Security = SECURITY, hosts: Mapping[str, str] = {"h1": ALIVE}
) -> tuple[FleetUsers, Log]:
    state, leadership = FleetState(), Leadership(lambda: cast(LeaderRunner, None))
    state.apply(op.Operation(1, "test", 1, op.MakeToken("ada", "operator", DIGEST, 1 << 62)))
    state.image.hosts.update({host: HostRecord(1, "", "", standing) for host, standing in hosts.items()})
    leadership.runner = cast(LeaderRunner, object()) if leads else None
    log = Log(state, *(answers or ("committed",)))
    return FleetUsers(state, cast(RaftDriver, None), log, leadership, Elsewhere(), node="c1", security=security), log


async def test_a_replica_that_does_not_lead_knows_the_tokens_that_it_knows_and_sends_others_to_the_leader() -> None:
    """A token may be newer than what has come here; nothing is written down here."""
    follower, log = people(leads=False)
    assert await follower.holder(DIGEST) == ("operator", "ada")
    with pytest.raises(CoordinatorUnavailableError, match="c2, leads"):
        await follower.holder(digest_of("another"))
    with pytest.raises(CoordinatorUnavailableError, match="c2, leads"):
        await follower.record(ADA, "CreateSnapshot", "", "allowed")
    leader, _ = people()
    assert await leader.holder(digest_of("another")) is None and log.entries == []


async def test_a_call_is_written_down_once_though_nobody_knew_of_the_first_attempt() -> None:
    door, log = people("unknown", "unknown", "committed")
    await door.record(ADA, "CreateSnapshot", "", "allowed")
    assert len(log.entries) == 3 and len(set(log.entries)) == 1
    assert [each.number for each in log.state.image.calls] == [1]
    await door.record(ADA, "CreateSnapshot", "", "allowed")
    assert [each.number for each in log.state.image.calls] == [1, 2], "another call, though the same words"


async def test_what_cannot_be_written_down_is_not_let_in() -> None:
    door, log = people("rejected")
    with pytest.raises(CoordinatorUnavailableError, match="no majority"):
        await door.record(ADA, "CreateSnapshot", "", "allowed")
    door, log = people()
    await door.revoke_token("ada")
    with pytest.raises(UsageError, match="the token of ada is not good any more"):
        await door.record(ADA, "CreateSnapshot", "", "allowed")
    assert log.state.image.calls == []


async def test_a_token_is_good_for_a_year_at_most() -> None:
    door, _ = people()
    for valid_s in (0, 367 * 24 * 3600):
        with pytest.raises(UsageError, match="up to 366 days"):
            await door.make_token("bob", "viewer", digest_of("x"), valid_s)
    with pytest.raises(UsageError, match="bob/2"):
        await door.make_token("bob/2", "viewer", digest_of("x"), 60)


# ---- what hosts have written down -------------------------------------------------------------------------------------


def proof_of(leaf: Leaf) -> Caller:
    return Caller(None, b"", leaf.certificate.read_bytes())


async def test_a_host_has_written_down_whom_a_token_names() -> None:
    door, log = people()
    await door.record_at("h1", Caller(None, DIGEST), "Settle", "w 1", "allowed")
    (made,) = log.state.image.calls
    assert (made.name, made.role, made.is_borne, made.at) == ("ada", "operator", True, "h1")


@pytest.mark.parametrize(
    ("proof", "call", "outcome", "reason"),
    [
        (Caller(Identity("admin", "eve")), "Settle", "allowed", "shows the person's token digest or certificate"),
        (Caller(Identity("admin", "eve"), digest_of("a guess")), "Settle", "allowed", "the token is not good"),
        (Caller(None, DIGEST), "ForgetHost", "allowed", "'ForgetHost' to a host"),
        (Caller(None, DIGEST), "Settle", "done", "is not written down"),
        (Caller(None, DIGEST), "Settle", "refused", "cannot have been refused"),
    ],
)
async def test_a_name_is_not_believed_from_a_host(
    proof: Caller, call: str, outcome: str, reason: str, tmp_path: Path
) -> None:
    door, log = people(security=Authority(tmp_path).issue("c1", role="coordinator").security())
    with pytest.raises(UsageError, match=reason):
        await door.record_at("h1", proof, call, "", outcome)
    assert log.entries == []


async def test_hosts_that_are_not_members_have_nothing_written_down() -> None:
    door, log = people(hosts={"h1": ALIVE, "h2": LOST})
    with pytest.raises(UsageError, match="h9 is no member"):
        await door.record_at("h9", Caller(None, DIGEST), "Settle", "", "allowed")
    with pytest.raises(CoordinatorUnavailableError, match="h2 is lost"):
        await door.record_at("h2", Caller(None, DIGEST), "Settle", "", "allowed")
    assert log.entries == []


async def test_a_host_has_written_down_whom_a_certificate_of_the_authority_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    door, log = people(security=authority.issue("c1", role="coordinator").security())
    await door.record_at("h1", proof_of(authority.issue("ada", role="operator")), "Settle", "", "allowed")
    await door.record_at("h1", proof_of(authority.issue("bob", role="viewer")), "Settle", "", "refused")
    assert [(each.name, each.role) for each in log.state.image.calls] == [("ada", "operator")]
    assert [(each.name, each.role) for each in log.state.image.refusals] == [("bob", "viewer")]


async def test_certificates_of_others_prove_nobody(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path), Authority(tmp_path, "other")
    door, log = people(security=ours.issue("c1", role="coordinator").security())
    host = ours.issue("h1")
    for leaf, reason in (
        (other.issue("eve", role="admin"), "no authority of this fleet has signed it"),
        (host, "by a 'host' is not written down"),
        (ours.issue("bob", role="viewer"), "cannot have been allowed"),
        (ours.issue("ada", role="operator", uri="spiffe://elsewhere/operator/ada"), "names nobody of this fleet"),
    ):
        with pytest.raises(UsageError, match=reason):
            await door.record_at("h1", proof_of(leaf), "Settle", "", "allowed")
    chained = Caller(None, b"", other.issue("eve", role="admin").certificate.read_bytes() + other.path.read_bytes())
    with pytest.raises(UsageError, match="no authority of this fleet"):
        await door.record_at("h1", chained, "Settle", "", "allowed")
    assert log.entries == []
