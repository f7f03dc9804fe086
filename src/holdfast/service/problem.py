"""What went wrong last with a piece of work, for people and for programs.

Links, brokers and meshes show one in their status. `code` is the code of the error
(`rules.errors`), or `internal` for a fault of Holdfast.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import REASON_CHARS_MAX

_OUR_FAULT = "this is a fault of Holdfast: please report it, with what the daemon's log says"


class Problem(msgspec.Struct, frozen=True):
    """What went wrong last, and when."""

    code: str
    message: str
    hint: str
    at: int

    @classmethod
    def of(cls, error: Exception, at: int) -> Problem:
        if isinstance(error, HoldfastError):
            return cls(error.code, error.message[:REASON_CHARS_MAX], error.hint, at)
        message = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        return cls("internal", message, _OUR_FAULT, at)
