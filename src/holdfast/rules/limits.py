"""Every limit and default, by name, in one place.

Units stand last in the name. A limit is what is refused beyond; a default is what holds unless told
otherwise.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
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
FACT_OBJECTS_MAX: Final = 64
"""Objects that one fact may name."""
CONSUMER_NAME_BYTES_MAX: Final = 512
"""Room for the longest name of a zone and of its link."""
MESSAGE_BYTES_MAX: Final = 1 * MIB
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
CONSUMERS_OF_CALLER_MAX: Final = 64
"""Consumers that one zone, or the bearer of one token, may have."""
SEEN_MS: Final = 60 * SECOND_MS
"""A reader that goes on without anything to confirm is noted as seen this often."""
LOG_TTL_MS: Final = 90 * DAY_MS
TOMBSTONE_TTL_MS: Final = 90 * DAY_MS
DEDUPE_TTL_MS: Final = 180 * DAY_MS
"""How long the id of a truncated log entry is still known."""

# Serving
BODY_BYTES_MAX: Final = 8 * MIB
"""Of one request. Objects are not bound by it: they are streamed."""
APPEND_FACTS_MAX: Final = 10_000
"""Facts in one request."""
ASKED_BYTES_MAX: Final = 1 * MIB
"""Of a request that only asks or confirms: more than any such request needs."""
HELLO_BYTES_MAX: Final = 4 * KIB
"""Of a request that anybody may make."""
CALLS_IN_FLIGHT_MAX: Final = 512
CALLS_OF_ANYBODY_MAX: Final = 64
"""Of them, those that need no key and no token."""
OWN_SHARE: Final = 4
"""One part in so many of everything that is bounded is kept for this machine's own user."""
LONG_POLLS_MAX: Final = 1024
EVENT_STREAMS_MAX: Final = 64
NEWS_KEPT_MAX: Final = 256
HEARTBEAT_MS: Final = 15 * SECOND_MS
"""A stream on which nothing happens says so this often: those between would close it."""
REQUEST_MS_MAX: Final = 30 * SECOND_MS
"""A request whose body has not arrived in so long is given up."""
HEAD_BYTES_MAX: Final = 64 * KIB
"""Of the first line and the headers of a request."""
HEAD_MS_MAX: Final = 10 * SECOND_MS
KEEP_ALIVE_MS: Final = 75 * SECOND_MS
CONNECTIONS_MAX: Final = 4096
LINGER_MS_MAX: Final = 1 * SECOND_MS
"""So long is read on and thrown away after a refusal, for the refusal to reach who still sends."""
LINGER_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
"""And so much: well above the largest body, or whoever sends one that is just too large is cut off
a few bytes before its end."""
SERVER_THREADS: Final = 16
LONG_POLL_MS_MAX: Final = 60 * SECOND_MS
LONG_POLL_MS_DEFAULT: Final = 25 * SECOND_MS
PASSED_OVER_MS_MAX: Final = 1 * SECOND_MS
"""A reader is told after so long that entries were passed over that are not for it."""
FETCH_BYTES_MAX: Final = 4 * MIB
"""A fetch ends after about so much, whatever its limit is; one entry always fits."""
RANGE_BATCH_ROWS: Final = 8192
RANGE_BATCH_BYTES: Final = 4 * MIB
SCAN_ROWS_MAX: Final = 100_000
"""A filtered read looks at so many entries at most, and then says how far it got."""
COMPRESS_BYTES_MIN: Final = 4 * KIB
SESSION_MS: Final = 1 * HOUR_MS
SESSIONS_OF_ZONE_MAX: Final = 16
"""One more ends the oldest: a zone that keeps saying hello only troubles itself."""
SESSIONS_MAX: Final = 65_536
"""Of all together: at a broker anybody with a key gets one."""
HELLO_MS_MAX: Final = 30 * SECOND_MS
HELLOS_OPEN_MAX: Final = 1024
TOKEN_BYTES: Final = 32
KEYS_OF_ZONE_MAX: Final = 8
WATCH_MS: Final = 1 * SECOND_MS
"""How often the daemon looks for what other processes wrote, should their nudge have got lost."""
UPKEEP_MS: Final = 1 * HOUR_MS
"""How often the daemon sweeps."""

