"""Following an order by what a source gives over HTTP: another zone, or a broker.

Pages come by number, from the one after the last that is folded here. If the source no longer has
that, its committed state comes first, as an object. Where this node is in the order is all that has
to be remembered, whoever brought the last commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken, tell_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_state import take_state
from holdfast.node.core.object_transfer import pull_objects
from holdfast.protocol.commit_page import CheckedPage, StateObject, decode_page
from holdfast.rules.errors import (
    BadAnswer,
    BadCommitPage,
    BadQuorumSnapshot,
    Truncated,
    UnknownObject,
)
from holdfast.storage.ports import Reader


class CommitSource(Protocol):
    """Where commits come from, and the objects that hold the committed state."""

    def commits_page(self, mesh: str, first: int) -> bytes:
        """Truncated if the source no longer has the first."""

    def committed_state(self, mesh: str, have: int) -> StateObject:
        """For one that has `have` commits."""

    def object_size(self, sha: str) -> int | None: ...
    def object(self, sha: str, start: int, size: int) -> bytes: ...


def follow_order(
    engine: NodeEngine,
    source: CommitSource,
    mesh: str,
    upto: int,
    who: str,
    ended: Callable[[], bool] = lambda: False,
) -> int:
    """Takes in what a source has up to a number and this node lacks; returns how many commits were
    new. `who` says for people whose word it is.
    """
    new = 0
    while not ended() and (have := standing_of(engine, mesh)) is not None and have < upto:
        try:
            page = _page(source, mesh, have + 1, who)
        except Truncated:
            new += _take_state(engine, source, mesh, have, who, ended)
            continue
        taken: PageTaken = engine.write("commits.take", CommitPageIntake(engine.ctx, page, who))
        tell_trouble(mesh, taken.trouble)
        new += taken.new
        if not taken.new:
            break
    return new


def _page(source: CommitSource, mesh: str, first: int, who: str) -> CheckedPage:
    try:
        page = decode_page(source.commits_page(mesh, first))
    except BadCommitPage as error:
        raise BadAnswer(f"{who}: {error.message}") from None
    if page.mesh != mesh or page.first != first:
        raise BadAnswer(f"{who} was asked for commits of {mesh} from {first} on")
    return page


def _take_state(
    engine: NodeEngine,
    source: CommitSource,
    mesh: str,
    have: int,
    who: str,
    ended: Callable[[], bool],
) -> int:
    state = source.committed_state(mesh, have)
    if state.mesh != mesh or state.number <= have:
        # It says that it has truncated what comes next, and gives a state without it.
        raise BadAnswer(f"{who} has truncated commit {have + 1} of {mesh} and has no state with it")
    absent = pull_objects(engine, source, [state.sha256], lambda pulled: None, ended)
    if absent:
        raise UnknownObject(f"{who} no longer has the committed state of {mesh}")
    if ended():
        return 0
    try:
        take_state(engine, state, who)
    except BadQuorumSnapshot as error:
        raise BadAnswer(f"{who}: {error.message}") from None
    return state.number - have


def standing_of(engine: NodeEngine, mesh: str) -> int | None:
    """How far this node is; None if an engine of its own brings the order, or the mesh is not
    here.
    """

    def read(tx: Reader) -> int | None:
        row = tx.quorum_get(mesh)
        if tx.mesh_get(mesh) is None or (row is not None and row.voter is not None):
            return None
        return 0 if row is None else row.number

    return engine.read("quorum.standing", read)
