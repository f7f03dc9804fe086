"""An intent as this node makes it: its id, its stamp, and what is known of that id already.

The stamp comes from the clock of the mesh and is written nowhere before the intent is folded, which
moves the clock past it: a strong write has one sync, that of the voters, and not another one before
it. So two intents that a crash separates may bear one stamp. They have two ids, and commit order
decides between them.

The same id is the same intent. Its bytes are made once: a second caller, a replay and a try after a
restart send those that are in the log or under way, as far as they are known.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.rules import compiled
from holdfast.rules.envelope import UNCOUNTED, Envelope, decode_trusted, encode
from holdfast.rules.errors import BadInput, IdReused, UnknownMesh
from holdfast.rules.ids import id_text, parse_new_id
from holdfast.rules.quorum.intents import intent_fingerprint
from holdfast.rules.quorum.plain_intents import CHANGE
from holdfast.rules.quorum.view import IntentRecord
from holdfast.storage.ports import Reader


class Intent(NamedTuple):
    """An intent that is to be brought into the order."""

    id: bytes
    fingerprint: bytes
    raw: bytes
    waits: bool = False
    """It is in the queue already."""

    @property
    def envelope(self) -> Envelope:
        """Nobody looks at it again but where something has gone wrong."""
        return decode_trusted(self.raw)


class _Known(NamedTuple):
    lamport: int
    record: IntentRecord | None = None
    number: int | None = None
    stored: bytes | None = None


class KnownIntent(NamedTuple):
    """An intent that was decided before."""

    record: IntentRecord
    number: int | None


class IntentMaker:
    """Makes the intents of one mesh."""

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self._engine, self._mesh = engine, mesh
        self._lamport = 0
        self._turn: _Known | None = None
        self._open: dict[bytes, Intent] = {}

    def make(self, op: str, entity: str, body: bytes, id: str | None) -> Intent | KnownIntent:
        """Checks everything that needs no quorum. IdReused if the id belongs to something else."""
        raw_id = self._engine.ctx.new_id() if id is None else parse_new_id(id)
        asked = intent_fingerprint(op, entity, body)
        under_way = self._open.get(raw_id)
        if under_way is not None:
            _same(raw_id, under_way.fingerprint, asked)
            return under_way
        known = self._clock() if id is None else self._known(raw_id)
        if known.record is not None:
            if not known.record.void:
                _same(raw_id, known.record.fingerprint, asked)
            return KnownIntent(known.record, known.number)
        if known.stored is not None:
            envelope = decode_trusted(known.stored)
            _same(raw_id, envelope.fingerprint, asked)
            if envelope.mesh != self._mesh or envelope.write_class != "strong":
                raise IdReused(f"id {id_text(raw_id)} belongs to another write of this node")
            return Intent(raw_id, envelope.fingerprint, known.stored, waits=True)
        self._lamport = max(self._lamport, known.lamport) + 1
        raw = self._made_plain(raw_id, op, entity, body, asked)
        return Intent(raw_id, asked, raw or self._made(raw_id, op, entity, body, asked))

    def opened(self, intent: Intent) -> None:
        """It is under way: whoever asks for the same id meanwhile sends the same bytes."""
        self._open[intent.id] = intent

    def closed(self, intent: Intent) -> None:
        self._open.pop(intent.id, None)

    def _known(self, id: bytes) -> _Known:
        return self._engine.read("quorum.intent", lambda tx: self._look(tx, id))

    def _clock(self) -> _Known:
        """The clock of the mesh, which intents of one turn of the loop read together."""
        if self._turn is None:
            self._turn = self._engine.read("quorum.intent", lambda tx: self._look(tx, None))
            asyncio.get_running_loop().call_soon(self._turn_ends)
        return self._turn

    def _turn_ends(self) -> None:
        self._turn = None

    def _look(self, tx: Reader, id: bytes | None) -> _Known:
        mesh = tx.mesh_get(self._mesh)
        if mesh is None:
            raise UnknownMesh(f"there is no mesh {self._mesh!r}")
        if id is None:
            return _Known(mesh.lamport)
        record = tx.intents_known(self._mesh, [id]).get(id)
        if record is not None:
            commit = tx.commit_of(self._mesh, id)
            return _Known(mesh.lamport, record, None if commit is None else commit.number)
        entry = tx.log_find(id)
        if entry is None and tx.forgotten(id) is not None:
            raise IdReused(f"id {id_text(id)} belongs to a write that this node has forgotten")
        return _Known(mesh.lamport, stored=None if entry is None else entry.raw)

    def _made_plain(
        self, id: bytes, op: str, entity: str, body: bytes, asked: bytes
    ) -> bytes | None:
        """The bytes of an intent that is plain, all of it checked, by the compiled part."""
        if op != CHANGE or compiled.part is None or type(body) is not bytes:
            return None
        ctx = self._engine.ctx
        return compiled.part.make_intent(
            id, self._mesh, entity, ctx.peer, self._lamport, ctx.now_ms(), asked, body
        )

    def _made(self, id: bytes, op: str, entity: str, body: bytes, asked: bytes) -> bytes:
        if not isinstance(body, bytes):
            raise BadInput(f"the body of an intent is bytes, not {type(body).__name__}")
        ctx = self._engine.ctx
        envelope = Envelope(
            id=id,
            mesh=self._mesh,
            op=op,
            entity=entity,
            origin=ctx.peer,
            epoch=UNCOUNTED,
            seq=self._lamport,
            lamport=self._lamport,
            created_at=ctx.now_ms(),
            write_class="strong",
            state="intent",
            intent=id,
            fingerprint=asked,
            body=body,
        )
        raw = encode(envelope)
        ctx.read_intents.keep(raw, envelope)
        return raw


def _same(id: bytes, first: bytes, asked: bytes) -> None:
    if first != asked:
        raise IdReused(
            f"id {id_text(id)} was used before for another request "
            f"(its fingerprint begins with {first[:8].hex()})"
        )
