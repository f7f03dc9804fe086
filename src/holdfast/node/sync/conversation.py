"""A node's side of the conversation with its broker: a machine that takes events, returns effects.

    begin ─► Challenge ─► Greet ─► Hello ─► Welcome ─► OpenMeshes ─► Follow … ─► every mesh talks
                                                                                (mesh_conversation)

Events are frames, what came of an effect (`done`, `failed`), a commit (`wake`), changed meshes
(`look`), the deadline (`on_time`) and the end (`stop`). Each returns the effects that follow
(`effects`); what raises ends the connection. Nothing here blocks, waits or knows a socket, a thread
or a task, and the time is handed in. So `driver` runs it in the daemon and in the simulator alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from holdfast.node.sync.effects import (
    Close,
    Effect,
    Greet,
    LookAtMeshes,
    NoteActive,
    NoteConnected,
    NoteSeen,
    NoteSilence,
    OpenMeshes,
    Send,
)
from holdfast.node.sync.mesh_conversation import FRAMES_MAX, MeshConversation
from holdfast.node.sync.session import PLAIN, SyncSession
from holdfast.node.sync.waiting import WaitingBytes, WaitingFrames
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    CommitsAt,
    Entries,
    FromBroker,
    FromNode,
    MeshMoved,
    QueueMessage,
    Refusal,
    SnapshotNeeded,
    SnapshotWanted,
    Urgent,
    Welcome,
    read_from_broker,
)
from holdfast.rules import close_codes
from holdfast.rules.backoff import longest_ms
from holdfast.rules.close_codes import CLOSE_CODES, close_code, close_reason
from holdfast.rules.errors import BadAnswer, HoldfastError, Unreachable
from holdfast.rules.limits import (
    HELLO_MS_MAX,
    SEEN_MS,
    SYNC_CLOSE_MS_MAX,
    SYNC_IDLE_MS,
    SYNC_LOOK_MS,
    SYNC_PUSH_ITEMS,
    SYNC_WAITING_BYTES,
)


class _Phase(Enum):
    CHALLENGE = "the broker has to say who it is"
    GREETING = "our hello is being made"
    WELCOME = "the broker has to prove who it is"
    OPENING = "the meshes are being read"
    OPEN = "everything is said about meshes"


class Conversation:
    """One connection with one broker."""

    def __init__(
        self,
        session: SyncSession,
        ticks_ms: Callable[[], int],
        chance: Callable[[], float],
        *,
        certificate: bytes = PLAIN,
        look_ms: int = SYNC_LOOK_MS,
        push_items: int = SYNC_PUSH_ITEMS,
        waiting_bytes: int = SYNC_WAITING_BYTES,
    ) -> None:
        """`ticks_ms` is a time that only counts. `look_ms` is how often to look whether something
        is due, should a wake-up have got lost.
        """
        self._session, self._ticks_ms = session, ticks_ms
        self._certificate, self._look_ms, self._push_items = certificate, look_ms, push_items
        self._phase = _Phase.CHALLENGE
        self._waiting = WaitingBytes(waiting_bytes)
        self._early: WaitingFrames[bytes] = WaitingFrames(self._waiting, FRAMES_MAX)
        """What came while a hello was made or the meshes were read."""
        self._meshes: dict[str, MeshConversation] = {}
        self._looking = self._look_again = False
        now = ticks_ms()
        self._opened_at: int | None = None
        self._hello_by = now + HELLO_MS_MAX
        self._watch_at = now + look_ms
        self._seen_at = self._retried_at = now
        self._patience_ms = longest_ms(chance())
        self._stop_by: int | None = None
        self.offered: dict[str, dict[str, Any]] = {}
        """The features of the broker, once it has named them."""

    @property
    def is_full(self) -> bool:
        """So much waits to be stored that nothing more should be read from the line."""
        return self._waiting.is_full

    @property
    def progressed(self) -> bool:
        """Was this connection good for anything? Something was brought or taken in; or it held for
        a while with nothing to do.
        """
        meshes = self._meshes.values()
        held = self._opened_at is not None and self._ticks_ms() - self._opened_at >= SYNC_IDLE_MS
        idle = held and all(mesh.is_quiet for mesh in meshes)
        return idle or any(mesh.progressed for mesh in meshes)

    # --- events --------------------------------------------------------------------------------

    def on_frame(self, raw: bytes) -> list[Effect]:
        return self._and_goodbye(self._on_frame(raw))

    def wake(self) -> list[Effect]:
        """Something was written."""
        return [effect for mesh in self._meshes.values() for effect in mesh.wake()]

    def look(self) -> list[Effect]:
        """The meshes have changed: new ones are followed, a pause begins or ends."""
        if self._phase is not _Phase.OPEN or self._stop_by is not None:
            return []
        self._look_again = self._looking
        if self._looking:
            return []
        self._looking = True
        return [LookAtMeshes()]

    def stop(self) -> list[Effect]:
        """Pushes nothing more; hangs up when the answers that are on their way have come, or a
        moment is over.
        """
        self._stop_by = self._ticks_ms() + SYNC_CLOSE_MS_MAX
        for mesh in self._meshes.values():
            mesh.closing = True
        return self._and_goodbye([])

    def on_time(self) -> list[Effect]:
        """The deadline is over."""
        now = self._ticks_ms()
        if self._stop_by is not None and now >= self._stop_by:
            return [Close(code=close_codes.GOING_AWAY)]
        if self._phase in (_Phase.CHALLENGE, _Phase.WELCOME) and now >= self._hello_by:
            raise Unreachable(f"{self._session.broker.url} does not say hello")
        if self._phase is not _Phase.OPEN:
            return []
        out = self._watch(now) if now >= self._watch_at else []
        for mesh in self._meshes.values():
            deadline = mesh.deadline
            if deadline is not None and now >= deadline:
                out += mesh.on_time()
        return self._and_goodbye(out)

    @property
    def deadline(self) -> int | None:
        """When `on_time` should be called, in ticks."""
        times = [self._stop_by]
        if self._phase in (_Phase.CHALLENGE, _Phase.WELCOME):
            times.append(self._hello_by)
        elif self._phase is _Phase.OPEN:
            times += [self._watch_at, *(mesh.deadline for mesh in self._meshes.values())]
        return min((at for at in times if at is not None), default=None)

    def done(self, effect: Effect, result: Any) -> list[Effect]:
        """An effect has come to its end, with this result."""
        if effect.mesh:
            was_full = self.is_full
            out = self._meshes[effect.mesh].done(effect, result)
            if was_full and not self.is_full:
                for mesh in self._meshes.values():
                    mesh.reads_on()
            return self._and_goodbye(out)
        match effect:
            case Greet():
                self._phase, self._hello_by = _Phase.WELCOME, self._ticks_ms() + HELLO_MS_MAX
                return [Send(frames=[result]), *self._on_early()]
            case OpenMeshes():
                self._phase, self._opened_at = _Phase.OPEN, self._ticks_ms()
                return [*_send(result), NoteConnected(), *self._open_meshes(), *self._on_early()]
            case LookAtMeshes():
                self._looking = False
                again = self.look() if self._look_again else []
                return [*self._open_meshes(), *_send(result), *self.wake(), *again]
        return []

    def failed(self, effect: Effect, error: Exception) -> list[Effect]:
        """An effect has failed; raises if that ends the connection."""
        if effect.mesh:
            return self._and_goodbye(self._meshes[effect.mesh].failed(effect, error))
        if isinstance(effect, Greet) and type(error) in CLOSE_CODES:
            assert isinstance(error, HoldfastError)
            return [Close(code=close_code(error), reason=close_reason(error), error=error)]
        raise error

    # --- frames --------------------------------------------------------------------------------

    def _on_frame(self, raw: bytes) -> list[Effect]:
        if self._phase in (_Phase.GREETING, _Phase.OPENING):
            self._early.add(raw, len(raw))
            return []
        frame = read_from_broker(raw)
        match self._phase:
            case _Phase.CHALLENGE:
                if not isinstance(frame, Challenge):
                    raise self._no_broker()
                self._phase, self.offered = _Phase.GREETING, frame.supported
                return [Greet(challenge=frame, certificate=self._certificate)]
            case _Phase.WELCOME:
                if not isinstance(frame, Welcome):
                    raise self._no_broker()
                self._phase = _Phase.OPENING
                return [OpenMeshes(welcome=frame)]
        mesh = self._meshes.get(_mesh_of(frame))
        return [] if mesh is None else [NoteActive(), *mesh.on_frame(frame, len(raw))]

    def _on_early(self) -> list[Effect]:
        """Takes what came meanwhile, in its order; it may have to wait once more."""
        early = [self._early.take() for _ in range(len(self._early))]
        self._early.released()
        out: list[Effect] = []
        try:
            for raw in early:
                out += self._on_frame(raw)
        except HoldfastError as error:
            out.append(Close(error=error))  # behind what was to be done before it
        return out

    def _no_broker(self) -> BadAnswer:
        return BadAnswer(f"{self._session.broker.url} does not begin as a broker does")

    # --- meshes --------------------------------------------------------------------------------

    def _open_meshes(self) -> list[Effect]:
        out: list[Effect] = []
        for slug in list(self._session.meshes):
            if slug not in self._meshes:
                mesh = self._meshes[slug] = MeshConversation(
                    self._session,
                    slug,
                    self._ticks_ms,
                    look_ms=self._look_ms,
                    push_items=self._push_items,
                    waiting=self._waiting,
                )
                mesh.closing = self._stop_by is not None
                out += mesh.begin()
        return out

    def _watch(self, now: int) -> list[Effect]:
        """Now and then: is all silent, is the broker there; rarely, asks for what was refused."""
        self._watch_at = now + self._look_ms
        out: list[Effect] = [NoteSilence(waiting=self._session.waiting())]
        if now - self._seen_at >= SEEN_MS:
            self._seen_at = now
            out.append(NoteSeen())
        if now - self._retried_at >= self._patience_ms:
            self._retried_at = now
            troubled = {mesh.slug for mesh in list(self._session.meshes.values()) if mesh.trouble}
            out += _send(self._session.retry())
            for slug, mesh in self._meshes.items():
                out += mesh.read_members() if slug in troubled else []
        return out

    def _and_goodbye(self, out: list[Effect]) -> list[Effect]:
        """Hangs up if this node stops and every mesh is quiet."""
        if self._stop_by is not None and all(mesh.is_quiet for mesh in self._meshes.values()):
            return [*out, Close(code=close_codes.GOING_AWAY)]
        return out


def _send(frames: Iterable[FromNode]) -> list[Effect]:
    found = list(frames)
    return [Send(frames=found)] if found else []


def _mesh_of(frame: FromBroker) -> str:
    match frame:
        case MeshMoved():
            return frame.place.mesh
        case Refusal():
            return frame.about
        case Entries() | Acks() | SnapshotNeeded() | QueueMessage() | SnapshotWanted() | Urgent():
            return frame.mesh
        case CommitsAt():
            return frame.mesh
        case _:
            raise BadAnswer(f"the broker sent {type(frame).__name__} where it has no place")
