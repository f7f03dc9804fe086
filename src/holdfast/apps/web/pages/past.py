"""Time travel: the state of a mesh as of a moment, what is other at another moment, and one key
then and now, to be brought back.

A moment is an offset of this node's log, a time, or a stamp of the mesh's clock, as `--as-of` of
the command takes it. Keys are compared a page at a time, so it does not matter how many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import unified_diff
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.apps.web.page import Action, ConsolePage, Field, json_value, url
from holdfast.apps.web.pages.rows import fitting
from holdfast.apps.web.pages.state import stamp_of
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json, iso, plain
from holdfast.rules.errors import BadInput, BadToken, HoldfastError
from holdfast.rules.limits import (
    CONSOLE_DIFF_LINES,
    CONSOLE_EDIT_CHARS,
    CONSOLE_LOOK_STEP,
    CONSOLE_ROWS,
)

BY: Final = {"offset": "offset of the log", "time": "time", "stamp": "stamp of the mesh"}
_KINDS: Final = {"offset": "offset", "time": "at_ms", "stamp": "lamport"}
_LATELY: Final = {"offset": 100, "time": 3_600_000, "stamp": 100}
"""So far back one looks at first."""
_DIGITS_MAX: Final = 15


class Moment(NamedTuple):
    """A point in the past; now, if it has no kind."""

    kind: str = ""
    number: int = 0

    @property
    def query(self) -> dict[str, int]:
        return {self.kind: self.number} if self.kind else {}

    @property
    def text(self) -> str:
        """As `--as-of` takes it; nothing for now."""
        if self.kind != "at_ms":
            return f"{self.kind}:{self.number}" if self.kind else ""
        moment = datetime.fromtimestamp(self.number / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def said(self) -> str:
        words = {
            "offset": f"offset {self.number}",
            "lamport": f"stamp {self.number}",
            "at_ms": iso(self.number),
        }
        return words.get(self.kind, "now")

    @property
    def title(self) -> str:
        return self.said[0].upper() + self.said[1:]


NOW: Final = Moment()


def read_moment(text: str) -> Moment:
    """From a text as `--as-of` takes it; nothing is now."""
    text = text.strip()
    if text in ("", "now"):
        return NOW
    kind, colon, number = text.partition(":")
    if colon and kind in ("offset", "lamport"):
        return Moment(kind, _whole(number, text))
    try:
        moment = datetime.fromisoformat(text)
        at_ms = round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        at_ms = -1
    if at_ms < 0:
        raise BadInput(
            f"{text[:60]!r} is no moment", hint="write offset:120, lamport:77 or 2026-11-15T10:00Z"
        )
    return Moment("at_ms", at_ms)


def _whole(number: str, text: str) -> int:
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX):
        raise BadInput(f"{text[:60]!r} is no moment", hint="write it like offset:120")
    return int(number)


# --- a slider ----------------------------------------------------------------------------------


class Slider(NamedTuple):
    """What one may choose between, and what is chosen. At its end it stands for now."""

    by: str
    first: int
    end: int
    at: int
    than: int


async def _slider(view: PageView, mesh: str, by: str) -> tuple[int, int]:
    """The first and the last moment that can be chosen."""
    log = await view.get("/v1/log")
    if by == "offset":
        return log["first"], log["head"]
    if by == "stamp":
        return 1, (await view.get(f"/v1/meshes/{mesh}/clock"))["lamport"]
    entry = await _entry(view, log["first"])
    now = view.now_ms()
    return (now if entry is None else min(now, entry["recorded_at"])), now


async def _entry(view: PageView, offset: int) -> Any:
    """An entry of the log without what it says; None if there is none."""
    raw = await view.maybe("/v1/facts/range", **{"from": offset, "to": offset + 1})
    return msgspec.json.decode(raw.splitlines()[0]) if raw else None


def _chosen(view: PageView, name: str, by: str, default: Moment) -> Moment:
    """A moment by the text of it, or by the slider."""
    text, slid = view.one(name), view.one(f"slide_{name}")
    if not slid:
        return read_moment(text) if text or name in view.query else default
    if slid == view.one("end"):
        return NOW
    return Moment(_KINDS[by], _whole(slid, slid))


# --- two moments -------------------------------------------------------------------------------


async def past(view: PageView) -> Mapping[str, Any]:
    mesh, by = view.param("mesh"), view.one("by", "offset")
    if by not in BY:
        raise BadInput(f"there is no slider by {by[:40]!r}", hint=f"one of {', '.join(BY)}")
    first, end = await _slider(view, mesh, by)
    lately = Moment(_KINDS[by], max(first, end - _LATELY[by]))
    at, than = _chosen(view, "at", by, lately), _chosen(view, "than", by, NOW)
    prefix, everything = view.one("prefix"), view.one("show") == "all"
    rows: list[dict[str, Any]] = []
    after, problem = "", None
    try:
        rows, after = await _compare(view, at, than, everything)
    except BadToken:
        raise
    except HoldfastError as error:
        problem = error
    asked = {"by": by, "at": at.text or "now", "than": than.text, "prefix": prefix}
    path, show = f"/meshes/{mesh}/past", "all" if everything else ""
    return {
        "by": by,
        "ways": [(name, said, url(path, by=name, prefix=prefix)) for name, said in BY.items()],
        "slider": Slider(by, first, end, _place(at, by, end), _place(than, by, end)),
        "at_moment": at,
        "than_moment": than,
        "entry": await _entry(view, at.number) if at.kind == "offset" else None,
        "prefix": prefix,
        "everything": everything,
        "rows": rows,
        "problem": problem,
        "first": url(path, **asked, show=show) if view.one("after") else "",
        "next": url(path, **asked, show=show, after=after) if after else "",
    }


def _place(moment: Moment, by: str, end: int) -> int:
    """Where it stands on the slider."""
    return min(end, moment.number) if moment.kind == _KINDS[by] else end


async def _compare(
    view: PageView, at: Moment, than: Moment, everything: bool
) -> tuple[list[dict[str, Any]], str]:
    """Rows of a page, and the key behind which the next one begins; nothing if this is the end.
    A page of changes may have few rows: it looks at a bounded number of keys.
    """
    after, found, looked = view.one("after"), [], 0
    step = CONSOLE_ROWS if everything else CONSOLE_LOOK_STEP // 4
    while True:
        left, right = await asyncio.gather(
            _keys(view, at, after, step), _keys(view, than, after, step)
        )
        ends = [side[-1]["key"].encode() for side, cut_off in (left, right) if cut_off]
        bound = min(ends) if ends else None
        then, other = ({row["key"]: row for row in side} for side, _ in (left, right))
        names = sorted(
            (key for key in {*then, *other} if bound is None or key.encode() <= bound),
            key=str.encode,
        )
        for key in names:
            row = _row(key, then.get(key), other.get(key))
            if everything or row["mark"] != "same":
                found.append(row)
        looked += len(names)
        if len(found) > CONSOLE_ROWS:
            return found[:CONSOLE_ROWS], found[CONSOLE_ROWS - 1]["key"]
        if bound is None:
            return found, ""
        after = bound.decode()
        if len(found) == CONSOLE_ROWS or looked >= CONSOLE_LOOK_STEP:
            return found, after


async def _keys(
    view: PageView, moment: Moment, after: str, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Keys with their values, and whether more follow."""
    mesh = view.param("mesh")
    path = f"/v1/meshes/{mesh}/as-of/state" if moment.kind else f"/v1/meshes/{mesh}/state"
    page, most = await fitting(
        view, path, limit=limit, prefix=view.one("prefix"), after=after, **moment.query
    )
    rows = page["items"]
    # A page of what is now may also end early, where its values are large.
    return rows, len(rows) >= most if moment.kind else page["next"] is not None


