"""The columns of the lake, declared once: what the source gives, and what every table holds.

Ids are UUID text in lower case: it sorts as the bytes do, people can read it, and file statistics
prune by it. Times are timestamps with the milliseconds that a node keeps. Values that callers wrote
as JSON are kept as the JSON text that they were encoded to once.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COMMENT: Final = "comment"
"""The key of a comment in the metadata of a column, for Spark and for Delta."""
_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "array<string>": ArrayType(StringType()),
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}


def described(text: str) -> StructType:
    """Columns of a table that is stored, one on a line, each with its comment: `log string: whose
    log it is`. A table keeps these comments, so that every tool can show them.
    """
    fields = []
    for line in cleandoc(text).splitlines():
        column, _, comment = line.partition(": ")
        name, kind = column.split()
        fields.append(StructField(name, _TYPES[kind], metadata={COMMENT: comment}))
    return StructType(fields)


def columns(text: str) -> StructType:
    """Columns of a frame that is not stored, as SQL writes them: `log string, epoch bigint`.
    Spark's own parser for this needs a running session.
    """
    pairs = (column.split() for column in text.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


def joined(*parts: StructType) -> StructType:
    """The columns of all parts, in their order."""
    return StructType([field for part in parts for field in part.fields])


def without(schema: StructType, *names: str) -> StructType:
    """The columns of a schema except these."""
    return StructType([field for field in schema.fields if field.name not in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """A Spark schema as an Arrow schema without comments, with times in UTC as Delta keeps them."""
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([field.remove_metadata() for field in arrow])


def commented(schema: StructType) -> pa.Schema:
    """The same with the comment of each column, as Delta keeps it."""
    fields = zip(arrow_schema(schema), comments(schema).values(), strict=True)
    return pa.schema([field.with_metadata({COMMENT: comment}) for field, comment in fields])


def comments(schema: StructType) -> dict[str, str]:
    """By column: its comment; empty if it has none."""
    return {field.name: (field.metadata or {}).get(COMMENT, "") for field in schema.fields}


PLACE: Final = described(
    """
    log string: the log that the row was read from: the name of a node, or BROKER/MESH
    epoch bigint: the epoch of that log; a log that was restored counts in a new one
    offset bigint: the place in that epoch of the log
    """
)
"""Where an envelope was read: whose log, in which epoch of that log, at which offset."""

_ID: Final = described("id string: the id of the envelope, given once by its writer")
_MESH: Final = described("mesh string: the mesh that the change belongs to")
_OWNER: Final = described("owner string: the peer whose it is; only that peer writes it")
_RAW: Final = described("raw binary: the bytes as the log gave them")
_RECORDED: Final = described(
    "recorded_at timestamp: when the node of the log recorded it, by the clock of that node"
)
_BATCH: Final = described("batch bigint: the version of bronze that the row came in with")
_META: Final = described("meta string: what the writer noted beside it: a JSON object, or empty")

LOG: Final = joined(
    PLACE,
    _ID,
    _MESH,
    described(
        """
        op string: what the change does, as FAMILY.VERB
        entity string: what it is about: a key, path, task, subject or receiver
        origin string: the peer that wrote it
        lamport bigint: the logical time of the write; the first part of the order of versions
        """
    ),
    _RECORDED,
    _RAW,
)
"""What the source gives: the log as it is."""

HEADER: Final = joined(
    described(
        """
        owner string: the origin for memory, files and vectors; empty for all others
        origin_epoch bigint: the epoch in which the origin counted it
        seq bigint: its number among what the origin wrote in that epoch and mesh, without gaps
        created_at timestamp: when it was written, by the clock of the origin
        write_class string: append-only, queued or strong
        state string: how far a strong write had got; committed for all others
        base_lamport bigint: the logical time of the version that it replaced at its origin, if any
        base_peer string: the writer of the version that it replaced at its origin, if any
        fingerprint binary: the hash of what was asked for under this id
        """
    ),
    _META,
    described("model string: the id of the model of a vector; empty for all others"),
)
"""What only the envelope's bytes say. `model` is empty except for vectors."""

