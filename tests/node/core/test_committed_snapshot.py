"""What one member gives is what another one has after it took it in; anything else is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.core.committed_snapshot import SnapshotStage, give_snapshot, staging_of
from holdfast.node.core.write_queue import queue_add, queue_get
from holdfast.protocol.quorum_snapshot import (
    CommittedPage,
    EntitiesPage,
    Page,
    RevisionsPage,
    SnapshotHeader,
    SnapshotWriter,
    read_pages,
)
from holdfast.rules.errors import BadQuorumSnapshot, LogMismatch, NoVoters
from holdfast.rules.quorum.write_queue import WriteFailure, WriteStatus
from holdfast.storage.ports import Reader, Store
from model.test_quorum_model import run
from support.commits import commit, committed_state, context, entries_of, entry, with_quorum
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_state import change, fence, operation
from support.seeds import seeds
from support.stores import make_store, read

SEEDS = 12


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    made: list[Store] = []

    def make() -> Store:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(make_store(request.param, folder))
        return made[-1]

    yield make
    for store in made:
        store.stop()


@cache
def order_of(seed: int) -> list[CommittedEntry]:
    return entries_of(run(seed)[1])


def given(store: Store) -> bytes:
    parts: list[bytes] = []
    with store.read() as reader:
        give_snapshot(reader, MESH, parts.append)
    return b"".join(parts)


def cut(raw: bytes, size: int = 1000) -> Callable[[], Iterator[bytes]]:
    return lambda: (raw[at : at + size] for at in range(0, len(raw), size))


def stage(store: Store, raw: bytes, size: int = 1000) -> SnapshotStage:
    return SnapshotStage(store, context(), MESH, cut(raw, size))


def take_in(store: Store, raw: bytes) -> None:
    index = applied(raw)
    made = stage(store, raw)
    made.stage(index)
    made.put_in_place(index)


def applied(raw: bytes) -> int:
    header = next(read_pages([raw]))
    assert isinstance(header, SnapshotHeader)
    return header.index


def shared(tx: Reader) -> dict[str, object]:
    """The committed state without what is each node's own: offsets, times, its log."""
    state: dict[str, Any] = committed_state(tx)
    for name in ("clock", "log"):
        del state[name]
    replace = msgspec.structs.replace
    state["commits"] = [replace(row, offset=0, head=0) for row in state["commits"]]
    state["tasks"] = [replace(row, offset=0) for row in state["tasks"]]
    state["turns"] = [[replace(row, applied_at=0) for row in one] for one in state["turns"]]
    return state


def folded(store: Store, seed: int) -> Store:
    with_quorum(store)
    commit(store, order_of(seed))
    return store


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_Q4_Q9_what_is_taken_in_is_what_was_given(stores: Callable[[], Store], seed: int) -> None:
    """To the last byte: the receiver would give the same snapshot. It may have folded a part of the
    order before, or nothing, and goes on folding as the giver does.
    """
    entries = order_of(seed)
    place = random.Random(seed).randrange(len(entries) + 1)
    giver, taker = with_quorum(stores()), with_quorum(stores())
    middle = (place + len(entries)) // 2
    commit(giver, entries[:middle])
    commit(taker, entries[: random.Random(seed + 1).randrange(middle + 1)])
    raw = given(giver)
    take_in(taker, raw)
    assert given(taker) == raw
    assert read(taker, shared) == read(giver, shared)
    assert commit(taker, entries[middle:]) != [] or middle == len(entries)
    commit(giver, entries[middle:])
    assert read(taker, shared) == read(giver, shared)


def test_Q9_envelopes_stand_in_the_log_and_nothing_stays_behind(
    stores: Callable[[], Store],
) -> None:
    giver, taker = folded(stores(), 3), with_quorum(stores())
    take_in(taker, given(giver))
    with taker.read() as tx, giver.read() as other:
        for ours, theirs in zip(
            tx.commit_range(MESH, 1, 999), other.commit_range(MESH, 1, 999), strict=True
        ):
            here, there = tx.log_get(ours.offset), other.log_get(theirs.offset)
            assert here is not None
            assert there is not None
            assert here.raw == there.raw
            assert ours.head == tx.log_bounds()[1]
        assert tx.commit_range(staging_of(MESH), 0, 9) == []
        mesh, theirs_mesh = tx.mesh_get(MESH), other.mesh_get(MESH)
        assert mesh is not None
        assert theirs_mesh is not None
        assert mesh.lamport >= max(one.lamport for one in tx.log_range(1, 999, 999))


