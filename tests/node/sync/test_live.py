"""Real daemons and a real broker on loopback: what breaks, comes back, was restored, is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.library.node import Mesh
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.settings import OutboxSettings, Settings
from holdfast.node.snapshots.upload import upload_snapshot
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.sync.status import BrokerStatus, MeshStatus
from holdfast.node.trust.trust import Trust
from holdfast.protocol.broker_http import Member
from holdfast.rules.broker_sync import SyncState
from holdfast.rules.errors import AnotherBroker, HoldfastError, OutboxAgeAboveWindow
from holdfast.rules.keys import public_key
from holdfast.rules.limits import DAY_MS, SYNC_THREADS
from holdfast.rules.rows import JobRow
from holdfast.storage.files.home import HomePaths
from support.daemon import UpInThread, ask, make_home, process, running
from support.live_broker import MESH, PATIENCE_S, LiveBroker, join, share
from support.waiting import until


class Pair:
    """Two homes that share a mesh, their daemons, and the broker between them."""

    def __init__(self, folder: Path, **broker: Any) -> None:
        self.folder = folder
        self.broker = LiveBroker(folder / "hub", **broker)
        self.homes = [make_home(folder / name, name) for name in ("ana", "bob")]
        self._ups: list[ExitStack] = [ExitStack(), ExitStack()]
        self.up: list[UpInThread] = []

    def begin(self) -> None:
        self.broker.start()
        share(self.homes[0], self.broker)
        join(self.homes[1], self.broker, self.homes[0])
        self.start()

    def start(self) -> None:
        self.up = [
            stack.enter_context(running(home))
            for stack, home in zip(self._ups, self.homes, strict=True)
        ]

    def stop_node(self, at: int) -> None:
        self._ups[at].close()

    def start_node(self, at: int) -> None:
        self.up[at] = self._ups[at].enter_context(running(self.homes[at]))

    def close(self) -> None:
        for stack in self._ups:
            stack.close()
        self.broker.stop()

    def mesh(self, at: int) -> Mesh:
        return self.up[at].daemon.api.node.mesh(MESH)

    def state(self, at: int) -> dict[str, object]:
        return {entry.key: entry.value for entry in self.mesh(at).state.list()}

    def broker_status(self, at: int) -> BrokerStatus:
        sync_manager = self.up[at].daemon.api.sync_manager
        assert sync_manager is not None
        (found,) = sync_manager.status()
        return found

    def status(self, at: int) -> MeshStatus:
        (found,) = self.broker_status(at).meshes
        return found

    def connected(self) -> bool:
        states = [self.broker_status(at).state for at in (0, 1)]
        return all(state in (SyncState.ACTIVE, SyncState.IDLE) for state in states)

    def all_sent(self) -> bool:
        return all(not (s.pending or s.inflight) for s in (self.status(0), self.status(1)))

    def agree(self) -> bool:
        return self.all_sent() and self.state(0) == self.state(1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    made.begin()
    yield made
    made.close()


def test_D14_writes_on_both_sides_arrive_on_the_other(pair: Pair) -> None:
    pair.mesh(0).state.set("a", 1)
    pair.mesh(1).state.set("b", 2)
    until(lambda: pair.state(0) == pair.state(1) == {"a": 1, "b": 2})
    until(pair.all_sent)
    assert pair.mesh(0).clock().sync_state in ("active", "idle")
    assert pair.mesh(0).clock().last_sync_at is not None


def test_Q14_audit_events_come_by_a_broker_and_telemetry_does_not(pair: Pair) -> None:
    canary = "stays-with-ana"
    for number in range(3):
        pair.mesh(0).telemetry.set("run", f"{number}", canary)
        pair.mesh(0).audit.append("runAuditEvents", {"n": number})
    pair.mesh(1).audit.append("runAuditEvents", {"by": "bob"})
    until(lambda: all(len(list(pair.mesh(at).audit.list("runAuditEvents"))) == 4 for at in (0, 1)))
    for at in (0, 1):
        found = pair.mesh(at).audit.verify()
        assert [(one.origin, one.last) for one in found] == [("ana", 3), ("bob", 1)]
        assert all(one.sound and one.gapless for one in found)
    assert list(pair.mesh(1).telemetry.list()) == []
    until(pair.all_sent)
    pair.close()
    for folder, holds in (
        (pair.homes[0], True),
        (pair.homes[1], False),
        (pair.broker.folder, False),
    ):
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert any(canary.encode() in held for held in files) is holds, folder


def test_D14_what_was_written_while_the_broker_was_away_is_sent_when_it_is_back(pair: Pair) -> None:
    pair.mesh(0).state.set("before", 1)
    until(lambda: pair.agree() and bool(pair.state(1)))
    pair.broker.stop()
    until(lambda: pair.broker_status(0).state is SyncState.RECONNECTING)
    assert pair.mesh(0).clock().sync_state == "offline"
    for number in range(50):
        pair.mesh(0).state.set(f"a{number}", number)
        pair.mesh(1).state.set(f"b{number}", number)
    assert pair.status(0).pending == 50
    pair.broker.start()
    until(lambda: len(pair.state(0)) == 101 and pair.agree())
    (row,) = {(status.dead, status.quarantined) for status in (pair.status(0), pair.status(1))}
    assert row == (0, 0)


def test_D14_a_node_that_was_down_gets_what_it_missed(pair: Pair) -> None:
    pair.stop_node(1)
    for number in range(300):
        pair.mesh(0).state.set(f"k{number}", number)
    until(lambda: pair.status(0).pending + pair.status(0).inflight == 0)
    pair.start_node(1)
    until(lambda: len(pair.state(1)) == 300)


def test_D2_a_broker_that_is_restarted_again_and_again_has_everything_once(pair: Pair) -> None:
    for round in range(3):
        for number in range(100):
            pair.mesh(0).state.set(f"{round}-{number}", number)
        pair.broker.stop()
        pair.broker.start()
    until(lambda: len(pair.state(1)) == 300 and pair.agree())
    mesh = pair.broker.run(pair.broker.store.mesh_get(MESH))
    assert mesh.seq == 300
    assert pair.broker.run(pair.broker.store.orphans(10)) == []


def test_D6_a_broker_restored_from_an_older_copy_gets_back_what_it_forgot(pair: Pair) -> None:
    pair.mesh(0).state.set("old", 1)
    until(lambda: pair.agree() and bool(pair.state(1)))
    pair.broker.stop()
    copy = pair.folder / "copy"
    pair.broker.copy(copy)
    pair.broker.start()
    for number in range(20):
        pair.mesh(0).state.set(f"a{number}", number)
        pair.mesh(1).state.set(f"b{number}", number)
    until(lambda: len(pair.state(0)) == 41 and pair.agree())
    pair.broker.stop()
    pair.broker.restore(copy)
    pair.mesh(1).state.set("while-away", 1)
    pair.broker.start()
    until(lambda: pair.agree() and len(pair.state(0)) == 42)
    until(lambda: pair.status(0).epoch == pair.status(1).epoch == 2)
    until(lambda: pair.broker.run(pair.broker.store.mesh_get(MESH)).seq == 42)
    # All of it is at the broker again: somebody who comes now gets it from there.
    rows = pair.broker.run(
        pair.broker.store.feed(MESH, _key_of(pair, 1), 0, 1000, 10_000_000, own=True)
    ).rows
    assert len(rows) == 42


def test_D6_a_broker_that_went_back_unseen_is_told_so_by_its_members(pair: Pair) -> None:
    """Its mark went back with it, as in a copy of the whole folder."""
    pair.mesh(0).state.set("old", 1)
    until(lambda: pair.agree() and bool(pair.state(1)))
    pair.broker.stop()
    copy = pair.folder / "copy"
    pair.broker.copy(copy)
    pair.broker.start()
    for number in range(20):
        pair.mesh(0).state.set(f"a{number}", number)
    until(lambda: len(pair.state(1)) == 21 and pair.agree())
    until(lambda: pair.status(0).cursor == 21)
    pair.broker.stop()
    for name in [path.name for path in copy.iterdir() if path.is_file()]:
        pair.broker.restore(copy, name)
    pair.broker.start()
    until(lambda: pair.broker.run(pair.broker.store.mesh_get(MESH)).seq == 21)
    until(lambda: pair.status(0).epoch == pair.status(1).epoch == 2 and pair.agree())


def test_D15_a_member_that_is_removed_is_told_and_one_that_is_back_goes_on(pair: Pair) -> None:
    pair.mesh(0).state.set("a", 1)
    until(lambda: pair.agree() and bool(pair.state(1)))
    key = _key_of(pair, 1)
    member = pair.broker.run(pair.broker.store.member_get(MESH, key))
    pair.broker.run(pair.broker.store.member_remove(MESH, key, 1))
    pair.mesh(1).state.set("b", 1)
    until(lambda: pair.status(1).state == "not_a_member")
    until(lambda: pair.status(1).pending == 1)
    assert pair.mesh(1).clock().sync_state == "not_a_member"
    pair.broker.run(pair.broker.store.member_put(MESH, member))
    pair.stop_node(1)
    pair.start_node(1)
    until(lambda: pair.agree() and pair.state(0) == {"a": 1, "b": 1})


def test_D15_another_broker_at_the_same_address_is_not_spoken_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Pair(tmp_path)
    made.begin()
    made.mesh(0).state.set("a", 1)
    until(made.agree)
    made.broker.stop()
    for name in ("identity.key", "tls.crt", "tls.key"):
        (made.broker.folder / name).unlink(missing_ok=True)
    with pytest.raises(AnotherBroker):
        made.broker.start()
    made.broker.change(replace_key=True)
    made.broker.start()
    until(lambda: made.broker_status(0).state is SyncState.STOPPED)
    problem = made.broker_status(0).last_error
    assert problem is not None
    assert problem.code == "zone_not_trusted"
    made.mesh(0).state.set("b", 1)
    assert made.status(0).pending == 1
    made.close()


def test_D15_over_tls_both_sides_prove_themselves(tmp_path: Path) -> None:
    made = Pair(tmp_path, tls=True)
    made.begin()
    made.mesh(0).state.set("a", 1)
    until(lambda: made.agree() and made.state(1) == {"a": 1})
    made.close()


def test_S9_the_content_of_a_large_file_travels_before_what_names_it(pair: Pair) -> None:
    content = bytes(range(256)) * 1024
    pair.mesh(0).files.share("large.bin", content)
    pair.mesh(0).state.set("after", 1)
    until(lambda: pair.state(1) == {"after": 1})
    until(lambda: bool(list(pair.mesh(1).files.list(peer="ana"))))
    assert pair.mesh(1).files.read("large.bin", peer="ana") == content


def test_D14_a_thousand_offline_operations_on_both_converge(pair: Pair) -> None:
    pair.broker.stop()
    until(lambda: pair.broker_status(0).state is SyncState.RECONNECTING)
    for at in (0, 1):
        for number in range(1000):
            pair.mesh(at).state.set(f"k{number % 700}", f"{at}-{number}")
    pair.broker.start()
    until(pair.agree)
    until(lambda: len(pair.state(0)) == 700)


def _key_of(pair: Pair, at: int) -> bytes:
    return public_key(pair.up[at].daemon.api.trust.seed())


# --- messages, snapshots, restores ---------------------------------------------------------------


def test_D5_a_topic_a_dm_and_an_urgent_one_arrive_in_the_inbox(pair: Pair) -> None:
    with_calls(pair, 0, lambda calls: calls.declare(MESH, "topic", "news"))
    with_calls(pair, 1, lambda calls: calls.subscribe(MESH, "news"))
    until(lambda: len(known_members(pair, 0)) == 2)
    pair.mesh(0).send("to all", topic="news")
    pair.mesh(0).send("to bob", dm="bob")
    pair.mesh(0).send("at once", topic="news", priority="now")
    until(lambda: len(list(pair.mesh(1).inbox.list())) == 3)
    assert sorted(found.preview for found in pair.mesh(1).inbox.list()) == [
        "at once",
        "to all",
        "to bob",
    ]
    assert list(pair.mesh(0).inbox.list()) == []
    until(pair.all_sent)


def test_D12_a_message_to_nowhere_holds_up_nothing_else(pair: Pair) -> None:
    pair.mesh(0).send("lost", topic="nowhere")
    pair.mesh(0).state.set("a", 1)
    until(lambda: pair.state(1) == {"a": 1})
    until(lambda: pair.status(0).pending == 1 and pair.status(0).refused > 0)
    with_calls(pair, 0, lambda calls: calls.declare(MESH, "topic", "nowhere"))
    until(pair.all_sent)


def test_D6_a_node_that_stayed_away_too_long_takes_a_snapshot(pair: Pair) -> None:
    pair.stop_node(1)
    for number in range(300):
        pair.mesh(0).state.set(f"k{number}", number)
    pair.mesh(0).files.share("large", bytes(100_000))
    until(lambda: not (pair.status(0).pending or pair.status(0).inflight))
    until(lambda: pair.status(0).cursor == 301)
    node = pair.up[0].daemon.api.node
    with_calls(pair, 0, lambda calls: upload_snapshot(node._engine, calls, MESH))
    late = node._engine.ctx.now_ms() + 400 * DAY_MS
    pair.broker.run(pair.broker.store.sweep(late, 100_000))
    assert pair.broker.run(pair.broker.store.mesh_get(MESH)).first == 302
    pair.mesh(0).state.set("after", 1)
    pair.start_node(1)
    until(lambda: len(pair.state(1)) == 301)
    assert pair.mesh(1).files.read("large", peer="ana") == bytes(100_000)
    until(lambda: pair.status(1).state in ("active", "idle"))
    assert pair.status(1).quarantined == 0


def test_D13_a_node_restored_from_its_backup_gets_back_what_it_had_sent(
    pair: Pair, tmp_path: Path
) -> None:
    pair.mesh(1).state.set("before", 1)
    until(lambda: pair.agree() and bool(pair.state(0)))
    backup(pair.up[1].daemon.api.node, tmp_path / "backup")
    pair.mesh(1).state.set("mine", 1)
    pair.mesh(0).state.set("hers", 1)
    until(lambda: pair.agree() and len(pair.state(0)) == 3)
    pair.stop_node(1)
    restore(tmp_path / "backup", pair.homes[1], force=True)
    pair.start_node(1)
    until(lambda: pair.state(1) == {"before": 1, "mine": 1, "hers": 1})
    pair.mesh(1).state.set("on", 1)
    until(lambda: pair.agree() and "on" in pair.state(0))


# --- looking at it, and stopping it --------------------------------------------------------------


def test_U4_the_brokers_are_in_the_status_and_the_metrics(pair: Pair) -> None:
    pair.mesh(0).state.set("a", 1)
    until(lambda: pair.agree() and bool(pair.state(1)))
    found = ask(pair.up[0].unix, "GET", "/v1/status").json["brokers"]
    assert [(broker["broker"], broker["state"]) for broker in found] == [("hub", "active")]
    (mesh,) = found[0]["meshes"]
    assert (mesh["mesh"], mesh["pending"], mesh["pushed"]) == (MESH, 0, 1)
    assert ask(pair.up[0].unix, "GET", "/v1/brokers").json["brokers"][0]["url"] == pair.broker.url
    text = ask(pair.up[0].unix, "GET", "/metrics").body.decode()
    assert 'holdfast_sync_pushed_total{mesh="team"} 1.0' in text
    assert 'holdfast_sync_state{broker="hub",state="active"} 1.0' in text


def test_D12_a_paused_mesh_sends_nothing_until_it_is_resumed(pair: Pair) -> None:
    until(pair.connected)
    paused = ask(pair.up[0].unix, "POST", f"/v1/meshes/{MESH}/sync/pause")
    assert paused.json == {"mesh": MESH, "paused": True}
    pair.mesh(0).state.set("a", 1)
    pair.mesh(1).state.set("b", 1)
    until(lambda: pair.state(0) == {"a": 1, "b": 1})
    assert pair.mesh(0).clock().sync_state == "paused"
    assert pair.status(0).pending == 1
    resumed = ask(pair.up[0].unix, "POST", f"/v1/meshes/{MESH}/sync/resume")
    assert resumed.json["was_paused"]
    until(pair.agree)
    assert ask(pair.up[0].unix, "POST", "/v1/meshes/none/sync/pause").code == "unknown_mesh"


def test_S16_a_daemon_that_ends_leaves_nothing_in_flight(pair: Pair) -> None:
    for number in range(200):
        pair.mesh(0).state.set(f"k{number}", number)
    pair.stop_node(0)
    with holdfast.open(pair.homes[0], sync="normal") as node:
        counts = node._engine.read("test", lambda tx: tx.outbox_counts())
        assert ("broker:team", "inflight") not in counts
        assert node.mesh(MESH).clock().sync_state in ("idle", "offline")
    pair.start_node(0)
    until(lambda: len(pair.state(1)) == 200)


def test_D11_a_daemon_that_is_killed_in_the_middle_sends_everything_once(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "hub") as broker:
        home = make_home(tmp_path / "ana", "ana")
        share(home, broker)
        with process(home) as up, holdfast.open(home, sync="normal") as node:
            for number in range(600):
                node.mesh(MESH).state.set(f"k{number}", number)
                if number == 300:
                    until(lambda: broker.run(broker.store.mesh_get(MESH)).seq > 100)
                    up.kill()
        with running(home) as again:
            sync_manager = again.daemon.api.sync_manager
            assert sync_manager is not None
            until(lambda: [s.pending + s.inflight for s in sync_manager.status()[0].meshes] == [0])
        assert broker.run(broker.store.mesh_get(MESH)).seq == 600
        assert broker.run(broker.store.orphans(10)) == []


def test_D14_a_mesh_that_another_process_shares_is_followed_at_once(tmp_path: Path) -> None:
    """The command that shares it writes to the home; the daemon hears of that."""
    with LiveBroker(tmp_path / "hub") as broker:
        home = make_home(tmp_path / "ana", "ana")
        with running(home) as up:
            sync_manager = up.daemon.api.sync_manager
            assert sync_manager is not None
            assert sync_manager.status() == []
            share(home, broker)
            until(lambda: [found.state for found in sync_manager.status()] == [SyncState.ACTIVE])
            up.daemon.api.node.mesh(MESH).state.set("a", 1)
            until(lambda: broker.run(broker.store.mesh_get(MESH)).seq == 1)


def test_D9_a_broker_that_forgets_ids_too_soon_stops_the_sync(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    until(pair.connected)
    pair.broker.stop()
    pair.broker.start()
    assert pair.broker.daemon is not None
    me = pair.broker.daemon.broker.me
    dedupe = {**me.supported["client_message_id_dedupe"], "dedupe_retention_days": 1}
    supported = {**me.supported, "client_message_id_dedupe": dedupe}
    changed = msgspec.structs.replace(me, supported=supported)
    monkeypatch.setattr(pair.broker.daemon.broker, "me", changed)
    for at in (0, 1):
        pair.stop_node(at)
        pair.start_node(at)
    until(lambda: pair.broker_status(0).state is SyncState.STOPPED)
    problem = pair.broker_status(0).last_error
    assert problem is not None
    assert problem.code == "feature_param_below_floor"
    assert "4012" in caplog.text
    assert "'dedupe_retention_days': 1" in caplog.text
    stopped_by(pair, Settings(), "feature_param_below_floor")


def known_members(pair: Pair, at: int) -> list[str]:
    engine = pair.up[at].daemon.api.engine
    return [mate.name for mate in engine.read("test", lambda tx: tx.known_members_list(MESH))]


def with_calls(pair: Pair, at: int, work: Callable[[BrokerClient], object]) -> None:
    api = pair.up[at].daemon.api
    row = api.engine.require_mesh(MESH)
    assert row.broker_url is not None
    assert row.broker_card is not None
    with closing(BrokerClient.of(api.trust, row.broker_url, row.broker_card)) as calls:
        work(calls)


def test_D14_a_broker_whose_calls_hang_takes_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of four meshes waits for it; the content of a file goes to the other one."""
    home = make_home(tmp_path / "ana", "ana")
    hung, well = LiveBroker(tmp_path / "hung"), LiveBroker(tmp_path / "well")
    meshes = [f"mesh-{number}" for number in range(2 * SYNC_THREADS)]
    asked, may_go_on = threading.Semaphore(0), threading.Event()
    with holdfast.open(home, sync="normal") as node:
        for mesh in meshes:
            node.create_mesh(mesh)
    with hung, well:
        share(home, well)
        for mesh in meshes:
            share(home, hung, mesh)
        members = BrokerClient.members

        def hang(client: BrokerClient, mesh: str) -> list[Member]:
            if client.url == hung.url:
                asked.release()
                may_go_on.wait()
            return members(client, mesh)

        monkeypatch.setattr(BrokerClient, "members", hang)
        with running(home) as up:
            for _ in range(SYNC_THREADS):
                assert asked.acquire(timeout=PATIENCE_S)
            try:
                files = up.daemon.api.node.mesh(MESH).files
                files.share("large.bin", bytes(100_000))
                manager = up.daemon.api.sync_manager
                assert manager is not None
                until(
                    lambda: all(
                        not (mesh.pending or mesh.inflight)
                        for broker in manager.status()
                        for mesh in broker.meshes
                        if mesh.mesh == MESH
                    )
                )
            finally:
                may_go_on.set()


