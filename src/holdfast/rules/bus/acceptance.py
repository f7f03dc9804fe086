"""Which messages of one sender are taken in: the last of the checks of an arrival.

The signature, the payload id and the recipient were found right before. Here the number and the
nonce decide whether the message is a replay, and its id whether its sender sends it for the second
time. A store runs this inside the transaction that keeps the outcome; it never decides by itself.
`InboxShare` says whether the inbox has room for what one sender sends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.rules.bus.mesh_store import ArrivalVerdict, PeerKey, SignedArrival
from holdfast.rules.bus.message import BusMessage
from holdfast.rules.bus.replay import Window, is_above
from holdfast.rules.bus.signed_envelope import SEQUENCE_MAX
from holdfast.rules.errors import BusInboxFull
from holdfast.rules.limits import (
    BUS_ID_MARGIN_MS,
    BUS_INBOX_BYTES_MAX,
    BUS_INBOX_MAX,
    BUS_TTL_MS_MAX,
    BUS_WINDOW,
)

_NEW: Final = ArrivalVerdict.NEW
_DUPLICATE: Final = ArrivalVerdict.DUPLICATE
_REPLAY: Final = ArrivalVerdict.REPLAY


class Acceptance(NamedTuple):
    """What becomes of the messages of a batch, and of their sender's mark."""

    verdicts: list[ArrivalVerdict]
    """One for each, in their order."""
    window: Window
    """The mark after the batch; the one before it if all were replays."""
    new: list[SignedArrival]
    """The messages that have not come before."""
    nonces: list[bytes]
    """The nonces to remember: of all that were no replays."""


def judge_arrivals(
    before: Window,
    arrivals: Sequence[SignedArrival],
    nonces: Container[bytes],
    ids: Container[bytes],
    *,
    window: bool,
) -> Acceptance:
    """Judges messages of one sender in the order in which they came. `nonces` and `ids` are the
    ones that the store knows; a message also knows those before it in this batch.
    """
    if len(arrivals) == 1 and not window:
        return _judge_one(before, arrivals[0], nonces, ids)
    if arrivals and not window and _all_new(before.highest, arrivals, nonces, ids):
        taken = [arrival.sequence for arrival in arrivals]
        all_nonces = [arrival.nonce for arrival in arrivals]
        return Acceptance([_NEW] * len(taken), _moved(before, taken), list(arrivals), all_nonces)
    return _judge_each(before, arrivals, nonces, ids, window=window)


def _judge_one(
    before: Window, arrival: SignedArrival, nonces: Container[bytes], ids: Container[bytes]
) -> Acceptance:
    """As `_judge_each`, for one that came alone: so do most requests and replies."""
    sequence, nonce = arrival.sequence, arrival.nonce
    if nonce in nonces or not is_above(before.highest, sequence):
        return Acceptance([_REPLAY], before, [], [])
    moved = _moved(before, (sequence,))
    if arrival.message.id in ids:
        return Acceptance([_DUPLICATE], moved, [], [nonce])
    return Acceptance([_NEW], moved, [arrival], [nonce])


def _all_new(
    highest: int,
    arrivals: Sequence[SignedArrival],
    nonces: Container[bytes],
    ids: Container[bytes],
) -> bool:
    """Whether they are all new, as most batches are: this is asked of many at once."""
    count = len(arrivals)
    first, last = arrivals[0].sequence, arrivals[-1].sequence
    if not is_above(highest, first) or last > SEQUENCE_MAX:
        return False
    if [arrival.sequence for arrival in arrivals] != list(range(first, first + count)):
        return False
    fresh_nonces = {arrival.nonce for arrival in arrivals}
    fresh_ids = {arrival.message.id for arrival in arrivals}
    if len(fresh_nonces) < count or len(fresh_ids) < count:
        return False
    return not _any_in(fresh_nonces, nonces) and not _any_in(fresh_ids, ids)


def _any_in(fresh: set[bytes], known: Container[bytes]) -> bool:
    if isinstance(known, set):
        return not known.isdisjoint(fresh)
    return any(one in known for one in fresh)


