"""The lake: a folder of Delta tables, and the one place that knows their names.

    lake.json                which lake this is
    bronze/                  every envelope once
    sightings/               where envelopes of bronze were seen again
    commits/                 the records of what quorums have committed, as each log has them
    quarantine/              what could not be read, with the reason and the bytes
    reads/                   what was read of each log, and so how far
    silver/<table>/          the state: one row per key, as of the last compaction
    increments/<table>/      what was folded since; small, and every reader merges it in
    gold/<table>/            results of audits and measures

How far each log has been read stands in `reads`, which is committed right after bronze and can be
made again from bronze, sightings and quarantine. A commit of bronze notes it too, as an application
id `log:<name>@<epoch>` with the last offset; but that survives what sets the rows themselves back.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.compare import Comparison, compared, given_up
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.folder import FILE, FOLDER, Folder
from holdfast.pipeline.lake.held import HeldPlaces, Key, held_by, id_at, last_batch
from holdfast.pipeline.lake.id_bits import LAST_DAY
from holdfast.pipeline.lake.known_commits import KnownCommits, known_commits
from holdfast.pipeline.lake.proof import CARD, LakeProof
from holdfast.pipeline.lake.reads import BATCH, Position, load_reads, positions_in, sum_of, with_ids
from holdfast.rules.errors import (
    BadPath,
    LakeBusy,
    NoLake,
    StoreCorrupt,
    UnknownKey,
    UnsupportedProtocol,
)
from holdfast.storage.files.durable import SHARED_FILE_MODE, close_unlocked, disk_errors

Progress = Callable[[str, int, int], None]
"""A job calls it with what it is doing, how many steps are done, and how many there are."""

FORMAT: Final = 1
BRONZE: Final = "bronze"
"""The application id with which silver notes the last batch of bronze that it has taken in."""
_LOCK: Final = ".job"
_BAD_IN_PATH: Final = frozenset("[]{}*?\\%")
"""Characters that Spark reads as a pattern, or Delta as an escape, in the path of a file."""
AS_COMPACTED: Final = "As of the last compaction: what came since is in increments"
SINCE_THEN: Final = "What was folded since the last compaction"
ID_DAY: Final = (
    "date_from_unix_date(int(least("
    "bigint(conv(concat(substr(id, 1, 8), substr(id, 10, 4)), 16, 10)) div 86400000, "
    f"{LAST_DAY})))"
)
"""SQL: the UTC day of the time inside an id, so the same id always belongs to the same day. The
time zone of the session must not matter, or it would look for an id in the files of another day.
An id of version 8 begins with any bits: those beyond the calendar belong to its last day.
"""


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    holdfast: str = "lake"
    version: int = FORMAT
    id: str
    created_at: int


class Lake:
    """A lake and its tables. Each table is read at its latest version when it is first used;
    `fresh()` gives the lake with the versions that are the latest now.
    """

    def __init__(self, root: str, id: str, options: Mapping[str, str] | None = None) -> None:
        self.folder = Folder(root, options)
        self.root = self.folder.root
        self.options = self.folder.options
        self.id = id

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        create: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Lake:
        """Opens a lake: a folder, or a place in an object store (`s3://bucket/lake`), which is
        reached with `options`. With `create` a folder that is empty or missing becomes a new lake.
        """
        folder = Folder(str(root), options)
        card = _read_card(folder)
        if card is None:
            if not create:
                folder.entries()  # tells a bucket that is not there from a lake that is not
                raise NoLake(f"there is no lake in {folder.root}")
            card = _make_card(folder)
        return cls(folder.root, card.id, folder.options)

    def fresh(self) -> Lake:
        return Lake(self.root, self.id, self.options)

    @property
    def consumer(self) -> str:
        """The name under which the lake reads a node's log."""
        return f"lake-{self.id[:8]}"

    @property
    def proof(self) -> LakeProof:
        """By it a task shows that it sees this lake."""
        return LakeProof(self.root, self.id, self.options)

    # --- tables --------------------------------------------------------------------------------

    @cached_property
    def bronze(self) -> Table:
        # `reads` is committed after bronze and looked at before it, so that it never says of a
        # version of bronze that it has more than it has.
        assert self.reads.version >= -1
        return self._table("bronze", schema.BRONZE, partitions={"day": ID_DAY})

    @cached_property
    def sightings(self) -> Table:
        return self._table("sightings", schema.SIGHTINGS)

    @cached_property
    def quarantine(self) -> Table:
        return self._table("quarantine", schema.QUARANTINE)

    @cached_property
    def reads(self) -> Table:
        return self._table("reads", schema.READS)

    @cached_property
    def commits(self) -> Table:
        return self._table("commits", schema.COMMITS)

    @cached_property
    def known_commits(self) -> KnownCommits:
        """What `commits` holds. Do not change it."""
        return known_commits(self.commits)

    def silver(self, name: str) -> Table:
        return self._table(f"silver/{_known(name)}", schema.SILVER_STORED[name], AS_COMPACTED)

    def increments(self, name: str) -> Table:
        return self._table(f"increments/{_known(name)}", schema.SILVER_STORED[name], SINCE_THEN)

    def gold(self, name: str, columns: Any, about: str = "") -> Table:
        return self._table(f"gold/{name}", columns, about)

    def _table(
        self, name: str, columns: Any, note: str = "", partitions: Mapping[str, str] | None = None
    ) -> Table:
        known = schema.ABOUT.get(name.rpartition("/")[2])
        return Table(
            f"{self.root}/{name}",
            columns,
            about=". ".join(part for part in (known, note) if part),
            partitions=partitions or {},
            options=self.options,
            proof=self.proof,
        )

    # --- how far each log was read -------------------------------------------------------------

    def position(self, log: str, epoch: int) -> int | None:
        """The last offset of a log that was read; None if nothing was read of this epoch."""
        return self.offsets.get((log, epoch))

    def positions(self) -> list[Position]:
        """The position of every log in every epoch that was read."""
        return positions_in(self.claims)

    @cached_property
    def offsets(self) -> dict[Key, int]:
        """The last offset that was read, by log and epoch."""
        return {(at.log, at.epoch): at.offset for at in self.positions()}

    @cached_property
    def claims(self) -> pa.Table:
        """What `reads` says. A lake of earlier code has no such table before its next run: there it
        is what the tables hold.
        """
        if self.reads.exists or not self.bronze.exists:
            return load_reads(self.reads)[0]
        return self.compare().reads

    @property
    def next_batch(self) -> int:
        """The number of the next batch, of bronze or of commits. Numbers are never used twice, also
        if bronze or `reads` was set back: what was folded into silver is known by them.
        """
        taken, noted = pc.max(self.claims.column("batch")).as_py(), self.reads.txn(BATCH)
        known = [at for at in (taken, noted) if at is not None]
        lasts = (last_batch(self.bronze), last_batch(self.commits))
        return 1 + max(self.bronze.version, *lasts, *known)

    def folded(self, name: str) -> int:
        """The last batch that a table of silver says it has taken in; -1 if none."""
        tables = (self.silver(name), self.increments(name))
        return max(-1 if (at := table.txn(BRONZE)) is None else at for table in tables)

    def is_whole(self) -> bool:
        """Whether the tables have as many rows as `reads` says. Reads only commits and `reads`, and
        looks for files only if others have committed.
        """
        claims = self.claims
        tables = (self.bronze, self.sightings, self.quarantine, self.reads)
        if any(table.exists and not table.is_ours and table.gone() for table in tables):
            return False
        return self.reads.exists == self.bronze.exists and (
            (self.bronze.rows, self.sightings.rows, self.quarantine.rows)
            == (sum_of(claims, "new"), sum_of(claims, "again"), sum_of(claims, "noted"))
        )

    def compare(self, without: Collection[Key] = ()) -> Comparison:
        """Compares `reads` with all places that the tables hold. Of the logs in `without` nothing
        that is missing is claimed any more.
        """
        claims = given_up(load_reads(self.reads)[0], without)
        held = held_by(self.bronze, self.sightings, self.quarantine)
        found = compared(claims, held.runs, self._trusted(held))
        return replace(found, reads=with_ids(found.reads, self._id_at))

    def _id_at(self, key: Key, offset: int) -> str:
        return id_at((self.bronze, self.sightings, self.quarantine), key, offset)

    def _trusted(self, held: HeldPlaces) -> dict[Key, int]:
        """By log: how far bronze itself says that it was read. That cannot be believed if an older
        version was restored: its rows go back, and what was noted does not.
        """
        if self.bronze.is_as_left is False:
            return {}
        pairs = held.runs.group_by(["log", "epoch"]).aggregate([]).to_pylist()
        keys = [(row["log"], row["epoch"]) for row in pairs]
        return {key: self.bronze.txn(log_app(*key)) or 0 for key in keys}

    def settle(self) -> None:
        """Flushes all commits of ingest, so that all that was read survives a power cut."""
        for table in (self.sightings, self.quarantine, self.bronze, self.reads):
            table.settle()

    # --- one job at a time ---------------------------------------------------------------------

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Locks a lake on a disk, however it was named, against other jobs (`LakeBusy`) for the
        length of the block. In an object store only the commits themselves decide which job was
        first. A killed job leaves no lock behind.
        """
        if self.folder.local is None:
            yield
            return
        path = self.folder.local / _LOCK
        with disk_errors(f"open {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, SHARED_FILE_MODE)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LakeBusy(f"{_holder(fd)} works on the lake {self.root}") from None
            note = json.dumps({"pid": os.getpid(), "what": what, "since": int(time.time())})
            os.ftruncate(fd, 0)
            os.pwrite(fd, note.encode(), 0)
            yield
        finally:
            close_unlocked(fd)


def no_progress(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def log_app(log: str, epoch: int) -> str:
    """The application id with which a commit notes how far a log was read."""
    return f"log:{log}@{epoch}"


def _known(name: str) -> str:
    if name not in schema.SILVER:
        tables = ", ".join(schema.SILVER)
        raise UnknownKey(f"silver has no table {name!r}", hint=f"use one of: {tables}")
    return name


def _holder(fd: int) -> str:
    """The job that holds the lock, by the note in the lock file."""
    try:
        note = json.loads(os.pread(fd, 4096, 0))
        since = time.strftime("%H:%M:%S", time.gmtime(note["since"]))
        return f"{note['what']} (process {note['pid']}, since {since} UTC)"
    except (ValueError, KeyError, TypeError):
        return "another job"


def _read_card(folder: Folder) -> _Card | None:
    raw, root = folder.read(CARD), folder.root
    if raw is None:
        return None
    try:
        card = msgspec.json.decode(raw, type=_Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"{root}/{CARD} cannot be read: {error}") from None
    if card.holdfast != "lake" or card.version != FORMAT:
        raise UnsupportedProtocol(
            f"{root} is a lake of format {card.version}; this Holdfast reads {FORMAT}",
            hint="use the version of Holdfast that made it, or a newer one",
        )
    return card


def _make_card(folder: Folder) -> _Card:
    root = folder.root
    if folder.local is not None and (odd := _BAD_IN_PATH & set(folder.base)):
        raise BadPath(
            f"a lake cannot lie in {root}: Spark or Delta would misread {' '.join(sorted(odd))}",
            hint="name a folder without these characters in its path",
        )
    kind = folder.kind()
    if kind == FILE:
        raise BadPath(f"{root} is a file", hint="name a folder for the lake")
    if kind == FOLDER and folder.entries():
        raise BadPath(f"{root} is neither a lake nor empty", hint="name a new folder for the lake")
    card = _Card(id=uuid4().hex, created_at=time.time_ns() // 1_000_000)
    folder.write(CARD, msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    # Another job may have made a lake here meanwhile; the card that stands is the lake's. Tasks
    # compare it with the id that they were given, so the other job cannot go on under its own.
    return _read_card(folder) or card
