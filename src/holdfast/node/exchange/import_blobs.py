"""The content of blobs in an import: parts in lines that become one stream."""

from __future__ import annotations

import io
from typing import Any

from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.export_lines import BlobLine, NumberedLines, decode_line
from holdfast.rules.errors import BadValue


def check_sha(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise BadValue(f"{text!r} is not a SHA-256")
    return text


def put_blob(engine: NodeEngine, number: int, first: BlobLine, lines: NumberedLines) -> None:
    check_sha(first.sha256)
    put = engine.blobs.put(io.BufferedReader(_Parts(first, lines)))
    if put.sha256 != first.sha256:
        # No row names this content; a sweep removes it.
        raise BadValue(f"the content from line {number} on does not hash to {first.sha256}")


class _Parts(io.RawIOBase):
    """The content of a blob, as its lines hold it."""

    def __init__(self, first: BlobLine, lines: NumberedLines) -> None:
        self._line, self._lines = first, lines
        self._rest = memoryview(first.data)
        if first.part != 0:
            raise BadValue(f"the content of {first.sha256} begins with part {first.part}")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._rest and not self._line.last:
            self._next()
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _next(self) -> None:
        before = self._line
        number, raw = next(self._lines, (0, b""))
        line = decode_line(raw) if raw else None
        follows = isinstance(line, BlobLine) and line.sha256 == before.sha256
        if not isinstance(line, BlobLine) or not follows or line.part != before.part + 1:
            if raw:
                self._lines.unread(number, raw)
            raise BadValue(f"part {before.part + 1} of {before.sha256} is not in line {number}")
        self._line, self._rest = line, memoryview(line.data)
