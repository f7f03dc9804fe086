"""A newcomer can guess where a thing lives: rooms are small, names mean one thing, tests mirror."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from support.project import SOURCE, TESTS, expect_none, parse, python_files, where

ROOM_MODULES_MAX = 25

# Flat lists in which a newcomer searches by name. Each entry: the room, and why it may be long.
FLAT = {
    "rules": "one rule a file, found by its name",
    "apps/cli/commands": "one noun of the command line a file",
}

# Rooms whose tests stand under another name. Each entry: the room, and where its tests are.
TESTED_IN = {
    "storage": "contract/node_store",
    "storage/memory": "contract/node_store",
    "storage/sqlite/bus": "contract/node_store",
    "storage/sqlite/committed": "contract/node_store",
    "storage/sqlite/ends": "contract/node_store",
    "storage/broker": "contract/broker_store",
}


def test_no_room_has_more_modules_than_a_reader_can_look_over() -> None:
    full = [
        f"{where(room)}: {len(modules)} modules"
        for room, modules in _rooms().items()
        if len(modules) > ROOM_MODULES_MAX and _name(room) not in FLAT
    ]
    expect_none(full, f"a room has {ROOM_MODULES_MAX} modules at most: divide it by topic")


def test_every_room_has_a_test_room_of_its_name() -> None:
    bare = [
        where(room)
        for room, modules in _rooms().items()
        if modules and not any((TESTS / _tested_in(room)).rglob("test_*.py"))
    ]
    expect_none(bare, "put its tests into the folder of the same path below tests/")


def test_every_test_room_mirrors_a_room() -> None:
    """Suites that cross rooms have folders of their own."""
    crossing = {"compat", "contract", "docs", "faults", "model", "support", "tidy"}
    rooms = {_name(room) for room in _rooms()}
    lost = [
        where(folder)
        for folder in sorted({path.parent for path in python_files(TESTS)})
        if folder != TESTS
        and folder.relative_to(TESTS).parts[0] not in crossing
        and folder.relative_to(TESTS).as_posix() not in rooms
    ]
    expect_none(lost, "no room of the sources has this path: move the tests where their room is")


def test_a_public_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(SOURCE):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(where(path, node))
    twice = [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]
    expect_none(twice, "let one declaration serve both, or name each by what sets it apart")


def _rooms() -> dict[Path, list[Path]]:
    """Every package of the sources with the modules that lie directly in it."""
    rooms: dict[Path, list[Path]] = defaultdict(list)
    for path in python_files(SOURCE):
        if path.parent != SOURCE:
            rooms[path.parent] += [] if path.name.startswith("__") else [path]
    return rooms


def _name(room: Path) -> str:
    return room.relative_to(SOURCE).as_posix()


def _tested_in(room: Path) -> str:
    return TESTED_IN.get(_name(room), _name(room))
