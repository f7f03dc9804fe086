"""What a node of a simulated world asks its broker for over HTTP: objects, members, snapshots.

Each call reaches the broker's store, or is lost before, or its answer is lost after: the caller
meets the same error in both cases. The broker may die in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.broker.access import mesh_position, require_member, require_mesh
from holdfast.node.broker_client.client import BrokerClient, NewInvite, Snapshot
from holdfast.node.broker_client.objects import BrokerObjects
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.broker_http import Member, SnapshotBegun, Standing
from holdfast.rules.broker_rows import MEMBER_GRANTS, InviteRow, SnapshotRow
from holdfast.rules.errors import (
    Broken,
    DiskFull,
    StoreBusy,
    StoreClosed,
    Unknown,
    UnknownObject,
    Unreachable,
)
from holdfast.rules.ids import id_text
from holdfast.rules.invites import SECRET_BYTES, Invite, digest, format_invite
from holdfast.rules.limits import HOUR_MS, INVITE_HOURS
from holdfast.simulate.delivery.broker_machine import CARD, URL
from holdfast.simulate.world.machine import Died
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.sqlite import SqliteBrokerStore

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

T = TypeVar("T")
Work = Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]

THEIRS: Final = (Broken, Unknown, DiskFull, StoreBusy, StoreClosed)
"""Errors of the broker's own disk: to a node they look as if the broker were not there."""
PIECE_BYTES: Final = 48 * 1024
LOST: Final = 0.5
"""Which part of the failing calls is lost on the way there; of the others the answer is."""


