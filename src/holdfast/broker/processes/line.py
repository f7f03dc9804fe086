"""A line between the parent and one process: words, each behind its length."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from holdfast.broker.processes.words import Word, decode, encode
from holdfast.rules import limits

_LENGTH_BYTES: Final = 4


class ProcessLine:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, end: socket.socket) -> ProcessLine:
        return cls(*await asyncio.open_connection(sock=end))

    def say(self, word: Word) -> None:
        """Says a word; one that is too long, or behind too much that was not heard, is dropped:
        whoever waits for an answer waits no longer than `PROCESS_ASK_MS_MAX`.
        """
        raw = encode(word)
        waiting = self._writer.transport.get_write_buffer_size()
        if waiting + len(raw) <= limits.PROCESS_WORD_BYTES_MAX:
            self._writer.write(len(raw).to_bytes(_LENGTH_BYTES, "big") + raw)

    async def hear(self) -> Word | None:
        """The next word; None when the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            assert length <= limits.PROCESS_WORD_BYTES_MAX, "`say` keeps to it"
            word: Word = decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return word

    def close(self) -> None:
        self._writer.close()
