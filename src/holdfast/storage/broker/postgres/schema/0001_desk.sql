-- The broker's desk. Everything lives in the schema `holdfast`, which is in the search path of
-- every connection. Text is compared byte by byte, whatever the database's locale is. Times are
-- milliseconds since 1970, by the brokers' clocks.

CREATE TABLE mesh (
    number     INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY,  -- what other tables say for it
    slug       TEXT COLLATE "C" NOT NULL UNIQUE,
    server_id  TEXT NOT NULL,
    name       TEXT NOT NULL,
    owner      BYTEA NOT NULL,
    epoch      BIGINT NOT NULL,
    base       BIGINT NOT NULL,             -- the last seq before this epoch
    seq        BIGINT NOT NULL,             -- the last one; this row's lock is the mesh's pen
    first      BIGINT NOT NULL DEFAULT 1,   -- from here on every change is still held
    created_at BIGINT NOT NULL
) WITH (fillfactor = 50);                   -- seq changes with every group: room for it in place

CREATE TABLE epoch (
    mesh     INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    epoch    BIGINT NOT NULL,
    base     BIGINT NOT NULL,
    began_at BIGINT NOT NULL,
    reason   TEXT NOT NULL,
    PRIMARY KEY (mesh, epoch)
);

CREATE TABLE member (
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    key        BYTEA NOT NULL,
    hex        TEXT COLLATE "C" NOT NULL GENERATED ALWAYS AS (encode(key, 'hex')) STORED,
    name       TEXT COLLATE "C" NOT NULL,
    grants     TEXT[] NOT NULL,
    added_at   BIGINT NOT NULL,
    removed_at BIGINT,
    got_epoch  BIGINT NOT NULL,
    got_seq    BIGINT NOT NULL,
    seen_at    BIGINT,
    PRIMARY KEY (mesh, key)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX member_name ON member (mesh, name) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX member_hex ON member (mesh, hex);   -- where a dm goes
CREATE INDEX member_key ON member (key);

CREATE TABLE invite (
    digest     BYTEA PRIMARY KEY,
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    grants     TEXT[] NOT NULL,
    uses_left  INTEGER NOT NULL CHECK (uses_left >= 0),
    expires_at BIGINT NOT NULL,
    made_by    BYTEA NOT NULL,
    made_at    BIGINT NOT NULL
);
CREATE INDEX invite_mesh ON invite (mesh);

CREATE TABLE destination (
    mesh           INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    kind           TEXT COLLATE "C" NOT NULL CHECK (kind IN ('topic', 'queue')),
    ref            TEXT COLLATE "C" NOT NULL,
    made_at        BIGINT NOT NULL,
    visibility_ms  BIGINT NOT NULL,
    deliveries_max INTEGER NOT NULL,
    PRIMARY KEY (mesh, kind, ref)
);

CREATE TABLE subscription (
    mesh  INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    key   BYTEA NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,                  -- it gets what has a higher seq
    PRIMARY KEY (mesh, key, topic)
);

-- From here on no references: they would cost a lookup for every message. `orphans` looks instead.

CREATE TABLE message (
    mesh       INTEGER NOT NULL,
    seq        BIGINT NOT NULL,
    epoch      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    rank       SMALLINT NOT NULL,           -- 0 is what is sent `now`
    kind       TEXT COLLATE "C" NOT NULL,
    ref        TEXT COLLATE "C" NOT NULL,
    id         BYTEA NOT NULL,
    sender     BYTEA NOT NULL,
    broker_id  BYTEA NOT NULL,
    raw        BYTEA NOT NULL,
    PRIMARY KEY (mesh, seq)
);
-- Changes go in the order of seqs, so they need no place here.
CREATE INDEX message_expires ON message (expires_at) WHERE kind <> 'change';
CREATE INDEX message_express ON message (mesh, seq) WHERE rank = 0 AND kind IN ('topic', 'dm');

CREATE TABLE dedupe (
    mesh          INTEGER NOT NULL,
    id            BYTEA NOT NULL,
    epoch         BIGINT NOT NULL,
    seq           BIGINT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    expires_at    BIGINT,                   -- NULL: never
    history       BOOLEAN NOT NULL,         -- whether the message is still there
    fingerprint   BYTEA NOT NULL,
    broker_id     BYTEA NOT NULL,
    PRIMARY KEY (mesh, id)
);
-- A row outlives its message, so only what has lost its message can be over.
CREATE INDEX dedupe_expires ON dedupe (expires_at) WHERE NOT history;

CREATE TABLE queue (
    mesh       INTEGER NOT NULL,
    seq        BIGINT NOT NULL,
    ref        TEXT COLLATE "C" NOT NULL,
    rank       SMALLINT NOT NULL,
    visible_at BIGINT NOT NULL,             -- hidden until then: somebody has it
    deliveries INTEGER NOT NULL,
    lease      BYTEA,                       -- NULL: nobody has it
    holder     BYTEA,
    died_at    BIGINT,                      -- a dead letter
    reason     TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (mesh, seq)
) WITH (fillfactor = 70);
CREATE INDEX queue_next ON queue (mesh, ref, rank, seq) WHERE died_at IS NULL;
CREATE INDEX queue_dead ON queue (mesh, ref, seq) WHERE died_at IS NOT NULL;
CREATE INDEX queue_taken ON queue (visible_at) WHERE lease IS NOT NULL;

CREATE TABLE object (
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    sha256     TEXT COLLATE "C" NOT NULL,
    size       BIGINT NOT NULL,
    pieces     INTEGER NOT NULL,
    whole      BOOLEAN NOT NULL,
    idle_since BIGINT,                      -- set by a sweep, unset by the next piece
    PRIMARY KEY (mesh, sha256)
);
CREATE TABLE object_piece (
    mesh   INTEGER NOT NULL,
    sha256 TEXT COLLATE "C" NOT NULL,
    number INTEGER NOT NULL,
    piece  BYTEA NOT NULL,
    PRIMARY KEY (mesh, sha256, number),
    FOREIGN KEY (mesh, sha256) REFERENCES object ON DELETE CASCADE
);
ALTER TABLE object_piece ALTER piece SET STORAGE EXTERNAL;   -- mostly packed already

CREATE TABLE snapshot (
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    id         TEXT COLLATE "C" NOT NULL,
    epoch      BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    parts      INTEGER NOT NULL,
    rows       BIGINT NOT NULL,
    ready      BOOLEAN NOT NULL,
    made_by    BYTEA NOT NULL,
    began_at   BIGINT NOT NULL,
    digest     BYTEA NOT NULL,
    idle_since BIGINT,                      -- set by a sweep, unset by the next part
    PRIMARY KEY (mesh, id)
);
CREATE UNIQUE INDEX snapshot_ready ON snapshot (mesh) WHERE ready;
CREATE TABLE snapshot_part (
    mesh   INTEGER NOT NULL,
    id     TEXT COLLATE "C" NOT NULL,
    number INTEGER NOT NULL,
    digest BYTEA NOT NULL,
    part   BYTEA NOT NULL,
    PRIMARY KEY (mesh, id, number),
    FOREIGN KEY (mesh, id) REFERENCES snapshot ON DELETE CASCADE
);
ALTER TABLE snapshot_part ALTER part SET STORAGE EXTERNAL;
