"""A personal mesh becomes a shared one: every phase is durable before the next, whatever stops it.

The broker is a real one, in a thread. A node that dies is one whose next step, a transaction or a
call to the broker, does not happen, or happens without its answer being heard.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.broker_client.objects import BrokerObjects
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import Mesh, Node
from holdfast.node.sharing import publish
from holdfast.node.sharing.publish import Published
from holdfast.node.sharing.sharing import Sharing
from holdfast.node.snapshots import mesh_export, upload
from holdfast.node.snapshots.download import take_snapshot
from holdfast.node.snapshots.upload import is_kept, keep_snapshot, upload_snapshot
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol import mesh_snapshot as mesh_parts
from holdfast.rules.envelope import decode
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BadInput,
    Conflict,
    InviteEnded,
    NotGranted,
    NotShared,
    StoreBusy,
    UnknownKey,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.ids import id_text
from holdfast.rules.invites import Invite, format_invite, parse_invite
from holdfast.rules.keys import card_of
from holdfast.rules.limits import HOUR_MS, INVITE_HOURS_MAX
from holdfast.rules.outbox import lane_of
from holdfast.storage.files.home import HomePaths
from holdfast.transport.session_client import SessionClient
from support.broker_up import BrokerUp, broker_at
from support.snapshot import snapshot

BIG = b"large content " * 6000
SETTLED = Ttl(log_ms=0)


class Died(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    open_now: list[Node] = []

    def home(peer: str) -> Node:
        node = holdfast.open(tmp_path / peer, peer=peer, create=True, sync="normal")
        open_now.append(node)
        return node

    yield home
    for node in open_now:
        node.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows are many, and need several chunks and parts."""
    monkeypatch.setattr(publish, "BACKFILL_ROWS_MAX", 4)
    monkeypatch.setattr(mesh_export, "CHUNK_ROWS", 2)
    monkeypatch.setattr(upload, "MESH_PART_BYTES", 500)


def sharing(node: Node) -> Sharing:
    return Sharing(node._engine, Trust(node._engine, HomePaths(node.home)))


def calls_of(node: Node, mesh: str) -> BrokerClient:
    row = node.mesh(mesh).info()
    assert row.broker_url is not None
    assert row.broker_card is not None
    trust = Trust(node._engine, HomePaths(node.home))
    return BrokerClient.of(trust, row.broker_url, row.broker_card)


def fill(mesh: Mesh, rows: int = 3) -> None:
    for number in range(rows):
        mesh.state.set(f"key {number}", number)
    mesh.state.set("key 0", "again")
    mesh.memory.set("k", {"a": 1}, tags=["t"])
    mesh.facts.append("s", "p", 1)
    task = mesh.tasks.create("t").task
    mesh.tasks.claim(task)
    mesh.files.share("a.txt", b"small")
    mesh.files.share("b.bin", BIG)


def tables(node: Node, slug: str) -> Any:
    return snapshot(node._engine.store)[slug]


def queued(node: Node, mesh: str) -> list[bytes]:
    with node._engine.store.read() as tx:
        return [row.id for row in tx.outbox_list(lane_of(mesh), (), 0, 1000)]


def current(node: Node, mesh: str) -> list[bytes]:
    """Ids of what others need, in the order of the log."""
    with node._engine.store.read() as tx:
        return [
            entry.id
            for entry in tx.log_range(1, 10_000, 10_000)
            if entry.mesh == mesh and mesh_export.is_exported(tx, entry)
        ]


# --- small ---------------------------------------------------------------------------------------


def test_S14_a_small_mesh_goes_through_the_outbox_in_the_order_of_its_log(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("small"))
    told = current(ana, "small")
    done = sharing(ana).publish("small", broker=hub.url)
    assert (done.way, done.rows, done.waiting) == ("backfill", len(told), len(told))
    assert queued(ana, "small") == told
    row = ana.mesh("small").info()
    assert (row.kind, row.broker_url, row.broker_card) == ("shared_owner", hub.url, hub.card)
    assert (row.server_id, row.broker_epoch, row.broker_seq) == (done.server_id, 1, 0)
    assert done.invite is not None
    assert parse_invite(done.invite).mesh == "small"