ENVELOPE: Final = joined(
    LOG, HEADER, described("problem string: why the bytes could not be read; null if they could")
)
"""What the source gives with `columns=envelope`. `problem` says why the bytes could not be read."""

BRONZE: Final = joined(
    LOG,
    HEADER,
    described("family string: the part of op before the dot"),
    _BATCH,
    described("day date: the UTC day of the time inside id; the partition"),
)
"""Every envelope once, with the place where it was first seen."""

SIGHTINGS: Final = joined(PLACE, _ID, _RECORDED, _BATCH)
"""Where envelopes that bronze has were seen again."""

QUARANTINE: Final = joined(
    PLACE,
    _ID,
    described(
        """
        reason string: the code of the error
        detail string: what is wrong with it, in a sentence
        """
    ),
    _RAW,
    _RECORDED,
    _BATCH,
)
"""What could not be read or may not be folded, with the reason and the bytes."""

COMMITS: Final = joined(
    described(
        """
        log string: the log beside which the record was read: the name of a node
        epoch bigint: the epoch of that log
        """
    ),
    _MESH,
    described(
        """
        number bigint: the number of the commit: it counts the commits of a mesh without gaps
        id string: the id of the envelope that was committed
        incarnation bigint: which group of voters committed it; it grows by recovery
        lease_epoch bigint: the lease epoch (term) in which it was committed
        coordinator string: the peer that coordinated it
        sequence bigint: its place in the coordinator's order
        committed_at timestamp: when it was committed, by the clock of the coordinator
        outcome string: what it came to: applied, superseded and so on; null if it was refused
        reason string: the code of the refusal, if there is one
        record binary: the record as nodes keep it
        first boolean: whether this row has the bytes: of each commit, one row has them
        raw binary: the bytes of the envelope; null where another row has them, or nobody has
        batch bigint: the batch that the row came in with; bronze and this table count in one row
        """
    ),
)
"""What quorums have committed, as each log has it: a row for each commit and log. The bytes of the
envelope stand beside one of them, so that what was committed can be folded from this table alone.
"""

READS: Final = described(
    """
    log string: the log that was read
    epoch bigint: the epoch of that log
    first bigint: the first offset that the batch was to read of it
    last bigint: the last one; the row with the greatest says how far the log was read
    rows bigint: how many entries the log gave between these two; the log of a broker has holes
    new bigint: how many of them went to bronze
    again bigint: how many of them went to sightings
    quarantined bigint: how many of them went to quarantine and not to bronze
    noted bigint: all rows that went to quarantine: those, unknown ops that bronze has too, and gaps
    last_id string: the id of the entry at the last offset, if it is known
    batch bigint: the batch that the rows in the other tables have
    read_at timestamp: when it was committed, by the clock of the job
    """
)
"""What was read of each log: a row for each stretch of a committed batch."""

GAP: Final = "gap"
"""The reason in quarantine for offsets that no log has any more, and that were never read."""
LOST: Final = "lost"
"""The reason in quarantine for offsets that were read, that the lake has lost, and that no log has
any more.
"""
UNKNOWN_OP: Final = "unknown_op"
"""The reason in quarantine for an entry that bronze has too: its op is not known yet."""

_VERSION: Final = joined(
    described(
        """
        lamport bigint: the logical time of the version; the greatest (lamport, peer, id) wins
        peer string: the peer that wrote the version
        """
    ),
    _ID,
)
_UPDATED: Final = described(
    "updated_at timestamp: when the version was written, by the clock of its writer"
)
_CREATED: Final = described("created_at timestamp: when it was written, by the clock of its writer")
_CHANGED: Final = joined(
    _VERSION, _UPDATED, described("tombstone boolean: whether this version deletes the key")
)
_FENCE: Final = described(
    """
    number bigint: the number of the commit that made it
    incarnation bigint: which group of voters committed it; it grows by recovery
    lease_epoch bigint: the lease epoch (term) in which it was committed
    coordinator string: the peer that coordinated it
    sequence bigint: its place in the coordinator's order
    committed_at timestamp: when it was committed, by the clock of the coordinator
    """
)
_ENTITY: Final = described(
    """
    type string: the type: mission, feature, project_settings and so on
    entity string: the id of the entity among those of its type
    revision bigint: how often it was changed; a deletion counts too
    """
)
_FIRST: Final = described(
    "created_at timestamp: when the first version was written; null if this one is the first"
)
_KEY: Final = described("key string: the key")
_VALUE: Final = described(
    "value string: the value as JSON text, which is null if the key was deleted"
)

