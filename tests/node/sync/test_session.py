"""The talk with a broker, frame by frame: what is sent, what is taken, what is brought again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.node.library.node import Node
from holdfast.node.sync import pause
from holdfast.protocol.frames import (
    Acks,
    Confirmed,
    Entries,
    Follow,
    MeshMoved,
    MeshPosition,
    Push,
    PushAnswer,
    Urgent,
    WireError,
)
from holdfast.rules.errors import (
    BadAnswer,
    FeatureParamBelowFloor,
    FeatureUnavailable,
    NotShared,
    OutboxAgeAboveWindow,
    ZoneNotTrusted,
)
from holdfast.rules.limits import (
    DAY_MS,
    OUTBOX_ATTEMPTS_MAX,
    SYNC_GAPS_MAX,
    SYNC_PUSH_BYTES,
    SYNC_PUSH_ITEMS,
)
from holdfast.rules.outbox import Policy, lane_of
from holdfast.rules.rows import OutboxRow
from support.envelopes import MESH, state_set
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop, now, settle

LANE = lane_of(MESH)


class Two:
    """Two nodes and their broker."""

    def __init__(self, nodes: Nodes, folder: Path, clock: HandClock) -> None:
        self.clock = clock
        self.broker = Brokerage(folder / "broker", clock)
        self.ana = Laptop(nodes.open("ana"), self.broker, folder / "ana")
        self.bob = Laptop(nodes.open("bob"), self.broker, folder / "bob")
        self.ana.share()
        self.bob.join()

    def connect(self) -> None:
        self.ana.connect()
        self.bob.connect()

    def settle(self) -> None:
        settle(self.ana, self.bob)


@pytest.fixture
def two(nodes: Nodes, tmp_path: Path, clock: HandClock) -> Iterator[Two]:
    made = Two(nodes, tmp_path, clock)
    yield made
    made.broker.close()


def states(laptop: Laptop) -> dict[str, int]:
    counts = laptop.engine.read("test", lambda tx: tx.outbox_counts())
    return {state: count for (_, state), count in counts.items() if count}


def outbox_rows(laptop: Laptop) -> list[OutboxRow]:
    return laptop.engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 1000))


def state_of(node: Node) -> dict[str, object]:
    return {entry.key: entry.value for entry in team(node).state.list()}


def answer(laptop: Laptop, status: int, code: str = "", epoch: int = 1) -> None:
    """The broker's answer to all that is in flight, as a test wants it."""
    problem = WireError(code, "no") if code else None
    numbers = list(laptop.sync.meshes[MESH].inflight)
    answers = [PushAnswer(number, status, problem=problem) for number in numbers]
    laptop.sync.on_acks(Acks(MESH, epoch, answers))


# --- hello ---------------------------------------------------------------------------------------


def test_D15_another_broker_under_the_same_address_is_told_nothing(two: Two) -> None:
    with pytest.raises(ZoneNotTrusted, match="says that it is 'hub'"):
        two.ana.sync.hello(two.broker.talk(seed=b"X" * 32).opening())
    with pytest.raises(ZoneNotTrusted):
        two.ana.sync.hello(two.broker.talk(name="other").opening())


def test_D15_a_broker_that_cannot_prove_its_key_is_not_believed(two: Two) -> None:
    talk = two.broker.talk()
    (welcome,) = talk.on_frame(two.ana.sync.hello(talk.opening()))
    forged = msgspec.structs.replace(welcome, proof=bytes(64))
    with pytest.raises(ZoneNotTrusted, match="cannot prove"):
        two.ana.sync.welcomed(forged)  # type: ignore[arg-type]


def test_D15_a_proof_is_good_on_its_own_connection_only(two: Two) -> None:
    """Somebody between the two shows another certificate to each of them."""
    talk = two.broker.talk()
    hello = two.ana.sync.hello(talk.opening(), certificate=b"c" * 32)
    assert talk.on_frame(hello) == []
    assert talk.closed is not None


def test_D9_a_broker_without_what_is_needed_is_not_greeted(two: Two) -> None:
    two.broker.supported = {"max_payload": {"version": 1}}
    with pytest.raises(FeatureUnavailable):
        two.ana.sync.hello(two.broker.talk().opening())