def _judge_each(
    before: Window,
    arrivals: Sequence[SignedArrival],
    nonces: Container[bytes],
    ids: Container[bytes],
    *,
    window: bool,
) -> Acceptance:
    verdicts: list[ArrivalVerdict] = []
    new: list[SignedArrival] = []
    fresh_nonces: dict[bytes, None] = {}
    fresh_ids: set[bytes] = set()
    mark = before
    taken: list[int] = []
    highest = before.highest
    for arrival in arrivals:
        sequence, nonce = arrival.sequence, arrival.nonce
        if nonce in fresh_nonces or nonce in nonces:
            verdicts.append(_REPLAY)
            continue
        if window:
            after = mark.take(sequence)
            if after is None:
                verdicts.append(_REPLAY)
                continue
            mark = after
        elif is_above(highest, sequence):
            highest = sequence
            taken.append(sequence)
        else:
            verdicts.append(_REPLAY)
            continue
        fresh_nonces[nonce] = None
        id = arrival.message.id
        if id in fresh_ids or id in ids:
            verdicts.append(_DUPLICATE)
        else:
            fresh_ids.add(id)
            new.append(arrival)
            verdicts.append(_NEW)
    return Acceptance(verdicts, _moved(mark, taken), new, list(fresh_nonces))


def known_until(message: BusMessage, now_ms: int) -> int:
    """Until when the id of a message that is kept must stay known, unless its sender says before
    that it will not send it again: a sender gives a message up when its time has run out, and never
    keeps one for longer than BUS_TTL_MS_MAX. Ids of others need not be known: a message that is
    only passed on is written once, and a request or a reply that comes again is recognised by who
    handles it.
    """
    if message.ttl_ms is not None:
        return now_ms + message.ttl_ms + BUS_ID_MARGIN_MS
    return now_ms + BUS_ID_MARGIN_MS + (BUS_TTL_MS_MAX if message.durable else 0)


def _moved(window: Window, taken: Sequence[int]) -> Window:
    """The window after rising numbers have come: as `Window.take` for each, in one step."""
    if not taken:
        return window
    highest = taken[-1]
    ahead = highest - window.highest
    seen = (window.seen << ahead) & ((1 << BUS_WINDOW) - 1) if ahead < BUS_WINDOW else 0
    if highest - taken[0] + 1 == len(taken):
        return Window(highest, seen | (1 << min(len(taken), BUS_WINDOW)) - 1)
    for sequence in reversed(taken):
        below = highest - sequence
        if below >= BUS_WINDOW:
            break
        seen |= 1 << below
    return Window(highest, seen)


class InboxShare:
    """What lies in the inbox, by sender. It is bounded in messages and in bytes, and senders wait
    when there is no room. If the first one could take all of it, a peer that floods would shut out
    every other. So a peer may have no more there than it leaves free: one that floods gets half of
    the inbox, two get a third each, and there is always room for the others. A sender that keeps to
    the rules gets no more credit when it has three fifths of that (`has_room`).
    """

    def __init__(self, most: int = BUS_INBOX_MAX, bytes_max: int = BUS_INBOX_BYTES_MAX) -> None:
        self._most, self._bytes_max = most, bytes_max
        self._of: dict[PeerKey, tuple[int, int]] = {}
        self.count = 0
        self.bytes = 0

    def fill(self, shares: Iterable[tuple[PeerKey, int, int]]) -> None:
        """What an earlier life has left there: sender, messages, bytes."""
        self._of, self.count, self.bytes = {}, 0, 0
        for sender, count, size in shares:
            self._add(sender, count, size)

    def take(self, sender: PeerKey, count: int, size: int) -> None:
        """Makes room for so many messages of a sender. Raises BusInboxFull if there is none."""
        if not count:
            return
        mine, mine_bytes = self._of.get(sender, (0, 0))
        free, free_bytes = self._most - self.count, self._bytes_max - self.bytes
        # A sender that has nothing there may take what is free: a batch is never too large for it.
        fits = mine + count <= free and mine_bytes + size <= free_bytes
        if not fits and (mine or count > free or (self.count and size > free_bytes)):
            raise BusInboxFull(
                f"{self.count} messages of {self.bytes} bytes wait for handlers, {mine} of this "
                f"sender, and {count} more came; there is room for {self._most}"
            )
        self._add(sender, count, size)

    def has_room(self, sender: PeerKey) -> bool:
        """Whether a sender should go on. It is told to stop well before `take` refuses: what is
        under way by then still finds room, so nothing else of this sender waits behind it.
        """
        mine, mine_bytes = self._of.get(sender, (0, 0))
        free, free_bytes = self._most - self.count, self._bytes_max - self.bytes
        return 5 * mine <= 3 * free and 5 * mine_bytes <= 3 * free_bytes

    def give_back(self, sender: PeerKey, count: int, size: int) -> None:
        """So much of a sender is not in the inbox any more."""
        self._add(sender, -count, -size)

    def _add(self, sender: PeerKey, count: int, size: int) -> None:
        mine, mine_bytes = self._of.pop(sender, (0, 0))
        left, left_bytes = max(0, mine + count), max(0, mine_bytes + size)
        if left:
            self._of[sender] = (left, left_bytes)
        else:
            left_bytes = 0
        self.count += left - mine
        self.bytes += left_bytes - mine_bytes
