"""Cuts the bytes of a link of the bus into frames.

Bytes come in pieces that have nothing to do with frames: one piece has many small frames, a large
frame comes in many pieces. Pieces of a frame are joined once, when the last one is there. The
length is checked before anything is kept, so that a peer can make nobody hold more than one frame
and what came with its end.
"""

from __future__ import annotations

from typing import Final

from holdfast.protocol.bus_frames import FRAME_HEAD
from holdfast.rules.errors import BadAnswer, OverLimit

_LENGTH_BYTES: Final = 4
_HEAD_BYTES: Final = FRAME_HEAD.size
_WORDS_BYTES: Final = _HEAD_BYTES - _LENGTH_BYTES
_unpack: Final = FRAME_HEAD.unpack_from


RawFrame = tuple[int, int, bytes]
"""Kind, stream and body of a frame that nobody has looked at. A plain tuple: there are many."""


class FrameReader:
    """The bytes that came of one connection and have not been taken yet."""

    __slots__ = ("_at", "_late", "_late_bytes", "_raw", "body_bytes_max")

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        """The longest body that a frame may have from now on."""
        self._raw, self._at = b"", 0
        self._late: list[bytes] = []
        """Pieces that came after `_raw`, while a frame was not whole."""
        self._late_bytes = 0

    @property
    def held(self) -> int:
        """Bytes that are here and not taken."""
        return len(self._raw) - self._at + self._late_bytes

    def feed(self, data: bytes) -> None:
        if self._at == len(self._raw) and not self._late:
            self._raw, self._at = data, 0
        else:
            self._late.append(data)
            self._late_bytes += len(data)

    def drop(self) -> None:
        """Forgets what was not taken: nothing follows."""
        self._raw, self._at = b"", 0
        self._late.clear()
        self._late_bytes = 0

    def next(self) -> RawFrame | None:
        """The next frame, if it is whole. Raises OverLimit or BadAnswer if what comes cannot be
        one; then nothing after it can be read.
        """
        while True:
            raw, at = self._raw, self._at
            left = len(raw) - at
            needed = _HEAD_BYTES
            if left >= needed:
                length, kind, stream = _unpack(raw, at)
                if not _WORDS_BYTES <= length <= self.body_bytes_max + _WORDS_BYTES:
                    raise _impossible(length, self.body_bytes_max)
                needed = _LENGTH_BYTES + length
                if left >= needed:
                    end = at + needed
                    if left > needed:
                        self._at = end
                    else:  # it may be megabytes, and nothing may follow for long
                        self._raw, self._at = b"", 0
                    return kind, stream, raw[at + _HEAD_BYTES : end]
            if left + self._late_bytes < needed:
                return None
            self._raw, self._at = b"".join((raw[at:], *self._late)), 0
            self._late.clear()
            self._late_bytes = 0


def _impossible(length: int, most: int) -> Exception:
    if length < _WORDS_BYTES:
        return BadAnswer(f"a frame of {length} bytes has no room for its kind")
    return OverLimit(f"a frame says that it has {length} bytes; the most is {most} for its body")
