-- Telemetry: values that are true on this node only, and for a while. They are in no log.

CREATE TABLE telemetry (
  mesh       TEXT NOT NULL,
  kind       TEXT NOT NULL,
  key        TEXT NOT NULL,
  value      TEXT NOT NULL,     -- JSON
  updated_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (mesh, kind, key)
) STRICT;
CREATE INDEX telemetry_end ON telemetry (expires_at);

-- How many rows a mesh has, so that no write has to count them.
CREATE TABLE telemetry_count (
  mesh TEXT NOT NULL PRIMARY KEY,
  rows INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER telemetry_added AFTER INSERT ON telemetry BEGIN
  INSERT INTO telemetry_count (mesh, rows) VALUES (new.mesh, 1) ON CONFLICT (mesh) DO UPDATE SET rows = rows + 1;
END;
CREATE TRIGGER telemetry_removed AFTER DELETE ON telemetry BEGIN
  UPDATE telemetry_count SET rows = rows - 1 WHERE mesh = old.mesh;
END;
