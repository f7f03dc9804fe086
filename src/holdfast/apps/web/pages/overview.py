"""The first page: how the node is, what to do next, and what is here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import EVERYTHING, ConsolePage
from holdfast.apps.web.pages import health
from holdfast.apps.web.pages.log import latest
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import count, size, some, span
from holdfast.rules.limits import CONSOLE_MESHES_MAX

_LATEST: Final = 8
_CONFLICTS: Final = 20


async def overview(view: PageView) -> Mapping[str, Any]:
    names = ("log", "meshes", "status", "links", "brokers", "consumers", "conflicts")
    documents = await asyncio.gather(
        view.get("/v1/log"),
        view.get("/v1/meshes"),
        view.maybe("/v1/status"),
        view.maybe("/v1/links"),
        view.maybe("/v1/brokers"),
        view.maybe("/v1/consumers"),
        view.maybe("/v1/conflicts", open_only=True, limit=_CONFLICTS),
    )
    known: dict[str, Any] = dict(zip(names, documents, strict=True))
    known["meshes"] = known["meshes"]["items"]
    shown = known["meshes"][:CONSOLE_MESHES_MAX]
    counts = await asyncio.gather(*(view.counts(mesh["slug"]) for mesh in shown))
    found = health.findings(known)
    worst, verdict = health.verdict(found, view.name)
    return {
        "findings": found,
        "worst": worst,
        "verdict": verdict,
        "next": "" if worst == "bad" else health.next_command(known),
        "tiles": _tiles(known, view.now_ms()),
        "mesh_list": _meshes(shown, counts, known["brokers"]),
        "edges": _edges(known),
        "entries": await latest(view, known["log"], _LATEST),
    }


def _tiles(known: Mapping[str, Any], now_ms: int) -> list[dict[str, str]]:
    log, status = known["log"], known["status"]
    held = log["head"] - log["first"] + 1
    readers = (known["consumers"] or {}).get("consumers", ())
    behind = max((reader["lag"] for reader in readers), default=0)
    tiles = [
        _tile("Log", count(log["head"]), f"{count(held)} entries are here, epoch {log['epoch']}"),
        _tile("Meshes", count(len(known["meshes"])), "that this node takes part in"),
        _tile(
            "Readers",
            count(len(readers)),
            f"the last one lags by {count(behind)}"
            if behind
            else "of the log, all up to date"
            if readers
            else "of the log",
        ),
    ]
    if status is not None:
        disk = status["disk"]
        tiles += [
            _tile("Unread", count(status["unread"]), "messages in the inbox"),
            _tile("Up for", span(now_ms - status["started_at"]), f"version {status['version']}"),
        ]
        if disk is not None:
            tiles.append(
                _tile("Disk", f"{disk['fill']:.0%}", f"in use, room for {size(disk['room'])}")
            )
    return tiles


def _tile(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def _meshes(shown: Any, counts: Any, brokers: Any) -> list[dict[str, Any]]:
    states = {
        mesh["mesh"]: mesh["state"]
        for broker in (brokers or {}).get("brokers", ())
        for mesh in broker["meshes"]
    }
    return [
        {
            **mesh,
            "counts": found,
            "state": states.get(mesh["slug"]) or ("on the bus" if mesh["on_bus"] else _kind(mesh)),
        }
        for mesh, found in zip(shown, counts, strict=True)
    ]


def _kind(mesh: Mapping[str, Any]) -> str:
    return "shared" if mesh["broker_url"] else "local"


def _edges(known: Mapping[str, Any]) -> list[dict[str, str]]:
    brokers = [
        {
            "name": broker["broker"],
            "kind": "broker",
            "state": broker["state"],
            "note": f"{some(len(broker['meshes']), 'mesh', 'meshes')} at {broker['url']}",
        }
        for broker in (known["brokers"] or {}).get("brokers", ())
    ]
    links = [
        {
            "name": link["name"],
            "kind": f"link to {link['zone']}",
            "state": link["state"],
            "note": "" if link["lag"] is None else f"lags by {count(link['lag'])}",
        }
        for link in (known["links"] or {}).get("links", ())
    ]
    return brokers + links


PAGES: Final = (
    ConsolePage(
        path="/",
        title="Overview",
        template="overview.html",
        load=overview,
        live=("health", "figures", "mesh_rows", "link_rows", "latest"),
        wakes=EVERYTHING,
        nav="Overview",
        key="o",
    ),
)
