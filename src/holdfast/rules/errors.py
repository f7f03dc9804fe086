"""Everything that can go wrong, in three families that a caller can act on.

    HoldfastError
    ├── Refused            nothing happened; do not retry as it is
    │   ├── BadInput         BadPeerId BadKey BadValue BadPath BadVector BadEnvelope BadStamp
    │   │                    BadId OverLimit BodyTooLarge BadRange UnsupportedProtocol
    │   │                    UnknownScheme BadQuorumMessage BadFence UnknownEntityType BadEntity
    │   │                    BaseRequired Orphaned DependencyCycle SecretRefused NotAuthMaterial
    │   │                    BadChecksum BadCommitPage BadQuorumSnapshot AmbiguousId
    │   ├── NotFound         NoHome UnknownMesh UnknownKey UnknownTask UnknownFile UnknownConsumer
    │   │                    UnknownConflict UnknownModel UnknownZone UnknownLink UnknownToken
    │   │                    UnknownContext
    │   │                    UnknownObject NoRoute WrongMethod NoLake UnknownMessage
    │   │                    UnknownDestination NoBucket UnknownGroup UnknownEntity MeshDeleted
    │   ├── Conflict         IdReused TaskTaken TaskEnded AlreadyExists AlreadyResolved LogForked
    │   │                    IdempotencyKeyReused EpochMismatch NotShared LeaseEnded
    │   │                    HomeCopied AnotherBroker LogMismatch VoterReused FenceTooOld
    │   │                    RevisionMoved HasChildren IntentAbandoned LeaseHeld LeaseNotHeld
    │   │                    NodeNotLost AuditForked AuditGap NoVoters HasVoters NotCommitted
    │   │                    CommitForked OrderContested MeshOwes StampMoved
    │   ├── NotAllowed       NotOurs NotGranted ForgedOrigin NotAMember MemberBarred InviteEnded
    │   │                    AnotherConnection HostNotAllowed OriginNotAllowed
    │   │                    PlaceDenied MustRejoin FenceForged NotTheCoordinator EtcdDenied
    │   │                    AuthChannelClosed SenderBlocked NotConfirmed
    │   ├── NotTrusted       BadToken KeyExpired ZoneNotTrusted
    │   └── directly         TooMany TooSlow Unreachable BadAnswer EpochChanged NoDaemon NoSpark
    │                        NoJava NoPackage NoPostgres LakeBusy LakeMoved LakeNotSeen LakeSetBack
    │                        JobFailed Truncated PastEnd TooOld NewerSchema DiskFull
    │                        StoreBusy StoreClosed BlobElsewhere ProcessForked
    │                        FeatureUnavailable FeatureParamInvalid FeatureParamBelowFloor
    │                        OutboxAgeAboveWindow NotFresh TooStale EtcdTooOld EtcdRefused
    │                        NoQuorum NeedsHome RetentionBelowFloor RetentionFactsBelowLog
    ├── Unknown            it may have happened; retry with the same id
    │   └── directly         OutcomeUnknown WriteQueued
    ├── Broken             stop, look, repair
    │   └── directly         StoreFailed StoreCorrupt EntryDamaged MigrationFailed BlobMissing
    │                        BlobCorrupt QuorumSetBack DemoFailed
    └── BusError           whatever the peer bus raises, each in one of the families above too
        └── directly         PeerUnreachable PeerClosing UnknownPeer BadSignature BadPayloadId
                             WrongRecipient BadSequence BusInboxFull PeerNameTaken
                             PeerCopied CapabilityRefused NoResponder RequestTimedOut
                             RequestCancelled RequestRefused MessageRefused BusClosed BusStoreFailed
                             WrongKey DiscoveryFailed UnknownStream HandlerRefused CommandFailed

Every error has a `code` for programs, a message that says what happened and a `hint` that says what
to do. Only the leaves are raised. The docstring of a class says when it is raised; `make docs`
writes docs/reference/errors.md from these docstrings.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import ClassVar

    from holdfast.rules.order import Stamp


class HoldfastError(Exception):
    """The root: catch it to catch everything that Holdfast raises on purpose."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    default_hint: ClassVar[str] = ""

    def __init_subclass__(
        cls,
        *,
        code: str,
        exit_code: int | None = None,
        http_status: int | None = None,
        hint: str = "",
    ) -> None:
        """What is not given is that of the parent; `hint` is what to do if a message says nothing
        better.
        """
        super().__init_subclass__()
        cls.code, cls.default_hint = code, hint or cls.default_hint
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.http_status = cls.http_status if http_status is None else http_status

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint


class Refused(HoldfastError, code="refused", http_status=400):
    """Nothing happened. Asking again in the same way gets the same answer."""


