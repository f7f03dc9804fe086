"""Alarms of groups in the log of this node, a few of each kind at a time.

Most alarms are raised by what another voter says, and one that lies says it as often as it likes:
the log would fill the disk. What was left out is counted, and told with the next line of its kind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from holdfast.rules.backoff import Allowance
from holdfast.rules.limits import QUORUM_ALARM_MS, QUORUM_ALARMS_MAX
from holdfast.rules.quorum.raft.effects import Alarm

log = logging.getLogger("holdfast")


class AlarmLog:
    """Of one node. `now_ms` never runs backwards."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._left: dict[tuple[str, str], Allowance] = {}
        """By mesh and kind; not by member, whose ids a liar makes up."""
        self._unsaid: Counter[tuple[str, str]] = Counter()

    def tell(self, mesh: str, alarm: Alarm) -> None:
        kind = (mesh, alarm.name)
        allowance = self._left.get(kind) or Allowance(QUORUM_ALARMS_MAX, QUORUM_ALARM_MS)
        left = allowance.spend(self._now_ms())
        if left is None:
            self._unsaid[kind] += 1
            return
        self._left[kind] = left
        unsaid = self._unsaid.pop(kind, 0)
        more = f", and {unsaid} times since the last line of this kind" if unsaid else ""
        log.warning("quorum of %s: %s (member %d)%s", mesh, alarm.name, alarm.member, more)