# Links
LINKS_MAX: Final = 64
LINK_NAME_CHARS_MAX: Final = 64
LINK_URL_BYTES_MAX: Final = 1 * KIB
LINK_BATCH_ROWS: Final = 2000
LINK_BATCH_BYTES: Final = 2 * MIB
COMPRESS_JUDGED_BYTES: Final = 256 * KIB
COMPRESS_BYTES_PER_S: Final = 8 * MIB
"""A link asks for compressed batches once one of that size came more slowly than this. Packing
costs the source about 20 ms for each megabyte."""
LINK_CONNECT_MS_MAX: Final = 5 * SECOND_MS
LINK_READ_MS_MAX: Final = 15 * SECOND_MS
"""On top of what a long poll may take."""
LINK_CONFIRM_MS: Final = 50
"""So long a link waits for the next batch, to confirm by the fetch that follows it, before it
spends a call on a confirmation."""
LINE_BYTES_PER_S_MIN: Final = 16 * KIB
"""A peer that keeps this pace is never cut off for being slow; one that drips is."""
BACKOFF_MS_MIN: Final = 200
BACKOFF_MS_MAX: Final = 30 * SECOND_MS
REFUSALS_BRIEF_MAX: Final = 3
"""So many refusals in a row may be accidents: a garbled line, a restart in the middle of a hello.
After that the longest wait is kept."""
REASON_CHARS_MAX: Final = 1000
"""Of the reason that is kept with a refused entry: it may quote what was wrong."""
QUARANTINE_ROWS_MAX: Final = 10_000
"""Refused entries that one link may set aside before it stops."""
OBJECT_RANGE_BYTES: Final = 4 * MIB
"""An object is pulled in pieces of this size, so that a cut costs one piece."""

# Sync with a broker
SYNC_IDLE_MS: Final = 30 * SECOND_MS
"""After so long without a word, and with nothing to send, a connection is called idle."""
SYNC_PUSH_ITEMS: Final = 1024
"""Envelopes in one frame that is pushed."""
SYNC_PUSH_BYTES: Final = 1 * MIB
"""And so much of them; one always fits."""
SYNC_WINDOW_ITEMS: Final = 4 * SYNC_PUSH_ITEMS
"""Envelopes of a mesh that may be on their way before the first of them is answered."""
SYNC_LOOK_MS: Final = 5 * SECOND_MS
"""A sender that nobody wakes looks by itself this often."""
SYNC_ANSWER_MS_MAX: Final = 30 * SECOND_MS
"""A broker that has not answered a push in so long is taken for lost."""
SYNC_CLOSE_MS_MAX: Final = 1 * SECOND_MS
"""At the end, answers that are on their way are waited for so long."""
SYNC_GAPS_MAX: Final = 64
"""So many pages behind a gap are passed over, while what is missing was asked for; then the
connection is made anew."""
SYNC_PING_MS: Final = 15 * SECOND_MS
SYNC_MESHES_MS: Final = 100
"""However much is written, it is looked no more often which meshes are shared."""
SYNC_THREADS: Final = 4
SYNC_SILENT_WARN_MS: Final = 1 * DAY_MS
"""What waits for a broker for longer is mentioned by the doctor."""

# Disk pressure
DISK_HIGH_PERCENT: Final = 80
DISK_FULL_PERCENT: Final = 95
DISK_LOOK_MS: Final = 5 * SECOND_MS
DISK_SLACK_PERCENT: Final = 2
"""A level is left so far below where it was entered, so that it does not flutter."""
DISK_SLACK_BYTES: Final = 16 * MIB
"""The same, for the room that has to be left."""
BALLAST_BYTES: Final = 16 * MIB
BALLAST_ROOM_FACTOR: Final = 4
"""It is laid only where so many times its size is free: it must not be what fills the disk."""
UPKEEP_PRESSED_MS: Final = 60 * SECOND_MS
"""How often the daemon sweeps while the disk is filling up."""