class Unknown(HoldfastError, code="unknown", exit_code=124):
    """It may have happened. Retrying with the same message id is safe and settles it."""


class Broken(HoldfastError, code="broken"):
    """Something that must hold does not. Reads go on where they can; writes stop."""


# --- Refused: the input ------------------------------------------------------------------------


class BadInput(Refused, code="bad_input", exit_code=2):
    """What the caller handed in cannot be used; the message says what is wrong with it."""


class BadPeerId(
    BadInput,
    code="bad_peer_id",
    hint="use 1 to 128 bytes of NFC-normalised text without control characters",
):
    """A peer name is empty, too long, not NFC-normalised or has control characters."""


class BadKey(BadInput, code="bad_key"):
    """A key, subject, predicate or other name is empty, not text or contains a NUL."""


class BadValue(BadInput, code="bad_value"):
    """A value is not JSON, or is outside what its field allows."""


class BadPath(
    BadInput,
    code="bad_path",
    hint="use a relative path of letters (of any script), digits, spaces and . _ - + ( ), with / "
    "between folders",
):
    """The path of a shared file, or of a folder for a backup, cannot be used."""


class BadVector(BadInput, code="bad_vector"):
    """An embedding or its model cannot be stored or compared."""


class BadEnvelope(BadInput, code="bad_envelope"):
    """An envelope that came from outside cannot be read, or breaks a rule of its op."""


class BadStamp(
    BadInput, code="bad_stamp", hint="the sender's clock is damaged or hostile; nothing was merged"
):
    """A stamp from outside is one that no honest clock can show."""


class BadQuorumMessage(
    BadInput,
    code="bad_quorum_message",
    hint="the sender is damaged, hostile or newer; nothing was changed",
):
    """A message between voters cannot be read, or says what no voter can say."""


class BadQuorumSnapshot(
    BadInput,
    code="bad_quorum_snapshot",
    hint="its sender is damaged, hostile or newer; nothing was changed, and it has to come again",
):
    """A snapshot of what a quorum has committed is not whole, not of this group, or has a row that
    no committed order can make.
    """


class BadId(
    BadInput,
    code="bad_id",
    hint="message ids are UUIDs of version 7 or 8; without an id the node makes one",
):
    """A message id is not a UUID of version 7 or 8, or a text is no idempotency key."""


class AmbiguousId(BadInput, code="ambiguous_id", hint="write more of it"):
    """Several ids begin with what was given; the error lists what it may mean."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        candidates: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.candidates = candidates
        """Each id, and the words that tell it apart; none if another node has found out."""


class OverLimit(BadInput, code="over_limit"):
    """Something is larger or more than a limit allows; the message names both."""


class BodyTooLarge(OverLimit, code="body_too_large", http_status=413):
    """The body of a request, or the content of a message, is too large."""


class BadRange(BadInput, code="bad_range", http_status=416, hint="ask for its size first: HEAD"):
    """A Range header asks for bytes that the object does not have."""


class UnsupportedProtocol(
    BadInput, code="unsupported_protocol", hint="upgrade the older of the two nodes"
):
    """An envelope, export or backup is of a version that this Holdfast does not read."""


class UnknownScheme(
    BadInput,
    code="unknown_scheme",
    hint="name a folder, or a place as s3://, gs://, abfss://, az://, hdfs:// or file:///",
):
    """The place of a lake begins with a scheme that Holdfast does not know, or not here."""


# --- Refused: the state ------------------------------------------------------------------------


class NotFound(Refused, code="not_found", exit_code=4, http_status=404):
    """What the caller named does not exist here."""


class NoHome(NotFound, code="no_home", hint="create one with: holdfast init --peer NAME"):
    """There is no home in the folder that was named or found."""


class UnknownMesh(
    NotFound,
    code="unknown_mesh",
    hint="see: holdfast mesh list; create it with: holdfast mesh create NAME",
):
    """This node, or this broker, has no mesh of that name."""


class MeshDeleted(
    NotFound,
    code="mesh_deleted",
    hint="if it is wanted again: join it again, or holdfast mesh create NAME",
):
    """Something came for a mesh that was deleted here: it is dropped, and counted."""

    def __init__(self, message: str, *, mesh: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.mesh = mesh


class UnknownKey(NotFound, code="unknown_key"):
    """There is nothing under this key; also a zone's key that is not known."""


class UnknownTask(NotFound, code="unknown_task", hint="see: holdfast task list"):
    """There is no task with this id in the mesh."""


class UnknownFile(NotFound, code="unknown_file", hint="see: holdfast file list"):
    """There is no shared file of this path and owner."""


