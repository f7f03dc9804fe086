"""The log: its newest entries as they come, filters, and one entry with all that it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.apps.web.page import ConsolePage, url
from holdfast.apps.web.view import PageView, no_such
from holdfast.apps.web.words import cut, plain
from holdfast.rules.bodies import OPS
from holdfast.rules.limits import CONSOLE_LOOK_BACK, CONSOLE_LOOK_STEP, CONSOLE_ROWS

_FILTERS: Final = ("mesh", "op", "subject", "origin")
_ASKED: Final = ("mesh", "subject", "origin")
"""What the call itself chooses by."""
_LINE_CHARS: Final = 160


async def entries(view: PageView) -> Mapping[str, Any]:
    """A page of the log, the newest first. With a filter it looks back a bounded way, and says how
    far it came.
    """
    log = await view.get("/v1/log")
    chosen = {name: view.one(name) for name in _FILTERS}
    end = _number(view.one("before")) or log["head"] + 1
    end = min(end, log["head"] + 1)
    rows, looked = await _look_back(view, chosen, log["first"], end)
    older = rows[-1]["offset"] if len(rows) == CONSOLE_ROWS else looked
    more = url("/log", before=older, **chosen) if older > log["first"] else ""
    return {
        "log": log,
        "rows": rows,
        "chosen": chosen,
        "filtered": any(chosen.values()),
        "looked": looked,
        "more": more,
        "first_rows": url("/log", **chosen) if view.one("before") else "",
        "ops": sorted(OPS),
        "mesh_names": [row["slug"] for row in (await view.get("/v1/meshes"))["items"]],
    }


async def _look_back(
    view: PageView, chosen: Mapping[str, str], first: int, end: int
) -> tuple[list[dict[str, Any]], int]:
    """The newest rows before `end` that were chosen, and where looking ended."""
    found: list[dict[str, Any]] = []
    step = CONSOLE_LOOK_STEP if any(chosen.values()) else CONSOLE_ROWS
    at, floor = end, max(first, end - CONSOLE_LOOK_BACK)
    asked = {name: chosen[name] for name in _ASKED if chosen[name]}
    while at > floor and len(found) < CONSOLE_ROWS:
        begin = max(floor, at - step)
        raw = await view.get("/v1/facts/range", **{"from": begin, "to": at}, **asked)
        rows = [msgspec.json.decode(line) for line in (raw or b"").splitlines() if line]
        op = chosen["op"]
        found += [_line(row) for row in reversed(rows) if not op or row["op"].startswith(op)]
        at = begin
    return found[:CONSOLE_ROWS], at


def _line(row: dict[str, Any]) -> dict[str, Any]:
    body = row.pop("body", None)
    return {**row, "says": "" if not body else cut(_says(body), _LINE_CHARS)}


def _says(body: Any) -> str:
    """What a change says, in one line: its value, if it has one."""
    if isinstance(body, dict) and "value" in body:
        return plain(body["value"])
    return plain(body)


async def entry(view: PageView) -> Mapping[str, Any]:
    offset = _number(view.param("offset"))
    raw = await view.get("/v1/facts/range", **{"from": offset, "to": offset + 1}) if offset else b""
    if not raw:
        raise no_such(f"the log has no entry {view.param('offset')!r}, or holds it no longer")
    row = msgspec.json.decode(raw.splitlines()[0])
    body = row.pop("body", None)
    return {
        "row": row,
        "body": "" if body is None else msgspec.json.format(msgspec.json.encode(body)).decode(),
        "whole": view.one("whole") == "yes",
    }


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


PAGES: Final = (
    ConsolePage(
        path="/log",
        title="Log",
        template="log.html",
        load=entries,
        live=("rows",),
        wakes=("log",),
        nav="Log",
        key="l",
    ),
    ConsolePage(
        path="/log/{offset}",
        title="Entry {offset}",
        template="entry.html",
        load=entry,
        under="/log",
    ),
)
