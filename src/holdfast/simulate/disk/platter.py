"""What is really on the disk, as opposed to what a program was answered.

A write that returned is in the cache of the operating system; only a sync brings it to the platter.
Until then a power loss may keep it, lose it, or keep some of its sectors. The same holds for names:
a created, renamed or deleted file is sure only after its *directory* was synced. This module is the
bookkeeping for that and does no I/O: it is fed events in the order in which they happened and
returns the files that a power loss leaves.

Whatever is not yet sure is **pending**. A pending thing has parts (a write has its sectors, all
else is one part), and its **fate** is a bit mask of the parts that reached the platter: 0 is lost,
all ones is kept, between them it is torn. A list of fates, one per pending thing and oldest first,
describes one power loss completely, so that each can be replayed and compared.

Two writes into one sector have separate fates here although a real disk moves whole sectors. That
adds states that no real disk shows and takes none away.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512
_DIRECTORY: Final = -1


class FileFound(NamedTuple):
    """The file was there, safe on the platter, before the disk was watched."""

    path: str
    file: int
    content: bytes


class FileCreated(NamedTuple):
    path: str
    file: int


class FileWritten(NamedTuple):
    file: int
    offset: int
    data: bytes


class Cut(NamedTuple):
    """The file was set to this size."""

    file: int
    size: int


class Synced(NamedTuple):
    file: int


class SyncFailed(NamedTuple):
    """The disk refused to sync. The system then takes all pages for clean and never tries again."""

    file: int


class Deleted(NamedTuple):
    path: str


class Renamed(NamedTuple):
    source: str
    target: str
    file: int


class DirectoryMade(NamedTuple):
    path: str


class DirectorySynced(NamedTuple):
    path: str


Event = (
    FileFound
    | FileCreated
    | FileWritten
    | Cut
    | Synced
    | SyncFailed
    | Deleted
    | Renamed
    | DirectoryMade
    | DirectorySynced
)
_Content = FileWritten | Cut
_Naming = FileCreated | Deleted | Renamed | DirectoryMade
Fates = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """The files and directories that a power loss leaves, and the directories that it takes."""

    files: dict[str, bytes]
    directories: frozenset[str]
    lost_directories: frozenset[str]

    def moved(self, root: str, target: str) -> Image:
        """The same below another directory."""

        def move(path: str) -> str:
            assert path.startswith(root), f"{path} lies outside of {root}"
            return target + path[len(root) :]

        return Image(
            {move(path): content for path, content in self.files.items()},
            frozenset(map(move, self.directories)),
            frozenset(map(move, self.lost_directories)),
        )


@dataclass(slots=True)
class Platter:
    """The disk under a program: `apply` what happened, ask for an `image` of what would be left.

    `version` counts how often something pending was settled. Within one version pending things are
    only added, so a version and fates name an image. `rng` decides what a failed sync leaves.
    """

    rng: random.Random
    version: int = 0
    _pending: list[_Content | _Naming] = field(default_factory=list)
    _contents: dict[int, bytearray] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        match event:
            case Synced(file=file):
                self._settle([thing for thing in self._pending if _is_content_of(file, thing)])
            case SyncFailed(file=file):
                self._fail_sync(file)
            case DirectorySynced(path=path):
                self._settle([thing for thing in self._pending if _is_name_in(path, thing)])
            case FileFound(path=path, file=file, content=content):
                self._names[path] = file
                self._contents[file] = bytearray(content)
                self.version += 1
            case _:
                if isinstance(event, DirectoryMade):
                    self._made.add(event.path)
                self._pending.append(event)

    def all_kept(self) -> Fates:
        return tuple((1 << _parts(thing)) - 1 for thing in self._pending)

    def all_lost(self) -> Fates:
        return (0,) * len(self._pending)

    def random_fates(self, rng: random.Random) -> Fates:
        """Draws a fate for each pending thing; how many survive differs from draw to draw."""
        kept, torn = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.3))
        return tuple(_random_fate(rng, _parts(thing), kept, torn) for thing in self._pending)

    def image(self, fates: Sequence[int]) -> Image:
        assert len(fates) == len(self._pending), "one fate for each pending thing"
        names = dict(self._names)
        changed: dict[int, bytearray] = {}
        for thing, fate in zip(self._pending, fates, strict=True):
            if not fate:
                continue
            if isinstance(thing, FileWritten | Cut):
                content = changed.get(thing.file)
                if content is None:
                    content = changed[thing.file] = bytearray(self._contents.get(thing.file, b""))
                _put(content, thing, fate)
            else:
                _name(names, thing)
        directories = frozenset(path for path, file in names.items() if file == _DIRECTORY)
        gone = frozenset(self._made - directories)
        files = {
            path: bytes(changed[file] if file in changed else self._contents.get(file, b""))
            for path, file in names.items()
            if file != _DIRECTORY and not (gone and _is_below(path, gone))
        }
        return Image(files, directories, gone)

    def _settle(self, sure: Sequence[_Content | _Naming]) -> None:
        if not sure:
            return
        for thing in sure:
            if isinstance(thing, FileWritten | Cut):
                _put(self._contents.setdefault(thing.file, bytearray()), thing, -1)
            else:
                _name(self._names, thing)
        self._forget(sure)

    def _fail_sync(self, file: int) -> None:
        """Some parts are on the platter; the rest never will be, whatever later syncs report."""
        doomed = [thing for thing in self._pending if _is_content_of(file, thing)]
        for thing in doomed:
            assert isinstance(thing, FileWritten | Cut)
            fate = _random_fate(self.rng, _parts(thing), 0.5, 0.3)
            if fate:
                _put(self._contents.setdefault(file, bytearray()), thing, fate)
        if doomed:
            self._forget(doomed)

    def _forget(self, things: Iterable[_Content | _Naming]) -> None:
        ids = {id(thing) for thing in things}
        self._pending = [thing for thing in self._pending if id(thing) not in ids]
        self.version += 1


def _is_content_of(file: int, thing: _Content | _Naming) -> bool:
    return isinstance(thing, FileWritten | Cut) and thing.file == file


def _is_name_in(directory: str, thing: _Content | _Naming) -> bool:
    match thing:
        case (
            Renamed(target=path)
            | FileCreated(path=path)
            | Deleted(path=path)
            | DirectoryMade(path=path)
        ):
            return path.rpartition("/")[0] == directory
        case _:
            return False


def _parts(thing: _Content | _Naming) -> int:
    if not isinstance(thing, FileWritten):
        return 1
    first = thing.offset // SECTOR_BYTES
    last = (thing.offset + len(thing.data) - 1) // SECTOR_BYTES
    return max(1, last - first + 1)


def _random_fate(rng: random.Random, parts: int, kept: float, torn: float) -> int:
    drawn = rng.random()
    if parts > 1 and drawn < torn:
        return rng.getrandbits(parts)
    return (1 << parts) - 1 if rng.random() < kept else 0


def _put(content: bytearray, thing: _Content, fate: int) -> None:
    """Brings the parts in the mask onto the platter; a hole in front of them reads as zeros."""
    if isinstance(thing, Cut):
        del content[thing.size :]
        content.extend(bytes(thing.size - len(content)))
        return
    data, offset = thing.data, thing.offset
    whole = (1 << _parts(thing)) - 1
    if fate & whole == whole:
        _overwrite(content, offset, data)
        return
    start, sector = 0, offset // SECTOR_BYTES
    while start < len(data):
        end = min(len(data), (sector + 1) * SECTOR_BYTES - offset)
        if fate & 1:
            _overwrite(content, offset + start, data[start:end])
        fate >>= 1
        start, sector = end, sector + 1


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _name(names: dict[str, int], thing: _Naming) -> None:
    match thing:
        case FileCreated(path=path, file=file):
            names[path] = file
        case Deleted(path=path):
            names.pop(path, None)
        case Renamed(source=source, target=target, file=file):
            names.pop(source, None)
            names[target] = file
        case DirectoryMade(path=path):
            names[path] = _DIRECTORY


def _is_below(path: str, directories: frozenset[str]) -> bool:
    return any(str(parent) in directories for parent in PurePath(path).parents)
