"""What one member is sent of the meshes that it follows.

A feed is a run of ranges, with cursors into it:

    saved_upto ≤ acked_upto ≤ sent_upto ≤ scanned_upto      and  sent_upto ≤ urgent_upto

`scanned_upto` is up to where the store was looked through, `sent_upto` up to where the member was
sent what is for it; between the two lies nothing for this member. `acked_upto` is what it has
confirmed (`Confirmed`), `saved_upto` how much of that the store knows. Only a few frames may be
under way unconfirmed, so a slow member is not overrun. When it lags, urgent messages overtake
(`Urgent`), up to `urgent_upto`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from holdfast.broker.access import mesh_position, require_member, require_mesh
from holdfast.broker.verdicts import problem_of
from holdfast.protocol.frames import (
    CommitsAt,
    Confirmed,
    Entries,
    Follow,
    FromBroker,
    MeshMoved,
    Refusal,
    SnapshotNeeded,
    Urgent,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import BrokerMesh, FeedPage
from holdfast.rules.errors import BadValue, HoldfastError, OverLimit, Refused, Truncated
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")


class Feed:
    """One mesh that the member follows."""

    __slots__ = (
        *("epoch", "own", "sent_upto", "scanned_upto", "urgent_upto", "acked_upto", "saved_upto"),
        *("saved_at", "last", "under_way", "news", "urgent", "topics"),
        *("wants_commits", "commits_told"),
    )

    def __init__(
        self, epoch: int, after: int, own: bool, topics: Collection[str], now: int
    ) -> None:
        self.epoch, self.own = epoch, own
        self.sent_upto = self.scanned_upto = self.urgent_upto = after
        self.acked_upto = self.saved_upto = after
        self.under_way: deque[int] = deque()
        self.news = True
        self.urgent = False
        self.topics: set[str] = set(topics)
        self.saved_at = now
        self.last = after
        """The last seq of the mesh when the store was last read."""
        self.wants_commits = False
        self.commits_told = 0

    @property
    def has_room(self) -> bool:
        return len(self.under_way) < limits.FEED_FRAMES_MAX


class FeedSizes:
    """How large the frames of a feed are for each member, by how its line bore the last ones; what
    all connections of a broker share.

    A frame that a line breaks under is lost as a whole. So a member whose connection ended with
    frames that it had not confirmed is sent half as much next time, down to one envelope, and twice
    as much again with every frame that it confirms.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, int] = OrderedDict()

    def of(self, key: bytes) -> int:
        """Bytes of envelopes in one frame for a member; one envelope always fits."""
        return self._by_key.get(key, limits.FEED_BYTES)

    def broke(self, key: bytes) -> None:
        """A connection ended with frames that were not confirmed."""
        self._by_key[key] = max(limits.FEED_BYTES_MIN, self.of(key) // 2)
        self._by_key.move_to_end(key)
        if len(self._by_key) > limits.FEED_SIZES_MAX:
            self._by_key.popitem(last=False)

    def arrived(self, key: bytes) -> None:
        """The member has confirmed a frame."""
        size = self._by_key.pop(key, None)
        if size is not None and 2 * size < limits.FEED_BYTES:
            self._by_key[key] = 2 * size


class Feeds:
    """All feeds of one connection."""

    def __init__(
        self,
        store: BrokerStore,
        name: str,
        key: bytes,
        clock: Callable[[], int],
        may_begin_epoch: Callable[[str], bool],
        sizes: FeedSizes | None = None,
    ) -> None:
        """`sizes` is what the connections of one broker share."""
        self._store, self._name, self._key, self._clock = store, name, key, clock
        self._sizes = sizes or FeedSizes()
        self._may_begin_epoch = may_begin_epoch
        self.by_mesh: dict[str, Feed] = {}

    # --- what the member says --------------------------------------------------------------

    async def follow(self, frame: Follow) -> list[FromBroker]:
        if frame.mesh not in self.by_mesh and len(self.by_mesh) >= limits.FOLLOWS_MAX:
            raise OverLimit(f"a connection follows {limits.FOLLOWS_MAX} meshes at most")
        member = await require_member(self._store, frame.mesh, self._key, "read")
        mesh = await require_mesh(self._store, frame.mesh)
        if frame.epoch == mesh.epoch and frame.after > mesh.seq:
            mesh = await self._gone_back(mesh, frame.after)
        if frame.epoch != mesh.epoch or not 0 <= frame.after <= mesh.seq:
            self.by_mesh.pop(frame.mesh, None)
            return [MeshMoved(await mesh_position(self._store, mesh, member))]
        topics = await self._store.subscriptions(frame.mesh, self._key)
        feed = Feed(mesh.epoch, frame.after, frame.own, topics, self._clock())
        feed.last, feed.wants_commits = mesh.seq, frame.commits
        self.by_mesh[frame.mesh] = feed
        return []

    async def _gone_back(self, mesh: BrokerMesh, seen: int) -> BrokerMesh:
        """A member has seen what this store does not have: it must have been restored, in a way
        that it could not notice by itself.
        """
        if not self._may_begin_epoch(mesh.slug):
            return mesh
        log.warning(
            "mesh %r ends at seq %d, but %r has seen %d: a new epoch begins",
            *(mesh.slug, mesh.seq, self._name, seen),
        )
        reason = f"a member has seen seq {seen}, this store ends at {mesh.seq}"
        made = await self._store.new_epoch(mesh.slug, reason, self._clock())
        return made[0] if made else mesh

    async def unfollow(self, mesh: str) -> None:
        await self._save_acked(mesh)
        self.by_mesh.pop(mesh, None)

    async def confirmed(self, frame: Confirmed) -> None:
        feed = self.by_mesh.get(frame.mesh)
        if feed is None or frame.epoch != feed.epoch:
            return  # of a feed that has ended
        if not 0 <= frame.seq <= feed.sent_upto:
            raise BadValue(f"seq {frame.seq} of mesh {frame.mesh!r} was not sent yet")
        while feed.under_way and feed.under_way[0] <= frame.seq:
            feed.under_way.popleft()
            self._sizes.arrived(self._key)
        feed.acked_upto = max(feed.acked_upto, frame.seq)
        if self._clock() - feed.saved_at >= limits.GOT_SAVED_MS:
            await self._save_acked(frame.mesh)

    async def _save_acked(self, mesh: str) -> None:
        feed = self.by_mesh.get(mesh)
        if feed is not None and feed.acked_upto > feed.saved_upto:
            feed.saved_upto, feed.saved_at = feed.acked_upto, self._clock()
            await self._store.member_got(
                mesh, self._key, feed.epoch, feed.acked_upto, feed.saved_at
            )

    async def ended(self) -> None:
        """The connection is gone: writes down what was confirmed."""
        if any(feed.under_way for feed in self.by_mesh.values()):
            self._sizes.broke(self._key)
        for mesh in list(self.by_mesh):
            await self._save_acked(mesh)

    # --- what is sent --------------------------------------------------------------------------

    def news(self, mesh: str, *, urgent: bool) -> None:
        feed = self.by_mesh.get(mesh)
        if feed is not None:
            feed.news = True
            feed.urgent = feed.urgent or urgent

    def look(self, known: Callable[[str], int] | None = None) -> None:
        """Marks feeds as having news: all of them now and then, should a wake-up have got lost; or,
        with `known` (the last seq of a mesh, as far as this process knows), those that have not
        scanned so far. What lies there is not for this member, but its cursor should pass it.
        """
        for mesh, feed in self.by_mesh.items():
            if known is None or known(mesh) > feed.scanned_upto:
                feed.news = True

    @property
    def eager(self) -> bool:
        return any(feed.news and (feed.has_room or feed.urgent) for feed in self.by_mesh.values())

    async def pages(self, room: int) -> list[FromBroker]:
        """The frames to send now, with about `room` bytes at most."""
        out: list[FromBroker] = []
        for mesh, feed in list(self.by_mesh.items()):
            if feed.news and feed.has_room and room > 0:
                found = await self._or_refusal(mesh, self._page(mesh, feed))
                room -= sum(_size(one) for one in found)
                out += found
            urgent, feed.urgent = feed.urgent, False
            if feed.news and urgent and self.by_mesh.get(mesh) is feed:
                out += await self._or_refusal(mesh, self._urgent(mesh, feed))
        return out

    async def _or_refusal(
        self, mesh: str, work: Coroutine[Any, Any, list[FromBroker]]
    ) -> list[FromBroker]:
        """The frames that `work` finds; a refusal if the member may no longer read the mesh."""
        try:
            found: list[FromBroker] = await work
            return found
        except HoldfastError as error:
            if not isinstance(error, Refused) or error.http_status >= 500:
                log.warning("the feed of mesh %r waits: %s", mesh, error.message)
                return []  # the store is busy, failing or closing: the next look tries again
            self.by_mesh.pop(mesh, None)
            return [Refusal(mesh, problem_of(error))]

    async def _page(self, mesh: str, feed: Feed) -> list[FromBroker]:
        # Before the look: what comes during it is news again.
        feed.news = False
        try:
            page = await self._store.feed(
                mesh,
                self._key,
                feed.scanned_upto,
                limits.FEED_ROWS,
                self._sizes.of(self._key),
                own=feed.own,
            )
        except Truncated as error:
            return await self._fell_behind(mesh, error)
        if self.by_mesh.get(mesh) is not feed:
            return []  # followed anew meanwhile
        if page.epoch != feed.epoch:
            return await self._moved(mesh)
        feed.scanned_upto, feed.last = page.to, page.last
        feed.news = feed.news or page.to < page.last
        # A range with nothing in it is left to `passed_over`, which sends several as one.
        found: list[FromBroker] = [self._entries(mesh, feed, page)] if page.rows else []
        return [*found, *_commits_told(mesh, feed, page.commits)]

    def _entries(self, mesh: str, feed: Feed, page: FeedPage) -> Entries:
        entries = Entries(mesh, page.epoch, feed.sent_upto, page.to, page.rows, page.last)
        feed.sent_upto = page.to
        feed.urgent_upto = max(feed.urgent_upto, page.to)
        feed.under_way.append(page.to)
        return entries

    def passed_over(self) -> list[FromBroker]:
        """Empty pages, for ranges in which nothing is for this member: its cursor moves on."""
        out: list[FromBroker] = []
        for mesh, feed in self.by_mesh.items():
            if feed.scanned_upto > feed.sent_upto and feed.has_room:
                page = FeedPage(
                    epoch=feed.epoch,
                    after=feed.sent_upto,
                    to=feed.scanned_upto,
                    rows=[],
                    last=feed.last,
                )
                out.append(self._entries(mesh, feed, page))
        return out

    async def _urgent(self, mesh: str, feed: Feed) -> list[FromBroker]:
        """Urgent messages that lie beyond what the member was sent: they overtake the rest."""
        page = await self._store.express(mesh, self._key, feed.urgent_upto, limits.FEED_ROWS)
        if page.epoch != feed.epoch or page.to <= feed.urgent_upto:
            return []
        feed.urgent_upto = page.to
        feed.urgent = feed.urgent or page.to < page.last  # a full page: there may be more
        return [Urgent(mesh, page.rows)] if page.rows else []

    async def _moved(self, mesh: str) -> list[FromBroker]:
        self.by_mesh.pop(mesh, None)
        member = await require_member(self._store, mesh, self._key)
        return [
            MeshMoved(
                await mesh_position(self._store, await require_mesh(self._store, mesh), member)
            )
        ]

    async def _fell_behind(self, mesh: str, error: Truncated) -> list[FromBroker]:
        self.by_mesh.pop(mesh, None)
        found = await self._store.snapshot_get(mesh)
        if found is None:
            return [SnapshotNeeded(mesh, error.first_available, "", 0)]
        return [SnapshotNeeded(mesh, error.first_available, found.id, found.seq)]


def _commits_told(mesh: str, feed: Feed, number: int) -> list[FromBroker]:
    if not feed.wants_commits or number <= feed.commits_told:
        return []
    feed.commits_told = number
    return [CommitsAt(mesh, number)]


def _size(frame: FromBroker) -> int:
    return sum(len(row.raw) for row in frame.rows) if isinstance(frame, Entries) else 0
