"""What quorums have committed, between this node and a broker.

Strong envelopes are not pushed as changes are: they count by their commit, so both sides compare
numbers. Who has fewer gets pages; the broker never asks. A node brings commits if it may `relay`,
whether or not it votes. Several nodes bring the same ones, and the broker stores each once.

    ours > theirs    pages ─► broker       (its own log truncated: the committed state ─► broker)
    ours < theirs    broker ─► pages       (truncated there: the committed state ─► here)

Nothing is remembered between two connections but the two numbers, so a broker that was restored
from an older copy simply has the lower one.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.core.following.committed_source import follow_order
from holdfast.node.core.following.committed_state import give_state
from holdfast.protocol.broker_http import CommitsStanding
from holdfast.protocol.commit_page import StateObject, encode_page
from holdfast.rules.errors import BadAnswer, Truncated, UnknownObject
from holdfast.storage.ports import Reader


class BrokerCommits:
    """The commits of one mesh at its broker, as `follow_order` asks for them."""

    def __init__(self, calls: BrokerClient, mesh: str) -> None:
        self._calls, self._objects = calls, calls.objects(mesh)

    def commits_page(self, mesh: str, first: int) -> bytes:
        return self._calls.commits_page(mesh, first)

    def committed_state(self, mesh: str, have: int) -> StateObject:
        state = self._calls.commits(mesh).state
        if state is None or state.number <= have:
            raise UnknownObject(f"the broker has no state of {mesh!r} behind commit {have}")
        return state

    def object_size(self, sha: str) -> int | None:
        return self._objects.object_size(sha)

    def object(self, sha: str, start: int, size: int) -> bytes:
        return self._objects.object(sha, start, size)


def carry_commits(
    engine: NodeEngine,
    calls: BrokerClient,
    mesh: str,
    broker: str,
    ended: Callable[[], bool],
    *,
    may_bring: bool,
) -> int:
    """Brings what the broker lacks and takes what this node lacks; returns how far the broker is
    then.
    """
    there = calls.commits(mesh)
    if commits_here(engine, mesh) < there.last:
        follow_order(
            engine, BrokerCommits(calls, mesh), mesh, there.last, f"broker {broker}", ended
        )
    while may_bring and not ended() and there.last < commits_here(engine, mesh):
        before, there = there.last, _bring(engine, calls, mesh, there.last)
        if there.last <= before:
            raise BadAnswer(f"the broker was brought commits of {mesh!r}, and still has {before}")
    return there.last


def _bring(engine: NodeEngine, calls: BrokerClient, mesh: str, last: int) -> CommitsStanding:
    def read(tx: Reader) -> bytes:
        return encode_page(commits_page(tx, mesh, last + 1))

    try:
        page = engine.read("commits.page", read)
    except Truncated:
        return bring_state(engine, calls, mesh, last)
    return calls.bring_commits(mesh, page)


def bring_state(
    engine: NodeEngine, calls: BrokerClient, mesh: str, have: int = 0
) -> CommitsStanding:
    """Brings the committed state to a broker that has `have` commits."""
    state = give_state(engine, mesh, have)
    calls.put_object(engine, mesh, state.sha256)
    return calls.name_state(mesh, state.sha256, state.engine)


def commits_here(engine: NodeEngine, mesh: str) -> int:
    """The last commit that is folded here; 0 where there is no quorum."""

    def read(tx: Reader) -> int:
        row = tx.quorum_get(mesh)
        return 0 if row is None else row.number

    return engine.read("quorum.standing", read)
