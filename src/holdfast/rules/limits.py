"""Every limit and default, by name, in one place.

Units stand last in the name. What is beyond a `_MAX` or `_MIN` is refused unless its docstring says
otherwise; everything else is a default or a fixed size. `make docs` writes docs/reference/limits.md
from these docstrings.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import Final
del TYPE_CHECKING  # every name here in capitals is a limit

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
HOUR_MS: Final = 3600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

# Names and values
PEER_ID_BYTES_MAX: Final = 128
"""The longest peer name; a longer one is refused (OverLimit)."""
MESH_SLUG_CHARS_MAX: Final = 64
"""The longest name of a mesh or a token; a longer one is refused."""
FREE_NAMES_LOOKED_AT: Final = 20
"""How many names a broker looks at to offer some that are free."""
FREE_NAMES_MAX: Final = 5
"""How many it offers."""
KEY_BYTES_MAX: Final = 1 * KIB
"""The longest key of memory, state or vectors; a longer one is refused."""
VALUE_BYTES_MAX: Final = 1 * MIB
"""The largest JSON value of memory, state or facts; a larger one is refused."""
VALUE_DEPTH_MAX: Final = 64
"""The deepest nesting of such a value; a deeper one is refused."""
TAGS_MAX: Final = 64
"""Tags on one memory; more are refused."""
TAG_BYTES_MAX: Final = 128
"""The longest tag; a longer one is refused."""
PRESENCE_NAME_BYTES_MAX: Final = 128
"""The longest display name and status of a peer; a longer one is refused, and not shown."""
PRESENCE_TEXT_BYTES_MAX: Final = 1024
"""The longest summary of a peer; a longer one is refused, and not shown."""
BURIED_KEYS_MAX: Final = 100_000
"""Keys of a mesh whose removed tombstones are remembered; of more, those with the lowest stamps are
forgotten, and up to there every write from outside that meets no live row is refused (TooOld)."""
BURIED_TASKS_MAX: Final = 100_000
"""Tasks of a mesh that have ended and were forgotten, and whose names are remembered; of more, the
oldest names are forgotten, and up to there every turn on an unknown task is refused (TooOld)."""
LEDGER_OF_KEY_MAX: Final = 256
"""Lost versions of one key that wait in the ledger; of more, the newest stay. A merge looks back
over as many versions of the key at most."""
OP_CHARS_MAX: Final = 64
"""The longest name of an op; a longer one is refused."""
META_BYTES_MAX: Final = 64 * KIB
"""The largest `meta` that a caller attaches to a change, as JSON; a larger one is refused."""
META_DEPTH_MAX: Final = 64
"""The deepest nesting of `meta`; a deeper one is refused."""
TITLE_BYTES_MAX: Final = 1 * KIB
"""The longest title of a task; a longer one is refused."""
DESCRIPTION_BYTES_MAX: Final = 64 * KIB
"""The longest description of a task; a longer one is refused."""
SUBJECT_BYTES_MAX: Final = 1 * KIB
"""The longest subject of a fact; a longer one is refused."""
PREDICATE_BYTES_MAX: Final = 256
"""The longest predicate of a fact; a longer one is refused."""
FACT_OBJECTS_MAX: Final = 64
"""Objects that one fact may name; more are refused."""
CONSUMER_NAME_BYTES_MAX: Final = 512
"""The longest name of a consumer; it has room for the longest name of a zone and of its link."""
MESSAGE_BYTES_MAX: Final = 1 * MIB
"""The largest content of a message; a larger one is refused (BodyTooLarge)."""
ENVELOPE_BYTES_MAX: Final = 2 * MIB
"""The largest envelope; every receiver refuses a larger one."""

# Clock
LAMPORT_MAX: Final = 2**63 - 1
"""The end of the Lamport clock; also the largest offset, epoch and time that is accepted."""
LAMPORT_LEAP_MAX: Final = 2**48
"""A stamp that is further ahead of this node's clock is refused: no peer may wear the clock out."""
LAMPORT_PER_MS_MAX: Final = 64
"""Stamps per millisecond since 1970 that a mesh may have given at most; a higher stamp is refused.
A node whose clock is 0 can take the highest of them by one leap until the year 2109.
"""
LAMPORT_STEP_MAX: Final = 2**14
"""How far ahead of this node's clock a stamp may always be, also where the clock is too high."""
KNOWN_PAST_MS: Final = 1_793_491_200_000
"""The start of November 2026, which has passed: a wall clock that shows less is wrong."""
CLOCK_STEP_MS: Final = 60 * SECOND_MS
"""A wall clock that steps by more was set: a log notes where it went back, and a broker does not
count what it went ahead.
"""
LOG_TURNS_MAX: Final = 64
"""Times the log notes that the clock was set back; then it forgets the oldest."""

# Ids
IDEMPOTENCY_KEY_BYTES_MAX: Final = 255
"""The longest idempotency key that is no UUID, as UTF-8; a longer one is refused."""

# Files and blobs
PATH_BYTES_MAX: Final = 1024
"""The longest path of a shared file, as UTF-8; a longer one is refused."""
INLINE_BYTES_MAX: Final = 64 * KIB
"""Content of this size and more becomes a blob; smaller content stays in its row."""
FILE_BYTES_MAX: Final = 4 * 1024 * MIB
"""The largest file or object; a larger one is refused."""
BLOB_CHUNK_BYTES: Final = 1 * MIB
"""Blobs are read, hashed and copied in pieces of this size."""
BLOB_ORPHAN_AGE_MS: Final = 1 * HOUR_MS
"""A sweep leaves a blob file that no row names alone for this long: its transaction may follow."""
BLOB_RELEASE_AGE_MS: Final = 1 * DAY_MS
"""A sweep keeps a blob that no row names any more for this long: a newer one may be on its way."""

# Vectors
VECTOR_DIM_MAX: Final = 8192
"""The most dimensions of a model; a model with more is refused."""
VECTOR_CONTENT_BYTES_MAX: Final = 256 * KIB
"""The longest text that is kept with a vector; a longer one is refused."""
SEARCH_LIMIT_MAX: Final = 1000
"""Results of one search; a caller that asks for more is refused."""
HISTORY_VERSIONS_MAX: Final = 1000
"""Versions of one key in one answer; a caller that asks for more is refused."""
VECTOR_MODEL_UNREAD_DAYS: Final = 30
"""A sweep drops the index of a deprecated model that nobody has searched for this long."""
VECTOR_MODEL_NAME_BYTES_MAX: Final = 256
"""The longest provider, name or version of a model; a longer one is refused."""
VECTOR_NORM_MAX: Final = 1e18
"""The longest vector; the square of any distance between two such vectors still fits float32."""
VECTOR_SKETCH_FLOATS: Final = 384 * KIB
"""A mesh's vectors of one model get sign sketches once they hold this many numbers."""
VECTOR_SKETCH_DIM_MIN: Final = 192
"""Vectors with fewer dimensions get no sketches: reading a sketch would cost more than it saves."""
VECTOR_PREFILTER_FLOATS: Final = 8 * 384 * KIB
"""A search measures every vector if together they hold fewer numbers; that takes 7 ms at most."""
VECTOR_PREFILTER_LIMIT: Final = 32
"""A search for more results than this measures every vector."""

# Writer
GROUP_OPS_MAX: Final = 1024
"""Writes that share one commit; the next ones wait for the next group."""
GROUP_MS_MAX: Final = 50
"""No write joins a group after this time, so that a transaction stays well below 100 ms."""
RUN_CHANGES_MAX: Final = 256
"""Local changes of a group that are carried out together."""
RUN_BYTES_MAX: Final = MIB
"""A run takes no change after so many bytes of bodies, so that a group can end between two runs."""
BATCH_CHANGES_MAX: Final = 256
"""Changes that are written together, in one transaction; a batch of more is refused."""
BATCH_BYTES_MAX: Final = 4 * MIB
"""What the changes of a batch may have in bytes, without the content of large files."""
CHUNK_ROWS: Final = 200
"""Rows per transaction, or per page, of long work: imports, sweeps, re-embedding, scans."""
QUICK_LIST_ROWS_MAX: Final = 500
"""The longest list that the command line prints without opening the home as a node."""
QUICK_LIST_CHARS_MAX: Final = 1 * MIB
"""The same for the values in such a list, as JSON, together."""
MESH_ERASE_WINDOW: Final = 5_000
"""Rows of the log, of the outbox or of the inbox that one step of deleting a mesh looks at."""
FIGURES_PAUSE: Final = 20
"""Figures that take as long as there are rows, such as a broker's members and queues, are counted
again after so many times the time that the last count took. Until then everybody gets those."""
FIGURES_ROWS: Final = 10_000
"""Fewer rows are counted whenever somebody asks."""
TASK_PAGE_ROWS: Final = 64
"""Turns of a task that a late turn reads at once while it looks how far it reaches."""
INTAKE_BATCH_BYTES: Final = 1 * MIB
"""Arriving envelopes are written together up to about this size."""
FORK_WAIT_MS_MAX: Final = 1000
"""How long a fork waits until no thread is in the middle of a database call; then the child may
use no database."""
QUEUE_OPS_MAX: Final = 65_536
"""Writes that may wait for the writer; a caller beyond it is refused (StoreBusy)."""

# SQLite
BUSY_TIMEOUT_MS: Final = 5 * SECOND_MS
"""How long a write waits for another process's write lock before it is refused (StoreBusy)."""
CACHE_KIB: Final = 8_000
"""Page cache of one connection to a node's database."""
MMAP_BYTES: Final = 30_000_000
"""How much of a node's database a connection maps into memory."""
WAL_BYTES_MAX: Final = 64 * MIB
"""The WAL is cut back to this size after a checkpoint; the doctor warns at twice the size."""
WAL_PAGE_BYTES: Final = 4 * KIB
"""Pages of a new database, and what the limits of a WAL count: a page of 8 KiB counts as two."""
WAL_CHECKPOINT_PAGES: Final = 2000
"""Pages that come into the WAL between two rounds of a checkpoint."""
WAL_REST_PAGES: Final = 6000
"""Pages in the WAL after which a broker's writer makes what a round has left, so that it begins
anew."""
WAL_ROUND_PAGES_MAX: Final = 4000
"""Pages that the writer adds to the WAL during a round; with more it waits for its end."""
QUICK_COMMIT_MS: Final = 2
"""A commit of the Raft logs or of a broker that takes longer is slow: the next leave the loop
alone."""
QUICK_COMMITS: Final = 64
"""After so many quick commits in a row, what is little is committed in the thread of the loop."""
SQLITE_VERSION_MIN: Final = 3_051_003
"""The oldest SQLite that a store opens with; older ones can damage a WAL."""

# Quorum: the store of the Raft logs
QUORUM_ENTRY_BYTES_MAX: Final = 4 * MIB
"""The largest entry of a group's log, and all that is proposed at a time; more is refused."""
QUORUM_WRITE_ENTRIES_MAX: Final = 4096
"""Entries in one write to a Raft log; more are refused (OverLimit)."""
QUORUM_PART_BYTES_MAX: Final = 256 * KIB
"""The largest part of a snapshot that comes in; a larger one is refused (OverLimit)."""
QUORUM_SWEEP_ROWS: Final = 512
"""Entries that compaction removes in one transaction, so that no vote waits long for it."""
QUORUM_SWEEP_BYTES: Final = 4 * MIB
"""The same by their size; one entry is always removed."""
QUORUM_MARK_WRITES: Final = 1024
"""After so many writes to the Raft logs `quorum.mark` says how far they are. It says at once what
was voted and in which term."""
QUORUM_WAL_PAGES: Final = 1000
"""Pages in the WAL of the Raft logs after which the writer makes a checkpoint."""
QUORUM_BALLAST_BYTES: Final = 4 * MIB
"""Space that is kept occupied for votes and terms, and freed when a commit of the Raft logs meets a
full disk. Entries are refused from then on (DiskFull), until there is room again."""

