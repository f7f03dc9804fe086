"""How two peers prove their keys to each other on a connection.

`protocol/bus_frames.py` shows who says what. The proofs cover both keys, a random number of each
side, and the certificate that encrypts this connection, so they hold for this connection only
(`rules/keys.py`). Neither side says anything about itself before it knows the other and has agreed
to speak with it: `LinkEvents.welcome` raises for a stranger. Only who looks for an earlier key of
the listener is told how that signed the one of now, and may follow.

Between the proof and the link stands the choice of `rules/bus/links/link_choice.py`: the dialler
makes it right before its own proof, the listener right before its welcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple, TypeVar

from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.ports import LinkEvents
from holdfast.protocol.bus_frames import (
    PROTOCOL_VERSION,
    PROVED_BYTES_MAX,
    WELCOME_BYTES_MAX,
    FrameKind,
    GoodbyeFrame,
    HelloFrame,
    ProofFrame,
    Stream,
    Told,
    WelcomeFrame,
    read_told,
    told,
)
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.succession import (
    KeySuccession,
    keys_before,
    read_chain,
    shown_chain,
    sought,
)
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    HoldfastError,
    NotTrusted,
    UnsupportedProtocol,
    ZoneNotTrusted,
)
from holdfast.rules.keys import (
    NONCE_BYTES,
    HelloTranscript,
    Role,
    check_key_bytes,
    check_proof,
    prove,
    public_key,
)
from holdfast.rules.limits import BUS_PONG_MS_MAX, BUS_SUCCESSIONS_MAX, SECOND_MS
from holdfast.transport.remote_errors import clean, error_by_code

T = TypeVar("T", bound=Told)

_NOBODY: Final = ""
"""Peers of the bus are keys; no zone is named in their hello."""


class Greeted(NamedTuple):
    """A peer that has proved its key and may speak with us."""

    peer: PeerKey
    name: str
    welcome: WelcomeFrame


class Greeter:
    """One peer's side of all its hellos."""

    def __init__(
        self,
        seed: bytes,
        events: LinkEvents,
        random: Callable[[int], bytes],
        former: Sequence[KeySuccession] = (),
    ) -> None:
        """`former`: how this peer came to its key."""
        self.key = public_key(seed)
        self._seed, self._events, self._random = seed, events, random
        self._former = former

    async def dial(
        self,
        connection: FrameConnection,
        wanted: Collection[PeerKey],
        settle: Callable[[PeerKey], None],
    ) -> Greeted:
        """The side that dialled; the peer must have one of the keys that are wanted. `settle` is
        called right before our proof, and raises if this connection shall not become a link.
        """
        nonce = self._random(NONCE_BYTES)
        keys = list(wanted)[:BUS_SUCCESSIONS_MAX]
        mine = self._hello(connection, nonce, [sought(key, nonce) for key in keys])
        theirs = await self._their_hello(connection)
        if theirs.key not in wanted and not await self._is_followed(theirs, wanted):
            raise NotTrusted(
                f"another peer than the wanted one answers at {connection.host}",
                hint="the address leads to somebody else; its card shows its key",
            )
        transcript = _transcript(connection, client=mine, server=theirs)
        await _check(connection, "server", theirs.key, transcript)
        welcome = await self._events.welcome(theirs.key)
        connection.expect_bodies_of(WELCOME_BYTES_MAX)
        settle(theirs.key)
        self._prove(connection, "client", transcript)
        _tell(connection, FrameKind.WELCOME, welcome)
        # The peer is there and has nothing to wait for.
        async with asyncio.timeout(BUS_PONG_MS_MAX / SECOND_MS):
            answer = await _read(connection, FrameKind.WELCOME, WelcomeFrame)
        name = await self._events.admit(theirs.key, answer)
        return Greeted(theirs.key, name, answer)

    async def answer(
        self, connection: FrameConnection, let_in: Callable[[PeerKey], Awaitable[None]]
    ) -> Greeted:
        """The side that listened. `let_in` is awaited right before our welcome, and raises if this
        connection shall not become a link; the caller makes it one before the loop goes on.
        """
        theirs = await self._their_hello(connection)
        former = self._former_for(theirs)
        mine = self._hello(connection, self._random(NONCE_BYTES), former=former)
        transcript = _transcript(connection, client=theirs, server=mine)
        self._prove(connection, "server", transcript)
        await _check(connection, "client", theirs.key, transcript)
        welcome = await self._welcome_if_known(connection, theirs.key)
        said = await _read(connection, FrameKind.WELCOME, WelcomeFrame)
        name = await self._events.admit(theirs.key, said)
        if welcome is None:  # what it has shown makes it known
            welcome = await self._events.welcome(theirs.key)
        await let_in(theirs.key)
        _tell(connection, FrameKind.WELCOME, welcome)
        return Greeted(theirs.key, name, said)

    async def _welcome_if_known(
        self, connection: FrameConnection, peer: PeerKey
    ) -> WelcomeFrame | None:
        """What we tell a peer that we know. One that we do not know may still show a capability;
        until then it is told nothing, and may say little.
        """
        connection.expect_bodies_of(PROVED_BYTES_MAX)
        try:
            welcome = await self._events.welcome(peer)
        except NotTrusted:
            return None
        connection.expect_bodies_of(WELCOME_BYTES_MAX)
        return welcome

    def _former_for(self, theirs: HelloFrame) -> bytes:
        """How we came to our key, for a dialler that looks for one that we had before."""
        if not self._former or not theirs.sought:
            return b""
        known = [sought(step.before, theirs.nonce) for step in self._former]
        return shown_chain(self._former) if any(one in theirs.sought for one in known) else b""

    async def _is_followed(self, theirs: HelloFrame, wanted: Collection[PeerKey]) -> bool:
        """Whether the peer that answers is the wanted one by another key, and we go along with it.
        It has yet to prove the key.
        """
        chain = read_chain([theirs.former])
        if not chain or not any(key in wanted for key in keys_before(chain, theirs.key)):
            return False
        return await self._events.follow(theirs.key, chain)

    def _hello(
        self,
        connection: FrameConnection,
        nonce: bytes,
        sought: list[bytes] | None = None,
        former: bytes = b"",
    ) -> HelloFrame:
        hello = HelloFrame(PROTOCOL_VERSION, self.key, nonce, sought or [], former)
        _tell(connection, FrameKind.HELLO, hello)
        return hello

    async def _their_hello(self, connection: FrameConnection) -> HelloFrame:
        theirs = await _read(connection, FrameKind.HELLO, HelloFrame)
        if theirs.version != PROTOCOL_VERSION:
            raise UnsupportedProtocol(
                f"{connection.host} speaks version {theirs.version} of the bus, and this peer "
                f"{PROTOCOL_VERSION}"
            )
        try:
            check_key_bytes(theirs.key)
        except BadInput as error:
            raise NotTrusted(error.message) from None
        if theirs.key == self.key:
            raise NotTrusted(
                f"{connection.host} shows the key of this peer itself",
                hint="it is this process, or a copy of its home: a copy needs a key of its own",
            )
        return theirs

    def _prove(self, connection: FrameConnection, role: Role, transcript: HelloTranscript) -> None:
        _tell(connection, FrameKind.PROOF, ProofFrame(prove(self._seed, role, transcript, "bus")))