class UnknownConsumer(
    NotFound, code="unknown_consumer", hint="register it with: holdfast consumer add NAME"
):
    """No consumer of this name is registered."""


class UnknownConflict(NotFound, code="unknown_conflict", hint="see: holdfast conflict list"):
    """The conflict ledger has no entry of this number."""


class UnknownModel(NotFound, code="unknown_model", hint="see: holdfast vector models"):
    """No vector was ever stored under this embedding model."""


class UnknownZone(
    NotFound,
    code="unknown_zone",
    hint="see: holdfast peer zones; trust it with: holdfast peer trust CARD",
):
    """This node knows no zone of that name."""


class UnknownLink(NotFound, code="unknown_link", hint="see: holdfast link list"):
    """There is no link of this name."""


class UnknownToken(NotFound, code="unknown_token", hint="see: holdfast token list"):
    """There is no token of this name."""


class UnknownContext(NotFound, code="unknown_context", hint="see: holdfast context list"):
    """There is no context of this name."""


class NoLake(
    NotFound, code="no_lake", hint="make one with: holdfast pipeline run --lake FOLDER LOG..."
):
    """There is no lake in the folder that was named."""


class NoBucket(NotFound, code="no_bucket", hint="make it, or check its name and the endpoint"):
    """The bucket or container in which a lake is said to lie is not there."""


class UnknownObject(
    NotFound,
    code="unknown_object",
    hint="put the object first (PUT /v1/objects), then append the fact that names it",
):
    """The content of this hash is not here."""


class NoRoute(
    NotFound, code="no_route", hint="see /openapi.json or /docs for what this node answers"
):
    """Nothing is served at this path."""


class WrongMethod(NoRoute, code="wrong_method", http_status=405):
    """The path is served, but not for this HTTP method."""


class UnknownMessage(
    NotFound, code="unknown_message", hint="see: holdfast inbox list, holdfast outbox list"
):
    """Neither the inbox nor the outbox has a message with this id, or its content is gone."""


class UnknownDestination(
    NotFound,
    code="unknown_destination",
    hint="declare the topic or queue at the broker first; a dm needs the name or key of a member",
):
    """The topic or queue is not declared, or no member has this name or key."""


class UnknownGroup(
    NotFound, code="unknown_group", hint="this node has no part in a quorum of that mesh"
):
    """This node has no Raft log of a group of that scope."""


class Conflict(Refused, code="conflict", exit_code=5, http_status=409):
    """The state that is there does not allow it."""


class IdReused(
    Conflict,
    code="id_reused",
    hint="the id belongs to another request; mint a new one for this request",
):
    """This node has this id already, for a change or a fact with other content."""


class IdempotencyKeyReused(
    Conflict,
    code="idempotency_key_reused",
    hint="the key belongs to another request; use a new one for this request",
):
    """This node or the broker has this message id already, for a message that asks for something
    else.
    """


class EpochMismatch(
    Conflict,
    code="epoch_mismatch",
    hint="retry: the node takes up the broker's current epoch with its next connection",
):
    """The broker counts a mesh in another epoch than the sender believes."""


class LeaseEnded(
    Conflict,
    code="lease_ended",
    hint="take it again; another taker may have done it already, so it must be safe to repeat",
):
    """A message that was taken from a queue is no longer held by the caller."""


class NotShared(
    Conflict,
    code="not_shared",
    hint="share the mesh first: holdfast mesh publish MESH --broker URL",
):
    """The mesh is personal: it has no broker, so nothing can be sent or synced."""


class TaskTaken(Conflict, code="task_taken"):
    """Another peer holds the task."""


class TaskEnded(Conflict, code="task_ended"):
    """The task is completed or cancelled."""


class LogForked(Conflict, code="log_forked"):
    """Two logs have one name: the lake has read entries that this log does not hold."""


