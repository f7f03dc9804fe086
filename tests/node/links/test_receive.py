"""The receiver's side of a pull: stored once, in order, with the cursor; or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.core import receive as receive_step
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node
from holdfast.node.links import receive
from holdfast.node.links.receive import BatchReceived, receive_batch
from holdfast.node.log import serve
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.log_wire import Batch, Fetch, Registration
from holdfast.rules.arrivals import Named
from holdfast.rules.bodies import Fact, FileShare
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    DiskFull,
    EpochChanged,
    ForgedOrigin,
    HoldfastError,
    OverLimit,
    UnknownLink,
    UnknownZone,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_LEAP_MAX, LINK_BATCH_ROWS, REASON_CHARS_MAX
from holdfast.rules.rows import LinkRow, QuarantineRow, ZoneRow
from holdfast.service.caller import Caller
from holdfast.storage.ports import Transaction
from support import envelopes as e
from support.dump import dump
from support.envelopes import changed, make_id
from support.nodes import Nodes, store_of, team
from support.source import HandClock

LINK = "from-bob"


def link(node: Node, **fields: Any) -> LinkRow:
    """A link from bob, who may carry everybody unless told otherwise."""
    given = {"name": LINK, "zone": "bob", "filter": Filter(), "epoch": 1, **fields}
    row = LinkRow(url="https://bob:1", added_at=0, **given)

    def work(tx: Transaction) -> None:
        tx.zone_put(ZoneRow(name=row.zone, added_at=0))
        tx.link_put(row)

    store_of(node).write(work)
    return row


def batch(raws: Sequence[bytes], start: int = 1, **fields: Any) -> Batch:
    """A piece of bob's log, without gaps unless told otherwise."""
    offsets = list(range(start, start + len(raws)))
    upto = offsets[-1] if offsets else start - 1
    whole = Batch(1, 1, 99_999, start, upto, offsets, list(raws))
    return msgspec.structs.replace(whole, **fields)


def facts(count: int, start: int = 1, **fields: Any) -> list[bytes]:
    return [
        e.fact_append("s", "n", n, **{"lamport": n, "id": make_id(n), **fields})
        for n in range(start, start + count)
    ]


def stored(node: Node) -> LinkRow:
    with store_of(node).read() as tx:
        row = tx.link_get(LINK)
    assert row is not None
    return row


def quarantine(node: Node) -> list[QuarantineRow]:
    with store_of(node).read() as tx:
        return tx.quarantine_list(LINK, 0, 1 << 30)


def everything(node: Node) -> object:
    with store_of(node).read() as tx:
        return dump(tx)


def refused(node: Node, kind: type[HoldfastError], ask: Callable[[], object]) -> HoldfastError:
    before = everything(node)
    with pytest.raises(kind) as caught:
        ask()
    assert type(caught.value) is kind
    assert everything(node) == before, "no state changed"
    return caught.value


def counts(taken: BatchReceived) -> tuple[int, int, int]:
    return taken.new, taken.known, taken.quarantined


# --- entries and the cursor, together -------------------------------------------------------------


def test_Z7_a_batch_and_its_cursor_are_stored_together(node: Node, clock: HandClock) -> None:
    link(node)
    clock.advance(9)
    taken = receive_batch(node._engine, LINK, batch(facts(3)))
    assert counts(taken) == (3, 0, 0)
    assert taken.link == stored(node)
    assert (taken.link.epoch, taken.link.cursor) == (1, 3)
    assert taken.link.moved_at == clock.at_ms
    assert [entry.raw for entry in node.log.range()] == facts(3)
    assert team(node).clock().lamport == 4


def test_Z7_what_the_filter_passed_over_moves_the_cursor_too(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(2), offsets=[2, 5], upto=9))
    assert stored(node).cursor == 9
    assert counts(receive_batch(node._engine, LINK, batch([], 10, upto=20))) == (0, 0, 0)
    assert stored(node).cursor == 20
    assert node.log.head().offset == 2


