"""Envelopes as another peer would have made them, with whatever stamp a test wants."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import Any

import msgspec

from holdfast.rules.bodies import (
    OWNED,
    Body,
    Fact,
    FileShare,
    MemorySet,
    MessageSend,
    Nothing,
    StateSet,
    TaskCreate,
    TaskTurn,
    VectorDelete,
    VectorStore,
    encode_body,
    encode_value,
    family_of,
)
from holdfast.rules.envelope import Base, Envelope, encode
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.ids import id_text, parse_id, uuid7
from holdfast.rules.limits import INLINE_BYTES_MAX
from holdfast.rules.vectors import Model, pack
from support.source import START_MS

MESH = "team"
MODEL = Model(provider="test", name="tiny", dim=2)
_numbers = count(1)


def make_id(number: int, at_ms: int = START_MS) -> bytes:
    """An id that says its number at the end, for tests that name their ids."""
    return uuid7(at_ms, b"\0\0\0" + number.to_bytes(7, "big"))


TASK = id_text(make_id(0))
"""The name of a task that another peer made."""


def envelope(
    op: str,
    entity: str,
    body: Body | None = None,
    *,
    origin: str = "bob",
    lamport: int = 1,
    seq: int | None = None,
    id: bytes | None = None,
    base: tuple[int, str] | None = None,
    owner: str | None = None,
    **fields: Any,
) -> Envelope:
    """One change of another peer. Memory, vectors and files are its own unless told otherwise."""
    encoded = encode_body(Nothing() if body is None else body)
    if owner is None:
        owner = origin if family_of(op) in OWNED else ""
    given = {
        "mesh": MESH,
        "epoch": 1,
        "created_at": START_MS + lamport % 2**40,
        "fingerprint": fingerprint(kind=op, ref=entity, body=encoded),
        **fields,
    }
    return Envelope(
        id=make_id(next(_numbers), START_MS - 1) if id is None else id,
        op=op,
        entity=entity,
        owner=owner,
        origin=origin,
        seq=lamport if seq is None else seq,
        lamport=lamport,
        base=None if base is None else Base(*base),
        body=encoded,
        **given,
    )


def raw(op: str, entity: str, body: Body | None = None, **fields: Any) -> bytes:
    return encode(envelope(op, entity, body, **fields))


def state_set(key: str, value: object, **fields: Any) -> bytes:
    return raw("state.set", key, StateSet(encode_value(value)), **fields)


def memory_set(key: str, value: object, **fields: Any) -> bytes:
    return raw("memory.set", key, MemorySet(encode_value(value)), **fields)


def vector_store(key: str, embedding: object, *, model: Model = MODEL, **fields: Any) -> bytes:
    body = VectorStore(
        model.provider,
        model.name,
        model.version,
        model.dim,
        model.quantization,
        pack(embedding, model.dim, model.quantization),  # type: ignore[arg-type]
        fields.pop("content", key),
    )
    return raw("vector.store", key, body, **fields)


def vector_delete(key: str, *, model: Model = MODEL, **fields: Any) -> bytes:
    return raw("vector.delete", key, VectorDelete(model.fingerprint), **fields)


def file_share(path: str, content: bytes, **fields: Any) -> bytes:
    inline = content if len(content) < INLINE_BYTES_MAX else None
    body = FileShare(sha256(content).digest(), len(content), inline)
    return raw("file.share", path, body, **fields)


def task_create(task: str, title: str = "a task", **fields: Any) -> bytes:
    """A task is named by the id of its creation."""
    return raw("task.create", task, TaskCreate(title), **{"id": parse_id(task), **fields})


def task_claim(task: str, generation: int = 0, **fields: Any) -> bytes:
    return raw("task.claim", task, TaskTurn(generation), **fields)


def task_release(task: str, generation: int = 0, **fields: Any) -> bytes:
    return raw("task.release", task, TaskTurn(generation), **fields)


def fact_append(subject: str, predicate: str, object: object, **fields: Any) -> bytes:
    return raw("fact.append", subject, Fact(predicate, encode_value(object)), **fields)


def message_send(kind: str, ref: str, content: bytes, **fields: Any) -> bytes:
    """A message, with the fingerprint of what it says."""
    asked = {name: fields[name] for name in ("reply_to", "priority", "meta") if name in fields}
    told = fingerprint(kind=kind, ref=ref, body=content, **asked)
    body = MessageSend(content, fields.pop("content_type", ""))
    given = {"to": (kind, ref), "fingerprint": told, **fields}
    return raw("message.send", f"{kind}/{ref}", body, **given)


def changed(raw: bytes, **fields: Any) -> bytes:
    """The same envelope with other fields, as nobody honest would send it."""
    from holdfast.rules.envelope import decode_trusted

    return encode(msgspec.structs.replace(decode_trusted(raw), **fields))
