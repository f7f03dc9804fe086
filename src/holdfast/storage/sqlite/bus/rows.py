"""The rows of the peer bus. What they mean is decided elsewhere (`rules/bus`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import apsw
import msgspec

from holdfast.rules.bus.counted_clock import ClockSeen, after_absence
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.replay import Window
from holdfast.rules.bus.sealing import SEAL_BYTES
from holdfast.rules.limits import (
    BACKOFF_MS_MAX,
    BUS_INBOX_PAGE_BYTES,
    BUS_LANE_BYTES,
    BUS_WINDOW,
)

_WINDOW_BYTES: Final = BUS_WINDOW // 8
_WAITING: Final = (
    "SELECT spool.number, spool.lane, spool.attempts, spool.not_before, spool.created_at, "
    "bus_message.expires_at, bus_message.seal, bus_message.head, bus_message.body "
    "FROM spool JOIN bus_message USING (number) "
)
_DUE: Final = (
    "spool.state = 'pending' AND spool.not_before NOT BETWEEN ?1 + 1 AND ?1 + "
    f"{BACKOFF_MS_MAX} AND (bus_message.expires_at IS NULL OR bus_message.expires_at > ?1)"
)
"""Due, and not expired. A time beyond the longest backoff is one of a clock that was wrong."""


class WaitingRow(NamedTuple):
    """A message that waits for a peer."""

    number: int
    lane: str
    attempts: int
    not_before: int
    created_at: int
    expires_at: int | None
    seal: int
    head: bytes
    body: bytes


class ArrivedRow(NamedTuple):
    """A message that waits for a handler."""

    number: int
    sender: bytes
    received_at: int
    seal: int
    head: bytes
    body: bytes


def in_list(numbers: Iterable[int]) -> str:
    """Numbers as `json_each` takes them."""
    return msgspec.json.encode(list(numbers)).decode()


Row = TypeVar("Row", WaitingRow, ArrivedRow)


def _up_to(size: int, rows: Iterable[Row]) -> list[Row]:
    """Rows until their bodies, opened, have this size; what comes after them is not read."""
    taken: list[Row] = []
    for row in rows:
        taken.append(row)
        size -= len(row.body) - (SEAL_BYTES if row.seal else 0)
        if size <= 0:
            break
    return taken


class BusReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def bus_noted(self, name: str) -> Any:
        """What the bus keeps under a name; None if nothing."""
        return self._con.execute("SELECT value FROM meta WHERE name = ?", (f"bus_{name}",)).get

    def bus_clock(self) -> ClockSeen | None:
        """What the clock showed when a bus of this home looked; None if none has."""
        seen_at = self.bus_noted("seen_at")
        return None if seen_at is None else ClockSeen(seen_at, self.bus_noted("uncounted"))

    def bus_window(self, peer: bytes) -> Window | None:
        found = self._once.execute("SELECT highest, seen FROM bus_mark WHERE peer = ?", (peer,)).get
        return None if found is None else Window(found[0], int.from_bytes(found[1]))

    def bus_ids(self, sender: int, ids: Collection[bytes]) -> set[bytes]:
        """Known ids of a sender: all that are among these, and perhaps others."""
        if not ids:
            return set()
        if len(ids) == 1:
            (id,) = ids
            known = self._once.execute(
                "SELECT 1 FROM bus_known WHERE sender = ? AND id = ?", (sender, id)
            ).get
            return set() if known is None else {id}
        # New ids are made in the order of time: of a batch of them nothing lies between the first
        # and the last. More than it has ids means that it is not such a batch.
        between: list[Any] = self._con.execute(
            "SELECT id FROM bus_known WHERE sender = ? AND id BETWEEN ? AND ? LIMIT ?",
            (sender, min(ids), max(ids), len(ids) + 1),
        ).fetchall()
        if len(between) <= len(ids):
            return {id for (id,) in between}
        # From the list into the table: the other way it would read all ids of the sender.
        rows: list[Any] = self._con.execute(
            "SELECT known.id FROM json_each(?2) CROSS JOIN bus_known AS known "
            "ON known.id = unhex(value) AND known.sender = ?1",
            (sender, msgspec.json.encode([id.hex() for id in ids]).decode()),
        ).fetchall()
        return {id for (id,) in rows}

    def bus_claimed(self, own: int, id: bytes) -> bytes | None:
        """The fingerprint of what a caller asked for under an id."""
        found: bytes | None = self._once.execute(
            "SELECT id FROM bus_known WHERE sender = ?1 AND id > ?2 ORDER BY id LIMIT 1", (own, id)
        ).get
        return None if found is None or found[: len(id)] != id else found[len(id) :]

    def bus_inbox(self, after: int, limit: int) -> list[ArrivedRow]:
        rows = self._con.execute(
            "SELECT number, sender, received_at, seal, head, body FROM bus_inbox "
            "WHERE number > ? ORDER BY number LIMIT ?",
            (after, limit),
        )
        return _up_to(BUS_INBOX_PAGE_BYTES, map(ArrivedRow._make, rows))

    def bus_inbox_last(self) -> int:
        last: int = self._once.execute("SELECT coalesce(max(number), 0) FROM bus_inbox").get
        return last

    def bus_inbox_shares(self) -> list[tuple[PeerKey, int, int]]:
        """Of each sender: how many messages wait, and the bytes of their bodies."""
        return list(
            self._con.execute(
                "SELECT sender, count(*), sum(length(body)) FROM bus_inbox GROUP BY sender"
            )
        )

    def bus_due(self, now_ms: int) -> list[WaitingRow]:
        return self._waiting(f"WHERE {_DUE} ORDER BY spool.number", (now_ms,))

    def bus_due_of(
        self, lane: str, now_ms: int, limit: int, skip: Collection[int]
    ) -> list[WaitingRow]:
        """By rank and number, as the index has them."""
        rows = self._con.execute(
            f"{_WAITING}WHERE spool.lane = ?2 AND {_DUE} AND spool.number NOT IN "
            "(SELECT value FROM json_each(?3)) ORDER BY spool.rank, spool.number LIMIT ?4",
            (now_ms, lane, in_list(skip), limit),
        )
        return _up_to(BUS_LANE_BYTES, map(WaitingRow._make, rows))

    def bus_requests(self) -> list[WaitingRow]:
        return self._waiting(
            "WHERE bus_message.kind = 3 AND spool.state = 'pending' ORDER BY bus_message.number",
            (),
        )

    def bus_expired(self, now_ms: int) -> list[WaitingRow]:
        return self._waiting(
            "WHERE bus_message.expires_at <= ? AND spool.state = 'pending' "
            "ORDER BY bus_message.number",
            (now_ms,),
        )

    def bus_lanes(self) -> list[str]:
        """Lanes of peers that something waits in: by the row that has waited longest."""
        rows: list[Any] = self._con.execute(
            "SELECT lane, min(number) FROM spool WHERE state = 'pending' AND lane >= 'peer:' "
            "AND lane < 'peer;' GROUP BY lane ORDER BY min(number)"
        ).fetchall()
        return [lane for lane, _ in rows]

    def bus_next_at(self, lane: str, now_ms: int) -> int | None:
        at: int | None = self._con.execute(
            "SELECT min(not_before) FROM spool WHERE lane = ?1 AND state = 'pending' "
            f"AND not_before BETWEEN ?2 + 1 AND ?2 + {BACKOFF_MS_MAX}",
            (lane, now_ms),
        ).get
        return at

    def bus_head(self, number: int) -> bytes | None:
        """A message that waits, without its body."""
        head: bytes | None = self._con.execute(
            "SELECT head FROM bus_message WHERE number = ?", (number,)
        ).get
        return head

    def bus_interests(self) -> dict[str, list[str]]:
        rows: list[Any] = self._con.execute(
            "SELECT name, patterns FROM bus_interest ORDER BY name"
        ).fetchall()
        return {name: msgspec.json.decode(patterns, type=list[str]) for name, patterns in rows}

    def bus_keys(self) -> list[tuple[int, bytes]]:
        """The wrapped keys, by number."""
        rows: list[Any] = self._con.execute(
            "SELECT number, key FROM bus_seal ORDER BY number"
        ).fetchall()
        return rows

    def bus_bodies(
        self, table: str, seal: int, after: int, limit: int
    ) -> list[tuple[int, int, bytes]]:
        """Number, key and body of rows after a number that another key sealed, or none."""
        rows: list[Any] = self._con.execute(
            f"SELECT number, seal, body FROM {table} WHERE number > ? AND seal <> ? "
            "ORDER BY number LIMIT ?",
            (after, seal, limit),
        ).fetchall()
        return rows

    def _waiting(self, rest: str, values: tuple[Any, ...]) -> list[WaitingRow]:
        rows: list[Any] = self._con.execute(_WAITING + rest, values).fetchall()
        return [WaitingRow._make(row) for row in rows]


class BusWrites(BusReads):
    def bus_note(self, name: str, value: int | bytes) -> None:
        self._con.execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (f"bus_{name}", value),
        )

    def bus_clock_put(self, seen: ClockSeen) -> None:
        self.bus_note("seen_at", seen.wall_ms)
        self.bus_note("uncounted", seen.uncounted_ms)

    def bus_note_drop(self, name: str) -> None:
        self._con.execute("DELETE FROM meta WHERE name = ?", (f"bus_{name}",))

    # --- arrivals ----------------------------------------------------------------------------

    def bus_sender(self, name: str) -> int:
        """The number of a sender; a new one if it has none."""
        number: int | None = self._once.execute(
            "SELECT number FROM bus_sender WHERE name = ?", (name,)
        ).get
        if number is None:
            self._con.execute("INSERT INTO bus_sender (name) VALUES (?)", (name,))
            number = self._con.last_insert_rowid()
        return number

    def bus_window_put(self, peer: bytes, window: Window) -> None:
        self._once.execute(
            "INSERT INTO bus_mark VALUES (?, ?, ?) ON CONFLICT (peer) DO UPDATE "
            "SET highest = excluded.highest, seen = excluded.seen",
            (peer, window.highest, window.seen.to_bytes(_WINDOW_BYTES)),
        )

    def bus_ids_add(self, rows: Sequence[tuple[int, bytes, int]]) -> None:
        """Sender, id and until when it stays known."""
        self._con.executemany("INSERT INTO bus_known VALUES (?, ?, ?)", rows)

    def bus_ids_settle(self, sender: int, waiting: Collection[bytes], kept: int) -> None:
        """Forgets ids of a sender, but for those that wait and the newest: ids rise with time."""
        last: bytes | None = self._con.execute(
            "SELECT id FROM bus_known WHERE sender = ? ORDER BY id DESC LIMIT 1 OFFSET ?",
            (sender, kept),
        ).get
        if last is not None:
            self._con.execute(
                "DELETE FROM bus_known WHERE sender = ?1 AND id <= ?2 "
                "AND id NOT IN (SELECT unhex(value) FROM json_each(?3))",
                (sender, last, msgspec.json.encode([id.hex() for id in waiting]).decode()),
            )

    def bus_inbox_add(self, rows: Sequence[tuple[int, bytes, int, int, bytes, bytes]]) -> None:
        """The fields of `ArrivedRow`, plain: there are many."""
        self._con.executemany("INSERT INTO bus_inbox VALUES (?, ?, ?, ?, ?, ?)", rows)

    def bus_inbox_drop(self, numbers: Collection[int]) -> list[tuple[PeerKey, int, int]]:
        """Removes messages. Returns how many of each sender, and the bytes of their bodies."""
        first, last = min(numbers), max(numbers)
        chosen: tuple[str, tuple[Any, ...]]
        if last - first + 1 == len(set(numbers)):  # as they came, so they are finished
            chosen = "number BETWEEN ? AND ?", (first, last)
        else:
            chosen = "number IN (SELECT value FROM json_each(?))", (in_list(numbers),)
        which, values = chosen
        found = list(
            self._con.execute(
                "SELECT sender, count(*), sum(length(body)) FROM bus_inbox "
                f"WHERE {which} GROUP BY sender",
                values,
            )
        )
        self._con.execute(f"DELETE FROM bus_inbox WHERE {which}", values)
        return found

    def bus_sweep(self, now_ms: int, most: int) -> int:
        """Forgets ids that no sender can send again; returns how many."""
        counted = after_absence(self.bus_clock(), now_ms).counted_ms
        self._con.execute(
            "DELETE FROM bus_known WHERE (sender, id) IN "
            "(SELECT sender, id FROM bus_known WHERE until <= ? LIMIT ?)",
            (counted, most),
        )
        return self._con.changes()

    # --- what waits for peers ----------------------------------------------------------------

    def bus_message_put(
        self, number: int, kind: int, expires_at: int | None, seal: int, head: bytes, body: bytes
    ) -> None:
        self._con.execute(
            "INSERT INTO bus_message VALUES (?, ?, ?, ?, ?, ?)",
            (number, kind, expires_at, seal, head, body),
        )

    def bus_put_back(self, number: int, not_before: int, now_ms: int) -> None:
        self._con.execute(
            "UPDATE spool SET attempts = attempts + 1, not_before = ?, tried_at = ? "
            "WHERE number = ? AND state = 'pending' AND offset = 0",
            (not_before, now_ms, number),
        )

    def bus_remove(self, numbers: Collection[int], now_ms: int) -> None:
        """Removes rows of the outbox with their messages. The row with the highest number stays,
        without its message, so that the number is not given again.
        """
        chosen = in_list(numbers)
        self._con.execute(
            "DELETE FROM spool WHERE offset = 0 AND number < (SELECT max(number) FROM spool) "
            "AND number IN (SELECT value FROM json_each(?))",
            (chosen,),
        )
        last: int | None = self._con.execute(
            "SELECT number FROM spool WHERE offset = 0 AND state <> 'done' "
            "AND number = (SELECT max(number) FROM spool) "
            "AND number IN (SELECT value FROM json_each(?))",
            (chosen,),
        ).get
        if last is not None:
            self._con.execute("DELETE FROM bus_message WHERE number = ?", (last,))
            self._con.execute(
                "UPDATE spool SET state = 'done', ended_at = ?1, tried_at = ?1, code = '', "
                "error = '' WHERE number = ?2",
                (now_ms, last),
            )

    def bus_dead(self, numbers: Collection[int], now_ms: int, code: str, error: str) -> None:
        """These will not be sent; they are listed with the reason."""
        self._con.execute(
            "UPDATE spool SET state = 'dead', attempts = max(attempts, 1), tried_at = ?1, "
            "ended_at = ?1, code = ?2, error = ?3 WHERE offset = 0 AND state = 'pending' "
            "AND number IN (SELECT value FROM json_each(?4))",
            (now_ms, code, error, in_list(numbers)),
        )

    def bus_forget_bodies(self, numbers: Collection[int]) -> None:
        """What has expired is listed, and not sent any more: its body serves nobody."""
        self._con.execute(
            "UPDATE bus_message SET body = x'', seal = 0 "
            "WHERE number IN (SELECT value FROM json_each(?))",
            (in_list(numbers),),
        )

    def bus_interest_put(self, name: str, patterns: Sequence[str]) -> None:
        self._con.execute("DELETE FROM bus_interest WHERE name = ?", (name,))
        if patterns:
            text = msgspec.json.encode(list(patterns)).decode()
            self._con.execute("INSERT INTO bus_interest VALUES (?, ?)", (name, text))

    # --- sealing -----------------------------------------------------------------------------

    def bus_key_put(self, number: int, key: bytes, now_ms: int) -> None:
        self._con.execute(
            "INSERT INTO bus_seal VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE "
            "SET key = excluded.key",
            (number, key, now_ms),
        )

    def bus_keys_drop(self, below: int) -> None:
        self._con.execute("DELETE FROM bus_seal WHERE number < ?", (below,))

    def bus_bodies_put(self, table: str, rows: Sequence[tuple[int, int, bytes]]) -> None:
        """Number, key and body of each."""
        self._con.executemany(f"UPDATE {table} SET seal = ?2, body = ?3 WHERE number = ?1", rows)
