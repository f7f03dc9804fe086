"""What a member gets to see, page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import apsw

from holdfast.rules.broker_rows import FeedPage, FeedRow, LogRow
from holdfast.rules.limits import BROKER_SCAN_ROWS, FEED_BYTES
from holdfast.storage.broker.refusals import check_held, check_reader, no_mesh
from holdfast.storage.broker.sqlite.accept import KINDS
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase

R = TypeVar("R", FeedRow, LogRow)

_ADMITTED: Final = (
    "SELECT number, epoch, seq, mesh.first, grants, coalesce(o.last, 0) FROM mesh "
    "LEFT JOIN member ON member.mesh = number AND key = ? AND removed_at IS NULL "
    "LEFT JOIN commit_order AS o ON o.mesh = number WHERE slug = ?"
)
_SUBSCRIBED: Final = (
    "kind = 1 AND EXISTS (SELECT 1 FROM subscription AS s WHERE s.mesh = :mesh AND s.key = :key "
    "AND s.topic = message.ref AND s.since < place - :base)"
)
_SEEN: Final = f"kind = 0 AND (:own OR sender <> :key) OR kind = 2 AND ref = :hex OR {_SUBSCRIBED}"
_URGENT: Final = f"rank = 0 AND kind IN (1, 2) AND (kind = 2 AND ref = :hex OR {_SUBSCRIBED})"


class SqliteFeed(BrokerDatabase):
    """Pages of what was accepted, each for one member."""

    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        with self.reading():
            number, epoch, seq, first, commits = self._admitted(mesh, key)
            check_held(mesh, after, first)
            # A page covers what was looked at, also where the member may see nothing of it.
            reach = min(seq, after + BROKER_SCAN_ROWS)
            values = {"own": own, **_who(number, key)}
            rows, to = self._page(_SEEN, values, (after, reach), limit, bytes_max)
        to = max(to, after)
        return FeedPage(epoch=epoch, after=after, to=to, rows=rows, last=seq, commits=commits)

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        with self.reading():
            number, epoch, seq, *_ = self._admitted(mesh, key)
            rows, to = self._page(_URGENT, _who(number, key), (after, seq), limit, FEED_BYTES)
        return FeedPage(epoch=epoch, after=after, to=max(to, after), rows=rows, last=seq)

    def _admitted(self, mesh: str, key: bytes) -> tuple[int, int, int, int, int]:
        """Number, epoch, last and first seq of the mesh, and its last commit, for one who may read
        it.
        """
        row = self.connection.execute(_ADMITTED, (key, mesh)).get
        if row is None:
            raise no_mesh(mesh)
        number, epoch, seq, first, grants, commits = row
        check_reader(mesh, member=grants is not None, reads="read" in (grants or "").split())
        return number, epoch, seq, first, commits

    def _page(
        self,
        seen: str,
        values: dict[str, Any],
        span: tuple[int, int],
        limit: int,
        bytes_max: int,
    ) -> tuple[list[FeedRow], int]:
        """The rows, and up to where there are no others."""
        base = values["base"]
        after, reach = span
        if after >= reach:
            return [], reach
        found = self.connection.execute(
            "SELECT place, kind, broker_id, raw FROM message "
            f"WHERE place > :after AND place <= :reach AND ({seen}) ORDER BY place",
            {**values, "after": base + after, "reach": base + reach},
        )
        rows, cut_at = cut_page(found, base, limit, bytes_max, _feed_row)
        return rows, reach if cut_at is None else cut_at


def _feed_row(seq: int, kind: int, broker_id: bytes, raw: bytes) -> FeedRow:
    return FeedRow(seq, KINDS[kind], broker_id, raw)


def cut_page(
    found: apsw.Cursor,
    base: int,
    limit: int,
    bytes_max: int,
    make: Callable[[int, Any, bytes, bytes], R],
) -> tuple[list[R], int | None]:
    """The rows of a query (place, another column, broker id, envelope) that fit a page, and the seq
    of the last of them if more would have come. One row always fits.
    """
    rows: list[R] = []
    cut_at, size = None, 0
    for place, what, broker_id, raw in found:
        size += len(raw)
        if rows and (size > bytes_max or len(rows) >= limit):
            cut_at = rows[-1].seq
            break
        rows.append(make(place - base, what, broker_id, raw))
    found.close(True)
    return rows, cut_at


def _who(number: int, key: bytes) -> dict[str, Any]:
    return {"mesh": number, "base": number << SEQ_BITS, "key": key, "hex": key.hex()}
