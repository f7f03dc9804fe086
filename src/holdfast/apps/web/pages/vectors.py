"""Vectors: the models they are stored under, and what is nearest to a vector, or to a text where
this machine has the model that makes vectors of texts.

A vector is sent in a form, not in an address: those of real models are too long for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web import embedding
from holdfast.apps.web.page import Action, ConsolePage, Field, json_value, number
from holdfast.apps.web.view import PageView
from holdfast.node.calls.wires import read_model_text

_FIELDS: Final = ("provider", "name", "version", "dim", "quantization")


async def vectors(view: PageView) -> Mapping[str, Any]:
    mesh = view.param("mesh")
    found = (await view.get(f"/v1/meshes/{mesh}/models"))["items"]
    ours = None
    if embedding.is_there():
        from holdfast.pipeline.minilm import MODEL

        ours = embedding.as_call(MODEL)
        ours["text"] = text_of(ours)
    return {"models": [{**row, "text": text_of(row)} for row in found], "ours": ours}


async def _to_search(form: Mapping[str, str]) -> Mapping[str, Any]:
    model, numbers = await embedding.vector_of(form)
    return {"model": model, "query": numbers}


async def _to_store(form: Mapping[str, str]) -> Mapping[str, Any]:
    model, numbers = await embedding.vector_of(form)
    return {"model": model, "embedding": numbers, "content": form["text"].strip()}


def text_of(row: Mapping[str, Any]) -> str:
    """A model as addresses name it."""
    return ":".join(str(row[name]) for name in _FIELDS)


def model_of(text: str) -> dict[str, Any]:
    """The same as a call takes it."""
    model = read_model_text(text, {})
    return {name: getattr(model, name) for name in _FIELDS}


SEARCH: Final = Action(
    "vector.search",
    label="What is near",
    call="POST /v1/meshes/{mesh}/vector-search",
    command="holdfast vector search {query} --model {of} --dim {dim} --quantization {kept}"
    "[ --limit {limit}] --mesh {mesh}",
    fields={
        "query": Field(take=json_value, needed=True),
        "model": Field(take=model_of, needed=True),
        "limit": Field(take=number),
    },
    shows="near.html",
    tone="main",
    undone="it only reads",
)
SEARCH_TEXT: Final = Action(
    "vector.search_text",
    label="What is near",
    call="POST /v1/meshes/{mesh}/vector-search",
    command="holdfast vector search --text {text}[ --limit {limit}] --mesh {mesh}",
    fields={"limit": Field(take=number)},
    makes=_to_search,
    shows="near.html",
    tone="main",
    undone="it only reads",
)
STORE_TEXT: Final = Action(
    "vector.store_text",
    label="Store",
    call="PUT /v1/meshes/{mesh}/vectors/{key}",
    command="holdfast vector store {key} --text {text} --mesh {mesh}",
    done="{key} is found by its meaning now.",
    makes=_to_store,
    asks="Store this text under {key}? What this node has under that key is replaced.",
    tone="main",
)
DELETE: Final = Action(
    "vector.delete",
    label="Delete",
    call="DELETE /v1/meshes/{mesh}/vectors/{key}",
    command="holdfast vector delete {key} --model {of} --dim {dim} --quantization {kept} "
    "--mesh {mesh}",
    done="The vector {key} is deleted.",
    asks="Delete the vector {key} of this node for every member of {mesh}?",
    fields={"model": Field(where="query", needed=True)},
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/vectors",
        title="Vectors of {mesh}",
        template="vectors.html",
        load=vectors,
        live=("collections",),
        wakes=("log",),
        tab="Vectors",
        actions=(SEARCH, SEARCH_TEXT, STORE_TEXT, DELETE),
    ),
)
