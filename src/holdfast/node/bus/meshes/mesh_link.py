"""One link to a peer that shares meshes: what is said on it, in both directions.

    sender    words, then pages; waits for room before each frame
    taker     pages of the other side, one after another: objects first, then the store
    objects   pieces of objects, on a stream of their own: a page that waits for them holds the
              credit of pages

A word is worked off when it comes, a page when its turn comes. The credit of a frame is given back
when it is worked off, so a peer cannot make us hold more than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from holdfast.bus.ports import Link
from holdfast.node.bus.meshes import mesh_receive, mesh_serve, mesh_snapshot
from holdfast.node.bus.meshes.commit_follow import CommitFollow, CommitTalk
from holdfast.node.bus.meshes.grants import MeshPeer
from holdfast.node.bus.meshes.mesh_compare import StreamComparison
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_figures import MeshLinkFigures
from holdfast.node.bus.meshes.mesh_objects import ObjectTalk
from holdfast.node.bus.meshes.owed_pages import OwedPages, named_of
from holdfast.node.bus.meshes.page_keeping import PageKeeping
from holdfast.node.bus.meshes.snapshot_pull import SnapshotPull
from holdfast.node.bus.meshes.told_words import ToldWords, check_room
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.bus_mesh import (
    BlocksAsked,
    BlocksTold,
    CommitsAsked,
    CommitsRefused,
    CommitsSent,
    CommitsTold,
    EntriesAsked,
    EntriesPage,
    EntriesRefused,
    LeavesAsked,
    LeavesTold,
    MeshesShared,
    MeshSnapshotPart,
    MeshWord,
    ObjectAsked,
    ObjectPiece,
    SnapshotAsked,
    SnapshotRefused,
    StreamNamed,
    StreamsTold,
    StreamTold,
    encode_word,
    read_word,
    seqs_of,
)
from holdfast.rules.backoff import Allowance
from holdfast.rules.bus.meshes.coverage import (
    NOTHING,
    BoundedCoverage,
    StreamName,
    StreamNumbers,
    cover,
    read_ranges,
    read_told,
    told,
    united,
)
from holdfast.rules.bus.meshes.truncated import SnapshotChoice, StreamOffer
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.errors import (
    BadAnswer,
    ForgedOrigin,
    HoldfastError,
    NotGranted,
    OverLimit,
    PeerUnreachable,
    TooMany,
    UnknownMesh,
)
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.limits import (
    BUS_MESHES_TOLD_MAX,
    BUS_MESHES_TOLD_MS,
    BUS_PAGES_WAITING_MAX,
    BUS_QUESTIONS_MAX,
    BUS_WORD_RANGES_ALL,
    BUS_WORD_RANGES_MAX,
    BUS_WORD_STREAMS_MAX,
    BUS_WORDS_WAITING_MAX,
)
from holdfast.rules.names import check_mesh, check_peer

log = logging.getLogger("holdfast")

_UNCHECKED_KEY: Final = b""
_Question = BlocksAsked | LeavesAsked | SnapshotAsked | CommitsAsked
_Page = EntriesPage | MeshSnapshotPart | CommitsSent


class MeshLink:
    """The exchange with one peer, as long as its link stands."""

    def __init__(self, context: MeshContext, follow: CommitFollow, link: Link, label: str) -> None:
        self._context, self.link, self.label = context, link, label
        self._follow, self.commits = follow, CommitTalk()
        self.peer = link.name
        self.who = MeshPeer(link.name, link.peer)
        self.ours: list[str] = []
        """The meshes that this node shares with the peer."""
        self.theirs: frozenset[str] = frozenset()
        """The meshes that the peer shares with this node, as it told."""
        self.writes: list[str] = []
        """The meshes to which it may write: what was refused before it might is asked for again."""
        self.relays: list[str] = []
        """The meshes that the peer may relay."""
        self.introduced = False
        """Whether the peer was told which meshes are shared with it."""
        self.problem = ""
        self.refused = False
        """The peer broke the rules: nothing more is taken from it on this link."""
        self.figures = MeshLinkFigures()
        self._meshes_told = Allowance(BUS_MESHES_TOLD_MAX, BUS_MESHES_TOLD_MS)
        self._heard = False
        """Whether the peer told which meshes it shares."""
        self._given, self._learned = StreamNumbers(), StreamNumbers()
        self._heard_of: dict[StreamName, tuple[int, bytes, int]] = {}
        """Number, digest and floor that the peer told last of each stream."""
        self._told_by = BoundedCoverage()
        """What it told last that it has of each."""
        self.confirmed = BoundedCoverage()
        """What the peer has stored, by its own word or because it sent it. What was sent to it is
        not among that before it says so."""
        self._unconfirmed: dict[StreamName, None] = {}
        """Streams of which something came that we have not told the peer we have."""
        self._bases: dict[StreamName, int] = {}
        self._keys: dict[StreamName, bytes] = {}
        self._introducing = False
        """Whether the peer is to be told which meshes are shared with it."""
        self._words: deque[MeshWord] = deque()
        self._untold: dict[StreamName, int] = {}
        """Streams that are to be told of, and beyond which number."""
        self._questions: deque[tuple[_Question, int]] = deque()
        self._parts: deque[MeshSnapshotPart | SnapshotRefused] = deque()
        """The rest of an answer that is under way."""
        self._owed = OwedPages(context, self.who, label, self._given, self.figures)
        self._pages: deque[tuple[StreamName | None, _Page, int]] = deque()
        self._to_send, self._to_take = asyncio.Event(), asyncio.Event()
        self._objects = ObjectTalk(context, self._send, link.taken, lambda: bool(self.shared))
        self.keeping = PageKeeping(context, self.peer, self._objects.pull, self._has_problem)
        self.snapshots = SnapshotPull(context, self.who, self.say, self.keeping.keep)
        self._told_words = ToldWords(self._hear_of, partial(link.taken, Stream.MESH), self.refuse)
        self._comparison = StreamComparison(context, self.peer, self.say, self.refuse)
        self._tasks = [
            context.start(self._guarded(loop))
            for loop in (self._send_on, self._take_on, self._objects.run)
        ]

    @property
    def shared(self) -> list[str]:
        """What both sides share."""
        return [mesh for mesh in self.ours if mesh in self.theirs]

    def end(self) -> None:
        self._told_words.drop()
        for task in self._tasks:
            task.cancel()

    # --- what the exchange wants said --------------------------------------------------------

    def say(self, word: MeshWord) -> None:
        """Raises OverLimit if the peer takes nothing and too much waits for it."""
        if len(self._words) >= BUS_WORDS_WAITING_MAX:
            raise OverLimit(f"{self.peer} takes none of {BUS_WORDS_WAITING_MAX} words")
        self._words.append(word)
        self._to_send.set()

    def introduce(self, meshes: list[str]) -> None:
        """Tells the peer which meshes are shared with it, as it is when the word goes."""
        self.ours, self.introduced = meshes, True
        self._introducing = True
        self._to_send.set()

    def tell(self, streams: tuple[StreamName, ...]) -> None:
        """Tells what we have of these streams when their turn comes: as it is then."""
        self._untold.update(dict.fromkeys(streams, 0))
        self._to_send.set()

    def ask(self, name: StreamName, ranges: tuple[Range, ...]) -> None:
        number, is_new = self._learned.give(name)
        assert not is_new, "only what a peer told is asked for"
        self.say(EntriesAsked(number, list(ranges)))

    def push(self, name: StreamName, ranges: tuple[Range, ...]) -> None:
        """What we just wrote is to be sent."""
        self.owe(name, ranges)

    def owe(self, name: StreamName, ranges: tuple[Range, ...]) -> None:
        """These are to be sent. Raises OverLimit if too much is owed already."""
        self._owed.owe(name, ranges)
        self._to_send.set()

    # --- what comes --------------------------------------------------------------------------

    def frame(self, stream: Stream, body: bytes) -> None:
        """Works off a frame, or keeps it for its task, which gives the credit back."""
        try:
            if self.refused or self._hear(read_word(body), stream, len(body)):
                self.link.taken(stream, len(body))
        except HoldfastError as error:
            self.link.taken(stream, len(body))
            self.refuse(error)

    def _hear(self, word: MeshWord, stream: Stream, size: int) -> bool:
        """Returns whether it is worked off."""
        if isinstance(word, ObjectAsked | ObjectPiece) != (stream is Stream.OBJECTS):
            raise BadAnswer("a peer speaks of objects and of meshes on the wrong streams")
        if self._set_aside(word, size):
            return False
        match word:
            case ObjectPiece():
                self._objects.pull.came(word)
            case MeshesShared():
                self._hear_meshes(word)
            case EntriesAsked():
                self.owe(self._given.name(word.number), read_ranges(word.ranges))
            case EntriesRefused():
                name = self._learned.name(word.number)
                self.problem = f"{self.peer} does not send what it has: {word.code[:64]}"
                self._context.carry_out(
                    self._context.spread.refused(self.label, name, self._context.now())
                )
            case SnapshotRefused():
                why = f"{self.peer} sends no snapshot: {word.code[:64]}"
                self.problem = self.snapshots.refused(word.mesh, why) or self.problem
            case CommitsTold() | CommitsRefused():
                self.problem = self._follow.heard(self, word) or self.problem
            case BlocksTold() | LeavesTold():
                self._comparison.answered(word)
        return True

    def _set_aside(self, word: MeshWord, size: int) -> bool:
        """Keeps a word that takes time for the task that works it off; False if it is none."""
        match word:
            case StreamsTold():
                told_of = [(self._learn(one.number, one.named), one) for one in word.streams]
                self._told_words.came(told_of, size)
            case EntriesPage():
                name = self._learn(word.number, word.named)
                check_room(self._pages, BUS_PAGES_WAITING_MAX)
                self._pages.append((name, word, size))
                self._in_hand(name, word)
                self._to_take.set()
            case MeshSnapshotPart() | CommitsSent():
                check_room(self._pages, BUS_PAGES_WAITING_MAX)
                self._pages.append((None, word, size))
                self._to_take.set()
            case ObjectAsked():
                self._objects.asked(word, size)
            case BlocksAsked() | LeavesAsked() | SnapshotAsked() | CommitsAsked():
                check_room(self._questions, BUS_QUESTIONS_MAX)
                self._questions.append((word, size))
                self._to_send.set()
            case _:
                return False
        return True

    def _hear_meshes(self, word: MeshesShared) -> None:
        left = self._meshes_told.spend(int(self._context.now()))
        if left is None:
            raise TooMany("it says again and again which meshes it shares")
        self._meshes_told = left
        self._heard, self.theirs = True, frozenset(word.meshes)
        if self.introduced and not word.heard:
            self.introduce(self.ours)
        self.relink()

    def relink(self) -> None:
        """What is shared has changed: both sides tell each other all streams of it again."""
        spread = self._context.spread
        self._context.carry_out(spread.link_down(self.label, self._context.now()))
        self._owed.ranges.clear()
        self._heard_of.clear()
        self.snapshots.forget()
        self._told_by = BoundedCoverage()
        self.confirmed = BoundedCoverage()
        if self.shared and not self.refused:
            self._context.carry_out(spread.link_up(self.label, self.peer, self.shared))
            self._follow.met(self)

    def _learn(self, number: int, named: StreamNamed | None) -> StreamName:
        if named is None:
            return self._learned.name(number)
        name = StreamName(check_mesh(named.mesh), check_peer(named.origin), named.epoch)
        if name.epoch == UNCOUNTED:
            raise BadAnswer("a peer spoke of a stream of what is not counted")
        self._learned.learn(number, name)
        key = self.link.peer if name.origin == self.peer else named.key
        if self._context.other_home(name, key):
            self._two_homes(name)
            key = _UNCHECKED_KEY
        else:
            self._keys[name] = key
        return name

    def _two_homes(self, name: StreamName) -> None:
        problem = f"two homes use the name {name.origin!r} in the mesh {name.mesh!r}"
        if self.problem != problem:
            self.problem = problem
            log.warning("%s: %s; what %s has of it is refused", self.peer, problem, self.peer)
        trouble = f"{self.peer} knows {name.origin!r} by another key: two homes use one name"
        engine = self._context.engine
        # What it says of others counts where it may relay; its own key it has proved.
        believed = name.origin == self.peer or name.mesh in self.relays
        if name.mesh in self.shared and believed:
            self._context.start(
                self._context.run(partial(mesh_serve.note_trouble, engine, name, trouble))
            )

    def _hear_of(self, name: StreamName, one: StreamTold) -> int:
        """Returns how many ranges had to be looked at."""
        if name.mesh not in self.shared or name not in self._keys:
            return 0
        covered = read_told(one.prefix, one.ranges)
        context = self._context
        believed = name.origin == self.peer or name.mesh in self.relays
        if name.origin == context.us and context.lacks(name, covered):
            context.own_past.heard(self.peer, name, covered, name.mesh in self.relays)
        if context.is_ours(name):
            believed = False  # what we write now is for nobody else to say
        if believed:
            self._bases[name] = one.base
            self.snapshots.heard(name, one.floor)
        # What it may not bring is not asked of it; that it has it is good to know all the same.
        gone = one.floor if believed else covered.last
        context.carry_out(context.spread.heard(self.label, name, covered, gone, context.now()))
        self._heard_of[name] = (one.number, one.digest, one.floor)
        self._told_by.put(name, covered)
        self._confirm(name, covered)
        self.compare(name)
        return len(one.ranges) + len(context.spread.known(self.label, name).ranges)

    def _confirm(self, name: StreamName, covered: Frontier) -> None:
        before = self.confirmed.get(name, NOTHING)
        self.confirmed.put(name, united(before, covered))

    def compare(self, name: StreamName) -> None:
        """Looks whether the peer has something else than we under the same numbers. The one with
        the lower key does, whenever something about the stream has changed at either side.
        """
        one = self._heard_of.get(name)
        if one is not None and self._context.key < self.link.peer:
            number, digest, floor = one
            self._comparison.look(name, number, self._told_by[name], digest, floor)

    def offers(self) -> dict[StreamName, StreamOffer]:
        """Of what the peer could send a snapshot."""
        return {} if self.refused else self.snapshots.offers(self.confirmed)

    async def take_snapshot(self, choice: SnapshotChoice) -> None:
        await self.snapshots.take(choice, own=choice.mesh not in self.relays)

    def confirm(self) -> None:
        """Tells the peer that what it sent is stored."""
        if self._unconfirmed:
            self.tell(tuple(self._unconfirmed))
            self._unconfirmed.clear()

    def refuse(self, error: HoldfastError) -> None:
        """The peer broke the rules: nothing more is taken from it on this link, or said to it."""
        if self.refused:
            return
        self.problem = error.message
        self.refused = True
        while self._pages:
            self.link.taken(Stream.MESH, self._pages.popleft()[2])
        while self._questions:
            self.link.taken(Stream.MESH, self._questions.popleft()[1])
        self._words.clear()
        self._owed.ranges.clear()
        self._told_words.drop()
        self.snapshots.end()
        self._context.carry_out(self._context.spread.link_down(self.label, self._context.now()))
        log.warning("%s: meshes are no longer exchanged on this link: %s", self.peer, error.message)
        self.link.blame(error)

    # --- sending -----------------------------------------------------------------------------

    async def _send_on(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            while (word := await self._next_word()) is not None:
                await self._send(Stream.MESH, word)

    async def _send(self, stream: Stream, word: MeshWord) -> None:
        body = encode_word(word)
        await self.link.room(stream, len(body))
        self.link.send(FrameKind.MESH, stream, body)
        self.figures.bytes_sent += len(body)
        self.figures.words_sent += not isinstance(word, EntriesPage)

    async def _next_word(self) -> MeshWord | None:
        if self._introducing:
            self._introducing = False
            return MeshesShared(self.ours, self._heard)
        if self._words:
            return self._words.popleft()
        if self._untold:
            return self._word_of_streams()
        if self.commits.untold:
            return self._follow.next_told(self)
        if self._parts:
            return self._parts.popleft()
        if self._questions:
            return await self._answer(*self._questions.popleft())
        return await self._owed.next(self) if self._owed.ranges else None

    def _word_of_streams(self) -> StreamsTold:
        rows = self._context.rows
        streams: list[StreamTold] = []
        ranges = 0
        while self._untold and len(streams) < BUS_WORD_STREAMS_MAX and ranges < BUS_WORD_RANGES_ALL:
            name = next(iter(self._untold))
            after = self._untold.pop(name)
            # The other side learns no more than so many: of the rest it hears nothing.
            if name in rows and self._given.has_room(name):
                streams.append(self._told(name, after))
                ranges += len(streams[-1].ranges)
        return StreamsTold(streams)

    def _told(self, name: StreamName, after: int) -> StreamTold:
        context = self._context
        row = context.rows[name]
        number, is_new = self._given.give(name)
        covered = told(row.covered, BUS_WORD_RANGES_MAX, after)
        if covered.last < row.covered.last:
            self._untold[name] = covered.last  # nobody may ever fill the holes before it
        return StreamTold(
            number,
            row.base,
            row.floor,
            covered.prefix,
            list(covered.ranges),
            row.entries,
            row.digest,
            named_of(context, name) if is_new else None,
        )

    async def _answer(self, question: _Question, size: int) -> MeshWord:
        context = self._context
        me = (context.engine, context.grants, self.who)
        try:
            if isinstance(question, CommitsAsked):
                return await self._follow.answer(self, question)
            if isinstance(question, SnapshotAsked):
                told_parts = partial(mesh_snapshot.answer_snapshot, *me, question)
                self._parts.extend(await context.run(told_parts))
                return self._parts.popleft()
            who = (*me, self._given.name(question.number))
            if isinstance(question, BlocksAsked):
                blocks = await context.run(partial(mesh_serve.blocks_for, *who, question.first))
                told_blocks = [(one.block, one.entries, one.digest) for one in blocks]
                return BlocksTold(question.number, question.first, told_blocks)
            leaves = await context.run(partial(mesh_serve.leaves_for, *who, question.block))
            return LeavesTold(question.number, question.block, leaves)
        except NotGranted as error:
            assert isinstance(question, BlocksAsked | LeavesAsked)
            return EntriesRefused(question.number, error.code)
        finally:
            self.link.taken(Stream.MESH, size)

    # --- taking ------------------------------------------------------------------------------

    async def _take_on(self) -> None:
        while True:
            await self._to_take.wait()
            self._to_take.clear()
            while self._pages:
                name, page, size = self._pages.popleft()
                try:
                    if isinstance(page, MeshSnapshotPart):
                        await self._take_part(page)
                    elif isinstance(page, CommitsSent):
                        self.problem = await self._follow.took(self, page) or self.problem
                    elif name is not None:
                        await self._take(name, page)
                finally:
                    self.link.taken(Stream.MESH, size)

    def _in_hand(self, name: StreamName, page: EntriesPage) -> None:
        """Nobody else is asked for what a page holds while it waits for its turn or is stored."""
        if name.mesh in self.shared and name in self._keys and page.start < page.end:
            context = self._context
            place = self.label, name, page.start, page.end
            context.carry_out(context.spread.came(*place, context.now()))

    async def _take(self, name: StreamName, page: EntriesPage) -> None:
        if name.mesh not in self.shared or name not in self._keys:
            return
        context = self._context
        self._in_hand(name, page)
        try:
            decoded = await context.run(
                partial(
                    mesh_receive.decode_mesh_page,
                    *(name, page.start, page.end, self._bases.get(name, 0), self._keys[name]),
                    *(seqs_of(page), page.raws),
                )
            )
            received = await self._store(decoded)
        except (NotGranted, UnknownMesh, ForgedOrigin) as error:
            self.problem = error.message
            self.figures.entries_refused += len(page.raws)
            context.carry_out(context.spread.refused(self.label, name, context.now()))
            return
        self.figures.entries_new += received.new
        self.figures.entries_known += received.known
        self.figures.entries_refused += received.refused
        if received.row.number:
            self._unconfirmed[name] = None
            self._confirm(name, cover(NOTHING, page.start, page.end))
            context.took(received.row, self.label)

    async def _store(self, page: mesh_receive.DecodedMeshPage) -> mesh_receive.MeshPageReceived:
        may_bring = (self._context.engine, self._context.grants, self.who, page)
        return await self.keeping.keep(
            partial(mesh_receive.objects_of_page, *may_bring),
            partial(mesh_receive.receive_mesh_page, *may_bring),
        )

    def wake(self) -> None:
        """There is something to say."""
        self._to_send.set()

    def _has_problem(self, problem: str) -> None:
        self.problem = problem

    async def _take_part(self, part: MeshSnapshotPart) -> None:
        new, streams, problem = await self.snapshots.came(part)
        self.figures.entries_new += new
        self.problem = problem or self.problem
        for row in streams:
            self._unconfirmed[row.name] = None
            self._context.took(row, self.label)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except PeerUnreachable:
            pass  # the link is down, and the exchange is told so
        except HoldfastError as error:
            self.refuse(error)