def test_Z7_a_batch_that_comes_again_is_stored_once(node: Node, clock: HandClock) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(4)))
    before = everything(node)
    clock.advance(1)
    assert counts(receive_batch(node._engine, LINK, batch(facts(4)))) == (0, 0, 0), (
        "before the cursor"
    )
    assert counts(receive_batch(node._engine, LINK, batch([], 2, upto=3))) == (0, 0, 0)
    assert everything(node) == before
    taken = receive_batch(node._engine, LINK, batch(facts(6)))
    assert (counts(taken), taken.link.cursor) == ((2, 0, 0), 6), "the part beyond it"
    receive.start_over(node._engine, LINK, 1, 1)
    taken = receive_batch(node._engine, LINK, batch(facts(7)))
    assert (counts(taken), taken.link.cursor) == ((1, 6, 0), 7), "by another way: known by its id"
    assert node.log.head().offset == 7


def test_Z7_a_crash_leaves_entries_and_cursor_or_neither(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(2)))
    before = everything(node)

    def fails(tx: Transaction) -> None:
        work = next(iter(pieces))
        work(tx)
        raise RuntimeError("the process ends here, before the commit")

    pieces: list[Callable[[Transaction], object]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeEngine, "write", lambda self, name, work: pieces.append(work))
        receive_batch(node._engine, LINK, batch(facts(5)))
    with pytest.raises(RuntimeError):
        store_of(node).write(fails)
    assert everything(node) == before
    receive_batch(node._engine, LINK, batch(facts(5)))
    assert (stored(node).cursor, node.log.head().offset) == (5, 5)


def test_Z7_order_is_kept_and_families_mix(node: Node) -> None:
    link(node)
    raws = [
        e.fact_append("s", "n", 1, lamport=1),
        e.state_set("k", "old", lamport=2),
        e.fact_append("s", "n", 2, lamport=3),
        e.fact_append("s", "n", 3, lamport=4),
        e.state_set("k", "new", lamport=5, base=(2, "bob")),
        e.raw("later.thing", "x", lamport=6),
    ]
    assert counts(receive_batch(node._engine, LINK, batch(raws))) == (6, 0, 0)
    assert [entry.raw for entry in node.log.range()] == raws
    assert team(node).state.get("k") == "new"
    assert list(node.conflicts()) == []


def test_Z6_what_came_through_a_zone_is_not_given_back_to_it(nodes: Nodes) -> None:
    ana = nodes.open("ana")
    link(ana)
    receive_batch(
        ana._engine, LINK, batch([*facts(2, origin="eva"), e.state_set("k", 1, lamport=9)])
    )
    team(ana).facts.append("own", "is", 1)
    for zone, expected in (("bob", [4]), ("zoe", [1, 2, 3, 4])):
        caller, name = Caller("zone", zone), f"zone:{zone}/x"
        serve.register(ana._engine, caller, Registration(consumer=name))
        assert serve.serve_batch(ana._engine, caller, Fetch(consumer=name)).offsets == expected


# --- where a batch belongs ------------------------------------------------------------------------


def test_Z7_a_hole_is_never_skipped(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(3)))
    refused(node, BadAnswer, lambda: receive_batch(node._engine, LINK, batch(facts(2, 5), 5)))
    refused(node, BadAnswer, lambda: receive_batch(node._engine, LINK, batch([], 5, upto=9)))
    assert counts(receive_batch(node._engine, LINK, batch(facts(2, 4), 4))) == (2, 0, 0)


def test_Z7_a_batch_of_another_epoch_is_not_taken(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(3)))
    ask = batch(facts(2, 4), 4, epoch=2)
    told = refused(node, EpochChanged, lambda: receive_batch(node._engine, LINK, ask))
    assert isinstance(told, EpochChanged)
    assert told.epoch == 2
    row = receive.start_over(node._engine, LINK, 2, 1)
    assert (row.epoch, row.cursor) == (2, 0)
    refused(node, EpochChanged, lambda: receive_batch(node._engine, LINK, batch(facts(3))))
    taken = receive_batch(node._engine, LINK, batch(facts(5), epoch=2))
    assert (counts(taken), taken.link.cursor) == ((2, 3, 0), 5)


