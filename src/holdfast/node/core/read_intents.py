"""Intents that this process has read and checked already, until it folds them.

A node reads every intent when it folds it, because a liar's voter may have let it through. The node
where an intent is made has read the very same bytes a moment before. It keeps what it read, by the
bytes, so that the fold need not do it again. What is not here is read: whatever is dropped costs
time and nothing else.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from holdfast.rules.envelope import decode
from holdfast.rules.limits import READ_INTENTS_BYTES_MAX, READ_INTENTS_MAX
from holdfast.rules.quorum.intents import decode_intent
from holdfast.rules.quorum.plain_intents import made_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.rules.bodies import Body
    from holdfast.rules.envelope import Envelope
    from holdfast.rules.quorum.plain_intents import PlainPut


class ReadIntent(NamedTuple):
    envelope: Envelope
    body: Body


class ReadIntents:
    """By their bytes. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: dict[bytes, ReadIntent | PlainPut] = {}
        self._bytes = 0

    def keep(self, raw: bytes, made: Envelope) -> None:
        """Asks of an intent that was just encoded as `raw` all that needs no state, raising a typed
        error, and keeps it for the fold; if there are too many of them, the oldest ones go.
        """
        read: ReadIntent | PlainPut | None = made_plain(raw, made)
        if read is None:
            envelope = decode(raw)
            read = ReadIntent(envelope, decode_intent(envelope))
        with self._lock:
            self._drop(raw)
            self._read[raw] = read
            self._bytes += len(raw)
            while len(self._read) > READ_INTENTS_MAX or self._bytes > READ_INTENTS_BYTES_MAX:
                self._drop(next(iter(self._read)))

    def take(self, raws: Sequence[bytes]) -> list[ReadIntent | PlainPut | None]:
        """What was read of these bytes each, and is forgotten with that; None if nothing was."""
        if not self._read:
            return [None] * len(raws)  # as where others make the intents
        with self._lock:
            return [self._drop(raw) for raw in raws]

    def _drop(self, raw: bytes) -> ReadIntent | PlainPut | None:
        read = self._read.pop(raw, None)
        if read is not None:
            self._bytes -= len(raw)
        return read
