"""Reading the settings again while the daemon runs."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.settings import Reloaded
from holdfast.rules.errors import BadInput, OutboxAgeAboveWindow
from holdfast.service.http.route import Routes

routes = Routes()


@routes.post(
    "/v1/reload",
    answers={200: Reloaded},
    errors=(BadInput, OutboxAgeAboveWindow),
    local_only=True,
)
async def _reload(call: NodeRequest) -> Response:
    """Take up changed settings. If one of them is no good, nothing changes."""
    return call.answer(call.api.reload())
