"""Whether a home is where it was when a daemon last served it, or a copy.

Two copies of one home that both go on give offsets and sequence numbers twice. A note in the home
says on which host, in which boot, and as which file of which device it was written: a copy of the
note is another file, so a copied home is noticed even beside its original. What is not noticed is a
disk image that is put back whole on the same machine; the log's mark and the epochs are for that.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class HomeNote(msgspec.Struct, frozen=True):
    """Where a home was served last."""

    host: str | None
    """A digest of the machine's own id; None where the system has none."""
    boot: str | None
    """The id of the boot; None where the system has none."""
    device: int
    """The device of the note's own file. It is the same for one boot only."""
    inode: int
    """The number of the note's own file on its device."""


class HomePlace(StrEnum):
    """Where a home is, compared with where it was served last."""

    NEW = "new"
    """No daemon has served it yet, or none that left a note."""
    SAME = "same"
    COPIED = "copied"
    """On the same machine, but as other files: copied, restored, or moved to another disk."""
    OTHER_HOST = "other_host"
    """Another machine has served it."""

    @property
    def suspicious(self) -> bool:
        return self in (HomePlace.COPIED, HomePlace.OTHER_HOST)


def place_of(noted: HomeNote | None, found: HomeNote) -> HomePlace:
    """`found` is what the same fields say now."""
    if noted is None:
        return HomePlace.NEW
    if noted.host is not None and found.host is not None and noted.host != found.host:
        return HomePlace.OTHER_HOST
    if noted.inode != found.inode:
        return HomePlace.COPIED
    one_boot = noted.boot is not None and noted.boot == found.boot
    if one_boot and noted.device != found.device:
        # Two small file systems often give the same numbers to their first files.
        return HomePlace.COPIED
    return HomePlace.SAME
