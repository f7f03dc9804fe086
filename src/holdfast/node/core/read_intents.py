"""Intents that this process has read and checked already, until it folds them.

A node reads every intent when it folds it, because a liar's voter may have let it through. The node
where an intent is made has read the very same bytes a moment before. It keeps what it read, by the
bytes, so that the fold need not do it again. What is not here is read: whatever is dropped costs
time and nothing else.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from holdfast.rules.bodies import Body
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.limits import READ_INTENTS_BYTES_MAX, READ_INTENTS_MAX
from holdfast.rules.quorum.intents import decode_intent


class ReadIntent(NamedTuple):
    envelope: Envelope
    body: Body


class ReadIntents:
    """By their bytes. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: dict[bytes, ReadIntent] = {}
        self._bytes = 0

    def keep(self, raw: bytes) -> ReadIntent:
        """Reads an intent with all checks that need no state, raising a typed error, and keeps it
        for the fold; if there are too many of them, the oldest ones go.
        """
        envelope = decode(raw)
        read = ReadIntent(envelope, decode_intent(envelope))
        with self._lock:
            self._drop(raw)
            self._read[raw] = read
            self._bytes += len(raw)
            while len(self._read) > READ_INTENTS_MAX or self._bytes > READ_INTENTS_BYTES_MAX:
                self._drop(next(iter(self._read)))
        return read

    def take(self, raw: bytes) -> ReadIntent | None:
        """What was read of these bytes, and is forgotten with that; None if nothing was."""
        with self._lock:
            return self._drop(raw)

    def _drop(self, raw: bytes) -> ReadIntent | None:
        read = self._read.pop(raw, None)
        if read is not None:
            self._bytes -= len(raw)
        return read
