"""Memory: what each peer remembers, and writing what this node's own peer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, json_value, url, words
from holdfast.apps.web.pages.rows import fitting
from holdfast.apps.web.pages.state import VERSIONS, as_written, shown_value, stamp_of
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json
from holdfast.rules.limits import CONSOLE_VERSION_CHARS


async def memories(view: PageView) -> Mapping[str, Any]:
    mesh, scope, key = view.param("mesh"), view.one("scope", "all"), view.one("key")
    after = view.one("after")
    path, page = f"/meshes/{mesh}/memory", f"/v1/meshes/{mesh}/memory"
    if key:
        rows, follows = (await view.get(f"{page}/{key}", scope=scope))["items"], None
    else:
        found, _ = await fitting(view, page, scope=scope, after=after or None)
        rows, follows = found["items"], found["next"]
    return {
        "scope": scope,
        "asked_key": key,
        "rows": rows,
        "first": url(path, scope=scope) if after else "",
        "next": url(path, scope=scope, after=follows) if follows else "",
    }


async def memory(view: PageView) -> Mapping[str, Any]:
    mesh, key, peer = view.param("mesh"), view.one("key"), view.one("peer", view.name)
    row, past = None, None
    if key:
        found = await view.get(f"/v1/meshes/{mesh}/memory/{key}", scope=f"peer:{peer}")
        row = next(iter(found["items"]), None)
        path = f"/v1/meshes/{mesh}/history/memory/{key}"
        past = await view.maybe(path, peer=peer, limit=VERSIONS)
    own = peer == view.name
    return {
        "key": key,
        "peer": peer,
        "is_own": own,
        "row": row,
        "tags": "" if row is None else ", ".join(row["tags"]),
        "expect": stamp_of(row),
        "version_most": CONSOLE_VERSION_CHARS,
        "versions": [
            {**one, "json": None if one["deleted"] else as_json(one["value"], indent=0)}
            for one in (past or {}).get("items", [])
        ],
        **shown_value(row),
    }


_CALL: Final = "PUT /v1/meshes/{mesh}/memory/{key}"
_TAGS: Final = Field(take=words)
SET: Final = Action(
    "memory.set",
    label="Remember as JSON",
    call=_CALL,
    command="holdfast memory set {key} {value} --json-value[ --expect {expect}] --mesh {mesh} "
    "{--tag tags}",
    done="{key} is remembered.",
    fields={"value": Field(take=json_value, needed=True), "tags": _TAGS, "expect": Field()},
    undone="memory.restore",
)
SET_TEXT: Final = Action(
    "memory.set_text",
    label="Remember as text",
    call=_CALL,
    command="holdfast memory set {key} {value}[ --expect {expect}] --mesh {mesh} {--tag tags}",
    done="{key} is remembered.",
    fields={"value": Field(take=as_written, needed=True), "tags": _TAGS, "expect": Field()},
    undone="memory.restore",
)
RESTORE: Final = Action(
    "memory.restore",
    label="Bring back",
    call=_CALL,
    command="holdfast memory set {key} {value} --json-value[ --expect {expect}] --mesh {mesh} "
    "{--tag tags}",
    done="{key} is remembered as it was.",
    fields={"value": Field(take=json_value, needed=True), "tags": _TAGS, "expect": Field()},
    undone="memory.restore",
)
FORGET: Final = Action(
    "memory.forget",
    label="Forget",
    call="DELETE /v1/meshes/{mesh}/memory/{key}",
    command="holdfast memory forget {key}[ --expect {expect}] --mesh {mesh}",
    done="{key} is forgotten.",
    asks="Forget {key}? Other members of {mesh} forget it too.",
    fields={"expect": Field(where="query")},
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/memory",
        title="Memory of {mesh}",
        template="memory.html",
        load=memories,
        live=("rows",),
        wakes=("log",),
        tab="Memory",
        actions=(SET, SET_TEXT, RESTORE, FORGET),
    ),
    ConsolePage(
        path="/meshes/{mesh}/remembered",
        title="A memory of {mesh}",
        template="remembered.html",
        load=memory,
        live=("present", "versions"),
        wakes=("log",),
        under="/meshes/{mesh}/memory",
    ),
)
