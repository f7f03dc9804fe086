"""Notices that two processes use one key at once, and says so to all whom it concerns.

`rules/bus/links/key_lives.py` says what raises a doubt and what is a proof. If there is a doubt
about a newcomer, the link that is up is asked for a sign of life. If it answers, it stays, and is
told by a NOTICE; the newcomer is told by the goodbye that it gets, and comes again rarely. So the
two do not take the link from each other, and what either of them has sent waits in its outbox.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from holdfast.bus.context import BusContext, log
from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import FrameKind, NoticeFrame, Stream, told
from holdfast.rules.bus.links.key_lives import KeyLives
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import PeerCopied, PeerUnreachable
from holdfast.rules.limits import BUS_COPIED_MS, BUS_LIVES_KEYS_MAX, SECOND_MS


class KeyUse:
    """What one bus knows of it, for its peers' keys and for its own."""

    def __init__(self, context: BusContext) -> None:
        self._context = context
        self._lives: dict[PeerKey, tuple[str, KeyLives]] = {}
        """By key, with the name of the peer; the one that was linked last is the last."""
        self._tellers: dict[str, int] = {}
        """Who told us that another process has our key, and when it was said last."""

    # --- the keys of peers ---------------------------------------------------------------------

    async def check(self, name: str, peer: PeerKey, life: bytes, link: Link | None) -> None:
        """Before a peer that has proved its key gets a link. Raises PeerCopied if another process
        has the link that is up and answers on it.
        """
        _, lives = self._lives.get(peer, (name, KeyLives()))
        if link is None or link.peer != peer or not lives.is_doubtful(life, self._now()):
            return
        try:
            await link.ping()
        except PeerUnreachable:
            return  # its end is gone: the newcomer takes its place
        self._note(name, peer, lives.proved(self._now()))
        self._tell(link)
        raise PeerCopied(_two(name))

    def link_up(self, link: Link) -> None:
        _, before = self._lives.get(link.peer, (link.name, KeyLives()))
        after = before.came(link.welcome.life, self._now())
        self._note(link.name, link.peer, after)
        if after.proved_at != before.proved_at:
            # The link is just coming up: its own words go first.
            self._context.loop.call_soon(partial(self._tell, link))

    def _note(self, name: str, peer: PeerKey, after: KeyLives) -> None:
        now = self._now()
        _, before = self._lives.pop(peer, (name, KeyLives()))
        self._lives[peer] = name, after
        while len(self._lives) > BUS_LIVES_KEYS_MAX:
            del self._lives[next(iter(self._lives))]
        if after.is_copied(now) and not before.is_copied(now):
            log.warning("%s; %s", _two(name), PeerCopied.default_hint)
        if after.proved_at != before.proved_at:
            self._context.counts[PeerCopied.code] += 1

    def _tell(self, link: Link) -> None:
        notice = NoticeFrame(PeerCopied.code, _two(link.name))
        with suppress(PeerUnreachable):  # it is told when it comes again
            link.send(FrameKind.NOTICE, Stream.CONTROL, told(FrameKind.NOTICE, notice))

    # --- our own key ---------------------------------------------------------------------------

    def noticed(self, link: Link, notice: NoticeFrame) -> None:
        """A linked peer says something; what we do not know the code of is for later versions."""
        if notice.code == PeerCopied.code:
            self.told(link.name)

    def told(self, name: str) -> None:
        """A peer that we know says that another process has our key."""
        is_new = not self._telling()
        self._tellers[name] = self._now()
        if is_new:
            log.warning("%s; %s", _ours(name), PeerCopied.default_hint)

    def _telling(self) -> list[str]:
        now = self._now()
        for name in [one for one, at in self._tellers.items() if now - at > BUS_COPIED_MS]:
            del self._tellers[name]
        return sorted(self._tellers)

    def warnings(self) -> list[str]:
        """What people should know now: the code and a sentence each."""
        now = self._now()
        copied = sorted(name for name, lives in self._lives.values() if lives.is_copied(now))
        told = self._telling()
        said = [*map(_two, copied), *([_ours(", ".join(told))] if told else [])]
        return [f"{PeerCopied.code}: {one}" for one in said]

    def _now(self) -> int:
        return int(self._context.loop.time() * SECOND_MS)


def _two(name: str) -> str:
    return f"two processes show the key of {name!r} at the same time: one of them is a copy"


def _ours(names: str) -> str:
    return f"{names} met another process with the key of this node: one of the two is a copy"
