"""All that a broker answers over HTTP.

One call is made far more often than all others: handing in an envelope. `FastAccept` answers it at
the server, without the framework, at a fraction of the cost. What is unusual about a call (a large
body, a broker that is stopping) sends it the common way, where it gets the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from starlette.types import Scope

from holdfast.broker.http import (
    commits,
    destinations,
    envelopes,
    logs,
    meshes,
    metrics,
    objects,
    operator,
    oversight,
    queues,
    snapshots,
    tokens,
)
from holdfast.broker.http.context import BrokerApi
from holdfast.broker.pushes.decode_push import decode_push
from holdfast.broker.verdicts import Outcome, for_members
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.errors import BadToken, HoldfastError
from holdfast.rules.names import check_mesh
from holdfast.service.http import docs_page, hello, openapi
from holdfast.service.http.app import HttpApp
from holdfast.service.http.errors import internal
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Route
from holdfast.transport.http_protocol import Done
from holdfast.transport.http_server import LISTENER
from holdfast.transport.known_heads import Headers

log = logging.getLogger("holdfast")

_MODULES: Final = (
    *(hello, meshes, destinations, envelopes, logs, queues, objects, snapshots, commits),
    *(operator, oversight, tokens, metrics, openapi, docs_page),
)
_BEGIN: Final = b"/v1/meshes/"
_END: Final = b"/envelopes"
_ROUTE: Final = "/v1/meshes/{mesh}/envelopes"
_JSON: Final = (b"content-type", JSON.encode())
_EPOCH: Final = envelopes.EPOCH_HEADER.encode()
_AGAIN: Final = (_JSON, (b"retry-after", b"1"))
_HEADERS: Final[dict[int, Headers]] = {
    401: (_JSON, (b"www-authenticate", b'Bearer realm="holdfast"')),
    429: _AGAIN,
    503: _AGAIN,
}


def broker_routes() -> list[Route]:
    """Every call that a broker answers."""
    return [route for module in _MODULES for route in module.routes()]


def broker_app(api: BrokerApi) -> HttpApp:
    """The whole API as one ASGI application."""
    crew = api.broker.crew
    if crew is not None:
        operator.answer_others(api.broker, crew)
        metrics.answer_others(api, crew)
    return HttpApp(api, broker_routes(), translate=_shown)


def _shown(error: HoldfastError, scope: Scope) -> HoldfastError:
    return error if is_own(scope) else for_members(error)


class FastAccept:
    """Handing in one envelope, without the framework."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        gate = api.gate
        self._most = gate.most["call"] - gate.most["call"] // limits.OWN_SHARE

    def takes(self, url: bytes) -> bool:
        return (
            url.endswith(_END)
            and url.startswith(_BEGIN)
            and self._api.phase == "ready"
            and self._api.gate.now["call"] < self._most
        )

    def answer(self, kind: str, url: bytes, headers: Headers, body: bytes, done: Done) -> None:
        begun = perf_counter()
        self._api.gate.now["call"] += 1
        try:
            mesh, key = self._sender(kind, url, headers)
            if self._api.broker.strangers.was_member(mesh, key):
                self._take(self._read(mesh, key, headers, body), begun, done)
                return
        except Exception as error:
            self._refuse(error, begun, done)
            return
        self._api.broker.in_background(self._look_first(mesh, key, headers, body, begun, done))

    async def _look_first(
        self, mesh: str, key: bytes, headers: Headers, body: bytes, begun: float, done: Done
    ) -> None:
        """The same for a key that is perhaps no member: nothing is decoded before that is known."""
        try:
            await self._api.broker.strangers.require_member(mesh, key)
            pushed = self._read(mesh, key, headers, body)
        except Exception as error:
            self._refuse(error, begun, done)
        else:
            self._take(pushed, begun, done)

    def _take(self, pushed: PushedEnvelope, begun: float, done: Done) -> None:
        broker = self._api.broker

        def accepted(outcomes: Sequence[Outcome]) -> None:
            try:
                (outcome,) = outcomes
                if isinstance(outcome, HoldfastError):
                    raise outcome
                status, answer, epoch = envelopes.answer(broker, pushed, outcome)
            except Exception as error:
                self._refuse(error, begun, done)
            else:
                self._end(status, begun)
                done(status, answer, (_JSON, (_EPOCH, b"%d" % epoch)))

        broker.accepting.take([pushed], accepted)

    def _sender(self, kind: str, url: bytes, headers: Headers) -> tuple[str, bytes]:
        key = self._api.identify({LISTENER: kind, "headers": headers}).key
        if not key:
            raise BadToken("this call is for a key that has said hello", hint="say hello first")
        # A name that is spelled with escapes is no name of a mesh either way.
        return check_mesh(url[len(_BEGIN) : -len(_END)].decode("latin-1")), key

    def _read(self, mesh: str, key: bytes, headers: Headers, body: bytes) -> PushedEnvelope:
        api = self._api
        epoch = 0
        for name, value in headers:
            if name == _EPOCH:
                epoch = envelopes.epoch_of(value.decode("latin-1"))
        try:
            return decode_push(body, mesh, key, epoch, api.broker.source.new_id)
        except HoldfastError as error:
            api.broker.counts.refused[error.code] += 1
            raise

    def _refuse(self, error: Exception, begun: float, done: Done) -> None:
        if isinstance(error, HoldfastError):
            status, body = error.http_status, envelopes.refused(error)
            if status >= 500:
                log.warning("POST %s: %s", _ROUTE, error.message)
        else:
            log.error("a fault of ours in POST %s", _ROUTE, exc_info=error)
            status, body = 500, bytes(internal().body)
        self._end(status, begun)
        done(status, body, _HEADERS.get(status, (_JSON,)))

    def _end(self, status: int, begun: float) -> None:
        self._api.gate.now["call"] -= 1
        self._api.counts.add("POST", _ROUTE, status, perf_counter() - begun)
