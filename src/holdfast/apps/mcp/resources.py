"""Resources: what an agent's user can attach to a conversation, and what an agent follows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
import msgspec

from holdfast.apps.mcp.places import ResourcePlace, place_at
from holdfast.apps.mcp.tools.call import AgentCall, check_size, page
from holdfast.apps.mcp.tools.conflicts import conflict_shown
from holdfast.apps.mcp.tools.files import content_of, shared_file
from holdfast.apps.mcp.tools.messages import message_listed
from holdfast.apps.mcp.tools.state import state_value
from holdfast.apps.mcp.tools.tasks import task_shown
from holdfast.rules.errors import UnknownKey
from holdfast.rules.limits import MCP_ROWS_MAX

_JSON: Final = "application/json"
_LISTS: Final = {
    "state": ("State", "Every key of the mesh's shared state with its value."),
    "tasks": ("Tasks", "Every task of the mesh, whoever has it."),
    "conflicts": ("Conflicts", "What merges discarded and nobody has settled yet."),
    "inbox": ("Inbox", "Messages of the mesh that came for this node and were not read."),
    "files": ("Files", "The files that members share."),
}
TEMPLATES: Final = (
    types.ResourceTemplate(
        name="state",
        title="One key of shared state",
        uri_template="holdfast://{mesh}/state/{key}",
        description="The value of a key, with its stamp and who wrote it.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        name="task",
        title="One task",
        uri_template="holdfast://{mesh}/tasks/{task}",
        description="A task as it stands.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        name="file",
        title="One file of this node",
        uri_template="holdfast://{mesh}/files/{path}",
        description="The content of a file that this node shares.",
    ),
)
_PAGE_MESHES: Final = 50


def resources(call: AgentCall, cursor: str | None) -> tuple[list[types.Resource], str | None]:
    """The lists of each mesh; what is in them is found by the templates."""
    slugs = sorted(slug for slug in call.slugs() if slug > (cursor or ""))
    found = [
        types.Resource(
            name=f"{slug}/{kind}",
            title=f"{title} of {slug}",
            uri=ResourcePlace(slug, kind).uri,
            description=said,
            mime_type=_JSON,
        )
        for slug in slugs[:_PAGE_MESHES]
        for kind, (title, said) in _LISTS.items()
    ]
    return found, slugs[_PAGE_MESHES - 1] if len(slugs) > _PAGE_MESHES else None


def read_resource(
    call: AgentCall, uri: str
) -> list[types.TextResourceContents | types.BlobResourceContents]:
    """The content of a resource, under the name by which it was asked for."""
    place = place_at(uri)
    if place.kind == "files" and place.key:
        return [_file(call, uri, place)]
    document = _READ[place.kind, bool(place.key)](call, place)
    text = msgspec.json.encode(document).decode()
    check_size(len(text), uri)
    return [types.TextResourceContents(uri=uri, mime_type=_JSON, text=text)]


def _file(
    call: AgentCall, uri: str, place: ResourcePlace
) -> types.TextResourceContents | types.BlobResourceContents:
    mesh = call.mesh(place.mesh)
    raw = content_of(mesh, mesh.files.info(place.key), None)
    check_size(len(raw), uri)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return types.BlobResourceContents(uri=uri, blob=b64encode(raw).decode())
    return types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)


def _key(call: AgentCall, place: ResourcePlace) -> Any:
    entry = call.mesh(place.mesh).state.entry(place.key)
    if entry is None:
        raise UnknownKey(f"{place.mesh} has no key {place.key!r}")
    return state_value(entry)


def _keys(call: AgentCall, place: ResourcePlace) -> Any:
    rows = call.mesh(place.mesh).state.list()
    return _list(page(rows, MCP_ROWS_MAX, state_value, lambda row: row.key))


def _task(call: AgentCall, place: ResourcePlace) -> Any:
    return task_shown(call.mesh(place.mesh).tasks.get(place.key))


def _tasks(call: AgentCall, place: ResourcePlace) -> Any:
    rows = call.mesh(place.mesh).tasks.list()
    return _list(page(rows, MCP_ROWS_MAX, task_shown, lambda row: row.task))


def _conflicts(call: AgentCall, place: ResourcePlace) -> Any:
    rows = call.node.conflicts(call.mesh(place.mesh).slug)
    shown = page(rows, MCP_ROWS_MAX, lambda row: conflict_shown(call, row), lambda _: "")
    return _list(shown)


def _inbox(call: AgentCall, place: ResourcePlace) -> Any:
    rows = call.mesh(place.mesh).inbox.list(unread=True)
    return _list(page(rows, MCP_ROWS_MAX, message_listed, lambda _: ""))


def _files(call: AgentCall, place: ResourcePlace) -> Any:
    rows = call.mesh(place.mesh).files.list()
    return _list(page(rows, MCP_ROWS_MAX, shared_file, lambda row: row.path))


def _list(found: tuple[tuple[Any, ...], str | None]) -> dict[str, Any]:
    items, more = found
    return {"items": items, "more": more is not None}


_READ: Final[dict[tuple[str, bool], Callable[[AgentCall, ResourcePlace], Any]]] = {
    ("state", True): _key,
    ("state", False): _keys,
    ("tasks", True): _task,
    ("tasks", False): _tasks,
    ("conflicts", False): _conflicts,
    ("inbox", False): _inbox,
    ("files", False): _files,
}