def test_Z7_a_link_that_never_read_begins_where_the_log_does(node: Node) -> None:
    link(node, epoch=0)
    refused(node, BadAnswer, lambda: receive_batch(node._engine, LINK, batch(facts(2), 8, first=7)))
    taken = receive_batch(node._engine, LINK, batch(facts(2), 7, first=7, epoch=3))
    assert (taken.link.epoch, taken.link.cursor) == (3, 8)
    link(node, epoch=0)
    taken = receive_batch(node._engine, LINK, batch([], 7, first=7, epoch=4))
    assert (taken.link.epoch, taken.link.cursor) == (4, 6), "the epoch is news"


def test_Z5_going_on_after_what_is_gone_is_somebodys_decision(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(3)))
    refused(
        node, BadAnswer, lambda: receive_batch(node._engine, LINK, batch(facts(1, 9), 9, first=9))
    )
    assert receive.skip_to(node._engine, LINK, 9).cursor == 8
    assert stored(node).epoch == 1
    assert counts(receive_batch(node._engine, LINK, batch(facts(1, 9), 9, first=9))) == (1, 0, 0)
    assert receive.skip_to(node._engine, LINK, 2).cursor == 9, "never backwards"


def test_Z6_a_link_that_is_not_there_is_a_typed_error(node: Node) -> None:
    for ask in (
        lambda: receive_batch(node._engine, LINK, batch(facts(1))),
        lambda: receive.start_over(node._engine, LINK, 1, 1),
        lambda: receive.skip_to(node._engine, LINK, 1),
    ):
        refused(node, UnknownLink, ask)
    row = link(node)
    refused(node, BadInput, lambda: receive.start_over(node._engine, LINK, 0, 1))
    refused(node, BadInput, lambda: receive.start_over(node._engine, LINK, 1, 0))
    refused(node, BadInput, lambda: receive.skip_to(node._engine, LINK, 0))
    store_of(node).write(lambda tx: tx.link_put(msgspec.structs.replace(row, zone="nobody")))
    refused(node, UnknownZone, lambda: receive_batch(node._engine, LINK, batch(facts(1))))


def test_Z6_a_link_that_was_moved_meanwhile_is_looked_at_again(node: Node) -> None:
    """Between the look and the transaction somebody else may have stored, or started over."""
    link(node)
    engine = node._engine
    write = engine.write

    def raced(move: Callable[[], object]) -> Callable[..., Any]:
        def slow(name: str, work: Any) -> Any:
            engine.__dict__.pop("write", None)
            move()
            return write(name, work)

        return slow

    engine.__dict__["write"] = raced(lambda: receive_batch(engine, LINK, batch(facts(2))))
    assert counts(receive_batch(engine, LINK, batch(facts(3)))) == (1, 0, 0)
    assert (stored(node).cursor, node.log.head().offset) == (3, 3)
    engine.__dict__["write"] = raced(lambda: receive.start_over(engine, LINK, 1, 1))
    with pytest.raises(BadAnswer):
        receive_batch(engine, LINK, batch(facts(1, 4), 4))
    engine.__dict__["write"] = raced(lambda: receive.start_over(engine, LINK, 2, 1))
    with pytest.raises(EpochChanged):
        receive_batch(engine, LINK, batch(facts(4)))
    assert (stored(node).epoch, stored(node).cursor) == (2, 0)


# --- an honest source -----------------------------------------------------------------------------


@pytest.mark.parametrize("maker", ["fact", "state"])
def test_Z8_an_origin_that_a_link_may_not_carry_refuses_the_batch_whole(
    node: Node, maker: str
) -> None:
    link(node, filter=Filter(origins=("bob", "eva")))

    def make(origin: str) -> bytes:
        if maker == "fact":
            return e.fact_append("s", "is", 1, lamport=9, origin=origin)
        return e.state_set("k", 1, lamport=9, origin=origin)

    good = facts(3, origin="eva")
    told = refused(
        node,
        ForgedOrigin,
        lambda: receive_batch(node._engine, LINK, batch([*good, make("zoe"), make("bob")])),
    )
    assert "zoe" in told.message
    assert counts(receive_batch(node._engine, LINK, batch([*good, make("bob")]))) == (4, 0, 0)


