"""What the server of a lake answers: a query, a run, how it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.pipeline.fold.silver import FoldReport
from holdfast.pipeline.ingest.ingest import IngestedLog
from holdfast.pipeline.jobs.run import RunReport
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.query import QueryResult, run_query
from holdfast.pipeline.serve.rounds import LakeRounds
from holdfast.pipeline.serve.warm import WarmSession
from holdfast.rules.errors import BadInput
from holdfast.service.caller import LOCAL
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import ConcurrencyLimits, Request, RequestCounts
from holdfast.service.http.route import Phase, Route, Routes

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope

T = TypeVar("T")

QUERY: Final = "/v1/query"
RUN: Final = "/v1/run"
STATUS: Final = "/v1/status"


class AskQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statement that reads."""

    sql: str
    limit: int


class AskRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Takes in what is new now."""

    allow_gaps: bool = False


class FailedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that could not be read, and why."""

    location: str
    log: str
    code: str
    message: str
    hint: str


class RunDone(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a run as it travels."""

    logs: list[IngestedLog]
    batches: int
    quarantined: dict[str, int]
    failures: list[FailedLog]
    fold: FoldReport | None
    seconds: float


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is."""

    pid: int
    since: int
    """When it began, in milliseconds."""
    rounds: int
    """How many rounds have taken in something."""
    last_at: int | None
    """When the last of them was committed."""
    starts: int
    """How many times it has started Spark."""
    trouble: str | None
    """What went wrong in the last round."""


class LakeApi:
    """What the calls may reach."""

    title = "lake"
    about = "The server of a lake."

    def __init__(self, lake: Lake, spark: WarmSession, rounds: LakeRounds, since_ms: int) -> None:
        self.lake, self.spark, self.rounds, self.since_ms = lake, spark, rounds, since_ms
        self.gate = ConcurrencyLimits()
        self.counts = RequestCounts()
        self.phase: Phase = "starting"
        self.sessions: Any = None  # nobody says hello here: who can open the socket is its user
        self.routes: list[Route] = []
        self.pages: dict[str, bytes] = {}

    def admit(self, route: Route, scope: Scope, receive: Receive) -> Request[Any]:
        return Request(self, route, scope, receive, LOCAL)

    def certificate_of(self, listener: str) -> bytes:
        return b""

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(work, *args)


routes = Routes()


@routes.post(QUERY, request=AskQuery, answers={200: QueryResult}, errors=(BadInput,))
async def _query(call: Request[LakeApi]) -> Response:
    """The first rows that a statement gives."""
    asked = await json_body(call, AskQuery)
    api = call.api
    return call.answer(await api.run(_ask_spark, api, asked))


@routes.post(RUN, request=AskRun, answers={200: RunDone})
async def _run(call: Request[LakeApi]) -> Response:
    """Takes in what is new in all logs, and tells what was done."""
    asked = await json_body(call, AskRun)
    api = call.api
    report = await api.run(partial(api.rounds.ask, allow_gaps=asked.allow_gaps))
    return call.answer(done_of(report))


@routes.get(STATUS, answers={200: ServerStatus})
async def _status(call: Request[LakeApi]) -> Response:
    """How the server is."""
    api = call.api
    return call.answer(
        ServerStatus(
            pid=os.getpid(),
            since=api.since_ms,
            rounds=api.rounds.done,
            last_at=api.rounds.last_at or None,
            starts=api.spark.starts,
            trouble=api.rounds.trouble,
        )
    )


def _ask_spark(api: LakeApi, asked: AskQuery) -> QueryResult:
    # A session of its own has views of its own: two queries at once do not mix.
    return run_query(api.spark().newSession(), api.lake.fresh(), asked.sql, asked.limit)


def done_of(report: RunReport) -> RunDone:
    done = report.ingest
    return RunDone(
        logs=done.logs,
        batches=done.batches,
        quarantined=done.quarantined,
        failures=[
            FailedLog(
                location=one.location,
                log=one.log,
                code=one.error.code,
                message=one.error.message,
                hint=one.error.hint,
            )
            for one in done.failures
        ],
        fold=report.fold,
        seconds=report.seconds,
    )
