"""Codes that log in once, and for a moment only."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from holdfast.rules.errors import BadToken
from holdfast.rules.limits import CONSOLE_CODE_MS, CONSOLE_CODES_MAX

_BYTES: Final = 32


class Codes:
    """The codes that nobody has used yet. Only their hashes are kept."""

    def __init__(self, now_ms: Callable[[], int], random: Callable[[int], bytes]) -> None:
        self._now_ms, self._random = now_ms, random
        self._until: dict[bytes, int] = {}

    def make(self) -> str:
        """A new code. The oldest makes room for it."""
        self._forget_old()
        while len(self._until) >= CONSOLE_CODES_MAX:
            self._until.pop(next(iter(self._until)))
        code = self._random(_BYTES).hex()
        self._until[_hash(code)] = self._now_ms() + CONSOLE_CODE_MS
        return code

    def use(self, code: str) -> None:
        """Raises BadToken unless the code was made here, lately, and was never used."""
        self._forget_old()
        if self._until.pop(_hash(code), None) is None:
            raise BadToken(
                "this code was used already, or is too old",
                hint="get a new one: holdfast console",
            )

    def _forget_old(self) -> None:
        now = self._now_ms()
        self._until = {code: until for code, until in self._until.items() if until > now}


def _hash(code: str) -> bytes:
    return sha256(code.encode(errors="replace")).digest()
