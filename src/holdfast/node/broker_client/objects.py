"""The objects of one mesh at its broker, as `pull_objects` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.node.broker_client.client import BrokerClient


class BrokerObjects:
    """The objects of one mesh at its broker, read in order: an object is one stream, which goes on
    as long as it is asked for piece after piece.
    """

    def __init__(self, calls: BrokerClient, mesh: str) -> None:
        self._calls, self._mesh = calls, mesh
        self._open = ExitStack()
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""
        self._at: tuple[str, int] | None = None
        self._size: int | None = None

    def object_size(self, sha: str) -> int | None:
        size = self._size = self._calls.object_size(self._mesh, sha)
        return size

    def object(self, sha: str, start: int, size: int) -> bytes:
        """`size` bytes from `start` on. UnknownObject if there is no such object. The caller checks
        the hash of the whole.
        """
        try:
            if self._at != (sha, start):
                self._begin(sha)
                self._read(start)
            piece = self._read(size)
        except BaseException:
            self._end()
            raise
        self._at = (sha, start + len(piece))
        if len(piece) < size or self._at[1] == self._size:
            self._end()
        return piece

    def _begin(self, sha: str) -> None:
        self._end()
        stream = self._calls.streaming(self._calls.object_path(self._mesh, sha))
        self._pieces = self._open.enter_context(stream)

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece[:size])
            self._rest = piece[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def _end(self) -> None:
        self._open.close()
        self._pieces, self._rest, self._at = iter(()), b"", None
