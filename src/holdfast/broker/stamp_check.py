"""Stamps that are too high: refused here, before they reach a single node.

A broker knows no mesh's clock, and nearly always needs none: a stamp that is below what any mesh
can have given by now (`rules.lamport.ceiling`) passes. For one above it, the broker looks at the
newest stamps that the mesh has here. If those are as high, the clock of the mesh was worn by a
version that did not bound it, and its members go on in small steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadStamp
from holdfast.rules.lamport import ceiling, check_incoming
from holdfast.rules.limits import FETCH_BYTES_MAX
from holdfast.rules.push_columns import highest_stamp
from holdfast.storage.broker.port import BrokerStore

_NEWEST: Final = 256
"""Rows of a mesh in which its clock is looked for."""


def is_high(batch: Sequence[PushedEnvelope], now_ms: int) -> bool:
    """Whether one of the stamps needs a closer look."""
    return highest_stamp(batch) > ceiling(now_ms)


async def refused_stamps(
    store: BrokerStore, batch: Sequence[PushedEnvelope], now_ms: int
) -> dict[int, BadStamp]:
    """Why envelopes of a batch for one mesh are refused, by their place in it."""
    if await store.member_get(batch[0].mesh, batch[0].sender) is None:
        return {}  # the store refuses all of them, and a stranger learns nothing about the mesh
    value = await _clock_of(store, batch[0].mesh)
    found: dict[int, BadStamp] = {}
    for at, one in enumerate(batch):
        try:
            check_incoming(value, one.lamport, now_ms)
        except BadStamp as error:
            found[at] = error
        else:
            value = max(value, one.lamport)
    return found


async def _clock_of(store: BrokerStore, slug: str) -> int:
    """The highest of the newest stamps that the broker holds of a mesh; 0 if it holds none."""
    mesh = await store.mesh_get(slug)
    if mesh is None:
        return 0
    after = max(mesh.seq - _NEWEST, 0)
    page = await store.log_page(slug, after, mesh.seq, _NEWEST, FETCH_BYTES_MAX)
    return max((decode_trusted(row.raw).lamport for row in page.rows), default=0)
