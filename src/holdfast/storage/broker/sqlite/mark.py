"""What is known outside the database about how far it was, so that one that went back is noticed.

`broker.mark` says: the database has reached at least this. It is written after the database has
committed what it says, so it never claims too much, and after every `BROKER_MARK_ROWS` envelopes of
a mesh, at each opening and at the close, so it is never far behind.

- A database that shows less than its mark was restored from an older copy.
- A database that comes without its mark, or with the mark of another, was copied here by itself.
- A folder or a file that is another than the mark remembers is a copy as well, of which the
  original may have gone on. Copies that keep the number of the file are not seen by this, but by
  what they hold.

What stays unnoticed: after a crash, or an end on a full disk (a clean end is exact), a copy put
over the database in place that was made in the same opening, less than `BROKER_MARK_ROWS` envelopes
before the end. A member that has seen more than the broker has will tell it then.

A new epoch costs little if nothing was lost: it begins behind the last seq, and nobody stands
further. So doubt is enough to begin one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from holdfast.storage.files.durable import durable_replace

log = logging.getLogger("holdfast")


class Mark(msgspec.Struct, frozen=True):
    store: str
    """The random id of the database."""
    generation: int
    """Counts openings and marks."""
    folder: int
    """The numbers that the file system gave to the folder and to the file; 0: they say nothing."""
    file: int
    meshes: dict[str, tuple[int, int]]
    """By server_id: an epoch and a seq that were reached."""


def read_mark(path: Path) -> Mark | None:
    """None also for one that cannot be read: the caller then has to doubt."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def write_mark(path: Path, mark: Mark) -> None:
    durable_replace(path, msgspec.json.encode(mark))


def doubts(found: Mark, mark: Mark | None) -> str | None:
    """Why a database that is as `found` may have gone back; None if it has not."""
    if mark is None:
        return "the database has come without its mark"
    if mark.store != found.store:
        return "the mark is that of another database"
    if found.generation < mark.generation:
        return f"the database is older than its mark: {found.generation} < {mark.generation}"
    for server_id, reached in mark.meshes.items():
        if server_id in found.meshes and tuple(found.meshes[server_id]) < tuple(reached):
            return f"a mesh is at {found.meshes[server_id]}, and was at {reached} before"
    if found.file and (found.folder, found.file) != (mark.folder, mark.file):
        return "the folder or the database was copied here"
    return None