# Log, consumers and forgetting
FETCH_ROWS_MAX: Final = 10_000
"""Entries of one fetch; a caller that asks for more is refused."""
FETCH_ROWS_DEFAULT: Final = 100
"""Entries of one fetch if the caller does not say how many."""
FRONTIER_RANGES_MAX: Final = 4096
"""Separate ranges that a consumer may have confirmed beyond its first hole; another is refused."""
CONSUMERS_OF_CALLER_MAX: Final = 64
"""Consumers that one zone, or the bearer of one token, may register; another is refused."""
SEEN_MS: Final = 60 * SECOND_MS
"""How often a node notes that a consumer without anything to confirm still reads."""
LOG_TTL_MS: Final = 90 * DAY_MS
"""How long a log entry is kept at least, before a sweep may truncate it."""
TOMBSTONE_TTL_MS: Final = 90 * DAY_MS
"""How long the mark of a deletion is kept at least, before a sweep may remove it."""
DEDUPE_TTL_MS: Final = 180 * DAY_MS
"""How long a node knows the id of a truncated log entry."""

RETENTION_DAYS_MIN: Final = 3
"""The shortest time for which a node can be set to keep log, facts, tombstones or ids; less is
refused: what others have in their outbox may be so old."""
RETENTION_DAYS_MAX: Final = 36_500
"""The longest one that is given in days; for more there is `forever`."""
RETENTION_FOREVER_MS: Final = 2**48
"""Longer than any time that an id can name: nothing is ever so old."""

# Serving
BODY_BYTES_MAX: Final = 8 * MIB
"""The largest body of one request; a larger one is refused. Objects may be larger."""
APPEND_FACTS_MAX: Final = 10_000
"""Facts or changes in one request; more are refused."""
ASKED_BYTES_MAX: Final = 1 * MIB
"""The largest body of a request that only asks or confirms; a larger one is refused."""
HELLO_BYTES_MAX: Final = 4 * KIB
"""The largest body of a request that needs no token; a larger one is refused."""
CALL_PAGE_ROWS: Final = 1000
"""Rows of a family in one answer; a caller that asks for more is refused."""
CALL_PAGE_BYTES: Final = 2 * MIB
"""A page of rows ends when it has got so large; one row always fits."""
CONNECT_ANSWER_BYTES_MAX: Final = 256 * MIB
"""The largest answer that `holdfast.connect` takes; a larger one raises BadAnswer."""
CONNECT_LINES_MAX: Final = 16
"""Connections that `holdfast.connect` keeps open for the threads that use it."""
CALLS_IN_FLIGHT_MAX: Final = 512
"""Calls that a node works on at once; another is refused (TooMany)."""
CALLS_OF_ANYBODY_MAX: Final = 64
"""Calls without a key or token that a node works on at once; another is refused."""
OWN_SHARE: Final = 4
"""One part in this many of each limit on calls is kept for the node's own user."""
PART_ANSWER_BYTES_MAX: Final = 32 * MIB
"""The largest answer of a call that a part of the same process (the console) makes; a larger one is
refused."""
CONSOLE_CODES_MAX: Final = 16
"""One-time codes for the console that nobody has used yet; the oldest makes room for a new one."""
CONSOLE_CODE_MS: Final = 120 * SECOND_MS
"""How long a one-time code is good for."""
CONSOLE_SESSIONS_MAX: Final = 256
"""Browsers that are logged in at the console; the oldest of whoever has most makes room."""
CONSOLE_SESSION_MS: Final = 12 * HOUR_MS
"""How long a session of the console lasts; then one logs in again."""
CONSOLE_STREAMS_MAX: Final = 256
"""Pages of the console that are open and kept up to date; another is refused, and still shown."""
CONSOLE_STREAMS_OF_TOKEN_MAX: Final = 48
"""Of those, pages that were opened with one token; another is refused, and still shown."""
CONSOLE_STREAMS_OF_TOKENS_MAX: Final = 144
"""The same of all tokens together: the rest is for the node's own user."""
CONSOLE_LIVE_MS: Final = 500
"""What happens within this time is sent to an open page together."""
CONSOLE_COUNTS_MAX: Final = 512
"""Counts that the console keeps, by mesh and caller; the oldest makes room for a new one."""
CONSOLE_PATIENCE_MS: Final = 20
"""So long a page of the console waits for a count; then it comes when it is there."""
CONSOLE_QUERY_CHARS_MAX: Final = 16 * KIB
"""The longest query in an address of the console; a longer one is refused."""
CONSOLE_VALUE_CHARS: Final = 4_000
"""A value on a page of the console is cut behind this, with a link to all of it."""
CONSOLE_EDIT_CHARS: Final = 64 * KIB
"""A longer value is not put into a form of the console; the page names the commands."""
CONSOLE_VERSION_CHARS: Final = 1_000
"""A longer version of a memory is not brought back by a button in its list."""
CONSOLE_ROWS: Final = 100
"""Rows of a list on one page of the console; there is a link to more."""
CONSOLE_CONFLICTS: Final = 20
"""Conflicts on one page of the console: each shows two values."""
CONSOLE_LAG_EVERY_MS: Final = 10 * SECOND_MS
"""So often a console looks how far the readers of the log lag."""
CONSOLE_LAG_LOOKS_MAX: Final = 360
"""So many of these looks are kept: those of an hour."""
CONSOLE_LAG_READERS_MAX: Final = 12
"""Lines in one plot of lags: the readers that lagged most."""
CONSOLE_LOOK_STEP: Final = 2_000
"""So many entries of the log are looked through at once for those that a filter lets pass."""
CONSOLE_LOOK_BACK: Final = 20_000
"""So far back one page of the console looks for entries that a filter lets pass."""
CONSOLE_TREE_NODES: Final = 2_000
"""A value with more parts than this is shown as text on a page of the console, not as a tree."""
CONSOLE_TREE_DEPTH: Final = 32
"""So deep a tree goes; a deeper value is shown as text."""
CONSOLE_DIFF_LINES: Final = 400
"""Two values are compared line by line up to so many lines; longer ones stand below each other."""
CONSOLE_FILE_PART: Final = 64 * KIB
"""So many bytes of a file stand on one page of the console; there is a link to more."""
CONSOLE_RUNS: Final = 100
"""Runs into the lake, and runs of its audits, that its page of the console draws."""
CONSOLE_RUNS_LISTED: Final = 10
"""So many of the runs stand in its table."""
CONSOLE_MESHES_MAX: Final = 50
"""Meshes that the first page of the console counts; the others stand at the side."""
LONG_POLLS_MAX: Final = 1024
"""Calls that wait for the log to grow; another is refused."""
EVENT_STREAMS_MAX: Final = 64
"""Open event streams of a node; another is refused."""
EVENT_PAGE_BYTES: Final = 256 * KIB
"""What an event stream reads, and holds for a client that does not; one entry always fits."""
NEWS_KEPT_MAX: Final = 256
"""Notices about links and the disk that a daemon keeps for its event streams; the oldest goes."""
EVENT_BYTES_MAX: Final = 8 * MIB
"""The largest event that a watch over a connection takes; a larger one raises BadAnswer."""
EVENT_RETRY_MS: Final = 1 * SECOND_MS
"""A client of an event stream that was cut off asks again after this time, or sooner."""
WATCH_AGAIN_MS_MIN: Final = 50
"""How long a watch over a connection waits before it asks again for the first time; twice as long
with each time in a row, up to EVENT_RETRY_MS."""
WATCH_SILENCE_MS_MAX: Final = 40 * SECOND_MS
"""A watch over a connection that hears nothing for so long, no sign of life either, asks again."""
WATCH_AWAY_MS_MAX: Final = 300 * SECOND_MS
"""A daemon that is away for longer ends the watches over a connection to it, with Unreachable."""
HEARTBEAT_MS: Final = 15 * SECOND_MS
"""A silent event stream sends a sign of life this often, or proxies between would close it."""
REQUEST_MS_MAX: Final = 30 * SECOND_MS
"""How long the body of a request, or the next piece of an answer, may take; then the call ends."""
HEAD_BYTES_MAX: Final = 64 * KIB
"""The longest first line and headers of a request; longer ones are refused with 431."""
HEADS_KNOWN_MAX: Final = 1024
"""Heads of granted requests that a listener remembers, so that the same bytes are not parsed
again."""
HEADS_KNOWN_BYTES_MAX: Final = 1 * KIB
"""The longest head that is remembered."""
HEAD_LINES_MAX: Final = 256
"""The most lines in the head of a request; a head with more is refused with 431."""
STRANGER_BYTES_MAX: Final = 2 * MIB
"""The most memory that a connection costs whose other side has proved nothing. A server stops
reading long before; if half of it comes nevertheless, it cuts the connection."""
HEAD_MS_MAX: Final = 10 * SECOND_MS
"""How long the head of a request, or a TLS handshake, may take; then the connection is closed."""
KEEP_ALIVE_MS: Final = 75 * SECOND_MS
"""A connection without a request is closed after this time."""
CONNECTIONS_MAX: Final = 4096
"""Open connections of a node, over all its listeners; the node closes others at once."""
LINGER_MS_MAX: Final = 1 * SECOND_MS
"""After a refusal the server reads and drops the rest of the body for this long, so that the
refusal reaches a caller that is still sending."""
LINGER_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
"""The most that it reads and drops: well above the largest body."""
SERVER_THREADS: Final = 16
"""Threads of a daemon or broker for work that may block."""
SWITCH_US: Final = 50
"""How long a thread of a daemon or broker may wait for the interpreter while another one has it."""
LONG_POLL_MS_MAX: Final = 60 * SECOND_MS
"""The longest `wait_ms` of a fetch; a longer one is refused."""
LONG_POLL_MS_DEFAULT: Final = 25 * SECOND_MS
"""How long a link's fetch waits for new entries."""
PASSED_OVER_MS_MAX: Final = 1 * SECOND_MS
"""A waiting fetch answers this long after its filter passed over entries: they can be confirmed."""
FETCH_BYTES_MAX: Final = 4 * MIB
"""A fetch ends after about this much, whatever its limit on entries; one entry always fits."""
RANGE_BATCH_ROWS: Final = 8192
"""Entries that a ranged read takes from the store at a time."""
RANGE_BATCH_BYTES: Final = 4 * MIB
"""Bytes that a ranged read takes from the store at a time; one entry always fits."""
SCAN_ROWS_MAX: Final = 100_000
"""Entries that one filtered read looks at; then it answers how far it got."""
COMPRESS_BYTES_MIN: Final = 4 * KIB
"""Smaller answers are never compressed."""
SESSION_MS: Final = 1 * HOUR_MS
"""How long a session lasts; then the zone says hello again."""
SESSIONS_OF_ZONE_MAX: Final = 16
"""Sessions of one zone; another hello ends the oldest."""
SESSIONS_MAX: Final = 65_536
"""Sessions of all callers together; another hello ends the oldest. At a broker any key gets one."""
HELLO_MS_MAX: Final = 30 * SECOND_MS
"""How long a hello that was begun may take; then it is forgotten."""
HELLOS_OPEN_MAX: Final = 1024
"""Hellos that are begun and not ended; another pushes out one of the zone that has the most."""
TOKEN_BYTES: Final = 32
"""Random bytes in a token."""
TOKEN_FILE_BYTES_MAX: Final = 4 * KIB
"""A file with a token, or with another secret, is not longer: a larger one is not meant."""
SYSTEMCTL_S_MAX: Final = 60
"""How long a command waits for systemd: a daemon takes 10 s to end, or more on a busy disk."""
CONTEXT_FILE_BYTES_MAX: Final = 16 * KIB
"""A file of a context is not longer; it holds an address, a token, a card and a path."""
BROKER_TOKENS_MAX: Final = 100
"""Tokens by which the figures of one broker are read."""
KEYS_OF_ZONE_MAX: Final = 8
"""Keys that a node knows of one zone; another is refused until one is revoked or has ended."""
WATCH_MS: Final = 1 * SECOND_MS
"""How often the daemon looks for writes of other processes, in case their datagram got lost."""
UPKEEP_MS: Final = 1 * HOUR_MS
"""How often the daemon sweeps."""

