"""What a member gets to see: one statement per page, so that all of a page is of one moment.

A page looks at `SCAN_ROWS_MAX` seqs at most. Envelopes stay where they are until it is known that
they fit the page: their lengths alone decide that.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import FeedPage, FeedRow
from holdfast.rules.limits import FEED_BYTES, SCAN_ROWS_MAX, SEQ_MAX
from holdfast.storage.broker.postgres.base import PostgresPart
from holdfast.storage.broker.refusals import check_held, check_reader, no_mesh

_PAGE: Final = """
WITH here AS (
    SELECT m.number, m.epoch, m.seq AS last, m.first, b.key, b.hex,
        'read' = ANY (b.grants) AS reads, coalesce(o.last, 0) AS commits
    FROM mesh m LEFT JOIN commit_order o ON o.mesh = m.number LEFT JOIN member b
        ON b.mesh = m.number AND b.key = $2 AND b.removed_at IS NULL
    WHERE m.slug = $1
), page AS (
    SELECT seq, kind, broker_id, raw, row_number() OVER by_seq AS place,
        sum(octet_length(raw)) OVER by_seq AS bytes
    FROM (
        SELECT p.seq, p.kind, p.broker_id, p.raw
        FROM here, message p
        WHERE p.mesh = here.number AND p.seq > $3 AND p.seq <= $3 + $5 AND {which}
        ORDER BY p.seq LIMIT $4
    ) found
    WINDOW by_seq AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)
)
SELECT here.epoch, here.last, here.first, here.key, here.reads, here.commits,
    page.seq, page.kind, page.broker_id, page.raw,
    (SELECT count(*) FROM page) AS found
FROM here LEFT JOIN page ON page.bytes <= $6 OR page.place = 1
ORDER BY page.seq
"""
_TO_ME: Final = """(
    (p.kind = 'dm' AND p.ref = here.hex)
    OR (p.kind = 'topic' AND EXISTS (
        SELECT FROM subscription s
        WHERE s.mesh = here.number AND s.key = here.key AND s.topic = p.ref AND s.since < p.seq
    ))
)"""
_FEED: Final = _PAGE.format(
    which=f"((p.kind = 'change' AND ($7 OR p.sender <> here.key)) OR {_TO_ME})"
)
_EXPRESS: Final = _PAGE.format(which=f"p.rank = 0 AND p.kind IN ('topic', 'dm') AND {_TO_ME}")


class PostgresFeed(PostgresPart):
    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        # Further back there is nothing either way, and the server need not count beyond.
        start = min(after, SEQ_MAX)
        arguments = (mesh, key, start, limit, SCAN_ROWS_MAX, bytes_max, own)
        rows = await self._connections.fetch(_FEED, *arguments)
        _check(mesh, rows)
        check_held(mesh, after, rows[0]["first"])
        return _page(rows, after, limit)

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        arguments = (mesh, key, after, limit, SCAN_ROWS_MAX, FEED_BYTES)
        rows = await self._connections.fetch(_EXPRESS, *arguments)
        _check(mesh, rows)
        return _page(rows, after, limit)


def _check(mesh: str, rows: list[Any]) -> None:
    if not rows:
        raise no_mesh(mesh)
    check_reader(mesh, member=rows[0]["key"] is not None, reads=bool(rows[0]["reads"]))


def _page(rows: list[Any], after: int, limit: int) -> FeedPage:
    shown = [
        FeedRow(row["seq"], row["kind"], row["broker_id"], row["raw"])
        for row in rows
        if row["seq"] is not None
    ]
    last, found = rows[0]["last"], rows[0]["found"]
    # Whatever stopped the page, all up to `to` was looked at.
    if found == limit or len(shown) < found:
        to = shown[-1].seq if shown else after
    else:
        to = max(after, min(after + SCAN_ROWS_MAX, last))
    epoch, commits = rows[0]["epoch"], rows[0]["commits"]
    return FeedPage(epoch=epoch, after=after, to=to, rows=shown, last=last, commits=commits)
