"""Whether the tables still belong together; `storage.broker.sqlite.orphans` tells the idea."""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import Orphan
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.ids import ID_BYTES, id_time_ms
from holdfast.rules.limits import DAY_MS
from holdfast.storage.broker.accepted import is_message, mode_of
from holdfast.storage.broker.postgres.base import PostgresPart

_ORPHANS: Final = """
(
    SELECT d.mesh, d.id, d.seq, 'dedupe row without its message' AS what FROM dedupe d
    WHERE d.history AND NOT EXISTS (
        SELECT FROM message p WHERE p.mesh = d.mesh AND p.seq = d.seq AND p.id = d.id
    ) LIMIT $1
) UNION ALL (
    SELECT p.mesh, p.id, p.seq, 'message without its dedupe row' FROM message p
    WHERE NOT EXISTS (
        SELECT FROM dedupe d
        WHERE d.mesh = p.mesh AND d.id = p.id AND d.seq = p.seq AND d.history
    ) LIMIT $1
) LIMIT $1
"""
_LIST: Final = (
    f"SELECT coalesce(m.slug, '') AS mesh, o.id, o.seq, o.what FROM ({_ORPHANS}) o "
    "LEFT JOIN mesh m ON m.number = o.mesh ORDER BY 1, o.seq, o.what"
)
_REBUILD: Final = """
INSERT INTO dedupe
    (mesh, id, epoch, seq, first_seen_at, expires_at, history, fingerprint, broker_id, kind, ref)
SELECT mesh, id, epoch, seq, $4, $5, TRUE, $3, broker_id, kind, ref
FROM message WHERE mesh = $1 AND seq = $2
ON CONFLICT (mesh, id) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq,
    first_seen_at = excluded.first_seen_at, expires_at = excluded.expires_at, history = TRUE,
    fingerprint = excluded.fingerprint, broker_id = excluded.broker_id, kind = excluded.kind,
    ref = excluded.ref
"""
_INCONSISTENT: Final = {
    "a mesh holds a seq that it has not given out": (
        "SELECT slug FROM mesh m WHERE seq < "
        "(SELECT coalesce(max(p.seq), 0) FROM message p WHERE p.mesh = m.number)"
    ),
    "a queue lists what is no message": (
        "SELECT m.slug || '/' || q.ref || '/' || q.seq FROM queue q "
        "JOIN mesh m ON m.number = q.mesh "
        "LEFT JOIN message p ON p.mesh = q.mesh AND p.seq = q.seq "
        "WHERE p.kind IS DISTINCT FROM 'queue'"
    ),
    "a mesh is in an epoch that never began": (
        "SELECT slug FROM mesh m WHERE NOT EXISTS "
        "(SELECT FROM epoch e WHERE e.mesh = m.number AND e.epoch = m.epoch)"
    ),
    "an order of commits has holes": (
        "SELECT slug FROM commit_order AS o JOIN mesh ON mesh.number = o.mesh "
        "WHERE o.last - o.first + 1 <> (SELECT count(*) FROM commit_line AS l "
        "WHERE l.mesh = o.mesh AND l.number BETWEEN o.first AND o.last)"
    ),
    "an object says another size than its pieces": (
        "SELECT sha256 FROM object o WHERE size <> (SELECT coalesce(sum(length(piece)), 0) "
        "FROM object_piece p WHERE p.mesh = o.mesh AND p.sha256 = o.sha256)"
    ),
}


class PostgresOrphans(PostgresPart):
    async def orphans(self, limit: int) -> list[Orphan]:
        rows = await self._connections.read_long(_LIST, limit)
        return [Orphan(**row) for row in rows]

    async def repair_orphans(self, limit: int) -> list[Orphan]:
        found = await self.orphans(limit)

        async def work(con: Any) -> list[Orphan]:
            # In one order for all, as in accept, so that nobody waits in a circle.
            slugs = sorted({one.mesh for one in found})
            await con.execute(
                "SELECT FROM mesh WHERE slug = ANY ($1) ORDER BY slug FOR NO KEY UPDATE", slugs
            )
            noted = dict(
                await con.fetch("SELECT name, value FROM meta WHERE name IN ('mode', 'days')")
            )
            mode, days = mode_of(noted.get("mode"), noted.get("days"))
            keep = None if mode == "permanent" else days * DAY_MS
            return [one for one in found if await _mend(con, one, keep)]

        return await self._connections.transact(work) if found else []

    async def inconsistencies(self) -> list[str]:
        problems = []
        for what, statement in _INCONSISTENT.items():
            rows = await self._connections.read_long(f"{statement} LIMIT 1")
            problems += [f"{what}: {row[0]}" for row in rows]
        return problems


async def _mend(con: Any, one: Orphan, keep_ms: int | None) -> bool:
    number = await con.fetchval("SELECT number FROM mesh WHERE slug = $1", one.mesh)
    if number is None:
        return False
    if not is_message(one):
        # Looked at again: another broker may have been faster.
        await con.execute(
            "DELETE FROM dedupe d WHERE mesh = $1 AND id = $2 AND seq = $3 AND history "
            "AND NOT EXISTS (SELECT FROM message p WHERE p.mesh = $1 AND p.seq = $3 AND p.id = $2)",
            *(number, one.id, one.seq),
        )
        return True
    row = await con.fetchrow(
        "SELECT raw, broker_id FROM message WHERE mesh = $1 AND seq = $2 AND id = $3",
        *(number, one.seq, one.id),
    )
    other = await con.fetchval(
        "SELECT 1 FROM dedupe d JOIN message p USING (mesh, seq, id) "
        "WHERE d.mesh = $1 AND d.id = $2 AND d.seq <> $3",
        *(number, one.id, one.seq),
    )
    if row is None or other is not None or len(row["broker_id"]) != ID_BYTES:
        return False
    try:
        fingerprint = decode_trusted(row["raw"]).fingerprint
    except EntryDamaged:
        return False
    seen_at = id_time_ms(row["broker_id"])
    until = None if keep_ms is None else seen_at + keep_ms
    await con.execute(_REBUILD, number, one.seq, fingerprint, seen_at, until)
    return True
