"""The pages that the peer of one link is to be sent: what it asked for, what is pushed to it."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from holdfast.node.bus.meshes import mesh_serve
from holdfast.node.bus.meshes.grants import MeshPeer
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_figures import MeshLinkFigures
from holdfast.protocol.bus_mesh import EntriesPage, EntriesRefused, StreamNamed
from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    StreamName,
    StreamNumbers,
    cover_all,
    without,
)
from holdfast.rules.errors import EntryDamaged, NotGranted, OverLimit
from holdfast.rules.frontier import Range
from holdfast.rules.limits import BUS_OWED_RANGES_MAX


class SharingLink(Protocol):
    """The link, of which may change what it shares while a page is read."""

    @property
    def shared(self) -> list[str]: ...


class OwedPages:
    """Ranges of streams, each stream's in the order in which they came to be owed."""

    def __init__(
        self,
        context: MeshContext,
        who: MeshPeer,
        label: str,
        given: StreamNumbers,
        figures: MeshLinkFigures,
    ) -> None:
        self._context, self._who, self._label = context, who, label
        self._given, self._figures = given, figures
        self.ranges: dict[StreamName, list[Range]] = {}

    def owe(self, name: StreamName, ranges: tuple[Range, ...]) -> None:
        """These are to be sent. Raises OverLimit if too much is owed already."""
        owed = self.ranges.setdefault(name, [])
        # A peer may ask for what is pushed to it at that moment.
        for start, end in without(ranges, cover_all(NOTHING, owed)):
            if owed and owed[-1][1] == start:
                owed[-1] = (owed[-1][0], end)
            else:
                owed.append((start, end))
        if sum(map(len, self.ranges.values())) > BUS_OWED_RANGES_MAX:
            raise OverLimit(f"{self._who.name} asks for more than {BUS_OWED_RANGES_MAX} ranges")

    async def next(self, link: SharingLink) -> EntriesPage | EntriesRefused:
        """The next page, or why there is none. Of what is no longer shared the rest is dropped."""
        context = self._context
        name, owed = next(iter(self.ranges.items()))
        wanted = owed.pop(0)
        if not owed:
            del self.ranges[name]
        number, is_new = self._given.give(name)
        try:
            served = await context.run(
                partial(
                    mesh_serve.read_stream_page,
                    *(context.engine, context.grants, self._who, name, wanted),
                )
            )
        except (NotGranted, EntryDamaged) as error:
            self.ranges.pop(name, None)
            return EntriesRefused(number, error.code)
        if served is None:
            return EntriesRefused(number, "not_here")
        if served.end < wanted[1] and name.mesh in link.shared:
            self.ranges.setdefault(name, []).insert(0, (served.end, wanted[1]))
        seqs, raws, _ = served.page
        dense = not seqs or (seqs[0] == served.start and seqs[-1] - seqs[0] + 1 == len(seqs))
        context.spread.sent(self._label, name, served.start, served.end)
        self._figures.entries_sent += len(raws)
        named = named_of(context, name) if is_new else None
        return EntriesPage(number, served.start, served.end, [] if dense else seqs, raws, named)


def named_of(context: MeshContext, name: StreamName) -> StreamNamed:
    """A stream as it is named once on a link."""
    return StreamNamed(name.mesh, name.origin, name.epoch, context.key_of(name))
