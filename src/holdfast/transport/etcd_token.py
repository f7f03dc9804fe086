"""The token of a user of an etcd: got once, shared by all calls, renewed by one of them.

Getting a token costs an etcd a tenth of a second and more, because it hashes the password slowly on
purpose. A token ends after a few minutes, and with a restart of a member: then calls are refused,
the first of them gets a new one, and the others wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.rules.errors import BadAnswer


class TokenKeeper:
    """Belongs to one event loop."""

    def __init__(self, authenticate: Callable[[], Awaitable[str]]) -> None:
        self._authenticate = authenticate
        self._turn = asyncio.Lock()
        self._token: str | None = None
        self.renewals = 0

    async def token(self) -> str:
        return self._token or await self.renewed(None)

    async def renewed(self, old: str | None) -> str:
        """A token that is not the `old` one, which was refused."""
        async with self._turn:
            if self._token is None or self._token == old:
                self._token = None
                token = await self._authenticate()
                if not token or not token.isascii() or not token.isprintable() or " " in token:
                    raise BadAnswer("the etcd gives a token that cannot be sent")
                self._token, self.renewals = token, self.renewals + 1
            return self._token
