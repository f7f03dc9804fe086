"""The nearest of the names that this home knows, where a command names one that it does not.

Suggestions are for the command line alone: it reads its own home. What a node says to others must
not tell them which meshes, keys or zones it has.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.apps.cli import output
from holdfast.rules.errors import (
    HoldfastError,
    NeedsHome,
    NotAMember,
    UnknownConsumer,
    UnknownDestination,
    UnknownFile,
    UnknownLink,
    UnknownMesh,
    UnknownModel,
    UnknownPeer,
    UnknownToken,
    UnknownZone,
)
from holdfast.rules.limits import CHUNK_ROWS, NEAREST_KEYS
from holdfast.rules.nearest import nearest
from holdfast.storage.sqlite import quick_read

if TYPE_CHECKING:
    from apsw import Connection

    from holdfast.node.library.node import Node
    from holdfast.storage.ports import Reader

_NAMED: Final = re.compile(r"'((?:[^'\\]|\\.)*)'")
"""How our errors write a name."""
_PRIVATE: Final = re.compile(r"://join/|hf_|:capability:")
_WORD_CHARS: Final = 200
"""A hint repeats no longer word: it is no name, but content."""


def amend(node: Node, error: HoldfastError, mesh: str | None) -> None:
    """Puts the nearest name before the hint of an error about one that is not known."""
    names = _NAMES.get(type(error))
    if names is None:
        return
    # What was asked for is lost if this fails, and a suggestion is no reason for that.
    with suppress(HoldfastError):
        known = set(node._engine.read("suggest", lambda tx: list(names(tx, mesh))))
        given = next((name for name in _NAMED.findall(error.message) if name not in known), None)
        near = None if given is None else nearest(given, known)
        if near is not None:
            error.hint = _did_you_mean(str(given), near, error.hint)


def first_of(given: str | None, known: Iterable[str] | None) -> str | None:
    """The nearest of what click has found to be like a word, or the only one."""
    names = sorted(known or ())
    if given is None or not names:
        return None
    return nearest(given, names) or (names[0] if len(names) == 1 else None)


def said_anew(words: list[str], wrong: str, near: str) -> str:
    """The command that was typed, with one word of it put right; empty if that word does not stand
    there by itself, or if the command holds a text that a hint should not repeat.
    """
    end = words.index("--") if "--" in words else len(words)
    anew = [
        near if word == wrong else f"{near}={word[len(wrong) + 1 :]}" if option else word
        for at, word in enumerate(words)
        for option in [wrong[:1] == "-" and at < end and word.startswith(f"{wrong}=")]
    ]
    changed = sum(a != b for a, b in zip(anew, words, strict=True))
    if changed != 1 or any(_PRIVATE.search(word) or len(word) > _WORD_CHARS for word in words):
        return ""
    return f"holdfast {shlex.join(anew)}"


def state_keys(node: Node, mesh: str, key: str) -> list[str]:
    """Keys of the state beside one that is not there."""
    return _beside(node, lambda look: quick_read.keys_near(look, mesh, key, NEAREST_KEYS))


def memory_keys(node: Node, mesh: str, owner: str, key: str) -> list[str]:
    """Keys of a peer's memory beside one that is not there."""
    return _beside(
        node, lambda look: quick_read.memories_near(look, mesh, owner, key, NEAREST_KEYS)
    )


def _beside(node: Node, look: Callable[[Connection], list[str]]) -> list[str]:
    # By the reads of the quick path, so that both ways say the same. A daemon elsewhere suggests
    # nothing: it must not tell strangers which keys there are.
    with (
        suppress(quick_read.Unusual, NeedsHome),
        quick_read.open_read_only(str(node.home)) as connection,
    ):
        return look(connection)
    return []


def _did_you_mean(given: str, near: str, hint: str) -> str:
    anew = said_anew(output.typed, given, near)
    if anew:
        return f"did you mean: {anew}; or {hint}".removesuffix("; or ")
    return f"did you mean {near!r}? {hint}".rstrip()


def _members(tx: Reader, mesh: str | None) -> Iterable[str]:
    for row in tx.mesh_list():
        if mesh in (None, row.slug):
            yield from (member.name for member in tx.known_members_list(row.slug))


def _peers(tx: Reader, mesh: str | None) -> Iterable[str]:
    yield from (row.name for row in tx.zone_list())
    yield from _members(tx, mesh)


def _files(tx: Reader, mesh: str | None) -> Iterable[str]:
    for row in tx.mesh_list():
        if mesh in (None, row.slug):
            files = tx.file_scan(row.slug, None, ("", ""), CHUNK_ROWS)
            yield from (file.path for file in files if not file.tombstone)


_NAMES: Final[dict[type[HoldfastError], Callable[[Reader, str | None], Iterable[str]]]] = {
    UnknownMesh: lambda tx, mesh: (row.slug for row in tx.mesh_list()),
    UnknownLink: lambda tx, mesh: (row.name for row in tx.link_list()),
    UnknownZone: lambda tx, mesh: (row.name for row in tx.zone_list()),
    UnknownToken: lambda tx, mesh: (row.name for row in tx.token_list()),
    UnknownConsumer: lambda tx, mesh: (row.name for row in tx.consumer_list()),
    UnknownModel: lambda tx, mesh: (f"{row.provider}:{row.name}" for row in tx.model_list()),
    UnknownDestination: _members,
    NotAMember: _members,
    UnknownPeer: _peers,
    UnknownFile: _files,
}
