"""Random work for nodes that share a mesh: everything that every node does, and messages."""

from __future__ import annotations

import random
from collections import deque
from contextlib import suppress
from typing import Any, Final

from holdfast.node.library.node import Node
from holdfast.node.messages.send import prepare
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.errors import IdempotencyKeyReused
from holdfast.rules.ids import id_text, id_time_ms
from holdfast.rules.limits import HOUR_MS
from holdfast.simulate.delivery.broker_machine import POISON
from holdfast.simulate.delivery.queues import QUEUE
from holdfast.simulate.world.workload import Answers, WorkItem, Workload

TOPIC: Final = "news"
NOWHERE: Final = "nowhere"
"""A topic that nobody has declared."""
MESSAGES: Final = 0.45
"""Which part of the work is a message."""
SEND: Final = "message.send"
REUSED: Final = 0.4
"""Which part of the messages uses an id again, in worlds where people do that."""
RECENT: Final = 1
POISONED: Final = 0.02
"""Which part of the messages the broker fails at, in worlds that have such."""


class DeliveryWorkload(Workload):
    """Draws messages besides all other work."""

    keys: dict[str, bytes]
    poisons = False
    reuse: random.Random | None = None
    """Draws which ids are used again; None: none is."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._used: deque[tuple[str, bytes]] = deque(maxlen=RECENT)
        """Mesh and id of what was sent to the topic last: whoever uses such an id has mostly not
        heard of the message yet, and gets it later."""

    def draw(self, *, evenly: bool = False) -> WorkItem:
        if self._rng.random() < MESSAGES:
            return self.message()
        return super().draw(evenly=evenly)

    def message(self) -> WorkItem:
        rng = self._rng
        self._count += 1
        mesh, id = rng.choice(self._meshes), self._new_id()
        kind, ref = rng.choice(self._destinations())
        priority, text = rng.choice(PRIORITIES), f"message {self._count}"
        if self.poisons and rng.random() < POISONED:
            text = f"{POISON} {self._count}"
        recent = [one for one in self._used if id_time_ms(id) - id_time_ms(one[1]) < HOUR_MS]
        if self.reuse is not None and recent and self.reuse.random() < REUSED:
            return self._under_used_id(*self.reuse.choice(recent), f"message {self._count}")

        def do(node: Node) -> Answers:
            engine = node._engine
            send = prepare(engine, mesh, kind, ref, text, priority=priority, id=id_text(id))
            engine.write(SEND, send)
            if ref == TOPIC:
                self._used.append((mesh, id))
            return [None]

        return WorkItem(SEND, (id,), do)

    def _under_used_id(self, mesh: str, id: bytes, text: str) -> WorkItem:
        """A node that knows the id refuses it; one that does not sends it, and hears it from the
        broker. Neither is promised anything about the id by this call.
        """

        def do(node: Node) -> Answers:
            engine = node._engine
            with suppress(IdempotencyKeyReused):
                engine.write(SEND, prepare(engine, mesh, "topic", TOPIC, text, id=id_text(id)))
            return []

        return WorkItem(SEND, (), do)

    def _destinations(self) -> list[tuple[str, str]]:
        some = [("topic", TOPIC)] * 8 + [("queue", QUEUE)] * 8 + [("topic", NOWHERE)]
        return some + [("dm", key.hex()) for key in self.keys.values()] * 3
