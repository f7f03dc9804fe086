"""Telling the stories of seeds: the command of every simulated world.

python -m holdfast.simulate.nodes.nodes 7 8 9
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class PromiseBroken(AssertionError):
    """The code under test did something that it must never do."""


class WorldResult(Protocol):
    """A world whose story was told."""

    @property
    def events(self) -> int: ...
    @property
    def digest(self) -> str: ...


@contextmanager
def replayable(world: str, seed: int) -> Iterator[None]:
    """Whatever goes wrong inside says how it is played again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"play it again with: python -m holdfast.simulate.{world} {seed}")
        raise


def replay_seeds(tell: Callable[[int], WorldResult], arguments: Sequence[str]) -> int:
    """Tells the stories of the seeds that are named; the exit code."""
    for seed in map(int, arguments):
        try:
            world = tell(seed)
        except PromiseBroken as broken:
            print(broken)
            return 1
        print(f"seed {seed}: {world.events} events, every promise kept, digest {world.digest}")
    return 0
