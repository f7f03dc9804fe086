"""Envelopes that every reader of pushes takes, and the frames in which they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.protocol.frames import Item, Push, encode_frame
from holdfast.rules.bodies import MemorySet, MessageSend
from holdfast.rules.destinations import entity_of
from holdfast.rules.ids import id_text
from holdfast.rules.message import MESSAGE_VERSION, fingerprint_by
from support import envelopes as e


def push(raws: Sequence[bytes], *, epoch: int = 0, mesh: str = e.MESH) -> bytes:
    """The frame of a push, whose items are numbered from 7 on."""
    return encode_frame(Push(mesh, epoch, [Item(at, raw) for at, raw in enumerate(raws, 7)]))


def message(content: bytes = b"hello", **fields: Any) -> bytes:
    """A message as a node of today sends it."""
    kind, ref = fields.pop("to", ("topic", "news"))
    asked = {"reply_to": "", "priority": "next", "meta": b"", **fields}
    content_type = asked.pop("content_type", "")
    mark = fingerprint_by(
        MESSAGE_VERSION,
        to=(kind, ref),
        content=content,
        content_type=content_type,
        **{name: asked[name] for name in ("reply_to", "priority", "meta")},
    )
    return e.raw(
        "message.send",
        entity_of(kind, ref),
        MessageSend(content, content_type),
        **{"to": (kind, ref), "fingerprint": mark, "version": MESSAGE_VERSION, **asked},
    )


PLAIN: Final = [
    message(),
    message(b"x" * 70_000, priority="now"),
    message(content_type="text/plain", reply_to=id_text(e.make_id(5))),
    message(to=("dm", "ab" * 32), priority="low"),
    message(to=("queue", "arbeit/ü")),
    message(origin="ana"),
    e.message_send("topic", "news", b"of version 1"),
    e.state_set("k", {"a": [1, -2, "ü", None, True], "b": {}}),
    e.state_set("schlüssel", "a text", base=(1, "ana"), lamport=70_000),
    e.memory_set("k", 10**17),
    e.state_set("k", [0.5, -21.25, 1.0, 0.0001]),
    e.raw("memory.set", "k", MemorySet(b"1", ("a", "ä"))),
    e.fact_append("s", "is", [], write_class="append-only"),
    e.raw("state.delete", "k"),
    e.raw("memory.forget", "k"),
]
"""All pushed by bob."""
