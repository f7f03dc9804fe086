"""Forgetting in time.

Every sweep is one short transaction. What goes of the messages goes by their time; what goes of the
changes goes from the oldest on, and only as far as a snapshot holds them. What has to be remembered
of it moves to `gone`, and ends there in its time: no id of what is still held is ever forgotten.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import BrokerSwept, Mode
from holdfast.rules.errors import DiskFull
from holdfast.rules.limits import (
    BROKER_DEDUPE_GRACE_MS,
    BROKER_UPLOAD_MS_MAX,
    CONSUMER_KEEP_MS_MAX,
    DAY_MS,
    SWEEP_PIECES,
    SWEEP_ROWS,
)
from holdfast.storage.broker.sqlite.commits import SqliteCommits
from holdfast.storage.broker.sqlite.consumers import awaited_behind, note_lost
from holdfast.storage.broker.sqlite.database import SEQ_BITS, SEQ_MASK
from holdfast.storage.broker.sqlite.object_gc import SqliteObjectGc
from holdfast.storage.broker.sqlite.objects import SqliteSnapshots

_NOT_AWAITED: Final = (
    f"(expires_at <= ? OR place & {SEQ_MASK} <= {awaited_behind(f'place >> {SEQ_BITS}')})"
)
_OLD_MESSAGES: Final = (
    "SELECT place FROM message WHERE kind IN (1, 2) AND expires_at <= ? "
    f"AND {_NOT_AWAITED} ORDER BY expires_at LIMIT ?"
)
_OLD_QUEUED: Final = (
    f"SELECT place, expires_at, {_NOT_AWAITED} AND NOT EXISTS "
    "(SELECT 1 FROM queued AS q WHERE q.place = message.place AND q.state < 2) "
    "FROM message INDEXED BY message_queued_ends "
    "WHERE kind = 3 AND (expires_at, place) > (?, ?) AND expires_at <= ? "
    "ORDER BY expires_at, place LIMIT ?"
)
_CUT: Final = (
    "UPDATE queued AS q SET until = ?1 + d.visibility_ms FROM destination AS d "
    "WHERE d.mesh = q.mesh AND d.kind = 'queue' AND d.ref = q.queue "
    "AND q.state = 1 AND q.until > ?1 + d.visibility_ms"
)
_AWAITED: Final = f"SELECT {awaited_behind('?')}"
_COVERED: Final = (
    "SELECT number, first, max(snapshot.seq) "
    # From the snapshots on: a broker has few of them, and may have many meshes.
    "FROM snapshot CROSS JOIN mesh ON snapshot.mesh = mesh.number "
    "WHERE ready GROUP BY number HAVING max(snapshot.seq) >= first"
)
_KEPT: Final = (
    "INSERT INTO gone (place, kind, epoch, ref, id, broker_id, fingerprint, first_seen_at, "
    "known_until) SELECT place, kind, m.epoch, ref, m.id, broker_id, fingerprint, first_seen_at, "
    # A message to which no id leads is damage, and leaves nothing behind.
    f"known_until FROM message AS m JOIN dedupe AS d ON d.mesh = m.place >> {SEQ_BITS} "
    f"AND d.id = m.id AND d.seq = m.place & {SEQ_MASK} WHERE m.place = ?"
)
_OF_REMOVED: Final = (
    ("dedupe", "id", SWEEP_ROWS),
    ("object_piece", "sha256, number", SWEEP_PIECES),
    ("snapshot_part", "id, number", SWEEP_PIECES),
    ("commit_line", "number", SWEEP_ROWS),
)
"""What is left of a removed mesh beside its messages, and how much of it goes at once."""
_COUNTS: Final = (
    "SELECT (SELECT count(*) FROM mesh), (SELECT count(*) FROM member WHERE removed_at IS NULL), "
    "(SELECT coalesce(sum(messages), 0) FROM mesh), (SELECT coalesce(sum(dedupe), 0) FROM mesh), "
    "(SELECT count(*) FROM queued WHERE state = 0), (SELECT count(*) FROM queued WHERE state = 1), "
    "(SELECT count(*) FROM queued WHERE state = 2), "
    "(SELECT count(*) FROM object WHERE whole), (SELECT count(*) FROM snapshot WHERE ready)"
)
_COUNTED: Final = (
    "meshes",
    "members",
    "messages",
    "dedupe",
    "ready",
    "taken",
    "dead",
    "objects",
    "snapshots",
)


class _Undone(Exception):
    """Ends a transaction that only wanted to know what it would do."""

    def __init__(self, swept: BrokerSwept) -> None:
        super().__init__()
        self.swept = swept


class SqliteSweep(SqliteObjectGc, SqliteSnapshots, SqliteCommits):
    _looked_at = (0, 0)
    """How far the sweep has looked through the messages of queues: time and place."""

    async def server_ms(self) -> int | None:
        return None

    async def cut_leases(self, now_ms: int) -> int:
        with self.writing() as con:
            con.execute(_CUT, (now_ms,))
            return con.changes()

    async def sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        try:
            swept = self._sweep(now_ms, most, uncounted_ms)
        except DiskFull:
            swept = self._sweep(now_ms, most, uncounted_ms)  # the ballast has made room for it
        if self.room.full:
            self.empty_wal()
        return swept

    async def foresee_sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        looked_at = self._looked_at
        try:
            self._sweep(now_ms, most, uncounted_ms, undo=True)
        except _Undone as foreseen:
            return foreseen.swept
        finally:
            self._looked_at = looked_at
        raise AssertionError("it was not undone")

    def _sweep(
        self, now_ms: int, most: int, uncounted_ms: int, *, undo: bool = False
    ) -> BrokerSwept:
        with self.writing() as con:
            old_ms = now_ms - uncounted_ms
            late = old_ms - CONSUMER_KEEP_MS_MAX
            gone = [place for (place,) in con.execute(_OLD_MESSAGES, (old_ms, late, most))]
            gone += self._old_queued(old_ms, late, most)
            gone += self._covered_changes(old_ms, late, most)
            self._remove_messages(gone)
            note_lost(con, gone)
            released, died = self._end_leases(now_ms, most)
            swept = BrokerSwept(
                messages=len(gone),
                dedupe=self._forget_ids(old_ms, most),
                released=released,
                died=died,
                invites=self._end_invites(now_ms, most),
                snapshots=self._give_up_uploads(now_ms, most, uncounted_ms),
                removed=self._clear_removed(most),
                commits=self.sweep_commits(old_ms, most),
            )
            if undo:
                raise _Undone(swept)
        return swept

    def _old_queued(self, now_ms: int, late: int, most: int) -> list[int]:
        """Messages of queues whose time is over, without those that still wait for a taker. There
        may be many of these: each sweep looks at some, and the next one goes on behind them.
        """
        found: list[Any] = self.connection.execute(
            _OLD_QUEUED, (late, *self._looked_at, now_ms, most)
        ).fetchall()
        self._looked_at = (found[-1][1], found[-1][0]) if len(found) == most else (0, 0)
        return [place for place, _, may_go in found if may_go]

    def _covered_changes(self, now_ms: int, late: int, most: int) -> list[int]:
        """The oldest changes of each mesh, up to the last that is over, or the first that is
        awaited. What expired by `late` is kept for nobody. One that was stored by a clock that was
        ahead goes with those after it.
        """
        con = self.connection
        gone: list[int] = []
        for number, first, covered in list(con.execute(_COVERED)):
            base = number << SEQ_BITS
            awaited = base + con.execute(_AWAITED, (number,)).get
            rows = con.execute(
                "SELECT place, expires_at FROM message "
                "WHERE place >= ? AND place <= ? AND kind = 0 ORDER BY place LIMIT ?",
                (base + first, base + covered, max(most - len(gone), 0)),
            )
            free: list[int] = []
            over = 0
            for place, expires_at in list(rows):
                if place > awaited and expires_at > late:
                    break
                free.append(place)
                over = len(free) if expires_at <= now_ms else over
            if free and not over and self._is_over(base + covered, base, now_ms):
                over = len(free)
            gone += free[:over]
            if over:
                last = free[over - 1] - base
                con.execute("UPDATE mesh SET first = ? WHERE number = ?", (last + 1, number))
        return gone

    def _is_over(self, upto: int, after: int, now_ms: int) -> bool:
        """Whether the last change that a snapshot covers is past its time."""
        ends: int | None = self.connection.execute(
            "SELECT expires_at FROM message WHERE place > ? AND place <= ? AND kind = 0 "
            "ORDER BY place DESC LIMIT 1",
            (after, upto),
        ).get
        return ends is not None and ends <= now_ms

    def _remove_messages(self, gone: list[int]) -> None:
        con = self.connection
        places = [(place,) for place in gone]
        con.executemany(_KEPT, places)
        con.executemany("DELETE FROM message WHERE place = ?", places)
        con.executemany("DELETE FROM queued WHERE place = ?", places)
        self._count_down("messages", [place >> SEQ_BITS for place in gone])

    def _clear_removed(self, most: int) -> int:
        """Deletes some rows of a mesh that was removed; 0 if none are left of any."""
        con = self.connection
        numbers = self.noted_removed()
        while numbers:
            for table in ("message", "gone"):
                removed = self._clear_places(table, numbers[0], most)
                if removed:
                    return removed
            for table, key, limit in _OF_REMOVED:
                con.execute(
                    f"DELETE FROM {table} WHERE mesh = ?1 AND ({key}) IN "
                    f"(SELECT {key} FROM {table} WHERE mesh = ?1 LIMIT ?2)",
                    (numbers[0], min(most, limit)),
                )
                if con.changes():
                    return con.changes()
            del numbers[0]
            self.note_removed(numbers)
        return 0

    def _clear_places(self, table: str, number: int, most: int) -> int:
        con = self.connection
        span = (number << SEQ_BITS, (number + 1) << SEQ_BITS)
        sql = f"SELECT place, id FROM {table} WHERE place >= ? AND place < ? LIMIT ?"
        found = list(con.execute(sql, (*span, most)))
        places = [(place,) for place, _ in found]
        con.executemany(f"DELETE FROM {table} WHERE place = ?", places)
        con.executemany("DELETE FROM queued WHERE place = ?", places)
        # With their ids, so that no check takes these for orphans.
        ids = [(number, id) for _, id in found]
        con.executemany("DELETE FROM dedupe WHERE mesh = ? AND id = ?", ids)
        return len(found)

    def _forget_ids(self, now_ms: int, most: int) -> int:
        mode, days = self.noted_mode()
        if mode == "permanent":
            return 0
        # Also ids that came under a shorter promise: nodes go by the number of days that holds now.
        kept = now_ms - BROKER_DEDUPE_GRACE_MS
        con = self.connection
        gone = list(
            con.execute(
                "SELECT place, id FROM gone WHERE known_until IS NOT NULL AND known_until <= ? "
                "AND first_seen_at <= ? ORDER BY known_until LIMIT ?",
                (kept, kept - days * DAY_MS, most),
            )
        )
        con.executemany("DELETE FROM gone WHERE place = ?", [(place,) for place, _ in gone])
        ids = [(place >> SEQ_BITS, id, place & SEQ_MASK) for place, id in gone]
        con.executemany("DELETE FROM dedupe WHERE mesh = ? AND id = ? AND seq = ?", ids)
        self._count_down("dedupe", [mesh for mesh, *_ in ids])
        return len(gone)

    def _count_down(self, column: str, meshes: list[int]) -> None:
        for mesh in set(meshes):
            self.connection.execute(
                f"UPDATE mesh SET {column} = {column} - ? WHERE number = ?",
                (meshes.count(mesh), mesh),
            )

    def _end_leases(self, now_ms: int, most: int) -> tuple[int, int]:
        """Ends leases whose time is over: how many messages others may take, how many died."""
        con = self.connection
        over = list(
            con.execute(
                "SELECT place, slug, deliveries >= coalesce(deliveries_max, 0), deliveries "
                "FROM queued AS q JOIN mesh ON mesh.number = q.mesh LEFT JOIN destination AS d "
                "ON d.mesh = q.mesh AND d.kind = 'queue' AND d.ref = q.queue "
                "WHERE state = 1 AND until <= ? ORDER BY until LIMIT ?",
                (now_ms, most),
            )
        )
        dying = [(f"delivered {times} times", now_ms, p) for p, _, dies, times in over if dies]
        con.executemany(
            "UPDATE queued SET state = 0, lease = NULL, holder = NULL, until = NULL "
            "WHERE place = ?",
            [(place,) for place, *_ in over],
        )
        con.executemany(
            "UPDATE queued SET state = 2, reason = ?, died_at = ? WHERE place = ?", dying
        )
        for slug in {slug for _, slug, dies, _ in over if not dies}:
            self.news(slug, 0)
        return len(over) - len(dying), len(dying)

    def _end_invites(self, now_ms: int, most: int) -> int:
        self.connection.execute(
            "DELETE FROM invite WHERE digest IN "
            "(SELECT digest FROM invite WHERE expires_at <= ? LIMIT ?)",
            (now_ms, most),
        )
        return self.connection.changes()

    def _give_up_uploads(self, now_ms: int, most: int, uncounted_ms: int) -> int:
        """Drops uploads that a sweep has found idle a day ago; a new piece resets that."""
        con = self.connection
        before = now_ms - uncounted_ms - BROKER_UPLOAD_MS_MAX
        objects = "SELECT mesh, sha256 FROM object WHERE whole = 0 AND idle_since <= ? LIMIT ?"
        uploads = "SELECT mesh, id FROM snapshot WHERE NOT ready AND idle_since <= ? LIMIT ?"
        old = list(con.execute(objects, (before, most)))
        for mesh, sha256 in old:
            self.drop_object(mesh, sha256)
            self._hashes.pop((mesh, sha256), None)
        left = list(con.execute(uploads, (before, most)))
        for mesh, id in left:
            self.drop_snapshot(mesh, id)
        idle = "SET idle_since = ? WHERE idle_since IS NULL AND"
        con.execute(f"UPDATE object {idle} whole = 0", (now_ms,))
        con.execute(f"UPDATE snapshot {idle} NOT ready", (now_ms,))
        return len(old) + len(left)

    async def counts(self) -> dict[str, int]:
        with self.reading() as con:
            row = con.execute(_COUNTS).get
        return dict(zip(_COUNTED, row, strict=True))

    async def mode(self) -> tuple[Mode, int]:
        with self.reading():
            return self.noted_mode()

    async def set_mode(self, mode: Mode, days: int) -> None:
        if self.noted_mode() == (mode, days):
            return
        with self.writing():
            self.note("mode", mode)
            self.note("days", str(days))

    async def claim(self, key: bytes, *, replace: bool = False) -> bytes:
        with self.writing():
            noted = self.noted("key")
            if noted is None or replace:
                noted = key.hex()
                self.note("key", noted)
            return bytes.fromhex(noted)
