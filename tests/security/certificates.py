"""Certificates for tests: an authority, and what it signs."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from snapline.security.transport import Security, server_name, spiffe_uri

_PEM = serialization.Encoding.PEM
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates for hosts and writes them as PEM files into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(_PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        """With the identifiers of both keys: Python 3.13 verifies strictly, and wants them."""
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def issue(self, host: str, *, role: str = "host", uri: str | None = None, name: str | None = None) -> "Leaf":
        """A certificate for `host`, with its SPIFFE URI and DNS name unless told otherwise."""
        leaf = Leaf(self._folder / f"{host}.crt", self._folder / f"{host}.key", self.path)
        self.write(leaf, host, role=role, uri=uri, name=name)
        return leaf

    def write(
        self, leaf: "Leaf", host: str, *, role: str = "host", uri: str | None = None, name: str | None = None
    ) -> None:
        """Write a new certificate and key over an existing one's files."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.UniformResourceIdentifier(uri or spiffe_uri(role, host)),
            x509.DNSName(name or server_name(role, host)),
        ]
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        leaf.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        leaf.certificate.write_bytes(certificate.public_bytes(_PEM))


class Leaf:
    """The files of one process."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self.certificate = certificate
        self.key = key
        self.authority = authority

    def security(self, authority: Path | None = None) -> Security:
        return Security.tls(authority=authority or self.authority, certificate=self.certificate, key=self.key)