class SimulatedBrokerClient(BrokerClient):
    """One node's calls. `key` is who asks."""

    def __init__(self, world: DeliveryWorld, peer: str, key: bytes) -> None:
        self._world, self._peer, self._me = world, peer, key
        self.url, self.card, self.us = URL, CARD, peer
        self._rng = world.fork(f"calls of {peer} {world.ticks}")

    def call(self, work: Work[T]) -> T:
        world = self._world
        lost = self._rng.random() < world.links.line.loss or world.is_apart(self._peer)
        if lost and self._rng.random() < LOST:
            raise Unreachable("it does not get there")
        try:
            found = world.broker_does("call", work)
        except Died:
            raise Unreachable("the broker died meanwhile") from None
        except THEIRS as error:
            raise Unreachable(f"the broker is in trouble: {error.message}") from None
        if lost:
            world.happened["answer lost"] += 1
            raise Unreachable("the answer does not come back")
        return found

    def member(self, mesh: str, *grants: str) -> None:
        self.call(lambda store: require_member(store, mesh, self._me, *grants))

    # --- publishing and joining ---------------------------------------------------------------

    def hello(self) -> None:
        self.call(_nothing)

    def register(self, mesh: str, name: str, token: str | None = None) -> Standing:
        server_id, now = id_text(self._world.new_id()), self._world.broker_machine.clock.now_ms()

        async def work(store: SqliteBrokerStore) -> None:
            await store.mesh_register(mesh, name, self._me, self._peer, server_id, now)

        self.call(work)
        return self.standing(mesh)

    def invite(self, mesh: str, **_: object) -> NewInvite:
        secret = self._rng.randbytes(SECRET_BYTES)
        now = self._world.broker_machine.clock.now_ms()
        relay = {"relay"} if self._world.traits.relay else set()
        row = InviteRow(
            mesh=mesh,
            digest=digest(secret),
            grants=MEMBER_GRANTS | relay,
            uses_left=1,
            expires_at=now + INVITE_HOURS * HOUR_MS,
            made_by=self._me,
            made_at=now,
        )
        self.member(mesh, "invite")
        self.call(lambda store: store.invite_put(row))
        text = format_invite(Invite(self.url, self.card, mesh, secret))
        return NewInvite(text, row.digest.hex(), row.expires_at, row.uses_left)

    def join(self, invite: Invite) -> Standing:
        now = self._world.broker_machine.clock.now_ms()
        use = partial(SqliteBrokerStore.invite_use, key=self._me, name=self._peer, now_ms=now)
        return self.standing(self.call(lambda store: use(store, digest(invite.secret))))

    # --- meshes -------------------------------------------------------------------------------

    def standing(self, mesh: str) -> Standing:
        async def work(store: BrokerStore) -> Standing:
            member = await require_member(store, mesh, self._me)
            row = await require_mesh(store, mesh)
            place = await mesh_position(store, row, member)
            return Standing(
                *(row.slug, row.name, row.server_id, row.epoch, row.base, row.first, row.seq),
                place.grants,
                place.epochs,
            )

        return self.call(work)

    def members(self, mesh: str) -> list[Member]:
        async def work(store: BrokerStore) -> list[Member]:
            await require_member(store, mesh, self._me)
            return [
                Member(
                    *(row.key.hex(), row.name, tuple(sorted(row.grants)), row.added_at),
                    *(row.got_epoch, row.got_seq, row.seen_at),
                )
                for row in await store.member_list(mesh)
            ]

        return self.call(work)

    # --- objects ------------------------------------------------------------------------------

    def object_size(self, mesh: str, sha: str) -> int | None:
        async def work(store: BrokerStore) -> int | None:
            await require_member(store, mesh, self._me, "read")
            return await store.object_asked(mesh, sha)

        return self.call(work)

    def put_object(self, engine: NodeEngine, mesh: str, sha: str) -> bool:
        if self.object_size(mesh, sha) is not None:
            return False
        with engine.blobs.open(sha) as source:
            content = source.read()
        self.member(mesh, "write")
        for number, at in enumerate(range(0, len(content), PIECE_BYTES)):
            piece = content[at : at + PIECE_BYTES]
            add = partial(
                SqliteBrokerStore.object_add, mesh=mesh, sha256=sha, number=number, piece=piece
            )
            self.call(add)
        self.call(lambda store: store.object_finish(mesh, sha, len(content)))
        return True

    def objects(self, mesh: str) -> BrokerObjects:
        return _Objects(self, mesh)

    # --- snapshots ----------------------------------------------------------------------------

    def snapshot(self, mesh: str) -> Snapshot | None:
        async def work(store: BrokerStore) -> SnapshotRow | None:
            await require_member(store, mesh, self._me, "read")
            return await store.snapshot_get(mesh)

        row = self.call(work)
        return None if row is None else _told(row)

    def snapshot_begin(self, mesh: str, epoch: int, seq: int) -> SnapshotBegun:
        world = self._world
        row = SnapshotRow(
            id=id_text(world.new_id()),
            epoch=epoch,
            seq=seq,
            parts=0,
            rows=0,
            ready=False,
            made_by=self._me,
            began_at=world.broker_machine.clock.now_ms(),
        )
        self.member(mesh, "read", "relay")
        found = self.call(lambda store: store.snapshot_begin(mesh, row))
        return SnapshotBegun(found.id, found.parts)

    def snapshot_chunk(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        return self.call(lambda store: store.snapshot_add(mesh, id, number, rows, part))

    def snapshot_commit(self, mesh: str, id: str, digest: bytes) -> Snapshot:
        now = self._world.broker_machine.clock.now_ms()
        return _told(self.call(lambda store: store.snapshot_commit(mesh, id, digest, now)))

    def snapshot_part(self, mesh: str, id: str, number: int) -> bytes:
        part = self.call(lambda store: store.snapshot_part(mesh, id, number))
        if part is None:
            raise UnknownObject("there is no such part of a snapshot here")
        return part


class _Objects(BrokerObjects):
    """The objects of one mesh, as `pull_objects` asks for them."""

    def __init__(self, calls: SimulatedBrokerClient, mesh: str) -> None:
        self._asked, self._of = calls, mesh

    def object_size(self, sha: str) -> int | None:
        return self._asked.object_size(self._of, sha)

    def object(self, sha: str, start: int, size: int) -> bytes:
        async def work(store: BrokerStore) -> bytes:
            return b"".join([piece async for piece in store.object_read(self._of, sha)])

        return self._asked.call(work)[start : start + size]


async def _nothing(store: SqliteBrokerStore) -> None:
    """A hello asks the store for nothing."""


def _told(row: SnapshotRow) -> Snapshot:
    return Snapshot(row.id, row.epoch, row.seq, row.parts, row.rows, row.digest)
