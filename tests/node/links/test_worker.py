"""Links at work, against a source that hangs, lies and breaks off as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any

import msgspec
import pytest

from holdfast.node.core import receive as receive_step
from holdfast.node.library.node import Node
from holdfast.node.links import receive
from holdfast.node.links.registry import Links
from holdfast.node.links.status import LinkStatus
from holdfast.node.links.worker import LinkManager
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.log_wire import Batch, Fetch
from holdfast.rules import links as rules
from holdfast.rules.errors import (
    BadAnswer,
    DiskFull,
    EpochChanged,
    NotGranted,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.keys import public_key
from holdfast.rules.limits import (
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    LAMPORT_LEAP_MAX,
    LINK_BATCH_ROWS,
    OBJECT_RANGE_BYTES,
)
from holdfast.rules.links import LinkState
from holdfast.rules.rows import ZoneKey, ZoneRow
from holdfast.storage.files.blobs import DraftFile
from holdfast.storage.files.home import HomePaths
from support.envelopes import MESH, fact_append, file_share, make_id, state_set
from support.far_node import FarLine, FarNode
from support.nodes import Nodes, team

CONSUMER = "zone:ana/bob"
KEY = public_key(b"b" * 32)


class Pulling:
    """A node that pulls from a scripted one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.engine = node._engine
        self.far = FarNode()
        trust = Trust(self.engine, HomePaths(node.home))
        self.engine.write("test", lambda tx: tx.zone_put(_zone(KEY)))
        self.links = Links(self.engine, trust, self.far.reach)
        self.seen: list[LinkStatus] = []
        self.link_manager = LinkManager(
            self.engine, trust, reach=self.far.reach, on_change=self._changed, chance=lambda: 0.0
        )

    def _changed(self, status: LinkStatus) -> None:
        self.seen.append(status)
        self.far.tell()

    def add(self, **settings: Any) -> None:
        self.links.add("bob", "https://bob:7411", "bob", **{"meshes": [MESH], **settings})

    def start(self, **settings: Any) -> None:
        self.add(**settings)
        self.link_manager.start()

    @property
    def status(self) -> LinkStatus:
        (found,) = self.link_manager.status()
        return found

    def until(self, state: LinkState) -> LinkStatus:
        self.far.until(lambda: self.status.state is state)
        return self.status

    def until_confirmed(self, offset: int) -> None:
        self.far.until(lambda: self.far.frontiers.get(CONSUMER, 0) >= offset)

    def state(self, key: str) -> Any:
        return team(self.node).state.get(key)

    @property
    def cursor(self) -> tuple[int, int]:
        view = self.links.get("bob")
        return view.epoch, view.cursor


def _zone(*keys: bytes) -> ZoneRow:
    made = tuple(ZoneKey(key=key, added_at=1) for key in keys)
    return ZoneRow(name="bob", keys=made, added_at=1)


@pytest.fixture
def pulling(nodes: Nodes) -> Iterator[Pulling]:
    made = Pulling(nodes.open("ana"))
    yield made
    assert made.link_manager.stop(20), "its threads do not end"
    left = [thread.name for thread in threading.enumerate() if "holdfast-link" in thread.name]
    left += [thread.name for thread in threading.enumerate() if "holdfast-take" in thread.name]
    assert not left


def facts(count: int, start: int = 1) -> list[bytes]:
    return [fact_append(f"s{n}", "is", n, lamport=n) for n in range(start, start + count)]


# --- the usual ------------------------------------------------------------------------------------


def test_Z2_what_a_source_writes_arrives_and_is_confirmed(pulling: Pulling) -> None:
    pulling.far.write(state_set("a", 1, lamport=1), *facts(2, 2))
    pulling.start()
    pulling.until_confirmed(3)
    status = pulling.until(LinkState.LIVE)
    assert (status.cursor, status.source_head, status.lag) == (3, 3, 0)
    assert (status.received, status.new, status.known) == (3, 3, 0)
    assert status.attempts == 0
    pulling.far.write(state_set("a", 2, lamport=9))
    pulling.until_confirmed(4)
    assert pulling.state("a") == 2
    assert pulling.cursor == (1, 4)


