"""How a failing run of a simulated world says its seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PromiseBroken(AssertionError):
    """The code under test did something that it must never do."""


@contextmanager
def replayable(world: str, seed: int) -> Iterator[None]:
    """Any error inside gets a note with the command that plays this seed again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"play it again with: python -m holdfast.simulate {world} {seed}")
        raise
