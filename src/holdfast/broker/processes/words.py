"""What the processes of a broker say to each other, through their parent."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """To the parent: this process serves."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """To the parent, every second and when it has changed: this process is alive."""

    connections: int
    taken: int
    """How many connections it was handed so far; the parent knows how many it has handed over."""


class Question(msgspec.Struct, frozen=True, tag="ask"):
    """From one process to another one."""

    number: int
    sender: int
    to: int
    what: str
    body: bytes = b""


class ProcessReply(msgspec.Struct, frozen=True, tag="answer"):
    number: int
    to: int
    body: bytes | None
    """None: the other process is not there."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """From the parent: end, as by a signal."""


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """From the parent: take up a renewed certificate."""


Word: TypeAlias = Ready | Load | Question | ProcessReply | Stop | Reload

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Word)


def encode(word: Word) -> bytes:
    return _ENCODER.encode(word)


def decode(raw: bytes) -> Any:
    return _DECODER.decode(raw)
