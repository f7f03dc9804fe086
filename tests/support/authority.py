"""An authority of the tests, with certificates for servers and clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Writes its own certificate to `ca.pem` in a folder, and others beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority of a test")
        self.ca = self._write("ca", self._key, self._name, is_ca=True)[0]

    def certificate(self, name: str, common_name: str) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, good for servers and clients, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(name, key, _named(common_name), is_ca=False)

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, is_ca: bool
    ) -> tuple[Path, Path]:
        begins = datetime.now(UTC) - timedelta(days=1)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        places = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        places[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        places[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return places


def _named(common_name: str) -> x509.Name:
    """Without a common name, a certificate proves the link and claims no user of the etcd."""
    return x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)] if common_name else []
    )
