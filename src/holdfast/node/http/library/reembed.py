"""Moving this node's vectors to another model over HTTP: the node keeps them, the caller has the
model. It asks for texts, embeds them and hands the vectors in, some at a time.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.node.calls.wires import read_model
from holdfast.node.http.context import NodeRequest
from holdfast.node.library.documents import ModelName
from holdfast.node.upkeep.reembed import HomeMoving, ToEmbed, ToEmbedPage
from holdfast.rules.errors import BadVector, UnknownMesh, UnknownModel
from holdfast.rules.limits import BODY_BYTES_MAX
from holdfast.rules.vectors import Model
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes


class Reembedding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which model to which; both with their dim."""

    old: ModelName
    new: ModelName


class ReembeddingPage(Reembedding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which texts come next."""

    after: int = 0
    """The `next` of the last page."""


class NewVector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that was embedded again."""

    key: str
    id: str
    """As the page of texts says it."""
    embedding: bytes | list[float]
    """Numbers, or as it is packed, as base64."""


class ReembeddingMove(Reembedding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Vectors of the new model."""

    vectors: list[NewVector]


class ToMove(msgspec.Struct, frozen=True):
    """How many vectors of this node are live under the old model."""

    total: int


class Moved(msgspec.Struct, frozen=True):
    """How many vectors were moved; others were replaced meanwhile."""

    moved: int


_PATH: Final = "/v1/meshes/{mesh}/reembedding"
_ERRORS: Final = (BadVector, UnknownMesh, UnknownModel)

routes = Routes()


@routes.post(_PATH, request=Reembedding, answers={200: ToMove}, errors=_ERRORS, local_only=True)
async def _begin(call: NodeRequest) -> Response:
    """Begin to move vectors to another model: the old one is deprecated from now on."""
    steps = _steps(call, await json_body(call, Reembedding))
    return call.answer(ToMove(await call.api.run(steps.begin)))


@routes.post(
    f"{_PATH}/texts",
    request=ReembeddingPage,
    answers={200: ToEmbedPage},
    errors=_ERRORS,
    local_only=True,
)
async def _texts(call: NodeRequest) -> Response:
    """The texts of the next vectors, to be embedded again. A page may be empty and still have a
    `next`: others own what stands there.
    """
    asked = await json_body(call, ReembeddingPage)
    return call.answer(await call.api.run(_steps(call, asked).page, asked.after))


@routes.post(
    f"{_PATH}/moves",
    request=ReembeddingMove,
    answers={200: Moved},
    errors=_ERRORS,
    local_only=True,
)
async def _move(call: NodeRequest) -> Response:
    """Store vectors under the new model and delete them under the old one. What was written since
    their texts were read stays, so that it may be sent again.
    """
    asked = await json_body(call, ReembeddingMove, BODY_BYTES_MAX)
    rows = [ToEmbed(one.key, one.id, "") for one in asked.vectors]
    move = partial(_steps(call, asked).move, rows, [one.embedding for one in asked.vectors])
    return call.answer(Moved(await call.api.run(move)))


def _steps(call: NodeRequest, asked: Reembedding) -> HomeMoving:
    mesh = call.api.engine.require_mesh(call.path["mesh"]).slug
    return HomeMoving(call.api.engine, mesh, _model(asked.old), _model(asked.new))


def _model(named: ModelName) -> Model:
    if named.dim is None:
        raise BadVector("the model is named without its dim", hint="give its dim")
    return read_model(named, {})
