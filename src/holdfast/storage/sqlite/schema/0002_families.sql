-- What the log folds to. Every row keeps the version of the change that made it (lamport, peer, id) as its origin gave
-- it, and the offset of that change in our log.

CREATE TABLE state (
  mesh       TEXT NOT NULL REFERENCES mesh (slug),
  key        TEXT NOT NULL,
  value      TEXT NOT NULL,  -- JSON text; 'null' in a tombstone
  lamport    INTEGER NOT NULL,
  peer       TEXT NOT NULL,
  id         BLOB NOT NULL,
  offset     INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  tombstone  INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (mesh, key)
) STRICT;
CREATE INDEX state_dead ON state (mesh, offset) WHERE tombstone = 1;

CREATE TABLE memory (
  mesh       TEXT NOT NULL REFERENCES mesh (slug),
  owner      TEXT NOT NULL,
  key        TEXT NOT NULL,
  value      TEXT NOT NULL,
  tags       TEXT NOT NULL,  -- JSON list
  lamport    INTEGER NOT NULL,
  peer       TEXT NOT NULL,
  id         BLOB NOT NULL,
  offset     INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  tombstone  INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (mesh, owner, key)
) STRICT;
CREATE INDEX memory_key ON memory (mesh, key) WHERE tombstone = 0;
CREATE INDEX memory_dead ON memory (mesh, offset) WHERE tombstone = 1;

CREATE TABLE file (
  mesh       TEXT NOT NULL REFERENCES mesh (slug),
  owner      TEXT NOT NULL,
  path       TEXT NOT NULL,
  sha256     TEXT NOT NULL,
  size       INTEGER NOT NULL,
  content    BLOB,           -- NULL where a blob holds it
  lamport    INTEGER NOT NULL,
  peer       TEXT NOT NULL,
  id         BLOB NOT NULL,
  offset     INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  tombstone  INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (mesh, owner, path)
) STRICT;
-- References to blobs are counted over this index, never stored.
CREATE INDEX file_blob ON file (sha256) WHERE tombstone = 0 AND content IS NULL;
CREATE INDEX file_dead ON file (mesh, offset) WHERE tombstone = 1;

CREATE TABLE blob (
  sha256          TEXT PRIMARY KEY,
  size            INTEGER NOT NULL,
  created_at      INTEGER NOT NULL,
  -- Set when the last reference went. The file goes when every reader of the log is past that offset.
  released_at     INTEGER,
  released_offset INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_released ON blob (released_offset) WHERE released_at IS NOT NULL;

CREATE TABLE peer (
  mesh         TEXT NOT NULL REFERENCES mesh (slug),
  peer         TEXT NOT NULL,
  last_seen_at INTEGER NOT NULL,
  last_lamport INTEGER NOT NULL,
  PRIMARY KEY (mesh, peer)
) STRICT, WITHOUT ROWID;