# Links
LINKS_MAX: Final = 64
"""Links of one node; another is refused."""
LINK_NAME_CHARS_MAX: Final = 64
"""The longest name of a link; a longer one is refused."""
LINK_URL_BYTES_MAX: Final = 1 * KIB
"""The longest address of a link or a broker; a longer one is refused."""
LINK_BATCH_ROWS: Final = 2000
"""Entries that a link asks for at a time; also the most that one transaction takes in."""
LINK_BATCH_BYTES: Final = 2 * MIB
"""Bytes of arriving envelopes that one transaction takes in; one envelope always fits."""
COMPRESS_JUDGED_BYTES: Final = 256 * KIB
"""A link judges by batches of at least this size how fast its connection is."""
COMPRESS_BYTES_PER_S: Final = 8 * MIB
"""A link asks for compressed batches once one came more slowly. It costs the source 20 ms per
MB.
"""
LINK_CONNECT_MS_MAX: Final = 5 * SECOND_MS
"""How long a node waits for a connection to another node or a broker; then it is unreachable."""
PING_WAYS_MAX: Final = 8
"""Ways to a peer that one ping tries: the bus, its links, its brokers."""
PING_ROUNDS_MAX: Final = 100_000
"""Rounds of one `holdfast ping`; it keeps what each found."""
LINK_READ_MS_MAX: Final = 15 * SECOND_MS
"""How long a node waits for an answer, on top of what a long poll may take."""
LINK_CONFIRM_MS: Final = 50
"""How long a link waits for a next fetch to confirm by, before it makes a call to confirm."""
LINK_CONFIRM_BATCHES: Final = 8
"""A link that is behind confirms with one fetch in so many."""
LINK_PULL_WAIT_MS_MAX: Final = 1 * SECOND_MS
"""How long an answer to `link pull` may be waited for; then it says how far the pull is."""
LINK_SNAPSHOT_PART_BYTES: Final = 1 * MIB
"""A part of a snapshot for a link ends after about this much; what one row made always fits."""
LINK_SNAPSHOT_PART_BYTES_MAX: Final = 64 * MIB
"""The most that a link reads as one part of a snapshot."""
LINK_SNAPSHOT_PIECES: Final = 50
"""Pieces of an export that are looked through for one part of a snapshot for a link."""
LINK_SNAPSHOT_PLACE_BYTES: Final = 4 * KIB
"""What a source calls a place in its snapshot for a link."""
LINE_BYTES_PER_S_MIN: Final = 16 * KIB
"""A connection that keeps this pace is never cut off for being slow; one that is slower may be."""
BACKOFF_MS_MIN: Final = 200
"""The first wait before a failed connection is tried again; each failure doubles it."""
BACKOFF_MS_MAX: Final = 30 * SECOND_MS
"""The longest wait before a failed connection is tried again."""
REFUSALS_BRIEF_MAX: Final = 3
"""Refusals in a row that may be accidents; after them a node waits BACKOFF_MS_MAX each time."""
REASON_CHARS_MAX: Final = 1000
"""How much of a reason is kept with a refused entry or item; the rest is cut off."""
QUARANTINE_ROWS_MAX: Final = 10_000
"""Refused entries in the quarantine of one link or shared mesh; then it stops."""
OBJECT_RANGE_BYTES: Final = 4 * MIB
"""An object is pulled in pieces of this size, so that a broken connection costs one piece."""
OBJECT_RANGE_BYTES_MIN: Final = 16 * KIB
"""Each break halves the pieces, down to this."""

# Sync with a broker
SYNC_IDLE_MS: Final = 30 * SECOND_MS
"""After this long without a frame, and with nothing to send, a connection is shown as idle."""
SYNC_PUSH_ITEMS: Final = 1024
"""Envelopes that a node pushes in one frame."""
SYNC_PUSH_BYTES: Final = 1 * MIB
"""Bytes of envelopes that a node pushes in one frame; one envelope always fits."""
SYNC_WINDOW_ITEMS: Final = 4 * SYNC_PUSH_ITEMS
"""Envelopes of a mesh that a node has pushed and not got an answer for; then it waits."""
SYNC_LOOK_MS: Final = 5 * SECOND_MS
"""How often a sender looks into the outbox by itself, if no write wakes it."""
SYNC_ANSWER_MS_MAX: Final = 30 * SECOND_MS
"""A broker that has not answered a push in this time is taken for lost: the node connects anew."""
SYNC_CLOSE_MS_MAX: Final = 1 * SECOND_MS
"""How long a node that disconnects waits for answers that are on their way."""
SYNC_WAITING_BYTES: Final = 32 * MIB
"""Bytes of frames that a node has read and not stored yet; then it stops reading."""
SYNC_TURNS_MAX: Final = 32
"""Times in a row that a broker may say how a mesh stands; then the node connects anew."""
SYNC_TURN_MS: Final = 5 * SECOND_MS
"""How long it takes until one more of these is allowed."""
SYNC_SNAPSHOT_MS: Final = 600 * SECOND_MS
"""A node that a broker asks for a snapshot of a mesh again makes none before this is over."""
SYNC_GAPS_MAX: Final = 64
"""Pages that a node drops while pages before them are missing; then it connects anew."""
EPOCHS_MAX: Final = 65_536
"""Epochs that a broker may name for one mesh; a node does not follow a mesh with more."""
EPOCH_LEAP_MAX: Final = 10_000
"""Epochs that a broker may have begun since a node last read from it; more is not believed."""
SYNC_PING_MS: Final = 15 * SECOND_MS
"""How often a node pings its broker, and how long it waits for the answer."""
SYNC_MESHES_MS: Final = 100
"""A node looks no more often than this which of its meshes are shared, however much is written."""
SYNC_THREADS: Final = 4
"""Threads of a node for calls to one of its brokers; also those for its own store, for all."""
SYNC_SILENT_WARN_MS: Final = 1 * DAY_MS
"""The doctor warns about changes that have waited longer for their broker."""

# Disk pressure
DISK_HIGH_PERCENT: Final = 80
"""From this fill on a node warns."""
DISK_FULL_PERCENT: Final = 95
"""From this fill on a node refuses what adds data (DiskFull)."""
DISK_LOOK_MS: Final = 5 * SECOND_MS
"""How often the daemon measures its disk."""
DISK_SLACK_PERCENT: Final = 2
"""A level is left this far below the fill at which it was entered, so that it does not flutter."""
DISK_SLACK_BYTES: Final = 16 * MIB
"""The same for the free space that has to be left."""
BALLAST_BYTES: Final = 16 * MIB
"""Space that a daemon keeps occupied, and frees when a write meets a full disk."""
BALLAST_ROOM_FACTOR: Final = 4
"""The ballast is laid only where this many times its size is free: it must not fill the disk."""
UPKEEP_PRESSED_MS: Final = 60 * SECOND_MS
"""How often the daemon sweeps while the disk is above DISK_HIGH_PERCENT."""

# Delivery (the outbox's age against the broker's dedupe window)
DEDUPE_RETENTION_DAYS_MIN: Final = 3
"""The shortest time for which a broker may remember ids; nodes refuse to work with less."""
OUTBOX_AGE_HOURS_MIN: Final = 72
"""The least age at which a node gives up a message that waits, unless its settings say less."""
OUTBOX_AGE_HOURS_PERMANENT: Final = 168
"""The age at which it does so with a broker that remembers ids for ever."""
OUTBOX_AGE_HOURS_PERMANENT_MAX: Final = 720
"""The most that settings may give for that; a higher number counts as this one."""
OUTBOX_MARGIN_HOURS_MIN: Final = 24
"""A message is given up at least this long before the broker forgets ids of its age."""
OUTBOX_MARGIN_PERCENT: Final = 10
"""The same margin as a share of the broker's dedupe window; the larger of the two counts."""
OUTBOX_ATTEMPTS_MAX: Final = 10
"""Refusals that might pass later, after which an item of the outbox is dead."""
FAILURES_ALONE_MIN: Final = 2
"""An item costs an attempt when the broker has failed this many times at it alone, between others
that passed, and each time after.
"""
SUSPECTS_MAX: Final = 64
"""Items of a lane that a node sets aside because the broker fails at each alone; then the oldest
goes with others again.
"""
OUTBOX_DONE_MS: Final = 1 * DAY_MS
"""How long the outbox lists what the broker has, or what was given up."""
OUTBOX_PAGE_ROWS: Final = 500
"""Items of the outbox in one answer; a caller that asks for more is refused."""
NEAREST_CHARS_MAX: Final = 200
"""A longer name gets no suggestion where nothing has that name."""
EDIT_TRIES: Final = 5
"""How often a value that was edited is merged with what others write meanwhile, before the user is
asked to try again."""
COMPLETIONS_MAX: Final = 200
"""Names that a shell is offered for one Tab; more would not fit the screen."""
SHOWN_CHARS_MAX: Final = 200
"""Of a value, where a person looks at the row that has it, in a REPL or a notebook."""
SHOWN_ROWS_MAX: Final = 20
"""Of a family or a node, where a notebook shows what is in it."""
NEAREST_KEYS: Final = 500
"""Keys on each side of a missing one, by the alphabet, that a suggestion is chosen from."""
CANDIDATES_MAX: Final = 10
"""Ids that are shown where the digits that somebody typed begin several."""
INBOX_UNREAD_MS: Final = 90 * DAY_MS
"""How long an unread message keeps its place in the log, however short the log is kept."""
INBOX_PAGE_ROWS: Final = 500
"""Messages of the inbox in one answer; a caller that asks for more is refused."""
INBOX_SCAN_ROWS: Final = 5000
"""Messages that one filtered read of the inbox looks at; then it answers how far it got."""
INBOX_SEARCH_CHARS_MAX: Final = 1000
"""The longest text that is searched for; a longer one is refused."""
TTL_MS_MAX: Final = 366 * DAY_MS
"""The longest time after which a daemon may be told to end by itself; a longer one is refused."""
HOOK_MS_MAX: Final = 30 * SECOND_MS
"""The daemon ends a hook that runs longer, with all that the hook has started."""
HOOK_GRACE_MS: Final = 2 * SECOND_MS
"""How long a hook that is asked to end may take; then the daemon kills its process group."""
HOOK_ROWS: Final = 64
"""Messages that the hook gets in a row before the daemon does something else."""

