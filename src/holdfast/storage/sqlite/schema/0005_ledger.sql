-- What merges discarded, and what this node's peer must still be told.

CREATE TABLE conflict (
  number         INTEGER PRIMARY KEY,
  mesh           TEXT NOT NULL,
  family         TEXT NOT NULL,
  owner          TEXT NOT NULL,
  entity         TEXT NOT NULL,
  reason         TEXT NOT NULL,
  winner_lamport INTEGER NOT NULL,
  winner_peer    TEXT NOT NULL,
  winner_id      BLOB NOT NULL,
  loser_lamport  INTEGER NOT NULL,
  loser_peer     TEXT NOT NULL,
  loser_id       BLOB NOT NULL,
  loser_op       TEXT NOT NULL,
  loser_body     BLOB NOT NULL,  -- enough to write it again
  found_at       INTEGER NOT NULL,
  resolved_at    INTEGER,
  resolution     TEXT
) STRICT;
CREATE INDEX conflict_open ON conflict (mesh, entity) WHERE resolved_at IS NULL;

CREATE TABLE warning (
  number     INTEGER PRIMARY KEY,
  mesh       TEXT NOT NULL,
  type       TEXT NOT NULL,
  entity     TEXT NOT NULL,
  by_peer    TEXT NOT NULL,
  at_lamport INTEGER NOT NULL
) STRICT;
