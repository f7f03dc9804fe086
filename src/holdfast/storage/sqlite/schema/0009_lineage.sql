-- What the version of a key that stands has seen of other peers' versions, so that what arrives late is known as its
-- ancestor; what a lost version had seen; and which deletions were forgotten, key by key.

CREATE TABLE state_seen (
  mesh    TEXT NOT NULL,
  key     TEXT NOT NULL,
  peer    TEXT NOT NULL,
  lamport INTEGER NOT NULL,  -- all that this peer wrote on the key up to here
  PRIMARY KEY (mesh, key, peer),
  FOREIGN KEY (mesh, key) REFERENCES state (mesh, key) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

ALTER TABLE conflict ADD COLUMN base_lamport INTEGER;
ALTER TABLE conflict ADD COLUMN base_peer TEXT;
DROP INDEX conflict_open;
CREATE INDEX conflict_entity ON conflict (mesh, entity, loser_lamport);

-- By lamport, so that the newest versions of an entity are found without the others.
DROP INDEX log_entity;
CREATE INDEX log_entity ON log (mesh, entity, lamport) WHERE op <> 'fact.append';

-- One row for each key whose tombstone was removed. Beyond a number of them the lowest go, and the mesh's floor rises.
CREATE TABLE buried (
  mesh    TEXT NOT NULL,
  name    BLOB NOT NULL,     -- hash of family, owner, key and model
  lamport INTEGER NOT NULL,  -- of the newest tombstone that was removed
  PRIMARY KEY (mesh, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX buried_lamport ON buried (mesh, lamport);

ALTER TABLE mesh ADD COLUMN forgotten_floor INTEGER NOT NULL DEFAULT 0;
UPDATE mesh SET forgotten_floor = forgotten_lamport;
