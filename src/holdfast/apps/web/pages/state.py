"""The state of a mesh: its keys in order, one value with its parts, and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, json_value, url
from holdfast.apps.web.pages.rows import fitting, tree
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json
from holdfast.rules.expected import ABSENT
from holdfast.rules.limits import CONSOLE_EDIT_CHARS

VERSIONS: Final = 20
"""So many versions of a key stand on its page: even the largest are one answer."""


def stamp_of(row: Mapping[str, Any] | None) -> str:
    """What a write expects that follows from this row."""
    return ABSENT if row is None else f"{row['lamport']}@{row['peer']}"


async def keys(view: PageView) -> Mapping[str, Any]:
    mesh, prefix, after = view.param("mesh"), view.one("prefix"), view.one("after")
    page, _ = await fitting(view, f"/v1/meshes/{mesh}/state", prefix=prefix, after=after)
    path = f"/meshes/{mesh}/state"
    return {
        "prefix": prefix,
        "rows": page["items"],
        "first": url(path, prefix=prefix) if after else "",
        "next": url(path, prefix=prefix, after=page["next"]) if page["next"] else "",
    }


async def value(view: PageView) -> Mapping[str, Any]:
    """In the query, not in the path: a browser makes another path of a key that has `..` in it."""
    mesh, key = view.param("mesh"), view.one("key")
    row, past = None, None
    if key:
        row = await view.maybe(f"/v1/meshes/{mesh}/state/{key}")
        past = await view.maybe(f"/v1/meshes/{mesh}/history/state/{key}", limit=VERSIONS)
    return {
        "key": key,
        "row": row,
        "expect": stamp_of(row),
        "versions": (past or {}).get("items", []),
        **shown_value(row),
    }


def shown_value(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """A value for its page: as its parts, as text, and as what one writes in its place; None there
    if it is too long for a form.
    """
    if row is None:
        return {"is_text": False, "tree": None, "text": "", "edited": ""}
    is_text = isinstance(row["value"], str)
    text = row["value"] if is_text else as_json(row["value"])
    edited = text if len(text) <= CONSOLE_EDIT_CHARS else None
    return {"is_text": is_text, "tree": tree(row["value"]), "text": text, "edited": edited}


def as_written(text: str) -> str:
    """What somebody wrote into a form: a browser sends its line ends as two characters."""
    return text.replace("\r\n", "\n")


_CALL: Final = "PUT /v1/meshes/{mesh}/state/{key}"
SET: Final = Action(
    "state.set",
    label="Write as JSON",
    call=_CALL,
    command="holdfast state set {key} {value} --json-value[ --expect {expect}] --mesh {mesh}",
    done="{key} is written.",
    fields={"value": Field(take=json_value, needed=True), "expect": Field()},
    undone="state.restore",
)
SET_TEXT: Final = Action(
    "state.set_text",
    label="Write as text",
    call=_CALL,
    command="holdfast state set {key} {value}[ --expect {expect}] --mesh {mesh}",
    done="{key} is written.",
    fields={"value": Field(take=as_written, needed=True), "expect": Field()},
    undone="state.restore",
)
DELETE: Final = Action(
    "state.delete",
    label="Delete",
    call="DELETE /v1/meshes/{mesh}/state/{key}",
    command="holdfast state delete {key}[ --expect {expect}] --mesh {mesh}",
    done="{key} is deleted. Its past is kept: the page Past brings it back.",
    asks="Delete {key} for every member of {mesh}?",
    fields={"expect": Field(where="query")},
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/state",
        title="State of {mesh}",
        template="state.html",
        load=keys,
        live=("rows",),
        wakes=("log",),
        tab="State",
        actions=(SET, SET_TEXT, DELETE),
    ),
    ConsolePage(
        path="/meshes/{mesh}/value",
        title="A key of {mesh}",
        template="value.html",
        load=value,
        live=("present", "versions"),
        wakes=("log",),
        under="/meshes/{mesh}/state",
    ),
)
