-- The desk of a broker. A place is the number of the mesh and a seq in one integer, so that messages
-- are appended to one table in the order of their key, whichever mesh they are of.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE mesh (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    slug TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    server_id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    base INTEGER NOT NULL,
    seq INTEGER NOT NULL DEFAULT 0,
    first INTEGER NOT NULL DEFAULT 1,
    messages INTEGER NOT NULL DEFAULT 0, -- rows of it in message and in dedupe, for the metrics
    dedupe INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
);

CREATE TABLE epoch (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    epoch INTEGER NOT NULL,
    base INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (mesh, epoch)
) WITHOUT ROWID;

CREATE TABLE member (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    key BLOB NOT NULL,
    name TEXT NOT NULL,
    grants TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    removed_at INTEGER,
    got_epoch INTEGER NOT NULL DEFAULT 0,
    got_seq INTEGER NOT NULL DEFAULT 0,
    seen_at INTEGER,
    PRIMARY KEY (mesh, key)
) WITHOUT ROWID;
CREATE UNIQUE INDEX member_name ON member (mesh, name) WHERE removed_at IS NULL;
CREATE INDEX member_key ON member (key);

CREATE TABLE invite (
    digest BLOB PRIMARY KEY,
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    grants TEXT NOT NULL,
    uses_left INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    made_by BLOB NOT NULL,
    made_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX invite_mesh ON invite (mesh);
CREATE INDEX invite_ends ON invite (expires_at);

CREATE TABLE destination (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    ref TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    visibility_ms INTEGER NOT NULL,
    deliveries_max INTEGER NOT NULL,
    PRIMARY KEY (mesh, kind, ref)
) WITHOUT ROWID;

CREATE TABLE subscription (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    key BLOB NOT NULL,
    topic TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (mesh, key, topic)
) WITHOUT ROWID;

-- An id that is known. Its order is that of time, more or less: ids are UUIDv7.
CREATE TABLE dedupe (
    mesh INTEGER NOT NULL,
    id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    broker_id BLOB NOT NULL,
    first_seen_at INTEGER NOT NULL,
    expires_at INTEGER, -- NULL: never
    history INTEGER NOT NULL DEFAULT 1, -- 0: its message was removed in its time
    PRIMARY KEY (mesh, id)
) WITHOUT ROWID;
-- Only those whose message is gone may go: accepting pays nothing for this index.
CREATE INDEX dedupe_ends ON dedupe (expires_at) WHERE history = 0 AND expires_at IS NOT NULL;

CREATE TABLE message (
    place INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL, -- 0 change, 1 topic, 2 dm, 3 queue
    rank INTEGER NOT NULL,
    ref TEXT NOT NULL,
    sender BLOB NOT NULL,
    id BLOB NOT NULL,
    broker_id BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    raw BLOB NOT NULL -- last, so that a reader who passes over a row does not read it
);
CREATE INDEX message_ends ON message (expires_at) WHERE kind > 0;
CREATE INDEX message_urgent ON message (place) WHERE rank = 0 AND kind IN (1, 2);

CREATE TABLE queued (
    place INTEGER PRIMARY KEY,
    mesh INTEGER NOT NULL,
    queue TEXT NOT NULL,
    rank INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0, -- 0 ready, 1 taken, 2 dead
    deliveries INTEGER NOT NULL DEFAULT 0,
    lease BLOB,
    holder BLOB,
    until INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    died_at INTEGER
);
CREATE INDEX queued_turn ON queued (mesh, queue, state, rank, place);
CREATE INDEX queued_until ON queued (until) WHERE state = 1;

CREATE TABLE object (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    pieces INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    whole INTEGER NOT NULL DEFAULT 0,
    idle_since INTEGER, -- set by a sweep, unset by the next piece
    PRIMARY KEY (mesh, sha256)
) WITHOUT ROWID;
CREATE INDEX object_open ON object (idle_since) WHERE whole = 0;

CREATE TABLE object_piece (
    mesh INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    number INTEGER NOT NULL,
    piece BLOB NOT NULL,
    PRIMARY KEY (mesh, sha256, number)
);

CREATE TABLE snapshot (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    parts INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0,
    made_by BLOB NOT NULL,
    began_at INTEGER NOT NULL,
    digest BLOB NOT NULL DEFAULT x'',
    idle_since INTEGER,
    PRIMARY KEY (mesh, id)
) WITHOUT ROWID;

CREATE TABLE snapshot_part (
    mesh INTEGER NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL,
    digest BLOB NOT NULL,
    part BLOB NOT NULL,
    PRIMARY KEY (mesh, id, number)
);
