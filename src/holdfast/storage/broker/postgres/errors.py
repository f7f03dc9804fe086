"""Says in our words what went wrong with PostgreSQL.

What the server reports itself was undone whole, so it is Refused. When the line breaks or falls
silent while something that changes is under way, nobody here knows whether it was committed.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.errors import (
    DiskFull,
    HoldfastError,
    NotAllowed,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    Unreachable,
)
from holdfast.storage.broker.postgres.driver import asyncpg

UNDONE: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
"""Other work came between: the same again may well succeed."""

# A server that goes down may have committed and found no time to say so.
_LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
)
_CLOSED_DOORS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_BUSY: Final = (
    *UNDONE,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.TooManyConnectionsError,
)
_RETRY: Final = "retry with the same ids: what was accepted is answered as a duplicate"


def typed(error: BaseException, *, changing: bool) -> BaseException:
    """Our error for one of the driver's; anything else is handed back as it is. `changing`: what
    failed was not only a read.
    """
    if isinstance(error, HoldfastError):
        return error
    what = f"{error or 'no answer in time'} ({type(error).__name__})"
    known = _of_server(error, what)
    if known is not None:
        return known
    if isinstance(error, asyncpg.CannotConnectNowError | asyncpg.DatabaseDroppedError):
        return Unreachable(f"PostgreSQL takes no connections now: {what}")
    if isinstance(error, _LOST):
        if changing:
            return OutcomeUnknown(f"PostgreSQL was lost before it answered: {what}", hint=_RETRY)
        return Unreachable(f"PostgreSQL does not answer: {what}")
    if isinstance(error, asyncpg.PostgresError):
        return StoreFailed(
            f"PostgreSQL failed: {what}", hint="see the log of the PostgreSQL server"
        )
    return error


def _of_server(error: BaseException, what: str) -> HoldfastError | None:
    """Our error for a transaction that the server has undone; None for other errors."""
    if isinstance(error, asyncpg.DiskFullError):
        return DiskFull(f"the disk of PostgreSQL is full: {what}")
    if isinstance(error, _BUSY):
        return StoreBusy(f"PostgreSQL is busy: {what}", hint="retry; it was undone whole")
    if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
        return StoreCorrupt(
            f"the database is damaged: {what}", hint="restore it from a backup of PostgreSQL"
        )
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return Unreachable(
            f"this PostgreSQL only reads: {what}", hint="name the primary server in the DSN"
        )
    if isinstance(error, _CLOSED_DOORS):
        return Unreachable(
            f"PostgreSQL does not let us in: {what}",
            hint="check user, password and database of the DSN",
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return NotAllowed(
            f"PostgreSQL does not allow it: {what}",
            hint="the role of the DSN must be allowed to create a schema in its database",
        )
    return None
