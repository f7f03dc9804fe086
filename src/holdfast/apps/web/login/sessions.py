"""BrowserSessions of browsers: a random secret in a cookie, and what is kept of it here.

Only hashes of secrets are kept, in a file of the home, so that a console that is open outlives a
restart of the daemon. The token of a session is sealed by a key that is made of the secret: who
reads the file alone can do nothing with it.

How a session has shown who it is counts with every call: a token that is dropped ends its sessions.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from holdfast.apps.web.view import Proof
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import CONSOLE_SESSION_MS, CONSOLE_SESSIONS_MAX
from holdfast.storage.files.durable import durable_replace

log = logging.getLogger("holdfast")

_BYTES: Final = 32
_NONCE: Final = 24
_SEAL: Final = "holdfast console 1: token of a session"
_FORM: Final = "holdfast console 1: forms of a session"


class _Kept(msgspec.Struct, frozen=True):
    """A session as it is kept."""

    id: str
    """The hash of its secret."""
    until: int
    listener: str
    sealed: bytes = b""
    """Its token; empty for the node's own user."""
    whose: str = ""
    """Who has logged in: what makes room for another session is one of whoever has most."""


class BrowserSession(msgspec.Struct, frozen=True):
    """A session whose secret has come."""

    id: str
    proof: Proof
    until: int
    form_token: str
    """What a form of this session must show: no other page knows it."""

    def __repr__(self) -> str:
        return f"BrowserSession({self.id[:8]})"

    def check_form(self, shown: str) -> bool:
        return compare_digest(shown.encode(errors="replace"), self.form_token.encode())


class BrowserSessions:
    """The sessions of one daemon or broker."""

    def __init__(
        self, path: Path, now_ms: Callable[[], int], random: Callable[[int], bytes]
    ) -> None:
        self._path, self._now_ms, self._random = path, now_ms, random
        self._kept = _read(path)

    def begin(self, proof: Proof, whose: str = "") -> str:
        """A new session; returns its secret. If there are too many, the oldest one of whoever has
        most makes room: a token that logs in again and again throws nobody else out.
        """
        secret = urlsafe_b64encode(self._random(_BYTES)).decode().rstrip("=")
        self._forget_old()
        while len(self._kept) >= CONSOLE_SESSIONS_MAX:
            [(most, _)] = Counter(one.whose for one in self._kept.values()).most_common(1)
            self._kept.pop(next(id for id, one in self._kept.items() if one.whose == most))
        sealed = self._seal(secret, proof.token) if proof.token else b""
        until = self._now_ms() + CONSOLE_SESSION_MS
        kept = _Kept(_id(secret), until, proof.listener, sealed, whose)
        self._kept[kept.id] = kept
        self._write()
        return secret

    def find(self, secret: str) -> BrowserSession | None:
        """The session with this secret, unless there is none or its time is up."""
        kept = self._kept.get(_id(secret)) if secret else None
        if kept is None or kept.until <= self._now_ms():
            return None
        token = ""
        if kept.sealed:
            nonce, body = kept.sealed[:_NONCE], kept.sealed[_NONCE:]
            try:
                opened = crypto_aead_xchacha20poly1305_ietf_decrypt(
                    body, None, nonce, _key(secret, _SEAL)
                )
            except (CryptoError, ValueError):
                return None  # somebody has written into the file
            token = opened.decode()
        shown = _key(secret, _FORM).hex()
        return BrowserSession(kept.id, Proof(kept.listener, token), kept.until, shown)

    def any_open(self) -> bool:
        now = self._now_ms()
        return any(kept.until > now for kept in self._kept.values())

    def is_open(self, session: BrowserSession) -> bool:
        return session.id in self._kept and session.until > self._now_ms()

    def end(self, session: BrowserSession) -> None:
        if self._kept.pop(session.id, None) is not None:
            self._write()

    def _seal(self, secret: str, token: str) -> bytes:
        nonce = self._random(_NONCE)
        return nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(
            token.encode(), None, nonce, _key(secret, _SEAL)
        )

    def _forget_old(self) -> None:
        now = self._now_ms()
        self._kept = {id: kept for id, kept in self._kept.items() if kept.until > now}

    def _write(self) -> None:
        self._forget_old()
        try:
            durable_replace(self._path, msgspec.json.encode(list(self._kept.values())))
        except HoldfastError as error:  # a full disk: they end with this process
            log.warning("sessions of the console will not outlive this process: %s", error.message)


def _read(path: Path) -> dict[str, _Kept]:
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Kept])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}  # none yet, or damaged: everybody logs in again
    return {row.id: row for row in rows[-CONSOLE_SESSIONS_MAX:]}


def _id(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


def _key(secret: str, what: str) -> bytes:
    return blake3(secret.encode(), derive_key_context=what).digest()
