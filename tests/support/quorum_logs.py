"""Quorum logs to test: how they are made, and writes that are short to write down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from blake3 import blake3

from holdfast.rules.quorum.log_rows import (
    EntryRow,
    GroupWrite,
    HardStateRow,
    QuorumSnapshot,
)
from holdfast.storage.memory.quorum_log import MemoryQuorumLog
from holdfast.storage.quorum_port import QuorumLog
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

TAG: Final = b"t" * 16
SMALL_BALLAST: Final = 64 * 1024

LogMaker = Callable[[Path], QuorumLog]


def opened(home: Path, **options: object) -> SqliteQuorumLog:
    """On SQLite, with a ballast that is laid in no time."""
    return SqliteQuorumLog(home, **{"ballast_bytes": SMALL_BALLAST, **options})  # type: ignore[arg-type]


QUORUM_LOGS: Final[dict[str, LogMaker]] = {
    "memory": lambda folder: MemoryQuorumLog(),
    "sqlite": opened,
}


def entry(index: int, term: int, payload: bytes | None = None, kind: int = 1) -> EntryRow:
    content = b"entry %d of %d" % (index, term) if payload is None else payload
    return EntryRow(index=index, term=term, kind=kind, payload=content)


def write(
    number: int,
    *entries: EntryRow,
    scope: str = "team",
    voter: int = 1,
    term: int | None = None,
    vote: int = 0,
    commit: int = 0,
    cut: int | None = None,
) -> GroupWrite:
    hard = None if term is None else HardStateRow(term=term, vote=vote, commit=commit)
    return GroupWrite(
        scope=scope, voter=voter, number=number, hard=hard, cut_from=cut, entries=entries
    )


def snapshot(index: int, term: int, content: bytes) -> QuorumSnapshot:
    return QuorumSnapshot(
        index=index,
        term=term,
        config=b"voters at %d" % index,
        size=len(content),
        digest=blake3(content).digest(),
    )


def filled(log: QuorumLog, *terms: int, scope: str = "team") -> None:
    """A new group whose log has an entry of each of these terms."""
    log.init(scope, tag=TAG, voter=1, config=b"voters")
    entries = [entry(at, term) for at, term in enumerate(terms, start=1)]
    log.save(write(1, *entries, scope=scope, term=terms[-1]))
