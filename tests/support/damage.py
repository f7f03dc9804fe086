"""A small home with a row of every kind, and the ways in which a disk spoils one.

`spoil` harms a copy by a seed: bytes flipped, pages swapped, doubled, zeroed, filled with noise, a
file cut, of the database or of its WAL. Half of the harm goes to the rows of the log, which a
single flipped bit of the whole file would seldom meet.
"""

from __future__ import annotations

import random
import re
import shutil
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec

from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node, open_node
from holdfast.rules.bodies import Fact
from holdfast.rules.bus.meshes.membership import BusAddressRow
from holdfast.rules.filters import Filter
from holdfast.rules.rows import BlobRow, ConsumerRow
from holdfast.storage.ports import Transaction
from support.envelopes import make_id, message_send, raw
from support.keeping import LARGE, MESH, PAGE, fill, make_home, team
from support.nodes import share
from support.stores import (
    bus_capability_row,
    bus_invite_row,
    bus_mesh_row,
    known_member,
    link_row,
    quarantine_row,
    token_row,
    zone_key,
    zone_row,
)

Entries = dict[int, tuple[bytes, bytes]]
"""Id and bytes of each entry, by offset."""

WAYS = ("flip", "flips", "entry", "swap", "double", "zero", "noise", "cut", "value", "values")


def small_home(home: Path, *, killed: bool = False) -> Entries:
    """A home of about a hundred pages. One that was `killed` has half of them in its WAL only."""
    with make_home(home) as node:
        _grow(node)
    made = home
    if killed:
        made = home.with_name("open")
        home.rename(made)
        node = open_node(made)
        for number in range(12):
            team(node).state.set(f"key-{number}", {"late": number, "text": "y" * 300})
            team(node).facts.append(f"late-{number}", "is", number)
            team(node).tasks.create(f"late {number}")
        shutil.copytree(made, home)
        node.close()
        shutil.rmtree(home / "processes")
        (home / "processes").mkdir(mode=0o700)
    with open_node(made) as node:
        return {entry.offset: (entry.id, entry.raw) for entry in node.log.range()}


def _grow(node: Node) -> None:
    fill(team(node), 4)
    node.log.add_consumer("reader")
    sha = node._engine.blobs.put(LARGE[1:]).sha256
    mesh = share(node)
    for number in range(3):
        mesh.send(f"m{number}", topic="news")
    rows = node._engine.read("test", lambda tx: tx.outbox_list(None, (), 0, 99))
    came = message_send("topic", "news", b"hi", lamport=9_000)
    intake = Intake(node._engine.ctx, [came], delivered={came: b"B" * 16})

    def work(tx: Transaction) -> None:
        tx.outbox_done([(rows[0].number, b"B" * 16, 1, 7)], 5)
        tx.outbox_put(msgspec.structs.replace(rows[1], state="dead", attempts=1, ended_at=5))
        intake(tx)
        tx.broker_positions_add(MESH, 1, [(7, rows[0].offset), (8, rows[1].offset)])
        tx.known_members_put(MESH, [known_member("a"), known_member("b")])
        zoe = tx.zone_put(zone_row("zoe", zone_key("a"), zone_key("b", expires_at=9))).number
        tx.token_put(token_row())
        tx.link_put(link_row(epoch=3, cursor=77, moved_at=5))
        tx.quarantine_add(quarantine_row(offset=5))
        tx.bus_mesh_put(bus_mesh_row(MESH))
        tx.bus_invite_put(bus_invite_row("a"))
        tx.bus_capability_put(bus_capability_row())
        tx.bus_address_put(BusAddressRow(key=b"k" * 32, addresses=("10.0.0.1:1",), seen_at=1))
        id, lamport = make_id(9000), tx.tick(MESH)[0]
        fact = raw(
            *("fact.append", "photo", Fact("shows", b"1", (bytes.fromhex(sha),))),
            id=id,
            lamport=lamport,
            origin="zoe",
        )
        offset = tx.log_append(id, MESH, "fact.append", "photo", "zoe", lamport, 0, fact, zoe)
        tx.fact_objects_put(offset, [sha])
        tx.blob_put(BlobRow(sha256=sha, size=len(LARGE) - 1, created_at=1))
        reader = ConsumerRow(
            name="zone:zoe/x",
            frontier="3",
            created_at=1,
            seen_at=1,
            retire_lag=9,
            zone="zoe",
            filter=Filter(meshes=(MESH,), beyond="zoe"),
        )
        tx.consumer_put(reader)

    node._engine.store.write(work)


