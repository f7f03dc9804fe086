"""Looking a broker over: its schema, its tables, its orphans, its clock and its key.

The checks run in the process that has the store open: in the broker that runs, or in the command if
none does. They change nothing.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final, Literal

import msgspec

from holdfast.broker.clock_note import read_clock_note
from holdfast.broker.identity import KEY
from holdfast.rules.clock_check import ClockCheck, start
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import ORPHANS_SHOWN_MAX
from holdfast.storage.broker.port import BrokerStore

_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class BrokerCheck(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str = ""


async def examine(
    store: BrokerStore, folder: Path, now_ms: int, ticks_ms: int, clock: ClockCheck | None = None
) -> list[BrokerCheck]:
    """All checks. `clock` is what a running broker thinks of its clock; None: what one that starts
    now would think.
    """
    return [
        BrokerCheck("schema", "ok", f"version {await store.schema()}"),
        await _tables(store),
        await _orphans(store),
        _clock(clock or start(wall_ms=now_ms, ticks_ms=ticks_ms, note=read_clock_note(folder))),
        _key(folder / KEY),
    ]


def failed(error: HoldfastError) -> list[BrokerCheck]:
    """For a store that could not be opened."""
    return [BrokerCheck("store", "fail", f"{error.code}: {error.message}", error.hint or "")]


async def _tables(store: BrokerStore) -> BrokerCheck:
    found = await store.inconsistencies()
    if not found:
        return BrokerCheck("tables", "ok", "they belong together")
    return BrokerCheck("tables", "fail", "; ".join(found), "restore the store from a backup")


async def _orphans(store: BrokerStore) -> BrokerCheck:
    found = await store.orphans(ORPHANS_SHOWN_MAX)
    if not found:
        return BrokerCheck("orphans", "ok", "every id has its message, every message its id")
    return BrokerCheck(
        "orphans",
        "fail",
        f"{len(found)}, the first in {found[0].mesh!r}: {found[0].what} (seq {found[0].seq})",
        "holdfast broker orphans --repair",
    )


def _clock(clock: ClockCheck) -> BrokerCheck:
    if clock.is_believed:
        return BrokerCheck("clock", "ok", "it is believed")
    return BrokerCheck(
        "clock",
        "warn",
        "it has leapt, or the broker was down for long: nothing is swept before it has been steady "
        "for a day",
        "if it is right: holdfast broker sweep",
    )


def _key(path: Path) -> BrokerCheck:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OPEN_TO_OTHERS:
        return BrokerCheck(
            "key", "fail", f"{path} has mode {mode:04o}: others may use it", f"chmod 600 {path}"
        )
    return BrokerCheck("key", "ok", f"only its owner may read {path.name}")
