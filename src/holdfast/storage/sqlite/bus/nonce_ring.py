"""The nonces that were seen last, in memory as they lie in the database.

A row of the database holds many nonces. So a nonce costs a few bytes at the end of a row, and the
ring of a million is read in less than a second. The ring follows the database: it is asked within a
transaction, and if the last row is not as long as the ring thinks, a transaction was undone, and
the ring is read again. It never knows more or less than what was committed, and what this
transaction adds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Final

import apsw

from holdfast.rules.bus.replay import check_nonces_kept
from holdfast.rules.bus.signed_envelope import NONCE_BYTES

_ROW_NONCES: Final = 64
"""A row with fewer takes more."""


class NonceRing:
    """Exactly as many nonces as are kept; the oldest goes first."""

    def __init__(self, most: int) -> None:
        self._most = check_nonces_kept(most)
        self._rows: deque[tuple[int, list[bytes]]] = deque()
        self._known: set[bytes] = set()
        self._gone = 0
        """So many of the first row count no more."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, nonce: object) -> bool:
        return nonce in self._known

    @property
    def known(self) -> Container[bytes]:
        """The same nonces, to be asked for many."""
        return self._known

    def follow(self, connection: apsw.Connection) -> None:
        """Reads the ring again if the database does not hold what it knows."""
        last = connection.execute(
            "SELECT number, length(nonces) FROM bus_nonces ORDER BY number DESC LIMIT 1"
        ).get
        ours = (self._rows[-1][0], len(self._rows[-1][1]) * NONCE_BYTES) if self._rows else None
        if last != ours:
            self.read(connection)

    def read(self, connection: apsw.Connection) -> None:
        rows: Iterable[tuple[int, bytes]] = connection.execute(
            "SELECT number, nonces FROM bus_nonces ORDER BY number"
        )
        self._rows = deque((number, _split(nonces)) for number, nonces in rows)
        self._known = {nonce for _, nonces in self._rows for nonce in nonces}
        self._gone = 0
        self._forget(sum(len(nonces) for _, nonces in self._rows) - self._most)

    def add(self, connection: apsw.Connection, nonces: Sequence[bytes]) -> None:
        """Remembers nonces that are not known."""
        if not nonces:
            return
        joined = b"".join(nonces)
        if self._rows and len(self._rows[-1][1]) < _ROW_NONCES:
            number, last = self._rows[-1]
            last.extend(nonces)
            connection.execute(
                "UPDATE bus_nonces SET nonces = ? WHERE number = ?", (b"".join(last), number)
            )
        else:
            number = self._rows[-1][0] + 1 if self._rows else 1
            connection.execute("INSERT INTO bus_nonces VALUES (?, ?)", (number, joined))
            self._rows.append((number, list(nonces)))
        self._known.update(nonces)
        first = self._rows[0][0]
        self._forget(len(self._known) - self._most)
        if self._rows[0][0] != first:
            connection.execute("DELETE FROM bus_nonces WHERE number < ?", (self._rows[0][0],))

    def _forget(self, most: int) -> None:
        """Forgets so many of the oldest."""
        for _ in range(most):
            nonces = self._rows[0][1]
            self._known.discard(nonces[self._gone])
            self._gone += 1
            if self._gone == len(nonces):
                self._rows.popleft()
                self._gone = 0


def _split(nonces: bytes) -> list[bytes]:
    return [nonces[at : at + NONCE_BYTES] for at in range(0, len(nonces), NONCE_BYTES)]
