-- Other nodes: whom we trust, whom we pull from, through whom an entry came.

-- The number of the zone that brought an entry; 0 for what was written here. Never sent: it says what not to send back.
ALTER TABLE log ADD COLUMN via INTEGER NOT NULL DEFAULT 0;

-- Facts never change, so nobody looks them up by entity; in random order they would cost a page write each.
DROP INDEX log_entity;
CREATE INDEX log_entity ON log (mesh, entity) WHERE op <> 'fact.append';

ALTER TABLE consumer ADD COLUMN retire_lag INTEGER;  -- retired when more entries than this wait for it; NULL: never
ALTER TABLE consumer ADD COLUMN zone TEXT NOT NULL DEFAULT '';
ALTER TABLE consumer ADD COLUMN filter TEXT NOT NULL DEFAULT '{}';  -- JSON, as rules/filters.py says it

-- Numbers are given once and for all (the last one is noted in meta): the log bears them.
CREATE TABLE zone (
  number     INTEGER PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  reads      TEXT NOT NULL,  -- JSON list of our meshes that it may read
  added_at   INTEGER NOT NULL,
  blocked_at INTEGER
) STRICT;

-- Several keys of one zone hold at once, so that it can change them without a gap.
CREATE TABLE zone_key (
  key        BLOB PRIMARY KEY,
  zone       TEXT NOT NULL REFERENCES zone (name),
  added_at   INTEGER NOT NULL,
  expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX zone_key_zone ON zone_key (zone);

-- Only digests: who reads this file learns no secret.
CREATE TABLE token (
  name       TEXT PRIMARY KEY,
  digest     BLOB NOT NULL UNIQUE,
  scope      TEXT NOT NULL CHECK (scope IN ('all', 'read')),
  reads      TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER
) STRICT, WITHOUT ROWID;

-- The cursor moves in the transaction that stores what it covers.
CREATE TABLE link (
  name     TEXT PRIMARY KEY,
  url      TEXT NOT NULL,
  zone     TEXT NOT NULL,
  filter   TEXT NOT NULL,
  paused   INTEGER NOT NULL CHECK (paused IN (0, 1)),
  epoch    INTEGER NOT NULL,
  cursor   INTEGER NOT NULL,
  added_at INTEGER NOT NULL,
  moved_at INTEGER
) STRICT, WITHOUT ROWID;

-- What links brought and this node refused. The offset is one of the source's log.
CREATE TABLE quarantine (
  number   INTEGER PRIMARY KEY,
  link     TEXT NOT NULL,
  epoch    INTEGER NOT NULL,
  offset   INTEGER NOT NULL,
  code     TEXT NOT NULL,
  message  TEXT NOT NULL,
  raw      BLOB NOT NULL,
  found_at INTEGER NOT NULL
) STRICT;
CREATE INDEX quarantine_link ON quarantine (link);

-- Objects that facts in the log name: they keep the blob until the fact is truncated.
CREATE TABLE fact_object (
  sha256 TEXT NOT NULL,
  offset INTEGER NOT NULL,
  PRIMARY KEY (sha256, offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX fact_object_offset ON fact_object (offset);
