"""Homes that have been in use, for operations to meet what is there."""

from __future__ import annotations

from holdfast.node.library.node import Node
from holdfast.rules.ids import id_text
from support import envelopes
from support.envelopes import MODEL, make_id
from support.nodes import team

BIG = b"large content " * 6000
OTHER = b"other content " * 6000
TASK = id_text(make_id(7))


def some_rows(node: Node) -> None:
    """A little of everything, so that operations meet what is there."""
    mesh = team(node)
    mesh.state.set("old", 1)
    mesh.memory.set("old", {"a": 1}, tags=["x"])
    mesh.vectors.store("old", [1.0, 0.0], model=MODEL, content="old")
    mesh.files.share("old.txt", b"small")
    mesh.files.share("old.bin", BIG)
    mesh.tasks.create("old", id=TASK)


def few_rows(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("old", 1)
    mesh.files.share("old.bin", BIG)
    mesh.tasks.create("old", id=TASK)


def claimed(node: Node) -> None:
    some_rows(node)
    team(node).tasks.claim(TASK)


def released(node: Node) -> None:
    some_rows(node)
    team(node).files.delete("old.bin")


def apply_all(node: Node, batch: list[bytes], blob: bytes | None = None) -> None:
    if blob is not None:
        node.receive_blob(blob)
    for applied in node.apply(batch):
        if applied.error is not None:
            raise applied.error


def disputed(node: Node) -> None:
    some_rows(node)
    apply_all(node, [envelopes.state_set("old", "bob's", lamport=50, id=make_id(60))])


def superseded(node: Node) -> None:
    """Our claim loses against one that was made earlier and came later."""
    claimed(node)
    apply_all(node, [envelopes.task_claim(TASK, lamport=7, origin="Bob", id=make_id(61))])
