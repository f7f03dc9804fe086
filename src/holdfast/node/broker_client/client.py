"""Asking a broker over HTTP, one call at a time: meshes, members, invites, destinations, objects,
snapshots. What flows all the time goes by the sync instead.

Before the first call both sides say hello. The broker must prove the key on the card that is pinned
for it, on the very connection that we see; only then does it hear who we are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote
from weakref import WeakSet

import msgspec

from holdfast.node.broker_client.objects import BrokerObjects
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.trust import Trust
from holdfast.protocol.broker_http import (
    BroughtState,
    Chunk,
    CommitsStanding,
    Declare,
    Destination,
    Destinations,
    Dropped,
    Grants,
    InviteInfo,
    Invites,
    Join,
    MadeInvite,
    MakeInvite,
    Member,
    Members,
    Register,
    Removed,
    SnapshotBegin,
    SnapshotBegun,
    SnapshotCommit,
    SnapshotResponse,
    Standing,
    Subscription,
    Subscriptions,
)
from holdfast.protocol.broker_log_http import FeedResponse
from holdfast.protocol.log_wire import JSON, MSGPACK
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    NotFound,
    Truncated,
    ZoneNotTrusted,
)
from holdfast.rules.invites import SECRET_BYTES, Invite, check_broker_url, format_invite
from holdfast.rules.keys import HelloTranscript, bytes_of, card_of, parse_card, text_of
from holdfast.rules.limits import (
    BROKER_PART_BYTES_MAX,
    COMMIT_PAGE_BYTES_MAX,
    INVITE_HOURS,
    LINK_CONNECT_MS_MAX,
    LINK_READ_MS_MAX,
    MIB,
)
from holdfast.rules.quorum.intents import Engine
from holdfast.transport.handshake import ClientSession, Seed, handshake, require_proof
from holdfast.transport.http_client import Client, Content
from holdfast.transport.session_client import SessionClient
from holdfast.transport.tls import client_context

T = TypeVar("T")

_LIST_BYTES_MAX: Final = 16 * MIB
_BINARY: Final = "application/octet-stream"
_COMPARE: Final = "compare the cards: where the broker runs: holdfast broker status"


class NewInvite(msgspec.Struct, frozen=True):
    """An invite, to be handed on like a key."""

    text: str
    id: str
    expires_at: int
    uses: int

    def __repr__(self) -> str:
        return f"NewInvite(id={self.id!r})"


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that is ready at its broker."""

    id: str
    epoch: int
    seq: int
    parts: int
    rows: int
    digest: bytes


