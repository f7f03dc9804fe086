-- Shared meshes: what waits for the broker, what it brought, and where we stand with it.

ALTER TABLE mesh ADD COLUMN broker_url TEXT;   -- these three are set exactly when the mesh is shared
ALTER TABLE mesh ADD COLUMN broker_card TEXT;
ALTER TABLE mesh ADD COLUMN server_id TEXT;
ALTER TABLE mesh ADD COLUMN broker_epoch INTEGER NOT NULL DEFAULT 0;  -- with broker_seq the cursor in the broker's numbering
ALTER TABLE mesh ADD COLUMN broker_seq INTEGER NOT NULL DEFAULT 0;

-- The envelope itself stands in the log at `offset`. The sweep leaves the row with the highest number, so none is given twice.
CREATE TABLE spool (
  number       INTEGER PRIMARY KEY,
  lane         TEXT NOT NULL,
  id           BLOB NOT NULL,
  mesh         TEXT NOT NULL,
  entity       TEXT NOT NULL,     -- what must keep its order; empty for what has none
  rank         INTEGER NOT NULL,  -- lower goes first
  offset       INTEGER NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
  attempts     INTEGER NOT NULL,
  not_before   INTEGER NOT NULL,
  tried_at     INTEGER,
  ended_at     INTEGER,
  created_at   INTEGER NOT NULL,
  code         TEXT NOT NULL,
  error        TEXT NOT NULL,
  broker_id    BLOB,
  broker_epoch INTEGER NOT NULL,
  broker_seq   INTEGER NOT NULL,
  replaces     BLOB,
  UNIQUE (id, lane)
) STRICT;
-- Each holds little but what its question is about: a row that is done stands in none of them.
CREATE INDEX spool_due ON spool (lane, rank, number, not_before, offset) WHERE state = 'pending';
CREATE INDEX spool_inflight ON spool (lane, number, offset) WHERE state = 'inflight';
CREATE INDEX spool_failing ON spool (lane, entity, number, offset) WHERE state = 'dead' OR (state = 'pending' AND attempts > 0);
CREATE INDEX spool_aborted ON spool (lane) WHERE state = 'aborted';

-- Messages for us. The content stands in the log at `offset`; the row stays as long as that does, so that a message that comes
-- again is not new again. The sweep leaves the row with the highest number here too.
CREATE TABLE inbox (
  number      INTEGER PRIMARY KEY,
  id          BLOB NOT NULL UNIQUE,
  mesh        TEXT NOT NULL,
  kind        TEXT NOT NULL,
  ref         TEXT NOT NULL,
  sender      TEXT NOT NULL,
  priority    TEXT NOT NULL,
  offset      INTEGER NOT NULL,
  broker_id   BLOB,
  received_at INTEGER NOT NULL,
  read_at     INTEGER,
  hooked_at   INTEGER
) STRICT;
CREATE INDEX inbox_unread ON inbox (number, offset, received_at) WHERE read_at IS NULL;
CREATE INDEX inbox_unhooked ON inbox (number) WHERE hooked_at IS NULL;
CREATE INDEX inbox_offset ON inbox (offset);

-- What stood where in the broker's numbering, pushed or received: a broker that went back is told again what it forgot.
CREATE TABLE heard (
  mesh   TEXT NOT NULL,
  epoch  INTEGER NOT NULL,
  seq    INTEGER NOT NULL,
  offset INTEGER NOT NULL,
  PRIMARY KEY (mesh, epoch, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX heard_offset ON heard (offset);

-- Members, as the broker last told: a cache.
CREATE TABLE mate (
  mesh    TEXT NOT NULL,
  key     BLOB NOT NULL,
  name    TEXT NOT NULL,
  grants  TEXT NOT NULL,  -- JSON list
  seen_at INTEGER,
  PRIMARY KEY (mesh, key)
) STRICT, WITHOUT ROWID;
