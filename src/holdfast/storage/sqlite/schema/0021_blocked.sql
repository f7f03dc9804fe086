-- Peers whose messages this node does not want: they are dropped at its door.
CREATE TABLE blocked_peer (
  peer    TEXT PRIMARY KEY,
  since   INTEGER NOT NULL,
  dropped INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