def test_Q6_what_waited_here_and_was_decided_elsewhere_ends(stores: Callable[[], Store]) -> None:
    envelope = change(operation("put", "mission", "m", {"title": "t"}), origin="dan")
    giver, taker = with_quorum(stores()), with_quorum(stores())
    failure = WriteFailure(503, "no_quorum", "the others are away")
    taker.write(lambda tx: queue_add(tx, context(), envelope, failure))
    commit(giver, [entry(envelope, 1)])
    take_in(taker, given(giver))
    write = read(taker, lambda tx: queue_get(tx, MESH, envelope.id))
    assert write is not None
    assert write.status is WriteStatus.APPLIED
    assert read(taker, lambda tx: tx.log_bounds()) == (1, 1), "it stood in the log already"


def test_Q9_a_record_whose_envelope_is_truncated_stays_known(stores: Callable[[], Store]) -> None:
    giver, taker = folded(stores(), 5), with_quorum(stores())
    giver.write(lambda tx: tx.log_truncate(4, 99, 0))
    raw = given(giver)
    take_in(taker, raw)
    assert given(taker) == raw
    assert read(taker, shared) == read(giver, shared)
    with taker.read() as tx:
        lost = [row for row in tx.commit_range(MESH, 1, 999) if tx.log_get(row.offset) is None]
        assert [row.number for row in lost] == [1, 2, 3]
        assert tx.commit_lowest() == -3


# --- what is refused ------------------------------------------------------------------------------


def rewritten(raw: bytes, page_of: Callable[[Page], Page]) -> bytes:
    """A snapshot with other pages and a right sum."""
    parts: list[bytes] = []
    writer = SnapshotWriter(parts.append)
    for page in read_pages([raw]):
        made = page_of(page)
        if isinstance(made, SnapshotHeader):
            writer.header(made)
        else:
            writer.rows(type(made), made.rows)  # type: ignore[arg-type, union-attr]
    writer.end()
    return b"".join(parts)


def with_row(kind: type[Any], **fields: Any) -> Callable[[bytes], bytes]:
    """Changes the last row of the last page of a kind; with no fields, leaves it out."""

    def damage(raw: bytes) -> bytes:
        pages = [page for page in read_pages([raw]) if isinstance(page, kind)]

        def page_of(page: Page) -> Page:
            if page != pages[-1]:
                return page
            last = msgspec.structs.replace(page.rows[-1], **fields)  # type: ignore[union-attr]
            rows = (*page.rows[:-1], *([last] if fields else []))  # type: ignore[union-attr]
            return kind(rows)  # type: ignore[no-any-return]

        return rewritten(raw, page_of)

    return damage


