"""The copies of a database that going back a schema version has kept, and the blobs they name.

What a version had added remains only in its copy, the references to blobs among it. As long as the
copy lies in the home, somebody may want it back with its content.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.rules.errors import HoldfastError
from holdfast.storage.sqlite.snapshot_copy import open_immutable

ROLLBACK_LABEL = "before-rollback"


def names_blob(home: Path, sha: str) -> bool:
    """Whether a kept copy names a blob. A copy that cannot be read may name any."""
    return any(_names(copy, sha) for copy in home.glob(f"data.db.{ROLLBACK_LABEL}-*"))


def _names(copy: Path, sha: str) -> bool:
    try:
        with open_immutable(copy) as reader:
            return reader.blob_get(sha) is not None
    except (HoldfastError, apsw.Error):
        return not _is_from_before_blobs(copy)


def _is_from_before_blobs(copy: Path) -> bool:
    try:
        with open_immutable(copy) as reader:
            query = "SELECT 1 FROM sqlite_schema WHERE name = 'blob'"
            return reader.connection.execute(query).get is None
    except (HoldfastError, apsw.Error):
        return False