class AlreadyExists(Conflict, code="already_exists"):
    """What the caller wants to create is there already."""

    def __init__(
        self, message: str, *, free: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.free = free
        """Names that are free, of which the best comes first; empty if nobody has looked."""


class HomeCopied(
    Conflict,
    code="home_copied",
    hint="if it was moved and the original is gone: holdfast up --moved. If the original goes on, "
    "make a home of its own here: holdfast init, then import or join",
):
    """The home was last served on another machine or as other files: it may be a copy."""


class MeshOwes(Conflict, code="mesh_owes"):
    """A mesh that is to be deleted owes something to others; the message names what."""


class AlreadyResolved(Conflict, code="already_resolved"):
    """The conflict was resolved before."""


class AnotherBroker(
    Conflict,
    code="another_broker",
    hint="copy identity.key and broker.name from the folder of the broker that it belongs to; if "
    "that key is lost for good: holdfast broker serve --replace-key",
):
    """A database belongs to a broker with another key. Members would not trust this one."""


class LogMismatch(
    Conflict, code="log_mismatch", hint="read how far the log is, and decide again from there"
):
    """A write does not fit the Raft log of its group: it comes late, leaves a gap, lowers a term,
    changes a vote or drops what is committed. Nothing was changed.
    """


class VoterReused(
    Conflict, code="voter_reused", hint="add the node under a voter id that nobody ever had"
):
    """A voter id that this node had in the group before is never used again."""


class NotAllowed(Refused, code="not_allowed", exit_code=7, http_status=403):
    """The caller is known, but may not do this."""


class SenderBlocked(NotAllowed, code="sender_blocked"):
    """A message came from a peer that this node has blocked: it is dropped, and counted."""


class NotConfirmed(NotAllowed, code="not_confirmed", hint="ask the user"):
    """An agent wants to remove something, and no person has agreed to it."""


class NotOurs(NotAllowed, code="not_ours"):
    """It belongs to another peer or another user of the machine."""


class AnotherConnection(
    NotAllowed,
    code="another_connection",
    hint="end the other node that uses this key, or serve the broker with --connections all",
):
    """The broker takes one connection of each member, and another one of this key is there."""


class NotGranted(
    NotAllowed,
    code="not_granted",
    hint="ask the owner of that node: `holdfast peer trust CARD --reads MESH`",
):
    """The caller lacks the grant that this call needs."""


class ForgedOrigin(
    NotAllowed,
    code="forged_origin",
    hint="if the source may relay this origin, say so: holdfast link add … --carries ORIGIN",
):
    """A source sent an envelope of an origin that it may not carry."""


class NotAMember(
    NotAllowed, code="not_a_member", hint="ask for an invite, then: holdfast mesh join INVITE"
):
    """The key is not a member of the mesh at the broker."""


class MemberBarred(
    NotAllowed,
    code="member_barred",
    hint="the owner of the mesh can let this key in again: `holdfast mesh admit NAME`",
):
    """The owner of the mesh has removed this key, which no invite lets in again."""


class InviteEnded(
    NotAllowed, code="invite_ended", hint="ask for a new one: `holdfast mesh invite MESH`"
):
    """The invite has been used up, has expired or was taken back."""


class HostNotAllowed(
    NotAllowed,
    code="host_not_allowed",
    http_status=421,
    hint="call it localhost, or allow the name: allowed_hosts",
):
    """A request on loopback was for a name that means no service here: perhaps of a web page."""


class OriginNotAllowed(
    NotAllowed,
    code="origin_not_allowed",
    hint="programs send no Origin; to let a web page in, allow its origin: allowed_origins",
):
    """A request came from a web page that may not talk to this service."""


class PlaceDenied(
    NotAllowed,
    code="place_denied",
    hint="check the credentials and what they allow: --options-file, or the environment",
):
    """An object store does not accept the credentials, or they do not allow what a job needs."""


class MustRejoin(
    NotAllowed,
    code="must_rejoin",
    http_status=409,
    hint="remove this voter from the group, then add the node again: it gets a new voter id",
):
    """This node may have forgotten what it promised as a voter: its Raft log is damaged, missing or
    older than what it had acknowledged. It takes no part in the group until it was added anew.
    """


class EtcdDenied(
    NotAllowed,
    code="etcd_denied",
    hint="check user and password-file in the etcd address, and the role of the user",
):
    """An etcd does not know the user or the token, or its role does not allow the call."""


class NotTrusted(Refused, code="not_trusted", exit_code=7, http_status=401):
    """The caller has no key or token, or a wrong or an expired one."""


class BadToken(
    NotTrusted,
    code="bad_token",
    hint="send it as: Authorization: Bearer TOKEN; make one with: holdfast token add NAME",
):
    """A token or session is missing, unknown or not good for this listener."""


class KeyExpired(
    NotTrusted,
    code="key_expired",
    hint="renew it: holdfast token add NAME, or holdfast peer trust CARD",
):
    """The key or token was good until a date that has passed."""


class ZoneNotTrusted(
    NotTrusted,
    code="zone_not_trusted",
    hint="on that node run: `holdfast peer trust CARD`, with the card of this one",
):
    """The zone and the key that it has proved are not trusted here, or not any more."""


class TooMany(Refused, code="too_many", http_status=429, hint="wait a moment, then ask again"):
    """More calls, consumers or envelopes at once than this node or broker takes on."""


class TooSlow(
    Refused, code="too_slow", http_status=408, hint="send the whole request without pauses"
):
    """The body of a request did not arrive in time."""


class Unreachable(
    Refused,
    code="unreachable",
    http_status=502,
    hint="check the address and the network, and that the other side runs",
):
    """The other side does not answer; the call was one that changes nothing or may be repeated."""


class BadAnswer(
    Refused,
    code="bad_answer",
    http_status=502,
    hint="check that the address leads to a Holdfast node",
):
    """The other side answers, but not as Holdfast does."""


class EpochChanged(Refused, code="epoch_changed", http_status=409):
    """A cursor counts in an old epoch of the log; the one that the log counts in now is in
    `epoch`.
    """

    def __init__(self, message: str, *, epoch: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.epoch = epoch


class NoDaemon(
    Refused, code="no_daemon", exit_code=3, http_status=503, hint="start it with: holdfast up"
):
    """No daemon runs for this home, and the command needs one."""


class NeedsHome(Refused, code="needs_home", hint="open the home itself: holdfast.open"):
    """A verb was called on a connection to a daemon, and only works on the home itself."""


class NoSpark(Refused, code="no_spark", hint="pip install 'holdfast[spark]'"):
    """The packages of the pipeline are not installed."""


class NoJava(Refused, code="no_java"):
    """There is no Java on this machine that Spark could run on."""


class NoPackage(Refused, code="no_package", hint="pip install the package that it names"):
    """A table was asked of a package that is not installed."""


class NoPostgres(Refused, code="no_postgres", hint="pip install 'holdfast[postgres]'"):
    """The package that connects to PostgreSQL is not installed."""


class LakeBusy(
    Refused,
    code="lake_busy",
    exit_code=5,
    http_status=503,
    hint="wait for the other job, or end it and run this one again: it goes on where it stopped",
):
    """Another job works on this lake."""


class LakeMoved(
    Refused,
    code="lake_moved",
    exit_code=5,
    http_status=409,
    hint="run it again: it goes on from what is there now",
):
    """Another job changed the table first; this one did nothing."""


class LakeNotSeen(
    Refused,
    code="lake_not_seen",
    hint="mount the lake under the same path on every machine of the cluster, or keep it in an "
    "object store; then run it again",
):
    """A machine of the cluster does not see the lake that the driver sees; nothing was changed."""


class LakeSetBack(
    Refused,
    code="lake_set_back",
    http_status=409,
    hint="read again what is missing: holdfast pipeline repair",
):
    """The lake no longer holds what it has read: a table was set back to an older state, or files
    of it are gone.
    """


class JobFailed(
    Refused,
    code="job_failed",
    hint="remove the cause and run it again: it goes on where it stopped",
):
    """A Spark job gave up."""


class Truncated(Refused, code="truncated", http_status=410):
    """The log no longer holds what was asked for; the first offset that it holds is in
    `first_available`.
    """

    def __init__(self, message: str, *, first_available: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.first_available = first_available


class PastEnd(Refused, code="past_end", exit_code=2, http_status=409):
    """An offset is beyond the end of the log, which was never written."""


class TooOld(
    Refused,
    code="too_old",
    http_status=409,
    hint="where it was written: `holdfast mesh restamp MESH --past STAMP`, the stamp named here",
):
    """A write from outside could bring back what was deleted: this node has forgotten a newer
    deletion of its key, or may have.
    """


class NewerSchema(
    Refused,
    code="newer_schema",
    http_status=500,
    hint="upgrade Holdfast on this machine; the database was left untouched",
):
    """The database was made by a newer Holdfast."""


class DiskFull(
    Refused,
    code="disk_full",
    http_status=507,
    hint="free some space and retry; reads still work and nothing was half-written",
):
    """There is no room on the disk, or the home's own limit is reached."""


class StoreBusy(
    Refused,
    code="store_busy",
    http_status=503,
    hint="wait for the other process or end it, then retry",
):
    """Another process holds the write lock, or too many writes wait already."""


class BlobElsewhere(
    Refused,
    code="blob_elsewhere",
    exit_code=4,
    http_status=404,
    hint="the content is still on the machine that shared it; sync with it and retry",
):
    """The content of a peer's file has not arrived here yet."""


class EtcdTooOld(
    Refused,
    code="etcd_too_old",
    hint="use etcd 3.5.28, 3.6.9 or newer; for trials only: allow-old-version=yes in the address",
):
    """An etcd is of a release that loses writes or answers reads with old values."""


class EtcdRefused(Refused, code="etcd_refused", http_status=502):
    """An etcd refuses a call for a reason that repeating it does not remove; the message has it."""


class FeatureUnavailable(
    Refused, code="feature_unavailable", hint="use a broker of the same or a newer version"
):
    """The broker lacks a feature that this node needs."""


class FeatureParamInvalid(
    Refused,
    code="feature_param_invalid",
    hint="correct the settings of the broker, or use a broker of this node's version",
):
    """The broker has the feature, but with a parameter or version that does not fit."""


class FeatureParamBelowFloor(
    Refused,
    code="feature_param_below_floor",
    hint="raise dedupe_retention_days on the broker to 3 or more, then start again",
):
    """The broker offers less of a feature than this node needs."""


class OutboxAgeAboveWindow(
    Refused,
    code="outbox_max_age_above_dedupe_window",
    hint="lower the outbox age below the broker's dedupe window, or leave it out",
):
    """The outbox is set to keep messages for longer than the broker remembers their ids."""


class RetentionBelowFloor(
    Refused,
    code="retention_below_floor",
    hint="keep it for longer in the table [retention] of the settings",
):
    """The settings of a node would forget what others may still need to come back."""


class RetentionFactsBelowLog(
    Refused,
    code="retention_facts_below_log",
    hint="keep facts as long as the log, or longer, in the table [retention] of the settings",
):
    """The settings keep facts for a shorter time than the log that they are in."""


class ProcessForked(
    Refused,
    code="process_forked",
    http_status=503,
    hint="open the home after the fork, in the child alone; or start processes by multiprocessing's"
    " spawn or forkserver, or by subprocess",
):
    """A process that was forked uses, or opens again, what its parent had open."""


class StoreClosed(Refused, code="store_closed", http_status=503, hint="open the home again"):
    """The store is stopping or stopped."""


# --- Unknown -----------------------------------------------------------------------------------


class OutcomeUnknown(
    Unknown,
    code="outcome_unknown",
    hint="reopen the home and retry with the same id: it is applied once at most",
):
    """The connection or the disk failed while a write was on its way."""


class WriteQueued(
    Unknown,
    code="write_queued",
    http_status=503,
    hint="it is on the disk, and the daemon tries it again; ask again with the same id",
):
    """A write of a task found no quorum in time. It waits, and may be committed later."""


# --- Broken ------------------------------------------------------------------------------------


class StoreFailed(
    Broken, code="store_failed", hint="check the disk, then reopen the home; run: holdfast doctor"
):
    """The disk failed under the store; the home has to be reopened before the next write."""


class StoreCorrupt(
    Broken, code="store_corrupt", hint="run: holdfast doctor --repair (the damaged file is kept)"
):
    """A database, backup or snapshot does not pass its check."""


class EntryDamaged(
    Broken,
    code="entry_damaged",
    hint="run: holdfast doctor --repair (it fetches the entry again from where it still is)",
):
    """An entry of the log is not what was written there."""


class MigrationFailed(
    Broken,
    code="migration_failed",
    hint="fix what the message names and start again; it goes on from the last good version",
):
    """A schema migration failed; the schema stayed at the last good version."""


class BlobMissing(
    Broken,
    code="blob_missing",
    hint="share the file again, or restore it from a backup; run: holdfast doctor",
):
    """A row names content that is not on the disk."""


class BlobCorrupt(
    Broken,
    code="blob_corrupt",
    hint="share the file again, or restore it from a backup; run: holdfast doctor",
):
    """Content on the disk does not hash to its name."""


class QuorumSetBack(
    Broken,
    code="quorum_set_back",
    hint="it may have been restored from a backup; find out before anything is written to it",
):
    """What holds the order of a mesh no longer has what it had, or its members disagree."""


class DemoFailed(
    Broken,
    code="demo_failed",
    hint="this must not happen; please report it, with what is in the folder of the demo",
):
    """A check of `holdfast demo` did not come out as it must."""


# --- The peer bus ------------------------------------------------------------------------------


class BusError(HoldfastError, code="bus"):
    """The bus could not do what it was asked for: catch it to catch whatever the bus raises.

    Its kinds name their family first, from which they have their status and exit code.
    """


class PeerUnreachable(
    Unreachable,
    BusError,
    code="peer_unreachable",
    exit_code=3,
    hint="send waits for an absent peer; see who is there: holdfast peer list",
):
    """A peer is not there, and there is no room to keep what it should get."""


class PeerClosing(
    PeerUnreachable,
    code="peer_closing",
    exit_code=3,
    hint="it may be back soon, and is called again by itself",
):
    """A peer has said goodbye because it closes its bus."""


class BusInboxFull(
    Refused,
    BusError,
    code="bus_inbox_full",
    http_status=503,
    hint="handlers have to finish what waits for them first; the sender keeps it meanwhile",
):
    """A message of the bus came and there is no room in the inbox. Nothing of it was kept."""


class UnknownPeer(
    NotFound,
    BusError,
    code="unknown_peer",
    hint="trust it first, by its card: holdfast peer trust CARD",
):
    """Nobody is known by this name or key."""


class BadSignature(NotTrusted, BusError, code="bad_signature"):
    """A message of the bus is not signed by the key that it names."""


class BadPayloadId(BadInput, BusError, code="bad_payload_id", http_status=400):
    """The id of a message is not the hash of its payload."""


class WrongRecipient(NotAllowed, BusError, code="wrong_recipient"):
    """A message of the bus was signed for somebody else, or for an earlier life of this store."""


class BadSequence(
    Conflict,
    BusError,
    code="bad_sequence",
    hint="the sender counts on above the number that this peer has seen",
):
    """A message of the bus was seen before, or its number is not above the last one."""


class PeerNameTaken(
    NotTrusted,
    BusError,
    code="peer_name_taken",
    hint="one name is one process: end one of the two, or give it another name",
):
    """Two keys want to be one peer at the same time. The one that was there first stays."""


class PeerCopied(
    NotTrusted,
    BusError,
    code="peer_copied",
    hint="a key belongs to one process: end the copy, and make a home of its own there: "
    "holdfast init, then join again",
):
    """Two processes use one key at the same time. The one that has the link keeps it."""


class CapabilityRefused(NotAllowed, BusError, code="capability_refused"):
    """What a peer shows as its right is expired, widened, forged, or not for it."""


class NoResponder(
    Refused,
    BusError,
    code="no_responder",
    exit_code=4,
    http_status=503,
    hint="start what serves it; nothing has happened",
):
    """A request was sent to a peer, or to any peer, and nobody serves it there."""


class RequestTimedOut(
    Unknown, BusError, code="request_timed_out", http_status=504, hint="ask again with the same id"
):
    """No reply came in time. The other side may have done what was asked."""


class RequestCancelled(Unknown, BusError, code="request_cancelled", http_status=499):
    """A request was cancelled before its reply came. The other side was told."""


class RequestRefused(Refused, BusError, code="request_refused", http_status=502):
    """The other side answered with an error; the message begins with its code."""


class MessageRefused(Refused, BusError, code="message_refused", http_status=502):
    """The peer will not take a message; the message of this error begins with its code."""


class BusClosed(Refused, BusError, code="bus_closed", http_status=503, hint="bind the bus again"):
    """The bus is stopping or stopped."""


class BusStoreFailed(
    Broken, BusError, code="bus_store_failed", hint="see the cause; then bind the bus again"
):
    """What keeps the durable part of the bus failed; the message names the cause."""


class WrongKey(
    NotTrusted,
    BusError,
    code="wrong_key",
    hint="give the passphrase or key that this home was sealed with",
):
    """The key at rest does not open what was sealed, or none was given."""


class DiscoveryFailed(
    Unreachable,
    BusError,
    code="discovery_failed",
    hint="peers are still reached where they were before, and at addresses that you give",
):
    """Peers cannot be looked for on the local network, or too much is said there."""


class UnknownStream(
    NotFound, BusError, code="unknown_stream", hint="open it again; what it held comes again"
):
    """A program acknowledges or answers on a stream of the bus that is not open."""


class HandlerRefused(Refused, BusError, code="handler_refused", http_status=502):
    """Raised by a handler of requests to refuse one, with a code of its own for the asker."""

    def __init__(
        self, message: str, *, code: str = "handler_refused", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.told = code


class CommandFailed(Refused, BusError, code="command_failed", http_status=502):
    """A command that handles messages or requests of the bus has failed."""


# --- The quorum --------------------------------------------------------------------------------


class BadFence(BadInput, code="bad_fence", hint="pass on the text as the lease gave it"):
    """A text is not a fence, or a number in it is one that no fence has."""


class FenceTooOld(
    Conflict, code="fence_too_old", hint="take the lease again, read, then write with its new fence"
):
    """A write carried an older fence than one that this record, lease or mesh has seen."""


class FenceForged(NotAllowed, code="fence_forged"):
    """A fence names another coordinator than the one that had this lease epoch."""


class NotTheCoordinator(NotAllowed, code="not_the_coordinator"):
    """An entry that only the coordinator of a mesh may propose came from another node."""


class UnknownEntityType(BadInput, code="unknown_entity_type", http_status=422):
    """An entity has a type that is not in the matrix of data classes."""


class BadEntity(BadInput, code="bad_entity", http_status=422):
    """The fields of an entity break a rule of its type, or of all entities."""


class BaseRequired(
    BadInput, code="base_required", hint="read the entity, and send the revision that you saw"
):
    """A change that is only allowed as compare-and-set names no base revision."""


class Orphaned(BadInput, code="orphaned", http_status=422, hint="write the parent first"):
    """An entity needs a parent that does not exist in the committed state."""


class DependencyCycle(BadInput, code="dependency_cycle", http_status=422):
    """A task would depend on itself, directly or through others."""


class SecretRefused(
    BadInput,
    code="secret_refused",
    http_status=422,
    hint="secrets travel in the channel for auth material only",
):
    """A settings payload holds a field that by its name is a secret."""


class NotAuthMaterial(BadInput, code="not_auth_material", http_status=422):
    """A payload in the channel for auth material is something else, as settings are."""


class BadChecksum(BadInput, code="bad_checksum", http_status=422):
    """A snapshot does not hash to the checksum that it bears."""


class UnknownEntity(NotFound, code="unknown_entity"):
    """No live entity has this type and id."""


class StampMoved(
    Conflict,
    code="stamp_moved",
    hint="read it again, decide what should stand, and write it with that stamp",
):
    """A write named the stamp that it expects, and something else stands there on this node."""

    def __init__(
        self, message: str, *, present: Stamp | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.present = present
        """The stamp of what stands there; None for nothing."""


class RevisionMoved(
    Conflict, code="revision_moved", hint="read it again; then decide what should stand"
):
    """An entity has another revision than the one that the change was made for."""


class HasChildren(Conflict, code="has_children", hint="delete or move its children first"):
    """An entity that others have as their parent cannot be deleted."""


class IntentAbandoned(
    Conflict, code="intent_abandoned", hint="write it again, with a new id, if it is still wanted"
):
    """The quorum decided that this intent is void, before the intent itself was committed."""


class LeaseHeld(Conflict, code="lease_held"):
    """Somebody else holds the lease, and the caller did not want to wait or cannot."""


class LeaseNotHeld(
    Conflict, code="lease_not_held", hint="stop what the lease protects, then take it again"
):
    """The caller does not hold the lease, or no longer."""


class NodeNotLost(Conflict, code="node_not_lost"):
    """A task is to be taken from a node that the quorum has not declared lost."""


class AuditForked(Conflict, code="audit_forked"):
    """An origin has given one place of an audit stream to two events: both hashes are named."""


class AuditGap(
    Conflict, code="audit_gap", hint="they come when somebody who has them is reached; ask again"
):
    """A chain of an audit stream lacks events here; raised by whoever wants it whole."""


class AuthChannelClosed(
    NotAllowed,
    code="auth_channel_closed",
    hint="set auth_channel = true under [quorum] in the settings of that node, then reload it",
):
    """Auth material was brought to, or asked of, a node whose channel for it is closed."""


class NoVoters(Conflict, code="no_voters"):
    """The mesh has no voters, so nothing can be committed in it."""


class NoQuorum(
    Refused,
    code="no_quorum",
    exit_code=6,
    http_status=503,
    hint="see who is missing: holdfast quorum status",
):
    """No majority of the voters could be reached in time; nothing was committed."""


class HasVoters(
    Conflict, code="has_voters", hint="write it through the quorum: then all nodes decide it alike"
):
    """A write that voters decide was to be made, or came, without them."""


class NotCommitted(
    Conflict, code="not_committed", hint="it waits here; it enters with the order of its quorum"
):
    """A strong envelope came without the record of its commit."""


class BadCommitPage(BadInput, code="bad_commit_page"):
    """A page of commits is not what it says: nothing of it is taken."""


class CommitForked(
    Conflict,
    code="commit_forked",
    hint="two orders of one mesh: ask the voters which is theirs (holdfast quorum status); a node "
    "that followed the other one leaves the mesh and joins it again",
):
    """One number of the commit order of a mesh belongs to two entries, or one group of voters
    claims to be another."""


class OrderContested(
    Conflict,
    code="order_contested",
    hint="decide which order counts: on a voter of that one run holdfast quorum recover MESH "
    "--accept-loss, and add the others again; one that has committed other things needs a new home",
):
    """Others that may vote have another order of the mesh, and as many of them as a majority here:
    nobody can tell which one counts."""


class NotFresh(
    Refused,
    code="not_fresh",
    exit_code=6,
    http_status=503,
    hint="ask again, or allow an older answer",
):
    """A linearizable read was demanded and cannot be had now."""


class TooStale(
    Refused,
    code="too_stale",
    exit_code=6,
    http_status=503,
    hint="ask again, or allow an older answer",
):
    """What can be read now is older than the caller allows."""
