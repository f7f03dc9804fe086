"""Conflicts: what a merge kept and what it discarded, side by side, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, url
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json
from holdfast.rules.limits import CONSOLE_CONFLICTS

_SAID: Final = {"state": "value", "memory": "text"}
"""The field of a body that a person compares, by family."""


async def conflicts(view: PageView) -> Mapping[str, Any]:
    settled, mesh = bool(view.one("settled")), view.one("mesh")
    after = view.one("after") or None
    asked = {"settled": "yes" if settled else None, "mesh": mesh or None}
    page = await view.get(
        "/v1/conflicts",
        mesh=mesh or None,
        open_only=not settled,
        after=after,
        limit=CONSOLE_CONFLICTS,
    )
    rows = page["items"]
    kept = await asyncio.gather(*(_kept(view, row) for row in rows))
    return {
        "rows": [
            {**row, "kept": now, "lost": _lost(row), "holder": _whose(row)}
            for row, now in zip(rows, kept, strict=True)
        ],
        "asked": asked,
        "settled": settled,
        "first": url("/conflicts", **asked) if after else "",
        "next": url("/conflicts", **asked, after=page["next"]) if page.get("next") else "",
    }


async def _kept(view: PageView, row: Mapping[str, Any]) -> str:
    """What stands now, as far as this caller may see it."""
    mesh, entity, family = row["mesh"], row["entity"], row["family"]
    if family == "state":
        found = await view.maybe(f"/v1/meshes/{mesh}/state/{entity}")
    elif family == "memory":
        found = await view.maybe(f"/v1/meshes/{mesh}/memory/{entity}", owner=row["owner"])
    else:
        return ""
    if found is None:
        return "deleted since"
    said = found.get(_SAID[family])
    return said if isinstance(said, str) else as_json(said)


def _lost(row: Mapping[str, Any]) -> str:
    body = row["loser_body"]
    if row["loser_op"].endswith(".delete"):
        return "a deletion"
    said = body.get(_SAID.get(row["family"], ""), body)
    return said if isinstance(said, str) else as_json(said) if said else ""


def _whose(row: Mapping[str, Any]) -> str:
    return f"{row['owner']}'s " if row["owner"] and row["family"] != "state" else ""


RESTORE: Final = Action(
    "conflict.restore",
    label="Write it again",
    call="POST /v1/conflicts/{number}/restore",
    command="holdfast conflict restore {number}",
    done="What was discarded is written again, as a new change.",
    undone="state.restore",
)
DISMISS: Final = Action(
    "conflict.dismiss",
    label="Keep what stands",
    call="POST /v1/conflicts/{number}/dismiss",
    command="holdfast conflict dismiss {number}",
    done="It stays as it is.",
    asks="Keep what stands? The other version is offered no more.",
)
DISMISS_MANY: Final = Action(
    "conflict.dismiss_many",
    label="Keep what stands, of all that are marked",
    call="POST /v1/conflicts/{number}/dismiss",
    command="holdfast conflict dismiss {number}",
    done="{count} stay as they are.",
    each="number",
    asks="Keep what stands of all that are marked? The others are offered no more.",
)
RESTORE_MANY: Final = Action(
    "conflict.restore_many",
    label="Write again all that are marked",
    call="POST /v1/conflicts/{number}/restore",
    command="holdfast conflict restore {number}",
    done="{count} are written again.",
    each="number",
    asks="Write the discarded versions of all that are marked again? They win over what stands.",
)

PAGES: Final = (
    ConsolePage(
        path="/conflicts",
        title="Conflicts",
        template="conflicts.html",
        load=conflicts,
        live=("rows",),
        nav="Conflicts",
        key="c",
        actions=(RESTORE, DISMISS, DISMISS_MANY, RESTORE_MANY),
    ),
)
