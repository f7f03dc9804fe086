"""The JSON documents of the hello over HTTP: two questions and two answers.

Bytes travel as base64url without padding. `rules.keys` says what is signed. The client's side is
`transport/handshake.py`, the server's `service/http/hello.py`.
"""

from __future__ import annotations

import msgspec


class HelloRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """I am this zone, with this key; show me who you are."""

    zone: str
    key: str
    nonce: str


class HelloResponse(msgspec.Struct, frozen=True):
    """The node's own name, key and number, and the proof that they are its own."""

    zone: str
    key: str
    nonce: str
    proof: str


class ProofRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The proof for the hello that has this number."""

    nonce: str
    proof: str


class SessionResponse(msgspec.Struct, frozen=True):
    """A session, to be sent as a bearer token."""

    session: str
    expires_in_ms: int
