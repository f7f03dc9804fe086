"""A session of one process is good at all, and nothing else is."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest

from holdfast.broker.processes.sessions import CrewSessions
from holdfast.rules.errors import ZoneNotTrusted
from holdfast.rules.keys import HelloTranscript, prove, public_key
from holdfast.rules.limits import SECOND_MS, SESSION_MS
from holdfast.service.caller import Caller

SECRET = os.urandom(32)
ANA = sha256(b"seed of ana").digest()
KEY = public_key(ANA)


class Trust:
    name = "hub"

    def seed(self) -> bytes:
        return sha256(b"seed of hub").digest()

    def caller_of_zone(self, zone: str, key: bytes) -> Caller:
        return Caller(kind="key", name=zone, reads=frozenset(), key=key)


class Two:
    """Two processes with one clock that ask each other."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gone: set[int] = set()
        self.of = {number: self._made(number) for number in (1, 2)}

    def _made(self, number: int, secret: bytes = SECRET) -> CrewSessions:
        return CrewSessions(
            Trust(),
            clock=lambda: self.now,
            random=os.urandom,
            number=number,
            secret=secret,
            ask=self._ask,
        )

    def _ask(self, to: int, what: str, body: bytes) -> bytes | None:
        assert what == "prove"
        return None if to in self.gone or to not in self.of else self.of[to].prove_for(body)

    def hello(self, at: int) -> tuple[bytes, bytes]:
        """The number of a process, and the proof for it."""
        nonce = os.urandom(32)
        reply = self.of[at].greet("ana", KEY, nonce, bytes(32))
        said = HelloTranscript(
            client_zone="ana",
            client_key=KEY,
            client_nonce=nonce,
            server_zone=reply.zone,
            server_key=reply.key,
            server_nonce=reply.nonce,
            certificate=bytes(32),
        )
        return reply.nonce, prove(ANA, "client", said)


def test_D15_a_hello_begun_at_one_process_ends_at_another_once() -> None:
    two = Two()
    nonce, proof = two.hello(1)
    token = two.of[2].prove(nonce, proof).token
    for sessions in two.of.values():
        caller = sessions.caller_of(token)
        assert caller is not None
        assert (caller.name, caller.key) == ("ana", KEY)
    for sessions in two.of.values():
        with pytest.raises(ZoneNotTrusted):
            sessions.prove(nonce, proof)


def test_D15_a_wrong_proof_is_refused_at_both_and_ends_the_hello() -> None:
    two = Two()
    nonce, proof = two.hello(1)
    with pytest.raises(ZoneNotTrusted, match="not that of zone 'ana'"):
        two.of[2].prove(nonce, proof[:-1] + bytes([proof[-1] ^ 1]))
    with pytest.raises(ZoneNotTrusted):
        two.of[1].prove(nonce, proof)


def test_D15_a_proof_for_a_process_that_is_gone_is_refused_with_what_to_do() -> None:
    two = Two()
    nonce, proof = two.hello(1)
    two.gone.add(1)
    with pytest.raises(ZoneNotTrusted) as refused:
        two.of[2].prove(nonce, proof)
    assert refused.value.hint == "say hello again"
    for nobody in (bytes(32), b"\xff" * 32):
        with pytest.raises(ZoneNotTrusted):
            two.of[2].prove(nobody, proof)


def test_D15_a_session_ends_with_its_time() -> None:
    two = Two()
    token = two.of[1].open("ana", KEY).token
    two.now += SESSION_MS / SECOND_MS - 1
    assert two.of[2].caller_of(token) is not None
    two.now += 1
    assert two.of[1].caller_of(token) is None
    assert two.of[2].caller_of(token) is None


def test_D15_a_session_with_any_character_changed_or_of_another_broker_is_none() -> None:
    two = Two()
    token = two.of[1].open("ana", KEY).token
    for at in range(len(token) - 1):  # of the last one some bits say nothing
        other = "B" if token[at] == "A" else "A"
        assert two.of[1].caller_of(token[:at] + other + token[at + 1 :]) is None
    for made_up in ("", "hs_", "hs_é", "hs_" + "A" * 2000, token[:-4], token + "AAAA"):
        assert two.of[1].caller_of(made_up) is None
    other = two._made(1, os.urandom(32)).open("ana", KEY).token
    assert two.of[1].caller_of(other) is None
