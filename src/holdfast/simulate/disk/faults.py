"""Which disk calls fail, and how.

A **plan** is asked before every call. It answers with the kind of fault, or None to let it pass:

* ``ioerr``: the device failed. Nothing was written; after a failed sync it is unknown what was.
* ``full``: no space is left. Half of the write is there, as a disk fills up in the middle of one.
  Only calls that need space (a write, the creation of a file) can be refused so.

`FailAt` is the plan for trying every call in turn, `FailSometimes` the one for random faults.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import apsw

Op = Literal["open", "read", "write", "truncate", "sync", "size", "delete", "rename", "mkdir"]
Kind = Literal["ioerr", "full"]
Mode = Literal["once", "forever"]

_NEED_SPACE: Final[frozenset[Op]] = frozenset({"write", "mkdir"})
_IOERR: Final[dict[Op, int]] = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "size": apsw.SQLITE_IOERR_FSTAT,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


class DiskCall(NamedTuple):
    """One call to the disk; `number` counts from 0, `file` is the name without its directory."""

    number: int
    op: Op
    file: str
    creates: bool = False

    @property
    def needs_space(self) -> bool:
        return self.creates or self.op in _NEED_SPACE


Plan = Callable[[DiskCall], Kind | None]


def healthy(call: DiskCall) -> Kind | None:
    """The plan of a disk that never fails."""
    return None


@dataclass(frozen=True, slots=True)
class FailAt:
    """Fails this call, and with `forever` every call after it that this kind can hit."""

    number: int
    kind: Kind
    mode: Mode = "once"

    def __call__(self, call: DiskCall) -> Kind | None:
        if call.number < self.number or (self.mode == "once" and call.number > self.number):
            return None
        return None if self.kind == "full" and not call.needs_space else self.kind


@dataclass(frozen=True, slots=True)
class FailSometimes:
    """Fails calls at random, each with these odds."""

    rng: random.Random
    ioerr: float = 0.0
    full: float = 0.0

    def __call__(self, call: DiskCall) -> Kind | None:
        drawn = self.rng.random()
        if drawn < self.ioerr:
            return "ioerr"
        return "full" if call.needs_space and drawn < self.ioerr + self.full else None


def sqlite_error(op: Op, kind: Kind) -> Exception:
    """The exception by which apsw gives SQLite the error code of the unix VFS."""
    if kind == "full" and op != "open":
        code, text = apsw.SQLITE_FULL, "database or disk is full"
    else:
        code = _IOERR[op]
        text = "unable to open database file" if op == "open" else "disk I/O error"
    error = apsw.exception_for(code)
    error.args = (f"{text} (injected into {op})",)
    return error


def system_error(kind: Kind, path: str) -> OSError:
    """The exception of the operating system for the same fault."""
    number = errno.ENOSPC if kind == "full" else errno.EIO
    return OSError(number, os.strerror(number), path)
