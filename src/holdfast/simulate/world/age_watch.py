"""Whether a node's log tells the time of its entries, although its clock is wrong now and then.

The watch knows the true time. At each look by a right clock it notes how far the log was. So it
knows of every entry between which true times it was recorded, give or take what small jumps of the
clock are worth, and asks the log the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.rules.limits import HOUR_MS
from holdfast.storage.ports import Reader

RIGHT_MS: Final = HOUR_MS + HOUR_MS // 2
"""A clock that is off by less is right: small jumps are part of every day."""
SLACK_MS: Final = 3 * HOUR_MS


class _Look(NamedTuple):
    true_ms: int
    head: int


class AgeWatch:
    """What is known of the logs of all nodes of a world."""

    def __init__(self) -> None:
        self._looks: dict[str, list[_Look]] = {}
        self._right_since: dict[str, int] = {}
        """How far each log was at the last look; since then its clock was right."""

    def leapt(self, peer: str) -> None:
        """The clock of a node was set wrong, or right."""
        self._right_since.pop(peer, None)

    def is_new(self, peer: str) -> bool:
        """Whether no entry of its log is known to have a right time."""
        return not self._looks.get(peer)

    def look(self, peer: str, tx: Reader, *, now_ms: int, true_ms: int) -> list[str]:
        """Compares what the log says with what is known; returns what is wrong."""
        first, head = tx.log_bounds()
        if abs(now_ms - true_ms) > RIGHT_MS or not head:
            return []
        problems = []
        if tx.log_at(now_ms, now_ms) != head:
            problems.append("the log of now lacks entries")
        looks = [look for look in self._looks.get(peer, []) if first <= look.head <= head]
        for look in looks:
            late = look.true_ms + SLACK_MS
            if late <= now_ms and tx.log_at(late, now_ms) < look.head:
                problems.append(f"entry {look.head} is not in the log of {SLACK_MS} ms later")
            early = tx.log_at(look.true_ms - SLACK_MS, now_ms, cautious=True)
            if early > look.head:
                problems.append(f"entry {early} seems to be older than it is")
        newest = tx.log_get(head)
        assert newest is not None
        since = self._right_since.get(peer, head)
        if since < head and newest.recorded_at > true_ms + RIGHT_MS:
            problems.append(f"entry {head} was recorded by a right clock, and says otherwise")
        self._right_since[peer] = head
        if abs(newest.recorded_at - true_ms) <= RIGHT_MS:
            later = now_ms + SLACK_MS
            if (
                tells_ages(tx, later + HOUR_MS)
                and tx.log_at(later, later + HOUR_MS, cautious=True) != head
            ):
                problems.append("entries will not be old when they are")
            self._looks[peer] = [*looks[-_LOOKS_MAX:], _Look(true_ms, head)]
        return problems


def tells_ages(tx: Reader, now_ms: int) -> bool:
    """Whether the last entry of a log was recorded after all times that its clock has shown and
    that have come. Else nobody can tell yet which side of a turn was wrong, and the cautious keep
    the entries until there is another one.
    """
    newest = tx.log_get(tx.log_bounds()[1])
    past = [turn.high_ms for turn in tx.log_turns() if turn.high_ms <= now_ms]
    return newest is None or newest.recorded_at >= max(past, default=0)


_LOOKS_MAX: Final = 30
