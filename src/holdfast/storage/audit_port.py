"""What a store keeps of audit streams: every event, and how much of each chain is there."""

from __future__ import annotations

from typing import Protocol

from holdfast.rules.audit_chain import AuditChain, AuditChainRow, AuditRow

AuditPlace = tuple[str, str, int, int]
"""Stream, origin, epoch and number of an event: the order in which events are listed."""
ChainPlace = tuple[str, str, int]
"""Stream, origin and epoch of a chain."""


class AuditReader(Protocol):
    def audit_get(self, chain: AuditChain, seq: int) -> AuditRow | None: ...
    def audit_scan(
        self, mesh: str, stream: str | None, origin: str | None, after: AuditPlace, limit: int
    ) -> list[AuditRow]:
        """Events behind a place, of all streams or of one, of all origins or of one."""

    def audit_chain_get(self, chain: AuditChain) -> AuditChainRow | None: ...
    def audit_chains(self, mesh: str, after: ChainPlace, limit: int) -> list[AuditChainRow]: ...
    def audit_gap(self, chain: AuditChain, after: int) -> tuple[int, int] | None:
        """The first run of numbers above `after` that are missing below the last one: the first and
        the last of them.
        """


class AuditWriter(AuditReader, Protocol):
    def audit_add(self, row: AuditRow) -> bool:
        """Adds an event; False if its place is taken, and then nothing changes."""
