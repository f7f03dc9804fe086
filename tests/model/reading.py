"""Reads the files of a home without any code of Holdfast: SQLite by `sqlite3`, msgpack by hand."""

from __future__ import annotations

import sqlite3  # noqa: TID251 - another library on purpose, and on homes that nobody has open
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELDS = (
    *("protocol", "version", "id", "mesh", "op", "entity", "owner", "origin", "epoch", "seq"),
    *("lamport", "created_at", "write_class", "state", "fingerprint", "base", "meta", "body"),
)


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, count: int) -> bytes:
        part = self.raw[self.at : self.at + count]
        assert len(part) == count, "cut off"
        self.at += count
        return part

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def value(self) -> Any:
        code = self.number(1)
        if code < 0x80:
            return code
        if 0x90 <= code < 0xA0:
            return [self.value() for _ in range(code & 15)]
        if 0xA0 <= code < 0xC0:
            return self.take(code & 31).decode()
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        if 0xC4 <= code <= 0xC6:
            return self.take(self.number(1 << (code - 0xC4)))
        if 0xCC <= code <= 0xCF:
            return self.number(1 << (code - 0xCC))
        if 0xD9 <= code <= 0xDB:
            return self.take(self.number(1 << (code - 0xD9))).decode()
        if code in (0xDC, 0xDD):
            return [self.value() for _ in range(self.number(2 if code == 0xDC else 4))]
        raise AssertionError(f"{code:#x} does not occur")


def unpack(raw: bytes) -> Any:
    reader = _Reader(raw)
    value = reader.value()
    assert reader.at == len(raw), "something stands behind it"
    return value


@dataclass(frozen=True)
class Written:
    """One change, as its origin wrote it."""

    mesh: str
    op: str
    entity: str
    owner: str
    lamport: int
    origin: str
    id: bytes
    created_at: int
    base: tuple[int, str] | None
    body: tuple[Any, ...]

    @property
    def version(self) -> tuple[int, bytes, bytes]:
        """Comparable: the one order."""
        return self.lamport, self.origin.encode(), self.id


def written(raw: bytes) -> Written:
    fields = dict(zip(_FIELDS, unpack(raw), strict=False))
    base = fields["base"]
    return Written(
        mesh=fields["mesh"],
        op=fields["op"],
        entity=fields["entity"],
        owner=fields["owner"],
        lamport=fields["lamport"],
        origin=fields["origin"],
        id=fields["id"],
        created_at=fields["created_at"],
        base=None if base is None else (base[0], base[1]),
        body=tuple(unpack(fields["body"])),
    )


class HomeFiles:
    """A closed home, read as files."""

    def __init__(self, home: Path) -> None:
        self._path = home / "data.db"

    def rows(self, question: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(question)]

    def log(self) -> Iterator[Written]:
        for row in self.rows("SELECT raw FROM log ORDER BY offset"):
            yield written(row["raw"])
