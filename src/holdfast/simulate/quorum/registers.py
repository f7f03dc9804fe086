"""What entries mean in a world of voters: registers, set outright or if they hold what was seen.

A client's command is applied once, however often it stands in the log. The state after every index
is kept, so that a read can be judged long after it was served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.ports import FoldedEntry


class RegisterCommand(msgspec.Struct, array_like=True, frozen=True):
    """Sets a register; with `seen`, only if it holds that."""

    id: bytes
    key: str
    value: int
    seen: int | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(RegisterCommand)


def encode_command(command: RegisterCommand) -> bytes:
    return _encode(command)


class Registers:
    """The registers of one machine."""

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
