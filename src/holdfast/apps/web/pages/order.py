"""The order of a mesh with voters: who decides, what waits, who holds which lease, and the entities
that stand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, url
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json, count, span, state_words
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.errors import NoVoters
from holdfast.rules.limits import CONSOLE_ROWS

_HERE: Final = "local"
"""What this node has: a page does not wait for a majority."""


async def order(view: PageView) -> Mapping[str, Any]:
    mesh = view.param("mesh")
    path = f"/v1/meshes/{mesh}/quorum"
    try:
        seen = await view.maybe(path)
    except NoVoters:
        seen = None
    streams = await view.maybe(f"/v1/meshes/{mesh}/audit")
    if seen is None:
        return {"seen": None, "streams": (streams or {}).get("chains", [])}
    waiting, failed, leases, conflicts = await asyncio.gather(
        view.get(f"{path}/writes", status=["pending", "replaying"], limit=CONSOLE_ROWS),
        view.get(f"{path}/writes", status="failed", limit=CONSOLE_ROWS),
        view.get(f"{path}/leases", read=_HERE, limit=CONSOLE_ROWS),
        view.get(f"{path}/conflicts", limit=CONSOLE_ROWS),
    )
    return {
        "seen": seen,
        "facts": _facts(seen),
        "writes": [*waiting["writes"], *_open(failed["writes"])],
        "leases": leases["leases"],
        "conflicts": conflicts["conflicts"],
        "streams": (streams or {}).get("chains", []),
    }


def _open(failed: Any) -> list[Any]:
    return [row for row in failed if not row.get("resolved_by")]


def _facts(seen: Mapping[str, Any]) -> list[tuple[str, str]]:
    at, read = seen["order"], seen["read"]
    heard = "a majority was heard of lately" if at["has_quorum"] else "no majority is heard of"
    return [
        ("This node is", state_words(at["part"])),
        ("Coordinator", at["coordinator"] or "none is known"),
        ("Lease epoch", f"{count(at['lease_epoch'])} of incarnation {at['incarnation']}"),
        ("Engine", at["engine"]),
        ("Quorum", heard),
        ("Committed", f"{count(at['committed'])}, of which {count(at['applied'])} are folded here"),
        ("A read here is", f"{read['mode']}, {span(read['stalenessMs'])} old at most"),
        ("Without a quorum", f"writes: {state_words(seen['minority'])}"),
    ]


async def entities(view: PageView) -> Mapping[str, Any]:
    mesh, type = view.param("mesh"), view.one("type", "task")
    after = view.one("after") or None
    page = await view.get(
        f"/v1/meshes/{mesh}/quorum/entities/{type}", after=after, limit=CONSOLE_ROWS, read=_HERE
    )
    path = f"/meshes/{mesh}/entities"
    return {
        "types": list(ENTITY_TYPES),
        "type": type,
        "rows": page["entities"],
        "read": page["read"],
        "first": url(path, type=type) if after else "",
        "next": url(path, type=type, after=page["next"]) if page["next"] else "",
    }


async def entity(view: PageView) -> Mapping[str, Any]:
    mesh, type, id = view.param("mesh"), view.param("type"), view.param("id")
    path = f"/v1/meshes/{mesh}/quorum"
    found, past = await asyncio.gather(
        view.maybe(f"{path}/entities/{type}/{id}", read=_HERE),
        view.get(f"{path}/history/{type}/{id}", read=_HERE, limit=CONSOLE_ROWS),
    )
    return {
        "row": None if found is None else found["entity"],
        "text": "" if found is None else as_json(found["entity"]["fields"]),
        "past": list(reversed(past["revisions"])),
    }


TRANSFER: Final = Action(
    "quorum.transfer",
    label="Let it coordinate",
    call="POST /v1/meshes/{mesh}/quorum/transfer",
    command="holdfast quorum transfer {peer} --mesh {mesh}",
    done="{peer} coordinates now.",
    fields={"peer": Field(name="to")},
    undone="quorum.transfer",
)
PAUSE: Final = Action(
    "quorum.pause",
    label="Let waiting writes rest",
    call="POST /v1/meshes/{mesh}/quorum/pause",
    command="holdfast quorum pause {mesh}",
    done="What waits stays where it is, until it is resumed.",
    undone="quorum.resume",
)
RESUME: Final = Action(
    "quorum.resume",
    label="Go on with waiting writes",
    call="POST /v1/meshes/{mesh}/quorum/resume",
    command="holdfast quorum resume {mesh}",
    done="What waits is tried again.",
    undone="quorum.pause",
)
REPLAY: Final = Action(
    "quorum.replay",
    label="Try them now",
    call="POST /v1/meshes/{mesh}/quorum/replay",
    command="holdfast writes replay --mesh {mesh}",
    done="What waits was tried.",
    fixed={},
    undone="what waits would be tried anyhow",
)
KEEP: Final = Action(
    "writes.keep",
    label="Keep what is committed",
    call="POST /v1/meshes/{mesh}/quorum/writes/{id}/resolve",
    command="holdfast writes resolve {id} --take committed --mesh {mesh}",
    done="What is committed stands; the write is given up.",
    fixed={"take": "committed"},
    asks="Give this write up? What is committed stands.",
)
INSIST: Final = Action(
    "writes.insist",
    label="Write it again",
    call="POST /v1/meshes/{mesh}/quorum/writes/{id}/resolve",
    command="holdfast writes resolve {id} --take intent --mesh {mesh}",
    done="It is written again, on what stands now.",
    fixed={"take": "intent"},
    asks="Write it again? It takes the place of what stands now.",
)
CONFLICT_KEEP: Final = Action(
    "order_conflict.keep",
    label="Keep what is committed",
    call="POST /v1/meshes/{mesh}/quorum/conflicts/{number}/resolve",
    command="holdfast writes resolve {number} --take committed --mesh {mesh}",
    done="What is committed stands.",
    fixed={"take": "committed"},
    asks="Keep what is committed? What this intent wanted is given up.",
)
CONFLICT_INSIST: Final = Action(
    "order_conflict.insist",
    label="Take what it wanted",
    call="POST /v1/meshes/{mesh}/quorum/conflicts/{number}/resolve",
    command="holdfast writes resolve {number} --take intent --mesh {mesh}",
    done="What it wanted is written, on what stands now.",
    fixed={"take": "intent"},
    asks="Take what it wanted? It takes the place of what stands now.",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/order",
        title="Order of {mesh}",
        template="order.html",
        load=order,
        live=("about", "waits", "held"),
        wakes=("log", "store", "peer"),
        tab="Order",
        actions=(
            *(TRANSFER, PAUSE, RESUME, REPLAY),
            *(KEEP, INSIST, CONFLICT_KEEP, CONFLICT_INSIST),
        ),
    ),
    ConsolePage(
        path="/meshes/{mesh}/entities",
        title="Entities of {mesh}",
        template="entities.html",
        load=entities,
        live=("rows",),
        under="/meshes/{mesh}/order",
    ),
    ConsolePage(
        path="/meshes/{mesh}/entities/{type}/{id:path}",
        title="{type} {id}",
        template="entity.html",
        load=entity,
        live=("rows",),
        under="/meshes/{mesh}/order",
    ),
)
