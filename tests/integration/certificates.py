"""Certificates as an operator makes them: one authority, one certificate for each process (names as in docs/cli.md)."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from snapline.security.transport import server_name, spiffe_uri

_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates; everything lies in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        unsigned = self._builder(self._name, self._key.public_key())
        signed = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.path = folder / "authority.pem"
        self.path.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def options(
        self, role: str, name: str, *, authority: Path | None = None, served_as: str = ""
    ) -> tuple[str | Path, ...]:
        """The command line's options for a new certificate of `name`.

        `authority`: whom to trust, if not this one. `served_as`: a second name that clients may demand, as they do of replicas.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(spiffe_uri(role, name)),
                *[x509.DNSName(server_name(role, each)) for each in (name, served_as) if each],
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),  # where tools find it
            ]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate, private = self._folder / f"{role}-{name}.crt", self._folder / f"{role}-{name}.key"
        certificate.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        private.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return ("--tls-cert", certificate, "--tls-key", private, "--tls-ca", authority or self.path)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
            now + datetime.timedelta(hours=1)
        )
