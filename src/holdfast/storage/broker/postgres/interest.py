"""Of which meshes the other processes want news.

A notification wakes every process that listens, whatever it says. So each process says of which
meshes it has followers or takers, and nobody tells what nobody wants to hear. A process of which
nothing is known, because it is of an older version or has just begun, wants everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final

ASK: Final = "?"
"""Said by a process that begins to listen: what do the others want?"""
WANT: Final = "+"
"""Before meshes of which the process wants news from now on; alone, it wants nothing yet."""
LEAVE: Final = "-"
_WORD_CHARS_MAX: Final = 4000
"""PostgreSQL takes nearly 8,000."""


class Interest:
    """What one process knows of the others, by the number of their connection."""

    def __init__(self) -> None:
        self._others: set[int] | None = None
        """Who listens; None before it was looked up."""
        self._wanted: dict[int, set[str]] = {}

    def forget(self) -> None:
        """What was said in the meantime was not heard."""
        self._others = None
        self._wanted.clear()

    def begun(self, other: int) -> None:
        self._wanted.pop(other, None)
        if self._others is not None:
            self._others.add(other)

    def changed(self, other: int, meshes: Iterable[str], *, on: bool) -> None:
        wanted = self._wanted.setdefault(other, set())
        if on:
            wanted.update(meshes)
        else:
            wanted.difference_update(meshes)

    def listening(self, others: Set[int]) -> bool:
        """Who listens now. True if one of them is new and has not said what it wants."""
        new = others - (self._others or set())
        self._others = set(others)
        for gone in self._wanted.keys() - others:
            del self._wanted[gone]
        return any(other not in self._wanted for other in new)

    def wants(self, mesh: str) -> bool:
        """Whether anybody is to be told that a mesh has grown."""
        if self._others is None:
            return True
        return any(mesh in self._wanted.get(other, (mesh,)) for other in self._others)


def words(sign: str, meshes: Iterable[str]) -> Iterator[str]:
    """What says that these meshes are wanted, or no longer, in words that PostgreSQL takes."""
    word = sign
    for mesh in meshes:
        if len(word) + len(mesh) >= _WORD_CHARS_MAX:
            yield word
            word = sign
        word += mesh if word == sign else f" {mesh}"
    if word != sign or sign == WANT:
        yield word