def test_Z8_a_forged_origin_is_seen_in_an_envelope_that_is_bad_besides(node: Node) -> None:
    link(node, filter=Filter(origins=("bob",)))
    wrong = e.raw("fact.append", "s", Fact("is", b"nope"), origin="zoe")
    refused(node, ForgedOrigin, lambda: receive_batch(node._engine, LINK, batch([wrong])))


def test_Z8_nobody_brings_an_entry_in_our_own_name_that_we_do_not_have(
    nodes: Nodes, clock: HandClock
) -> None:
    node = nodes.open("ana")
    link(node)
    receipt = team(node).facts.append("own", "is", 1)
    (own,) = (entry.raw for entry in node.log.range())
    forged = e.fact_append("own", "is", 2, lamport=5, origin="ana")
    worse = e.state_set("k", 1, lamport=5, origin="ana")
    refused(
        node, ForgedOrigin, lambda: receive_batch(node._engine, LINK, batch([*facts(2), forged]))
    )
    refused(
        node, ForgedOrigin, lambda: receive_batch(node._engine, LINK, batch([*facts(2), worse]))
    )
    taken = receive_batch(node._engine, LINK, batch([*facts(2), own]))
    assert counts(taken) == (2, 1, 0), "our own that comes back is known"
    clock.advance(1)
    node.sweep(Ttl(log_ms=0))
    assert node.log.head().first > receipt.offset
    receive.start_over(node._engine, LINK, 1, 1)
    assert counts(receive_batch(node._engine, LINK, batch([own]))) == (0, 1, 0), (
        "also when it is forgotten"
    )


@pytest.mark.parametrize(
    "asked", [Filter(meshes=("team",)), Filter(subjects=("s",)), Filter(classes=("facts",))]
)
def test_Z8_a_source_that_sends_what_was_not_asked_for_is_not_believed(
    node: Node, asked: Filter
) -> None:
    link(node, filter=asked)
    odd = {
        "meshes": e.fact_append("s", "is", 1, mesh="other"),
        "subjects": e.fact_append("x", "is", 1),
        "classes": e.state_set("s", 1),
    }[next(name for name in ("meshes", "subjects", "classes") if getattr(asked, name))]
    refused(
        node,
        BadAnswer,
        lambda: receive_batch(node._engine, LINK, batch([*facts(2), odd, *facts(1, 9)])),
    )
    assert counts(receive_batch(node._engine, LINK, batch(facts(2)))) == (2, 0, 0)


def test_Z8_a_blocked_zone_brings_nothing_more(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch(facts(1)))
    store_of(node).write(lambda tx: tx.zone_put(ZoneRow(name="bob", added_at=0, blocked_at=5)))
    refused(node, ZoneNotTrusted, lambda: receive_batch(node._engine, LINK, batch(facts(2))))


# --- quarantine -----------------------------------------------------------------------------------


def bad_ones() -> list[tuple[bytes, str]]:
    return [
        (b"nonsense", "bad_envelope"),
        (e.fact_append("s", "is", 1, lamport=LAMPORT_LEAP_MAX * 2), "bad_stamp"),
        (e.fact_append("s", "is", 2, id=make_id(1)), "id_reused"),
        (e.fact_append("s", "is", 1, mesh="absent"), "unknown_mesh"),
        (e.raw("fact.append", "s", Fact("is", b"nope")), "bad_value"),
        (changed(e.state_set("k", 1), version="2.0"), "unsupported_protocol"),
        (e.raw("state.set", "k", Fact("is", b"1")), "bad_envelope"),
    ]