SILVER: Final[dict[str, StructType]] = {
    "state": joined(_MESH, _KEY, _VALUE, _CHANGED),
    "memory": joined(
        _MESH, _OWNER, _KEY, _VALUE, described("tags array<string>: its tags"), _CHANGED, _FIRST
    ),
    "files": joined(
        _MESH,
        _OWNER,
        described(
            """
            path string: the path under which the file is shared
            sha256 string: the hash of the content, in hex; empty if the file was deleted
            size bigint: the bytes of the content
            content binary: the content if it is small; null if it stays on the nodes as a blob
            """
        ),
        _CHANGED,
        _FIRST,
    ),
    "vectors": joined(
        _MESH,
        _OWNER,
        _KEY,
        described(
            """
            model string: the model that made the vector: `models.id`
            content string: the text that was embedded
            metadata string: what the writer stored beside it, as JSON text
            embedding binary: the vector: 32-bit floats, lowest byte first; or bytes, or bits
            """
        ),
        _CHANGED,
        described("live boolean: whether it is the newest version of its key and not deleted"),
    ),
    "models": described(
        """
        id string: the id of the model, computed from the other columns
        provider string: who made the model
        name string: its name
        version string: its version
        dim int: how many numbers a vector has
        quantization string: how the numbers are stored
        """
    ),
    "tasks": joined(
        _MESH,
        described(
            """
            task string: the id of the task
            known boolean: whether its creation has arrived; without it only its turns are known
            title string: what is to be done
            description string: more about it
            created_by string: the peer that created it
            created_at timestamp: when it was created, by the clock of its creator
            status string: open, claimed, completed or cancelled
            generation bigint: which claiming of the task this is; a release begins the next
            holder_lamport bigint: the logical time of the claim that holds it, or held at its end
            holder_peer string: the peer of that claim
            holder_id string: the envelope of that claim
            claimed_at timestamp: when that claim was written, by the clock of its writer
            ended_lamport bigint: the logical time of its end
            ended_peer string: the peer that ended it
            ended_id string: the envelope that ended it
            ended_at timestamp: when it ended, by the clock of that peer
            """
        ),
        _VERSION,
        _UPDATED,
        described("number bigint: the commit of its last turn; null if no quorum decided it"),
    ),
    "task_events": joined(
        _MESH,
        described("task string: the id of the task"),
        _VERSION,
        described(
            """
            kind string: what was asked for: create, claim, release, complete or cancel
            generation bigint: the generation of the task that it was meant for
            event string: what came of it: claimed, superseded, ignored and so on
            event_time timestamp: when it was written, by the clock of its writer
            against_lamport bigint: the logical time of the turn that it lost against, if it lost
            against_peer string: the peer of that turn
            against_id string: the envelope of that turn
            title string: of a creation: what is to be done
            description string: of a creation: more about it
            number bigint: the commit by which a quorum decided it; null if stamps decide
            """
        ),
    ),
    "entities": joined(
        _MESH,
        _ENTITY,
        described(
            """
            fields string: its fields as JSON text; null if a commit that made it was not read
            parent string: the id of the entity above it; empty if it has none
            whole boolean: whether the last change replaced or deleted it as a whole
            """
        ),
        _CHANGED,
        _FENCE,
    ),
    "entity_revisions": joined(
        _MESH,
        _ENTITY,
        described(
            """
            kind string: what the change did: put, patch or delete
            fields string: what it set, as JSON text: all fields, or those that a patch changes
            removed array<string>: the fields that a patch took away
            """
        ),
        _VERSION,
        _UPDATED,
        _FENCE,
    ),
    "facts": joined(
        _MESH,
        described(
            """
            subject string: what the fact is about
            predicate string: what is said of it
            object string: the value, as JSON text
            objects array<string>: the hashes of blobs that belong to it, in hex
            """
        ),
        _META,
        _VERSION,
        _CREATED,
    ),
    "audit_events": joined(
        _MESH,
        described(
            """
            stream string: the name of the audit stream
            origin_epoch bigint: the epoch of the origin's log: in each it counts its events from 1
            seq bigint: the number of the event in its chain
            event_time timestamp: when it happened, by the clock of its origin
            payload string: what happened, as JSON text
            previous string: the hash of the event before it, in hex
            hash string: its own hash, in hex
            """
        ),
        _VERSION,
        _CREATED,
    ),
    # Who has read a message, only the readers' nodes know.
    "messages": joined(
        _MESH,
        described(
            """
            kind string: the kind of receiver: topic, dm or queue
            ref string: the receiver: the name of a topic or queue, or the public key of a member
            sender string: the peer that sent it
            priority string: how urgent the sender called it
            reply_to string: the id of the message that it answers, if any
            content_type string: what the content is, as a MIME type
            content binary: what was sent
            """
        ),
        _META,
        described("lamport bigint: the logical time of the sending"),
        _ID,
        _CREATED,
    ),
}
"""The tables of a node, without the columns that are true of one node only."""

