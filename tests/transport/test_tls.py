"""Certificates of a home, and what may be negotiated."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.rules.errors import StoreFailed
from holdfast.storage.files.home import HomePaths
from holdfast.transport import tls
from holdfast.transport.tls import (
    certificate_digest,
    client_context,
    make_certificate,
    server_context,
)


def test_Z8_a_certificate_is_made_once_for_our_eyes_only(tmp_path: Path) -> None:
    paths = HomePaths(tmp_path)
    certificate, key = make_certificate(tmp_path)
    assert (certificate, key) == (paths.tls_cert, paths.tls_key)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (certificate, key)} == {0o600}
    before = certificate.read_bytes(), key.read_bytes()
    make_certificate(tmp_path)
    assert (certificate.read_bytes(), key.read_bytes()) == before
    server_context(certificate, key)


def test_Z8_every_node_has_its_own_certificate(tmp_path: Path) -> None:
    digests = set()
    for name in "abc":
        (tmp_path / name).mkdir()
        digests.add(certificate_digest(make_certificate(tmp_path / name)[0]))
    assert len(digests) == 3


@pytest.mark.parametrize("left", [b"", b"-----BEGIN PRIVATE KEY-----\nMIGH"])
def test_Z8_a_certificate_that_was_not_finished_is_made_anew(tmp_path: Path, left: bytes) -> None:
    certificate, key = make_certificate(tmp_path)
    key.write_bytes(left)
    make_certificate(tmp_path)
    server_context(certificate, key)
    key.unlink()
    make_certificate(tmp_path)
    server_context(certificate, key)


def test_Z8_two_who_make_it_at_once_make_one(tmp_path: Path) -> None:
    threads = [threading.Thread(target=make_certificate, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server_context(*make_certificate(tmp_path))


def test_Z8_an_operators_own_key_is_never_overwritten(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    other = tls.new_certificate()[1]
    key.write_bytes(other)
    make_certificate(tmp_path)
    assert key.read_bytes() == other
    with pytest.raises(StoreFailed) as caught:
        server_context(certificate, key)
    assert "remove" in caught.value.hint


def test_Z8_a_key_with_a_password_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = make_certificate(tmp_path)
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    with pytest.raises(StoreFailed):
        server_context(certificate, key)


def test_Z8_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        make_certificate(tmp_path / "none")
    with pytest.raises(StoreFailed):
        certificate_digest(tmp_path / "none")
    (tmp_path / "tls.crt").write_text("garbage")
    with pytest.raises(StoreFailed):
        certificate_digest(tmp_path / "tls.crt")


def test_Z8_the_digest_is_that_of_what_a_client_sees(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    # As an operator may put it there: with words before it, and a chain behind.
    certificate.write_bytes(b"hello\n" + certificate.read_bytes() + tls.new_certificate()[0])
    seen = _handshake(server_context(certificate, key), client_context())
    assert sha256(seen).digest() == certificate_digest(certificate)


def test_Z8_only_the_newest_version_is_spoken(context: ssl.SSLContext) -> None:
    old = client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _handshake(context, old)
    behind = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    behind.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _handshake(behind, client_context())


def test_Z8_what_makes_certificates_is_loaded_only_to_make_one() -> None:
    script = (
        "import sys; import holdfast.transport.peer_client, holdfast.transport.tls;"
        "assert not [name for name in sys.modules if name.startswith('cryptography')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """What the client is shown."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as conn:
                conn.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours) as conn:
            shown = conn.getpeercert(binary_form=True)
    finally:
        ours.close()
        thread.join()
    assert shown is not None
    return shown
