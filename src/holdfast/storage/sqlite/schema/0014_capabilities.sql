-- Capabilities: rights over the bus that this node gave to keys, and those that it was given.

CREATE TABLE bus_capability (
  id         BLOB PRIMARY KEY,  -- of its last step
  kind       TEXT NOT NULL CHECK (kind IN ('given', 'held', 'revoked')),
  name       TEXT NOT NULL,     -- given: its holder; held: its issuer; else empty
  key        BLOB NOT NULL,     -- given: of its holder; held: of its issuer; else of this node
  capability BLOB NOT NULL,     -- the chain of signed steps; empty where only the id is known
  added_at   INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
