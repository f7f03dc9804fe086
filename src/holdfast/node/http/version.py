"""The version of this node, and what it is compatible with."""

from __future__ import annotations

from starlette.responses import Response

from holdfast import __version__
from holdfast.node.http.context import NodeRequest
from holdfast.protocol import export_lines
from holdfast.protocol.version_http import FormatVersions, VersionInfo
from holdfast.rules import digests, features
from holdfast.service.http import arrow_stream
from holdfast.service.http.route import Routes
from holdfast.service.http.version import common_formats, numbered
from holdfast.storage.sqlite import migrations

routes = Routes()


@routes.get("/v1/version", answers={200: VersionInfo}, public=True)
async def _version(call: NodeRequest) -> Response:
    """The version of this node, the formats that it writes and reads, and what it needs of a
    broker.
    """
    return call.answer(VersionInfo("node", __version__, _formats(), features.NEEDS))


def _formats() -> dict[str, FormatVersions]:
    return {
        **common_formats(),
        "home": numbered(migrations.LATEST, since=1),
        "export": numbered(export_lines.VERSION),
        "digests": numbered(digests.FORMAT),
        "arrow": numbered(int(arrow_stream.FORMAT)),
    }
