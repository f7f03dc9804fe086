"""The receive step, by each of its three ways: all of a batch is kept somewhere, or none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.core import receive
from holdfast.node.core.object_transfer import ObjectGone, require_objects
from holdfast.node.library.node import Node
from holdfast.rules.arrivals import objects_of, read_arrivals
from holdfast.rules.errors import HoldfastError, OverLimit
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_LEAP_MAX, LINK_BATCH_ROWS
from holdfast.rules.rows import QuarantineRow
from holdfast.storage.ports import Transaction
from support import envelopes as e
from support.dump import dump
from support.envelopes import make_id
from support.nodes import Nodes, store_of
from support.receivers import WAYS, BySnapshot, Receiver
from support.source import HandClock

ROWS_MAX = 4

ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarantine that is soon full."""
    monkeypatch.setattr(receive, "QUARANTINE_ROWS_MAX", ROWS_MAX)


def facts(count: int, start: int = 1) -> list[bytes]:
    return [
        e.fact_append("s", "n", n, lamport=n, id=make_id(n)) for n in range(start, start + count)
    ]


def everything(node: Node) -> object:
    with store_of(node).read() as tx:
        return dump(tx)


def quarantine(node: Node, lane: str) -> list[QuarantineRow]:
    with store_of(node).read() as tx:
        return tx.quarantine_list(lane, 0, 1 << 30)


def fill(node: Node, lane: str, rows: int) -> None:
    """Envelopes that were refused before, of an epoch that is over."""

    def work(tx: Transaction) -> None:
        for offset in range(rows):
            row = QuarantineRow(
                link=lane, epoch=9, offset=offset, code="bad", message="", raw=b"x", found_at=0
            )
            tx.quarantine_add(row)

    store_of(node).write(work)


def refused_whole(node: Node, receiver: Receiver, raws: list[bytes]) -> HoldfastError:
    before = everything(node)
    with pytest.raises(OverLimit) as caught:
        receiver.bring(raws)
    assert everything(node) == before, "nothing was stored and nothing moved"
    return caught.value


# --- a full quarantine ----------------------------------------------------------------------------


@ways
@pytest.mark.usefixtures("small")
def test_S3_a_batch_that_overfills_the_quarantine_is_refused_whole_and_comes_again(
    node: Node, way: type[Receiver]
) -> None:
    receiver = way(node)
    fill(node, receiver.lane, ROWS_MAX - 1)
    raws = [b"\xc1 a", *facts(2), b"\xc1 b"]
    error = refused_whole(node, receiver, raws)
    assert f"holdfast link quarantine {receiver.lane};" in error.hint
    assert f"holdfast link drop {receiver.lane} --all" in error.hint
    assert receiver.cursor() == 0
    store_of(node).write(lambda tx: tx.quarantine_drop(1))
    assert receiver.bring(raws) == (2, 0, 2)
    assert receiver.cursor() == 4
    assert [row.raw for row in quarantine(node, receiver.lane)][-2:] == [b"\xc1 a", b"\xc1 b"]
    assert [entry.raw for entry in node.log.range()] == facts(2)


@ways
@pytest.mark.usefixtures("small")
def test_S3_good_envelopes_pass_a_full_quarantine(node: Node, way: type[Receiver]) -> None:
    receiver = way(node)
    fill(node, receiver.lane, ROWS_MAX + 2)
    assert receiver.bring(facts(3)) == (3, 0, 0)


@ways
@pytest.mark.usefixtures("small")
def test_S3_what_is_quarantined_under_its_place_is_not_added_again(
    node: Node, way: type[Receiver]
) -> None:
    receiver = way(node)
    raws = [b"\xc1 a", b"\xc1 b", *facts(1), b"\xc1 c", b"\xc1 d"]
    assert receiver.bring(raws) == (1, 0, 4)
    before = quarantine(node, receiver.lane)
    assert len(before) == ROWS_MAX
    receiver.rewind()
    assert receiver.bring(raws) == (0, 1, 4), "it is full, and nothing is to be added"
    assert quarantine(node, receiver.lane) == before
    receiver.rewind()
    refused_whole(node, receiver, [b"\xc1 e", *raws[1:]])


