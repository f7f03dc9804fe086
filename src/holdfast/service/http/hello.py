"""The hello by which two zones prove themselves to each other, over HTTP.

A node answers it on its TLS listener only: what it proves is bound to the certificate that the
other side saw there.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from holdfast.protocol.hello_http import (
    HelloRequest,
    HelloResponse,
    ProofRequest,
    SessionResponse,
)
from holdfast.rules.errors import KeyExpired, ZoneNotTrusted
from holdfast.rules.keys import KEY_BYTES, NONCE_BYTES, PROOF_BYTES, bytes_of, text_of
from holdfast.rules.limits import HELLO_BYTES_MAX
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import Request
from holdfast.service.http.route import Route
from holdfast.transport.http_server import LISTENER


def routes() -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/hello",
            _hello,
            "Begin a hello: who you are, and what proves who we are.",
            request=HelloRequest,
            answers={200: HelloResponse},
            errors=(ZoneNotTrusted, KeyExpired),
            public=True,
        ),
        Route(
            "POST",
            "/v1/hello/prove",
            _prove,
            "End a hello: your proof, for a session.",
            request=ProofRequest,
            answers={200: SessionResponse},
            errors=(ZoneNotTrusted, KeyExpired),
            public=True,
        ),
    ]


async def _hello(call: Request[Any]) -> Response:
    certificate = call.api.certificate_of(call.scope[LISTENER])
    given = await json_body(call, HelloRequest, HELLO_BYTES_MAX)
    key = bytes_of(given.key, KEY_BYTES, "key")
    nonce = bytes_of(given.nonce, NONCE_BYTES, "nonce")
    api = call.api
    reply = await api.run(api.sessions.greet, given.zone, key, nonce, certificate)
    texts = (text_of(reply.key), text_of(reply.nonce), text_of(reply.proof))
    return call.answer(HelloResponse(reply.zone, *texts))


async def _prove(call: Request[Any]) -> Response:
    call.api.certificate_of(call.scope[LISTENER])
    given = await json_body(call, ProofRequest, HELLO_BYTES_MAX)
    nonce = bytes_of(given.nonce, NONCE_BYTES, "nonce")
    proof = bytes_of(given.proof, PROOF_BYTES, "proof")
    session = await call.api.run(call.api.sessions.prove, nonce, proof)
    return call.answer(SessionResponse(session.token, session.expires_in_ms))
