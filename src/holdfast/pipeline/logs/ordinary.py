"""The columns of ordinary envelopes, checked and read for a whole batch at once.

An envelope is ordinary if it has the usual form (`layout`) and breaks no rule that `rules.envelope`
and `rules.bodies` have for it. This module need not find every good envelope: those that it does
not name are read one by one by the rules themselves (`unpack`). It must never take one that the
rules refuse, and must read the same from those that it takes; property tests compare the two.

Of values that a log has few of, each different one is checked once, by the functions that nodes
use. Of the others (numbers, ids, entities, bodies) whole columns are compared.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.arrow import uuid_texts
from holdfast.pipeline.logs.fields import BasePeer, Classes, Names, Peers, Rest, reading
from holdfast.pipeline.logs.layout import EnvelopeSpans, lay_out
from holdfast.pipeline.logs.ordinary_bodies import Bodies
from holdfast.pipeline.logs.packed import Mask, Numbers, Words, sound_texts
from holdfast.rules import limits
from holdfast.rules.bodies import OPS, OWNED, family_of
from holdfast.rules.fingerprint import FINGERPRINT_BYTES
from holdfast.rules.ids import ID_BYTES

_HEADER: Final = schema.arrow_schema(schema.HEADER)
_ENTITY_BYTES_MAX: Final = min(
    limits.PATH_BYTES_MAX, limits.KEY_BYTES_MAX, limits.SUBJECT_BYTES_MAX
)
_NO_PEER: Final = BasePeer("")


def ordinary(batch: pa.RecordBatch) -> tuple[Numbers, list[pa.Array]]:
    """Which rows of a log are ordinary envelopes, and of these the columns `schema.HEADER`."""
    layout = lay_out(batch.column("raw"))
    layout = layout.only(_sound_numbers(layout))
    return _Ordinary(batch, layout).columns()


def _sound_numbers(layout: EnvelopeSpans) -> Mask:
    sizes = layout.packed.strings.sizes[layout.rows]
    entities = layout.entity.sizes
    fits: Mask = (
        (sizes <= limits.ENVELOPE_BYTES_MAX)
        & (layout.seq >= 1)
        & (layout.seq < limits.LAMPORT_MAX)
        & (layout.lamport >= 1)
        & (layout.lamport < limits.LAMPORT_MAX)
        & (layout.created_at < limits.SOURCE_TIME_MS_MAX)
        & (~layout.based | ((layout.base_lamport >= 1) & (layout.base_lamport < layout.lamport)))
        & (entities >= 1)
        & (entities <= _ENTITY_BYTES_MAX)
        & (layout.meta.sizes <= limits.META_BYTES_MAX)
    )
    return fits


class _Ordinary:
    """One batch; `fits` loses rows while its columns are read."""

    def __init__(self, batch: pa.RecordBatch, layout: EnvelopeSpans) -> None:
        self._layout = layout
        self._log = {name: batch.column(name) for name in batch.schema.names if name != "raw"}
        if len(layout.rows) < batch.num_rows:
            rows = pa.array(layout.rows)
            self._log = {name: column.take(rows) for name, column in self._log.items()}
        cut = layout.packed.cut
        self._names = Words(cut(layout.names), reading(Names))
        self._peers = Words(cut(layout.peers), reading(Peers))
        self._classes = Words(cut(layout.classes), reading(Classes))
        self._rest = Words(cut(layout.rest), reading(Rest))
        self._base_peers = Words(cut(layout.base_peer), _base_peer)
        self._entity = cut(layout.entity)
        self._meta = cut(layout.meta)
        words = (self._names, self._peers, self._classes, self._rest, self._base_peers)
        self.fits: Mask = np.ones(len(layout.rows), dtype=np.bool_)
        for word in words:
            self.fits &= word.fits
        self.fits &= sound_texts(self._entity)
        self.fits &= sound_texts(self._meta)

    def columns(self) -> tuple[Numbers, list[pa.Array]]:
        layout = self._layout
        self._as_the_log_says()
        self._owned()
        bodies = Bodies(layout, self._names, self._rest, self._entity, self._meta)
        self.fits &= bodies.fits
        of_peers, of_classes = self._peers.column, self._classes.column
        columns = [
            of_peers(lambda peers: peers.owner, pa.string()),
            of_peers(lambda peers: peers.epoch, pa.int64()),
            pa.array(layout.seq),
            pa.array(layout.created_at * limits.SECOND_MS).cast(_HEADER.field("created_at").type),
            of_classes(lambda classes: classes.write_class, pa.string()),
            of_classes(lambda classes: classes.state, pa.string()),
            pa.array(layout.base_lamport, mask=~layout.based),
            self._base_peers.column(lambda base: base.peer or None, pa.string()),
            _fixed(layout.packed.fixed(layout.fingerprint, FINGERPRINT_BYTES), FINGERPRINT_BYTES),
            _texts_or_null(self._meta),
            bodies.models(),
        ]
        if self.fits.all():
            return layout.rows, columns
        kept = pa.array(self.fits)
        return layout.rows[self.fits], [column.filter(kept) for column in columns]

    def _as_the_log_says(self) -> None:
        """A row whose log says something else is read one by one, to tell what."""
        layout = self._layout
        ids = layout.packed.fixed(layout.id, ID_BYTES)
        inside = {
            "id": uuid_texts(ids),
            "mesh": self._names.column(lambda names: names.mesh, pa.string()),
            "op": self._names.column(lambda names: names.op, pa.string()),
            "entity": self._entity.view(pa.string()),
            "origin": self._peers.column(lambda peers: peers.origin, pa.string()),
            "lamport": pa.array(layout.lamport),
        }
        for name, column in inside.items():
            same = pc.fill_null(pc.equal(column, self._log[name]), False)
            self.fits &= same.to_numpy(zero_copy_only=False)
        self.fits &= self._log["recorded_at"].is_valid().to_numpy(zero_copy_only=False)
        marks = np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)
        version = marks[:, 6] >> 4
        # Version 8 tells no time. Of version 7, the first six bytes are one.
        later = layout.packed.words(layout.id) >= np.uint64(limits.SOURCE_TIME_MS_MAX << 16)
        self.fits &= ((version == 7) & ~later) | (version == 8)
        self.fits &= marks[:, 8] >> 6 == 2

    def _owned(self) -> None:
        """Some families keep one row per owner, and the others have none."""
        owner = self._peers.of(lambda peers: bool(peers.owner), False, np.bool_)
        owned = self._names.of(lambda names: family_of(names.op) in OWNED, False, np.bool_)
        known = self._names.of(lambda names: names.op in OPS, False, np.bool_)
        self.fits &= ~known | (owner == owned)


_read_peer: Final = reading(BasePeer)


def _base_peer(spelled: bytes) -> BasePeer | None:
    """The peer of a base; of an envelope without one the span is empty."""
    return _read_peer(spelled) if spelled else _NO_PEER


def _fixed(joined: bytes, size: int) -> pa.Array:
    count = len(joined) // size
    places = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(places), pa.py_buffer(joined)]
    )


def _texts_or_null(values: pa.Array) -> pa.Array:
    empty = pc.equal(pc.binary_length(values), 0)
    return pc.if_else(empty, pa.scalar(None, pa.string()), values.view(pa.string()))
