"""What the user of a node does: a bit of everything, drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.node.library.node import Mesh
from holdfast.rules.vectors import Model

MESH: Final = "team"
TOPIC: Final = "news"
QUEUE: Final = "work"
KEYS: Final = 50
DIM: Final = 32
MODEL: Final = Model(provider="load", name="lots", dim=DIM)
LARGE_BYTES: Final = 100_000
"""Travels by itself, ahead of the change that names it."""

Act = Callable[[Mesh], object]


class User:
    """One user. It writes only keys of its own: conflicts, which two writers of one key would make,
    are not what a load is about.
    """

    def __init__(self, peer: str, rng: random.Random, friends: Sequence[str]) -> None:
        self._peer, self._rng, self._friends = peer, rng, friends
        self._acts: list[tuple[int, Callable[[str], Act]]] = [
            (30, self._state),
            (10, self._memory),
            (10, self._fact),
            (5, self._vector),
            (4, self._small_file),
            (1, self._large_file),
            (15, self._topic),
            (10, self._dm),
            (15, self._queue),
        ]

    def draw(self, id: str) -> Act:
        """What is done next, under this id."""
        weights = [weight for weight, _ in self._acts]
        (chosen,) = self._rng.choices([make for _, make in self._acts], weights)
        return chosen(id)

    def _key(self) -> str:
        return f"{self._peer}/{self._rng.randrange(KEYS)}"

    def _text(self) -> str:
        return "x" * self._rng.randrange(20, 600)

    def _state(self, id: str) -> Act:
        key, value = self._key(), {"text": self._text(), "n": self._rng.random()}
        return lambda mesh: mesh.state.set(key, value, id=id)

    def _memory(self, id: str) -> Act:
        key, value = self._key(), {"text": self._text()}
        return lambda mesh: mesh.memory.set(key, value, id=id)

    def _fact(self, id: str) -> Act:
        key, text = self._key(), self._text()
        return lambda mesh: mesh.facts.append(key, "is", text, id=id)

    def _vector(self, id: str) -> Act:
        key, numbers = self._key(), [self._rng.gauss(0, 1) for _ in range(DIM)]
        return lambda mesh: mesh.vectors.store(key, numbers, model=MODEL, id=id)

    def _small_file(self, id: str) -> Act:
        path, content = self._key(), self._rng.randbytes(self._rng.randrange(1, 20_000))
        return lambda mesh: mesh.files.share(path, content, id=id)

    def _large_file(self, id: str) -> Act:
        path, content = self._key(), self._rng.randbytes(LARGE_BYTES)
        return lambda mesh: mesh.files.share(path, content, id=id)

    def _topic(self, id: str) -> Act:
        text, priority = self._text(), self._rng.choice(("now", "next", "next", "low"))
        return lambda mesh: mesh.send(text, topic=TOPIC, priority=priority, id=id)

    def _dm(self, id: str) -> Act:
        text, friend = self._text(), self._rng.choice(self._friends)
        return lambda mesh: mesh.send(text, dm=friend, id=id)

    def _queue(self, id: str) -> Act:
        text = self._text()
        return lambda mesh: mesh.send(text, queue=QUEUE, id=id)
