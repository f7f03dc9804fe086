-- Tasks as folded, and every turn on them in stamp order with what it came to.

CREATE TABLE task (
  mesh           TEXT NOT NULL REFERENCES mesh (slug),
  task           TEXT NOT NULL,
  known          INTEGER NOT NULL,  -- 0 until its creation has arrived
  title          TEXT NOT NULL,
  description    TEXT NOT NULL,
  created_by     TEXT NOT NULL,
  created_at     INTEGER NOT NULL,
  status         TEXT NOT NULL CHECK (status IN ('open', 'claimed', 'completed', 'cancelled')),
  generation     INTEGER NOT NULL,
  holder_lamport INTEGER,
  holder_peer    TEXT,
  holder_id      BLOB,
  claimed_at     INTEGER,
  ended_lamport  INTEGER,
  ended_peer     TEXT,
  ended_id       BLOB,
  ended_at       INTEGER,
  lamport        INTEGER NOT NULL,  -- the highest version folded in
  peer           TEXT NOT NULL,
  id             BLOB NOT NULL,
  offset         INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  PRIMARY KEY (mesh, task)
) STRICT;
CREATE INDEX task_status ON task (mesh, status, task) WHERE known = 1;

CREATE TABLE task_event (
  mesh            TEXT NOT NULL,
  task            TEXT NOT NULL,
  lamport         INTEGER NOT NULL,
  peer            TEXT NOT NULL,
  id              BLOB NOT NULL,
  kind            TEXT NOT NULL,
  generation      INTEGER NOT NULL,
  event           TEXT NOT NULL,
  event_time      INTEGER NOT NULL,  -- by the clock of the peer that made the turn
  applied_at      INTEGER NOT NULL,  -- by ours, for people only
  against_lamport INTEGER,
  against_peer    TEXT,
  against_id      BLOB,
  title           TEXT NOT NULL DEFAULT '',
  description     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (mesh, task, lamport, peer, id)
) STRICT, WITHOUT ROWID;
