-- The ground: who we are, the meshes with their clocks, the log, its readers.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per mesh, with its Lamport clock and the count of our own envelopes: a local event moves both in one UPDATE.
CREATE TABLE mesh (
  slug              TEXT PRIMARY KEY,
  name              TEXT NOT NULL,
  kind              TEXT NOT NULL CHECK (kind IN ('personal', 'shared_owner', 'shared_guest')),
  created_at        INTEGER NOT NULL,
  updated_at        INTEGER NOT NULL,
  last_sync_at      INTEGER,
  sync_paused       INTEGER NOT NULL DEFAULT 0 CHECK (sync_paused IN (0, 1)),
  lamport           INTEGER NOT NULL DEFAULT 0 CHECK (lamport >= 0),
  seq               INTEGER NOT NULL DEFAULT 0 CHECK (seq >= 0),
  -- Tombstones up to this lamport may have been removed; an older write from outside is refused.
  forgotten_lamport INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Offsets are row numbers: max + 1, so they have no gaps. Truncation always leaves the last entry, which keeps the count.
CREATE TABLE log (
  offset      INTEGER PRIMARY KEY,
  id          BLOB NOT NULL UNIQUE,
  mesh        TEXT NOT NULL,
  op          TEXT NOT NULL,
  entity      TEXT NOT NULL,
  origin      TEXT NOT NULL,
  lamport     INTEGER NOT NULL,
  recorded_at INTEGER NOT NULL,  -- our wall clock, never running backwards along the log
  raw         BLOB NOT NULL      -- the envelope's canonical bytes
) STRICT;
CREATE INDEX log_entity ON log (mesh, entity);

-- Ids of truncated entries. While an entry stands, the log itself is the dedupe table.
CREATE TABLE forgotten (
  id           BLOB PRIMARY KEY,
  offset       INTEGER NOT NULL,
  fingerprint  BLOB NOT NULL,
  truncated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX forgotten_age ON forgotten (truncated_at);

CREATE TABLE consumer (
  name       TEXT PRIMARY KEY,
  frontier   TEXT NOT NULL,  -- what it has confirmed, as rules/frontier.py writes it
  created_at INTEGER NOT NULL,
  seen_at    INTEGER NOT NULL,
  retire_ms  INTEGER  -- retired by the sweep when it has not confirmed for so long; NULL: never
) STRICT, WITHOUT ROWID;

-- Where long work has got to, so that it goes on after a crash.
CREATE TABLE job (
  name       TEXT PRIMARY KEY,
  cursor     TEXT NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
