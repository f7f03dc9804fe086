"""How much space a home's database takes, and how much of that it can use again.

SQLite does not give pages back to the file system when rows go: it keeps them and fills them again.
So the size of the file says what was once needed; the pages that are free inside it say what is
needed now.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.storage.sqlite.snapshot_copy import open_read_only


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes."""

    reusable: int
    """Pages in the database that hold nothing."""
    blobs: int
    """Content that rows name; the files lie beside the database."""


def space(database: Path) -> Space:
    """Looks through a connection of its own: reading the file itself would drop SQLite's locks."""
    with open_read_only(database) as reader:
        connection = reader.connection
        pages, page_bytes = connection.pragma("freelist_count"), connection.pragma("page_size")
        assert isinstance(pages, int)
        assert isinstance(page_bytes, int)
        blobs = connection.execute("SELECT total(size) FROM blob").get
    return Space(reusable=pages * page_bytes, blobs=int(blobs))
