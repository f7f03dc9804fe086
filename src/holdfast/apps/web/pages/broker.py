"""The pages of a broker, for its operator: how it is, its meshes with their members, queues and
dead letters. Nothing here shows what a message or a change says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, filled
from holdfast.apps.web.view import PageView, no_such
from holdfast.apps.web.words import count, some
from holdfast.rules.limits import TAKE_MAX

WAKES: Final = ("store", "settled")
_ONE: Final = "/v1/operator/meshes/{mesh}"
_CURL: Final = "curl --unix-socket FOLDER/api.sock -X {} http://broker"
"""What has no command of its own; the folder is that of the broker."""


async def overview(view: PageView) -> Mapping[str, Any]:
    status = await view.get("/v1/status")
    # It looks for orphans, which takes as long as there are messages: not at every change.
    checks = {"checks": []} if view.live else await view.get("/v1/doctor")
    wrong = [one for one in checks["checks"] if one["status"] != "ok"]
    dead = status["counts"]["dead"]
    findings = [
        {
            "tone": "bad" if one["status"] == "fail" else "warn",
            "text": f"{one['name']}: {one['message']}",
            "hint": one["fix"],
        }
        for one in wrong
    ]
    if dead:
        findings.append({"tone": "warn", "text": f"{some(dead, 'dead letter')} in queues."})
    tones = {one["tone"] for one in findings}
    worst = "bad" if "bad" in tones else "warn" if tones else "good"
    words = {"bad": "needs you", "warn": "works, with something to look at", "good": "is well"}
    return {
        "status": status,
        "checks": checks["checks"],
        "findings": findings,
        "worst": worst,
        "verdict": f"{view.name} {words[worst]}",
        "tiles": _tiles(status),
    }


def _tiles(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    counts = status["counts"]
    busy = f"{count(status['waiting'])} wait to be written" if status["waiting"] else "all written"
    return [
        ("Meshes", count(counts["meshes"]), some(counts["members"], "member")),
        ("Connections", count(status["connections"]), busy),
        ("Messages", count(counts["messages"]), f"kept for {status['keep_days']} days"),
        ("In queues", count(counts["ready"]), f"{count(counts['taken'])} taken"),
        ("Dead letters", count(counts["dead"]), "given up"),
        ("Objects", count(counts["objects"]), some(counts["snapshots"], "snapshot")),
    ]


async def mesh(view: PageView) -> Mapping[str, Any]:
    slug = view.param("mesh")
    path = filled(_ONE, {"mesh": slug})
    status, members, queues, readers = await asyncio.gather(
        view.get("/v1/status"),
        view.get(f"{path}/members"),
        view.get(f"{path}/queues"),
        view.get(f"{path}/readers"),
    )
    row = next((one for one in status["meshes"] if one["mesh"] == slug), None)
    if row is None:
        raise no_such(f"this broker has no mesh {slug!r}")
    return {
        "row": row,
        "members": [
            {**one, "lag": _lag(row, one)}
            for one in sorted(members["members"], key=lambda one: str(one["name"]))
        ],
        "queues": queues["queues"],
        "readers": readers["consumers"],
    }


def _lag(row: Mapping[str, Any], member: Mapping[str, Any]) -> int | None:
    """How much of the mesh a member has not confirmed; None if it has to begin anew."""
    if member["got_epoch"] != row["epoch"]:
        return None
    return max(0, int(row["seq"]) - int(member["got_seq"]))


async def letters(view: PageView) -> Mapping[str, Any]:
    slug, queue = view.param("mesh"), view.param("queue")
    path = f"{filled(_ONE, {'mesh': slug})}/queues/{queue}/dead"
    found = await view.get(path, limit=TAKE_MAX)
    return {"letters": found["letters"], "most": TAKE_MAX}


REMOVE: Final = Action(
    "broker.remove_member",
    label="Remove",
    call=f"DELETE {_ONE}/members/{{key}}",
    command=_CURL.format("DELETE") + f"{_ONE}/members/{{key}}",
    done="{name} is no member any more.",
    asks="Remove {name} from {mesh}? Its connections end at once, and it gets nothing more.",
    tone="danger",
)
REVIVE: Final = Action(
    "broker.revive",
    label="Put back",
    call=f"POST {_ONE}/queues/{{queue}}/dead/{{seq}}/revive",
    command=_CURL.format("POST") + f"{_ONE}/queues/{{queue}}/dead/{{seq}}/revive",
    done="The letter {seq} is in its queue again.",
    undone="it dies again when it is given up as often as before",
)
NEW_EPOCH: Final = Action(
    "broker.new_epoch",
    label="Begin a new epoch",
    call="POST /v1/new-epoch",
    command="holdfast broker new-epoch --mesh {mesh}[ --reason {reason}]",
    done="{mesh} has a new epoch: every node looks what the broker has lost.",
    fields={"mesh": Field(needed=True), "reason": Field()},
    asks="Begin a new epoch in {mesh}? Every node then compares what it has with this broker. Do "
    "this after a restore that the broker could not notice by itself.",
    tone="danger",
)
SWEEP: Final = Action(
    "broker.sweep",
    label="Remove what is past its time",
    call="POST /v1/sweep",
    command="holdfast broker sweep",
    done="What was past its time is gone.",
    asks="Remove what is past its time? The command with --dry-run says how much that is.",
)
REPAIR: Final = Action(
    "broker.repair",
    label="Mend orphans",
    call="POST /v1/orphans/repair",
    command="holdfast broker orphans --repair",
    done="Ids and messages that lacked each other are mended.",
    asks="Mend ids and messages that lack each other? An id whose message is lost is forgotten, so "
    "that the message is taken when it comes again.",
)

BROKER_PAGES: Final = (
    ConsolePage(
        path="/",
        title="Overview",
        template="broker.html",
        load=overview,
        live=("figures", "mesh_rows"),
        wakes=WAKES,
        nav="Overview",
        key="o",
        actions=(SWEEP, REPAIR),
    ),
    ConsolePage(
        path="/meshes/{mesh}",
        title="{mesh}",
        template="broker_mesh.html",
        load=mesh,
        live=("about",),
        wakes=WAKES,
        actions=(REMOVE, NEW_EPOCH),
    ),
    ConsolePage(
        path="/meshes/{mesh}/queues/{queue:path}",
        title="Dead letters of {queue}",
        template="broker_letters.html",
        load=letters,
        live=("rows",),
        wakes=WAKES,
        actions=(REVIVE,),
    ),
)
