"""Accepting envelopes: a whole group goes to the server as columns, in one round trip.

What happens there stands in `schema/0002_accept.sql`. Here the group is laid out as columns, and
the columns that come back are made into answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Any, Final

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.destinations import rank
from holdfast.rules.errors import BadInput
from holdfast.rules.fingerprint import FINGERPRINT_BYTES
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.push_columns import (
    SPAN_BITS,
    SPAN_MASK,
    Created,
    Parts,
    PushColumns,
    in_columns,
    unpacked,
)
from holdfast.storage.broker.accepted import Known
from holdfast.storage.broker.postgres.base import PostgresPart

VERDICTS: Final = (
    AcceptVerdict.CREATED,
    AcceptVerdict.DUPLICATE,
    AcceptVerdict.REUSED,
    AcceptVerdict.UNKNOWN_MESH,
    AcceptVerdict.NOT_A_MEMBER,
    AcceptVerdict.NOT_GRANTED,
    AcceptVerdict.EPOCH_MISMATCH,
    AcceptVerdict.UNKNOWN_DESTINATION,
)
"""By the number that the function gives them."""
_CREATED: Final = 0
_REUSED: Final = 2
_KNOWN: Final = (1, _REUSED)
_TWIN: Final = 8
"""The code for an envelope with the id of one that was created before it in the same group."""

_ALL_CREATED: Final = 9
"""The code of a single row that answers for the whole group, with its first seq."""

_ACCEPT: Final = f"SELECT * FROM accept_alike({', '.join(f'${n}' for n in range(1, 16))})"
_ID: Final = Struct(f"{ID_BYTES}s")
_PRINT: Final = Struct(f"{FINGERPRINT_BYTES}s")
_KNOWN_IDS: Final = """
SELECT a.n, m.epoch AS now_epoch, d.*
FROM mesh m
CROSS JOIN unnest($2::bytea[]) WITH ORDINALITY AS a (id, n)
CROSS JOIN LATERAL (
    SELECT fingerprint, epoch, seq, broker_id, first_seen_at, history
    FROM dedupe WHERE mesh = m.number AND id = a.id LIMIT 1
) d
WHERE m.slug = $1
"""


class PostgresAccept(PostgresPart):
    async def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Sequence[AcceptResult]:
        if not batch:
            return []
        columns = in_columns(batch)
        slugs = sorted({one.mesh for one in columns})
        arguments = (
            *(now_ms, keep_ms, dedupe_ms, slugs, *_routes(columns), _twins(batch, columns)),
            *(_heads(columns), _raws(columns)),
        )
        rows = await self._connections.change(lambda con: con.fetch(_ACCEPT, *arguments))
        if rows[0][0] == _ALL_CREATED:
            _, epoch, _, first, *_ = rows[0]
            self._news.grew(columns[0].mesh, first + len(batch) - 1)
            return _all_created(columns, epoch, first, now_ms)
        grown: dict[str, int] = {}
        answers = _answers(list(batch), rows, now_ms, grown)
        for slug, seq in grown.items():
            self._news.grew(slug, seq)
        return answers

    async def known(
        self, mesh: str, ids: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        keys = [id for id, _ in ids]
        rows = await self._connections.fetch(_KNOWN_IDS, mesh, keys)
        answers: list[AcceptResult | None] = [None] * len(ids)
        for number, epoch, *known in rows:
            answers[number - 1] = Known(*known).answer(ids[number - 1][1], epoch)
        return answers


def _routes(columns: Sequence[PushColumns]) -> list[list[Any]]:
    """The columns of all that envelopes have in common, each combination once, and a last one that
    says which of them each envelope has; empty if there is only one.
    """
    routes = [
        ((one.mesh, one.sender, run.origin, run.kind, run.ref, rank(run.priority), one.epoch), run)
        for one in columns
        for run in one.runs
    ]
    places = {route: place for place, route in enumerate(dict.fromkeys(r for r, _ in routes), 1)}
    common = [list(column) for column in zip(*places, strict=True)]
    if len(places) == 1:
        return [*common, []]
    return [*common, [places[route] for route, run in routes for _ in range(run.length)]]


def _twins(batch: Sequence[PushedEnvelope], columns: Sequence[PushColumns]) -> list[int]:
    """For each the place of the first with the same mesh and id; empty if all are different."""
    if len(set(chain.from_iterable([one.ids for one in columns]))) == len(batch):
        return []  # as nearly always
    first: dict[tuple[str, bytes], int] = {}
    ids = ((one.mesh, id) for one in columns for id in one.ids)
    twins = [first.setdefault(each, place) for place, each in enumerate(ids, 1)]
    return twins if len(first) < len(batch) else []


def _heads(columns: Sequence[PushColumns]) -> bytes:
    """Id, fingerprint and broker id of each, one behind the other: much cheaper than arrays."""
    heads: list[bytes] = []
    for one in columns:
        if set(map(len, one.ids)) != {ID_BYTES}:
            raise BadInput(f"ids have {ID_BYTES} bytes")
        prints = _PRINT.iter_unpack(one.prints)
        tickets = _ID.iter_unpack(one.tickets)
        for id, print, ticket in zip(one.ids, prints, tickets, strict=True):
            heads += (id, *print, *ticket)
    return b"".join(heads)


def _raws(columns: Sequence[PushColumns]) -> list[bytes]:
    raws: list[bytes] = []
    for one in columns:
        payload, base = one.payload, one.base
        for span in unpacked(one.spans):
            begin = (span >> SPAN_BITS) - base
            raws.append(payload[begin : begin + (span & SPAN_MASK)])
    return raws


def _all_created(
    columns: Sequence[PushColumns], epoch: int, first: int, now_ms: int
) -> Sequence[AcceptResult]:
    answers: list[Created] = []
    for one in columns:
        answers.append(Created(epoch, first, one.tickets, now_ms))
        first += len(one)
    return Parts(answers) if len(answers) > 1 else answers[0]


def _answers(
    batch: Sequence[PushedEnvelope], rows: Sequence[Any], now_ms: int, grown: dict[str, int]
) -> list[AcceptResult]:
    """In the order of the batch. `grown` gets the last seq of each mesh that has grown."""
    answers: list[AcceptResult] = []
    for arriving, row in zip(batch, rows, strict=True):
        code, epoch, at_epoch, at_seq, *seen = row
        if code == _CREATED:
            grown[arriving.mesh] = at_seq
            answer = AcceptResult(
                verdict=AcceptVerdict.CREATED,
                epoch=epoch,
                message_epoch=at_epoch,
                seq=at_seq,
                broker_id=arriving.broker_id,
                first_seen_at=now_ms,
            )
        elif code == _TWIN:
            leader = at_seq - 1  # the server counts from 1
            answer = _of_twin(arriving, batch[leader], answers[leader])
        elif code in _KNOWN:
            answer = AcceptResult(
                verdict=VERDICTS[code],
                epoch=epoch,
                message_epoch=at_epoch,
                seq=at_seq,
                first_seen_at=seen[0],
                broker_id=seen[1],
                fingerprint=seen[2] if code == _REUSED else b"",
                history_available=seen[3],
            )
        else:
            answer = AcceptResult(verdict=VERDICTS[code], epoch=epoch or 0)
        answers.append(answer)
    return answers


def _of_twin(
    arriving: PushedEnvelope, first: PushedEnvelope, created: AcceptResult
) -> AcceptResult:
    known = Known(
        first.fingerprint,
        created.message_epoch,
        created.seq,
        created.broker_id,
        created.first_seen_at,
        True,
    )
    return known.answer(arriving.fingerprint, created.epoch)
