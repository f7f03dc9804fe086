"""How far a long command has got, on stderr, for people at a terminal only."""

from __future__ import annotations

import sys
from time import monotonic

from holdfast.apps.cli.session import CommandSession

_EVERY_S = 0.1


class Progress:
    """One line that is written over; it disappears when the work ends."""

    def __init__(self, session: CommandSession, what: str) -> None:
        self._what = what
        self._live = sys.stderr.isatty() and not session.as_json
        self._next = 0.0
        self._shown = False

    def to(self, done: int, total: int | None = None) -> None:
        if not self._live or monotonic() < self._next:
            return
        self._next = monotonic() + _EVERY_S
        self._shown = True
        of = "" if total is None else f" of {total}"
        self._write(f"\r\x1b[K{self._what} {done}{of}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.buffer.write(text.encode())
        sys.stderr.buffer.flush()