def test_D9_a_broker_that_forgets_ids_too_soon_is_not_greeted(two: Two) -> None:
    dedupe = {**two.broker.supported["client_message_id_dedupe"], "dedupe_retention_days": 2}
    two.broker.supported = {**two.broker.supported, "client_message_id_dedupe": dedupe}
    with pytest.raises(FeatureParamBelowFloor):
        two.ana.sync.hello(two.broker.talk().opening())


# --- there and back ------------------------------------------------------------------------------


def test_D14_what_one_writes_the_other_has(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    team(two.bob.node).state.set("b", 2)
    team(two.bob.node).memory.set("m", "hm")
    two.settle()
    assert state_of(two.ana.node) == state_of(two.bob.node) == {"a": 1, "b": 2}
    assert team(two.ana.node).memory.get("m", peer="bob") is not None
    assert states(two.ana) == {"done": 1}
    assert states(two.bob) == {"done": 2}
    assert two.ana.row.broker_seq == two.bob.row.broker_seq == two.broker.mesh().seq == 3
    assert two.ana.row.last_sync_at == two.clock.now_ms() or two.ana.row.last_sync_at


def test_D14_both_worked_offline_and_agree_afterwards(two: Two) -> None:
    for number in range(700):
        team(two.ana.node).state.set(f"k{number}", "ana")
        team(two.bob.node).state.set(f"k{number + 350}", "bob")
    assert states(two.ana) == {"pending": 700}
    two.connect()
    two.settle()
    assert len(state_of(two.ana.node)) == 1050
    assert state_of(two.ana.node) == state_of(two.bob.node)
    assert states(two.ana) == states(two.bob) == {"done": 700}
    sizes = [len(frame.items) for frame in two.ana.said if isinstance(frame, Push)]
    assert sum(sizes) == 700
    assert max(sizes) <= SYNC_PUSH_ITEMS


def test_D14_a_push_is_cut_at_a_number_of_items_and_at_a_size(two: Two) -> None:
    two.connect()
    for number in range(5):
        team(two.ana.node).state.set(f"k{number}", "x" * 400_000)
    first = two.ana.sync.push(MESH)
    assert first is not None
    assert sum(len(item.raw) for item in first.items) <= SYNC_PUSH_BYTES
    second = two.ana.sync.push(MESH, room=1)
    assert second is not None
    assert len(second.items) == 1
    assert states(two.ana) == {"inflight": 3, "pending": 2}


def test_D11_rows_are_in_flight_before_they_are_sent(two: Two) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    assert two.ana.push()
    assert states(two.ana) == {"inflight": 1}


def test_D11_a_broken_line_gives_rows_back_and_counts_no_attempt(two: Two) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    two.ana.drop()
    (row,) = outbox_rows(two.ana)
    assert (row.state, row.attempts) == ("pending", 0)


def test_D2_an_answer_that_got_lost_leaves_one_message(two: Two) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    two.ana.lose = lambda frame: isinstance(frame, Acks)
    two.settle()
    assert states(two.ana) == {"inflight": 1}
    two.ana.lose = lambda frame: False
    two.ana.drop()
    two.ana.connect()
    two.settle()
    assert states(two.ana) == {"done": 1}
    assert two.broker.mesh().seq == 1


def test_D11_nothing_is_sent_while_the_mesh_is_paused_and_things_still_come(two: Two) -> None:
    two.connect()
    two.ana.change(sync_paused=True)
    two.ana.sync.look()
    team(two.ana.node).state.set("a", 1)
    team(two.bob.node).state.set("b", 1)
    two.settle()
    assert states(two.ana) == {"pending": 1}
    assert state_of(two.ana.node) == {"a": 1, "b": 1}
    two.ana.change(sync_paused=False)
    two.ana.sync.look()
    two.settle()
    assert states(two.ana) == {"done": 1}


def test_D14_a_mesh_that_is_shared_later_is_followed_without_a_new_connection(
    two: Two, nodes: Nodes, tmp_path: Path
) -> None:
    eve = Laptop(nodes.open("eve"), two.broker, tmp_path / "eve")
    eve.connect()
    eve.settle()
    team(two.ana.node).state.set("a", 1)
    two.connect()
    two.settle()
    eve.join()
    eve.to_broker.extend(eve.sync.look())
    team(eve.node).state.set("e", 1)
    eve.settle()
    two.settle()
    assert state_of(eve.node) == state_of(two.ana.node) == {"a": 1, "e": 1}


def test_D6_what_we_pushed_ourselves_right_behind_the_cursor_moves_it(two: Two) -> None:
    """The broker does not send it back, so nobody else would say that it is here."""
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    team(two.ana.node).state.set("b", 1)
    two.ana.push()
    two.ana.speak()
    two.ana.listen()
    assert two.ana.row.broker_seq == 2
    team(two.bob.node).state.set("c", 1)
    two.bob.push()
    two.bob.speak()
    two.bob.listen()
    assert two.bob.row.broker_seq == 0
    two.settle()
    assert two.ana.row.broker_seq == two.bob.row.broker_seq == 3
    assert state_of(two.ana.node) == state_of(two.bob.node) == {"a": 1, "b": 1, "c": 1}


# --- answers -------------------------------------------------------------------------------------


def test_D11_a_reused_id_is_dead(two: Two) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, 409, "idempotency_key_reused")
    (row,) = outbox_rows(two.ana)
    assert (row.state, row.code) == ("dead", "idempotency_key_reused")


