"""The end of a mesh: all of it is removed, table by table, a bounded number of rows at a time.

`STEPS` names every table that holds rows of meshes; a test compares it with the schema, so that a
table which is added later cannot be forgotten. Most have an index that begins with the mesh. Of the
others a step looks at a window of rows, by their number.

The log loses entries in its middle. Which offsets went is noted, so that everybody can tell these
holes from damage. Numbers of the outbox and of the inbox are not given twice, so the row with the
highest number stays, without content, until the sweep removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from holdfast.rules.bus.capability import read_capability
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import HoldfastError, UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.limits import MESH_ERASE_WINDOW
from holdfast.rules.outbox import lane_of, quorum_lane_of
from holdfast.rules.rows import EndedMesh
from holdfast.storage.mesh_end_port import Erased, ErasePlace
from holdfast.storage.sqlite import vector_index
from holdfast.storage.sqlite.columns import RowColumns

_ENDED: Final = RowColumns("ended_mesh", EndedMesh)
_FILTER: Final = msgspec.json.Decoder(Filter)

INDEXED: Final = (
    *(
        "state_seen",
        "state",
        "memory",
        "peer",
        "vector_mesh",
        "task",
        "task_event",
        "conflict",
        "warning",
    ),
    *(
        "heard",
        "mate",
        "buried",
        "buried_task",
        "bus_invite",
        "bus_mesh",
        "telemetry",
        "telemetry_count",
    ),
    *("quorum", "quorum_commit", "quorum_void", "quorum_conflict", "quorum_lease", "quorum_node"),
    *("entity", "entity_revision", "mesh_snapshot", "audit", "audit_chain"),
)
"""Tables whose rows are found by their mesh and need nothing else. `warning` has no index and is
always small."""


class EraseStep(NamedTuple):
    """How one kind of rows is removed."""

    tables: tuple[str, ...]
    run: Callable[[apsw.Connection, str, int, int, int], tuple[int, int | None]]
    """Given the mesh, the row up to which it has looked, how many rows at most, and the time:
    returns how many went, and the row up to which it has looked now; None at the end of the table.
    """


class MeshEndReads:
    _con: apsw.Connection

    def ended_mesh(self, mesh: str) -> EndedMesh | None:
        return _ENDED.find(self._con, "WHERE mesh = ?", (mesh,))

    def ended_meshes(self) -> list[EndedMesh]:
        return _ENDED.select(self._con, "ORDER BY mesh")

    def log_last_of(self, mesh: str) -> int:
        found: int | None = self._con.execute(
            "SELECT offset FROM log NOT INDEXED WHERE mesh = ? ORDER BY offset DESC LIMIT 1",
            (mesh,),
        ).get
        return found or 0

    def log_count_of(self, mesh: str) -> int:
        found: int = self._con.execute("SELECT count(*) FROM log WHERE mesh = ?", (mesh,)).get
        return found

    def log_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        rows: list[Any] = self._con.execute(
            "SELECT max(first, ?1), min(last, ?2) FROM log_hole "
            "WHERE first <= ?2 AND last >= ?1 ORDER BY first",
            (first, last),
        ).fetchall()
        return rows


class MeshEndWrites(MeshEndReads):
    def mesh_end_begin(self, mesh: str, now_ms: int) -> EndedMesh:
        con = self._con
        con.execute(
            "UPDATE mesh SET ending = 1, kind = 'personal', broker_url = NULL, broker_card = NULL, "
            "server_id = NULL, on_bus = 0 WHERE slug = ?",
            (mesh,),
        )
        if not con.changes():
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        con.execute(
            "INSERT INTO ended_mesh (mesh, lamport, seq, epoch, head, begun_at) "
            "SELECT slug, lamport, seq, "
            "coalesce((SELECT value FROM meta WHERE name = 'epoch'), 1), "
            "coalesce((SELECT max(offset) FROM log), 0), ? FROM mesh WHERE slug = ? "
            "ON CONFLICT (mesh) DO UPDATE SET lamport = excluded.lamport, seq = excluded.seq, "
            "epoch = excluded.epoch, head = excluded.head, begun_at = excluded.begun_at, "
            "ended_at = NULL, dropped = 0",
            (now_ms, mesh),
        )
        # Parts of the node go by these; they are few.
        for table in ("bus_invite", "bus_mesh", "quorum", "mate"):
            con.execute(f"DELETE FROM {table} WHERE mesh = ?", (mesh,))
        _unname(con, mesh)
        found = self.ended_mesh(mesh)
        assert found is not None, "it was put there just now"
        return found

    def mesh_erase(self, mesh: str, place: ErasePlace, most: int, now_ms: int) -> Erased:
        gone, upto = STEPS[place.step].run(self._con, mesh, place.after, most, now_ms)
        if upto is not None:
            return Erased(gone, ErasePlace(place.step, upto))
        last = place.step + 1 == len(STEPS)
        return Erased(gone, None if last else ErasePlace(place.step + 1))

    def mesh_end_done(self, mesh: str, now_ms: int) -> None:
        self._con.execute("DELETE FROM mesh WHERE slug = ? AND ending = 1", (mesh,))
        self._con.execute(
            "UPDATE ended_mesh SET ended_at = ?, head = max(head, "
            "coalesce((SELECT max(offset) FROM log), 0)) WHERE mesh = ?",
            (now_ms, mesh),
        )

    def ended_mesh_dropped(self, mesh: str, count: int) -> None:
        self._con.execute(
            "UPDATE ended_mesh SET dropped = dropped + ? WHERE mesh = ?", (count, mesh)
        )


# --- names of the mesh in other rows -------------------------------------------------------------


def _unname(con: apsw.Connection, mesh: str) -> None:
    """Takes the mesh out of what zones, tokens, links and readers name. What named only this mesh
    goes: with nothing named it would mean all of them.
    """
    for table in ("zone", "token"):
        for name, reads in _rows(con, f"SELECT name, reads FROM {table}"):
            named = msgspec.json.decode(reads, type=list[str])
            if mesh in named:
                rest = msgspec.json.encode([one for one in named if one != mesh]).decode()
                con.execute(f"UPDATE {table} SET reads = ? WHERE name = ?", (rest, name))
    for table in ("link", "consumer"):
        for name, text in _rows(con, f"SELECT name, filter FROM {table}"):
            _narrow(con, table, name, _FILTER.decode(text), mesh)
    con.execute(
        "DELETE FROM job WHERE length(name) > length(?1) AND "
        "substr(name, -length(?1) - 1) = ':' || ?1",
        (mesh,),
    )
    for id, raw in _rows(con, "SELECT id, capability FROM bus_capability"):
        if raw and _only_of(raw, mesh):
            con.execute("DELETE FROM bus_capability WHERE id = ?", (id,))


def _rows(con: apsw.Connection, query: str) -> list[Any]:
    """All at once: they are few, and change while they are looked at."""
    return con.execute(query).fetchall()


def _narrow(con: apsw.Connection, table: str, name: str, filter: Filter, mesh: str) -> None:
    if mesh not in filter.meshes:
        return
    rest = tuple(one for one in filter.meshes if one != mesh)
    if rest:
        text = msgspec.json.encode(msgspec.structs.replace(filter, meshes=rest)).decode()
        con.execute(f"UPDATE {table} SET filter = ? WHERE name = ?", (text, name))
        return
    con.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
    if table == "link":
        con.execute("DELETE FROM quarantine WHERE link = ?", (name,))


def _only_of(raw: bytes, mesh: str) -> bool:
    try:
        scopes = read_capability(raw).scopes
    except HoldfastError:
        return False
    return bool(scopes) and all(scope.startswith(f"mesh:{mesh}:") for scope in scopes)


# --- the steps -----------------------------------------------------------------------------------


def _numbers(rows: Iterable[Any]) -> list[int]:
    return [number for (number,) in rows]


def _window(con: apsw.Connection, table: str, key: str, after: int) -> int | None:
    """Up to which number the next rows of a table reach; None if there are none."""
    found: int | None = con.execute(
        f"SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > ? "
        f"ORDER BY {key} LIMIT ?)",
        (after, MESH_ERASE_WINDOW),
    ).get
    return found


def _outbox(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    upto = _window(con, "spool", "number", after)
    if upto is None:
        return 0, None
    doomed = _numbers(
        con.execute(
            "SELECT number FROM spool WHERE number > ? AND number <= ? AND (mesh = ? OR lane IN "
            "(?, ?)) ORDER BY number LIMIT ?",
            (after, upto, mesh, lane_of(mesh), quorum_lane_of(mesh), most),
        )
    )
    last = con.execute("SELECT max(number) FROM spool").get
    for number in doomed:
        con.execute("DELETE FROM quorum_queue WHERE number = ?", (number,))
        if number != last:
            con.execute("DELETE FROM spool WHERE number = ?", (number,))
            continue
        con.execute("DELETE FROM bus_message WHERE number = ?", (number,))
        con.execute(
            "UPDATE spool SET lane = '', id = randomblob(16), mesh = '', entity = '', offset = 0, "
            "state = 'done', attempts = 0, tried_at = NULL, ended_at = ?, code = '', error = '', "
            "broker_id = NULL, replaces = NULL WHERE number = ?",
            (now_ms, number),
        )
    return len(doomed), doomed[-1] if len(doomed) == most else upto


def _inbox(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    upto = _window(con, "inbox", "number", after)
    if upto is None:
        return 0, None
    doomed = _numbers(
        con.execute(
            "SELECT number FROM inbox WHERE number > ? AND number <= ? AND mesh = ? "
            "ORDER BY number LIMIT ?",
            (after, upto, mesh, most),
        )
    )
    last = con.execute("SELECT max(number) FROM inbox").get
    for number in doomed:
        if number != last:
            con.execute("DELETE FROM inbox WHERE number = ?", (number,))
            continue
        con.execute(
            "UPDATE inbox SET id = randomblob(16), mesh = '', kind = '', ref = '', sender = '', "
            "offset = 0, broker_id = NULL, read_at = ?1, hooked_at = ?1 WHERE number = ?2",
            (now_ms, number),
        )
    return len(doomed), doomed[-1] if len(doomed) == most else upto


def _quarantine(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    rows: list[Any] = con.execute(
        "SELECT number, link, raw FROM quarantine WHERE number > ? ORDER BY number LIMIT ?",
        (after, most),
    ).fetchall()
    doomed = [number for number, link, raw in rows if link == lane_of(mesh) or _is_of(raw, mesh)]
    con.executemany("DELETE FROM quarantine WHERE number = ?", ((one,) for one in doomed))
    return len(doomed), rows[-1][0] if len(rows) == most else None


def _is_of(raw: bytes, mesh: str) -> bool:
    try:
        return decode_trusted(raw).mesh == mesh
    except (msgspec.MsgspecError, HoldfastError, ValueError, TypeError):
        return False  # it can be anything


def _streams(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    stream = con.execute("SELECT min(number) FROM stream WHERE mesh = ?", (mesh,)).get
    if stream is None:
        return 0, None
    con.execute(
        "DELETE FROM stream_place WHERE (stream, seq) IN "
        "(SELECT stream, seq FROM stream_place WHERE stream = ? LIMIT ?)",
        (stream, most),
    )
    gone = con.changes()
    if gone < most:
        con.execute("DELETE FROM stream WHERE number = ?", (stream,))
        gone += 1
    return gone, 0


def _vectors(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    rows: list[Any] = con.execute(
        "SELECT row, model, live FROM vector WHERE mesh = ? LIMIT ?", (mesh, most)
    ).fetchall()
    for number, model, live in rows:
        if live:
            vector_index.remove_row(con, model, number, mesh)
        con.execute("DELETE FROM vector WHERE row = ?", (number,))
    if len(rows) == most:
        return len(rows), 0
    unused: list[Any] = con.execute(
        "SELECT id FROM vector_model WHERE NOT EXISTS (SELECT 1 FROM vector "
        "INDEXED BY vector_model_rows WHERE model = vector_model.id AND live = 1)"
    ).fetchall()
    for (model,) in unused if rows else ():
        vector_index.drop_table(con, model)
    return len(rows), None


def _files(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    rows: list[Any] = con.execute(
        "SELECT owner, path, sha256 FROM file WHERE mesh = ? LIMIT ?", (mesh, most)
    ).fetchall()
    con.executemany(
        "DELETE FROM file WHERE mesh = ? AND owner = ? AND path = ?",
        ((mesh, owner, path) for owner, path, _ in rows),
    )
    _release(con, (sha for _, _, sha in rows), now_ms)
    return len(rows), 0 if len(rows) == most else None


def _log(
    con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
) -> tuple[int, int | None]:
    upto = _window(con, "log", "offset", after)
    if upto is None:
        return 0, None
    doomed = _numbers(
        con.execute(
            "SELECT offset FROM log NOT INDEXED WHERE offset > ? AND offset <= ? AND mesh = ? "
            "ORDER BY offset LIMIT ?",
            (after, upto, mesh, most),
        )
    )
    named: list[str] = []
    for first, last in _runs(doomed):
        con.execute("DELETE FROM log WHERE offset BETWEEN ? AND ?", (first, last))
        named += [
            sha
            for (sha,) in con.execute(
                "SELECT sha256 FROM fact_object WHERE offset BETWEEN ? AND ?", (first, last)
            )
        ]
        con.execute("DELETE FROM fact_object WHERE offset BETWEEN ? AND ?", (first, last))
        _note_hole(con, first, last)
    _release(con, named, now_ms)
    return len(doomed), doomed[-1] if len(doomed) == most else upto


def _note_hole(con: apsw.Connection, first: int, last: int) -> None:
    """Neighbouring holes become one: a mesh that wrote alone for long leaves one row."""
    after = con.execute("SELECT last FROM log_hole WHERE first = ?", (last + 1,)).get
    if after is not None:
        con.execute("DELETE FROM log_hole WHERE first = ?", (last + 1,))
        last = after
    before = con.execute(
        "SELECT first, last FROM log_hole WHERE first < ? ORDER BY first DESC LIMIT 1", (first,)
    ).get
    if before is not None and before[1] == first - 1:
        con.execute("UPDATE log_hole SET last = ? WHERE first = ?", (last, before[0]))
    else:
        con.execute("INSERT INTO log_hole (first, last) VALUES (?, ?)", (first, last))


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _release(con: apsw.Connection, shas: Iterable[str], now_ms: int) -> None:
    con.executemany(
        "UPDATE blob SET released_at = ?1, released_offset = 0 WHERE sha256 = ?2 "
        "AND released_at IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM file WHERE file.sha256 = ?2 AND tombstone = 0 "
        "AND content IS NULL) "
        "AND NOT EXISTS (SELECT 1 FROM fact_object WHERE fact_object.sha256 = ?2)",
        ((now_ms, sha) for sha in dict.fromkeys(shas)),
    )


def _table(name: str) -> EraseStep:
    def run(
        con: apsw.Connection, mesh: str, after: int, most: int, now_ms: int
    ) -> tuple[int, int | None]:
        keys = ", ".join(_primary_key(con, name))
        con.execute(
            f"DELETE FROM {name} WHERE ({keys}) IN (SELECT {keys} FROM {name} "
            "WHERE mesh = ? LIMIT ?)",
            (mesh, most),
        )
        gone = con.changes()
        return gone, 0 if gone >= most else None

    return EraseStep((name,), run)


def _primary_key(con: apsw.Connection, table: str) -> list[str]:
    rows: list[Any] = con.execute(f"PRAGMA table_info({table})").fetchall()
    key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
    return key or ["rowid"]


STEPS: Final = (
    EraseStep(("spool", "quorum_queue"), _outbox),
    EraseStep(("inbox",), _inbox),
    EraseStep(("quarantine",), _quarantine),
    EraseStep(("stream", "stream_place"), _streams),
    EraseStep(("vector",), _vectors),
    EraseStep(("file",), _files),
    *map(_table, INDEXED),
    EraseStep(("log", "fact_object"), _log),
)