class BrokerClient:
    """The calls of one node to one broker. Thread-safe; calls take turns."""

    def __init__(
        self,
        url: str,
        card: str,
        us: tuple[str, Seed],
        *,
        connect_ms: int = LINK_CONNECT_MS_MAX,
        read_ms: int = LINK_READ_MS_MAX,
    ) -> None:
        """`card` is the broker's name and key, as they are pinned; `us` our name and our seed."""
        self.url, self.card = check_broker_url(url), card
        self.us, self._seed = us
        self._name, self._key = parse_card(card)
        self._plain = url.startswith("http:")
        self._patience = (connect_ms, read_ms)
        self._client = self._connect()
        self._streams: WeakSet[Client] = WeakSet()
        self._calls = SessionClient(self._client, self._greet)

    @classmethod
    def of(cls, trust: Trust, url: str, card: str) -> BrokerClient:
        """As this node, by its own key."""
        return cls(url, card, (trust.name, trust.seed))

    @property
    def name(self) -> str:
        """The broker's, as it is pinned."""
        return self._name

    def close(self) -> None:
        self._client.close()

    def abort(self) -> None:
        """From any thread: a call that waits fails at once, and so does every later one."""
        for client in (self._client, *self._streams):
            client.abort()

    def hello(self) -> None:
        """Gets a new session. Every other call does this by itself when it is needed."""
        self._calls.hello()

    def ping(self) -> tuple[float, float]:
        """Milliseconds until both sides had said hello, and there and back after that."""
        return self._calls.ping()

    # --- meshes and members --------------------------------------------------------------------

    def register(self, mesh: str, name: str, token: str | None = None) -> Standing:
        """Makes us the owner of a mesh. The same again gets the same mesh; AlreadyExists if the
        name belongs to another owner there.
        """
        return self.ask(Standing, "POST", "/api/my/meshes", Register(mesh, name, token or ""))

    def join(self, invite: Invite) -> Standing:
        """Makes us a member. Again, by one who is, counts no use of the invite."""
        joined = self.ask(Standing, "POST", "/v1/join", Join(text_of(invite.secret)))
        if joined.slug != invite.mesh:
            raise BadAnswer(f"the invite is for {invite.mesh!r}, the broker says {joined.slug!r}")
        return joined

    def standing(self, mesh: str) -> Standing:
        return self.ask(Standing, "GET", _at(mesh))

    def remove_mesh(self, mesh: str) -> bool:
        """The mesh and all that the broker has of it; the nodes keep theirs."""
        return self.ask(Removed, "DELETE", _at(mesh)).removed

    def members(self, mesh: str) -> list[Member]:
        return self.ask(Members, "GET", _at(mesh, "members")).members

    def grant(self, mesh: str, key: str, grants: Iterable[str]) -> Member:
        return self.ask(Member, "PUT", _at(mesh, "members", key), Grants(list(grants)))

    def remove_member(self, mesh: str, key: str) -> bool:
        return self.ask(Removed, "DELETE", _at(mesh, "members", key)).removed

    def invite(
        self,
        mesh: str,
        *,
        uses: int = 1,
        hours: int = INVITE_HOURS,
        grants: Iterable[str] = (),
        at: str | None = None,
    ) -> NewInvite:
        """`at` is where the invited node reaches the broker, if that is not where we do."""
        url = self.url if at is None else check_broker_url(at).rstrip("/")
        request = MakeInvite(list(grants), uses, hours)
        made = self.ask(MadeInvite, "POST", _at(mesh, "invites"), request)
        try:
            secret = bytes_of(made.secret, SECRET_BYTES)
        except BadInput:
            raise BadAnswer("the broker gives an invite that cannot be used") from None
        text = format_invite(Invite(url, self.card, mesh, secret))
        return NewInvite(text, made.id, made.expires_at, made.uses)

    def invites(self, mesh: str) -> list[InviteInfo]:
        return self.ask(Invites, "GET", _at(mesh, "invites")).invites

    def drop_invite(self, mesh: str, id: str) -> bool:
        return self.ask(Removed, "DELETE", _at(mesh, "invites", id)).removed

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
        given = {"visibility_ms": visibility_ms, "deliveries_max": deliveries_max}
        settings = {name: value for name, value in given.items() if value is not None}
        request = Declare(kind, ref, **settings)
        return self.ask(Destination, "POST", _at(mesh, "destinations"), request)

    def destinations(self, mesh: str) -> list[Destination]:
        return self.ask(Destinations, "GET", _at(mesh, "destinations")).destinations

    def drop_destination(self, mesh: str, kind: str, ref: str) -> bool:
        return self.ask(Dropped, "DELETE", _at(mesh, "destinations", kind, ref)).dropped

    def subscribe(self, mesh: str, topic: str) -> int:
        """The seq from behind which we get the topic."""
        return self.ask(Subscription, "PUT", _at(mesh, "subscriptions", topic)).since

    def unsubscribe(self, mesh: str, topic: str) -> bool:
        return self.ask(Dropped, "DELETE", _at(mesh, "subscriptions", topic)).dropped

    def subscriptions(self, mesh: str) -> dict[str, int]:
        answer = self.ask(Subscriptions, "GET", _at(mesh, "subscriptions"))
        return {each.topic: each.since for each in answer.subscriptions}

    def feed(self, mesh: str, after: int, limit: int) -> FeedResponse:
        """What we may see behind a seq, what we handed in included."""
        path = f"/v1/meshes/{quote(mesh, safe='')}/feed?after={after}&limit={limit}&own=true"
        return self.ask(FeedResponse, "GET", path)

    def next_for_us(self, mesh: str, after: int) -> int | None:
        """The seq of the first thing behind a seq that is for us and not ours; None if there is
        none.
        """
        while True:
            path = f"/v1/meshes/{quote(mesh, safe='')}/feed?after={after}&limit=1"
            try:
                page = self.ask(FeedResponse, "GET", path)
            except Truncated:
                return after + 1  # it is gone there: a snapshot has it
            if page.rows:
                return page.rows[0].seq
            if page.to >= page.last or page.to <= after:
                return None
            after = page.to

    # --- objects -------------------------------------------------------------------------------

    def object_path(self, mesh: str, sha: str) -> str:
        return f"/v1/meshes/{quote(mesh, safe='')}/objects/{sha}"

    def object_size(self, mesh: str, sha: str) -> int | None:
        """None if the broker does not have it."""
        return self._calls.object_size(self.object_path(mesh, sha))

    def put_object(self, engine: NodeEngine, mesh: str, sha: str) -> bool:
        """Brings an object of ours; False if the broker has it already. BlobMissing if we have
        not.
        """
        if self.object_size(mesh, sha) is not None:
            return False
        with engine.blobs.open(sha) as source:
            content = Content(source, engine.blobs.size(sha))
            headers = {"Content-Type": _BINARY}
            self._calls.call("PUT", self.object_path(mesh, sha), headers=headers, content=content)
        return True

    def objects(self, mesh: str) -> BrokerObjects:
        """The objects of a mesh, as `pull_objects` asks for them."""
        return BrokerObjects(self, mesh)

    @contextmanager
    def streaming(self, path: str, accept: str = _BINARY) -> Iterator[Iterator[bytes]]:
        """An answer piece by piece, on a connection of its own: other calls need not wait."""
        session = self._calls.session()
        client = self._connect()
        self._streams.add(client)
        try:
            headers = {"Accept": accept, "Authorization": session.authorization}
            pieces = client.stream("GET", path, headers=headers, pin=session.certificate)
            with closing(pieces):  # else it would keep its turn on the connection
                yield pieces
        finally:
            client.close()

    # --- snapshots -----------------------------------------------------------------------------

    def snapshot(self, mesh: str) -> Snapshot | None:
        """The newest one that is ready."""
        try:
            return _snapshot(self.ask(SnapshotResponse, "GET", _at(mesh, "snapshot")))
        except NotFound:
            return None

    def snapshot_begin(self, mesh: str, epoch: int, seq: int) -> SnapshotBegun:
        """Begins an upload that holds everything up to there, or goes on with ours."""
        request = SnapshotBegin(epoch, seq)
        return self.ask(SnapshotBegun, "POST", _at(mesh, "snapshot", "begin"), request)

    def snapshot_chunk(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        """The number of the part that is missing next."""
        path = f"{_at(mesh, 'snapshot', id, 'chunk')}?number={number}&rows={rows}"
        answer = self._calls.call("POST", path, body=part, headers={"Content-Type": _BINARY})
        return answer.json(Chunk).next

    def snapshot_commit(self, mesh: str, id: str, digest: bytes) -> Snapshot:
        path = _at(mesh, "snapshot", id, "commit")
        return _snapshot(self.ask(SnapshotResponse, "POST", path, SnapshotCommit(digest.hex())))

    def snapshot_part(self, mesh: str, id: str, number: int) -> bytes:
        path = _at(mesh, "snapshot", id, str(number))
        headers = {"Accept": _BINARY}
        answer = self._calls.call("GET", path, headers=headers, bytes_max=BROKER_PART_BYTES_MAX)
        answer.expect(_BINARY)
        return answer.body

    # --- what quorums have committed -----------------------------------------------------------

    def commits(self, mesh: str) -> CommitsStanding:
        """What the broker holds of the order of a mesh."""
        return self.ask(CommitsStanding, "GET", _commits(mesh))

    def commits_page(self, mesh: str, first: int) -> bytes:
        path = f"{_commits(mesh)}/page?from={first}"
        return self._calls.call("GET", path, bytes_max=COMMIT_PAGE_BYTES_MAX).msgpack()

    def bring_commits(self, mesh: str, page: bytes) -> CommitsStanding:
        """CommitForked if the broker has another order; what it knows changes nothing."""
        headers = {"Content-Type": MSGPACK}
        answer = self._calls.call("POST", _commits(mesh), body=page, headers=headers)
        return answer.json(CommitsStanding)

    def name_state(self, mesh: str, sha: str, engine: Engine) -> CommitsStanding:
        """An object that we have brought is the committed state."""
        request = BroughtState(sha, engine)
        return self.ask(CommitsStanding, "PUT", f"{_commits(mesh)}/state", request)

    # --- one call ------------------------------------------------------------------------------

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        document: Mapping[str, Any] | msgspec.Struct | None = None,
    ) -> T:
        """One call with JSON in both directions; the answer is read as a `kind`."""
        body = None if document is None else msgspec.json.encode(document)
        headers = {} if body is None else {"Content-Type": JSON}
        answer = self._calls.call(
            method, path, body=body, headers=headers, bytes_max=_LIST_BYTES_MAX
        )
        return answer.json(kind)

    def _connect(self) -> Client:
        connect_ms, read_ms = self._patience
        context = None if self._plain else client_context()
        return Client(self.url, connect_ms=connect_ms, read_ms=read_ms, context=context)

    def _greet(self) -> ClientSession:
        return handshake(self._client, self.us, self._seed, self._check, plain=self._plain)

    def _check(self, hello: HelloTranscript, proof: bytes) -> None:
        """Is it the broker that is pinned, on this very connection?"""
        who = f"{self._client.address} says that it is {hello.server_zone!r}"
        if (hello.server_zone, hello.server_key) != (self._name, self._key):
            raise ZoneNotTrusted(
                f"{who}, by another key than that of {self._name!r}", hint=_COMPARE
            )
        require_proof(hello, proof, who)