def test_D6_an_epoch_mismatch_costs_nothing_and_goes_again(two: Two) -> None:
    two.connect()
    two.ana.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, 409, "epoch_mismatch", epoch=2)
    (row,) = outbox_rows(two.ana)
    assert (row.state, row.attempts) == ("pending", 0)


def test_D6_a_newer_epoch_in_an_answer_makes_the_node_ask_where_the_mesh_stands(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.settle()
    now(two.broker.store.new_epoch(MESH, "test", two.clock.now_ms()))
    team(two.ana.node).state.set("b", 1)
    two.settle()
    assert states(two.ana) == {"done": 2}
    assert two.ana.row.broker_epoch == two.bob.row.broker_epoch == 2
    assert state_of(two.bob.node) == {"a": 1, "b": 1}


def test_D6_a_lower_epoch_in_an_answer_is_passed_over(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    two.ana.change(broker_epoch=2)
    now(two.broker.store.new_epoch(MESH, "test", two.clock.now_ms()))
    two.ana.connect()
    two.ana.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, 201, epoch=1)
    assert states(two.ana) == {"pending": 1}
    assert two.ana.row.broker_epoch == 2
    assert "epoch 1, and epoch 2 has begun" in caplog.text


@pytest.mark.parametrize(("status", "code"), [(429, "too_many"), (503, "store_closed")])
def test_D12_a_busy_broker_backs_the_lane_off_and_costs_no_attempt(
    two: Two, status: int, code: str
) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, status, code)
    (row,) = outbox_rows(two.ana)
    assert (row.state, row.attempts) == ("pending", 0)
    assert not two.ana.push()
    wait_ms = two.ana.sync.look_for_due(MESH).wait_ms
    assert wait_ms is not None
    two.clock.advance(wait_ms)
    assert two.ana.push()


def test_D12_a_refusal_parks_only_what_is_about_the_same_entity(two: Two) -> None:
    two.connect()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, 400, "bad_envelope")
    team(two.ana.node).state.set("a", 2)
    team(two.ana.node).state.set("b", 1)
    two.ana.settle()
    assert states(two.ana) == {"dead": 1, "pending": 1, "done": 1}


def test_D12_a_halting_lane_pauses_the_mesh_when_an_item_is_worn_out(
    nodes: Nodes, tmp_path: Path, clock: HandClock
) -> None:
    broker = Brokerage(tmp_path / "broker", clock)
    ana = Laptop(nodes.open("ana"), broker, tmp_path / "ana", policy=Policy.HALT)
    ana.share()
    ana.connect()
    ana.settle()
    team(ana.node).state.set("a", 1)
    for _ in range(OUTBOX_ATTEMPTS_MAX):
        clock.advance(60_000)
        assert ana.push()
        answer(ana, 403, "not_granted")
    assert ana.row.sync_paused
    clock.advance(60_000)
    assert not ana.push()
    broker.close()


def test_D12_what_was_refused_holds_others_up_also_while_it_is_tried_again(
    nodes: Nodes, tmp_path: Path, clock: HandClock
) -> None:
    broker = Brokerage(tmp_path / "broker", clock)
    ana = Laptop(nodes.open("ana"), broker, tmp_path / "ana", policy=Policy.HALT)
    ana.share()
    ana.connect()
    ana.settle()
    team(ana.node).state.set("a", 1)
    assert ana.push()
    answer(ana, 403, "not_granted")
    clock.advance(60_000)
    assert ana.push(), "it is on its way again, and may be refused again"
    team(ana.node).state.set("b", 1)
    assert not ana.push()
    broker.close()


