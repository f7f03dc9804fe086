-- Meshes that this node shares over the bus, with no broker. The owner's node decides who belongs.

CREATE TABLE bus_mesh (
  mesh       TEXT PRIMARY KEY REFERENCES mesh (slug),
  owner      BLOB NOT NULL,     -- the key of the mesh's owner
  members    BLOB NOT NULL,     -- the newest list of members, as the owner signed it
  capability BLOB NOT NULL,     -- what the owner gave this node; empty if this node is the owner
  joined_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Only digests, as of tokens: who reads this file learns no secret.
CREATE TABLE bus_invite (
  digest     BLOB PRIMARY KEY,
  mesh       TEXT NOT NULL REFERENCES bus_mesh (mesh),
  grants     TEXT NOT NULL,     -- JSON list
  uses_left  INTEGER NOT NULL CHECK (uses_left >= 0),
  expires_at INTEGER NOT NULL,
  made_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX bus_invite_mesh ON bus_invite (mesh);

-- Where members were reached, by key: hints, like all addresses.
CREATE TABLE bus_address (
  key       BLOB PRIMARY KEY,
  addresses TEXT NOT NULL,      -- JSON list, the newest first
  seen_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