def spoil(home: Path, seed: int) -> str:
    """Harms the files of a home that nobody has open, and says how."""
    dice = random.Random(seed)
    way = WAYS[seed % len(WAYS)]
    if way in ("value", "values"):
        with closing(apsw.Connection(str(home / "data.db"))) as connection:
            return f"{way}: {_change_values(connection, 1 if way == 'value' else 6, dice)}"
    wal = home / "data.db-wal"
    file = wal if way != "entry" and wal.exists() and dice.random() < 0.5 else home / "data.db"
    data = bytearray(file.read_bytes())
    if way == "entry":
        _flip_in_log(data, dice)
    else:
        _spoil(data, way, dice)
    file.write_bytes(data)
    return f"{way} of {file.name}"


def _spoil(data: bytearray, way: str, dice: random.Random) -> None:
    pages = len(data) // PAGE
    one, other = (PAGE * dice.randrange(pages) for _ in range(2))
    if way in ("flip", "flips"):
        for _ in range(1 if way == "flip" else 40):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif way == "swap":
        first, second = data[one : one + PAGE], data[other : other + PAGE]
        data[one : one + PAGE], data[other : other + PAGE] = second, first
    elif way == "double":
        data[other : other + PAGE] = data[one : one + PAGE]
    elif way == "zero":
        data[one : one + PAGE] = bytes(PAGE)
    elif way == "noise":
        data[one : one + PAGE] = dice.randbytes(PAGE)
    else:
        del data[dice.randrange(len(data) // 4, len(data)) :]


_HOSTILE = (
    *(None, -1, 0, 1, 2**40, 2**62, 2**63 - 1, -(2**63), 3.5, float("inf")),
    *("", "x", "x" * 5000, "../../etc/passwd", "{", "null", "[1]", "\0", "a\nb", "é\u0301"),
    *(b"", b"\xff", bytes(16), bytes(32), b"\xff" * 5000),
)


def _change_values(connection: apsw.Connection, count: int, dice: random.Random) -> str:
    """Gives columns values that no table of ours would take, as a harmed row has them."""
    connection.pragma("writable_schema", 1)
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%STRICT%'"
    declared = {str(name): str(sql) for name, sql in connection.execute(query)}
    _declare(connection, {name: _lax(sql) for name, sql in declared.items()})
    changed = []
    for _ in range(count):
        table = dice.choice(sorted(declared))
        info = connection.execute(f"PRAGMA table_info({table})").fetchall()
        column = dice.choice([row[1] for row in info])
        key = "rowid" if "WITHOUT ROWID" not in declared[table] else info[0][1]
        value = dice.choice(_HOSTILE)
        how = "CAST(? AS TEXT)" if isinstance(value, bytes) and dice.random() < 0.5 else "?"
        one = f"SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {dice.randrange(4)}"
        change = f"UPDATE {table} SET {column} = {how} WHERE {key} = ({one})"
        with suppress(apsw.ConstraintError, apsw.MismatchError):
            connection.execute(change, (value,))
        changed.append(f"{table}.{column} = {value!r:.20}")
    _declare(connection, declared)
    return ", ".join(changed)


def _lax(sql: str) -> str:
    """The same table with a place for everything."""
    for strict in (r"CHECK \([^()]*(\([^()]*\))?[^()]*\)", r"NOT NULL", r"\bSTRICT, ", r"\bSTRICT"):
        sql = re.sub(strict, "", sql)
    return re.sub(r"\b(INTEGER|TEXT)\b(?! PRIMARY KEY)", "BLOB", sql)


def _declare(connection: apsw.Connection, tables: dict[str, str]) -> None:
    for name, sql in tables.items():
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, name))
    # A connection reads the list again when its number has changed.
    connection.pragma("schema_version", int(str(connection.pragma("schema_version"))) + 1)


def _flip_in_log(data: bytearray, dice: random.Random) -> None:
    """Flips some bytes near the envelopes of the log: in them, and in the columns beside."""
    places = []
    at = data.find(b"holdfast")
    while at >= 0:
        places.append(at)
        at = data.find(b"holdfast", at + 1)
    for _ in range(dice.choice((1, 1, 1, 8))):
        place = dice.choice(places) + dice.randrange(-80, 300)
        if 0 <= place < len(data):
            data[place] ^= dice.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))


def readable(home: Path, entries: Entries) -> set[bytes]:
    """Ids of the entries that SQLite alone still finds by offset, with all their bytes and their
    hash.
    """
    copy = home.with_name("looked")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("data.db", "data.db-wal"):
        if (home / name).exists():
            shutil.copy(home / name, copy / name)
    found = set()
    with closing(apsw.Connection(str(copy / "data.db"))) as connection:
        for offset, (id, content) in entries.items():
            try:
                row = connection.execute(
                    "SELECT id, raw, leaf FROM log WHERE offset = ?", (offset,)
                ).fetchone()
            except (apsw.Error, UnicodeDecodeError):
                continue
            if row == (id, content, sha256(b"\0" + content).digest()):
                found.add(id)
    return found
