"""The bodies of ordinary envelopes, checked op by op for a whole batch at once (see `ordinary`).

Files are not among the ops here: their paths and hashes are checked one by one. So are bodies of
rare forms, such as facts that name objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.logs.fields import (
    ContentType,
    ModelRun,
    Names,
    Predicate,
    Rest,
    Tags,
    reading,
)
from holdfast.pipeline.logs.layout import EnvelopeSpans
from holdfast.pipeline.logs.packed import Mask, Numbers, Spans, Walk, Words, sound_texts
from holdfast.rules import limits
from holdfast.rules.bodies import OPS, VectorStore, refused_values
from holdfast.rules.destinations import check_destination, entity_of
from holdfast.rules.envelope import VERSION
from holdfast.rules.errors import HoldfastError
from holdfast.rules.fingerprint import FINGERPRINT_BYTES
from holdfast.rules.message import MESSAGE_VERSION, fingerprint_by
from holdfast.rules.vectors import Model

_NORM_MAX: Final = limits.VECTOR_NORM_MAX * (1 - 1e-6)
"""Lengths between this and the limit are computed by the rules themselves, to the last digit."""
_FIX_ARRAY: Final = 0x90


class Bodies:
    """The bodies of one batch of envelopes."""

    def __init__(
        self,
        layout: EnvelopeSpans,
        names: Words[Names],
        rest: Words[Rest],
        entity: pa.Array,
        meta: pa.Array,
    ) -> None:
        self._layout = layout
        self._names = names
        self._rest = rest
        self._entity = entity
        self._meta = meta
        count = len(layout.rows)
        self.fits: Mask = np.ones(count, dtype=np.bool_)
        """The rows whose bodies are sound."""
        self._models = [""]
        self._model: Numbers = np.zeros(count, dtype=np.int64)
        for number, known in enumerate(names.known):
            if known is None or known.op not in OPS:
                continue  # refused anyway, or an op of a later version, whose body says nothing yet
            rows = np.flatnonzero(names.numbers == number)
            self.fits[rows] = self._check(known.op, rows)

    def models(self) -> pa.Array:
        """By row, the fingerprint of the model of a vector; empty for all others."""
        return pa.array(self._models, pa.string()).take(pa.array(self._model))

    def _check(self, op: str, rows: Numbers) -> Mask:
        check = _CHECKS.get(op)
        if check is None:
            return np.zeros(len(rows), dtype=np.bool_)
        return check(self, rows)

    def _walk(self, rows: Numbers, fields: int) -> Walk:
        """A walk through bodies that have so many fields."""
        walk = Walk(self._layout.packed, self._layout.body.begin[rows])
        walk.fits &= walk.next_bytes() == _FIX_ARRAY | fields
        walk.at = walk.at + 1
        return walk

    def _walked(self, walk: Walk, rows: Numbers) -> Numbers:
        """Which of the rows have bodies that end where the walk has arrived. Only in these do the
        spans that were found lie one after another.
        """
        walk.fits &= walk.at == self._layout.body.end[rows]
        return np.flatnonzero(walk.fits)

    def _cut(self, spans: Spans, kept: Numbers) -> pa.Array:
        return self._layout.packed.cut(spans.of(kept))

    # --- by op ---------------------------------------------------------------------------------

    def _nothing(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 0)
        self._walked(walk, rows)
        return walk.fits

    def _turn(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 1)
        walk.fits &= walk.count() < limits.LAMPORT_MAX
        self._walked(walk, rows)
        return walk.fits

    def _state(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 1)
        value = walk.binary()
        kept = self._walked(walk, rows)
        walk.fits[kept] = _sound_values(self._cut(value, kept))
        return walk.fits

    def _memory(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 2)
        value = walk.binary()
        tags = Spans(walk.at, self._layout.body.end[rows])
        walk.fits &= walk.at < tags.end
        kept = np.flatnonzero(walk.fits)
        fine = Words(self._cut(tags, kept), reading(Tags)).fits
        fine &= _sound_values(self._cut(value, kept))
        walk.fits[kept] = fine
        return walk.fits

    def _fact(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 2)
        begin = walk.at
        predicate = Spans(begin, walk.text().end)
        value = walk.binary()
        kept = self._walked(walk, rows)
        fine = Words(self._cut(predicate, kept), reading(Predicate)).fits
        fine &= _sound_values(self._cut(value, kept))
        walk.fits[kept] = fine
        return walk.fits

    def _task(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 2)
        title, description = walk.text(), walk.text()
        walk.fits &= (title.sizes >= 1) & (title.sizes <= limits.TITLE_BYTES_MAX)
        walk.fits &= description.sizes <= limits.DESCRIPTION_BYTES_MAX
        kept = self._walked(walk, rows)
        fine = sound_texts(self._cut(title, kept)) & sound_texts(self._cut(description, kept))
        walk.fits[kept] = fine
        return walk.fits

    def _vector(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, len(VectorStore.__struct_fields__))
        begin = walk.at
        for _ in range(3):
            walk.text()
        walk.count()
        model = Spans(begin, walk.text().end)
        embedding, content, metadata = walk.binary(), walk.text(), walk.binary()
        walk.fits &= content.sizes <= limits.VECTOR_CONTENT_BYTES_MAX
        kept = self._walked(walk, rows)
        models = Words(self._cut(model, kept), reading(ModelRun))
        fine = models.fits & sound_texts(self._cut(content, kept))
        fine &= _sound_values(self._cut(metadata, kept))
        for number, fields in enumerate(models.known):
            if fields is None:
                continue
            of_it = np.flatnonzero(models.numbers == number)
            fine[of_it] &= self._comparable(embedding.of(kept[of_it]), fields.identity())
            self._model[rows[kept[of_it]]] = len(self._models)
            self._models.append(fields.identity().fingerprint)
        walk.fits[kept] = fine
        return walk.fits

    def _comparable(self, embedding: Spans, model: Model) -> Mask:
        """Which are surely vectors of this model that can be compared."""
        fine: Mask = embedding.sizes == model.packed_bytes
        if model.quantization != "float32":
            return fine
        joined = self._layout.packed.fixed(embedding.begin[fine], model.packed_bytes)
        floats = np.frombuffer(joined, dtype="<f4").reshape(-1, model.dim).astype(np.float64)
        # False for NaN too; a square that is infinite is of a number far beyond the limit.
        fine[fine] = np.sqrt(np.square(floats).sum(axis=1)) <= _NORM_MAX
        return fine

    def _message(self, rows: Numbers) -> Mask:
        walk = self._walk(rows, 2)
        content = walk.binary()
        begin = walk.at
        content_type = Spans(begin, walk.text().end)
        walk.fits &= content.sizes <= limits.MESSAGE_BYTES_MAX
        kept = self._walked(walk, rows)
        kinds = Words(self._cut(content_type, kept), reading(ContentType))
        whose = rows[kept]
        marks = _pieces(
            self._layout.packed.fixed(self._layout.fingerprint[whose], FINGERPRINT_BYTES)
        )
        messages = zip(
            [self._rest.known[number] for number in self._rest.numbers[whose].tolist()],
            [kinds.known[number] for number in kinds.numbers.tolist()],
            self._cut(content, kept).to_pylist(),
            self._meta.take(pa.array(whose)).to_pylist(),
            self._entity.take(pa.array(whose)).to_pylist(),
            self._layout.later[whose].tolist(),
            strict=True,
        )
        asked = [_asked(*message) for message in messages]
        walk.fits[kept] = [one == other for one, other in zip(asked, marks, strict=True)]
        return walk.fits


def _asked(
    rest: Rest | None,
    kind: ContentType | None,
    content: bytes,
    meta: bytes,
    entity: bytes,
    later: bool,
) -> bytes | None:
    """The fingerprint of a message; None if it breaks another rule."""
    if rest is None or rest.to is None or kind is None:
        return None
    try:
        if entity_of(*check_destination(*rest.to)).encode() != entity:
            return None
        return fingerprint_by(
            VERSION if not later else MESSAGE_VERSION,
            to=rest.to,
            content=content,
            reply_to=rest.reply_to,
            priority=rest.priority,
            meta=meta,
            content_type=kind.content_type,
        )
    except HoldfastError:
        return None


def _pieces(joined: bytes) -> list[bytes]:
    """Fingerprints, from the bytes of all of them."""
    ends = range(FINGERPRINT_BYTES, len(joined) + 1, FINGERPRINT_BYTES)
    return [joined[end - FINGERPRINT_BYTES : end] for end in ends]


def _sound_values(values: pa.Array) -> Mask:
    """Which of these are JSON values that a node takes."""
    fine = np.ones(len(values), dtype=np.bool_)
    fine[refused_values(values.to_pylist())] = False
    return fine


_CHECKS: Final[dict[str, Callable[[Bodies, Numbers], Mask]]] = {
    "state.set": Bodies._state,
    "state.delete": Bodies._nothing,
    "memory.set": Bodies._memory,
    "memory.forget": Bodies._nothing,
    "vector.store": Bodies._vector,
    "task.create": Bodies._task,
    "task.claim": Bodies._turn,
    "task.release": Bodies._turn,
    "task.complete": Bodies._nothing,
    "task.cancel": Bodies._nothing,
    "fact.append": Bodies._fact,
    "message.send": Bodies._message,
}
