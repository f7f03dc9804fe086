-- What the quorum of a mesh has committed, as members bring it: each number once.
CREATE TABLE commit_order (
    mesh         INTEGER PRIMARY KEY REFERENCES mesh ON DELETE CASCADE,
    engine       TEXT NOT NULL,
    incarnation  BIGINT NOT NULL,
    tag          BYTEA NOT NULL,
    fence        TEXT COLLATE "C" NOT NULL,   -- of the last one
    first        BIGINT NOT NULL,             -- from this number on every commit is held
    last         BIGINT NOT NULL,
    state_number BIGINT NOT NULL,             -- 0: no state
    state_sha256 TEXT COLLATE "C" NOT NULL,
    state_size   BIGINT NOT NULL
);
CREATE TABLE commit_line (
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    number     BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    record     BYTEA NOT NULL,
    raw        BYTEA NOT NULL,
    PRIMARY KEY (mesh, number)
);
