"""Tokens and the book of calls, as the replicated state keeps them."""

import hashlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.conftest import Agreed

from snapline.coordinator.state import operation_rules
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import UNCHANGED
from snapline.coordinator.state.operation_rules import CALLS_KEPT, REFUSALS_KEPT, TOKENS_MAX, bearer_of
from snapline.security.tokens import (
    INVALID_TOKEN_DIGEST,
    SUBJECT_CHARACTERS_MAX,
    USER_ROLES,
    digest_of,
    new_token,
    token_digest_in,
)

SOON_NS, LATER_NS = 1_000_000, 2_000_000


def token(name: str, role: str = "operator", expires_ns: int = LATER_NS) -> op.MakeToken:
    return op.MakeToken(name, role, digest_of(f"the token of {name}"), expires_ns)


def call(name: str = "ada", *, digest: bytes = b"", outcome: str = "allowed") -> op.RecordCall:
    return op.RecordCall(name, "operator", digest, "", "CreateSnapshot", "", outcome)


def test_a_token_is_good_from_its_making_until_it_is_revoked_or_its_time_is_over(agreed: Agreed) -> None:
    made = token("ada", "admin", SOON_NS)
    image = agreed.state.image
    assert bearer_of(image, made.digest, 0) is None
    agreed.do(made)
    assert bearer_of(image, made.digest, SOON_NS - 1) == ("ada", "admin")
    assert bearer_of(image, made.digest, SOON_NS) is None
    assert bearer_of(image, digest_of("another"), 0) is bearer_of(image, b"", 0) is None
    agreed.do(op.RevokeToken("ada"))
    assert bearer_of(image, made.digest, 0) is None
    assert agreed.try_(op.RevokeToken("ada")).status == UNCHANGED


def test_a_name_has_one_token_and_no_role_but_those_of_people(agreed: Agreed) -> None:
    agreed.do(token("ada", expires_ns=SOON_NS))
    assert agreed.try_(token("ada", expires_ns=SOON_NS)).status == UNCHANGED, "the same word again"
    assert "there is a token ada" in agreed.refused(token("ada", "admin"))
    for role in ("host", "coordinator", "launcher", "client", "bearer", "", "king"):
        assert "one of the roles viewer, approver, operator, admin" in agreed.refused(token("bob", role))
    assert "has a name" in agreed.refused(op.MakeToken("", "viewer", bytes(32), 1))
    assert "has a name" in agreed.refused(op.MakeToken("bob", "viewer", b"short", 1))
    assert agreed.try_(token("ada", "admin"), now_ns=SOON_NS).status == "applied", "the one before has expired"


def test_there_are_so_many_tokens_at_once_and_those_that_have_expired_do_not_count(agreed: Agreed) -> None:
    for number in range(TOKENS_MAX):
        agreed.do(token(f"t{number}", expires_ns=SOON_NS if number else LATER_NS))
    assert f"at most {TOKENS_MAX} tokens" in agreed.refused(token("one-more"))
    assert agreed.try_(token("one-more"), now_ns=SOON_NS).status == "applied"
    assert list(agreed.state.image.tokens) == ["t0", "one-more"]


def test_nobody_acts_by_a_token_from_the_entry_on_that_revokes_it(agreed: Agreed) -> None:
    """Whichever replica had let the call in: a deposed leader may not know of it yet."""
    made = token("ada")
    agreed.do(made)
    agreed.do(call(digest=made.digest))
    agreed.do(op.RevokeToken("ada"))
    assert "not good any more" in agreed.refused(call(digest=made.digest))
    assert "not good any more" in agreed.refused(call("bob", digest=made.digest))
    agreed.do(call(digest=made.digest, outcome="failed"))
    assert [(each.number, each.outcome) for each in agreed.state.image.calls] == [(1, "allowed"), (2, "failed")]


def test_refusals_do_not_push_out_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < REFUSALS_KEPT < CALLS_KEPT
    monkeypatch.setattr(operation_rules, "CALLS_KEPT", 3)
    monkeypatch.setattr(operation_rules, "REFUSALS_KEPT", 3)
    agreed = Agreed()
    agreed.do(call("ada"))
    for _ in range(5):
        agreed.do(call("eve", outcome="refused"))
    image = agreed.state.image
    assert [each.number for each in image.calls] == [1]
    assert [each.number for each in image.refusals] == [4, 5, 6]
    for _ in range(5):
        agreed.do(call("ada"))
    assert [each.number for each in image.calls] == [9, 10, 11] and image.calls_made == 11


def test_a_host_pushes_out_its_own_entries_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_rules, "CALLS_KEPT", 16)
    agreed = Agreed()
    for at in ("", "h1", "h2"):
        agreed.do(msgspec.structs.replace(call("ada"), at=at))
    for _ in range(50):
        agreed.do(msgspec.structs.replace(call("eve"), at="h2"))
    assert [(each.number, each.at) for each in agreed.state.image.calls] == [(1, ""), (2, "h1"), (52, "h2"), (53, "h2")]
    assert agreed.state.image.calls_made == 53


def test_the_fullest_books_are_a_small_part_of_an_image(agreed: Agreed) -> None:
    """Names of 128 bytes, and all that a call may be about: an image of 16 MiB has room for it."""
    long = msgspec.structs.replace(
        call("n" * 128), call="CreateSnapshot", about="x" * SUBJECT_CHARACTERS_MAX, at="h" * 128
    )
    agreed.do(long)
    each = len(msgspec.msgpack.encode(agreed.state.image.calls[0]))
    assert each * (CALLS_KEPT + REFUSALS_KEPT) < 2 * 1024 * 1024


# ---- tokens themselves ------------------------------------------------------------------------------------------------


def test_a_token_has_256_bits_and_its_digest_is_sha256() -> None:
    made = [new_token() for _ in range(100)]
    assert len(set(made)) == 100
    assert all(re.fullmatch(r"snapline_[A-Za-z0-9_-]{43}", each) for each in made)
    assert digest_of("abc") == hashlib.sha256(b"abc").digest()
    assert USER_ROLES == ("viewer", "approver", "operator", "admin")


@given(st.text())
def test_only_a_bearer_header_alone_is_a_token(text: str) -> None:
    assert token_digest_in([("other", "x")]) is None
    assert token_digest_in([("other", "x"), ("authorization", "Bearer abc")]) == digest_of("abc")
    nothing = digest_of("")
    for value in (text, f"Basic {text}", text.encode(), "Bearer " + "x" * 200):
        if value != "Bearer abc" and not str(value).startswith("Bearer "):
            assert token_digest_in([("authorization", value)]) in (INVALID_TOKEN_DIGEST, nothing)
    assert token_digest_in([("authorization", "Bearer " + "x" * 200)]) == INVALID_TOKEN_DIGEST
    assert token_digest_in([("authorization", "Bearer abc")] * 2) == INVALID_TOKEN_DIGEST, "which of the two?"
