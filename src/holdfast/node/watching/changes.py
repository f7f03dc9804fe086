"""Following the log: what has changed since a place, a page at a time.

Nothing is kept for a reader that follows. It reads the log itself, at its own pace, by a filter
that runs inside the query; what it holds is a page of entries and its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.node.watching.source import HomeSource
from holdfast.protocol.body_json import body_fields
from holdfast.rules.bodies import OPS, decode_trusted_body, decode_value, family_of
from holdfast.rules.canonical import stored_meta
from holdfast.rules.cursor import LogCursor, Since, check_place, resolve_since
from holdfast.rules.data_classes import data_class_of
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BadInput
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, FETCH_BYTES_MAX
from holdfast.rules.order import Stamp
from holdfast.rules.rows import Columns, Entry
from holdfast.storage.ports import Reader

_DELETIONS: Final = frozenset({"state.delete", "memory.forget", "vector.delete", "file.delete"})


class LogChange:
    """One change, as a watch yields it. What its body says is decoded when it is asked for."""

    def __init__(self, entry: Entry, epoch: int) -> None:
        self.entry = entry
        """Its place in the log, with the bytes of its envelope."""
        self.cursor = LogCursor(epoch, entry.offset)
        """What `since` takes, to go on after this change."""

    @property
    def offset(self) -> int:
        return self.entry.offset

    @property
    def id(self) -> str:
        return id_text(self.entry.id)

    @property
    def mesh(self) -> str:
        return self.entry.mesh

    @property
    def op(self) -> str:
        """What was done: `state.set`, `task.claim` …"""
        return self.entry.op

    @property
    def key(self) -> str:
        """What it was done to: a key, a path, a subject, a task."""
        return self.entry.entity

    @property
    def peer(self) -> str:
        """Who did it."""
        return self.entry.origin

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.entry.lamport, self.entry.origin)

    @property
    def recorded_at(self) -> int:
        """When this node took it in, in milliseconds since 1970."""
        return self.entry.recorded_at

    @property
    def deleted(self) -> bool:
        """It takes away what was there."""
        return self.entry.op in _DELETIONS

    @cached_property
    def envelope(self) -> Envelope:
        return decode_trusted(self.entry.raw)

    @property
    def owner(self) -> str:
        """Of a memory, a vector or a file; empty for what belongs to the mesh."""
        return self.envelope.owner

    @property
    def created_at(self) -> int:
        """By the clock of the peer that did it."""
        return self.envelope.created_at

    @property
    def meta(self) -> Any:
        return stored_meta(self.envelope.meta) if self.envelope.meta else None

    @cached_property
    def body(self) -> dict[str, Any] | None:
        """The fields of the change; None for an op that this version does not know."""
        body = decode_trusted_body(self.envelope)
        return None if body is None else body_fields(body, decode_value)

    @property
    def value(self) -> Any:
        """The new value of a state or a memory; None for everything else."""
        return (self.body or {}).get("value")

    def __repr__(self) -> str:
        return f"LogChange({self.cursor} {self.op} {self.mesh}/{self.key} {self.stamp})"


class WatchedPage(NamedTuple):
    """Entries of the log that pass a filter."""

    entries: list[Entry]
    epoch: int
    upto: int
    """How far the log was looked through."""
    head: int


class LogFollowing(HomeSource[LogChange]):
    """Follows the log by offset."""

    def __init__(
        self, engine: NodeEngine, since: Since, filter: Filter, ops: Collection[str] = ()
    ) -> None:
        """`ops` are those that the filter cannot tell apart; none means all."""
        super().__init__(engine)
        self._filter, self._ops = filter.check(), frozenset(ops)
        self._cursor = engine.read("log.head", lambda tx: _place(tx, since))
        self._looked = self._cursor.offset

    @property
    def cursor(self) -> LogCursor:
        return self._cursor

    def pop(self) -> LogChange:
        change = self._ready.popleft()
        offset = change.offset if self._ready else self._looked
        self._cursor = self._cursor._replace(offset=offset)
        return change

    def read(self) -> bool:
        while not self._ready:
            page = self.engine.read("log.watch", self._page)
            self._looked = page.upto
            kept = [one for one in page.entries if not self._ops or one.op in self._ops]
            self._ready.extend(LogChange(entry, page.epoch) for entry in kept)
            if not self._ready:
                self._cursor = self._cursor._replace(offset=page.upto)
                if page.upto >= page.head:
                    return False
        return True

    def _page(self, tx: Reader) -> WatchedPage:
        return log_page(tx, self._cursor._replace(offset=self._looked), self._filter)


def log_page(
    tx: Reader, cursor: LogCursor, filter: Filter, bytes_max: int = FETCH_BYTES_MAX
) -> WatchedPage:
    """The entries after a cursor: as many as fit into a page."""
    epoch, (first, head) = tx.epoch(), tx.log_bounds()
    check_place(cursor, epoch=epoch, first=first, head=head)
    found = tx.log_columns(cursor.offset + 1, head + 1, CHUNK_ROWS, bytes_max, filter)
    return WatchedPage(_entries(found), epoch, found.upto, head)


def watch_filter(
    *,
    mesh: str | None = None,
    ops: Iterable[str] = (),
    prefix: str = "",
    peer: str | None = None,
    families: Iterable[str] = (),
) -> tuple[Filter, frozenset[str]]:
    """A filter, and the ops that it cannot tell apart itself. An op may be named by its family
    alone: `task` is every turn of a task.
    """
    chosen = _chosen_ops(ops)
    of = {family_of(op) for op in chosen} | set(families)
    terms = Filter(
        meshes=() if mesh is None else (mesh,),
        subjects=(prefix,) if prefix else (),
        classes=tuple(sorted(data_class_of(family).value for family in of)),
        origins=() if peer is None else (peer,),
    )
    return terms.check(), chosen


def _chosen_ops(given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise BadInput("ops is one text, not a list of texts", hint="write ops=['…']")
    chosen: set[str] = set()
    for name in given:
        found = {op for op in OPS if name in (op, family_of(op))}
        if not found:
            raise BadInput(f"there is no op {name!r}", hint=f"use one of {', '.join(sorted(OPS))}")
        chosen |= found
    return frozenset(chosen)


def _place(tx: Reader, since: Since) -> LogCursor:
    first, head = tx.log_bounds()
    return resolve_since(since, epoch=tx.epoch(), first=first, head=head)


def _entries(found: Columns) -> list[Entry]:
    columns = (getattr(found, name) for name in Entry.__struct_fields__)
    return [Entry(*row) for row in zip(*columns, strict=True)]
