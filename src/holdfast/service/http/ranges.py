"""A range of a log as bytes: JSON lines or an Arrow stream, with its bounds in the headers."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.protocol.log_json import entry_json
from holdfast.rules.rows import Columns

_LINES: Final = msgspec.json.Encoder()


class Form(Protocol):
    """How batches become bytes."""

    def begin(self) -> bytes: ...
    def batch(self, columns: Columns) -> bytes: ...
    def end(self) -> bytes: ...


class Lines:
    """NDJSON: a line per entry."""

    def begin(self) -> bytes:
        return b""

    def batch(self, columns: Columns) -> bytes:
        rows = zip(columns.offset, columns.raw, columns.recorded_at, strict=True)
        return _LINES.encode_lines(entry_json(*row) for row in rows)

    def end(self) -> bytes:
        return b""


class RangeBounds(msgspec.Struct, frozen=True):
    """Where a log stands, and which part of it an answer covers."""

    epoch: int
    first: int
    head: int
    start: int
    stop: int

    def headers(self) -> dict[str, str]:
        return {
            "holdfast-epoch": str(self.epoch),
            "holdfast-first": str(self.first),
            "holdfast-head": str(self.head),
            "holdfast-from": str(self.start),
            "holdfast-to": str(self.stop),
            "vary": "accept",
        }


def arrow_form(epoch: int, peer: str) -> Form:
    # Imported at first use: most nodes never serve Arrow.
    from holdfast.service.http.arrow_stream import ArrowStream

    return ArrowStream({"holdfast.epoch": str(epoch), "holdfast.peer": peer})