def card_shown(url: str, us: tuple[str, Seed]) -> str:
    """The card of the broker that listens there: proved on this connection, but pinned by nobody.
    It is for people to compare, or for a broker on this very machine.
    """
    cards: list[str] = []

    def look(hello: HelloTranscript, proof: bytes) -> None:
        require_proof(hello, proof, f"{url} says that it is {hello.server_zone!r}")
        cards.append(card_of(hello.server_zone, hello.server_key))

    plain = check_broker_url(url).startswith("http:")
    client = Client(url, context=None if plain else client_context())
    try:
        handshake(client, *us, look, plain=plain)
    finally:
        client.close()
    return cards[0]


def _at(mesh: str, *more: str) -> str:
    """A path below a mesh. A slash within a name does not end it."""
    return "/".join(("/api/my/meshes", *(quote(part, safe="") for part in (mesh, *more))))


def _commits(mesh: str) -> str:
    return f"/v1/meshes/{quote(mesh, safe='')}/commits"


def _snapshot(answer: SnapshotResponse) -> Snapshot:
    try:
        digest = bytes.fromhex(answer.digest)
    except ValueError:
        raise BadAnswer("the snapshot has a digest that cannot be read") from None
    if answer.epoch < 1 or min(answer.seq, answer.parts, answer.rows) < 0:
        raise BadAnswer("the snapshot has a place that cannot be")
    return Snapshot(answer.snapshot_id, answer.epoch, answer.seq, answer.parts, answer.rows, digest)
