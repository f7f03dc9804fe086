"""Everything that can go wrong, in three families that a caller can act on.

    HoldfastError
    ├── Refused            nothing happened; do not retry as it is
    │   ├── BadInput         BadPeerId BadKey BadValue BadPath BadVector BadEnvelope BadStamp
    │   │                    BadId OverLimit BodyTooLarge BadRange UnsupportedProtocol
    │   ├── NotFound         NoHome UnknownMesh UnknownKey UnknownTask UnknownFile UnknownConsumer
    │   │                    UnknownConflict UnknownModel UnknownZone UnknownLink UnknownToken
    │   │                    UnknownObject NoRoute WrongMethod NoLake UnknownMessage
    │   │                    UnknownDestination
    │   ├── Conflict         IdReused TaskTaken TaskEnded AlreadyExists AlreadyResolved LogForked
    │   │                    IdempotencyKeyReused EpochMismatch NotShared LeaseEnded
    │   ├── NotAllowed       NotOurs NotGranted ForgedOrigin NotAMember InviteEnded
    │   ├── NotTrusted       no key, a wrong or an expired one: BadToken KeyExpired ZoneNotTrusted
    │   ├── TooMany          more at once than this node takes on
    │   ├── TooSlow          a request that does not come to its end
    │   ├── Unreachable      the other side does not answer, and was asked for nothing that changes
    │   ├── BadAnswer        the other side answers, but not as a Holdfast node does
    │   ├── EpochChanged     the log that a cursor points into counts in another epoch
    │   ├── NoDaemon         no daemon runs for this home
    │   ├── NoSpark          the packages of the pipeline are not installed
    │   ├── NoJava           nothing here that Spark could run on
    │   ├── NoPostgres       the package that talks to PostgreSQL is not installed
    │   ├── LakeBusy         another job works on this lake
    │   ├── LakeMoved        another job changed the table first; the work is done anew
    │   ├── JobFailed        a Spark job gave up; a rerun goes on where it stopped
    │   ├── Truncated        the log no longer holds what was asked for
    │   ├── PastEnd          a confirmation of what was never written
    │   ├── TooOld           a write from before what this node has safely forgotten
    │   ├── NewerSchema      the database belongs to a newer Holdfast
    │   ├── DiskFull         the transaction was rolled back whole
    │   ├── StoreBusy        another process holds the write lock
    │   ├── BlobElsewhere    the content of a peer's file has not arrived here yet
    │   ├── FeatureUnavailable      the broker lacks what this node needs
    │   ├── FeatureParamInvalid     the broker has it, but not as it must be
    │   ├── FeatureParamBelowFloor  the broker offers less than this node needs
    │   ├── OutboxAgeAboveWindow    messages would outlive the broker's memory of their ids
    │   └── StoreClosed      the store is stopping or stopped
    ├── Unknown            may have happened; retry with the same id
    │   └── OutcomeUnknown
    └── Broken             stop, look, repair
        ├── StoreFailed      the disk failed under us; reopen before the next write
        ├── StoreCorrupt     the database does not pass its check
        ├── MigrationFailed  the schema stayed at the last good version
        ├── BlobMissing      a row names content that is not on the disk
        └── BlobCorrupt      content does not hash to its name

Every error has a `code` for programs, a message that says what happened and a `hint` that says what
to do. Only the leaves are raised.
"""

from __future__ import annotations

from typing import ClassVar


