"""`/openapi.json`: the calls of this node or broker, for programs, made from their declarations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast import __version__
from holdfast.protocol.error_body import ErrorBody
from holdfast.protocol.log_wire import JSON, NDJSON
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    BodyTooLarge,
    DiskFull,
    HoldfastError,
    NotGranted,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    TooMany,
    TooSlow,
)
from holdfast.service.http.request import Request
from holdfast.service.http.route import Route

_VERSION: Final = "3.1.0"
_REFS: Final = "#/components/schemas/{name}"
_EVERY: Final = (BadInput, BadToken, TooMany, StoreClosed, StoreFailed)
_WITH_WRITE: Final = (OutcomeUnknown, StoreBusy, DiskFull)
_WITH_CALLER: Final = (NotGranted,)
_WITH_BODY: Final = (TooSlow, BodyTooLarge)
_BYTES: Final = {"type": "string", "format": "binary"}
"""What is no JSON: the tools that read OpenAPI know it from version 3.0."""
_PATH_PARAM: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


def routes() -> list[Route]:
    return [
        Route(
            "GET",
            "/openapi.json",
            _document,
            "This API, for programs (OpenAPI 3.1).",
            answers={200: dict[str, Any]},
            public=True,
        )
    ]


async def _document(call: Request[Any]) -> Response:
    pages = call.api.pages
    if "openapi" not in pages:
        pages["openapi"] = msgspec.json.encode(document(call.api.routes, call.api.about))
    return Response(pages["openapi"], media_type=JSON)


def document(routes: Iterable[Route], about: str = "") -> dict[str, Any]:
    listed = list(routes)
    types = list({id(found): found for route in listed for found in _types(route)}.values())
    # The schemas come in the order of the types.
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFS)
    _plain_arrays(components)
    _plain_arrays(schemas)
    by_type = {id(found): schema for found, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        where = paths.setdefault(openapi_path(route), {})
        where[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": _VERSION,
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": about,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token, or the session that a hello gave. Not needed on the "
                    "Unix socket.",
                }
            },
        },
    }


def _plain_arrays(schema: Any) -> None:
    """Says of arrays what some tools ask for. They read no schema that is a bool, as in the `items:
    false` of tuples, whose length says the same; and every other array has `items`.
    """
    if isinstance(schema, dict):
        if schema.get("items") is False and "maxItems" in schema:
            del schema["items"]
        if schema.get("type") == "array" and not {"items", "prefixItems"} & schema.keys():
            schema["items"] = {}
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            _plain_arrays(part)


def openapi_path(route: Route) -> str:
    """The path as OpenAPI and people write it: `/v1/consumers/{name}`."""
    return _PATH_PARAM.sub(r"{\1}", route.path)


def refusals(route: Route) -> list[type[HoldfastError]]:
    """Every error that a call may raise, in the order of their statuses."""
    errors: list[type[HoldfastError]] = [*_EVERY, *route.errors]
    if not route.public:
        errors += _WITH_CALLER
        if route.method != "GET":
            errors += _WITH_WRITE
    if route.request is not None:
        errors += _WITH_BODY
    return sorted(set(errors), key=lambda error: (error.http_status, error.code))


def _types(route: Route) -> list[Any]:
    return [
        found
        for found in (route.request, *route.answers.values(), *(p.type for p in route.params))
        if found is not None and not isinstance(found, str)
    ] + [ErrorBody]


def _operation(route: Route, by_type: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.name or _operation_id(route),
        "tags": [_tag(route)],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PATH_PARAM.findall(route.path)
        ]
        + [
            {
                "name": param.name,
                "in": param.where,
                "required": param.required,
                "description": param.summary,
                "schema": by_type[id(param.type)],
            }
            for param in route.params
        ],
        "responses": {
            **{
                str(status): {
                    "description": HTTPStatus(status).phrase,
                    **_answer(route, found, by_type),
                }
                for status, found in route.answers.items()
            },
            **_refused(route, by_type),
        },
        "security": [] if route.public else [{"token": []}],
    }
    if route.request is not None:
        operation["requestBody"] = {
            "required": route.request_needed,
            **_content(route.request, by_type),
        }
    if not operation["parameters"]:
        del operation["parameters"]
    return operation


def _refused(route: Route, by_type: dict[int, Any]) -> dict[str, Any]:
    codes: dict[int, list[str]] = {}
    for error in refusals(route):
        codes.setdefault(error.http_status, []).append(error.code)
    return {
        str(status): {"description": ", ".join(found), **_content(ErrorBody, by_type)}
        for status, found in codes.items()
        if status not in route.answers
    }


def _answer(route: Route, found: Any, by_type: dict[int, Any]) -> dict[str, Any]:
    said = _content(found, by_type)
    if route.lines:
        said["content"][NDJSON] = {"schema": _BYTES}
    return said


def _content(found: Any, by_type: dict[int, Any]) -> dict[str, Any]:
    if found is None:
        return {}
    if isinstance(found, str):
        return {"content": {kind.strip(): {"schema": _BYTES} for kind in found.split(",")}}
    return {"content": {JSON: {"schema": by_type[id(found)]}}}


def _tag(route: Route) -> str:
    """What the call is about: the family, where it is one of a mesh."""
    words: list[str] = re.findall(r"[\w-]+", openapi_path(route).removeprefix("/v1"))
    return words[2] if words[:2] == ["meshes", "mesh"] and len(words) > 2 else words[0]


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", openapi_path(route).removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])