@pytest.mark.usefixtures("small")
def test_S14_a_snapshot_that_was_cut_within_a_part_quarantines_nothing_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "LINK_BATCH_BYTES", 1)  # a transaction for each envelope
    snapshot = BySnapshot(node)
    fill(node, snapshot.lane, 2)
    parts = [[b"\xc1 a", *facts(1)], [b"\xc1 b", *facts(1, 2), b"\xc1 c"]]
    with pytest.raises(OverLimit):
        snapshot.take(parts)
    assert [row.raw for row in quarantine(node, snapshot.lane)] == [
        b"x",
        b"x",
        b"\xc1 a",
        b"\xc1 b",
    ]
    store_of(node).write(lambda tx: tx.quarantine_drop(1))
    assert snapshot.take(parts) == (1, 1, 3)
    assert [(row.epoch, row.offset, row.raw) for row in quarantine(node, snapshot.lane)][1:] == [
        (0, 1, b"\xc1 a"),
        (0, 3, b"\xc1 b"),
        (0, 5, b"\xc1 c"),
    ]


# --- any batch ------------------------------------------------------------------------------------

KINDS = ("fact", "state", "garbage", "stamp", "again", "known")


def made(kinds: list[str], known: bytes) -> list[bytes]:
    """Envelopes of these kinds; those that are refused have a mark in their bytes."""
    raws: list[bytes] = []
    for n, kind in enumerate(kinds, 2):
        if kind == "fact":
            raws.append(e.fact_append("s", "n", n, lamport=n, id=make_id(n)))
        elif kind == "state":
            raws.append(e.state_set(f"k{n % 3}", n, lamport=n, id=make_id(n)))
        elif kind == "garbage":
            raws.append(b"\xc1 refused %d" % n)
        elif kind == "stamp":
            far = LAMPORT_LEAP_MAX * 2 + n
            raws.append(e.fact_append("refused", "n", n, lamport=far, id=make_id(n)))
        elif kind == "known" or not raws:
            raws.append(known)
        else:
            raws.append(raws[n % len(raws)])
    return raws


@ways
@given(st.lists(st.sampled_from(KINDS), max_size=12), st.integers(0, ROWS_MAX + 1))
def test_S3_stored_known_and_quarantined_are_all_that_came_or_nothing_moved(
    way: type[Receiver], kinds: list[str], filled: int
) -> None:
    node = Nodes("memory", Path(), HandClock()).open("ana")
    receiver = way(node)
    (known,) = facts(1)
    node.apply([known])
    fill(node, receiver.lane, filled)
    raws = made(kinds, known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive, "QUARANTINE_ROWS_MAX", ROWS_MAX)
        bad = sum(b"refused" in raw for raw in raws)
        if bad and filled + bad > ROWS_MAX:
            refused_whole(node, receiver, raws)
            return
        for again in range(2):
            counts = receiver.bring(raws)
            assert sum(counts) == len(raws)
            assert counts[2] == bad
            assert again == 0 or counts[0] == 0
            held = quarantine(node, receiver.lane)
            assert len(held) == filled + bad
            stored = {entry.raw for entry in node.log.range()}
            assert set(raws) <= stored | {row.raw for row in held}
            assert receiver.cursor() == len(raws)
            receiver.rewind()


# --- pieces ---------------------------------------------------------------------------------------


def sizes(raws: list[bytes], start: int = 0) -> list[int]:
    return [end - begin for begin, end in receive.pieces(read_arrivals(raws), start)]


def test_S3_a_piece_is_cut_by_what_it_costs() -> None:
    assert sizes([]) == [0], "the cursor moves all the same"
    plain = facts(LINK_BATCH_ROWS + 7)
    assert sizes(plain) == [LINK_BATCH_ROWS, 7]
    assert sizes(plain, 7) == [LINK_BATCH_ROWS]
    assert sizes(plain, len(plain)) == [0]
    states = [e.state_set(f"k{n}", n) for n in range(CHUNK_ROWS + 1)]
    assert sizes(states) == [CHUNK_ROWS, 1]
    vectors = [e.vector_store(f"k{n}", [n, 1]) for n in range(CHUNK_ROWS // 2 + 1)]
    assert sizes(vectors) == [CHUNK_ROWS // 2, 1]
    mixed = [*plain[: LINK_BATCH_ROWS - 10], *states[:3]]
    assert sizes(mixed) == [LINK_BATCH_ROWS - 9, 2], "the first state fills it"


def test_S9_objects_are_looked_for_again_where_no_sweep_can_come_between(node: Node) -> None:
    arrivals = read_arrivals([e.file_share("a.bin", bytes(100_000))])
    (sha,) = {named.sha256 for named in objects_of(arrivals)}
    with pytest.raises(ObjectGone):
        require_objects(node._engine, arrivals, set())
    require_objects(node._engine, arrivals, {sha})
    require_objects(node._engine, arrivals, None)
    node.receive_blob(bytes(100_000))
    require_objects(node._engine, arrivals, set())
