"""The columns of silver that stand in the bodies of envelopes, for a whole array at once.

Bronze holds only envelopes whose fields and bodies were checked when they came in. So this looks at
their form alone: what has the usual form is read here, everything else by `decode`, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.logs.fields import (
    ContentType,
    FieldRun,
    ModelRun,
    Names,
    Peers,
    Predicate,
    Rest,
    Tags,
    reading,
)
from holdfast.pipeline.logs.layout import lay_out
from holdfast.pipeline.logs.packed import Mask, Numbers, Spans, Walk, Words, sound_texts
from holdfast.rules.bodies import VectorStore

_FIX_ARRAY: Final = 0x90
_NULL: Final = "null"
_TEXTS: Final = pa.list_(pa.string())
_TIME: Final = pa.timestamp("us", "UTC")
_Columns = dict[str, pa.Array]


def columns_at_once(name: str, raws: pa.Array) -> tuple[Numbers, _Columns]:
    """Which envelopes could be read, and of these the columns of one table; of a table that is
    always read one by one, none.
    """
    read = _READERS.get(name)
    if read is None:
        return np.zeros(0, dtype=np.int64), {}
    bodies = _Bodies(raws)
    columns = read(bodies)
    if bodies.fits.all():
        return bodies.rows, columns
    kept = pa.array(bodies.fits)
    return bodies.rows[bodies.fits], {
        column: values.filter(kept) for column, values in columns.items()
    }


class _Bodies:
    """The bodies of envelopes; `fits` loses those that do not have the form of their op."""

    def __init__(self, raws: pa.Array) -> None:
        self.layout = lay_out(raws)
        self.rows = self.layout.rows
        self._cut = self.layout.packed.cut
        self._names = Words(self._cut(self.layout.names), reading(Names))
        self.fits: Mask = self._names.fits
        self._unread = self.fits.copy()

    def of(self, op: str, fields: int) -> tuple[Numbers, Walk]:
        """The rows of an op, and a walk through their bodies of so many fields."""
        mine = [known is not None and known.op == op for known in self._names.known]
        rows = np.flatnonzero(np.array(mine, dtype=np.bool_)[self._names.numbers])
        self._unread[rows] = False
        walk = Walk(self.layout.packed, self.layout.body.begin[rows])
        walk.fits &= walk.next_bytes() == _FIX_ARRAY | fields
        walk.at = walk.at + 1
        return rows, walk

    def ended(self, rows: Numbers, walk: Walk) -> Numbers:
        """Which of the rows have bodies that end here. Only of these the spans can be cut."""
        walk.fits &= walk.at == self.layout.body.end[rows]
        self.fits[rows] &= walk.fits
        return np.flatnonzero(walk.fits)

    def without_fields(self, *ops: str) -> None:
        for op in ops:
            self.ended(*self.of(op, 0))

    def no_others(self) -> None:
        """An envelope of an op that was not asked for is read one by one."""
        self.fits &= ~self._unread

    def bytes_at(self, rows: Numbers, kept: Numbers, spans: Spans, otherwise: bytes) -> pa.Array:
        """The bytes of these rows, and for all other rows `otherwise`."""
        return self._placed(rows[kept], self._cut(spans.of(kept)), otherwise)

    def texts_at(self, rows: Numbers, kept: Numbers, spans: Spans, otherwise: str) -> pa.Array:
        """The same of texts, which are checked: they stand in no field that was read."""
        texts = self._cut(spans.of(kept))
        fine = sound_texts(texts)
        self.fits[rows[kept[~fine]]] = False
        return self._placed(rows[kept], texts, otherwise.encode()).view(pa.string())

    def json_at(self, rows: Numbers, kept: Numbers, spans: Spans) -> pa.Array:
        return self.bytes_at(rows, kept, spans, _NULL.encode()).view(pa.string())

    def words_at(
        self,
        rows: Numbers,
        kept: Numbers,
        spans: Spans,
        kind: type[FieldRun],
        otherwise: Any,
        **columns: tuple[Callable[[Any], Any], pa.DataType],
    ) -> _Columns:
        """Columns of fields that repeat, and for all other rows `otherwise`."""
        words = Words(self._cut(spans.of(kept)), reading(kind))
        self.fits[rows[kept[~words.fits]]] = False
        return {
            name: self._placed(rows[kept], words.column(get, type), otherwise)
            for name, (get, type) in columns.items()
        }

    def of_rest(self, kind: type[FieldRun], spans: Spans, get: Callable[[Any], Any]) -> pa.Array:
        """A text in the envelope itself."""
        words = Words(self._cut(spans), reading(kind))
        self.fits &= words.fits
        return words.column(get, pa.string())

    def _placed(self, rows: Numbers, values: pa.Array, otherwise: Any) -> pa.Array:
        if len(rows) == len(self.rows):
            return values
        place = np.full(len(self.rows), len(rows), dtype=np.int64)
        place[rows] = np.arange(len(rows))
        rest = pa.array([otherwise], values.type)
        return pa.concat_arrays([values, rest]).take(pa.array(place))


def _state(bodies: _Bodies) -> _Columns:
    rows, walk = bodies.of("state.set", 1)
    value = walk.binary()
    kept = bodies.ended(rows, walk)
    bodies.without_fields("state.delete")
    bodies.no_others()
    return {"value": bodies.json_at(rows, kept, value)}


def _memory(bodies: _Bodies) -> _Columns:
    rows, walk = bodies.of("memory.set", 2)
    value = walk.binary()
    end = bodies.layout.body.end[rows]
    tags = Spans(walk.at, end)
    walk.fits &= walk.at < end
    walk.at = end
    kept = bodies.ended(rows, walk)
    bodies.without_fields("memory.forget")
    bodies.no_others()
    told = {"tags": (lambda run: run.tags, _TEXTS)}
    return {
        "value": bodies.json_at(rows, kept, value),
        **bodies.words_at(rows, kept, tags, Tags, [], **told),
        "created_at": pa.nulls(len(bodies.rows), _TIME),  # what replaces another is read by itself
    }


def _facts(bodies: _Bodies) -> _Columns:
    rows, walk = bodies.of("fact.append", 2)
    begin = walk.at
    predicate = Spans(begin, walk.text().end)
    value = walk.binary()
    kept = bodies.ended(rows, walk)
    bodies.no_others()
    told = {"predicate": (lambda run: run.predicate, pa.string())}
    return {
        **bodies.words_at(rows, kept, predicate, Predicate, "", **told),
        "object": bodies.json_at(rows, kept, value),
        "objects": pa.array([[]], _TEXTS).take(pa.array(np.zeros(len(bodies.rows), dtype=np.int8))),
    }


def _vectors(bodies: _Bodies) -> _Columns:
    vectors = _stores(bodies)
    return {column: vectors[column] for column in ("content", "metadata", "embedding")}


def _models(bodies: _Bodies) -> _Columns:
    vectors = _stores(bodies)
    return {column: vectors[column] for column in _MODEL}


_MODEL: Final[dict[str, tuple[Callable[[Any], Any], pa.DataType]]] = {
    "provider": (lambda run: run.provider, pa.string()),
    "name": (lambda run: run.model, pa.string()),
    "version": (lambda run: run.version, pa.string()),
    "dim": (lambda run: run.dim, pa.int32()),
    "quantization": (lambda run: run.quantization, pa.string()),
}


def _stores(bodies: _Bodies) -> _Columns:
    """All columns of vectors and their models."""
    rows, walk = bodies.of("vector.store", len(VectorStore.__struct_fields__))
    begin = walk.at
    for _ in range(3):
        walk.text()
    walk.count()
    model = Spans(begin, walk.text().end)
    embedding, content, metadata = walk.binary(), walk.text(), walk.binary()
    kept = bodies.ended(rows, walk)
    bodies.no_others()
    return {
        **bodies.words_at(rows, kept, model, ModelRun, None, **_MODEL),
        "content": bodies.texts_at(rows, kept, content, ""),
        "metadata": bodies.json_at(rows, kept, metadata),
        "embedding": bodies.bytes_at(rows, kept, embedding, b""),
    }


def _turns(bodies: _Bodies) -> _Columns:
    generation = np.zeros(len(bodies.rows), dtype=np.int64)
    for op in ("task.claim", "task.release"):
        rows, walk = bodies.of(op, 1)
        generation[rows] = walk.count()
        bodies.ended(rows, walk)
    rows, walk = bodies.of("task.create", 2)
    title, description = walk.text(), walk.text()
    kept = bodies.ended(rows, walk)
    bodies.without_fields("task.complete", "task.cancel")
    bodies.no_others()
    return {
        "generation": pa.array(generation),
        "title": bodies.texts_at(rows, kept, title, ""),
        "description": bodies.texts_at(rows, kept, description, ""),
    }


def _messages(bodies: _Bodies) -> _Columns:
    rows, walk = bodies.of("message.send", 2)
    content = walk.binary()
    begin = walk.at
    content_type = Spans(begin, walk.text().end)
    kept = bodies.ended(rows, walk)
    bodies.no_others()
    layout = bodies.layout
    told = {"content_type": (lambda run: run.content_type, pa.string())}
    return {
        "kind": bodies.of_rest(Rest, layout.rest, lambda rest: rest.to and rest.to[0]),
        "ref": bodies.of_rest(Rest, layout.rest, lambda rest: rest.to and rest.to[1]),
        "sender": bodies.of_rest(Peers, layout.peers, lambda peers: peers.origin),
        "priority": bodies.of_rest(Rest, layout.rest, lambda rest: rest.priority),
        "reply_to": bodies.of_rest(Rest, layout.rest, lambda rest: rest.reply_to),
        **bodies.words_at(rows, kept, content_type, ContentType, "", **told),
        "content": bodies.bytes_at(rows, kept, content, b""),
    }


_READERS: Final[dict[str, Callable[[_Bodies], _Columns]]] = {
    "state": _state,
    "memory": _memory,
    "facts": _facts,
    "vectors": _vectors,
    "models": _models,
    "task_events": _turns,
    "messages": _messages,
}
