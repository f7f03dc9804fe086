"""Asking the server of a lake, if there is one."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final, TypeVar

import msgspec

from holdfast.pipeline.ingest.ingest import IngestReport
from holdfast.pipeline.ingest.plan import UnreadableLog
from holdfast.pipeline.jobs.run import RunReport
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.query import QueryResult
from holdfast.pipeline.serve.calls import (
    QUERY,
    RUN,
    STATUS,
    AskQuery,
    AskRun,
    FailedLog,
    RunDone,
    ServerStatus,
)
from holdfast.pipeline.serve.place import server_place
from holdfast.rules import errors
from holdfast.rules.errors import HoldfastError, JobFailed
from holdfast.rules.limits import HOUR_MS, MIB
from holdfast.service.instance_lock import daemon_note
from holdfast.transport.http_client import Client

T = TypeVar("T")

_ANSWER_BYTES_MAX: Final = 256 * MIB
_PATIENCE_MS: Final = 24 * HOUR_MS
"""A run may take long, and whoever waits for it can be interrupted."""


class LakeClient:
    """Calls the server of a lake."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, sql: str, limit: int) -> QueryResult:
        found = self._call(QueryResult, "POST", QUERY, AskQuery(sql=sql, limit=limit))
        # JSON has no tuples.
        return QueryResult(found.columns, tuple(map(tuple, found.rows)), found.more)

    def run(self, *, allow_gaps: bool = False) -> RunReport:
        done = self._call(RunDone, "POST", RUN, AskRun(allow_gaps=allow_gaps))
        ingested = IngestReport(
            logs=done.logs,
            batches=done.batches,
            quarantined=done.quarantined,
            failures=[_failure(one) for one in done.failures],
            seconds=done.seconds,
        )
        return RunReport(ingested, done.fold, done.seconds)

    def status(self) -> ServerStatus:
        return self._call(ServerStatus, "GET", STATUS)

    def _call(self, kind: type[T], method: str, path: str, body: Any = None) -> T:
        raw = None if body is None else msgspec.json.encode(body)
        with closing(Client(self.address, read_ms=_PATIENCE_MS)) as client:
            return client.call(method, path, body=raw, bytes_max=_ANSWER_BYTES_MAX).json(kind)


def server_of(lake: Lake) -> LakeClient | None:
    """The server that answers for a lake; None if there is none, or it is not ready yet."""
    note = daemon_note(server_place(lake))
    return LakeClient(note.addresses[0]) if note is not None and note.addresses else None


def _failure(one: FailedLog) -> UnreadableLog:
    known = (kind for kind in vars(errors).values() if getattr(kind, "code", None) == one.code)
    kind = next((kind for kind in known if issubclass(kind, HoldfastError)), JobFailed)
    try:
        error = kind(one.message, hint=one.hint)
    except TypeError:  # it needs more than a message
        error = JobFailed(one.message, hint=one.hint)
    return UnreadableLog(one.location, error, one.log)
