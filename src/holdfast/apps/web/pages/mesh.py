"""Meshes: all of them, and one with its members, what they may do, and invites that a phone can
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import segno

from holdfast.apps.web.page import Action, ConsolePage, Field, number, words
from holdfast.apps.web.render import svg
from holdfast.apps.web.view import PageView
from holdfast.rules.errors import BadToken, HoldfastError
from holdfast.rules.limits import CONSOLE_MESHES_MAX


async def meshes(view: PageView) -> Mapping[str, Any]:
    found = (await view.get("/v1/meshes"))["items"]
    shown = found[:CONSOLE_MESHES_MAX]
    counts = await asyncio.gather(*(view.counts(row["slug"]) for row in shown))
    rows = [{**row, "counts": one} for row, one in zip(shown, counts, strict=True)]
    return {"rows": rows, "more": len(found) - len(shown)}


async def mesh(view: PageView) -> Mapping[str, Any]:
    slug = view.param("mesh")
    path = f"/v1/meshes/{slug}"
    row = await view.get(path)
    clock, counts, peers = await asyncio.gather(
        view.maybe(f"{path}/clock"), view.counts(slug), view.maybe(f"{path}/presence")
    )
    members: list[Any] = []
    invites: list[Any] = []
    trouble = None
    if row["broker_url"] and view.may_write:
        members, invites, trouble = await _at_broker(view, path)
    return {
        "row": row,
        "clock": clock,
        "counts": counts,
        "peers": (peers or {}).get("items", []),
        "members": members,
        "invites": invites,
        "trouble": trouble,
    }


async def _at_broker(view: PageView, path: str) -> tuple[list[Any], list[Any], Any]:
    """What the broker says; where it cannot be asked, what it said last, and why."""
    trouble: Any = None
    invites: list[Any] = []
    try:
        found, open_ones = await asyncio.gather(
            view.get(f"{path}/members"), view.maybe(f"{path}/invites")
        )
        invites = (open_ones or {}).get("items", [])
    except BadToken:
        raise
    except HoldfastError as error:
        trouble = error
        found = await view.maybe(f"{path}/known-members")
    return (found or {}).get("items", []), invites, trouble


def qr(text: str) -> Any:
    """A picture of a text that a phone reads; None if it is too long for one."""
    try:
        made = segno.make(text, error="l", micro=False)
    except segno.DataOverflowError:
        return None
    return svg(made.svg_inline(scale=4, svgclass="qr", lineclass=None, omitsize=True, light="#fff"))


def invite_shown(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"picture": qr(answer["text"])}


CREATE: Final = Action(
    "mesh.create",
    label="Create a mesh",
    call="POST /v1/meshes",
    command="holdfast mesh create {slug}",
    done="The mesh {slug} is made.",
    fields={"slug": Field(needed=True)},
    tone="main",
    undone="holdfast mesh delete {slug}",
)
JOIN: Final = Action(
    "mesh.join",
    label="Join",
    call="POST /v1/join",
    command="holdfast mesh join {invite}",
    done="This node is a member now.",
    fields={"invite": Field(needed=True, take=str.strip)},
    tone="main",
    undone="mesh.leave",
)
PUBLISH: Final = Action(
    "mesh.publish",
    label="Share it",
    call="POST /v1/meshes/{mesh}/publish",
    command="holdfast mesh publish {mesh} --broker {broker}[ --card {card}]",
    done="{mesh} is shared through the broker.",
    fields={"broker": Field(needed=True, take=str.strip), "card": Field(take=str.strip)},
    tone="main",
    undone="mesh.leave",
)
INVITE: Final = Action(
    "mesh.invite",
    label="Make an invite",
    call="POST /v1/meshes/{mesh}/invites",
    command="holdfast mesh invite {mesh}[ --uses {uses}][ --hours {hours}] {--grant grants}",
    fields={
        "uses": Field(take=number),
        "hours": Field(take=number),
        "grants": Field(take=words),
    },
    shows="invite.html",
    shown=invite_shown,
    tone="main",
    undone="mesh.drop_invite",
)
DROP_INVITE: Final = Action(
    "mesh.drop_invite",
    label="Take back",
    call="DELETE /v1/meshes/{mesh}/invites/{id}",
    command="holdfast mesh invites {mesh} --drop {id}",
    done="The invite is taken back.",
    undone="mesh.invite",
)
GRANT: Final = Action(
    "mesh.grant",
    label="Change rights",
    call="PUT /v1/meshes/{mesh}/members/{member}",
    command="holdfast mesh grant {name} --mesh {mesh} {--grant grants}",
    done="{name} may now: {grants}.",
    fields={"grants": Field(needed=True, take=words)},
    undone="mesh.grant",
)
REMOVE_MEMBER: Final = Action(
    "mesh.remove_member",
    label="Remove",
    call="DELETE /v1/meshes/{mesh}/members/{member}",
    command="holdfast mesh remove-member {name} --mesh {mesh}",
    done="{name} is no member any more.",
    asks="Remove {name} from {mesh}? It gets nothing more, and what it writes is not taken.",
    tone="danger",
)
LEAVE: Final = Action(
    "mesh.leave",
    label="Leave the mesh",
    call="POST /v1/meshes/{mesh}/leave",
    command="holdfast mesh leave {mesh}",
    done="{mesh} is this node's own again.",
    fixed={},
    asks="Leave {mesh}? All that is in it stays on this node, and is no longer exchanged.",
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes",
        title="Meshes",
        template="meshes.html",
        load=meshes,
        live=("rows",),
        wakes=("log", "store", "counts"),
        nav="Meshes",
        key="m",
        actions=(CREATE, JOIN),
    ),
    ConsolePage(
        path="/meshes/{mesh}",
        title="{mesh}",
        template="mesh.html",
        load=mesh,
        live=("about",),
        wakes=("log", "store", "broker", "peer", "counts"),
        tab="About",
        actions=(PUBLISH, INVITE, DROP_INVITE, GRANT, REMOVE_MEMBER, LEAVE),
    ),
)