def test_D15_a_member_that_is_removed_keeps_what_it_has_to_say(two: Two) -> None:
    two.connect()
    two.settle()
    now(two.broker.store.member_remove(MESH, two.bob.key, two.clock.now_ms()))
    team(two.bob.node).state.set("b", 1)
    two.bob.settle()
    mesh = two.bob.sync.meshes[MESH]
    assert mesh.trouble is not None
    assert mesh.trouble.code == "not_a_member"
    assert states(two.bob) == {"pending": 1}
    two.bob.join()
    two.bob.to_broker.extend(two.bob.sync.retry())
    two.settle()
    assert state_of(two.ana.node) == {"b": 1}
    assert states(two.bob) == {"done": 1}


# --- pages ---------------------------------------------------------------------------------------


def test_D6_a_gap_is_asked_for_from_the_cursor(two: Two) -> None:
    two.connect()
    for number in range(3):
        team(two.ana.node).state.set(f"k{number}", number)
        two.ana.settle()
    lost: list[int] = []

    def first(frame: object) -> bool:
        if isinstance(frame, Entries) and not lost:
            lost.append(frame.to)
            return True
        return False

    two.bob.lose = first
    two.bob.fetch()
    two.bob.speak()
    two.bob.fetch()
    two.bob.listen()
    team(two.ana.node).state.set("late", 1)
    two.ana.settle()
    two.settle()
    assert lost
    follows = [frame for frame in two.bob.said if isinstance(frame, Follow)]
    assert follows[-1] == Follow(MESH, 1, 0, False, True) or follows[-1].after == 0
    assert state_of(two.bob.node) == state_of(two.ana.node)


def test_D6_a_gap_that_is_never_filled_ends_the_connection(two: Two) -> None:
    two.connect()
    two.settle()
    page = Entries(MESH, 1, 5, 9, [], 9)
    assert two.bob.take(page) == [Follow(MESH, 1, 0, False, True)]
    for _ in range(SYNC_GAPS_MAX - 1):
        assert two.bob.take(page) == []
    with pytest.raises(BadAnswer, match="goes on at 5"):
        two.bob.take(page)


