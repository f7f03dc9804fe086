"""Schema versions: numbered scripts, each applied in one transaction with its number.

A failed script leaves the last good version and the next start goes on from there. A new database
gets all of them in one transaction: it is there as a whole or not at all, and is synced once. A
database from a newer version is refused untouched. Every script has a way down, for `doctor
--rollback-migration`.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.rules.errors import BadInput, HoldfastError, MigrationFailed, NewerSchema
from holdfast.storage.sqlite.connection import APPLICATION_ID, typed


class Migration:
    """One step of the schema, up and down."""

    def __init__(self, number: int, name: str, up: str, down: str) -> None:
        self.number, self.name, self.up, self.down = number, name, up, down


LATEST = 22
"""What this code writes. Checked against the scripts by a test, so that opening a current home
reads none of them.
"""


def load(package: str = "holdfast.storage.sqlite") -> list[Migration]:
    """The scripts in the package, in order."""
    from importlib import resources  # here, because opening a current home reads no script

    folder = resources.files(package) / "schema"
    scripts = {
        item.name: item.read_text() for item in folder.iterdir() if item.name.endswith(".sql")
    }
    steps = []
    for name in sorted(scripts):
        if not name.endswith(".down.sql"):
            number, _, title = name.removesuffix(".sql").partition("_")
            down = scripts[name.replace(".sql", ".down.sql")]
            steps.append(Migration(int(number), title, scripts[name], down))
    return steps


def version(connection: apsw.Connection) -> int:
    found = connection.pragma("user_version")
    assert isinstance(found, int)
    return found


def check(connection: apsw.Connection) -> int:
    """The database's version; refuses one from the future."""
    found = version(connection)
    if found > LATEST:
        raise NewerSchema(f"the database has schema version {found}; this Holdfast knows {LATEST}")
    return found


def migrate(connection: apsw.Connection, steps: Sequence[Migration] | None = None) -> list[int]:
    """Applies what is missing. Returns the numbers applied."""
    found = check(connection)
    if found == LATEST and steps is None:
        return []
    known = load() if steps is None else steps
    if found == 0 and known and _create(connection, known):
        return [step.number for step in known]
    applied = []
    for step in known:
        found = version(connection)
        if step.number > found:
            what = f"migration {step.number} ({step.name})"
            if _apply(connection, step.up, found, step.number, what):
                applied.append(step.number)
    return applied


def _create(connection: apsw.Connection, steps: Sequence[Migration]) -> bool:
    scripts = "\n".join(step.up for step in steps)
    return _apply(connection, scripts, 0, steps[-1].number, "creating the tables")


def rollback(
    connection: apsw.Connection, to: int, steps: Sequence[Migration] | None = None
) -> list[int]:
    """Goes back to a version, newest step first. What they had added is gone: back up first."""
    known = load() if steps is None else steps
    found = version(connection)
    if not 0 <= to < found:
        raise BadInput(f"cannot roll back from schema version {found} to {to}")
    undone = []
    doomed = sorted((step for step in known if to < step.number <= found), key=lambda s: -s.number)
    for at, step in enumerate(doomed):
        # The version that the step had been applied to: numbers may have gaps.
        below = doomed[at + 1].number if at + 1 < len(doomed) else to
        if _apply(connection, step.down, step.number, below, f"rolling back {step.number}"):
            undone.append(step.number)
    return undone


def _apply(connection: apsw.Connection, script: str, found: int, to: int, what: str) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have applied it while we waited for the lock.
            ours = version(connection) == found
            if ours:
                for _ in connection.execute(script):
                    pass
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", to)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except apsw.Error as error:
        known = typed(error)
        if isinstance(known, HoldfastError):
            raise known from error
        raise MigrationFailed(f"{what} failed: {error}") from error
    return ours