def with_header(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda raw: rewritten(
        raw,
        lambda page: (
            msgspec.structs.replace(page, **fields) if isinstance(page, SnapshotHeader) else page
        ),
    )


def with_changed_byte(raw: bytes) -> bytes:
    at = raw.index(b'"title"')
    return raw[:at] + b'"tit1e"' + raw[at + 7 :]


BAD: dict[str, Callable[[bytes], bytes]] = {
    "a wrong checksum": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "a byte that changed": with_changed_byte,
    "half": lambda raw: raw[: len(raw) // 2],
    "no end": lambda raw: raw[: raw.rindex(b"\x93\x0a") - 4],
    "nothing": lambda raw: b"",
    "something behind": lambda raw: raw + raw,
    "a page in another form": lambda raw: raw[:3] + bytes([raw[3] + 1]) + b"\xdc" + raw[4:],
    "another mesh": with_header(mesh="other"),
    "another group": with_header(tag=sha256(b"x").digest()[:16]),
    "another incarnation": with_header(incarnation=2),
    "a later version": with_header(version=2),
    "more commits than it has": with_header(number=999),
    "another fence": with_header(fence=fence(998)),
    "a commit left out": with_row(CommittedPage),
    "a record of nothing": with_row(CommittedPage, record=b"\x90"),
    "an envelope that is none": with_row(CommittedPage, raw=b"\x90"),
    "an unknown type": with_row(EntitiesPage, type="zebra"),
    "an empty id": with_row(EntitiesPage, id=""),
    "fields that are none": with_row(EntitiesPage, fields=b"[]", deleted=False),
    "fields that break": with_row(EntitiesPage, fields=b"{", deleted=False),
    "a revision that nobody made": with_row(EntitiesPage, revision=77),
    "a fence of the future": with_row(EntitiesPage, fence=fence(999)),
    "another time": with_row(EntitiesPage, committed_at=12),
    "a bad origin": with_row(EntitiesPage, origin="no peer\n"),
    "a revision left out": with_row(RevisionsPage),
    "a revision of the future": with_row(RevisionsPage, number=999),
}


@pytest.mark.parametrize("bad", BAD)
def test_Q9_anything_else_is_refused_and_nothing_changes(
    stores: Callable[[], Store], bad: str
) -> None:
    giver, taker = folded(stores(), 3), with_quorum(stores())
    raw = given(giver)
    index = applied(raw)
    before = read(taker, shared)
    with pytest.raises(BadQuorumSnapshot):
        stage(taker, BAD[bad](raw)).stage(index)
    assert read(taker, shared) == before
    assert read(taker, lambda tx: tx.commit_range(staging_of(MESH), 0, 9)) == []
    take_in(taker, raw)
    assert given(taker) == raw, "the whole one is still taken"


def test_Q9_a_snapshot_of_another_index_than_offered_is_refused(
    stores: Callable[[], Store],
) -> None:
    giver, taker = folded(stores(), 3), with_quorum(stores())
    with pytest.raises(BadQuorumSnapshot, match="offered"):
        stage(taker, given(giver)).stage(7_000)


def test_Q4_a_node_that_has_folded_more_or_another_order_takes_nothing(
    stores: Callable[[], Store],
) -> None:
    giver, other, ahead = folded(stores(), 3), with_quorum(stores()), with_quorum(stores())
    commit(other, order_of(4)[:9])
    raw = given(giver)
    before = read(other, shared)
    with pytest.raises(LogMismatch, match="another one here"):
        stage(other, raw).stage(applied(raw))
    assert read(other, shared) == before
    commit(
        ahead,
        [
            *order_of(3),
            entry(change(operation("put", "mission", "z", {"title": "t"})), 9_000),
        ],
    )
    with pytest.raises(LogMismatch):
        stage(ahead, raw).stage(applied(raw))


def test_Q9_a_staging_that_came_to_nothing_is_cleared_and_begun_again(
    stores: Callable[[], Store],
) -> None:
    """A process that dies between the two steps leaves what was; the next one takes it in."""
    giver, taker = folded(stores(), 3), with_quorum(stores())
    raw = given(giver)
    before = read(taker, shared)
    stage(taker, raw).stage(applied(raw))
    assert read(taker, shared) == before, "nobody reads what is staged"
    stage(taker, raw, size=7).put_in_place(applied(raw))
    assert given(taker) == raw


def test_Q4_commits_that_were_folded_meanwhile_are_not_lost(stores: Callable[[], Store]) -> None:
    giver, taker = folded(stores(), 3), with_quorum(stores())
    raw = given(giver)
    made = stage(taker, raw)
    made.stage(applied(raw))
    commit(taker, order_of(3)[:1])
    with pytest.raises(LogMismatch, match="meanwhile"):
        made.put_in_place(applied(raw))
    take_in(taker, raw)
    assert given(taker) == raw


def test_Q1_a_mesh_without_voters_gives_and_takes_nothing(stores: Callable[[], Store]) -> None:
    store = stores()
    with pytest.raises(NoVoters), store.read() as reader:
        give_snapshot(reader, MESH, lambda part: None)
    raw = given(folded(stores(), 3))
    with pytest.raises(NoVoters):
        stage(store, raw).stage(1)
