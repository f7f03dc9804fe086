-- What the quorums of meshes have committed, as this node has folded it.

-- Where this node stands with the quorum of a mesh. `applied` moves in the transaction that folds the entries up to it.
CREATE TABLE quorum (
  mesh         TEXT PRIMARY KEY REFERENCES mesh (slug),
  engine       TEXT NOT NULL CHECK (engine IN ('embedded', 'etcd')),
  incarnation  INTEGER NOT NULL,
  tag          BLOB NOT NULL,              -- tells this incarnation from any other group of the same name
  voter        INTEGER,                    -- our id among the voters; NULL: we do not vote
  applied      INTEGER NOT NULL DEFAULT 0, -- the engine's index of the last entry that was folded
  number       INTEGER NOT NULL DEFAULT 0, -- the commit number of the last entry that counts
  fence        TEXT,                       -- of that entry; NULL before the first
  committed_at INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The commit record of an entry, beside its bytes in the log. It outlives them: an intent that is committed again gets the
-- answer of the first time on every node, or nodes would differ.
CREATE TABLE quorum_commit (
  offset INTEGER PRIMARY KEY,  -- of the envelope in our log
  mesh   TEXT NOT NULL,
  number INTEGER NOT NULL,
  id     BLOB NOT NULL,        -- of the envelope, which is the intent's
  head   INTEGER NOT NULL,     -- the end of our log when it was folded: an intent may have waited in the log before
  record BLOB NOT NULL         -- as rules/quorum/commit_record.py writes it
) STRICT;
CREATE UNIQUE INDEX quorum_commit_number ON quorum_commit (mesh, number);
CREATE UNIQUE INDEX quorum_commit_id ON quorum_commit (mesh, id);

-- Intents that were given up before they were committed, and by which commit.
CREATE TABLE quorum_void (
  mesh   TEXT NOT NULL,
  id     BLOB NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (mesh, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE entity (
  mesh         TEXT NOT NULL,
  type         TEXT NOT NULL,
  id           TEXT NOT NULL,
  revision     INTEGER NOT NULL,
  parent       TEXT NOT NULL,  -- empty: it has none, or it is deleted
  deleted      INTEGER NOT NULL CHECK (deleted IN (0, 1)),
  whole        INTEGER NOT NULL CHECK (whole IN (0, 1)),  -- the last change was no patch
  origin       TEXT NOT NULL,
  lamport      INTEGER NOT NULL,
  incarnation  INTEGER NOT NULL,  -- these four are the fence of the last change
  lease_epoch  INTEGER NOT NULL,
  coordinator  TEXT NOT NULL,
  sequence     INTEGER NOT NULL,
  committed_at INTEGER NOT NULL,
  fields       TEXT NOT NULL,     -- JSON
  PRIMARY KEY (mesh, type, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entity_parent ON entity (mesh, type, parent) WHERE parent <> '';

-- Every revision of an entity and the commit that made it; the content is what the envelopes of these commits say.
CREATE TABLE entity_revision (
  mesh     TEXT NOT NULL,
  type     TEXT NOT NULL,
  id       TEXT NOT NULL,
  revision INTEGER NOT NULL,
  number   INTEGER NOT NULL,
  deleted  INTEGER NOT NULL,
  whole    INTEGER NOT NULL,
  PRIMARY KEY (mesh, type, id, revision)
) STRICT, WITHOUT ROWID;

-- Intents that need a decision. One side stands in the log, the other is the entity.
CREATE TABLE quorum_conflict (
  mesh        TEXT NOT NULL,
  number      INTEGER NOT NULL,  -- of the commit
  clashes     BLOB NOT NULL,     -- which entities, and in which fields
  resolved_at INTEGER,
  resolution  TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (mesh, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX quorum_conflict_open ON quorum_conflict (mesh, number) WHERE resolved_at IS NULL;

-- Leases of users that somebody holds. A free one has no row.
CREATE TABLE quorum_lease (
  mesh    TEXT NOT NULL,
  name    TEXT NOT NULL,
  holder  TEXT NOT NULL,
  session BLOB NOT NULL,
  ttl_ms  INTEGER NOT NULL,
  grant   TEXT,
  renewed TEXT,
  since   INTEGER NOT NULL,
  waiting BLOB NOT NULL,
  PRIMARY KEY (mesh, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE quorum_node (
  mesh         TEXT NOT NULL,
  peer         TEXT NOT NULL,
  lost         INTEGER NOT NULL CHECK (lost IN (0, 1)),
  fence        TEXT NOT NULL,
  committed_at INTEGER NOT NULL,
  PRIMARY KEY (mesh, peer)
) STRICT, WITHOUT ROWID;

-- What the lane of a quorum keeps of a row of the outbox beyond what every lane does.
CREATE TABLE quorum_queue (
  number         INTEGER PRIMARY KEY,  -- of the row of the outbox
  target         TEXT NOT NULL,        -- the node that should take it; empty: whoever coordinates
  outcome        TEXT,
  fence          TEXT,                 -- of the present try, or of the last one
  earlier_fences BLOB NOT NULL,        -- of those before, for audits
  resolved_by    TEXT NOT NULL         -- who dealt with a failure; then it counts no longer
) STRICT;

-- The newest snapshot of a mesh from each node: what reads fall back on.
CREATE TABLE mesh_snapshot (
  mesh        TEXT NOT NULL,
  source      TEXT NOT NULL,
  captured_at INTEGER NOT NULL,
  version     TEXT NOT NULL,  -- SHA-256 of the payload, as hex
  payload     BLOB NOT NULL,
  PRIMARY KEY (mesh, source)
) STRICT;

-- Twice the commit number, plus one for the second turn of a handoff; 0 where stamps decide.
ALTER TABLE task_event ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
CREATE INDEX task_held ON task (mesh, holder_peer, task) WHERE status = 'claimed';
