"""Audit streams: events, and how much of each chain is here."""

from __future__ import annotations

from typing import Any, Final

import apsw

from holdfast.rules.audit_chain import AuditChain, AuditChainRow, AuditRow
from holdfast.storage.audit_port import AuditPlace, ChainPlace
from holdfast.storage.sqlite.columns import TEXT, RowColumns

_EVENT: Final = RowColumns("audit", AuditRow, payload=TEXT)
_CHAIN: Final = RowColumns("audit_chain", AuditChainRow)
_ADD: Final = f"{_EVENT.insert} ON CONFLICT DO NOTHING"
_COUNT: Final = (
    "INSERT INTO audit_chain (mesh, stream, origin, epoch, last, events) VALUES (?, ?, ?, ?, ?, 1) "
    "ON CONFLICT (mesh, stream, origin, epoch) "
    "DO UPDATE SET last = max(last, excluded.last), events = events + 1"
)
_OF_CHAIN: Final = "WHERE mesh = ?1 AND stream = ?2 AND origin = ?3 AND epoch = ?4"
COUNT_ANEW: Final = (
    "INSERT INTO audit_chain (mesh, stream, origin, epoch, last, events) "
    "SELECT mesh, stream, origin, epoch, max(seq), count(*) FROM audit GROUP BY 1, 2, 3, 4"
)
"""For a repair: the chains are what the events make of them."""


class AuditReads:
    _con: apsw.Connection

    def audit_get(self, chain: AuditChain, seq: int) -> AuditRow | None:
        return _EVENT.find(self._con, f"{_OF_CHAIN} AND seq = ?5", (*chain, seq))

    def audit_scan(
        self, mesh: str, stream: str | None, origin: str | None, after: AuditPlace, limit: int
    ) -> list[AuditRow]:
        given: list[Any] = [mesh, *after, limit]
        chosen = ""
        for column, wanted in (("stream", stream), ("origin", origin)):
            if wanted is not None:
                given.append(wanted)
                chosen += f"AND {column} = ?{len(given)} "
        return _EVENT.select(
            self._con,
            "INDEXED BY audit_place "
            f"WHERE mesh = ?1 AND (stream, origin, epoch, seq) > (?2, ?3, ?4, ?5) {chosen}"
            "ORDER BY stream, origin, epoch, seq LIMIT ?6",
            given,
        )

    def audit_chain_get(self, chain: AuditChain) -> AuditChainRow | None:
        return _CHAIN.find(self._con, _OF_CHAIN, chain)

    def audit_chains(self, mesh: str, after: ChainPlace, limit: int) -> list[AuditChainRow]:
        return _CHAIN.select(
            self._con,
            "WHERE mesh = ? AND (stream, origin, epoch) > (?, ?, ?) "
            "ORDER BY stream, origin, epoch LIMIT ?",
            (mesh, *after, limit),
        )

    def audit_gap(self, chain: AuditChain, after: int) -> tuple[int, int] | None:
        found = self._con.execute(
            "SELECT before, seq FROM (SELECT seq, lag(seq, 1, ?5) OVER (ORDER BY seq) AS before "
            f"FROM audit INDEXED BY audit_place {_OF_CHAIN} AND seq > ?5) "
            "WHERE seq > before + 1 LIMIT 1",
            (*chain, after),
        ).get
        return None if found is None else (found[0] + 1, found[1] - 1)


class AuditWrites(AuditReads):
    def audit_add(self, row: AuditRow) -> bool:
        self._con.execute(_ADD, _EVENT.values(row))
        if not self._con.changes():
            return False
        self._con.execute(_COUNT, (*row.chain, row.seq))
        return True
