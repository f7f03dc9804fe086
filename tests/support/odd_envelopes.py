"""Bytes that are envelopes, nearly envelopes, or no envelopes at all, from a random number."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from math import inf, nan
from random import Random
from struct import pack
from typing import Any, Final

import msgspec

from holdfast.rules import limits
from holdfast.rules.bodies import FileShare, MemorySet, TaskCreate, encode_value
from holdfast.rules.envelope import CREATED_VERSION
from support import envelopes
from support.envelopes import TASK, make_id

_LAMPORT, _BODY = 10, 17
_TEXTS: Final = (
    *("k", "key/1", "", "ä", "日本", "e\u0301", "\x7f", "a\nb", "a\0b", " a", "a ", "\u2028"),
    *("x" * size for size in (31, 32, 64, 65, 128, 129, 255, 256, 257, 1023, 1024, 1025, 70_000)),
    *("é" * 512, "é" * 513, "now", "topic/news", "1.0", "1.1", "1.2", "2.0", "committed"),
)
_NUMBERS: Final = (
    *(0, 1, 2, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**48 - 1, 2**63, 2**64 - 1),
    *(limits.SOURCE_TIME_MS_MAX - 1, limits.SOURCE_TIME_MS_MAX, limits.LAMPORT_MAX - 1),
    *(limits.LAMPORT_MAX, -1, -33, -(2**31)),
)
_JSON: Final = (
    *(b"1", b'"text"', b"null", b'{"a":[1,2]}', b"1 2", b"", b" 1", b'"a', b"[1", b"01", b"1e999"),
    *(b'"\\u0000"', b'"\\ud800"', b'"\xff"', b"[" * 65 + b"]" * 65, b"[" * 64 + b"]" * 64),
    *(b'{"' + b"k" * 90 + b'":"[{[{"}', b'"\xc3\xa4"', b"NaN", b"1" * 5000, b'{"a":1,"a":2}'),
)
_FLOATS: Final = (
    (1.0,),
    (1.0, 2.0),
    (1.0, 2.0, 3.0),
    (nan, 0.0),
    (inf, 0.0),
    (1e18, 0.0),
    (9e17, 9e17),
)
_BINARIES: Final = (
    *(b"", b"\0", b"\xff" * 4, bytes(16), bytes(32), b'{"a":1}', b"\xc3\xa4", b"x" * 300),
    *(pack(f"<{len(floats)}f", *floats) for floats in _FLOATS),
    *(b"x" * 66_000, *_JSON),
)
_LISTS: Final[tuple[list[Any], ...]] = (
    *(
        [1, "bob", None],
        [1, "bob", 3],
        [2, "bob"],
        [1, "", None],
        [1, "b", None, 1],
        [1, " b", None],
    ),
    *([1, "bob", 2**63 - 2], [1, "bob", 2**63 - 1], [1, "bob", -1], [1, "bob", 2**64 - 1]),
    *(["topic", "news"], ["queue", "news"], ["dm", "x"], ["dm", "a" * 64], ["topic", ""]),
    *(["a", "b"], ["a\0"], [], ["é" * 65], ["é" * 64], [""], ["a"] * 64, ["a"] * 65, ["a", 1]),
)
_POOLS: Final[dict[type, tuple[Any, ...]]] = {
    str: _TEXTS,
    int: _NUMBERS,
    bytes: (*_BINARIES, make_id(7), make_id(7, limits.SOURCE_TIME_MS_MAX)),
    list: _LISTS,
    type(None): (None, *_LISTS, *_NUMBERS, bytes(16), bytes(15)),
}


def random_envelope(random: Random) -> bytes:
    """Most are as a node writes them; others have odd values, spellings or bytes."""
    fields: list[Any] = msgspec.msgpack.decode(_ordinary(random))
    if random.random() < 0.15:
        _change_body(random, fields)
    for _ in range(random.choice((0, 0, 0, 0, 1, 1, 2))):
        _change(random, fields)
    raw = packed(fields, random if random.random() < 0.2 else None)
    return raw if random.random() < 0.8 else _harmed(random, raw)


def _ordinary(random: Random) -> bytes:
    number = random.randrange(1, 10**6)
    value = random.choice((number, {"n": number}, "a text", None, [1.5, "ä"], "x" * 90))
    of_each = one_of_each(
        random.choice(("key", "schlüssel/1", f"key-{number}")),
        value,
        lamport=number,
        base=random.choice((None, (random.randrange(1, number + 1), "ana"))),
        origin=random.choice(("bob", "ana", "zoë")),
        meta=random.choice((b"", b"", b'{"a":1}', '{"ä":1}'.encode())),
    )
    again = MemorySet(encode_value(value), ("a",), random.choice((1, number)))
    later = {"lamport": number, "version": CREATED_VERSION}
    share = FileShare(sha256(b"text").digest(), 4, b"text", number)
    of_each += [
        envelopes.raw("memory.set", "again", again, **later),
        envelopes.raw("file.share", "again.txt", share, **later),
    ]
    return random.choice(of_each)


def one_of_each(name: str, value: object, **fields: Any) -> list[bytes]:
    """An envelope of every op as a node writes it, and one of an op that nobody knows yet."""
    e = envelopes
    return [
        e.state_set(name, value, **fields),
        e.raw("state.delete", name, **fields),
        e.raw("memory.set", name, MemorySet(encode_value(value), ("a", "ä")), **fields),
        e.raw("memory.forget", name, **fields),
        e.vector_store(name, [1.0, 0.5], **fields),
        e.vector_delete(name, **fields),
        e.file_share("a/b.txt", b"text", **fields),
        e.raw("file.delete", "a/b.txt", **fields),
        e.raw(
            "task.create", TASK, TaskCreate("ein Titel", "größer"), **{"id": make_id(0), **fields}
        ),
        e.task_claim(TASK, 300, **fields),
        e.task_release(TASK, 0, **fields),
        e.raw("task.complete", TASK, **fields),
        e.raw("task.cancel", TASK, **fields),
        e.fact_append(name, "is", value, **fields),
        e.message_send("topic", "news", b"content", **fields),
        e.raw("later.op", name, **fields),
    ]


def every_change(raw: bytes) -> Iterator[bytes]:
    """An envelope with each of its fields replaced by each odd value, the body's fields too; with
    each of its bytes changed; and cut off at each byte.
    """
    fields = msgspec.msgpack.decode(raw)
    for place, field in enumerate(fields):
        for odd in _like(field, fields[_LAMPORT]):
            yield packed([*fields[:place], odd, *fields[place + 1 :]])
    yield from every_change_of_the_body(raw)
    yield from _every_harm(raw)


def every_change_of_the_body(raw: bytes) -> Iterator[bytes]:
    """The same of the body alone: the envelope around it stays whole."""
    fields = msgspec.msgpack.decode(raw)
    body = msgspec.msgpack.decode(fields[_BODY])
    bodies = [packed([*body, 1]), packed(body[:-1]), *_every_harm(fields[_BODY])]
    for place, field in enumerate(body):
        for odd in _like(field, fields[_LAMPORT]):
            bodies.append(packed([*body[:place], odd, *body[place + 1 :]]))
    for changed in bodies:
        yield packed([*fields[:_BODY], changed, *fields[_BODY + 1 :]])


def _every_harm(raw: bytes) -> Iterator[bytes]:
    yield raw + b"\0"
    for at in range(len(raw)):
        yield raw[:at]
        for byte in (0, 0xC0, 0xFF, raw[at] ^ 1, raw[at] + 1 & 0xFF):
            yield raw[:at] + bytes((byte,)) + raw[at + 1 :]


def _like(field: Any, lamport: int) -> Iterator[Any]:
    """Odd values of the same kind, and one of each other kind."""
    for kind, pool in _POOLS.items():
        yield from pool if isinstance(field, kind) else pool[:1]
    if field is None or isinstance(field, list):
        for stamp in (lamport - 1, lamport, lamport + 1, 0, 2**63):
            yield [stamp, "ana", None]


def _change_body(random: Random, fields: list[Any]) -> None:
    """Another value in the place of one field of the body."""
    body = msgspec.msgpack.decode(fields[_BODY])
    if body:
        place = random.randrange(len(body))
        body[place] = _odd(random, like=body[place])
    fields[_BODY] = packed(body, random if random.random() < 0.3 else None)


def _change(random: Random, fields: list[Any]) -> None:
    """Another value in the place of one field; sometimes one field more or less."""
    place = random.randrange(len(fields))
    fields[place] = _odd(random, like=fields[place])
    if random.random() < 0.05:
        fields.append(_odd(random, like=None))
    elif random.random() < 0.05:
        del fields[random.randrange(len(fields))]


def _odd(random: Random, like: Any) -> Any:
    if random.random() < 0.9:
        return random.choice(_POOLS[type(like)])
    return random.choice(random.choice(list(_POOLS.values())))


def _harmed(random: Random, raw: bytes) -> bytes:
    at = random.randrange(len(raw))
    return random.choice(
        (
            lambda: raw[:at],
            lambda: raw + raw[at:],
            lambda: raw[at:],
            lambda: raw[:at] + bytes((random.randrange(256),)) + raw[at + 1 :],
            lambda: raw[:at] + bytes((raw[at] ^ 1 << random.randrange(8),)) + raw[at + 1 :],
            lambda: raw[:at] + random.randbytes(3) + raw[at:],
        )
    )()


# --- msgpack with a choice of forms ----------------------------------------------------------


def packed(value: Any, random: Random | None = None) -> bytes:
    """msgpack in its shortest form; with `random`, in any form of the right kind."""
    if random is None:
        return msgspec.msgpack.encode(value)
    if isinstance(value, list | tuple):
        head = _head(random, len(value), ((0x90, 15), None, (0xDC, 2), (0xDD, 4)))
        return head + b"".join(packed(part, random) for part in value)
    if isinstance(value, str):
        text = value.encode()
        return _head(random, len(text), ((0xA0, 31), (0xD9, 1), (0xDA, 2), (0xDB, 4))) + text
    if isinstance(value, bytes):
        return _head(random, len(value), (None, (0xC4, 1), (0xC5, 2), (0xC6, 4))) + value
    if isinstance(value, int) and value >= 0:
        forms = [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8), (0xD1, 2), (0xD2, 4), (0xD3, 8)]
        fitting = [
            bytes((code,)) + value.to_bytes(size)
            for code, size in forms
            if value < 1 << (8 * size - (code >= 0xD0))
        ]
        return random.choice([*fitting, msgspec.msgpack.encode(value)])
    return msgspec.msgpack.encode(value)


def _head(random: Random, size: int, forms: tuple[tuple[int, int] | None, ...]) -> bytes:
    short, *long = forms
    fitting = [
        bytes((code,)) + size.to_bytes(n) for code, n in filter(None, long) if size < 1 << 8 * n
    ]
    if short is not None and size <= short[1]:
        fitting.append(bytes((short[0] | size,)))
    return random.choice(fitting)
