"""Which connections an accepted envelope wakes: followers of meshes and takers of queues.

What this process accepts it knows in full, so it wakes only the connections that it concerns: a dm
wakes one among thousands. Of what another process has accepted it knows only the seq, and wakes all
followers of the mesh; they look for themselves. A wake-up only makes things faster: what a
connection sends is read from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.message import CHANGE
from holdfast.rules.push_columns import Created, PushColumns, beside


class Follower(Protocol):
    """A connection that can be woken."""

    @property
    def key(self) -> bytes: ...
    def topics(self, mesh: str) -> Collection[str] | None:
        """The topics of a mesh that it is subscribed to; None if that is not known."""

    def wake(self, mesh: str, *, urgent: bool) -> None:
        """There may be something new for it in a mesh."""

    def wake_queue(self, mesh: str, queue: str) -> None: ...


class _News:
    """What a group has brought to one mesh: from which seq to which, and an envelope of each kind
    that occurs.
    """

    __slots__ = ("first", "kinds", "last")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.kinds: list[PushedEnvelope] = []

    def add(self, last: int, kinds: Iterable[PushedEnvelope]) -> None:
        self.last = last
        self.kinds += kinds


class Wakeups:
    """All connections of one broker process."""

    def __init__(
        self, *, alone: bool, wanted: Callable[[str, bool], None] = lambda mesh, on: None
    ) -> None:
        """`alone`: no other process writes into the store. `wanted` is told of each mesh whether
        anybody here waits for its news.
        """
        self._alone, self._tell_wanted = alone, wanted
        self._wanted: set[str] = set()
        self._queues: dict[str, set[str]] = {}
        """Of each mesh the queues that are taken from."""
        self._followers: dict[str, dict[Follower, bytes]] = {}
        self._by_key: dict[tuple[str, bytes], set[Follower]] = {}
        self._takers: dict[tuple[str, str], set[Follower]] = {}
        self._known: dict[str, int] = {}
        """The last seq of each mesh that its followers were woken for."""
        self._begun = 0
        self._under_way: set[int] = set()
        self._held: dict[str, dict[int, int]] = {}
        """News that came while groups were under way: of each mesh the seq, by the last group that
        had begun by then."""

    # --- who listens ---------------------------------------------------------------------------

    def follow(self, mesh: str, follower: Follower, last: int = 0) -> None:
        """`last` is the last seq of the mesh, as the follower has read it."""
        if last:
            self._known.setdefault(mesh, last)
        self._followers.setdefault(mesh, {})[follower] = follower.key
        self._by_key.setdefault((mesh, follower.key), set()).add(follower)
        self._note_wanted(mesh)

    def unfollow(self, mesh: str, follower: Follower) -> None:
        followers = self._followers.get(mesh, {})
        if followers.pop(follower, None) is None:
            return
        if not followers:
            del self._followers[mesh]
            self._known.pop(mesh, None)
        own = self._by_key[mesh, follower.key]
        own.discard(follower)
        if not own:
            del self._by_key[mesh, follower.key]
        self._note_wanted(mesh)

    def take_from(self, mesh: str, queue: str, follower: Follower) -> None:
        self._takers.setdefault((mesh, queue), set()).add(follower)
        self._queues.setdefault(mesh, set()).add(queue)
        self._note_wanted(mesh)

    def leave_queue(self, mesh: str, queue: str, follower: Follower) -> None:
        takers = self._takers.get((mesh, queue))
        if takers is not None:
            takers.discard(follower)
            if not takers:
                del self._takers[mesh, queue]
                self._queues[mesh].discard(queue)
                if not self._queues[mesh]:
                    del self._queues[mesh]
                self._note_wanted(mesh)

    def _note_wanted(self, mesh: str) -> None:
        on = mesh in self._followers or mesh in self._queues
        if on is (mesh in self._wanted):
            return
        if on:
            self._wanted.add(mesh)
        else:
            self._wanted.discard(mesh)
        self._tell_wanted(mesh, on)

    def last(self, mesh: str) -> int:
        """The last seq of a mesh that this process knows of; 0 if it knows of none."""
        return self._known.get(mesh, 0)

    @property
    def followed(self) -> list[str]:
        """The meshes that have followers here."""
        return sorted(self._followers)

    def followers(self, mesh: str) -> int:
        return len(self._followers.get(mesh, ()))

    # --- what is new ---------------------------------------------------------------------------

    def begin_group(self) -> int:
        """A group goes into the store. News from the store waits until its end, when `accepted` has
        said which connections the group concerns. Returns the number of the group.
        """
        self._begun += 1
        self._under_way.add(self._begun)
        return self._begun

    def end_group(self, group: int) -> None:
        """A group has come back; if it is in the store, `accepted` was called before."""
        self._under_way.discard(group)
        first = min(self._under_way, default=self._begun + 1)
        for mesh, held in list(self._held.items()):
            due = [held.pop(last) for last in list(held) if last < first]
            if not held:
                del self._held[mesh]
            if due:
                self._wake_at(mesh, _farthest(due))

    def news(self, mesh: str, seq: int) -> None:
        """The store says that a mesh has reached a seq, written by this process or another one."""
        if not self._under_way:
            self._wake_at(mesh, seq)
            return
        held = self._held.setdefault(mesh, {})
        held[self._begun] = _farthest((seq, held.get(self._begun, seq)))

    def _wake_at(self, mesh: str, seq: int) -> None:
        if seq and seq <= self._known.get(mesh, 0):
            return
        if seq and mesh in self._followers:
            self._known[mesh] = seq
        self.wake_all(mesh)

    def wake_all(self, mesh: str) -> None:
        for follower in list(self._followers.get(mesh, ())):
            follower.wake(mesh, urgent=True)
        for (of, queue), takers in list(self._takers.items()):
            if of == mesh:
                for follower in list(takers):
                    follower.wake_queue(mesh, queue)

    def accepted(self, batch: Sequence[PushedEnvelope], answers: Sequence[AcceptResult]) -> None:
        """This process has accepted a group, and it is in the store."""
        by_mesh: dict[str, _News] = {}
        for part, told in beside(batch, answers):
            if isinstance(part, PushColumns) and isinstance(told, Created):
                news = by_mesh.setdefault(part.mesh, _News(told.seq))
                news.add(told.seq + len(told) - 1, part.firsts())
                continue
            for one, answer in zip(part, told, strict=True):
                if answer.verdict is AcceptVerdict.CREATED:
                    by_mesh.setdefault(one.mesh, _News(answer.seq)).add(answer.seq, [one])
        for mesh, news in by_mesh.items():
            self._wake_for(mesh, news)

    def _wake_for(self, mesh: str, news: _News) -> None:
        for queue in {one.ref for one in news.kinds if one.kind == "queue"}:
            for follower in list(self._takers.get((mesh, queue), ())):
                follower.wake_queue(mesh, queue)
        if mesh not in self._followers:
            return
        known = self._known.get(mesh)
        self._known[mesh] = max(known or 0, news.last)
        if known is None or news.first != known + 1:
            # Another process has written in between, or the first follower has just come.
            for follower in list(self._followers[mesh]):
                follower.wake(mesh, urgent=True)
            return
        for follower, urgent in self._concerned(mesh, news.kinds).items():
            follower.wake(mesh, urgent=urgent)

    def _concerned(self, mesh: str, rows: Iterable[PushedEnvelope]) -> dict[Follower, bool]:
        found: dict[Follower, bool] = {}
        senders: set[bytes] = set()
        for one in rows:
            urgent = one.priority == "now"
            if one.kind == "dm":
                for follower in self._by_key.get((mesh, bytes.fromhex(one.ref)), ()):
                    found[follower] = found.get(follower, False) or urgent
            elif one.kind == "topic":
                for follower in self._followers[mesh]:
                    topics = follower.topics(mesh) if self._alone else None
                    if topics is None or one.ref in topics:
                        found[follower] = found.get(follower, False) or urgent
            elif one.kind == CHANGE:
                senders.add(one.sender)
        if senders:
            # A member does not get its own changes back; others' changes concern everybody.
            only = next(iter(senders)) if len(senders) == 1 else None
            for follower, key in self._followers[mesh].items():
                if key != only:
                    found.setdefault(follower, False)
        return found


def _farthest(seqs: Collection[int]) -> int:
    """The last of these seqs; 0, which nobody knows, if one of them is."""
    return 0 if 0 in seqs else max(seqs)
