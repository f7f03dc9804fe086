"""The serving side of hello: who is on the other end of a connection.

A hello has two steps (see `rules.keys`): the other zone says who it is and is shown our proof, then
it proves itself and gets a session, a random word that it sends with every call. Sessions live in
memory: a restart ends them, and the other side says hello again.

**Nothing here can be filled up by a stranger.** Only a zone and a key that are trusted begin a
hello. If a stranger plays such a zone without having its key, the oldest hello of the zone with the
most of them makes room: other zones notice nothing, and an honest hello of that one needs but a
moment. Sessions are bounded for each zone.

A session is worth what its key is worth now: a zone that is blocked, and a key that has ended or
was revoked, end it with the next call.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Protocol

import msgspec

from holdfast.rules.errors import BadInput, NotTrusted, ZoneNotTrusted
from holdfast.rules.keys import (
    NONCE_BYTES,
    HelloTranscript,
    check_key_bytes,
    check_proof,
    prove,
    public_key,
    text_of,
)
from holdfast.rules.limits import (
    HELLO_MS_MAX,
    HELLOS_OPEN_MAX,
    SECOND_MS,
    SESSION_MS,
    SESSIONS_MAX,
    SESSIONS_OF_ZONE_MAX,
    TOKEN_BYTES,
)
from holdfast.rules.names import check_peer
from holdfast.service.caller import Caller

_AGAIN = "say hello again"


class HelloReply(msgspec.Struct, frozen=True):
    """Our half of a hello."""

    zone: str
    key: bytes
    nonce: bytes
    proof: bytes


class AuthSession(msgspec.Struct, frozen=True):
    """What a zone that has proved itself is given."""

    token: str
    expires_in_ms: int

    def __repr__(self) -> str:
        return f"AuthSession(expires_in_ms={self.expires_in_ms})"


class _Open(msgspec.Struct, frozen=True):
    hello: HelloTranscript
    until: float


class _Proved(msgspec.Struct, frozen=True):
    zone: str
    key: bytes
    until: float
    account: str


class Authenticator(Protocol):
    """Who we are, and which zones may come in: the trust of a node, or of a broker."""

    @property
    def name(self) -> str: ...
    def seed(self) -> bytes:
        """The secret that we sign with."""

    def caller_of_zone(self, zone: str, key: bytes) -> Caller:
        """The caller that a zone with this key is; NotTrusted if it may not come in."""


class Sessions:
    """Hellos that wait for their proof, and the sessions of those that have given it."""

    def __init__(
        self, trust: Authenticator, *, clock: Callable[[], float], random: Callable[[int], bytes]
    ) -> None:
        """`clock` counts seconds and never goes back."""
        self._trust = trust
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()
        # Both in the order of their ends, so that what is over stands first.
        self._open: dict[bytes, _Open] = {}
        self._proved: dict[bytes, _Proved] = {}
        self._of: dict[str, list[bytes]] = {}

    def greet(self, zone: str, key: bytes, nonce: bytes, certificate: bytes) -> HelloReply:
        """The first step. `certificate` is the digest of the one that this server shows."""
        check_peer(zone)
        check_key_bytes(key)
        _check_nonce(nonce)
        self._trust.caller_of_zone(zone, key)
        seed = self._trust.seed()
        hello = HelloTranscript(
            client_zone=zone,
            client_key=key,
            client_nonce=nonce,
            server_zone=self._trust.name,
            server_key=public_key(seed),
            server_nonce=self._random(NONCE_BYTES),
            certificate=certificate,
        )
        proof = prove(seed, "server", hello)
        self._remember(hello)
        return HelloReply(hello.server_zone, hello.server_key, hello.server_nonce, proof)

    def prove(self, nonce: bytes, proof: bytes) -> AuthSession:
        """The second step, by the number that the first one gave. One try for each hello."""
        now = self._clock()
        with self._lock:
            opened = self._open.pop(nonce, None)
        if opened is None or now >= opened.until:
            raise ZoneNotTrusted(
                "no hello waits for this proof: it is over, or was used", hint=_AGAIN
            )
        hello = opened.hello
        if not check_proof(hello.client_key, "client", hello, proof):
            raise ZoneNotTrusted(
                f"the proof is not that of zone {hello.client_zone!r} on this connection",
                hint="if nobody stands between the two nodes, compare their cards",
            )
        return self.open(hello.client_zone, hello.client_key)

    def open(self, zone: str, key: bytes) -> AuthSession:
        """A session for a zone that has proved itself."""
        # Looked at again: it may have been blocked between the two steps.
        account = _account(self._trust.caller_of_zone(zone, key))
        token = f"hs_{text_of(self._random(TOKEN_BYTES))}"
        now = self._clock()
        with self._lock:
            self._make_room(account, now)
            proved = _Proved(zone, key, now + SESSION_MS / SECOND_MS, account)
            self._proved[_digest(token)] = proved
            self._of.setdefault(account, []).append(_digest(token))
        return AuthSession(token, SESSION_MS)

    def caller_of(self, token: str) -> Caller | None:
        """The zone whose session this is; None if there is no such session, or it has ended."""
        return self.asking(token)()

    def asking(self, token: str) -> Callable[[], Caller | None]:
        """`caller_of` for a token that comes again and again: what never changes about it is worked
        out once, whether it is good each time.
        """
        return partial(self._caller, _digest(token))

    def _caller(self, digest: bytes) -> Caller | None:
        with self._lock:
            proved = self._proved.get(digest)
        if proved is None or self._clock() >= proved.until:
            return None
        try:
            return self._trust.caller_of_zone(proved.zone, proved.key)
        except NotTrusted:
            with self._lock:
                self._end(digest)
            return None

    def _remember(self, hello: HelloTranscript) -> None:
        now = self._clock()
        with self._lock:
            for number, waiting in list(self._open.items()):
                if waiting.until > now:
                    break
                del self._open[number]
            nonces = (waiting.hello.client_nonce for waiting in self._open.values())
            if hello.client_nonce in nonces:
                raise ZoneNotTrusted("this hello was said before", hint=_AGAIN)
            if len(self._open) >= HELLOS_OPEN_MAX:
                self._push_out()
            self._open[hello.server_nonce] = _Open(hello, now + HELLO_MS_MAX / SECOND_MS)

    def _push_out(self) -> None:
        zones = Counter(waiting.hello.client_zone for waiting in self._open.values())
        busiest = zones.most_common(1)[0][0]
        del self._open[
            next(
                number
                for number, waiting in self._open.items()
                if waiting.hello.client_zone == busiest
            )
        ]

    def _make_room(self, account: str, now: float) -> None:
        # The first is the first to end: they all last equally long.
        while self._proved:
            oldest = next(iter(self._proved))
            if self._proved[oldest].until > now and len(self._proved) < SESSIONS_MAX:
                break
            self._end(oldest)
        own = self._of.get(account, [])
        for digest in own[: max(0, len(own) - SESSIONS_OF_ZONE_MAX + 1)]:
            self._end(digest)

    def _end(self, digest: bytes) -> None:
        proved = self._proved.pop(digest, None)
        if proved is not None:
            own = self._of[proved.account]
            own.remove(digest)
            if not own:
                del self._of[proved.account]


def _account(caller: Caller) -> str:
    """Whose sessions are counted together. Where names are free, anybody may bear another's."""
    return caller.key.hex() or caller.name


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise BadInput(f"the nonce of a hello has {NONCE_BYTES} bytes, not {len(nonce)}")


def _digest(token: str) -> bytes:
    """Sessions are kept by digest: the time of a search then shows nothing of their tokens."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
