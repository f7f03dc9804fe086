"""Audit streams in memory: events, and how much of each chain is here."""

from __future__ import annotations

import msgspec

from holdfast.rules.audit_chain import AuditChain, AuditChainRow, AuditRow
from holdfast.storage.audit_port import AuditPlace, ChainPlace
from holdfast.storage.memory.undo import UndoTables


class MemoryAudit(UndoTables):
    """Events by chain and number."""

    def audit_get(self, chain: AuditChain, seq: int) -> AuditRow | None:
        return self._table("audit").get((*chain, seq))

    def audit_scan(
        self, mesh: str, stream: str | None, origin: str | None, after: AuditPlace, limit: int
    ) -> list[AuditRow]:
        rows = [
            row
            for row in self._rows("audit", mesh)
            if stream in (None, row.stream)
            and origin in (None, row.origin)
            and _place(row) > _bytes(*after[:2], *after[2:])
        ]
        return sorted(rows, key=_place)[:limit]

    def audit_chain_get(self, chain: AuditChain) -> AuditChainRow | None:
        return self._table("audit_chain").get(chain)

    def audit_chains(self, mesh: str, after: ChainPlace, limit: int) -> list[AuditChainRow]:
        rows = [
            row
            for row in self._rows("audit_chain", mesh)
            if _bytes(row.stream, row.origin, row.epoch) > _bytes(*after[:2], after[2])
        ]
        return sorted(rows, key=lambda row: _bytes(row.stream, row.origin, row.epoch))[:limit]

    def audit_gap(self, chain: AuditChain, after: int) -> tuple[int, int] | None:
        seqs = [row.seq for row in self._rows("audit", chain.mesh) if row.chain == chain]
        before = after
        for seq in sorted(seq for seq in seqs if seq > after):
            if seq > before + 1:
                return before + 1, seq - 1
            before = seq
        return None

    def audit_add(self, row: AuditRow) -> bool:
        if self.audit_get(row.chain, row.seq) is not None:
            return False
        self._put("audit", (*row.chain, row.seq), row)
        known = self.audit_chain_get(row.chain)
        if known is None:
            known = AuditChainRow(**row.chain._asdict(), last=0, events=0)
        counted = msgspec.structs.replace(
            known, last=max(known.last, row.seq), events=known.events + 1
        )
        self._put("audit_chain", row.chain, counted)
        return True


def _place(row: AuditRow) -> tuple[bytes, bytes, int, int]:
    return (row.stream.encode(), row.origin.encode(), row.epoch, row.seq)


def _bytes(stream: str, origin: str, *numbers: int) -> tuple[bytes | int, ...]:
    return (stream.encode(), origin.encode(), *numbers)