# The broker
DEDUPE_RETENTION_DAYS_MAX: Final = 36_500
"""The longest time for which a broker can be set to remember ids; more is refused."""
DEDUPE_RETENTION_DAYS_DEFAULT: Final = 30
"""How long a broker remembers ids unless its settings say otherwise."""
BROKER_KEEP_DAYS: Final = 30
"""How long a broker keeps messages, and changes that a snapshot covers."""
ACCEPT_GROUP_MAX: Final = 1024
"""Envelopes that a broker accepts in one transaction."""
ACCEPT_GROUP_BYTES: Final = 4 * MIB
"""Bytes of envelopes that a broker accepts in one transaction; one envelope always fits."""
ACCEPT_AT_ONCE_MAX: Final = 128
"""Envelopes that a broker may accept in the thread of its loop, where the disk is quick."""
ACCEPT_AT_ONCE_BYTES: Final = 256 * KIB
"""The same by their size."""
ACCEPT_AT_ONCE_CONNECTIONS: Final = 16
"""With more WebSockets nothing is accepted in the loop: a slow disk would hold all of them up."""
ACCEPT_WAITING_MAX: Final = 100_000
"""Envelopes of all members that wait for their transaction; more are refused with 429."""
ACCEPT_WAITING_BYTES: Final = 256 * MIB
"""Bytes of envelopes that wait for their transaction; more are refused with 429."""
ACCEPT_RATE_PER_S: Final = 200_000
"""New envelopes that one member may push each second, twice that in a burst; others get 429."""
BROKER_CONNECTIONS_MAX: Final = 16_384
"""Open connections of a broker; it closes others at once."""
BROKER_CALLS_MAX: Final = 4096
"""HTTP calls that a broker works on at once; another is refused."""
STRANGER_REFUSALS_PER_S: Final = 5
"""How often each second a broker refuses a key that is no member; then it closes the connection, or
answers 429."""
STRANGER_REFUSALS_BURST: Final = 64
"""How often it does so in a burst."""
STRANGERS_REFUSALS_PER_S: Final = 50
"""How often each second it refuses all such keys together."""
STRANGERS_REFUSALS_BURST: Final = 512
"""How often it does so in a burst."""
STRANGER_WAIT_MS: Final = 1 * SECOND_MS
"""How long a broker waits, without reading, before it closes such a connection: the next one costs
it a handshake."""
MEMBERS_KNOWN_MAX: Final = 65_536
"""Pairs of a mesh and a member that a broker remembers; others are looked up before their push."""
PUSH_ITEMS_MAX: Final = 10_000
"""Envelopes in one push frame; a broker closes the connection on more."""
FRAME_BYTES_MAX: Final = 8 * MIB
"""The largest WebSocket frame; both sides close the connection on a larger one."""
UNPROVED_BYTES_MAX: Final = 64 * KIB
"""What a broker reads from a connection before the hello has proved its key; then it closes it."""
CONNECTION_ITEMS_MAX: Final = 4096
"""Envelopes of one connection that wait for their answers; then the broker stops reading."""
CONNECTION_BYTES_MAX: Final = 8 * MIB
"""Bytes of envelopes that wait for their answers; then the broker stops reading."""
CONNECTION_UNREAD_BYTES: Final = 1 * MIB
"""Bytes that wait to be read by a member; then the broker makes no more frames for it."""
FEED_FRAMES_MAX: Final = 4
"""Frames of one mesh that a member has been sent and not confirmed; then the feed waits."""
FEED_ROWS: Final = 1000
"""Envelopes in one frame of a feed."""
FEED_BYTES: Final = 1 * MIB
"""Bytes of envelopes in one frame of a feed; one envelope always fits."""
FEED_BYTES_MIN: Final = 4 * KIB
"""The same for a member whose line breaks under its frames, at the least."""
FEED_SIZES_MAX: Final = 10_000
"""Members of whom a broker remembers that they get smaller frames; the oldest is forgotten."""
FOLLOWS_MAX: Final = 1024
"""Meshes that one connection may follow, and queues that it may take from; another is refused."""
TAKE_MAX: Final = 1000
"""Messages of a queue that one taker may hold at once; a higher number is refused."""
TAKE_BYTES: Final = 4 * MIB
"""Bytes of messages that a broker hands to a taker at a time; one message always fits."""
SEQ_MAX: Final = 2**40 - 1
"""The last seq of a mesh at a broker."""
SOCKET_PING_MS: Final = 20 * SECOND_MS
"""How often a broker pings a connection."""
SOCKET_SILENT_MS: Final = 60 * SECOND_MS
"""A broker cuts off a connection that was silent, or did not read, for this long."""
FRAGMENTS_MAX: Final = 1024
"""Frames that one WebSocket message may be sent in; a broker cuts off a connection with more."""
PINGS_MAX: Final = 1024
"""Pings that a broker answers within SOCKET_PING_MS; then it cuts the connection off."""
GOT_SAVED_MS: Final = 30 * SECOND_MS
"""How often a broker saves up to where a member has confirmed its feed."""
FEED_LOOK_MS: Final = 30 * SECOND_MS
"""How often a broker looks at every feed, in case a wake-up got lost."""
FEED_CATCH_UP_MS: Final = 5 * SECOND_MS
"""How often a broker sends a member the position of a mesh in which nothing was for it."""
EPOCH_BY_WORD_MS: Final = 60 * SECOND_MS
"""How often a broker begins a new epoch because a member has seen more than the broker has."""
INVITE_HOURS: Final = 72
"""How long an invite is good for unless its maker says otherwise."""
INVITE_FIRST_HOURS: Final = 24 * 7
"""How long the first invite to a mesh is good for, which publishing it makes."""
INVITE_HOURS_MAX: Final = 24 * 365
"""The longest time that an invite can be good for; more is refused."""
INVITE_USES_MAX: Final = 10_000
"""The most members that one invite can bring; more is refused."""
BROKER_PART_BYTES_MAX: Final = 8 * MIB
"""The largest part of a snapshot that a broker stores; a larger one is refused."""
SWEEP_EVERY_MS: Final = 1 * HOUR_MS
"""How often a broker sweeps."""
CLOCK_LEAP_MS: Final = 4 * HOUR_MS
"""A broker stops believing a wall clock that goes ahead by more at once, and sweeps nothing by
it.
"""
CLOCK_STEADY_MS: Final = 24 * HOUR_MS
"""It believes the clock again after the clock has kept pace for this long."""
CLOCK_ABSENCE_MS: Final = 24 * HOUR_MS
"""A starting broker does not believe a clock that is further ahead of its last belief."""
CONFLICTS_TOLD_MAX: Final = 10
"""Reused ids of one group that a broker logs one by one; the rest is only counted."""
NIGHT_HOUR: Final = 3
"""The hour of local time at which a broker checks for orphans, and for objects that nothing names,
every night; it also checks for orphans when it starts."""
SWEEP_ROWS: Final = 2000
"""Rows that a broker's sweep removes in one transaction."""
SWEEP_PIECES: Final = 16
"""Pieces of contents, or parts of snapshots, of a removed mesh that go in one: they are large."""
ORPHANS_SHOWN_MAX: Final = 1000
"""Orphans that one check lists; the rest is left out."""
BROKER_RANGE_ROWS: Final = 2000
"""Envelopes in one page of a mesh's whole log."""
BROKER_RANGE_BYTES: Final = 1 * MIB
"""Bytes in one page of a mesh's whole log: other members wait for no more than one page."""
CONSUMER_KEEP_MS_MAX: Final = 30 * DAY_MS
"""How much longer a broker keeps what a named reader of the whole mesh has not confirmed."""

# The broker's store on SQLite
BROKER_MARK_ROWS: Final = 10_000
"""After this many envelopes of a mesh the broker notes its seq outside the database."""
BROKER_PAGE_BYTES: Final = 8 * KIB
"""Pages of a new database of a broker; one that is there keeps those it has."""
BROKER_CACHE_KIB: Final = 64 * KIB
"""Page cache of a connection to a broker's database."""
BROKER_SCAN_ROWS: Final = 20_000
"""Envelopes that one page of a feed looks at; then it says how far it got."""
BROKER_PIECE_BYTES: Final = 1 * MIB
"""A broker stores an object in rows of this size, on SQLite and on PostgreSQL."""
BROKER_UPLOAD_MS_MAX: Final = 1 * DAY_MS
"""A broker gives up an upload that has not gone on for this long."""
OBJECT_UNNAMED_MS: Final = 30 * DAY_MS
"""How long a broker keeps content that nothing names, since a member last asked for it."""
OBJECT_PAGE_ROWS: Final = 200
"""Objects that the search for unnamed content looks at in one transaction."""
BROKER_DEDUPE_GRACE_MS: Final = 1 * DAY_MS
"""A broker remembers ids this much longer than it promises: the oldest outbox row may be as old."""

# The broker's store on PostgreSQL
POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections of one broker process to the server, besides the one that listens."""
POSTGRES_CONNECT_MS_MAX: Final = 5 * SECOND_MS
"""How long a broker waits for a new or a busy connection; then the call fails."""
POSTGRES_LOCK_MS_MAX: Final = 5 * SECOND_MS
"""How long a statement waits for a lock; then the server ends it."""
POSTGRES_STATEMENT_MS_MAX: Final = 15 * SECOND_MS
"""How long a statement may run; then the server ends it."""
POSTGRES_ANSWER_MS_MAX: Final = 20 * SECOND_MS
"""A connection that has not answered in this time is dead: the server ends statements before."""
POSTGRES_MIGRATE_MS_MAX: Final = 600 * SECOND_MS
"""How long a statement of a migration may run."""
POSTGRES_TRIES_MAX: Final = 5
"""How many times a broker tries work that the server undid because of other work; then it fails."""
POSTGRES_LOOK_MS: Final = 2 * SECOND_MS
"""How often a broker looks how far the meshes are, in case a notification got lost."""
BROKER_PROCESSES_MAX: Final = 64
"""Processes of one `broker serve`. Each has connections of its own to the server."""
PROCESS_START_MS_MAX: Final = 60 * SECOND_MS
"""How long a process of a broker may take until it serves."""
PROCESS_LOAD_MS: Final = 1 * SECOND_MS
"""How often a process of a broker says that it lives; how many connections it has, ten times."""
PROCESS_SILENT_MS_MAX: Final = 30 * SECOND_MS
"""A process of a broker that says nothing for so long is ended, and begun again."""
PROCESS_QUIET_MS: Final = 3 * SECOND_MS
"""A process of a broker that says nothing for so long is handed connections last."""
PROCESS_END_MS_MAX: Final = 9 * SECOND_MS
"""How long the processes of a broker may take to end; then their parent kills them."""
PROCESS_STEADY_MS: Final = 60 * SECOND_MS
"""A process that served for so long and ended then has not failed before."""
PROCESS_ASK_MS_MAX: Final = 2 * SECOND_MS
"""How long one process of a broker waits for the answer of another one."""
PROCESS_WORD_BYTES_MAX: Final = 16 * MIB
"""What a process of a broker says at once, and what may wait to be heard."""
POSTGRES_COUNT_ROWS_MAX: Final = 100_000
"""For larger tables the metrics show the server's estimate instead of a count."""

# Sharing a mesh
BACKFILL_ROWS_MAX: Final = 10_000
"""A mesh with more changes is brought to its broker as a snapshot."""
MESH_PART_BYTES: Final = 2 * MIB
"""Bytes of envelopes in one part of that snapshot, before compression; one envelope always fits."""
SYNC_WAIT_MS: Final = 30 * SECOND_MS
"""A command that waits for its changes to arrive gives up when nothing has moved for this long."""

# Backup, restore and repair
BACKUP_STEP_PAGES: Final = 1024
"""Pages of the database that a backup copies between two reports of its progress."""
BACKUP_AGE_WARN_MS: Final = 7 * DAY_MS
"""The doctor warns if the last backup is older."""
RESTORE_LAMPORT_SKIP: Final = 2**32
"""How far the clock of a log that has gone back skips ahead, past every stamp of the lost time."""
CRASH_LAMPORT_SKIP: Final = 2**24
"""How far it skips ahead where only what was not yet synced can be lost: more than fits into any
WAL, and a million times this stays below what a mesh may give (LAMPORT_PER_MS_MAX).
"""
REPAIR_PROBES_MAX: Final = 20_000
"""Reads that a repair spends on the damaged parts of one table; the rest counts as lost."""

LEAF_SEARCH_BYTES_MAX: Final = 1024 * MIB
"""Bytes that are hashed to find the one byte of an entry that a disk has changed."""
LEAF_SEARCHES_MAX: Final = 8
"""Entries for which a repair looks for such a byte; with more of them, the damage is another."""
SEAL_BYTES_MAX: Final = 1 * MIB
"""Bytes of entries from before leaf hashes that get theirs in one step."""

# Export and import
EXPORT_PART_BYTES: Final = 768 * KIB
"""Content of a blob in one line of an export: 1 MiB as base64."""
EXPORT_LINE_BYTES_MAX: Final = 64 * MIB
"""The longest line of an export; a file with a longer one is refused."""
IMPORT_BAD_LINES_MAX: Final = 1000
"""Bad lines that an import skips and reports; with more it stops."""

# Doctor
DISK_FREE_WARN_BYTES: Final = 1024 * MIB
"""The doctor warns if less is free on the disk."""
DISK_FREE_MIN_BYTES: Final = 64 * MIB
"""With less free on the disk a node refuses what adds data; with twice as much it warns."""
CONSUMER_LAG_WARN: Final = 100_000
"""The doctor warns about a consumer that is more entries behind."""
KEY_EXPIRY_WARN_MS: Final = 14 * DAY_MS
"""The doctor warns this long before a key or a token ends."""
LINK_SILENT_WARN_MS: Final = 1 * DAY_MS
"""The doctor warns about a link that has brought nothing this long after it was added."""
DOCTOR_SAMPLE_ROWS: Final = 200
"""Rows of each family that the doctor compares with the log, unless it is asked for all."""
DOCTOR_ITEMS_MAX: Final = 20
"""Refused items of the outbox that the doctor names one by one; `outbox list --failed` has all."""
DOCTOR_REPLAY_ROWS: Final = 100_000
"""Log entries that the doctor folds in memory at a time when it compares all rows."""