def test_D13_a_page_that_comes_twice_changes_nothing(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.settle()
    before = two.bob.node.log.head()
    (page,) = [frame for frame in two.bob.heard if isinstance(frame, Entries) and frame.rows]
    told = two.bob.take(page)
    assert told == [Confirmed(MESH, 1, 1)]
    assert two.bob.node.log.head() == before


def test_D13_a_bad_envelope_is_set_aside_and_the_rest_goes_on(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.settle()
    two.bob.fetch()
    page = two.bob.to_node.popleft()
    assert isinstance(page, Entries)
    (good,) = page.rows
    bad = msgspec.structs.replace(good, seq=2, raw=b"\x81garbage")
    strange = msgspec.structs.replace(good, seq=3, raw=state_set("x", 1, mesh="other"))
    told = two.bob.take(msgspec.structs.replace(page, to=4, last=4, rows=[good, bad, strange]))
    assert told == [Confirmed(MESH, 1, 4)]
    rows = two.bob.engine.read("test", lambda tx: tx.quarantine_list(LANE, 0, 10))
    assert sorted((row.offset, row.code) for row in rows) == [
        (2, "bad_envelope"),
        (3, "bad_envelope"),
    ]
    assert state_of(two.bob.node) == {"a": 1}


def test_D13_a_page_out_of_order_is_refused_whole(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.settle()
    two.bob.fetch()
    page = two.bob.to_node.popleft()
    assert isinstance(page, Entries)
    with pytest.raises(BadAnswer, match="out of order"):
        two.bob.take(msgspec.structs.replace(page, rows=page.rows * 2))


# --- our own past --------------------------------------------------------------------------------


def test_D13_what_this_node_lost_in_a_restore_comes_back(
    two: Two, nodes: Nodes, tmp_path: Path
) -> None:
    """The same node, from before all that it wrote: an empty log in a new epoch, its old key."""
    two.connect()
    two.settle()
    team(two.bob.node).state.set("mine", 1)
    team(two.ana.node).state.set("hers", 1)
    two.settle()
    restored = nodes.open("bob")
    restored._engine.write("test", lambda tx: tx.set_epoch(2))
    again = Laptop(restored, two.broker, tmp_path / "bob")
    again.join()
    again.connect()
    again.settle()
    assert state_of(again.node) == {"mine": 1, "hers": 1}
    # And it does not ask for its own for ever.
    follows = [frame for frame in again.said if isinstance(frame, Follow)]
    assert [frame.own for frame in follows] == [True, False]
    again.drop()
    again.connect()
    again.settle()
    assert [frame.own for frame in again.said if isinstance(frame, Follow)] == [True, False, False]


def test_D14_what_this_node_wrote_itself_is_not_sent_back_to_it(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.settle()
    assert not any(isinstance(frame, Entries) and frame.rows for frame in two.ana.heard)


def test_D13_an_entry_in_our_name_that_is_not_ours_is_set_aside(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.settle()
    two.bob.fetch()
    page = two.bob.to_node.popleft()
    assert isinstance(page, Entries)
    forged = state_set("mine", 1, origin="bob")
    row = msgspec.structs.replace(page.rows[0], raw=forged)
    two.bob.take(msgspec.structs.replace(page, rows=[row]))
    (kept,) = two.bob.engine.read("test", lambda tx: tx.quarantine_list(LANE, 0, 10))
    assert kept.code == "forged_origin"
    assert state_of(two.bob.node) == {}


# --- a broker that forgot ------------------------------------------------------------------------


def test_D6_a_lower_epoch_at_the_broker_stops_the_mesh(two: Two) -> None:
    two.ana.change(broker_epoch=5, broker_seq=9)
    two.ana.connect()
    mesh = two.ana.sync.meshes[MESH]
    assert mesh.trouble is not None
    assert mesh.trouble.code == "epoch_mismatch"
    team(two.ana.node).state.set("a", 1)
    assert not two.ana.push()


def test_D6_another_mesh_under_the_same_name_is_not_followed(two: Two) -> None:
    two.ana.change(server_id="server-2")
    two.ana.connect()
    assert not two.ana.to_broker
    assert two.ana.sync.meshes[MESH].trouble is not None
    # Nor when it is asked for again: what is written here is not for that other mesh.
    team(two.ana.node).state.set("secret", 1)
    two.ana.to_broker.extend(two.ana.sync.retry())
    two.ana.settle()
    assert two.broker.mesh().seq == 0
    assert two.ana.sync.meshes[MESH].trouble is not None


def place_of(two: Two, **fields: int) -> MeshPosition:
    mesh = two.broker.mesh()
    found = MeshPosition(
        MESH, mesh.server_id, mesh.epoch, mesh.base, mesh.first, mesh.seq, ("read",)
    )
    return msgspec.structs.replace(found, **fields)


def test_D6_a_place_that_is_told_unasked_is_followed_again(two: Two) -> None:
    """Whoever tells it has ended its feed."""
    two.connect()
    two.settle()
    assert two.ana.take(MeshMoved(place_of(two))) == [Follow(MESH, 1, 0, False, True)]


def test_D6_a_broker_that_does_not_believe_our_cursor_is_not_asked_for_ever(two: Two) -> None:
    two.ana.change(broker_seq=7)
    two.ana.connect()
    assert list(two.ana.to_broker) == [Follow(MESH, 1, 7, False, True)]
    assert two.ana.take(MeshMoved(place_of(two))) == []
    mesh = two.ana.sync.meshes[MESH]
    assert mesh.trouble is not None
    assert mesh.trouble.code == "epoch_mismatch"
    assert not mesh.may_send


def forget(two: Two, above: int) -> None:
    """The broker begins a new epoch from an older copy of itself."""
    two.broker.store.connection.execute(
        "DELETE FROM message WHERE place & ((1 << 40) - 1) > ?", (above,)
    )
    two.broker.store.connection.execute("DELETE FROM dedupe WHERE seq > ?", (above,))
    two.broker.store.connection.execute("UPDATE mesh SET seq = ?", (above,))
    now(two.broker.store.new_epoch(MESH, "restored", two.clock.now_ms()))


def test_D6_without_the_grant_to_relay_a_node_brings_back_only_its_own(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    team(two.bob.node).state.set("b", 1)
    two.settle()
    forget(two, 0)
    two.bob.drop()
    two.bob.connect()
    assert states(two.bob) == {"pending": 1}
    two.ana.drop()
    two.ana.connect()
    assert states(two.ana) == {"pending": 2}
    two.settle()
    assert two.broker.mesh().seq == 2
    assert states(two.bob) == {"done": 1}
    assert states(two.ana) == {"done": 2}


def test_D6_a_relayed_row_that_is_not_granted_is_given_up_quietly(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.settle()
    (entry,) = two.bob.node.log.range()
    row = OutboxRow(lane=LANE, id=entry.id, mesh=MESH, offset=entry.offset, created_at=1)
    two.bob.engine.write("test", lambda tx: tx.outbox_add((row,)))
    two.bob.push()
    answer(two.bob, 403, "not_granted")
    assert states(two.bob) == {"aborted": 1}


# --- objects and messages ------------------------------------------------------------------------


def test_S9_what_names_an_object_waits_for_it_and_others_pass(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).files.share("large", bytes(100_000))
    team(two.ana.node).state.set("small", 1)
    team(two.ana.node).files.share("large", b"changed")
    two.ana.settle()
    assert states(two.ana) == {"pending": 2, "done": 1}
    wanted = two.ana.sync.objects_to_bring(MESH)
    assert len(wanted) == 1
    two.ana.sync.brought(MESH, wanted)
    two.ana.settle()
    assert states(two.ana) == {"done": 3}
    assert two.ana.sync.objects_to_bring(MESH) == []


def test_D13_a_message_goes_to_the_inbox_once_ahead_of_its_turn_or_in_it(two: Two) -> None:
    two.broker.topic("news", two.bob.key)
    two.connect()
    two.settle()
    team(two.ana.node).send("first", topic="news", priority="now")
    two.ana.settle()
    two.bob.fetch()
    page = two.bob.to_node.popleft()
    assert isinstance(page, Entries)
    express = Urgent(MESH, page.rows)
    assert two.bob.take(express) == []
    assert [message.preview for message in team(two.bob.node).inbox.list()] == ["first"]
    assert two.bob.row.broker_seq == 0
    two.bob.take(page)
    assert [message.preview for message in team(two.bob.node).inbox.list()] == ["first"]
    assert two.bob.row.broker_seq == 1


def test_D8_a_message_that_waited_too_long_is_not_sent_and_a_change_is(two: Two) -> None:
    two.broker.topic("news")
    team(two.ana.node).send("old", topic="news")
    team(two.ana.node).state.set("a", 1)
    two.clock.advance(40 * DAY_MS)
    two.connect()
    two.settle()
    assert states(two.ana) == {"dead": 1, "done": 1}
    assert state_of(two.bob.node) == {"a": 1}


def test_D8_an_age_past_the_brokers_window_is_refused(two: Two) -> None:
    two.ana.sync._asked_age = 24 * 365
    with pytest.raises(OutboxAgeAboveWindow):
        two.ana.sync.hello(two.broker.talk().opening())


# --- pausing -------------------------------------------------------------------------------------


def test_D12_resuming_tries_what_was_refused_at_once(two: Two) -> None:
    two.connect()
    two.settle()
    team(two.ana.node).state.set("a", 1)
    two.ana.push()
    answer(two.ana, 403, "not_granted")
    pause.pause(two.ana.engine, MESH)
    assert [row.mesh for row in pause.resume_all(two.ana.engine)] == [MESH]
    assert not two.ana.row.sync_paused
    two.ana.sync.look()
    two.settle()
    assert states(two.ana) == {"done": 1}


def test_D12_a_pause_holds_from_its_answer_on_also_before_the_connection_has_looked(
    two: Two,
) -> None:
    two.connect()
    two.settle()
    pause.pause(two.ana.engine, MESH)
    team(two.ana.node).state.set("k", 1)
    assert not two.ana.sync.meshes[MESH].paused, "it has not looked"
    assert two.ana.sync.push(MESH) is None
    assert states(two.ana) == {"pending": 1}
    pause.resume(two.ana.engine, MESH)
    two.ana.sync.look()
    assert two.ana.sync.push(MESH) is not None


def test_D12_a_personal_mesh_cannot_be_paused(nodes: Nodes) -> None:
    node = nodes.open("ana")
    with pytest.raises(NotShared):
        pause.pause(node._engine, MESH)


def test_D15_who_may_only_write_still_writes(two: Two, nodes: Nodes, tmp_path: Path) -> None:
    eve = Laptop(nodes.open("eve"), two.broker, tmp_path / "eve")
    eve.join("write")
    eve.connect()
    team(eve.node).state.set("e", 1)
    eve.settle()
    trouble = eve.sync.meshes[MESH].trouble
    assert trouble is not None
    assert trouble.code == "not_granted"
    assert states(eve) == {"done": 1}
