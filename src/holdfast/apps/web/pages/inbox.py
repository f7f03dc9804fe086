"""The inbox: what came for this node, and one message with its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, url
from holdfast.apps.web.view import PageView
from holdfast.rules.limits import CONSOLE_ROWS


async def inbox(view: PageView) -> Mapping[str, Any]:
    asked = {
        "unread": "true" if view.one("unread") else None,
        "mesh": view.one("mesh") or None,
        "text": view.one("text") or None,
    }
    after = view.one("after") or None
    page = await view.get("/v1/inbox", **asked, after=after, limit=CONSOLE_ROWS)
    return {
        "rows": page["messages"],
        "total": page["total"],
        "unread": page["unread"],
        "asked": asked,
        "first": url("/inbox", **asked) if after else "",
        "next": url("/inbox", **asked, after=page["next"]) if page["next"] else "",
    }


async def message(view: PageView) -> Mapping[str, Any]:
    row = await view.get(f"/v1/inbox/{view.param('id')}")
    return {"row": row}


READ: Final = Action(
    "inbox.read",
    label="Mark as read",
    call="POST /v1/inbox/{id}/read",
    command="holdfast inbox read {id}",
    done="The message counts as read.",
    undone="nothing is lost: what was read stays, and is found",
)
REPLY: Final = Action(
    "inbox.reply",
    label="Answer",
    call="POST /v1/inbox/{id}/reply",
    command="holdfast inbox reply {id} {body}",
    done="The answer is on its way.",
    fields={"body": Field(needed=True)},
    tone="main",
    asks="Send this answer? What was sent cannot be taken back.",
)

PAGES: Final = (
    ConsolePage(
        path="/inbox",
        title="Inbox",
        template="inbox.html",
        load=inbox,
        live=("rows",),
        nav="Inbox",
        key="i",
        actions=(READ, REPLY),
    ),
    ConsolePage(
        path="/inbox/{id}",
        title="A message",
        template="message.html",
        load=message,
        live=("message",),
        under="/inbox",
    ),
)