# Digests
DIGESTS_AT_ONCE_MAX: Final = 8
"""Calls for digests at once; another is refused. Each reads all that the node holds."""
DIGEST_ROWS_MAX: Final = 20_000
"""Rows of one bucket that an answer lists, the first by their keys; the rest is left out."""
DIGEST_SHOWN_BYTES_MAX: Final = 4 * KIB
"""A longer value is shown as its length and hash."""
DIGEST_ANSWER_BYTES_MAX: Final = 256 * MIB
"""The largest answer with digests that a caller accepts."""
DIGEST_MS_MAX: Final = 1800 * SECOND_MS
"""How long a caller waits for the digests of a large node."""
VERIFY_DRIVER_ROWS_MAX: Final = 4_000_000
"""Up to this many envelopes of all nodes together are verified in the driver, without Spark."""

# Shutdown
SHUTDOWN_MS_MAX: Final = 10 * SECOND_MS
"""How long a daemon or broker takes to stop; then the process ends as a crash would end it."""
SHUTDOWN_DRAIN_MS_MAX: Final = 3 * SECOND_MS
"""The part of it for answers that are on their way."""
SHUTDOWN_SWEEP_MS_MAX: Final = 2 * SECOND_MS
"""The part of it for a sweep of blobs."""
ABORT_MS_MAX: Final = 1 * SECOND_MS
"""How long an abort waits for the group that is being committed."""

# Bench
BENCH_S: Final = 30.0
"""About how many seconds `holdfast bench` takes, if it is not told."""
BENCH_S_MIN: Final = 0.5
"""The least that it may be told: each figure gets a few milliseconds."""
BENCH_S_MAX: Final = 600.0
"""The most that it may be told."""

# Local metrics
METRICS_BYTES_MAX: Final = 4 * MIB
"""The largest file of metrics in a home; then it begins anew."""
METRICS_LINE_MS: Final = 60 * SECOND_MS
"""How often a process that has a home open appends to its metrics what it did meanwhile."""
PEER_STALE_MS: Final = 300 * SECOND_MS
"""A peer whose last write this node saw longer ago is shown as stale."""

# Pipeline: reading logs
SOURCE_PARTITION_ROWS: Final = 200_000
"""Entries of one log that one task of Spark reads."""
SOURCE_BATCH_ROWS: Final = 16_384
"""Rows in one Arrow batch that the source makes."""
SOURCE_BATCH_BYTES: Final = 8 * MIB
"""Bytes of envelopes in such a batch; one envelope always fits."""
SOURCE_RETRIES: Final = 4
"""How many times in a row a task asks a node that does not answer again, before it fails."""
SOURCE_TIME_MS_MAX: Final = 253_402_300_800_000
"""The end of the year 9999; no clock can have given a later time."""

# Pipeline: writing back
SINK_CHUNK_ROWS: Final = 2000
"""Rows that the sink sends to a node in one request."""
SINK_CHUNK_BYTES: Final = 2 * MIB
"""Bytes that the sink sends to a node in one request; one row always fits."""

# Pipeline: Spark itself
SPARK_REACH_MS_MAX: Final = 10 * SECOND_MS
"""How long a job waits for the first answer of a Spark Connect server."""
SPARK_END_MS_MAX: Final = 1500
"""How long the Java of Spark has to end when a signal ends the job; then it is killed."""

# Pipeline: filling the lake
LAKE_BATCH_ROWS: Final = 1_000_000
"""Entries of all logs together that one commit to the lake adds."""
LAKE_FILE_ROWS: Final = 20_000
"""Up to this many entries of a day become one file."""
LAKE_FILE_BYTES: Final = 64 * MIB
"""The size that files of the lake are written for."""
LAKE_GROUP_BYTES: Final = 32 * MIB
"""Bytes of rows, before compression, in one row group of a file."""
LAKE_GROUP_ROWS: Final = 100_000
"""Rows in one row group of a file."""
READS_FILES_MAX: Final = 32
"""Files of the table `reads` that the next batch puts together to one."""
INGEST_PORTION_BYTES: Final = 128 * MIB
"""Bytes of entries that a task of ingest holds, sorts and writes at once."""
LAKE_UNFINISHED_MS: Final = 600 * SECOND_MS
"""In an object store, where nothing locks, rows of a batch that is not finished are left alone for
so long: the job that wrote them may still be at work. That job gives up after half of it."""
LAKE_TRIES_MAX: Final = 5
"""How many times a batch is done again because another job changed the lake; then it fails."""
LAKE_EVERY_MS: Final = 2 * SECOND_MS
"""How long after one round that takes in what is new the next one begins, at the earliest."""
LAKE_SMALL_FILES_MAX: Final = 256
"""With so many small files in bronze a server compacts the lake."""
LAKE_LOOK_MS: Final = 10 * SECOND_MS
"""How often logs are asked that did not say by themselves that they have grown."""

LINEAGE_MS_MAX: Final = 10 * SECOND_MS
"""How long a job waits for a server of lineage; then it goes on without it."""

# Pipeline: audits
AUDIT_ROWS_MAX: Final = 1000
"""Rows of each audit and severity that the lake keeps, the worst ones; all of them are counted."""
AUDIT_SHARE_ROWS: Final = 1_000_000
"""Rows of bronze and sightings that one task of an audit looks at."""
AUDIT_PARCEL_ROWS: Final = 200_000
"""Rows that a task of an audit sends to another at once."""
AUDIT_SPANS_MAX: Final = 10_000
"""Spans of an origin or a log in which an audit looks at single rows; more are joined."""
AUDIT_DRIVER_ROWS_MAX: Final = 8_000_000
"""Up to this many rows of bronze and sightings are audited in the driver, without Spark."""
CHECKS_ROWS_MAX: Final = 50_000
"""Results of single audits that the table `checks` keeps; the oldest leave it first."""
DELAY_RANKS: Final = 1000
"""Delays of an hour that a task sends on, at evenly spaced ranks."""
AUDIT_SAMPLE_ROWS: Final = 20
"""Rows of each audit's findings that the report shows; more of them are in the lake."""
HOT_SPOT_OVERRIDES: Final = 10
"""A key that was overridden unseen this many times is reported."""

# Pipeline: snapshots
SNAPSHOT_PART_BYTES: Final = 64 * MIB
"""Bytes of envelopes in one part of a snapshot, before compression; one envelope always fits."""

# Pipeline: folding
FOLD_BUCKETS: Final = 1_024
"""Buckets that the keys of a new or rebuilt silver table fall into: at most so many tasks make it.
A power of two, and at least 64, as older tables have."""
FOLD_FILE_ROWS: Final = 500_000
"""Rows of a silver table that one task makes."""
FOLD_TASK_ROWS_MIN: Final = 50_000
"""Rows for which another task is worth its while, if it can run at the same time."""
FOLD_SHARE_ROWS_MAX: Final = 6_000_000
"""Rows of bronze that one task reads."""
FOLD_SIEVE_BYTES_MAX: Final = 512 * MIB
"""Bytes of keys and times that such a task holds."""
FOLD_SIEVE_ROWS_AT_ONCE: Final = 65_536
"""Changes whose bytes such a task reads together, unless they are large."""
FOLD_TWO_SCANS_ROWS_MIN: Final = 500_000
"""From this many changes on Spark finds the winners of a past state on narrow columns first."""
FOLD_KEYS_AT_ONCE_ROWS_MAX: Final = 100_000_000
"""Up to this many changes every task may hold the set of all winners; beyond it Spark shuffles."""
EXCHANGE_BATCH_BYTES: Final = 64 * MIB
"""Bytes that Spark hands to a Python task at once, where rows move between tasks."""
FOLD_PORTION_BYTES: Final = 64 * MIB
"""Bytes of whole rows that a task of the fold holds, where it reads, moves or writes them."""
SILVER_SMALL_ROWS: Final = 200_000
"""A silver table up to this size is rewritten with every fold, so it is always current."""
SILVER_BEHIND_PERCENT_MAX: Final = 10
"""Increments beyond this share of a larger table are merged into it."""
SILVER_BEHIND_ROWS_MAX: Final = 1_000_000
"""Increments beyond this many rows are merged into it as well."""

# Pipeline: re-embedding
REEMBED_TEXTS_MAX: Final = 256
"""Texts that an embedding model gets at a time."""
REEMBED_ROUND_ROWS: Final = 50_000
"""About this many vectors are made and written before the job notes that they are."""

# The peer bus
BUS_PAYLOAD_BYTES_MAX: Final = 2 * MIB
"""The largest payload of a message on the bus; a larger one is refused."""
BUS_PARCEL_BYTES_MAX: Final = 4 * MIB
"""The largest parcel of signed messages; a receiver refuses a larger one unread."""
BUS_PARCEL_MESSAGES_MAX: Final = 1024
"""The most messages in one parcel."""
BUS_PARCEL_BYTES: Final = 256 * KIB
"""A sender begins another parcel after about this much; one message always fits."""
BUS_NAME_BYTES_MAX: Final = 128
"""The longest name of a topic or a service on the bus; a longer one is refused."""
BUS_HELLO_MS_MAX: Final = HEAD_MS_MAX
"""How long two peers may take to prove their keys on a new connection; then it is closed."""
BUS_STRANGERS_MAX: Final = 64
"""Connections to the bus whose other side has not proved a key; another one pushes out the oldest
of the machine that has the most."""
BUS_WINDOW_BYTES: Final = 512 * KIB
"""What a peer may have under way on one stream of a link before it waits; one frame may exceed
it."""
BUS_PAGES_WINDOW_BYTES: Final = 4 * MIB
"""The same for a stream with pages or objects of a mesh."""
BUS_TRANSPORT_BYTES: Final = 64 * KIB
"""What a link hands to the network before it waits: all that an urgent message has to queue
behind."""
BUS_FRAMES_A_TURN: Final = 256
"""Frames of one link that are handled before it is the others' turn."""
BUS_UNREAD_BYTES_MAX: Final = 8 * MIB
"""What a link holds for a peer that does not read; then the link is closed."""
BUS_PING_MS: Final = 15 * SECOND_MS
"""A link that has heard nothing for this long asks the peer for a sign of life."""
BUS_PONG_MS_MAX: Final = 5 * SECOND_MS
"""How long the peer may take to give one; then the link is closed."""
BUS_CLOSE_MS_MAX: Final = 2 * SECOND_MS
"""How long a link that is closed may take to hand over what was written to it."""
BUS_FIRST_DIAL_MS: Final = 200
"""How much longer the peer with the higher key waits before it dials for the first time."""
BUS_STAGGER_MS: Final = 250
"""A dial that has not answered for this long is joined by one to the peer's next address."""
BUS_STEADY_MS: Final = 5 * SECOND_MS
"""A link that has lived for so long has worked: after its end the peer is dialled soon again."""
BUS_BACK_MS: Final = SECOND_MS
"""The longest wait between two dials of a peer that said goodbye: it may be restarted."""
BUS_BACK_MS_MAX: Final = 30 * SECOND_MS
"""For how long after its goodbye a peer is dialled so often; then the usual waits begin."""
BUS_COPIED_MS: Final = 600 * SECOND_MS
"""For how long it is shown that two processes use one key, after it was certain for the last time.
"""
BUS_LIVES_KEPT: Final = 8
"""Processes that used one key, of which a peer remembers the marks; the oldest goes first."""
BUS_LIVES_KEYS_MAX: Final = 4096
"""Keys of which that is remembered; the one that was linked longest ago goes first."""
BUS_LIVES_BACK: Final = 3
"""So many times in turn processes with one key come back until that alone proves that they are
two."""
BUS_FAULTS_MAX: Final = 32
"""Bad frames and signatures that a peer may send in a row; then its link is closed."""
BUS_FAULT_BACK_MS: Final = 10 * SECOND_MS
"""A peer may send one bad frame more for each such time; until then it is not let in again."""
BUS_NONCES_KEPT: Final = 4096
"""Nonces that a store of the bus remembers, unless it is told otherwise; the oldest goes first."""
BUS_WINDOW: Final = 1024
"""How far behind the highest number of a peer a message may be that came by another carrier."""
BUS_BLOCK: Final = 1000
"""Sequence numbers that a store reserves with one write."""
BUS_SET_BACK_SKIP: Final = 1 << 32
"""Sequence numbers that a store skips when it may have gone back in time."""
BUS_LEAP_MAX: Final = 1 << 48
"""The furthest that a peer may make a sender's numbers leap; a further leap is not believed."""
BUS_LEAP_AGAIN_MAX: Final = 1 << 34
"""The furthest leap from the second one on that the same peer asks for while the bus is bound: this
bus has not gone back meanwhile, and only a copy of its store explains a little of it."""
BUS_OUTBOX_MAX: Final = 10_000
"""Messages that a store in memory keeps for absent peers; then a send is refused."""
BUS_INBOX_MAX: Final = 100_000
"""Messages that a store of the bus keeps for handlers that have not taken them; then the senders
wait. One sender may have as many as it leaves free, so it never fills more than half."""
BUS_INBOX_BYTES_MAX: Final = 512 * MIB
"""Bytes of the bodies of these messages, shared in the same way."""
BUS_IDS_KEPT: Final = 65_536
"""Ids of messages that a store in memory remembers, the oldest goes first; and those that stay
known of one sender after it said that it will not send them again."""
BUS_IDS_MAX: Final = 1_000_000
"""Ids that a durable store remembers of a sender that never says what it will not send again."""
BUS_SETTLE_EVERY: Final = 16_384
"""After so many delivered messages a sender says which ones may still come again."""
BUS_SETTLED_IDS_MAX: Final = 1024
"""The most ids in such a word; while more wait, nothing is said."""
BUS_ID_MARGIN_MS: Final = HOUR_MS
"""How much longer the id of a message stays known than its sender may send it again."""
BUS_TTL_MS: Final = 7 * DAY_MS
"""How long a message waits for an absent peer, unless its sender says otherwise."""
BUS_TTL_MS_MAX: Final = 90 * DAY_MS
"""The longest that a message may wait; more is refused."""
BUS_RESOLVE_MS: Final = 5 * SECOND_MS
"""How long a send looks for a peer that is not connected before it only keeps the message."""
BUS_REQUEST_MS: Final = 30 * SECOND_MS
"""How long a request waits for its reply, unless its caller says otherwise."""
BUS_BUFFER: Final = 256
"""Messages that a subscription holds for a slow reader; then the senders wait."""