ABOUT: Final[dict[str, str]] = {
    "bronze": "Every envelope once, with its bytes, and the place where it was first seen",
    "sightings": "Where envelopes of bronze were seen again",
    "commits": "What quorums have committed, in their order, as each log has it",
    "reads": "What was read of each log, and how far; one row for each stretch of a batch",
    "quarantine": "What could not be read or may not count, with the reason and the bytes",
    "state": "Shared values: the winning version of every key",
    "memory": "Memories: the winning version of every key of every owner",
    "files": "Shared files: the winning version of every path of every owner",
    "vectors": "Vectors: every version of every key, owner and model",
    "models": "The models that made the vectors",
    "tasks": "Tasks: what all their turns together make",
    "task_events": "The turns of all tasks, each with what came of it",
    "entities": "Entities: what the last commit that changed each of them has left",
    "entity_revisions": "The revisions of all entities, each with the change that made it",
    "facts": "Facts: every one once",
    "audit_events": "Events of audit streams: every one once",
    "messages": "Messages: every one once",
}
"""By table: what one row of it is."""

SILVER_STORED: Final[dict[str, StructType]] = {
    name: joined(table, described("bucket int: the bucket of the key, by its hash"))
    for name, table in SILVER.items()
}
"""Silver as its files hold it: with the bucket of the key, by which files are sorted and compacted.
"""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "state": ("mesh", "key"),
    "memory": ("mesh", "owner", "key"),
    "files": ("mesh", "owner", "path"),
    "vectors": ("mesh", "owner", "key", "model"),
    "models": ("id",),
    "tasks": ("mesh", "task"),
    "task_events": ("mesh", "task"),
    "entities": ("mesh", "type", "entity"),
    "entity_revisions": ("mesh", "type", "entity"),
    "facts": ("id",),
    "audit_events": ("id",),
    "messages": ("id",),
}
"""By silver table: the columns that say which thing a row is about."""

FAMILY_OF: Final[dict[str, str]] = {
    "state": "state",
    "memory": "memory",
    "files": "file",
    "vectors": "vector",
    "models": "vector",
    "tasks": "task",
    "task_events": "task",
    "entities": "entity",
    "entity_revisions": "entity",
    "facts": "fact",
    "audit_events": "audit",
    "messages": "message",
}
"""By silver table: the family of envelopes that it is made of."""

MADE_OF: Final[dict[str, str]] = {"tasks": "task_events", "entities": "entity_revisions"}
"""By silver table that has one row for a thing: the table of the turns that make it."""
MAKES: Final[dict[str, str]] = {turns: things for things, turns in MADE_OF.items()}
COMMITTED: Final = frozenset(MAKES)
"""The tables of turns: those of strong envelopes come from `commits`, in the order of a quorum."""
