"""Sharing meshes through a broker: publish, invite, join, members, topics and queues.

Everything here asks the broker and waits for its answer, so it needs the broker to be there. What
is written into a shared mesh, and messages, do not: they go into the outbox and leave when they
can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from holdfast.node.broker_client.client import BrokerClient, NewInvite, card_shown
from holdfast.node.broker_client.queues import (
    QueueClient,
    TakenMessage,
    queue_list,
)
from holdfast.node.core.engine import NodeEngine
from holdfast.node.sharing import join as joining
from holdfast.node.sharing import leave as leaving
from holdfast.node.sharing import publish
from holdfast.node.sharing.join import JoinedMesh
from holdfast.node.sharing.leave import Left
from holdfast.node.sharing.publish import Published, Publishing
from holdfast.node.snapshots.jobs import Progress, no_progress
from holdfast.node.trust.trust import Trust
from holdfast.protocol.broker_http import Destination, InviteInfo, Member
from holdfast.protocol.broker_log_http import DeadMessage, QueueInfo
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.errors import BadInput, Conflict, NotShared, UnknownKey
from holdfast.rules.invites import check_broker_url, parse_invite
from holdfast.rules.keys import parse_card, public_key
from holdfast.rules.limits import INVITE_HOURS
from holdfast.rules.rows import KnownMember, MeshRow
from holdfast.storage.ports import Transaction


@checks_arguments()
class Sharing:
    """What one node shares, and with whom."""

    def __init__(self, engine: NodeEngine, trust: Trust) -> None:
        self._engine, self._trust = engine, trust

    # --- making and joining ---------------------------------------------------------------------

    def publish(
        self,
        mesh: str,
        *,
        broker: str | None = None,
        card: str | None = None,
        name: str | None = None,
        token: str | None = None,
        progress: Progress = no_progress,
        wait: Callable[[], int] | None = None,
    ) -> Published:
        """Makes a personal mesh a shared one, or goes on where an earlier run was cut off (then the
        broker need not be named again). `card` is the broker's; it may be left out for a broker on
        this machine. `token` is for brokers that ask for one. `wait` is called while changes leave,
        and returns how many are left; without it, `publish` does not wait.
        """
        row = self._engine.require_mesh(mesh)
        url, pinned = self._broker_of(mesh, row, broker, card)
        with self._calls(url, pinned) as calls:
            publishing = Publishing(
                self._engine, calls, mesh, name=name, token=token, progress=progress, wait=wait
            )
            return publishing.run()

    def _broker_of(
        self, mesh: str, row: MeshRow, broker: str | None, card: str | None
    ) -> tuple[str, str]:
        begun = self._engine.read("mesh.publish", lambda tx: publish.begun(tx, mesh))
        known = None if begun is None else (begun.url, begun.card)
        if row.broker_url is not None and row.broker_card is not None:
            known = row.broker_url, row.broker_card
        if broker is None:
            if known is None:
                raise BadInput(
                    f"{mesh!r} was not published before",
                    hint="say where: --broker https://HOST:PORT --card CARD",
                )
            return known
        url = check_broker_url(broker).rstrip("/")
        if card is not None:
            parse_card(card)
            return url, card.strip()
        if known is not None and known[0] == url:
            return known
        shown = card_shown(url, (self._trust.name, self._trust.seed))
        if url.startswith("http:"):
            return url, shown  # on this machine, where no other machine stands between
        raise BadInput(
            "a broker on another machine must be known by its card",
            hint=f"the one at {url} shows {shown}; compare it with the card that the "
            "broker's operator gives you, then name it with --card",
        )

    def join(self, invite: str, *, progress: Progress = no_progress) -> JoinedMesh:
        """Becomes a member of the mesh that an invite names; it is then one of this node's own."""
        parsed = parse_invite(invite)
        with self._calls(parsed.url, parsed.card) as calls:
            joined = joining.join(self._engine, calls, parsed, progress)
            if "read" in joined.grants:
                # So that messages to members by their names can be written at once.
                self._remember(joined.mesh, calls.members(joined.mesh))
            return joined

    def leave(self, mesh: str, *, remove: bool = False, forget: bool = False) -> Left:
        """Makes a shared mesh a personal one again; all that is in it stays. An owner must say
        `remove`: the mesh is gone at the broker then. `forget` leaves the broker out of it, for one
        that is not there any more.
        """
        row = self._engine.require_mesh(mesh)
        if row.broker_url is None or row.broker_card is None:
            raise NotShared(f"{mesh!r} is not shared")
        if not forget:
            key = public_key(self._trust.seed()).hex()
            with self._calls(row.broker_url, row.broker_card) as calls:
                leaving.tell_broker(calls, row, key, remove=remove)
        return leaving.make_personal(self._engine, mesh)

    def move(self, mesh: str, url: str) -> MeshRow:
        """Notes that the broker of a mesh has another address. It must prove the same key and know
        the same mesh.
        """
        row = self._engine.require_mesh(mesh)
        if row.broker_card is None:
            raise NotShared(f"{mesh!r} is not shared")
        there = check_broker_url(url).rstrip("/")
        with self._calls(there, row.broker_card) as calls:
            if calls.standing(mesh).server_id != row.server_id:
                raise Conflict(
                    f"the broker at {there} has another mesh of the name {mesh!r}",
                    hint="it was removed there and made anew; join that with an invite",
                )

        def work(tx: Transaction) -> MeshRow:
            now = tx.mesh_get(mesh)
            assert now is not None
            moved = msgspec.structs.replace(
                now, broker_url=there, updated_at=self._engine.ctx.now_ms()
            )
            tx.mesh_change(moved)
            return moved

        return self._engine.write("mesh.move", work)

    # --- members -------------------------------------------------------------------------------

    def invite(
        self,
        mesh: str,
        *,
        uses: int = 1,
        hours: int = INVITE_HOURS,
        grants: Iterable[str] = (),
        at: str | None = None,
    ) -> NewInvite:
        """Makes a text by which others join. Every holder of it may join, so it is handed on like a
        key. `at` is where they reach the broker, if that is another address than ours.
        """
        self._engine.read("mesh.invite", lambda tx: publish.check_published(tx, mesh))
        with self._at(mesh) as calls:
            return calls.invite(mesh, uses=uses, hours=hours, grants=grants, at=at)

    def invites(self, mesh: str) -> list[InviteInfo]:
        with self._at(mesh) as calls:
            return calls.invites(mesh)

    def drop_invite(self, mesh: str, id: str) -> bool:
        """Takes an invite back. Who has joined by it stays a member."""
        with self._at(mesh) as calls:
            return calls.drop_invite(mesh, id)

    def members(self, mesh: str) -> list[Member]:
        """The members as the broker lists them now; kept here, so that messages can name them."""
        with self._at(mesh) as calls:
            members = calls.members(mesh)
        self._remember(mesh, members)
        return members

    def _remember(self, mesh: str, members: Iterable[Member]) -> None:
        known_members = [
            KnownMember(
                mesh=mesh,
                key=bytes.fromhex(member.key),
                name=member.name,
                grants=member.grants,
                seen_at=member.seen_at,
            )
            for member in members
        ]
        self._engine.write("mesh.members", lambda tx: tx.known_members_put(mesh, known_members))

    def grant(self, mesh: str, member: str, grants: Iterable[str]) -> Member:
        """Changes what a member may do; `member` is a name or a key."""
        with self._at(mesh) as calls:
            return calls.grant(mesh, _key_of(calls.members(mesh), mesh, member), grants)

    def remove_member(self, mesh: str, member: str) -> bool:
        """Ends a membership: the broker takes nothing from that node and gives it nothing any more.
        The node keeps what it has.
        """
        with self._at(mesh) as calls:
            return calls.remove_member(mesh, _key_of(calls.members(mesh), mesh, member))

    # --- destinations --------------------------------------------------------------------------

    def declare(
        self,
        mesh: str,
        kind: str,
        ref: str,
        *,
        visibility_ms: int | None = None,
        deliveries_max: int | None = None,
    ) -> Destination:
        """Declares a topic or a queue, or changes the settings of one that is there."""
        with self._at(mesh) as calls:
            return calls.declare(
                mesh, kind, ref, visibility_ms=visibility_ms, deliveries_max=deliveries_max
            )

    def destinations(self, mesh: str) -> list[Destination]:
        with self._at(mesh) as calls:
            return calls.destinations(mesh)

    def drop_destination(self, mesh: str, kind: str, ref: str) -> bool:
        with self._at(mesh) as calls:
            return calls.drop_destination(mesh, kind, ref)

    def subscribe(self, mesh: str, topic: str) -> int:
        """Makes this node get what is sent to a topic; returns the seq after which it does."""
        with self._at(mesh) as calls:
            return calls.subscribe(mesh, topic)

    def unsubscribe(self, mesh: str, topic: str) -> bool:
        with self._at(mesh) as calls:
            return calls.unsubscribe(mesh, topic)

    def subscriptions(self, mesh: str) -> dict[str, int]:
        with self._at(mesh) as calls:
            return calls.subscriptions(mesh)

    # --- queues --------------------------------------------------------------------------------

    def queues(self, mesh: str) -> list[QueueInfo]:
        """The queues of a mesh, with how much each holds."""
        with self._at(mesh) as calls:
            return queue_list(calls, mesh)

    def take(self, mesh: str, queue: str, most: int = 1) -> list[TakenMessage]:
        """Takes messages that no other member has, until they are settled or their time is over."""
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).take(most)

    def settle(
        self, mesh: str, queue: str, handle: str, how: str = "done", reason: str = ""
    ) -> bool:
        """`done`, `again` (others may take it at once), `dead` (to the dead letters) or `extend`.
        LeaseEnded if another member has got the message since.
        """
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).settle(handle, how, reason)

    def dead_letters(self, mesh: str, queue: str, limit: int = 100) -> list[DeadMessage]:
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).letters(limit)

    def revive(self, mesh: str, queue: str, seq: int) -> bool:
        """Puts a dead letter back into its queue."""
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).revive(seq)

    # --- the broker ----------------------------------------------------------------------------

    @contextmanager
    def _at(self, mesh: str) -> Iterator[BrokerClient]:
        row = self._engine.require_mesh(mesh)
        if row.broker_url is None or row.broker_card is None:
            raise NotShared(f"{mesh!r} is not shared")
        with self._calls(row.broker_url, row.broker_card) as calls:
            yield calls

    @contextmanager
    def _calls(self, url: str, card: str) -> Iterator[BrokerClient]:
        calls = BrokerClient.of(self._trust, url, card)
        try:
            yield calls
        finally:
            calls.close()


def _key_of(members: Iterable[Member], mesh: str, named: str) -> str:
    """A member by its key or its name."""
    for member in members:
        if named in (member.key, member.name):
            return member.key
    raise UnknownKey(f"{mesh!r} has no member {named!r}", hint=f"see: holdfast mesh members {mesh}")