# Delivery (the outbox's age against the broker's dedupe window)
DEDUPE_RETENTION_DAYS_MIN: Final = 3
OUTBOX_AGE_HOURS_MIN: Final = 72
OUTBOX_AGE_HOURS_PERMANENT: Final = 168
OUTBOX_AGE_HOURS_PERMANENT_MAX: Final = 720
OUTBOX_MARGIN_HOURS_MIN: Final = 24
OUTBOX_MARGIN_PERCENT: Final = 10
OUTBOX_ATTEMPTS_MAX: Final = 10
"""After so many refusals that might have passed, an item is dead."""
OUTBOX_DONE_MS: Final = 1 * DAY_MS
"""What the broker has, or what was given up, is listed for so long."""
OUTBOX_PAGE_ROWS: Final = 500
INBOX_UNREAD_MS: Final = 90 * DAY_MS
"""An unread message keeps its place in the log for so long, however short the log is kept."""
INBOX_PAGE_ROWS: Final = 500
HOOK_MS_MAX: Final = 30 * SECOND_MS
"""A hook that takes longer is ended."""
HOOK_ROWS: Final = 64
"""Messages that a hook is told of before others get in."""

# The broker
DEDUPE_RETENTION_DAYS_MAX: Final = 36_500
DEDUPE_RETENTION_DAYS_DEFAULT: Final = 30
BROKER_KEEP_DAYS: Final = 30
"""How long a broker keeps messages, and changes that a snapshot covers."""
ACCEPT_GROUP_MAX: Final = 1024
ACCEPT_GROUP_BYTES: Final = 4 * MIB
"""Envelopes that are accepted in one transaction; one always fits."""
ACCEPT_WAITING_MAX: Final = 100_000
ACCEPT_WAITING_BYTES: Final = 256 * MIB
"""What may wait for that, of all members together; more is refused with 429."""
ACCEPT_RATE_PER_S: Final = 200_000
"""New envelopes that one member may hand in each second, on average; twice that in a burst."""
BROKER_CONNECTIONS_MAX: Final = 16_384
BROKER_CALLS_MAX: Final = 4096
"""Calls over HTTP under way: most of them wait for the disk, together."""
PUSH_ITEMS_MAX: Final = 10_000
"""Envelopes in one frame."""
FRAME_BYTES_MAX: Final = 8 * MIB
UNPROVED_BYTES_MAX: Final = 64 * KIB
"""What a broker takes from a connection on which nobody has proved who it is."""
CONNECTION_ITEMS_MAX: Final = 4096
CONNECTION_BYTES_MAX: Final = 8 * MIB
"""What one connection may have handed in and not got an answer for; then nothing more is read."""
CONNECTION_UNREAD_BYTES: Final = 1 * MIB
"""What may wait to be taken by the other side before no more is made for it."""
FEED_FRAMES_MAX: Final = 4
"""Frames of one mesh that a member has been sent and not confirmed."""
FEED_ROWS: Final = 1000
FEED_BYTES: Final = 1 * MIB
FOLLOWS_MAX: Final = 1024
"""Meshes and queues that one connection may follow and take from."""
TAKE_MAX: Final = 1000
"""Messages of a queue in the hands of one taker."""
TAKE_BYTES: Final = 4 * MIB
"""Of messages that are taken at a time; one always fits."""
SEQ_MAX: Final = 2**40 - 1
"""Of a mesh at a broker."""
SOCKET_PING_MS: Final = 20 * SECOND_MS
SOCKET_SILENT_MS: Final = 60 * SECOND_MS
"""A connection is cut off that was silent, or took nothing of what it was sent, for so long."""
GOT_SAVED_MS: Final = 30 * SECOND_MS
"""How often it is written down up to where a member has what it was sent."""
FEED_LOOK_MS: Final = 30 * SECOND_MS
"""How often every feed is looked at, should the news have got lost."""
FEED_CATCH_UP_MS: Final = 5 * SECOND_MS
"""How often a member is told how far the mesh is, if nothing there was for it."""
EPOCH_BY_WORD_MS: Final = 60 * SECOND_MS
"""A member that has seen more than the broker has is believed this often, for each mesh."""
INVITE_HOURS: Final = 72
INVITE_HOURS_MAX: Final = 24 * 365
INVITE_USES_MAX: Final = 10_000
BROKER_PART_BYTES_MAX: Final = 8 * MIB
"""Of one part of a snapshot on its way to a broker."""
SWEEP_EVERY_MS: Final = 1 * HOUR_MS
CLOCK_LEAP_MS: Final = 4 * HOUR_MS
"""A broker's clock that goes ahead by more at once is not believed, and nothing is swept by it."""
CLOCK_STEADY_MS: Final = 24 * HOUR_MS
"""Until it has kept pace for so long."""
CLOCK_ABSENCE_MS: Final = 24 * HOUR_MS
"""Nor at the start, if it is so much ahead of when it was last believed."""
ORPHANS_EVERY_MS: Final = 24 * HOUR_MS
SWEEP_ROWS: Final = 2000
ORPHANS_SHOWN_MAX: Final = 1000
BROKER_RANGE_ROWS: Final = 2000
BROKER_RANGE_BYTES: Final = 1 * MIB
"""Of one page of a mesh's whole log: members who look for their part wait for no more than one."""
CONSUMER_KEEP_MS_MAX: Final = 30 * DAY_MS
"""So much longer than its time a broker keeps what a reader of the whole mesh has not confirmed."""

