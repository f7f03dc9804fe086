"""Zones get what a quorum has committed beside the log, with the records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from holdfast.node.core.committed_intake import commit_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import open_node
from holdfast.node.links.commits import take_commits
from holdfast.node.links.source import LinkSource
from holdfast.node.log import serve
from holdfast.protocol.commit_page import decode_page, encode_page
from holdfast.rules.envelope import encode
from holdfast.rules.errors import BadAnswer, BadInput, NotGranted, NoVoters, UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.rows import LinkRow
from holdfast.service.caller import LOCAL, Caller
from node.links.test_live import MESH, Map, Zone
from support.commit_pages import mission, page_of, voter_with
from support.daemon import make_home
from support.sole_voter import SoleVoter, give_voters


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Map]:
    with ExitStack() as ending:
        yield Map(tmp_path, ending)


def missions(zone: Zone) -> list[str]:
    engine = zone.api.engine
    return [
        row.id for row in engine.read("test", lambda tx: tx.entity_list(MESH, "mission", "", 99))
    ]


def test_Z6_a_zone_follows_what_a_quorum_commits_and_quarantines_nothing(zones: Map) -> None:
    plant, office, branch = (zones.zone(name) for name in ("plant", "office", "branch"))
    engine = plant.api.engine
    give_voters(engine, MESH)
    voter = SoleVoter(engine, MESH)
    plant.write("p1")
    voter.commit(encode(mission("a", origin="plant")))
    office.pulls(plant, carries=["any"])
    zones.until(lambda: missions(office) == ["a"])
    # Another zone gets it from one that has no vote.
    branch.pulls(office, carries=["any"])
    zones.until(lambda: missions(branch) == ["a"])
    voter.commit(encode(mission("b", origin="plant")))
    voter.commit(encode(mission("c", origin="office")))  # the log of the plant leaves it out here
    plant.write("p2")
    for zone in (office, branch):
        zones.until(lambda zone=zone: missions(zone) == ["a", "b", "c"])  # type: ignore[misc]
        zones.until(lambda zone=zone: "p2" in zone.subjects())  # type: ignore[misc]
    for zone, link in ((office, "plant"), (branch, "office")):
        assert zone.status(link).quarantined == 0
        records = zone.api.engine.read("test", lambda tx: tx.commit_range(MESH, 1, 9))
        mine = engine.read("test", lambda tx: tx.commit_range(MESH, 1, 9))
        assert [row.record for row in records] == [row.record for row in mine]


def test_Q3_a_zone_takes_the_state_where_its_source_has_truncated_the_log(zones: Map) -> None:
    plant, office = zones.zone("plant"), zones.zone("office")
    engine = plant.api.engine
    give_voters(engine, MESH)
    voter = SoleVoter(engine, MESH)
    for name in "ab":
        voter.commit(encode(mission(name, origin="plant")))
    head = engine.read("test", lambda tx: tx.log_bounds()[1])
    engine.store.write(lambda tx: tx.log_truncate(head + 1, 99, 1))
    voter.commit(encode(mission("c", origin="plant")))
    office.pulls(plant, carries=["any"])
    zones.until(lambda: missions(office) == ["a", "b", "c"])
    voter.commit(encode(mission("d", origin="plant")))
    zones.until(lambda: missions(office) == ["a", "b", "c", "d"])
    assert office.status("plant").quarantined == 0
    with pytest.raises(NotGranted):
        serve.serve_state(engine, Caller("zone", "other", frozenset({"another"})), MESH)


# --- who may read --------------------------------------------------------------------------------


def test_Z8_a_zone_gets_commits_only_of_meshes_that_it_may_read(tmp_path: Path) -> None:
    with open_node(make_home(tmp_path / "plant", "plant", MESH), sync="normal") as node:
        engine = node._engine
        with pytest.raises(NoVoters):
            serve.serve_commits(engine, LOCAL, MESH, 1)
        give_voters(engine, MESH)
        SoleVoter(engine, MESH).commit(encode(mission("a", origin="plant")))
        friend = Caller("zone", "office", frozenset({MESH}))
        stranger = Caller("zone", "other", frozenset({"another"}))
        assert serve.commits_held(engine, friend).commits == {MESH: 1}
        assert len(decode_page(serve.serve_commits(engine, friend, MESH, 1)).lines) == 1
        assert serve.commits_held(engine, stranger).commits == {}
        with pytest.raises(NotGranted):
            serve.serve_commits(engine, stranger, MESH, 1)
        with pytest.raises(UnknownMesh):
            serve.serve_commits(engine, LOCAL, "nowhere", 1)
        with pytest.raises(BadInput):
            serve.serve_commits(engine, LOCAL, MESH, 0)


# --- what a source may say -----------------------------------------------------------------------


class Pages:
    """A source that gives these bytes as pages."""

    def __init__(self, page: bytes, held: int = 2) -> None:
        self.page, self.held, self.asked = page, {MESH: held}, 0

    def commits_held(self) -> dict[str, int]:
        return self.held

    def commits_page(self, mesh: str, first: int) -> bytes:
        self.asked += 1
        return self.page


def link_of(**filter: tuple[str, ...]) -> LinkRow:
    return LinkRow(name="l", url="https://x:1", zone="x", filter=Filter(**filter), added_at=1)  # type: ignore[arg-type]


def took(engine: NodeEngine, source: Pages, row: LinkRow) -> int:
    return take_commits(engine, cast(LinkSource, source), row)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[NodeEngine]:
    with open_node(make_home(tmp_path / "reader", "dan", MESH), sync="normal") as node:
        yield node._engine


ORDER = [mission("a"), mission("b")]


def test_Z6_a_source_that_sends_other_pages_than_asked_for_is_not_believed(
    reader: NodeEngine,
) -> None:
    whole = encode_page(page_of(voter_with(ORDER)))
    for lie in (b"\x90", encode_page(page_of(voter_with(ORDER), 2))):
        with pytest.raises(BadAnswer):
            took(reader, Pages(lie), link_of())
    assert took(reader, Pages(whole), link_of()) == 2
    # One that says it has more and sends nothing new is not asked for ever.
    end = Pages(encode_page(page_of(voter_with(ORDER), 3)), held=9)
    assert (took(reader, end, link_of()), end.asked) == (0, 1)


def test_Z6_a_link_that_takes_only_a_part_of_a_mesh_follows_no_order(reader: NodeEngine) -> None:
    pages = Pages(b"")
    for filter in ({"origins": ("x",)}, {"classes": ("facts",)}, {"subjects": ("s",)}):
        assert took(reader, pages, link_of(**filter)) == 0
    assert took(reader, pages, link_of(meshes=("other",))) == 0
    assert pages.asked == 0


def test_Z6_an_order_that_forks_is_told_and_does_not_end_the_link(reader: NodeEngine) -> None:
    took(reader, Pages(encode_page(page_of(voter_with(ORDER)))), link_of())
    other = voter_with([mission("x"), mission("y"), ORDER[0]])
    forked = Pages(encode_page(page_of(other, 3)), held=3)
    assert took(reader, forked, link_of()) == 0
    (trouble,) = reader.read("test", lambda tx: commit_trouble(tx, MESH))
    assert (trouble.kind, trouble.number, trouble.source) == ("commit_forked", 3, "link l")
