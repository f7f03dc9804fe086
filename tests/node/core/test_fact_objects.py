"""Facts name objects: the content is there first, and it stays as long as the fact does."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadInput, IdReused, OverLimit, UnknownObject
from holdfast.rules.limits import CHUNK_ROWS, FACT_OBJECTS_MAX
from holdfast.rules.reconcile import Outcome
from support import envelopes as e
from support.nodes import Nodes, blob_names, grow_old, store_of, team
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000
NOW = Ttl(log_ms=0, tombstone_ms=0, blob_ms=0, orphan_ms=0)
ID = "018bcfe5-6800-7000-8000-0000000000aa"
BIG = bytes(70_000)


def put(node: Node, content: bytes = b"picture") -> str:
    return node.receive_blob(content)


def names(node: Node) -> list[tuple[int, str]]:
    with store_of(node).read() as tx:
        return tx.fact_objects(1 << 40, 1 << 40)


def naming(*contents: bytes, **fields: object) -> bytes:
    digests = tuple(sha256(content).digest() for content in contents)
    return e.raw("fact.append", "s", Fact("shows", b"1", digests), **fields)


def sweep_all(node: Node, clock: HandClock) -> None:
    clock.advance(1)
    for sha in blob_names(node):
        grow_old(node, sha, clock.at_ms - 10)
    node.sweep(NOW)


def test_Z2_an_object_is_put_before_the_fact_that_names_it(node: Node) -> None:
    sha = put(node)
    receipt = team(node).facts.append("cat", "shown in", {"page": 1}, objects=[sha])
    (entry,) = node.log.range()
    body = decode_trusted_body(decode_trusted(entry.raw))
    assert body == Fact("shown in", b'{"page":1}', (bytes.fromhex(sha),))
    assert names(node) == [(receipt.offset, sha)]


def test_Z2_an_object_that_is_not_there_is_a_typed_error_and_nothing_happens(node: Node) -> None:
    here, absent = put(node), sha256(b"absent").hexdigest()
    with pytest.raises(UnknownObject, match=absent):
        team(node).facts.append("cat", "shown in", 1, objects=[here, absent])
    assert node.log.head().offset == 0
    assert names(node) == []
    assert team(node).clock().lamport == 0
    put(node, b"absent")
    assert team(node).facts.append("cat", "shown in", 1, objects=[here, absent]).offset == 1


@pytest.mark.parametrize(
    "objects", ["ab" * 32, ["xyz"], ["ab" * 31], ["ab" * 33], [b"\1" * 32], [" " * 64], [None]]
)
def test_Z2_objects_are_named_by_their_hashes(node: Node, objects: object) -> None:
    with pytest.raises(BadInput):
        team(node).facts.append("cat", "is", 1, objects=objects)  # type: ignore[arg-type]
    assert node.log.head().offset == 0


def test_Z2_a_fact_names_each_object_once_and_not_too_many(node: Node) -> None:
    sha = put(node)
    team(node).facts.append("cat", "is", 1, objects=[sha, sha.upper(), sha])
    assert names(node) == [(1, sha)]
    many = [put(node, b"%d" % n) for n in range(FACT_OBJECTS_MAX + 1)]
    with pytest.raises(OverLimit):
        team(node).facts.append("cat", "is", 1, objects=many)
    assert team(node).facts.append("cat", "is", 1, objects=many[1:]).offset == 2


def test_Z1_the_objects_are_part_of_what_was_asked(node: Node, clock: HandClock) -> None:
    one, other = put(node), put(node, b"other")
    facts = team(node).facts
    first = facts.append("cat", "is", 1, id=ID, objects=[one])
    assert facts.append("cat", "is", 1, id=ID, objects=[one]).duplicate
    for objects in ([], [other], [one, other]):
        with pytest.raises(IdReused):
            facts.append("cat", "is", 1, id=ID, objects=objects)
    facts.append("dog", "is", 1)
    sweep_all(node, clock)
    sweep_all(node, clock)
    assert blob_names(node) == set()
    again = facts.append("cat", "is", 1, id=ID, objects=[one])
    assert (again.offset, again.duplicate) == (first.offset, True), "known, whatever is there now"


def test_S9_an_object_stays_as_long_as_its_fact(node: Node, clock: HandClock) -> None:
    sha, orphan = put(node), put(node, b"nobody names this")
    team(node).facts.append("cat", "is", 1, objects=[sha])
    node.log.add_consumer("reader")
    team(node).facts.append("dog", "is", 1)
    sweep_all(node, clock)
    assert blob_names(node) == {sha}, "an orphan goes, and what a fact names does not"
    assert orphan not in blob_names(node)
    node.log.confirm("reader", 2)
    clock.advance(1)
    swept = node.sweep(Ttl(log_ms=0))
    assert (swept.log_entries, swept.blobs) == (1, 0)
    assert names(node) == []
    with store_of(node).read() as tx:
        (blob,) = tx.blob_scan("", 99)
    assert (blob.released_at, blob.released_offset) == (clock.at_ms, 1)
    clock.advance(DAY_MS - 1)
    assert node.sweep(Ttl(log_ms=0)).blobs == 0, "a released one waits a day"
    clock.advance(1)
    assert node.sweep(Ttl(log_ms=0)).blobs == 1
    assert blob_names(node) == set()


def test_S9_an_object_that_two_name_goes_with_the_last_of_them(
    node: Node, clock: HandClock
) -> None:
    sha = put(node, BIG)
    facts, files = team(node).facts, team(node).files
    facts.append("one", "is", 1, objects=[sha])
    files.share("k", BIG)
    facts.append("two", "is", 1, objects=[sha])
    node.log.add_consumer("reader", start=3)
    sweep_all(node, clock)
    assert names(node) == [(3, sha)]
    files.delete("k")
    sweep_all(node, clock)
    assert blob_names(node) == {sha}, "the second fact still names it"
    assert files.share("k", BIG)
    node.log.confirm("reader", 5)
    sweep_all(node, clock)
    assert names(node) == []
    assert blob_names(node) == {sha}, "and now the file alone"
    files.delete("k")
    node.log.confirm("reader", 6)
    sweep_all(node, clock)
    sweep_all(node, clock)
    assert blob_names(node) == set()


def test_S9_a_fact_revives_a_blob_that_waits_for_unlinking(node: Node, clock: HandClock) -> None:
    team(node).files.share("k", BIG)
    (sha,) = blob_names(node)
    team(node).files.delete("k")
    team(node).facts.append("s", "is", 1, objects=[sha])
    clock.advance(2 * DAY_MS)
    assert node.sweep().blobs == 0
    assert blob_names(node) == {sha}
    team(node).files.share("k", BIG)
    team(node).files.delete("k")
    clock.advance(2 * DAY_MS)
    assert node.sweep().blobs == 0, "a file that goes leaves it to the fact"


def test_S9_the_holds_of_many_facts_go_with_them(node: Node, clock: HandClock) -> None:
    shas = [put(node, b"%d" % n) for n in range(FACT_OBJECTS_MAX)]
    for n in range(4 * CHUNK_ROWS // FACT_OBJECTS_MAX + 2):
        team(node).facts.append("s", "n", n, objects=shas)
    head = node.log.head().offset
    clock.advance(1)
    assert node.sweep(Ttl(log_ms=0)).log_entries == head - 1
    assert names(node) == [(head, sha) for sha in sorted(shas)]
    with store_of(node).read() as tx:
        assert tx.blob_released(99) == []
    team(node).facts.append("s", "n", "last")
    clock.advance(1)
    node.sweep(Ttl(log_ms=0))
    with store_of(node).read() as tx:
        assert len(tx.blob_released(99)) == len(shas)


# --- facts from elsewhere -------------------------------------------------------------------------


def test_Z7_a_fact_whose_object_has_not_come_is_taken_and_waits_for_it(
    node: Node, clock: HandClock
) -> None:
    (applied,) = node.apply([naming(b"late", lamport=5)])
    assert (applied.outcome, applied.offset) == (Outcome.APPLIED, 1)
    sha = sha256(b"late").hexdigest()
    assert names(node) == [(1, sha)]
    assert put(node, b"late") == sha
    sweep_all(node, clock)
    assert blob_names(node) == {sha}, "no orphan: the fact was there first"


def test_Z7_a_fact_that_names_what_cannot_be_a_hash_is_refused_alone(node: Node) -> None:
    wrong = e.raw("fact.append", "s", Fact("is", b"1", (b"short",)))
    results = node.apply([naming(b"a", lamport=1), wrong, naming(b"b", lamport=2)])
    assert [one.offset for one in results] == [1, None, 2]
    assert len(names(node)) == 2


def test_Z1_coroutines_name_objects_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with holdfast.aopen(tmp_path / "home", peer="ana", create=True) as node:
            mesh = await node.create_mesh("team")
            sha = await node.receive_blob(b"picture")
            await mesh.facts.append("cat", "is", 1, objects=[sha])
            with pytest.raises(UnknownObject):
                await mesh.facts.append("cat", "is", 1, objects=["00" * 32])

    asyncio.run(run())


def test_S13_objects_are_held_after_a_restart(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open()
    sha = put(node)
    team(node).facts.append("cat", "is", 1, objects=[sha])
    node = nodes.reopen(node)
    sweep_all(node, clock)
    assert blob_names(node) == {sha}