def _transcript(
    connection: FrameConnection, *, client: HelloFrame, server: HelloFrame
) -> HelloTranscript:
    return HelloTranscript(
        client_zone=_NOBODY,
        client_key=client.key,
        client_nonce=client.nonce,
        server_zone=_NOBODY,
        server_key=server.key,
        server_nonce=server.nonce,
        certificate=connection.certificate,
    )


async def _check(
    connection: FrameConnection, role: Role, key: PeerKey, transcript: HelloTranscript
) -> None:
    shown = await _read(connection, FrameKind.PROOF, ProofFrame)
    if not check_proof(key, role, transcript, shown.proof, "bus"):
        raise NotTrusted(
            f"{connection.host} does not prove the key that it shows",
            hint="somebody may stand between the two peers",
        )


def _tell(connection: FrameConnection, kind: FrameKind, document: Told) -> None:
    connection.send(kind, Stream.CONTROL, told(kind, document))


def _refusal(host: str, goodbye: GoodbyeFrame) -> HoldfastError:
    """Why the other side lets this node not in, as far as it says so."""
    why = f"{host} refuses this node"
    if goodbye.code == ZoneNotTrusted.code:
        why = f"{host} does not trust this node by its key"
    if message := clean(goodbye.message):
        why = f"{host} says: {message}"
    error = error_by_code(goodbye.code, why)
    error.hint = error.hint or type(error).default_hint
    return error


async def _read(connection: FrameConnection, wanted: FrameKind, type: type[T]) -> T:
    kind, stream, body = await connection.next_frame()
    if kind == FrameKind.GOODBYE:
        goodbye = read_told(FrameKind.GOODBYE, body)
        assert isinstance(goodbye, GoodbyeFrame)
        raise _refusal(connection.host, goodbye)
    if kind != wanted or stream != Stream.CONTROL:
        raise BadAnswer(f"{connection.host} does not say {wanted.name} where it belongs")
    document = read_told(wanted, body)
    assert isinstance(document, type)
    return document
