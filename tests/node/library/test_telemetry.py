"""`mesh.telemetry`: kept here for a while, and given to nobody."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

import holdfast
from holdfast.node.exchange.export import export
from holdfast.node.library.aio import AsyncNode
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, BadKey, OverLimit, UnknownKey, UnknownMesh
from holdfast.rules.telemetry import telemetry_row
from holdfast.storage.ports import Transaction
from support.nodes import KINDS, Nodes, store_of, team
from support.source import HandClock

CANARY = "worktree-of-nobody-else"


@pytest.mark.parametrize("kind", KINDS)
def test_Q1_telemetry_is_set_read_listed_and_deleted_and_ends_by_itself(
    kind: str, tmp_path: Path
) -> None:
    clock = HandClock()
    nodes = Nodes(kind, tmp_path, clock)
    node = nodes.open()
    mine = team(node).telemetry
    mine.set("agent", "a", {"pid": 7})
    done = mine.set("agent", "a", {"pid": 8}, ttl_ms=1000)
    assert done.expires_at == done.updated_at + 1000
    mine.set("run/1", "0001", "step 1 of 3")
    assert mine.get("agent", "a") == {"pid": 8}
    assert [(one.kind, one.key) for one in mine.list()] == [("agent", "a"), ("run/1", "0001")]
    assert [one.value for one in mine.list("run/1")] == ["step 1 of 3"]
    clock.advance(1000)
    assert mine.get("agent", "a", "gone") == "gone"
    assert [one.kind for one in mine.list()] == ["run/1"]
    assert node.sweep().telemetry_rows == 1
    assert node.sweep().telemetry_rows == 0
    mine.delete("run/1", "0001")
    with pytest.raises(UnknownKey):
        mine.delete("run/1", "0001")
    for bad, error in (
        (lambda: mine.set("k" * (limits.TELEMETRY_KIND_BYTES_MAX + 1), "a", 1), OverLimit),
        (lambda: mine.set("k", "a", "x" * limits.TELEMETRY_BYTES_MAX), OverLimit),
        (lambda: mine.set("k", "a", 1, ttl_ms=0), BadInput),
        (lambda: mine.set("k", "a", 1, ttl_ms=limits.TELEMETRY_TTL_MS_MAX + 1), BadInput),
        (lambda: mine.set("", "a", 1), BadKey),
        (lambda: mine.get("k", ""), BadKey),
    ):
        with pytest.raises(error):
            bad()
    nodes.close()


def test_Q1_a_mesh_has_telemetry_up_to_a_limit_and_what_ended_makes_room(tmp_path: Path) -> None:
    clock = HandClock()
    nodes = Nodes("sqlite", tmp_path, clock)
    node = nodes.open()
    now = clock.now_ms()

    def fill(tx: Transaction) -> None:
        for number in range(limits.TELEMETRY_ROWS_MAX):
            ttl = 5 if number == 7 else 1000
            name = ("run", f"{number}")
            tx.telemetry_put(telemetry_row("team", *name, b"1", now_ms=now, ttl_ms=ttl))

    store_of(node).write(fill)
    mine = team(node).telemetry
    mine.set("run", "3", 2)  # one that is there
    with pytest.raises(OverLimit):
        mine.set("run", "new", 2)
    assert mine.get("run", "new") is None
    clock.advance(5)
    mine.set("run", "new", 2)
    with pytest.raises(OverLimit):
        mine.set("run", "newer", 2)
    nodes.open("bob", "other").mesh("other").telemetry.set("run", "a", 1)
    nodes.close()


def test_Q1_telemetry_is_in_no_log_outbox_snapshot_or_export(tmp_path: Path) -> None:
    nodes = Nodes("sqlite", tmp_path, HandClock())
    node = nodes.open()
    mesh = team(node)
    mesh.telemetry.set("agent", "a", {"worktree": CANARY})
    mesh.state.set("shared", "seen")
    mesh.telemetry.delete("agent", "a")
    mesh.telemetry.set("run", CANARY, CANARY)
    entries = list(node.log.range())
    assert [entry.entity for entry in entries] == ["shared"]
    left = b"".join(entry.raw for entry in entries)
    out = io.BytesIO()
    export(node, out)
    left += out.getvalue()
    place: Place | None = START
    with store_of(node).read() as tx:
        told = MeshExport(tx, "team", tx.log_bounds()[1])
        while place is not None:
            raws, place = told.piece(place)
            left += b"".join(raws)
    assert b"seen" in left
    assert CANARY.encode() not in left
    assert list(node.outbox.list()) == []
    assert mesh.clock().lamport == 1, "it takes no number that others would miss"
    nodes.close()


def test_Q1_coroutines_have_telemetry_and_audit_streams_by_the_same_verbs(tmp_path: Path) -> None:
    async def story() -> None:
        async with await holdfast.aopen(tmp_path / "home", peer="ana", create=True) as node:
            assert isinstance(node, AsyncNode)
            mesh = await node.create_mesh("team")
            await mesh.telemetry.set("agent", "a", {"pid": 7})
            assert await mesh.telemetry.get("agent", "a") == {"pid": 7}
            assert [one.key async for one in mesh.telemetry.list()] == ["a"]
            await mesh.telemetry.delete("agent", "a")
            assert await mesh.telemetry.entry("agent", "a") is None
            await asyncio.gather(*(mesh.audit.append("activityLog", n) for n in range(5)))
            events = [event async for event in mesh.audit.list("activityLog")]
            assert [event.seq for event in events] == [1, 2, 3, 4, 5]
            assert sorted(event.payload for event in events) == [0, 1, 2, 3, 4]
            assert [one.last for one in await mesh.audit.streams()] == [5]
            (verdict,) = await mesh.audit.verify("activityLog")
            assert verdict.sound
            assert verdict.gapless

    asyncio.run(story())


def test_Q1_telemetry_of_a_mesh_that_is_not_there_is_refused(tmp_path: Path) -> None:
    nodes = Nodes("memory", tmp_path, HandClock())
    node = nodes.open()
    telemetry = team(node).telemetry
    telemetry._mesh = "none"
    with pytest.raises(UnknownMesh):
        telemetry.set("agent", "a", 1)
    nodes.close()
