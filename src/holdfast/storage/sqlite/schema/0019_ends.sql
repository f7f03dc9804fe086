-- Meshes that are deleted in this home.

-- 1 while the rows of a mesh are removed: from then on nobody finds it.
ALTER TABLE mesh ADD COLUMN ending INTEGER NOT NULL DEFAULT 0 CHECK (ending IN (0, 1));

-- What is left of a mesh that was deleted: enough that it does not come back by itself, and that its clock and our numbers in it
-- go on if it is made or joined again.
CREATE TABLE ended_mesh (
  mesh     TEXT PRIMARY KEY,
  lamport  INTEGER NOT NULL,
  seq      INTEGER NOT NULL,            -- the count of our own envelopes
  epoch    INTEGER NOT NULL,            -- of our log
  head     INTEGER NOT NULL,            -- the end of our log then: ids that were forgotten up to it are of the former mesh
  begun_at INTEGER NOT NULL,
  ended_at INTEGER,                     -- NULL while rows are removed
  dropped  INTEGER NOT NULL DEFAULT 0   -- envelopes that came afterwards
) STRICT, WITHOUT ROWID;

-- Offsets from `first` to `last` were removed from the middle of the log, with their mesh.
CREATE TABLE log_hole (
  first INTEGER PRIMARY KEY,
  last  INTEGER NOT NULL
) STRICT;
