"""Certificates for tests: an authority of our own, and what it signs."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates for loopback, a day long.

    Attributes:
        ca: file with its own certificate.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = self._write(f"{name}.pem", self._sign(self._name, self._key.public_key(), NAMES, ca=True))

    def issue(self, name: str, names: Sequence[x509.GeneralName] = NAMES) -> Pair:
        """Write NAME.pem and NAME.key, anew when they are there, for what is called by one of the names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._write(f"{name}.pem", self._sign(subject, key.public_key(), names, ca=False))
        return Pair(certificate, self._write(f"{name}.key", key_text(key, serialization.NoEncryption())))

    def issue_encrypted(self, name: str) -> Pair:
        """Write a pair whose key asks for a password."""
        pair = self.issue(name)
        key = serialization.load_pem_private_key(Path(pair.key).read_bytes(), None)
        self._write(f"{name}.key", key_text(key, serialization.BestAvailableEncryption(b"secret")))
        return pair

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, names: Sequence[x509.GeneralName], *, ca: bool
    ) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)


def key_text(key, encryption: serialization.KeySerializationEncryption) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption)
