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
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.errors import BadInput, Conflict, NotShared, UnknownKey
from holdfast.rules.invites import check_broker_url, parse_invite
from holdfast.rules.keys import parse_card, public_key
from holdfast.rules.limits import INVITE_FIRST_HOURS, INVITE_HOURS, INVITE_HOURS_MAX
from holdfast.rules.listed import listed_rows
from holdfast.rules.member_names import meant_key
from holdfast.rules.names import check_mesh
from holdfast.rules.rows import KnownMember, MeshRow
from holdfast.rules.shown import ShownFace
from holdfast.storage.ports import Reader, Transaction


@checks_arguments()
class Sharing(ShownFace):
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
        invite_hours: int = INVITE_FIRST_HOURS,
        as_name: str | None = None,
    ) -> Published:
        """Makes a personal mesh a shared one, or goes on where an earlier run was cut off (then the
        broker need not be named again). `card` is the broker's; it may be left out for a broker on
        this machine. `token` is for brokers that ask for one. `wait` is called while changes leave,
        and returns how many are left; without it, `publish` does not wait. The first invite, for
        one member, is good for `invite_hours`.

        Where the name is taken at the broker, AlreadyExists has names in `free`. With `as_name` a
        copy of the mesh is published under that name: with the stamps, origins and deletions of
        the original, which stays as it is; tasks get new ids.

        >>> node.create_mesh("harbour")
        >>> node.sharing.publish("harbour", broker=hub).mesh
        'harbour'
        """
        if not 1 <= invite_hours <= INVITE_HOURS_MAX:
            raise BadInput(f"an invite lasts for 1 to {INVITE_HOURS_MAX} hours")
        row = self._engine.require_mesh(mesh)
        of = "" if as_name is None or as_name == mesh else mesh
        mesh = as_name or mesh
        if of:
            copy = self._engine.read("mesh.publish", lambda tx: tx.mesh_get(check_mesh(mesh)))
            row = row if copy is None else copy
        url, pinned = self._broker_of(mesh, row, broker, card)
        with self._calls(url, pinned) as calls:
            publishing = Publishing(
                self._engine,
                calls,
                mesh,
                name=name,
                token=token,
                progress=progress,
                wait=wait,
                invite_hours=invite_hours,
                of=of,
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
        """Becomes a member of the mesh that an invite names; it is then one of this node's own.

        >>> invite = node.sharing.invite("fleet")
        >>> with holdfast.open("guest", peer="gus", create=True) as guest:
        ...     guest.sharing.join(invite.text).mesh
        'fleet'
        """
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

        >>> node.create_mesh("brief")
        >>> node.sharing.publish("brief", broker=hub)
        >>> node.sharing.leave("brief", remove=True).mesh
        'brief'
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

        >>> node.sharing.move("fleet", hub).broker_url == hub
        True
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

        >>> node.sharing.invite("fleet", uses=3, hours=24, grants=["read", "write"]).text
        '...'
        """
        self._engine.read("mesh.invite", lambda tx: publish.check_published(tx, mesh))
        with self._at(mesh) as calls:
            return calls.invite(mesh, uses=uses, hours=hours, grants=grants, at=at)

    @listed_rows(InviteInfo)
    @checked
    def invites(self, mesh: str) -> list[InviteInfo]:
        """The invites that others may still join by.

        >>> [invite.uses_left for invite in node.sharing.invites("fleet")]
        [...]
        """
        with self._at(mesh) as calls:
            return calls.invites(mesh)

    def drop_invite(self, mesh: str, id: str) -> bool:
        """Takes an invite back. Who has joined by it stays a member.

        >>> invite = node.sharing.invite("fleet")
        >>> node.sharing.drop_invite("fleet", invite.id)
        True
        """
        with self._at(mesh) as calls:
            return calls.drop_invite(mesh, id)

    @listed_rows(Member)
    @checked
    def members(self, mesh: str) -> list[Member]:
        """The members as the broker lists them now; kept here, so that messages can name them.

        >>> [member.name for member in node.sharing.members("fleet")]
        ['ana', 'bo'...]
        """
        with self._at(mesh) as calls:
            members = calls.members(mesh)
        self._remember(mesh, members)
        return members

    @listed_rows(KnownMember)
    @checked
    def known_members(self, mesh: str) -> list[KnownMember]:
        """The members as the broker listed them last, and when each was last seen, by the broker
        or by its writes. Nobody is asked.

        >>> "bo" in [member.name for member in node.sharing.known_members("fleet")]
        True
        """
        self._engine.require_mesh(mesh)

        def look(tx: Reader) -> list[KnownMember]:
            heard = {row.peer: row.last_seen_at for row in tx.peer_list(mesh)}
            return [
                msgspec.structs.replace(
                    row, seen_at=max(row.seen_at or 0, heard.get(row.name, 0)) or None
                )
                for row in tx.known_members_list(mesh)
            ]

        return self._engine.read("mesh.members", look)

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
        """Changes what a member may do; `member` is a name or a key.

        >>> node.sharing.grant("fleet", "bo", ["read"]).grants
        ...
        """
        with self._at(mesh) as calls:
            return calls.grant(mesh, _key_of(calls.members(mesh), mesh, member), grants)

    def remove_member(self, mesh: str, member: str) -> bool:
        """Ends a membership: the broker takes nothing from that node and gives it nothing any more.
        The node keeps what it has.

        >>> node.sharing.remove_member("fleet", "cleo")
        True
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
        """Declares a topic or a queue, or changes the settings of one that is there.

        >>> node.sharing.declare("fleet", "queue", "paint", visibility_ms=60_000).ref
        'paint'
        """
        with self._at(mesh) as calls:
            return calls.declare(
                mesh, kind, ref, visibility_ms=visibility_ms, deliveries_max=deliveries_max
            )

    @listed_rows(Destination)
    @checked
    def destinations(self, mesh: str) -> list[Destination]:
        """The topics and queues of a mesh, with their settings.

        >>> [(place.kind, place.ref) for place in node.sharing.destinations("fleet")]
        [...('queue', 'jobs')...]
        """
        with self._at(mesh) as calls:
            return calls.destinations(mesh)

    def drop_destination(self, mesh: str, kind: str, ref: str) -> bool:
        """Removes a topic or a queue; False if there was none.

        >>> node.sharing.declare("fleet", "topic", "gossip")
        >>> node.sharing.drop_destination("fleet", "topic", "gossip")
        True
        """
        with self._at(mesh) as calls:
            return calls.drop_destination(mesh, kind, ref)

    def subscribe(self, mesh: str, topic: str) -> int:
        """Makes this node get what is sent to a topic; returns the seq after which it does.

        >>> node.sharing.subscribe("fleet", "news")
        0
        """
        with self._at(mesh) as calls:
            return calls.subscribe(mesh, topic)

    def unsubscribe(self, mesh: str, topic: str) -> bool:
        """Ends a subscription; False if there was none.

        >>> node.sharing.unsubscribe("fleet", "gossip")
        False
        """
        with self._at(mesh) as calls:
            return calls.unsubscribe(mesh, topic)

    def subscriptions(self, mesh: str) -> dict[str, int]:
        """The topics that this node gets, and the seq after which it does.

        >>> node.sharing.subscriptions("fleet")
        {...}
        """
        with self._at(mesh) as calls:
            return calls.subscriptions(mesh)

    # --- queues --------------------------------------------------------------------------------

    @listed_rows(QueueInfo)
    @checked
    def queues(self, mesh: str) -> list[QueueInfo]:
        """The queues of a mesh, with how much each holds.

        >>> [queue.queue for queue in node.sharing.queues("fleet")]
        ['jobs'...]
        """
        with self._at(mesh) as calls:
            return queue_list(calls, mesh)

    def take(self, mesh: str, queue: str, most: int = 1) -> list[TakenMessage]:
        """Takes messages that no other member has, until they are settled or their time is over.

        >>> for message in node.sharing.take("fleet", "jobs", most=10):
        ...     node.sharing.settle("fleet", "jobs", message.handle)
        """
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).take(most)

    def settle(
        self, mesh: str, queue: str, handle: str, how: str = "done", reason: str = ""
    ) -> bool:
        """`done`, `again` (others may take it at once), `dead` (to the dead letters) or `extend`.
        LeaseEnded if another member has got the message since.

        >>> for message in node.sharing.take("fleet", "jobs"):
        ...     node.sharing.settle("fleet", "jobs", message.handle, "dead", "it is no JSON")
        """
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).settle(handle, how, reason)

    @listed_rows(DeadMessage)
    @checked
    def dead_letters(self, mesh: str, queue: str, limit: int = 100) -> list[DeadMessage]:
        """Messages of a queue that were given up, and why.

        >>> node.sharing.dead_letters("fleet", "jobs")
        []
        """
        with self._at(mesh) as calls:
            return QueueClient(calls, mesh, queue).letters(limit)

    def revive(self, mesh: str, queue: str, seq: int) -> bool:
        """Puts a dead letter back into its queue.

        >>> for letter in node.sharing.dead_letters("fleet", "jobs"):
        ...     node.sharing.revive("fleet", "jobs", letter.seq)
        """
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
    key = meant_key(named, ((one.name, bytes.fromhex(one.key)) for one in members))
    if key is not None:
        return key.hex()
    raise UnknownKey(f"{mesh!r} has no member {named!r}", hint=f"see: holdfast mesh members {mesh}")
