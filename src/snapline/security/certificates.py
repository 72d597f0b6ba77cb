"""Manages a fleet's own certificate authority, which signs certificates. This module requires `snapline[crypto]`.

All files of the authority are in one folder. The authority's certificate contains the trust domain of its fleet, so certificates issued
later belong to the same domain. A certificate contains a SPIFFE URI with a role and a name, which identifies a client, and DNS names, which
identify a server. The certificate of a coordinator replica contains two DNS names. Other replicas connect to a replica by its own DNS name.
Hosts and tools, which do not know the individual replicas, connect by the name `coordinator.coordinator.DOMAIN`.

Keys are P-256 keys, stored in unencrypted files that only their owner can read. Anyone who has the file `ca.key` can issue any certificate,
so do not store it on the fleet's machines.
"""

import datetime
import os
import re
from pathlib import Path
from typing import NamedTuple

from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private
from snapline.ids import check_id
from snapline.security.rpc_authorization import COORDINATOR, ROLES
from snapline.security.transport import DEFAULT_DOMAIN, server_name, spiffe_uri

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as missing:
    raise UsageError("install snapline[crypto]: certificates are made with its library") from missing

CERTIFICATE, KEY = "ca.crt", "ca.key"

AUTHORITY_DAYS = 3650
DAYS = 365
"""Validity in days of the authority's certificate and, by default, of the certificates that it signs. Signed certificates are renewed well
before they expire, and the authority's certificate rarely."""

DAYS_MAX = 3650

CHAIN_MAX = 8
"""Largest number of certificates in a chain that are checked. Most chains have one or two."""

BACKDATE = datetime.timedelta(hours=1)
"""Certificates are valid from this time before they are issued, because the clocks of a fleet's machines may differ."""

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class Issued(NamedTuple):
    """An issued certificate and its key."""

    role: str
    name: str
    certificate: Path
    key: Path
    expires: datetime.datetime


