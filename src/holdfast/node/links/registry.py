"""The links of a node, as they are stored: added, looked at, paused, removed.

Everything here is a row in the store. The daemon pulls (`node/links/worker.py`): it reads the rows,
and carries a change out when it looks again. So a link can be changed with no daemon running, and a
daemon that starts finds it as it was left.

Two things need the source itself: to skip what the source no longer holds, this node asks what it
holds; and when a link is removed, the source should know that its reader is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Intake, objection
from holdfast.node.core.object_transfer import Pulled, pull_objects
from holdfast.node.core.receive import Incoming
from holdfast.node.links import receive
from holdfast.node.links.snapshot import give_up_snapshot, snapshot_job, take_snapshot
from holdfast.node.links.source import LinkSource, Reach, reach_by, registration_of
from holdfast.node.snapshots.places import place_of
from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import Fetch
from holdfast.rules.arrivals import objects_of, read_arrivals
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    HoldfastError,
    OverLimit,
    Truncated,
    UnknownConsumer,
    UnknownKey,
    UnknownLink,
    UnknownMesh,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS, LINKS_MAX
from holdfast.rules.links import carries_of, check_link_name, check_url, consumer_name, origins_of
from holdfast.rules.names import meant_peer
from holdfast.rules.outbox import is_lane, mesh_of
from holdfast.rules.rows import BlobRow, LinkRow, QuarantineRow, ZoneRow
from holdfast.storage.ports import Reader, Transaction


class LinkView(msgspec.Struct, frozen=True):
    """A link as it is stored."""

    name: str
    zone: str
    url: str
    meshes: tuple[str, ...]
    subjects: tuple[str, ...]
    classes: tuple[str, ...]
    carries: tuple[str, ...]
    """Whose entries the zone may bring: `own`, `any`, or names."""
    paused: bool
    epoch: int
    cursor: int
    quarantined: int
    added_at: int
    moved_at: int | None

    @classmethod
    def of(cls, row: LinkRow, quarantined: int) -> LinkView:
        return cls(
            name=row.name,
            zone=row.zone,
            url=row.url,
            meshes=row.filter.meshes,
            subjects=row.filter.subjects,
            classes=row.filter.classes,
            carries=carries_of(row.zone, row.filter),
            paused=row.paused,
            epoch=row.epoch,
            cursor=row.cursor,
            quarantined=quarantined,
            added_at=row.added_at,
            moved_at=row.moved_at,
        )


class RemovedLink(msgspec.Struct, frozen=True):
    """A link that is gone, and whether its source was told."""

    name: str
    zone: str
    consumer: str
    told: bool
    why_not: str = ""


class Retried(msgspec.Struct, frozen=True):
    """What became of quarantined envelopes that were tried again."""

    passed: int
    refused: int


class Links:
    """The links of one node. Safe to use from any thread."""

    def __init__(self, engine: NodeEngine, trust: Trust, reach: Reach | None = None) -> None:
        self._engine = engine
        self._reach = reach_by(trust) if reach is None else reach

    # --- looking -----------------------------------------------------------------------------

    def list(self) -> list[LinkView]:
        def read(tx: Reader) -> list[LinkView]:
            return [LinkView.of(row, tx.quarantine_count(row.name)) for row in tx.link_list()]

        return self._engine.read("link.list", read)

    def get(self, name: str) -> LinkView:
        def read(tx: Reader) -> LinkView:
            return LinkView.of(_require(tx, name), tx.quarantine_count(name))

        return self._engine.read("link.get", read)

    # --- changing ----------------------------------------------------------------------------

    def add(
        self,
        name: str,
        url: str,
        zone: str,
        *,
        meshes: Sequence[str],
        subjects: Sequence[str] = (),
        classes: Sequence[str] = (),
        carries: Sequence[str] = ("own",),
        paused: bool = False,
    ) -> LinkView:
        """Makes a link to a zone that is trusted here. It takes entries of the zone itself, unless
        `carries` names others, or `any`. It begins at the beginning, or, in a home that was made
        from a snapshot, where the snapshot ends.
        """
        ctx = self._engine.ctx
        zone, carries = meant_peer(zone), [meant_peer(origin) for origin in carries]
        check_link_name(name)
        consumer_name(ctx.peer, name)
        if zone == ctx.peer:
            raise BadInput(f"{zone!r} is this node itself", hint="name the zone to pull from")
        if not meshes:
            raise BadInput("a link pulls one mesh at least", hint="name it with --mesh NAME")
        row = LinkRow(
            name=name,
            url=check_url(url),
            zone=zone,
            filter=Filter(
                meshes=tuple(sorted(set(meshes))),
                subjects=tuple(sorted(set(subjects))),
                classes=tuple(sorted(set(classes))),
                origins=origins_of(zone, carries),
            ).check(),
            paused=paused,
            added_at=ctx.now_ms(),
        )

        def work(tx: Transaction) -> LinkView:
            _check_trusted(tx.zone_get(zone), zone)
            for mesh in row.filter.meshes:
                if tx.mesh_get(mesh) is None:
                    raise UnknownMesh(
                        f"there is no mesh {mesh!r} here to take entries into",
                        hint=f"create it with: holdfast mesh create {mesh}",
                    )
            if tx.link_get(name) is not None:
                raise AlreadyExists(
                    f"there is a link {name!r} already",
                    hint="choose another name with --name, or remove it: "
                    f"holdfast link remove {name}",
                )
            if len(tx.link_list()) >= LINKS_MAX:
                raise OverLimit(f"a node has {LINKS_MAX} links at most")
            epoch, cursor = place_of(tx, zone, row.filter.meshes)
            placed = msgspec.structs.replace(row, epoch=epoch, cursor=cursor)
            tx.link_put(placed)
            return LinkView.of(placed, 0)

        return self._engine.write("link.add", work)

    def pause(self, name: str) -> LinkView:
        return self._set_paused(name, True)

    def resume(self, name: str, *, skip_missing: bool = False) -> LinkView:
        """Lets a link go on. With `skip_missing` it goes on behind what its source no longer holds:
        this node asks the source where that is, and nothing changes if the source does not answer.
        """
        if skip_missing:
            self._skip_missing(name)
        return self._set_paused(name, False)

    def remove(self, name: str) -> RemovedLink:
        """Forgets a link and its quarantine; what it brought stays. The source is told if it can be
        reached: else it goes on keeping its log for a reader that is gone.
        """

        def work(tx: Transaction) -> LinkRow:
            row = _require(tx, name)
            tx.link_drop(name)
            tx.job_drop(snapshot_job(name))
            return row

        row = self._engine.write("link.remove", work)
        consumer = consumer_name(self._engine.ctx.peer, name)
        try:
            with closing(self._reach(row)) as source:
                source.retire(consumer)
        except UnknownConsumer:
            pass  # it has never been there, or was retired before: as it should be
        except HoldfastError as error:
            return RemovedLink(name, row.zone, consumer, told=False, why_not=error.message)
        return RemovedLink(name, row.zone, consumer, told=True)

    def _set_paused(self, name: str, paused: bool) -> LinkView:
        def work(tx: Transaction) -> LinkView:
            row = msgspec.structs.replace(_require(tx, name), paused=paused)
            tx.link_put(row)
            return LinkView.of(row, tx.quarantine_count(name))

        return self._engine.write("link.pause", work)

    def missing(self, name: str) -> int | None:
        """How many of the entries that come next for a link its source no longer holds: `resume`
        would skip so many. None if the source has no reader for it, or no more, and so cannot say.
        """
        row = self._engine.read("link.get", lambda tx: _require(tx, name))
        with closing(self._reach(row)) as source:
            try:
                source.fetch(self._next(row))
            except UnknownConsumer:
                return None
            except Truncated as gone:
                return gone.first_available - row.cursor - 1
        return 0

    def _next(self, row: LinkRow) -> Fetch:
        """A question for the entry that comes next."""
        return Fetch(
            consumer=consumer_name(self._engine.ctx.peer, row.name),
            limit=1,
            start=row.cursor + 1,
            epoch=row.epoch or None,
        )

    def _skip_missing(self, name: str) -> None:
        row = self._engine.read("link.get", lambda tx: _require(tx, name))
        with closing(self._reach(row)) as source:
            # It may have been retired, which is how entries come to be missing.
            source.register(registration_of(row, self._engine.ctx.peer))
            try:
                source.fetch(self._next(row))
            except Truncated as gone:
                self._take_what_there_is(source, row)
                receive.skip_to(self._engine, name, gone.first_available)

    def _take_what_there_is(self, source: LinkSource, row: LinkRow) -> None:
        """What the tables of the source still show is not missing. A source of an earlier version
        gives nothing.
        """
        if row.epoch:
            try:
                take_snapshot(self._engine, source, row, partial_too=True)
            except Truncated:
                give_up_snapshot(self._engine, row)

    # --- quarantine --------------------------------------------------------------------------

    def quarantine(
        self, name: str, after: int = 0, limit: int = CHUNK_ROWS
    ) -> Sequence[QuarantineRow]:
        """Envelopes that a link brought and this node refused, oldest first, from behind the number
        `after`. The lane of a shared mesh (`broker:MESH`) has a quarantine, too.
        """

        def read(tx: Reader) -> list[QuarantineRow]:
            _bringing(tx, name)
            return tx.quarantine_list(name, after, limit)

        return self._engine.read("link.quarantine", read)

    def retry_quarantined(self, name: str) -> Retried:
        """Tries all of a link's quarantine again: what passes now is taken in and leaves it.
        Objects that the envelopes name and that are not here are asked of the source first.
        """
        link = self._engine.read("link.get", lambda tx: _bringing(tx, name))
        passed = refused = after = 0
        while rows := self.quarantine(name, after):
            after = rows[-1].number
            if link is not None:
                self._bring_objects(link, [kept.raw for kept in rows])
            taken = self._engine.write("intake", _Retry(self._engine, name, rows))
            passed += taken
            refused += len(rows) - taken
        return Retried(passed, refused)

    def _bring_objects(self, link: LinkRow, raws: Sequence[bytes]) -> None:
        named = [blob.sha256 for blob in objects_of(read_arrivals(raws))]
        wanted = [sha for sha in named if not self._engine.blobs.exists(sha)]
        if wanted:
            with closing(self._reach(link)) as source:
                pull_objects(self._engine, source, wanted, lambda pulled: None, lambda: False)

    # --- objects -----------------------------------------------------------------------------

    def bring_objects(self, name: str) -> Pulled:
        """Asks a link's source for every object that rows here name and that is not here, as after
        a restore from a snapshot, which has none. Returns what came, and how many are still
        missing.
        """
        link = self._engine.read("link.get", lambda tx: _require(tx, name))
        total = Pulled()

        def count(some: Pulled) -> None:
            total.objects += some.objects
            total.missing += some.missing
            total.bytes += some.bytes

        with closing(self._reach(link)) as source:
            for wanted in self._missing_objects():
                pull_objects(self._engine, source, wanted, count, lambda: False)
        return total

    def _missing_objects(self) -> Iterator[Sequence[str]]:
        after = ""
        while page := self._engine.read("blobs", partial(_blobs_after, after)):
            after = page[-1].sha256
            named = [row.sha256 for row in page if row.released_at is None]
            wanted = [sha for sha in named if not self._engine.blobs.exists(sha)]
            if wanted:
                yield wanted

    def drop_quarantined(self, number: int) -> None:
        """Gives up one quarantined envelope for good; UnknownKey if no envelope has this number."""

        def work(tx: Transaction) -> None:
            if not tx.quarantine_drop(number):
                raise UnknownKey(
                    f"there is no quarantined envelope {number}",
                    hint="see: holdfast link quarantine NAME",
                )

        self._engine.write("link.quarantine", work)

    def drop_all_quarantined(self, name: str) -> int:
        """Gives up all quarantined envelopes of a link; returns how many."""
        dropped = 0

        def work(tx: Transaction) -> int:
            rows = tx.quarantine_list(name, 0, CHUNK_ROWS)
            return sum(tx.quarantine_drop(row.number) for row in rows)

        self._engine.read("link.get", lambda tx: _bringing(tx, name))
        while some := self._engine.write("link.quarantine", work):
            dropped += some
        return dropped


class _Retry:
    """Takes some quarantined envelopes in, and drops the rows of those that pass, in one
    transaction.
    """

    def __init__(self, engine: NodeEngine, link: str, rows: Sequence[QuarantineRow]) -> None:
        self._engine, self._link, self._rows = engine, link, rows

    def __call__(self, tx: Transaction) -> int:
        rows, row = self._rows, _bringing(tx, self._link)
        if row is None:
            rows = [kept for kept in rows if self._is_of_mesh(kept, tx)]
        raws = [kept.raw for kept in rows]
        if row is None:
            # As when it came: a message among them is for us.
            results = Intake(self._engine.ctx, raws, delivered=dict.fromkeys(raws, b""))(tx)
        else:
            zone = tx.zone_get(row.zone)
            if zone is None:
                raise UnknownZone(f"the zone {row.zone!r} of link {row.name!r} is not known here")
            results = Incoming(self._engine.ctx, read_arrivals(raws), zone.number)(tx)
        passed = 0
        for kept, result in zip(rows, results, strict=True):
            if result.error is None:
                tx.quarantine_drop(kept.number)
                passed += 1
        return passed

    def _is_of_mesh(self, kept: QuarantineRow, tx: Reader) -> bool:
        """A broker that brings one mesh may bring nothing of another, and nothing in our name."""
        (arrival,) = read_arrivals((kept.raw,))
        return objection(self._engine, mesh_of(self._link), arrival, tx) is None


def _blobs_after(after: str, tx: Reader) -> list[BlobRow]:
    return tx.blob_scan(after, CHUNK_ROWS)


def _require(tx: Reader, name: str) -> LinkRow:
    row = tx.link_get(name)
    if row is None:
        raise UnknownLink(f"there is no link {name!r}")
    return row


def _bringing(tx: Reader, name: str) -> LinkRow | None:
    """The link of this name; None if it is the lane of a shared mesh."""
    mesh = tx.mesh_get(mesh_of(name)) if is_lane(name) else None
    return None if mesh is not None and mesh.shared else _require(tx, name)


def _check_trusted(row: ZoneRow | None, zone: str) -> None:
    """A link proves its source by a key that is pinned here: without one it could never begin."""
    if row is None:
        raise UnknownZone(
            f"the zone {zone!r} is not known here",
            hint="run there: `holdfast peer card`; then here: holdfast peer trust CARD",
        )
    if row.blocked_at is not None or not row.keys:
        what = "is blocked here" if row.blocked_at is not None else "has no key here"
        raise ZoneNotTrusted(
            f"the zone {zone!r} {what}", hint="trust it (again) with: holdfast peer trust CARD"
        )
