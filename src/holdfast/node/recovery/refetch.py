"""Fetching damaged entries of the log again, from where they still are.

An entry whose bytes have changed is brought back, in this order: from its own leaf hash, where that
tells the byte that changed; from the broker of its mesh; from the zones that links pull from; from
wherever else the caller knows to look, such as a lake. Bytes from elsewhere replace an entry only
if they have its leaf hash, so it does not matter who answers, or with what. Each entry is replaced
in its place: offset, epoch and readers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.home.opening import open_home
from holdfast.node.links.source import reach_by, registration_of
from holdfast.node.recovery.check_log import damaged_entries
from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import Fetch
from holdfast.rules.envelope import decode
from holdfast.rules.errors import HoldfastError, Refused, Truncated
from holdfast.rules.ids import id_text
from holdfast.rules.leaf import is_that_entry, leaf_of, restored
from holdfast.rules.limits import FETCH_ROWS_MAX, LEAF_SEARCHES_MAX
from holdfast.rules.rows import LinkRow, MeshRow
from holdfast.storage.files.home import require_home
from holdfast.storage.sqlite.log_leaves import remains
from holdfast.storage.sqlite.snapshot_copy import open_read_only

Finder = Callable[[list[str]], Iterable[bytes]]
"""Given the ids of entries, as text: whatever it has under them."""


class Refetched(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries were damaged, and what became of them."""

    mended: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    """Nobody that could be reached has them."""
    troubles: tuple[str, ...] = ()
    """Who could not be asked, and why."""


def refetch_entries(home: Path, finders: Mapping[str, Finder] | None = None) -> Refetched:
    """Brings damaged entries back. What SQLite itself cannot read is left to a repair."""
    paths = require_home(home)
    try:
        damaged = _damaged(paths.database)
        if not damaged:
            return Refetched()
        opened = open_home(home)
    except HoldfastError as error:
        return Refetched(troubles=(error.message,))
    try:
        search = _Search(opened.engine, damaged)
        search.look_here()
        trust = Trust(opened.engine, paths)
        meshes, links = opened.engine.read("doctor", lambda tx: (tx.mesh_list(), tx.link_list()))
        for mesh in meshes:
            if mesh.shared:
                search.ask(f"the broker of {mesh.slug}", partial(search.of_broker, trust, mesh))
        for link in links:
            search.ask(f"link {link.name}", partial(search.of_link, trust, link))
        for name, find in (finders or {}).items():
            search.ask(name, partial(find, search.ids()))
        return search.result()
    finally:
        opened.close()


def _damaged(database: Path) -> dict[int, dict[str, Any]]:
    """What is left of each damaged entry, by its offset."""
    with open_read_only(database) as reader:
        offsets = [offset for offset, _ in damaged_entries(reader)]
        return {offset: remains(reader.connection, offset) for offset in offsets}


class _Search:
    def __init__(self, engine: NodeEngine, damaged: dict[int, dict[str, Any]]) -> None:
        self._engine = engine
        self._left = dict(damaged)
        self._mended: list[int] = []
        self._troubles: list[str] = []

    def result(self) -> Refetched:
        return Refetched(
            mended=tuple(sorted(self._mended)),
            left=tuple(sorted(self._left)),
            troubles=tuple(self._troubles),
        )

    def ids(self) -> list[str]:
        """The ids of what is still looked for, as far as they can be read."""
        ids = (fields.get("id") for fields in self._left.values())
        return [id_text(id) for id in ids if isinstance(id, bytes) and len(id) == 16]

    def look_here(self) -> None:
        for number, (offset, fields) in enumerate(list(self._left.items())):
            raw = restored(fields, search=number < LEAF_SEARCHES_MAX)
            if raw is not None:
                self._put(offset, raw)

    def ask(self, who: str, candidates: Callable[[], Iterable[bytes]]) -> None:
        """Takes what fits from a source; stops as soon as nothing is missing."""
        if not self._left:
            return
        try:
            for raw in candidates():
                self._offer(raw)
                if not self._left:
                    return
        except HoldfastError as error:
            self._troubles.append(f"{who}: {error.message}")

    def of_broker(self, trust: Trust, mesh: MeshRow) -> Iterator[bytes]:
        """First where the entries stood at the broker; then all that it has for us."""
        assert mesh.broker_url is not None, "a shared mesh has a broker"
        assert mesh.broker_card is not None, "a shared mesh has a broker"
        with closing(BrokerClient.of(trust, mesh.broker_url, mesh.broker_card)) as calls:
            for offset in list(self._left):
                for slug, seq in self._places(offset):
                    if slug == mesh.slug:
                        yield from _raws(calls.feed(slug, seq - 1, 1))
            after = 0
            while True:
                page = calls.feed(mesh.slug, after, FETCH_ROWS_MAX)
                yield from _raws(page)
                if page.to >= page.last or page.to <= after:
                    return
                after = page.to

    def of_link(self, trust: Trust, row: LinkRow) -> Iterator[bytes]:
        """The log of a source, from its beginning: it has no index of ours."""
        consumer = registration_of(row, trust.name).consumer
        with closing(reach_by(trust)(row)) as source:
            start = 1
            while True:
                try:
                    batch = source.fetch(Fetch(consumer=consumer, start=start))
                except Truncated as gone:
                    if gone.first_available <= start:
                        raise
                    start = gone.first_available
                    continue
                yield from batch.raws
                if batch.upto >= batch.head or batch.upto < start:
                    return
                start = batch.upto + 1

    def _places(self, offset: int) -> list[tuple[str, int]]:
        return self._engine.read("doctor", lambda tx: tx.broker_positions_at(offset))

    def _offer(self, raw: bytes) -> None:
        leaf = leaf_of(raw)
        for offset, fields in self._left.items():
            if fields.get("leaf") == leaf or is_that_entry(fields, raw):
                try:
                    decode(raw)
                except Refused:
                    return
                self._put(offset, raw)
                return

    def _put(self, offset: int, raw: bytes) -> None:
        self._engine.write("doctor", lambda tx: tx.log_replace(offset, raw))
        del self._left[offset]
        self._mended.append(offset)


def _raws(page: Any) -> list[bytes]:
    return [row.envelope for row in page.rows]
