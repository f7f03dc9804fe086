"""Whom a node trusts: zones by their keys, people by tokens, and the hello that proves a zone."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.node.library.node import Node
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadKey,
    BadToken,
    HoldfastError,
    KeyExpired,
    OverLimit,
    StoreFailed,
    UnknownKey,
    UnknownToken,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.keys import HelloTranscript, card_of, check_proof, prove, public_key, text_of
from holdfast.rules.limits import (
    DAY_MS,
    HELLO_MS_MAX,
    HELLOS_OPEN_MAX,
    KEYS_OF_ZONE_MAX,
    SESSION_MS,
    SESSIONS_OF_ZONE_MAX,
)
from holdfast.service.caller import Caller
from holdfast.service.sessions import AuthSession, HelloReply, Sessions
from holdfast.storage.files import home as homes
from holdfast.storage.files.home import HomePaths
from support.source import HandClock

BO, BO_NEXT, EVE = b"b" * 32, b"n" * 32, b"e" * 32
CERTIFICATE = b"c" * 32
BO_CARD = card_of("bo", public_key(BO))


@pytest.fixture
def paths(tmp_path: Path) -> HomePaths:
    """A key of its own: a node in memory has no home."""
    return homes.create_home(tmp_path / "keys", "ana")


@pytest.fixture
def trust(node: Node, paths: HomePaths) -> Trust:
    return Trust(node._engine, paths)


def seed_of(number: int) -> bytes:
    return number.to_bytes(32)


# --- zones ---------------------------------------------------------------------------------------


def test_Z8_a_zone_is_trusted_by_the_key_on_its_card(trust: Trust, clock: HandClock) -> None:
    row = trust.trust(BO_CARD, reads=["team"])
    assert (row.name, row.reads, row.blocked_at) == ("bo", ("team",), None)
    assert row.number >= 1
    assert [(key.key, key.expires_at) for key in row.keys] == [(public_key(BO), None)]
    assert trust.zones() == [row] == [trust.zone("bo")]
    assert trust.caller_of_zone("bo", public_key(BO)) == Caller("zone", "bo", frozenset({"team"}))
    with pytest.raises(ZoneNotTrusted):
        trust.caller_of_zone("bo", public_key(EVE))
    with pytest.raises(ZoneNotTrusted):
        trust.caller_of_zone("eve", public_key(BO))


def test_Z8_trusting_again_adds_keys_and_meshes(trust: Trust) -> None:
    first = trust.trust(BO_CARD, reads=["team"])
    row = trust.trust(card_of("bo", public_key(BO_NEXT)), reads=["lab"])
    assert row.number == first.number
    assert {key.key for key in row.keys} == {public_key(BO), public_key(BO_NEXT)}
    assert row.reads == ("lab", "team")
    assert trust.trust(BO_CARD).reads == ("lab", "team")
    assert len(trust.zone("bo").keys) == 2


def test_Z8_a_star_is_every_mesh(trust: Trust) -> None:
    trust.trust(BO_CARD, reads=["*"])
    assert trust.caller_of_zone("bo", public_key(BO)).reads is None


def test_Z8_a_key_of_one_zone_is_not_that_of_another(trust: Trust) -> None:
    trust.trust(BO_CARD)
    with pytest.raises(AlreadyExists):
        trust.trust(card_of("eve", public_key(BO)))


def test_Z8_a_node_does_not_trust_itself_as_another(trust: Trust) -> None:
    key = public_key(trust.seed())
    for card in (trust.card(), card_of("other", key), card_of("ana", public_key(BO))):
        with pytest.raises(BadInput):
            trust.trust(card)
    assert trust.zones() == []


@pytest.mark.parametrize("reads", [["No Mesh"], [f"m{n}" for n in range(65)]])
def test_Z8_grants_name_meshes(trust: Trust, reads: list[str]) -> None:
    with pytest.raises(BadInput):
        trust.trust(BO_CARD, reads=reads)
    assert trust.zones() == []


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_Z8_trust_is_for_some_days_or_for_good(trust: Trust, days: int) -> None:
    with pytest.raises(BadInput):
        trust.trust(BO_CARD, days=days)


def test_Z8_a_key_ends_when_its_days_are_over(trust: Trust, clock: HandClock) -> None:
    trust.trust(BO_CARD, days=2)
    clock.advance(2 * DAY_MS - 1)
    trust.caller_of_zone("bo", public_key(BO))
    clock.advance(1)
    with pytest.raises(KeyExpired):
        trust.caller_of_zone("bo", public_key(BO))
    trust.trust(BO_CARD, days=1)
    trust.caller_of_zone("bo", public_key(BO))


def test_Z8_keys_of_a_zone_are_bounded_and_ended_ones_make_room(
    trust: Trust, clock: HandClock
) -> None:
    for n in range(1, KEYS_OF_ZONE_MAX + 1):
        trust.trust(card_of("bo", public_key(seed_of(n))), days=1 if n == 3 else None)
    with pytest.raises(OverLimit):
        trust.trust(BO_CARD)
    clock.advance(DAY_MS)
    row = trust.trust(BO_CARD)
    assert len(row.keys) == KEYS_OF_ZONE_MAX
    assert public_key(seed_of(3)) not in [key.key for key in row.keys]


def test_Z8_a_blocked_zone_is_not_spoken_with_until_it_is_trusted_again(trust: Trust) -> None:
    trust.trust(BO_CARD, reads=["team"])
    assert trust.block("bo").blocked_at is not None
    assert trust.block("bo") == trust.zone("bo")
    with pytest.raises(ZoneNotTrusted):
        trust.caller_of_zone("bo", public_key(BO))
    trust.trust(BO_CARD)
    assert trust.caller_of_zone("bo", public_key(BO)).reads == frozenset({"team"})


def test_Z8_what_was_granted_can_be_taken_back(trust: Trust) -> None:
    trust.trust(BO_CARD, reads=["team", "lab"])
    trust.trust(card_of("bo", public_key(BO_NEXT)))
    assert trust.revoke("bo", reads=["team"]).reads == ("lab",)
    row = trust.revoke("bo", key=BO_CARD)
    assert [key.key for key in row.keys] == [public_key(BO_NEXT)]
    with pytest.raises(ZoneNotTrusted):
        trust.caller_of_zone("bo", public_key(BO))
    assert trust.revoke("bo", key=text_of(public_key(BO_NEXT))).keys == ()


def test_Z8_taking_back_what_is_not_there_is_told(trust: Trust) -> None:
    trust.trust(BO_CARD, reads=["team"])
    for what, error in (
        ({}, BadInput),
        ({"reads": ["lab"]}, BadInput),
        ({"key": text_of(public_key(EVE))}, UnknownKey),
    ):
        with pytest.raises(error):
            trust.revoke("bo", **what)
    for act in (trust.block, trust.zone, lambda name: trust.revoke(name, reads=["team"])):
        with pytest.raises(UnknownZone):
            act("eve")


# --- the key of this node ------------------------------------------------------------------------


def test_Z8_a_node_changes_its_key_in_two_steps(trust: Trust, paths: HomePaths) -> None:
    before = trust.card()
    after = trust.make_next()
    assert after != before
    assert trust.make_next() == after, "made once, however often it is asked for"
    assert trust.card() == before, "nothing changes before the switch"
    assert stat.S_IMODE(paths.identity_next.stat().st_mode) == 0o600
    assert trust.switch() == after == trust.card()
    assert not paths.identity_next.exists()
    with pytest.raises(UnknownKey) as caught:
        trust.switch()
    assert "holdfast peer rotate" in caught.value.hint


def test_Z8_a_switch_that_was_cut_short_is_over(trust: Trust, paths: HomePaths) -> None:
    trust.make_next()
    paths.identity.write_bytes(paths.identity_next.read_bytes())  # the first step, and no more
    current = trust.card()
    with pytest.raises(UnknownKey):
        trust.switch()
    assert trust.card() == current
    assert trust.make_next() != current


def test_Z8_a_next_key_that_is_half_there_is_made_anew(trust: Trust, paths: HomePaths) -> None:
    paths.identity_next.write_bytes(b"half")
    assert trust.make_next() == card_of("ana", public_key(paths.identity_next.read_bytes()))


def test_Z8_two_who_ask_for_the_next_key_get_the_same(trust: Trust) -> None:
    cards: list[str] = []
    threads = [threading.Thread(target=lambda: cards.append(trust.make_next())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(cards)) == 1


def test_Z8_a_node_without_its_key_says_so(trust: Trust, paths: HomePaths) -> None:
    paths.identity.write_bytes(b"short")
    with pytest.raises(StoreFailed) as caught:
        trust.card()
    assert "backup" in caught.value.hint
    paths.identity.unlink()
    with pytest.raises(StoreFailed):
        trust.seed()


# --- tokens --------------------------------------------------------------------------------------


def test_D10_a_token_without_meshes_does_everything_on_this_machine_only(trust: Trust) -> None:
    secret = trust.add_token("op")
    assert trust.caller_of_token(secret, local=True) == Caller("local", "op")
    with pytest.raises(BadToken) as caught:
        trust.caller_of_token(secret, local=False)
    assert "--reads" in caught.value.hint


def test_D10_a_token_with_meshes_reads_them_from_anywhere(trust: Trust) -> None:
    some, every = trust.add_token("some", reads=["team"]), trust.add_token("every", reads=["*"])
    for local in (True, False):
        assert trust.caller_of_token(some, local=local) == Caller(
            "token", "some", frozenset({"team"})
        )
        assert trust.caller_of_token(every, local=local) == Caller("token", "every", None)


def test_D10_tokens_overlap_and_go_one_by_one(trust: Trust) -> None:
    old, new = trust.add_token("old"), trust.add_token("new")
    assert old != new
    trust.caller_of_token(old, local=True)
    trust.caller_of_token(new, local=True)
    trust.revoke_token("old")
    with pytest.raises(BadToken):
        trust.caller_of_token(old, local=True)
    trust.caller_of_token(new, local=True)
    assert [row.name for row in trust.tokens()] == ["new"]
    with pytest.raises(UnknownToken):
        trust.revoke_token("old")
    with pytest.raises(AlreadyExists):
        trust.add_token("new")


def test_D10_a_token_ends_when_its_days_are_over(trust: Trust, clock: HandClock) -> None:
    secret = trust.add_token("op", days=1)
    clock.advance(DAY_MS - 1)
    trust.caller_of_token(secret, local=True)
    clock.advance(1)
    with pytest.raises(KeyExpired):
        trust.caller_of_token(secret, local=True)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 65])
def test_D10_a_token_has_a_plain_name(trust: Trust, name: str) -> None:
    with pytest.raises((BadInput, BadKey)):
        trust.add_token(name)


@pytest.mark.parametrize("reads", [[], ["No Mesh"]])
def test_D10_a_token_that_reads_names_meshes(trust: Trust, reads: list[str]) -> None:
    with pytest.raises(BadInput):
        trust.add_token("op", reads=reads)


@pytest.mark.parametrize("text", ["", "hf_x", "hs_" + "A" * 43, "hf_" + "A" * 43])
def test_D10_an_unknown_token_is_refused(trust: Trust, text: str) -> None:
    trust.add_token("op")
    with pytest.raises(BadToken):
        trust.caller_of_token(text, local=True)


# --- hello ---------------------------------------------------------------------------------------


class Monotonic:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Monotonic:
    return Monotonic()


@pytest.fixture
def sessions(trust: Trust, ticks: Monotonic) -> Sessions:
    trust.trust(BO_CARD, reads=["team"])
    return Sessions(trust, clock=ticks, random=os.urandom)


def transcript(
    said: HelloReply, nonce: bytes, seed: bytes = BO, certificate: bytes = CERTIFICATE
) -> HelloTranscript:
    return HelloTranscript(
        "bo", public_key(seed), nonce, said.zone, said.key, said.nonce, certificate
    )


def enter(sessions: Sessions, seed: bytes = BO) -> AuthSession:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(seed), nonce, CERTIFICATE)
    return sessions.prove(said.nonce, prove(seed, "client", transcript(said, nonce, seed)))


def test_Z8_both_sides_of_a_hello_prove_themselves(trust: Trust, sessions: Sessions) -> None:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    hello = transcript(said, nonce)
    assert (said.zone, said.key) == ("ana", public_key(trust.seed()))
    assert check_proof(said.key, "server", hello, said.proof)
    session = sessions.prove(said.nonce, prove(BO, "client", hello))
    assert session.expires_in_ms == SESSION_MS
    assert sessions.caller_of(session.token) == Caller("zone", "bo", frozenset({"team"}))
    assert sessions.caller_of("hs_other") is None
    assert sessions.caller_of("\ud800") is None


def test_Z8_a_stranger_is_not_greeted(trust: Trust, sessions: Sessions, clock: HandClock) -> None:
    def refused(zone: str, seed: bytes, kind: type[HoldfastError]) -> None:
        with pytest.raises(kind):
            sessions.greet(zone, public_key(seed), os.urandom(32), CERTIFICATE)

    refused("eve", EVE, ZoneNotTrusted)
    refused("bo", EVE, ZoneNotTrusted)
    refused("eve", BO, ZoneNotTrusted)
    trust.trust(card_of("short", public_key(BO_NEXT)), days=1)
    clock.advance(DAY_MS)
    refused("short", BO_NEXT, KeyExpired)
    trust.block("bo")
    refused("bo", BO, ZoneNotTrusted)


@pytest.mark.parametrize(
    ("zone", "key", "nonce"),
    [
        ("bo", bytes(32), b"n" * 32),
        ("bo", b"short", b"n" * 32),
        ("bo", public_key(BO), b"n" * 31),
        ("", public_key(BO), b"n" * 32),
    ],
)
def test_Z8_a_hello_that_makes_no_sense_is_refused(
    sessions: Sessions, zone: str, key: bytes, nonce: bytes
) -> None:
    with pytest.raises(BadInput):
        sessions.greet(zone, key, nonce, CERTIFICATE)


Forge = Callable[[HelloReply, bytes], bytes]


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda said, nonce: prove(EVE, "client", transcript(said, nonce)), id="key"),
        pytest.param(lambda said, nonce: prove(BO, "server", transcript(said, nonce)), id="role"),
        pytest.param(
            lambda said, nonce: prove(BO, "client", transcript(said, nonce, BO, b"x" * 32)),
            id="certificate",
        ),
        pytest.param(
            lambda said, nonce: prove(BO, "client", transcript(said, b"x" * 32)), id="nonce"
        ),
        pytest.param(lambda said, nonce: said.proof, id="reflected"),
        pytest.param(lambda said, nonce: b"", id="empty"),
    ],
)
def test_Z8_a_wrong_proof_gets_no_session_and_no_second_try(
    sessions: Sessions, forge: Forge
) -> None:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said.nonce, forge(said, nonce))
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said.nonce, prove(BO, "client", transcript(said, nonce)))


def test_Z8_a_proof_is_good_once(sessions: Sessions) -> None:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    proof = prove(BO, "client", transcript(said, nonce))
    sessions.prove(said.nonce, proof)
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said.nonce, proof)
    again = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(again.nonce, proof)


def test_Z8_the_number_of_a_hello_is_used_once(sessions: Sessions) -> None:
    nonce = os.urandom(32)
    sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    with pytest.raises(ZoneNotTrusted):
        sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)


def test_Z8_a_hello_waits_for_its_proof_for_a_while_only(
    sessions: Sessions, ticks: Monotonic
) -> None:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    ticks.now += HELLO_MS_MAX / 1000
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said.nonce, prove(BO, "client", transcript(said, nonce)))
    sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)  # what is over is forgotten
    assert len(sessions._open) == 1


def test_Z8_hellos_that_wait_are_bounded_and_the_oldest_goes(sessions: Sessions) -> None:
    nonces = [os.urandom(32) for _ in range(HELLOS_OPEN_MAX + 1)]
    said = [sessions.greet("bo", public_key(BO), nonce, CERTIFICATE) for nonce in nonces]
    assert len(sessions._open) == HELLOS_OPEN_MAX
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said[0].nonce, prove(BO, "client", transcript(said[0], nonces[0])))
    sessions.prove(said[-1].nonce, prove(BO, "client", transcript(said[-1], nonces[-1])))


def test_Z8_whoever_plays_one_zone_pushes_out_no_hello_of_another(
    trust: Trust, sessions: Sessions
) -> None:
    trust.trust(card_of("cy", public_key(EVE)))
    nonce = os.urandom(32)
    said = sessions.greet("cy", public_key(EVE), nonce, CERTIFICATE)
    for _ in range(HELLOS_OPEN_MAX + 10):
        sessions.greet("bo", public_key(BO), os.urandom(32), CERTIFICATE)
    assert len(sessions._open) == HELLOS_OPEN_MAX
    hello = HelloTranscript(
        "cy", public_key(EVE), nonce, said.zone, said.key, said.nonce, CERTIFICATE
    )
    sessions.prove(said.nonce, prove(EVE, "client", hello))


def test_Z8_a_stranger_does_not_learn_which_zones_are_known(
    trust: Trust, sessions: Sessions
) -> None:
    said = set()
    trust.trust(card_of("cy", public_key(BO_NEXT)))
    trust.block("cy")
    for name in ("bo", "cy", "nobody"):
        with pytest.raises(ZoneNotTrusted) as refused:
            sessions.greet(name, public_key(EVE), os.urandom(32), CERTIFICATE)
        said.add(refused.value.message.replace(name, "NAME"))
    assert len(said) == 1


def test_Z8_sessions_of_a_zone_are_bounded_and_harm_no_other_zone(
    trust: Trust, sessions: Sessions
) -> None:
    trust.trust(card_of("cy", public_key(EVE)))
    nonce = os.urandom(32)
    said = sessions.greet("cy", public_key(EVE), nonce, CERTIFICATE)
    hello = HelloTranscript(
        "cy", public_key(EVE), nonce, said.zone, said.key, said.nonce, CERTIFICATE
    )
    other = sessions.prove(said.nonce, prove(EVE, "client", hello))
    made = [enter(sessions) for _ in range(SESSIONS_OF_ZONE_MAX + 3)]
    alive = [session for session in made if sessions.caller_of(session.token)]
    assert alive == made[3:]
    assert sessions.caller_of(other.token) is not None


def test_Z8_a_session_ends_with_its_time(sessions: Sessions, ticks: Monotonic) -> None:
    session = enter(sessions)
    ticks.now += SESSION_MS / 1000 - 1
    assert sessions.caller_of(session.token)
    ticks.now += 1
    assert sessions.caller_of(session.token) is None
    enter(sessions)
    assert len(sessions._proved) == 1


def test_Z8_a_session_ends_with_the_trust_it_rests_on(
    trust: Trust, sessions: Sessions, clock: HandClock
) -> None:
    session = enter(sessions)
    trust.block("bo")
    assert sessions.caller_of(session.token) is None
    trust.trust(BO_CARD, days=1)
    assert sessions.caller_of(session.token) is None, "it does not come back"
    session = enter(sessions)
    trust.revoke("bo", reads=["team"])
    assert sessions.caller_of(session.token) == Caller("zone", "bo", frozenset())
    clock.advance(DAY_MS)
    assert sessions.caller_of(session.token) is None


def test_Z8_a_zone_that_is_blocked_between_the_two_steps_gets_no_session(
    trust: Trust, sessions: Sessions
) -> None:
    nonce = os.urandom(32)
    said = sessions.greet("bo", public_key(BO), nonce, CERTIFICATE)
    trust.block("bo")
    with pytest.raises(ZoneNotTrusted):
        sessions.prove(said.nonce, prove(BO, "client", transcript(said, nonce)))


def test_Z8_a_zone_changes_its_key_without_a_pause(trust: Trust, sessions: Sessions) -> None:
    old = enter(sessions, BO)
    trust.trust(card_of("bo", public_key(BO_NEXT)))
    new = enter(sessions, BO_NEXT)
    assert sessions.caller_of(old.token) == sessions.caller_of(new.token)
    enter(sessions, BO)
    trust.revoke("bo", key=text_of(public_key(BO)))
    assert sessions.caller_of(old.token) is None
    assert sessions.caller_of(new.token) is not None
    with pytest.raises(ZoneNotTrusted):
        enter(sessions, BO)


def test_Z8_after_a_switch_the_node_proves_itself_by_its_new_key(
    trust: Trust, sessions: Sessions
) -> None:
    session = enter(sessions)
    card = trust.make_next()
    trust.switch()
    said = sessions.greet("bo", public_key(BO), os.urandom(32), CERTIFICATE)
    assert card_of(said.zone, said.key) == card
    assert sessions.caller_of(session.token) is not None


# --- secrets -------------------------------------------------------------------------------------


def test_Z8_no_secret_is_shown(
    trust: Trust, sessions: Sessions, paths: HomePaths, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    secret, session = trust.add_token("op"), enter(sessions)
    said = [repr(thing) for thing in (trust, sessions, session, trust.tokens(), trust.zones())]
    with pytest.raises(BadToken) as caught:
        trust.caller_of_token(secret, local=False)
    said += [str(caught.value), caught.value.hint, caplog.text]
    text = "\n".join(said)
    seed = paths.identity.read_bytes()
    for hidden in (secret, secret[3:], session.token, session.token[3:], seed.hex(), text_of(seed)):
        assert hidden not in text
    assert repr(seed)[2:-1] not in text
