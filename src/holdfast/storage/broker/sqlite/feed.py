"""Destinations, and what a member gets to see."""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.broker_rows import DestinationRow, FeedPage, FeedRow
from holdfast.rules.errors import BadInput, NotAMember, NotGranted, Truncated, UnknownDestination
from holdfast.rules.limits import BROKER_SCAN_ROWS, FEED_BYTES
from holdfast.storage.broker.sqlite.accept import KINDS
from holdfast.storage.broker.sqlite.database import SEQ_BITS
from holdfast.storage.broker.sqlite.meshes import SqliteMembers

_ADMITTED: Final = (
    "SELECT number, epoch, seq, first, member.name, grants FROM mesh LEFT JOIN member "
    "ON member.mesh = number AND key = ? AND removed_at IS NULL WHERE slug = ?"
)
_SUBSCRIBED: Final = (
    "kind = 1 AND EXISTS (SELECT 1 FROM subscription AS s WHERE s.mesh = :mesh AND s.key = :key "
    "AND s.topic = message.ref AND s.since < place - :base)"
)
_SEEN: Final = f"kind = 0 AND (:own OR sender <> :key) OR kind = 2 AND ref = :hex OR {_SUBSCRIBED}"
_URGENT: Final = f"rank = 0 AND kind IN (1, 2) AND (kind = 2 AND ref = :hex OR {_SUBSCRIBED})"


class SqliteDestinations(SqliteMembers):
    """Topics, queues, and who has subscribed to what."""

    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        with self.writing() as con:
            con.execute(
                "INSERT INTO destination VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "visibility_ms = excluded.visibility_ms, deliveries_max = excluded.deliveries_max",
                (
                    self.number_of(mesh),
                    row.kind,
                    row.ref,
                    row.made_at,
                    row.visibility_ms,
                    row.deliveries_max,
                ),
            )

    async def destination_list(self, mesh: str) -> list[DestinationRow]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT kind, ref, made_at, visibility_ms, deliveries_max FROM destination "
                "WHERE mesh = ? ORDER BY kind, ref",
                (self.number_of(mesh),),
            )
            return [
                DestinationRow(
                    kind=kind,
                    ref=ref,
                    made_at=made_at,
                    visibility_ms=visibility_ms,
                    deliveries_max=deliveries_max,
                )
                for kind, ref, made_at, visibility_ms, deliveries_max in rows
            ]

    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        with self.writing() as con:
            number = self.number_of(mesh)
            held = "SELECT 1 FROM queued WHERE mesh = ? AND queue = ? LIMIT 1"
            if kind == "queue" and con.execute(held, (number, ref)).get is not None:
                raise BadInput(
                    f"the queue {ref!r} holds messages",
                    hint="take or drop them first, the dead letters too",
                )
            con.execute(
                "DELETE FROM destination WHERE mesh = ? AND kind = ? AND ref = ?",
                (number, kind, ref),
            )
            dropped = con.changes() > 0
            if kind == "topic":
                con.execute("DELETE FROM subscription WHERE mesh = ? AND topic = ?", (number, ref))
            return dropped

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        with self.writing() as con:
            number = self.number_of(mesh)
            if self.present(number, key) is None:
                raise NotAMember(f"only members of {mesh!r} subscribe to its topics")
            declared = "SELECT 1 FROM destination WHERE mesh = ? AND kind = 'topic' AND ref = ?"
            if con.execute(declared, (number, topic)).get is None:
                raise UnknownDestination(f"the mesh {mesh!r} has no topic {topic!r}")
            con.execute(
                "INSERT INTO subscription SELECT number, ?, ?, seq FROM mesh WHERE number = ? "
                "ON CONFLICT DO NOTHING",
                (key, topic, number),
            )
            since = con.execute(
                "SELECT since FROM subscription WHERE mesh = ? AND key = ? AND topic = ?",
                (number, key, topic),
            ).get
            return int(since)

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool:
        with self.writing() as con:
            con.execute(
                "DELETE FROM subscription WHERE mesh = ? AND key = ? AND topic = ?",
                (self.number_of(mesh), key, topic),
            )
            return con.changes() > 0

    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]:
        with self.reading() as con:
            rows = con.execute(
                "SELECT topic, since FROM subscription WHERE mesh = ? AND key = ? ORDER BY topic",
                (self.number_of(mesh), key),
            )
            return dict(list(rows))


class SqliteFeed(SqliteDestinations):
    """Pages of what was accepted, each for one member."""

    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        with self.reading():
            number, epoch, seq, first = self._admitted(mesh, key)
            if after + 1 < first:
                raise Truncated(
                    f"what is behind {after} in {mesh!r} is gone; {first} is the first",
                    first_available=first,
                    hint="load the snapshot of the mesh, then follow from there",
                )
            # Whoever sees little of a large mesh is told how far the broker has looked.
            reach = min(seq, after + BROKER_SCAN_ROWS)
            values = {"own": own, **_who(number, key)}
            rows, to = self._page(_SEEN, values, (after, reach), limit, bytes_max)
        return FeedPage(epoch=epoch, after=after, to=max(to, after), rows=rows, last=seq)

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        with self.reading():
            number, epoch, seq, _ = self._admitted(mesh, key)
            rows, to = self._page(_URGENT, _who(number, key), (after, seq), limit, FEED_BYTES)
        return FeedPage(epoch=epoch, after=after, to=max(to, after), rows=rows, last=seq)

    def _admitted(self, mesh: str, key: bytes) -> tuple[int, int, int, int]:
        """Number, epoch, last and first seq of the mesh, for one who may read it."""
        row = self.connection.execute(_ADMITTED, (key, mesh)).get
        if row is None:
            raise self.unknown(mesh)
        *where, name, grants = row
        if name is None:
            raise NotAMember(f"this key is no member of {mesh!r}")
        if "read" not in grants.split():
            raise NotGranted(f"{name} may not read {mesh!r}", hint="ask the owner of the mesh")
        number, epoch, seq, first = where
        return number, epoch, seq, first

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
        rows: list[FeedRow] = []
        size, to = 0, reach
        for place, kind, broker_id, raw in found:
            size += len(raw)
            if rows and (size > bytes_max or len(rows) >= limit):
                to = rows[-1].seq
                break
            rows.append(FeedRow(place - base, KINDS[kind], broker_id, raw))
        found.close(True)
        return rows, to


def _who(number: int, key: bytes) -> dict[str, Any]:
    return {"mesh": number, "base": number << SEQ_BITS, "key": key, "hex": key.hex()}
