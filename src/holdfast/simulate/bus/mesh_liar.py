"""A member that lies: it may not relay, and brings pages of a stream that another member writes.

It speaks by the link of its process, in the words of the protocol and under the number that the
stream has there, so nothing but its grants can give it away. A page holds an entry that its origin
never wrote, or claims that there is nothing under some numbers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from holdfast.node.bus.meshes.mesh_link import MeshLink
from holdfast.node.bus.meshes.owed_pages import named_of
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.bus_mesh import EntriesPage, encode_word
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.envelope import decode_trusted, encode
from holdfast.simulate.bus.mesh_books import MESH
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.simulate.bus.home_machine import HomeMachine
    from holdfast.simulate.bus.home_program import HomeProgram


def lie(machine: HomeMachine, program: HomeProgram, rng: random.Random) -> bool:
    """Brings one page to one peer; False if there is nobody to lie to, or nothing to lie about."""
    if program.exchange is None or machine.node is None:
        return False
    links = [link for link in program.exchange._links.values() if MESH in link.shared]
    links = [link for link in links if not link.refused and link.link.has_room(Stream.MESH, 1)]
    if not links:
        return False
    link = rng.choice(links)
    with machine.weather.fine(), machine.opened.store.read() as tx:
        streams = [row.name for row in tx.stream_list(MESH) if row.covered.last]
        others = [name for name in streams if name.origin not in (machine.name, link.peer)]
        if not others:
            return False
        page = _page(tx, link, rng.choice(others), machine.clock.new_id(), rng)
    link.link.send(FrameKind.MESH, Stream.MESH, encode_word(page))
    return True


def _page(
    tx: Reader, link: MeshLink, name: StreamName, id: bytes, rng: random.Random
) -> EntriesPage:
    row = tx.stream_get(name)
    assert row is not None
    number, is_new = link._given.give(name)
    named = named_of(link._context, name) if is_new else None
    start = row.covered.last + rng.randrange(1, 4)
    real = tx.stream_page(row.number, 1, start, 1, 1)
    if not real.raws or rng.random() < 0.4:
        return EntriesPage(number, start, start + rng.randrange(1, 4), [], [], named)
    envelope = decode_trusted(real.raws[0])
    forged = msgspec.structs.replace(envelope, id=id, seq=start, lamport=envelope.lamport + start)
    return EntriesPage(number, start, start + 1, [], [encode(forged)], named)
