"""What is known outside the database about how far the bus was, so that a database that went back
is noticed.

`bus.mark` says: numbers up to this were reserved. It is written after the database has committed
the reservation and before a number of it is used, so a database that shows less was put back from
an older copy. One that comes without its mark, or is another file than the one that the mark
remembers, may be a copy as well. The log's epoch tells of a home that was restored.

Doubt costs little: the numbers skip ahead, and a new incarnation makes worthless what was signed
for the old one. What stays unnoticed is an older copy of the same opening that was written over the
file in place while no number was reserved since; then peers tell by their welcome what they have
seen, and senders leap.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.rules.bus.signed_envelope import SEQUENCE_MAX
from holdfast.rules.limits import BUS_SET_BACK_SKIP
from holdfast.storage.files.durable import durable_replace

log = logging.getLogger("holdfast")


class BusMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a store of the bus is."""

    reserved: Annotated[int, Meta(ge=1, le=SEQUENCE_MAX - BUS_SET_BACK_SKIP)]
    """The next number that is not reserved."""
    generation: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
    """How many times the store was opened."""
    epoch: int
    """The epoch of the log in the same database."""
    file: int
    """The number that the file system gave to the database; 0: it says nothing."""


def read_bus_mark(path: Path) -> BusMark | None:
    """None also for one that cannot be read: the caller then has to doubt."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BusMark)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def write_bus_mark(path: Path, mark: BusMark) -> None:
    durable_replace(path, msgspec.json.encode(mark))


def file_number(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def why_doubt(found: BusMark, mark: BusMark | None) -> str | None:
    """Why a database that is as `found` may have gone back; None if it has not. `found.epoch` is
    what the bus noted in it, and not the one of its log now.
    """
    if mark is None:
        return None if found.generation == 0 else "it has come without its mark"
    if found.reserved < mark.reserved:
        return f"its numbers are at {found.reserved}, and were at {mark.reserved} before"
    if found.generation < mark.generation:
        return f"it was opened {found.generation} times, and had been {mark.generation} times"
    if found.file and mark.file and found.file != mark.file:
        return "it is another file than before"
    return None