# The broker's desk on SQLite
BROKER_MARK_ROWS: Final = 10_000
"""After so many envelopes of a mesh it is noted outside the database how far the mesh is."""
BROKER_CACHE_KIB: Final = 64 * KIB
BROKER_SCAN_ROWS: Final = 20_000
"""A page of a feed looks at so many envelopes at most, and then says how far it got."""
BROKER_PIECE_BYTES: Final = 1 * MIB
"""Of an object, in one row of the desk, on whichever store."""
BROKER_UPLOAD_MS_MAX: Final = 1 * DAY_MS
"""An upload that nobody has gone on with for so long is given up."""
OBJECT_UNNAMED_MS: Final = 30 * DAY_MS
"""Content that nothing at a broker names any more is kept for so long: who is about to name it asks
for it first, and that begins the time anew."""
OBJECT_PAGE_ROWS: Final = 200
BROKER_DEDUPE_GRACE_MS: Final = 1 * DAY_MS
"""An id is remembered so much longer than is promised: the oldest outbox row may be just as old."""

# The broker's desk on PostgreSQL
POSTGRES_CONNECTIONS_MAX: Final = 8
"""Of one broker process, besides the one that listens."""
POSTGRES_CONNECT_MS_MAX: Final = 5 * SECOND_MS
"""So long is waited for a connection, a new one or one that others use."""
POSTGRES_LOCK_MS_MAX: Final = 5 * SECOND_MS
POSTGRES_STATEMENT_MS_MAX: Final = 15 * SECOND_MS
POSTGRES_ANSWER_MS_MAX: Final = 20 * SECOND_MS
"""The server gives a statement up before this; after it, the line is held to be dead."""
POSTGRES_MIGRATE_MS_MAX: Final = 600 * SECOND_MS
POSTGRES_TRIES_MAX: Final = 5
"""So often work is done that the server undid because of other work."""
POSTGRES_LOOK_MS: Final = 2 * SECOND_MS
"""How often a broker looks how far the meshes are, should a notification have got lost."""
POSTGRES_COUNT_ROWS_MAX: Final = 100_000
"""Of a larger table the metrics tell what the server believes: counting would read all of it."""

# Sharing a mesh
BACKFILL_ROWS_MAX: Final = 10_000
"""A mesh with more changes than this is brought to its broker as a snapshot."""
MESH_PART_BYTES: Final = 2 * MIB
"""Of envelopes in one part of it, before they are packed; one always fits."""
SYNC_WAIT_MS: Final = 30 * SECOND_MS
"""A command that waits for its changes to arrive gives up when nothing has moved for so long."""

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
KEY_EXPIRY_WARN_MS: Final = 14 * DAY_MS
"""So long before a key or a token ends, the doctor says so."""
LINK_SILENT_WARN_MS: Final = 1 * DAY_MS
"""A link that has brought nothing for so long since it was added is mentioned."""
DOCTOR_SAMPLE_ROWS: Final = 200
"""Rows of each family that are compared with the log, unless all are asked for."""
DOCTOR_REPLAY_ROWS: Final = 100_000
"""Log entries that are folded in memory at a time when all are compared."""

# Digests
DIGESTS_AT_ONCE_MAX: Final = 8
"""Each reads all that a node holds, so only so many are made at a time."""
DIGEST_ROWS_MAX: Final = 20_000
"""Rows of one bucket that are told apart one by one, the first by their keys."""
DIGEST_SHOWN_BYTES_MAX: Final = 4 * KIB
"""Of a longer value the length and the hash are shown in its place."""
DIGEST_ANSWER_BYTES_MAX: Final = 256 * MIB
DIGEST_MS_MAX: Final = 1800 * SECOND_MS
"""So long whoever asks waits for the digests of a large node."""
VERIFY_KEPT_ROWS_MAX: Final = 1_000_000
"""So many envelopes are kept aside between the tables that are folded of them; more are read again
for each."""

