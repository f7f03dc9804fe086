"""What a quorum has committed goes by file from home to home, with its records."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.core.committed_intake import commit_trouble
from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_, import_log
from holdfast.node.library.node import Node, open_node
from holdfast.pipeline.logs.log import open_log
from holdfast.rules.envelope import encode
from holdfast.rules.limits import COMMIT_PAGE_ROWS
from support.commit_pages import mission
from support.daemon import make_home
from support.envelopes import MESH
from support.sole_voter import SoleVoter, give_voters


@pytest.fixture
def ana(tmp_path: Path) -> Iterator[Node]:
    with open_node(make_home(tmp_path / "ana", "ana", MESH), sync="normal") as node:
        node.mesh(MESH).state.set("k", 1)
        give_voters(node._engine, MESH)
        yield node


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Node]:
    with open_node(make_home(tmp_path / "bob", "bob", MESH), sync="normal") as node:
        yield node


def commit(node: Node, *ids: str) -> None:
    for id in ids:
        SoleVoter(node._engine, MESH).commit(encode(mission(id, origin=node.peer)))


def exported(node: Node) -> io.BytesIO:
    out = io.BytesIO()
    export(node, out)
    out.seek(0)
    return out


def records(node: Node) -> list[bytes]:
    rows = node._engine.read("test", lambda tx: tx.commit_range(MESH, 1, 9_999))
    return [row.record for row in rows]


def test_S13_an_imported_log_brings_what_was_committed_with_its_records(
    ana: Node, bob: Node
) -> None:
    commit(ana, "a", "b")
    done = import_log(bob, exported(ana))
    assert done.refused == ()
    assert done.counts == {"applied": 1, "committed": 2}
    assert records(bob) == records(ana)
    missions = bob._engine.read("test", lambda tx: tx.entity_list(MESH, "mission", "", 9))
    assert [row.id for row in missions] == ["a", "b"]
    again = import_log(bob, exported(ana))
    assert again.counts == {"noop_already_applied": 3, "committed": 0}
    commit(ana, "c")
    assert import_log(bob, exported(ana)).counts["committed"] == 1
    # And from there it goes on.
    assert exported(bob).getvalue().count(b'{"kind":"commit"') == 3


def test_S13_more_commits_than_a_page_has_come_in_several(ana: Node, bob: Node) -> None:
    commit(ana, *(f"m{at}" for at in range(COMMIT_PAGE_ROWS + 1)))
    assert import_log(bob, exported(ana)).counts["committed"] == COMMIT_PAGE_ROWS + 1


def test_S13_another_order_in_a_file_is_told_and_changes_nothing(
    ana: Node, bob: Node, tmp_path: Path
) -> None:
    commit(ana, "a")
    import_log(bob, exported(ana))
    with open_node(make_home(tmp_path / "eve", "eve", MESH), sync="normal") as eve:
        give_voters(eve._engine, MESH)
        commit(eve, "x", "y")
        done = import_log(bob, exported(eve))
    assert [one.code for one in done.refused] == ["commit_forked"]
    assert records(bob) == records(ana)
    assert len(bob._engine.read("test", lambda tx: commit_trouble(tx, MESH))) == 1


def test_S13_an_import_of_rows_passes_over_what_a_quorum_decided(ana: Node, bob: Node) -> None:
    commit(ana, "a")
    done = import_(bob, exported(ana))
    assert done.counts["state"] == 1
    assert records(bob) == []


def test_Q4_the_lake_reads_the_records_of_an_export(ana: Node, tmp_path: Path) -> None:
    commit(ana, "a", "b", "c")
    path = tmp_path / "ana.jsonl"
    path.write_bytes(exported(ana).getvalue())
    log = open_log(str(path))
    read = [one for piece in log.commits({MESH: 1}) for one in piece]
    assert [one.record for one in read] == records(ana)[1:]
    assert all(one.raw for one in read)
    place = log.place()
    assert sum(batch.num_rows for batch in log.batches(place.epoch, 1, place.head + 1)) == 4
    log.close()
