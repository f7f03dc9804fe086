"""How many messages a broker accepts, into a mesh that is made for it and removed again.

One connection, as a node's: what is in flight goes out as fast as answers come in. The mesh belongs
to this node; nobody else is in it, and with it everything goes that was sent. What the operator of
the broker does not allow is an error, in the broker's own words.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from time import perf_counter
from typing import Final, TypeVar

from holdfast.apps.bench import figures
from holdfast.apps.bench.figures import Figure
from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Hello,
    Item,
    Push,
    PushAnswer,
    Welcome,
    encode_frame,
    read_from_broker,
)
from holdfast.rules import keys
from holdfast.rules.bodies import MessageSend, encode_body
from holdfast.rules.destinations import check_destination, entity_of
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import BadAnswer, OverLimit, Unreachable, ZoneNotTrusted
from holdfast.rules.features import NEEDS
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.keys import HelloTranscript, parse_card
from holdfast.rules.limits import LINK_READ_MS_MAX, SECOND_MS
from holdfast.service.clock import SystemClock
from holdfast.transport.tls import client_context
from holdfast.transport.websocket_client import HungUp, WebSocketClient

F = TypeVar("F")

IN_FLIGHT: Final = 64
_TOPIC: Final = "bench"
_BODY_BYTES: Final = 500
_CREATED: Final = 201
_PATIENCE_S: Final = LINK_READ_MS_MAX / SECOND_MS


def measure(
    trust: Trust, url: str, card: str, token: str | None, seconds: float
) -> Iterator[tuple[Figure, float]]:
    """As this node, at the broker of that address, which must be the one of that card."""
    slug = f"bench-{os.urandom(6).hex()}"
    with closing(BrokerClient.of(trust, url, card)) as calls:
        calls.hello()
        calls.register(slug, slug, token)
        try:
            calls.declare(slug, "topic", _TOPIC)
            for figure, window in ((figures.ACCEPT_ONE, 1), (figures.ACCEPT_MANY, IN_FLIGHT)):
                sender = _Sender(trust, url, card, slug)
                yield figure, asyncio.run(sender.rate(window, seconds / 2))
        finally:
            calls.remove_mesh(slug)


class _Sender:
    """A member that hands in messages on one connection."""

    def __init__(self, trust: Trust, url: str, card: str, mesh: str) -> None:
        self._us, self._seed = trust.name, trust.seed()
        self._url, self._broker, self._mesh = url, parse_card(card), mesh
        self._clock = SystemClock()
        self._numbers = count(1)

    async def rate(self, window: int, seconds: float) -> float:
        """Accepted messages a second, with so many in flight."""
        context: ssl.SSLContext | None = None
        if self._url.startswith("https:"):
            context = client_context()
        line = await WebSocketClient.open(self._url, "/v1/sync", context=context)
        try:
            async with asyncio.timeout(seconds + _PATIENCE_S):
                await self._greet(line)
                return await self._pushed(line, window, seconds)
        except TimeoutError:
            raise Unreachable(f"the broker at {self._url} does not answer in time") from None
        except HungUp as error:
            raise Unreachable(str(error)) from None
        finally:
            await line.close()

    async def _greet(self, line: WebSocketClient) -> None:
        said = await _next(line, Challenge)
        if (said.name, said.key) != self._broker:
            raise ZoneNotTrusted(f"{said.name} at {self._url} is not the broker of that card")
        nonce = os.urandom(keys.NONCE_BYTES)
        hello = HelloTranscript(
            client_zone=self._us,
            client_key=keys.public_key(self._seed),
            client_nonce=nonce,
            server_zone=said.name,
            server_key=said.key,
            server_nonce=said.nonce,
            certificate=line.certificate,
        )
        proof = keys.prove(self._seed, "client", hello)
        await line.send(encode_frame(Hello(self._us, hello.client_key, nonce, proof, dict(NEEDS))))
        welcome = await _next(line, Welcome)
        if not keys.check_proof(said.key, "server", hello, welcome.proof):
            raise ZoneNotTrusted(f"the broker at {self._url} does not prove its key")

    async def _pushed(self, line: WebSocketClient, window: int, seconds: float) -> float:
        begun, accepted, in_flight = perf_counter(), 0, 0
        while True:
            spent = perf_counter() - begun
            if spent < seconds and in_flight < window:
                items = [self._message() for _ in range(window - in_flight)]
                await line.send(encode_frame(Push(self._mesh, 0, items)))
                in_flight = window
            if not in_flight:
                return accepted / spent
            answers = (await _next(line, Acks)).answers
            accepted += sum(map(_was_accepted, answers))
            in_flight -= len(answers)

    def _message(self) -> Item:
        number, now_ms, content = next(self._numbers), self._clock.now_ms(), os.urandom(_BODY_BYTES)
        mark = fingerprint(
            kind="topic", ref=_TOPIC, body=content, reply_to="", priority="next", meta=b""
        )
        envelope = Envelope(
            id=self._clock.new_id(),
            mesh=self._mesh,
            op="message.send",
            entity=entity_of("topic", _TOPIC),
            origin=self._us,
            epoch=1,
            seq=number,
            lamport=number,
            created_at=now_ms,
            fingerprint=mark,
            body=encode_body(MessageSend(content)),
            to=check_destination("topic", _TOPIC),
        )
        return Item(number, encode(envelope))


def _was_accepted(answer: PushAnswer) -> bool:
    if answer.status == _CREATED:
        return True
    said = "" if answer.problem is None else f": {answer.problem.message}"
    raise OverLimit(
        f"the broker accepts no more messages of this node now ({answer.status}){said}",
        hint="its operator sets how many a member may send a second (--rate)",
    )


async def _next(line: WebSocketClient, kind: type[F]) -> F:
    """The next frame of a kind; those before it are dropped."""
    while True:
        try:
            frame = read_from_broker(await line.receive())
        except ValueError as error:
            raise BadAnswer(f"the broker sent what is no frame: {error}") from None
        if isinstance(frame, kind):
            return frame
