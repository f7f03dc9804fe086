"""What quorums have committed, for nodes without a vote and for the lake.

A log gives strong envelopes without saying what became of them. Here they come in commit order,
each with its record, by the number of the commit. A reader keeps its place by itself: it asks from
the number after its last on.
"""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.log import serve
from holdfast.protocol.commit_page import CommitsHeld, StateObject
from holdfast.protocol.log_wire import MSGPACK
from holdfast.rules.errors import NotGranted, NoVoters, Truncated, UnknownMesh
from holdfast.service.http.route import Param, Routes

routes = Routes()


@routes.get("/v1/commits", answers={200: CommitsHeld}, errors=(NotGranted,))
async def _held(call: NodeRequest) -> Response:
    """By mesh with voters: the number of the last commit that this node has."""
    held = await call.api.run(partial(serve.commits_held, call.api.engine, call.caller))
    return call.answer(held)


@routes.get(
    "/v1/commits/page",
    answers={200: MSGPACK},
    params=(
        Param("mesh", "The mesh.", required=True),
        Param("from", "The number of the first commit; 1 if left out.", int),
    ),
    errors=(NotGranted, UnknownMesh, NoVoters, Truncated),
    example="-G -d mesh=team -d from=1 -o page.msgpack",
)
async def _page(call: NodeRequest) -> Response:
    """Commits of a mesh from a number on, with envelopes and records; none if there are none yet.
    `docs/protocol/tables.md` has the fields of a page.
    """
    mesh, first = call.required("mesh"), call.number("from")
    work = partial(serve.serve_commits, call.api.engine, call.caller, mesh, first or 1)
    body = await call.api.run(work)
    check_still(call)
    return Response(body, media_type=MSGPACK)


@routes.get(
    "/v1/commits/state",
    answers={200: StateObject},
    params=(
        Param("mesh", "The mesh.", required=True),
        Param("have", "How many commits the caller has; 0 if left out.", int),
    ),
    errors=(NotGranted, UnknownMesh, NoVoters),
    example="-G -d mesh=team",
)
async def _state(call: NodeRequest) -> Response:
    """Everything that was committed in a mesh, as an object, for who lacks what was truncated.
    Fetch it by its hash (`/v1/objects/{sha256}`) within the hour.
    """
    mesh, have = call.required("mesh"), call.number("have")
    work = partial(serve.serve_state, call.api.engine, call.caller, mesh, have or 0)
    given = await call.api.run(work)
    check_still(call)
    return call.answer(given)