def test_Z7_what_is_refused_is_set_aside_and_the_rest_goes_on(node: Node, clock: HandClock) -> None:
    link(node)
    bad = bad_ones()
    good = facts(len(bad))
    mixed = [raw for one, (other, _) in zip(good, bad, strict=True) for raw in (one, other)]
    taken = receive_batch(node._engine, LINK, batch(mixed, 1))
    assert counts(taken) == (len(good), 0, len(bad))
    assert [entry.raw for entry in node.log.range()] == good
    assert stored(node).cursor == len(mixed)
    rows = quarantine(node)
    assert [(row.raw, row.code) for row in rows] == bad
    assert [row.offset for row in rows] == list(range(2, len(mixed) + 1, 2))
    assert {(row.link, row.epoch, row.found_at) for row in rows} == {(LINK, 1, clock.at_ms)}
    assert all(row.message for row in rows)
    receive_batch(node._engine, LINK, batch(mixed, 1))
    assert len(quarantine(node)) == len(bad), "it does not come twice"


def test_Z7_what_is_too_old_is_set_aside(node: Node, clock: HandClock) -> None:
    link(node)
    node.apply([e.raw("state.delete", "k", lamport=9), e.state_set("last", 1, lamport=10)])
    clock.advance(1)
    node.sweep(Ttl(log_ms=0, tombstone_ms=0))
    assert counts(receive_batch(node._engine, LINK, batch([e.state_set("k", 1, lamport=3)]))) == (
        0,
        0,
        1,
    )
    assert [row.code for row in quarantine(node)] == ["too_old"]


def test_Z7_a_reason_is_kept_short(node: Node) -> None:
    link(node)
    receive_batch(node._engine, LINK, batch([changed(e.state_set("k", 1), version="2" * 50_000)]))
    (row,) = quarantine(node)
    assert len(row.message) <= REASON_CHARS_MAX


def test_Z7_a_full_quarantine_takes_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    link(node)
    monkeypatch.setattr(receive_step, "QUARANTINE_ROWS_MAX", 3)
    receive_batch(node._engine, LINK, batch([b"a", *facts(1)]))
    over = batch([b"b", *facts(1, 2), b"c", b"d"], 3)
    full = refused(node, OverLimit, lambda: receive_batch(node._engine, LINK, over))
    assert f"holdfast link drop {LINK} --all" in full.hint
    receive_batch(node._engine, LINK, batch([b"b", b"c"], 3))
    assert len(quarantine(node)) == 3, "up to the last row that fits"
    more = batch([*facts(1, 5), b"d"], 5)
    refused(node, OverLimit, lambda: receive_batch(node._engine, LINK, more))
    assert counts(receive_batch(node._engine, LINK, batch(facts(2, 5), 5))) == (2, 0, 0), (
        "good ones pass"
    )


