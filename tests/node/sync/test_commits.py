"""What a quorum has committed reaches members that only a broker connects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.broker.object_gc import collect_all
from holdfast.broker.upkeep import BrokerUpkeep
from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.committed_intake import commit_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.core.following.committed_state import give_state
from holdfast.node.core.write_queue import queue_list
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.protocol.commit_page import encode_page
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.rules.envelope import encode
from holdfast.rules.errors import (
    BadCommitPage,
    BadQuorumSnapshot,
    BodyTooLarge,
    CommitForked,
    HoldfastError,
    NotGranted,
    NoVoters,
    PastEnd,
    Truncated,
    UnknownObject,
)
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import COMMIT_PAGE_BYTES_MAX, OBJECT_UNNAMED_MS
from holdfast.rules.quorum.state_rows import CommitRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader
from node.sync.test_live import Pair
from support.commit_pages import mission, page_of, voter_with
from support.daemon import ask
from support.live_broker import MESH
from support.postgres import name_for, server
from support.sole_voter import SoleVoter, give_voters
from support.waiting import until


class Order:
    """Ana votes alone, Bob follows through the broker."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        give_voters(self.engine(0), MESH)
        self.voter = SoleVoter(self.engine(0), MESH)

    def engine(self, at: int) -> NodeEngine:
        return self.pair.up[at].daemon.api.engine

    def commit(self, *names: str) -> None:
        for name in names:
            self.voter.commit(encode(mission(name, origin="ana")))

    def missions(self, at: int = 1) -> list[str]:
        rows = self.engine(at).read("test", lambda tx: tx.entity_list(MESH, "mission", "", 99))
        return [row.id for row in rows]

    def records(self, at: int) -> list[bytes]:
        rows: list[CommitRow] = self.engine(at).read(
            "test", lambda tx: tx.commit_range(MESH, 1, 99)
        )
        return [row.record for row in rows]

    def truncate(self, at: int = 0) -> None:
        """The log of a node no longer has anything up to now."""
        engine = self.engine(at)
        head = engine.read("test", lambda tx: tx.log_bounds()[1])
        engine.store.write(lambda tx: tx.log_truncate(head + 1, 99, engine.ctx.now_ms()))

    def held(self) -> BrokerOrder:
        order: BrokerOrder | None = self.pair.broker.run(self.pair.broker.store.commit_order(MESH))
        assert order is not None
        return order

    def at_broker(self) -> int:
        order = self.pair.broker.run(self.pair.broker.store.commit_order(MESH))
        return 0 if order is None else int(order.last)

    def calls(self, at: int) -> closing[BrokerClient]:
        api = self.pair.up[at].daemon.api
        row = api.engine.read("test", lambda tx: tx.mesh_get(MESH))
        assert row is not None
        assert row.broker_url is not None
        assert row.broker_card is not None
        trust = Trust(api.engine, HomePaths(api.node.home))
        return closing(BrokerClient.of(trust, row.broker_url, row.broker_card))


@pytest.fixture(params=["sqlite", "postgres"])
def order(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Order]:
    given = {}
    if request.param == "postgres":
        given = {"dsn": asyncio.run(server().database(name_for(tmp_path)))}
    pair = Pair(tmp_path, **given)
    pair.begin()
    yield Order(pair)
    pair.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Order]:
    """On SQLite: for what does not depend on the store."""
    pair = Pair(tmp_path)
    pair.begin()
    yield Order(pair)
    pair.close()


def test_Q3_a_member_behind_a_broker_follows_the_order(order: Order) -> None:
    order.commit("a", "b")
    until(lambda: order.missions() == ["a", "b"])
    order.commit("c")
    until(lambda: order.missions() == ["a", "b", "c"])
    assert order.records(1) == order.records(0)
    assert (order.held().first, order.held().last) == (1, 3)
    assert order.engine(1).read("test", lambda tx: commit_trouble(tx, MESH)) == []


def test_Q3_who_was_away_past_truncation_takes_the_state_and_goes_on_by_pages(
    order: Order,
) -> None:
    order.pair.stop_node(1)
    order.pair.broker.stop()
    order.commit("a", "b")
    order.truncate()
    order.commit("c")
    order.pair.broker.start()
    # Nobody can bring the first two as pages: the voter brings the state.
    until(lambda: order.at_broker() == 3)
    assert order.held().state_number == 3
    order.commit("d")
    until(lambda: order.at_broker() == 4)
    assert order.held().first == 4
    order.pair.start_node(1)
    until(lambda: order.missions() == ["a", "b", "c", "d"])
    assert order.records(1) == order.records(0)
    with order.calls(1) as calls, pytest.raises(Truncated):
        calls.commits_page(MESH, 1)


def test_Q3_a_sync_without_a_daemon_waits_for_the_commits_too(alone: Order) -> None:
    alone.pair.stop_node(1)
    alone.commit("a", "b")
    until(lambda: alone.at_broker() == 2)
    home = alone.pair.homes[1]
    with holdfast.open(home, sync="normal") as node:
        engine, paths = node._engine, HomePaths(home)
        assert wait_until_synced(engine, Trust(engine, paths), paths, MESH).done
        row = engine.read("test", lambda tx: tx.quorum_get(MESH))
        assert row is not None
        assert row.number == 2
    alone.pair.start_node(1)


