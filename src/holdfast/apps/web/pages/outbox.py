"""The outbox: what this node has to send, lane by lane, and what holds up what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, url
from holdfast.apps.web.view import PageView
from holdfast.rules.limits import CONSOLE_ROWS

STATES: Final = ("pending", "inflight", "dead", "aborted", "done")
"""As the outbox names them."""


async def outbox(view: PageView) -> Mapping[str, Any]:
    state, lane = view.one("state"), view.one("lane")
    after = view.one("after") or None
    asked = {"state": state or None, "lane": lane or None}
    page = await view.get("/v1/outbox", **asked, after=after, limit=CONSOLE_ROWS)
    return {
        "lanes": page["lanes"],
        "rows": page["items"],
        "states": STATES,
        "asked": asked,
        "first": url("/outbox", **asked) if after else "",
        "next": url("/outbox", **asked, after=page["next"]) if page["next"] else "",
    }


RETRY: Final = Action(
    "outbox.retry",
    label="Try again",
    call="POST /v1/outbox/{id}/retry",
    command="holdfast outbox retry {id}",
    done="It is tried again now.",
    undone="outbox.drop",
)
REQUEUE: Final = Action(
    "outbox.requeue",
    label="Send anew",
    call="POST /v1/outbox/{id}/requeue",
    command="holdfast outbox requeue {id}",
    done="It is sent again, as a new message.",
    fixed={},
    undone="outbox.drop",
)
DROP: Final = Action(
    "outbox.drop",
    label="Give up",
    call="POST /v1/outbox/{id}/drop",
    command="holdfast outbox drop {id}",
    done="It is given up: the broker will not get it from this node.",
    asks="Give {id} up? Others will not get this change from this node.",
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/outbox",
        title="Outbox",
        template="outbox.html",
        load=outbox,
        live=("lanes", "items"),
        wakes=("log", "store", "broker"),
        nav="Outbox",
        key="u",
        actions=(RETRY, REQUEUE, DROP),
    ),
)
