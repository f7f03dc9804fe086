"""Which engine this machine brings, for people who look for what is wrong."""

from __future__ import annotations

from contextlib import closing

import apsw

from holdfast.rules.errors import StoreFailed
from holdfast.rules.limits import SQLITE_VERSION_MIN
from holdfast.storage.sqlite.vector_index import load_extension


def sqlite_version() -> str:
    """The version of SQLite, or StoreFailed for one that is not safe to use."""
    version = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < SQLITE_VERSION_MIN:
        raise StoreFailed(
            f"SQLite {version} can corrupt a database that has readers",
            hint="upgrade apsw: it brings a current SQLite",
        )
    return version


def vector_version() -> str:
    """The version of the vector extension, or StoreFailed where it does not load."""
    with closing(apsw.Connection(":memory:")) as connection:
        load_extension(connection)
        return str(connection.execute("SELECT vec_version()").get)
