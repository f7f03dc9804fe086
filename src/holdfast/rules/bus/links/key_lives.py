"""Whether one key is used by one process, or by several at once: a home that was copied.

Each bus makes a random mark when it is bound, its **life**, and says it in its welcomes. A process
that is started again has a new life, and its former one never comes again; a laptop that moves to
another network keeps its life. So a life that comes back after another one is a reason to doubt,
and not yet a proof: what it said may have been on its way. It is certain that two processes have
the key when

- one life has said hello, and the link of another one answers after that, or
- lives came back several times in turn.

Nothing here waits or asks: the caller asks the link that is up, if there is doubt.
"""

from __future__ import annotations

import msgspec

from holdfast.rules.limits import BUS_COPIED_MS, BUS_LIVES_BACK, BUS_LIVES_KEPT


class KeyLives(msgspec.Struct, frozen=True):
    """The lives that have shown one key."""

    lives: tuple[bytes, ...] = ()
    """Those of which links came up, the last one last."""
    backs: int = 0
    """How often in a row one of them came back after another one."""
    back_at: int = 0
    """When that happened last."""
    proved_at: int | None = None
    """When it was last certain that two of them live at once."""

    def came(self, life: bytes, now_ms: int) -> KeyLives:
        """A link of this life is up."""
        if not life or life == self.last:
            return self
        others = tuple(one for one in self.lives if one != life)
        after = msgspec.structs.replace(self, lives=(*others, life)[-BUS_LIVES_KEPT:])
        if len(others) == len(self.lives):
            return after
        backs = 1 if now_ms - self.back_at > BUS_COPIED_MS else self.backs + 1
        after = msgspec.structs.replace(after, backs=backs, back_at=now_ms)
        return after.proved(now_ms) if backs >= BUS_LIVES_BACK else after

    def is_doubtful(self, life: bytes, now_ms: int) -> bool:
        """Whether the link that is up is to be asked for a sign of life before one of this life
        takes its place.
        """
        if not life or life == self.last:
            return False
        return life in self.lives or self.is_copied(now_ms)

    def proved(self, now_ms: int) -> KeyLives:
        """Two processes have the key, now."""
        return msgspec.structs.replace(self, proved_at=now_ms)

    def is_copied(self, now_ms: int) -> bool:
        """Whether that was certain a while ago at most."""
        return self.proved_at is not None and now_ms - self.proved_at <= BUS_COPIED_MS

    @property
    def last(self) -> bytes:
        return self.lives[-1] if self.lives else b""
