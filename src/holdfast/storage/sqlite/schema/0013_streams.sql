-- Meshes that are shared over the bus, and what this node has of each stream of them.

ALTER TABLE mesh ADD COLUMN on_bus INTEGER NOT NULL DEFAULT 0 CHECK (on_bus IN (0, 1));

-- A stream is what one origin wrote to one mesh in one epoch of its log.
CREATE TABLE stream (
  number  INTEGER PRIMARY KEY,
  mesh    TEXT NOT NULL,
  origin  TEXT NOT NULL,
  epoch   INTEGER NOT NULL,
  key     BLOB NOT NULL DEFAULT x'',    -- of the origin, if it is known
  base    INTEGER NOT NULL DEFAULT 0,   -- the origin's first number of this epoch is the one after it
  floor   INTEGER NOT NULL DEFAULT 0,   -- entries up to this number were truncated here, some of them at least
  prefix  INTEGER NOT NULL DEFAULT 0,   -- covered: all numbers up to this one ...
  ranges  TEXT NOT NULL DEFAULT '',     -- ... and these, as rules/frontier.py writes them
  entries INTEGER NOT NULL DEFAULT 0,   -- how many were ever here
  -- The sum of their leaf hashes, in lanes of 32 bits that may run over (rules/bus/streams.py).
  d0 INTEGER NOT NULL DEFAULT 0, d1 INTEGER NOT NULL DEFAULT 0,
  d2 INTEGER NOT NULL DEFAULT 0, d3 INTEGER NOT NULL DEFAULT 0,
  d4 INTEGER NOT NULL DEFAULT 0, d5 INTEGER NOT NULL DEFAULT 0,
  d6 INTEGER NOT NULL DEFAULT 0, d7 INTEGER NOT NULL DEFAULT 0,
  trouble TEXT NOT NULL DEFAULT '',     -- what a person has to look at
  UNIQUE (mesh, origin, epoch)
) STRICT;

-- Where the entries of a stream stand in the log. Messages have no row: they are not sent on.
CREATE TABLE stream_place (
  stream INTEGER NOT NULL,
  seq    INTEGER NOT NULL,
  offset INTEGER NOT NULL,
  PRIMARY KEY (stream, seq)
) STRICT, WITHOUT ROWID;