# --- what must stop, stops visibly ---------------------------------------------------------------


def stopped_by(pair: Pair, settings: Settings, code: str) -> None:
    """Everybody who looks at the first node sees the same reason."""
    up = pair.up[0]
    ready = ask(up.unix, "GET", "/readyz")
    assert (ready.status, ready.json["status"]) == (503, code)
    assert ready.json["error"]["hint"]
    alive = ask(up.unix, "GET", "/healthz")
    assert alive.status == 200, "a restart would not help"
    report = diagnose(pair.homes[0])
    assert [check.status for check in report.checks if "nothing is exchanged" in check.message] == [
        "fail"
    ]
    api, paths = up.daemon.api, HomePaths(pair.homes[0])
    with pytest.raises(HoldfastError) as raised:
        wait_until_synced(api.engine, api.trust, paths, MESH, outbox=settings.outbox)
    assert raised.value.code == code


def test_D8_a_setting_past_the_window_is_refused_at_the_start_where_the_window_is_known(
    pair: Pair,
) -> None:
    until(pair.connected)
    pair.stop_node(0)
    past = Settings(outbox=OutboxSettings(max_age_hours=30 * 24))
    with pytest.raises(OutboxAgeAboveWindow), running(pair.homes[0], past):
        pytest.fail("it started")
    with holdfast.open(pair.homes[0], sync="normal") as node:
        trust, paths = Trust(node._engine, HomePaths(node.home)), HomePaths(node.home)
        with pytest.raises(OutboxAgeAboveWindow):
            wait_until_synced(node._engine, trust, paths, MESH, outbox=past.outbox)
    pair.start_node(0)
    until(pair.connected)
    assert ask(pair.up[0].unix, "GET", "/readyz").status == 200


def test_D8_a_setting_past_a_window_that_nobody_knew_stops_the_sync_for_all_to_see(
    tmp_path: Path,
) -> None:
    made = Pair(tmp_path)
    made.broker.start()
    share(made.homes[0], made.broker)
    past = Settings(outbox=OutboxSettings(max_age_hours=30 * 24))
    try:
        with holdfast.open(made.homes[0], sync="normal") as node:
            trust, paths = Trust(node._engine, HomePaths(node.home)), HomePaths(node.home)
            with pytest.raises(OutboxAgeAboveWindow):  # nothing waits, and yet it is not well
                wait_until_synced(node._engine, trust, paths, MESH, outbox=past.outbox)
            forget = JobRow(name=f"terms:{made.broker.url}", cursor={}, updated_at=1)
            node._engine.write("test", lambda tx: tx.job_put(forget))
        with running(made.homes[0], past) as up:
            made.up = [up]
            until(lambda: made.broker_status(0).state is SyncState.STOPPED)
            until(lambda: ask(up.unix, "GET", "/readyz").status == 503)
            stopped_by(made, Settings(), "outbox_max_age_above_dedupe_window")
    finally:
        made.close()
