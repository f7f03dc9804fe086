"""Random work for nodes that share a mesh: everything that every node does, and messages."""

from __future__ import annotations

from typing import Final

from holdfast.node.library.node import Node
from holdfast.node.messages.send import prepare
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.ids import id_text
from holdfast.simulate.delivery.broker_machine import POISON
from holdfast.simulate.delivery.queues import QUEUE
from holdfast.simulate.world.workload import Answers, WorkItem, Workload

TOPIC: Final = "news"
NOWHERE: Final = "nowhere"
"""A topic that nobody has declared."""
MESSAGES: Final = 0.45
"""Which part of the work is a message."""
SEND: Final = "message.send"
POISONED: Final = 0.02
"""Which part of the messages the broker fails at, in worlds that have such."""


class DeliveryWorkload(Workload):
    """Draws messages besides all other work."""

    keys: dict[str, bytes]
    poisons = False

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

        def do(node: Node) -> Answers:
            engine = node._engine
            send = prepare(engine, mesh, kind, ref, text, priority=priority, id=id_text(id))
            engine.write(SEND, send)
            return [None]

        return WorkItem(SEND, (id,), do)

    def _destinations(self) -> list[tuple[str, str]]:
        some = [("topic", TOPIC)] * 8 + [("queue", QUEUE)] * 8 + [("topic", NOWHERE)]
        return some + [("dm", key.hex()) for key in self.keys.values()] * 3