def test_Q3_a_broker_that_went_back_in_time_gets_again_what_it_lost(alone: Order) -> None:
    broker = alone.pair.broker
    alone.commit("a")
    until(lambda: alone.missions() == ["a"])
    broker.stop()
    copy = alone.pair.folder / "copy"
    broker.copy(copy)
    broker.start()
    alone.commit("b", "c")
    until(lambda: alone.missions() == ["a", "b", "c"])
    broker.stop()
    broker.restore(copy)
    broker.start()
    until(lambda: alone.at_broker() == 3)
    alone.commit("d")
    until(lambda: alone.missions() == ["a", "b", "c", "d"])
    assert alone.records(1) == alone.records(0)


def test_Q10_who_may_not_relay_brings_no_commits(alone: Order) -> None:
    alone.commit("a")
    until(lambda: alone.missions() == ["a"])
    alone.commit("b")
    page = encode_page(alone.engine(0).read("test", lambda tx: commits_page(tx, MESH, 1)))
    with alone.calls(1) as calls:
        with pytest.raises(NotGranted):
            calls.bring_commits(MESH, page)
        with pytest.raises(NotGranted):
            calls.name_state(MESH, "ab" * 32, "embedded")
        assert len(calls.commits_page(MESH, 1)) > 0


def test_Q4_a_broker_refuses_another_order_by_its_name(alone: Order) -> None:
    with alone.calls(0) as calls:
        with pytest.raises(NoVoters):
            calls.commits_page(MESH, 1)
        alone.commit("a")
        until(lambda: alone.missions() == ["a"])
        other = page_of(voter_with([mission(name) for name in "xyz"]))
        same_group = msgspec.structs.replace(other, tag=b"s" * 16)
        ahead = msgspec.structs.replace(same_group, first=3, rows=same_group.rows[2:])
        lies: list[tuple[type[HoldfastError], bytes]] = [
            (CommitForked, encode_page(other)),
            (CommitForked, encode_page(same_group)),
            (PastEnd, encode_page(ahead)),
            (BadCommitPage, b"\x90"),
            (BodyTooLarge, bytes(COMMIT_PAGE_BYTES_MAX + 1)),
        ]
        for error, page in lies:
            with pytest.raises(error):
                calls.bring_commits(MESH, page)
        with pytest.raises(UnknownObject):
            calls.name_state(MESH, "ab" * 32, "embedded")
        engine = alone.engine(0)
        begun = engine.blobs.read(give_state(engine, MESH).sha256)[:30]
        for content in (b"no", b"no state at all", begun):
            sha = engine.blobs.put(content).sha256
            calls.put_object(engine, MESH, sha)
            with pytest.raises(BadQuorumSnapshot):
                calls.name_state(MESH, sha, "embedded")
    assert (alone.held().last, alone.held().state_number) == (1, 0)


def test_Q3_a_broker_asks_for_the_state_when_commits_are_old_and_keeps_its_object(
    alone: Order,
) -> None:
    alone.commit("a", "b")
    until(lambda: alone.missions() == ["a", "b"])
    daemon = alone.pair.broker.daemon
    assert daemon is not None
    broker, store = daemon.broker, alone.pair.broker.store
    upkeep = BrokerUpkeep(broker)
    alone.pair.broker.run(upkeep._want_snapshots())
    assert alone.held().state_number == 0, "they are not old"
    broker.retention = msgspec.structs.replace(broker.retention, keep_ms=-1)
    alone.pair.broker.run(upkeep._want_snapshots())
    until(lambda: alone.held().state_number == 2)
    held, now = alone.held(), broker.source.now_ms()
    for later in (0, 2 * OBJECT_UNNAMED_MS):
        alone.pair.broker.run(collect_all(store, now + later))
    size = alone.pair.broker.run(store.object_size(MESH, held.state_sha256))
    assert size == held.state_size


def test_Q1_a_strong_write_behind_a_broker_waits_and_ends_when_its_commit_comes(
    alone: Order,
) -> None:
    alone.commit("a")
    until(lambda: alone.missions() == ["a"])
    socket = f"unix:{alone.pair.homes[1] / 'api.sock'}"
    operations = [{"type": "mission", "id": "z", "fields": {"title": "Zoo"}}]
    body = msgspec.json.encode({"operations": operations, "timeout_ms": 100})
    given = ask(socket, "POST", f"/v1/meshes/{MESH}/quorum/entities", body)
    told = msgspec.json.decode(given.body)
    assert (given.status, told["state"], told["reason"]) == (202, "queued", "no_quorum")
    assert alone.missions() == ["a"], "it was made local"
    local = ask(socket, "GET", f"/v1/meshes/{MESH}/quorum/entities/mission/a?read=local")
    assert (local.status, msgspec.json.decode(local.body)["read"]["mode"]) == (200, "degraded")
    assert ask(socket, "GET", f"/v1/meshes/{MESH}/quorum/entities/mission/a").status == 503

    def waiting(tx: Reader) -> list[tuple[str, str]]:
        found = [write for _, write in queue_list(tx, MESH, 0, 9)]
        return [(str(write.status), str(write.outcome)) for write in found]

    assert alone.engine(1).read("test", waiting) == [("pending", "None")]
    # A voter gets it in some way, under the same id; that it was committed comes by the broker.
    intent = alone.engine(1).read("test", lambda tx: tx.log_find(parse_id(told["id"])))
    assert intent is not None
    alone.voter.commit(intent.raw)
    until(lambda: alone.missions() == ["a", "z"])
    until(lambda: alone.engine(1).read("test", waiting) == [("applied", "applied")])
