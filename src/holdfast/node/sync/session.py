"""What a conversation with a broker does to the store: the steps, each by itself.

Every call blocks; it is one transaction, or none, or a few that may be cut off between any two.
Which step comes when is decided by `conversation` and `mesh_conversation`: for one mesh, each of
`push`, `on_acks` and `store_page` is under way once at a time, different ones side by side.

    Challenge ─► hello ─► Hello           Welcome ─► welcomed ─► Follow, for each mesh
    push ─► Push                          Acks ─► on_acks
    Entries ─► store_page ─► Confirmed    MeshMoved ─► on_moved ─► Follow
    dropped()                             the line is gone: what was in flight is pending again
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import ObjectGone
from holdfast.node.messages.expiry import expire
from holdfast.node.sync import epoch, receive
from holdfast.node.sync import push as sync_push
from holdfast.node.sync.mesh_state import FIRST, MeshState, OnDead
from holdfast.node.sync.terms import STOPS, note_terms
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Confirmed,
    Entries,
    Follow,
    FromBroker,
    FromNode,
    Hello,
    MeshMoved,
    MeshPosition,
    Push,
    QueueMessage,
    Refusal,
    SnapshotNeeded,
    Unfollow,
    Urgent,
    Welcome,
)
from holdfast.rules import keys
from holdfast.rules.broker_sync import Cursor, Meaning, is_gap
from holdfast.rules.errors import (
    BadAnswer,
    Broken,
    DiskFull,
    EpochMismatch,
    HoldfastError,
    NotAllowed,
    NotAMember,
    NotFound,
    NotGranted,
    OverLimit,
    StoreBusy,
    StoreClosed,
    Unknown,
    UnknownMesh,
    ZoneNotTrusted,
)
from holdfast.rules.features import NEEDS, Terms, check
from holdfast.rules.keys import NONCE_BYTES, check_proof, parse_card, prove, public_key
from holdfast.rules.limits import SYNC_GAPS_MAX, SYNC_PUSH_ITEMS, SYNC_WINDOW_ITEMS
from holdfast.rules.outbox import PARK, OutboxState, Policies, Trial, waits_until
from holdfast.rules.retention import outbox_max_age_hours
from holdfast.rules.rows import KnownMember, MeshRow
from holdfast.service.problem import Problem
from holdfast.storage.ports import Reader, Transaction
from holdfast.transport.remote_errors import error_by_code

log = logging.getLogger("holdfast")

PLAIN = bytes(32)
_OF_OUR_DISK = (Broken, Unknown, DiskFull, StoreBusy, StoreClosed)
"""Errors that say nothing about what was under way to the broker."""


class BrokerAddress(msgspec.Struct, frozen=True):
    """A broker as meshes name it: where it listens, and whose key it must prove to have."""

    url: str
    card: str

    @property
    def name(self) -> str:
        return parse_card(self.card)[0]


class Due(msgspec.Struct, frozen=True):
    """Whether something could be pushed now, and else how long to wait for the next that is due."""

    now: bool
    wait_ms: int | None = None
    """None: until something is written."""
    commits: bool = False
    """Something was committed that the broker lacks, and that this node may bring."""


class AcksStored(msgspec.Struct, frozen=True):
    """What became of answers."""

    frames: list[FromNode]
    rows: int
    """How many rows have their answer by them; answers about other rows count for nothing."""
    passed: int
    """How many of these the broker has, or has refused for good."""


class PageStored(msgspec.Struct, frozen=True):
    """What became of a piece of a page."""

    frames: list[FromNode]
    rows: int = 0
    """How many envelopes it brought, new ones and known ones."""


class MissingObjects(msgspec.Struct, frozen=True):
    """Objects that a page names and that are not here."""

    objects: list[str]


class SyncSession:
    """The store's part in the connections with one broker, for all meshes shared through it."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        broker: BrokerAddress,
        *,
        policies: Policies = PARK,
        max_age_hours: int | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        chance: Callable[[], float] = random.random,
        on_dead: OnDead = lambda row: None,
    ) -> None:
        """`on_dead` gets every row of the outbox that dies. `max_age_hours` is how long a message
        may wait, where that is not left to the broker. `chance` draws lots from [0, 1): how long to
        wait is partly left to them.
        """
        self.engine = engine
        self._on_dead = on_dead
        self.broker = broker
        self.policies = policies
        self._asked_age = max_age_hours
        self._age_hours = 0
        self._terms: Terms | None = None
        """What the broker offered at the last hello."""
        self.meshes: dict[str, MeshState] = {}
        self._trust = trust
        self._entropy = entropy
        self._chance = chance
        self._trials: dict[str, Trial] = {}
        """By mesh: what may go, since the last connections ended in the middle of something."""
        self.snapshot_asked: dict[str, int] = {}
        """When the broker last asked for a snapshot of a mesh and got one, in ticks."""
        self._transcript: keys.HelloTranscript | None = None
        """Our hello, which the broker signs in its welcome."""

    # --- settings ----------------------------------------------------------------------------

    def age_for(self, asked_hours: int | None) -> int:
        """How long a message may wait for this broker; raises if that is past what it remembers.
        Before the first hello nobody knows, and the present value stays.
        """
        if self._terms is None:
            return self._age_hours
        return outbox_max_age_hours(self._terms.mode, self._terms.retention_days, asked_hours)

    def set_outbox(self, policies: Policies, max_age_hours: int | None) -> None:
        """Other settings of the outbox, from now on."""
        self._age_hours = self.age_for(max_age_hours)
        self.policies, self._asked_age = policies, max_age_hours

    # --- hello -------------------------------------------------------------------------------

    def hello(self, challenge: Challenge, certificate: bytes = PLAIN) -> Hello:
        """Looks at who is there and what it offers, and proves who we are. Raises ZoneNotTrusted
        for another broker than the one that is pinned, before anything is signed.
        """
        name, key = parse_card(self.broker.card)
        if (challenge.name, challenge.key) != (name, key):
            raise ZoneNotTrusted(
                f"{self.broker.url} says that it is {challenge.name!r}, by a key that is not "
                f"the one of {name!r}",
                hint="compare it with the broker's own: holdfast broker status",
            )
        if len(challenge.nonce) != NONCE_BYTES:
            raise BadAnswer("the broker's challenge cannot be read")
        self._agree(challenge)
        seed = self._trust.seed()
        transcript = keys.HelloTranscript(
            client_zone=self._trust.name,
            client_key=public_key(seed),
            client_nonce=self._entropy(NONCE_BYTES),
            server_zone=name,
            server_key=key,
            server_nonce=challenge.nonce,
            certificate=certificate,
        )
        self._transcript = transcript
        proof = prove(seed, "client", transcript)
        return Hello(
            transcript.client_zone,
            transcript.client_key,
            transcript.client_nonce,
            proof,
            dict(NEEDS),
        )

    def _agree(self, challenge: Challenge) -> None:
        """Takes what the broker offers; raises if this node cannot work with it. Both are kept for
        whoever looks.
        """
        terms = None
        try:
            terms = self._terms = check(challenge.supported)
            self._age_hours = self.age_for(self._asked_age)
        except STOPS as error:
            note_terms(self.engine, self.broker.url, terms, error)
            raise
        note_terms(self.engine, self.broker.url, terms, None)

    def welcomed(self, welcome: Welcome) -> list[FromNode]:
        """Opens the meshes after the broker has proved itself; returns a Follow for each."""
        transcript = self._transcript
        if transcript is None or not check_proof(
            transcript.server_key, "server", transcript, welcome.proof
        ):
            raise ZoneNotTrusted(
                f"{self.broker.url} cannot prove that it is {self.broker.name!r}",
                hint="somebody may stand between this node and the broker: check the address",
            )
        places = {place.mesh: place for place in welcome.meshes}
        frames: list[FromNode] = []
        for row in self._shared():
            trial = self._trials.get(row.slug, Trial())
            mesh = self.meshes[row.slug] = MeshState(row, trial, self._on_dead)
            self._recover(mesh.lane)
            expire(self.engine, mesh.lane, self._age_hours, mesh.on_dead)
            frames += self._begin(mesh, places.get(row.slug))
        return frames

    def expire(self) -> None:
        """Messages that waited for so long that the broker would not know them again are not sent
        any more.
        """
        for mesh in list(self.meshes.values()):
            expire(self.engine, mesh.lane, self._age_hours, mesh.on_dead)

    def look(self) -> list[FromNode]:
        """Reads the meshes again: those that were shared since are followed, those that are no
        longer are forgotten, and a pause that was ended is over.
        """
        rows = {row.slug: row for row in self._shared()}
        frames: list[FromNode] = []
        for gone in sorted(self.meshes.keys() - rows.keys()):
            del self.meshes[gone]
            frames.append(Unfollow(gone))
        for slug, row in rows.items():
            mesh = self.meshes.get(slug)
            if mesh is None or mesh.server_id != row.server_id:  # or shared anew since
                mesh = self.meshes[slug] = MeshState(row, on_dead=self._on_dead)
                frames.append(_ask_where(mesh))
            mesh.paused = row.sync_paused
        return frames

    def retry(self) -> list[FromNode]:
        """Frames that ask again for every mesh that was refused: that may have been put right."""
        meshes = list(self.meshes.values())
        return [
            _ask_where(mesh)
            for mesh in meshes
            if mesh.trouble is not None or mesh.snapshot is not None
        ]

    def _shared(self) -> list[MeshRow]:
        ours = (self.broker.url, self.broker.card)

        def read(tx: Reader) -> list[MeshRow]:
            found = [row for row in tx.mesh_list() if row.shared]
            return [row for row in found if (row.broker_url, row.broker_card) == ours]

        return self.engine.read("sync.meshes", read)

    def _begin(self, mesh: MeshState, place: MeshPosition | None) -> list[FromNode]:
        if place is None:
            mesh.refuse(NotAMember(f"this node is no member of {mesh.slug!r}"), self._now())
            return []
        return self._take_up(mesh, place, cursor_known=False)

    def _take_up(
        self, mesh: MeshState, place: MeshPosition, *, cursor_known: bool
    ) -> list[FromNode]:
        """Follows a mesh from where it stands. `cursor_known`: the broker has our cursor, and would
        have begun a new epoch if it lacked something.
        """
        try:
            moved = epoch.take_up(self.engine, mesh, place, self._age_hours)
            if cursor_known and not moved and place.seq < mesh.cursor.seq:
                raise EpochMismatch(
                    f"the broker ends at seq {place.seq} of {mesh.slug!r}, and {mesh.cursor.seq} "
                    "was read from it before",
                    hint="it went back in time; run there: holdfast broker new-epoch",
                )
        except (EpochMismatch, BadAnswer, NotAllowed, NotFound) as error:
            mesh.refuse(error, self._now())  # the other meshes go on
            return []
        mesh.ready, mesh.trouble, mesh.gaps = True, None, 0
        if moved:
            mesh.busy = mesh.not_before = 0  # what was refused for its epoch may go
        if epoch.lost_own(self.engine, mesh.slug):
            mesh.own = mesh.last > mesh.cursor.seq
            if not mesh.own:
                epoch.found_own(self.engine, mesh.slug)
        return [self._follow(mesh)]

    def _follow(self, mesh: MeshState) -> Follow:
        return Follow(mesh.slug, mesh.cursor.epoch, mesh.cursor.seq, mesh.own, commits=True)

    # --- what goes out -----------------------------------------------------------------------

    def push(self, slug: str, room: int = SYNC_PUSH_ITEMS) -> Push | None:
        """The next envelopes of a mesh, marked as in flight; None if nothing is due."""
        mesh = self.meshes.get(slug)
        if mesh is None:
            return None
        return sync_push.next_push(self.engine, mesh, self.policies.of(slug), room)

    def look_for_due(self, slug: str) -> Due:
        """A quick look, that may be wrong in saying that something can be pushed now."""
        mesh = self.meshes.get(slug)
        if mesh is None or not mesh.may_send:
            return Due(False)

        def read(tx: Reader) -> tuple[int | None, int]:
            standing = tx.quorum_get(slug)
            return tx.outbox_next_at(mesh.lane), 0 if standing is None else standing.number

        first, number = self.engine.read("sync.due", read)
        commits = number > mesh.commits_at and "relay" in mesh.grants
        if first is None:
            return Due(False, commits=commits)
        now = self._now()
        due_at = max(waits_until(first, now), waits_until(mesh.not_before, now))
        at: int | None = due_at
        is_due = due_at <= now
        if is_due and mesh.looked_to == FIRST:
            # If it does not go now, it waits for an answer, an object or another row.
            at = None if mesh.retry_at is None else waits_until(mesh.retry_at, now)
        wait_ms = None if at is None else max(1, at - now)
        return Due(is_due and len(mesh.inflight) < SYNC_WINDOW_ITEMS, wait_ms, commits)

    def on_acks(self, acks: Acks) -> AcksStored:
        """Answers to what was pushed. A newer epoch in them makes us ask where the mesh stands."""
        mesh = self.meshes.get(acks.mesh)
        if mesh is None:
            return AcksStored([], 0, 0)
        policy = self.policies.of(acks.mesh)
        settled = sync_push.ack_rows(self.engine, mesh, acks, policy, self._chance)
        passed = sum(meaning in (Meaning.DONE, Meaning.REFUSED) for meaning in settled)
        return AcksStored(self._after_acks(mesh, acks), len(settled), passed)

    def _after_acks(self, mesh: MeshState, acks: Acks) -> list[FromNode]:
        if acks.epoch > mesh.cursor.epoch:
            return [self._follow(mesh)]
        codes = {answer.problem.code for answer in acks.answers if answer.problem is not None}
        if 0 < acks.epoch < mesh.cursor.epoch and EpochMismatch.code in codes:
            return [_ask_where(mesh)]  # it fell back behind us: that has to be seen
        return []

    def objects_to_bring(self, slug: str) -> list[str]:
        """Objects that rows wait for, in the order of the rows."""
        mesh = self.meshes.get(slug)
        if mesh is None:
            return []
        found = [sha for held in list(mesh.held.values()) for sha in sorted(held.objects)]
        return [sha for sha in dict.fromkeys(found) if sha not in mesh.brought]

    def brought(self, slug: str, objects: Iterable[str]) -> None:
        """The broker has these objects now, or we cannot bring them: the rows may go."""
        mesh = self.meshes.get(slug)
        if mesh is not None:
            sync_push.release(mesh, objects)

    def waiting(self) -> bool:
        """Does something wait for the broker's answer, or for objects?"""
        return any(mesh.inflight or mesh.held for mesh in list(self.meshes.values()))

    # --- what comes in -----------------------------------------------------------------------

    def on_frame(self, frame: FromBroker) -> list[FromNode]:
        """A frame about a mesh that is neither an answer nor a page."""
        match frame:
            case MeshMoved():
                return self.on_moved(frame)
            case SnapshotNeeded():
                mesh = self.meshes.get(frame.mesh)
                if mesh is not None:
                    mesh.snapshot = frame.snapshot
            case Refusal():
                self.on_refusal(frame)
            case QueueMessage():
                log.warning("a message of the queue %s came that nobody asked for", frame.queue)
            case _:
                raise AssertionError(f"{type(frame).__name__} has a way of its own")
        return []

    def decode(self, entries: Entries) -> list[receive.DecodedPage]:
        """The pieces of a page, each small enough for one transaction. Raises BadAnswer if it is
        no page.
        """
        return list(receive.pieces(receive.decode_page(entries)))

    def store_page(
        self, piece: receive.DecodedPage, absent: Collection[str] | None
    ) -> PageStored | MissingObjects:
        """Stores a piece if the objects that it names are here, or `absent` at the broker."""
        if absent is None and (wanted := receive.objects_wanted(self.engine, piece)):
            return MissingObjects(wanted)
        try:
            return self.on_entries(piece, absent or ())
        except ObjectGone:  # a sweep was faster
            return MissingObjects(receive.objects_wanted(self.engine, piece))

    def on_entries(
        self, incoming: receive.DecodedPage, absent: Collection[str] | None = None
    ) -> PageStored:
        """Stores a page and says that we have it; or asks again, if something lies before it."""
        entries = incoming.entries
        mesh = self.meshes.get(entries.mesh)
        if mesh is None or not mesh.ready or entries.epoch < mesh.cursor.epoch:
            return PageStored([])  # left from before something changed
        if entries.epoch > mesh.cursor.epoch or is_gap(mesh.cursor, entries.epoch, entries.after):
            return PageStored(self._ask_again(mesh, entries))
        try:
            taken = receive.receive_page(self.engine, mesh, incoming, absent)
        except receive.CursorMoved as moved:
            mesh.cursor = moved.cursor
            return PageStored(self._ask_again(mesh, entries))
        except OverLimit as error:
            mesh.refuse(error, self._now())  # a person has to look at what was set aside
            return PageStored([])
        mesh.advance(taken.cursor)
        mesh.gaps, mesh.trouble = 0, None
        mesh.last = max(mesh.last, entries.last, entries.to)
        mesh.received += taken.new
        mesh.duplicates += taken.known
        mesh.snapshot = None
        # Not our cursor: that may be past what this feed has sent, by what we pushed ourselves.
        frames: list[FromNode] = [Confirmed(mesh.slug, entries.epoch, entries.to)]
        if mesh.own and entries.to >= entries.last:
            # All that we may have lost is here again: from now on it need not be sent to us.
            epoch.found_own(self.engine, mesh.slug)
            mesh.own = False
            frames.append(self._follow(mesh))
        return PageStored(frames, len(entries.rows))

    def _ask_again(self, mesh: MeshState, entries: Entries) -> list[FromNode]:
        """Asks once: pages that were on their way then leave the same gap, and are passed over."""
        mesh.gaps += 1
        if mesh.gaps > SYNC_GAPS_MAX:
            raise BadAnswer(
                f"the broker goes on at {entries.after} of {mesh.slug!r}, in epoch "
                f"{entries.epoch}, and was asked for {mesh.cursor.seq} of {mesh.cursor.epoch}"
            )
        return [self._follow(mesh)] if mesh.gaps == 1 else []

    def on_urgent(self, urgent: Urgent) -> int:
        """Stores urgent messages; returns how many were new."""
        mesh = self.meshes.get(urgent.mesh)
        if mesh is None or not urgent.rows:
            return 0
        return receive.receive_urgent(self.engine, mesh, urgent.rows)

    def on_moved(self, moved: MeshMoved) -> list[FromNode]:
        mesh = self.meshes.get(moved.place.mesh)
        if mesh is None:
            return []
        asked, mesh.asking = mesh.asking, False
        return self._take_up(mesh, moved.place, cursor_known=not asked)

    def on_refusal(self, refusal: Refusal) -> None:
        mesh = self.meshes.get(refusal.about)
        problem = refusal.problem
        error = error_by_code(problem.code, problem.message, problem.hint)
        if mesh is None or not isinstance(error, NotAllowed | NotFound):
            # About one frame, not about us: as a confirmation that came after a new beginning.
            log.info("the broker %s refuses: %s", self.broker.name, error.message)
        elif isinstance(error, NotGranted):
            mesh.trouble = Problem.of(error, self._now())  # who may not read may still write
        else:
            mesh.refuse(error, self._now())

    def snapshot_taken(self, slug: str) -> list[FromNode]:
        """A snapshot was taken: follows the mesh from the cursor that it left in the store."""
        mesh = self.meshes.get(slug)
        if mesh is None:
            return []
        row = self.engine.read("sync.place", lambda tx: tx.mesh_get(slug))
        if row is None:
            raise UnknownMesh(f"there is no mesh {slug!r} any more")
        mesh.cursor = Cursor(row.broker_epoch, row.broker_seq)
        mesh.snapshot, mesh.gaps = None, 0
        return [self._follow(mesh)]

    def refuse(self, slug: str, error: HoldfastError) -> None:
        """Stops a mesh, until the broker is asked for it again."""
        mesh = self.meshes.get(slug)
        if mesh is not None:
            mesh.refuse(error, self._now())

    def note_seen(self) -> None:
        """Writes down that the broker is there, even if it has nothing to say."""
        slugs = [mesh.slug for mesh in list(self.meshes.values()) if mesh.trouble is None]
        now = self._now()

        def work(tx: Transaction) -> None:
            for slug in slugs:
                row = tx.mesh_get(slug)
                if row is not None:
                    tx.mesh_change(msgspec.structs.replace(row, last_sync_at=now))

        self.engine.write("sync.seen", work)

    def known_members(self, slug: str, members: Sequence[KnownMember]) -> None:
        """Keeps who takes part in a mesh, as the broker says."""
        self.engine.write("sync.mates", lambda tx: tx.known_members_put(slug, members))

    # --- the end -----------------------------------------------------------------------------

    def dropped(self, error: Exception | None = None) -> None:
        """The line is gone: rows without an answer are pending again. With an `error` that is what
        ended it, and the next connection sends less of what was under way.
        """
        meshes = [mesh for mesh in self.meshes.values() if mesh.inflight]
        trials = {mesh.slug: mesh.trial for mesh in self.meshes.values()}
        if error is not None and not isinstance(error, _OF_OUR_DISK):
            now, why = self._now(), Problem.of(error, 0).message
            for mesh in meshes:
                rows = list(mesh.inflight.values())
                trials[mesh.slug] = mesh.trial.failed(rows, why, now, self._chance())
        self._trials = {slug: trial for slug, trial in trials.items() if trial != Trial()}
        self.meshes = {}
        self._transcript = None

        def work(tx: Transaction) -> None:
            for mesh in meshes:
                tx.outbox_recover(mesh.lane)

        if meshes:
            self.engine.write("sync.dropped", work)

    @property
    def suspects(self) -> int:
        """How many rows are set aside because the broker failed at each alone."""
        return sum(len(trial.suspects) for trial in self._trials.values())

    def _recover(self, lane: str) -> None:
        """Makes rows pending that the last connection left in flight because the disk failed."""
        left = (str(OutboxState.INFLIGHT),)
        if self.engine.read("sync.recover", lambda tx: tx.outbox_list(lane, left, 0, 1)):
            self.engine.write("sync.recover", lambda tx: tx.outbox_recover(lane))

    def _now(self) -> int:
        return self.engine.ctx.now_ms()


def _ask_where(mesh: MeshState) -> Follow:
    """No mesh is in epoch 0, so the broker answers by telling where it stands."""
    mesh.asking = True
    return Follow(mesh.slug, 0, 0)


def brokers(engine: NodeEngine) -> list[BrokerAddress]:
    """Every broker that a mesh of this node is shared through."""

    def read(tx: Reader) -> list[BrokerAddress]:
        found = {
            BrokerAddress(row.broker_url, row.broker_card)
            for row in tx.mesh_list()
            if row.shared and row.broker_url is not None and row.broker_card is not None
        }
        return sorted(found, key=lambda broker: (broker.url, broker.card))

    return engine.read("sync.meshes", read)
