"""How an error is answered: always as JSON, always in one shape (`protocol/error_body.py`).

What was not raised on purpose becomes `internal`: its trace goes to our log, and nothing of it to
the caller.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.protocol.error_body import ErrorBody, ErrorDetail
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError

_MORE = ("first_available", "epoch")
_RETRY_AFTER = {"retry-after": "1"}
_HEADERS = {
    401: {"www-authenticate": 'Bearer realm="holdfast"'},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def failure(error: HoldfastError) -> ErrorBody:
    more: dict[str, Any] = {name: getattr(error, name, None) for name in _MORE}
    more["free"] = getattr(error, "free", ())
    present = getattr(error, "present", None)
    more["present"] = None if present is None else str(present)
    most = limits.REASON_CHARS_MAX  # it may repeat what the caller sent
    return ErrorBody(ErrorDetail(error.code, error.message[:most], error.hint[:most], **more))


def refusal(error: HoldfastError) -> Response:
    """The answer that an error becomes."""
    return _answer(failure(error), error.http_status)


def internal() -> Response:
    """The answer to a fault of ours."""
    detail = ErrorDetail("internal", "something went wrong in this node", "its log says what")
    return _answer(ErrorBody(detail), 500)


def _answer(body: ErrorBody, status: int) -> Response:
    headers = _HEADERS.get(status)
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=JSON)
