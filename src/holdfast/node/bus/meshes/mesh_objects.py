"""Objects over a link of the bus: content that entries of a mesh name, before the entries.

The rules are those of `node/core/object_transfer.py`: a piece is durable before the next is asked
for, the whole is hashed at the end, and an object that the other side does not have is no reason to
wait. Whoever has read an entry that names an object may have it; nobody else knows its name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.bus_mesh import MeshWord, ObjectAsked, ObjectPiece
from holdfast.rules.arrivals import Named
from holdfast.rules.errors import BadAnswer, BadValue, BlobCorrupt, BlobMissing, OverLimit
from holdfast.rules.limits import BUS_OBJECT_BYTES, BUS_QUESTIONS_MAX, FILE_BYTES_MAX


class ObjectPull:
    """Brings objects from the other side of one link."""

    def __init__(self, context: MeshContext, ask: Callable[[ObjectAsked], None]) -> None:
        self._context = context
        self._ask = ask
        self._waiting: dict[bytes, asyncio.Future[ObjectPiece]] = {}

    async def pull(self, wanted: Iterable[Named]) -> set[str]:
        """Brings objects that are not here. Returns the hashes of those that the other side does
        not have. Raises BadAnswer if it sends something else.
        """
        absent: set[str] = set()
        for named in wanted:
            if not await self._pull(named.sha256, named.size):
                absent.add(named.sha256)
        return absent

    def came(self, piece: ObjectPiece) -> None:
        """Raises BadAnswer for a piece that nobody asked for."""
        future = self._waiting.pop(piece.sha256, None)
        if future is None:
            raise BadAnswer("a peer sent a piece of an object that was not asked for")
        if not future.done():
            future.set_result(piece)

    async def _pull(self, sha: str, size: int | None) -> bool:
        run, engine = self._context.run, self._context.engine
        here = await run(partial(_begun, engine, sha))
        if here is None:
            return True
        by_others = here > 0
        while True:
            piece = await self._piece(sha, here)
            if piece.size is None:
                return False
            if by_others and piece.size < here:
                here, by_others = await run(partial(_begin_anew, engine, sha, piece.size)), False
                continue
            if piece.size > FILE_BYTES_MAX or piece.start != here or piece.size < here:
                raise BadAnswer(f"a peer sent another piece of object {sha} than was asked for")
            size = piece.size if size is None else size
            if piece.size != size:
                raise BadAnswer(f"a peer says that object {sha} has {piece.size} bytes, not {size}")
            # Each piece is made durable: crumbs would cost a sync each, and never end.
            if len(piece.content) != min(BUS_OBJECT_BYTES, size - here):
                raise BadAnswer(
                    f"a peer sent {len(piece.content)} bytes as a piece of object {sha}"
                )
            kept = here + len(piece.content)
            try:
                here = await run(partial(_keep, engine, sha, here, piece))
            except BadAnswer:
                if not by_others:
                    raise
                # What was here before may have been the lie. The pieces are gone.
                here, by_others = 0, False
                continue
            if here < 0:
                return True
            by_others = by_others or here != kept

    async def _piece(self, sha: str, start: int) -> ObjectPiece:
        raw = bytes.fromhex(sha)
        future: asyncio.Future[ObjectPiece] = asyncio.get_running_loop().create_future()
        self._waiting[raw] = future
        self._ask(ObjectAsked(raw, start, BUS_OBJECT_BYTES))
        try:
            return await future
        finally:
            self._waiting.pop(raw, None)


class ObjectTalk:
    """What is said about objects on one link, on a stream of its own."""

    def __init__(
        self,
        context: MeshContext,
        send: Callable[[Stream, MeshWord], Awaitable[None]],
        taken: Callable[[Stream, int], None],
        shares: Callable[[], bool],
    ) -> None:
        """`taken` gives the credit of a question back when it is answered; `shares` says whether
        the peer may ask at all.
        """
        self._context, self._send, self._taken, self._shares = context, send, taken, shares
        self.pull = ObjectPull(context, self._ask)
        self._words: deque[tuple[ObjectAsked, int] | ObjectAsked] = deque()
        self._wake = asyncio.Event()

    def asked(self, question: ObjectAsked, size: int) -> None:
        """The peer asks for a piece. Raises OverLimit if too many of its questions wait: an honest
        peer asks one at a time.
        """
        if sum(isinstance(word, tuple) for word in self._words) >= BUS_QUESTIONS_MAX:
            raise OverLimit(f"a peer asks for more than {BUS_QUESTIONS_MAX} pieces at a time")
        self._words.append((question, size))
        self._wake.set()

    def _ask(self, question: ObjectAsked) -> None:
        self._words.append(question)
        self._wake.set()

    async def run(self) -> None:
        """Asks and answers, for as long as the link stands."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._words:
                word = self._words.popleft()
                if isinstance(word, ObjectAsked):
                    await self._send(Stream.OBJECTS, word)
                    continue
                question, size = word
                try:
                    served = ObjectPiece(question.sha256, None, question.start, b"")
                    if self._shares():
                        engine = self._context.engine
                        served = await self._context.run(partial(serve_piece, engine, question))
                    await self._send(Stream.OBJECTS, served)
                finally:
                    self._taken(Stream.OBJECTS, size)


def serve_piece(engine: NodeEngine, asked: ObjectAsked) -> ObjectPiece:
    """A piece of an object, as it is on the disk; the other side checks the whole."""
    sha = asked.sha256.hex()
    try:
        size = engine.blobs.size(sha)
        with engine.blobs.open_unchecked(sha) as file:
            file.seek(asked.start)
            content = file.read(asked.size)
    except (BlobMissing, BlobCorrupt):
        return ObjectPiece(asked.sha256, None, asked.start, b"")
    return ObjectPiece(asked.sha256, size, asked.start, content)


def _begun(engine: NodeEngine, sha: str) -> int | None:
    """How much of an object is here; None for all of it."""
    if engine.blobs.exists(sha):
        return None
    engine.check_room()
    return engine.blobs.partial(sha)


def _begin_anew(engine: NodeEngine, sha: str, size: int) -> int:
    """What is here of an object is more than there is of it: drops that. Returns how much is here
    then.
    """
    with suppress(BlobCorrupt, BlobMissing):
        engine.blobs.finish(sha, size)
    return engine.blobs.partial(sha)


def _keep(engine: NodeEngine, sha: str, here: int, piece: ObjectPiece) -> int:
    """Keeps a piece; returns how much is here then, -1 for all of it."""
    assert piece.size is not None
    blobs = engine.blobs
    if piece.content:
        engine.check_room()
        try:
            here = blobs.put_piece(sha, here, piece.content)
        except BadValue:
            # Another link has brought the same object meanwhile.
            return -1 if blobs.exists(sha) else blobs.partial(sha)
    if here < piece.size:
        return here
    try:
        blobs.finish(sha, piece.size)
    except (BlobCorrupt, BlobMissing) as error:
        raise BadAnswer(f"a peer sent something else as object {sha}: {error}") from error
    return -1