class HoldfastError(Exception):
    """The root: catch it to catch everything that Holdfast raises on purpose."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint


class Refused(HoldfastError):
    """Nothing happened. Asking again in the same way gets the same answer."""

    code = "refused"
    http_status = 400


class Unknown(HoldfastError):
    """It may have happened. Retrying with the same message id is safe and settles it."""

    code = "unknown"
    exit_code = 124


class Broken(HoldfastError):
    """Something that must hold does not. Reads go on where they can; writes stop."""

    code = "broken"


# --- Refused: the input ------------------------------------------------------------------------


class BadInput(Refused):
    code = "bad_input"
    http_status = 400
    exit_code = 2


class BadPeerId(BadInput):
    code = "bad_peer_id"
    default_hint = "use 1 to 128 bytes of NFC-normalised text without control characters"


class BadKey(BadInput):
    code = "bad_key"


class BadValue(BadInput):
    code = "bad_value"


class BadPath(BadInput):
    code = "bad_path"
    default_hint = "use a relative path of letters, digits, spaces and . _ - + ( ) between slashes"


class BadVector(BadInput):
    code = "bad_vector"


class BadEnvelope(BadInput):
    code = "bad_envelope"


class BadStamp(BadInput):
    code = "bad_stamp"
    default_hint = "the sender's clock is damaged or hostile; nothing was merged"


class BadId(BadInput):
    code = "bad_id"
    default_hint = "message ids are UUIDs of version 7; leave the id out to have one minted"


class OverLimit(BadInput):
    code = "over_limit"


class BodyTooLarge(OverLimit):
    code = "body_too_large"
    http_status = 413


class BadRange(BadInput):
    code = "bad_range"
    http_status = 416
    default_hint = "ask for its size first: HEAD"


class UnsupportedProtocol(BadInput):
    code = "unsupported_protocol"
    default_hint = "upgrade the older of the two nodes"


# --- Refused: the state ------------------------------------------------------------------------


class NotFound(Refused):
    code = "not_found"
    http_status = 404
    exit_code = 4


class NoHome(NotFound):
    code = "no_home"
    default_hint = "create one with: holdfast init --peer NAME"


class UnknownMesh(NotFound):
    code = "unknown_mesh"
    default_hint = "see: holdfast mesh list; create it with: holdfast mesh create NAME"


class UnknownKey(NotFound):
    code = "unknown_key"


class UnknownTask(NotFound):
    code = "unknown_task"
    default_hint = "see: holdfast task list"


class UnknownFile(NotFound):
    code = "unknown_file"
    default_hint = "see: holdfast file list"


class UnknownConsumer(NotFound):
    code = "unknown_consumer"
    default_hint = "register it with: holdfast consumer add NAME"


class UnknownConflict(NotFound):
    code = "unknown_conflict"
    default_hint = "see: holdfast conflict list"


class UnknownModel(NotFound):
    code = "unknown_model"
    default_hint = "see: holdfast vector models"


class UnknownZone(NotFound):
    code = "unknown_zone"
    default_hint = "see: holdfast peer zones; trust it with: holdfast peer trust CARD"


class UnknownLink(NotFound):
    code = "unknown_link"
    default_hint = "see: holdfast link list"


class UnknownToken(NotFound):
    code = "unknown_token"
    default_hint = "see: holdfast token list"


class NoLake(NotFound):
    code = "no_lake"
    default_hint = "make one with: holdfast pipeline run --lake FOLDER LOG..."


class UnknownObject(NotFound):
    code = "unknown_object"
    default_hint = "put the object first: PUT /v1/objects, then append what names it"


class NoRoute(NotFound):
    code = "no_route"
    default_hint = "see /openapi.json or /docs for what this node answers"


class WrongMethod(NoRoute):
    code = "wrong_method"
    http_status = 405


class UnknownMessage(NotFound):
    code = "unknown_message"
    default_hint = "see: holdfast inbox list, holdfast outbox list"


class UnknownDestination(NotFound):
    code = "unknown_destination"
    default_hint = "declare the topic or queue first; a dm needs the key of a member"


class Conflict(Refused):
    code = "conflict"
    http_status = 409
    exit_code = 5


class IdReused(Conflict):
    code = "id_reused"
    default_hint = "the id belongs to another request; mint a new one for this request"


class IdempotencyKeyReused(Conflict):
    """The broker knows this message id with another request."""

    code = "idempotency_key_reused"
    default_hint = "send it under a new id: holdfast outbox requeue --new-id ID"


class EpochMismatch(Conflict):
    code = "epoch_mismatch"
    default_hint = "take up the broker's current epoch, then retry"


class LeaseEnded(Conflict):
    """What was taken from a queue is not in these hands any more."""

    code = "lease_ended"
    default_hint = "it was kept too long and went to another; what was done must bear repetition"


class NotShared(Conflict):
    code = "not_shared"
    default_hint = "share the mesh first: holdfast mesh publish MESH --broker URL"


class TaskTaken(Conflict):
    code = "task_taken"


class TaskEnded(Conflict):
    code = "task_ended"


class LogForked(Conflict):
    """Two logs go by one name: what the lake has read is not what this one holds."""

    code = "log_forked"


class AlreadyExists(Conflict):
    code = "already_exists"


class AlreadyResolved(Conflict):
    code = "already_resolved"


class NotAllowed(Refused):
    code = "not_allowed"
    http_status = 403
    exit_code = 7


class NotOurs(NotAllowed):
    code = "not_ours"


class NotGranted(NotAllowed):
    code = "not_granted"
    default_hint = "ask the owner of that node: holdfast peer trust CARD --reads MESH"


class ForgedOrigin(NotAllowed):
    code = "forged_origin"
    default_hint = (
        "if the source may relay this origin, say so: holdfast link add … --carries ORIGIN"
    )


class NotAMember(NotAllowed):
    code = "not_a_member"
    default_hint = "ask for an invite, then: holdfast mesh join INVITE"


class InviteEnded(NotAllowed):
    code = "invite_ended"
    default_hint = "ask for a new one: holdfast mesh invite MESH"


class NotTrusted(Refused):
    code = "not_trusted"
    exit_code = 7
    http_status = 401


class BadToken(NotTrusted):
    code = "bad_token"
    default_hint = "send it as: Authorization: Bearer TOKEN; make one with: holdfast token add NAME"


class KeyExpired(NotTrusted):
    code = "key_expired"
    default_hint = "renew it: holdfast token add NAME, or holdfast peer trust CARD"


class ZoneNotTrusted(NotTrusted):
    code = "zone_not_trusted"
    default_hint = "on that node run: holdfast peer trust CARD, with the card of this one"


class TooMany(Refused):
    code = "too_many"
    http_status = 429
    default_hint = "wait a moment, then ask again"


class TooSlow(Refused):
    code = "too_slow"
    http_status = 408
    default_hint = "send the request in one go"


class Unreachable(Refused):
    code = "unreachable"
    http_status = 502
    default_hint = "check the address and the network; it is tried again"


class BadAnswer(Refused):
    code = "bad_answer"
    http_status = 502
    default_hint = "check that the address leads to a Holdfast node"


class EpochChanged(Refused):
    """The epoch that the log counts in now is in `epoch`."""

    code = "epoch_changed"
    http_status = 409

    def __init__(self, message: str, *, epoch: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.epoch = epoch


class NoDaemon(Refused):
    code = "no_daemon"
    exit_code = 3
    http_status = 503
    default_hint = "start it with: holdfast up"


class NoSpark(Refused):
    code = "no_spark"
    default_hint = "pip install 'holdfast[spark]'"


class NoJava(Refused):
    code = "no_java"


class NoPostgres(Refused):
    code = "no_postgres"
    default_hint = "pip install 'holdfast[postgres]'"


class LakeBusy(Refused):
    code = "lake_busy"
    http_status = 503
    default_hint = "wait for the other job, or end it: nothing is lost, a rerun goes on"


class LakeMoved(Refused):
    code = "lake_moved"
    http_status = 409
    default_hint = "run it again: it goes on from what is there now"


class JobFailed(Refused):
    code = "job_failed"
    default_hint = "put the cause right and run it again: it goes on where it stopped"


class Truncated(Refused):
    """The first offset that is still there is in `first_available`."""

    code = "truncated"
    http_status = 410

    def __init__(self, message: str, *, first_available: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.first_available = first_available


class PastEnd(Refused):
    code = "past_end"
    http_status = 409
    exit_code = 2


class TooOld(Refused):
    code = "too_old"
    http_status = 409
    default_hint = "start the sender from a snapshot or backup, then write the change again there"


class NewerSchema(Refused):
    code = "newer_schema"
    http_status = 500
    default_hint = "upgrade Holdfast on this machine; the database was left untouched"


class DiskFull(Refused):
    code = "disk_full"
    http_status = 507
    default_hint = "free some space and retry; reads still work and nothing was half-written"


class StoreBusy(Refused):
    code = "store_busy"
    http_status = 503
    default_hint = "wait for the other process or end it, then retry"


class BlobElsewhere(Refused):
    code = "blob_elsewhere"
    http_status = 404
    exit_code = 4
    default_hint = "the content is still on the machine that shared it; sync with it and retry"


class FeatureUnavailable(Refused):
    code = "feature_unavailable"
    default_hint = "use a broker of the same or a newer version"


class FeatureParamInvalid(Refused):
    code = "feature_param_invalid"
    default_hint = "mend the settings of the broker, or use one of the same version"


class FeatureParamBelowFloor(Refused):
    code = "feature_param_below_floor"
    default_hint = "raise dedupe_retention_days on the broker to 3 or more, then start again"


class OutboxAgeAboveWindow(Refused):
    code = "outbox_max_age_above_dedupe_window"
    default_hint = "lower the outbox age below the broker's dedupe window, or leave it out"


class StoreClosed(Refused):
    code = "store_closed"
    http_status = 503
    default_hint = "open the home again"


# --- Unknown -----------------------------------------------------------------------------------


class OutcomeUnknown(Unknown):
    code = "outcome_unknown"
    default_hint = "reopen the home and retry with the same id: it is applied once at most"


# --- Broken ------------------------------------------------------------------------------------


class StoreFailed(Broken):
    code = "store_failed"
    default_hint = "check the disk, then reopen the home; run: holdfast doctor"


class StoreCorrupt(Broken):
    code = "store_corrupt"
    default_hint = "run: holdfast doctor --repair (the damaged file is kept)"


class MigrationFailed(Broken):
    code = "migration_failed"
    default_hint = (
        "fix what the message names and start again; it goes on from the last good version"
    )


class BlobMissing(Broken):
    code = "blob_missing"
    default_hint = "share the file again, or restore it from a backup; run: holdfast doctor"


class BlobCorrupt(Broken):
    code = "blob_corrupt"
    default_hint = "share the file again, or restore it from a backup; run: holdfast doctor"