def test_S14_what_is_written_after_the_transition_leaves_by_itself(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    mesh = ana.create_mesh("after")
    sharing(ana).publish("after", broker=hub.url)
    receipt = mesh.state.set("k", 1)
    assert queued(ana, "after") == [receipt.raw_id]


def test_S14_publishing_again_says_that_it_is_done(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("again"))
    first = sharing(ana).publish("again", broker=hub.url)
    again = sharing(ana).publish("again")
    assert (again.way, again.rows, again.invite) == ("before", 0, None)
    assert again.server_id == first.server_id
    assert len(queued(ana, "again")) == first.rows


def test_S14_messages_and_superseded_changes_stay_at_home(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    mesh = ana.create_mesh("quiet")
    for value in range(5):
        mesh.state.set("k", value)
    assert sharing(ana).publish("quiet", broker=hub.url).rows == 1


def test_D15_the_first_invite_is_good_for_seven_days_unless_its_maker_says_otherwise(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")

    def hours(slug: str, **given: Any) -> float:
        ana.create_mesh(slug)
        sharing(ana).publish(slug, broker=hub.url, **given)
        (made,) = sharing(ana).invites(slug)
        return (made.expires_at - made.made_at) / HOUR_MS

    assert hours("a-week") == 7 * 24
    assert hours("an-hour", invite_hours=1) == 1
    ana.create_mesh("never")
    for wrong in (0, INVITE_HOURS_MAX + 1):
        with pytest.raises(BadInput):
            sharing(ana).publish("never", broker=hub.url, invite_hours=wrong)
    assert not ana.mesh("never").info().shared


# --- large ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_S14_a_large_mesh_goes_as_a_snapshot_which_a_guest_takes(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("large"), rows=9)
    done = sharing(ana).publish("large", broker=hub.url)
    assert (done.way, done.waiting) == ("snapshot", 0)
    assert done.invite is not None
    joined = sharing(bob).join(done.invite)
    assert joined.rows == done.rows == len(current(ana, "large"))
    assert tables(bob, "large") == tables(ana, "large")
    assert bob.mesh("large").files.read("b.bin", peer="ana") == BIG
    row = bob.mesh("large").info()
    assert (row.kind, row.broker_epoch, row.broker_seq) == ("shared_guest", 1, 0)
    assert queued(bob, "large") == []


@pytest.mark.usefixtures("small")
def test_S9_an_object_that_comes_in_pieces_goes_on_after_a_cut(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(1).randbytes(9 * 1024 * 1024)
    ana, bob = homes("ana"), homes("bob")
    mesh = ana.create_mesh("heavy")
    fill(mesh)
    mesh.files.share("heavy.bin", content)
    invite = sharing(ana).publish("heavy", broker=hub.url).invite
    assert invite is not None
    kept, asked = BrokerObjects.object, list[int]()

    def piece(self: BrokerObjects, sha: str, start: int, size: int) -> bytes:
        asked.append(start)
        if len(asked) == 3:
            raise Unreachable("the line was cut")
        return kept(self, sha, start, size)

    monkeypatch.setattr(BrokerObjects, "object", piece)
    with pytest.raises(Unreachable):
        sharing(bob).join(invite)
    sharing(bob).join(invite)
    assert bob.mesh("heavy").files.read("heavy.bin", peer="ana") == content
    large = [start for start in asked if start]
    assert large == sorted(large), "no piece was asked for twice that was here"


def test_S14_a_mesh_whose_log_has_forgotten_goes_as_a_snapshot_too(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    mesh = ana.create_mesh("old")
    fill(mesh)
    before = tables(ana, "old")
    assert ana.sweep(SETTLED).log_entries > 5
    done = sharing(ana).publish("old", broker=hub.url)
    assert done.way == "snapshot"
    assert done.invite is not None
    sharing(bob).join(done.invite)
    after = tables(bob, "old")
    assert {name: after[name] for name in after} == before


def test_S14_a_log_that_is_truncated_while_it_is_read_is_made_up_for(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_export, "CHUNK_ROWS", 2)
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("racing"))
    before = tables(ana, "racing")
    kept = publish.Publishing._backfill

    def racing(self: publish.Publishing, job: Any, tx: Any) -> Any:
        if job.rows:
            tx.log_truncate(8, 100, ana._engine.ctx.now_ms())
        return kept(self, job, tx)

    monkeypatch.setattr(publish.Publishing, "_backfill", racing)
    done = sharing(ana).publish("racing", broker=hub.url)
    assert done.way == "snapshot"
    assert done.invite is not None
    sharing(bob).join(done.invite)
    assert tables(bob, "racing") == before


# --- dying ---------------------------------------------------------------------------------------


class Steps:
    """Counts what a publish does to the disk and asks of the broker, and ends it at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.last: int | None = None
        self.heard = False
        self._wrap(monkeypatch, NodeEngine, "write")
        self._wrap(monkeypatch, SessionClient, "call")

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        kept = getattr(kind, name)

        def step(one: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.last and not self.heard:
                raise Died
            dies = self.count == self.last
            try:
                return kept(one, *args, **kwargs)
            finally:
                if dies:
                    raise Died  # it has happened, and nobody knows

        monkeypatch.setattr(kind, name, step)

    @contextmanager
    def until(self, last: int | None, *, heard: bool) -> Iterator[None]:
        self.count, self.last, self.heard = 0, last, heard
        yield
        self.last = None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("heard", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("way", ["backfill", "snapshot"])
def test_S14_dying_at_any_step_and_going_on_publishes_all_of_it_once(
    hub: BrokerUp,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    heard: bool,
) -> None:
    if way == "backfill":
        monkeypatch.setattr(publish, "BACKFILL_ROWS_MAX", 1000)
    steps = Steps(monkeypatch)
    guest = holdfast.open(tmp_path / "bob", peer="bob", create=True, sync="normal")
    with holdfast.open(tmp_path / "ana", peer="ana", create=True, sync="normal") as ana:
        last = 0
        while True:
            last += 1
            slug = f"dying-{way}-{heard:d}-{last}"
            fill(ana.create_mesh(slug))
            told = current(ana, slug)
            with steps.until(last, heard=heard):
                try:
                    sharing(ana).publish(slug, broker=hub.url)
                    died = False
                except Died:
                    died = True
            again = sharing(ana).publish(slug, broker=hub.url)
            _expect_published(ana, guest, told, way, again)
            if not died:
                break
    guest.close()
    assert last > 12


def _expect_published(ana: Node, guest: Node, told: list[bytes], way: str, done: Published) -> None:
    slug = done.mesh
    assert ana.mesh(slug).info().kind == "shared_owner"
    with ana._engine.store.read() as tx:
        assert publish.begun(tx, slug) is None
    if way == "backfill":
        assert queued(ana, slug) == told
        return
    assert queued(ana, slug) == []
    invite = done.invite or sharing(ana).invite(slug).text
    assert sharing(guest).join(invite).rows == len(told)
    assert tables(guest, slug) == tables(ana, slug)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("heard", [False, True], ids=["before it", "after it"])
def test_S14_dying_at_any_step_and_joining_again_takes_all_of_it(
    hub: BrokerUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    slug = f"joining-{heard:d}"
    with holdfast.open(tmp_path / "ana", peer="ana", create=True, sync="normal") as ana:
        fill(ana.create_mesh(slug))
        sharing(ana).publish(slug, broker=hub.url)
        steps = Steps(monkeypatch)
        last, died = 0, True
        while died:
            last += 1
            invite = sharing(ana).invite(slug).text
            with holdfast.open(
                tmp_path / f"bob{last}", peer=f"bob{last}", create=True, sync="normal"
            ) as bob:
                with steps.until(last, heard=heard):
                    try:
                        sharing(bob).join(invite)
                        died = False
                    except Died:
                        died = True
                sharing(bob).join(invite)
                assert tables(bob, slug) == tables(ana, slug)
                with bob._engine.store.read() as tx:
                    assert tx.job_get(f"join:{slug}") is None
                    assert tx.job_get(f"mesh-snapshot-down:{slug}") is None
    assert last > 6


# --- what is in the way --------------------------------------------------------------------------


def test_S14_a_name_that_is_taken_at_the_broker_is_refused_with_another_one(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    ana.create_mesh("taken")
    bob.create_mesh("taken")
    sharing(ana).publish("taken", broker=hub.url)
    with pytest.raises(AlreadyExists) as refused:
        sharing(bob).publish("taken", broker=hub.url)
    assert f"mesh publish taken --as taken-2 --broker {hub.url}" in refused.value.hint
    assert bob.mesh("taken").info().kind == "personal"
    with bob._engine.store.read() as tx:
        assert publish.begun(tx, "taken") is None


def test_S14_a_broker_that_is_away_changes_nothing(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    ana.create_mesh("far")
    with pytest.raises(Unreachable):
        sharing(ana).publish("far", broker="http://127.0.0.1:1", card=hub.card)
    assert ana.mesh("far").info().kind == "personal"
    sharing(ana).publish("far", broker=hub.url, card=hub.card)
    with pytest.raises(AlreadyExists, match="shared at"):
        sharing(ana).publish("far", broker="http://127.0.0.1:1", card=hub.card)


def test_S14_another_broker_may_be_chosen_until_the_mesh_is_shared(
    hub: BrokerUp,
    homes: Callable[[str], Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ana = homes("ana")
    ana.create_mesh("moving")
    with monkeypatch.context() as patched, broker_at(tmp_path / "other") as other:
        patched.setattr(BrokerClient, "register", _die)
        with pytest.raises(Died):
            sharing(ana).publish("moving", broker=other.url)
    assert sharing(ana).publish("moving", broker=hub.url).broker_url == hub.url


def _die(*args: object, **kwargs: object) -> None:
    raise Died


def test_S14_a_personal_mesh_has_no_members_and_an_unknown_broker_no_mesh(
    homes: Callable[[str], Node],
) -> None:
    ana = homes("ana")
    ana.create_mesh("own")
    with pytest.raises(NotShared):
        sharing(ana).members("own")
    with pytest.raises(NotShared):
        sharing(ana).invite("own")
    with pytest.raises(BadInput, match="was not published"):
        sharing(ana).publish("own")


@pytest.mark.usefixtures("small")
def test_S14_nobody_is_invited_to_a_mesh_that_is_only_partly_there(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("partly"), rows=9)
    with monkeypatch.context() as patched:
        patched.setattr(BrokerClient, "snapshot_commit", _die)
        with pytest.raises(Died):
            sharing(ana).publish("partly", broker=hub.url)
    with pytest.raises(Conflict, match="not finished"):
        sharing(ana).invite("partly")
    assert sharing(ana).publish("partly").resumed
    sharing(ana).invite("partly")


def test_D15_a_broker_on_another_machine_must_be_known_by_its_card(
    homes: Callable[[str], Node], tmp_path: Path
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("secret"))
    with broker_at(tmp_path / "tls", tls=True) as up:
        with pytest.raises(BadInput, match="by its card") as refused:
            sharing(ana).publish("secret", broker=up.url)
        assert up.card in refused.value.hint
        wrong = card_of("hub", Trust(ana._engine, HomePaths(ana.home)).seed())
        with pytest.raises((ZoneNotTrusted, BadInput)):
            sharing(ana).publish("secret", broker=up.url, card=wrong)
        assert ana.mesh("secret").info().kind == "personal"
        done = sharing(ana).publish("secret", broker=up.url, card=up.card)
        assert done.invite is not None
        assert sharing(bob).join(done.invite).broker_card == up.card


def test_D15_an_invite_of_a_broker_with_another_key_is_refused(
    hub: BrokerUp, homes: Callable[[str], Node], tmp_path: Path
) -> None:
    ana, bob = homes("ana"), homes("bob")
    ana.create_mesh("posed")
    done = sharing(ana).publish("posed", broker=hub.url)
    assert done.invite is not None
    true = parse_invite(done.invite)
    with broker_at(tmp_path / "poser") as poser:
        false = format_invite(Invite(poser.url, true.card, true.mesh, true.secret))
        with pytest.raises(ZoneNotTrusted, match="another key"):
            sharing(bob).join(false)
    assert bob.meshes() == []


def test_D15_a_token_is_asked_for_where_the_broker_wants_one(
    homes: Callable[[str], Node], tmp_path: Path
) -> None:
    ana = homes("ana")
    ana.create_mesh("guarded")
    token = "sixteen and more characters"
    with broker_at(tmp_path / "g", registration="token", registration_token=token) as up:
        with pytest.raises(NotGranted):
            sharing(ana).publish("guarded", broker=up.url)
        assert sharing(ana).publish("guarded", broker=up.url, token=token).epoch == 1


# --- joining -----------------------------------------------------------------------------------


def test_D15_an_invite_is_used_once_and_then_over(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob, cora = homes("ana"), homes("bob"), homes("cora")
    ana.create_mesh("once")
    invite = sharing(ana).publish("once", broker=hub.url).invite
    assert invite is not None
    sharing(bob).join(invite)
    with pytest.raises(InviteEnded):
        sharing(cora).join(invite)
    assert cora.meshes() == []
    assert sharing(bob).join(invite).resumed, "who is a member may ask again"


def test_D15_a_counted_invite_is_good_for_so_many(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob, cora = homes("ana"), homes("bob"), homes("cora")
    ana.create_mesh("counted")
    sharing(ana).publish("counted", broker=hub.url)
    made = sharing(ana).invite("counted", uses=2, grants=["read"])
    sharing(bob).join(made.text)
    assert sharing(cora).join(made.text).grants == ("read",)
    with pytest.raises(InviteEnded):
        sharing(homes("dora")).join(made.text)
    dropped = sharing(ana).invite("counted")
    assert sharing(ana).drop_invite("counted", dropped.id)
    with pytest.raises(InviteEnded):
        sharing(homes("emil")).join(dropped.text)


def test_S14_a_mesh_of_that_name_in_the_home_is_not_touched(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    ana.create_mesh("both")
    bob.create_mesh("both").state.set("k", "bob's")
    invite = sharing(ana).publish("both", broker=hub.url).invite
    assert invite is not None
    with pytest.raises(AlreadyExists, match="of its own"):
        sharing(bob).join(invite)
    assert bob.mesh("both").info().kind == "personal"
    assert sharing(homes("cora")).join(invite).mesh == "both", "the invite was not used up"


def test_D15_members_are_seen_and_removed_by_their_names(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    ana.create_mesh("people")
    invite = sharing(ana).publish("people", broker=hub.url).invite
    assert invite is not None
    sharing(bob).join(invite)
    with bob._engine.store.read() as tx:
        assert sorted(row.name for row in tx.known_members_list("people")) == ["ana", "bob"]
    assert bob.mesh("people").send("hello", dm="ana").state == "pending"
    assert [one.name for one in sharing(bob).members("people")] == ["ana", "bob"]
    assert sharing(ana).grant("people", "bob", ["read"]).grants == ("read",)
    with pytest.raises(NotGranted):
        sharing(bob).remove_member("people", "ana")
    with pytest.raises(UnknownKey):
        sharing(ana).remove_member("people", "nobody")
    assert sharing(ana).remove_member("people", "bob")
    assert [one.name for one in sharing(ana).members("people")] == ["ana"]


def test_D15_a_broker_that_moved_is_the_same_broker_by_its_key(
    homes: Callable[[str], Node], tmp_path: Path
) -> None:
    ana = homes("ana")
    ana.create_mesh("nomad")
    with broker_at(tmp_path / "one") as up, broker_at(tmp_path / "two") as other:
        sharing(ana).publish("nomad", broker=up.url)
        with pytest.raises(ZoneNotTrusted):
            sharing(ana).move("nomad", other.url)
    with broker_at(tmp_path / "one") as again:
        assert sharing(ana).move("nomad", again.url).broker_url == again.url
        assert [one.name for one in sharing(ana).members("nomad")] == ["ana"]


def test_S14_a_guest_that_leaves_keeps_all_of_it_as_its_own(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("parting"))
    invite = sharing(ana).publish("parting", broker=hub.url).invite
    assert invite is not None
    sharing(bob).join(invite)
    bob.mesh("parting").state.set("k", 1)
    assert sharing(bob).leave("parting").given_up == 1
    row = bob.mesh("parting").info()
    assert (row.kind, row.broker_url, row.broker_epoch) == ("personal", None, 0)
    assert bob.mesh("parting").state.get("k") == 1
    bob.mesh("parting").state.set("k", 2)
    assert len(queued(bob, "parting")) == 1, "nothing leaves any more"
    assert [one.name for one in sharing(ana).members("parting")] == ["ana"]
    with pytest.raises(NotShared):
        sharing(bob).leave("parting")


def test_S14_an_owner_that_leaves_may_publish_all_of_it_elsewhere(
    hub: BrokerUp, homes: Callable[[str], Node], tmp_path: Path
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("moved-out"))
    sharing(ana).publish("moved-out", broker=hub.url)
    with ana._engine.store.read() as tx:
        rows = tx.outbox_list(lane_of("moved-out"), (), 0, 100)
    done = [(row.number, bytes(16), 1, seq) for seq, row in enumerate(rows, 1)]
    ana._engine.write("test", lambda tx: tx.outbox_done(done, 1))
    ana._engine.write("test", lambda tx: tx.broker_positions_add("moved-out", 1, [(1, 1), (2, 2)]))
    with pytest.raises(Conflict, match="for everybody"):
        sharing(ana).leave("moved-out")
    assert sharing(ana).leave("moved-out", remove=True).given_up == 0
    with ana._engine.store.read() as tx:
        assert tx.broker_positions_above("moved-out", 1, 0, 0, 10) == []
    with broker_at(tmp_path / "elsewhere") as other:
        again = sharing(ana).publish("moved-out", broker=other.url)
        assert again.invite is not None
        sharing(bob).join(again.invite)
        assert tables(bob, "moved-out") == tables(ana, "moved-out")
    assert sharing(ana).leave("moved-out", forget=True).mesh == "moved-out"


def test_D15_an_invite_names_the_address_that_others_use(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    ana.create_mesh("outside")
    sharing(ana).publish("outside", broker=hub.url)
    made = sharing(ana).invite("outside", at="https://hub.example:7421/")
    assert parse_invite(made.text).url == "https://hub.example:7421"
    with pytest.raises(BadInput):
        sharing(ana).invite("outside", at="http://hub.example:7421")


@pytest.mark.usefixtures("small")
def test_S14_two_processes_do_not_mix_the_parts_of_a_snapshot(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("two-makers"), rows=9)
    sharing(ana).publish("two-makers", broker=hub.url)
    calls = calls_of(ana, "two-makers")
    kept = BrokerClient.snapshot_chunk
    others: list[object] = []

    def chunk(self: BrokerClient, *args: Any) -> int:
        found = kept(self, *args)
        if not others:
            others.append(self)
            others.append(upload_snapshot(ana._engine, calls, "two-makers"))
        return found

    monkeypatch.setattr(BrokerClient, "snapshot_chunk", chunk)
    with pytest.raises(StoreBusy):
        upload_snapshot(ana._engine, calls, "two-makers")
    assert len(others) == 2, "the other one got through"
    calls.close()


def test_D5_topics_and_queues_are_declared_and_subscribed_to(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana = homes("ana")
    ana.create_mesh("places")
    sharing(ana).publish("places", broker=hub.url)
    here = sharing(ana)
    here.declare("places", "topic", "news/today")
    queue = here.declare("places", "queue", "work", visibility_ms=5000, deliveries_max=2)
    assert (queue.visibility_ms, queue.deliveries_max) == (5000, 2)
    assert [one.ref for one in here.destinations("places")] == ["work", "news/today"]
    here.subscribe("places", "news/today")
    assert here.subscriptions("places") == {"news/today": 0}
    assert here.unsubscribe("places", "news/today")
    assert here.drop_destination("places", "topic", "news/today")
    assert [one.ref for one in here.destinations("places")] == ["work"]


# --- snapshots ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_S14_an_upload_that_was_cut_off_sends_no_part_twice(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("parts"), rows=20)
    sent: list[int] = []
    kept = BrokerClient.snapshot_chunk

    def chunk(self: BrokerClient, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        if len(sent) == 3:
            raise Died
        sent.append(number)
        return kept(self, mesh, id, number, rows, part)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerClient, "snapshot_chunk", chunk)
        with pytest.raises(Died):
            sharing(ana).publish("parts", broker=hub.url)
    first = sent[:]
    sent.clear()

    def noted(self: BrokerClient, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        sent.append(number)
        return kept(self, mesh, id, number, rows, part)

    monkeypatch.setattr(BrokerClient, "snapshot_chunk", noted)
    sharing(ana).publish("parts")
    assert first == [0, 1, 2]
    assert sent == list(range(3, 3 + len(sent)))


@pytest.mark.usefixtures("small")
def test_S14_a_snapshot_that_is_not_what_its_maker_uploaded_moves_no_cursor(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("false"), rows=9)
    done = sharing(ana).publish("false", broker=hub.url)
    assert done.invite is not None
    kept = BrokerClient.snapshot_part

    def other(self: BrokerClient, mesh: str, id: str, number: int) -> bytes:
        return kept(self, mesh, id, 0)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerClient, "snapshot_part", other)
        with pytest.raises(BadAnswer, match="not what its maker"):
            sharing(bob).join(done.invite)
    sharing(bob).join(done.invite)
    assert tables(bob, "false") == tables(ana, "false")


@pytest.mark.usefixtures("small")
def test_S14_a_snapshot_is_no_way_into_another_mesh(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, bob = homes("ana"), homes("bob")
    fill(ana.create_mesh("inner"), rows=9)
    ana.create_mesh("bobs-own").state.set("k", "evil")
    bob.create_mesh("bobs-own")
    raws = [entry.raw for entry in ana.log.range() if entry.mesh == "bobs-own"]
    kept = mesh_parts.pack_part

    def evil(mesh: str, forgotten: int, good: list[bytes]) -> bytes:
        return kept(mesh, forgotten, [*good, *raws])

    monkeypatch.setattr(upload, "pack_part", evil)
    done = sharing(ana).publish("inner", broker=hub.url)
    assert done.invite is not None
    with pytest.raises(BadAnswer, match="does not belong"):
        sharing(bob).join(done.invite)
    assert bob.mesh("bobs-own").state.get("k") is None


def test_D5_a_snapshot_holds_no_messages(hub: BrokerUp, homes: Callable[[str], Node]) -> None:
    """They are for those they were sent to."""
    ana = homes("ana")
    mesh = ana.create_mesh("private")
    sharing(ana).publish("private", broker=hub.url)
    sharing(ana).members("private")
    mesh.send("for ana alone", dm="ana")
    with ana._engine.store.read() as tx:
        [row] = tx.outbox_list(lane_of("private"), (), 0, 10)
    ana._engine.write("test", lambda tx: tx.outbox_done([(row.number, bytes(16), 1, 1)], 1))
    calls = calls_of(ana, "private")
    made = upload_snapshot(ana._engine, calls, "private")
    parts = [calls.snapshot_part("private", made.id, number) for number in range(made.parts)]
    calls.close()
    raws = [raw for part in parts for raw in mesh_parts.unpack_part(part, "private").raws]
    assert [decode(raw).op for raw in raws] == []


def test_D6_a_snapshot_holds_what_may_have_been_accepted_and_not_what_was_refused(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    """What was refused must not reach anybody by another way; what it replaced here still stands
    elsewhere. What waits may be at the broker already: only the answer is missing.
    """
    ana = homes("ana")
    mesh = ana.create_mesh("accepted")
    mesh.state.set("k", "accepted")
    sharing(ana).publish("accepted", broker=hub.url)
    with ana._engine.store.read() as tx:
        [row] = tx.outbox_list(lane_of("accepted"), (), 0, 10)
    ana._engine.write("test", lambda tx: tx.outbox_done([(row.number, bytes(16), 1, 1)], 1))
    refused = mesh.state.set("k", "refused")
    waiting = mesh.state.set("new", "waiting")
    with ana._engine.store.read() as tx:
        found = tx.outbox_get(lane_of("accepted"), refused.raw_id)
    assert found is not None
    dead = msgspec.structs.replace(found, state="dead", attempts=1, code="not_granted")
    ana._engine.write("test", lambda tx: tx.outbox_put(dead))
    with closing(calls_of(ana, "accepted")) as calls:
        made = upload_snapshot(ana._engine, calls, "accepted")
        part = calls.snapshot_part("accepted", made.id, 0)
    raws = mesh_parts.unpack_part(part, "accepted").raws
    assert [decode(raw).id for raw in raws] == [row.id, waiting.raw_id]


def test_D6_a_snapshot_does_not_move_the_cursor_into_a_new_epoch(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    """That is for the sync to do, which then brings again what the broker has forgotten."""
    ana, bob = homes("ana"), homes("bob")
    ana.create_mesh("epochs").state.set("k", 1)
    invite = sharing(ana).publish("epochs", broker=hub.url).invite
    assert invite is not None
    store = hub.daemon.broker.store
    sharing(bob).join(invite)
    with closing(calls_of(ana, "epochs")) as mine, closing(calls_of(bob, "epochs")) as theirs:
        upload_snapshot(ana._engine, mine, "epochs")
        hub.ask(lambda: store.new_epoch("epochs", "a test", 1))
        took = take_snapshot(bob._engine, theirs, "epochs")
    assert took is not None
    assert took.epoch == 2
    assert bob.mesh("epochs").info().broker_epoch == 1


@pytest.mark.usefixtures("small")
def test_S17_who_begins_with_a_snapshot_refuses_what_its_maker_has_forgotten(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    mesh = ana.create_mesh("buried")
    mesh.state.set("k", 1)
    mesh.state.delete("k")
    fill(mesh, rows=9)
    assert ana.sweep(Ttl(log_ms=0, tombstone_ms=0)).tombstones == 1
    forgotten = mesh.info().forgotten_lamport
    done = sharing(ana).publish("buried", broker=hub.url)
    assert done.invite is not None
    sharing(bob).join(done.invite)
    assert bob.mesh("buried").info().forgotten_lamport == forgotten == 2


def test_S17_what_a_guest_writes_is_newer_than_all_that_the_owner_has_forgotten(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    """Nothing in the snapshot may show how far the clock of its maker had got."""
    ana, bob = homes("ana"), homes("bob")
    mesh = ana.create_mesh("empty")
    for _ in range(5):
        mesh.state.set("k", 1)
    mesh.state.delete("k")
    assert ana.sweep(Ttl(log_ms=0, tombstone_ms=0)).tombstones == 1
    done = sharing(ana).publish("empty", broker=hub.url)
    assert done.invite is not None
    sharing(bob).join(done.invite)
    assert bob.mesh("empty").state.set("k", 2).lamport > mesh.info().forgotten_lamport


@pytest.mark.usefixtures("small")
def test_D6_a_snapshot_that_the_broker_lost_is_made_again(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = homes("ana")
    fill(ana.create_mesh("lost"), rows=9)
    sharing(ana).publish("lost", broker=hub.url)
    calls = calls_of(ana, "lost")
    assert not keep_snapshot(ana._engine, calls, "lost"), "it is there"
    before = calls.snapshot("lost")
    with monkeypatch.context() as patched:
        patched.setattr(BrokerClient, "snapshot", lambda self, mesh: None)
        assert keep_snapshot(ana._engine, calls, "lost")
    after = calls.snapshot("lost")
    assert before is not None
    assert after is not None
    assert after.rows == before.rows
    again = upload_snapshot(ana._engine, calls, "lost")
    assert again.rows == before.rows
    calls.close()


@pytest.mark.usefixtures("small")
def test_D6_who_was_cut_off_looks_after_its_snapshot_another_time(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    """The cursor is in the new epoch, and the process ends before it has asked."""
    ana = homes("ana")
    fill(ana.create_mesh("kept"), rows=9)
    sharing(ana).publish("kept", broker=hub.url)
    engine = ana._engine

    def kept() -> bool:
        row = ana.mesh("kept").info()
        return engine.read("test", lambda tx: is_kept(tx, "kept", row.broker_epoch))

    assert kept()
    moved = msgspec.structs.replace(ana.mesh("kept").info(), broker_epoch=2)
    engine.write("test", lambda tx: tx.mesh_change(moved))
    assert not kept(), "as often as it is asked, until it was done"
    calls = calls_of(ana, "kept")
    assert not keep_snapshot(engine, calls, "kept"), "it is there"
    assert kept()
    calls.close()


def test_D6_a_place_of_an_older_epoch_is_counted_as_the_mesh_counts_now() -> None:
    from holdfast.protocol.broker_http import Standing

    now = Standing("m", "m", id_text(bytes(16)), 3, 90, 1, 100, (), ((1, 0), (2, 120), (3, 90)))
    assert now.seq_now(3, 95) == 95
    assert now.seq_now(2, 110) == 90
    assert now.seq_now(1, 50) == 50
    assert now.seq_now(1, 500) == 90
