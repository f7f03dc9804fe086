"""Encryption between nodes, with certificates that no authority vouches for.

A certificate here only holds the key that encrypts a connection. The hello proves who is behind it:
it binds the certificate to the zone's own key (see `rules.keys`). So a node makes its certificate
itself, and a client accepts any: what counts is its digest. An operator may replace it with one
from an authority, for tools that insist on that.

Only TLS 1.3: older versions allow weaker ciphers to be negotiated, and both ends are Holdfast.
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
"""No node checks the dates of a certificate: trust in the zone's key has its own end."""
_FILE_MODE: Final = 0o600


def certificate_in(folder: Path, cert: str | None, key: str | None) -> tuple[Path, Path]:
    """The certificate and its key that the settings name, or else those of the folder."""
    if cert is None or key is None:
        return make_certificate(folder)
    paths = Path(cert), Path(key)
    for path in paths:
        if not path.is_file():
            raise BadInput(f"there is no file {path}", hint="give a certificate and its key")
    return paths


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key of a folder; makes them if they are not there or were not finished.

    The key is written last: where it is whole, the pair is. A whole pair is never changed, because
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
            fcntl.flock(held, fcntl.LOCK_UN)  # a forked child may have a copy of the descriptor
            os.close(held)
    except OSError as error:
        raise StoreFailed(
            f"could not make a certificate in {folder}: {error.strerror or error}"
        ) from error
    return certificate, key


def new_certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate and its key, both as PEM."""
    # Imported only here: the import takes as long as the rest of a start, and this is done once.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast")])
    # From a day ago: the other machine's clock may be behind, and some tools check the dates.
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
    """The digest that a client computes: SHA-256 of the DER form, for a chain of its first one."""
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
        # An empty password: a key that needs one fails, instead of asking for it on a terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise StoreFailed(
            f"the certificate in {certificate} cannot be used: {error}",
            hint=f"remove {certificate} and {key}; the next start makes them anew",
        ) from None
    return context


def memory_context() -> tuple[ssl.SSLContext, bytes]:
    """A server's context with a certificate that lives as long as the process, and the digest of
    that. Python takes certificates from files only; this one is in memory, and gone at the end.
    """
    certificate, key = new_certificate()
    held = os.memfd_create("holdfast-tls")
    try:
        path = Path(f"/proc/self/fd/{held}")
        os.write(held, certificate + key)
        return server_context(path, path), certificate_digest(path)
    finally:
        os.close(held)


def client_context() -> ssl.SSLContext:
    """Accepts any certificate: the caller must check by a hello that it is the right one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusting_context(ca: str | Path) -> ssl.SSLContext:
    """Accepts what the certificates in a file vouch for. A file without any of an authority is that
    of a node itself: then exactly this certificate is accepted, by whatever address it is reached.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{ca} holds no certificates: {reason}",
            hint="take tls.crt from the home of the daemon, or what an authority gave you",
        ) from None
    if context.cert_store_stats()["x509_ca"] == 0:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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
