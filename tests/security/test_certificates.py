"""A fleet's own authority: what it signs is what servers and clients look for, and keys are nobody else's."""

import stat
from pathlib import Path

import pytest
from cryptography import x509

from snapline.errors import UsageError
from snapline.security.certificates import AUTHORITY_DAYS, Authority
from snapline.security.transport import server_name, spiffe_uri


def names_of(path: Path) -> tuple[list[str], list[str]]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier), names.get_values_for_type(x509.DNSName)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_and_their_folder_are_for_their_user_alone(tmp_path: Path) -> None:
    issued = Authority.create(tmp_path / "new").issue("host", "h1")
    assert mode(tmp_path / "new") == 0o700
    assert [mode(x) for x in (issued.key, tmp_path / "new" / "ca.key")] == [0o600, 0o600]


def test_a_certificate_says_who_calls_and_who_serves(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, domain="shop.example")
    host, replica = authority.issue("host", "h1"), authority.issue("coordinator", "c1")
    assert names_of(host.certificate) == (["spiffe://shop.example/host/h1"], ["h1.host.shop.example"])
    assert names_of(replica.certificate) == (
        [spiffe_uri("coordinator", "c1", "shop.example")],
        [server_name("coordinator", name, "shop.example") for name in ("c1", "coordinator")],
    )


def test_what_is_issued_later_is_of_the_same_domain_and_replaces_what_was(tmp_path: Path) -> None:
    first = Authority.create(tmp_path, domain="shop").issue("host", "h1", days=1)
    before = first.certificate.read_bytes()
    again = Authority.load(tmp_path).issue("host", "h1", days=9)
    assert again.certificate == first.certificate and again.expires > first.expires
    assert first.certificate.read_bytes() != before
    assert names_of(again.certificate)[0] == ["spiffe://shop/host/h1"]
    signed = x509.load_pem_x509_certificate(again.certificate.read_bytes())
    signed.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes()))


def test_an_authority_outlives_what_it_signs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"1 to {AUTHORITY_DAYS} days"):
        Authority.create(tmp_path).issue("host", "h1", days=AUTHORITY_DAYS + 1)


def test_nothing_is_overwritten_and_nothing_is_made_of_nonsense(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        Authority.create(tmp_path / "full")
    with pytest.raises(UsageError, match="no trust domain"):
        Authority.create(tmp_path / "new", domain="a/b")
    with pytest.raises(UsageError, match="`snapline auth init` makes one"):
        Authority.load(tmp_path / "full")
    authority = Authority.create(tmp_path / "new")
    with pytest.raises(UsageError, match="'king' is no role: there are viewer, approver, operator"):
        authority.issue("king", "k")
    with pytest.raises(UsageError):
        authority.issue("host", "../h1")
