"""Encryption between nodes, with certificates that nobody vouches for.

A certificate here only holds the key that a connection is encrypted with. Who stands behind it is
proved by the hello, which binds the certificate to the zone's own key (see `rules.keys`). So a node
makes its certificate itself, and a client takes any: what counts is its digest. An operator may put
one from an authority in the place of ours, for tools that insist on it.

Only TLS 1.3: older versions can be talked into weaker terms, and both ends are ours.
"""

from __future__ import annotations

import fcntl
import os
import ssl
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from holdfast.rules.errors import BadInput, StoreFailed

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"

_YEARS: Final = 100
"""Nobody checks its dates: the zone's key says whom to trust, and for how long."""
_FILE_MODE: Final = 0o600


def certificate_in(folder: Path, cert: str | None, key: str | None) -> tuple[Path, Path]:
    """The certificate and its key that were given, or else those of the folder."""
    if cert is None or key is None:
        return make_certificate(folder)
    given = Path(cert), Path(key)
    for path in given:
        if not path.is_file():
            raise BadInput(f"there is no file {path}", hint="give a certificate and its key")
    return given


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key of a home, made if they are not there or were not finished.

    The key is written last: where it is whole, the pair is, and it is never touched again, because
    it may be an operator's own.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not _is_whole(key):
                public, private = new_certificate()
                _write(certificate, public)
                _write(key, private)
        finally:
            os.close(held)
    except OSError as error:
        raise StoreFailed(
            f"could not make a certificate in {folder}: {error.strerror or error}"
        ) from error
    return certificate, key


def new_certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate and its key, both as PEM."""
    # Imported only here: it costs as much as all else that a start does, and this is done once.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast")])
    # A day before: the other machine's clock may be behind, and some tools do check.
    begins = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def certificate_digest(certificate: Path) -> bytes:
    """What a client sees of this certificate: SHA-256 of its DER form. Of a chain, the first."""
    try:
        pem = certificate.read_text(encoding="ascii")
        end = pem.index(_PEM_END) + len(_PEM_END)
        return digest_of(ssl.PEM_cert_to_DER_cert(pem[pem.index(_PEM_BEGIN) : end]))
    except (OSError, ValueError) as error:
        raise StoreFailed(f"{certificate} is not a certificate: {error}") from None


def digest_of(der: bytes) -> bytes:
    return sha256(der).digest()


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        # An empty password: a key that needs one is refused, rather than asked for on a terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise StoreFailed(
            f"the certificate in {certificate} cannot be used: {error}",
            hint=f"remove {certificate} and {key}; the next start makes them anew",
        ) from None
    return context


def client_context() -> ssl.SSLContext:
    """Takes any certificate: the caller must bind what it saw to a proof before it trusts it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"


def _is_whole(key: Path) -> bool:
    try:
        return b"-----END " in key.read_bytes()
    except FileNotFoundError:
        return False


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    fd = os.open(path, flags, _FILE_MODE)
    try:
        os.fchmod(fd, _FILE_MODE)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
