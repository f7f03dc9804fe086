"""The committed state as an object: who came too late for pages takes it and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from holdfast.node.core.committed_intake import CommitPageIntake, commit_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.core.following.committed_source import follow_order
from holdfast.node.core.following.committed_state import give_state, take_state
from holdfast.node.library.node import open_node
from holdfast.protocol.commit_page import StateObject, check_page, encode_page
from holdfast.rules.envelope import encode
from holdfast.rules.errors import (
    BadAnswer,
    BadQuorumSnapshot,
    CommitForked,
    LogMismatch,
    NoVoters,
    UnknownMesh,
    UnknownObject,
    Unreachable,
)
from holdfast.rules.limits import COMMIT_STATE_REUSE_MS
from holdfast.storage.ports import Transaction
from support.commit_pages import mission
from support.commits import committed_state
from support.daemon import make_home
from support.sole_voter import SoleVoter, give_voters

MESH = "team"
Make = Callable[[str], NodeEngine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as ending:

        def opened(name: str) -> NodeEngine:
            home = make_home(tmp_path / name, name, MESH)
            return ending.enter_context(open_node(home, sync="normal"))._engine

        yield opened


def voting(engine: NodeEngine, *names: str) -> SoleVoter:
    give_voters(engine, MESH)
    voter = SoleVoter(engine, MESH)
    for name in names:
        voter.commit(encode(mission(name, origin=engine.ctx.peer)))
    return voter


def truncate(engine: NodeEngine) -> None:
    head = engine.read("test", lambda tx: tx.log_bounds()[1])
    engine.store.write(lambda tx: tx.log_truncate(head + 1, 99, 1))


def take_page(engine: NodeEngine, source: NodeEngine, first: int = 1, limit: int = 512) -> None:
    page = source.read("test", lambda tx: commits_page(tx, MESH, first, limit))
    engine.write("test", CommitPageIntake(engine.ctx, check_page(page), "ana"))


def held(engine: NodeEngine) -> dict[str, object]:
    """What was committed, without what depends on the node: offsets, its vote, its clock."""
    state = engine.read("test", committed_state)
    return {name: state[name] for name in ("entities", "revisions", "leases", "nodes", "tasks")} | {
        "records": [row.record for row in engine.read("t", lambda tx: tx.commit_range(MESH, 1, 99))]
    }


class Far:
    """Another node, as a link or a broker reaches it; its line may break."""

    def __init__(self, engine: NodeEngine) -> None:
        self.engine, self.pieces, self.breaks_at = engine, 0, 0
        self.state: StateObject | None = None

    def commits_page(self, mesh: str, first: int) -> bytes:
        return encode_page(self.engine.read("far", lambda tx: commits_page(tx, mesh, first)))

    def committed_state(self, mesh: str, have: int) -> StateObject:
        return self.state or give_state(self.engine, mesh, have)

    def object_size(self, sha: str) -> int | None:
        return self.engine.blobs.size(sha) if self.engine.blobs.exists(sha) else None

    def object(self, sha: str, start: int, size: int) -> bytes:
        self.pieces += 1
        if self.pieces == self.breaks_at:
            raise Unreachable("the line is gone")
        return self.engine.blobs.read(sha)[start : start + min(size, 700)]


def test_Q3_who_lacks_what_was_truncated_takes_the_state_and_goes_on_by_pages(make: Make) -> None:
    ana, dan, eve = make("ana"), make("dan"), make("eve")
    voter = voting(ana, "a", "b", "c")
    take_page(eve, ana, limit=1)  # she was there for the first
    truncate(ana)
    voter.commit(encode(mission("d", origin="ana")))
    for late in (dan, eve):
        assert follow_order(late, Far(ana), MESH, 4, "link ana") > 0
        assert held(late) == held(ana)
        assert late.read("test", lambda tx: commit_trouble(tx, MESH)) == []
    voter.commit(encode(mission("e", origin="ana")))
    assert follow_order(dan, Far(ana), MESH, 5, "link ana") == 1
    # Who took a state hands it on as well.
    assert follow_order(make("fay"), Far(dan), MESH, 5, "link dan") == 5
    assert follow_order(ana, Far(dan), MESH, 99, "link dan") == 0, "a voter takes nothing"


def test_Q3_a_state_that_broke_off_goes_on_where_it_was(make: Make) -> None:
    ana, dan = make("ana"), make("dan")
    voting(ana, *"abcdefgh")
    truncate(ana)
    far = Far(ana)
    far.breaks_at = 3
    with pytest.raises(Unreachable):
        follow_order(dan, far, MESH, 8, "link ana")
    assert dan.read("test", lambda tx: tx.quorum_get(MESH)) is None
    sha = give_state(ana, MESH).sha256
    assert dan.blobs.partial(sha) == 1400
    assert follow_order(dan, far, MESH, 8, "link ana") == 8
    assert held(dan) == held(ana)
    assert far.pieces == -(-ana.blobs.size(sha) // 700) + 1


def test_Q3_one_state_serves_all_for_a_while(make: Make) -> None:
    ana = make("ana")
    with pytest.raises(NoVoters):
        give_state(ana, MESH)
    voter = voting(ana, "a")
    first = give_state(ana, MESH)
    voter.commit(encode(mission("b", origin="ana")))
    assert give_state(ana, MESH) == first
    assert give_state(ana, MESH, have=1).number == 2, "the one that is there does not help"
    ana.blobs.unlink(give_state(ana, MESH).sha256)
    assert ana.blobs.exists(give_state(ana, MESH).sha256)
    voter.commit(encode(mission("c", origin="ana")))
    assert give_state(ana, MESH).number == 2

    def age(tx: Transaction) -> None:
        job = tx.job_get(f"commits.state:{MESH}")
        assert job is not None
        made_at = job.cursor["made_at"] - COMMIT_STATE_REUSE_MS
        tx.job_put(msgspec.structs.replace(job, cursor={**job.cursor, "made_at": made_at}))

    ana.write("test", age)
    assert give_state(ana, MESH).number == 3


def test_Q4_a_state_of_another_order_is_told_and_changes_nothing(make: Make) -> None:
    ana, dan = make("ana"), make("dan")
    voting(ana, "a", "b")
    take_page(dan, ana)
    before = held(dan)
    eve = make("eve")
    voting(eve, "x", "y", "z")
    lie = give_state(eve, MESH)
    dan.blobs.put(eve.blobs.read(lie.sha256))
    with pytest.raises(CommitForked):
        take_state(dan, lie, "eve")
    assert held(dan) == before
    (trouble,) = dan.read("test", lambda tx: commit_trouble(tx, MESH))
    assert (trouble.kind, trouble.source) == ("commit_forked", "eve")


def test_Q4_a_state_of_an_earlier_incarnation_is_older_and_no_fork(make: Make) -> None:
    ana, dan = make("ana"), make("dan")
    voting(ana, "a", "b", "c")
    take_page(dan, ana, limit=1)
    state = give_state(ana, MESH)
    dan.blobs.put(ana.blobs.read(state.sha256))

    def recovered(tx: Transaction) -> None:
        row = tx.quorum_get(MESH)
        assert row is not None
        tx.quorum_put(msgspec.structs.replace(row, incarnation=2, tag=b"t" * 16, applied=0))

    dan.store.write(recovered)
    with pytest.raises(LogMismatch):
        take_state(dan, state, "ana")
    assert dan.read("test", lambda tx: commit_trouble(tx, MESH)) == []
    # The other way round a node learns of the incarnation with the state.
    ana.store.write(recovered)
    SoleVoter(ana, MESH).commit(encode(mission("d", origin="ana")))
    truncate(ana)
    eve = make("eve")
    assert follow_order(eve, Far(ana), MESH, 4, "link ana") == 4
    row = eve.read("test", lambda tx: tx.quorum_get(MESH))
    assert row is not None
    assert (row.incarnation, row.tag, row.number) == (2, b"t" * 16, 4)


def test_Q3_what_is_no_state_is_refused(make: Make) -> None:
    ana, dan = make("ana"), make("dan")
    voting(ana, "a", "b")
    truncate(ana)
    far, state = Far(ana), give_state(ana, MESH)
    half = ana.blobs.put(ana.blobs.read(state.sha256)[:-40])
    far.state = StateObject(MESH, 2, "embedded", half.sha256, half.size)
    with pytest.raises(BadAnswer):
        follow_order(dan, far, MESH, 2, "link ana")
    with pytest.raises(BadQuorumSnapshot):
        take_state(dan, far.state, "ana")
    far.state = StateObject(MESH, 9, "embedded", state.sha256, state.size)
    with pytest.raises(BadAnswer, match="2 commits of 'team', offered as 9"):
        follow_order(dan, far, MESH, 9, "link ana")
    far.state = StateObject(MESH, 2, "embedded", "ab" * 32, 9)
    with pytest.raises(UnknownObject):
        follow_order(dan, far, MESH, 2, "link ana")
    far.state = StateObject(MESH, 0, "embedded", state.sha256, state.size)
    with pytest.raises(BadAnswer):
        follow_order(dan, far, MESH, 2, "link ana")
    assert dan.read("test", lambda tx: tx.quorum_get(MESH)) is None
    with pytest.raises(UnknownMesh):
        take_state(dan, StateObject("nowhere", 2, "embedded", state.sha256, 9), "ana")
    with pytest.raises(LogMismatch):
        take_state(ana, StateObject(MESH, 9, "embedded", state.sha256, 9), "dan")
