"""A mesh told as envelopes to somebody who has nothing of it: all that its tables show arrives."""

from __future__ import annotations

import pytest

from holdfast.node.library.node import Node
from holdfast.node.snapshots.mesh_export import START, MeshExport, Place, has_forgotten
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.mesh_snapshot import pack_part, unpack_part
from holdfast.rules.envelope import UNCOUNTED, decode
from holdfast.rules.errors import BadAnswer
from support import envelopes as e
from support.envelopes import MODEL
from support.nodes import Nodes, store_of, team
from support.snapshot import snapshot

BIG = bytes(70_000)


def fill(node: Node) -> None:
    """Every family, with what was superseded and what was deleted."""
    mesh = team(node)
    for value in (1, 2, 3):
        mesh.state.set("often", value)
    mesh.state.set("meta", "x", meta={"why": "because"})
    mesh.state.set("gone", 1)
    mesh.state.delete("gone")
    mesh.memory.set("k", {"a": [1, None]}, tags=["t"])
    mesh.memory.set("gone", 1)
    mesh.memory.forget("gone")
    mesh.files.share("a/b.txt", b"small")
    mesh.files.share("big.bin", BIG)
    mesh.files.share("gone.txt", b"x")
    mesh.files.delete("gone.txt")
    mesh.vectors.store("v", [1.0, 0.0], model=MODEL, content="c", metadata={"m": 1})
    mesh.vectors.store("v", [0.0, 1.0], model=MODEL)
    mesh.vectors.store("gone", [0.0, 1.0], model=MODEL)
    mesh.vectors.delete("gone", model=MODEL)
    task = mesh.tasks.create("t", description="described").task
    mesh.tasks.claim(task)
    mesh.tasks.release(task)
    mesh.tasks.claim(task)
    mesh.tasks.complete(task)
    mesh.tasks.create("open")
    mesh.facts.append("s", "p", {"o": 1})
    node.apply([e.memory_set("theirs", 1, lamport=60, origin="bob")])


def forget(nodes: Nodes, node: Node) -> None:
    """All of the log but its last entry."""
    nodes.clock.advance(10)
    assert node.sweep(Ttl(log_ms=0)).log_entries > 10


def told(node: Node) -> list[bytes]:
    raws: list[bytes] = []
    place: Place | None = START
    with node._engine.store.read() as tx:
        head = tx.log_bounds()[1]
        export = MeshExport(tx, "team", head)
        while place is not None:
            more, place = export.piece(place)
            raws += more
    return raws


def tables(node: Node) -> dict[str, object]:
    """Without where in its own log a node has each."""
    whole = snapshot(store_of(node), dead=True)["team"]
    return {family: rows for family, rows in whole.items() if family not in ("log", "peers")}


@pytest.mark.parametrize("truncated", [False, True], ids=["whole log", "forgotten log"])
def test_S14_a_mesh_that_is_told_is_the_same_mesh(nodes: Nodes, truncated: bool) -> None:
    ana = nodes.open("ana")
    fill(ana)
    before = tables(ana)
    if truncated:
        forget(nodes, ana)
    cora = nodes.open("cora")
    cora.receive_blob(BIG)
    applied = cora.apply(told(ana))
    assert [one.error for one in applied if one.error] == []
    assert tables(cora) == before


def test_S14_what_is_told_again_keeps_id_stamp_and_fingerprint(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    fill(ana)
    first = {entry.id: decode(entry.raw) for entry in ana.log.range()}
    forget(nodes, ana)
    again = [decode(raw) for raw in told(ana)]
    retold = [one for one in again if one.epoch == UNCOUNTED]
    assert len(retold) > 10
    for one in retold:
        known = first[one.id]
        assert (one.op, one.entity, one.owner) == (known.op, known.entity, known.owner)
        assert (one.lamport, one.origin, one.created_at) == (
            known.lamport,
            known.origin,
            known.created_at,
        )
        assert (one.body, one.fingerprint) == (known.body, known.fingerprint)
        assert one.write_class == known.write_class


def test_S14_what_is_told_again_has_the_same_fingerprint_when_the_first_is_forgotten(
    nodes: Nodes,
) -> None:
    """But for what callers had attached, which no table keeps."""
    ana = nodes.open("ana")
    fill(ana)
    first = {entry.id: decode(entry.raw) for entry in ana.log.range()}
    forget(nodes, ana)
    nodes.clock.advance(10)
    assert ana.sweep(Ttl(log_ms=0, dedupe_ms=0)).dedupe_rows > 10
    for one in map(decode, told(ana)):
        if one.id in first and not first[one.id].meta:
            assert one.fingerprint == first[one.id].fingerprint


def test_S14_superseded_changes_and_messages_are_not_told(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    fill(ana)
    ops = [(one.op, one.entity) for one in map(decode, told(ana))]
    assert ops.count(("state.set", "often")) == 1
    assert ops.count(("state.set", "gone")) == 0
    assert ops.count(("state.delete", "gone")) == 1
    assert ops.count(("vector.store", "v")) == 2
    assert ops.count(("fact.append", "s")) == 1


def test_S14_a_log_that_has_forgotten_what_its_tables_show_is_known(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    fill(ana)
    with ana._engine.store.read() as tx:
        assert not has_forgotten(tx, "team")
    forget(nodes, ana)
    with ana._engine.store.read() as tx:
        assert has_forgotten(tx, "team")


def test_S14_a_log_that_has_forgotten_only_facts_lacks_nothing(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    for number in range(12):
        team(ana).facts.append("s", "p", number)
    forget(nodes, ana)
    with ana._engine.store.read() as tx:
        assert not has_forgotten(tx, "team")


# --- parts ---------------------------------------------------------------------------------------


def test_S14_a_part_comes_back_as_it_was_packed() -> None:
    part = unpack_part(pack_part("team", 7, [b"one", b"two"]), "team")
    assert (part.mesh, part.forgotten, part.raws) == ("team", 7, [b"one", b"two"])


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"no part",
        pack_part("team", 0, [b"x"])[:-1],
        pack_part("team", 0, [b"x"]) + b"more",
        pack_part("other", 0, [b"x"]),
        pack_part("team", -1, [b"x"]),
        pack_part("team", 0, [bytes(32 * 1024 * 1024)]),
    ],
    ids=["empty", "garbage", "cut", "longer", "another mesh", "negative", "a bomb"],
)
def test_S14_a_part_that_is_none_is_refused(packed: bytes) -> None:
    with pytest.raises(BadAnswer):
        unpack_part(packed, "team")
