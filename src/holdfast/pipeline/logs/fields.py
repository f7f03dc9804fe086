"""Runs of fields that many envelopes of a log have in common, read by the types and the checks that
nodes use for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.bodies import check_tags
from holdfast.rules.envelope import (
    Destination,
    Fence,
    IntentId,
    Moment,
    Positive,
    Priority,
    State,
    WriteClass,
)
from holdfast.rules.errors import HoldfastError
from holdfast.rules.vectors import Model

_FIX_ARRAY: Final = 0x90
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, HoldfastError)


class FieldRun(msgspec.Struct, array_like=True, frozen=True):
    """Fields that follow each other in the bytes."""

    def check(self) -> None:
        """Raises if a field breaks a rule that its type does not know."""


R = TypeVar("R", bound=FieldRun)


class Names(FieldRun, frozen=True):
    mesh: str
    op: str

    def check(self) -> None:
        names.check_mesh(self.mesh)
        names.check_key(self.op, "op", limits.OP_CHARS_MAX)


class Peers(FieldRun, frozen=True):
    owner: str
    origin: str
    epoch: Positive

    def check(self) -> None:
        names.check_peer(self.origin)
        if self.owner:
            names.check_peer(self.owner)


class Classes(FieldRun, frozen=True):
    write_class: WriteClass
    state: State


class BasePeer(FieldRun, frozen=True):
    peer: str

    def check(self) -> None:
        names.check_peer(self.peer)


class Rest(FieldRun, frozen=True):
    """What follows the body."""

    to: tuple[Destination, str] | None
    reply_to: str
    priority: Priority
    fence: Fence | None
    intent: IntentId | None
    committed_at: Moment | None


class Predicate(FieldRun, frozen=True):
    predicate: str

    def check(self) -> None:
        names.check_key(self.predicate, "predicate", limits.PREDICATE_BYTES_MAX)


class Tags(FieldRun, frozen=True):
    tags: tuple[str, ...]

    def check(self) -> None:
        check_tags(self.tags)


class ModelRun(FieldRun, frozen=True):
    provider: str
    model: str
    version: str
    dim: int
    quantization: str

    def check(self) -> None:
        self.identity()

    def identity(self) -> Model:
        return Model(
            provider=self.provider,
            name=self.model,
            version=self.version,
            dim=self.dim,
            quantization=self.quantization,
        )


class ContentType(FieldRun, frozen=True):
    content_type: str

    def check(self) -> None:
        if self.content_type:
            names.check_key(self.content_type, "content type")


def reading(kind: type[R]) -> Callable[[bytes], R | None]:
    """A function that reads such fields, and gives None if a rule refuses them."""
    head = bytes((_FIX_ARRAY | len(kind.__struct_fields__),))
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(spelled: bytes) -> R | None:
        try:
            found = decode(head + spelled)
            found.check()
        except _UNREADABLE:
            return None
        return found

    return read
