"""What a node has answered its callers, and whether it holds to that."""

from __future__ import annotations

from holdfast.node.library.node import Node
from holdfast.rules.errors import Unknown
from holdfast.rules.ids import id_text
from holdfast.storage.ports import Reader


class Promises:
    """The answers that one node has given, by message id."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.kept: dict[bytes, None] = {}
        """Acknowledged: the log holds it, now and after any crash."""
        self.refused: dict[bytes, None] = {}
        """Refused: the log does not hold it, unless a caller asked for it again."""
        self.unknown: dict[bytes, None] = {}
        """Neither: the log holds it once, or not at all."""

    def answered(self, id: bytes, answer: BaseException | None) -> None:
        """Records the answer to the write with this id; None is an acknowledgement."""
        if answer is None:
            self.kept[id] = None
            self.refused.pop(id, None)
        elif isinstance(answer, Unknown):
            self.unknown[id] = None
            self.refused.pop(id, None)
        elif id not in self.kept and id not in self.unknown:
            self.refused[id] = None

    def went_back(self, node: Node) -> None:
        """The node was restored from a backup: what it wrote later is no longer promised."""

        def look(tx: Reader) -> list[bytes]:
            return [id for id in self.kept if not _is_known(tx, id)]

        for id in node._engine.read("promises", look):
            del self.kept[id]
            self.unknown[id] = None

    def broken(self, node: Node) -> list[str]:
        """The promises that the node does not keep, as sentences."""

        def look(tx: Reader) -> list[str]:
            return [
                *(f"{id_text(id)} is lost" for id in self.kept if not _is_known(tx, id)),
                *(f"{id_text(id)} was refused" for id in self.refused if _is_known(tx, id)),
            ]

        return node._engine.read("promises", look)


def _is_known(tx: Reader, id: bytes) -> bool:
    return tx.log_find(id) is not None or tx.forgotten(id) is not None
