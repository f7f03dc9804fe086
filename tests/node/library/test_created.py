"""When a memory or a file was first made: kept through changes, and the same on every node."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_, import_log
from holdfast.node.library.node import Mesh, Node
from holdfast.node.snapshots.mesh_export import tables_of
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.bodies import FileShare, MemorySet, decode_body, encode_body, encode_value
from holdfast.rules.envelope import CREATED_VERSION, VERSION, decode
from holdfast.rules.errors import BadEnvelope
from support import envelopes as e
from support.snapshot import snapshot

Homes = Callable[[str], "Timed"]
START = 1_800_000_000_000


class Timed:
    """A home whose clock stands until it is moved."""

    def __init__(self, node: Node) -> None:
        self.node, self.mesh = node, node.mesh("team", create=True)
        node._engine.ctx.now_ms = lambda: self.now

    now = START

    def at(self, now: int) -> Mesh:
        self.now = START + now
        return self.mesh


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    open_now: list[Node] = []

    def home(peer: str) -> Timed:
        node = holdfast.open(tmp_path / peer, peer=peer, create=True, sync="normal")
        open_now.append(node)
        return Timed(node)

    yield home
    for node in open_now:
        node.close()


def written(ana: Timed) -> None:
    """A memory and a file that were changed, and some that were not, or anew after a deletion."""
    for at, value in ((1, "first"), (5, "second"), (9, "third")):
        ana.at(at).memory.set("k", value, tags=["t"])
        ana.mesh.files.share("a.txt", value.encode())
    ana.at(10).memory.set("once", 1)
    ana.mesh.files.share("big.bin", b"b" * 70_000)
    ana.at(11).memory.set("anew", 1)
    ana.mesh.memory.forget("anew")
    ana.at(12).memory.set("anew", 2)
    ana.at(13).files.share("big.bin", b"c" * 70_000)


def times(node: Node) -> dict[str, tuple[int, int]]:
    """By key and path: when it was made, and when it was changed."""
    mesh = node.mesh("team")
    rows = [(row.key, row) for row in mesh.memory.list(scope="all")]
    found = {key: (row.created_at - START, row.updated_at - START) for key, row in rows}
    for row in mesh.files.list(scope="all"):
        found[row.path] = (row.created_at - START, row.updated_at - START)
    return found


WRITTEN = {
    "k": (1, 9),
    "a.txt": (1, 9),
    "once": (10, 10),
    "anew": (12, 12),
    "big.bin": (10, 13),
}


def test_S6_what_is_replaced_keeps_when_it_was_first_made(homes: Homes) -> None:
    ana = homes("ana")
    written(ana)
    assert times(ana.node) == WRITTEN
    (kept,) = ana.mesh.memory.recall("k")
    again = ana.at(20).memory.set("k", "fourth", expect=kept.stamp)
    with ana.mesh.batch() as b:
        b.memory.set("once", 2)
        b.files.share("a.txt", b"in a batch")
    found = times(ana.node)
    assert (found["k"], found["once"], found["a.txt"]) == ((1, 20), (10, 20), (1, 20))
    (was,) = ana.mesh.memory.as_of("k", lamport=again.lamport - 1)
    assert (was.created_at - START, was.value) == (1, "third")


def test_S6_the_same_request_again_is_the_same_request(homes: Homes) -> None:
    """When a thing was made is no part of what was asked for."""
    ana = homes("ana")
    id = "01a1effb-5a14-7544-9893-6c376cfe8516"
    ana.at(1).memory.set("k", 1)
    first = ana.at(2).memory.set("k", 2, id=id)
    ana.at(3).memory.set("k", 3)
    again = ana.at(4).memory.set("k", 2, id=id)
    assert (again.duplicate, again.offset) == (True, first.offset)


def test_S6_every_order_of_arrival_gives_the_same_time(homes: Homes) -> None:
    ana, bo = homes("ana"), homes("bo")
    for at, value in ((1, "first"), (5, "second"), (9, "third")):
        ana.at(at).memory.set("k", value)
    raws = [entry.raw for entry in ana.node.log.range()]
    want = snapshot(ana.node._engine.store)
    for number, order in enumerate(itertools.permutations(raws)):
        bo = homes(f"bo{number}")
        assert [one.error for one in bo.node.apply(order)] == [None] * 3
        assert snapshot(bo.node._engine.store) == want
    last = homes("late")
    last.node.apply(raws[-1:])
    assert times(last.node) == {"k": (1, 9)}, "also where the first version never came"


def test_S6_a_log_that_has_forgotten_and_an_export_keep_it(homes: Homes) -> None:
    ana = homes("ana")
    written(ana)
    out = io.BytesIO()
    export(ana.node, out)
    ana.now = START + 14
    ana.node.sweep(Ttl(log_ms=0))
    with ana.node._engine.store.read() as tx:
        rebuilt = list(tables_of(tx, "team"))
    assert len(rebuilt) > 3
    bo = homes("bo")
    bo.node.receive_blob(ana.mesh.files.read("big.bin"))
    first = ana.node.log.head().first
    rest = [entry.raw for entry in ana.node.log.range(first)]
    assert {one.error for one in bo.node.apply([*rebuilt, *rest])} == {None}
    assert times(bo.node) == WRITTEN
    cy, dee = homes("cy"), homes("dee")
    assert not import_log(cy.node, io.BytesIO(out.getvalue())).refused
    assert times(cy.node) == WRITTEN
    dee.now = START + 30
    import_(dee.node, io.BytesIO(out.getvalue()))
    assert times(dee.node) == WRITTEN, "as their owner wrote them"


def test_S13_what_is_imported_by_its_owner_keeps_it(homes: Homes, tmp_path: Path) -> None:
    ana = homes("ana")
    written(ana)
    out = io.BytesIO()
    export(ana.node, out)
    with holdfast.open(tmp_path / "new", peer="ana", create=True, sync="normal") as node:
        import_(node, io.BytesIO(out.getvalue()))
        found = times(node)
    assert {key: made for key, (made, _) in found.items()} == {
        key: made for key, (made, _) in WRITTEN.items()
    }


def test_Q2_the_first_version_is_written_as_ever_and_later_ones_for_readers_of_both(
    homes: Homes,
) -> None:
    ana = homes("ana")
    ana.at(1).memory.set("k", 1)
    ana.mesh.files.share("a.txt", b"1")
    ana.at(2).memory.set("k", 2)
    ana.mesh.files.share("a.txt", b"2")
    found = [decode(entry.raw) for entry in ana.node.log.range()]
    assert [one.version for one in found] == [VERSION] * 2 + [CREATED_VERSION] * 2
    old = encode_body(MemorySet(b"2", ()))
    assert found[2].body[1 : len(old)] == old[1:], "what earlier versions know comes first"
    assert found[2].fingerprint == decode(e.memory_set("k", 2)).fingerprint


@pytest.mark.parametrize(
    ("version", "created_at"), [(VERSION, 1), (CREATED_VERSION, -1), (CREATED_VERSION, 1 << 60)]
)
def test_S6_times_that_no_writer_writes_are_refused(version: str, created_at: int) -> None:
    for op, key, body in (
        ("memory.set", "k", MemorySet(encode_value(1), (), created_at)),
        ("file.share", "a", FileShare(_SHA, 1, b"a", created_at)),
    ):
        raw = e.raw(op, key, body, owner="ana", version=version)
        with pytest.raises(BadEnvelope, match="first"):
            decode_body(decode(raw))


_SHA = bytes.fromhex("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb")
