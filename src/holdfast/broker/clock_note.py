"""`broker.clock` in a broker's folder: when its wall clock was last believed (see
`rules.clock_check`).

A note that cannot be read counts as "never believed", which costs a day without sweeps. A note that
cannot be written stops nothing, because a full disk needs sweeps more than anything else.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.clock_check import ClockNote
from holdfast.rules.errors import HoldfastError
from holdfast.storage.files.durable import durable_replace

log = logging.getLogger("holdfast")

NAME: Final = "broker.clock"
NEVER: Final = ClockNote(0, 0, 0)


def read_clock_note(folder: Path) -> ClockNote | None:
    """The note in a broker's folder; None if there is none yet."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=ClockNote)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        log.warning("%s cannot be read: %s", folder / NAME, error)
        return NEVER


def write_clock_note(folder: Path, note: ClockNote) -> None:
    try:
        durable_replace(folder / NAME, msgspec.json.encode(note))
    except HoldfastError as error:
        log.warning("when the clock was believed is not noted: %s", error.message)
