"""Every answer over HTTP that any test gets has a status that its route declares.

What a caller reads in OpenAPI has to be all that can come. So the tests look on: a status that is
not declared fails the test in which it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from holdfast.broker.http.app import broker_routes
from holdfast.node.http.app import node_routes
from holdfast.service.http.openapi import refusals
from holdfast.service.http.request import RequestCounts
from holdfast.service.http.route import Route

_OWN_FAULT = 500
"""A fault of ours is none that anybody declares; tests plant some."""


def _statuses(route: Route) -> set[int]:
    errors = {error.http_status for error in refusals(route)}
    return {0, _OWN_FAULT, *route.answers, *errors}


@cache
def _declared() -> dict[tuple[str, str], set[int]]:
    known: dict[tuple[str, str], set[int]] = {}
    for route in (*node_routes(), *broker_routes()):
        # Both may have a route of one path: then either may answer.
        known.setdefault((route.method, route.path), set()).update(_statuses(route))
    return known


@contextmanager
def only_declared_answers() -> Iterator[None]:
    known = _declared()
    strange: list[str] = []
    add = RequestCounts.add

    def watched(
        self: RequestCounts, method: str, path: str, status: int, seconds: float, many: int = 1
    ) -> None:
        declared = known.get(("GET" if method == "HEAD" else method, path))
        if declared is not None and status not in declared:
            strange.append(f"{method} {path}: {status}")
        add(self, method, path, status, seconds, many)

    RequestCounts.add = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        RequestCounts.add = add  # type: ignore[method-assign]
    assert not strange, f"answers that OpenAPI does not name: {sorted(set(strange))}"