class Authority:
    """A certificate authority that writes each certificate it signs to its folder."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate
        self.domain = _domain_of(certificate, folder)

    @classmethod
    def create(cls, folder: Path, *, domain: str = DEFAULT_DOMAIN) -> "Authority":
        """Create an authority in a folder. The folder must be empty, or must not exist.

        Raises:
            UsageError: the folder is not empty, or the domain is invalid.
            ExternalFailureError: the folder is not writable.
        """
        if len(domain) > 63 or not _DOMAIN.fullmatch(domain):
            raise UsageError(f"{domain!r} is no trust domain: small letters, digits, '-' and '.', at most 63")
        try:
            make_private(folder)
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty: give a new folder, or use `snapline auth issue {folder} …`")
        except OSError as error:
            raise ExternalFailureError(f"{folder} cannot be used: {error}") from error
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{domain} authority")])
        builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{domain}")])
        certificate = _sign(builder.add_extension(names, critical=False), key, key)
        _write(folder / KEY, _pem_of(key), 0o600)
        _write(folder / CERTIFICATE, certificate, 0o644)
        return cls(folder, key, x509.load_pem_x509_certificate(certificate))

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Load an authority that `create` has written to a folder.

        Raises:
            UsageError: the folder contains no authority.
        """
        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            key = load_pem_private_key((folder / KEY).read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{folder} holds no authority: `snapline auth init` makes one ({error})") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UsageError(f"{CERTIFICATE} and {KEY} in {folder} do not belong together")
        return cls(folder, key, certificate)

    def issue(self, role: str, name: str, *, days: int = DAYS) -> Issued:
        """Create a key and sign a certificate for `name` with the role `role`. An existing certificate is replaced, which renews it.

        Raises:
            UsageError: the role is unknown, the name is not a valid id, or `days` is out of range.
        """
        if role not in ROLES:
            raise UsageError(f"{role!r} is no role: there are {', '.join(ROLES)}")
        if not 1 <= days <= DAYS_MAX:
            raise UsageError(f"a certificate is valid for 1 to {DAYS_MAX} days, not {days}")
        check_id(name, role)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
        builder = _builder(subject, self._certificate.subject, key.public_key(), days)
        builder = builder.add_extension(self._names(role, name), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = _sign(builder.add_extension(x509.ExtendedKeyUsage(both), critical=False), key, self._key)
        paths = self._folder / f"{role}-{name}.crt", self._folder / f"{role}-{name}.key"
        _write(paths[1], _pem_of(key), 0o600)
        _write(paths[0], certificate, 0o644)
        return Issued(role, name, *paths, x509.load_pem_x509_certificate(certificate).not_valid_after_utc)

    def renew(self, *, days: int = DAYS) -> list[Issued]:
        """Renew all signed certificates in the folder, with new keys.

        Raises:
            UsageError: the folder contains no signed certificates.
        """
        stems = [path.stem.partition("-") for path in sorted(self._folder.glob("*-*.crt"))]
        owners = [(role, name) for role, _, name in stems if role in ROLES]
        if not owners:
            raise UsageError(f"{self._folder} holds no certificate to renew: `snapline auth issue` makes one")
        return [self.issue(role, name, days=days) for role, name in owners]

    def _names(self, role: str, name: str) -> x509.SubjectAlternativeName:
        served = [server_name(role, name, self.domain)]
        if role == COORDINATOR and name != COORDINATOR:
            served.append(server_name(COORDINATOR, COORDINATOR, self.domain))
        uri = x509.UniformResourceIdentifier(spiffe_uri(role, name, self.domain))
        return x509.SubjectAlternativeName([uri, *[x509.DNSName(served_as) for served_as in served]])


def verified_names(shown: bytes, authority: bytes) -> list[str]:
    """Verify a certificate that a caller has presented to another process, and return the URIs in the certificate.

    Args:
        shown: the certificate in PEM format, followed by the intermediate certificates.

    Raises:
        UsageError: `shown` is not a certificate, the certificate is expired or not valid yet, or no trusted authority has signed it.
    """
    try:
        leaf, *between = x509.load_pem_x509_certificates(shown)[:CHAIN_MAX]
        roots = x509.load_pem_x509_certificates(authority)
        _check_signed(leaf, between, roots, _now())
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise UsageError(f"that certificate is invalid: {error}") from error
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _check_signed(
    one: x509.Certificate, between: list[x509.Certificate], roots: list[x509.Certificate], now: datetime.datetime
) -> None:
    """Check that a chain of valid certificates leads from the certificate to a root. Raise ValueError if there is no such chain.

    The recursion terminates because each intermediate certificate is used at most once.
    """
    if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
        raise ValueError("it has expired, or is not valid yet")
    if any(_has_signed(root, one) for root in roots):
        return
    signer = next((issuer for issuer in between if _has_signed(issuer, one)), None)
    if signer is None:
        raise ValueError("no authority of this fleet has signed it")
    _check_signed(signer, [issuer for issuer in between if issuer != signer], roots, now)


def _has_signed(signer: x509.Certificate, one: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(signer)
        return signer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False


def _domain_of(certificate: x509.Certificate, folder: Path) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    domains = [uri.removeprefix("spiffe://") for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    if len(domains) != 1:
        raise UsageError(f"{folder / CERTIFICATE} names no trust domain: it was not made by `snapline auth init`")
    return str(domains[0])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - BACKDATE, now + datetime.timedelta(days=days)
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> bytes:
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    signed = builder.add_extension(of_signer, critical=False).sign(signer, hashes.SHA256())
    return signed.public_bytes(Encoding.PEM)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically, because another process may be reading the file. At no time does the file have more permissions than
    `mode`."""
    scratch = path.with_name(f"{path.name}.new")
    try:
        scratch.unlink(missing_ok=True)
        handle = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(scratch, path)
    except OSError as error:
        raise ExternalFailureError(f"{path} cannot be written: {error}") from error