def test_Z2_batches_are_read_ahead_but_not_without_end(pulling: Pulling, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.node.links.appetite.LINK_BATCH_ROWS", 1)
    monkeypatch.setattr("holdfast.rules.links.LINK_BATCH_ROWS", 1)
    held, go = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        held.set()
        assert go.wait(20)
        return take(*args, **kwargs)

    take = receive.receive_batch
    monkeypatch.setattr(receive, "receive_batch", slow)
    pulling.far.write(*facts(6))
    pulling.start()
    assert held.wait(20)
    # One is being stored, one is read, one has come; the fourth is not asked for.
    pulling.far.until(lambda: [f.start for f in pulling.far.calls("fetch")][-1] == 3)
    # And what is not stored is not confirmed.
    assert [fetch.confirm for fetch in pulling.far.calls("fetch")] == [None] * 4
    go.set()
    pulling.until_confirmed(6)
    asked = pulling.far.calls("fetch")
    assert [fetch.start for fetch in asked][1:] == [1, 2, 3, 4, 5, 6, 7]
    # While there is more at once a fetch does not confirm; the one that waits for news does.
    assert [fetch.confirm for fetch in asked][:-1] == [None] * 7
    assert asked[-1].confirm is not None


def test_Z7_a_link_that_is_far_behind_confirms_now_and_then(
    pulling: Pulling, monkeypatch: Any
) -> None:
    monkeypatch.setattr("holdfast.node.links.appetite.LINK_BATCH_ROWS", 1)
    monkeypatch.setattr("holdfast.rules.links.LINK_BATCH_ROWS", 1)
    monkeypatch.setattr("holdfast.node.links.connection.LINK_CONFIRM_MS", 60_000)
    pulling.far.write(*facts(40))
    pulling.start()
    pulling.far.until(lambda: [fetch.start for fetch in pulling.far.calls("fetch")][-1:] == [41])
    said = [at for at, fetch in enumerate(pulling.far.calls("fetch")[1:], 1) if fetch.confirm]
    assert said == [9, 17, 25, 33, 41]


def test_Z2_a_fetch_that_waits_does_not_hold_up_the_confirmation(
    pulling: Pulling, monkeypatch: Any
) -> None:
    take = receive.receive_batch

    def take_late(*args: Any, **kwargs: Any) -> Any:
        pulling.far.until(lambda: pulling.far.waiting)
        return take(*args, **kwargs)

    monkeypatch.setattr(receive, "receive_batch", take_late)
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    assert [said.offset for said in pulling.far.calls("confirm")] == [1]
    assert pulling.far.calls("confirm")[0].epoch == 1


def test_Z6_the_source_is_asked_not_to_send_back_what_came_from_here(pulling: Pulling) -> None:
    pulling.start(subjects=["s"], classes=["facts"])
    pulling.far.until(lambda: pulling.far.waiting)
    asked = pulling.far.filters[CONSUMER]
    assert asked.beyond == "ana"
    assert asked.origins == ("bob",)
    assert (asked.meshes, asked.subjects, asked.classes) == ((MESH,), ("s",), ("facts",))


def test_Z7_what_a_filter_leaves_out_counts_as_read(pulling: Pulling) -> None:
    others = [fact_append(f"other{n}", "is", n, lamport=n) for n in range(1, 6)]
    pulling.far.write(*others, fact_append("s1", "is", 1, lamport=9), *others[:1])
    pulling.start(subjects=["s"])
    pulling.until_confirmed(7)
    status = pulling.until(LinkState.LIVE)
    assert (status.received, status.new, status.cursor, status.lag) == (1, 1, 7, 0)


def test_Z7_a_link_that_is_far_behind_says_so(pulling: Pulling, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.node.links.appetite.LINK_BATCH_ROWS", 2)
    monkeypatch.setattr("holdfast.rules.links.LINK_BATCH_ROWS", 2)
    monkeypatch.setattr("holdfast.node.links.status.LINK_BATCH_ROWS", 2)
    pulling.far.write(*facts(5))
    pulling.start()
    pulling.until(LinkState.LIVE)
    assert [status.state for status in pulling.seen] == [LinkState.CATCHING_UP, LinkState.LIVE]
    assert LINK_BATCH_ROWS > 2


# --- the network ----------------------------------------------------------------------------------


def test_Z7_a_source_that_is_away_is_tried_again_until_it_is_back(pulling: Pulling) -> None:
    pulling.far.will("register", Unreachable("nobody there"), Unreachable("nobody there"))
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    pulling.until(LinkState.LIVE)
    waits = [status for status in pulling.seen if status.state is LinkState.WAITING]
    assert [status.attempts for status in waits] == [1, 2]
    assert waits[0].last_error is not None
    assert waits[0].last_error.code == "unreachable"
    assert waits[0].retry_at is not None
    assert pulling.status.attempts == 0


def test_Z7_a_connection_that_breaks_costs_nothing_but_the_batch_on_its_way(
    pulling: Pulling,
) -> None:
    pulling.far.write(*facts(3))
    pulling.start()
    pulling.until_confirmed(3)
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.far.will("fetch", Unreachable("cut"))
    pulling.far.write(*facts(2, 4))
    pulling.until_confirmed(5)
    status = pulling.until(LinkState.LIVE)
    assert (status.new, status.known) == (5, 0)
    assert [entry.entity for entry in pulling.node.log.range()] == ["s1", "s2", "s3", "s4", "s5"]


def test_Z7_a_lost_confirmation_is_said_again(pulling: Pulling) -> None:
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.far.frontiers[CONSUMER] = 0
    pulling.far.lines[-1].abort()
    pulling.until_confirmed(1)
    assert pulling.far.calls("fetch")[-1].confirm == 1
    assert pulling.status.new == 1


@pytest.mark.parametrize("call", ["register", "fetch", "object_size", "object"])
def test_Z7_a_source_that_hangs_is_left_at_once_when_the_node_ends(
    pulling: Pulling, call: str
) -> None:
    pulling.far.will(call, lambda line, what: line.hang())
    content = b"x" * 100_000
    pulling.far.share(content)
    pulling.far.write(file_share("a.bin", content))
    pulling.start()
    pulling.far.until(lambda: pulling.far.calls(call))
    assert pulling.link_manager.stop(10)
    assert pulling.status.state is LinkState.STOPPED
    assert all(line.closed for line in pulling.far.lines)


def test_Z7_a_source_that_answers_nothing_at_once_is_not_asked_as_fast(pulling: Pulling) -> None:
    at: list[float] = []

    def nothing(line: FarLine, fetch: Fetch) -> Batch:
        at.append(monotonic())
        return line.page(fetch)

    # The first asks where the log begins, the second how we stand; then it would wait for news.
    pulling.far.will("fetch", FarLine._fetch, FarLine._fetch, *[nothing] * 3)
    pulling.start()
    pulling.far.until(lambda: pulling.far.waiting)
    assert len(at) == 3
    gaps_ms = [(later - earlier) * 1000 for earlier, later in pairwise(at)]
    assert min(gaps_ms) > BACKOFF_MS_MIN / 2


# --- a source that lies ---------------------------------------------------------------------------


def test_Z8_an_origin_that_the_link_does_not_carry_is_refused_with_its_batch(
    pulling: Pulling,
) -> None:
    forged = fact_append("s2", "is", 2, origin="eve", lamport=2)

    def lie(line: FarLine, fetch: Fetch) -> Batch:
        good = facts(1)[0]
        return Batch(1, 1, 2, fetch.start or 1, 2, [1, 2], [good, forged])

    pulling.far.write(*facts(2))
    pulling.far.will("fetch", FarLine._fetch, lie)
    pulling.start()
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert status.last_error.code == "forged_origin"
    assert pulling.cursor == (1, 0)
    assert pulling.node.log.head().offset == 0
    assert status.retry_at is not None
    assert status.retry_at - status.last_error.at == BACKOFF_MS_MAX
    # The operator looks, the source is honest again: it goes on at once.
    pulling.link_manager.refresh()
    pulling.until_confirmed(2)


def test_Z8_our_own_name_is_not_taken_from_others(pulling: Pulling) -> None:
    ours = fact_append("s1", "is", 1, origin="ana", lamport=1)
    pulling.far.will("fetch", FarLine._fetch, lambda line, fetch: Batch(1, 1, 1, 1, 1, [1], [ours]))
    pulling.far.write(*facts(1))
    pulling.start(carries=["any"])
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert status.last_error.code == "forged_origin"


@pytest.mark.parametrize(
    "answer",
    [
        lambda line, fetch: Batch(1, 1, 9, 3, 9, [9], facts(1)),
        lambda line, fetch: Batch(1, 1, 1, 1, 1, [1], [fact_append("o", "is", 1, mesh="other")]),
    ],
    ids=["a hole", "another mesh"],
)
def test_Z8_what_was_not_asked_for_is_refused(pulling: Pulling, answer: Any) -> None:
    pulling.far.write(*facts(1))
    pulling.far.will("fetch", FarLine._fetch, answer)
    pulling.start()
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert status.last_error.code == "bad_answer"
    assert pulling.cursor == (1, 0)


@pytest.mark.parametrize(
    "error",
    [BadAnswer("what"), ZoneNotTrusted("who"), NotGranted("not that mesh")],
    ids=lambda error: error.code,
)
def test_Z8_who_is_refused_says_so_and_tries_again_when_told(pulling: Pulling, error: Any) -> None:
    pulling.far.will("register", error)
    pulling.far.write(*facts(1))
    pulling.start()
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert (status.last_error.code, status.last_error.message) == (error.code, error.message)
    pulling.link_manager.refresh()
    pulling.until_confirmed(1)
    pulling.until(LinkState.LIVE)


def test_Z8_an_answer_from_another_place_is_refused(pulling: Pulling) -> None:
    pulling.far.write(*facts(3))
    pulling.start()
    pulling.until_confirmed(3)
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.far.will("fetch", lambda line, fetch: Batch(1, 1, 4, 1, 2, [1, 2], facts(2)))
    pulling.far.write(*facts(1, 4))
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert "asked from 5 on and answered from 1" in status.last_error.message


def test_Z7_a_bad_envelope_is_set_aside_and_the_rest_goes_on(pulling: Pulling) -> None:
    pulling.far.write(facts(1)[0], b"\xc1 no envelope", facts(1, 2)[0])
    pulling.start()
    pulling.until_confirmed(3)
    status = pulling.until(LinkState.LIVE)
    assert (status.new, status.quarantined) == (2, 1)
    (row,) = pulling.links.quarantine("bob")
    assert (row.offset, row.code, row.raw) == (2, "bad_envelope", b"\xc1 no envelope")


def test_Z7_a_full_quarantine_stops_the_link_until_somebody_looks(
    pulling: Pulling, monkeypatch: Any
) -> None:
    for module in (rules, receive_step):
        monkeypatch.setattr(module, "QUARANTINE_ROWS_MAX", 2)
    pulling.far.write(b"\xc1 1", b"\xc1 2", facts(1)[0])
    pulling.start()
    status = pulling.until(LinkState.QUARANTINE_FULL)
    assert (status.quarantined, status.retry_at) == (2, None)
    tried = len(pulling.far.lines)
    pulling.link_manager.refresh()
    pulling.far.until(lambda: len(pulling.far.lines) > tried)
    pulling.until(LinkState.QUARANTINE_FULL)
    assert pulling.links.drop_all_quarantined("bob") == 2
    pulling.far.write(*facts(1, 2))
    pulling.link_manager.refresh()
    pulling.until_confirmed(4)
    assert pulling.until(LinkState.LIVE).quarantined == 0


def test_Z7_a_quarantine_that_fills_up_within_a_batch_stops_the_link(
    pulling: Pulling, monkeypatch: Any
) -> None:
    for module in (rules, receive_step):
        monkeypatch.setattr(module, "QUARANTINE_ROWS_MAX", 2)
    monkeypatch.setattr(receive_step, "LINK_BATCH_BYTES", 1)  # a transaction for each
    pulling.far.write(b"\xc1 1", b"\xc1 2", b"\xc1 3")
    pulling.start()
    pulling.until(LinkState.QUARANTINE_FULL)
    assert pulling.cursor == (1, 2)


def test_Z7_a_batch_without_room_in_the_quarantine_waits_for_a_person(
    pulling: Pulling, monkeypatch: Any
) -> None:
    for module in (rules, receive_step):
        monkeypatch.setattr(module, "QUARANTINE_ROWS_MAX", 2)
    pulling.far.write(*facts(1), b"\xc1 1", b"\xc1 2", b"\xc1 3")
    pulling.start()
    status = pulling.until(LinkState.QUARANTINE_FULL)
    assert (status.quarantined, status.retry_at) == (0, None)
    assert status.last_error is not None
    assert "holdfast link quarantine bob" in status.last_error.hint
    assert pulling.cursor == (1, 0)


# --- epochs and truncation ------------------------------------------------------------------------


def test_Z6_a_source_that_was_restored_is_read_from_its_beginning(pulling: Pulling) -> None:
    pulling.far.write(*facts(3))
    pulling.start()
    pulling.until_confirmed(3)
    pulling.far.until(lambda: pulling.far.waiting)
    with pulling.far.moved:
        # Restored to its second entry, and then it wrote something else.
        pulling.far.epoch = 2
        pulling.far.frontiers[CONSUMER] = 0
        pulling.far.raws[2:] = [fact_append("s9", "is", 9, lamport=9)]
    pulling.far.lines[-1].abort()
    pulling.until_confirmed(3)
    status = pulling.until(LinkState.LIVE)
    assert (status.epoch, status.cursor) == (2, 3)
    assert (status.new, status.known) == (4, 2)
    assert [entry.entity for entry in pulling.node.log.range()] == ["s1", "s2", "s3", "s9"]


def test_Z6_a_source_that_changes_its_epoch_for_ever_is_not_asked_for_ever(
    pulling: Pulling,
) -> None:
    pulling.far.write(*facts(1))
    changes = [EpochChanged("again", epoch=n) for n in range(2, 5)]
    pulling.far.will("fetch", *changes)
    pulling.start()
    pulling.until_confirmed(1)
    states = [status.state for status in pulling.seen]
    assert LinkState.LIVE in states
    assert len(pulling.far.calls("fetch")) < 10


def test_Z5_what_is_gone_is_never_skipped_by_itself(pulling: Pulling) -> None:
    pulling.far.write(*facts(2))
    pulling.start()
    pulling.until_confirmed(2)
    pulling.links.pause("bob")
    pulling.link_manager.refresh()
    pulling.until(LinkState.PAUSED)
    pulling.far.write(*facts(3, 3))
    pulling.far.truncate(5)
    pulling.links.resume("bob")
    pulling.link_manager.refresh()
    status = pulling.until(LinkState.TRUNCATED)
    assert status.retry_at is None
    assert status.last_error is not None
    assert status.last_error.code == "truncated"
    assert pulling.cursor == (1, 2)
    assert pulling.links.resume("bob", skip_missing=True).cursor == 4
    pulling.link_manager.refresh()
    pulling.until_confirmed(5)
    assert [entry.entity for entry in pulling.node.log.range()] == ["s1", "s2", "s5"]


def test_Z5_a_restored_source_that_lacks_what_was_never_read_is_truncated(
    pulling: Pulling,
) -> None:
    pulling.far.write(*facts(2))
    pulling.start()
    pulling.until_confirmed(2)
    pulling.far.until(lambda: pulling.far.waiting)
    with pulling.far.moved:
        pulling.far.epoch = 2
        pulling.far.raws += facts(4, 3)
    pulling.far.truncate(5)
    pulling.far.lines[-1].abort()
    pulling.until(LinkState.TRUNCATED)
    assert pulling.cursor == (2, 0)
    assert pulling.links.resume("bob", skip_missing=True).cursor == 4
    pulling.link_manager.refresh()
    pulling.until_confirmed(6)


@pytest.mark.parametrize(("first", "state"), [(2, LinkState.LIVE), (4, LinkState.TRUNCATED)])
def test_Z5_a_restored_source_that_has_forgotten_what_it_wrote_since_is_truncated(
    pulling: Pulling, first: int, state: LinkState
) -> None:
    """Restored to its second entry: from the third on its offsets are those of other entries."""
    pulling.far.write(*facts(5))
    pulling.start()
    pulling.until_confirmed(5)
    pulling.far.until(lambda: pulling.far.waiting)
    with pulling.far.moved:
        pulling.far.epoch = 2
        pulling.far.raws[2:] = facts(6, 11)
        pulling.far.filters.clear()  # somebody retired us, too
        pulling.far.frontiers.clear()
    pulling.far.truncate(first)
    pulling.far.lines[-1].abort()
    pulling.far.until(lambda: pulling.status.epoch == 2 and pulling.status.state is state)
    if state is LinkState.LIVE:
        pulling.until_confirmed(8)
        assert pulling.node.log.head().offset == 11


def test_Z5_what_a_restored_source_relays_proves_nothing_about_what_it_has_forgotten(
    pulling: Pulling,
) -> None:
    """We have the entry that its log begins with now, but it may have come to us by another way,
    and to the source after it was restored.
    """
    relayed = [fact_append(f"s{n}", "is", n, lamport=n, origin="cai") for n in range(1, 6)]
    pulling.far.write(*relayed)
    pulling.start(carries=["any"])
    pulling.until_confirmed(5)
    pulling.far.until(lambda: pulling.far.waiting)
    with pulling.far.moved:
        pulling.far.epoch = 2
    pulling.far.truncate(3)
    pulling.far.lines[-1].abort()
    pulling.until(LinkState.TRUNCATED)


def test_Z6_a_new_link_begins_where_the_log_does_and_says_so(
    pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    pulling.far.write(*facts(6))
    pulling.far.truncate(5)
    pulling.far.epoch = 3
    pulling.start()
    pulling.until_confirmed(6)
    assert pulling.cursor == (3, 6)
    assert pulling.until(LinkState.LIVE).new == 2
    assert "bob begins at offset 5" in caplog.text


def test_Z6_a_reader_that_is_left_from_an_earlier_link_is_replaced(pulling: Pulling) -> None:
    pulling.far.filters[CONSUMER] = Filter()
    pulling.far.frontiers[CONSUMER] = 99
    pulling.start()
    pulling.far.until(lambda: pulling.far.waiting)
    assert pulling.far.frontiers[CONSUMER] == 0


def _replaced(pulling: Pulling, *raws: bytes, kept: int = 0) -> None:
    """The source is another one under the old name, or was set back without knowing it."""
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.links.pause("bob")
    pulling.link_manager.refresh()
    pulling.until(LinkState.PAUSED)
    with pulling.far.moved:
        pulling.far.raws[kept:] = raws
        pulling.far.filters.clear()
        pulling.far.frontiers.clear()
    pulling.links.resume("bob")
    pulling.link_manager.refresh()


@pytest.mark.parametrize("regrown", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_Z5_another_log_in_the_same_epoch_is_read_from_its_beginning(
    pulling: Pulling, caplog: pytest.LogCaptureFixture, kept: int, regrown: int
) -> None:
    pulling.far.write(*facts(3))
    pulling.start()
    pulling.until_confirmed(3)
    _replaced(pulling, *facts(regrown, 11), kept=kept)
    pulling.until_confirmed(kept + regrown)
    pulling.far.until(lambda: pulling.status.cursor == kept + regrown)
    expected = ["s1", "s2", "s3", *(f"s{n}" for n in range(11, 11 + regrown))]
    assert [entry.entity for entry in pulling.node.log.range()] == expected
    assert "is not the one that was read" in caplog.text


def test_Z5_another_log_that_begins_later_is_truncated(pulling: Pulling) -> None:
    pulling.far.write(*facts(5))
    pulling.start()
    pulling.until_confirmed(5)
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.far.truncate(3)
    _replaced(pulling, *facts(9, 11))
    pulling.until(LinkState.TRUNCATED)
    assert pulling.links.resume("bob", skip_missing=True).cursor == 2
    pulling.link_manager.refresh()
    pulling.until_confirmed(11)
    assert pulling.node.log.head().offset == 14


def test_Z6_what_this_node_has_forgotten_does_not_make_it_another_log(
    pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    pulling.far.write(*facts(3))
    pulling.start()
    pulling.until_confirmed(3)
    team(pulling.node).facts.append("own", "is", 1)
    pulling.node.sweep(Ttl(log_ms=0, dedupe_ms=0))
    assert pulling.node.log.head().first == 4
    _replaced(pulling, *pulling.far.raws)
    pulling.far.write(*facts(1, 4))
    pulling.until_confirmed(4)
    assert [entry.entity for entry in pulling.node.log.range(4)] == ["own", "s4"]
    assert "is not the one that was read" not in caplog.text


def _is_longer(things: list[Any], than: int) -> bool:
    return len(things) > than


def test_Z6_the_same_log_is_read_on_whatever_stands_before_the_cursor(
    pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    """What was set aside, what cannot be read, what the filter leaves out, and what is gone."""
    other_id = fact_append("s2", "is", 2, lamport=2, id=make_id(2))
    taken = fact_append("s2", "is", 3, lamport=3, id=make_id(2))
    left_out = [fact_append("t", "is", n, lamport=9, origin="cid") for n in range(40)]
    pulling.far.write(*facts(1))
    pulling.start()
    absurd = fact_append("s3", "is", 3, lamport=2 * LAMPORT_LEAP_MAX)
    steps = [[taken, other_id], [b"garbage", absurd], left_out, facts(1, 50)]
    for number, more in enumerate(steps):
        pulling.far.write(*more)
        pulling.until_confirmed(pulling.far.head)
        pulling.far.until(lambda: pulling.far.waiting)
        if number == 1:
            pulling.links.drop_all_quarantined("bob")
        if number == 3:
            pulling.far.truncate(pulling.far.head)
            pulling.far.truncate(pulling.far.head + 1)
            with pulling.far.moved:
                pulling.far.filters.clear()  # retired by somebody
        begun = len(pulling.far.lines)
        pulling.far.lines[-1].abort()
        pulling.far.until(partial(_is_longer, pulling.far.lines, begun))
    pulling.far.write(*facts(1, 60))
    pulling.until_confirmed(pulling.far.head)
    assert pulling.status.known == 0
    assert "is not the one that was read" not in caplog.text
    assert pulling.links.get("bob").quarantined == 0


# --- objects --------------------------------------------------------------------------------------


def test_Z2_an_object_is_here_before_the_entry_that_names_it(pulling: Pulling) -> None:
    content = bytes(range(256)) * 1000
    sha = pulling.far.share(content)
    pulling.far.write(file_share("a.bin", content))
    seen: list[int] = []

    def piece(line: FarLine, what: tuple[str, int, int]) -> bytes:
        seen.append(pulling.node.log.head().offset)
        return content[what[1] : what[1] + what[2]]

    pulling.far.will("object", piece)
    pulling.start()
    pulling.until_confirmed(1)
    assert seen == [0]
    assert team(pulling.node).files.read("a.bin", peer="bob") == content
    status = pulling.until(LinkState.LIVE)
    assert (status.objects_pulled, status.objects_missing) == (1, 0)
    assert status.bytes > len(content)
    assert pulling.far.calls("object_size") == [sha]


def test_Z7_a_large_object_goes_on_where_it_was_cut(pulling: Pulling, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.node.core.object_transfer.OBJECT_RANGE_BYTES", 40_000)
    content = bytes(range(256)) * 400
    sha = pulling.far.share(content)

    def give(line: FarLine, what: tuple[str, int, int]) -> bytes:
        return content[what[1] : what[1] + what[2]]

    pulling.far.will("object", give, Unreachable("cut"))
    pulling.far.write(file_share("a.bin", content))
    pulling.start()
    pulling.until_confirmed(1)
    asked = [(start, size) for _, start, size in pulling.far.calls("object")]
    assert asked[:3] == [(0, 40_000), (40_000, 40_000), (40_000, 20_000)], "less after a break"
    assert asked[3:] == [(60_000, 40_000), (100_000, 2_400)], "and then more again"
    assert pulling.node._engine.blobs.read(sha) == content
    assert OBJECT_RANGE_BYTES > 40_000


def test_Z7_an_object_that_a_sweep_takes_before_its_entry_is_applied_is_brought_again(
    pulling: Pulling, monkeypatch: Any
) -> None:
    """It lay here already, as one that nothing named any more."""
    content = b"x" * 70_000
    sha = pulling.far.share(content)
    pulling.engine.blobs.put(content)
    take = receive.receive_batch

    def after_a_sweep(*args: Any, **kwargs: Any) -> Any:
        if not pulling.far.calls("object"):
            pulling.engine.blobs.unlink(sha)
        return take(*args, **kwargs)

    monkeypatch.setattr(receive, "receive_batch", after_a_sweep)
    pulling.far.write(file_share("a.bin", content), *facts(1, 2))
    pulling.start()
    pulling.until_confirmed(2)
    assert team(pulling.node).files.read("a.bin", peer="bob") == content
    assert pulling.node.log.head().offset == 2


def test_Z7_an_object_that_another_link_finishes_meanwhile_is_no_trouble(
    pulling: Pulling, monkeypatch: Any
) -> None:
    monkeypatch.setattr("holdfast.node.core.object_transfer.OBJECT_RANGE_BYTES", 40_000)
    content = bytes(range(256)) * 400
    sha = pulling.far.share(content)
    blobs = pulling.engine.blobs

    def give(line: FarLine, what: tuple[str, int, int]) -> bytes:
        return content[what[1] : what[1] + what[2]]

    def give_late(line: FarLine, what: tuple[str, int, int]) -> bytes:
        blobs.put_piece(sha, 40_000, content[40_000:])
        blobs.finish(sha, len(content))
        return give(line, what)

    def give_after_a_loss(line: FarLine, what: tuple[str, int, int]) -> bytes:
        for draft in [found for found in blobs.scan() if isinstance(found, DraftFile)]:
            assert blobs.remove_draft(draft)
        return give(line, what)

    pulling.far.will("object", give, give_after_a_loss, give, give_late)
    pulling.far.write(file_share("a.bin", content))
    pulling.start()
    pulling.until_confirmed(1)
    assert team(pulling.node).files.read("a.bin", peer="bob") == content
    assert LinkState.REFUSED not in [status.state for status in pulling.seen]


def test_Z8_an_object_that_is_another_is_thrown_away(pulling: Pulling) -> None:
    content = b"x" * 70_000
    pulling.far.share(content)
    pulling.far.will("object", lambda line, what: b"y" * 70_000)
    pulling.far.write(file_share("a.bin", content))
    pulling.start()
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert status.last_error.code == "bad_answer"
    assert pulling.cursor == (1, 0)
    pulling.link_manager.refresh()
    pulling.until_confirmed(1)
    assert team(pulling.node).files.read("a.bin", peer="bob") == content


@pytest.mark.parametrize("answer", [b"", b"x" * 70_001], ids=["none", "more"])
def test_Z8_a_piece_of_another_size_is_refused(pulling: Pulling, answer: bytes) -> None:
    content = b"x" * 70_000
    pulling.far.share(content)
    pulling.far.will("object", lambda line, what: answer)
    pulling.far.write(file_share("a.bin", content))
    pulling.start()
    status = pulling.until(LinkState.REFUSED)
    assert status.last_error is not None
    assert status.last_error.code == "bad_answer"


def test_Z2_an_object_that_the_source_does_not_have_is_counted_and_done_without(
    pulling: Pulling,
) -> None:
    pulling.far.write(file_share("a.bin", b"x" * 70_000), *facts(1, 2))
    pulling.start()
    pulling.until_confirmed(2)
    (info,) = team(pulling.node).files.list(peer="bob")
    assert not info.here
    status = pulling.until(LinkState.LIVE)
    assert (status.objects_pulled, status.objects_missing, status.new) == (0, 1, 2)


# --- what is wrong here ---------------------------------------------------------------------------


def test_Z7_a_full_disk_is_told_and_tried_again(pulling: Pulling) -> None:
    full = [DiskFull("no room"), DiskFull("no room")]

    def admit() -> None:
        if full:
            raise full.pop()

    pulling.engine.admit = admit
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    states = [status.state for status in pulling.seen]
    assert states.count(LinkState.DISK_FULL) == 2
    assert states[-1] is LinkState.LIVE


def test_Z6_a_fault_of_ours_is_told_with_its_trace_and_does_not_end_the_link(
    pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(line: FarLine, what: Any) -> None:
        raise ZeroDivisionError("nobody thought of this")

    pulling.far.will("register", burst)
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    (failed,) = (status for status in pulling.seen if status.state is LinkState.WAITING)
    assert failed.last_error is not None
    assert failed.last_error.code == "internal"
    assert "nobody thought of this" in failed.last_error.message
    assert any(record.exc_info for record in caplog.records)


def test_Z6_a_listener_that_fails_does_not_end_the_link(pulling: Pulling) -> None:
    def deaf(status: LinkStatus) -> None:
        pulling.far.tell()
        raise ZeroDivisionError("not listening")

    pulling.link_manager._on_change = deaf
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    pulling.until(LinkState.LIVE)


def test_Z6_trouble_is_logged_once_and_not_with_every_try(
    pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    pulling.far.will("register", *[Unreachable("away")] * 3)
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    said = [record for record in caplog.records if "away" in record.getMessage()]
    assert len(said) == 1


# --- what operators do ----------------------------------------------------------------------------


def test_Z6_a_link_is_paused_at_once_and_resumed_where_it_was(pulling: Pulling) -> None:
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    pulling.far.until(lambda: pulling.far.waiting)
    pulling.links.pause("bob")
    pulling.link_manager.refresh()
    status = pulling.until(LinkState.PAUSED)
    assert (status.attempts, status.retry_at) == (0, None)
    asked = len(pulling.far.asked)
    pulling.far.write(*facts(1, 2))
    pulling.link_manager.refresh()
    assert len(pulling.far.asked) == asked
    pulling.links.resume("bob")
    pulling.link_manager.refresh()
    pulling.until_confirmed(2)
    assert pulling.until(LinkState.LIVE).new == 2


def test_Z6_a_link_that_is_stored_as_paused_says_nothing_to_its_source(pulling: Pulling) -> None:
    pulling.start(paused=True)
    pulling.until(LinkState.PAUSED)
    assert pulling.far.asked == []


def test_Z6_a_removed_link_ends_and_its_source_is_told(pulling: Pulling) -> None:
    pulling.far.write(*facts(1))
    pulling.start()
    pulling.until_confirmed(1)
    removed = pulling.links.remove("bob")
    assert removed.told
    pulling.link_manager.refresh()
    assert pulling.link_manager.status() == []
    assert CONSUMER not in pulling.far.filters
    assert pulling.node.log.head().offset == 1


def test_Z6_a_link_of_the_same_name_begins_anew(pulling: Pulling) -> None:
    pulling.far.write(*facts(2))
    pulling.start(subjects=["s1"])
    pulling.until_confirmed(2)
    pulling.links.remove("bob")
    pulling.add()
    pulling.link_manager.refresh()
    pulling.far.until(lambda: pulling.status.new + pulling.status.known == 3)
    assert pulling.node.log.head().offset == 2


def test_Z6_a_batch_that_was_asked_for_by_another_link_of_the_name_is_not_taken(
    pulling: Pulling, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What the first one's filter left out would count as read by the second."""
    take = receive.receive_batch
    replaced: list[bool] = []

    def after_a_change(*args: Any, **kwargs: Any) -> Any:
        if not replaced:
            replaced.append(True)
            pulling.links.remove("bob")
            pulling.add()
        return take(*args, **kwargs)

    monkeypatch.setattr(receive, "receive_batch", after_a_change)
    pulling.far.write(*facts(3))
    pulling.start(subjects=["s1"])
    pulling.until_confirmed(3)
    assert [entry.entity for entry in pulling.node.log.range()] == ["s1", "s2", "s3"]
    assert LinkState.REFUSED not in [status.state for status in pulling.seen]
    assert "is not the one that was read" not in caplog.text


def test_Z6_a_new_link_is_found_while_others_work(pulling: Pulling) -> None:
    pulling.link_manager.start()
    assert pulling.link_manager.status() == []
    pulling.far.write(*facts(1))
    pulling.add()
    pulling.link_manager.refresh()
    pulling.until_confirmed(1)


def test_Z6_two_links_to_one_source_have_their_own_state(pulling: Pulling) -> None:
    pulling.far.write(*facts(4))
    pulling.add(subjects=["s1"])
    pulling.links.add("bob-2", "https://bob:7411", "bob", meshes=[MESH], subjects=["s2"])
    pulling.link_manager.start()
    both = (CONSUMER, "zone:ana/bob-2")
    pulling.far.until(lambda: all(pulling.far.frontiers.get(name) == 4 for name in both))
    pulling.links.pause("bob")
    pulling.link_manager.refresh()
    pulling.far.until(lambda: pulling.link_manager.status()[0].state is LinkState.PAUSED)
    pulling.far.write(fact_append("s2", "is", 5, lamport=5))
    pulling.far.until(lambda: pulling.far.frontiers[both[1]] == 5)
    assert pulling.far.frontiers[CONSUMER] == 4
    assert [status.name for status in pulling.link_manager.status()] == ["bob", "bob-2"]


def test_Z8_when_the_keys_of_a_zone_change_it_has_to_prove_itself_again(
    pulling: Pulling,
) -> None:
    pulling.start()
    pulling.far.until(lambda: pulling.far.waiting)
    before = len(pulling.far.lines)
    pulling.link_manager.refresh()
    assert len(pulling.far.lines) == before
    pulling.engine.write("test", lambda tx: tx.zone_put(_zone(KEY, public_key(b"c" * 32))))
    pulling.link_manager.refresh()
    pulling.far.until(lambda: len(pulling.far.lines) > before and pulling.far.waiting)


def test_Z6_nothing_begins_before_the_start_or_after_the_end(pulling: Pulling) -> None:
    pulling.add()
    pulling.link_manager.refresh()
    assert pulling.link_manager.status() == []
    pulling.link_manager.start()
    pulling.far.until(lambda: pulling.far.waiting)
    assert pulling.link_manager.stop(10)
    lines = len(pulling.far.lines)
    pulling.link_manager.refresh()
    assert len(pulling.far.lines) == lines


def test_Z6_a_status_can_be_sent_as_it_is(pulling: Pulling) -> None:
    pulling.far.will("register", Unreachable("away"))
    pulling.start()
    pulling.far.until(lambda: pulling.far.waiting)
    said = msgspec.json.decode(msgspec.json.encode(pulling.status))
    assert said["state"] in {"connecting", "live"}
    assert set(said["last_error"]) == {"code", "message", "hint", "at"}


def test_Z7_a_closed_store_stops_the_link(nodes: Nodes) -> None:
    pulling = Pulling(nodes.open("ana"))
    pulling.far.write(*facts(1))
    stop: Callable[[], Any] = pulling.node._opened.store.stop

    def close(line: FarLine, fetch: Fetch) -> Batch:
        stop()
        return line._fetch(fetch)

    pulling.far.will("fetch", FarLine._fetch, close)
    pulling.start()
    status = pulling.until(LinkState.STOPPED)
    assert status.last_error is not None
    assert status.last_error.code == "store_closed"
    assert pulling.link_manager.stop(10)