# Shutdown
SHUTDOWN_MS_MAX: Final = 10 * SECOND_MS
SHUTDOWN_DRAIN_MS_MAX: Final = 3 * SECOND_MS
"""Of it, for the answers that are on their way."""
SHUTDOWN_SWEEP_MS_MAX: Final = 2 * SECOND_MS
ABORT_MS_MAX: Final = 1 * SECOND_MS
"""How long an abort waits for the group that is being committed."""

# Local metrics
METRICS_BYTES_MAX: Final = 4 * MIB
PEER_STALE_MS: Final = 300 * SECOND_MS

# Pipeline: reading logs
SOURCE_PARTITION_ROWS: Final = 200_000
"""Entries of one log that one task of Spark reads."""
SOURCE_BATCH_ROWS: Final = 16_384
SOURCE_BATCH_BYTES: Final = 8 * MIB
"""Of the envelopes in one Arrow batch that is made here; one always fits."""
SOURCE_RETRIES: Final = 4
"""So often in a row a node that does not answer is asked again before a task fails."""
SOURCE_TIME_MS_MAX: Final = 253_402_300_800_000
"""The end of the year 9999: beyond it a time is no stamp that a clock can have given."""

# Pipeline: writing back
SINK_CHUNK_ROWS: Final = 2000
"""Rows that are sent to a node in one request."""
SINK_CHUNK_BYTES: Final = 2 * MIB
"""And so much of them; one row always fits."""

# Pipeline: filling the lake
LAKE_BATCH_ROWS: Final = 1_000_000
"""Entries of all logs together that one commit to the lake adds."""
LAKE_FILE_ROWS: Final = 20_000
"""So many or fewer become one file for each day."""
LAKE_FILE_BYTES: Final = 64 * MIB
LAKE_TRIES_MAX: Final = 5
"""So often a batch is done again because another job changed the lake first."""
LAKE_LOOK_MS: Final = 10 * SECOND_MS
"""How often a stream looks for what is new."""

# Pipeline: audits
AUDIT_SAMPLE_ROWS: Final = 20
"""Of what each audit finds, so much is shown; all of it is in the lake."""
HOT_SPOT_OVERRIDES: Final = 10
"""A key that was overridden unseen so often is worth a word."""

# Pipeline: snapshots
SNAPSHOT_PART_BYTES: Final = 64 * MIB
"""Of envelopes in one part of a snapshot, before they are packed; one envelope always fits."""

# Pipeline: folding
FOLD_BUCKETS: Final = 64
"""Parts that the keys of a silver table fall into: compaction rewrites those that were touched."""
FOLD_FILE_ROWS: Final = 500_000
"""Of a silver table, in one file."""
FOLD_TWO_SCANS_ROWS_MIN: Final = 500_000
"""From so many changes on, winners are found on narrow columns before their bytes are read."""
FOLD_KEYS_AT_ONCE_ROWS_MAX: Final = 100_000_000
"""Up to so many changes every task may hold the set of all winners; beyond, Spark shuffles."""
FOLD_SHARE_ROWS_MAX: Final = 5_000_000
"""Changes whose winners one task finds by itself, where it reads them."""
FOLD_SIEVE_ROWS_MAX: Final = 100_000_000
"""Beyond, too many pass all tasks: Spark scans twice instead."""
FOLD_SIEVE_BYTES_MAX: Final = 512 * MIB
"""Of keys and times that such a task holds."""
FOLD_SIEVE_ROWS_AT_ONCE: Final = 65_536
"""Changes whose bytes it reads together, unless they are large."""
FOLD_PORTION_BYTES: Final = 64 * MIB
"""Of whole rows that a task of the fold holds, where it reads, moves or writes them."""
SILVER_SMALL_ROWS: Final = 200_000
"""A silver table up to this size is rewritten with every fold: it is always current as it is."""
SILVER_BEHIND_PERCENT_MAX: Final = 10
"""Increments beyond this share of a larger table are merged into it."""
SILVER_BEHIND_ROWS_MAX: Final = 1_000_000

# Pipeline: re-embedding
REEMBED_TEXTS_MAX: Final = 256
"""Texts that an embedding model is given at a time."""
REEMBED_ROUND_ROWS: Final = 50_000
"""At least about so many vectors are made and written before it is noted that they are."""
