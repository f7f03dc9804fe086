"""Accepting envelopes: a whole group goes to the server as columns, in one round trip.

What happens there stands in `schema/0002_accept.sql`. Here the group is laid out as columns, and
the columns that come back are made into answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.destinations import rank
from holdfast.rules.errors import BadInput
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
_HEAD_BYTES: Final = (16, 32, 16)
_TWIN: Final = 8
"""The code for an envelope with the id of one that was created before it in the same group."""

_ALL_CREATED: Final = 9
"""The code of a single row that answers for the whole group, with its first seq."""

_ACCEPT: Final = f"SELECT * FROM accept_alike({', '.join(f'${n}' for n in range(1, 16))})"
_ROUTE: Final = attrgetter("mesh", "sender", "origin", "kind", "ref", "priority", "epoch")
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
    ) -> list[AcceptResult]:
        if not batch:
            return []
        batch = list(batch)  # it is walked through several times
        slugs = sorted({arriving.mesh for arriving in batch})
        raws = [arriving.raw for arriving in batch]
        arguments = (
            *(now_ms, keep_ms, dedupe_ms, slugs, *_routes(batch), _twins(batch), _heads(batch)),
            raws,
        )
        rows = await self._connections.change(lambda con: con.fetch(_ACCEPT, *arguments))
        if rows[0][0] == _ALL_CREATED:
            _, epoch, _, first, *_ = rows[0]
            self._news.grew(batch[0].mesh, first + len(batch) - 1)
            return _all_created(batch, epoch, first, now_ms)
        grown: dict[str, int] = {}
        answers = _answers(batch, rows, now_ms, grown)
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


def _routes(batch: Sequence[PushedEnvelope]) -> list[list[Any]]:
    """The columns of all that envelopes have in common, each combination once, and a last one that
    says which of them each envelope has; empty if there is only one.
    """
    routes = list(map(_ROUTE, batch))
    places = {route: place for place, route in enumerate(dict.fromkeys(routes), 1)}
    columns = [list(column) for column in zip(*places, strict=True)]
    columns[5] = [rank(priority) for priority in columns[5]]
    return [*columns, [places[route] for route in routes] if len(places) > 1 else []]


def _twins(batch: Sequence[PushedEnvelope]) -> list[int]:
    """For each the place of the first with the same mesh and id; empty if all are different."""
    if len({arriving.id for arriving in batch}) == len(batch):
        return []  # as nearly always
    first: dict[tuple[str, bytes], int] = {}
    twins = [
        first.setdefault((arriving.mesh, arriving.id), place)
        for place, arriving in enumerate(batch, 1)
    ]
    return twins if len(first) < len(batch) else []


def _heads(batch: Sequence[PushedEnvelope]) -> bytes:
    """Id, fingerprint and broker id of each, one behind the other: much cheaper than arrays."""
    heads = [part for one in batch for part in (one.id, one.fingerprint, one.broker_id)]
    for place, size in enumerate(_HEAD_BYTES):
        if set(map(len, heads[place::3])) != {size}:
            raise BadInput("ids have 16 bytes and fingerprints 32")
    return b"".join(heads)


def _all_created(
    batch: Sequence[PushedEnvelope], epoch: int, first: int, now_ms: int
) -> list[AcceptResult]:
    return [
        AcceptResult(
            verdict=AcceptVerdict.CREATED,
            epoch=epoch,
            message_epoch=epoch,
            seq=seq,
            broker_id=arriving.broker_id,
            first_seen_at=now_ms,
        )
        for seq, arriving in enumerate(batch, first)
    ]


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
