"""What the homes of a world have written to their mesh, and what each of them holds of it.

Whatever a home has committed would survive a crash, so the books are looked into after every
commit:

* a log only grows, no entry stands in it twice, and it holds nothing in another's name that the
  other has not written: whoever may not relay is not believed about others;
* a home covers a number only if it holds the entry that was written under it, or if there is none
  for it: a message to others, or a number of an earlier epoch;
* a home keeps its log for a peer up to what that peer has really stored.

At calm nobody lacks what somebody has who may bring it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.node.bus.meshes.mesh_serve import consumer_of
from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, lacking
from holdfast.rules.filters import MESSAGES
from holdfast.rules.frontier import Frontier
from holdfast.rules.ids import id_text
from holdfast.simulate.world.log_history import LogHistory, Seen
from holdfast.simulate.world.promises import Promises
from holdfast.storage.ports import Reader

MESH: Final = "team"


class WrittenEntry(NamedTuple):
    """What an origin wrote under a number."""

    id: bytes
    op: str


class MeshBooks:
    """The books of one mesh."""

    def __init__(
        self, peers: Sequence[str], relays: Collection[str], broken: Callable[[str], None]
    ) -> None:
        self.histories = {peer: LogHistory(peer) for peer in peers}
        self.promises = {peer: Promises(peer) for peer in peers}
        self.written: dict[tuple[StreamName, int], WrittenEntry] = {}
        """By stream and number."""
        self._relays, self._broken = relays, broken
        self._bases: dict[StreamName, int] = {}
        """Numbers up to here are of earlier epochs."""
        self._had: dict[str, dict[bytes, None]] = {peer: {} for peer in peers}
        """What each home has ever held."""
        self._covered: dict[tuple[str, StreamName], Frontier] = {}
        self._released: dict[tuple[str, str], int] = {}
        """By home and peer: the offset up to which the home does not keep its log for the peer."""

    # --- what happens ---------------------------------------------------------------------------

    def opened(self, home: str) -> None:
        """The home was opened anew: everything is looked at again."""
        self._covered = {key: one for key, one in self._covered.items() if key[0] != home}
        self._released = {key: one for key, one in self._released.items() if key[0] != home}

    def went_back(self, home: str, tx: Reader, then: Sequence[Seen]) -> None:
        """The home was restored to this log."""
        for problem in self.histories[home].went_back(tx, then):
            self._broken(f"{home}: {problem}")
        own = [seen.seq for seen in then if seen.origin == home and seen.mesh == MESH]
        self._bases[StreamName(MESH, home, tx.epoch())] = max(own, default=0)

    def look(self, home: str, tx: Reader) -> None:
        """The home has committed something."""
        history = self.histories[home]
        before = history.head
        _, problems = history.look(tx, "")
        for seen in history.entries[before:]:
            self._had[home][seen.id] = None
            if seen.mesh == MESH:
                problems += self._holds(home, history.epoch, seen)
        if tx.mesh_get(MESH) is not None:
            problems += self._coverage(home, tx)
            problems += self._kept_for(home, tx)
        if problems:
            self._broken(f"{home}: {'; '.join(problems[:3])}")

    # --- what holds after every commit ----------------------------------------------------------

    def _holds(self, home: str, epoch: int, seen: Seen) -> Iterator[str]:
        """A home has an entry."""
        stream = StreamName(MESH, seen.origin, seen.epoch)
        if seen.origin == home and seen.epoch == epoch:
            self.written.setdefault((stream, seen.seq), WrittenEntry(seen.id, seen.op))
        written = self.written.get((stream, seen.seq))
        if written is None or written.id != seen.id:
            yield f"its log holds {id_text(seen.id)} of {seen.origin}, which did not write it"

    def _coverage(self, home: str, tx: Reader) -> Iterator[str]:
        for row in tx.stream_list(MESH):
            before = self._covered.get((home, row.name), NOTHING)
            if row.covered == before:
                continue
            self._covered[home, row.name] = row.covered
            for start, end in lacking(before, row.covered):
                for seq in range(max(start, self._bases.get(row.name, 0) + 1), end):
                    yield from self._is_here(home, row.name, seq)

    def _is_here(self, home: str, stream: StreamName, seq: int) -> Iterator[str]:
        written = self.written.get((stream, seq))
        where = f"number {seq} of {stream.origin} in epoch {stream.epoch}"
        if written is None:
            yield f"it covers {where}, which nobody wrote"
        elif not self.histories[home].holds(written.id) and (
            written.op not in MESSAGES or stream.origin == home
        ):
            yield f"it covers {where} and does not hold it"

    def _kept_for(self, home: str, tx: Reader) -> Iterator[str]:
        history = self.histories[home]
        for peer, had in self._had.items():
            row = tx.consumer_get(consumer_of(peer))
            if row is None:
                continue
            upto = Frontier.decode(row.frontier).prefix
            after = max(self._released.get((home, peer), 0), history.first - 1)
            self._released[home, peer] = max(after, upto)
            for seen in history.entries[after:upto]:
                is_theirs = seen.origin != peer and seen.op not in MESSAGES
                if seen.mesh == MESH and is_theirs and seen.id not in had:
                    yield f"it does not keep {id_text(seen.id)} for {peer}, which never had it"

    # --- at calm --------------------------------------------------------------------------------

    def owed(self) -> Iterator[str]:
        """Who lacks what somebody else has and may bring, as sentences."""
        for source, history in self.histories.items():
            may_bring = [
                seen
                for seen in history.entries
                if seen.mesh == MESH
                and seen.op not in MESSAGES
                and (source in self._relays or seen.origin == source)
            ]
            for home, other in self.histories.items():
                lacks = [seen for seen in may_bring if not other.holds(seen.id)]
                if lacks:
                    first = lacks[0]
                    yield (
                        f"{home} lacks {len(lacks)} entries of {source}, such as number "
                        f"{first.seq} of {first.origin} in epoch {first.epoch}"
                    )

    def is_whole(self) -> bool:
        """Whether all homes hold the same."""
        held = [
            {seen.id for seen in history.entries if seen.mesh == MESH}
            for history in self.histories.values()
        ]
        return all(one == held[0] for one in held)
