-- Audit streams: every event with what binds it to its neighbours. They outlive their entries in the log.

CREATE TABLE audit (
  mesh     TEXT NOT NULL,
  stream   TEXT NOT NULL,
  origin   TEXT NOT NULL,
  epoch    INTEGER NOT NULL,  -- of the origin's log: in each it counts from 1
  seq      INTEGER NOT NULL,
  id       BLOB NOT NULL,
  at       INTEGER NOT NULL,
  payload  TEXT NOT NULL,     -- JSON
  previous BLOB NOT NULL,     -- the hash of the event before it
  hash     BLOB NOT NULL,
  lamport  INTEGER NOT NULL,
  offset   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX audit_place ON audit (mesh, stream, origin, epoch, seq);

-- How much of each chain is here, so that nobody has to count its events.
CREATE TABLE audit_chain (
  mesh   TEXT NOT NULL,
  stream TEXT NOT NULL,
  origin TEXT NOT NULL,
  epoch  INTEGER NOT NULL,
  last   INTEGER NOT NULL,
  events INTEGER NOT NULL,
  PRIMARY KEY (mesh, stream, origin, epoch)
) STRICT, WITHOUT ROWID;
