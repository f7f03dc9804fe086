"""The JSON document of an error, as every call over HTTP answers it.

    {"error": {"code": "truncated", "message": "…", "hint": "…", "first_available": 812}}

Programs look at `code`, people read the rest.
"""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong."""

    code: str
    message: str
    hint: str = ""
    first_available: int | None = None
    """With `truncated`: the first offset that is still there."""
    epoch: int | None = None
    """With `epoch_changed`: the epoch that the log counts in now."""
    free: tuple[str, ...] = ()
    """With `already_exists`, of the name of a mesh at a broker: names that are free there."""
    present: str | None = None
    """With `stamp_moved`: the stamp of what is there, like `12@ana`; not given if nothing is."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is an error."""

    error: ErrorDetail
