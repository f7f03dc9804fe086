"""How far each reader of the log lagged during the last hour.

Nobody else keeps that: a lag is what stands at a moment. It is looked at while a console may be
opened, kept in memory, and gone with the process; what is to be kept for longer belongs to the
metrics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.apps.web.live.changes import Changes
from holdfast.node.core.views import Consumer
from holdfast.rules.limits import (
    CONSOLE_LAG_EVERY_MS,
    CONSOLE_LAG_LOOKS_MAX,
    CONSOLE_LAG_READERS_MAX,
    SECOND_MS,
)
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.node.http.context import NodeApi

LOOKED: Final = "lag"
"""What `Changes` calls it when the readers were looked at."""


class LagLook(NamedTuple):
    """How far readers lagged at one time."""

    at_ms: int
    lags: Mapping[str, int]


class LagRecord:
    """The looks of the last hour, the oldest first."""

    def __init__(self) -> None:
        self._looks: deque[LagLook] = deque(maxlen=CONSOLE_LAG_LOOKS_MAX)

    def add(self, look: LagLook) -> None:
        self._looks.append(look)

    def plot(self, readers: Collection[str]) -> dict[str, Any] | None:
        """What a plot shows of these readers: those that lagged most, a line each. None until there
        is a line to draw.
        """
        if len(self._looks) < 2:
            return None
        most = {name: max(look.lags.get(name, 0) for look in self._looks) for name in readers}
        shown = sorted(most, key=lambda name: (-most[name], name))[:CONSOLE_LAG_READERS_MAX]
        return {
            "at": [look.at_ms // SECOND_MS for look in self._looks],
            "lines": [
                {"name": name, "values": [look.lags.get(name) for look in self._looks]}
                for name in shown
            ],
        }


async def look_at_lags(api: NodeApi, record: LagRecord, changes: Changes) -> None:
    """Looks at the readers again and again, until it is cancelled."""

    def look(tx: Reader) -> LagLook:
        head = tx.log_bounds()[1]
        rows = [Consumer.of(row, head) for row in tx.consumer_list()]
        return LagLook(api.engine.ctx.now_ms(), {row.name: row.lag for row in rows})

    while True:
        record.add(await api.run(api.engine.read, "console.lags", look))
        changes.note(LOOKED)
        await asyncio.sleep(CONSOLE_LAG_EVERY_MS / SECOND_MS)
