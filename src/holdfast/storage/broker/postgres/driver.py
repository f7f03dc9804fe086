"""The one place that knows whether asyncpg is installed."""

from __future__ import annotations

from holdfast.rules.errors import NoPostgres

try:
    import asyncpg
except ImportError as missing:
    raise NoPostgres(
        f"a broker on PostgreSQL needs a package that is not here: {missing}"
    ) from None

__all__ = ["asyncpg"]
