"""The network as this node sees it: itself, its brokers, the zones that it pulls and that read it,
and peers of the bus, with what runs between them. The drawing is made here, of numbers and escaped
names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from holdfast.apps.web.page import EVERYTHING, Action, ConsolePage
from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import count, cut, printable, state_words, tone, took
from holdfast.rules.limits import CONSOLE_MESHES_MAX

_WIDTH: Final = 980
_BOX: Final = (210, 52)
_STEP: Final = 76
_TOP: Final = 34
_COLUMNS: Final = {"left": 20, "middle": (_WIDTH - _BOX[0]) // 2, "right": _WIDTH - _BOX[0] - 20}
_DRAWN_MAX: Final = 24
"""On each side; the others stand in the tables below."""


@dataclass(frozen=True)
class _Place:
    """Something that this node is connected with."""

    name: str
    what: str
    side: str
    state: str
    note: str
    outward: bool = True
    """This node asks; else it is asked."""


async def topology(view: PageView) -> Mapping[str, Any]:
    names = ("brokers", "links", "consumers", "bus", "meshes")
    documents = await asyncio.gather(
        view.maybe("/v1/brokers"),
        view.maybe("/v1/links"),
        view.maybe("/v1/consumers"),
        view.maybe("/v1/bus/status"),
        view.get("/v1/meshes"),
    )
    known = dict(zip(names, documents, strict=True))
    brokers = (known["brokers"] or {}).get("brokers", [])
    links = (known["links"] or {}).get("links", [])
    readers = (known["consumers"] or {}).get("consumers", [])
    bus = known["bus"]
    members = await _members(view, known["meshes"]["items"])
    orders = await _orders(view, known["meshes"]["items"])
    places = [*_brokers(brokers), *_links(links), *_readers(readers), *_peers(bus)]
    return {
        "drawing": draw(view.name, places),
        "spoken": _spoken(view.name, places),
        "brokers": brokers,
        "links": links,
        "readers": readers,
        "bus": bus,
        "members": members,
        "orders": orders,
        "alone": not places,
    }


async def _members(view: PageView, meshes: Any) -> dict[str, Any]:
    """The members of shared meshes, as they were known last."""
    shared = [mesh["slug"] for mesh in meshes if mesh["broker_url"]][:CONSOLE_MESHES_MAX]
    found = await asyncio.gather(
        *(view.maybe(f"/v1/meshes/{mesh}/known-members") for mesh in shared)
    )
    return {
        mesh: rows["items"] for mesh, rows in zip(shared, found, strict=True) if rows is not None
    }


async def _orders(view: PageView, meshes: Any) -> dict[str, Any]:
    """How the quorums of meshes stand; those without voters are left out."""
    from holdfast.rules.errors import HoldfastError

    async def one(mesh: str) -> Any:
        try:
            return await view.maybe(f"/v1/meshes/{mesh}/quorum")
        except HoldfastError:
            return None  # it has no voters, or they cannot be asked now

    slugs = [mesh["slug"] for mesh in meshes][:CONSOLE_MESHES_MAX] if view.may_write else []
    found = await asyncio.gather(*map(one, slugs))
    return {mesh: order for mesh, order in zip(slugs, found, strict=True) if order}


def _brokers(brokers: Iterable[Any]) -> Iterable[_Place]:
    for broker in brokers:
        waiting = sum(mesh["pending"] + mesh["inflight"] for mesh in broker["meshes"])
        behind = sum(mesh["lag"] or 0 for mesh in broker["meshes"])
        notes = [f"{count(waiting)} to send"] if waiting else []
        notes += [f"{count(behind)} to come"] if behind else []
        meshes = ", ".join(mesh["mesh"] for mesh in broker["meshes"])
        note = ", ".join(notes) or "in step"
        yield _Place(broker["broker"], f"broker of {meshes}", "right", broker["state"], note)


def _links(links: Iterable[Any]) -> Iterable[_Place]:
    for link in links:
        lag = link["lag"]
        note = "lag unknown" if lag is None else f"lags by {count(lag)}" if lag else "in step"
        yield _Place(link["zone"], f"zone, by link {link['name']}", "right", link["state"], note)


def _readers(readers: Iterable[Any]) -> Iterable[_Place]:
    for reader in readers:
        kind, _, rest = reader["name"].partition(":")
        if kind != "zone":
            continue
        note = f"lags by {count(reader['lag'])}" if reader["lag"] else "in step"
        state = "live" if not reader["lag"] else "catching_up"
        name = rest.partition("/")[0]
        yield _Place(name, "zone that reads this log", "left", state, note, outward=False)


def _peers(bus: Mapping[str, Any] | None) -> Iterable[_Place]:
    for peer in (bus or {}).get("peers", ()):
        up = peer["link"] == "up"
        trip = "" if peer["rtt_ms"] is None else took(peer["rtt_ms"])
        waits = f"{count(peer['waiting'])} wait" if peer["waiting"] else ""
        note = ", ".join(part for part in (trip, waits) if part) or (peer["error"] or "")
        yield _Place(peer["peer"], "peer of the bus", "left", "up" if up else "away", note)


# --- the drawing -------------------------------------------------------------------------------


def draw(name: str, places: Iterable[_Place]) -> Markup:
    """An SVG of this node in the middle and everything else on its sides."""
    sides: dict[str, list[_Place]] = {"left": [], "right": []}
    for place in places:
        if len(sides[place.side]) < _DRAWN_MAX:
            sides[place.side].append(place)
    rows = max(1, *map(len, sides.values()))
    height = _TOP * 2 + rows * _STEP - (_STEP - _BOX[1])
    middle = (height - _BOX[1]) // 2
    drawn = [
        _edge(side, _y(at, len(found), height), middle, place)
        for side, found in sides.items()
        for at, place in enumerate(found)
    ]
    drawn += [
        _box(_COLUMNS[side], _y(at, len(found), height), place.name, place.what, place.state)
        for side, found in sides.items()
        for at, place in enumerate(found)
    ]
    left = 0 if drawn else _COLUMNS["middle"] - 20
    wide = _WIDTH - 2 * left
    drawn.append(_box(_COLUMNS["middle"], middle, name, "this node", "", own=True))
    return Markup(
        f'<svg class="drawing" viewBox="{left} 0 {wide} {height}" role="img" '
        f'aria-labelledby="drawing-title"><title id="drawing-title">The network of {{}}</title>'
    ).format(printable(name)) + Markup("".join(drawn) + "</svg>")


def _y(at: int, many: int, height: int) -> int:
    whole = many * _STEP - (_STEP - _BOX[1])
    return (height - whole) // 2 + at * _STEP


def _box(x: int, y: int, name: str, what: str, state: str, *, own: bool = False) -> Markup:
    wide, high = _BOX
    mark = (
        Markup('<circle class="mark {}" cx="{}" cy="{}" r="4.5"/>').format(
            tone(state), x + wide - 14, y + 15
        )
        if state
        else Markup()
    )
    return (
        Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="9"/>').format(
            "box self" if own else "box", x, y, wide, high
        )
        + Markup('<text x="{}" y="{}" font-weight="600">{}</text>').format(
            x + 14, y + 22, printable(cut(name, 22))
        )
        + Markup('<text class="soft" x="{}" y="{}">{}</text>').format(
            x + 14, y + 40, printable(cut(what, 34))
        )
        + mark
    )


def _edge(side: str, y: int, middle: int, place: _Place) -> Markup:
    wide, high = _BOX
    begin_x = _COLUMNS["middle"] + (wide if side == "right" else 0)
    end_x = _COLUMNS[side] + (0 if side == "right" else wide)
    begin_y, end_y = middle + high // 2, y + high // 2
    bend = (begin_x + end_x) // 2
    path = f"M{begin_x} {begin_y}C{bend} {begin_y} {bend} {end_y} {end_x} {end_y}"
    anchor = "end" if side == "right" else "start"
    text_x = end_x - 10 if side == "right" else end_x + 10
    said = ": ".join(part for part in (state_words(place.state), place.note) if part)
    return Markup('<path class="edge {}" d="{}"/>').format(tone(place.state), path) + Markup(
        '<text class="soft" x="{}" y="{}" text-anchor="{}">{}</text>'
    ).format(text_x, end_y + (16 if end_y > begin_y else -8), anchor, printable(cut(said, 30)))


def _spoken(name: str, places: Iterable[_Place]) -> list[str]:
    """The same in sentences, for who does not see it."""
    return [
        f"{name} and {place.name} ({place.what}): {state_words(place.state)}, {place.note}"
        for place in places
    ]


PAUSE_LINK: Final = Action(
    "link.pause",
    label="Pause",
    call="POST /v1/links/{name}/pause",
    command="holdfast link pause {name}",
    done="The link {name} is paused.",
    undone="link.resume",
)
RESUME_LINK: Final = Action(
    "link.resume",
    label="Resume",
    call="POST /v1/links/{name}/resume",
    command="holdfast link resume {name}",
    done="The link {name} goes on.",
    fixed={},
    undone="link.pause",
)
PAUSE_SYNC: Final = Action(
    "mesh.pause",
    label="Pause",
    call="POST /v1/meshes/{mesh}/sync/pause",
    command="holdfast mesh pause {mesh}",
    done="{mesh} sends nothing for now.",
    undone="mesh.resume",
)
RESUME_SYNC: Final = Action(
    "mesh.resume",
    label="Resume",
    call="POST /v1/meshes/{mesh}/sync/resume",
    command="holdfast mesh resume {mesh}",
    done="{mesh} sends again.",
    undone="mesh.pause",
)

PAGES: Final = (
    ConsolePage(
        path="/topology",
        title="Network",
        template="topology.html",
        load=topology,
        live=("drawing", "tables"),
        wakes=EVERYTHING,
        nav="Network",
        key="n",
        actions=(PAUSE_LINK, RESUME_LINK, PAUSE_SYNC, RESUME_SYNC),
    ),
)
