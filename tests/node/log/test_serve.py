"""The source's side of a pull: who is given what, and nothing changes when something is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node
from holdfast.node.log import serve
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.log_wire import (
    Batch,
    Confirmation,
    Fetch,
    Registration,
    decode_batch,
    encode_batch,
)
from holdfast.rules import limits
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadInput,
    BadValue,
    EpochChanged,
    HoldfastError,
    NotGranted,
    OverLimit,
    PastEnd,
    TooMany,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.filters import Filter
from holdfast.rules.limits import (
    CONSUMER_NAME_BYTES_MAX,
    CONSUMERS_OF_CALLER_MAX,
    FETCH_ROWS_MAX,
    SEEN_MS,
)
from holdfast.rules.rows import ConsumerRow, ZoneRow
from holdfast.service.caller import LOCAL, Caller, granted
from support import envelopes as e
from support.dump import dump
from support.nodes import Nodes, store_of, team
from support.source import HandClock

BOB = Caller("zone", "bob", None)
READER = "zone:bob/link"
NOW = Ttl(log_ms=0)


def fill(node: Node, count: int) -> None:
    for n in range(count):
        team(node).facts.append(f"s{n}", "n", n)


def register(node: Node, caller: Caller = BOB, consumer: str = READER, **asked: Any) -> None:
    serve.register(node._engine, caller, Registration(consumer=consumer, **asked))


def give(node: Node, caller: Caller = BOB, consumer: str = READER, **asked: Any) -> Batch:
    batch = serve.serve_batch(node._engine, caller, Fetch(consumer=consumer, **asked))
    assert decode_batch(encode_batch(batch)) == batch, "it hangs together on the wire"
    return batch


def confirm(node: Node, caller: Caller = BOB, consumer: str = READER, **told: Any) -> int:
    told_ = Confirmation(consumer=consumer, **told)
    return serve.confirm(node._engine, caller, told_).frontier


def row_of(node: Node, consumer: str = READER) -> ConsumerRow:
    with store_of(node).read() as tx:
        row = tx.consumer_get(consumer)
    assert row is not None
    return row


def everything(node: Node) -> object:
    with store_of(node).read() as tx:
        return dump(tx)


def refused(node: Node, kind: type[HoldfastError], ask: Callable[[], object]) -> HoldfastError:
    """The error, which changed nothing."""
    before = everything(node)
    with pytest.raises(kind) as caught:
        ask()
    assert type(caught.value) is kind
    assert everything(node) == before
    return caught.value


def span(batch: Batch) -> tuple[int, int, list[int]]:
    return batch.start, batch.upto, batch.offsets


# --- fetch and confirm ----------------------------------------------------------------------------


def test_Z2_a_consumer_reads_on_from_what_it_confirmed(node: Node) -> None:
    fill(node, 5)
    register(node)
    first = give(node, limit=2)
    assert (first.epoch, first.first, first.head) == (1, 1, 5)
    assert span(first) == (1, 2, [1, 2])
    assert first.raws == [entry.raw for entry in node.log.range(1, 3)], "byte for byte"
    assert give(node, limit=2) == first, "the same until it confirms"
    assert confirm(node, offset=2) == 2
    assert span(give(node)) == (3, 5, [3, 4, 5])
    confirm(node, offset=5)
    assert span(give(node)) == (6, 5, []), "nothing new"


def test_Z2_an_empty_log_has_nothing_new(node: Node) -> None:
    register(node)
    assert span(give(node)) == (1, 0, [])
    assert span(give(node, start=1)) == (1, 0, [])


def test_Z2_a_fetch_may_confirm_first(node: Node, clock: HandClock) -> None:
    fill(node, 5)
    register(node)
    clock.advance(7)
    assert span(give(node, confirm=3)) == (4, 5, [4, 5])
    assert row_of(node).frontier == "3"
    assert row_of(node).seen_at == clock.at_ms
    assert span(give(node, confirm=1)) == (4, 5, [4, 5]), "backwards is a no-op"
    assert confirm(node, offset=0) == 3
    assert span(give(node, start=2, confirm=4)) == (2, 5, [2, 3, 4, 5]), "from where it says"
    assert row_of(node).frontier == "4"


def test_Z2_a_reader_that_keeps_its_own_place_moves_nothing(node: Node) -> None:
    fill(node, 5)
    register(node)
    before = everything(node)
    assert span(give(node, start=3, limit=2)) == (3, 4, [3, 4])
    assert span(give(node, start=5)) == (5, 5, [5])
    assert span(give(node, start=6)) == (6, 5, [])
    assert everything(node) == before


def test_Z2_a_confirmation_of_nothing_new_is_written_only_now_and_then(
    node: Node, clock: HandClock
) -> None:
    """A reader that waits for news asks again and again, and each write costs a sync."""
    fill(node, 2)
    register(node)
    give(node, confirm=2)
    seen = row_of(node).seen_at
    clock.advance(SEEN_MS - 1)
    give(node, confirm=2)
    assert row_of(node).seen_at == seen
    clock.advance(1)
    give(node, confirm=2)
    assert row_of(node).seen_at == seen + SEEN_MS
    register(node, retire_ms=400)
    clock.advance(100)
    give(node, confirm=2)
    assert row_of(node).seen_at == clock.at_ms, "one that is soon given up is noted more often"
    clock.advance(-50)
    give(node, confirm=2)
    assert row_of(node).seen_at == clock.at_ms, "a clock that went back hides nobody"


def test_Z4_confirmations_may_be_selective(node: Node) -> None:
    fill(node, 9)
    register(node)
    assert confirm(node, ranges=[(2, 4), (6, 8)]) == 0
    assert span(give(node)) == (1, 9, [1, 4, 5, 8, 9])
    assert span(give(node, limit=2)) == (1, 4, [1, 4])
    assert span(give(node, limit=3)) == (1, 5, [1, 4, 5])
    confirm(node, ranges=[(9, 10)])
    assert span(give(node)) == (1, 9, [1, 4, 5, 8]), "what it looked past is confirmed already"


def test_Z2_a_fetch_is_cut_by_bytes_and_one_entry_always_fits(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        team(node).facts.append("s", "n", "x" * 1000)
    register(node)
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", 3000)
    assert span(give(node)) == (1, 2, [1, 2])
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", 1)
    assert span(give(node)) == (1, 1, [1])
    confirm(node, ranges=[(2, 3)])
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", 3000)
    assert span(give(node)) == (1, 3, [1, 3]), "over all spans together"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, FETCH_ROWS_MAX + 1, 10**18])
def test_Z2_a_limit_that_is_none_is_refused(node: Node, limit: int) -> None:
    fill(node, 2)
    register(node)
    refused(node, OverLimit, lambda: give(node, limit=limit, confirm=1))


def test_Z4_an_unknown_consumer_is_a_typed_error(node: Node) -> None:
    fill(node, 2)
    refused(node, UnknownConsumer, lambda: give(node))
    refused(node, UnknownConsumer, lambda: give(node, confirm=1))
    refused(node, UnknownConsumer, lambda: confirm(node, offset=1))
    refused(node, UnknownConsumer, lambda: serve.retire(node._engine, BOB, READER))


def test_Z4_what_was_never_written_cannot_be_confirmed_or_asked_for(node: Node) -> None:
    fill(node, 3)
    register(node)
    refused(node, PastEnd, lambda: give(node, confirm=4))
    refused(node, PastEnd, lambda: give(node, start=2, confirm=4))
    refused(node, PastEnd, lambda: confirm(node, offset=4))
    refused(node, PastEnd, lambda: confirm(node, ranges=[(1, 2), (3, 9)]))
    refused(node, PastEnd, lambda: give(node, start=5))
    refused(node, PastEnd, lambda: give(node, start=5, confirm=3))


def test_Z4_what_makes_no_sense_is_refused(node: Node) -> None:
    fill(node, 3)
    register(node)
    refused(node, BadInput, lambda: give(node, start=0))
    refused(node, BadInput, lambda: give(node, start=-5, confirm=1))
    refused(node, BadInput, lambda: confirm(node))
    refused(node, BadInput, lambda: confirm(node, offset=1, ranges=[]))
    refused(node, BadValue, lambda: confirm(node, offset=-1))
    refused(node, BadValue, lambda: confirm(node, ranges=[(3, 2)]))


def test_Z5_what_is_gone_is_said_with_what_is_left(node: Node, clock: HandClock) -> None:
    fill(node, 6)
    clock.advance(1)
    register(node, start=4)
    node.sweep(NOW)
    for ask in (lambda: give(node, start=2), lambda: give(node, start=3, confirm=4)):
        gone = refused(node, Truncated, ask)
        assert isinstance(gone, Truncated)
        assert gone.first_available == 4
    assert span(give(node, start=4)) == (4, 6, [4, 5, 6])
    refused(node, Truncated, lambda: register(node, consumer="zone:bob/late", start=2))


def test_Z5_a_cursor_of_another_epoch_is_told_the_epoch(node: Node) -> None:
    fill(node, 3)
    register(node)
    store_of(node).write(lambda tx: tx.set_epoch(4))
    for ask in (
        lambda: give(node, start=2, epoch=1),
        lambda: give(node, confirm=2, epoch=1),
        lambda: give(node, epoch=5),
        lambda: confirm(node, offset=2, epoch=1),
    ):
        changed = refused(node, EpochChanged, ask)
        assert isinstance(changed, EpochChanged)
        assert changed.epoch == 4
    assert give(node, start=1, confirm=1, epoch=4).epoch == 4
    assert confirm(node, offset=2, epoch=4) == 2


# --- registration ---------------------------------------------------------------------------------


def test_Z2_the_same_registration_finds_the_consumer_as_it_is(node: Node, clock: HandClock) -> None:
    fill(node, 4)
    asked: dict[str, Any] = {"filter": Filter(subjects=("s1",)), "retire_ms": 5000, "retire_lag": 9}
    register(node, start=2, **asked)
    confirm(node, offset=3)
    before = everything(node)
    clock.advance(5)
    register(node, start="now", **asked)
    assert everything(node) == before
    register(node, filter=Filter(subjects=("s3",)))
    row = row_of(node)
    assert (row.frontier, row.filter.subjects) == ("3", ("s3",)), "what it confirmed stays"
    assert (row.retire_ms, row.retire_lag) == (None, None)
    assert (row.zone, row.created_at) == ("bob", clock.at_ms - 5)


def test_Z2_a_new_consumer_begins_where_it_is_told(node: Node) -> None:
    fill(node, 4)
    for start, expected in (("start", [1, 2, 3, 4]), ("now", []), (3, [3, 4]), (5, [])):
        register(node, consumer=f"zone:bob/{start}", start=start)
        assert give(node, consumer=f"zone:bob/{start}").offsets == expected
    refused(node, PastEnd, lambda: register(node, consumer="zone:bob/x", start=6))
    refused(node, BadInput, lambda: register(node, consumer="zone:bob/x", start="middle"))
    for name in ("", "x" * (CONSUMER_NAME_BYTES_MAX + 1)):
        with pytest.raises(BadInput):
            register(node, LOCAL, name)
    refused(node, BadInput, lambda: register(node, consumer="zone:bob/y", retire_ms=0))
    refused(node, BadInput, lambda: register(node, consumer="zone:bob/y", retire_lag=0))
    refused(
        node, BadInput, lambda: register(node, consumer="zone:bob/z", filter=Filter(meshes=("A",)))
    )


def test_Z6_nobody_from_outside_adds_consumers_without_end(node: Node) -> None:
    for n in range(CONSUMERS_OF_CALLER_MAX):
        register(node, consumer=f"zone:bob/{n}")
    refused(node, TooMany, lambda: register(node, consumer="zone:bob/more"))
    register(node, consumer="zone:bob/7", filter=Filter(subjects=("s",)))
    register(node, Caller("zone", "zoe", None), "zone:zoe/1")
    register(node, LOCAL, "zone:bob/more")
    serve.retire(node._engine, BOB, "zone:bob/7")
    serve.retire(node._engine, BOB, "zone:bob/8")
    register(node, consumer="zone:bob/another")


# --- who may read what ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "allowed", "not_allowed"),
    [
        (
            Caller("zone", "bob"),
            ["zone:bob/x", "zone:bob/a/b"],
            ["x", "zone:bob", "zone:bob/", "zone:bobby/x", "token:bob/x", " zone:bob/x", ""],
        ),
        (
            Caller("token", "spark"),
            ["token:spark/x"],
            ["token:spark/a/b", "token:spark/", "zone:spark/x", "x", "token:other/token:spark/x"],
        ),
        (LOCAL, ["x", "zone:bob/x", "token:spark/x"], []),
    ],
)
def test_Z8_a_caller_uses_only_consumers_of_its_name(
    caller: Caller, allowed: list[str], not_allowed: list[str]
) -> None:
    for name in allowed:
        caller.check_consumer(name)
    for name in not_allowed:
        with pytest.raises(NotGranted):
            caller.check_consumer(name)


def test_Z8_a_zone_cannot_use_the_consumer_of_another(node: Node) -> None:
    fill(node, 3)
    longer = Caller("zone", "bob/link", None)
    register(node, longer, "zone:bob/link/x")
    assert give(node, longer, "zone:bob/link/x").offsets == [1, 2, 3]
    for ask in (
        lambda: give(node, consumer="zone:bob/link/x"),
        lambda: give(node, consumer="zone:bob/link/x", confirm=1),
        lambda: confirm(node, consumer="zone:bob/link/x", offset=1),
        lambda: register(node, consumer="zone:bob/link/x", filter=Filter(meshes=("team",))),
        lambda: serve.retire(node._engine, BOB, "zone:bob/link/x"),
        lambda: register(node, consumer="reader"),
        lambda: give(node, Caller("zone", "zoe", None), "zone:bob/link/x"),
        lambda: confirm(node, Caller("token", "t"), "zone:bob/link/x", offset=1),
    ):
        refused(node, NotGranted, ask)
    assert give(node, LOCAL, "zone:bob/link/x").offsets == [1, 2, 3], "whoever sits here may look"


def test_Z8_a_caller_reads_only_the_meshes_it_may(nodes: Nodes) -> None:
    node = nodes.open("ana", "one", "two", "three")
    for mesh in ("one", "two", "three", "one"):
        node.mesh(mesh).facts.append("s", "in", mesh)
    some = Caller("zone", "bob", frozenset({"one", "two"}))
    register(node, some)
    assert span(give(node, some)) == (1, 4, [1, 2, 4]), "what it may not read counts as read"
    register(node, some, filter=Filter(meshes=("two",)))
    assert give(node, some).offsets == [2]
    ask = Filter(meshes=("two", "three"))
    refused(node, NotGranted, lambda: register(node, some, filter=ask))
    nothing = Caller("zone", "bob", frozenset())
    refused(node, NotGranted, lambda: register(node, nothing, "zone:bob/none"))
    refused(node, NotGranted, lambda: give(node, nothing))


def test_Z8_a_filter_does_not_outlive_a_grant(nodes: Nodes) -> None:
    node = nodes.open("ana", "one", "two")
    for mesh in ("one", "two"):
        node.mesh(mesh).facts.append("s", "in", mesh)
    register(node, filter=Filter())
    register(node, consumer="zone:bob/two", filter=Filter(meshes=("two",)))
    less = Caller("zone", "bob", frozenset({"one"}))
    assert give(node, less).offsets == [1]
    refused(node, NotGranted, lambda: give(node, less, "zone:bob/two"))
    refused(node, NotGranted, lambda: give(node, less, "zone:bob/two", confirm=1, start=1))
    assert give(node, consumer="zone:bob/two").offsets == [2], "granted again, it reads again"


def test_Z8_grants_as_they_are_stored() -> None:
    assert granted(["one", "*"]) is None
    assert granted(["one"]) == frozenset({"one"})
    assert granted([]) == frozenset()
    assert Caller("zone", "bob", granted(["one"])).reads == frozenset({"one"})
    assert LOCAL.reads is None


# --- no loops -------------------------------------------------------------------------------------


def zone(node: Node, name: str) -> int:
    row = ZoneRow(name=name, added_at=0)
    return store_of(node).write(lambda tx: tx.zone_put(row)).number


def test_Z8_a_zone_is_given_messages_only_if_it_asks_for_them(node: Node) -> None:
    team(node).facts.append("own", "is", 1)
    node.apply([e.message_send("dm", "a" * 64, b"psst", lamport=5, origin="eva")])
    team(node).facts.append("own", "is", 2)
    register(node)
    assert span(give(node)) == (1, 3, [1, 3]), "what is left out counts as read"
    register(node, filter=Filter(classes=("messages",)))
    assert give(node).offsets == [2]
    everything = Caller("zone", "bob").narrow(Filter())
    assert everything.without_messages, "however much it may read"
    assert not LOCAL.narrow(Filter()).without_messages
    assert not Caller("token", "spark", granted(["team"])).narrow(Filter()).without_messages


@pytest.mark.parametrize("asked", [Filter(), Filter(beyond="zoe")])
def test_Z6_a_zone_is_never_sent_what_it_wrote_or_brought(node: Node, asked: Filter) -> None:
    zones = {name: zone(node, name) for name in ("bob", "zoe")}
    team(node).facts.append("own", "is", 1)
    for n, (name, origin) in enumerate(
        [("bob", "bob"), ("bob", "eva"), ("zoe", "bob"), ("zoe", "eva")]
    ):
        raw = e.fact_append("s", "n", n, lamport=n + 5, origin=origin)
        store_of(node).write(Intake(node._engine.ctx, [raw], zones[name]))
    register(node, filter=asked)
    assert span(give(node)) == (1, 5, [1, 5])
    assert row_of(node).filter.beyond == "bob"
    # Stored by an older version, or by hand: it is forced again with every read.
    store_of(node).write(
        lambda tx: tx.consumer_put(msgspec.structs.replace(row_of(node), filter=Filter()))
    )
    assert give(node).offsets == [1, 5]


# --- filters --------------------------------------------------------------------------------------


def test_Z6_what_a_filter_leaves_out_counts_as_read(node: Node, clock: HandClock) -> None:
    team(node).facts.append("a", "is", 1)
    team(node).state.set("b", 1)
    team(node).facts.append("b", "is", 1)
    team(node).facts.append("a", "is", 2)
    team(node).state.set("c", 1)
    register(node, filter=Filter(subjects=("b",)))
    assert span(give(node)) == (1, 5, [2, 3])
    assert span(give(node, limit=1)) == (1, 2, [2])
    assert span(give(node, start=4)) == (4, 5, [])
    register(node, filter=Filter(classes=("facts",)))
    assert span(give(node)) == (1, 5, [1, 3, 4])
    register(node, filter=Filter(classes=("tasks",)))
    batch = give(node)
    assert span(batch) == (1, 5, [])
    confirm(node, offset=batch.upto)
    clock.advance(1)
    assert node.sweep(NOW).log_entries == 4, "nothing waits for a reader of nothing"


def test_Z6_a_filtered_fetch_says_how_far_it_looked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(12):
        team(node).facts.append("rare" if n == 10 else "common", "n", n)
    register(node, filter=Filter(subjects=("rare",)))
    for module in ("holdfast.storage.sqlite.log_pages", "holdfast.storage.memory.log_pages"):
        monkeypatch.setattr(f"{module}.SCAN_ROWS_MAX", 4)
    monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 4)
    assert span(give(node)) == (1, 4, [])
    assert span(give(node, start=5)) == (5, 8, [])
    assert span(give(node, start=9)) == (9, 12, [11])
    node.log.add_consumer("own", filter=Filter(subjects=("rare",)))
    (entry,) = node.log.fetch("own")
    assert entry.offset == 11, "to a caller that sees no bounds, nothing means nothing new"
    assert span(node.log.batch("own")) == (1, 4, [])


def test_Z4_the_library_reads_by_filters_too(node: Node) -> None:
    fill(node, 6)
    node.log.add_consumer("reader", filter=Filter(subjects=("s1", "s4")))
    entries = node.log.fetch("reader")
    assert [entry.offset for entry in entries] == [2, 5]
    assert entries == [entry for entry in node.log.range() if entry.offset in (2, 5)]
    assert [entry.offset for entry in node.log.fetch("reader", 1)] == [2]
    node.log.confirm("reader", ranges=[(2, 3)])
    assert [entry.offset for entry in node.log.fetch("reader")] == [5]
    assert node.log.batch("reader").upto == 6
    node.log.confirm("reader", 6)
    assert node.log.fetch("reader") == []
    with pytest.raises(BadInput):
        node.log.add_consumer("odd", filter=Filter(classes=("odd",)))


def test_Z4_a_reader_may_want_single_ops(node: Node) -> None:
    fill(node, 2)
    team(node).state.set("k", 1)
    team(node).state.delete("k")
    for name, filter, offsets in (
        ("deletions", Filter(ops=("state.delete",)), [4]),
        ("of a class", Filter(classes=("state",), ops=("state.set", "fact.append")), [3]),
        ("nothing", Filter(ops=("audit.append",)), []),
    ):
        node.log.add_consumer(name, filter=filter)
        assert [entry.offset for entry in node.log.fetch(name)] == offsets
        assert node.log.batch(name).upto == 4
    nothing = Filter(classes=("state",), ops=("fact.append",))
    with node._engine.store.read() as tx:
        assert tx.log_columns(1, 5, 10, 1 << 20, nothing).offset == []


_spans = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 6)), max_size=4)


@given(
    ranges=_spans,
    subjects=st.sampled_from([(), ("s1",), ("s2", "s3"), ("none",)]),
    limit=st.integers(1, 25),
    start=st.none() | st.integers(1, 21),
)
def test_Z6_batches_that_follow_each_other_give_everything_once(
    ranges: list[tuple[int, int]], subjects: tuple[str, ...], limit: int, start: int | None
) -> None:
    """Whatever was confirmed, filtered and cut: what passes comes, in order, and each once."""
    node = _memory_node()
    node.log.add_consumer("reader", filter=Filter(subjects=subjects))
    spans = [(a, min(a + size, 21)) for a, size in ranges]
    frontier = node.log.confirm("reader", ranges=spans)
    done = {n for n in range(1, 21) if n <= frontier.frontier} | {
        n for a, b in frontier.beyond for n in range(a, b)
    }
    passing = [
        entry.offset
        for entry in node.log.range()
        if Filter(subjects=subjects).passes("team", entry.op, entry.entity, entry.origin, "")
    ]
    expected = [n for n in passing if (n >= start if start else n not in done)]
    found: list[int] = []
    position = start
    for _ in range(30):
        fetch = Fetch(consumer="reader", limit=limit, start=position)
        batch = serve.serve_batch(node._engine, LOCAL, fetch)
        assert len(batch.offsets) <= limit
        found += batch.offsets
        if start is None:
            node.log.confirm("reader", batch.upto)
        else:
            position = batch.upto + 1
        if batch.upto == batch.head:
            break
    assert found == expected
    for entry in node.log.range():
        assert isinstance(decode_trusted_body(decode_trusted(entry.raw)), Fact)


def _memory_node() -> Node:
    node = Nodes("memory", Path(), HandClock()).open("ana")
    fill(node, 20)
    return node
