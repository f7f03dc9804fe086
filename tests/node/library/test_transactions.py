"""No transaction is long because somebody handed in much.

Whatever a peer, a broker or a person decides the size of is done in pieces, between which others
get in. Each piece of work is done twice here, the second time with four times as much; the longest
transaction, counted in steps of SQLite, must stay what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.node.messages.expiry import expire
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, DAY_MS, OUTBOX_PAGE_ROWS
from holdfast.rules.outbox import lane_of
from support import envelopes as e
from support.envelopes import MESH, make_id
from support.growth import WorkMeter, counted_work
from support.nodes import store_of
from support.source import HandClock
from support.stores import outbox_row

_SMALL: Final = 3 * CHUNK_ROWS
"""More than one piece."""
_TIMES: Final = 4


@contextmanager
def home(folder: Path) -> Iterator[tuple[WorkMeter, Node, HandClock]]:
    clock = HandClock()
    with counted_work() as meter:
        node = open_node(folder, peer="ana", create=True, sync="normal", source=clock)
        try:
            node.create_mesh(MESH)
            yield meter, node, clock
        finally:
            node.close()


def arriving_changes(node: Node, clock: HandClock, rows: int) -> Callable[[], object]:
    raws = [e.state_set(f"k{n}", n, lamport=n + 1, id=make_id(n + 1)) for n in range(rows)]
    return lambda: node.apply(raws)


def late_turns_of_one_task(node: Node, clock: HandClock, rows: int) -> Callable[[], object]:
    """Of a task with as long a history. Each loses against the claim that it met."""
    task = id_text(make_id(1))
    raws = [e.task_create(task, lamport=1)]
    for n in range(rows // 2):
        at = 10 * n + 10
        raws.append(e.task_claim(task, n, id=make_id(10 + 2 * n), lamport=at, origin="bob"))
        raws.append(e.task_release(task, n, id=make_id(11 + 2 * n), lamport=at + 5, origin="bob"))
    node.apply(raws)
    late = [
        e.task_claim(task, n // 2, id=make_id(90_000 + n), lamport=5 * n + 12, origin="cyd")
        for n in range(rows)
    ]
    return lambda: node.apply(late)


def a_sweep_of_tombstones_and_log(node: Node, clock: HandClock, rows: int) -> Callable[[], object]:
    node.apply(
        e.raw("state.delete", f"k{n}", lamport=n + 1, id=make_id(n + 1)) for n in range(rows)
    )
    clock.advance(400 * DAY_MS)
    return lambda: node.sweep(Ttl())


def messages_that_expire(node: Node, clock: HandClock, rows: int) -> Callable[[], object]:
    waiting = [outbox_row(n, entity="", created_at=clock.at_ms) for n in range(1, rows + 1)]
    store_of(node).write(lambda tx: tx.outbox_add(waiting))
    clock.advance(30 * DAY_MS)
    return lambda: expire(node._engine, lane_of(MESH), 24)


@pytest.mark.parametrize(
    "prepare",
    [
        arriving_changes,
        late_turns_of_one_task,
        a_sweep_of_tombstones_and_log,
        messages_that_expire,
    ],
)
def test_S3_the_longest_transaction_does_not_grow_with_what_was_handed_in(
    tmp_path: Path, prepare: Callable[[Node, HandClock, int], Callable[[], object]]
) -> None:
    longest = []
    assert _SMALL > OUTBOX_PAGE_ROWS > CHUNK_ROWS
    for rows in (_SMALL, _TIMES * _SMALL):
        with home(tmp_path / str(rows)) as (meter, node, clock):
            longest.append(meter.longest_of(prepare(node, clock, rows)))
    assert 0 < longest[1] < 1.5 * longest[0], longest
