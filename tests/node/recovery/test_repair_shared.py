"""What a repair saves of shared meshes: what is to be sent, what came, where we stand."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.core.intake import Intake
from holdfast.node.library.node import open_node
from holdfast.node.recovery.repair import repair_home
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.snapshot_copy import open_immutable
from support.envelopes import message_send
from support.keeping import MESH, fill, garbage, make_home, overwrite, team
from support.nodes import share
from support.stores import known_member


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("grown") / "home"
    with make_home(home) as node:
        fill(team(node), 20)
    return home


@pytest.fixture
def home(grown: Path, tmp_path: Path) -> Path:
    shutil.copytree(grown, tmp_path / "home")
    return tmp_path / "home"


def root_page(home: Path, name: str) -> int:
    with open_immutable(home / "data.db") as reader:
        found = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)
        ).get
    assert isinstance(found, int)
    return found


def change(home: Path, statement: str) -> None:
    with closing(connect(home / "data.db")) as raw:
        raw.execute(statement)


def correspond(home: Path) -> dict[str, Any]:
    """Changes and messages in every state, messages that came, places at the broker, mates."""
    with open_node(home) as node:
        mesh = share(node)
        ids = [mesh.send(f"m{n}", topic="news").id for n in range(4)]
        mesh.state.set("shared", 1)
        rows = node._engine.read("test", lambda tx: tx.outbox_list(None, (), 0, 99))
        came = message_send("topic", "news", b"hi", lamport=9_000)
        intake = Intake(node._engine.ctx, [came], delivered={came: b"B" * 16})

        def work(tx: Transaction) -> None:
            tx.outbox_done([(rows[0].number, b"B" * 16, 1, 7)], 5)
            tx.outbox_put(msgspec.structs.replace(rows[1], state="dead", attempts=1, ended_at=5))
            tx.outbox_inflight(rows[2].lane, [rows[2].number])
            intake(tx)
            tx.broker_positions_add(MESH, 1, [(7, rows[0].offset), (8, rows[1].offset)])
            tx.known_members_put(MESH, [known_member("a"), known_member("b")])
            row = tx.mesh_get(MESH)
            assert row is not None
            tx.mesh_change(msgspec.structs.replace(row, broker_seq=8))

        node._engine.store.write(work)
        assert len(ids) == 4
    return correspondence_of(home)


def correspondence_of(home: Path) -> dict[str, Any]:
    with open_node(home) as node, node._engine.store.read() as tx:
        mesh = tx.mesh_get(MESH)
        assert mesh is not None
        return {
            "spool": tx.outbox_list(None, (), 0, 999),
            "inbox": tx.inbox_list(None, False, 0, 999),
            "heard": tx.broker_positions_above(MESH, 1, 0, 0, 99),
            "mates": tx.known_members_list(MESH),
            "cursor": (mesh.kind, mesh.broker_url, mesh.broker_epoch, mesh.broker_seq),
        }


def test_S12_a_repair_keeps_what_is_to_be_sent_and_what_came(home: Path) -> None:
    before = correspond(home)
    overwrite(home / "data.db", root_page(home, "memory"), garbage(3))
    assert repair_home(home).whole_log
    after = correspondence_of(home)
    before["spool"][2] = msgspec.structs.replace(before["spool"][2], state="pending")
    assert after == before, "and what was in flight has no answer coming"
    assert integrity(home / "data.db", ours=True) == []


def test_D6_rows_find_their_entries_and_a_damaged_log_is_read_again_from_the_broker(
    home: Path,
) -> None:
    before = correspond(home)
    change(home, "DELETE FROM log WHERE offset IN (10, 20)")
    assert repair_home(home).tables["log"].lost == 2
    after = correspondence_of(home)
    assert [row.offset for row in after["spool"]] == [row.offset - 2 for row in before["spool"]]
    assert [row.offset for row in after["inbox"]] == [row.offset - 2 for row in before["inbox"]]
    assert after["heard"] == [(seq, offset - 2) for seq, offset in before["heard"]]
    assert after["cursor"][3] == 0
    assert integrity(home / "data.db", ours=True) == []


def test_D11_what_lost_its_envelope_is_sent_no_more(home: Path) -> None:
    before = correspond(home)
    gone = before["spool"][3].offset
    change(home, f"DELETE FROM log WHERE offset IN ({gone}, {before['inbox'][0].offset})")
    report = repair_home(home)
    after = correspondence_of(home)
    assert [row.number for row in after["spool"]] == [1, 2, 3, 5]
    assert after["inbox"] == []
    assert (report.tables["spool"].lost, report.tables["inbox"].lost) == (1, 1)
    assert integrity(home / "data.db", ours=True) == []


def test_D11_where_the_outbox_is_lost_everything_of_ours_is_sent_once_more(home: Path) -> None:
    before = correspond(home)
    overwrite(home / "data.db", root_page(home, "spool"), garbage(5))
    assert repair_home(home).tables["spool"].damaged
    after = correspondence_of(home)
    sent = {row.id for row in after["spool"] if row.state == "pending"}
    assert {row.id for row in before["spool"]} <= sent
    with open_node(home) as node:
        own = {entry.id for entry in node.log.range() if entry.origin == "ana"}
    assert sent == own, "whatever we wrote, and nothing of others"
    assert integrity(home / "data.db", ours=True) == []
