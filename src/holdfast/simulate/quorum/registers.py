"""What entries mean in a world of voters: registers, set outright or if they hold what was seen.

A client's command is applied once, however often it stands in the log. All of it goes into a
snapshot, and comes out of one as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import msgspec
from blake3 import blake3

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.ports import FoldedEntry, ReadPart

PART_BYTES: Final = 700


class RegisterCommand(msgspec.Struct, array_like=True, frozen=True):
    """Sets a register; with `seen`, only if it holds that."""

    id: bytes
    key: str
    value: int
    seen: int | None = None


class _Image(msgspec.Struct, array_like=True, frozen=True):
    """All registers after an index."""

    applied: int
    values: dict[str, int]
    done: dict[bytes, tuple[int, bool]]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(RegisterCommand)
_images: Final = msgspec.msgpack.Decoder(_Image)


def encode_command(command: RegisterCommand) -> bytes:
    return _encode(command)


class Registers:
    """The registers of one machine. A fold of them is durable when it is done."""

    def __init__(self) -> None:
        self.applied = 0
        self.values: dict[str, int] = {}
        self.done: dict[bytes, tuple[int, bool]] = {}
        """Of every command: where it was applied, and whether it changed the register."""

    def apply(self, entry: CommittedEntry) -> FoldedEntry:
        command = _decoder.decode(entry.raw)
        first = self.done.get(command.id)
        if first is None:
            changes = command.seen is None or self.values.get(command.key, 0) == command.seen
            if changes:
                self.values[command.key] = command.value
            first = self.done[command.id] = (entry.index, changes)
        return FoldedEntry(first[0], command.id, first[1])

    def fold(self, entries: Sequence[CommittedEntry], upto: int) -> list[FoldedEntry]:
        folded = [self.apply(entry) for entry in entries]
        self.applied = upto
        return folded

    def image(self) -> RegisterImage:
        return RegisterImage(self.applied, _encode(_Image(self.applied, self.values, self.done)))

    @classmethod
    def of(cls, read: ReadPart) -> Self:
        """The registers that a snapshot says."""
        raw = b""
        while part := read(len(raw)):
            raw += part
        image = _images.decode(raw)
        found = cls()
        found.applied, found.values, found.done = image.applied, image.values, image.done
        return found


class RegisterImage:
    """A `GivenSnapshot` of registers."""

    def __init__(self, index: int, raw: bytes) -> None:
        self.index, self._raw = index, raw
        self.size, self.digest = len(raw), blake3(raw).digest()

    def part(self, offset: int) -> bytes:
        return self._raw[offset : offset + PART_BYTES]

    def close(self) -> None:
        self._raw = b""
