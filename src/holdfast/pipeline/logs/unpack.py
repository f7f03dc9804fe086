"""Adds the columns that stand only in the bytes of envelopes to the columns of the log.

Ordinary envelopes, nearly all of a log, are read for a whole batch at once (`ordinary`). All others
are read one by one by the code that lets them into a node (`rules.envelope`, `rules.bodies`), which
decides what is right and how it is told. A row whose bytes cannot be read, or disagree with the
log's own columns, stays as it is and gets a `problem`: the code and message of an error. An op that
this version does not know is no problem; its envelope can be read all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.arrow import LOG, uuid_texts
from holdfast.pipeline.logs.ordinary import ordinary
from holdfast.pipeline.logs.packed import merged, others
from holdfast.rules.bodies import (
    MessageSend,
    VectorDelete,
    VectorStore,
    decode_stored_body,
)
from holdfast.rules.envelope import MAJOR, PROTOCOL, Envelope, decode_stored
from holdfast.rules.errors import (
    BadEnvelope,
    BadStamp,
    HoldfastError,
    IdReused,
    UnsupportedProtocol,
)
from holdfast.rules.ids import check_new_id, id_text, is_aside
from holdfast.rules.limits import SECOND_MS, SOURCE_TIME_MS_MAX
from holdfast.rules.message import check_fingerprint

_HEADER: Final = schema.arrow_schema(schema.HEADER)
ENVELOPE: Final = schema.arrow_schema(schema.ENVELOPE)

_TWICE: Final = ("id", "mesh", "op", "entity", "origin", "lamport")
"""What the log has in columns of its own as well as in the bytes."""

_fields: Final = attrgetter(
    *_TWICE,
    *("owner", "epoch", "seq", "created_at", "write_class", "state", "fingerprint", "base", "meta"),
)
_NOTHING: Final = (None,) * 15

_Read = tuple[Envelope | None, str, str | None]
"""The envelope, the model that it names, the problem; the envelope is None if there is one."""


class _Beginning(msgspec.Struct, array_like=True):
    """The first fields of an envelope, which every version of the protocol has."""

    protocol: str
    version: str


_beginning: Final = msgspec.msgpack.Decoder(_Beginning)


def decode_header(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with the columns `schema.ENVELOPE`."""
    rows, columns = ordinary(batch)
    columns.append(pa.nulls(len(rows), pa.string()))
    if len(rows) < batch.num_rows:
        rest = others(rows, batch.num_rows)
        columns = merged(rows, columns, rest, one_by_one(batch.take(pa.array(rest))))
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=ENVELOPE)


def one_by_one(batch: pa.RecordBatch) -> list[pa.Array]:
    """The columns `schema.HEADER` and `problem`, each row read by itself, by the rules of nodes."""
    read = [_read(raw) for raw in batch.column("raw").to_pylist()]
    rows = [_NOTHING if envelope is None else _fields(envelope) for envelope, _, _ in read]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_NOTHING)
    problems = _with_mismatches(batch, columns, [problem for _, _, problem in read])
    for row, time in enumerate(batch.column("recorded_at").is_null().to_pylist()):
        if time and problems[row] is None:
            problems[row] = _problem(BadStamp("the log says no time at which it was recorded"))
    owner, epoch, seq, created_at, write_class, state, fingerprint, base, meta = columns[6:]
    values: list[Sequence[Any]] = [
        owner,
        epoch,
        seq,
        [None if time is None else time * SECOND_MS for time in created_at],
        write_class,
        state,
        [None if was is None else was.lamport for was in base],
        [None if was is None else was.peer for was in base],
        fingerprint,
        [text.decode() if text else None for text in meta],
        [model for _, model, _ in read],
    ]
    arrays = [pa.array(part, kind) for part, kind in zip(values, _HEADER.types, strict=True)]
    bad = pa.array(problems, pa.string())
    if bad.null_count < len(bad):
        fine = bad.is_null()
        # The header of a row with a problem must not be used by mistake.
        arrays = [pc.if_else(fine, array, pa.scalar(None, array.type)) for array in arrays]
    return [*arrays, bad]


def _read(raw: bytes | None) -> _Read:
    if raw is None:
        return None, "", _problem(BadEnvelope("its bytes are not there"))
    try:
        envelope = decode_stored(raw)
        body = decode_stored_body(envelope)
        if isinstance(body, MessageSend):
            check_fingerprint(envelope, body)
        _check(envelope)
    except HoldfastError as error:
        return None, "", _problem(_other_version(raw) or error)
    if isinstance(body, VectorStore):
        return envelope, body.identity().fingerprint, None
    return envelope, body.model_id if isinstance(body, VectorDelete) else "", None


def _check(envelope: Envelope) -> None:
    """Refuses what a node can keep and a table of the lake cannot."""
    check_new_id(envelope.id)
    if envelope.created_at >= SOURCE_TIME_MS_MAX:
        raise BadStamp(f"it was made {envelope.created_at} ms after 1970, as no clock can say")
    if envelope.meta and not envelope.meta.isascii():
        try:
            envelope.meta.decode()
        except UnicodeDecodeError:
            raise BadEnvelope("meta is not UTF-8") from None


def _other_version(raw: bytes) -> HoldfastError | None:
    """The error of an envelope of another major version, which may have other fields; else None."""
    try:
        start = _beginning.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if start.protocol != PROTOCOL or start.version.partition(".")[0] == MAJOR:
        return None
    return UnsupportedProtocol(f"version {start.version!r} is not of major version {MAJOR}")


def _problem(error: HoldfastError) -> str:
    return f"{error.code}: {error.message}"


def _with_mismatches(
    batch: pa.RecordBatch, columns: list[tuple[Any, ...]], problems: list[str | None]
) -> list[str | None]:
    """The problems, and those of rows whose bytes disagree with the columns of the log."""
    mismatch = None
    for name, values in zip(_TWICE, columns, strict=False):
        inside = _ids(values) if name == "id" else pa.array(values, LOG.field(name).type)
        # Null where there is no envelope, which has its problem, or where the log says nothing.
        differs = pc.fill_null(pc.not_equal(inside, batch.column(name)), inside.is_valid())
        mismatch = differs if mismatch is None else pc.or_(mismatch, differs)
    if mismatch is None or not pc.any(mismatch).as_py():
        return problems
    for row in pc.indices_nonzero(mismatch).to_pylist():
        wrong = [
            name
            for name, values in zip(_TWICE, columns, strict=False)
            if (id_text(values[row]) if name == "id" else values[row])
            != batch.column(name)[row].as_py()
        ]
        problems[row] = _problem(
            IdReused("the broker refused this message, and its id is free for another")
            if wrong == ["id"] and _was_set_aside(batch.column("id")[row].as_py())
            else BadEnvelope(f"the log says another {', '.join(wrong)} than the envelope")
        )
    return problems


def _was_set_aside(id: str | None) -> bool:
    try:
        return id is not None and is_aside(UUID(id).bytes)
    except ValueError:
        return False


def _ids(ids: Sequence[bytes | None]) -> pa.Array:
    """Ids as text; null where there is no envelope."""
    none = bytes(16)
    texts = uuid_texts(b"".join([none if id is None else id for id in ids]))
    there = pa.array([id is not None for id in ids], pa.bool_())
    return pc.if_else(there, texts, pa.scalar(None, pa.string()))
