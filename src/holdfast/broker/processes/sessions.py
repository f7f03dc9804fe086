"""Hellos and sessions of a broker of several processes.

A client begins its hello at one process, and may bring its proof, and later its session, to another
one. Whose hello it is stands in the first byte of our number; that process is asked, so a proof is
good once, as ever. A session is no secret that one process keeps but a note with a seal that all of
them know: until when, of which key and name. It ends with its time, or with the broker.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import msgspec

from holdfast.rules.errors import NotTrusted, ZoneNotTrusted
from holdfast.rules.limits import SECOND_MS, SESSION_MS
from holdfast.service.caller import Caller
from holdfast.service.sessions import Authenticator, AuthSession, Sessions

_PREFIX: Final = "hs_"
_SEAL_BYTES: Final = 32
_NOTE_CHARS_MAX: Final = 1024
_AGAIN: Final = "say hello again"

AskOther = Callable[[int, str, bytes], bytes | None]
"""Asks a process, in any thread but that of the loop; None if it is not there."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    until: float
    zone: str
    key: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    nonce: bytes
    proof: bytes


class _Proved(msgspec.Struct, frozen=True, array_like=True):
    token: str
    why_not: str
    hint: str


class CrewSessions(Sessions):
    """The hellos of this process, and sessions that are good at all."""

    def __init__(
        self,
        trust: Authenticator,
        *,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        number: int,
        secret: bytes,
        ask: AskOther,
    ) -> None:
        """`clock` must be the same in all processes, as that of the machine is."""

        def ours(size: int) -> bytes:
            return bytes([number]) + random(size - 1)

        super().__init__(trust, clock=clock, random=ours)
        self._number, self._secret, self._ask = number, secret, ask

    def prove(self, nonce: bytes, proof: bytes) -> AuthSession:
        if not nonce or nonce[0] == self._number:
            return super().prove(nonce, proof)
        body = self._ask(nonce[0], "prove", msgspec.msgpack.encode(_Proof(nonce, proof)))
        if body is None:
            raise ZoneNotTrusted(
                "no hello waits for this proof: the process that began it has ended", hint=_AGAIN
            )
        answer = msgspec.msgpack.decode(body, type=_Proved)
        if not answer.token:
            raise ZoneNotTrusted(answer.why_not, hint=answer.hint)
        return AuthSession(answer.token, SESSION_MS)

    def prove_for(self, body: bytes) -> bytes:
        """The answer to another process that was brought a proof for a hello of this one."""
        asked = msgspec.msgpack.decode(body, type=_Proof)
        try:
            proved = _Proved(super().prove(asked.nonce, asked.proof).token, "", "")
        except NotTrusted as error:
            proved = _Proved("", error.message, error.hint or "")
        return msgspec.msgpack.encode(proved)

    def open(self, zone: str, key: bytes) -> AuthSession:
        self._trust.caller_of_zone(zone, key)
        until = self._clock() + SESSION_MS / SECOND_MS
        note = msgspec.msgpack.encode(_Note(until, zone, key))
        text = urlsafe_b64encode(self._seal(note) + note).decode().rstrip("=")
        return AuthSession(_PREFIX + text, SESSION_MS)

    def asking(self, token: str) -> Callable[[], Caller | None]:
        note = self._note(token)
        return partial(self._caller_of_note, note) if note is not None else lambda: None

    def _note(self, token: str) -> _Note | None:
        """What a token says, if it bears our seal."""
        if not token.startswith(_PREFIX) or len(token) > _NOTE_CHARS_MAX:
            return None
        text = token[len(_PREFIX) :]
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except ValueError:
            return None
        seal, note = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not compare_digest(seal, self._seal(note)):
            return None
        return msgspec.msgpack.decode(note, type=_Note)  # ours: it bears the seal

    def _caller_of_note(self, said: _Note) -> Caller | None:
        if self._clock() >= said.until:
            return None
        try:
            return self._trust.caller_of_zone(said.zone, said.key)
        except NotTrusted:
            return None

    def _seal(self, note: bytes) -> bytes:
        return blake2b(note, key=self._secret, digest_size=_SEAL_BYTES).digest()
