"""The log: its newest entries as they come, filters, and one entry with all that it says."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.apps.web.page import ConsolePage, url
from holdfast.apps.web.view import PageView, no_such
from holdfast.apps.web.words import as_json, cut, plain, size
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


async def latest(view: PageView, log: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The newest entries, as lines."""
    end = log["head"] + 1
    begin = max(log["first"], end - count)
    return (await _look_back(view, dict.fromkeys(_FILTERS, ""), begin, end))[0]


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """What people look for in an entry; a task is known by its title, not by its id."""
    says = cut(said_by(row), _LINE_CHARS)
    row.pop("body", None)
    return {**row, "says": says, "about": "" if row["op"] == "task.create" else row["entity"]}


def said_by(row: Mapping[str, Any]) -> str:
    """What a change says, in one line."""
    body = row.get("body")
    if "predicate" in row:
        return f"{row['predicate']} {plain(row.get('object'))}"
    if not isinstance(body, dict):
        return plain(body) if body else ""
    if row["op"] == "message.send":
        return _content(body)
    for name in ("value", "title"):
        if name in body:
            return plain(body[name])
    if row["op"] == "file.share" and "size" in body:
        return size(body["size"])
    return plain(body) if body else ""


def _content(body: Mapping[str, Any]) -> str:
    """The content of a message, if it is a text."""
    raw = b64decode(body.get("content") or "")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"{size(len(raw))} of {body.get('content_type') or 'bytes'}"


_FACT: Final = ("predicate", "object", "blobs")


def _whole(row: dict[str, Any]) -> str:
    """All that an entry says, as JSON; empty if it cannot be told."""
    body = row.get("body")
    if body is None:
        body = {name: row[name] for name in _FACT if name in row} or None
    return "" if body is None else as_json(body)


async def entry(view: PageView) -> Mapping[str, Any]:
    offset = _number(view.param("offset"))
    raw = await view.get("/v1/facts/range", **{"from": offset, "to": offset + 1}) if offset else b""
    if not raw:
        raise no_such(f"the log has no entry {view.param('offset')!r}, or holds it no longer")
    row = msgspec.json.decode(raw.splitlines()[0])
    return {
        "row": row,
        "body": _whole(row),
        "decided": row["op"] not in OPS,
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
