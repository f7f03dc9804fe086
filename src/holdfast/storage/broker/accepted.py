"""What both stores of a broker keep of an accepted envelope, and how they remember ids."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, Mode, Orphan

_DEFAULT_MODE: Final[tuple[Mode, int]] = ("retention_scoped", 30)


class Known(msgspec.Struct, frozen=True, gc=False):
    """A dedupe row: the envelope that was accepted under an id."""

    fingerprint: bytes
    epoch: int
    seq: int
    broker_id: bytes
    first_seen_at: int
    history: bool
    """The envelope itself is still held."""

    def answer(self, fingerprint: bytes, epoch: int) -> AcceptResult:
        """For an envelope that comes under the same id, in a mesh that counts in `epoch` now."""
        same = fingerprint == self.fingerprint
        return AcceptResult(
            verdict=AcceptVerdict.DUPLICATE if same else AcceptVerdict.REUSED,
            epoch=epoch,
            message_epoch=self.epoch,
            seq=self.seq,
            broker_id=self.broker_id,
            first_seen_at=self.first_seen_at,
            history_available=self.history,
            fingerprint=b"" if same else self.fingerprint,
        )


def is_message(orphan: Orphan) -> bool:
    """Whether the orphan is a message; else it is a dedupe row."""
    return orphan.what.startswith("message")


def mode_of(mode: str | None, days: str | None) -> tuple[Mode, int]:
    """How ids are remembered, as it was noted; the default where nothing was."""
    if mode is None or days is None:
        return _DEFAULT_MODE
    return ("permanent" if mode == "permanent" else "retention_scoped"), int(days)
