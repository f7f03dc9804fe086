"""Saying hello: how one side of a connection gets a session from the other.

First the other side proves who it is, over the certificate that we saw on our own connection; the
caller looks whether that is whom it meant. Only then do we prove ourselves. What was proved holds
for that certificate only, so a session goes with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.protocol.hello_http import (
    HelloRequest,
    HelloResponse,
    ProofRequest,
    SessionResponse,
)
from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import BadAnswer, BadInput, NotTrusted, ZoneNotTrusted
from holdfast.rules.keys import (
    KEY_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    HelloTranscript,
    bytes_of,
    check_proof,
    prove,
    public_key,
    text_of,
)
from holdfast.rules.limits import KIB
from holdfast.transport.http_client import Client, bearer
from holdfast.transport.remote_errors import HttpAnswer

Seed = bytes | Callable[[], bytes]
"""The secret that we sign with, or where to read it: it may change while a connection lasts."""

PLAIN: Final = bytes(32)
"""Stands for the certificate where nothing is encrypted, on this machine only."""

SMALL_BYTES_MAX: Final = 64 * KIB


class ClientSession(msgspec.Struct, frozen=True):
    """What a call is made with, and the certificate that it may be made to."""

    authorization: str
    certificate: bytes | None

    def __repr__(self) -> str:
        return "ClientSession()"


def handshake(
    client: Client,
    us: str,
    seed: Seed,
    check: Callable[[HelloTranscript, bytes], None],
    *,
    plain: bool,
) -> ClientSession:
    """Gets a new session. `check` gets what both sides must agree on and the other side's proof,
    and raises if that is not whom we meant. `plain`: the connection is not encrypted.
    """
    secret = seed() if callable(seed) else seed
    key, nonce = public_key(secret), os.urandom(NONCE_BYTES)
    greeting = HelloRequest(us, text_of(key), text_of(nonce))
    # We do not know yet who answers: any certificate will do, and nothing secret is sent.
    answer = _post(client, "/v1/hello", greeting, pin=None)
    reply = answer.json(HelloResponse)
    hello = HelloTranscript(
        client_zone=us,
        client_key=key,
        client_nonce=nonce,
        server_zone=reply.zone,
        server_key=_bytes(reply.key, KEY_BYTES),
        server_nonce=_bytes(reply.nonce, NONCE_BYTES),
        certificate=PLAIN if plain else answer.certificate,
    )
    check(hello, _bytes(reply.proof, PROOF_BYTES))
    proof = ProofRequest(reply.nonce, text_of(prove(secret, "client", hello)))
    pin = None if plain else answer.certificate
    proved = _post(client, "/v1/hello/prove", proof, pin=pin).json(SessionResponse)
    try:
        return ClientSession(bearer(proved.session), pin)
    except NotTrusted:
        raise BadAnswer(f"{client.address} gives a session that cannot be used") from None


def require_proof(hello: HelloTranscript, proof: bytes, who: str) -> None:
    """Raises ZoneNotTrusted unless the other side has proved its key on this very connection. `who`
    begins the message: the address, and the name that the other side gives.
    """
    if not hello.certificate or not check_proof(hello.server_key, "server", hello, proof):
        raise ZoneNotTrusted(
            f"{who}, but cannot prove it on this connection",
            hint="somebody may stand between the two: check the address",
        )


def _post(client: Client, path: str, document: msgspec.Struct, *, pin: bytes | None) -> HttpAnswer:
    return client.call(
        "POST",
        path,
        body=msgspec.json.encode(document),
        headers={"Content-Type": JSON, "Accept": JSON},
        bytes_max=SMALL_BYTES_MAX,
        pin=pin,
    )


def _bytes(text: str, size: int) -> bytes:
    try:
        return bytes_of(text, size)
    except BadInput as error:
        raise BadAnswer(f"the hello cannot be read: {error.message}") from None
