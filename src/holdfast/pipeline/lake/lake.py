"""The lake: a folder of Delta tables, and the one place that knows their names.

    lake.json                which lake this is
    bronze/                  every envelope once
    sightings/               where envelopes of bronze were seen again
    quarantine/              what could not be read, with the reason and the bytes
    silver/<table>/          the state: one row per key, as of the last compaction
    increments/<table>/      what was folded since; small, and merged in by whoever reads
    gold/<table>/            audits and figures

How far each log has been read stands in bronze itself, in the same commit as what was read: an
application id `log:<name>@<epoch>` with the last offset. There is no other checkpoint that could be
lost or disagree.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow.fs

from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import Table
from holdfast.rules.errors import (
    BadPath,
    LakeBusy,
    NoLake,
    StoreCorrupt,
    UnknownKey,
    UnsupportedProtocol,
)
from holdfast.storage.files.durable import disk_errors, durable_replace, make_folder

FORMAT: Final = 1
_NAME: Final = "lake.json"
_LOCK: Final = ".job"
_MEANT_OTHERWISE: Final = frozenset("[]{}*?\\%")
"""What Spark takes for a pattern, or Delta for a code, in the path of a file."""
_POSITIONS: Final = "holdfast.positions"
ID_DAY: Final = (
    "date_from_unix_date(int("
    "bigint(conv(concat(substr(id, 1, 8), substr(id, 10, 4)), 16, 10)) div 86400000))"
)
"""The day that an id was minted on, from the time inside it: the same id is always of one day. Of
no time zone: a session of another zone would look for it in the files of another day.
"""


class Position(msgspec.Struct, frozen=True):
    """How far one log has been read."""

    log: str
    epoch: int
    offset: int
    id: str = ""
    """Of the entry at this offset: by it a log is known again."""


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    holdfast: str = "lake"
    version: int = FORMAT
    id: str
    created_at: int


class Lake:
    """Where everything is. Tables are looked at when first asked for; `fresh()` looks again."""

    def __init__(
        self, root: str, id: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.root = root.rstrip("/")
        self.id = id
        self._storage_options = storage_options

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        create: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Lake:
        """A lake that is there, or a new one in a folder that is empty or not there."""
        where = str(root) if "://" in str(root) else str(Path(root).absolute())
        card = _read_card(where)
        if card is None:
            if not create:
                raise NoLake(f"there is no lake in {where}")
            card = _make_card(where)
        return cls(where, card.id, storage_options)

    def fresh(self) -> Lake:
        return Lake(self.root, self.id, self._storage_options)

    @property
    def consumer(self) -> str:
        """The name under which the lake reads a node's log."""
        return f"lake-{self.id[:8]}"

    # --- tables --------------------------------------------------------------------------------

    @cached_property
    def bronze(self) -> Table:
        return self._table("bronze", schema.BRONZE, {"day": ID_DAY})

    @cached_property
    def sightings(self) -> Table:
        return self._table("sightings", schema.SIGHTINGS)

    @cached_property
    def quarantine(self) -> Table:
        return self._table("quarantine", schema.QUARANTINE)

    def silver(self, name: str) -> Table:
        return self._table(f"silver/{_known(name)}", schema.SILVER_STORED[name])

    def increments(self, name: str) -> Table:
        return self._table(f"increments/{_known(name)}", schema.SILVER_STORED[name])

    def gold(self, name: str, columns: Any) -> Table:
        return self._table(f"gold/{name}", columns)

    def _table(self, name: str, columns: Any, partitions: Mapping[str, str] | None = None) -> Table:
        return Table(
            f"{self.root}/{name}",
            columns,
            partitions=partitions or {},
            storage_options=self._storage_options,
        )

    # --- how far it has got --------------------------------------------------------------------

    def position(self, log: str, epoch: int) -> int | None:
        """The last offset of a log that bronze has; None if it has none of this epoch."""
        return self.bronze.txn(log_app(log, epoch))

    def positions(self) -> list[Position]:
        """Of every log, in every epoch that was read."""
        return msgspec.convert(self.bronze.said(_POSITIONS) or [], list[Position])

    def settle(self) -> None:
        """All that was read so far survives a power cut."""
        for table in (self.sightings, self.quarantine, self.bronze):
            table.settle()

    def moved(self, to: list[Position]) -> dict[str, Any]:
        """What a commit to bronze says of itself so that `positions` stays whole."""
        now = {(known.log, known.epoch): known for known in self.positions()}
        now.update({(position.log, position.epoch): position for position in to})
        ordered = [now[place] for place in sorted(now)]
        return {_POSITIONS: msgspec.to_builtins(ordered)}

    # --- one job at a time ---------------------------------------------------------------------

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Nobody else writes meanwhile, on a lake that lies on a disk. Elsewhere the commits
        themselves decide who was first. A killed job leaves no lock behind.
        """
        if "://" in self.root:
            yield
            return
        path = Path(self.root) / _LOCK
        with disk_errors(f"open {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LakeBusy(f"{_who(fd)} works on the lake {self.root}") from None
            said = json.dumps({"pid": os.getpid(), "what": what, "since": int(time.time())})
            os.ftruncate(fd, 0)
            os.pwrite(fd, said.encode(), 0)
            yield
        finally:
            os.close(fd)


def log_app(log: str, epoch: int) -> str:
    """The application id under which bronze notes how far a log was read."""
    return f"log:{log}@{epoch}"


def _known(name: str) -> str:
    if name not in schema.SILVER:
        tables = ", ".join(schema.SILVER)
        raise UnknownKey(f"silver has no table {name!r}", hint=f"use one of: {tables}")
    return name


def _who(fd: int) -> str:
    try:
        said = json.loads(os.pread(fd, 4096, 0))
        since = time.strftime("%H:%M:%S", time.gmtime(said["since"]))
        return f"{said['what']} (process {said['pid']}, since {since} UTC)"
    except (ValueError, KeyError, TypeError):
        return "another job"


def _read_card(root: str) -> _Card | None:
    system, base = _system(root)
    try:
        with system.open_input_file(f"{base}/{_NAME}") as file:
            raw = bytes(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        card = msgspec.json.decode(raw, type=_Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"{root}/{_NAME} cannot be read: {error}") from None
    if card.holdfast != "lake" or card.version != FORMAT:
        raise UnsupportedProtocol(
            f"{root} is a lake of format {card.version}; this Holdfast reads {FORMAT}",
            hint="use the version of Holdfast that made it, or a newer one",
        )
    return card


def _make_card(root: str) -> _Card:
    system, base = _system(root)
    if isinstance(system, pyarrow.fs.LocalFileSystem) and (odd := _MEANT_OTHERWISE & set(base)):
        raise BadPath(
            f"a lake cannot lie in {root}: Spark and Delta read {' '.join(sorted(odd))} otherwise",
            hint="name a folder without these characters in its path",
        )
    found = system.get_file_info(base)
    if found.type == pyarrow.fs.FileType.File:
        raise BadPath(f"{root} is a file", hint="name a folder for the lake")
    if found.type == pyarrow.fs.FileType.Directory and system.get_file_info(
        pyarrow.fs.FileSelector(base)
    ):
        raise BadPath(f"{root} is neither a lake nor empty", hint="name a new folder for the lake")
    card = _Card(id=uuid4().hex, created_at=time.time_ns() // 1_000_000)
    raw = msgspec.json.format(msgspec.json.encode(card)) + b"\n"
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        Path(base).parent.mkdir(parents=True, exist_ok=True)
        make_folder(Path(base))
        durable_replace(Path(base) / _NAME, raw)
    else:
        with system.open_output_stream(f"{base}/{_NAME}") as out:
            out.write(raw)
    return card


def _system(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if "://" in root:
        system, base = pyarrow.fs.FileSystem.from_uri(root)
        return system, base
    return pyarrow.fs.LocalFileSystem(), root
