"""Takes snapshots of meshes from the peer of one link, part by part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol, TypeVar

from holdfast.node.bus.meshes import mesh_snapshot
from holdfast.node.bus.meshes.grants import MeshPeer
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.protocol.bus_mesh import MeshSnapshotPart, MeshWord
from holdfast.rules.arrivals import Named
from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    BoundedCoverage,
    StreamName,
    cover_all,
    ranges_of,
)
from holdfast.rules.bus.meshes.streams import StreamRow
from holdfast.rules.bus.meshes.truncated import SnapshotChoice, StreamOffer
from holdfast.rules.errors import BadAnswer, ForgedOrigin, NotGranted, OverLimit, UnknownMesh
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import BUS_SNAPSHOT_BARREN_MAX, BUS_SNAPSHOT_ROWS_MAX

T = TypeVar("T")


class Kept(Protocol):
    """Fetches the objects that are lacking, then stores, for as long as that takes."""

    def __call__(
        self, objects: Callable[[], list[Named]], store: Callable[[Collection[str]], T]
    ) -> Awaitable[T]: ...


class SnapshotPull:
    """The snapshots of one link; at most one of each mesh."""

    def __init__(
        self, context: MeshContext, who: MeshPeer, ask: Callable[[MeshWord], None], kept: Kept
    ) -> None:
        self._context, self._who, self._ask, self._kept = context, who, ask, kept
        self._floors: dict[StreamName, int] = {}
        """Up to where the peer has truncated, of streams for which it is believed."""
        self._brought: dict[StreamName, int] = {}
        """Up to where a snapshot of the peer has brought a stream already."""
        self._taking: dict[str, mesh_snapshot.SnapshotTaking] = {}
        """By mesh."""
        self._asked_at: dict[str, float] = {}
        """When the peer was asked for the part that is not here yet, by mesh."""
        self._barren: dict[str, int] = {}
        """How many parts in a row have brought nothing new, by mesh."""

    def heard(self, name: StreamName, floor: int) -> None:
        """The peer, which is believed for this stream, has truncated it up to a number, or not."""
        self._floors[name] = floor
        if floor:
            self._context.fill_gaps()

    def forget(self) -> None:
        """What is shared has changed: the peer tells everything again."""
        self._floors.clear()
        self._brought.clear()

    def offers(self, has: BoundedCoverage) -> dict[StreamName, StreamOffer]:
        """Of what the peer could send a snapshot, given what it has or had."""
        return {name: self._offer(name, has.get(name, NOTHING)) for name in self._floors}

    def _offer(self, name: StreamName, has: Frontier) -> StreamOffer:
        floor = self._floors[name]
        if floor <= self._brought.get(name, -1):
            # A second one would bring no more; what it has of entries still counts.
            has = cover_all(NOTHING, ranges_of(has, floor))
        return StreamOffer(has, floor)

    def waits_since(self, mesh: str) -> float | None:
        """Since when the peer owes a part, by the loop's clock; None if it owes none."""
        return self._asked_at.get(mesh)

    async def take(self, choice: SnapshotChoice, own: bool) -> None:
        """Asks for a snapshot, or goes on with one. `own`: of what the peer wrote itself."""
        engine = self._context.engine
        begin = partial(mesh_snapshot.begin_snapshot, engine, self._who, choice, own)
        self._ask_on(await self._context.run(begin))

    def _ask_on(self, taking: mesh_snapshot.SnapshotTaking) -> None:
        self._taking[taking.mesh] = taking
        self._asked_at[taking.mesh] = asyncio.get_running_loop().time()
        self._ask(taking.question())

    async def came(self, part: MeshSnapshotPart) -> tuple[int, list[StreamRow], str]:
        """Stores a part, and asks for the next. Returns how many entries were new, the streams
        whose coverage has changed with the last part, and why it has ended before that.
        """
        taking, context = self._taking.get(part.mesh), self._context
        if taking is None:
            raise BadAnswer("a peer sent a part of a snapshot that was not asked for")
        self._asked_at.pop(part.mesh, None)
        arrivals = await context.run(partial(mesh_snapshot.decode_part, part, self._who, taking))
        may_bring = (context.engine, context.grants, self._who, taking)
        try:
            received = await self._kept(
                partial(mesh_snapshot.objects_of_part, *may_bring, arrivals),
                partial(mesh_snapshot.receive_part, *may_bring, part, arrivals),
            )
        except (NotGranted, UnknownMesh, ForgedOrigin) as error:
            return 0, [], self.refused(part.mesh, error.message)
        new = received.taking.new - taking.new
        self._check_ends(received.taking, new)
        if received.streams is not None:
            del self._taking[part.mesh]
            self._barren.pop(part.mesh, None)
            self._brought |= {
                StreamName(part.mesh, origin, epoch): floor
                for origin, epoch, floor, _ in taking.claims
            }
            context.filled(part.mesh)
            return new, received.streams, ""
        if part.place is not None:
            self._ask_on(received.taking)
        else:
            self._taking[part.mesh] = received.taking
            self._asked_at[part.mesh] = asyncio.get_running_loop().time()
        return new, [], ""

    def _check_ends(self, taking: mesh_snapshot.SnapshotTaking, new: int) -> None:
        """A snapshot that does not end holds up the one that an honest peer would send. Raises
        OverLimit.
        """
        barren = self._barren[taking.mesh] = 0 if new else self._barren.get(taking.mesh, 0) + 1
        if barren > BUS_SNAPSHOT_BARREN_MAX or taking.rows > BUS_SNAPSHOT_ROWS_MAX:
            raise OverLimit(
                f"a snapshot of {taking.mesh!r} does not end: {taking.rows} changes so far, and "
                f"nothing new in {barren} parts"
            )

    def end(self) -> None:
        """The peer is not listened to any more: others are asked for what it was to bring."""
        for mesh in list(self._taking):
            self.refused(mesh, "")

    def refused(self, mesh: str, problem: str) -> str:
        """A snapshot comes to nothing; what was stored of it stays. Returns the problem."""
        if self._taking.pop(mesh, None) is None:
            return ""
        self._asked_at.pop(mesh, None)
        self._barren.pop(mesh, None)
        for name in [name for name in self._floors if name.mesh == mesh]:
            del self._floors[name]  # until the peer tells of it again
        context = self._context
        context.start(context.run(partial(mesh_snapshot.give_up_snapshot, context.engine, mesh)))
        context.filled(mesh)
        return problem