# The store over the bus
BUS_WORD_MS: Final = 20
"""After a change a node waits about this long before it tells its neighbours what it has: one word
tells of all changes meanwhile."""
BUS_ASK_MS: Final = 200
"""How long a node waits for what it asked one neighbour for before it asks another one."""
BUS_MESHES_TOLD_MAX: Final = 64
"""How often in a row a peer may say which meshes it shares; each time all streams are told."""
BUS_MESHES_TOLD_MS: Final = SECOND_MS
"""After so long it may once more."""
BUS_RELAY_MS: Final = 2 * SECOND_MS
"""What came over the bus waits about this long before a node that may relay hands it to a broker:
its origin, or another node that relays, may be faster."""
BUS_STORE_MS: Final = 5 * SECOND_MS
"""How long a page that came from a neighbour may take to be stored, with the objects that it names,
before another neighbour is asked for what it holds."""
BUS_STREAMS_MAX: Final = 4096
"""Streams that a node keeps count of for one link; a peer that tells of more is refused."""
BUS_EPOCHS_MAX: Final = 256
"""Streams of one origin in one mesh that peers may bring: a home that was restored more often is
refused, and one peer cannot fill what all nodes tell each other."""
BUS_KNOWN_RANGES_MAX: Final = 65_536
"""Ranges that a node remembers of what the peer of one link has; beyond that it remembers less, and
sends some things twice."""
BUS_WORDS_WAITING_MAX: Final = 4096
"""Words that wait for a peer that takes none; then nothing more is exchanged on its link."""
BUS_QUESTIONS_MAX: Final = 64
"""Questions of one peer about digests that wait for an answer; it needs one at a time."""
BUS_PAGES_WAITING_MAX: Final = 32_768
"""Pages of one peer that wait to be stored; only tiny ones get so many into their window."""
BUS_WORD_STREAMS_MAX: Final = 512
"""Streams in one word about what a node has; more take several words."""
BUS_WORD_RANGES_MAX: Final = 1024
"""Ranges of one stream in a word; what lies beyond them follows in the next one."""
BUS_WORD_RANGES_ALL: Final = 32_768
"""After about this many ranges a word about several streams ends, and another one follows: it has
to fit into a frame."""
BUS_ASK_RANGES_MAX: Final = 256
"""Ranges of one stream in one request for entries."""
BUS_OWED_RANGES_MAX: Final = 4096
"""Ranges that one peer may have asked for and not got yet; a request beyond that is refused."""
BUS_PAGE_ROWS: Final = 4000
"""Entries in one page of a mesh on a link."""
BUS_PAGE_BYTES: Final = 1 * MIB
"""A page of a mesh ends after about this much; one entry always fits."""
BUS_OBJECT_BYTES: Final = 1 * MIB
"""Bytes of an object that are asked for at a time on a link."""
BUS_COMPARE_BLOCK: Final = 1024
"""Numbers of a stream whose digests are compared together."""
BUS_COMPARE_BLOCKS: Final = 64
"""Blocks of a stream in one comparison."""
BUS_SNAPSHOT_MS: Final = 5 * SECOND_MS
"""How long a node that lacks what a peer has truncated waits for somebody who still has it, before
it takes a snapshot."""
BUS_SNAPSHOT_PATIENCE_MS: Final = 30 * SECOND_MS
"""A peer that owes a part of a snapshot for longer is given up, and another one is asked."""
BUS_SNAPSHOT_PIECES: Final = 50
"""Pieces of an export that are looked through for one answer about a snapshot."""
BUS_SNAPSHOT_PLACE_BYTES: Final = 4 * KIB
"""What a source calls a place in its snapshot."""
BUS_PEER_HOLD_MS: Final = 1 * SECOND_MS
"""How long after a peer was heard of its place in the log is moved, for all that came meanwhile."""
BUS_PEER_RETIRE_MS: Final = 30 * DAY_MS
"""The log keeps entries for a peer of a mesh that has not been heard of for this long; then it
forgets the peer's place."""
BUS_PEER_LAG_MAX: Final = 10_000_000
"""The log keeps at most about this many entries for a peer of a mesh that lags behind."""
BUS_CAPABILITY_DEPTH_MAX: Final = 4
"""Steps of a capability: it can be passed on three times; a longer one is refused."""
BUS_CAPABILITY_SCOPES_MAX: Final = 16
"""The most scopes of one step of a capability; more are refused."""
BUS_CAPABILITY_BYTES_MAX: Final = 4 * KIB
"""The largest capability; a larger one is refused unread."""
BUS_CAPABILITY_MS: Final = 30 * DAY_MS
"""How long a capability is good for unless its issuer says otherwise; members renew it in time."""
BUS_CAPABILITY_MS_MAX: Final = 366 * DAY_MS
"""The longest time that a capability can be good for; more is refused."""
BUS_CAPABILITIES_MAX: Final = 1024
"""Capabilities that a node remembers, given and held; those that have ended make room."""
BUS_CLOCK_SKEW_MS: Final = 300 * SECOND_MS
"""How far the clocks of two peers may be apart before ends of capabilities are judged wrongly."""
BUS_ADDRESSES_MAX: Final = 8
"""Addresses that a node remembers and tries of a peer; the one that was good longest ago goes."""
"""Addresses that a node remembers of a peer; the one that was good longest ago goes first."""
BUS_PORT: Final = 7412
"""The port of the bus where an address names none."""
BUS_MEMBERS_MAX: Final = 1024
"""The most members of a mesh without a broker, and removed keys that its list remembers."""
BUS_MEMBER_LIST_BYTES_MAX: Final = 512 * KIB
"""The largest list of the members of a mesh without a broker; a larger one is refused."""
BUS_CAPABILITIES_SHOWN_MAX: Final = 16
"""The most capabilities of a peer that are looked at when it connects; the rest is not."""
BUS_JOIN_MS: Final = 30 * SECOND_MS
"""How long a newcomer looks for the owner of a mesh without a broker, and waits for its answer."""
BUS_INVITES_MAX: Final = 256
"""The most open invites of a mesh without a broker; another one is refused."""
BUS_SUCCESSIONS_MAX: Final = 8
"""The most changes of its key that a node can prove; who knew only an older one is lost to it."""
BUS_HEAD_BYTES: Final = 2 * KIB
"""Of a payload so much is left for topic, content type and the like; the rest is for the body."""
BUS_SIGNED_EACH_MAX: Final = 64
"""The most messages in a parcel whose messages are signed one by one."""
BUS_FRONTS_KEPT: Final = 256
"""The fronts of parcels that are remembered: a peer says the same again and again."""
BUS_GROUP_BYTES: Final = MIB
"""A receiver checks and stores about this much of one peer at a time, then it is others' turn."""
BUS_LANE_ROWS: Final = 512
"""Messages that a sender reads at a time of those that wait for a peer; it reads more when fewer
are left in memory."""
BUS_LANE_BYTES: Final = 4 * MIB
"""While messages of this size wait in memory for room on a link, no more are read, and no more at a
time: one message at least."""
BUS_INBOX_PAGE_BYTES: Final = 4 * MIB
"""So much of the inbox is read at a time: one message at least."""
BUS_BUFFER_BYTES: Final = 16 * MIB
"""A subscription that holds this much has no room, however few messages that are; neither has a
program that has not acknowledged as much, nor a service that handles requests of this size."""
BUS_BEYOND_MAX: Final = 32_768
"""Published messages of one peer that wait beyond the buffer of a subscription; more are dropped.
One link brings fewer: its windows are full before."""
BUS_BEYOND_BYTES_MAX: Final = 32 * MIB
"""Bytes of the bodies of these."""
BUS_LANE_URGENT: Final = 64
"""Messages that are read nevertheless, of a priority of which none is in memory."""
BUS_RELAY_HOPS_MAX: Final = 4
"""So many peers pass a message of a topic on before it ends."""
BUS_RELAY_GIVEN_MAX: Final = 64
"""Peers that a passed message names as having it; beyond that some get a copy in vain."""
BUS_RELAY_WAITING_MAX: Final = 256
"""Messages of one origin that wait to be passed on over one link; more are dropped, and counted."""
BUS_RELAY_WAITING_BYTES: Final = 1 * MIB
"""Bytes of these, of one origin; of all origins four times as much."""
BUS_REQUESTS_MAX: Final = 10_000
"""Requests that a peer may have outstanding; one more is refused."""
BUS_REPLIES_KEPT: Final = 4096
"""Replies that a peer remembers, so that a request that comes again is not done again."""
BUS_REPLY_BYTES_KEPT: Final = 16 * MIB
"""Bytes of these replies; the oldest goes first."""
BUS_SERVE_MAX: Final = 64
"""Requests of one service that are handled at the same time, unless its server says otherwise."""
BUS_INTERESTS_MAX: Final = 1024
"""Topics and services, each, that one peer may listen to or serve; one more is refused."""
BUS_ANNOUNCE_MS: Final = 50
"""A peer is told what this one listens to and serves at once, and again after so long at the
earliest: what changes meanwhile is told together."""
BUS_ACK_MS: Final = 25
"""How long the acknowledgement of something that nobody waits for, a request or a reply, may wait
for others to go with."""
BUS_TIDY_MS: Final = 5
"""How long the word to the store that rows of the outbox are done with may wait for others: after a
kill, a request that was answered meanwhile is outstanding again."""
BUS_FINISH_MS: Final = 50
"""How long the word to the store that handlers have finished with messages may wait for another
write to go with: after a kill, they are handed out again."""
BUS_TIDY_ALONG: Final = 16
"""So many messages that are done with go with the next write; fewer wait for that time."""
BUS_CLOCK_NOTED_MS: Final = HOUR_MS
"""How often a bus writes down what the clock shows, so that its next process notices a leap."""
BUS_SWEEP_MS: Final = 60 * SECOND_MS
"""How often messages are removed that waited for an absent peer for longer than they may."""
BUS_RIGHTS_MS: Final = 60 * SECOND_MS
"""How often a member looks whether a right that an owner gave it has to be renewed."""
BUS_LIFE_LOOK_MS: Final = SECOND_MS
"""How often a link looks whether the sign of life has come that it has asked for."""
BUS_LATE_MS: Final = 100
"""A look that is this late tells that the process stood still; the peer has as much longer."""
BUS_IN_HAND_RANGES_MAX: Final = 64
"""Ranges of one stream that are being stored, and of which a node remembers that nobody else has to
be asked for them."""
BUS_SNAPSHOT_BARREN_MAX: Final = 16_384
"""Parts of a snapshot in a row that bring nothing new; after that another peer is asked for one."""
BUS_SNAPSHOT_ROWS_MAX: Final = 100_000_000
"""Changes in one snapshot over the bus; a longer one is refused."""
BUS_COMPARISONS_MAX: Final = 16
"""How often in a row a peer may make this node look through a stream, by telling another digest of
it each time."""
BUS_COMPARISONS_MS: Final = 10 * SECOND_MS
"""After that once in this time."""
BUS_TOLD_RANGES_A_TURN: Final = 4096
"""Ranges of streams that are looked at in one turn of the loop because one peer told of them; then
it is others' turn."""
# Finding peers on a local network
BUS_NAMES_WAITING_MAX: Final = 1024
"""Names of known peers that wait to be resolved; the oldest is dropped for one more."""
BUS_RESOLVES_MAX: Final = 8
"""How often in a row the address of one peer is looked up."""
BUS_RESOLVE_EVERY_MS: Final = 5 * SECOND_MS
"""After that it is looked up once in this time, whatever is heard of it."""
BUS_RESOLVING_MAX: Final = 8
"""Peers whose addresses are looked up at a time."""
BUS_RESOLVING_MS: Final = 3 * SECOND_MS
"""How long a lookup on the local network waits for an answer."""
BUS_CANDIDATES_MAX: Final = 16
"""Addresses of one peer that are announced or dialled."""
BUS_BROWSE_MS: Final = 10 * SECOND_MS
"""After this time the local network is asked again for peers that nothing was heard of."""
BUS_BROWSE_MS_MAX: Final = 300 * SECOND_MS
"""The time doubles with each question, up to this."""
BUS_RECORDS_MAX: Final = 20_000
"""Records of mDNS that a node listens to in a span; then it stops listening for a while."""
BUS_RECORDS_MS: Final = 10 * SECOND_MS
"""The span in which they are counted."""
BUS_DEAF_MS: Final = 60 * SECOND_MS
"""How long it does not listen then."""
BUS_INTERFACES_MS: Final = 5 * SECOND_MS
"""How often a machine's addresses are looked at where the system does not tell of changes."""
BUS_SETTLE_MS: Final = 200
"""Changes of addresses that come within this time are taken together."""
BUS_HOLDER_MS: Final = 3 * SECOND_MS
"""How long a process waits for another one that holds the bus of the same home."""
BUS_SEEN_MS: Final = 60 * SECOND_MS
"""How often a node notes at most that a peer was reached where it was reached before."""
BUS_REPLY_MARGIN_MS: Final = 5 * SECOND_MS
"""How much longer than a request itself the process waits that asked its daemon for it."""
BUS_FINISHED_KEPT: Final = 4096
"""Finished messages that a bus remembers by number, so that no subscription gets them again."""

