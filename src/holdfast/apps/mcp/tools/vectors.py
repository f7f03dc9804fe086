"""Vectors for agents: stored and searched by text, or by an embedding that the agent has."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page
from holdfast.apps.mcp.tools.declare import (
    AgentTools,
    Id,
    Limit,
    Scope,
    ToolAnswer,
    ToolArguments,
    ToolReceipt,
)
from holdfast.node.core.views import Hit
from holdfast.node.library.documents import ModelName
from holdfast.rules.errors import BadInput
from holdfast.rules.vectors import Model

VECTORS = AgentTools()

_HITS = 10

Embedding = Annotated[
    list[float] | None,
    msgspec.Meta(description="Instead of a text: numbers that your own model has made."),
]
MadeBy = Annotated[
    ModelName | None,
    msgspec.Meta(description="The model that made `embedding`. Only vectors of one model compare."),
]


class VectorStoreAsked(ToolArguments, frozen=True):
    key: Annotated[str, msgspec.Meta(description="A key; what was under it is replaced.")]
    text: Annotated[
        str, msgspec.Meta(description="What it stands for. It is embedded, and shown with hits.")
    ] = ""
    embedding: Embedding = None
    model: MadeBy = None
    metadata: Annotated[Any, msgspec.Meta(description="Any JSON to keep with it.")] = None
    id: Id = None


@VECTORS.writes("vector_store", "Store for search by meaning", VectorStoreAsked, ToolReceipt)
def vector_store(call: AgentCall, asked: VectorStoreAsked) -> ToolReceipt:
    """Keeps a text so that it is found again by its meaning, by you and by all members of the mesh.
    Give a `text`, and nothing else is needed; or an `embedding` with its `model`.
    """
    mesh = call.mesh(asked.mesh)
    model, numbers = _vector(asked.text, asked.embedding, asked.model)
    id = call.id(asked.id, mesh)
    done = mesh.vectors.store(
        asked.key, numbers, model=model, content=asked.text, metadata=asked.metadata, id=id
    )
    return ToolReceipt(**call.receipt(mesh, done))


class VectorSearchAsked(ToolArguments, frozen=True):
    text: Annotated[str, msgspec.Meta(description="What to look for, in words.")] = ""
    embedding: Embedding = None
    model: MadeBy = None
    scope: Scope = "all"
    limit: Limit = _HITS


class VectorHit(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    peer: str
    """Who stored it."""
    text: str
    metadata: Any
    distance: float
    """The smaller, the nearer."""


class VectorsFound(ToolAnswer, frozen=True):
    mesh: str
    items: tuple[VectorHit, ...]
    """Nearest first."""


@VECTORS.reads("vector_search", "Search by meaning", VectorSearchAsked, VectorsFound)
def vector_search(call: AgentCall, asked: VectorSearchAsked) -> VectorsFound:
    """Finds what was stored with `vector_store` by its meaning, nearest first: by a `text`, or by
    an `embedding` with its `model`. Use it when you do not know the key.
    """
    mesh = call.mesh(asked.mesh)
    model, numbers = _vector(asked.text, asked.embedding, asked.model)
    hits = mesh.vectors.search(numbers, model=model, limit=asked.limit, scope=asked.scope)
    items, _ = page(hits, asked.limit, _hit, lambda hit: hit.key)
    return VectorsFound(mesh=mesh.slug, items=items)


def _hit(hit: Hit) -> VectorHit:
    return VectorHit(
        key=hit.key,
        peer=hit.peer,
        text=hit.content,
        metadata=hit.metadata,
        distance=hit.distance,
    )


def _vector(
    text: str, embedding: list[float] | None, named: ModelName | None
) -> tuple[Model, list[float]]:
    """The numbers, and the model that they are of."""
    if embedding is not None:
        if named is None:
            raise BadInput("an embedding is of a model", hint="say which one as `model`, or a text")
        return Model(
            provider=named.provider,
            name=named.name,
            version=named.version,
            dim=len(embedding) if named.dim is None else named.dim,
            quantization=named.quantization,
        ), embedding
    if not text:
        raise BadInput("there is neither a text nor an embedding", hint="give a `text`")
    if named is not None:
        raise BadInput("a text is embedded by our own model", hint="leave `model` out")
    # It brings NumPy, and the weights of the model.
    from holdfast.pipeline.minilm import of_text

    return of_text(text)
