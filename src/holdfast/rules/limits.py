"""Every limit and default, by name, in one place.

Units stand last in the name. A limit is what is refused beyond; a default is what holds unless told
otherwise.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECOND_MS: Final = 1000
HOUR_MS: Final = 3600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

# Names and values
PEER_ID_BYTES_MAX: Final = 128
MESH_SLUG_CHARS_MAX: Final = 64
KEY_BYTES_MAX: Final = 1 * KIB
VALUE_BYTES_MAX: Final = 1 * MIB
VALUE_DEPTH_MAX: Final = 64
TAGS_MAX: Final = 64
TAG_BYTES_MAX: Final = 128
META_BYTES_MAX: Final = 64 * KIB
META_DEPTH_MAX: Final = 64
TITLE_BYTES_MAX: Final = 1 * KIB
DESCRIPTION_BYTES_MAX: Final = 64 * KIB
SUBJECT_BYTES_MAX: Final = 1 * KIB
PREDICATE_BYTES_MAX: Final = 256
CONSUMER_NAME_BYTES_MAX: Final = 128
ENVELOPE_BYTES_MAX: Final = 2 * MIB

# Clock
LAMPORT_MAX: Final = 2**63 - 1
LAMPORT_LEAP_MAX: Final = 2**48
"""A stamp further ahead of ours than this is refused: no peer may wear out the clock."""

# Files and blobs
PATH_CHARS_MAX: Final = 1024
INLINE_BYTES_MAX: Final = 64 * KIB
"""Content of this size and more becomes a blob; below it stays in its row."""
FILE_BYTES_MAX: Final = 4 * 1024 * MIB
BLOB_CHUNK_BYTES: Final = 1 * MIB
BLOB_ORPHAN_AGE_MS: Final = 1 * HOUR_MS
"""A blob file that no row names is left alone for so long: its transaction may be on the way."""

BLOB_RELEASE_AGE_MS: Final = 1 * DAY_MS
"""A blob that nothing names any more stays for so long: a peer's newer version may still be on its
way, and until then this is the last that is known."""

# Vectors
VECTOR_DIM_MAX: Final = 8192
VECTOR_CONTENT_BYTES_MAX: Final = 256 * KIB
SEARCH_LIMIT_MAX: Final = 1000
VECTOR_MODEL_UNREAD_DAYS: Final = 30
VECTOR_MODEL_NAME_BYTES_MAX: Final = 256
VECTOR_NORM_MAX: Final = 1e18
"""The square of any distance between vectors that are no longer than this fits float32."""
VECTOR_SKETCH_FLOATS: Final = 384 * KIB
"""A mesh's vectors of a model get sign sketches once they hold so many numbers. Making them takes
some 30 ms of the transaction in which that happens."""
VECTOR_SKETCH_DIM_MIN: Final = 192
"""Of shorter vectors a sketch costs more to look at than it saves."""
VECTOR_PREFILTER_FLOATS: Final = 8 * 384 * KIB
"""Vectors with fewer numbers than this are all measured in each search, in 7 ms or less."""
VECTOR_PREFILTER_LIMIT: Final = 32
"""A search for more results than this measures every vector."""

# Writer
GROUP_OPS_MAX: Final = 1024
GROUP_MS_MAX: Final = 50
"""No new member joins a group after so long, so that a transaction stays well below 100 ms."""
CHUNK_ROWS: Final = 200
"""Rows per transaction of long work: backfill, import, sweeps, re-embedding."""
INTAKE_BATCH_BYTES: Final = 1 * MIB
"""Envelopes that arrive are written together up to about this size."""
QUEUE_OPS_MAX: Final = 65_536

# SQLite
BUSY_TIMEOUT_MS: Final = 5 * SECOND_MS
CACHE_KIB: Final = 8_000
MMAP_BYTES: Final = 30_000_000
WAL_BYTES_MAX: Final = 64 * MIB
WAL_CHECKPOINT_PAGES: Final = 2000
SQLITE_VERSION_MIN: Final = 3_051_003

# Log, consumers and forgetting
FETCH_ROWS_MAX: Final = 10_000
FETCH_ROWS_DEFAULT: Final = 100
FRONTIER_RANGES_MAX: Final = 4096
"""Separate ranges that a consumer may have confirmed beyond its first hole."""
LOG_TTL_MS: Final = 90 * DAY_MS
TOMBSTONE_TTL_MS: Final = 90 * DAY_MS
DEDUPE_TTL_MS: Final = 180 * DAY_MS
"""How long the id of a truncated log entry is still known."""

# Delivery (the outbox's age against the broker's dedupe window)
DEDUPE_RETENTION_DAYS_MIN: Final = 3
OUTBOX_AGE_HOURS_MIN: Final = 72
OUTBOX_AGE_HOURS_PERMANENT: Final = 168
OUTBOX_AGE_HOURS_PERMANENT_MAX: Final = 720
OUTBOX_MARGIN_HOURS_MIN: Final = 24
OUTBOX_MARGIN_PERCENT: Final = 10

# Backup, restore and repair
BACKUP_STEP_PAGES: Final = 1024
"""Pages of the database that are copied between two looks at the progress."""
BACKUP_AGE_WARN_MS: Final = 7 * DAY_MS
RESTORE_LAMPORT_SKIP: Final = 2**32
"""A clock that may have gone back skips so far ahead, past every stamp of the lost time."""
REPAIR_PROBES_MAX: Final = 20_000
"""Looks into the damaged parts of one table, each for fewer rows than the one before."""

# Export and import
EXPORT_PART_BYTES: Final = 768 * KIB
"""Content of a blob in one line: 1 MiB as base64."""
EXPORT_LINE_BYTES_MAX: Final = 64 * MIB
IMPORT_BAD_LINES_MAX: Final = 1000

# Doctor
DISK_FREE_WARN_BYTES: Final = 1024 * MIB
DISK_FREE_MIN_BYTES: Final = 64 * MIB
CONSUMER_LAG_WARN: Final = 100_000
DOCTOR_SAMPLE_ROWS: Final = 200
"""Rows of each family that are compared with the log, unless all are asked for."""
DOCTOR_REPLAY_ROWS: Final = 100_000
"""Log entries that are folded in memory at a time when all are compared."""

# Shutdown
SHUTDOWN_MS_MAX: Final = 10 * SECOND_MS
SHUTDOWN_SWEEP_MS_MAX: Final = 2 * SECOND_MS
ABORT_MS_MAX: Final = 1 * SECOND_MS
"""How long an abort waits for the group that is being committed."""

# Local metrics
METRICS_BYTES_MAX: Final = 4 * MIB
PEER_STALE_MS: Final = 300 * SECOND_MS
