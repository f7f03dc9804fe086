"""The note about where a home was served last, and the ids of this machine that stand in it."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.home_copy import HomeNote, HomePlace, place_of
from holdfast.storage.files.durable import disk_errors, durable_writer
from holdfast.storage.files.home import HomePaths

_NOTE_BYTES_MAX: Final = 4096
_MACHINE_IDS: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def place(paths: HomePaths) -> HomePlace:
    """Where the home is, compared with where a daemon served it last."""
    try:
        fd = os.open(paths.whereabouts, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return HomePlace.NEW
    try:
        with disk_errors(f"read {paths.whereabouts}"):
            noted = msgspec.json.decode(os.read(fd, _NOTE_BYTES_MAX), type=HomeNote)
            return place_of(noted, _found(fd))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return HomePlace.COPIED  # we wrote none that cannot be read
    finally:
        os.close(fd)


def note(paths: HomePaths) -> None:
    """Writes down that the home is here. The note names its own file, as no copy of it does."""
    with durable_writer(paths.whereabouts) as draft:
        draft.write(msgspec.json.encode(_found(draft.fileno())))


def _found(fd: int) -> HomeNote:
    status = os.fstat(fd)
    return HomeNote(_machine(), _first_line(_BOOT_ID), status.st_dev, status.st_ino)


def _machine() -> str | None:
    """Not the id itself, which is to be kept from others, but a digest for our own use."""
    for path in _MACHINE_IDS:
        machine = _first_line(path)
        if machine:
            return sha256(b"holdfast host\0" + machine.encode()).hexdigest()
    return None


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
