-- Vectors: rows are only added; the newest per (mesh, owner, key, model) is live and stands in its model's index.

CREATE TABLE vector (
  row        INTEGER PRIMARY KEY,
  mesh       TEXT NOT NULL REFERENCES mesh (slug),
  owner      TEXT NOT NULL,
  key        TEXT NOT NULL,
  model      TEXT NOT NULL,
  content    TEXT NOT NULL,
  metadata   TEXT NOT NULL,  -- JSON text
  embedding  BLOB NOT NULL,  -- little-endian float32; empty in a tombstone
  lamport    INTEGER NOT NULL,
  peer       TEXT NOT NULL,
  id         BLOB NOT NULL,
  offset     INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  tombstone  INTEGER NOT NULL DEFAULT 0,
  live       INTEGER NOT NULL
) STRICT;
CREATE INDEX vector_key ON vector (mesh, owner, key, model, lamport, peer, id);
CREATE INDEX vector_model_rows ON vector (model, mesh) WHERE live = 1;
CREATE INDEX vector_dead ON vector (mesh, offset) WHERE live = 0;

-- The models and, per mesh, what a search needs to know. The index tables are made per model when it is first used.
CREATE TABLE vector_model (
  id            TEXT PRIMARY KEY,      -- the fingerprint of the five fields below
  provider      TEXT NOT NULL,
  name          TEXT NOT NULL,
  version       TEXT NOT NULL,
  dim           INTEGER NOT NULL,
  quantization  TEXT NOT NULL,
  vec_table     TEXT NOT NULL UNIQUE,  -- compared with the derived name before each use
  created_at    INTEGER NOT NULL,
  deprecated_at INTEGER,
  last_read_at  INTEGER
) STRICT;

CREATE TABLE vector_mesh (
  model    TEXT NOT NULL REFERENCES vector_model (id),
  mesh     TEXT NOT NULL,
  live     INTEGER NOT NULL,
  norm_min REAL NOT NULL,              -- of all vectors since the mesh last had none
  norm_max REAL NOT NULL,
  centre   BLOB,                       -- NULL: no sketches yet; empty: sketches would not help
  PRIMARY KEY (model, mesh)
) STRICT;
