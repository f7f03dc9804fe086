"""Brings a broker's database up to date, or back; `storage.sqlite.migrations` says how."""

from __future__ import annotations

from typing import Final

import apsw

from holdfast.rules.errors import NewerSchema
from holdfast.storage.sqlite import migrations

PACKAGE: Final = "holdfast.storage.broker.sqlite"
LATEST: Final = 6
"""What this code writes."""


def migrate(connection: apsw.Connection) -> list[int]:
    """Applies what is missing, in one process at a time. A newer database is left untouched."""
    found = migrations.version(connection)
    if found > LATEST:
        raise NewerSchema(f"the store has schema version {found}; this Holdfast knows {LATEST}")
    if found == LATEST:
        return []
    return migrations.migrate(connection, migrations.load(PACKAGE))


def rollback(connection: apsw.Connection, to: int) -> list[int]:
    """Goes back to a version of the schema; returns the numbers that were undone."""
    return migrations.rollback(connection, to, migrations.load(PACKAGE))
