"""What quorums have committed: members that may relay bring it, all that may read fetch it.

    GET  …/commits                            → what is held
    GET  …/commits/page     ?from=            → a page, as nodes give it to each other
    POST …/commits          a page            → what is held then; each number is stored once
    PUT  …/commits/state    {sha256, engine}  → an object that was brought is the whole state

A broker decides nothing and has no vote. It refuses a second order (`commit_forked`), and whoever
fetches from it decides each commit again.
"""

from __future__ import annotations

from typing import Final, cast

from starlette.responses import Response

from holdfast.broker.http.context import BrokerRequest
from holdfast.protocol.broker_http import BroughtState, CommitsStanding
from holdfast.protocol.commit_page import CommitPage, StateObject, decode_page, encode_page
from holdfast.protocol.log_wire import MSGPACK
from holdfast.protocol.quorum_snapshot import SnapshotHeader, read_header
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.rules.errors import (
    BadCommitPage,
    BadInput,
    BadQuorumSnapshot,
    BodyTooLarge,
    CommitForked,
    NotAMember,
    NotGranted,
    NoVoters,
    PastEnd,
    Truncated,
    UnknownObject,
)
from holdfast.rules.limits import (
    COMMIT_PAGE_BYTES,
    COMMIT_PAGE_BYTES_MAX,
    COMMIT_PAGE_ROWS,
    LAMPORT_MAX,
)
from holdfast.rules.quorum.intents import Engine
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Route
from holdfast.storage.files.blobs import check_sha

_AT: Final = "/v1/meshes/{mesh}/commits"


def routes() -> list[Route]:
    known = (NotAMember, NotGranted)
    return [
        Route("GET", _AT, _held, "What is held of what the quorum has committed.",
              answers={200: CommitsStanding}, errors=known),
        Route("GET", _AT + "/page", _page, "Commits from a number on, with their records.",
              answers={200: MSGPACK}, errors=(*known, NoVoters, Truncated),
              params=(Param("from", "The number of the first; 1 if left out.", int),)),
        Route("POST", _AT, _bring, "Bring a page of commits (grant relay).", request=MSGPACK,
              answers={200: CommitsStanding},
              errors=(*known, BadCommitPage, CommitForked, PastEnd, BodyTooLarge)),
        Route("PUT", _AT + "/state", _state,
              "Name an object that holds the committed state (grant relay).",
              request=BroughtState, answers={200: CommitsStanding},
              errors=(*known, UnknownObject, BadQuorumSnapshot, CommitForked)),
    ]  # fmt: skip


async def _held(call: BrokerRequest) -> Response:
    await call.member("read")
    return call.answer(_standing(call.mesh, await call.api.store.commit_order(call.mesh)))


async def _page(call: BrokerRequest) -> Response:
    await call.member("read")
    first = call.number("from") or 1
    if not 1 <= first <= LAMPORT_MAX:
        raise BadInput(f"{first} is no number of a commit")
    store, mesh = call.api.store, call.mesh
    lines = await store.commit_lines(mesh, first, COMMIT_PAGE_ROWS, COMMIT_PAGE_BYTES)
    # Behind the lines: what was added since is no gap, and what was swept since is seen here.
    order = await store.commit_order(mesh)
    if order is None:
        raise NoVoters(f"nobody has brought commits of {mesh!r} to this broker")
    if first < order.first:
        raise Truncated(
            f"commits of {mesh!r} before {order.first} are no longer here",
            first_available=order.first,
            hint="fetch the state, then go on behind it",
        )
    page = CommitPage(
        mesh=mesh,
        engine=cast(Engine, order.engine),
        incarnation=order.incarnation,
        tag=order.tag,
        first=first,
        rows=tuple(lines),
        end=max(order.last, first + len(lines) - 1),
    )
    return Response(encode_page(page), media_type=MSGPACK)


async def _bring(call: BrokerRequest) -> Response:
    # A commit holds what others wrote: only who may hand that in may bring it.
    await call.member("relay")
    page = decode_page(await call.body(COMMIT_PAGE_BYTES_MAX))
    if page.mesh != call.mesh:
        raise BadCommitPage(f"a page of {page.mesh!r} was brought to {call.mesh!r}")
    expires_at = call.api.now_ms() + call.api.broker.retention.keep_ms
    order = await call.api.store.commits_add(call.mesh, page, expires_at)
    return call.answer(_standing(call.mesh, order))


async def _state(call: BrokerRequest) -> Response:
    given = await json_body(call, BroughtState)
    await call.member("relay")
    sha = check_sha(given.sha256)
    size = await call.api.store.object_asked(call.mesh, sha)
    if size is None:
        raise UnknownObject(f"this broker has no object {sha}", hint="bring it first")
    header = await _header(call, sha)
    if header.mesh != call.mesh:
        raise BadQuorumSnapshot(f"a state of {header.mesh!r} was brought to {call.mesh!r}")
    order = await call.api.store.commit_state(call.mesh, header, given.engine, sha, size)
    return call.answer(_standing(call.mesh, order))


async def _header(call: BrokerRequest, sha: str) -> SnapshotHeader:
    async for piece in call.api.store.object_read(call.mesh, sha):
        return read_header(piece)
    raise BadQuorumSnapshot("a state is empty")


def _standing(mesh: str, order: BrokerOrder | None) -> CommitsStanding:
    if order is None:
        return CommitsStanding(1, 0)
    state = None
    if order.state_number:
        engine = cast(Engine, order.engine)
        state = StateObject(mesh, order.state_number, engine, order.state_sha256, order.state_size)
    return CommitsStanding(order.first, order.last, state)