def test_Z7_what_did_not_fit_comes_again_when_there_is_room(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(node)
    monkeypatch.setattr(receive_step, "QUARANTINE_ROWS_MAX", 2)
    receive_batch(node._engine, LINK, batch([b"a"]))
    over = batch([b"b", *facts(1), b"c"], 2)
    refused(node, OverLimit, lambda: receive_batch(node._engine, LINK, over))
    store_of(node).write(lambda tx: tx.quarantine_drop(1))
    assert counts(receive_batch(node._engine, LINK, over)) == (1, 0, 2)
    assert [row.raw for row in quarantine(node)] == [b"b", b"c"]


def test_Z7_what_is_in_quarantine_is_not_added_or_counted_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(node)
    monkeypatch.setattr(receive_step, "QUARANTINE_ROWS_MAX", 2)
    bad = batch([b"a", *facts(1), b"b"])
    assert counts(receive_batch(node._engine, LINK, bad)) == (1, 0, 2)
    receive.start_over(node._engine, LINK, 1, 1)
    assert counts(receive_batch(node._engine, LINK, bad)) == (0, 1, 2)
    assert [(row.offset, row.raw) for row in quarantine(node)] == [(1, b"a"), (3, b"b")]
    receive.start_over(node._engine, LINK, 1, 1)
    other = batch([b"A"])
    refused(node, OverLimit, lambda: receive_batch(node._engine, LINK, other))


# --- room, and large batches ----------------------------------------------------------------------


def test_Z7_no_room_is_said_before_anything_else(node: Node) -> None:
    link(node)

    def full() -> None:
        raise DiskFull("no room")

    node._engine.admit = full
    refused(node, DiskFull, lambda: receive_batch(node._engine, LINK, batch([b"nonsense"], 50)))
    node._engine.admit = None
    assert counts(receive_batch(node._engine, LINK, batch(facts(2)))) == (2, 0, 0)


def sizes_of_writes(node: Node, asked: Batch) -> list[tuple[int, int]]:
    """How many entries each transaction stored, and the cursor that it left."""
    found: list[tuple[int, int]] = []
    store = store_of(node)
    write = store.write

    def counted(work: Any) -> Any:
        before = node.log.head().offset
        result = write(work)
        found.append((node.log.head().offset - before, stored(node).cursor))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write", counted)
        receive_batch(node._engine, LINK, asked)
    return found


def test_S3_a_large_batch_goes_in_several_transactions_each_with_its_cursor(node: Node) -> None:
    link(node)
    count = 2 * LINK_BATCH_ROWS + 5
    raws = [e.fact_append("s", "n", n, lamport=n + 1) for n in range(count)]
    asked = batch(raws, upto=count + 100)
    assert sizes_of_writes(node, asked) == [
        (LINK_BATCH_ROWS, LINK_BATCH_ROWS),
        (LINK_BATCH_ROWS, 2 * LINK_BATCH_ROWS),
        (5, count + 100),
    ]


def test_S3_what_is_folded_goes_in_smaller_transactions(node: Node) -> None:
    link(node)
    raws = [e.state_set(f"k{n}", n, lamport=n + 1) for n in range(CHUNK_ROWS + 50)]
    assert sizes_of_writes(node, batch(raws)) == [
        (CHUNK_ROWS, CHUNK_ROWS),
        (50, CHUNK_ROWS + 50),
    ]


def test_S3_vectors_go_in_even_smaller_transactions(node: Node) -> None:
    link(node)
    raws = [e.vector_store(f"k{n}", [n, 1], lamport=n + 1) for n in range(CHUNK_ROWS)]
    half = CHUNK_ROWS // 2
    assert sizes_of_writes(node, batch(raws)) == [(half, half), (half, CHUNK_ROWS)]


def test_S3_large_entries_go_in_smaller_transactions(node: Node) -> None:
    link(node)
    raws = [e.fact_append("s", "n", "x" * 900_000, lamport=n + 1) for n in range(7)]
    assert sizes_of_writes(node, batch(raws)) == [(3, 3), (3, 6), (1, 7)]


def test_Z7_a_large_batch_that_is_cut_goes_on_where_it_was_cut(node: Node) -> None:
    link(node)
    raws = [e.fact_append("s", "n", n, lamport=n + 1) for n in range(LINK_BATCH_ROWS + 5)]
    store = store_of(node)
    write = store.write
    left = 1

    def once(work: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise DiskFull("the disk is full")
        return write(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write", once)
        with pytest.raises(DiskFull):
            receive_batch(node._engine, LINK, batch(raws))
    assert (stored(node).cursor, node.log.head().offset) == (LINK_BATCH_ROWS, LINK_BATCH_ROWS)
    assert counts(receive_batch(node._engine, LINK, batch(raws))) == (5, 0, 0)
    assert [entry.raw for entry in node.log.range()] == raws


# --- objects --------------------------------------------------------------------------------------


def test_Z2_a_batch_says_which_objects_it_names() -> None:
    big, small = b"x" * 70_000, b"small"
    one, two = sha256(b"one"), sha256(b"two")
    raws = [
        *facts(2),
        e.file_share("big", big),
        e.file_share("small", small),
        e.raw("fact.append", "s", Fact("is", b"1", (one.digest(), two.digest()))),
        e.raw("fact.append", "s", Fact("is", b"2", (two.digest(),))),
        e.raw("fact.append", "s", Fact("is", b"3", (b"short",))),
        e.raw("file.share", "bad", FileShare(b"short", 70_000)),
        b"nonsense",
        e.state_set("k", sha256(b"three").hexdigest()),
    ]
    expected = [
        Named(sha256(big).hexdigest(), len(big)),
        Named(one.hexdigest(), None),
        Named(two.hexdigest(), None),
    ]
    assert receive.objects_named(batch(raws)) == expected
    assert receive.objects_named(receive.decode_batch(batch(raws))) == expected


def test_Z2_a_batch_that_was_read_is_taken_as_it_is(node: Node) -> None:
    link(node)
    incoming = receive.decode_batch(batch([*facts(2), b"nonsense"]))
    assert receive.objects_named(incoming) == []
    assert counts(receive_batch(node._engine, LINK, incoming)) == (2, 0, 1)


# --- two nodes ------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(["write", "pull", "crash", "again", "old"]), max_size=25),
    st.integers(1, 4),
)
def test_Z7_whatever_is_lost_on_the_way_everything_arrives_once_and_in_order(
    steps: list[str], limit: int
) -> None:
    """At least once on the wire, once in the log: batches lost, repeated, and delayed."""
    nodes = memory_nodes()
    bob, ana = nodes.open("bob"), nodes.open("ana")
    link(ana, filter=Filter(origins=("bob",)))
    caller, name = Caller("zone", "ana"), "zone:ana/x"
    serve.register(bob._engine, caller, Registration(consumer=name))
    old: list[Batch] = []

    def pull(*, keep: bool) -> None:
        row = stored(ana)
        confirm = row.cursor or None
        ask = Fetch(consumer=name, start=row.cursor + 1, confirm=confirm, limit=limit, epoch=1)
        got = serve.serve_batch(bob._engine, caller, ask)
        old.append(got)
        if keep:
            receive_batch(ana._engine, LINK, got)

    for n, step in enumerate(steps):
        if step == "write":
            team(bob).facts.append("s", "n", n)
            team(bob).state.set(f"k{n % 3}", n)
        elif step in ("pull", "crash"):
            pull(keep=step == "pull")
        elif step == "again" and old:
            receive_batch(ana._engine, LINK, old[-1])
        elif step == "old" and old:
            receive_batch(ana._engine, LINK, old[0])
        received = [entry.raw for entry in ana.log.range()]
        assert received == [entry.raw for entry in bob.log.range()][: len(received)]
        assert stored(ana).cursor == len(received)
    while stored(ana).cursor < bob.log.head().offset:
        pull(keep=True)
    assert [entry.raw for entry in ana.log.range()] == [entry.raw for entry in bob.log.range()]
    assert list(team(ana).state.list()) == list(team(bob).state.list())


def memory_nodes() -> Nodes:
    return Nodes("memory", Path(), HandClock())


def test_Z6_relations_both_ways_have_no_loops(nodes: Nodes) -> None:
    pair = {name: nodes.open(name) for name in ("ana", "bob")}
    ways = [("ana", "bob"), ("bob", "ana")]
    for to, source in ways:
        link(pair[to], name=source, zone=source)
        asked = Registration(consumer=f"zone:{to}/l")
        serve.register(pair[source]._engine, Caller("zone", to), asked)
    for n, name in enumerate(("ana", "bob", "ana")):
        team(pair[name]).facts.append("s", "n", n)
        team(pair[name]).state.set(f"k{n}", n)
    sent = 0
    for _ in range(4):
        for to, source in ways:
            with store_of(pair[to]).read() as tx:
                cursor = tx.link_get(source)
            assert cursor is not None
            ask = Fetch(consumer=f"zone:{to}/l", start=cursor.cursor + 1)
            got = serve.serve_batch(pair[source]._engine, Caller("zone", to), ask)
            sent += len(got.raws)
            receive_batch(pair[to]._engine, source, got)
    assert sent == 6, "each entry once over the wire, and nothing back"
    logs = [sorted(entry.raw for entry in node.log.range()) for node in pair.values()]
    assert logs[0] == logs[1]


def test_Z6_intake_by_hand_and_by_a_link_meet(node: Node) -> None:
    """A fact that came by hand first is known when the link brings it, and stays where it is."""
    link(node)
    raws = facts(5)
    store_of(node).write(Intake(node._engine.ctx, raws[1:3]))
    assert counts(receive_batch(node._engine, LINK, batch(raws))) == (3, 2, 0)
    assert [entry.raw for entry in node.log.range()] == [raws[1], raws[2], raws[0], *raws[3:]]
