"""The rows of the bus in a home: what the node's own verbs make of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.rules.bus.mesh_store import ArrivalVerdict
from holdfast.rules.errors import BadInput, Conflict
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BUS_SET_BACK_SKIP
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline
from support.keeping import make_home
from support.mesh_stores import ANA, NOW, SetClock, id_of, signed_arrival, waiting_for

T = TypeVar("T")
CLOCK = SetClock()


def with_store(node: Node, story: Callable[[SqliteMeshStore], Awaitable[T]]) -> T:
    """Tells a story with the store of a home, as the bus of that home has it."""

    async def told() -> T:
        opened = node._opened
        store = SqliteMeshStore(
            opened.store, opened.paths.bus_mark, write=inline(opened.store), now_ms=CLOCK.now_ms
        )
        return await story(await store.start())

    return asyncio.run(told())


async def fill(store: SqliteMeshStore) -> bytes:
    await store.accept(ANA, [signed_arrival(n) for n in (1, 2)])
    await store.enqueue_outbox(waiting_for("ben", 1, expires_at=NOW + 1000))
    refused = await store.enqueue_outbox(waiting_for("ben", 2))
    await store.give_up(refused, "not_allowed", "ben does not want it")
    await store.reserve(10)
    return await store.incarnation()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_home(tmp_path / "home")


def test_B4_the_outbox_lists_retries_and_drops_what_waits_for_peers(node: Node) -> None:
    with_store(node, fill)
    waiting, failed = node.outbox.list(lane="peer:ben")
    assert (waiting.op, waiting.entity, waiting.state) == ("bus.send", "news", "pending")
    assert (failed.state, failed.code) == ("dead", "not_allowed")
    assert waiting.blocked_by is None, "no message waits for another"
    (lane,) = [lane for lane in node.outbox.lanes() if lane.lane == "peer:ben"]
    assert (lane.pending, lane.dead, lane.mesh, lane.blocks) == (1, 1, "", "")

    assert node.outbox.retry(failed.id).state == "pending"
    due = with_store(node, lambda store: store.due_outbox())
    assert [item.message.id for _, item in due] == [id_of(1), id_of(2)]
    assert node.outbox.drop(failed.id).state == "aborted"
    due = with_store(node, lambda store: store.due_outbox())
    assert [item.message.id for _, item in due] == [id_of(1)]
    with pytest.raises(BadInput):
        node.outbox.requeue(failed.id)
    node.close()


def test_B4_a_message_whose_time_ran_out_is_listed_and_not_tried_again(node: Node) -> None:
    with_store(node, fill)
    CLOCK.at = NOW + 1000
    try:
        expired = with_store(node, lambda store: store.expire_outbox())
        assert [item.message.id for item in expired] == [id_of(1)]
    finally:
        CLOCK.at = NOW
    item = node.outbox.get(id_text(id_of(1)))
    assert (item.state, item.code) == ("dead", "message_expired")
    with pytest.raises(Conflict):
        node.outbox.retry(item.id)
    node.close()


def test_B4_the_doctor_finds_nothing_wrong_with_messages_for_peers(node: Node) -> None:
    with_store(node, fill)
    node.sweep()
    home = node.home
    node.close()
    checks = [check for check in diagnose(home).checks if check.name == "bus"]
    assert [check.status for check in checks] == ["warn", "warn", "ok"]
    assert "ben" in checks[0].message
    assert "have waited" in checks[1].message
    assert not [check for check in diagnose(home).checks if check.status == "fail"]


def test_B3_a_restored_home_takes_a_new_incarnation_and_skips_numbers(
    node: Node, tmp_path: Path
) -> None:
    before = with_store(node, fill)
    backup(node, tmp_path / "backup")
    captured = [signed_arrival(n) for n in (3, 4)]
    with_store(node, lambda store: store.accept(ANA, captured))
    highest = with_store(node, lambda store: store.reserve(5000)).stop
    home = node.home
    node.close()
    for target, force in ((home, True), (tmp_path / "elsewhere", False)):
        restore(tmp_path / "backup", target, force=force)
        restored = open_node(target)
        assert with_store(restored, lambda store: store.incarnation()) != before
        first = with_store(restored, lambda store: store.reserve(1)).start
        assert first > BUS_SET_BACK_SKIP
        assert first > highest or not force
        inbox = with_store(restored, lambda store: store.pending_inbox(0, 10))
        assert len(inbox) == 2
        assert len(with_store(restored, lambda store: store.due_outbox())) == 1
        restored.close()


def test_B4_a_repair_keeps_what_waits_and_what_came(node: Node) -> None:
    before = with_store(node, fill)
    home = node.home
    node.close()
    repair_home(home)
    repaired = open_node(home)
    due = with_store(repaired, lambda store: store.due_outbox())
    assert [item for _, item in due] == [waiting_for("ben", 1, expires_at=NOW + 1000)]
    assert [item.state for item in repaired.outbox.list(lane="peer:ben")] == ["pending", "dead"]
    again = [signed_arrival(n) for n in (1, 2)]
    verdicts = with_store(repaired, lambda store: store.accept(ANA, again))
    assert verdicts == [ArrivalVerdict.REPLAY] * 2
    assert len(with_store(repaired, lambda store: store.pending_inbox(0, 9))) == 2
    assert with_store(repaired, lambda store: store.incarnation()) != before, "another file"
    assert HomePaths(home).bus_mark.stat().st_mode & 0o777 == 0o600
    repaired.close()


def test_B4_the_sweep_forgets_ids_that_nobody_can_send_again(node: Node) -> None:
    with_store(node, fill)
    assert node.sweep().bus_ids == 2, "they came in 2023, by the clock of this test"
    node.close()
