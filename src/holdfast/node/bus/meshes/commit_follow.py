"""Following what quorums have committed, over the links of a mesh.

Strong envelopes are in no stream, so streams do not carry them. Each side tells how far it is in
the commits of the meshes that both share (`CommitsTold`), when a link comes up and whenever that
grows. Who lacks some asks one neighbour that has them and is believed, page by page. A node that
takes part in an order itself asks nobody: its engine brings everything. A voter only compares
(`order_compare.py`).

    commit ─► ring ─► numbers read again ─► told to all links
    told ─► one neighbour asked ─► page ─► node/core/committed_intake.py ─► the next page

One page of a mesh is under way at a time. If its neighbour is gone, refuses or is silent, another
one is asked. A neighbour that has truncated what it is asked for sends its committed state instead,
as an object (`node/core/following/committed_state.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_serve import check_may_read
from holdfast.node.bus.meshes.order_compare import ComparedOrders, OrderCompare
from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken, tell_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.core.following.committed_state import give_state, take_state
from holdfast.protocol.bus_mesh import (
    CommitsAsked,
    CommitsRefused,
    CommitsSent,
    CommitsTold,
    StateTold,
)
from holdfast.protocol.commit_page import CheckedPage, StateObject, decode_page, encode_page
from holdfast.rules.arrivals import Named
from holdfast.rules.errors import (
    BadAnswer,
    BadCommitPage,
    BadQuorumSnapshot,
    CommitForked,
    LogMismatch,
    NotGranted,
    NoVoters,
    Truncated,
    UnknownMesh,
)
from holdfast.rules.limits import BUS_STREAMS_MAX, BUS_WORD_STREAMS_MAX, COMMIT_ASK_MS, SECOND_MS
from holdfast.rules.names import check_mesh
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Reader, Transaction

if TYPE_CHECKING:
    from holdfast.node.bus.meshes.mesh_link import MeshLink


class _Asked(NamedTuple):
    label: str
    first: int
    silent: asyncio.TimerHandle
    claimed: int
    """How far the peer had said to be by then."""


class CommitTalk:
    """What is said on one link about commits."""

    def __init__(self) -> None:
        self.theirs: dict[str, int] = {}
        """How far the peer is, by mesh, as it told or as its questions show."""
        self.believed: list[str] = []
        """The meshes of which the peer may bring commits."""
        self.useless: set[str] = set()
        """Meshes of which this peer refused, or brought another order."""
        self.untold: dict[str, None] = {}
        self.compared = ComparedOrders()

    def forget(self) -> None:
        """What is shared has changed: all is told again."""
        self.theirs.clear()
        self.useless.clear()

    def hear(self, mesh: str, number: int) -> None:
        if mesh in self.theirs or len(self.theirs) < BUS_STREAMS_MAX:
            self.theirs[mesh] = max(number, self.theirs.get(mesh, 0))


class CommitFollow:
    """The commits of all meshes of one exchange. Belongs to its loop."""

    def __init__(self, context: MeshContext, links: Mapping[str, MeshLink]) -> None:
        self._context, self._links = context, links
        self.numbers: dict[str, int] = {}
        """How far this node is, by mesh."""
        self._own: set[str] = set()
        """The meshes whose order an engine of this node brings."""
        self.compare = OrderCompare(context, self.numbers)
        self.has_own_order: Callable[[QuorumRow], bool] = lambda row: row.voter is not None
        self.votes: Callable[[str, bytes], bool] = lambda mesh, key: False
        """Whether the node of a key votes in a mesh, and so hears of commits before we can tell."""
        self.hurry: Callable[[], None] = lambda: None
        """Looks again at what was committed, without a pause."""
        self._asked: dict[str, _Asked] = {}
        self._failed: Counter[tuple[str, str]] = Counter()

    def close(self) -> None:
        for asked in self._asked.values():
            asked.silent.cancel()
        self._asked.clear()
        for link in self._links.values():
            link.commits.compared.end()

    # --- how far we are ----------------------------------------------------------------------

    async def look(self) -> None:
        """Reads how far this node is; what has grown is told, and asked on."""
        engine = self._context.engine
        rows = await self._context.run(partial(engine.read, "quorum.standing", _standings))
        own = {row.mesh for row in rows if self.has_own_order(row)}
        lost, self._own = self._own - own, own
        for mesh in lost & self.numbers.keys():
            self.ask_next(mesh)
        self.compare.votes.clear()
        self._compare(rows)

    @property
    def has_followers(self) -> bool:
        """Whether a neighbour waits for our word of what was committed since the last look."""
        return any(
            mesh in link.shared and not self.votes(mesh, link.link.peer)
            for mesh in self._context.engine.ctx.commits_of.copy()
            for link in self._links.values()
        )

    async def look_at_grown(self) -> None:
        """The same, of the meshes only in which something was committed: beside a busy quorum there
        may be a thousand that are idle.
        """
        engine, grown = self._context.engine, self._context.engine.ctx.commits_of
        meshes = [grown.pop() for _ in range(len(grown))]  # before reading: the next is seen later
        read = partial(_standings_of, meshes)
        self._compare(await self._context.run(partial(engine.read, "quorum.standing", read)))

    def _compare(self, rows: Sequence[QuorumRow]) -> None:
        for row in rows:
            if self.has_own_order(row):
                self._own.add(row.mesh)
            if row.voter is not None and row.engine == "embedded":
                self.compare.votes.add(row.mesh)
            else:
                self.compare.votes.discard(row.mesh)  # it may have moved to another engine
            if self.numbers.get(row.mesh) != row.number:
                self.numbers[row.mesh] = row.number
                for link in self._links.values():
                    self._tell(link, row.mesh)
                    self.compare.heard(link, row.mesh)
                self.ask_next(row.mesh)

    def met(self, link: MeshLink) -> None:
        """Both sides share something, or something else than before."""
        link.commits.forget()
        for mesh in self.numbers:
            self._tell(link, mesh)
        if self.has_followers:
            self.hurry()

    def voting(self, link: MeshLink, meshes: frozenset[str]) -> None:
        """In which meshes the peer may vote; what it told before that was known is compared now."""
        if meshes != link.commits.compared.voting:
            link.commits.compared.voting = meshes
            for mesh in link.commits.theirs:
                self.compare.heard(link, mesh)

    def _tell(self, link: MeshLink, mesh: str) -> None:
        if mesh in link.shared and not link.refused and self.numbers[mesh]:
            link.commits.untold[mesh] = None
            link.wake()

    def next_told(self, link: MeshLink) -> CommitsTold:
        """The word that tells what is to be told, as it is now."""
        untold = link.commits.untold
        meshes = list(untold)[:BUS_WORD_STREAMS_MAX]
        for mesh in meshes:
            del untold[mesh]
        return CommitsTold([(mesh, self.numbers.get(mesh, 0)) for mesh in meshes])

    # --- asking ------------------------------------------------------------------------------

    def heard(self, link: MeshLink, word: CommitsTold | CommitsRefused) -> str:
        """The peer has more, or does not send what it has; returns what people should know."""
        if isinstance(word, CommitsRefused):
            return self._refused(link, word)
        for mesh, number in word.commits:
            if check_mesh(mesh) in link.shared:
                link.commits.hear(mesh, number)
                self.ask_next(mesh)
                self.compare.heard(link, mesh)
        return ""

    def gone(self, link: MeshLink) -> None:
        """A link is down: what was asked of it is asked of another one."""
        link.commits.compared.end()
        for mesh, asked in list(self._asked.items()):
            if asked.label == link.label:
                self._end(mesh)
                self.ask_next(mesh)
        for key in [key for key in self._failed if key[1] == link.label]:
            del self._failed[key]

    def ask_next(self, mesh: str) -> None:
        """Asks the best neighbour for the next page of a mesh, unless one is asked already."""
        if mesh in self._asked or mesh in self._own:
            return
        have = self.numbers.get(mesh, 0)
        able = [
            link
            for link in self._links.values()
            if not link.refused
            and mesh in link.shared
            and mesh in link.commits.believed
            and mesh not in link.commits.useless
            and link.commits.theirs.get(mesh, 0) > have
        ]
        if not able:
            return
        link = min(able, key=lambda one: (self._failed[mesh, one.label], -one.commits.theirs[mesh]))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(COMMIT_ASK_MS / SECOND_MS, self._silent, mesh, link.label)
        claimed = link.commits.theirs[mesh]
        self._asked[mesh] = _Asked(link.label, have + 1, timer, claimed)
        link.say(CommitsAsked(mesh, have + 1))

    def _silent(self, mesh: str, label: str) -> None:
        self._failed[mesh, label] += 1
        self._end(mesh)
        self.ask_next(mesh)

    def _end(self, mesh: str) -> None:
        asked = self._asked.pop(mesh, None)
        if asked is not None:
            asked.silent.cancel()

    def _refused(self, link: MeshLink, word: CommitsRefused) -> str:
        asked = self._asked.get(word.mesh)
        if asked is None or asked.label != link.label:
            return ""
        link.commits.useless.add(word.mesh)
        self._end(word.mesh)
        self.ask_next(word.mesh)
        return f"{link.peer} sends no commits of {word.mesh}: {word.code[:64]}"

    # --- pages -------------------------------------------------------------------------------

    async def took(self, link: MeshLink, word: CommitsSent) -> str:
        """Takes a page in; returns what people should know, if there is something. BadAnswer for
        what was not asked for, or is no page.
        """
        context = self._context
        if word.state is not None:
            if self.compare.truncated(link, word.state):
                return ""
            return await self._took_state(link, word.state)
        try:
            page = await context.run(partial(decode_page, word.page))
        except BadCommitPage as error:
            raise BadAnswer(error.message) from None
        mesh = page.mesh
        if mesh in self.compare.votes:
            return await self.compare.took(link, page)
        return await self._took_page(link, page)

    async def _took_page(self, link: MeshLink, page: CheckedPage) -> str:
        context, mesh = self._context, page.mesh
        asked = self._asked.get(mesh)
        if asked is None or asked.label != link.label or mesh not in link.shared:
            return ""  # it came too late: somebody else was asked
        if page.first != asked.first:
            raise BadAnswer(f"commits of {mesh} were asked from {asked.first} on, not {page.first}")
        try:
            taken = await link.keeping.keep(
                list, lambda _: take_commits(context.engine, context.grants, link.who, page)
            )
        except (NotGranted, UnknownMesh) as error:
            link.commits.useless.add(mesh)
            self._end(mesh)
            self.ask_next(mesh)
            return error.message
        self._end(mesh)
        if link.commits.theirs.get(mesh, 0) <= asked.claimed:
            # It has no more than the page says, whatever it claimed. What it has told since then
            # may be newer than its page, and is asked for.
            link.commits.theirs[mesh] = page.end
        else:
            link.commits.hear(mesh, page.end)
        if taken.outcome == "forked":
            link.commits.useless.add(mesh)
        elif taken.outcome == "folded":
            self.numbers[mesh] = taken.number
            for other in self._links.values():
                self._tell(other, mesh)
        elif taken.outcome != "known":
            await self.look()
        self.ask_next(mesh)
        if taken.trouble:
            return f"{taken.trouble[0].kind}: commit {taken.trouble[0].number} of {mesh}"
        return ""

    async def _took_state(self, link: MeshLink, told: StateTold) -> str:
        """Fetches a state that came in place of a page, and takes it in."""
        context, mesh = self._context, check_mesh(told.mesh)
        asked = self._asked.get(mesh)
        if asked is None or asked.label != link.label or mesh not in link.shared:
            return ""
        if told.number < asked.first:
            raise BadAnswer(f"{link.peer} sent a state of {mesh} without commit {asked.first}")
        asked.silent.cancel()  # it is not silent: its object may take long
        state = StateObject(mesh, told.number, told.engine, told.sha256.hex(), told.size)
        who = (context.engine, context.grants, link.who, state)
        try:
            problem = await link.keeping.keep(
                partial(_state_wanted, *who), partial(take_told_state, *who)
            )
        except (NotGranted, UnknownMesh) as error:
            problem = error.message
        self._end(mesh)
        await self.look()
        if problem and self.numbers.get(mesh, 0) < told.number:  # nobody else was faster
            link.commits.useless.add(mesh)
        self.ask_next(mesh)
        return problem

    async def answer(self, link: MeshLink, asked: CommitsAsked) -> CommitsSent | CommitsRefused:
        """The page that a peer asks for."""
        link.commits.hear(check_mesh(asked.mesh), asked.first - 1)
        context = self._context
        who = (context.engine, context.grants, link.who)
        try:
            return await context.run(partial(answer_commits, *who, asked))
        except (NotGranted, NoVoters) as error:
            return CommitsRefused(asked.mesh, error.code)


def _standings(tx: Reader) -> list[QuorumRow]:
    return tx.quorum_list()


def _standings_of(meshes: Sequence[str], tx: Reader) -> list[QuorumRow]:
    found = [tx.quorum_get(mesh) for mesh in meshes]
    return [row for row in found if row is not None]


def serve_commits(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, asked: CommitsAsked
) -> bytes:
    """A page of commits for a peer that may read the mesh."""

    def read(tx: Reader) -> bytes:
        check_may_read(tx, grants, peer, asked.mesh)
        return encode_page(commits_page(tx, asked.mesh, asked.first))

    return engine.read("bus.page", read)


def answer_commits(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, asked: CommitsAsked
) -> CommitsSent:
    """A page of commits, or the committed state if this node has truncated the first of them."""
    try:
        return CommitsSent(serve_commits(engine, grants, peer, asked))
    except Truncated:
        state = give_state(engine, asked.mesh, asked.first - 1)
    told = StateTold(
        state.mesh, state.number, state.engine, bytes.fromhex(state.sha256), state.size
    )
    return CommitsSent(b"", told)


def _state_wanted(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, state: StateObject
) -> list[Named]:
    """The object of a state, if it is not here. Raises if the peer may not bring it."""
    engine.read("bus.meshes", partial(_check_may_bring, grants, peer, state.mesh))
    return [] if engine.blobs.exists(state.sha256) else [Named(state.sha256, state.size)]


def take_told_state(
    engine: NodeEngine,
    grants: MeshGrants,
    peer: MeshPeer,
    state: StateObject,
    absent: Collection[str],
) -> str:
    """Takes a state in that a peer has brought; returns why it cannot be, if it cannot."""
    engine.check_room()
    engine.read("bus.meshes", partial(_check_may_bring, grants, peer, state.mesh))
    if absent:
        return f"{peer.name} no longer has the committed state of {state.mesh}"
    try:
        take_state(engine, state, peer.name)
    except BadQuorumSnapshot as error:
        raise BadAnswer(error.message) from None
    except (CommitForked, LogMismatch) as error:
        return error.message
    return ""


def _check_may_bring(grants: MeshGrants, peer: MeshPeer, mesh: str, tx: Reader) -> None:
    if not grants.may_bring_commits(tx, peer, mesh):
        raise NotGranted(f"{peer.name} may not bring what was committed in {mesh!r}")


def take_commits(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, page: CheckedPage
) -> PageTaken:
    """Takes a page in that a peer has brought, if it may bring it."""
    engine.check_room()

    def work(tx: Transaction) -> PageTaken:
        _check_may_bring(grants, peer, page.mesh, tx)
        return CommitPageIntake(engine.ctx, page, peer.name)(tx)

    taken = engine.write("bus.take", work)
    tell_trouble(page.mesh, taken.trouble)
    return taken


def believed_of(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, meshes: list[str]
) -> list[str]:
    """The meshes of which a peer may bring what was committed."""

    def read(tx: Reader) -> list[str]:
        return [mesh for mesh in meshes if grants.may_bring_commits(tx, peer, mesh)]

    return engine.read("bus.meshes", read)