# The quorum: consensus of a group
QUORUM_VOTERS_MAX: Final = 7
"""Voters of one group; one more is refused."""
QUORUM_MEMBERS_MAX: Final = 64
"""Members of one group, learners among them; one more is refused."""
QUORUM_ID_MAX: Final = 1 << 32
"""The highest id of a member; ids are never given out again."""
QUORUM_IDS_PER_INCARNATION: Final = 4096
"""Ids of a group that takes over from another engine begin so many above those of the incarnation
before. A node that had one of them in an earlier group would be refused under it (VoterReused)."""
QUORUM_TERM_MAX: Final = (1 << 62) - 1
"""The highest term of any group; a message with a higher one is refused."""
QUORUM_TERM_SPAN: Final = 1 << 53
"""By so many terms each incarnation of a mesh may go further than the one before it: where a liar
has used them up, a recovery begins with as many again, and the lease epoch never falls. A message
of a term beyond those of the incarnation is not heard."""
QUORUM_TERM_LEAP_MAX: Final = 1 << 32
"""By so much a term rises at once; a message of a later one raises it by this, and is not handled
otherwise: no honest voter counts so fast."""
QUORUM_TERM_STEP_MAX: Final = 1024
"""By more than this a term rises only once in an election timeout."""
QUORUM_INDEX_MAX: Final = (1 << 63) - 1
"""The highest index of a log, and the highest number of a round."""
QUORUM_APPEND_BYTES_MAX: Final = 256 * KIB
"""Payload of one AppendEntries; a larger entry goes alone."""
QUORUM_APPEND_ENTRIES_MAX: Final = 1024
"""Entries of one AppendEntries; more go in further ones."""
QUORUM_WINDOW_ENTRIES: Final = 4096
"""Entries that may be under way to one member before it acknowledges any."""
QUORUM_MESSAGE_BYTES_MAX: Final = 8 * MIB
"""The longest message of a voter; a longer one is refused."""
QUORUM_PROPOSALS_MAX: Final = 1024
"""Proposals that are forwarded or proposed at a time."""
QUORUM_UNCOMMITTED_MAX: Final = 16_384
"""Entries that a leader has appended and not committed; further proposals are held."""
QUORUM_MEMBER_ENTRIES_MAX: Final = 4096
"""Of these, entries that one member has proposed; its further ones are held."""
QUORUM_MEMBER_PROPOSED_BYTES: Final = 16 * MIB
"""And their bytes, beside one message that may be larger."""
QUORUM_OPEN_MAX: Final = 16_384
"""Proposals that callers of one node wait for; one more is refused (TooMany)."""
QUORUM_OPEN_BYTES: Final = 64 * MIB
"""And their bytes."""
QUORUM_UNSYNCED_MAX: Final = 8192
"""Writes that the disk of a voter has not acknowledged; it hears nothing more until it has."""
QUORUM_UNSYNCED_BYTES: Final = 64 * MIB
"""Bytes of entries that the disk of a voter has not acknowledged; it takes no more until it has."""
QUORUM_READS_MAX: Final = 32
"""Numbers of reads of one member that wait for a leader's confirmation; one more is refused."""
QUORUM_READS_ASKED: Final = 8
"""Numbers of reads that a member asks its leader for at a time. Callers share them, and those that
come later share the next one: whoever has waited longest is asked for first."""
QUORUM_OPEN_READS_MAX: Final = 16_384
"""Callers of one node that wait for a confirmation; one more is refused (TooMany)."""
QUORUM_PROMOTE_LAG_MAX: Final = 64
"""So many entries may a learner lack when it is promoted to voter."""
QUORUM_PROPOSED_BYTES: Final = MIB
"""What a driver proposes at a time, if it is more than one envelope."""
QUORUM_CACHE_BYTES: Final = 4 * MIB
"""Payloads of the newest entries that a driver keeps in memory, per group."""
QUORUM_SEND_BYTES: Final = MIB
"""What a driver reads at a time for a member that lags."""
QUORUM_FOLD_BYTES: Final = MIB
"""What a driver hands to the fold at a time."""
QUORUM_FOLD_ENTRIES: Final = 512
"""So many committed entries are folded at once, also where nobody waits for them."""
QUORUM_FOLD_WAIT_MS: Final = 50
"""So long fewer of them wait for more, where nobody waits for them."""
QUORUM_WORD_WAIT_MS: Final = 20
"""So long the word that something is committed waits for entries that tell it too, where the member
has no callers who wait for it."""
QUORUM_TICK_MS: Final = 100
"""The heartbeat of a group; an election takes 10 to 20 of them."""
QUORUM_STALL_TICKS: Final = 5
"""A loop that ran so many ticks late has stood still: what waits on the links is read before anyone
concludes anything from a silence."""
QUORUM_STALL_TURNS: Final = 3
"""How often it reads them, then."""
QUORUM_OFFER_TICKS: Final = 10
"""A member that does not answer yet is told so often that it belongs to a group."""
QUORUM_WORDS_MAX: Final = 4096
"""Messages of groups in one frame between two nodes."""
QUORUM_WORDS_BYTES: Final = 256 * KIB
"""And their bytes, beside one message that may be larger."""
QUORUM_COSTS_A_TURN: Final = 32
"""Messages of one voter that are handled before it is the others' turn; meanwhile nothing more of
it is read."""
QUORUM_ENTRIES_A_COST: Final = 8
"""So many entries or proposals in a message count as one more message."""
QUORUM_OFFER_COSTS: Final = 16
"""An offer to vote counts as so many messages."""
QUORUM_ALARMS_MAX: Final = 16
"""Alarms of one kind that a group writes to the log in a row; further ones are counted."""
QUORUM_ALARM_MS: Final = 10 * SECOND_MS
"""After so long it may write one more."""
QUORUM_STRAYS_MAX: Final = 16_384
"""Messages of groups that this node does not know, from one voter in a second; with more it is
blamed, frame by frame, until its link is closed."""
QUORUM_QUEUE_BYTES: Final = 4 * MIB
"""What waits for room on a link to a voter; what is more is dropped, and sent again later."""
QUORUM_CHANGE_MS: Final = 30 * SECOND_MS
"""How long a change of the voters waits to be done, unless its caller says otherwise."""
QUORUM_TAIL_ENTRIES: Final = 10_000
"""Entries that a log keeps although all voters have them: for members that were away shortly."""
QUORUM_TAIL_BYTES: Final = 64 * MIB
"""Of these entries so many bytes at most."""
QUORUM_HELD_ENTRIES: Final = 1_000_000
"""Entries that a leader keeps for a voter that lacks them; one that lacks more gets a snapshot."""
QUORUM_HELD_BYTES: Final = 1024 * MIB
"""Bytes of entries that a leader keeps for a voter that lacks them."""
QUORUM_COMPACT_ENTRIES: Final = 1_000
"""A log is shortened when so many entries can go, or so many bytes as the next limit says."""
QUORUM_COMPACT_BYTES: Final = 8 * MIB
"""Bytes of entries that can go, so that a log is shortened."""
QUORUM_SNAPSHOT_BYTES_MAX: Final = 64 * 1024 * MIB
"""The largest snapshot of a group that is taken in; a larger one is refused."""
QUORUM_PAGE_BYTES: Final = 128 * KIB
"""About so many bytes of rows make one page of a snapshot of what was committed."""
QUORUM_PAGE_BYTES_MAX: Final = 64 * MIB
"""The largest page of such a snapshot: one row may be as large as an envelope with its record."""
QUORUM_STAGE_ROWS: Final = 500
"""Rows of a snapshot that are stored in one transaction, before it takes its place."""
QUORUM_SNAPSHOT_STALL_TICKS: Final = 100
"""After so many ticks without a word of its receiver a snapshot is given up, and a receiver that
has refused one gets the next."""
QUORUM_SNAPSHOT_RESEND_TICKS: Final = 10
"""After so many ticks without an answer a part of a snapshot is sent again."""
COMMIT_PAGE_ROWS: Final = 512
"""Commits in one page for a node without a vote; a page with more is refused."""
COMMIT_PAGE_BYTES: Final = 512 * KIB
"""A page of commits ends with the one that makes it so large. The last one may be large itself."""
COMMIT_PAGE_BYTES_MAX: Final = COMMIT_PAGE_BYTES + ENVELOPE_BYTES_MAX + MIB
"""The largest page of commits that is read; a larger one is refused."""
COMMIT_RECORD_BYTES_MAX: Final = 64 * KIB
"""The longest record of a commit; a page with a longer one is refused."""
COMMIT_TROUBLES_KEPT: Final = 16
"""Commits of a mesh about which this node and others disagree that are kept for the doctor; the
first ones, because the rest follows from them."""
COMMIT_TELL_MS: Final = 10
"""How often a node tells its neighbours how far it is in the commits of a busy quorum."""
COMMIT_TELL_VOTERS_MS: Final = SECOND_MS
"""How often it tells that to neighbours that all vote: an engine of their own is faster."""
COMMIT_ASK_MS: Final = 30 * SECOND_MS
"""How long a member waits for a page of commits before it asks another one."""
COMMIT_COMPARE_MS: Final = 5 * SECOND_MS
"""How often a voter compares its order of a mesh with that of one neighbour, while that grows."""
COMMIT_STATE_REUSE_MS: Final = 600 * SECOND_MS
"""How long a node gives the same object as the committed state of a mesh, before it makes a new
one. A sweep removes it an hour after it was made (`BLOB_ORPHAN_AGE_MS`)."""
FORWARD_TRY_MS: Final = 5 * SECOND_MS
"""How long one voter may take to answer a proposal that a member without a vote forwards, before
the next one is asked. The same id is committed once, whoever is asked."""
PROPOSED_ENVELOPE_BYTES_MAX: Final = 1 * MIB + 512 * KIB
"""The largest envelope that a member may have proposed by a voter: an intent, with its head. What
is committed has to fit into a message of the bus, with its record."""
FORWARDED_MAX: Final = 64
"""Proposals, and confirmations, that a voter works on for one member at a time; further ones are
refused (TooMany). A member asks for no more at a time."""
FORWARDED_BYTES_MAX: Final = 8 * MIB
"""And the bytes of these proposals; so one member takes no more than half of what a service of the
bus holds."""
FORWARDED_ALL_MAX: Final = 1024
"""Proposals, and confirmations, that a voter works on for all members; further ones wait."""
# The quorum: intents, entities, leases
INCARNATION_MAX: Final = 2**31 - 1
"""The highest incarnation of a group of voters; it grows only by recovery or a change of engine."""
INTENT_OPERATIONS_MAX: Final = 32
"""Entities that one intent may change; more are refused. An etcd with its defaults takes 128
comparisons in one transaction, and each of these may need three."""
INTENT_BYTES_MAX: Final = 1 * MIB
"""The largest body of an intent; a larger one is refused. An etcd takes 1.5 MiB in a request."""
ENTITY_BYTES_MAX: Final = 256 * KIB
"""The largest entity, as JSON; a change that makes it larger is refused."""
ENTITY_ID_BYTES_MAX: Final = 256
"""The longest id of an entity; a longer one is refused."""
ENTITY_FIELDS_MAX: Final = 256
"""Fields of one entity, not counting what is nested in them; more are refused."""
TASK_DEPENDENCIES_MAX: Final = 64
"""Tasks that one task may depend on; more are refused."""
TASK_STEPS_MAX: Final = 256
"""Steps of one task; more are refused."""
DEPENDENCY_WALK_MAX: Final = 1024
"""Tasks that are looked at to find out whether a new dependency closes a circle; a change that
needs more is refused, so that no write costs more than this."""
LEASE_NAME_BYTES_MAX: Final = 256
"""The longest name of a user's lease; a longer one is refused."""
LEASE_TTL_MS_MIN: Final = 1 * SECOND_MS
"""The shortest time to live of a lease; a shorter one is refused."""
LEASE_TTL_MS_MAX: Final = 24 * HOUR_MS
"""The longest time to live of a lease; a longer one is refused."""
LEASE_WAITERS_MAX: Final = 1024
"""Who may wait for one lease; one more is refused (LeaseHeld)."""
HANDOFF_TASKS_MAX: Final = 1000
"""Tasks of a lost node that are handed over by one plan; the rest follows with the next."""
AUDIT_STREAM_BYTES_MAX: Final = 128
"""The longest name of an audit stream; a longer one is refused."""
AUDIT_EVENT_BYTES_MAX: Final = 256 * KIB
"""The largest event of an audit stream, as JSON; a larger one is refused."""
AUDIT_PAGE_ROWS: Final = 200
"""Events of an audit stream in one answer over HTTP, unless the caller asks for fewer."""
AUDIT_GAPS_SHOWN_MAX: Final = 20
"""Gaps of one chain that a verification names; more are counted only."""
TELEMETRY_KIND_BYTES_MAX: Final = 128
"""The longest kind of telemetry; a longer one is refused."""
TELEMETRY_BYTES_MAX: Final = 64 * KIB
"""The largest value of telemetry, as JSON; a larger one is refused."""
TELEMETRY_ROWS_MAX: Final = 10_000
"""Values of telemetry of one mesh on a node; where none is past its time, one more is refused."""
TELEMETRY_TTL_MS: Final = 24 * HOUR_MS
"""How long telemetry is kept, unless its writer says otherwise."""
TELEMETRY_TTL_MS_MAX: Final = 30 * DAY_MS
"""The longest time to live of telemetry; a longer one is refused."""
TELEMETRY_PAGE_ROWS: Final = 200
"""Values of telemetry in one answer over HTTP, unless the caller asks for fewer."""
AUTH_PROVIDERS_MAX: Final = 256
"""Providers in one snapshot of auth material; more are refused."""
AUTH_SECRET_BYTES_MAX: Final = 64 * KIB
"""The longest key or token in a snapshot of auth material; a longer one is refused."""
QUORUM_LOST_AFTER_MS: Final = 60 * SECOND_MS
"""How long a node is silent before a quorum may declare it lost, unless its mesh has a setting."""
QUORUM_COMMIT_MS: Final = 5 * SECOND_MS
"""How long a strong write waits for a quorum before it is queued or refused, and a read for its
confirmation, unless its caller or the settings say otherwise; a try of a write that waits has as
long."""
QUORUM_WAIT_MS_MAX: Final = 10 * 60 * SECOND_MS
"""The longest time that a caller may give a strong write, a read or the wait for a lease."""
QUORUM_ABANDON_MS: Final = 2 * SECOND_MS
"""How long it is tried to give up a write whose outcome is unknown, where none may be queued."""
QUORUM_SNAPSHOT_MS: Final = 30 * SECOND_MS
"""How often a node records what it last knew of a mesh while its reads are fresh: degraded reads
name that snapshot."""
QUORUM_DUTIES_AT_ONCE: Final = 256
"""Leases that a coordinator lets expire, or tasks that it hands over, at a time; the rest
follows."""
READ_INTENTS_MAX: Final = 4096
"""Intents that a node has made and not folded yet, and that it keeps as it has read them."""
READ_INTENTS_BYTES_MAX: Final = 4 * MIB
"""And their bytes."""
LEASE_TTL_MS: Final = 30 * SECOND_MS
"""How long a lease lasts without a renewal, unless its holder asks for another time."""
LEASE_RENEW_PAUSE_MS: Final = 200
"""How long a holder waits after a renewal that found no quorum before it sends the next."""
QUORUM_PAGE_ROWS: Final = 500
"""Entities, revisions, leases, writes or conflicts in one answer; more come with the next."""
QUORUM_CONFLICTS_OPEN_MAX: Final = 1000
"""Conflicts of a mesh that wait for a decision on a node; when more come, the oldest are settled:
what is committed stands."""
QUORUM_CONFLICTS_COUNTED: Final = 1000
"""So far the conflicts that wait are counted for a status."""
LEASE_GRACE_MS: Final = 10 * SECOND_MS
"""How long a command that lost its lease may take to end before it is killed."""
SYNC_ENVELOPES_MAX: Final = 100
"""Envelopes in one call of the source's mesh sync; more are refused."""
# etcd as the quorum
ETCD_ENDPOINTS_MAX: Final = 16
"""Members of an etcd that an address may name; more are refused."""
ETCD_CONNECTIONS_MAX: Final = 64
"""Connections to one member of an etcd; further calls wait for one of them."""
ETCD_TRY_MS_MAX: Final = 1 * SECOND_MS
"""How long one member of an etcd may take for a call before another one is asked: by itself it
would take 7 s to say that there is no leader."""
ETCD_PAUSE_MS_MIN: Final = 20
"""How long a call waits when every member of an etcd has failed it once."""
ETCD_PAUSE_MS_MAX: Final = 500
"""The pause doubles with every further round, up to this."""
ETCD_ANSWER_BYTES_MAX: Final = 32 * MIB
"""The largest answer that is read from an etcd; a larger one is refused (BadAnswer)."""
ETCD_LINE_BYTES_MAX: Final = 16 * MIB
"""The longest line of a watch; a longer one ends the watch. etcd cuts its lines at about 3 MiB, and
at more only if it is told to take larger requests."""
ETCD_ENTRY_BYTES_MAX: Final = MIB + 64 * KIB
"""The largest entry that is appended to an etcd (BodyTooLarge): the largest intent fits with its
envelope, and etcd takes requests of 1.5 MiB."""
ETCD_FETCH_MAX: Final = 16
"""Entries that one call to an etcd asks for: of the largest ones an answer has room for these."""
ETCD_PAGE_KEYS: Final = 1000
"""Keys of an etcd that are listed by one call."""
ETCD_LISTED_MAX: Final = 100_000
"""Keys that a follower which lags behind a compaction holds at a time; for more it lists again."""
ETCD_DELETES_MAX: Final = 100
"""Entries that one transaction forgets: etcd takes 128 operations."""
ETCD_QUIET_MS: Final = 5 * SECOND_MS
"""A watch that was silent for so long is compared with the end of the order, by a read."""
ETCD_BEAT_MS: Final = 5 * SECOND_MS
"""How often a node that coordinates an order in an etcd says that it is alive, and how often the
others look."""
ETCD_LOST_MS: Final = 15 * SECOND_MS
"""How long a coordinator in an etcd may say nothing before another node takes over. Writes go on
meanwhile; only leases do not expire, and nobody is found to be lost."""
ETCD_BASES_MAX: Final = 256
"""Incarnations that one order in an etcd can have had; a recovery beyond that is refused."""
# agents
MCP_ROWS_DEFAULT: Final = 50
"""Rows that a tool answers with, unless an agent asks for another number."""
MCP_ROWS_MAX: Final = 500
"""And at most; more are refused, and come page by page."""
MCP_ANSWER_BYTES_MAX: Final = 512 * KIB
"""What the rows of one answer to an agent may have; a list is cut there, and one thing that is
larger is refused. A model reads all of it."""
MCP_FILE_BYTES_MAX: Final = 128 * KIB
"""How much of a file one answer to an agent brings; the rest comes with the next."""
MCP_FILE_READ_BYTES_MAX: Final = 32 * MIB
"""The largest file that an agent reads from; a larger one is for the holdfast command."""
MCP_BODY_BYTES_MAX: Final = 4 * MIB
"""The largest message of an agent over HTTP; a larger one is refused."""
MCP_CALLS_AT_ONCE_MAX: Final = 16
"""Calls of agents that one server works on at once; more wait for one of them to end."""
MCP_SESSIONS_MAX: Final = 1000
"""Sessions of agents that are open in a daemon (only the older protocol has any); another is
refused."""
MCP_SESSION_IDLE_MS: Final = 30 * 60 * SECOND_MS
"""A session that nobody has used for so long ends."""
MCP_STREAMS_MAX: Final = 1000
"""Streams of updates to agents that are open in a daemon; another is refused."""
MCP_SUBSCRIPTIONS_MAX: Final = 1000
"""Resources that the agents of one server follow; another is refused."""
MCP_ASKING_MS_MAX: Final = 10 * 60 * SECOND_MS
"""How long a person may think before an agent's call that needs a yes is given up."""
MCP_COMPLETIONS_MAX: Final = 100
"""Values that complete an argument: the protocol allows no more."""
MCP_RETRY_MS: Final = 1 * SECOND_MS
"""How long the feed of updates waits before it looks for its daemon again."""