def _row(key: str, then: Any, other: Any) -> dict[str, Any]:
    return {"key": key, "then": then, "other": other, "mark": mark_of(then, other)}


def mark_of(then: Any, other: Any) -> str:
    """What became of a key from one moment to the other."""
    if then is None:
        return "absent" if other is None else "added"
    if other is None:
        return "removed"
    if as_json(then["value"], indent=0) != as_json(other["value"], indent=0):
        return "changed"
    return "same" if stamp_of(then) == stamp_of(other) else "rewritten"


# --- one key then and now ----------------------------------------------------------------------


async def key_then(view: PageView) -> Mapping[str, Any]:
    mesh, key, at = view.param("mesh"), view.one("key"), read_moment(view.one("at"))
    than = read_moment(view.one("than"))
    then, other, present = await asyncio.gather(
        _one(view, key, at), _one(view, key, than), _one(view, key, NOW)
    )
    return {
        "key": key,
        "at_moment": at,
        "than_moment": than,
        "then": then,
        "other": other,
        "mark": mark_of(then, other),
        "lines": _lines(then, other),
        "expect": stamp_of(present),
        "is_present": mark_of(then, present) in ("same", "rewritten", "absent"),
        "restored": _restored(then),
        "json_value": "" if then is None or isinstance(then["value"], str) else "--json-value",
        "past": url(f"/meshes/{mesh}/past", at=at.text, than=than.text),
    }


def _restored(row: Any) -> str | None:
    """The value as a form brings it back; None if it is too long for one."""
    text = "" if row is None else as_json(row["value"], indent=0)
    return text if len(text) <= CONSOLE_EDIT_CHARS else None


async def _one(view: PageView, key: str, moment: Moment) -> Any:
    mesh = view.param("mesh")
    if not moment.kind:
        return await view.maybe(f"/v1/meshes/{mesh}/state/{key}") if key else None
    found = await view.get(f"/v1/meshes/{mesh}/as-of/state", key=key, **moment.query)
    return next(iter(found["items"]), None)


def _lines(then: Any, other: Any) -> list[tuple[str, str]] | None:
    """Lines of both values with their marks; None where there are too many to compare them."""
    if then is None or other is None:
        return None
    old, new = (_text(row["value"]).splitlines() for row in (then, other))
    if max(len(old), len(new)) > CONSOLE_DIFF_LINES:
        return None
    told = list(unified_diff(old, new, n=CONSOLE_DIFF_LINES, lineterm=""))
    return [(line[0], line[1:]) for line in told[3:]]  # behind two names and a place


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, str) else as_json(value)


RESTORE: Final = Action(
    "state.restore",
    label="Bring this value back",
    call="PUT /v1/meshes/{mesh}/state/{key}",
    command="holdfast state get {key} --as-of {moment} --mesh {mesh} | "
    "holdfast state set {key} -[ {kind}][ --expect {expect}] --mesh {mesh}",
    done="{key} has the value of {moment} again, as a new write.",
    fields={"value": Field(take=json_value, needed=True), "expect": Field()},
    tone="main",
    undone="state.restore",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/past",
        title="Past of {mesh}",
        template="past.html",
        load=past,
        tab="Past",
        actions=(RESTORE,),
    ),
    ConsolePage(
        path="/meshes/{mesh}/past/key",
        title="A key of {mesh}, then",
        template="past_key.html",
        load=key_then,
        under="/meshes/{mesh}/past",
    ),
)
