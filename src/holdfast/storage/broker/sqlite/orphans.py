"""Whether the tables still belong together: an id and its message, a queue and its messages.

There should never be anything to find. What is found was made by damage, by a restore of single
tables, or by a mistake of ours. `repair_orphans` builds dedupe rows again from the messages, which
hold all that has to be known of them.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from holdfast.rules.broker_rows import Orphan
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.ids import ID_BYTES, id_time_ms
from holdfast.rules.limits import DAY_MS
from holdfast.storage.broker.accepted import is_message
from holdfast.storage.broker.sqlite.database import SEQ_BITS, SEQ_MASK, BrokerDatabase
from holdfast.storage.sqlite.columns import RowColumns

_ORPHAN: Final = RowColumns("dedupe", Orphan)
_ORPHANS: Final = (
    "SELECT coalesce(slug, ''), d.id, d.seq, 'dedupe row without its message' "
    "FROM dedupe AS d LEFT JOIN mesh ON mesh.number = d.mesh "
    f"LEFT JOIN message AS m ON m.place = (d.mesh << {SEQ_BITS}) + d.seq AND m.id = d.id "
    f"LEFT JOIN gone AS g ON g.place = (d.mesh << {SEQ_BITS}) + d.seq AND g.id = d.id "
    "WHERE m.place IS NULL AND g.place IS NULL "
    "UNION ALL "
    "SELECT coalesce(slug, ''), m.id, "
    f"m.place & {SEQ_MASK}, 'message without its dedupe row' "
    f"FROM message AS m LEFT JOIN mesh ON mesh.number = m.place >> {SEQ_BITS} "
    f"LEFT JOIN dedupe AS d ON d.mesh = m.place >> {SEQ_BITS} AND d.id = m.id "
    f"LEFT JOIN gone AS g ON g.place = m.place "
    f"WHERE d.seq IS NULL OR d.seq <> m.place & {SEQ_MASK} OR g.place IS NOT NULL "
    "LIMIT ?"
)
_REBUILD: Final = (
    "UPDATE message SET fingerprint = ?2, first_seen_at = ?3, known_until = ?4, "
    "epoch = coalesce((SELECT max(e.epoch) FROM epoch AS e "
    f"WHERE e.mesh = ?1 >> {SEQ_BITS} AND e.base < ?1 & {SEQ_MASK}), 1) WHERE place = ?1"
)
_NAME: Final = (
    f"INSERT INTO dedupe (mesh, id, seq) SELECT place >> {SEQ_BITS}, id, place & {SEQ_MASK} "
    "FROM message WHERE place = ? ON CONFLICT DO UPDATE SET seq = excluded.seq"
)
_MESSAGES: Final = (
    "(SELECT count(*) FROM message "
    f"WHERE place BETWEEN number << {SEQ_BITS} AND (number << {SEQ_BITS}) + {SEQ_MASK})"
)
_INCONSISTENT: Final = {
    "a mesh holds a seq that it has not given out": (
        "SELECT slug FROM mesh WHERE seq < coalesce((SELECT max(place) FROM message "
        f"WHERE place BETWEEN number << {SEQ_BITS} AND (number << {SEQ_BITS}) + {SEQ_MASK}), 0) "
        f"& {SEQ_MASK}"
    ),
    "a queue lists what is no message": (
        f"SELECT slug || '/' || q.queue || '/' || (q.place & {SEQ_MASK}) FROM queued AS q "
        "JOIN mesh ON mesh.number = q.mesh LEFT JOIN message AS m ON m.place = q.place "
        "WHERE m.place IS NULL OR m.kind <> 3"
    ),
    "a mesh miscounts its messages": (f"SELECT slug FROM mesh WHERE messages <> {_MESSAGES}"),
    "a mesh miscounts its ids": (
        "SELECT slug FROM mesh WHERE dedupe <> "
        "(SELECT count(*) FROM dedupe WHERE dedupe.mesh = mesh.number)"
    ),
    "what was removed is remembered under no id": (
        "SELECT slug || '/' || "
        f"(g.place & {SEQ_MASK}) FROM gone AS g JOIN mesh ON mesh.number = g.place >> {SEQ_BITS} "
        f"LEFT JOIN dedupe AS d ON d.mesh = g.place >> {SEQ_BITS} AND d.id = g.id "
        f"WHERE d.seq IS NULL OR d.seq <> g.place & {SEQ_MASK}"
    ),
    "a mesh is in an epoch that never began": (
        "SELECT slug FROM mesh WHERE NOT EXISTS "
        "(SELECT 1 FROM epoch WHERE epoch.mesh = mesh.number AND epoch.epoch = mesh.epoch)"
    ),
    "an order of commits has holes": (
        "SELECT slug FROM commit_order AS o JOIN mesh ON mesh.number = o.mesh "
        "WHERE o.last - o.first + 1 <> (SELECT count(*) FROM commit_line AS l "
        "WHERE l.mesh = o.mesh AND l.number BETWEEN o.first AND o.last)"
    ),
    "an object says another size than its pieces": (
        "SELECT sha256 FROM object AS o WHERE size <> (SELECT coalesce(sum(length(piece)), 0) "
        "FROM object_piece AS p WHERE p.mesh = o.mesh AND p.sha256 = o.sha256)"
    ),
}


class SqliteOrphans(BrokerDatabase):
    async def orphans(self, limit: int) -> list[Orphan]:
        with self.reading() as con:
            return _ORPHAN.rows(con.execute(_ORPHANS, (limit,)))

    async def repair_orphans(self, limit: int) -> list[Orphan]:
        with self.writing() as con:
            found = _ORPHAN.rows(con.execute(_ORPHANS, (limit,)))
            mended = [one for one in found if self._mend(con, one)]
            if mended:
                con.execute(
                    "UPDATE mesh SET "
                    "dedupe = (SELECT count(*) FROM dedupe WHERE dedupe.mesh = mesh.number), "
                    f"messages = {_MESSAGES}"
                )
            return mended

    def _mend(self, con: apsw.Connection, one: Orphan) -> bool:
        number = self.find_number(one.mesh)
        if number is None:
            return False
        place = (number << SEQ_BITS) + one.seq
        if not is_message(one):
            con.execute(
                "DELETE FROM dedupe WHERE mesh = ? AND id = ? AND seq = ?",
                (number, one.id, one.seq),
            )
            return True
        row: Any = con.execute("SELECT raw, broker_id FROM message WHERE place = ?", (place,)).get
        other = con.execute(
            "SELECT 1 FROM dedupe AS d JOIN message AS m ON m.id = d.id "
            f"AND m.place = (d.mesh << {SEQ_BITS}) + d.seq "
            "WHERE d.mesh = ? AND d.id = ? AND d.seq <> ?",
            (number, one.id, one.seq),
        ).get
        if row is None or other is not None or len(row[1]) != ID_BYTES:
            return False
        try:
            fingerprint = decode_trusted(row[0]).fingerprint
        except EntryDamaged:
            return False
        mode, days = self.noted_mode()
        seen_at = id_time_ms(row[1])
        until = None if mode == "permanent" else seen_at + days * DAY_MS
        con.execute(_REBUILD, (place, fingerprint, seen_at, until))
        # Also what says that this id's message is gone, wherever it was: it is here.
        con.execute(
            f"DELETE FROM gone WHERE place = ?1 OR place = (SELECT (mesh << {SEQ_BITS}) + seq "
            "FROM dedupe WHERE mesh = ?2 AND id = ?3)",
            (place, number, one.id),
        )
        con.execute(_NAME, (place,))
        return True

    async def inconsistencies(self) -> list[str]:
        with self.reading() as con:
            problems = [str(line) for (line,) in con.execute("PRAGMA integrity_check(10)")]
            problems = [] if problems == ["ok"] else problems
            for what, statement in _INCONSISTENT.items():
                example = con.execute(f"{statement} LIMIT 1").get
                if example is not None:
                    problems.append(f"{what}: {example}")
        return problems
