"""Which member of an etcd is asked next, and after which pause.

All calls go to one member until it fails one. Many calls may be under way when it does: the first
failure moves on, the others only confirm it, so that members are tried in turn and none is skipped.
A call that every member has failed waits before it begins the next round.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.limits import ETCD_PAUSE_MS_MAX, ETCD_PAUSE_MS_MIN


class Rotation(msgspec.Struct, frozen=True):
    """The member that calls go to now, by its number."""

    count: int
    current: int = 0

    def after_failure(self, member: int) -> Rotation:
        """A call to this member failed."""
        if member != self.current:
            return self  # it was asked before somebody else's failure moved on
        return Rotation(self.count, (member + 1) % self.count)


def pause_ms(failures: int, count: int) -> int:
    """How long a call waits after it has failed this many times in a row; `count` members."""
    assert failures >= 1, "nothing has failed yet"
    rounds, rest = divmod(failures, count)
    if rest:
        return 0
    doubled = ETCD_PAUSE_MS_MIN << min(rounds - 1, 16)
    return min(ETCD_PAUSE_MS_MAX, doubled)
