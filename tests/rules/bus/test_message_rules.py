"""What the bus decides about messages: topics, parcels, refusals, replies, whom to ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from holdfast.rules.bus.anycast import Candidate, choose
from holdfast.rules.bus.batching import FRONT_BYTES, fits, parcel_bytes
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.refusal import next_try
from holdfast.rules.bus.reply_book import ReplyBook
from holdfast.rules.bus.signed_envelope import (
    NONCE_BYTES,
    Recipient,
    SigningMode,
    sign_parcel,
)
from holdfast.rules.bus.topic_pattern import check_pattern, check_topic, takes
from holdfast.rules.errors import BadInput, OverLimit
from holdfast.rules.ids import uuid7
from holdfast.rules.limits import (
    BUS_NAME_BYTES_MAX,
    BUS_PARCEL_BYTES,
    BUS_PARCEL_MESSAGES_MAX,
    BUS_SIGNED_EACH_MAX,
    OUTBOX_ATTEMPTS_MAX,
)

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        (">", "", True),
        (">", "a.b", True),
        ("*", "a", True),
        ("*", "", False),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a", "b", False),
    ],
)
def test_B5_a_pattern_takes_topics_word_by_word(pattern: str, topic: str, taken: bool) -> None:
    assert takes(check_pattern(pattern), topic) is taken


@given(words=WORDS, at=st.integers(0, 3))
def test_B5_a_topic_is_taken_by_itself_and_by_what_stands_for_its_words(
    words: list[str], at: int
) -> None:
    topic = check_topic(".".join(words))
    assert takes(topic, topic)
    at = min(at, len(words) - 1)
    assert takes(".".join([*words[:at], "*", *words[at + 1 :]]), topic)
    assert takes(".".join([*words[:at], ">"]), topic)
    assert not takes(".".join([*words, "*"]), topic)
    assert not takes(".".join([*words, ">"]), topic)


@pytest.mark.parametrize("topic", ["", "a..b", ".a", "a.", "a.*", ">", "a\n", 7])
def test_B5_a_topic_that_is_none_is_refused(topic: str) -> None:
    with pytest.raises(BadInput):
        check_topic(topic)


@pytest.mark.parametrize("pattern", ["", "a..b", ">.a", "a.>.b", "a."])
def test_B5_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput):
        check_pattern(pattern)
    with pytest.raises(OverLimit):
        check_pattern("x" * (BUS_NAME_BYTES_MAX + 1))


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=100),
    room=st.integers(0, 200_000),
    mode=st.sampled_from(SigningMode),
)
def test_B4_a_parcel_holds_what_fits_and_always_one(
    sizes: list[int], room: int, mode: SigningMode
) -> None:
    count = fits(iter(sizes), room, mode)
    assert 1 <= count <= len(sizes)
    assert count <= (BUS_SIGNED_EACH_MAX if mode is SigningMode.EACH else BUS_PARCEL_MESSAGES_MAX)
    estimated = FRONT_BYTES + sum(parcel_bytes(size, mode) for size in sizes[:count])
    assert count == 1 or estimated <= min(room, BUS_PARCEL_BYTES)
    key, recipient = SigningKey(bytes(32)), Recipient.direct(bytes(32), bytes(16))
    payloads = [bytes(size) for size in sizes[:count]]
    raw = sign_parcel(key, recipient, payloads, 1, bytes(NONCE_BYTES * count), mode)
    assert len(raw) <= estimated


def test_B4_what_may_pass_later_is_tried_later_and_not_for_ever() -> None:
    assert next_try("bad_value", 0, 1000, 0.5) is None
    for code in ("wrong_recipient", "bad_sequence", "bus_inbox_full", "capability_refused"):
        tries = [next_try(code, attempts, 1000, 0.99) for attempts in range(OUTBOX_ATTEMPTS_MAX)]
        assert tries[-1] is None
        waits = [at for at in tries[:-1] if at is not None]
        assert len(waits) == OUTBOX_ATTEMPTS_MAX - 1
        assert waits == sorted(waits)
        assert waits[0] > 1000


def test_B5_the_book_of_replies_is_bounded_by_count_bytes_and_time() -> None:
    def reply(size: int) -> BusMessage:
        id = uuid7(1, bytes(10))
        return BusMessage(id=id, kind=MessageKind.REPLY, correlation=id, body=bytes(size))

    book = ReplyBook(most=3, bytes_max=100)
    for name in "abcd":
        book.add((name, b"id"), reply(10), until_ms=50)
    assert [book.find((name, b"id"), 0) is not None for name in "abcd"] == [False, True, True, True]
    book.add(("e", b"id"), reply(85), until_ms=50)
    assert [book.find((name, b"id"), 0) is not None for name in "bcde"] == [
        False,
        False,
        True,
        True,
    ]
    assert book.find(("e", b"id"), 50) is None
    book.add(("f", b"id"), reply(1000), until_ms=50)  # one is always kept
    assert len(book) == 1


def test_B5_the_peer_with_the_fewest_requests_is_asked_and_a_lost_one_last() -> None:
    idle, busy = Candidate("idle", 0, 5), Candidate("busy", 2, 1)
    assert choose([busy, idle], []) == "idle"
    assert choose([busy, idle], ["idle"]) == "busy"
    assert choose([busy, idle], ["idle", "busy"]) == "idle"
    assert choose([Candidate("late", 0, 5), Candidate("early", 0, 4)], []) == "early"
    assert choose([], []) is None
